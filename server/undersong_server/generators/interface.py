"""Interface of text generators: settings, requests, answers and costs.

The author makes :class:`GenerationRequest` values; a generator answers them as they complete. Which program is behind a
name (an endpoint, a local model, a file of texts, an n-gram model) is configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from undersong_common.arrays import Float32
from undersong_common.errors import GenerationError, InternalError
from undersong_common.models.embedding import Embed
from undersong_common.program.configuration import NAME
from undersong_protocol.agreement.words import OF_ANOTHER_PACKAGE
from undersong_server.database.journal import Journal
from undersong_server.prompts.rendering import MASK_RATE

TEMPLATE_TOKENS = 64  # upper bound of the tokens that a chat template puts around each turn


LONG_WORDS = 400  # A text of as many words is a document of several sections.
TOKENS_A_WORD = 1.5  # holds for most tokenizers and European languages, clinical abbreviations included


@dataclass(frozen=True)
class GenerationRequest:
    """One text to be written.

    Attributes:
        kind: the prompt kind, e.g. "zero_shot", "contrast", "examples", "paraphrase", "fill_in", "cross",
            "keyphrases", "metadata", "random".
        label: a label of the task; "" if the task has none or the class is not named.
        prompt: the rendered text that a language model reads: what is asked of it, or the text that it continues.
        seed: public randomness of this one request, >= 0. `ngram` and `replay` give the same answer for the same seed
            and history; a retry is a new request with a new seed.
        good, bad: example texts to come closer to, and to keep away from.
        parents: the texts that are rewritten, filled in or crossed.
        terms: words or phrases that the text contains.
        words: the wanted length in words; None leaves it to the generator.
        bounded: the length is to be kept: a continued text ends near it, and one that misses it is asked for again.
        system: instructions on how the model is to behave; "" for none.
        style: the prompt asks for a text ("chat"), or is one to be continued ("completion").
        stop: strings that end the answer.
        told: sentences of the prompt that a text may repeat, such as the task's description of its texts.
        room: how many times the usual length the answer may have: more than 1 if an earlier answer was cut.
        steering: what is added to a layer's hidden states at every token that is written, in the coordinates of the
            model's folder (``undersong_common.models.hidden_states``); () adds nothing. Only ``steerable`` generators
            read it.
        mask_rate: chance of a parent's word to be hidden and filled in ("fill_in").
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
    bounded: bool = False
    system: str = ""
    style: Literal["chat", "completion"] = "chat"
    stop: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    room: int = 1
    steering: tuple[float, ...] = ()
    mask_rate: float = MASK_RATE

    @property
    def is_long(self) -> bool:
        """True for a document of several sections, whose end belongs to it."""
        return self.words is not None and self.words >= LONG_WORDS


@dataclass(frozen=True)
class PromptFormat:
    """Form of a generator's prompts.

    Attributes:
        reads: True for a language model that reads any prompt. The embedded generators read a request's other
            fields, and a model that was trained on one prompt knows that one; their answers are not judged as strictly.
        rendered: True if prompts are made for it; False for a generator that reads the other fields of a request.
        style: "chat" for a model that follows instructions, "completion" for one that continues texts.
        prompt_tokens: the longest prompt that leaves room for the answer; None if it is not known.
    """

    reads: bool = True
    rendered: bool = True
    style: Literal["chat", "completion"] = "chat"
    prompt_tokens: int | None = None


Finish = Literal["", "length", "filter", "refusal", "overlong", "unknown"]
"""Why an answer ended: by itself, at its longest length, by the endpoint's content filter, by the model's refusal, far
beyond the length that it was allowed, or for a reason that nobody knows: such a text counts only if its own mark of an
end stands there."""
End = Literal["good", "cut", "filtered", "overlong", "unknown"]
_ENDS: dict[Finish, End] = {
    "": "good",
    "length": "cut",
    "filter": "filtered",
    "refusal": "filtered",
    "overlong": "overlong",
}
MOST_CHARACTERS = 20  # characters per allowed token of an answer, at most; more show that an endpoint ignores the limit


@dataclass(frozen=True)
class Completion:
    """One raw answer and what it cost.

    Attributes:
        text: as the generator wrote it; the caller cleans it (``undersong_server.generators.cleaning``).
        prompt_tokens: tokens read; those of attempts that were lost on the way are no part of it (:class:`Loss`).
        completion_tokens: tokens written, counted likewise.
        price_usd: US dollars; 0.0 if no price is configured.
        note: a note for the report, e.g. "repeat" or "usage not reported"; mostly "".
        finish: why it ended.
        seconds: wall-clock time from the first attempt to the answer; 0.0 if it is not known. Not journaled.
        attempt: journal key of the attempt that it settles, which is dropped where the answer is kept; "" for none.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price_usd: float = 0.0
    note: str = ""
    finish: Finish = ""
    seconds: float = field(default=0.0, compare=False)
    attempt: str = field(default="", compare=False)

    @property
    def end(self) -> End:
        """How the answer ended, by which its text is judged."""
        return _ENDS.get(self.finish, "unknown")


Answer = Completion  # Kinds of generators in other packages import it under this name.


class Generator(Protocol):
    """A named source of texts. One thread at a time uses an instance."""

    @property
    def name(self) -> str:
        """Name of the generator in the task file."""

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields (index into ``requests``, answer) as each completes, each index once.

        A yielded :class:`GenerationError` means that this one request has no answer. A raised one (such as
        :class:`BudgetExhausted`) or a ConfigurationError stops the run; what was yielded before stays valid.
        Closing the iterator early abandons the rest.
        """

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        """Tells the generator which answers an earlier process obtained, before any further :meth:`answer`.

        Args:
            requests: the journaled requests.
            answers: their answers, in the same order; raw or cleaned texts alike.
        """

    @property
    def counts(self) -> dict[str, int]:
        """Public counters for the report, e.g. rows ignored, texts repeated, calls retried."""


class StatelessGenerator:
    """Base of a generator whose answers depend on their requests only."""

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        """Does nothing, because earlier answers change no later one."""


@dataclass(frozen=True)
class Preference:
    """Two texts that answer one request, the first of them preferred. Both are synthetic."""

    request: GenerationRequest
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Tuning:
    """Settings of one preference tuning: DPO on LoRA weights.

    Attributes:
        rank: rank of the LoRA weights, and their scale alpha.
        learning_rate: constant learning rate of AdamW.
        beta: beta of DPO: the larger, the nearer the model stays to the reference.
        epochs: passes over the pairs.
        batch: pairs in a step.
        seed: of the first LoRA weights and of the pairs' order.
    """

    rank: int
    learning_rate: float
    beta: float
    epochs: int
    batch: int
    seed: int


@runtime_checkable
class TunableGenerator(Generator, Protocol):
    """A generator whose model this process can train."""

    def tune(
        self, preferences: Sequence[Preference], tuning: Tuning, told: Callable[[int], None]
    ) -> Mapping[str, bytes]:
        """Trains the model's adapter on the preferences, and returns the new adapter's files by name.

        Later texts are written with the new adapter. ``told`` is called with the number of pairs done so far.
        """

    def adapt(self, files: Mapping[str, bytes]) -> None:
        """Gives the model an adapter that an earlier process trained; later texts are written with it."""


@dataclass(frozen=True)
class Loss:
    """Attempts whose answers were lost, and what they cost at most: an endpoint may have billed them."""

    attempts: int = 0
    tokens: int = 0
    price_usd: float = 0.0
    words: str = ""  # the reason of the last loss

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(
            self.attempts + other.attempts,
            self.tokens + other.tokens,
            self.price_usd + other.price_usd,
            other.words or self.words,
        )


@runtime_checkable
class PaidGenerator(Generator, Protocol):
    """A generator whose answers may be lost on the way, and billed all the same."""

    @property
    def lost(self) -> Loss:
        """Attempts of the whole run whose answers were lost."""


@runtime_checkable
class CachingGenerator(Generator, Protocol):
    """A generator that keeps answers across runs."""

    def keep_texts(self, outcomes: Iterable[tuple[GenerationRequest, bool]]) -> None:
        """Keeps the answers to requests that became texts (True), and drops those that did not."""


class BudgetExhausted(GenerationError):
    """Raised, and never yielded, before a call that could exceed the token or price budget. The call is not made."""


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a number of calls, as ranges (low, high).

    Attributes:
        calls: number of calls, retries not counted.
        tokens: prompt and completion tokens together; (0, 0) if nothing is counted in tokens.
        price_usd: US dollars; (0.0, 0.0) if nothing is paid; None if the task names no price.
        seconds: wall-clock time.
    """

    calls: int
    tokens: tuple[int, int]
    price_usd: tuple[float, float] | None
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Surroundings:
    """The run that a generator is built for.

    Attributes:
        labels: the task's labels; empty if it has none.
        folder: folder in which relative paths start.
        embed: texts -> float32 [n, d] unit vectors.
        environment: variables that hold the keys of endpoints, e.g. ``os.environ``.
        journal: keeps the numbers of batches; None if there is no run, e.g. in a trial of one generator.
    """

    labels: tuple[str, ...]
    folder: Path
    embed: Embed
    environment: Mapping[str, str]
    journal: Journal | None = None


def embeds_nothing(texts: Sequence[str]) -> Float32:
    """Takes the place of the embedder for generators that embed nothing: raises InternalError if one does."""
    raise InternalError("a generator embeds here, where none should")


NAMES_FILE: dict[str, JsonValue] = {"names": "file"}  # marks a key that names a file of texts, for forms


class GeneratorSettings(BaseModel):
    """Settings of one generator: the keys of its ``[[generators]]`` table.

    Each kind of generator is a subclass, of other packages too.
    A subclass adds its own keys. A key that it does not have is an error. Paths are kept as the task file has them.

    Attributes:
        name: your name for it, in reports and on the hospitals' sheets.
        kind: each subclass states its own, as a Literal.
        source: a sentence for the dataset card: whose texts it gives or learns from, and their licence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME, max_length=64)
    kind: str
    source: str = Field(default="", max_length=500)

    def build(self, around: Surroundings) -> Generator:
        """Returns the generator. Raises ConfigurationError if it cannot write, e.g. for a missing file or key.

        An endpoint that cannot be reached shows at the first answer.
        """
        raise NotImplementedError

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Returns the expected cost of ``calls`` calls with prompts of ``prompt_words`` words.

        Args:
            answer_words: fewest words of an answer; 0 if unknown.
        """
        raise NotImplementedError

    def caps(self, estimate: Estimate) -> list[tuple[str, float, tuple[float, float]]]:
        """Returns the budgets that the task file sets, each as (key, budget, range of the estimate)."""
        return []

    @property
    def words(self) -> str:
        """Name, model and place of the generator, for the people who approve a run."""
        return f"{self.name} ({self.writer})"

    @property
    def writer(self) -> str:
        """Model of the generator and the place where it runs, in a few words."""
        return f"{self.kind}, {OF_ANOTHER_PACKAGE}"

    @property
    def longest_answer(self) -> int | None:
        """Longest answer in tokens, for the kind of prompt with the lowest limit; None for no limit."""
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the generator reads before it writes."""
        return ()

    @property
    def packages(self) -> tuple[str, ...]:
        """Top-level modules that the generator needs and that an install of the coordinator may lack."""
        return ()

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """(host with its port, environment variable) of each key that the generator sends to that host."""
        return ()

    def check(self, around: Surroundings) -> None:
        """Raises ConfigurationError for a missing key, or a file that exists and cannot be used.

        A plan calls it; no text is ordered.
        """

    @property
    def steerable(self) -> str:
        """Folder of the model whose hidden states a request can steer; "" if there is none."""
        return ""

    @property
    def recorded(self) -> bool:
        """True if its texts were written before: no order changes what they say."""
        return False

    @property
    def in_batches(self) -> bool:
        """True if requests are asked together in batches, each of which is answered within a day."""
        return False

    @property
    def lacks_cache(self) -> bool:
        """True for an endpoint without a file that keeps its answers across runs."""
        return False

    def identity(self) -> dict[str, Any]:
        """The keys of its table that may not change while a run goes on, with their values."""
        return self.model_dump(mode="json")

    def prompt_format(self, folder: Path) -> PromptFormat:
        """Returns the form of the generator's prompts; embedded generators read none. Paths start at ``folder``."""
        return PromptFormat(reads=False, rendered=False)


class LanguageModelSettings(GeneratorSettings):
    """Settings of a language model, whose table may be corrected while a run goes on: its name and kind stay."""

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include={"name", "kind"})


def expected_tokens(
    calls: int, prompt_words: int, longest_answer: int, answer_words: int = 0
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the ranges (low, high) of prompt tokens and of answer tokens.

    English has about 1.3 tokens per word with the usual byte-pair vocabularies. The high figure covers other languages
    and clinical abbreviations. Answers have ``answer_words``, or an eighth of the longest length (low), up to all.
    """
    least = min(longest_answer, max(-(-longest_answer // 8), round(answer_words * 1.2)))
    prompts = round(calls * prompt_words * 1.2), round(calls * prompt_words * 2.0)
    return prompts, (calls * least, calls * longest_answer)


def prompt_room(context: int | None, answer: int) -> int | None:
    """Returns the longest prompt in tokens: the context less the answer and a chat template's tokens.

    It is never below a quarter of the context, even if the answer then has less room. None if the context is unknown.
    """
    if context is None:
        return None
    return max(context - answer - TEMPLATE_TOKENS, context // 4)


def one_or_many(value: object) -> object:
    """Makes a tuple of a single text, since a key may be one text or a list; returns any other value unchanged."""
    if isinstance(value, str):
        return (value,)
    return value
