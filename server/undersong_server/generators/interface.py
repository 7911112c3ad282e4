"""What the coordinator asks of a text generator, and what it gets back.

The author makes :class:`GenerationRequest` values; a generator answers them as they complete. Which program is behind a
name (an endpoint, a local model, a file of texts, an n-gram model) is configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from undersong_common.errors import GenerationError


@dataclass(frozen=True)
class GenerationRequest:
    """One text to be written.

    Attributes:
        kind: the prompt kind, e.g. "zero_shot", "contrast", "paraphrase", "fill_in", "cross", "keyphrases",
            "metadata", "random".
        label: a label of the task; "" where the task has none or the class is not named.
        prompt: the rendered text that a language model reads.
        seed: public randomness of this one request, >= 0. `ngram` and `replay` give the same answer for the same seed
            and history; a retry is a new request with a new seed.
        good, bad: example texts to come closer to, and to keep away from.
        parents: the texts that are rewritten, filled in or crossed.
        terms: words or phrases that the text contains.
        words: the wanted length in words; None leaves it to the generator.
    """

    kind: str
    label: str
    prompt: str
    seed: int
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    words: int | None = None


@dataclass(frozen=True)
class Answer:
    """One raw answer and what it cost.

    Attributes:
        text: as the generator wrote it; the caller cleans it (``undersong_server.generators.cleaning``).
        prompt_tokens: tokens read; attempts that were lost on the way count at their worst case.
        completion_tokens: tokens written, counted likewise.
        price_usd: US dollars; 0.0 where no price is configured.
        note: for the report, e.g. "repeat" or "cut at max_tokens"; mostly "".
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price_usd: float = 0.0
    note: str = ""


class Generator(Protocol):
    """A named source of texts. One thread at a time uses an instance."""

    @property
    def name(self) -> str:
        """The name in the task file."""
        ...

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Yields (index into ``requests``, answer) as each completes, each index once.

        A yielded :class:`GenerationError` means that this one request has no answer. A raised one (such as
        :class:`BudgetExhausted`) or a ConfigurationError stops the run; what was yielded before stays valid.
        Closing the iterator early abandons the rest.
        """
        ...

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Answer | GenerationError]) -> None:
        """Takes note of answers that an earlier process obtained, before any further :meth:`answer`.

        Args:
            requests: the journaled requests.
            answers: their answers, in the same order; raw or cleaned texts alike.
        """
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Public counters for the report, e.g. rows ignored, texts repeated, calls retried."""
        ...


class BudgetExhausted(GenerationError):
    """The next call could exceed the token or price budget, so it was not made. Raised, never yielded."""


@dataclass(frozen=True)
class Estimate:
    """What a number of calls is expected to need, as ranges (low, high).

    Attributes:
        calls: number of calls, retries not counted.
        tokens: prompt and completion tokens together; (0, 0) where nothing is counted in tokens.
        price_usd: US dollars; (0.0, 0.0) where nothing is paid; None where the task names no price.
        seconds: wall-clock time.
    """

    calls: int
    tokens: tuple[int, int]
    price_usd: tuple[float, float] | None
    seconds: tuple[float, float]
