"""Support: a generator whose texts lie where no record lies, and the texts that go with it."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles import bench, parties
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import embed
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_common.models.embedding import publishable
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LabelHistogram, PublicInputs
from undersong_protocol.statistics.interface import LabelledEmbeddings
from undersong_protocol.statistics.support import SupportVotes
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import support
from undersong_server.methods.parts.words import STEP, WINDOW, windows
from undersong_server.operations.tasks import read_private_files
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

NAMES = ("good", "half", "bad")


def judged(votes, sigma=2.0, texts=60):
    authors = np.repeat(np.arange(3), texts)
    natural = NoisySum(np.rint(np.array(votes) * 4096).astype(np.int64), 4096, sigma, ("p",))
    return support.support_of(natural, np.zeros(3 * texts, dtype=np.int64), authors, 3, np.ones(1))


TOPIC = ("fever", "cough", "rash", "wheeze", "sputum", "chest", "breath", "sore", "throat", "chills", "since", "night")
OTHER = ("hotel", "parcel", "lift", "shower", "dryer", "drum", "menu", "tip", "refund", "courier", "since", "night")


def folds():
    return np.random.default_rng(0)


def reasons(*arguments):
    return support.judgement(*arguments).reasons


def draw_texts(rng, words, count, length=12):
    return [" ".join(rng.choice(words, length)) for _ in range(count)]


def test_support_vote_is_split_equally_among_the_nearest_third_of_texts():
    class Records:
        texts, labels, units = ("a", "b", "c"), np.array([0, 1, -1]), np.arange(3)
        embeddings = np.array([[1, 0], [1, 0], [1, 0]], dtype=np.float32)

    near = np.array([[1, 0], [0.5, 0], [0.25, 0], [0, 0], [-0.5, 0], [-1, 0]], dtype=np.float32)
    public = PublicInputs(
        {"candidates": LabelledEmbeddings(near, np.zeros(6, dtype=np.int64))},
        {"authors": np.array([0, 1, 1, 1, 2, 2.0])},
    )
    rows = SupportVotes(3, 6, labels=2).rows(Records(), public, {})
    assert rows.take(np.arange(3)).tolist() == [[0.5, 0.5, 0.0], [0, 0, 0], [0, 0, 0]]


def test_generator_is_called_supported_or_not_only_beyond_the_noise():
    clear = judged([210.0, 88.0, 2.0])
    assert (clear.supported.tolist(), clear.unsupported.tolist()) == ([True, False, False], [False, False, True])
    noisy = judged([210.0, 88.0, 2.0], sigma=90.0)
    assert not noisy.unsupported.any()
    few = judged([4.0, 2.0, 0.0])
    assert not few.unsupported.any()
    assert not judged([-900.0, -900.0, -900.0]).unsupported.all()


def test_noise_in_the_votes_of_a_generator_without_texts_is_ignored():
    votes = NoisySum(np.array([210, 8, 2]) * 4096, 4096, 2.0, ("p",))
    found = support.support_of(votes, np.zeros(120, dtype=np.int64), np.repeat([0, 2], 60), 3, np.ones(1))
    assert (found.supported.tolist(), found.unsupported.tolist()) == ([True, False, False], [False, False, True])


@pytest.mark.parametrize(
    ("support_by_generator", "sigma", "unsupported"),
    [
        # Supports that 300 and 100 records gave at epsilon 1 to a bank's good, half good and off-topic pools.
        ([1.73, 1.01, 0.07], 13.0, [False, False, True]),
        ([1.58, 0.93, 0.15], 25.0, [False, False, True]),
        ([1.02, 1.20, 0.59], 30.0, [False, False, False]),
        ([2.0, 0.5, 0.5], 30.0, [False, False, False]),  # weak, and on the subject
        ([2.6, 0.8, 0.0], 10.0, [False, False, True]),  # beside a generator that is like the records themselves
        ([0.3, 0.2, -0.3], 90.0, [False, False, False]),
    ],
)
def test_generator_is_unsupported_when_its_votes_are_far_below_the_best(support_by_generator, sigma, unsupported):
    votes = [100.0 * part for part in support_by_generator]
    assert judged(votes, sigma=sigma).unsupported.tolist() == unsupported


def test_support_is_measured_by_label_only_with_enough_texts_of_each():
    setting = SimpleNamespace(generators=NAMES, labels=tuple("abcdef"))
    assert support.statistic(setting, 53).labels == 0
    assert support.statistic(setting, 54).labels == 6


@pytest.mark.parametrize(
    ("votes", "supported"),
    [
        # The nearest third of a pool whose second generator is half on topic: its votes are those of a whole share.
        ([200.0, 100.0, 0.0], [True, False, False]),
        ([269.0, 155.0, 1.0], [True, False, False]),
        ([2.00 * 200, 1.00 * 200, 0.0], [True, False, False]),  # real questions, zero-shot ones, news
        ([1.21 * 200, 0.48 * 200, 0.02 * 200], [True, False, False]),  # the clinic's
        ([300.0, 290.0, 1.0], [True, True, False]),
        ([24.0, 22.0, 1.0], [True, False, False]),  # as good as the best, which few votes do not tell
        ([9.0, 1.0, 0.0], [False, False, False]),
    ],
)
def test_generator_is_supported_when_its_votes_are_near_the_best(votes, supported):
    assert judged(votes, sigma=5.0).supported.tolist() == supported


def pool(good, between, bad):
    """Texts of three generators, supported, in between and unsupported, and the number of each one's generator."""
    return [*good, *between, *bad], np.repeat(np.arange(3), [len(good), len(between), len(bad)])


def off_subject(good, between, bad):
    """Marks the texts of the first two generators that a public classifier finds off the subject; None if none can."""
    texts, authors = pool(good, between, bad)
    found = support.off_subject(texts, authors == 0, authors == 2, folds())
    return found if found is None else (found[authors == 0], found[authors == 1])


def judged_texts(good, between, bad):
    texts, authors = pool(good, between, bad)
    natural = NoisySum(np.rint(np.array([1.2, 0.4, 0.01]) * 4096 * 300).astype(np.int64), 4096, 2.0, ("p",))
    # As many texts of each generator as votes expect, whatever the classifier learns from.
    verdict = support.support_of(natural, np.zeros(60, dtype=np.int64), np.arange(60) % 3, 3, np.ones(1))
    assert (verdict.supported.tolist(), verdict.unsupported.tolist()) == ([True, False, False], [False, False, True])
    found = support.judgement(verdict, texts, authors, folds())
    return [np.array(found.reasons)[authors == number] for number in range(3)], found.left_out.tolist()


def test_classifier_marks_off_topic_texts_of_a_doubtful_generator():
    rng = np.random.default_rng(1)
    halves = [
        f"{start} {end}" for start, end in zip(draw_texts(rng, TOPIC, 15), draw_texts(rng, OTHER, 15), strict=True)
    ]
    between = [*draw_texts(rng, TOPIC, 30), *draw_texts(rng, OTHER, 15), *halves]
    good, others = off_subject(draw_texts(rng, TOPIC, 60), between, draw_texts(rng, OTHER, 60))
    assert others[30:].all()  # those of which only a half is of another subject as well
    assert not others[:30].any()
    assert good.sum() <= 1  # two in a hundred of a supported generator's


def test_classifier_trial_counts_marks_on_good_and_bad_generators_texts():
    rng = np.random.default_rng(1)
    texts, authors = pool(draw_texts(rng, TOPIC, 60), draw_texts(rng, TOPIC, 20), draw_texts(rng, OTHER, 60))
    verdict = support.judgement(judged([210.0, 88.0, 2.0]), texts, authors, folds())
    marked = support.off_subject(texts, authors == 0, authors == 2, folds())
    counts = marked[authors == 2].sum(), marked[authors == 0].sum()
    assert (verdict.trial.bad, verdict.trial.good) == (60, 60)
    assert (verdict.trial.marked_bad, verdict.trial.marked_good) == counts


@pytest.mark.parametrize(
    ("texts", "says"), [(60, "takes more than 10 % of its texts"), (10, "too few texts to teach a word filter")]
)
def test_reason_why_a_generator_writes_no_more_is_recorded(texts, says):
    rng = np.random.default_rng(1)
    pool_texts, authors = pool(*(draw_texts(rng, words, texts) for words in (TOPIC, OTHER, OTHER)))
    support_votes = judged([200.0, 100.0, 2.0])
    verdict = support.judgement(support_votes, pool_texts, authors, folds())
    recorded = {}
    run = SimpleNamespace(
        setting=SimpleNamespace(generators=NAMES), record=lambda name, _, value: recorded.update({name: value})
    )
    support.record_left_out(run, support_votes, verdict)
    assert recorded[support.LEFT_OUT]["bad"] == "too few records are near its texts"
    assert "has on average 0.50 times as many records near it as a text of good," in recorded[support.LEFT_OUT]["half"]
    assert says in recorded[support.LEFT_OUT]["half"]
    assert "good" not in recorded[support.LEFT_OUT]


def test_only_off_topic_texts_of_a_doubtful_generator_are_set_aside():
    rng = np.random.default_rng(1)
    between = [*draw_texts(rng, TOPIC, 57), *draw_texts(rng, OTHER, 3)]
    (good, found, bad), left_out = judged_texts(draw_texts(rng, TOPIC, 60), between, draw_texts(rng, OTHER, 60))
    assert set(bad) == {support.GENERATOR}
    assert set(found[57:]) == {support.SUBJECT}
    assert (found[:57] != "").sum() <= 1
    assert (good != "").sum() <= 1
    assert left_out == [False, False, True]


@pytest.mark.parametrize("texts", [60, 10])
def test_doubtful_generator_is_left_out_if_much_is_off_topic_or_unjudged(texts):
    rng = np.random.default_rng(1)
    between = [*draw_texts(rng, TOPIC, texts), *draw_texts(rng, OTHER, texts // 5)]
    (good, found, bad), left_out = judged_texts(draw_texts(rng, TOPIC, texts), between, draw_texts(rng, OTHER, texts))
    assert (set(bad), left_out) == ({support.GENERATOR}, [False, True, True])
    assert (found != "").all()
    assert (support.UNJUDGED if texts == 10 else support.DOUBT) in found
    assert (good != "").sum() <= 1


@pytest.mark.parametrize(("good", "bad"), [(7, 7), (20, 20), (48, 60), (60, 4), (1, 1), (400, 3)])
def test_classifier_trained_on_few_texts_marks_nothing(good, bad):
    rng = np.random.default_rng(2)
    between = [*draw_texts(rng, TOPIC, 20), *draw_texts(rng, OTHER, 20)]
    assert off_subject(draw_texts(rng, TOPIC, good), between, draw_texts(rng, OTHER, bad)) is None


@pytest.mark.heavy
def test_classifier_that_misses_bad_texts_in_its_trial_marks_nothing():
    rng = np.random.default_rng(3)
    both = [*TOPIC, *OTHER]
    assert off_subject(draw_texts(rng, both, 100), draw_texts(rng, OTHER, 60), draw_texts(rng, both, 100)) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_on_topic_texts_in_other_words_are_not_set_aside(seed):
    rng = np.random.default_rng(seed)
    style = (*TOPIC[:6], "feels", "poorly", "doctor", "hello", "thanks", "advice", "menu", "tip")
    between = [*draw_texts(rng, style, 100), *draw_texts(rng, OTHER, 40)]
    supported, others = off_subject(draw_texts(rng, TOPIC, 150), between, draw_texts(rng, OTHER, 60))
    assert others[:100].mean() <= 0.05  # two in a hundred are allowed, and chance
    assert others[100:].mean() >= 0.9
    assert supported.mean() <= support.LENIENCE


def test_set_aside_texts_hardly_depend_on_the_order_of_the_texts():
    """Labels that repeat in the order of the texts are dealt to all folds alike."""
    rng = np.random.default_rng(4)
    labels = [(word, "since", "night") for word in TOPIC[:5]], [(word, "since", "night") for word in OTHER[:5]]
    good, bad = ([draw_texts(rng, own[n % 5], 1, 6)[0] for n in range(100)] for own in labels)
    _, others = off_subject(good, draw_texts(rng, OTHER[:5], 50), bad)
    assert others.mean() >= 0.8


def test_word_windows_cover_a_text_and_all_but_the_last_have_full_length():
    for length in range(1, 40):
        words = [str(number) for number in range(length)]
        pieces = [piece.split() for piece in windows(" ".join(words))]
        assert all(len(piece) == WINDOW for piece in pieces[:-1])
        assert [piece[0] for piece in pieces] == words[::STEP][: len(pieces)]
        assert sorted({word for piece in pieces for word in piece}, key=int) == words


@pytest.mark.parametrize("votes", [[150.0, 90.0, 60.0], [100.0, 100.0, 100.0]])
def test_nothing_is_set_aside_without_an_unsupported_generator(votes):
    rng = np.random.default_rng(1)
    texts = draw_texts(rng, TOPIC, 180)
    assert not any(reasons(judged(votes), texts, np.repeat(np.arange(3), 60), folds()))


def test_support_remark_states_counts_of_texts_and_votes():
    trial = support.ClassifierTrial(bad=30, marked_bad=27, good=60, marked_good=1)
    found = support.remark(
        judged([210.0, 30.0, 1.0]), {("half", support.SUBJECT): 98, ("bad", support.GENERATOR): 30}, NAMES, trial
    )
    assert found.startswith(
        "128 texts of 2 generators are set aside, in set-aside.jsonl and in no other file, and no part"
    )
    assert (
        "30 of bad because too few hospital records are near this generator's texts (a text of it has on average 0.00"
        " times as many records near it as a text of good, give or take"
    ) in found
    assert (
        "98 of half because the word filter takes them for texts of a generator that too few records are near"
        " ('subject')"
    ) in found
    assert "of about 241 hospital records would be nearest; counted were 30 (give or take" in found
    assert (
        "it marked 27 of the 30 texts of the generator that too few records are near, and 1 of the 60 texts of the"
        " generator that the records clear: these may be mistakes."
    ) in found
    several = support.ClassifierTrial(1, 1, 60, 0, unsupported=2, supported=3).sentence
    assert "1 of the 1 text of the 2 generators that too few" in several
    assert several.endswith("0 of the 60 texts of the 3 generators that the records clear.")
    unjudged = support.remark(judged([210.0, 88.0, 1.0]), {("half", support.UNJUDGED): 34}, NAMES, trial)
    assert "no word filter could judge its texts ('unjudged')" in unjudged
    assert "(a text of it has on average 0.42 times as many records near it as a text of good, give or" in unjudged
    assert "to be cleared it needs more than 0.75 plus twice that error)" in unjudged
    assert "it marked" not in unjudged
    assert support.remark(judged([100.0, 100.0, 100.0]), {}, NAMES) == ""


@pytest.mark.parametrize(("sigma", "told"), [(2.0, True), (500.0, False)])
def test_recorded_support_says_if_any_generator_was_supported(sigma, told):
    votes = judged([100.0, 80.0, 60.0], sigma)
    facts = {name: getattr(votes, name).tolist() for name in ("votes", "expected", "error")}
    assert support.Support.from_json({"records": votes.records, **facts}).supported.any() == told


def run_beside(folder, monkeypatch, **privacy):
    rng = np.random.default_rng(7)

    def embed_near(texts):
        cut = embed(texts)[:, : parties.DIMENSION]
        return publishable(cut / np.linalg.norm(cut, axis=1, keepdims=True))

    for module in (bench, parties):
        monkeypatch.setattr(module, "embed", embed_near)
    monkeypatch.setattr(embedders, "dimension", lambda model: parties.DIMENSION)
    rows = [{"text": text, "label": "x"} for text in draw_texts(rng, TOPIC, 150)]
    pools = {
        name: [{"text": text, "label": "x"} for text in draw_texts(rng, words, 90)]
        for name, words in (("near", TOPIC), ("far", OTHER))
    }
    path = make_replay_task(
        folder,
        rows,
        generators=pools,
        task={"labels": ["x"]},
        privacy={"epsilon": 8.0, **privacy},
        federation={"parties": 1},
        method={"name": "wasp", "samples": 120, "rounds": 2},
    )
    task = load(path, [])
    run_plan = plan_run(task)
    table = read_private_files(task)[0]
    return run_plan, bench.run_federated(task, run_plan, folder / "run", {"party-0": table}, seed=2)


@pytest.mark.slow
def test_option_support_adds_the_support_sum_to_another_method(tmp_path, monkeypatch):
    run_plan, outcome = run_beside(tmp_path, monkeypatch, support=True)
    assert [planned.name for planned in run_plan.plan.sums][-1] == support.CORPUS
    assert run_plan.plan.epsilon() <= 8.0 + 1e-6
    assert {sample.generator for sample in outcome.samples} == {"near"}
    aside = outcome.records[support.RECORD][-1][1]
    assert {row[2] for row in aside} == {"far"}
    assert len(aside) + len(outcome.samples) == 120
    assert any("of far because" in remark for _, remark in outcome.records["remarks"])


def test_support_with_one_generator_or_with_laplace_sums_is_refused(tmp_path):
    asked = [SumRequest("a", LabelHistogram(2), 3.0)]
    added = support.with_support(asked, 2, 60, 0.1)
    assert added[0] == asked[0]
    assert added[1].budget_share / 3.0 == pytest.approx(0.1 / 0.9)
    assert added[1].statistic == SupportVotes(2, 60)
    for requests, generators in ((asked, 1), ([SumRequest("a", LabelHistogram(2), law="laplace")], 2)):
        with pytest.raises(ConfigurationError, match=r"privacy\.support"):
            support.with_support(requests, generators, 60, 0.1)
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(8)]
    method, privacy = {"name": "undersong", "samples": 60}, {"support": True, "epsilon": 4.0}
    default = make_replay_task(tmp_path, rows, generators={"u": rows, "v": rows}, method=method, privacy=privacy)
    names = [planned.name for planned in plan_run(load(default, [])).plan.sums]
    assert "support" in names
    assert support.CORPUS not in names


def test_remark_names_a_doubtful_generator_whose_texts_nothing_judges():
    opened = judged([200.0, 110.0, 190.0])
    assert not opened.unsupported.any()
    assert not opened.supported[1]
    words = support.unjudged_remark(opened, ["good", "half", "bad"], NAMES)
    assert "half: a text of it has on average 0.5" in words
    assert "good:" not in words
    assert support.unjudged_remark(opened, ["good", "bad"], NAMES) == ""
