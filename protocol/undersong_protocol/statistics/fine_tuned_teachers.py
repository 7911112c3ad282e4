"""Teachers that read texts: a party's own local model, fine-tuned on one shard after the other.

As the linear teachers (teachers.py) they tell the shard's records from public candidates, and the
candidates' classes weigh as the shard's. They live in one call of :func:`votes`; nothing keeps or writes one.

The privacy of the votes rests on this: what a teacher computes depends on its own shard and on public data alone, to
the last bit. So each starts from a copy of the same weights and is trained alone, in one thread, on the processor;
its order and its candidates are drawn from its number; dropout is off, because torch's random state belongs to the
whole process; the number of its steps follows from its own shard.
"""

import copy
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from undersong_common import fine_tuning
from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.fine_tuning import FineTuning
from undersong_common.workers import one_torch_thread
from undersong_protocol.statistics.teachers import ballot, logistic

SETTINGS = FineTuning(Path(), epochs=3, batch=16, learning_rate=5e-5, max_tokens=128, dropout=False)
STEPS = 60  # at least; a shard has few records, and three epochs of them would move nothing
AGAINST = 4  # candidates that a teacher is trained against for each record of its shard, class by class
SEED = 0x7EAC  # of the head's start and of the draws

log = logging.getLogger(__name__)
_ALONE = threading.Lock()  # simulated parties share a process, and the head's start is drawn from its random state


@dataclass(frozen=True)
class Candidates:
    """Public texts with the class of each, int64 [n]."""

    texts: Sequence[str]
    classes: Int64


@lru_cache(maxsize=1)
def check(model: str) -> None:
    """Raises ConfigurationError, in words that the coordinator may read, unless ``model`` can be fine-tuned.

    Args:
        model: "packaged", a local folder, or "" where the party names none.
    """
    with _ALONE:
        _loaded(model)


def votes(
    texts: Sequence[str],
    classes: Int64,
    shards: Int64,
    contrast: Candidates,
    queries: Candidates,
    *,
    model: str,
    teachers: int,
    half: bool,
    probabilities: bool = False,
) -> Float64:
    """Each teacher's answers, float64 [teachers, queries] in [0, 1]; 0 for a shard without records.

    Args:
        texts: private, M of them; ``classes`` of each, int64 [M].
        shards: teacher of each text, int64 [M] in [0, teachers).
        contrast: public candidates to tell the texts from, at least one; ``queries`` are other ones.
        model: as of :func:`check`, whose errors it raises too.
        half, probabilities: as of the linear teachers.
    """
    found = np.zeros((teachers, len(queries.texts)))
    with _ALONE, one_torch_thread():
        untrained, tokenizer = _loaded(model)
        for teacher in range(teachers):
            rows = np.flatnonzero(shards == teacher).tolist()
            own = Candidates([texts[row] for row in rows], classes[rows])
            # An empty shard takes the time of one with a record; its teacher's votes are dropped.
            trained = own if rows else Candidates([""], np.zeros(1, dtype=np.int64))
            try:
                scores = _scores(copy.deepcopy(untrained), tokenizer, trained, contrast, queries.texts, teacher)
                given = logistic(scores) if probabilities else ballot(scores[:, None], queries.classes, half)[:, 0]
                found[teacher] = given * bool(rows)
            except Exception as error:  # noqa: BLE001 - of a model that fails at a text, whatever it raises
                # Its own vote is lost; were all teachers' lost, one record would move them all.
                log.error("teacher %d of %d fails: %s", teacher + 1, teachers, type(error).__name__)
            # said of an empty shard too: which are empty is nobody's business, not even the log's
            log.info("teacher %d of %d has voted", teacher + 1, teachers)
    return found


def _scores(
    model: Any, tokenizer: Any, own: Candidates, contrast: Candidates, queries: Sequence[str], teacher: int
) -> Float64:
    """A teacher's log odds that each query is private, float64 [queries]."""
    rng = np.random.default_rng([SEED, teacher])
    against, weights = _drawn(own.classes, contrast.classes, rng)
    texts = [*own.texts, *(contrast.texts[row] for row in against)]
    y = np.repeat(np.array([1, 0]), [len(own.texts), len(against)])
    w = np.concatenate([np.full(len(own.texts), 0.5 / len(own.texts)), weights]) * len(texts)
    steps = -(-len(texts) // SETTINGS.batch)
    settings = replace(SETTINGS, epochs=max(SETTINGS.epochs, -(-STEPS // steps)))
    everything = np.arange(len(texts))
    fine_tuning.optimise(
        model, tokenizer, texts, y, w,
        fit=everything, held=everything[:0], settings=settings, shuffled=rng.permutation,
    )  # fmt: skip
    found = fine_tuning.logits(model, tokenizer, queries, settings)
    return found[:, 1] - found[:, 0]


def _drawn(own: Int64, contrast: Int64, rng: np.random.Generator) -> tuple[Int64, Float64]:
    """Candidates for one teacher and the weight of each, 1/2 in all: of every class as much as the shard has of it."""
    rows, weights = [], []
    for label, count in zip(*np.unique(own, return_counts=True), strict=True):
        same = np.flatnonzero(contrast == label)
        if not len(same):
            same = np.arange(len(contrast))  # no candidate of a class: all of them stand for it
        chosen = rng.permutation(same)[: AGAINST * int(count)]
        rows.append(chosen)
        weights.append(np.full(len(chosen), 0.5 * count / len(own) / len(chosen)))
    return np.concatenate(rows), np.concatenate(weights)


def _loaded(model: str) -> tuple[Any, Any]:
    """Model and tokenizer, the head the same at every call. The errors name no folder: they leave the party."""
    import torch

    if not model:
        raise ConfigurationError(
            "the run fine-tunes teachers, and this party names no local model for them",
            "undersong-party data teacher-model FOLDER; in a simulation: data.teacher_model in the task file",
        )
    try:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return fine_tuning.load(model, classes=2)
    except ConfigurationError:
        raise ConfigurationError(
            "the run fine-tunes teachers, and the local model that this party names cannot be used",
            "undersong-party check says why; in a simulation: name another folder in data.teacher_model",
        ) from None
