"""Choice of DP-KPS's sequence sampler by validation on public texts alone, before the plan is made.

Half of the public texts stand in for the records: their densities get the noise that the plan would give to as many
records as are expected. A task model learns from the sequences of each sampler and is judged on the other half.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.embedding import Embed, publishable
from undersong_common.table import Table
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.fourier import FourierFeatures
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicInputs, Statistic
from undersong_server.evaluation import task_model
from undersong_server.evaluation.evaluate import joined
from undersong_server.methods.parts.keyphrases import Densities

Sampler = Literal["independent", "iterative"]
SAMPLERS: tuple[Sampler, ...] = ("independent", "iterative")

MOST_TEXTS = 2000  # of the public file: half stand in, half are judged, which takes a few seconds to embed
SEQUENCES = 600  # of each sampler, over all classes; at least two a class


@dataclass(frozen=True)
class Choice:
    """A sampler; where validation chose it, each one's balanced accuracy on so many public ``texts``."""

    sampler: Sampler
    scores: Mapping[Sampler, float]
    texts: int = 0

    @property
    def sentence(self) -> str:
        """For whoever plans a run or reads its report; "" where nothing was validated."""
        if not self.scores:
            return ""
        found = " and ".join(f"{100 * score:.1f} % with {name!r}" for name, score in self.scores.items())
        return (
            f'Sampler: "auto" stands for "{self.sampler}": on {self.texts} public texts, models of the sequences alone'
            f" reach a balanced accuracy of {found}."
        )


@dataclass(frozen=True, eq=False)
class _StandIn:
    """Public texts in place of private records, with the attributes that a statistic reads."""

    texts: Sequence[str]
    labels: Int64
    embeddings: Float32
    units: Int64
    unit_hashes: np.ndarray
    local_model: str = ""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


def validated(
    table: Table,
    labels: Sequence[str],
    embed: Embed,
    *,
    records: int,
    histogram: Statistic,
    vocabulary: Sequence[str],
    vocabulary_sigma: float,
    keep: Callable[[Float64], Int64],
    samplers: Mapping[Sampler, tuple[FourierFeatures, float]],
    length: int,
    sharpness: float,
) -> Choice:
    """The better sampler on ``table``, public texts with labels; ties go to the first.

    Args:
        records: as many as the stand-ins count for.
        vocabulary_sigma: planned noise of the ``histogram`` over the ``vocabulary``; ``keep`` chooses from its counts.
        samplers: of each sampler the densities' statistic and its planned noise.
        length, sharpness: of the sequences and their draws.
    """
    rng = np.random.default_rng(0xA070)
    order = rng.permutation(len(table))[:MOST_TEXTS]
    half, held = table.take(order[: len(order) // 2].tolist()), table.take(order[len(order) // 2 :].tolist())
    assert half.labels is not None
    assert held.labels is not None
    numbers = {name: number for number, name in enumerate(labels)}
    standin = _StandIn(
        half.texts,
        np.array([numbers[label] for label in half.labels], dtype=np.int64),
        np.zeros((len(half), 0), dtype=np.float32),
        np.arange(len(half)),
        np.arange(len(half)).astype(np.uint64),
    )

    def noisy(statistic: Statistic, inputs: PublicInputs, sigma: float) -> Float64:
        rows = statistic.rows(standin, inputs, {})
        exact = contribute(statistic, rows, scale=statistic.base_scale).values / statistic.base_scale
        return exact * (records / len(half)) + rng.normal(0.0, sigma, len(exact))

    counts = noisy(histogram, PublicInputs(texts={"vocabulary": vocabulary}), vocabulary_sigma)
    kept = tuple(vocabulary[term] for term in keep(counts))
    if len(kept) < 2:
        return Choice(SAMPLERS[0], dict.fromkeys(SAMPLERS, 1.0 / len(labels)), len(held))
    vectors = publishable(embed(kept))
    inputs = PublicInputs(
        texts={"terms": kept},
        embeddings={"terms": LabelledEmbeddings(vectors, np.full(len(kept), -1, dtype=np.int64))},
    )
    judged = embed(held.texts)
    count = max(2, SEQUENCES // len(labels))
    scores: dict[Sampler, float] = {}
    for name, (features, sigma) in samplers.items():
        densities = Densities(features, noisy(features, inputs, sigma), vectors)
        draw = densities.independent if name == "independent" else densities.iterative
        texts, of = [], []
        for label, named in enumerate(labels):
            for row in draw(label, count, min(length, len(kept)), rng, sharpness=sharpness):
                texts.append(joined([kept[term] for term in row]))
                of.append(named)
        model = task_model.train(embed(texts), of, head="linear", seed=0)
        scores[name] = task_model.evaluate(model, judged, held.labels).balanced_accuracy
    return Choice(max(scores, key=lambda name: scores[name]), scores, len(held))
