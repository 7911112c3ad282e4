"""DP-KPS: its plan's figures, what a run asks and writes, and bad input refused by name."""

import json
import math

import numpy as np
import pytest

from tests.doubles import bench, word_embedding
from tests.doubles.bench import run_method
from tests.doubles.tasks import make_replay_task
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import publishable
from undersong_protocol.agreement.plan import Privacy, Quorum, plan_sums
from undersong_server.generators.orders import Requests
from undersong_server.methods import dpkps
from undersong_server.methods.interface import Setting
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import build_prompts, plan_figures, plan_run

ALONE = Quorum(1, 1, 0, 0)
TOPICS = {"a": ["apple", "apricot", "avocado"], "b": ["banana", "blueberry", "black berry"]}


@pytest.fixture
def setting(tmp_path):
    (tmp_path / "terms.txt").write_text("".join(f"{term}\n" for terms in TOPICS.values() for term in [*terms, "pie"]))
    return Setting(("a", "b"), ("one",), tmp_path)


def options(**changes):
    return dpkps.Options(vocabulary="terms.txt", **changes)


def test_dpkps_noise_follows_its_budget_split_and_ensemble_size(setting):
    sums = {}
    for sampler, ensemble in (("independent", "logarithmic"), ("iterative", "logarithmic"), ("iterative", "linear")):
        chosen = options(sampler=sampler, ensemble=ensemble)
        plan = plan_sums(dpkps.plan(chosen, setting), Privacy(6.0, 1e-5), ALONE)
        events = [planned.event() for planned in plan.sums]
        assert (events[0].noise_multiplier / events[1].noise_multiplier) ** 2 == pytest.approx(5.0)
        assert plan.epsilon() == pytest.approx(6.0, rel=1e-5)
        sums[sampler, ensemble] = plan["densities"].sigma
    assert sums["iterative", "logarithmic"] / sums["independent", "logarithmic"] == pytest.approx(math.sqrt(5))
    assert sums["iterative", "linear"] / sums["independent", "logarithmic"] == pytest.approx(math.sqrt(10))
    assert options(sampler="iterative", length=10).lengths() == (1, 2, 4, 8, 16)
    assert options(sampler="iterative", length=8).lengths() == (1, 2, 4, 8)
    assert options(sampler="iterative", length=1).lengths() == (1,)


@pytest.mark.parametrize(("length", "warned"), [(1, False), (2, False), (3, True)])
def test_plan_warns_of_sequences_longer_than_public_texts(tmp_path, length, warned):
    task = write_task(tmp_path, length=length)
    task = task.model_copy(update={"evaluation": task.evaluation.model_copy(update={"test": "public.jsonl"})})
    test = [{"text": text, "label": "a"} for text in ("apple", "apple and avocado", "apricot, banana, avocado")]
    path = task.locate("public.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in test), encoding="utf-8")
    sentences = [sentence for sentence in plan_figures(plan_run(task)).weak if "method.length" in sentence]
    assert len(sentences) == warned
    assert all("at most 2 terms" in sentence for sentence in sentences)
    path.unlink()
    assert not any("method.length" in sentence for sentence in plan_figures(plan_run(task)).weak)


def test_sequence_length_warning_reads_own_examples_before_the_test_file(setting):
    sentences = dpkps.warnings(options(length=2, examples=("an apple",)), setting, lambda: ["apple, apricot, pie"])
    assert len(sentences) == 1
    assert not dpkps.warnings(options(length=2), setting, lambda: ["apple, apricot, pie"])


def write_task(folder, records=300, generators=1, terms=None, **method):
    rng = np.random.default_rng(0)
    rows = [
        {"text": f"note {n} on {rng.choice(TOPICS[y])} and {rng.choice(TOPICS[y])}", "label": y}
        for n in range(records)
        for y in ["ab"[n % 2]]
    ]
    (folder / "terms.txt").write_text(
        terms or "".join(f"{term}\n" for topic in TOPICS.values() for term in topic) + "pie\nApple\n"
    )
    pool = [{"text": f"public {y} text {n} {TOPICS[y][n % 3]}", "label": y} for n in range(60) for y in "ab"]
    keys = {"samples": 20, "vocabulary": "terms.txt", "length": 2, "pairs": 64, "document_terms": 3, **method}
    path = make_replay_task(
        folder,
        rows,
        generators={f"g{n}": pool for n in range(generators)},
        privacy={"epsilon": 8.0},
        federation={"parties": 1},
        method={"name": "dpkps", **keys},
    )
    return tasks.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["independent", "iterative"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_dpkps_run_makes_its_planned_sums_and_labels_its_texts(tmp_path, sampler, noise):
    task = write_task(tmp_path, generators=2, sampler=sampler, noise=noise, class_in_prompt=True)
    run_plan = plan_run(task)
    samples, run = run_method(task, run_plan, seed=0)
    assert run.asked == [planned.name for planned in run_plan.plan.sums] == ["vocabulary", "densities"]
    assert run_plan.generator_calls == len(samples) == 20
    assert {sample.generator for sample in samples} == {"g0", "g1"}
    assert sorted(sample.label for sample in samples) == ["a"] * 10 + ["b"] * 10
    assert all(sample.text.startswith(f"public {sample.label}") for sample in samples)
    (_, sequences), (_, kept) = run.records["sequences"][0], run.records["keyphrases"][0]
    assert [label for label, _ in sequences] == ["a"] * 10 + ["b"] * 10
    assert {term for _, terms in sequences for term in terms} <= set(kept)
    assert {len(set(terms)) for _, terms in sequences} == {2}
    figures = plan_figures(run_plan).to_json()
    assert figures["queries"][0]["noise"] == noise
    of = "mu squared" if noise == "gaussian" else "epsilon"
    assert figures["method_notes"] == [
        f"Budget ({of}): 16.7 % vocabulary, 83.3 % densities of sequences of 2 keyphrases."
    ]


@pytest.mark.slow
def test_option_ends_makes_sequences_as_short_as_the_records(tmp_path):
    lengths = {}
    for ends in (False, True):
        changes = {"sampler": "iterative", "length": 6, "pairs": 1024, "width": 9.0, "ends": ends}
        task = write_task(tmp_path, records=600, **changes)
        run_plan = plan_run(task.model_copy(update={"privacy": task.privacy.model_copy(update={"epsilon": math.inf})}))
        samples, run = run_method(task, run_plan, seed=0)
        lengths[ends] = [len(terms) for _, terms in run.records["sequences"][0][1]]
        assert len(samples) == 20
    assert set(lengths[False]) == {6}
    assert min(lengths[True]) >= 1
    assert np.median(lengths[True]) <= 3  # no record has more than two terms


def write_labelled(path, rows):
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))


@pytest.mark.slow
def test_validation_picks_the_sampler_that_labels_public_texts_best(tmp_path, monkeypatch):
    """A record's first terms are filler, which alone the iterative densities read: its later ones tell its label."""
    monkeypatch.setattr(bench, "embed", lambda texts: publishable(word_embedding.embed(texts)))
    names = ["pie", "tart", "cake", "roll"]
    terms = "".join(f"{term}\n" for group in [*TOPICS.values(), names] for term in group)
    task = write_task(tmp_path, terms=terms, validation="public.jsonl", sampler="validated", samples=60, pairs=512)
    rows = [(f"{names[n % 4]} and {names[(n + 1) % 4]}, {TOPICS[y][n % 3]}", y) for n in range(900) for y in "ab"]
    write_labelled(task.locate(str(task.data.path)), rows)
    write_labelled(tmp_path / "public.jsonl", [(f"an {TOPICS[y][n]} for me", y) for n in range(3) for y in "ab"])
    run_plan = plan_run(task.model_copy(update={"privacy": task.privacy.model_copy(update={"epsilon": 20.0})}))
    samples, run = run_method(run_plan.task, run_plan, seed=0)
    assert run.asked == ["vocabulary", "densities/independent", "densities/iterative"]
    assert len(samples) == run_plan.generator_calls == 60
    decision = run.records["sampler"][0][1]
    assert decision["chosen"] == "independent"
    assert decision["texts"] == 6
    assert decision["right"]["independent"] > decision["right"]["iterative"]
    assert any("Sequences are independent: of 6 public texts" in remark for _, remark in run.records["remarks"])
    told = {label for label, drawn in run.records["sequences"][0][1] for term in drawn if term in TOPICS[label]}
    assert told == {"a", "b"}
    write_labelled(tmp_path / "public.jsonl", [("without any of them", "a")])
    _, silent = run_method(run_plan.task, run_plan, seed=0)
    assert silent.records["sampler"][0][1] == {
        "chosen": "independent",
        "texts": 0,
        "right": {"independent": 0.0, "iterative": 0.0},
    }


def test_sampler_validation_splits_the_budget_of_the_densities(setting):
    write_labelled(setting.folder / "public.jsonl", [("an apple", "a"), ("a banana", "b")])
    for noise in ("gaussian", "laplace"):
        chosen = options(sampler="validated", validation="public.jsonl", noise=noise)
        sum_requests = dpkps.plan(chosen, setting)
        vocabulary, densities = chosen.split
        assert [request.budget_share for request in sum_requests] == [vocabulary, densities / 2, densities / 2]
        plan = plan_sums(sum_requests, Privacy(6.0, 1e-5 if noise == "gaussian" else 1e-12), ALONE)
        assert plan.epsilon() == pytest.approx(6.0, rel=1e-3)
        assert [planned.name for planned in plan.sums][1:] == ["densities/independent", "densities/iterative"]
        assert plan.sums[1].parameters["averaged"] is True
        assert plan.sums[2].parameters["averaged"] is False
        assert "half of it for each sampler" in dpkps.notes(chosen, setting)[0]
    for faulty in (options(sampler="validated"), options(sampler="validated", validation="none.jsonl")):
        with pytest.raises(ConfigurationError):
            dpkps.plan(faulty, setting)
    with pytest.raises(ConfigurationError, match="needs a task with labels"):
        dpkps.plan(chosen, Setting((), ("one",), setting.folder))


@pytest.mark.slow
def test_key_phrase_sequences_are_drawn_from_their_class(tmp_path):
    task = write_task(tmp_path, records=2000, sampler="independent", pairs=512, samples=200, width=8.0)
    _, run = run_method(task, plan_run(task), seed=1)
    own = [term in TOPICS[label] for label, terms in run.records["sequences"][0][1] for term in terms]
    assert np.mean(own) > 0.9


def test_order_with_named_false_hides_the_label_from_its_prompt(tmp_path):
    task = write_task(tmp_path)
    samples, _ = run_method(task, plan_run(task), seed=0)
    request = requested(task, dpkps.Order("g0", "keyphrases", "a", terms=("apple", "pie"), named=False))
    assert request.label == ""
    assert 'category "a"' not in request.prompt
    assert "apple, pie" in request.prompt
    named = requested(task, dpkps.Order("g0", "keyphrases", "a", terms=("apple",)))
    assert named.label == "a"
    assert 'category "a"' in named.prompt
    assert {sample.label for sample in samples} == {"a", "b"}


def test_prompt_shows_the_examples_given_by_the_user(tmp_path):
    task = write_task(tmp_path, examples=["a public example of the style"])
    order = dpkps.Order("g0", "keyphrases", "a", good=task.options.examples, terms=("pie",))
    assert "a public example of the style" in requested(task, order).prompt


def requested(task, order):
    requests, _ = Requests(build_prompts(task), {}, seed=0).make("again", [order], [0], [1])
    return requests[0]


def test_terms_that_differ_only_in_case_count_as_one(tmp_path):
    task = write_task(tmp_path)
    assert task.options.terms(plan_run(task).setting).count("apple") == 1
    assert plan_run(task).plan["vocabulary"].dimension == 7


@pytest.mark.parametrize(
    ("terms", "message"),
    [("zebra\nyak\n", "no term of the vocabulary stands out"), ("--\n", "holds no term")],
)
def test_vocabulary_of_no_usable_terms_is_refused(tmp_path, terms, message):
    task = write_task(tmp_path, terms=terms)
    with pytest.raises(ConfigurationError, match=message):
        run_method(task, plan_run(task), seed=0)


@pytest.mark.heavy
def test_sequences_are_at_most_as_long_as_the_number_of_kept_terms(tmp_path):
    task = write_task(tmp_path, length=10, records=1200)
    _, run = run_method(task, plan_run(task), seed=0)
    kept = run.records["keyphrases"][0][1]
    assert {len(terms) for _, terms in run.records["sequences"][0][1]} == {min(10, len(kept))}
    assert len(kept) < 10


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 11.0, 15.0, 20.0])
@pytest.mark.parametrize("ensemble", ["logarithmic", "linear"])
def test_dpkps_laplace_plan_spends_nearly_all_of_any_epsilon(epsilon, ensemble):
    options = dpkps.Options(
        vocabulary_words=500, pairs=8, sampler="iterative", ensemble=ensemble, noise="laplace", samples=4
    )
    requests = dpkps.plan(options, Setting(labels=("a", "b"), generators=("g",)))
    quorum = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)
    plan = plan_sums(requests, Privacy(epsilon=epsilon, delta=1e-5), quorum)
    plan.verify()
    assert 0.999 * epsilon < plan.epsilon() <= epsilon
