import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.author import Author
from undersong_server.generators.cleaning import Screening
from undersong_server.generators.interface import Completion, GenerationRequest, PromptFormat
from undersong_server.generators.orders import Order
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

PROMPTS = Prompts(TaskWords(description="a note", labels=("x", "y")))


class Scripted:
    """A generator that gives prepared texts in order, and counts what it was asked."""

    def __init__(self, name: str, texts: Sequence[str | Exception], fail_after: int | None = None) -> None:
        self.name = name
        self.texts = list(texts)
        self.fail_after = fail_after
        self.asked: list[GenerationRequest] = []
        self.observed: list[str] = []

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        for index, request in enumerate(requests):
            if self.fail_after is not None and len(self.asked) >= self.fail_after:
                raise ConfigurationError(f"{self.name}: unreachable")
            self.asked.append(request)
            text = self.texts[len(self.asked) - 1]
            yield index, text if isinstance(text, GenerationError) else Completion(str(text), 3, 5, 0.5)

    def observe(self, requests, answers) -> None:
        self.observed += [answer.text for answer in answers if isinstance(answer, Completion)]

    @property
    def counts(self) -> dict[str, int]:
        return {"calls": len(self.asked), "waited": 0}


def author(journal, *generators, seed=1):
    return Author({generator.name: generator for generator in generators}, PROMPTS, journal, Silent(), seed=seed)


def test_empty_and_duplicate_answers_are_retried_then_dropped_and_counted(journal):
    generator = Scripted("g", ["one", "  ", "ONE", "two", "One!", "one", "one", "one"])
    writer = author(journal, generator)
    samples = writer.write("round 1", 0, [Order("g", "zero_shot", "x")] * 4)
    assert [sample and sample.text for sample in samples] == ["one", None, None, "two"]
    usage = writer.usage["g"]
    assert (usage.calls, usage.kept, usage.retried, usage.dropped) == (8, 2, 4, 2)
    assert usage.price_usd == pytest.approx(4.0)


def test_a_retry_is_a_new_request_with_a_new_seed(journal):
    generator = Scripted("g", ["", "fine"])
    author(journal, generator).write("round 1", 0, [Order("g", "zero_shot", "x")])
    assert generator.asked[0].seed != generator.asked[1].seed
    assert generator.asked[0].prompt != generator.asked[1].prompt


class Seeded(Scripted):
    """Answers with the request's own seed, so that threads may come in any order."""

    def answer(self, requests):
        for index, request in enumerate(requests):
            if self.fail_after is not None and len(self.asked) >= self.fail_after:
                raise ConfigurationError(f"{self.name}: unreachable")
            self.asked.append(request)
            yield index, Completion(f"{self.name} {request.seed}")


def test_stopped_run_repeats_no_answered_request_when_continued(journal):
    orders = [Order("a", "zero_shot", "x"), Order("b", "zero_shot", "y")] * 3
    first_a, first_b = Seeded("a", []), Seeded("b", [], fail_after=1)
    with pytest.raises(ConfigurationError):
        author(journal, first_a, first_b).write("round 1", 0, orders)
    again_a, again_b = Seeded("a", []), Seeded("b", [])
    samples = author(journal, again_a, again_b).write("round 1", 0, orders)
    for first, again in ((first_a, again_a), (first_b, again_b)):
        assert sorted(again.observed) == sorted(f"{first.name} {request.seed}" for request in first.asked)
        asked = [request.seed for request in (*first.asked, *again.asked)]
        assert len(asked) == len(set(asked)) == 3
    assert len(first_b.asked) == 1
    assert [sample.generator for sample in samples] == ["a", "b"] * 3


def test_seeds_depend_on_the_seed_the_step_and_the_position_only(journal, tmp_path):
    seeds = []
    for number, seed in enumerate((1, 1, 2)):
        generator = Scripted("g", ["one", "two"])
        other = Journal(tmp_path / f"{number}.sqlite")
        author(other, generator, seed=seed).write("round 1", 0, [Order("g", "zero_shot", "x")] * 2)
        seeds.append([request.seed for request in generator.asked])
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])
    assert len(set(seeds[0])) == 2


def test_failed_request_does_not_stop_the_others(journal):
    generator = Scripted("g", [GenerationError("filtered"), "two", GenerationError("filtered"), GenerationError("no")])
    writer = author(journal, generator)
    samples = writer.write("round 1", 0, [Order("g", "zero_shot", "x")] * 2)
    assert [sample and sample.text for sample in samples] == [None, "two"]
    assert writer.usage["g"].dropped == 1
    assert writer.counts == {"g": {"calls": 4}}


def test_generation_speed_excludes_answers_that_the_journal_had(journal):
    texts = [Completion("one", seconds=0.5), Completion("two", seconds=1.5), Completion("three")]

    class Timed(Scripted):
        def answer(self, requests):
            for index, _ in enumerate(requests):
                time.sleep(0.01)
                yield index, texts[index]

    orders = [Order("g", "zero_shot", "x")] * 3
    first = author(journal, Timed("g", []))
    first.write("round 1", 0, orders)
    speed = first.speed["g"]
    assert (speed.answered, speed.timed, speed.latency_s) == (3, 2, 2.0)
    assert 0.03 <= speed.busy_s < 1.0
    again = author(journal, Timed("g", []))
    assert [sample.text for sample in again.write("round 1", 0, orders)] == ["one", "two", "three"]
    assert again.speed["g"].answered == 0


def test_writing_the_same_step_twice_is_refused(journal):
    """The journal would give its answers to the orders of the second call."""
    writer = author(journal, Scripted("g", ["one", "two"]))
    writer.write("round 1", 0, [Order("g", "zero_shot", "x")])
    with raises(ConfigurationError, "step-repeated"):
        writer.write("round 1", 1, [Order("g", "zero_shot", "y")])


def test_error_for_an_unknown_generator_names_it(journal):
    with pytest.raises(ConfigurationError) as refused:
        author(journal, Scripted("g", [])).write("round 1", 0, [Order("h", "zero_shot", "x")])
    assert refused.value.code == "generator-unknown"
    assert "'h'" in refused.value.problem


def test_first_batch_without_usable_texts_stops_and_is_repeated_on_resume(journal):
    said = ["A note about x.", "I can't help with that request.", "", "I'm sorry, but I can't write this note."]
    generator = Scripted("g", said)
    orders = [Order("g", "zero_shot", "x")] * 4
    writer = author(journal, generator)
    with raises(GenerationError, "answers-useless"):
        writer.write("round 1", 0, orders)
    mended = Scripted("g", ["A second note.", "A third note.", "A fourth note."])
    again = author(journal, mended)
    samples = again.write("round 1", 0, orders)
    assert [sample.text for sample in samples] == [
        "A note about x.",
        "A second note.",
        "A third note.",
        "A fourth note.",
    ]
    usage = again.usage["g"]
    assert (usage.calls, usage.kept, usage.prompt_tokens) == (7, 4, 21)
    assert usage.faults == {"of a first batch that stopped the run": 3}
    last = Scripted("g", [])
    third = author(journal, last)
    assert third.write("round 1", 0, orders) == samples
    assert last.asked == []
    assert third.usage["g"].price_usd == usage.price_usd


def test_one_error_names_all_failing_generators_and_one_resume_mends_them(journal):
    orders = [Order(name, "zero_shot", "x") for name in ("a", "b", "c", "d") for _ in range(1 if name == "c" else 4)]
    spoilt = [Scripted(name, ["I can't help with that request."] * 4) for name in ("a", "b", "c")]
    with pytest.raises(GenerationError) as stopped:
        author(journal, *spoilt, Seeded("d", [])).write("one", 0, orders)
    assert [line.split(":")[0] for line in stopped.value.problem.splitlines()] == [
        "generator a",
        "generator b",
        "generator c",
    ]
    mended = [Seeded(name, []) for name in ("a", "b", "c", "d")]
    again = author(journal, *mended)
    assert all(again.write("one", 0, orders))
    assert [len(generator.asked) for generator in mended] == [4, 4, 1, 0]
    assert [again.usage[name].calls for name in ("a", "b", "c", "d")] == [8, 8, 2, 4]


def test_resume_asks_a_mended_generator_again_after_another_ones_error(journal):
    orders = [Order(name, "zero_shot", "x") for name in ("b", "a") for _ in range(4)]

    class Unreachable(Scripted):
        def answer(self, requests):
            while len(refusing.asked) < 4:  # the other one has refused by then
                time.sleep(0.01)
            raise ConfigurationError("a: unreachable")
            yield

    refusing = Scripted("b", ["I can't help with that request."] * 4)
    with pytest.raises(ConfigurationError):
        author(journal, Unreachable("a", []), refusing).write("one", 0, orders)
    mended, other = Scripted("b", [f"A note, number {number}." for number in range(4)]), Seeded("a", [])
    again = author(journal, other, mended)
    assert all(again.write("one", 0, orders))
    assert (len(mended.asked), len(other.asked)) == (4, 4)
    usage = again.usage["b"]
    assert (usage.calls, usage.price_usd, usage.kept) == (8, 4.0, 4)
    assert usage.faults == {"of a first batch that stopped the run": 4}
    assert mended.observed == ["I can't help with that request."] * 4  # its budget counts them
    third = author(journal, Scripted("a", []), Scripted("b", []))
    assert all(third.write("one", 0, orders))
    assert third.usage["b"] == usage


def test_one_error_names_all_generators_that_cannot_continue(journal):
    started = threading.Barrier(2)

    class Unreachable(Scripted):
        def answer(self, requests):
            started.wait(10.0)
            raise ConfigurationError(f"{self.name}: unreachable", "start it")
            yield

    with pytest.raises(ConfigurationError) as stopped:
        author(journal, Unreachable("a", []), Unreachable("b", [])).write(
            "one", 0, [Order("a", "zero_shot", "x"), Order("b", "zero_shot", "x")]
        )
    assert sorted(stopped.value.problem.splitlines()) == ["a: unreachable", "b: unreachable"]
    assert stopped.value.remedy == "start it"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("texts", "remedies"),
    [
        ([GenerationError("g: down", "start the endpoint")] * 6, ["start the endpoint"]),
        ([GenerationError("g: down")] * 6, ["mend what the endpoint names"]),
        ([""] * 6, ["`undersong try`"]),
        (["", GenerationError("g: down", "start the endpoint")] * 3, ["start the endpoint", "`undersong try`"]),
    ],
    ids=["failed", "failed without a remedy", "useless", "both"],
)
def test_remedy_for_missing_texts_depends_on_their_cause(journal, texts, remedies):
    with raises(GenerationError, "answers-useless") as first:
        author(journal, Scripted("g", texts)).write("one", 0, [Order("g", "zero_shot", "x")] * 2)
    writer = author(journal, Scripted("h", ["fine", "good", *texts]))
    writer.write("two", 0, [Order("h", "zero_shot", "x")] * 2)
    with raises(GenerationError, "step-short") as later:
        writer.write("three", 1, [Order("h", "zero_shot", "x")] * 2)
    for stopped in (first, later):
        named = [words for words in ("start the", "mend what", "`undersong try`") if words in stopped.value.remedy]
        assert [any(words in remedy for remedy in remedies) for words in named] == [True] * len(remedies)


def test_small_first_batch_is_retried_before_it_stops_the_run(journal):
    generator = Scripted("g", ["", "", "fine"])
    assert author(journal, generator).write("one", 0, [Order("g", "zero_shot", "x")])[0].text == "fine"
    hopeless = Scripted("h", [""] * 6)
    with raises(GenerationError, "answers-useless"):
        author(journal, hopeless).write("two", 0, [Order("h", "zero_shot", "x")] * 2)
    mended = Scripted("h", ["first", "second"])
    assert [s.text for s in author(journal, mended).write("two", 0, [Order("h", "zero_shot", "x")] * 2)] == [
        "first",
        "second",
    ]


def test_step_with_less_than_half_its_texts_stops_and_resume_repeats_it(journal):
    generator = Scripted("g", ["one", "two", "three", "four", "five", *[""] * 9])
    writer = author(journal, generator)
    orders = [Order("g", "zero_shot", "x")] * 4
    assert all(writer.write("round 1", 0, orders))
    with raises(GenerationError, "step-short"):
        writer.write("round 2", 1, orders)
    mended = Scripted("g", ["six", "seven", "eight"])
    again = author(journal, mended)
    again.write("round 1", 0, orders)
    assert [sample.text for sample in again.write("round 2", 1, orders)] == ["five", "six", "seven", "eight"]
    assert again.usage["g"].calls == 17


def test_step_with_half_of_its_texts_goes_on(journal):
    generator = Scripted("g", ["one", "two", "three", "four", "five", "six", *[""] * 6])
    writer = author(journal, generator)
    orders = [Order("g", "zero_shot", "x")] * 4
    writer.write("round 1", 0, orders)
    assert [sample and sample.text for sample in writer.write("round 2", 1, orders)] == ["five", "six", None, None]


def failing_step(journal, *texts):
    """A writer whose first step is whole, and whose second has these answers."""
    writer = author(journal, Scripted("g", ["one", "two", "three", "four", *texts]))
    orders = [Order("g", "zero_shot", "x")] * 4
    assert all(writer.write("round 1", 0, orders))
    return writer, orders


def test_failed_orders_are_retried_until_a_later_step_was_written(journal):
    gone = [GenerationError("g: gone")] * 3
    writer, orders = failing_step(journal, "five", "six", "seven", *gone)
    writer.write("round 2", 1, orders)
    with raises(GenerationError, "orders-open"):
        writer.check_finished()
    mended = Scripted("g", ["eight"])
    again = author(journal, mended)
    again.write("round 1", 0, orders)
    assert [sample.text for sample in again.write("round 2", 1, orders)] == ["five", "six", "seven", "eight"]
    again.check_finished()
    last = Scripted("g", [])
    third = author(journal, last)
    third.write("round 1", 0, orders)
    assert all(third.write("round 2", 1, orders))
    assert last.asked == []


def test_failed_orders_are_not_retried_once_a_later_step_was_written(journal):
    gone = [GenerationError("generator g: gone")] * 3
    writer, orders = failing_step(journal, "five", "six", "seven", *gone, "nine")
    writer.write("round 2", 1, orders)
    writer.write("round 3", 2, orders[:1])
    writer.check_finished()
    last = Scripted("g", [])
    again = author(journal, last)
    for number, step in enumerate(("round 1", "round 2", "round 3")):
        again.write(step, number, orders if number < 2 else orders[:1])
    assert last.asked == []
    assert again.usage["g"].notes["failed: gone"] == 3


def test_order_answered_on_a_later_try_is_not_asked_again_on_resume(journal):
    writer, orders = failing_step(journal, "five", GenerationError("busy"), "seven", "eight", "six")
    assert all(writer.write("round 2", 1, orders))  # and the process dies before anything builds on it
    last = Scripted("g", [])
    again = author(journal, last)
    again.write("round 1", 0, orders)
    assert [sample.text for sample in again.write("round 2", 1, orders)] == ["five", "six", "seven", "eight"]
    assert last.asked == []


class Refusing(Scripted):
    """Refuses the orders of some labels for their content, and gives the scripted answers to the others."""

    def __init__(self, name, texts=(), labels="y"):
        super().__init__(name, texts)
        self.labels = labels

    def answer(self, requests):
        for index, request in enumerate(requests):
            self.asked.append(request)
            if request.label in self.labels:
                yield index, Completion("flagged", note="refused by the endpoint (flagged)", finish="filter")
            else:
                yield (
                    index,
                    self.texts.pop(0) if self.texts else Completion(f"Text {len(self.asked)} of {request.seed}."),
                )


def orders_of(labels):
    return [Order("g", "zero_shot", label) for label in labels]


def test_order_refused_for_its_content_is_retried_exactly_once(journal):
    generator = Refusing("g", [])
    orders = [Order("g", "zero_shot", label) for label in "xyxx"]
    writer = author(journal, generator)
    assert [sample is None for sample in writer.write("one", 0, orders)] == [False, True, False, False]
    writer.check_finished()
    assert len(generator.asked) == 5
    usage = writer.usage["g"]
    assert (usage.faults["refused"], usage.retried, usage.dropped) == (2, 1, 1)
    again = Refusing("g", [])
    author(journal, again).write("one", 0, orders)
    assert again.asked == []


def test_content_refusals_do_not_count_towards_the_half_of_texts_needed(journal):
    first = Refusing("g")
    writer = author(journal, first)
    writer.try_out(("x", "y"))
    writer.write("one", 0, orders_of("xyxy"))
    assert sum(map(bool, writer.write("two", 1, orders_of("xxxyyyyyyyyy")))) == 3
    assert writer.write("three", 1, orders_of("yyyy")) == [None] * 4  # a label that the endpoint never wrote for
    writer.check_finished()
    assert writer.refused_labels == ["y"]
    assert [request.label for request in first.asked].count("y") == 2 * (2 + 2 + 9 + 4)
    again = Refusing("g")
    continued = author(journal, again)
    continued.try_out(("x", "y"))
    for step, labels in (("one", "xyxy"), ("two", "xxxyyyyyyyyy"), ("three", "yyyy")):
        continued.write(step, 0, orders_of(labels))
    assert again.asked == []
    assert continued.refused_labels == ["y"]


def test_check_for_half_of_the_texts_counts_only_orders_not_refused(journal):
    """Three of the five others fail: they alone are asked again."""
    busy = [GenerationError("busy")] * 9
    texts = [Completion(f"Text {number}.") for number in range(6)]
    writer = author(journal, Refusing("g", [*texts[:4], *texts[4:], *busy]))
    writer.write("one", 0, orders_of("xxxx"))
    with raises(GenerationError, "step-short"):
        writer.write("two", 1, orders_of("xxxxxyyyyyyy"))
    mended = Refusing("g")
    again = author(journal, mended)
    again.write("one", 0, orders_of("xxxx"))
    assert sum(map(bool, again.write("two", 1, orders_of("xxxxxyyyyyyy")))) == 5
    assert "".join(request.label for request in mended.asked) == "xxx"


@pytest.mark.parametrize("first", ["xyxy", "yyyy"])
def test_step_whose_orders_are_all_refused_stops_and_is_repeated_on_resume(journal, first):
    """All of a step refused, where the endpoint wrote such texts before: that may be the account, whatever is said."""
    writer = author(journal, Refusing("g", labels=""))
    writer.write("one", 0, orders_of("xyxy"))
    shut = author(journal, Refusing("g", labels="xy"))
    shut.write("one", 0, orders_of("xyxy"))
    with raises(GenerationError, "step-short"):
        shut.write("two", 1, orders_of(first))
    mended = Refusing("g", labels="")
    again = author(journal, mended)
    again.write("one", 0, orders_of("xyxy"))
    assert all(again.write("two", 1, orders_of(first)))
    assert len(mended.asked) == 4
    assert again.refused_labels == []


def test_fully_refused_first_batch_stops_and_is_repeated_on_resume(journal):
    with raises(GenerationError, "answers-useless"):
        author(journal, Refusing("g", labels="xy")).write("one", 0, orders_of("xyxy"))
    mended = Refusing("g", labels="")
    assert all(author(journal, mended).write("one", 0, orders_of("xyxy")))
    assert len(mended.asked) == 4


def test_run_goes_on_after_a_first_batch_that_was_mostly_refused(journal):
    writer = author(journal, Refusing("g"))
    assert sum(map(bool, writer.write("one", 0, orders_of("yyxyyy")))) == 1


def test_cut_answer_is_requested_again_with_more_room(journal):
    class Cutting(Scripted):
        def answer(self, requests):
            for index, request in enumerate(requests):
                self.asked.append(request)
                yield index, Completion("It hurts since", finish="length" if request.room < 4 else "")

    generator = Cutting("g", [])
    writer = author(journal, generator)
    assert writer.write("one", 0, [Order("g", "zero_shot", "x")])[0].text == "It hurts since"
    assert [request.room for request in generator.asked] == [1, 2, 4]
    assert writer.usage["g"].cut == 2


def test_text_outside_its_length_bounds_is_requested_once_more(journal):
    texts = ["one two three four five six seven eight", "a b c", "again far too long a text for that", "one two"]
    generator = Scripted("g", texts)
    writer = author(journal, generator)
    orders = [Order("g", "worded", "x", words=3, bounded=True)] * 2 + [Order("g", "worded", "x", words=40)]
    samples = writer.write("one", 0, orders)
    assert [sample.text for sample in samples] == ["one two", "a b c", texts[2]]
    assert writer.usage["g"].faults == {"another length than ordered": 1}
    assert [request.words for request in generator.asked] == [3, 3, 40, 3]


def test_second_text_is_accepted_whatever_its_length(journal):
    long, longer = "one two three four five six seven eight", "a b c d e f g h i j k l"
    writer = author(journal, Scripted("g", [long, longer]))
    assert writer.write("one", 0, [Order("g", "worded", "x", words=3, bounded=True)])[0].text == longer


def test_near_duplicates_are_dropped_unless_they_rewrite_a_parent(journal):
    vectors = {"pain": [1.0, 0.0], "pains": [0.999, 0.0447], "other": [0.0, 1.0]}

    def embed(texts):
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    def write(step, *said, **fields):
        generator = Scripted("g", said)
        writer = Author({"g": generator}, PROMPTS, journal, Silent(), seed=1, screening=Screening(embed, bound=0.98))
        orders = [Order("g", "zero_shot", label, **fields) for label in ("x", "x", "y")]
        return [sample and sample.text for sample in writer.write(step, 0, orders)], writer.usage["g"].faults

    assert write("one", "pain", "pains", "other", "other", "other") == (
        ["pain", None, "other"],
        {"near duplicate": 1, "duplicate": 2},
    )
    assert write("two", "pain", "other", "pains") == (["pain", "other", "pains"], {})
    assert write("three", "pain", "pains", "other", parents=("pain",))[0] == ["pain", "pains", "other"]


def test_near_duplicates_are_found_within_a_batch_and_among_earlier_texts():
    vectors = {"other": [0.0, 1.0], "pain": [1.0, 0.0], "pains": [0.999, 0.0447]}
    screening = Screening(lambda texts: np.array([vectors[text] for text in texts], dtype=np.float32), bound=0.98)
    screening.add(["other"], ["x"])
    faults = screening.faults(["pain", "pains"], ["x", "x"], exact=[True, True], near=[True, True])
    assert faults == ["", "near duplicate"]


def test_journaled_samples_stay_samples_under_stricter_screening(journal):
    orders = [Order("g", "zero_shot", "x")] * 2
    author(journal, Scripted("g", ["one", "two"])).write("one", 0, orders)
    stricter = Author(
        {"g": Scripted("g", [])}, PROMPTS, journal, Silent(), seed=1, screening=Screening(embed_alike, bound=0.5)
    )
    assert [sample.text for sample in stricter.write("one", 0, orders)] == ["one", "two"]


def test_a_continued_run_knows_the_texts_of_its_journal_as_duplicates(journal):
    first, second = [Order("g", "zero_shot", "x")] * 2, [Order("g", "zero_shot", "x")] * 1
    author(journal, Scripted("g", ["one", "two"])).write("one", 0, first)
    continued = author(journal, Scripted("g", ["ONE!", "three"]))
    assert [sample.text for sample in continued.write("one", 0, first)] == ["one", "two"]
    assert [sample.text for sample in continued.write("two", 1, second)] == ["three"]


def embed_alike(texts):
    return np.ones((len(texts), 1), dtype=np.float32)


def test_failed_requests_are_retried_when_the_run_stopped_within_the_step(journal):
    orders = [Order("g", "zero_shot", "x")] * 3
    first = Scripted("g", ["one", GenerationError("busy"), "three"], fail_after=2)
    with pytest.raises(ConfigurationError):
        author(journal, first).write("one", 0, orders)
    again = Scripted("g", ["two", "three"])
    assert [sample.text for sample in author(journal, again).write("one", 0, orders)] == ["one", "two", "three"]


def test_completion_prompts_show_good_examples_only_when_there_are_enough(journal):
    generator = Scripted("g", ["one", "two", "three"])
    formats = {"g": PromptFormat(style="completion")}
    writer = Author({"g": generator}, PROMPTS, journal, Silent(), seed=1, formats=formats)
    orders = [
        Order("g", "contrast", "x", good=("first", "second"), bad=("far off",), good_for_bad=("third",)),
        Order("g", "contrast", "x", good=("first", "second"), bad=("far off",)),
        Order("g", "contrast", "x", good=("first",), good_terms=(("term",),)),
    ]
    writer.write("round 2", 1, orders)
    assert [request.good for request in generator.asked] == [("first", "second", "third"), (), ("first",)]
    assert [request.bad for request in generator.asked] == [(), (), ()]
    assert all(text in generator.asked[0].prompt for text in generator.asked[0].good)
    assert "first" not in generator.asked[1].prompt
    chat = Scripted("g", ["four"])
    author(journal, chat).write("round 3", 2, orders[:1])
    assert (chat.asked[0].good, chat.asked[0].bad) == (("first", "second"), ("far off",))
