"""The author asks generators for the texts that a method orders, and reads their answers.

Answers are journaled as they arrive; an order whose answer is no usable text is asked again. The verdict on each
answer, its fault or none, is journaled too: a run that continues decides as it did before, on another machine and with
another version of the rules.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.printable import counted
from undersong_server.database.journal import Journal, json_bytes
from undersong_server.generators.cleaning import Screening
from undersong_server.generators.endpoints import batch_prefix, merge_sources
from undersong_server.generators.interface import (
    CachingGenerator,
    Completion,
    GenerationRequest,
    Generator,
    PaidGenerator,
    Preference,
    PromptFormat,
    TunableGenerator,
    Tuning,
)
from undersong_server.generators.orders import DrawWords, Order, Requests
from undersong_server.generators.reading import CUT, FAILED, MISSED_LENGTH, ReadText, misses_length, read
from undersong_server.pool import TRIAL_REMEDY, Origin, Sample
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import LIST_KINDS, Prompts

RETRIES = 2  # number of retries after an answer without a text; then the sample is dropped
TRIAL_ORDERS = 4  # texts that a generator is asked for as a test, if a private sum would come before its first text
FEWEST_JUDGED = 4  # smallest first batch of a generator that can stop the run by its share of useless answers
USELESS_SHARE = 0.5  # share of useless answers in a generator's first batch, above which the run stops
FEWEST_WRITTEN = 0.5  # share of a step's orders that become texts; below it no private sum follows
REFUSALS_BY_ENDPOINT = 2  # refusals of one order, after which its content counts as the reason
THROWN_AWAY = "of a first batch that stopped the run"  # counted with the faults of answers
FLUSH_ANSWERS = 64  # answers of one embedded generator that share a journal write
_THROWN_AWAY = GenerationRequest("thrown away", "", "", 0)  # stands for the request of an answer that was thrown away
_QUOTED = 160  # characters of an answer that an error shows


@dataclass
class AuthorUsage:
    """Counts of one generator's answers and samples in this run, journaled answers included.

    Attributes:
        orders: texts that were ordered; kept and dropped are what became of them.
        calls: answers, those that were asked for again included; retried: how many those are.
        faults: answers that were no sample, by what was wrong with them (``undersong_server.generators.reading``).
        cut: answers that ended at their longest length; some were kept up to their last whole sentence.
        notes: remarks of the generators on their answers, counted.
        fewer_examples: prompts that show less than was ordered, because the model's context holds no more.
        lost: attempts whose answers were lost on the way, for which the endpoint may bill; no part of the other counts.
        lost_tokens, lost_usd: what they cost at most.
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
    lost: int = 0
    lost_tokens: int = 0
    lost_usd: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass
class Speed:
    """Speed of one generator in this process; answers that the journal had do not count.

    Attributes:
        answered: answers that came, those that failed included.
        busy_s: wall-clock seconds in which calls were under way; several at the same time count once.
        timed: answers for which the generator stated how long they took; latency_s: how long these took together.
    """

    answered: int = 0
    busy_s: float = 0.0
    timed: int = 0
    latency_s: float = 0.0

    def timed_answers(
        self, answers: Iterator[tuple[int, Completion | GenerationError]]
    ) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields ``answers`` unchanged, and counts them and the time that each takes to come."""
        asked_at_s = time.monotonic()
        for position, timed_answer in answers:
            answered_at_s = time.monotonic()
            self.answered += 1
            self.busy_s += answered_at_s - asked_at_s
            if isinstance(timed_answer, Completion) and timed_answer.seconds:
                self.timed += 1
                self.latency_s += timed_answer.seconds
            yield position, timed_answer
            asked_at_s = time.monotonic()  # The time that the caller spent on the answer does not count.


def answers_of(
    generators: Mapping[str, Generator],
    requests: Mapping[str, Mapping[int, GenerationRequest]],
    speed: Mapping[str, Speed],
) -> Iterator[tuple[str, int, Completion | GenerationError]]:
    """Yields (generator, number, answer) as answers arrive, each generator in a thread of its own.

    Raises the error of a generator that cannot go on; of several such errors, one that names them all.
    """

    def ask(name: str, _stop: threading.Event) -> Iterator[tuple[str, int, Completion | GenerationError]]:
        request_numbers = list(requests[name])
        generator_answers = generators[name].answer(list(requests[name].values()))
        for position, generator_answer in speed[name].timed_answers(generator_answers):
            yield name, request_numbers[position], generator_answer

    ask_failures: list[BaseException] = []
    yield from merge_sources(
        {generator_name: partial(ask, generator_name) for generator_name in requests}, ask_failures
    )
    if ask_failures:
        raise _join_failures(ask_failures)


def _join_failures(failures: Sequence[BaseException]) -> BaseException:
    """Returns one error with the problems of all; if one is no error of this program, returns that one alone."""
    own_errors = [
        ask_failure for ask_failure in failures if isinstance(ask_failure, ConfigurationError | GenerationError)
    ]
    if len(own_errors) < len(failures) or len(own_errors) == 1:
        return next((failure for failure in failures if failure not in own_errors), failures[0])
    return type(own_errors[0])(
        "\n".join(failure.problem for failure in own_errors),
        "; ".join(dict.fromkeys(failure.remedy for failure in own_errors)),
        code=own_errors[0].code,
    )


class _ReadAnswer(NamedTuple):
    """An answer to one order, what its request showed, and the text or fault that was read in it."""

    step: str
    number: int
    name: str
    answer: Completion | GenerationError
    reading: ReadText
    request: GenerationRequest


class _StepWork:
    """The orders of one step, with their texts as they come.

    Attributes:
        ordered: number of orders by generator.
        written: the sample of each order; None while it has none.
        useless: answers that were no text, failures included, in the order in which they came.
        origins: each text with what its request showed, by the number of its order.
    """

    def __init__(self, orders: Sequence[Order], step: str, round_: int) -> None:
        self.orders = orders
        self.step = step
        self.ordered = Counter(order.generator for order in orders)
        self.written: list[Sample | None] = [None] * len(orders)
        self.useless: list[_ReadAnswer] = []
        self.origins: dict[int, Origin] = {}
        self._round = round_

    @property
    def remaining(self) -> list[int]:
        """Numbers of the orders without a text."""
        return [order_number for order_number, sample in enumerate(self.written) if sample is None]

    @property
    def last_useless(self) -> dict[int, _ReadAnswer]:
        """The last answer to each order without a text that has had one, by the order's number."""
        return {reply.number: reply for reply in self.useless if self.written[reply.number] is None}

    @property
    def refused(self) -> set[int]:
        """Numbers of the orders that are done without a text: an endpoint refuses their content."""
        return {
            order_number
            for order_number, last_fault in self.last_useless.items()
            if _is_refused_by_endpoint(last_fault.answer)
        }

    def take(self, answer: _ReadAnswer) -> None:
        """Makes the text of an answer the sample of its order."""
        answered_order = self.orders[answer.number]
        answered_request = answer.request
        written_sample = Sample(
            answer.reading.text,
            answered_order.label,
            answer.name,
            self._round,
            answered_order.kind,
            answered_order.attributes,
        )
        self.written[answer.number] = written_sample
        self.origins[answer.number] = Origin(
            written_sample, answered_request.parents, answered_request.good, answered_request.bad
        )


class Author:
    """Turns a method's orders into cleaned samples, by asking the generators.

    Every answer is journaled, so that a restarted run asks and pays for none twice.
    """

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
            formats: form of each generator's prompts; a generator that is not among them gets chat prompts.
            draw_words: draws the length of a text whose order states none; None leaves it to the generator.
            screening: finds duplicates; None finds exact ones only.
        """
        self._generators = generators
        self._language = prompts.language
        self._line_breaks = prompts.line_breaks
        self._requests = Requests(prompts, formats or {}, seed=seed, draw_words=draw_words)
        self._journal = journal
        self._progress = progress
        self._screening = screening or Screening()
        self._steps: set[str] = set()  # names of the steps that this process has written
        self._unwritten: dict[str, bool] = {}  # labels without a text so far: True if all their orders were refused
        self.origins: list[Origin] = []  # every text of a step, in the order of writing
        # Journal entries of the last step's verdicts if orders failed; written once a further step builds on it.
        self._open: list[tuple[str, bytes]] = []
        self._open_problems: list[str] = []  # reasons of the failed orders
        self._proven = {
            generator_name for generator_name in generators if not self._requests.form_of(generator_name).reads
        }
        self.usage = {generator_name: AuthorUsage() for generator_name in generators}
        self.speed = {generator_name: Speed() for generator_name in generators}
        for name in generators:
            self._charge_usage(
                name, [_decode_answer(answer_entry) for answer_entry in journal.items(_thrown_away_key(name)).values()]
            )

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each generator in this process, without zeros: calls that waited, calls that were retried, ..."""
        return {
            generator_name: {
                counter_name: counter_value for counter_name, counter_value in generator.counts.items() if counter_value
            }
            for generator_name, generator in self._generators.items()
        }

    def draw_words_by(self, draw: DrawWords) -> None:
        """Sets the function that draws the length of every further text whose order states no length."""
        self._requests.draw_words = draw

    def try_out(self, labels: Sequence[str]) -> None:
        """Asks every language model that has written nothing yet for a few texts, as a test; they enter no corpus.

        Raises GenerationError as :meth:`write` does.
        """
        label_names = labels or ("",)
        trial_orders = [
            Order(generator_name, "zero_shot", label_names[trial_number % len(label_names)])
            for generator_name in self._generators
            for trial_number in range(0 if generator_name in self._proven else TRIAL_ORDERS)
        ]
        self._write_step("trial", 0, trial_orders, Screening())

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        """Returns one sample per order; None if no answer was a new text (counted as dropped).

        Raises:
            GenerationError: most answers of the first batch of one generator, or of several, are useless. They are
                thrown away, so that the same run, continued, asks for them anew; what was good is kept.
            ConfigurationError: a generator cannot go on; what was answered is kept. Or the step has been written, and
                the journal would give its answers to other orders.
        """
        if step in self._steps:
            raise ConfigurationError(
                f"the method writes the step {step!r} twice",
                "name another step in each call of run.generate and run.write",
                code="step-repeated",
            )
        self._steps.add(step)
        step_work = self._write_step(step, round_, orders, self._screening)
        self.origins += [step_work.origins[order_number] for order_number in sorted(step_work.origins)]
        self._note_labels(step_work)
        return step_work.written

    @property
    def refused_labels(self) -> list[str]:
        """Labels without a text in any step, because endpoints refused each of their orders for its content."""
        return [label for label, is_refused in self._unwritten.items() if label and is_refused]

    def _note_labels(self, step_work: "_StepWork") -> None:
        written_labels = {origin.sample.label for origin in self.origins}
        refused_numbers = step_work.refused
        for order_number, order in enumerate(step_work.orders):
            if order.label in written_labels:
                self._unwritten.pop(order.label, None)
            else:
                self._unwritten[order.label] = (
                    self._unwritten.get(order.label, True) and order_number in refused_numbers
                )

    def _write_step(self, step: str, round_: int, orders: Sequence[Order], screening: Screening) -> "_StepWork":
        for generator_name in {order.generator for order in orders} - self._generators.keys():
            raise ConfigurationError(
                f"no generator is named {generator_name!r}", "name it under [[generators]]", code="generator-unknown"
            )
        self.close_orders()
        step_work = _StepWork(orders, step, round_)
        untried_generators = step_work.ordered.keys() - self._proven
        for generator_name, order_count in step_work.ordered.items():
            self.usage[generator_name].orders += order_count
        try:
            self._ask_all(step_work, screening, untried_generators)
        finally:
            self._count_losses()
        self._proven |= {sample.generator for sample in step_work.written if sample is not None}
        self._stop(
            [reply for reply in step_work.useless if reply.name in untried_generators - self._proven], step_work.ordered
        )
        self._check_step(step_work)
        for index in step_work.remaining:
            self.usage[orders[index].generator].dropped += 1
        return step_work

    def _ask_all(self, step_work: "_StepWork", screening: Screening, untried_generators: Collection[str]) -> None:
        """Asks for the orders of a step until each has a text or has had all its attempts."""
        length_factors = [1] * len(step_work.orders)
        refusal_counts = Counter[int]()
        open_numbers = list(step_work.remaining)
        for attempt in range(1 + RETRIES):
            if not open_numbers:
                break
            attempt_step = f"{step_work.step}/{attempt}"
            batch_replies = self._ask_and_read(
                attempt_step,
                step_work.orders,
                open_numbers,
                length_factors,
                screening,
                () if attempt else untried_generators,
            )
            faulty_replies = [reply for reply in batch_replies if reply.reading.fault]
            step_work.useless += faulty_replies
            if attempt == 0:
                self._judge_first_batch(
                    [reply for reply in faulty_replies if reply.name in untried_generators], step_work.ordered
                )
            self._note_verdict(attempt_step, batch_replies)
            for reply in batch_replies:
                self._count_answer(self.usage[reply.name], reply.answer)
                if reply.reading.fault == FAILED:
                    self.usage[reply.name].notes[f"failed: {_failure_reason(reply)}"] += 1
                if not reply.reading.fault:
                    step_work.take(reply)
                    self.usage[reply.name].kept += 1
            for reply in faulty_replies:
                self.usage[reply.name].faults[reply.reading.fault] += 1
                length_factors[reply.number] *= 1 + (reply.reading.fault == CUT)
                refusal_counts[reply.number] += _is_refused_by_endpoint(reply.answer)
            open_numbers = [
                reply.number for reply in faulty_replies if refusal_counts[reply.number] < REFUSALS_BY_ENDPOINT
            ]
            for reply in faulty_replies:
                self.usage[reply.name].retried += attempt < RETRIES and reply.number in open_numbers

    def _note_verdict(self, step: str, replies: Sequence["_ReadAnswer"]) -> None:
        """Journals the faults of a batch's answers. If an order failed, the entry waits for :meth:`close_orders`."""
        if self._journal.get(_verdict_key(step)) is not None:
            return
        verdict_entry = (_verdict_key(step), json_bytes([reply.reading.fault for reply in replies]))
        reason_by_number = {reply.number: _failure_reason(reply) for reply in replies if reply.reading.fault == FAILED}
        if reason_by_number or self._open:
            self._open += [
                (
                    _failures_key(step),
                    json_bytes(
                        {str(order_number): reason_words for order_number, reason_words in reason_by_number.items()}
                    ),
                ),
                verdict_entry,
            ]
        else:
            self._journal.put_all([verdict_entry])
        # Orders that failed at an earlier attempt were asked again, so only the last attempt's failures remain.
        self._open_problems = list(reason_by_number.values())

    def close_orders(self) -> None:
        """Journals that the last step's failed orders stay without texts: a further step builds on the others."""
        self._journal.put_all(self._open)
        self._open = []
        self._open_problems = []

    def check_finished(self) -> None:
        """Raises GenerationError if orders of the last step failed: texts are missing, and can be asked for again."""
        if self._open_problems:
            raise GenerationError(
                f"{len(self._open_problems)} orders of the last step have no answer; the last one:"
                f" {self._open_problems[-1]}",
                "mend what the endpoint names, or wait, then run the same command again: it asks for these orders only",
                code="orders-open",
            )
        self.close_orders()

    def _check_step(self, step_work: "_StepWork") -> None:
        """Raises GenerationError if less than half of the orders that models were asked for became texts.

        Orders that an endpoint refused for their content do not count. But if all were refused, some of them for labels
        that have texts, the endpoint may refuse the account. The useless answers are thrown away, so that the same run,
        continued, asks for them anew, and for orders that failed.
        """
        judged_numbers = [
            order_number
            for order_number, order in enumerate(step_work.orders)
            if self._requests.form_of(order.generator).reads
        ]
        missing_numbers = [n for n in judged_numbers if step_work.written[n] is None]
        text_count = len(judged_numbers) - len(missing_numbers)
        refused_numbers = step_work.refused
        judged_count = len(set(judged_numbers) - refused_numbers)
        written_labels = {origin.sample.label for origin in self.origins}
        if judged_count:
            is_short = text_count < FEWEST_WRITTEN * judged_count
        else:
            is_short = bool(judged_numbers) and (
                not written_labels or any(step_work.orders[n].label in written_labels for n in judged_numbers)
            )
        if not is_short:
            return
        last_replies = step_work.last_useless
        for generator_name in {reply.name for reply in last_replies.values()}:
            useless_replies = [
                reply for reply in step_work.useless if reply.name == generator_name and reply.number in last_replies
            ]
            self._throw_away(generator_name, [(reply.step, reply.number, reply.answer) for reply in useless_replies])
        self._open = []
        self._open_problems = []
        count_by_fault = Counter(last_replies[n].reading.fault for n in missing_numbers)
        failed_count = count_by_fault.pop(FAILED, 0)
        fault_words = (
            ", ".join(f"{fault_count} {fault_kind}" for fault_kind, fault_count in count_by_fault.most_common())
            or "none"
        )
        example = next(
            (answer_words for reply in reversed(step_work.useless) if (answer_words := _quote_answer(reply.answer))),
            "nothing at all",
        )
        raise GenerationError(
            f"{step_work.step}: {text_count} of {len(judged_numbers)} orders became texts; {failed_count} have no"
            f" answer, {sum(count_by_fault.values())} have useless ones ({fault_words}); one of them: {example}",
            _remedy_for([last_replies[n].answer for n in missing_numbers]),
            code="step-short",
        )

    def _count_losses(self) -> None:
        """Sets, in each generator's usage, the number and the highest cost of attempts whose answers were lost."""
        for generator_name, generator in self._generators.items():
            if isinstance(generator, PaidGenerator):
                generator_usage = self.usage[generator_name]
                losses = generator.lost
                generator_usage.lost = losses.attempts
                generator_usage.lost_tokens = losses.tokens
                generator_usage.lost_usd = losses.price_usd

    def tune(
        self, step: str, preferences: Sequence[tuple[Order, str, str]], tuning: Tuning
    ) -> Mapping[str, Mapping[str, bytes]]:
        """Trains each generator on its own preferences: (order with ``hints``, chosen text, rejected text).

        Returns every adapter's files by generator. They are journaled before anything is written with them, so that a
        continued run trains nothing anew but a tuning that was interrupted.
        """
        adapter_by_generator: dict[str, Mapping[str, bytes]] = {}
        for generator_name in dict.fromkeys(order.generator for order, _, _ in preferences):
            generator = self._generators[generator_name]
            if not isinstance(generator, TunableGenerator):
                raise ConfigurationError(
                    f"generator {generator_name} cannot be tuned",
                    'use one of kind = "transformers"',
                    code="not-tunable",
                )
            prefix = f"adapter/{step}/{generator_name}/"
            adapter_files = {
                file_name.removeprefix(prefix): file_bytes
                for file_name, file_bytes in self._journal.items(prefix).items()
            }
            if adapter_files:
                generator.adapt(adapter_files)
            else:
                adapter_files = dict(
                    self._tune_generator(
                        generator,
                        step,
                        [preference for preference in preferences if preference[0].generator == generator_name],
                        tuning,
                    )
                )
                self._journal.put_all([(prefix + file, content) for file, content in adapter_files.items()])
            adapter_by_generator[generator_name] = adapter_files
        return adapter_by_generator

    def _tune_generator(
        self, generator: TunableGenerator, step: str, preferences: Sequence[tuple[Order, str, str]], tuning: Tuning
    ) -> Mapping[str, bytes]:
        orders = [order for order, _, _ in preferences]
        requests, _ = self._requests.make(f"tuning/{step}", orders, range(len(orders)), [1] * len(orders))
        pairs = [
            Preference(requests[pair_number], preferred, rejected)
            for pair_number, (_, preferred, rejected) in enumerate(preferences)
        ]
        step_count = len(pairs) * tuning.epochs
        return generator.tune(pairs, tuning, lambda done: self._progress.update(f"tuning {step}", done, step_count))

    # These methods ask for answers and find their faults.

    def _ask_and_read(
        self,
        step: str,
        orders: Sequence[Order],
        remaining: Sequence[int],
        length_factors: Sequence[int],
        screening: Screening,
        untried_generators: Collection[str],
    ) -> list[_ReadAnswer]:
        """Asks for the remaining orders; returns their answers with the texts and faults that were read in them.

        ``length_factors``: how many times the usual length the answer to each order may have. Faults that the journal
        has are taken from it.
        """
        requests, trimmed_numbers = self._requests.make(step, orders, remaining, length_factors)
        journaled_faults = self._read_journaled_faults(step, len(remaining))
        asked_names = [orders[order_number].generator for order_number in remaining]
        for generator_name in untried_generators if journaled_faults is None else ():
            self._ask_anew(
                step, generator_name, {i: requests[i] for i in remaining if orders[i].generator == generator_name}
            )
        failed_numbers = {
            order_number
            for order_number, known_fault in zip(remaining, journaled_faults or (), strict=journaled_faults is not None)
            if known_fault == FAILED
        }
        if journaled_faults is None:
            failed_numbers |= self._answered_later(step, remaining, asked_names)
        numbers_and_names = [
            (order_number, asked_name)
            for order_number, asked_name in zip(remaining, asked_names, strict=True)
            if order_number not in failed_numbers
        ]
        answers = self._ask_generators(step, numbers_and_names, requests)
        if failed_numbers:
            reasons = self._journal.get_json(_failures_key(step)) or {}
        else:
            reasons = {}
        answers |= {
            order_number: GenerationError(reasons.get(str(order_number), "failed before this program was started"))
            for order_number in failed_numbers
        }
        for order_number in trimmed_numbers:
            self.usage[orders[order_number].generator].fewer_examples += 1
        readings = [
            self._read_answer(answers[i], requests[i], asked_name)
            for i, asked_name in zip(remaining, asked_names, strict=True)
        ]
        if step.endswith("/0"):  # a text of another length than ordered is a fault at the first attempt only
            readings = [_judged_by_length(reading, requests[i]) for reading, i in zip(readings, remaining, strict=True)]
        faults = self._find_faults(
            journaled_faults, [orders[order_number] for order_number in remaining], readings, screening
        )
        self._tell_caches(asked_names, [requests[order_number] for order_number in remaining], faults)
        return [
            _ReadAnswer(
                step, order_number, name, answers[order_number], ReadText(reading.text, fault), requests[order_number]
            )
            for order_number, name, reading, fault in zip(remaining, asked_names, readings, faults, strict=True)
        ]

    def _read_journaled_faults(self, step: str, order_count: int) -> list[str] | None:
        """Returns the faults of a step's answers that the journal has; None if the step was not asked before.

        Raises ConfigurationError if the journal has another number of them: the method's code has changed.
        """
        journaled_faults: list[str] | None = self._journal.get_json(_verdict_key(step))
        if journaled_faults is not None and len(journaled_faults) != order_count:
            raise ConfigurationError(
                f"the step {step.rpartition('/')[0]!r} orders {counted(order_count, 'text')}, and this run has asked"
                f" for {len(journaled_faults)} there: the method's code is not that with which the run began",
                "put the former code back, or start over: --fresh, in Python fresh=True",
                code="step-changed",
            )
        return journaled_faults

    def _tell_caches(
        self, asked_names: Sequence[str], requests: Sequence[GenerationRequest], faults: Sequence[str]
    ) -> None:
        """Tells each generator that caches which of its requests, in their order, gave a text without a fault."""
        for generator_name in dict.fromkeys(asked_names):
            generator = self._generators[generator_name]
            if isinstance(generator, CachingGenerator):
                positions = [
                    position for position, asked_name in enumerate(asked_names) if asked_name == generator_name
                ]
                generator.keep_texts([(requests[position], not faults[position]) for position in positions])

    def _ask_generators(
        self, step: str, numbers_and_names: Sequence[tuple[int, str]], requests: Mapping[int, GenerationRequest]
    ) -> dict[int, Completion | GenerationError]:
        """Returns the answers to (number, generator). They are journaled as they arrive; failures are not.

        Raises the errors of generators that cannot go on, as one error; the answers that came are journaled.
        """
        answers: dict[int, Completion | GenerationError] = {}
        missing_requests: dict[str, dict[int, GenerationRequest]] = {}
        for generator_name in dict.fromkeys(generator_name for _, generator_name in numbers_and_names):
            order_numbers = [
                order_number for order_number, asked_name in numbers_and_names if asked_name == generator_name
            ]
            journaled_answers = self._journaled_answers(step, generator_name, order_numbers)
            answers |= journaled_answers
            self._generators[generator_name].observe(
                [requests[order_number] for order_number in journaled_answers], list(journaled_answers.values())
            )
            if missed_requests := {
                order_number: requests[order_number]
                for order_number in order_numbers
                if order_number not in journaled_answers
            }:
                missing_requests[generator_name] = missed_requests
        unwritten_entries: list[tuple[str, bytes]] = []
        settled_attempts: list[str] = []  # keys of attempts, which are removed with the write of their answers
        try:
            for generator_name, order_number, answer in answers_of(self._generators, missing_requests, self.speed):
                answers[order_number] = answer
                if isinstance(answer, Completion):
                    unwritten_entries.append((_answer_key(step, generator_name, order_number), _encode_answer(answer)))
                    settled_attempts += [answer.attempt] if answer.attempt else []
                # An answer of a language model took time or money: it is kept at once.
                if unwritten_entries and (
                    self._requests.form_of(generator_name).reads or len(unwritten_entries) >= FLUSH_ANSWERS
                ):
                    self._journal.exchange(settled_attempts, unwritten_entries)
                    unwritten_entries, settled_attempts = [], []
                self._progress.update(step_phase(step), len(answers), len(numbers_and_names))
        finally:
            self._journal.exchange(settled_attempts, unwritten_entries)
        for order_number, generator_name in numbers_and_names:
            if order_number not in answers:
                raise GenerationError(f"{generator_name}: gave no answer to request {order_number} of {step}")
        return answers

    def _journaled_answers(self, step: str, name: str, order_numbers: Sequence[int]) -> dict[int, Completion]:
        entry_by_key = self._journal.items(_answer_key(step, name, ""))  # one query: a run has thousands of orders
        return {
            order_number: _decode_answer(entry_by_key[answer_key])
            for order_number in order_numbers
            if (answer_key := _answer_key(step, name, order_number)) in entry_by_key
        }

    def _answered_later(self, step: str, order_numbers: Sequence[int], generator_names: Sequence[str]) -> set[int]:
        """Returns the orders that failed at this attempt and were paid for at a later one, before this process."""
        step_name, _, attempt = step.rpartition("/")
        paid_later: set[int] = set()
        for generator_name in dict.fromkeys(generator_names):
            generator_indices = [
                order_number
                for order_number, generator_of_order in zip(order_numbers, generator_names, strict=True)
                if generator_of_order == generator_name
            ]
            for later_attempt in range(int(attempt) + 1, 1 + RETRIES):
                paid_later |= (
                    self._journaled_answers(f"{step_name}/{later_attempt}", generator_name, generator_indices).keys()
                    - self._journaled_answers(step, generator_name, generator_indices).keys()
                )
        return paid_later

    def _ask_anew(self, step: str, generator_name: str, requests: Mapping[int, GenerationRequest]) -> None:
        """Throws an earlier process's useless answers away if they alone would stop the run.

        The generator may have been mended since.
        """
        journaled_answers = self._journaled_answers(step, generator_name, list(requests))
        useless_answers = [
            (step, i, answer)
            for i, answer in journaled_answers.items()
            if _is_useless(self._read_answer(answer, requests[i], generator_name))
        ]
        if _stops_run(len(requests), [answer for _, _, answer in useless_answers]):
            self._charge_usage(generator_name, self._throw_away(generator_name, useless_answers))

    def _throw_away(
        self, generator_name: str, useless: Sequence[tuple[str, int, Completion | GenerationError]]
    ) -> list[Completion]:
        """Takes answers (step, index, answer) and their verdicts out of the journal, so that they are asked for anew.

        An order that an endpoint refused for its content would be refused again: such answers stay, unless there are no
        others. The generator's batches go too, or they would give the same answers again. What the answers cost stays
        in the journal. Returns those that were paid for.
        """
        useless = [
            useless_answer for useless_answer in useless if not _is_refused_by_endpoint(useless_answer[2])
        ] or useless
        paid_answers = [
            answer for _, _, answer in useless if isinstance(answer, Completion) and answer.completion_tokens > 0
        ]
        thrown_count = len(self._journal.items(_thrown_away_key(generator_name)))
        dropped_keys = {_verdict_key(step) for step, _, _ in useless} | {
            _answer_key(step, generator_name, order_number) for step, order_number, _ in useless
        }
        self._journal.exchange(
            [*dropped_keys, *self._journal.items(batch_prefix(generator_name))],
            [
                (f"{_thrown_away_key(generator_name)}{thrown_count + answer_number:08}", _encode_answer(answer))
                for answer_number, answer in enumerate(paid_answers)
            ],
        )
        return paid_answers

    def _charge_usage(self, generator_name: str, thrown_away: Sequence[Completion]) -> None:
        """Counts the cost of answers that were paid for and thrown away, towards the generator's budget too."""
        self._generators[generator_name].observe([_THROWN_AWAY] * len(thrown_away), thrown_away)
        for answer in thrown_away:
            self._count_answer(self.usage[generator_name], answer)
            self.usage[generator_name].faults[THROWN_AWAY] += 1

    def _read_answer(
        self, answer: Completion | GenerationError, request: GenerationRequest, generator_name: str
    ) -> ReadText:
        return read(
            answer,
            request,
            language=self._language,
            line_breaks=self._line_breaks,
            whole=self._requests.form_of(generator_name).reads,
        )

    def _find_faults(
        self,
        journaled_faults: Sequence[str] | None,
        orders: Sequence[Order],
        readings: Sequence[ReadText],
        screening: Screening,
    ) -> Sequence[str]:
        faults = [reading.fault for reading in readings] if journaled_faults is None else journaled_faults
        unfaulted_numbers = [text_number for text_number, row_fault in enumerate(faults) if not row_fault]
        texts = [readings[text_number].text for text_number in unfaulted_numbers]
        text_labels = [orders[text_number].label for text_number in unfaulted_numbers]
        if journaled_faults is not None:
            screening.add(texts, text_labels)
            return journaled_faults
        new_faults = screening.faults(
            texts,
            text_labels,
            exact=[orders[text_number].kind not in LIST_KINDS for text_number in unfaulted_numbers],
            near=[
                self._requests.form_of(orders[text_number].generator).reads and not orders[text_number].parents
                for text_number in unfaulted_numbers
            ],
        )
        screened_faults = dict(zip(unfaulted_numbers, new_faults, strict=True))
        return [screened_faults.get(text_number, row_fault) for text_number, row_fault in enumerate(faults)]

    def _judge_first_batch(self, faulty_replies: Sequence[_ReadAnswer], order_counts: Mapping[str, int]) -> None:
        """Raises GenerationError, as :meth:`write` does, for all generators with useless first batches together."""
        useless_by_generator: dict[str, list[_ReadAnswer]] = {}
        for reply in faulty_replies:
            if _is_useless(reply.reading):
                useless_by_generator.setdefault(reply.name, []).append(reply)
        stopping_names = {
            generator_name
            for generator_name, replies in useless_by_generator.items()
            if _stops_run(order_counts[generator_name], [reply.answer for reply in replies])
        }
        if stopping_names:
            # A small batch without any text is named beside them: it could be the next reason to stop.
            stopped_names = stopping_names | {
                generator_name
                for generator_name, replies in useless_by_generator.items()
                if len(replies) == order_counts[generator_name]
            }
            self._stop(
                [reply for generator_name in stopped_names for reply in useless_by_generator[generator_name]],
                order_counts,
            )

    def _stop(self, useless_replies: Sequence[_ReadAnswer], order_counts: Mapping[str, int]) -> None:
        """Raises GenerationError for first batches without texts, if there are any.

        Their useless answers are asked for anew next time.
        """
        problems = []
        for generator_name in sorted({reply.name for reply in useless_replies}):
            answers = [reply for reply in useless_replies if reply.name == generator_name]
            self._throw_away(generator_name, [(reply.step, reply.number, reply.answer) for reply in answers])
            faults = Counter(reply.reading.fault for reply in answers)
            fault_words = ", ".join(f"{fault_count} {fault_kind}" for fault_kind, fault_count in faults.most_common())
            example = next(
                (answer_words for reply in answers if (answer_words := _quote_answer(reply.answer))), "nothing at all"
            )
            problems.append(
                f"generator {generator_name}: the answers to its first {order_counts[generator_name]} orders are no"
                f" texts ({fault_words});"
                f" one of them: {example}"
            )
        if problems:
            raise GenerationError(
                "\n".join(problems),
                _remedy_for([reply.answer for reply in useless_replies]),
                code="answers-useless",
            )

    @staticmethod
    def _count_answer(usage: AuthorUsage, answer: Completion | GenerationError) -> None:
        usage.calls += 1
        if isinstance(answer, Completion):
            usage.cut += answer.finish == "length"
            usage.prompt_tokens += answer.prompt_tokens
            usage.completion_tokens += answer.completion_tokens
            usage.price_usd += answer.price_usd
            usage.notes.update([answer.note] if answer.note else ())


def _judged_by_length(reading: ReadText, request: GenerationRequest) -> ReadText:
    misses_ordered_length = not reading.fault and misses_length(reading.text, request)
    if misses_ordered_length:
        return ReadText(reading.text, MISSED_LENGTH)
    return reading


def _is_useless(reading: ReadText) -> bool:
    return reading.fault not in ("", CUT, MISSED_LENGTH)


def _stops_run(order_count: int, useless: Sequence[Completion | GenerationError]) -> bool:
    """Returns True if these useless answers, of ``order_count`` orders in a generator's first batch, stop the run.

    An order that was refused for its content is no reason, unless nothing became a text.
    """
    refusal_count = sum(map(_is_refused_by_endpoint, useless))
    judged_count = len(useless) - refusal_count
    return order_count >= FEWEST_JUDGED and (
        judged_count > USELESS_SHARE * (order_count - refusal_count) or len(useless) == order_count
    )


def _remedy_for(last_answers: Sequence[Completion | GenerationError]) -> str:
    """Returns the remedy for orders without texts: that of their errors, and `undersong try` if there are answers.

    ``last_answers``: the last answer to each of these orders.
    """
    remedies = [
        answer.remedy or "mend what the endpoint names"
        for answer in last_answers
        if isinstance(answer, GenerationError)
    ]
    if any(isinstance(answer, Completion) for answer in last_answers):
        remedies.append(TRIAL_REMEDY)
    return f"{'; '.join(dict.fromkeys(remedies))}; the same command asks for what is missing, before any private sum"


def _quote_answer(answer: Completion | GenerationError) -> str:
    """Returns an answer's beginning, as an error quotes it; "" if it has no word."""
    if isinstance(answer, GenerationError):
        return answer.problem
    text = " ".join(answer.text.split())
    if text:
        return f"“{text[:_QUOTED]}{'...' if len(text) > _QUOTED else ''}”"
    return ""


def _failure_reason(answer: _ReadAnswer) -> str:
    """Returns why an order has no answer, without the generator's name before it."""
    if isinstance(answer.answer, GenerationError):
        problem = answer.answer.problem
    else:
        problem = ""
    return problem.removeprefix(f"generator {answer.name}: ")


def _is_refused_by_endpoint(answer: Completion | GenerationError) -> bool:
    """Returns True if the endpoint refused an order for its content."""
    return isinstance(answer, Completion) and answer.end == "filtered"


def _verdict_key(step: str) -> str:
    return f"verdict/{step}"


def _failures_key(step: str) -> str:
    return f"failures/{step}"


def _answer_key(step: str, generator: str, index: int | str) -> str:
    return f"generate/{step}/{generator}/{index}"


def _thrown_away_key(generator: str) -> str:
    return f"thrown away/{generator}/"


def _encode_answer(answer: Completion) -> bytes:
    # The journal holds neither an answer's duration nor the attempt that it settles.
    fields = (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.price_usd, answer.note, answer.finish)
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _decode_answer(entry: bytes) -> Completion:
    return Completion(*json.loads(entry.decode("utf-8", "surrogatepass")))


_ANEW = re.compile(r"anew \d+")  # name of a step that writes texts in place of those that the choice left out


def step_phase(step: str) -> str:
    """Returns what a run does in a step, for a person.

    >>> step_phase("round 2/1")
    'writing round 2 again, for texts that could not be used'
    >>> step_phase("anew 1/0")
    'writing texts in place of those that the choice left out'
    """
    step_name, _, attempt = step.rpartition("/")
    if not attempt.isdecimal():
        step_name = step
    shown_name = "texts in place of those that the choice left out" if _ANEW.fullmatch(step_name) else step_name
    is_again = attempt.isdecimal() and attempt != "0" and shown_name == step_name
    return f"writing {shown_name} again, for texts that could not be used" if is_again else f"writing {shown_name}"
