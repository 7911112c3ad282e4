"""Baselines: selections equal plain references, plans spend what they say, runs stay within their plans."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.bench import run_method
from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from tests.doubles.parties import DIMENSION
from tests.doubles.tasks import make_replay_task
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_server import methods
from undersong_server.methods import augpe, fusegen, pretext
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts.public_shares import deal_labels
from undersong_server.methods.parts.selection import effective_size
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

SETTING = Setting(("a", "b"), ("one", "two"))


def test_augpe_rank_selection_follows_the_paper():
    rng = np.random.default_rng(1)
    votes, labels = rng.normal(size=40), rng.integers(0, 3, size=40)
    expected = []
    for label, count in zip(range(3), (4, 3, 3), strict=True):  # ten in all, the odd one to the first label
        members = sorted((i for i in range(40) if labels[i] == label), key=lambda i: (-votes[i], i))
        expected += members[:count]
    assert augpe.by_rank(votes, labels, 10).tolist() == sorted(expected)


def test_sampling_selection_draws_in_proportion_to_clipped_votes():
    votes = np.array([3.0, 1.0, -5.0, 0.0, 2.0])
    labels = np.zeros(5, dtype=np.int64)
    drawn = augpe.by_sampling(votes, labels, 60_000, np.random.default_rng(0))
    share = np.bincount(drawn, minlength=5) / 60_000
    assert share == pytest.approx([0.5, 1 / 6, 0, 0, 1 / 3], abs=0.01)


def test_sampling_without_a_positive_vote_is_uniform():
    drawn = augpe.by_sampling(np.full(4, -1.0), np.zeros(4, dtype=np.int64), 8000, np.random.default_rng(0))
    assert np.bincount(drawn, minlength=4) / 8000 == pytest.approx([0.25] * 4, abs=0.03)


def test_pretext_vote_threshold_is_subtracted_from_every_count():
    counts = pretext.subtract_threshold(np.array([2.0, 5.0, 4.5, -9.0]), 4.5)
    assert counts.tolist() == [0.0, 0.5, 0.0, 0.0]


@pytest.mark.heavy
@pytest.mark.parametrize("selection", ["rank", "sampling"])
def test_augpe_with_corpus_selected_publishes_only_texts_of_the_last_vote(tmp_path, selection):
    rows = [{"text": f"{label} text {number}", "label": label} for label in "ab" for number in range(30)]
    changes = ["method.name=augpe", "method.samples=60", "method.rounds=3", f"method.selection={selection}"]
    task = tasks.load(make_replay_task(tmp_path, rows), [*changes, "method.corpus=selected"])
    run_plan = plan_run(task)
    corpus, run = run_method(task, run_plan, seed=1)
    voted_on = len(run.records.get("population", [])) or task.options.populations[0]
    assert 0 < len(corpus) <= (voted_on // 2 if selection == "rank" else voted_on)
    assert max(sample.round for sample in corpus) < 2  # no variation is written after the last vote
    assert run.ordered == run_plan.generator_calls <= 60
    assert len(run.asked) == 2


def test_fusegen_cross_selection_follows_the_paper():
    rng = np.random.default_rng(2)
    spread, weights = rng.random(30), rng.random(30)
    members = np.arange(5, 30)
    by_spread = sorted(members, key=lambda i: spread[i])
    pool = by_spread[:3] + by_spread[-5:]  # R = 8, three easy and five ambiguous
    expected = sorted(pool, key=lambda i: -weights[i])[:4]
    assert fusegen.select_examples(spread, weights, members, 8, 4, 3 / 8).tolist() == expected


def test_fusegen_variability_is_the_standard_deviation_over_models():
    opinions = np.array([[0.1, 0.5], [0.3, 0.5], [0.8, 0.5]])
    assert fusegen.variability(opinions) == pytest.approx([np.std([0.1, 0.3, 0.8]), 0.0])


def test_fusegen_self_boosting_lowers_the_weight_of_wrong_labels():
    rng = np.random.default_rng(0)
    centres = np.eye(2, 8)
    true = np.repeat([0, 1], 50)
    embeddings = (centres[true] + 0.1 * rng.normal(size=(100, 8))).astype(np.float32)
    labels = true.copy()
    labels[:5] = 1
    weights = fusegen.boost_weights(embeddings, labels, 2, boost_count=3, rate=0.2)
    assert weights[:5].max() < weights[5:].min()
    assert weights.mean() == pytest.approx(1.0)


def test_pe_baseline_plans_have_one_nearest_vote_a_round():
    for name, releases in (("augpe", 4), ("pretext", 5)):
        method = methods.load(name)
        requests = method.plan(method.Options(), SETTING)
        assert len(requests) == releases
        assert {request.statistic.sensitivity.l2 for request in requests} == {1.0}
    assert fusegen.plan(fusegen.Options(), SETTING) == []
    with pytest.raises(ConfigurationError, match="labels"):
        fusegen.plan(fusegen.Options(), Setting((), ("one",)))


@pytest.mark.parametrize("selection", ["rank", "sampling"])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_augpe_uses_nearly_all_allowed_calls_and_no_more(selection, lookahead):
    options = augpe.Options(samples=6000, selection=selection, lookahead=lookahead)
    calls = augpe.generator_calls(options, SETTING)
    assert 5900 <= calls <= 6000


@pytest.fixture
def task_file(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(400)]

    def rows(count):
        return [{"text": " ".join(rng.choice(words, 6)), "label": "ab"[n % 2]} for n in range(count)]

    return make_replay_task(
        tmp_path,
        rows(30),
        generators={"one": rows(300), "two": rows(300)},
        privacy={"epsilon": 4.0},
        federation={"parties": 1},
        method={"name": "augpe", "samples": 60, "rounds": 3},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "assignments",
    slow_after(
        [
            ['method.name="augpe"'],
            ['method.name="augpe"', "method.lookahead=1"],
            ['method.name="augpe"', 'method.selection="sampling"'],
            ['method.name="augpe"', "method.cells=4", "method.within=0.5"],
            ['method.name="pretext"'],
            ['method.name="fusegen"', "method.candidates=6", "method.examples=2"],
            ['method.name="mixture+labels"'],
            ['method.name="cleaned-mixture"'],
            ['method.name="undersong"'],
            ['method.name="undersong"', "method.samples=30", "method.written=2"],
        ],
        7,
    ),
)
def test_baseline_run_makes_exactly_the_planned_sums_and_calls(task_file, assignments, monkeypatch):
    monkeypatch.setattr("undersong_common.models.embedders.dimension", lambda model: DIMENSION)
    task = tasks.load(task_file, assignments)
    run_plan = plan_run(task)
    samples, run = run_method(task, run_plan, seed=3)
    assert run.asked == [planned.name for planned in run_plan.plan.sums]
    assert run.ordered <= run_plan.generator_calls
    assert {sample.label for sample in samples} == {"a", "b"}
    assert len({sample.text for sample in samples}) == len(samples) > 0
    if run_plan.plan.sums:
        events = [planned.event() for planned in run_plan.plan.sums]
        spent = accounting.epsilon(events, task.privacy.delta)
        assert math.isclose(spent, 4.0, rel_tol=1e-3)


@pytest.mark.heavy
def test_fusegen_corpus_has_the_effective_size_of_its_weights(task_file):
    own = ['method.name="fusegen"', "method.candidates=6", "method.examples=2", "method.rate=2.0"]
    task = tasks.load(task_file, own)
    samples, run = run_method(task, plan_run(task), seed=0)
    embeddings = run.embeddings(run.pool.samples)
    weights = fusegen.boost_weights(embeddings, run.pool.label_of, 2, boost_count=3, rate=2.0)
    assert len(samples) == int(effective_size(weights) * (1 + 1e-12)) < len(run.pool)


@pytest.mark.heavy
def test_mixture_labels_orders_the_records_label_shares_of_each_generator(task_file):
    (task_file.parent / "private.jsonl").write_text(
        "".join(json.dumps({"text": f"note {n}", "label": "a" if n % 4 else "b"}) + "\n" for n in range(400))
    )
    own = ['method.name="mixture+labels"', "method.samples=80", "privacy.epsilon=8"]
    table = "{a = 9, b = 1}"
    shares = {'"records"': 0.75, '"half"': 3**0.5 / (1 + 3**0.5), '"even"': 0.5, table: 0.9}
    for wanted, share in shares.items():
        task = tasks.load(task_file, [*own, f"method.label_shares={wanted}"])
        samples, run = run_method(task, plan_run(task), seed=3)
        assert run.records["label shares"][-1][1] == pytest.approx([share, 1 - share], abs=0.02)
        assert sum(sample.label == "a" for sample in samples) / len(samples) == pytest.approx(share, abs=0.03)
        assert {name: sum(s.generator == name for s in samples) for name in ("one", "two")} == {"one": 40, "two": 40}


PUBLIC = ("mixture", "wasp", "augpe", "pretext", "fusegen")  # without a histogram of labels; dpkps needs a vocabulary


@pytest.mark.heavy
@pytest.mark.parametrize("method", slow_after(PUBLIC, 2))
def test_stated_label_shares_are_followed_without_a_private_histogram(task_file, method):
    own = [f'method.name="{method}"', "method.samples=80", "method.label_shares={a = 3, b = 1}"]
    task = tasks.load(task_file, own)
    samples, run = run_method(task, plan_run(task), seed=1)
    assert sum(each.label == "a" for each in run.pool.samples) / len(run.pool) == pytest.approx(0.75, abs=0.05)
    if method != "fusegen":  # which draws its corpus by weights
        assert sum(each.label == "a" for each in samples) / len(samples) == pytest.approx(0.75, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*PUBLIC, "dpkps"])
@pytest.mark.parametrize("wanted", ["half", "records"])
def test_records_label_shares_are_refused_for_a_method_without_histogram(task_file, method, wanted):
    with pytest.raises(ConfigurationError, match=f'label_shares: "{wanted}" needs a private histogram'):
        tasks.load(task_file, [f'method.name="{method}"', f'method.label_shares="{wanted}"'])


@pytest.mark.heavy
@pytest.mark.parametrize("method", slow_after(["discriminator", "dpga"], 1))
def test_default_label_shares_can_be_replaced_by_other_shares(task_file, method):
    (task_file.parent / "private.jsonl").write_text(
        "".join(json.dumps({"text": f"note {n}", "label": "a" if n % 10 else "b"}) + "\n" for n in range(400))
    )
    sizes = {
        "dpga": [
            "method.population=40",
            "method.keywords=false",
            "method.elite=16",
            "method.rounds=1",
            "method.embedding_size=48",
        ],
        "discriminator": ["method.samples=40", "method.embedding_size=48", 'method.discriminator="moments"'],
    }
    recorded = {}
    for wanted in ('"records"', '"half"', '"even"', "{a = 1, b = 3}"):
        own = [f'method.name="{method}"', "privacy.epsilon=20", f"method.label_shares={wanted}", *sizes[method]]
        task = tasks.load(task_file, own)
        _, run = run_method(task, plan_run(task), seed=1)
        recorded[wanted] = run.records["label shares"][-1][1][0]
        first = [sample for sample in run.pool.samples if sample.round == 0]
        if first:
            ordered = sum(sample.label == "a" for sample in first) / len(first)
            assert ordered == pytest.approx(recorded[wanted], abs=0.15)
    assert list(recorded.values()) == pytest.approx([0.9, 0.75, 0.5, 0.25], abs=0.04)


@given(st.integers(0, 40), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 30))
def test_dealt_label_counts_lie_within_two_of_their_shares(count, parts, more):
    shares = np.array(parts) / sum(parts)
    first = np.bincount(deal_labels(more, shares, np.zeros(len(parts), dtype=np.int64)), minlength=len(parts))
    then = np.bincount(deal_labels(count, shares, first), minlength=len(parts))
    assert then.sum() == count
    assert np.abs(first + then - shares * (more + count)).max() < 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mixture+labels", "cleaned-mixture", "undersong", "dpga", "discriminator", *PUBLIC])
@pytest.mark.parametrize("table", ["{a = 1}", "{a = 1, b = 1, c = 1}"])
def test_label_share_table_must_name_exactly_the_tasks_labels(task_file, method, table):
    task = tasks.load(task_file, [f'method.name="{method}"', f"method.label_shares={table}"])
    with raises(ConfigurationError, "label-shares"):
        plan_run(task)
