"""Class centres (PCEvolve, 2506.05407): texts are chosen by how near they lie to the records' centre of their label.

The records are asked once, for the sum of the embeddings of each label. A centre is the direction of its noisy sum. Any
number of texts is then scored for free. The paper computes exact centres and draws one text of each class and round by
an exponential mechanism (utility exp(-10 x distance), a text whose nearest centre is another class's is out), so that
each draw costs privacy. Here only the centres cost it, once. The utility is not needed: a score that increases with it
orders the texts alike.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_protocol.statistics import EmbeddingSum
from undersong_server.methods import mixture
from undersong_server.methods.discriminator import kept
from undersong_server.methods.interface import Method, MethodOptions, RunContext, Sample, Setting, SumRequest

Score = Literal["contrast", "own", "filtered"]
OUT = 2.0  # A cosine is at most 1 and at least -1, so that a score less 2 stands behind every other.


class Options(MethodOptions):
    """Options of ``class-centres``.

    Attributes:
        samples: texts to order, equally many of each label and generator.
        keep: share of them that is published, the best of each label.
        score: of a text: the cosine to the centre of its "own" label; this with texts behind that are nearer to another
            label's ("filtered", the paper's rule); or the own cosine less the best other one ("contrast").
    """

    samples: Annotated[int, Field(ge=2)] = 900
    keep: Annotated[float, Field(gt=0, le=1)] = 1 / 3
    score: Score = "filtered"


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns one sum of embeddings by label; raises ConfigurationError for a task with fewer than two labels.

    A record is in the block of its label alone, and its embedding has norm at most 1: the L2 sensitivity is 1.
    """
    if len(setting.labels) < 2:
        raise ConfigurationError(
            f'method "class-centres" needs two labels, and the task has {len(setting.labels)}',
            "name them in task.labels",
        )
    return [SumRequest("centres", EmbeddingSum(embedders.dimension(setting.embedder), len(setting.labels)))]


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the texts with the best scores of each label."""
    label_count = len(run.setting.labels)
    run.generate("candidates", 0, mixture.orders(mixture.Options(samples=options.samples), run.setting))
    sums = run.private_sum("centres", []).natural.reshape(label_count, -1)
    text_scores = centre_scores(run.embeddings(run.pool.samples), run.pool.label_of, sums, options.score)
    return [
        run.pool.samples[i]
        for i in kept(text_scores, run.pool.label_of, np.full(label_count, 1 / label_count), options.keep)
    ]


def centre_scores(embeddings: Float32, label_of: Int64, sums: Float64, score: Score) -> Float64:
    """Scores texts, float64 [n], higher for a better one, by the directions of ``sums``, float64 [C, d].

    Args:
        embeddings: of the texts, float32 [n, d]; ``label_of``: their labels, int64 [n].
    """
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    cosines: Float64 = embeddings.astype(np.float64) @ (sums / np.maximum(lengths, 1e-12)).T
    text_rows = np.arange(len(cosines))
    own_cosines: Float64 = cosines[text_rows, label_of]
    if score == "own":
        return own_cosines
    cosines[text_rows, label_of] = -np.inf
    best_other: Float64 = cosines.max(axis=1)
    if score == "contrast":
        return np.asarray(own_cosines - best_other)
    return np.where(own_cosines >= best_other, own_cosines, own_cosines - OUT)


METHOD = Method(Options=Options, plan=plan, run=run)
