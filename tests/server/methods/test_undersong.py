"""The default method: its plan, whom and what the records choose, and that the cleaned mixture stays without them."""

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.tasks import make_replay_task, make_task
from tests.doubles.word_embedding import DIMENSION, embed
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics import EmbeddingSum
from undersong_protocol.statistics.classifier_votes import CorpusComparison, ScoredComparison
from undersong_protocol.statistics.histogram import AttributeMarginals
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server import learning
from undersong_server.generators.interface import Completion
from undersong_server.generators.kinds.ngram import NgramGenerator
from undersong_server.methods import cleaned_mixture, undersong
from undersong_server.methods.interface import Attribute, RunContext, Setting
from undersong_server.methods.parts import constants, private_score, selection, shares
from undersong_server.methods.parts.private_score import PrivateScore
from undersong_server.methods.parts.selection import herded
from undersong_server.methods.undersong import CLEANED, TUNING, Options, plan, usefulness
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

WORDS = {"a": ("apple", "bread", "cheese", "plum", "honey"), "b": ("piston", "gear", "axle", "brake", "clutch")}


@pytest.fixture(autouse=True)
def near_words_are_near(monkeypatch):
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    monkeypatch.setattr("undersong_common.models.embedders.dimension", lambda model: DIMENSION)


def asked(labels=2, generators=2, attributes=(), **options):
    names = tuple(f"label {n}" for n in range(labels)), tuple(f"generator {n}" for n in range(generators))
    setting = Setting(*names, privacy=Privacy(4.0, 1e-5), attributes=attributes)
    return {request.name: request for request in plan(Options(**options), setting)}


def opened(values, sigma=0.001):
    return NoisySum(np.rint(np.array(values, dtype=float) * 256).astype(np.int64), 256, sigma, ("p",))


def draw_rows(rng, count, *, wrong=0.0, rare=0.5):
    """Texts of words of their label; a share ``wrong`` of them under the other label."""
    found = []
    for _ in range(count):
        own = "b" if rng.random() < rare else "a"
        given = {"a": "b", "b": "a"}[own] if rng.random() < wrong else own
        found.append({"text": f"{' '.join(rng.choice(WORDS[own], 4))} {rng.integers(10**6)}", "label": given})
    return found


def task_of(tmp_path, pools, *options, records=200, rare=0.5):
    rng = np.random.default_rng(5)
    path = make_replay_task(
        tmp_path,
        draw_rows(rng, records, rare=rare),
        generators={name: draw_rows(rng, 300, wrong=wrong, rare=0.5) for name, wrong in pools.items()},
        privacy={"epsilon": 8.0},
        federation={"parties": 1},
        method={"name": "undersong", "samples": 120},
    )
    return load(path, list(options))


def run_task(task, seed=3):
    return bench.run_method(task, plan_run(task), seed=seed)


def test_plan_votes_on_generators_or_on_texts_if_there_is_only_one():
    assert list(asked()) == ["labels", "support", "who/1", "who/2", "verdict"]
    assert list(asked(generators=1)) == ["labels", "centres", "verdict"]
    assert list(asked(labels=0)) == ["support", "votes/1", "votes/2", "score"]
    assert list(asked(labels=0, score=False)) == ["support", "votes/1", "votes/2"]
    assert list(asked(written=3)) == ["labels", "centres", "support", "who/1", "who/2", "verdict"]
    tone, band = (Attribute(name, ("x", "y"), column=name == "band") for name in ("tone", "band"))
    assert asked(attributes=(tone, band))["labels"].statistic == AttributeMarginals(2, (2,), (3,))
    assert asked(labels=0, attributes=(band,))["labels"].statistic == AttributeMarginals(0, (), (3,))
    assert asked(written=3)["centres"].statistic == EmbeddingSum(DIMENSION, 2)
    # generators with a text or two of each label are not judged; the verdict scores the corpus without a choice too
    assert list(asked(generators=10, labels=10, samples=600)) == ["labels", "support", "who/2", "verdict"]
    assert list(asked(generators=10, labels=10, samples=200)) == ["labels", "support", "verdict"]
    assert asked(score=False)["verdict"].statistic == CorpusComparison(2)
    assert asked()["verdict"].statistic == ScoredComparison(2)
    kinds = {each.statistic.name for labels in (0, 2) for each in asked(labels, written=2).values()}
    assert len(kinds) == 7


@pytest.mark.slow
def test_score_of_a_run_without_labels_is_similarity_against_round_one(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    pools = {"apt": 0.5, "off": 1.0}  # texts of the second are of the label that the records do not have

    class Unlabelled(bench.Records):
        def __init__(self, table, labels):
            super().__init__(type(table)(table.texts, ("x",) * len(table), None), ["x"])
            self.labels = np.full(len(table), -1, dtype=np.int64)

    monkeypatch.setattr(bench, "Records", Unlabelled)
    path = make_replay_task(
        tmp_path,
        draw_rows(rng, 200, rare=0.0),
        generators={name: draw_rows(rng, 300, rare=rare) for name, rare in pools.items()},
        task={"labels": []},
        privacy={"epsilon": 8.0},
        federation={"parties": 1},
        method={"name": "undersong", "samples": 120},
    )
    path.write_text(path.read_text(encoding="utf-8").replace('label = "label"', ""), encoding="utf-8")
    corpus, run = run_task(load(path, []))
    ((_, recorded),) = run.records["score"]
    score = PrivateScore.from_json(recorded)
    texts = [sample.text for sample in corpus]
    near = quantise(embed([row["text"] for row in draw_rows(np.random.default_rng(5), 200, rare=0.0)]))
    truth = (near @ quantise(embed(texts)).T).max(axis=1).mean()
    assert score.low <= truth <= score.high
    assert (score.measure, score.zero_shot.texts) == ("similarity", 40)
    assert score.value > score.zero_shot.value - 2 * score.zero_shot.error
    rounds = [t for t, _ in run.records["weights noise"]]
    assert rounds
    assert set(rounds) <= {t for t, _ in run.records["weights"]}


def test_option_written_multiplies_the_generator_calls():
    setting = Setting(("a", "b"), ("one",))
    assert undersong.METHOD.generator_calls(Options(samples=50, written=4), setting) == 205  # five anew
    assert sum(Options(samples=50, written=4, rounds=3).per_round()) == 200


def count_statements(given):
    """Counts a module's or a function's statements, docstrings not among them; long names make no more of them."""
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(given))))
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    return sum(not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)) for each in statements)


def test_method_code_is_short_and_its_constants_are_documented():
    parts = (
        undersong,
        shares,
        learning.classifier,
        learning.classifiers,
        learning.probabilities,
    )
    cleaning = (cleaned_mixture.cleaned, cleaned_mixture._estimate_held_out)
    assert sum(map(count_statements, (*parts, *cleaning))) <= 620
    assert count_statements(undersong.publish) <= 30
    assert len(dataclasses.fields(TUNING)) <= 25
    assert all(each.metadata["unit"] and each.metadata["reason"] for each in dataclasses.fields(TUNING))
    page = (Path(__file__).parents[3] / "docs" / "method.md").read_text(encoding="utf-8")
    assert f"<!-- begin constants -->\n{constants.table(undersong.Constants, 'unit')}\n<!-- end -->" in page


def test_generator_significantly_less_useful_than_the_best_is_left_out():
    texts, labels = np.full((3, 2), 200), np.array([100.0, 100.0])
    found = usefulness(opened([20, 15, -35, 0, 0, 0]), np.zeros(2, dtype=np.int64), labels, texts)
    assert not found.by_label
    assert found.chosen(np.ones((3, 2), dtype=bool)).tolist() == [[True, True], [True, True], [False, False]]
    unsure = usefulness(opened([20, 15, -35, 0, 0, 0], 100.0), np.zeros(2, dtype=np.int64), labels, texts)
    assert unsure.chosen(np.ones((3, 2), dtype=bool)).all()
    few = usefulness(opened([20, 15, -35, 0, 0, 0]), np.zeros(2, dtype=np.int64), labels, np.full((3, 2), 1))
    assert few.chosen(np.ones((3, 2), dtype=bool)).all()  # one text says nothing about who wrote it
    assert not found.chosen(np.array([[False] * 2, [True] * 2, [True] * 2])).any(axis=1)[0]


def test_generators_are_chosen_by_label_when_usefulness_differs_by_label():
    texts, labels = np.full((2, 2), 200), np.array([100.0, 100.0])
    apart = usefulness(opened([45, -45, -45, 45]), np.arange(2), labels, texts)
    assert apart.by_label
    assert apart.chosen(np.ones((2, 2), dtype=bool)).tolist() == [[True, False], [False, True]]
    alike = usefulness(opened([45, -45, 40, -40]), np.arange(2), labels, texts)
    assert not alike.by_label
    assert alike.chosen(np.ones((2, 2), dtype=bool)).tolist() == [[True, True], [False, False]]
    assert not usefulness(opened([45, -45, -45, 45], 60.0), np.arange(2), labels, texts).by_label


def test_gain_is_called_certain_above_half_a_standard_error():
    exact = undersong.gain_of(opened([10, 5]), 100.0)  # ten records of a hundred gain a whole point each
    assert (exact.value, exact.error) == (pytest.approx(0.1), pytest.approx(0.03, abs=1e-3))
    assert exact.certain()
    assert exact == undersong.gain_of(opened([10, 30, 5]), 100.0)  # beside the score
    noisy = undersong.gain_of(opened([10, 5], 25.0), 100.0)
    assert noisy.error == pytest.approx((0.25**2 + 0.03**2) ** 0.5, abs=1e-3)
    assert not noisy.certain()


def test_word_classifier_learns_words_and_answers_no_unseen_label():
    from undersong_protocol.statistics.classifier_votes import word_labels

    rng = np.random.default_rng(0)
    texts = draw_rows(rng, 60)
    label_of = np.array(["ab".index(each["label"]) for each in texts])
    found = undersong.word_classifier(undersong.word_rows([each["text"] for each in texts]), label_of, 3)
    assert word_labels(found, ["apple bread plum", "gear axle", ""]).tolist()[:2] == [0, 1]
    assert (word_labels(found, [each["text"] for each in draw_rows(rng, 40)]) < 2).all()
    one = undersong.word_classifier(undersong.word_rows(["apple"]), np.array([2]), 3)
    assert word_labels(one, ["anything"]).tolist() == [2]


@pytest.mark.parametrize("heavy_label", [0, 1])
def test_word_classifier_follows_the_weights_of_its_texts(heavy_label):
    weights = np.where(np.arange(2) == heavy_label, 1.9, 0.1)
    word_model = undersong.word_classifier(undersong.word_rows(["apple", "apple"]), np.arange(2), 2, weights)
    assert word_model[-1].argmax() == heavy_label


@pytest.mark.slow
def test_generator_of_wrong_labels_is_left_out_and_named_in_the_remarks(tmp_path):
    task = task_of(tmp_path, {"right": 0.0, "wrong": 1.0})
    samples, run = run_task(task)
    counts, aside_rows = (run.records[name][-1][1] for name in ("unpublished", "set aside"))
    assert sum(counts.values()) == len(run.pool) - len(aside_rows) - len(samples)
    assert min(counts.values()) >= 0
    wrote = {name: sum(each.generator == name for each in run.pool.samples) for name in ("right", "wrong")}
    assert wrote["right"] > 3 * wrote["wrong"]
    assert any("set aside, in" in remark and "wrong" in remark for _, remark in run.records["remarks"])
    assert run.records["weights"][-1][1] == pytest.approx([1.0, 0.0])
    assert {name for _, reasons in run.records["left out"] for name in reasons} == {"wrong"}


@pytest.mark.slow
@pytest.mark.parametrize("counted_with_it", [("labels",), ("labels", "support")])
def test_score_leaves_out_the_records_of_a_hospital_that_withdrew(tmp_path, monkeypatch, counted_with_it):
    """Twice as many records as the verdict's hospitals have were counted before one of them withdrew."""
    task, private_sum = task_of(tmp_path, {"right": 0.0, "wrong": 1.0}), RunContext.private_sum

    def with_another(run, name, inputs):
        noisy_sum = private_sum(run, name, inputs)
        if name not in counted_with_it:
            return noisy_sum
        return dataclasses.replace(noisy_sum, values=2 * noisy_sum.values, survivors=(*noisy_sum.survivors, "left"))

    _, alone = run_task(task)
    score = alone.records[private_score.RECORD][-1][1]["value"]
    monkeypatch.setattr(RunContext, "private_sum", with_another)
    _, run = run_task(task)
    if "support" in counted_with_it:  # no sum has counted the records of those that are left
        assert private_score.RECORD not in run.records
    else:
        assert run.records[private_score.RECORD][-1][1]["value"] == pytest.approx(score, abs=0.1)
        assert score > 0.8  # over the records of both it would be 0.7 at most


@pytest.mark.heavy
def test_wrong_labels_of_a_single_generator_are_corrected_by_the_records(tmp_path):
    samples, run = run_task(task_of(tmp_path, {"one": 0.4}))
    assert run.records["verdict"][-1][1]["taken"]
    (remark,) = (remark for _, remark in run.records["remarks"] if remark.startswith("Published: "))
    assert "under the labels that the records find likeliest" in remark
    assert re.search(
        r"Of about \d+ hospital records, a program labels \d+ more rightly when .*, than when .*, give or take", remark
    )
    assert "within chance" not in remark
    assert "point" not in remark
    right = [sum(word in text.text for word in WORDS[text.label]) > 0 for text in samples]
    assert np.mean(right) > 0.95  # 60 of 100 texts were


@pytest.mark.slow
@pytest.mark.parametrize("mistaken", [0.0, 1.0])
def test_last_sum_compares_no_two_equal_sets_of_texts(tmp_path, mistaken):
    """All generators are chosen, or what is left of the texts once one generator's are set aside."""
    _, run = run_task(task_of(tmp_path, {"one": 0.0, "two": mistaken}))
    assert not run.records["verdict"][-1][1]["compared"]
    (remark,) = (remark for _, remark in run.records["remarks"] if remark.startswith("Published: "))
    left = "all texts that are not set aside" if mistaken else "all texts"
    assert remark.startswith(f"Published: {left}, {CLEANED}. The last sum compares the texts")
    assert remark.endswith("beyond what was set aside and what was ordered, the records changed nothing.")


def centred(labels, sums, sigma, records=(100.0, 100.0), rare=(False, False)):
    """Labels of four texts, at -1, -1, 1 and 1, by noisy sums of the records of two labels along one axis."""
    x = np.array([[-1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    found = undersong.by_centres(
        opened([sums[0], 0, sums[1], 0], sigma), np.array(records), x, np.array(labels), np.array(rare)
    )
    return found.label_of.tolist()


def test_text_is_relabelled_by_near_records_unless_noise_hides_them():
    assert centred([0, 1, 0, 1], [-80, 80], 1.0) == [0, 0, 1, 1]
    assert centred([0, 1, 0, 1], [80, -80], 1.0) == [1, 1, 0, 0]
    assert centred([0, 1, 0, 1], [80, -80], 1000.0) == [0, 1, 0, 1]
    assert centred([0, 1, 0, 1], [80, -80], 1.0, rare=[True, False]) == [0, 1, 0, 0]


def test_mean_of_herded_texts_is_nearer_the_target_than_of_the_nearest():
    rng = np.random.default_rng(3)
    offsets, target = rng.normal(size=(200, 5)), np.array([0.5, -0.5, 0.0, 0.0, 0.5])
    rows = herded(offsets, target, 20)
    assert len(set(rows.tolist())) == 20
    nearest = np.argsort(((offsets - target) ** 2).sum(axis=1))[:20]
    error, error_of_nearest = (np.linalg.norm(offsets[each].mean(axis=0) - target) for each in (rows, nearest))
    assert error < error_of_nearest / 3
    assert herded(offsets, target, 300).tolist()[:20] == rows.tolist()
    assert sorted(herded(offsets, target, 300)) == list(range(200))


def test_many_texts_are_herded_in_portions_of_their_order(monkeypatch):
    monkeypatch.setattr(selection, "HERD_ROWS", 50)
    offsets, target = np.random.default_rng(4).normal(size=(120, 3)), np.array([0.3, 0.0, -0.3])
    one_label = np.zeros(120, dtype=np.int64)

    def herded_in_portions(size):
        return selection.herded_by_label(offsets, one_label, target[None], np.array([size]))

    rows = herded_in_portions(30)
    assert [len(rows[(first <= rows) & (rows < first + 40)]) for first in (0, 40, 80)] == [10, 10, 10]
    assert np.linalg.norm(offsets[rows].mean(axis=0) - target) < 0.05
    assert sorted(herded_in_portions(120)) == list(range(120))


@pytest.mark.parametrize(("left", "share"), [(60, 0.1), (120, 0.15)])
def test_rare_label_keeps_its_share_of_the_mixture(left, share):
    """60 texts are of the chosen generator, and 60 of another one: set aside, or left to the mixture."""
    state = SimpleNamespace(
        shares=np.array([0.1, 0.9]),
        rare=np.array([True, False]),
        not_aside=lambda: np.arange(left),
        run=SimpleNamespace(pool=range(120)),
    )
    shares_of_labels = undersong.RunState._shares_with_rare(state, np.array([[6, 54], [0, 0]]), 60)
    assert shares_of_labels.tolist() == pytest.approx([share, 1 - share])


def test_no_prompt_shows_a_text_that_is_set_aside():
    votes = opened(range(20, 0, -1))
    pool = SimpleNamespace(generator_of=np.repeat([0, 1], 10), texts_of=lambda positions: list(positions))
    run = SimpleNamespace(
        pool=pool,
        publish_pool=lambda: None,
        publish_numbers=lambda *_: None,
        private_sum=lambda *_: votes,
        record=lambda *_: None,
    )
    state = SimpleNamespace(
        run=run,
        shares=np.ones(1),
        chosen=np.ones((2, 1), dtype=bool),
        not_aside=lambda: np.arange(5, 20),
        _texts=lambda: (np.eye(20, dtype=np.float32), np.zeros(20, dtype=np.int64)),
    )
    undersong.RunState.choose_examples(state, "votes/1", 0)
    assert state.examples == [[5, 6, 7, 8]]


def test_no_more_texts_are_published_than_the_task_says(tmp_path):
    samples, run = run_task(task_of(tmp_path, {"one": 0.0}, "task.labels=[]", "method.samples=40", "method.written=3"))
    assert (run.ordered, len(samples)) == (120, 40)


def test_run_without_any_text_stops_before_the_parties_choose(tmp_path, monkeypatch):
    monkeypatch.setattr(
        NgramGenerator, "answer", lambda self, requests: ((i, Completion("")) for i in range(len(requests)))
    )
    task = load(make_task(tmp_path, parties=1, records=20, samples=20), ["method.name=undersong"])
    with pytest.raises(ConfigurationError) as raised:
        run_task(task)
    assert raised.value.code == "no-samples"
    assert "undersong try" in raised.value.remedy


@pytest.mark.parametrize(
    ("by_label", "dropped", "says"),
    [
        (False, [True, True], "labels 10 fewer of the hospitals' records right"),
        (False, [True, True], "give or take 4"),  # one answer for both labels: 100 times the root of 0.0016
        (True, [True, True], "give or take 3"),
        (True, [True, False], "give or take 2, for 1 of 2 labels"),
    ],
)
def test_remark_says_by_how_many_records_a_dropped_generator_is_behind(by_label, dropped, says):
    estimate = undersong.GeneratorUsefulness(np.array([[0.1, 0.1], [0.0, 0.0]]), np.full((2, 2), 0.0008), by_label)
    among, records = np.ones((2, 2), dtype=bool), np.array([60.0, 40.0])
    assert says in estimate.shortfall(1, np.array(dropped), among, records)
