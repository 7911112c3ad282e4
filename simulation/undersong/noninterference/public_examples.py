"""Public inputs for every registered statistic: well formed ones, and malformed ones that a party must refuse.

Each is an :class:`Example`: what a coordinator would send, as serialised blocks and inputs, with the statistic and the
public facts it is meant for. ``well_formed(name, facts)`` and ``malformed(name, facts)`` are hypothesis strategies.
A new statistic needs an entry in ``_EXAMPLES``; tests/protocol/statistics/test_rows.py fails without one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.embedding import PUBLIC_GRID, publishable
from undersong_protocol.statistics import (
    LabelHistogram,
    LengthHistogram,
    PublicFacts,
    PublicInputs,
    Statistic,
    TopQVotes,
)
from undersong_protocol.statistics.attributes import VALUES, AttributeMarginals, AttributeVotes
from undersong_protocol.statistics.classifier_gradients import ClassifierGradients
from undersong_protocol.statistics.classifier_probabilities import ClassifierProbabilities
from undersong_protocol.statistics.classifier_votes import ClassifierVotes, ClassifierVotesInBlocks
from undersong_protocol.statistics.corrected_votes import CorrectedVotes, EqualVotes
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.fourier import FourierFeatures
from undersong_protocol.statistics.hubness import CORRECTION
from undersong_protocol.statistics.inputs import COEFFICIENTS, WHOLE_NUMBERS, Grid
from undersong_protocol.statistics.metadata import MetadataHistograms
from undersong_protocol.statistics.outer_products import MEANS, PROJECTION, OuterProducts
from undersong_protocol.statistics.phrases import LONGEST_TERM
from undersong_protocol.statistics.projections import Projections
from undersong_protocol.statistics.teacher_votes import TeacherVotes
from undersong_protocol.statistics.terms import TermHistogram
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import (
    Input,
    MemoryBlocks,
    Segment,
    block_id,
    encode_embeddings,
    encode_numbers,
    encode_texts,
    resolve,
)

WORDS = ("pain", "chest", "card", "lost", "fever", "knee", "walk", "sleep", "cough", "account", "payment", "top")
FINE_TUNED = "teacher_votes, fine-tuned"  # the statistic as it is planned for a party's own model


@dataclass(frozen=True)
class Embeddings:
    values: Float32
    labels: Int64


@dataclass(frozen=True)
class Numbers:
    values: Float64
    grid: Grid


@dataclass(frozen=True)
class Texts:
    values: tuple[str, ...]


Piece = Embeddings | Numbers | Texts
Pieces = Mapping[str, Piece]
Named = tuple[tuple[str, Piece], ...]  # texts and embeddings may share a name


@dataclass(frozen=True)
class Example:
    """One question of a coordinator.

    Attributes:
        statistic: as it is planned.
        facts: public facts of the run.
        inputs: as OpenSum names them; ``blocks``: the serialised blocks by id.
        why: what is wrong with it, for a malformed one.
    """

    statistic: Statistic
    facts: PublicFacts
    inputs: tuple[Input, ...]
    blocks: Mapping[bytes, bytes]
    why: str = ""

    def __repr__(self) -> str:
        return f"Example({self.statistic}, {self.facts}, {self.why or 'well formed'})"

    def public(self) -> PublicInputs:
        """What a party makes of it. Raises PeerFault where that cannot be read."""
        store = MemoryBlocks()
        for data in self.blocks.values():
            store.add(data)
        return resolve(self.inputs, store)

    def check(self) -> PublicInputs:
        """What a party does before it looks at a record. Raises PeerFault or ConfigurationError."""
        public = self.public()
        self.statistic.check_inputs(public, self.facts)
        return public


def names() -> list[str]:
    """All examples: the registered statistics, some of them in more than one form."""
    return sorted(_EXAMPLES)


def well_formed(name: str, facts: PublicFacts) -> st.SearchStrategy[Example]:
    """Questions that every party must answer, whatever its records are."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Example:
        statistic, pieces = _drawn(draw, name, facts)
        return _example(statistic, facts, pieces)

    return drawn()


def malformed(name: str, facts: PublicFacts) -> st.SearchStrategy[Example]:
    """Questions that every party must refuse, in the same words, whatever its records are."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Example:
        statistic, pieces = _drawn(draw, name, facts)
        return draw(st.sampled_from(_wrong(draw, statistic, facts, pieces)))()

    return drawn()


def _wrong(draw: st.DrawFn, statistic: Statistic, facts: PublicFacts, pieces: Named) -> list[Callable[[], Example]]:
    found: list[Callable[[], Example]] = []

    def add(given: Named, why: str, facts: PublicFacts = facts) -> None:
        found.append(lambda: _example(statistic, facts, given, why))

    if labels_of(statistic):
        add(pieces, "more task labels than planned", PublicFacts(facts.embedding_size, facts.labels + 3))
    if isinstance(statistic, EmbeddingSum):
        add(pieces, "another embedding size", PublicFacts(facts.embedding_size + 1, facts.labels))
    stranger: Piece = Texts(("fever",)) if draw(st.booleans()) else Numbers(np.zeros(2), COEFFICIENTS)
    add((*pieces, ("a stranger", stranger)), "an input too many")
    for position, (key, piece) in enumerate(pieces):
        before, after = pieces[:position], pieces[position + 1 :]
        add((*before, *after), f"{key!r} is missing")
        add((*pieces, (key, piece)), f"{key!r} stands twice")
        for why, bad in _spoilt(draw, statistic, key, piece):
            add((*before, (key, bad), *after), f"{key!r}: {why}")
        for why, data in _spoilt_bytes(piece):
            found.append(partial(_with_block, statistic, facts, pieces, position, data, f"{key!r}: {why}"))
    return found


def _drawn(draw: st.DrawFn, name: str, facts: PublicFacts) -> tuple[Statistic, Named]:
    return _EXAMPLES[name](draw, np.random.default_rng(draw(st.integers(0, 2**32))), facts)


def _example(statistic: Statistic, facts: PublicFacts, pieces: Named, why: str = "") -> Example:
    blocks: dict[bytes, bytes] = {}
    inputs = []
    for key, piece in pieces:
        data = _encoded(piece)
        blocks[block_id(data)] = data
        inputs.append(Input(key, (Segment(block_id(data)),)))
    return Example(statistic, facts, tuple(inputs), blocks, why)


def _with_block(
    statistic: Statistic, facts: PublicFacts, pieces: Named, position: int, data: bytes, why: str
) -> Example:
    example = _example(statistic, facts, pieces, why)
    inputs = list(example.inputs)
    inputs[position] = Input(inputs[position].name, (Segment(block_id(data)),))
    return dataclasses.replace(example, inputs=tuple(inputs), blocks={**example.blocks, block_id(data): data})


def _encoded(piece: Piece) -> bytes:
    if isinstance(piece, Embeddings):
        return encode_embeddings(piece.values, piece.labels)
    return encode_texts(piece.values) if isinstance(piece, Texts) else encode_numbers(piece.values)


def labels_of(statistic: Any) -> int:
    """How many labels the statistic looks at; 0 where it looks at none."""
    return statistic.classes if isinstance(statistic, FourierFeatures) else int(getattr(statistic, "labels", 0))


# What is wrong


def _spoilt(draw: st.DrawFn, statistic: Statistic, key: str, piece: Piece) -> list[tuple[str, Piece]]:
    if isinstance(piece, Numbers):
        return _spoilt_numbers(draw, piece)
    if isinstance(piece, Texts):
        return _spoilt_texts(statistic, piece)
    values, labels = piece.values, piece.labels
    found: list[tuple[str, Piece]] = [
        ("another length", Embeddings(values[:, :-1], labels)),
        ("numbers for embeddings", Numbers(values.astype(np.float64), COEFFICIENTS)),
        ("texts for embeddings", Texts(("fever",))),
    ]
    most = len(values) if key == "terms" else getattr(statistic, key, None)  # named as the input is
    if most is not None:
        many = np.zeros((most + 1, values.shape[1]), dtype=np.float32)
        found.append(("a row too many", Embeddings(many, np.zeros(most + 1, dtype=np.int64))))
    if labels_of(statistic) and len(labels) and not isinstance(statistic, FourierFeatures):
        classes = statistic.combinations if isinstance(statistic, AttributeVotes) else labels_of(statistic)
        outside = (classes, 2**31 - 1)
        found += [(f"label {label}", Embeddings(values, np.append(labels[:-1], label))) for label in outside]
    return found


def _spoilt_texts(statistic: Statistic, piece: Texts) -> list[tuple[str, Piece]]:
    found: list[tuple[str, Piece]] = [("no text", Texts(())), ("one text more", Texts((*piece.values, "another")))]
    if isinstance(statistic, TeacherVotes):  # whose texts are texts, not terms
        return found
    first, before = piece.values[0], piece.values[:-1]
    found.append(("a text without a word", Texts((*before, "--"))))
    found.append(("a text of too many words", Texts((*before, " ".join(["word"] * (LONGEST_TERM + 1))))))
    if before:
        found.append(("a text twice", Texts((*before, first.upper()))))
    return found


def _spoilt_numbers(draw: st.DrawFn, piece: Numbers) -> list[tuple[str, Piece]]:
    values, grid = piece.values, piece.grid
    found: list[tuple[str, Piece]] = [
        ("one row more", Numbers(np.concatenate([values, values[:1]]), grid)),
        ("one axis more", Numbers(values[None], grid)),
        ("texts for numbers", Texts(("fever",))),
    ]
    if values.size:
        at = draw(st.integers(0, values.size - 1))
        step = 2.0**-grid.bits
        for bad in (
            np.nan, np.inf, -np.inf, 1e308, -1.7e308, 1e200, 2.0 * grid.largest, -grid.largest - step,
            5e-324, step / 2, step * 1.5, float(np.nextafter(step, 2 * step)), 0.1 + step / 3,
        ):  # fmt: skip
            spoilt = values.copy()
            spoilt.flat[at] = bad
            found.append((f"the value {bad!r}", Numbers(spoilt, grid)))
    return found


def _spoilt_bytes(piece: Piece) -> list[tuple[str, bytes]]:
    """Blocks that cannot be read, whatever they are read for."""
    message = wire.Block.FromString(_encoded(piece))
    found = [("no block", b"\xff\xff"), ("no kind", wire.Block(payload=b"").SerializeToString())]

    def changed(why: str, **fields: Any) -> None:
        other = wire.Block.FromString(message.SerializeToString())
        for field, value in fields.items():
            if field in ("shape", "labels"):
                other.ClearField(field)
                getattr(other, field).extend(value)
            else:
                setattr(other, field, value)
        found.append((why, other.SerializeToString(deterministic=True)))

    changed("a shape without size", shape=[2**31, 2**31])
    if message.payload:
        changed("a cut payload", payload=message.payload[:-1])
    if isinstance(piece, Numbers):
        changed("no axis", shape=[], payload=bytes(8))
    if isinstance(piece, Embeddings) and len(piece.values):
        changed("labels missing", labels=[])
        changed("label -2", labels=[-2] * len(piece.values))
        if piece.values.shape[1] > 1:
            longer = encode_embeddings(np.ones_like(piece.values), piece.labels)
            changed("embeddings longer than 1", payload=wire.Block.FromString(longer).payload)
    return found


# What is right, for each statistic


def _embeddings(
    draw: st.DrawFn, rng: np.random.Generator, count: int, facts: PublicFacts, *, labelled: bool
) -> Embeddings:
    """Random, repeated, extreme or zero directions, with any label of the task and, where one may be missing, none."""
    values = rng.normal(size=(count, facts.embedding_size))
    if draw(st.booleans()) and count > 1:
        values[rng.integers(0, count)] = values[0]
    if draw(st.booleans()) and count:
        values[-1] = 0.0
        values[-1, 0] = draw(st.sampled_from([0.0, 1.0, -1.0, 1.0 / PUBLIC_GRID]))
    least = 0 if labelled and facts.labels else -1
    labels = rng.integers(least, facts.labels, count) if facts.labels else np.full(count, -1)
    return Embeddings(publishable(values), labels.astype(np.int64))


def _numbers(draw: st.DrawFn, rng: np.random.Generator, shape: Sequence[int], grid: Grid) -> Numbers:
    """Ordinary numbers; or, in any place, the largest, the smallest and zero."""
    values = rng.normal(size=tuple(shape)) * draw(st.sampled_from([0.0, 0.05, 1.0, grid.largest]))
    if values.size:
        step = 2.0**-grid.bits
        for value in draw(st.lists(st.sampled_from([0.0, -0.0, step, -step, grid.largest, -grid.largest]), max_size=4)):
            values.flat[rng.integers(0, values.size)] = value
    return Numbers(grid.quantised(values), grid)


def _terms(rng: np.random.Generator, count: int) -> Texts:
    drawn = (" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(8 * count))
    return Texts(tuple(dict.fromkeys(drawn))[:count])


def _planned_labels(draw: st.DrawFn, facts: PublicFacts) -> int:
    """A statistic looks at all labels of the task, or at none."""
    return draw(st.sampled_from(sorted({0, facts.labels})))


def _label_histogram(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    return LabelHistogram(max(1, facts.labels)), ()


def _length_histogram(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    return LengthHistogram(draw(st.sampled_from([(0, 1), (1, 5, 20), (0, 1_000_000)]))), ()


def _embedding_sum(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    return EmbeddingSum(facts.embedding_size, _planned_labels(draw, facts)), ()


def _top_q_votes(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    count = draw(st.integers(0, 40))
    statistic = TopQVotes(
        q=draw(st.sampled_from([1, 3, 8])),
        candidates=count + draw(st.integers(0 if count else 1, 5)),
        labels=_planned_labels(draw, facts),
        furthest=draw(st.booleans()),
    )
    return statistic, (("candidates", _embeddings(draw, rng, count, facts, labelled=False)),)


def _corrected_votes(
    draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts, kind: type[CorrectedVotes] = CorrectedVotes
) -> tuple[Statistic, Named]:
    count = draw(st.integers(1, 40))
    statistic = kind(q=draw(st.sampled_from([1, 3, 8])), candidates=count, labels=_planned_labels(draw, facts))
    return statistic, (
        ("candidates", _embeddings(draw, rng, count, facts, labelled=False)),
        ("hubness correction", _numbers(draw, rng, (count,), CORRECTION)),
    )


def _classifier_votes(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels, classifiers = max(2, facts.labels), draw(st.integers(2, 5))
    statistic = ClassifierVotes(classifiers=classifiers, labels=labels, hard=draw(st.booleans()))
    shape = (classifiers, facts.embedding_size + 1, labels)
    return statistic, (("classifiers", _numbers(draw, rng, shape, COEFFICIENTS)),)


def _classifier_votes_in_blocks(
    draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts
) -> tuple[Statistic, Named]:
    labels, classifiers = max(2, facts.labels + draw(st.integers(0, 2))), draw(st.integers(2, 5))  # more labels, too
    statistic = ClassifierVotesInBlocks(classifiers=classifiers, labels=labels, hard=draw(st.booleans()))
    blocks = draw(st.sampled_from([np.zeros(labels), np.arange(labels), rng.integers(0, labels, labels)]))
    return statistic, (
        ("classifiers", _numbers(draw, rng, (classifiers, facts.embedding_size + 1, labels), COEFFICIENTS)),
        ("blocks", Numbers(blocks.astype(np.float64), WHOLE_NUMBERS)),
    )


def _classifier_gradients(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels = max(2, facts.labels + draw(st.integers(0, 2)))  # more than the task has, too
    statistic = ClassifierGradients(directions=draw(st.integers(1, 9)), labels=labels)
    width = facts.embedding_size + 1
    return statistic, (
        ("classifier", _numbers(draw, rng, (width, labels), COEFFICIENTS)),
        ("projections", _numbers(draw, rng, (width, statistic.directions), COEFFICIENTS)),
    )


def _classifier_probabilities(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    statistic = ClassifierProbabilities(classes=draw(st.integers(2, 9)))
    shape = (facts.embedding_size + 1, statistic.classes)
    return statistic, (("classifier", _numbers(draw, rng, shape, COEFFICIENTS)),)


def _projections(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels = _planned_labels(draw, facts)
    by_label = draw(st.booleans()) and labels > 0
    statistic = Projections(directions=draw(st.integers(1, 9)), labels=labels, by_label=by_label)
    shape = (facts.embedding_size + max(1, statistic.labels), statistic.directions)
    return statistic, (("projections", _numbers(draw, rng, shape, COEFFICIENTS)),)


def _outer_products(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    statistic = OuterProducts(size=draw(st.integers(1, 9)), labels=_planned_labels(draw, facts))
    return statistic, (
        ("projection", _numbers(draw, rng, (statistic.size, facts.embedding_size), PROJECTION)),
        ("means", _numbers(draw, rng, (max(1, statistic.labels), facts.embedding_size), MEANS)),
    )


def _metadata(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    bins, keywords = draw(st.sampled_from([0, 3])), draw(st.sampled_from([0, 12]))
    statistic = MetadataHistograms(
        labels=_planned_labels(draw, facts),
        length_bins=bins,
        keywords=keywords,
        count_labels=draw(st.booleans()) or not (bins or keywords),
    )
    pieces: list[tuple[str, Piece]] = []
    if bins:
        edges = draw(st.sampled_from([(0, 4), (1, 2, 3, 2**31 - 1), (5, 10, 20)]))
        pieces.append(("length_edges", Numbers(np.array(edges, dtype=np.float64), Grid(0, 2.0**31 - 1))))
    if keywords:
        pieces.append(("keywords", _embeddings(draw, rng, draw(st.integers(0, keywords)), facts, labelled=False)))
    return statistic, tuple(pieces)


def _term_histogram(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    terms = _terms(rng, draw(st.integers(1, 20)))
    return TermHistogram(vocabulary=len(terms.values), distinct=draw(st.integers(1, 6))), (("vocabulary", terms),)


def _fourier_features(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    averaged = draw(st.booleans())
    statistic = FourierFeatures(
        pairs=draw(st.sampled_from([1, 7, 16])),
        classes=_planned_labels(draw, facts),
        lengths=(1,) if averaged else draw(st.sampled_from([(1,), (1, 2, 4), (3, 1)])),
        phrases=draw(st.integers(1, 4)),
        averaged=averaged,
        width=draw(st.sampled_from([0.01, 2.0, 999_999.0])),
        seed=draw(st.integers(0, 9)),
    )
    terms = _terms(rng, draw(st.integers(1, 20)))
    return statistic, (("terms", terms), ("terms", _embeddings(draw, rng, len(terms.values), facts, labelled=False)))


def _teacher_votes(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    queries, spare = draw(st.integers(0, 12)), draw(st.integers(0, 3))
    statistic = TeacherVotes(
        queries=max(1, queries + spare),
        teachers=draw(st.sampled_from([1, 3, 70])),
        labels=_planned_labels(draw, facts),
        half=draw(st.booleans()),
    )
    return statistic, (
        ("queries", _embeddings(draw, rng, queries, facts, labelled=True)),
        ("contrast", _embeddings(draw, rng, draw(st.integers(1, 12)), facts, labelled=True)),
    )


def _fine_tuned(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels = _planned_labels(draw, facts)
    statistic = TeacherVotes(queries=6, teachers=2, labels=labels, half=draw(st.booleans()), fine_tuned=True)
    pieces: list[tuple[str, Piece]] = []
    for name in ("queries", "contrast"):
        texts = tuple(" ".join(rng.choice(WORDS, 3)) for _ in range(draw(st.integers(1, 6))))
        classes = rng.integers(0, max(1, labels), len(texts)).astype(np.float64)
        pieces += [(name, Texts(texts)), (f"{name}: classes", Numbers(classes, Grid(0, 2.0**31 - 1)))]
    return statistic, tuple(pieces)


def _attributes(
    draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts
) -> tuple[int, tuple[int, ...], tuple[tuple[str, Piece], ...]]:
    """Labels, sizes of the lists, and the published values."""
    labels = _planned_labels(draw, facts)
    lists = tuple(draw(st.lists(st.integers(1, 4), min_size=0 if labels else 1, max_size=3)))
    if not lists:
        return labels, lists, ()
    drawn = _embeddings(draw, rng, sum(lists), facts, labelled=False)
    numbers = np.repeat(np.arange(len(lists)), lists)
    return labels, lists, ((VALUES, Embeddings(drawn.values, numbers)),)


def _attribute_marginals(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels, lists, values = _attributes(draw, rng, facts)
    most = 2 if len(lists) + bool(labels) > 1 else 1
    return AttributeMarginals(labels, lists, ways=draw(st.integers(1, most))), values


def _attribute_votes(draw: st.DrawFn, rng: np.random.Generator, facts: PublicFacts) -> tuple[Statistic, Named]:
    labels, lists, values = _attributes(draw, rng, facts)
    count = draw(st.integers(0, 20))
    statistic = AttributeVotes(max(1, count + draw(st.integers(0, 3))), labels, lists, q=draw(st.sampled_from([1, 4])))
    drawn = _embeddings(draw, rng, count, facts, labelled=False)
    candidates = Embeddings(drawn.values, rng.integers(-1, statistic.combinations, count))
    return statistic, (("candidates", candidates), *values)


_EXAMPLES: dict[str, Callable[[st.DrawFn, np.random.Generator, PublicFacts], tuple[Statistic, Named]]] = {
    "attribute_marginals": _attribute_marginals,
    "attribute_votes": _attribute_votes,
    "classifier_gradients": _classifier_gradients,
    "classifier_probabilities": _classifier_probabilities,
    "classifier_votes": _classifier_votes,
    "classifier_votes_in_blocks": _classifier_votes_in_blocks,
    "corrected_votes": _corrected_votes,
    "embedding_sum": _embedding_sum,
    "equal_votes": partial(_corrected_votes, kind=EqualVotes),
    "fourier_features": _fourier_features,
    "label_histogram": _label_histogram,
    "length_histogram": _length_histogram,
    "metadata_histograms": _metadata,
    "outer_products": _outer_products,
    "projections": _projections,
    "teacher_votes": _teacher_votes,
    FINE_TUNED: _fine_tuned,
    "term_histogram": _term_histogram,
    "top_q_votes": _top_q_votes,
}
