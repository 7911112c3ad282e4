"""The author writes a method's orders: answers are journaled as they arrive, read, and asked again if they are no text.

What became of each answer is journaled too: a run that continues decides as it did before, on another machine and with
another version of the rules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from undersong_common.errors import GenerationError
from undersong_server.generators.asking import Asking, Speed
from undersong_server.generators.cleaning import Screening
from undersong_server.generators.interface import Answer, GenerationRequest, Generator, PromptFormat
from undersong_server.generators.orders import DrawWords, Order, Requests, check_known
from undersong_server.generators.reading import CUT, Reading, read
from undersong_server.journal import Journal
from undersong_server.pool import Sample
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import LIST_KINDS, Prompts

RETRIES = 2  # of an answer that is no text, before the sample is dropped
TRIAL_ORDERS = 4  # per generator, where a private sum would come before its first text
FEWEST_JUDGED = 4  # orders of a first batch that its share of useless answers is judged by
USELESS_SHARE = 0.5  # of a first batch, above which the run stops
THROWN_AWAY = "of a first batch that stopped the run"
_QUOTED = 160  # characters of an answer that an error shows


@dataclass
class Usage:
    """Counts of one generator's answers and samples in this run, journaled answers included.

    Attributes:
        orders: texts that were ordered; kept and dropped are what became of them.
        calls: answers, those that were asked for again included; retried: how many those are.
        faults: answers that were no sample, by what was wrong with them (``undersong_server.generators.reading``).
        cut: answers that ended at their longest length; some were kept up to their last whole sentence.
        fewer_examples: prompts that show less than was ordered, because the model's context holds no more.
    """

    orders: int = 0
    calls: int = 0
    kept: int = 0
    retried: int = 0
    dropped: int = 0
    cut: int = 0
    fewer_examples: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price_usd: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    notes: dict[str, int] = field(default_factory=dict)


class _Heard(NamedTuple):
    """An answer to one order, and what it is."""

    step: str
    number: int
    name: str
    answer: Answer | GenerationError
    reading: Reading


class Author:
    """Writes samples with several generators. A restarted run asks for no answer that the journal has."""

    def __init__(
        self,
        generators: Mapping[str, Generator],
        prompts: Prompts,
        journal: Journal,
        progress: Progress,
        *,
        seed: int,
        formats: Mapping[str, PromptFormat] | None = None,
        draw_words: DrawWords | None = None,
        screening: Screening | None = None,
    ) -> None:
        """Reads from the journal what was paid for answers that were thrown away.

        Args:
            formats: how each generator's prompts are made; a name that is not there reads chat prompts.
            draw_words: the length of a text whose order names none.
            screening: finds duplicates; without it, exact ones only.
        """
        self._generators = generators
        self._asking = Asking(generators, journal, progress)
        self._language = prompts.language
        self._formats = formats or {}
        self._requests = Requests(prompts, self._formats, seed=seed, draw_words=draw_words)
        self._journal = journal
        self._screening = screening or Screening()
        self._proven = {name for name in generators if not self._reads_prompts(name)}
        self.usage = {name: Usage() for name in generators}
        for name in generators:
            self._charge(name, self._asking.thrown_away(name))

    @property
    def speed(self) -> Mapping[str, Speed]:
        """How fast each generator has answered this process."""
        return self._asking.speed

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """What each generator has counted this process that is not zero: calls that waited or were tried again, ..."""
        return {
            name: {what: count for what, count in generator.counts.items() if count}
            for name, generator in self._generators.items()
        }

    def draw_words_by(self, draw: DrawWords) -> None:
        """Draws the length of every text from now on whose order names none."""
        self._requests.draw_words = draw

    def try_out(self, labels: Sequence[str]) -> None:
        """A few texts of every generator that has written none yet, for no corpus: one that cannot write stops the run.

        Raises GenerationError as :meth:`write` does.
        """
        untried = [name for name in self._generators if name not in self._proven]
        names = labels or ("",)
        orders = [
            Order(name, "zero_shot", names[number % len(names)]) for name in untried for number in range(TRIAL_ORDERS)
        ]
        if orders:
            self._write("trial", 0, orders, Screening())

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        """One sample per order, None where no answer was a text of its own (counted as dropped).

        Raises:
            GenerationError: most answers of the first batch of one generator, or of several, are useless. They are
                thrown away, so that the same run, continued, asks for them anew; what was good is kept.
            ConfigurationError: a generator cannot go on; what was answered is kept.
        """
        return self._write(step, round_, orders, self._screening)

    def _write(self, step: str, round_: int, orders: Sequence[Order], screening: Screening) -> list[Sample | None]:
        check_known(orders, self._generators)
        written: list[Sample | None] = [None] * len(orders)
        rooms = [1] * len(orders)
        remaining = list(range(len(orders)))
        first = {order.generator for order in orders} - self._proven
        useless: dict[str, list[_Heard]] = {name: [] for name in first}
        ordered = Counter(order.generator for order in orders)
        for name, number in ordered.items():
            self.usage[name].orders += number
        for attempt in range(1 + RETRIES):
            if not remaining:
                break
            batch = self._heard(f"{step}/{attempt}", orders, remaining, rooms, screening, first if attempt == 0 else ())
            for heard in batch:
                if heard.reading.fault and heard.name in first:
                    useless[heard.name].append(heard)
            if attempt == 0:
                self._judge(batch, first, ordered)
            self._close(f"{step}/{attempt}", batch)
            remaining = []
            for heard in batch:
                usage = self.usage[heard.name]
                if not heard.reading.fault:
                    order = orders[heard.number]
                    written[heard.number] = Sample(heard.reading.text, order.label, heard.name, round_, order.kind)
                    usage.kept += 1
                    continue
                remaining.append(heard.number)
                usage.faults[heard.reading.fault] += 1
                usage.retried += attempt < RETRIES
                rooms[heard.number] *= 1 + (heard.reading.fault == CUT)
        self._proven |= {sample.generator for sample in written if sample is not None}
        if hopeless := first - self._proven:
            self._stop({name: useless[name] for name in hopeless}, ordered)
        for index in remaining:
            self.usage[orders[index].generator].dropped += 1
        return written

    # What became of the answers

    def _heard(
        self,
        step: str,
        orders: Sequence[Order],
        remaining: Sequence[int],
        rooms: Sequence[int],
        screening: Screening,
        unproven: Collection[str],
    ) -> list[_Heard]:
        """Asks for the remaining orders; each answer's text and fault. The journal's word on faults counts, if any."""
        requests, trimmed = self._requests.make(step, orders, remaining, rooms)
        for name in unproven:
            self._ask_anew(step, name, {i: requests[i] for i in remaining if orders[i].generator == name})
        answers = self._asking.ask(step, [(index, orders[index].generator, requests[index]) for index in remaining])
        for index in trimmed:
            self.usage[orders[index].generator].fewer_examples += 1
        readings = [
            self._read(answer, requests[index], orders[index].generator)
            for index, answer in zip(remaining, answers, strict=True)
        ]
        faults = self._faults(step, [orders[index] for index in remaining], readings, screening)
        return [
            _Heard(step, index, orders[index].generator, answer, Reading(reading.text, fault))
            for index, answer, reading, fault in zip(remaining, answers, readings, faults, strict=True)
        ]

    def _ask_anew(self, step: str, name: str, requests: Mapping[int, GenerationRequest]) -> None:
        """Throws an earlier process's useless answers away where they alone would stop the run: the generator may have
        been mended since."""
        if self._journal.get(_verdict_key(step)) is not None:
            return
        kept = self._asking.kept(step, name, list(requests))
        bad = [(step, i, answer) for i, answer in kept.items() if _is_useless(self._read(answer, requests[i], name))]
        if _stops(len(requests), len(bad)):
            self._charge(name, self._throw_away(name, bad))

    def _throw_away(self, name: str, useless: Sequence[tuple[str, int, Answer | GenerationError]]) -> list[Answer]:
        return self._asking.throw_away(name, useless, sorted({_verdict_key(step) for step, _, _ in useless}))

    def _charge(self, name: str, thrown_away: Sequence[Answer]) -> None:
        """Counts what answers cost that were paid for and thrown away."""
        self._asking.charge(name, thrown_away)
        for answer in thrown_away:
            self._count(self.usage[name], answer)
            self.usage[name].faults[THROWN_AWAY] += 1

    def _read(self, answer: Answer | GenerationError, request: GenerationRequest, name: str) -> Reading:
        return read(answer, request, language=self._language, whole=self._reads_prompts(name))

    def _faults(
        self, step: str, orders: Sequence[Order], readings: Sequence[Reading], screening: Screening
    ) -> list[str]:
        known = self._journal.get(_verdict_key(step))
        if known is not None:
            journaled: list[str] = json.loads(known)
            kept = [number for number, fault in enumerate(journaled) if not fault]
            screening.add([readings[number].text for number in kept], [orders[number].label for number in kept])
            return journaled
        faults = [reading.fault for reading in readings]
        texts = [number for number, fault in enumerate(faults) if not fault]
        screened = screening.faults(
            [readings[number].text for number in texts],
            [orders[number].label for number in texts],
            exact=[orders[number].kind not in LIST_KINDS for number in texts],
            near=[self._reads_prompts(orders[number].generator) and not orders[number].parents for number in texts],
        )
        for number, fault in zip(texts, screened, strict=True):
            faults[number] = fault
        return faults

    def _close(self, step: str, batch: Sequence[_Heard]) -> None:
        """Counts and journals what became of a batch: from here on its failed requests have failed for good."""
        for heard in batch:
            self._count(self.usage[heard.name], heard.answer)
        if self._journal.get(_verdict_key(step)) is None:
            failed = [
                (heard.name, heard.number, heard.answer) for heard in batch if isinstance(heard.answer, GenerationError)
            ]
            verdict = json.dumps([heard.reading.fault for heard in batch]).encode("utf-8")
            self._asking.close(step, failed, (_verdict_key(step), verdict))

    def _judge(self, batch: Sequence[_Heard], first: Collection[str], ordered: Mapping[str, int]) -> None:
        """Raises GenerationError as :meth:`write`, naming every generator of ``first`` without texts at once."""
        bad = {name: [each for each in batch if each.name == name and _is_useless(each.reading)] for name in first}
        spoilt = {name for name in first if _stops(ordered[name], len(bad[name]))}
        if spoilt:  # a small batch without any text is named beside them: it could be the next reason to stop
            named = spoilt | {name for name in first if len(bad[name]) == ordered[name]}
            self._stop({name: bad[name] for name in named}, ordered)

    def _stop(self, useless: Mapping[str, Sequence[_Heard]], ordered: Mapping[str, int]) -> None:
        """Raises GenerationError for first batches without texts, by generator.

        Their useless answers are asked for anew next time.
        """
        problems = []
        for name, answers in sorted(useless.items()):
            self._throw_away(name, [(heard.step, heard.number, heard.answer) for heard in answers])
            found = Counter(heard.reading.fault for heard in answers)
            kinds = ", ".join(f"{count} {fault}" for fault, count in found.most_common())
            said = next((words for heard in answers if (words := _words(heard.answer))), "nothing at all")
            problems.append(
                f"generator {name}: the answers to its first {ordered[name]} orders are no texts ({kinds});"
                f" one of them: {said}"
            )
        raise GenerationError(
            "\n".join(problems),
            "see prompts and answers with `undersong try`, mend the generators or the prompts, then run the same"
            " command again: what was good is kept, and no private sum is asked before generation works",
        )

    def _reads_prompts(self, name: str) -> bool:
        return self._formats.get(name, PromptFormat()).reads

    @staticmethod
    def _count(usage: Usage, answer: Answer | GenerationError) -> None:
        usage.calls += 1
        if isinstance(answer, GenerationError):
            return
        usage.cut += answer.finish == "length"
        usage.prompt_tokens += answer.prompt_tokens
        usage.completion_tokens += answer.completion_tokens
        usage.price_usd += answer.price_usd
        if answer.note:
            usage.notes[answer.note] = usage.notes.get(answer.note, 0) + 1


def _is_useless(reading: Reading) -> bool:
    return reading.fault not in ("", CUT)


def _stops(ordered: int, useless: int) -> bool:
    """Returns whether so many useless answers of a generator's first batch stop the run."""
    return ordered >= FEWEST_JUDGED and useless > USELESS_SHARE * ordered


def _words(answer: Answer | GenerationError) -> str:
    """An answer's beginning, as an error quotes it; "" where it has no word."""
    if isinstance(answer, GenerationError):
        return answer.problem
    text = " ".join(answer.text.split())
    return f"“{text[:_QUOTED]}{'...' if len(text) > _QUOTED else ''}”" if text else ""


def _verdict_key(step: str) -> str:
    return f"verdict/{step}"
