"""The private discriminator: what its plan refuses and chooses, what a run asks, and which candidates it keeps."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.doubles.bench import run_method
from tests.doubles.pace import slow_after
from tests.doubles.parties import embed
from tests.doubles.tasks import make_replay_task
from tests.doubles.tiny_bert import write_bert
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, plan_sums
from undersong_server.learning import fine_tune
from undersong_server.methods import discriminator
from undersong_server.methods.discriminator import Options
from undersong_server.methods.interface import Setting
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_figures, plan_run

ALONE = Quorum(1, 1, 0, 0)


def make_setting(epsilon=3.6, parties=1, labels=("a", "b"), **privacy):
    quorum = Quorum(parties, parties, 0, 0)
    return Setting(labels, ("one",), privacy=Privacy(epsilon, 1e-5, **privacy), quorum=quorum)


def test_fifteen_teachers_for_a_thousand_queries_are_refused_with_remedies():
    """Song et al. 2024: sigma 37.5 at (3.6, 1e-5), so 375 teachers; the remedies named are enough."""
    options = Options(discriminator="teachers", teachers=15, queries=1000, tutor_share=0)
    with pytest.raises(ConfigurationError, match=r"method\.teachers: 15 teachers.* 375 teachers") as refused:
        discriminator.plan(options, make_setting())
    assert "method.teachers to 375" in refused.value.remedy
    enough = discriminator.plan(options.model_copy(update={"teachers": 375}), make_setting())
    assert plan_sums(enough, Privacy(3.6, 1e-5), ALONE)["teachers"].sigma == pytest.approx(37.5, abs=0.05)
    with pytest.raises(ConfigurationError):
        discriminator.plan(options.model_copy(update={"teachers": 374}), make_setting())
    discriminator.plan(options.model_copy(update={"teachers": 38}), make_setting(parties=10))
    fewer = Options(discriminator="teachers", teachers=100, queries=1000, tutor_share=0)
    with pytest.raises(ConfigurationError) as refused:
        discriminator.plan(fewer, make_setting())
    queries = int(refused.value.remedy.split("queries to ")[1].split(",")[0])
    assert queries == 71
    discriminator.plan(fewer.model_copy(update={"queries": queries}), make_setting())


def test_discriminator_papers_noise_really_spends_epsilon_443_or_244():
    """docs/discriminator.md: at (3.6, 5e-6) for one answer 1 000 queries cost 443 as two counts each, 244 as one.

    The number of queries and delta are assumptions: the paper's copy prints neither.
    """
    plan = Plan(Privacy(4.0, 1e-5), ALONE)
    figures = discriminator.METHOD.paper_figures(Options(queries=1000), plan)
    assert figures["epsilon_really_spent"] == pytest.approx(443, abs=1)
    assert figures["epsilon_as_scalar_counts"] == pytest.approx(244, abs=1)


def test_unit_party_allows_one_teacher_a_party_and_summed_users_none():
    with pytest.raises(ConfigurationError, match="10 teachers in all") as refused:
        discriminator.plan(Options(discriminator="teachers", teachers=500), make_setting(parties=10, unit="party"))
    assert "method.teachers" not in refused.value.remedy
    summed = {"unit": "user", "max_per_unit": 4, "contribution": "sum"}
    with pytest.raises(ConfigurationError, match="user_contribution"):
        discriminator.plan(Options(discriminator="teachers", teachers=5000), make_setting(**summed))
    assert discriminator.chosen(Options(teachers=5000), make_setting(**summed)) == "moments"
    with pytest.raises(ConfigurationError, match=r"method\.queries"):
        discriminator.plan(Options(discriminator="teachers", samples=50, queries=50), make_setting())


@pytest.mark.parametrize(
    ("options", "facts", "kind"),
    [
        ({}, {}, "moments"),
        ({"teachers": 10_000}, {}, "moments"),  # two classes: two sums beat 384 directions of votes
        ({"teachers": 100}, {"labels": tuple(map(str, range(500)))}, "moments"),  # too few teachers to be of use
        ({"teachers": 1000}, {"labels": tuple(map(str, range(500)))}, "teachers"),
        ({}, {"labels": tuple(map(str, range(500)))}, "teachers"),
        ({"teachers": 100, "embedding_size": 4}, {"labels": tuple("abcdefgh"), "epsilon": 40.0}, "teachers"),
        ({"teachers": 100, "embedding_size": 16}, {"labels": tuple("abcdefgh"), "epsilon": 40.0}, "moments"),
    ],
)  # fmt: skip
def test_automatic_discriminator_options_depend_only_on_the_plan(options, facts, kind):
    chosen = discriminator.chosen(Options(**options), make_setting(**facts))
    assert chosen == kind
    assert [request.name for request in discriminator.plan(Options(**options), make_setting(**facts))][1] == kind
    assert any(f'"{kind}"' in note for note in discriminator.notes(Options(**options), make_setting(**facts)))


@pytest.mark.parametrize(("epsilon", "parties"), [(1.0, 1), (4.0, 10), (math.inf, 3)])
def test_default_teacher_count_is_the_smallest_that_outweighs_the_noise(epsilon, parties):
    facts = make_setting(epsilon, parties)
    requests = discriminator.plan(Options(discriminator="teachers"), facts)
    teachers, sigma = requests[1].statistic.teachers, plan_sums(requests, facts.privacy, facts.quorum)["teachers"].sigma
    assert teachers * parties >= max(20, 10 * sigma)
    assert (teachers - 1) * parties < max(20, 10 * sigma)


def test_moments_without_a_private_label_histogram_are_refused():
    with pytest.raises(ConfigurationError, match="tutor_share"):
        discriminator.plan(Options(discriminator="moments", tutor_share=0), make_setting())
    unlabelled = discriminator.plan(Options(discriminator="moments"), make_setting(labels=()))
    assert [request.statistic.dimension for request in unlabelled] == [1, 384]


def test_kept_candidates_follow_the_label_shares_until_a_label_runs_out():
    scores, label_of = np.arange(10.0), np.array([0] * 6 + [1] * 4)
    assert discriminator.kept(scores, label_of, np.array([0.5, 0.5]), 0.4) == [4, 5, 8, 9]
    assert discriminator.kept(scores, label_of, np.array([0.0, 1.0]), 0.6) == [4, 5, 6, 7, 8, 9]  # two from the other
    assert discriminator.kept(scores, label_of, np.array([1.0, 0.0]), 1.0) == list(range(10))
    assert discriminator.kept(scores, label_of, np.array([0.9, 0.1]), 0.01) == [5]


def write_task(folder, records=600, epsilon=8.0, labels=("a", "b"), **method):
    """Private notes of two classes; the pool has texts near them and far ones, three times as many."""
    rng = np.random.default_rng(0)
    rows = [{"text": f"near {label}", "label": label} for _ in range(records // 4) for label in "aaab"]
    for number, row in enumerate(rows):
        row["text"] += f" {number}"
    pool = [{"text": f"{rng.choice(['near', 'far', 'far', 'far'])} {label} p{n}", "label": label}
            for n in range(400) for label in "ab"]  # fmt: skip
    keys = {"samples": 400, "queries": 80, "contrast": 100, "teachers": 60, "embedding_size": 48, **method}
    path = make_replay_task(
        folder,
        rows,
        generators={"g0": pool, "g1": pool},
        task={"labels": list(labels)},
        privacy={"epsilon": epsilon},
        federation={"parties": 1},
        method={"name": "discriminator", **keys},
    )
    return tasks.load(path)


@pytest.fixture(autouse=True)
def words_have_directions(monkeypatch):
    """The first two words of a text decide its embedding, the rest is a little noise."""

    def by_words(texts):
        heads = [[*text.split(), "", ""] for text in texts]
        near, label, rest = (embed([words[place] for words in heads]) for place in range(3))
        mixed = 0.6 * near + 0.6 * label + 0.4 * rest
        return np.round(mixed / np.linalg.norm(mixed, axis=1, keepdims=True) * 0.99 * 2048).astype(np.float32) / 2048

    monkeypatch.setattr("tests.doubles.bench.embed", by_words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "asked"),
    slow_after(
        [
            ("teachers", {}, ["labels", "teachers"]),
            ("moments", {}, ["labels", "moments"]),
            ("votes", {}, ["labels", "votes"]),
            ("random", {}, ["labels"]),
        ],
        2,
    ),
)
def test_discriminator_run_makes_its_planned_sums_and_keeps_near_texts(tmp_path, kind, changes, asked):
    task = write_task(tmp_path, discriminator=kind, keep=0.2, **changes)
    run_plan = plan_run(task)
    samples, run = run_method(task, run_plan, seed=0)
    assert run.asked == [planned.name for planned in run_plan.plan.sums] == asked
    assert run.ordered >= run_plan.generator_calls == 400
    assert len(samples) == round(0.2 * len(run.pool))
    assert np.mean([sample.label == "a" for sample in samples]) == pytest.approx(0.75, abs=0.05)
    near = np.mean([sample.text.startswith("near") for sample in samples])
    written = np.mean([sample.text.startswith("near") for sample in run.pool.samples])
    assert written < 0.45
    assert near < 0.6 if kind == "random" else near > 0.8
    by_author = [sum(sample.generator == name for sample in run.pool.samples) for name in ("g0", "g1")]
    assert abs(by_author[0] - by_author[1]) <= 20  # some orders end as duplicates
    classes = np.arange(100) % 2
    real = [f"near {'ab'[label]} t{n}" for n, label in enumerate(classes)]
    figures = discriminator.METHOD.figures(run.records, run._embed, real, classes)
    assert figures.pop("discriminator") == kind
    if kind in ("teachers", "moments"):
        assert 0.65 < figures["discriminator_accuracy"] <= figures["discriminator_auc"] <= 1.0
        precision, recall, f1 = (figures[f"discriminator_{name}"] for name in ("precision", "recall", "f1"))
        assert precision > 0.6
        assert recall > 0.5
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall))
    else:
        assert not figures  # nothing that could score a text it has not seen


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["moments", "auto"])
def test_other_embedding_size_than_planned_is_refused_before_any_request(tmp_path, monkeypatch, kind):
    task = write_task(tmp_path, discriminator=kind, embedding_size=384)
    for spends in ("private_sum", "write"):
        monkeypatch.setattr(f"tests.doubles.bench.CountingRun.{spends}", lambda *_: pytest.fail("too late"))
    with pytest.raises(ConfigurationError, match="gives 48 coordinates") as refused:
        run_method(task, plan_run(task), seed=0)
    assert refused.value.remedy == "set method.embedding_size = 48"


@pytest.mark.heavy
def test_automatic_discriminator_runs_without_labels(tmp_path):
    task = write_task(tmp_path, labels=(), discriminator="auto", keep=0.5)
    run_plan = plan_run(task)
    _, run = run_method_without_labels(task, run_plan)
    assert run.asked == ["labels", "moments"]
    assert run_plan.plan["labels"].dimension == 1


@pytest.mark.heavy
def test_plan_states_fine_tuned_teachers_and_publishes_their_texts(tmp_path, monkeypatch):
    task = write_task(tmp_path, discriminator="teachers", teacher="fine-tuned", queries=60, keep=0.5)
    run_plan = plan_run(task)
    assert run_plan.plan["teachers"].parameters["fine_tuned"] is True
    assert run_plan.plan["teachers"].l2 == pytest.approx(math.sqrt(60))
    assert any(
        "60 in turn" in note and "--patience" in note for note in plan_figures(run_plan).to_json()["method_notes"]
    )
    seen = {}

    def votes(texts, classes, shards, contrast, queries, **settings):
        seen.update(settings, contrast=contrast, queries=queries)
        near = np.array([text.startswith("near") for text in queries.texts])
        return np.tile(near, (settings["teachers"], 1))

    monkeypatch.setattr("undersong_protocol.statistics.teacher_votes.votes", votes)
    monkeypatch.setattr("tests.doubles.bench.Records.local_model", "a folder", raising=False)
    samples, run = run_method(task, run_plan, seed=0)
    assert run.asked == ["labels", "teachers"]
    assert (seen["model"], seen["teachers"], seen["half"]) == ("a folder", 60, True)
    assert (len(seen["queries"].texts), len(seen["contrast"].texts)) == (60, 100)
    for shown in (seen["queries"], seen["contrast"]):
        assert ["ab"[label] for label in shown.classes] == [text.split()[1] for text in shown.texts]
    assert not set(seen["queries"].texts) & set(seen["contrast"].texts)
    near = np.mean([sample.text.startswith("near") for sample in samples])
    assert near > np.mean([sample.text.startswith("near") for sample in run.pool.samples]) + 0.1


@pytest.mark.slow
def test_fine_tuned_student_learns_from_votes_to_recognise_texts(tmp_path, monkeypatch):
    write_bert(tmp_path / "bert", ["near", "far", "a", "b"])
    settings = replace(discriminator.SETTINGS, epochs=3, learning_rate=2e-2)
    monkeypatch.setattr(discriminator, "SETTINGS", settings)
    task = write_task(
        tmp_path, discriminator="teachers", student="fine-tuned", student_model="bert", keep=0.2, samples=300
    )
    learnt = {}

    def spied(texts, labels, settings, *, weights, seed):
        learnt.update(texts=texts, labels=labels, weights=weights, path=settings.path)
        return fine_tune(texts, labels, settings, weights=weights, seed=seed)

    monkeypatch.setattr(discriminator, "fine_tune", spied)
    samples, run = run_method(task, plan_run(task), seed=0)
    assert run.asked == ["labels", "teachers"]
    assert learnt["path"] == tmp_path / "bert"
    assert len(learnt["texts"]) == len(set(learnt["texts"])) == 80
    near = np.array([text.startswith("near") for text in learnt["texts"]])
    private = np.array(learnt["labels"]) == "private"
    assert np.average(private == near, weights=learnt["weights"]) > 0.9
    assert np.mean([sample.text.startswith("near") for sample in samples]) > 0.9
    real, classes = [f"near {'ab'[n % 2]} t{n}" for n in range(40)], np.arange(40) % 2
    figures = discriminator.METHOD.figures(run.records, run._embed, real, classes)
    assert figures["discriminator_auc"] > 0.65


def test_a_fine_tuned_student_needs_teachers_and_a_folder_with_a_model(tmp_path):
    with pytest.raises(ConfigurationError, match="learns from teachers' votes, and this plan has 'moments'"):
        plan_run(write_task(tmp_path, discriminator="moments", student="fine-tuned"))
    with pytest.raises(ConfigurationError, match="nowhere: no such folder"):
        plan_run(write_task(tmp_path, discriminator="teachers", student="fine-tuned", student_model="nowhere"))


def run_method_without_labels(task, run_plan):
    import tests.doubles.bench as bench

    class Unlabelled(bench.Records):
        def __init__(self, table, labels):
            super().__init__(type(table)(table.texts, ("x",) * len(table), None), ["x"])
            self.labels = np.full(len(table), -1, dtype=np.int64)

    original, bench.Records = bench.Records, Unlabelled
    try:
        return run_method(task, run_plan, seed=0)
    finally:
        bench.Records = original


def test_plan_note_says_how_many_teachers_a_useful_answer_needs(tmp_path):
    figures = plan_figures(plan_run(write_task(tmp_path, discriminator="teachers"))).to_json()
    sigma = figures["queries"][1]["sigma"]
    (note,) = figures["method_notes"]
    assert f"needs {math.ceil(10 * sigma)} teachers" in note
    assert "the plan has 60" in note
    assert figures["paper"]["epsilon_really_spent"] > figures["paper"]["epsilon_as_scalar_counts"] > 8.0
