"""Statistic on teachers: classifiers of private and public texts, each trained on a shard of a party's records.

A teacher votes for the public texts that it takes for private.
"""

import copy
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models import fine_tuning
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.statistics import teachers
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import (
    NO_LABEL,
    WHOLE_NUMBERS,
    check_embeddings,
    check_labels,
    check_names,
    check_shape,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    Matrix,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    positive_integer,
    register,
)
from undersong_protocol.statistics.teachers import ballot, logistic

# Teachers that read texts: a party's own local model, fine-tuned on one shard after the other.
# Like linear teachers (teachers.py) they tell the shard's records from public candidates, whose classes get the weights
# that they have in the shard. They live in one call of :func:`votes`; nothing keeps or writes one.
# The privacy of the votes rests on this: what a teacher computes depends on its own shard and on public data alone,
# to the last bit. So each starts from a copy of the same weights and is trained alone, in one thread, on the
# processor; its order and its candidates are drawn from its number; dropout is off, because torch's random state
# belongs to the whole process; the number of its steps follows from its own shard.

SETTINGS = fine_tuning.FineTuning(Path(), epochs=3, batch=16, learning_rate=5e-5, max_tokens=128, dropout=False)
STEPS = 60  # fewest steps; three epochs over the few records of a shard would change nothing
AGAINST = 4  # candidates that a teacher is trained against for each record of its shard, class by class
SEED = 0x7EAC  # of the first weights of the classification head, and of the draws

log = logging.getLogger(__name__)
# Simulated parties share a process, and the head's first weights are drawn from the random state of the process.
_ALONE = threading.Lock()


@dataclass(frozen=True)
class TeacherCandidates:
    """Public texts with the class (label) of each, int64 [n]."""

    texts: Sequence[str]
    classes: Int64


@lru_cache(maxsize=1)
def check(model: str) -> None:
    """Raises ConfigurationError, in words that the coordinator may read, unless ``model`` can be fine-tuned.

    Args:
        model: "packaged", a local folder, or "" if the party has named none.
    """
    with _ALONE:
        _load_model(model)


def votes(
    texts: Sequence[str],
    classes: Int64,
    shards: Int64,
    contrast: TeacherCandidates,
    queries: TeacherCandidates,
    *,
    model: str,
    teachers: int,
    half: bool,
    probabilities: bool = False,
) -> Float64:
    """Fine-tunes a teacher per shard and returns its answers on the queries, float64 [teachers, queries] in [0, 1].

    A shard without records answers 0. Raises as :func:`check`.

    Args:
        texts: M private texts.
        classes: class (label) of each text, int64 [M].
        shards: number of each text's teacher, int64 [M] in [0, teachers).
        contrast: at least one public text, from which a teacher learns to tell its private texts.
        queries: other public texts, on which teachers answer.
        model: "packaged", or a local folder.
        half, probabilities: as in :func:`undersong_protocol.statistics.teachers.votes`.
    """
    votes = np.zeros((teachers, len(queries.texts)))
    with _ALONE, one_library_thread():
        untrained_model, tokenizer = _load_model(model)
        for teacher_number in range(teachers):
            shard_rows = np.flatnonzero(shards == teacher_number).tolist()
            private_candidates = TeacherCandidates([texts[row] for row in shard_rows], classes[shard_rows])
            # An empty shard is trained on an empty text, so that it takes as long as another; its votes are dropped.
            if shard_rows:
                shard_candidates = private_candidates
            else:
                shard_candidates = TeacherCandidates([""], np.zeros(1, dtype=np.int64))
            try:
                query_scores = _teacher_scores(
                    copy.deepcopy(untrained_model), tokenizer, shard_candidates, contrast, queries.texts, teacher_number
                )
                teacher_ballots = (
                    logistic(query_scores)
                    if probabilities
                    else ballot(query_scores[:, None], queries.classes, half)[:, 0]
                )
                votes[teacher_number] = teacher_ballots * bool(shard_rows)
            except Exception as error:  # noqa: BLE001 - of a model that fails at a text, whatever it raises
                # Only this teacher's votes are lost. If all teachers' were, one record would move every vote.
                log.error("teacher %d of %d fails: %s", teacher_number + 1, teachers, type(error).__name__)
            # Empty shards log this too, because the log may not tell which shards are empty.
            log.info("teacher %d of %d has voted", teacher_number + 1, teachers)
    return votes


def _teacher_scores(
    model: Any,
    tokenizer: Any,
    candidates: TeacherCandidates,
    contrast: TeacherCandidates,
    queries: Sequence[str],
    teacher_number: int,
) -> Float64:
    """Fine-tunes ``model`` as one teacher and returns its log odds that each query is private, float64 [queries]."""
    rng = np.random.default_rng([SEED, teacher_number])
    contrast_rows, contrast_weights = _draw_contrast(candidates.classes, contrast.classes, rng)
    training_texts = [*candidates.texts, *(contrast.texts[row] for row in contrast_rows)]
    targets = np.repeat(np.array([1, 0]), [len(candidates.texts), len(contrast_rows)])
    text_weights = np.concatenate(
        [np.full(len(candidates.texts), 0.5 / len(candidates.texts)), contrast_weights]
    ) * len(training_texts)
    step_count = -(-len(training_texts) // SETTINGS.batch)
    settings = replace(SETTINGS, epochs=max(SETTINGS.epochs, -(-STEPS // step_count)))
    all_rows = np.arange(len(training_texts))
    fine_tuning.optimise(
        model, tokenizer, fine_tuning.TrainingTexts(training_texts, targets, text_weights),
        fit=all_rows, held=all_rows[:0], settings=settings, shuffled=rng.permutation,
    )  # fmt: skip
    logit_rows = fine_tuning.logits(model, tokenizer, queries, settings)
    return logit_rows[:, 1] - logit_rows[:, 0]


def _draw_contrast(classes: Int64, contrast: Int64, rng: np.random.Generator) -> tuple[Int64, Float64]:
    """Draws the candidates against which one teacher is trained: their row numbers and weights, which sum to 1/2.

    Each class has the share of the weight that it has in the shard.
    """
    contrast_rows, contrast_weights = [], []
    for label, label_count in zip(*np.unique(classes, return_counts=True), strict=True):
        row_numbers = np.flatnonzero(contrast == label)
        if not len(row_numbers):
            row_numbers = np.arange(len(contrast))  # All candidates stand for a class that has none.
        drawn_row_numbers = rng.permutation(row_numbers)[: AGAINST * int(label_count)]
        contrast_rows.append(drawn_row_numbers)
        contrast_weights.append(
            np.full(len(drawn_row_numbers), 0.5 * label_count / len(classes) / len(drawn_row_numbers))
        )
    return np.concatenate(contrast_rows), np.concatenate(contrast_weights)


def _load_model(model: str) -> tuple[Any, Any]:
    """Returns model and tokenizer; the classification head starts with the same weights at every call.

    Raises ConfigurationError that names no folder, because the coordinator reads it.
    """
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


INPUTS = ("queries", "contrast")
LARGEST_CONTRAST = 100_000  # public candidates to train against
LARGEST_TEACHERS = 10_000  # teachers of one party
LARGEST_TEACHERS_TIMES_LABELS = 2**20  # a teacher has one direction per label; some ten minutes on one core


@register
@dataclass(frozen=True)
class TeacherVotes(Statistic, question="teachers"):
    """Counts, for each of r public queries, the teachers that take it for private.

    A row holds one teacher's answers in [0, 1]^r, so rows stand for shards, not for records. A unit lies wholly in one
    shard, found by a keyed hash of the unit, so adding or removing it changes the answers of one teacher, v to v' in
    [0, 1]^r (a shard without records answers 0): L1 at most r, L2 sqrt(r), Linf 1, however many records the unit has.
    That holds because answers are bounded and because a teacher depends on no other shard (teachers.py).

    Attributes:
        queries: r, largest number of queries; if fewer are published, the coordinates after them stay 0.
        teachers: number of shards into which a party divides its records.
        labels: number of labels of the task; 0 for a task without labels. With labels, a record without label is left
            out of the training.
        half: True makes a teacher vote for the better half of the queries of each class, so that it votes even if all
            queries lie on the public side of its boundary. False makes it vote for those on the private side.
        fine_tuned: True makes teachers of the party's local model, fine-tuned on texts; False makes linear ones on
            embeddings.
        probabilities: True makes an answer the probability that the query is private (Song et al. 2024, Eq. 1), not a
            vote.

    Public inputs: embeddings "queries" and "contrast", the candidates that teachers tell the records from, each with a
    label in a task with labels. Where teachers are fine-tuned: texts of these names, and whole numbers
    "queries: classes" and "contrast: classes", one per text.
    """

    name: ClassVar[str] = "teacher_votes"
    whole: ClassVar[bool] = True  # units of the rows are shards: a Poisson subsample of units cannot be taken of them
    consent: ClassVar[str] = (
        "for each of a few public texts, how many of the classifiers that are trained here, each on a part of your"
        " records, take it for one of yours; the classifiers stay here"
    )
    queries: Number
    teachers: Annotated[int, Between(1, LARGEST_TEACHERS)]
    labels: LabelCount = 0
    half: bool = True
    fine_tuned: bool = False
    probabilities: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_integer(self.name, "queries times teachers", self.queries * self.teachers)
        positive_integer(
            self.name, "teachers times labels", self.teachers * max(1, self.labels), most=LARGEST_TEACHERS_TIMES_LABELS
        )

    @property
    def dimension(self) -> int:
        return self.queries

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of a row of ones.

        >>> TeacherVotes(queries=100, teachers=15).sensitivity
        Sensitivity(l1=100.0, l2=10.0, linf=1.0)
        """
        return Sensitivity(float(self.queries), math.sqrt(self.queries), 1.0)

    def check_party(self, local_model: str) -> None:
        """Raises ConfigurationError if teachers are fine-tuned and the party's local model cannot be fine-tuned."""
        if self.fine_tuned:
            check(local_model)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[TeacherVotes, Inputs]":
        query_count = choose.integer(0, 12)
        statistic = cls(
            queries=max(1, query_count + choose.integer(0, 3)),
            teachers=choose.one_of([1, 3, 70]),
            labels=choose.labels(facts),
            half=choose.yes(),
            probabilities=choose.yes(),
        )
        return statistic, (
            ("queries", choose.embeddings(query_count, facts, labelled=True)),
            ("contrast", choose.embeddings(choose.integer(1, 12), facts, labelled=True)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_task_labels(self.name, self.labels, facts)
        if self.fine_tuned:
            class_inputs = [_classes_of(name) for name in INPUTS]
            check_names(self.name, public, texts=INPUTS, numbers=class_inputs)
        else:
            check_names(self.name, public, embeddings=INPUTS)
        for name, least_texts, most_texts in (("queries", 0, self.queries), ("contrast", 1, LARGEST_CONTRAST)):
            if self.fine_tuned:
                self._check_texts(name, public, least_texts, most_texts)
            else:
                candidates = public.embeddings_of(name)
                check_embeddings(name, candidates, facts, labels=self.labels, least=least_texts, most=most_texts)
                check_labels(name, candidates.labels, self.labels, least=0 if self.labels else NO_LABEL)

    def _check_texts(self, name: str, public: PublicInputs, least: int, largest: int) -> None:
        input_texts = public.texts_of(name)
        input_classes = public.numbers_of(_classes_of(name))
        if not least <= len(input_texts) <= largest:
            raise ConfigurationError(
                f"{self.name}: {len(input_texts)} public texts {name!r} were published, the plan has {least} to"
                f" {largest}",
                "publish as many as are planned",
            )
        check_shape(_classes_of(name), input_classes, (len(input_texts),))
        WHOLE_NUMBERS.check(_classes_of(name), input_classes)
        check_labels(name, input_classes.astype(np.int64), self.labels, least=0)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        distinct_rows = distinct(records)
        record_labels = labels_within(records.labels, self.labels)
        if self.labels:
            distinct_rows = distinct_rows[record_labels[distinct_rows] >= 0]
        shard_of_row = (records.unit_hashes[distinct_rows] % np.uint64(self.teachers)).astype(np.int64)
        class_of_row = self._class_numbers(record_labels[distinct_rows])
        shard_votes = (self._fine_tuned_votes if self.fine_tuned else self._linear_votes)(
            records, distinct_rows, class_of_row, shard_of_row, public
        )
        present_shards = np.unique(shard_of_row)

        def compute(shard_numbers: Int64) -> Matrix:
            vote_matrix = np.zeros((len(shard_numbers), self.queries))
            vote_matrix[:, : shard_votes.shape[1]] = shard_votes[present_shards[shard_numbers]]
            return vote_matrix

        return Rows(compute, present_shards)

    def _linear_votes(
        self, records: RecordView, rows: Int64, classes: Int64, shards: Int64, public: PublicInputs
    ) -> Float64:
        queries = public.embeddings_of("queries")
        contrast_block = public.embeddings_of("contrast")
        return teachers.votes(
            records.embeddings[rows],
            classes,
            shards,
            contrast_block.values,
            self._class_numbers(contrast_block.labels),
            queries.values,
            self._class_numbers(queries.labels),
            teachers=self.teachers,
            class_count=max(1, self.labels),
            half=self.half,
            probabilities=self.probabilities,
        )

    def _fine_tuned_votes(
        self, records: RecordView, rows: Int64, classes: Int64, shards: Int64, public: PublicInputs
    ) -> Float64:
        queries = self._build_candidates("queries", public)
        contrast_candidates = self._build_candidates("contrast", public)
        return votes(
            [records.texts[row] for row in rows],
            classes,
            shards,
            contrast_candidates,
            queries,
            model=records.local_model,
            teachers=self.teachers,
            half=self.half,
            probabilities=self.probabilities,
        )

    def _build_candidates(self, name: str, public: PublicInputs) -> TeacherCandidates:
        input_texts = public.texts_of(name)
        input_classes = public.numbers_of(_classes_of(name))
        return TeacherCandidates(input_texts, self._class_numbers(input_classes.astype(np.int64)))

    def _class_numbers(self, labels: Int64) -> Int64:
        """Returns the labels, or in a task without labels one class, 0, for everything."""
        if self.labels:
            return labels
        return np.zeros(len(labels), dtype=np.int64)


def _classes_of(name: str) -> str:
    return f"{name}: classes"


def distinct(records: RecordView) -> Int64:
    """Returns the row numbers of the records, int64, without those that repeat a text and label of their own unit.

    Repetitions of other units stay, because other units must not decide which records a shard has.
    """
    unit_numbers, records_of_unit = np.unique(records.units, return_counts=True)
    has_several = np.isin(records.units, unit_numbers[records_of_unit > 1])
    known_texts: set[tuple[int, int, str]] = set()
    is_single = ~has_several
    record_texts = records.texts if has_several.any() else ()
    for row in np.flatnonzero(has_several):
        record_key = (
            int(records.units[row]),
            int(records.labels[row]),
            " ".join(record_texts[int(row)].split()).casefold(),
        )
        is_single[row] = record_key not in known_texts
        known_texts.add(record_key)
    return np.flatnonzero(is_single)
