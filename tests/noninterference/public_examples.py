"""Public inputs for every registered statistic: well formed ones, and malformed ones that a party must refuse.

Each is an :class:`Example`: what a coordinator would send, as serialised blocks and inputs, with the statistic and the
public facts it is meant for. ``well_formed(name, facts)`` and ``malformed(name, facts)`` are hypothesis strategies.
A statistic draws its own well-formed examples (``Statistic.example``).
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from undersong_protocol import statistics
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs, Statistic
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.examples import WORDS, Chooser, GridNumbers, Inputs, Piece
from undersong_protocol.statistics.histogram import AttributeMarginals
from undersong_protocol.statistics.inputs import COEFFICIENTS, WHOLE_NUMBERS
from undersong_protocol.statistics.teacher_votes import INPUTS, TeacherVotes
from undersong_protocol.statistics.terms import LONGEST_TERM, FourierFeatures
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

FINE_TUNED = "teacher_votes, fine-tuned"  # the statistic as it is planned for a party's own model


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
        """Decodes the public inputs as a party does. Raises PeerFault if they are unreadable."""
        store = MemoryBlocks()
        for data in self.blocks.values():
            store.add(data)
        return resolve(self.inputs, store)

    def check(self) -> PublicInputs:
        """Decodes and checks the inputs, as a party does before it reads a record.

        Raises PeerFault or ConfigurationError.
        """
        public = self.public()
        self.statistic.check_inputs(public, self.facts)
        return public


def names() -> list[str]:
    """All examples: the registered statistics, some of them in more than one form."""
    return sorted([*statistics.names(), FINE_TUNED])


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


def malformed_in_every_way(name: str, facts: PublicFacts) -> st.SearchStrategy[list[Example]]:
    """One well-formed question, spoilt in each of the ways of which :func:`malformed` draws one."""

    @st.composite
    def drawn(draw: st.DrawFn) -> list[Example]:
        statistic, pieces = _drawn(draw, name, facts)
        return [spoilt() for spoilt in _wrong(draw, statistic, facts, pieces)]

    return drawn()


def _wrong(draw: st.DrawFn, statistic: Statistic, facts: PublicFacts, pieces: Inputs) -> list[Callable[[], Example]]:
    found: list[Callable[[], Example]] = []

    def add(given: Inputs, why: str, facts: PublicFacts = facts) -> None:
        found.append(lambda: _example(statistic, facts, given, why))

    if labels_of(statistic):
        add(pieces, "more task labels than planned", PublicFacts(facts.embedding_size, facts.labels + 3))
    if isinstance(statistic, EmbeddingSum):
        add(pieces, "another embedding size", PublicFacts(facts.embedding_size + 1, facts.labels))
    stranger: Piece = ("fever",) if draw(st.booleans()) else GridNumbers(np.zeros(2), COEFFICIENTS)
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


def _drawn(draw: st.DrawFn, name: str, facts: PublicFacts) -> tuple[Statistic, Inputs]:
    choose = Chooser(lambda bound: draw(st.integers(0, bound - 1)))
    if name == FINE_TUNED:
        return _fine_tuned(choose, facts)
    known = statistics.known(name)
    assert known is not None
    return known.example(choose, facts)


def _fine_tuned(choose: Chooser, facts: PublicFacts) -> tuple[Statistic, Inputs]:
    """Draws an example for teachers that are fine-tuned; each of its vectors takes seconds."""
    labels = choose.labels(facts)
    pieces: Inputs = ()
    for name in INPUTS:
        texts = tuple(" ".join(choose.rng.choice(WORDS, 3)) for _ in range(choose.integer(1, 6)))
        classes = choose.rng.integers(0, max(1, labels), len(texts)).astype(np.float64)
        pieces += ((name, texts), (f"{name}: classes", GridNumbers(classes, WHOLE_NUMBERS)))
    return TeacherVotes(queries=6, teachers=2, labels=labels, half=choose.yes(), fine_tuned=True), pieces


def _example(statistic: Statistic, facts: PublicFacts, pieces: Inputs, why: str = "") -> Example:
    blocks: dict[bytes, bytes] = {}
    inputs = []
    for key, piece in pieces:
        data = _encoded(piece)
        blocks[block_id(data)] = data
        inputs.append(Input(key, (Segment(block_id(data)),)))
    return Example(statistic, facts, tuple(inputs), blocks, why)


def _with_block(
    statistic: Statistic, facts: PublicFacts, pieces: Inputs, position: int, data: bytes, why: str
) -> Example:
    example = _example(statistic, facts, pieces, why)
    inputs = list(example.inputs)
    inputs[position] = Input(inputs[position].name, (Segment(block_id(data)),))
    return dataclasses.replace(example, inputs=tuple(inputs), blocks={**example.blocks, block_id(data): data})


def _encoded(piece: Piece) -> bytes:
    if isinstance(piece, LabelledEmbeddings):
        return encode_embeddings(piece.values, piece.labels)
    return encode_texts(piece) if isinstance(piece, tuple) else encode_numbers(piece.values)


def labels_of(statistic: Any) -> int:
    """Number of labels of the statistic; 0 if it does not use labels."""
    return statistic.classes if isinstance(statistic, FourierFeatures) else int(getattr(statistic, "labels", 0))


# What is wrong


def _spoilt(draw: st.DrawFn, statistic: Statistic, key: str, piece: Piece) -> list[tuple[str, Piece]]:
    if isinstance(piece, GridNumbers):
        return _spoilt_numbers(draw, piece)
    if isinstance(piece, tuple):
        return _spoilt_texts(statistic, piece)
    values, labels = piece.values, piece.labels
    found: list[tuple[str, Piece]] = [
        ("another length", LabelledEmbeddings(values[:, :-1], labels)),
        ("numbers for embeddings", GridNumbers(values.astype(np.float64), COEFFICIENTS)),
        ("texts for embeddings", ("fever",)),
    ]
    most = len(values) if key == "terms" else getattr(statistic, key, None)  # named as the input is
    if most is not None:
        many = np.zeros((most + 1, values.shape[1]), dtype=np.float32)
        found.append(("a row too many", LabelledEmbeddings(many, np.zeros(most + 1, dtype=np.int64))))
    if labels_of(statistic) and len(labels) and not isinstance(statistic, FourierFeatures):
        outside = (labels_of(statistic), 2**31 - 1)
        found += [(f"label {label}", LabelledEmbeddings(values, np.append(labels[:-1], label))) for label in outside]
    return found


def _spoilt_texts(statistic: Statistic, piece: tuple[str, ...]) -> list[tuple[str, Piece]]:
    found: list[tuple[str, Piece]] = [("no text", ()), ("one text more", (*piece, "another"))]
    if isinstance(statistic, TeacherVotes | AttributeMarginals):  # whose texts are no terms
        return found
    first, before = piece[0], piece[:-1]
    found.append(("a text without a word", (*before, "--")))
    found.append(("a text of too many words", (*before, " ".join(["word"] * (LONGEST_TERM + 1)))))
    if before:
        found.append(("a text twice", (*before, first.upper())))
    return found


def _spoilt_numbers(draw: st.DrawFn, piece: GridNumbers) -> list[tuple[str, Piece]]:
    values, grid = piece.values, piece.grid
    found: list[tuple[str, Piece]] = [
        ("one row more", GridNumbers(np.concatenate([values, values[:1]]), grid)),
        ("one axis more", GridNumbers(values[None], grid)),
        ("texts for numbers", ("fever",)),
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
            found.append((f"the value {bad!r}", GridNumbers(spoilt, grid)))
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
    if isinstance(piece, GridNumbers):
        changed("no axis", shape=[], payload=bytes(8))
    if isinstance(piece, LabelledEmbeddings) and len(piece.values):
        changed("labels missing", labels=[])
        changed("label -2", labels=[-2] * len(piece.values))
        if piece.values.shape[1] > 1:
            longer = encode_embeddings(np.ones_like(piece.values), piece.labels)
            changed("embeddings longer than 1", payload=wire.Block.FromString(longer).payload)
    return found
