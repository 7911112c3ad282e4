"""Form of the records' texts: what is asked and refused, which words are counted, and what enters a prompt."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.parties import embed as party_embed
from tests.doubles.tasks import make_replay_task, make_task
from tests.doubles.word_embedding import DIMENSION, embed
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics import MetadataHistograms
from undersong_protocol.statistics.label_words import LabelWords
from undersong_protocol.statistics.terms import words
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.statistics.votes import EqualVotes
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.ngram import NgramGenerator
from undersong_server.methods.interface import Attribute, Sample, Setting, plan_sums
from undersong_server.methods.parts import constants, form
from undersong_server.methods.parts.signal import Signal, expected_signal, least_count
from undersong_server.methods.undersong import METHOD, Options, plan
from undersong_server.operations.tasks import read_private_files
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

LABELS = ("a", "b")
# Of each label's words the records use the first four; a generator by itself uses all of them alike.
WORDS = {
    "a": ("apple", "bread", "cheese", "plum", "honey", "flour", "butter", "pear", "yeast", "cream", "salt", "mint"),
    "b": ("piston", "gear", "axle", "brake", "clutch", "valve", "pump", "rotor", "wheel", "cable", "hose", "bolt"),
}
OF_RECORDS = 4
RECORD_WORDS = 6


@pytest.fixture(autouse=True)
def near_words_are_near(monkeypatch):
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    monkeypatch.setattr("undersong_common.models.embedders.dimension", lambda model: DIMENSION)


def setting(labels=4, generators=1, **facts):
    names = tuple(f"label {n}" for n in range(labels)), tuple(f"generator {n}" for n in range(generators))
    return Setting(*names, privacy=Privacy(4.0, 1e-5), **facts)


def plan_by_name(given, **options):
    return {request.name: request for request in plan(Options(samples=120, **options), given)}


def opened(values, sigma=0.001):
    return NoisySum(np.rint(np.array(values, dtype=float) * 256).astype(np.int64), 256, sigma, ("p",))


def test_page_on_form_states_the_program_s_constants():
    page = (Path(__file__).parents[3] / "docs" / "form.md").read_text(encoding="utf-8")
    assert f"<!-- begin constants -->\n{constants.table(form.Form, 'unit', 'reason')}\n<!-- end -->" in page


def test_plan_has_the_form_sums_that_its_options_ask_for():
    every = plan_by_name(setting(), lengths=True, words=True, voted_examples=3)
    assert list(every) == ["labels", "centres", "words", "votes/2", "verdict"]
    assert every["labels"].statistic == MetadataHistograms(4, form.BINS)
    assert every["words"].statistic == LabelWords(160, 4, 4)
    assert every["votes/2"].statistic == EqualVotes(3, 60, 4)  # of 15 texts of a label a record votes for a quarter
    assert plan_by_name(setting(labels=20), voted_examples=3)["votes/1"].statistic == EqualVotes(
        1, 40, 20
    )  # of two, for one
    assert plan_by_name(setting(labels=2), voted_examples=3)["votes/2"].statistic == EqualVotes(
        4, 32, 2
    )  # of the 16 at most
    assert list(plan_by_name(setting(), voted_examples=3)) == ["labels", "centres", "votes/1", "votes/2", "verdict"]
    assert list(plan_by_name(setting(), lengths=True)) == list(plan_by_name(setting()))
    # The labels have the noise that they have alone, beside the other sums of the run.
    alone, beside = plan_by_name(setting()), plan_by_name(setting(), lengths=True)
    assert beside["labels"].budget_share == 2 * alone["labels"].budget_share
    assert beside["labels"].statistic.sensitivity.l2 ** 2 == pytest.approx(2.0)
    lengths_alone = plan_by_name(setting(labels=0), lengths=True)["labels"].statistic
    assert lengths_alone.asks == "how many of your records have each length"


def test_word_and_example_sums_are_omitted_when_noise_would_hide_them():
    few = setting(labels=10, expected_records=20)
    assert not {"words", "votes/2"} & set(plan_by_name(few, words=True, voted_examples=3))
    told = METHOD.notes(Options(samples=120, words=True, voted_examples=3), few)
    assert [note.partition(":")[0] for note in told] == ["method.words", "method.voted_examples"]
    assert all("would be noise" in note for note in told)
    many = setting(labels=10, expected_records=2000)
    assert {"words", "votes/2"} <= set(plan_by_name(many, words=True, voted_examples=3))
    assert METHOD.notes(Options(samples=120, words=True, voted_examples=3), many) == METHOD.notes(Options(), few) == []


@pytest.mark.parametrize("labels", [2, 10, 30])
def test_note_states_the_records_from_which_words_are_asked(labels):
    options = Options(samples=40 * labels, words=True)
    (note,) = METHOD.notes(options, setting(labels=labels, expected_records=labels))
    stated = int(note.partition("asked from ")[2].split()[0])
    for records, is_asked in ((stated - 1, False), (stated, True)):
        planned = setting(labels=labels, expected_records=records)
        requests = plan(options, planned)
        assert ("words" in {request.name for request in requests}) == is_asked
    sigma = plan_sums(requests, planned.privacy, planned.quorum)["words"].sigma
    cells = next(request for request in requests if request.name == "words").statistic.cells
    assert form.labels_apart(np.full(labels, stated / labels), sigma, cells).all()
    assert not form.labels_apart(np.full(labels, (stated - 1) / labels), sigma, cells).any()


def test_form_sums_are_omitted_when_all_generators_replay_texts():
    recorded = setting(generators=2, recorded=frozenset({"generator 0", "generator 1"}))
    assert list(plan_by_name(recorded, lengths=True, words=True, voted_examples=3)) == list(plan_by_name(recorded))
    (note,) = METHOD.notes(Options(words=True), recorded)
    assert "written before" in note
    assert "words" in plan_by_name(setting(generators=2, recorded=frozenset({"generator 0"})), words=True)


@pytest.mark.parametrize(
    ("facts", "options", "code"),
    [
        ({"attributes": (Attribute("tone", ("x", "y"), column=False),)}, {"lengths": True}, "form-with-attributes"),
        ({"labels": 0}, {"words": True}, "form-without-labels"),
        ({"labels": 1}, {"voted_examples": 2}, "form-without-labels"),
        ({}, {"words": True, "voted_examples": 3, "rounds": 2}, "form-rounds"),
    ],
)
def test_form_option_that_cannot_be_met_is_refused_by_the_plan(facts, options, code):
    with pytest.raises(ConfigurationError) as raised:
        plan(Options(**options), setting(**facts))
    assert raised.value.code == code
    assert raised.value.remedy


def test_word_option_adds_one_generator_call_for_each_label():
    calls = METHOD.generator_calls(Options(samples=100, words=True), setting())
    assert calls == METHOD.generator_calls(Options(samples=100), setting()) + 4


def test_expected_signal_is_noise_only_below_its_noise_bound():
    counted = LabelWords(400, 10, 4)
    assert expected_signal(counted, 2.0, 400) == Signal(10.0, least_count(2.0, 400))  # of the 40 of a label
    assert expected_signal(EqualVotes(4, 40, 4), 3.0, 100) == Signal(10.0, 3.0)
    assert Signal(1.0, 2.0).is_noise
    assert not Signal(2.0, 2.0).is_noise


def test_noise_alone_rarely_exceeds_the_least_count_of_a_word():
    rng = np.random.default_rng(0)
    passed = (rng.normal(0.0, 3.0, (2000, 400)) >= least_count(3.0, 400)).sum()
    assert passed / 2000 < 0.3  # words that are noise, of 400; by the law of maxima 0.21


def test_words_listed_for_a_label_are_those_that_distinguish_it_most():
    texts = ["my card is lost", "the card is late", "my fee is high", "the fee is low"]
    vocabulary, scores = form.telling(texts, np.array([0, 0, 1, 1]), 2)
    best = [vocabulary[n] for n in scores.argmax(axis=0)]
    assert best == ["card", "fee"]
    assert "my" not in vocabulary  # two letters
    assert scores[vocabulary.index("the")].tolist() == [-np.inf, -np.inf]  # both labels have it alike
    assert scores[vocabulary.index("fee"), 0] == -np.inf


def test_listed_words_are_tokenised_identically_by_the_parties():
    texts = ["Größe STRASSE naïve x2000 ab \ufb01xed \u01f0unge \u1e96aus \u0130stanbul", "other"]
    vocabulary, _ = form.telling(texts, np.array([0, 1]), 2)
    assert {"grösse", "strasse", "naïve", "fixed", "other"} <= set(vocabulary)
    assert all(words(word) == [word] for word in vocabulary)


def listed(apart, cells=6):
    texts = ["card lost bank", "card lost bank", "fee high bank", "fee high bank", "rate up", "rate bank"]
    return form.word_lists(texts, np.array([0, 0, 1, 1, 2, 2]), np.array(apart), cells)


def test_labels_with_enough_records_get_own_word_lists_others_share_one():
    own = listed([True, True, True])
    cells = [[own.listed[cell] for cell in row if cell >= 0] for row in own.order]
    assert [words_of_label[0] for words_of_label in cells] == ["card", "fee", "rate"]
    assert len({cell for row in own.order for cell in row if cell >= 0}) == sum(map(len, cells)) == len(own.listed)
    assert max(map(len, cells)) == 2
    shared = listed([False, False, False])
    assert len(set(shared.listed)) == len(shared.listed)  # one cell a word, whoever reads it
    assert [shared.listed[row[0]] for row in shared.order] == ["card", "fee", "rate"]
    assert "bank" not in shared.listed  # it tells of no label
    mixed = listed([True, False, False])
    assert not set(mixed.order[0]) & set(mixed.order[1:].ravel()) - {-1}
    assert form.labels_apart(np.array([400.0, 10.0]), 4.0, 80).tolist() == [True, False]


def test_words_listed_for_too_few_records_are_not_asked():
    records = np.array([40.0, 40.0, 40.0])
    limit = 10.0 / least_count(1.0, len(listed([True] * 3).listed))  # sigma at which a quarter of 40 records is told
    own = listed([True, True, True])
    assert own.are_told(records, 0.99 * limit)
    assert not own.are_told(records, 1.01 * limit)
    shared = form.WordLists(("card",), np.array([[0], [0], [-1]]))  # read by two labels
    limit = 20.0 / least_count(1.0, 1)
    assert shared.are_told(records, 0.99 * limit)
    assert not shared.are_told(records, 1.01 * limit)
    assert not form.WordLists((), np.full((3, 1), -1)).are_told(records, 0.0)


@pytest.mark.slow
def test_run_with_fewer_records_than_declared_skips_the_word_sum(tmp_path, monkeypatch):
    _, run, *_ = run_over_words(tmp_path, monkeypatch, "method.words=true", records=10, declared=400, epsilon="4.0")
    assert run.asked == ["labels", "centres", "verdict"]
    assert any("Words: not asked" in remark for _, remark in run.records["remarks"])
    assert {tuple(terms) for terms in run.records["words"][0][1].values()} == {()}


def test_word_lists_of_many_labels_stay_within_the_size_limit(monkeypatch):
    monkeypatch.setattr(form, "LARGEST_ORDER", 3)
    assert listed([False, False, False]).order.shape == (3, 1)


def test_word_lists_pass_the_input_checks_of_their_statistic():
    from undersong_protocol.statistics import PublicFacts, PublicInputs

    for apart in ([True] * 3, [False] * 3, [True, False, True]):
        found = listed(apart)
        public = PublicInputs(texts={"words": found.listed}, numbers={"order": found.order.astype(np.float64)})
        LabelWords(6, 3, 4).check_inputs(public, PublicFacts(4, 3))


def test_words_with_counts_within_noise_are_not_put_into_prompts():
    lists = form.WordLists(("card", "lost", "fee"), np.array([[0, 1], [2, -1]]))
    first, second = lists.frequent(opened([50, 2, 2, 99], 2.0))  # the last coordinate has no word
    assert (first.terms, second.terms) == (("card",), ())
    rng = np.random.default_rng(0)
    assert first.draw(rng) == ("card",)
    assert second.draw(rng) == ()
    many = form.Frequent(("u", "v", "w", "x"), np.array([90.0, 5.0, 4.0, 1.0]))
    drawn = Counter(term for _ in range(200) for term in many.draw(rng))
    assert drawn["u"] > 190
    assert sum(drawn.values()) == 200 * form.FORM.terms


def test_word_of_a_single_record_counts_when_there_is_no_noise():
    lists = form.WordLists(("card", "lost"), np.array([[0, 1]]))
    assert lists.frequent(opened([1, 0], 0.0))[0].terms == ("card",)


def test_voted_examples_prefer_texts_that_contain_frequent_words():
    label_of = {"a": 0, "b": 1}
    texts = [
        Sample(f"{label} {n} {round_}", label, "g", round_, "worded")
        for label in LABELS
        for round_ in (0, 1)
        for n in range(10)
    ]
    few = [sample for sample in texts if sample.label == "a" or sample.text.endswith(("2 0", "3 0", "3 1", "4 1"))]
    shown = {}

    class Run:
        setting = setting(labels=2)
        rng = staticmethod(lambda name: np.random.default_rng(0))
        planned = staticmethod(lambda name: SimpleNamespace(dimension=32))
        publish_numbers = staticmethod(lambda name, values: None)
        embeddings = staticmethod(lambda samples: embed([sample.text for sample in samples]))

        def label_numbers(self, samples):
            return np.array([label_of[sample.label] for sample in samples])

        def publish_samples(self, name, step, samples):
            shown["samples"] = list(samples)
            return None, samples

        def private_sum(self, name, inputs):
            return opened([float(len(shown["samples"]) - n) for n in range(32)])

    first, second = form.voted_examples(Run(), "votes/2", few, 1)
    own = [sample for sample in shown["samples"] if sample.label == "a"]
    assert Counter(sample.round for sample in own) == {0: 6, 1: 10}
    assert first == [sample.text for sample in own][:8]
    assert second == ["b 2 0", "b 3 0"]  # of the four that there are


# A writer that does what its prompt asks for, and by itself uses all words of a label alike.


def answer_request(request):
    rng = np.random.default_rng(request.seed)
    own = WORDS[request.label]
    if request.kind == "vocabulary":
        return ", ".join(own)
    known = [word for text in request.good for word in words(text) if word in own] + list(own)
    fillers = [f"x{rng.integers(400)}" for _ in range(request.words or 20)]
    there = [*request.terms, *rng.choice(known, 3)]
    return " ".join([*there, *fillers][: max(len(request.terms) + 1, request.words or 23)])


def answers(self, requests):
    for index, request in enumerate(requests):
        SEEN.append(request)
        yield index, Completion(answer_request(request))


SEEN: list[GenerationRequest] = []


def record(rng, label):
    own = WORDS[label][:OF_RECORDS]
    return " ".join([*rng.choice(own, 3), *(f"y{rng.integers(400)}" for _ in range(RECORD_WORDS - 3))])


def run_over_words(tmp_path, monkeypatch, *options, records=400, declared=None, epsilon="inf", seed=3):
    rng = np.random.default_rng(5)
    rows = [{"text": record(rng, label), "label": label} for label in LABELS * (records // 2)]
    path = make_replay_task(
        tmp_path,
        rows,
        privacy={"epsilon": 4.0},
        federation={"parties": 1},
        method={"name": "undersong", "samples": 120},
    )
    content = path.read_text(encoding="utf-8")
    path.write_text(
        content.replace('kind = "replay"\npath = "private.jsonl"', 'kind = "ngram"\ncorpus = "public.jsonl"'),
        encoding="utf-8",
    )
    public = [f'{{"text": "{" ".join(WORDS[label])}", "label": "{label}"}}\n' for label in LABELS]
    (tmp_path / "public.jsonl").write_text("".join(public), encoding="utf-8")
    SEEN.clear()
    monkeypatch.setattr(NgramGenerator, "answer", answers)
    task = load(path, [f"privacy.epsilon={epsilon}", f"privacy.expected_records={declared or records}", *options])
    samples, run = bench.run_method(task, plan_run(task), seed=seed)
    return samples, run, [row["text"] for row in rows], [row["label"] for row in rows]


ALL = ("method.lengths=true", "method.words=true", "method.voted_examples=3")


@pytest.mark.heavy
def test_form_sums_without_noise_equal_a_direct_count(tmp_path, monkeypatch):
    seen = {}
    original = form.WordLists.frequent
    monkeypatch.setattr(
        form.WordLists,
        "frequent",
        lambda self, opened: seen.update(lists=self, opened=opened) or original(self, opened),
    )
    _, run, texts, labels = run_over_words(tmp_path, monkeypatch, *ALL)
    lists, counts = seen["lists"], seen["opened"].natural
    expected = np.zeros(len(counts))
    for text, label in zip(texts, labels, strict=True):
        order = [cell for cell in lists.order[LABELS.index(label)] if cell >= 0]
        expected[[cell for cell in order if lists.listed[cell] in text.split()][: form.FORM.distinct]] += 1
    assert counts == pytest.approx(expected)
    assert run.asked == ["labels", "centres", "words", "votes/2", "verdict"]
    assert set(run.records["words"][0][1]["a"]) == set(WORDS["a"][:OF_RECORDS])


@pytest.mark.slow
def test_word_list_of_a_label_contains_the_labels_name(tmp_path, monkeypatch):
    lists = []
    monkeypatch.setitem(WORDS, "a", tuple(word for word in WORDS["a"] if word != "apple"))
    original = form.word_lists
    monkeypatch.setattr(form, "word_lists", lambda *given: lists.append(original(*given)) or lists[-1])
    monkeypatch.setattr("tests.server.methods.test_form.LABELS", ("a_apple", "b"))
    monkeypatch.setitem(WORDS, "a_apple", WORDS["a"])
    run_over_words(tmp_path, monkeypatch, "method.words=true", 'task.labels=["a_apple", "b"]')
    assert "apple" in lists[0].listed


@pytest.mark.slow
def test_form_sums_run_in_a_simulated_federation(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.doubles.bench.embed", party_embed)
    monkeypatch.setattr("undersong_common.models.embedders.dimension", lambda model: party_embed(["x"]).shape[1])
    path = make_task(tmp_path, parties=3, records=60, samples=60)
    method = "method={name='undersong',samples=60,words=true,lengths=true,voted_examples=2}"
    users = ["privacy.unit=user", "privacy.max_per_user=2", "privacy.expected_records=180"]
    task = load(path, [method, "privacy.epsilon=8.0", *users])
    tables = read_private_files(task)
    parties = {f"party-{number}": table for number, table in enumerate(tables)}
    plan_of = plan_run(task)
    outcome = bench.run_federated(task, plan_of, tmp_path / "run", parties, seed=3)
    assert {"labels", "words", "votes/2", "support", "verdict"} <= set(outcome.sums)
    assert outcome.records["words"]
    kinds = {sample.kind for sample in outcome.samples}
    assert kinds <= {"zero_shot", "worded"}


@pytest.mark.heavy
def test_prompts_carry_lengths_words_and_examples(tmp_path, monkeypatch):
    run_over_words(tmp_path, monkeypatch, *ALL)
    asked_for = [request for request in SEEN if request.kind != "vocabulary"]
    assert Counter(request.kind for request in SEEN)["vocabulary"] == 2
    first, last = asked_for[:20], asked_for[70:]
    assert {request.kind for request in first} == {"zero_shot"}
    assert {request.kind for request in last} == {"worded"}
    assert all(request.words in (6, 7) and request.bounded for request in asked_for)  # the bin of the records' lengths
    for request in last:
        assert set(request.terms) <= set(WORDS[request.label][:OF_RECORDS])
        assert len(request.terms) == len(request.good) == 3
        assert all(term in request.prompt for term in (*request.terms, *request.good)) or not request.prompt


@pytest.mark.slow
def test_generator_that_obeys_prompts_writes_more_of_the_records_words(tmp_path, monkeypatch):
    shares = []
    for options in ((), ALL):
        samples, *_ = run_over_words(tmp_path / str(len(options)), monkeypatch, *options, epsilon="4.0")
        own = [words(sample.text) for sample in samples]
        used = sum(word in WORDS[s.label][:OF_RECORDS] for s, text in zip(samples, own, strict=True) for word in text)
        shares.append(used / sum(word in WORDS[s.label] for s, text in zip(samples, own, strict=True) for word in text))
        assert len(samples) == 120
    assert shares[0] < 0.45  # a third of the words are the records'
    assert shares[1] > 0.7


@pytest.mark.heavy
def test_form_options_do_not_change_a_run_of_replayed_texts(tmp_path):
    rng = np.random.default_rng(5)
    rows = [{"text": record(rng, label), "label": label} for label in LABELS * 60]
    path = make_replay_task(
        tmp_path, rows, federation={"parties": 1}, method={"name": "undersong", "samples": 30}, privacy={"epsilon": 8.0}
    )
    texts = []
    for options in ((), ALL):
        task = load(path, list(options))
        samples, run = bench.run_method(task, plan_run(task), seed=3)
        texts.append([sample.text for sample in samples])
        assert run.asked == ["labels", "centres", "verdict"]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_form_prompts_go_to_writing_generators_and_not_to_replay(tmp_path):
    path = make_task(tmp_path, parties=1, records=200, samples=60)
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace('kind = "ngram"\ncorpus = "poor.jsonl"', 'kind = "replay"\npath = "poor.jsonl"'))
    task = load(path, ["method={name='undersong',samples=60,words=true,lengths=true}", "privacy.epsilon=8.0"])
    samples, run = bench.run_method(task, plan_run(task), seed=3)
    kinds = {name: {each.kind for each in run.pool.samples if each.generator == name} for name in ("good", "poor")}
    assert kinds["poor"] <= {"zero_shot"}
    assert "worded" in kinds["good"]
    assert len(samples) > 40
