"""Generate plenty, keep what could have been private (Song et al. 2024): a private discriminator and a label tutor.

The tutor is the noised label histogram; candidates are written in its proportions; a discriminator that has seen the
private records through private sums only scores all of them, and the best of each class are kept. ``teachers``: the
paper's ensemble (PATE, Papernot et al. 2017), distilled into a student. ``moments``: a linear discriminant a class from
one sum of unit embeddings. docs/discriminator.md derives which needs what.

Deviations from the paper by default: moments instead of teachers; all r student queries are charged; shards are found
by a keyed hash of the unit, not by division of a shuffle; teachers vote for the better half of the queries of each
class instead of summing probabilities; they and the student are linear, and the student learns the noisy counts instead
of their majorities. Always: one scalar per query stands for the paper's two counts, which decide by the same law at
sigma / sqrt(2). ``preset = "paper"`` does the rest as the paper does, which is not private as it states.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from undersong_common import fine_tuning
from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.model_files import PACKAGED, model_folder
from undersong_protocol.statistics import EmbeddingSum, LabelHistogram, LengthHistogram, TopQVotes
from undersong_protocol.statistics.teacher_votes import LARGEST_TEACHERS, TeacherVotes
from undersong_protocol.statistics.teachers import Whitening
from undersong_server.methods.interface import (
    Input,
    Method,
    NoisySum,
    Order,
    RunContext,
    Sample,
    Setting,
    SumRequest,
    plan_sums,
)
from undersong_server.methods.parts import discriminant
from undersong_server.methods.parts.discriminant import (
    Discriminator,
    FineTunedStudent,
    TeacherNumbers,
    averaged,
    fine_tuned,
)
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.papers import StatedOptions
from undersong_server.methods.parts.selection import highest, largest_remainder, places_by_label

Kind = Literal["teachers", "moments", "votes", "random"]

PERSONA_WORDS = 400  # Song et al. 2024
HELD_OUT = 0.1  # share of the candidates that no discriminator is fitted on: it is judged by them
EVERYONE = (0, 1 << 30)  # edges, words: one bin that counts every record, where there are no labels


class Options(StatedOptions):
    """Options of the method ``discriminator``: its [method] keys.

    Attributes:
        discriminator: "teachers", "moments", or "auto", which chooses one of them from the plan; "votes" (the records'
            Top-Q votes for candidates, as WASP casts them) and "random" are baselines.
        samples: N, candidates to write; ``keep`` is the share of them that becomes the corpus, ``kept`` their number.
        prompt: "zero_shot"; the paper's "author", the task's own for every text; or "persona", an invented author for
            each text, and no names.
        words: wanted length of a text; none leaves it to the task ("author", "persona": the paper's 400).
        tutor_share: of the budget, for the label histogram; 0 takes the classes as equally common.
        accounting: "exact", or "paper": the tutor has ``tutor_epsilon`` and one answer of the teachers the rest, each
            by the analytic Gaussian at half of the run's delta; further answers are charged nothing. For teachers, in a
            run that promises no privacy.
        tutor: under "paper", the "noised" label distribution, the "exact" one, or "none" (equal shares).
        noise: under "paper", whether the teachers' sums are noised.
        teacher: "linear" teachers read frozen embeddings; "fine-tuned" ones are the party's own local model on texts.
        student: "linear" learns from the embeddings of the queries; "fine-tuned" is an encoder that reads them, made of
            ``student_model`` ("packaged", or a local folder), with discriminator = "teachers".
        teachers: shards per party; 0 is as many as a useful answer needs.
        queries, contrast: r candidates that each teacher votes on, and the candidates that it is trained against.
        answers: of a teacher: its "votes", or its "probabilities" that a query is private.
        targets: of the fine-tuned student: the noisy "counts", or their "hard" majorities.
        student_rate: learning rate of the fine-tuned student.
        half: whether a teacher votes for the better half of the queries of each class; else by its boundary.
        embedding_size: coordinates of an embedding.
        votes: Q of "votes".
    """

    method: ClassVar[str] = "discriminator"

    discriminator: Literal["auto", "teachers", "moments", "votes", "random"] = "auto"
    samples: Annotated[int, Field(ge=2)] = 6000
    keep: Annotated[float, Field(gt=0, le=1)] = 0.75
    kept: Annotated[int, Field(ge=1)] | None = None
    prompt: Literal["zero_shot", "author", "persona"] = "zero_shot"
    words: Annotated[int, Field(ge=1)] | None = None
    tutor_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    accounting: Literal["exact", "paper"] = "exact"
    tutor: Literal["noised", "exact", "none"] = "noised"
    tutor_epsilon: Annotated[float, Field(gt=0)] = 0.4
    noise: bool = True
    teacher: Literal["linear", "fine-tuned"] = "linear"
    student: Literal["linear", "fine-tuned"] = "linear"
    student_model: str = PACKAGED
    teachers: Annotated[int, Field(ge=0, le=LARGEST_TEACHERS)] = 0
    queries: Annotated[int, Field(ge=1)] = 400
    contrast: Annotated[int, Field(ge=1)] = 1000
    half: bool = True
    answers: Literal["votes", "probabilities"] = "votes"
    targets: Literal["counts", "hard"] = "counts"
    student_rate: Annotated[float, Field(gt=0, lt=1)] = 5e-5
    embedding_size: Annotated[int, Field(ge=1)] = 384
    votes: Annotated[int, Field(ge=1, le=16)] = 8


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the label histogram and the discriminator's sums; raises ConfigurationError if teachers are too few."""
    kind = chosen(options, setting)
    if kind == "teachers":
        _check_teachers(options, setting)
    if options.student == "fine-tuned":
        if kind != "teachers":
            raise ConfigurationError(
                f'method.student = "fine-tuned" learns from teachers\' votes, and this plan has {kind!r}',
                'set method.discriminator = "teachers", or method.student = "linear"',
            )
        fine_tuning.check_folder(_student_folder(options, setting))
    if options.accounting == "paper" and (
        kind != "teachers" or setting.privacy is None or math.isfinite(setting.privacy.epsilon)
    ):
        raise ConfigurationError(
            'method.accounting = "paper" charges all answers of the teachers as one',
            'set privacy.epsilon = inf and method.discriminator = "teachers" in a simulation, or "exact"',
            code="not-private",
        )
    return _requests(options, setting, kind)


def notes(options: Options, setting: Setting) -> list[str]:
    """Returns sentences for ``undersong plan``: the discriminator that "auto" chose, and the teachers needed."""
    kind = chosen(options, setting)
    found = [f'Discriminator: "auto" stands for "{kind}" in this plan.'] if options.discriminator == "auto" else []
    teachers = _teachers(options, setting)
    if teachers is None or not math.isfinite(teachers.privacy.epsilon):
        return found
    if options.discriminator in ("auto", "teachers"):
        found.append(
            f"Teachers: {options.queries} queries have noise of sigma {teachers.sigma:.1f} votes, so a useful answer"
            f" needs {teachers.needed} teachers (sigma at most a tenth of them); the plan has {teachers.total}."
        )
    if kind == "teachers" and options.teacher == "fine-tuned":
        found.append(
            f"Fine-tuned teachers take a party about a minute each, {teachers.per_party} in turn: plan the run with a"
            " --patience that outlasts them."
        )
    return found


def chosen(options: Options, setting: Setting) -> Kind:
    """Returns the discriminator of this plan; "auto" chooses the one with the smaller error of its direction.

    The error follows from the planned noise. For "moments" it is sigma sqrt(classes) / n in every direction, for a mean
    over n records. For "teachers" it is sigma sqrt(d / r) / T: r votes of T teachers determine d coordinates. The plan
    does not know n. T replaces it as a lower bound, since a shard has at least one record.
    """
    if options.discriminator != "auto":
        return options.discriminator
    teachers = _teachers(options, setting)
    if teachers is None or teachers.privacy.norm_factor > 1:
        return "moments"
    if teachers.total < teachers.needed or options.queries >= options.samples:
        return "moments"
    moments = plan_sums(_requests(options, setting, "moments"), teachers.privacy, teachers.quorum)["moments"].sigma
    by_votes = teachers.sigma * math.sqrt(options.embedding_size / options.queries)
    return "teachers" if by_votes < moments * math.sqrt(max(1, len(setting.labels))) else "moments"


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the candidates that are kept."""
    kind = chosen(options, run.setting)
    if kind == "moments":
        run.check_embedding_size(options.embedding_size)
    # The tutor: the records' label shares, in which the generators write.
    label_shares, counts, count_sigma = _tutor(options, run, kind)
    run.record("label shares", 0, label_shares.tolist())
    run.generate("candidates", 0, _orders(options, run, label_shares))
    # The discriminator scores every candidate; it is judged by those that it was not fitted on.
    order = run.rng("candidates").permutation(len(run.pool))
    held = math.floor(len(order) * HELD_OUT)
    student: Discriminator | FineTunedStudent | None = None
    if kind == "votes" or kind == "random":
        scores = discriminant.scores(kind, run)
    else:
        if kind == "teachers":
            student = _distilled(options, run, order[held:])
        else:
            student = _discriminant(options, run, order[held:], counts, count_sigma)
        texts = [sample.text for sample in run.pool.samples]
        scores = student.scores(texts, run.embeddings(run.pool.samples), run.pool.label_of)
    run.record("discriminator", 0, kind)
    run.record("student", 0, student)
    run.record("held out", 0, ([run.pool.samples[i] for i in order[:held]], run.pool.label_of[order[:held]]))
    # The best candidates of each class are kept.
    share = options.keep if options.kept is None else min(1.0, options.kept / len(run.pool))
    best = kept(scores, run.pool.label_of, label_shares, share)
    return [run.pool.samples[i] for i in best]


def kept(scores: Float64, label_of: Int64, label_shares: Float64, share: float) -> list[int]:
    """Positions of the candidates with the highest scores of each class, ascending; ``share`` of all are kept.

    The classes have the proportions ``label_shares``, float64 [C], as far as each has enough candidates.

    >>> kept(np.array([3.0, 1.0, 2.0, 0.0]), np.array([0, 0, 0, 1]), np.array([0.5, 0.5]), 0.5)
    [0, 3]
    """
    available = np.bincount(label_of, minlength=len(label_shares))
    total = max(1, round(share * len(scores)))
    counts = places_by_label(available, label_shares, total)
    found: list[int] = []
    for label, count in enumerate(counts):
        found += highest(scores, np.flatnonzero(label_of == label), int(count)).tolist()
    return sorted(found)


# The plan


def _requests(options: Options, setting: Setting, kind: Kind, teachers: int | None = None) -> list[SumRequest]:
    """Returns the private sums of the discriminator ``kind``; ``teachers`` per party are computed if None."""
    labels = len(setting.labels)
    asked: list[SumRequest] = []
    noise = None
    if options.accounting == "paper" and setting.privacy is not None:
        noise = discriminant.paper_noise(options.stated(setting.privacy), options.tutor_epsilon)
    if noise is not None:
        if labels > 1 and options.tutor != "none":
            multiplier = noise.tutor if options.tutor == "noised" else 0.0
            asked.append(SumRequest("labels", LabelHistogram(labels), noise_multiplier=multiplier))
    elif (labels > 1 and options.tutor_share) or kind == "moments":
        if not options.tutor_share:
            raise ConfigurationError(
                'method.tutor_share is 0, and discriminator = "moments" divides by the counts it pays for',
                "give it a share, such as 0.1",
            )
        counting = LabelHistogram(labels) if labels else LengthHistogram(EVERYONE)
        asked.append(SumRequest("labels", counting, options.tutor_share))
    rest = 1.0 - options.tutor_share if asked else 1.0
    if kind == "teachers":
        statistic = TeacherVotes(
            queries=options.queries,
            teachers=_teachers_per_party(options, setting) if teachers is None else teachers,
            labels=labels,
            half=options.half,
            fine_tuned=options.teacher == "fine-tuned",
            probabilities=options.answers == "probabilities",
        )
        own = None if noise is None else noise.answer / statistic.sensitivity.l2 * options.noise
        asked.append(SumRequest("teachers", statistic, rest, noise_multiplier=own))
    elif kind == "moments":
        asked.append(SumRequest("moments", EmbeddingSum(options.embedding_size, labels), rest))
    elif kind == "votes":
        asked.append(SumRequest("votes", TopQVotes(q=options.votes, candidates=options.samples, labels=labels), rest))
    return asked


def _teachers(options: Options, setting: Setting) -> TeacherNumbers | None:
    """Returns the numbers of teachers, or None if the privacy parameters or the number of parties are unknown."""
    if setting.privacy is None or setting.quorum is None:
        return None
    requests = _requests(options, setting, "teachers", teachers=1)  # their number does not change the noise
    return TeacherNumbers(options.teachers, options.queries, requests, setting.privacy, setting.quorum)


def _teachers_per_party(options: Options, setting: Setting) -> int:
    teachers = _teachers(options, setting)
    return max(1, options.teachers) if teachers is None else teachers.per_party


def _check_teachers(options: Options, setting: Setting) -> None:
    if options.queries >= options.samples:
        raise ConfigurationError(
            f"method.queries = {options.queries} of {options.samples} samples leave none to train teachers against",
            "lower method.queries, or raise method.samples",
        )
    teachers = _teachers(options, setting)
    if teachers is not None:
        teachers.check()


# The run


def _tutor(options: Options, run: RunContext, kind: Kind) -> tuple[Float64, Float64, float]:
    """Shares of the classes, their noisy counts, and the noise of each count."""
    classes = max(1, len(run.setting.labels))
    if not any(request.name == "labels" for request in _requests(options, run.setting, kind)):
        return np.full(classes, 1.0 / classes), np.zeros(classes), 0.0
    opened = run.private_sum("labels", [])
    return shares_of_counts(opened.natural), opened.natural, opened.sigma


def _orders(options: Options, run: RunContext, label_shares: Float64) -> list[Order]:
    """Orders without examples; every generator writes the same number of each class, but for the remainder."""
    names, labels = run.setting.generators, run.setting.labels or ("",)
    wanted = np.repeat(np.arange(len(labels)), largest_remainder(label_shares, options.samples))
    words = PERSONA_WORDS if options.words is None and options.prompt != "zero_shot" else options.words
    return [Order(names[i % len(names)], options.prompt, labels[label], words=words) for i, label in enumerate(wanted)]


def _distilled(options: Options, run: RunContext, order: Int64) -> Discriminator | FineTunedStudent:
    """Teachers' votes on the first of ``order``, against the next; the student is fitted on the former."""
    count = min(options.queries, len(order) // 2)
    queries = [run.pool.samples[i] for i in order[:count]]
    contrast = [run.pool.samples[i] for i in order[count : count + options.contrast]]
    inputs: list[Input] = []
    if options.teacher == "fine-tuned":
        inputs += run.publish_labelled_texts("queries", queries)
        inputs += run.publish_labelled_texts("contrast", contrast)
    else:
        asked, queries = run.publish_samples("queries", "queries", queries)
        shown, contrast = run.publish_samples("contrast", "contrast", contrast)
        inputs += [asked, shown]
    opened = run.private_sum("teachers", inputs)
    classes = max(1, len(run.setting.labels))
    if options.student == "fine-tuned":
        counts, of = opened.natural[: len(queries)], _classes(run, queries)
        hard = options.targets == "hard"
        return fine_tuned(
            [query.text for query in queries],
            counts - (_all_teachers(options, run.setting, opened) / 2 if hard else averaged(counts, of)),
            _student_folder(options, run.setting),
            seed=int(run.rng("student").integers(1 << 31)),
            hard=hard,
            rate=options.student_rate,
        )
    whitening = Whitening(run.embeddings(contrast), _classes(run, contrast), classes)
    return discriminant.distilled(
        whitening,
        run.embeddings(queries),
        _classes(run, queries),
        opened.natural[: len(queries)],
        sigma=opened.sigma,
        teachers=_all_teachers(options, run.setting, opened),
        classes=classes,
    )


def _all_teachers(options: Options, setting: Setting, opened: NoisySum) -> int:
    return len(opened.survivors) * _teachers_per_party(options, setting)


def _discriminant(
    options: Options, run: RunContext, order: Int64, counts: Float64, count_sigma: float
) -> Discriminator:
    candidates = [run.pool.samples[i] for i in order]
    embeddings, of = run.embeddings(candidates), _classes(run, candidates)
    whitening = Whitening(embeddings, of, len(counts))
    opened = run.private_sum("moments", [])
    return discriminant.linear_discriminant(
        whitening, opened.natural.reshape(len(counts), -1), counts, sigma=opened.sigma, count_sigma=count_sigma
    )


def _student_folder(options: Options, setting: Setting) -> Path:
    packaged = options.student_model == PACKAGED
    return model_folder(PACKAGED if packaged else setting.folder / options.student_model)


def _classes(run: RunContext, samples: Sequence[Sample]) -> Int64:
    """Each sample's label as a number; 0 where the task has none."""
    return np.maximum(run.label_numbers(samples), 0)


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    asks_first=lambda options, setting: any(each.name == "labels" for each in plan(options, setting)),
    notes=notes,
    paper_figures=lambda options, plan: discriminant.paper_figures(
        plan.privacy, options.queries, options.tutor_epsilon
    ),
    figures=discriminant.figures,
)
