"""Interface between methods and the framework: :class:`Method`, :class:`Setting` and :class:`RunContext`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticKnownError

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed, publishable
from undersong_common.models.model_files import PACKAGED
from undersong_common.printable import counted
from undersong_protocol.agreement.plan import Plan, PlannedSum, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire.public import Input, Segment, decode_block, encode_embeddings, encode_numbers, encode_texts
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.generators.author import Author
from undersong_server.generators.interface import Tuning
from undersong_server.generators.orders import Order
from undersong_server.pool import Pool, Sample

# A method's file imports these names from here, also those of other modules.
__all__ = [
    "Attribute",
    "Input",
    "Method",
    "MethodOptions",
    "NoisySum",
    "Order",
    "Plan",
    "Privacy",
    "PublicTexts",
    "Quorum",
    "Records",
    "RunContext",
    "Sample",
    "Setting",
    "SumRequest",
    "Tuning",
    "plan_sums",
]
ANEW = "anew "  # begins the name of a step that writes texts in place of those that the choice left out
LARGEST_NUMBER = 100_000_000  # the largest whole number among a method's options
EXPECTED_RECORDS = 300  # the assumed number of records if nobody declares it
PROMISE, ONE_PARTY = Privacy(4.0, 1e-5), Quorum(1, 1, 0, 0)  # the defaults of a Setting in a method's test
# Names of records that hold one value for each generator; a report shows the values beside the generators' names.
RECORDS_BY_GENERATOR = ("weights", "weights noise")
Watch = Callable[[str, Callable[[], Any]], Any]  # does a piece of work, shown under the given name; returns its result
Observe = Callable[[str, Mapping[str, Any]], None]  # receives the kind and the public facts of what a run obtains
PublicTexts = Callable[[], Sequence[str]]  # public texts of the task's kind; none where none are at hand
Records = Mapping[str, Sequence[tuple[int, Any]]]  # a method's recorded values by name, each with its round


@dataclass(frozen=True)
class Attribute:
    """A public attribute of a record.

    Attributes:
        values: the values; a record has one of them, or none.
        column: True for a column beside the text; else a record has the value that its text is nearest to.
    """

    name: str
    values: tuple[str, ...]
    column: bool

    @property
    def possible(self) -> tuple[str, ...]:
        """All values of a record; "" is a column's missing value."""
        if self.column:
            return (*self.values, "")
        return self.values


@dataclass(frozen=True)
class Setting:
    """The public facts that a plan may depend on. A run states all of them; the defaults serve tests of a method.

    Attributes:
        labels, generators: their names; a task without labels has none.
        folder: where relative paths of the method's options start.
        privacy: the promise, for a method that divides epsilon itself, as its paper does.
        quorum: numbers of parties, for a method whose plan depends on them.
        embedder: the embedding model's name or folder, for a method that looks at public texts before it plans.
        expected_records: for a method that divides its budget or chooses a variant by it: how many records all parties
            hold together, as somebody declared, never read from data.
        attributes: the task's attributes, those without a column first.
        steerable: for each generator, the folder of the model that it can steer, or "".
        recorded: names of the generators whose texts were written before, whatever an order asks for.
    """

    labels: tuple[str, ...]
    generators: tuple[str, ...]
    folder: Path = Path()
    privacy: Privacy = PROMISE
    quorum: Quorum = ONE_PARTY
    embedder: str = PACKAGED
    expected_records: int = EXPECTED_RECORDS
    attributes: tuple[Attribute, ...] = ()
    steerable: tuple[str, ...] = ()
    recorded: frozenset[str] = frozenset()


class MethodOptions(BaseModel):
    """Base of every method's options: its [method] keys but ``name``. A key that it does not have is an error.

    So is a whole number above ``LARGEST_NUMBER``, whose texts or cells no plan could count in time.

    Attributes:
        samples: texts to order in all; None where the method counts them otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: Annotated[int, Field(ge=1)] | None = None

    @field_validator("*")
    @classmethod
    def _refuse_above_largest(cls, value: object) -> object:
        parts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(part, int) and part > LARGEST_NUMBER for part in parts):
            raise PydanticKnownError("less_than_equal", {"le": LARGEST_NUMBER})
        return value


_Options = TypeVar("_Options", bound=MethodOptions)


def count_samples(options: MethodOptions, setting: Setting) -> int:
    """Returns the number of texts that a method orders if its option ``samples`` states it."""
    assert options.samples is not None
    return options.samples


@dataclass(frozen=True, kw_only=True)
class Method(Generic[_Options]):
    """Declaration of a method; its file assigns one to ``METHOD``.

    Attributes:
        Options: its [method] keys.
        plan: every private sum that it will make, in order; raises ConfigurationError where it cannot run.
        generator_calls: texts that it will order, without retries; by default its options' ``samples``.
        published: most texts of its corpus, where it orders more than it publishes; None for every other method.
        unpublished: purpose of the texts that it orders and does not publish, in words for an operator.
        run: the method, from the first order to the corpus.
        reads_attributes: False where it does not read the task's attributes, which it then refuses.
        asks_first: True if a private sum may come before the first text, so that each language model has to write a
            few trial texts before that sum; False by default.
        hides_labels: True if no prompt may name a text's label, so that trial texts are asked for without one; False
            by default.
        makes_private_sums: False where its plan is empty whatever its options are; neither epsilon nor the number of
            parties then changes its corpus, and ``undersong compare`` runs it once for all of them.
        measures_lengths: True if its own plan measures the lengths of texts, whatever the task asks; False by default.
        packages: top-level modules that a run needs at the coordinator and that its install may lack; none by default.
        notes: sentences for whoever plans a run of it; none by default.
        warnings: choices of the options that promise little, a sentence each without its full stop; none by default.
        paper_figures: the noise that the method's paper would add in a plan with a finite epsilon: "sigma" (natural
            units), "epsilon_really_spent" with it, and further figures; empty by default, if the paper charges nothing.
        figures: figures of a finished run for ``undersong compare``, as plain JSON values, from the run's records, a
            function that embeds texts, real test texts, and their labels as indices, int64 [n] (-1 for a text without
            one); empty by default.
    """

    Options: type[_Options]
    plan: Callable[[_Options, Setting], Sequence[SumRequest]]
    generator_calls: Callable[[_Options, Setting], int] = count_samples
    run: "Callable[[_Options, RunContext], Sequence[Sample]]"
    published: Callable[[_Options], int | None] = lambda _options: None
    unpublished: str = "write texts to choose from"
    reads_attributes: bool = False
    asks_first: Callable[[_Options, Setting], bool] = lambda _options, _setting: False
    hides_labels: Callable[[_Options, Setting], bool] = lambda _options, _setting: False
    makes_private_sums: bool = True
    measures_lengths: Callable[[_Options], bool] = lambda _options: False
    packages: Callable[[_Options], Sequence[str]] = lambda _options: ()
    notes: Callable[[_Options, Setting], Sequence[str]] = lambda _options, _setting: ()
    warnings: Callable[[_Options, Setting, PublicTexts], Sequence[str]] = lambda _options, _setting, _texts: ()
    paper_figures: Callable[[_Options, Plan], Mapping[str, float]] = lambda _options, _plan: {}
    figures: Callable[[Records, Embed, Sequence[str], Int64], Mapping[str, Any]] = (
        lambda _records, _embed, _test, _labels: {}
    )

    def __post_init__(self) -> None:
        """Raises ConfigurationError if ``Options`` is no class of options, or a function takes other arguments."""
        if not (isinstance(self.Options, type) and issubclass(self.Options, MethodOptions)):
            raise ConfigurationError(
                "Method(Options=...): is no class of options",
                "derive a class from undersong.methods.MethodOptions, and give the class itself",
                code="method-form",
            )
        for function_name, second_parameter in (("plan", "setting"), ("run", "run"), ("generator_calls", "setting")):
            function = getattr(self, function_name)
            try:
                inspect.signature(function).bind(None, None)
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"Method({function_name}=...): is no function of two arguments",
                    f"define it as: def {function_name}(options, {second_parameter})",
                    code="method-form",
                ) from None


class RunContext:
    """Operations and public facts of one run, for its method. It exposes no transport, cryptography, SQL or prompts.

    Attributes:
        setting: public facts.
        pool: the samples written so far, in order; ``generate`` adds to it.
        records: what the method recorded for the report, by name, in order.
        adapters: files of each tuned generator's last adapter, by generator.
        corpora: the corpus after each round, by the round's number, if the method calls ``state_corpus``.
    """

    def __init__(
        self,
        setting: Setting,
        author: Author,
        federation: Federation,
        blocks: PublicBlocks,
        *,
        embed: Embed,
        seed: int,
        hides_labels: bool = False,
        watch: Watch = lambda _phase, work: work(),
        observe: Observe = lambda _kind, _facts: None,
    ) -> None:
        self.setting = setting
        self.pool = Pool(setting.labels, setting.generators)
        self.records: dict[str, list[tuple[int, Any]]] = {}
        self.adapters: dict[str, Mapping[str, bytes]] = {}
        self.corpora: dict[int, tuple[Sample, ...]] = {}
        self._author = author
        self._federation = federation
        self._blocks = blocks
        self._embed = embed
        self._seed = seed
        self._trial_labels = () if hides_labels else setting.labels
        self._watch = watch
        self._observe = observe
        self._sigmas: dict[str, float] = {}
        self._segments: list[Segment] = []  # the pool as the parties hold it, one block per publication
        self._published_count = 0
        self._rows: dict[str, tuple[bytes, int]] = {}  # text -> the block that holds it, and its row

    def rng(self, step: str) -> np.random.Generator:
        """Returns the public randomness of one step: the same numbers on every machine and after a resumed run."""
        digest = tagged_hash("method randomness", str(self._seed).encode(), step.encode())
        return np.random.default_rng(np.frombuffer(digest, dtype="<u4"))

    def record(self, name: str, round_: int, value: Any) -> None:
        """Keeps a public value of a round under ``name``, for the report.

        Raises ConfigurationError for "weights" or "weights noise" that are not one finite number for each generator.
        """
        if name in RECORDS_BY_GENERATOR:
            self._check_by_generator(name, round_, value)
        self.records.setdefault(name, []).append((round_, value))
        self._observe("record", {"name": name, "round": round_, "value": value})

    def _check_by_generator(self, name: str, round_: int, value: Any) -> None:
        generator_names = self.setting.generators
        try:
            generator_values = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            generator_values = np.full(0, np.nan)
        if generator_values.shape != (len(generator_names),) or not np.isfinite(generator_values).all():
            raise ConfigurationError(
                f"the method records {name!r} of round {round_} that are not"
                f" {counted(len(generator_names), 'finite number')}",
                f"record one number a generator, in the order of run.setting.generators: {', '.join(generator_names)}",
                code="recorded-weights",
            )

    def state_corpus(self, round_: int, samples: Sequence[Sample]) -> None:
        """States the corpus as it stands after a round, for the figures by round."""
        self.corpora[round_] = tuple(samples)

    def generate(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample]:
        """Has the orders written and adds the samples to the pool; orders that gave no new text are left out."""
        samples = [sample for sample in self.write(step, round_, orders) if sample is not None]
        self.pool.extend(samples)
        return samples

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        """Has the orders written without adding them to the pool: one sample per order, None if it gave no new text.

        Raises ConfigurationError for an order with a label that the task does not have.
        """
        labels = {"", *self.setting.labels}  # a request about the task as a whole has no label
        foreign_label = next((order.label for order in orders if order.label not in labels), None)
        if foreign_label is not None:
            raise ConfigurationError(
                f"the step {step} orders a text with the label {foreign_label!r}, which the task does not have",
                "order texts with labels of run.setting.labels",
                code="unknown-label",
            )
        answered_samples: list[Sample | None] = self._watch(
            "generation", lambda: self._author.write(step, round_, orders)
        )
        sample_records = [
            (sample.text, sample.label, sample.generator) for sample in answered_samples if sample is not None
        ]
        answer_counts = self._author.counts
        usage_records = {
            generator_name: {
                **vars(usage),
                "faults": dict(usage.faults),
                **vars(self._author.speed[generator_name]),
                "counted": answer_counts[generator_name],
            }
            for generator_name, usage in self._author.usage.items()
        }
        self._observe("texts", {"step": step, "round": round_, "texts": sample_records})
        self._observe("usage", {"usage": usage_records})
        return answered_samples

    def tune(self, step: str, preferences: Sequence[tuple[Order, str, str]], tuning: Tuning) -> None:
        """Trains each order's generator on (order, chosen text, rejected text); it writes later texts as trained."""
        self.adapters |= self._watch("tuning", lambda: self._author.tune(step, preferences, tuning))

    def label_numbers(self, samples: Sequence[Sample]) -> Int64:
        """Each sample's label as an index into the task's labels, int64 [n]; -1 where the task has none."""
        index_of_label = {label: label_number for label_number, label in enumerate(self.setting.labels)}
        return np.array([index_of_label.get(sample.label, -1) for sample in samples], dtype=np.int64)

    def embeddings(self, samples: Sequence[Sample]) -> Float32:
        """Unit embeddings of samples, float32 [n, d], rounded to the public grid on which the parties get them."""
        texts = [sample.text for sample in samples]
        embeddings: Float32 = self._watch("embedding", lambda: publishable(self._embed(texts)))
        return embeddings

    def check_embedding_size(self, planned_size: int) -> None:
        """Raises ConfigurationError unless embeddings have ``planned_size`` coordinates.

        A method that sums embeddings calls it before it spends anything: with another size every party would refuse
        that sum, and the sums before it would have been paid for.
        """
        probe_size = self.embeddings([Sample("size", "", self.setting.generators[0], 0, "probe")]).shape[1]
        if probe_size != planned_size:
            raise ConfigurationError(
                f"the embedding model gives {probe_size} coordinates, method.embedding_size is {planned_size}",
                f"set method.embedding_size = {probe_size}",
            )

    def votes(self, name: str) -> tuple[Float64, Float64]:
        """Opens a planned Top-Q vote over the whole pool: noisy nearest and furthest votes, float64 [N] each.

        Natural units: one full vote is 1; without furthest votes in the plan those are zero.

        Raises ConfigurationError for an empty pool, and for one of more texts than the plan has candidates.
        """
        planned_votes = self.planned(name)
        candidates = planned_votes.parameters["candidates"]
        if not 0 < len(self.pool) <= candidates:
            raise ConfigurationError(
                f"{name} is planned for {candidates} candidates; the pool has {counted(len(self.pool), 'text')}",
                "plan as many candidates as the pool can hold, and generate before a vote",
                code="candidates",
            )
        vote_counts = self.private_sum(name, [self.publish_pool()]).natural
        # The plan fixes the dimension. If duplicates were dropped from the pool, the last coordinates hold noise only.
        if not planned_votes.parameters["furthest"]:
            return vote_counts[: len(self.pool)], np.zeros(len(self.pool))
        candidate_count = planned_votes.dimension // 2
        return vote_counts[: len(self.pool)], vote_counts[candidate_count : candidate_count + len(self.pool)]

    def planned(self, name: str) -> PlannedSum:
        """Returns the sum ``name`` as it is planned."""
        return self._federation.manifest.plan[name]

    def sigma(self, name: str) -> float:
        """Standard deviation of the noise of the opened sum ``name``, natural units."""
        return self._sigmas[name]

    def private_sum(self, name: str, inputs: Sequence[Input]) -> NoisySum:
        """Opens the planned private sum ``name`` over public ``inputs``.

        Raises PrivacyRefusal outside the plan; GenerationError, with nothing asked of any party, where a generator that
        has written nothing so far turns out to write no texts.
        """
        self._watch("generation", lambda: self._author.try_out(self._trial_labels))
        self._observe("asks", {"name": name})
        noisy_sum: NoisySum = self._watch("private sums", lambda: self._federation.private_sum(name, inputs))
        self._sigmas[name] = noisy_sum.sigma
        facts = {"name": name, "sigma": noisy_sum.sigma, "survivors": list(noisy_sum.survivors)}
        if any(sum_input.name == "candidates" for sum_input in inputs) and len(noisy_sum.natural) >= len(self.pool) > 0:
            facts |= self._vote_shares(noisy_sum)
        self._observe("sum", facts)
        return noisy_sum

    def _vote_shares(self, noisy_sum: NoisySum) -> dict[str, Any]:
        """Each generator's share of the votes for its texts, and the standard deviation that the noise gives it."""
        votes = noisy_sum.natural[: len(self.pool)]
        generator_count = len(self.setting.generators)
        vote_sum_by_generator = np.bincount(self.pool.generator_of, weights=votes, minlength=generator_count)
        text_count_by_generator = np.bincount(self.pool.generator_of, minlength=generator_count)
        total_votes = float(votes.sum())
        if total_votes <= 0:
            return {}
        noise = noisy_sum.sigma * np.sqrt(text_count_by_generator) / total_votes
        return {"shares": (vote_sum_by_generator / total_votes).tolist(), "noise": noise.tolist()}

    def publish_pool(self) -> Input:
        """The pool as the public input "candidates"; only samples that were not published before are sent."""
        if len(self.pool) > self._published_count:
            new_samples = self.pool.samples[self._published_count :]
            segment_name = f"pool/{len(self._segments)}"
            self._segments.append(
                Segment(self._blocks.published(segment_name, lambda: self._encode_samples(new_samples)))
            )
            self._published_count = len(self.pool)
        return Input("candidates", tuple(self._segments))

    def publish_samples(self, name: str, step: str, samples: Sequence[Sample]) -> tuple[Input, list[Sample]]:
        """Publishes samples as the public input ``name``; texts that were published before are not sent again.

        ``step`` names the call in the journal. Returns the input and the samples, each once, in the input's order.
        """
        new_samples = list({sample.text: sample for sample in samples if sample.text not in self._rows}.values())
        if new_samples:
            block_id = self._blocks.published(f"samples/{step}", lambda: self._encode_samples(new_samples))
            self._rows |= {sample.text: (block_id, row_number) for row_number, sample in enumerate(new_samples)}
        samples_by_block: dict[bytes, dict[int, Sample]] = {}
        for sample in samples:
            block, row_number = self._rows[sample.text]
            samples_by_block.setdefault(block, {})[row_number] = sample
        rows_by_block = {block: dict(sorted(rows.items())) for block, rows in samples_by_block.items()}
        segments = tuple(Segment(block, tuple(rows)) for block, rows in rows_by_block.items())
        return Input(name, segments), [sample for rows in rows_by_block.values() for sample in rows.values()]

    def publish_labelled_texts(self, name: str, samples: Sequence[Sample]) -> list[Input]:
        """Publishes samples as two inputs: ``name``, their texts, and "NAME: classes", the indices of their labels."""
        class_of = np.maximum(self.label_numbers(samples), 0).astype(np.float64)
        texts_input = self.publish_texts(name, [sample.text for sample in samples])
        return [texts_input, self.publish_numbers(f"{name}: classes", class_of)]

    def publish_texts(self, name: str, texts: Sequence[str]) -> Input:
        """Publishes strings as the public input ``name``."""
        return Input(name, (Segment(self._blocks.add(encode_texts(texts))),))

    def publish_embeddings(self, name: str, texts: Sequence[str]) -> tuple[Input, Float32]:
        """Embeddings of public texts as the public input ``name``, and the embeddings themselves, float32 [n, d]."""

        def encode() -> bytes:
            vectors: Float32 = self._watch("embedding", lambda: publishable(self._embed(texts)))
            return encode_embeddings(vectors, np.full(len(texts), -1, dtype=np.int64))

        block_id = self._blocks.published(f"embeddings/{name}", encode)
        embedding_rows = decode_block(self._blocks.get(block_id)).values
        assert embedding_rows is not None
        return Input(name, (Segment(block_id),)), embedding_rows.astype(np.float32, copy=False)

    def publish_vectors(self, name: str, step: str, values: Float32, labels: Int64) -> Input:
        """Publishes embeddings, rounded to the public grid: float32 [n, d], and a label per row, int64 [n] (-1 = none).

        ``step`` names the call in the journal and differs in every call.
        """
        block_id = self._blocks.published(f"vectors/{step}", lambda: encode_embeddings(publishable(values), labels))
        return Input(name, (Segment(block_id),))

    def publish_numbers(self, name: str, values: Float64) -> Input:
        """Publishes numbers, float64 of any shape, as the public input ``name``."""
        return Input(name, (Segment(self._blocks.add(encode_numbers(values))),))

    def _encode_samples(self, samples: Sequence[Sample]) -> bytes:
        return encode_embeddings(self.embeddings(samples), self.label_numbers(samples))
