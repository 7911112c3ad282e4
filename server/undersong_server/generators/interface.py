"""What the coordinator asks of a text generator, and what it gets back.

The author makes :class:`GenerationRequest` values; a generator answers them as they complete. Which program is behind a
name (an endpoint, a local model, a file of texts, an n-gram model) is configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from undersong_common.errors import GenerationError


@dataclass(frozen=True)
class GenerationRequest:
    """One text to be written.

    Attributes:
        kind: the prompt kind, e.g. "zero_shot", "contrast", "examples", "paraphrase", "fill_in", "cross",
            "keyphrases", "metadata", "random".
        label: a label of the task; "" where the task has none or the class is not named.
        prompt: the rendered text that a language model reads: what is asked of it, or the text that it continues.
        seed: public randomness of this one request, >= 0. `ngram` and `replay` give the same answer for the same seed
            and history; a retry is a new request with a new seed.
        good, bad: example texts to come closer to, and to keep away from.
        parents: the texts that are rewritten, filled in or crossed.
        terms: words or phrases that the text contains.
        words: the wanted length in words; None leaves it to the generator.
        system: how the model is to behave; "" for none.
        style: whether the prompt asks for a text, or is one to be continued.
        stop: strings that end the answer.
        room: how many times the usual length the answer may have: more where an earlier one was cut.
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
    system: str = ""
    style: Literal["chat", "completion"] = "chat"
    stop: tuple[str, ...] = ()
    room: int = 1


@dataclass(frozen=True)
class PromptFormat:
    """How a generator's prompts are made.

    Attributes:
        reads: whether it is a language model that reads any prompt. The embedded generators read a request's other
            fields, and a model that was trained on one prompt knows that one; their answers are not judged as strictly.
        rendered: whether prompts are made for it at all; no text is made of a request that nobody reads as text.
        style: "chat" for a model that follows instructions, "completion" for one that continues texts.
        prompt_tokens: the longest prompt that leaves room for the answer; None where nobody said.
    """

    reads: bool = True
    rendered: bool = True
    style: Literal["chat", "completion"] = "chat"
    prompt_tokens: int | None = None


Finish = Literal["", "length", "filter", "refusal"]
"""Why an answer ended: by itself, at its longest length, by the endpoint's content filter, by the model's refusal."""


@dataclass(frozen=True)
class Answer:
    """One raw answer and what it cost.

    Attributes:
        text: as the generator wrote it; the caller cleans it (``undersong_server.generators.cleaning``).
        prompt_tokens: tokens read; attempts that were lost on the way count at their worst case.
        completion_tokens: tokens written, counted likewise.
        price_usd: US dollars; 0.0 where no price is configured.
        note: for the report, e.g. "repeat" or "usage not reported"; mostly "".
        finish: why it ended.
        seconds: from the first attempt to the answer, wall clock; 0.0 where the generator does not tell. Not journaled.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price_usd: float = 0.0
    note: str = ""
    finish: Finish = ""
    seconds: float = field(default=0.0, compare=False)


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
