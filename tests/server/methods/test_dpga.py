"""DPGA-TextSyn: its figures are the contract's, a run spends exactly its plan, every component can be left out."""

import json
import math

import numpy as np
import pytest

from tests.doubles.bench import run_federated, run_method
from tests.doubles.pace import slow_after
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.ledger import Ledger
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy, Quorum, plan_sums
from undersong_protocol.wire.public import decode_block, resolve
from undersong_server.methods import dpga
from undersong_server.methods.interface import Setting
from undersong_server.pool import Sample
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

DELTA = 1.31818e-5  # 1 / (N ln N), N = 8396
QUORUM = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)


def private_setting(epsilon=1.0, labels=("a", "b")):
    return Setting(labels, ("one",), privacy=Privacy(epsilon, DELTA))


def plan_options(options):
    return plan_sums(dpga.plan(options, private_setting()), Privacy(1.0, DELTA), QUORUM)


@pytest.mark.heavy
def test_dpga_paper_accounting_spends_no_more_than_it_declares():
    plan = plan_options(dpga.Options(accounting="paper"))
    assert plan["length range"].sigma == pytest.approx(math.sqrt(2) * 5)
    plan.verify()  # it spends less by what its division wastes


@pytest.mark.slow
def test_dpga_joint_accounting_needs_less_noise_than_the_papers():
    paper = dpga.Options(accounting="paper")
    plan = plan_options(paper)
    jointly = dpga.paper_figures(paper, plan)["sigma_composed_jointly"]
    assert jointly == pytest.approx(14.179, rel=0.005)  # the length range is a Laplace histogram
    curated = dpga.paper_figures(dpga.Options(accounting="paper", curator=True), plan)["sigma_composed_jointly"]
    assert curated == pytest.approx(13.406, rel=0.005)  # two searches by a curator, of which only pure epsilon is known

    default = plan_options(dpga.Options())
    assert {one.name.partition("/")[0] for one in default.sums} == {"length range", "metadata", "votes"}
    assert default["votes/10"].sigma <= jointly
    assert default.epsilon() == pytest.approx(1.0, rel=1e-5)
    default.verify()


def test_switched_off_part_of_dpga_is_not_in_its_plan():
    def names(**changes):
        return {one.name.partition("/")[0] for one in dpga.plan(dpga.Options(**changes), private_setting())}

    assert names(length=False) == {"metadata", "votes"}
    assert names(similarity="mean") == {"length range", "metadata", "similarity", "votes"}
    for others in ({}, {"similarity": 0.4}, {"similarity": "mean", "suppression": False}):
        assert names(**others) == {"length range", "metadata", "votes"}
    bare = dpga.plan(dpga.Options(length=False, keywords=False, suppression=False), private_setting())
    assert bare[0].statistic.sensitivity.l2 == 1.0
    three = dpga.plan(dpga.Options(), private_setting())[1].statistic.sensitivity
    assert (three.l1, three.l2, three.linf) == (3.0, math.sqrt(3), 1.0)


def test_dpga_makes_at_most_as_many_calls_as_its_samples_option():
    for calls in (500, 5000, 90_000):
        options = dpga.Options(samples=calls)
        assert 0.95 * calls - 20 < dpga.generator_calls(options, private_setting()) <= calls
        sizes = options.sizes(private_setting())
        assert sizes.elite == pytest.approx(sizes.populations[0] / 5, abs=1)
    assert dpga.generator_calls(dpga.Options(keywords=False), private_setting()) == 82_000
    assert dpga.generator_calls(dpga.Options(keywords=False, corpus="population"), private_setting()) == 90_000


def test_dpga_refuses_too_few_samples_and_names_a_sufficient_number(task_file):
    with pytest.raises(ConfigurationError, match=r"method\.samples is 20: too few calls") as refused:
        dpga.Options(samples=20).sizes(private_setting())
    assert "give at least 21" in refused.value.remedy
    assert dpga.generator_calls(dpga.Options(samples=21), private_setting()) <= 21
    with pytest.raises(ConfigurationError, match="too few calls"):
        plan_run(tasks.load(task_file(), ("method.samples=3",)))


def test_embedding_model_of_another_size_is_refused_before_any_charge(task_file, tmp_path):
    task = tasks.load(task_file(), ("method.similarity=mean", "method.embedding_size=384"))
    with pytest.raises(ConfigurationError, match="gives 48 coordinates") as refused:
        run_federated(task, plan_run(task), tmp_path, {"p0": Table(("one",), ("a",), None)}, seed=1)
    assert refused.value.remedy == "set method.embedding_size = 48"
    assert Ledger.read(tmp_path / "p0.ledger.jsonl").charges() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"elite": 10_000}, "smaller"), ({"rewrite": 0, "fill_in": 0, "cross": 0, "generate": 0}, "switch one on")],
)
def test_options_of_dpga_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dpga.Options(**changes)


TASK = """
[task]
name = "tiny"
description = "a note"
labels = {labels}
[data]
path = "private.jsonl"
{label}
[privacy]
epsilon = {epsilon}
delta = 1e-5
[federation]
parties = 1
[method]
name = "dpga"
population = 40
elite = 8
rounds = 3
keywords_per_label = 3
length_bins = 5
embedding_size = 48
[[generators]]
name = "one"
kind = "ngram"
corpus = "pool.jsonl"
[[generators]]
name = "two"
kind = "ngram"
corpus = "pool.jsonl"
"""


@pytest.fixture
def task_file(tmp_path):
    rng = np.random.default_rng(0)
    words = {
        "a": ["card", "pin", "cash", "lost", "stolen", "blocked", "machine"],
        "b": ["rate", "euro", "transfer", "fee", "late", "bank"],
    }
    rows = [
        {"text": " ".join(rng.choice(words[label], rng.integers(3, 9))), "label": label}
        for label in "aaab"
        for _ in range(50)
    ]
    for name in ("private.jsonl", "pool.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(epsilon="inf", labels='["a", "b"]', label='label = "label"'):
        (tmp_path / "task.toml").write_text(TASK.format(epsilon=epsilon, labels=labels, label=label))
        return tmp_path / "task.toml"

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [(), ("method.corpus=population", "method.accounting=paper"), ("method.suppression=false",)]
)
def test_dpga_run_makes_exactly_the_planned_sums_and_calls(task_file, changes):
    task = tasks.load(task_file(), changes)
    run_plan = plan_run(task)
    samples, run = run_method(task, run_plan, seed=1)
    assert sorted(run.asked) == sorted(one.name for one in run_plan.plan.sums)
    assert run.ordered <= run_plan.generator_calls
    assert len(samples) <= 40
    assert len({sample.text for sample in samples}) == len(samples)
    carried = {sample.round for sample in samples}
    assert (3 in carried) == (task.options.corpus == "population")  # offspring of the last round
    assert len(carried) > 1  # beside an elite carried over unchanged


@pytest.mark.heavy
def test_dpga_corpus_of_elites_has_only_texts_that_votes_selected(task_file):
    task = tasks.load(task_file())
    run_plan = plan_run(task)
    corpus, run = run_method(task, run_plan, seed=1)
    elites = [texts for _, texts in sorted(run.records["elite"], reverse=True)]
    expected = list(dict.fromkeys(text for texts in elites for text in texts))
    assert [sample.text for sample in corpus] == expected[:40]
    assert len(corpus) > len(elites[0])
    assert max(sample.round for sample in corpus) < task.options.rounds  # nothing is written after the last vote
    assert run.ordered <= run_plan.generator_calls


@pytest.mark.heavy
def test_dpga_metadata_without_noise_equal_those_of_the_records(task_file):
    task = tasks.load(task_file(), ("method.similarity=mean",))
    _, run = run_method(task, plan_run(task), seed=1)
    assert run.records["label shares"][0][1] == pytest.approx([0.75, 0.25])
    edges, lengths = run.records["length shares"][0][1]
    assert edges[0] <= 3
    assert edges[-1] >= 8
    assert sum(lengths) == pytest.approx(1.0)
    words = dict(run.records["keywords"][0][1])
    assert set(words["a"]) <= {"card", "cash", "lost", "stolen", "blocked", "machine"}
    tau = dict(run.records["tau"])
    assert tau[0]["believed"]
    assert tau[1] >= tau[0]["estimate"] - 1e-9
    fresh = [sample for sample in run.pool.samples if sample.kind == "metadata" and sample.round == 0]
    assert sum(sample.label == "a" for sample in fresh) / len(fresh) == pytest.approx(0.75, abs=0.25)


@pytest.mark.slow
def test_similarity_falls_back_to_its_option_when_noise_hides_the_records(task_file):
    changes = ("method.similarity=mean", "method.fallback_similarity=0.123", "method.rounds=1")
    task = tasks.load(task_file("0.5"), changes)
    _, run = run_method(task, plan_run(task), seed=1)
    tau = dict(run.records["tau"])
    assert not tau[0]["believed"]
    assert (tau[1] - 0.123) / 0.01 == pytest.approx(round((tau[1] - 0.123) / 0.01), abs=1e-6)


def test_tau_starts_at_the_median_nearest_similarity_of_round_zero(task_file):
    task = tasks.load(task_file(), ("method.rounds=1",))
    _, run = run_method(task, plan_run(task), seed=1)
    first, raised = (dict(run.records["tau"])[number] for number in (0, 1))
    assert -1.0 <= first["median nearest"] <= 1.0
    assert raised >= first["median nearest"]


def test_dpga_treats_a_task_without_labels_as_one_class(task_file):
    task = tasks.load(task_file(labels="[]", label=""), ("method.rounds=1",))
    run_plan = plan_run(task)
    assert run_plan.plan["metadata"].dimension == 1 + 5 + 3


@pytest.mark.heavy
@pytest.mark.parametrize("off", slow_after(["rewrite", "fill_in", "cross", "generate"], 2))
def test_dpga_operator_that_is_switched_off_orders_no_texts(task_file, off):
    task = tasks.load(task_file(), (f"method.{off}=0", "method.rounds=2"))
    _, run = run_method(task, plan_run(task), seed=1)
    kinds = {"rewrite": "paraphrase", "fill_in": "fill_in", "cross": "cross", "generate": "metadata"}
    written = {sample.kind for sample in run.pool.samples if sample.round == 1}
    assert written == {kind for name, kind in kinds.items() if name != off}


@pytest.mark.heavy
def test_parents_are_crossed_within_a_label_and_a_single_one_is_rewritten(task_file):
    task = tasks.load(task_file(), ("method.rewrite=0", "method.fill_in=0", "method.generate=0"))
    run_plan = plan_run(task)
    _, run = run_method(task, run_plan, seed=1)
    elite = [Sample(f"text {n}", "a" if n < 3 else "b", "one", 0, "metadata") for n in range(4)]
    metadata = dpga.Metadata(4.0, np.array([0.5, 0.5]), None, None, (), ())
    orders = dpga._expansion(task.options, run, 1, elite, metadata, 12)
    assert {order.kind for order in orders} == {"cross", "paraphrase"}
    for order in orders:
        assert order.kind == ("cross" if order.label == "a" else "paraphrase")
        assert len(set(order.parents)) == len(order.parents)
        assert set(order.parents) <= {sample.text for sample in elite if sample.label == order.label}


def test_dpga_plan_states_how_its_budget_is_split():
    def said(epsilon=1.0, **changes):
        return dpga.notes(dpga.Options(**changes), private_setting(epsilon))

    assert said(length=False, suppression=False) == [
        "Budget composed over the whole plan (mu squared, before subsampling): 29.4 % metadata, 70.6 % votes."
    ]
    assert said(2.0, accounting="paper") == [
        "Budget divided as in the paper (epsilon): 0.4 length range, 0.2 metadata/length, 0.2 metadata/label,"
        " 0.2 metadata/keyword, 1 all votes together."
    ]
    assert said(math.inf) == []


@pytest.mark.heavy
def test_texts_carried_to_the_next_round_are_published_by_reference(task_file):
    task = tasks.load(task_file(), ("method.keywords=false",))
    _, run = run_method(task, plan_run(task), seed=1)
    blocks = run._blocks._journal.items("samples/")
    assert sorted(blocks) == ["samples/round 1", "samples/round 2", "samples/round 3"]
    rows = [len(decode_block(run._blocks.get(identity)).values) for identity in blocks.values()]
    judged = [sample for sample in run.pool.samples if sample.round < 3]
    assert sum(rows) == len(judged)
    shown, ordered = run.publish_samples("candidates", "again", [judged[-1], judged[0], judged[-1]])
    assert {sample.text for sample in ordered} == {judged[0].text, judged[-1].text}
    given = resolve([shown], _Blocks(run)).embeddings["candidates"]
    assert np.array_equal(given.values, run.embeddings(ordered))
    assert given.labels.tolist() == run.label_numbers(ordered).tolist()
    assert run._blocks._journal.get("samples/again") is None


class _Blocks:
    """The run's own blocks, as a party would hold them."""

    def __init__(self, run):
        self._run = run

    def get(self, identity):
        return decode_block(self._run._blocks.get(identity))
