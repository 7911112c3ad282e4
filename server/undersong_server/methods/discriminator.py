"""Generate plenty, keep what could have been private (Song et al. 2024): a private discriminator and a label tutor.

The tutor is the noised label histogram; candidates are written in its proportions; a discriminator that has seen the
private records through private sums only scores all of them, and the best of each class are kept. ``teachers``: the
paper's ensemble (PATE, Papernot et al. 2017), distilled into a student. ``moments``: one linear discriminant for each
class from one sum of unit embeddings. docs/discriminator.md derives how many teachers or records each of them needs.

Deviations from the paper by default: moments instead of teachers; all r student queries are charged; shards are found
by a keyed hash of the unit, not by division of a shuffle; teachers vote for the better half of the queries of each
class instead of summing probabilities; they and the student are linear, and the student learns the noisy counts instead
of their majorities. Always: one scalar per query stands for the paper's two counts, which decide by the same law at
sigma / sqrt(2). ``preset = "paper"`` does the rest as the paper does, which is not private as it states.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.models.fine_tuning import FineTuning, check_folder
from undersong_common.models.model_files import PACKAGED, model_folder
from undersong_common.privacy import accounting
from undersong_protocol.statistics import EmbeddingSum, LabelHistogram, LengthHistogram, TopQVotes
from undersong_protocol.statistics.teacher_votes import LARGEST_TEACHERS, TeacherVotes
from undersong_protocol.statistics.teachers import Whitening
from undersong_server.learning import FineTunedModel, fine_tune
from undersong_server.methods.interface import (
    Input,
    Method,
    NoisySum,
    Order,
    Privacy,
    Records,
    RunContext,
    Sample,
    Setting,
    SumRequest,
    plan_sums,
)
from undersong_server.methods.parts.discrimination import discrimination, precision_and_recall
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.papers import StatedOptions
from undersong_server.methods.parts.selection import highest, largest_remainder, places_by_label
from undersong_server.methods.parts.shares import LabelShares, check_named, shares_beside

Kind = Literal["teachers", "moments", "votes", "random"]

PERSONA_WORDS = 400  # Song et al. 2024
HELD_OUT = 0.1  # share of the candidates that no discriminator is fitted on: it is judged by them
EVERYONE = (0, 1 << 30)  # edges, words: one bin that counts every record, where there are no labels
# Number of teachers that a plan's queries need; a plan with too few is refused (docs/discriminator.md).
USEFUL = 10.0  # teachers per unit of sigma: with fewer the noise hides even clear majorities
FEWEST_QUERIES = 50  # fewest queries that are worth proposing
FEWEST = 20  # teachers in all, where there is hardly any noise


class Options(StatedOptions):
    """Options of the method ``discriminator``: its [method] keys.

    Attributes:
        discriminator: "teachers", "moments", or "auto", which chooses one of them from the plan; "votes" (the records'
            Top-Q votes for candidates, as WASP casts them) and "random" are baselines.
        samples: N, candidates to write; ``keep`` is the share of them that becomes the corpus, ``kept`` their number.
        prompt: "zero_shot"; the paper's "author", the task's own for every text; or "persona", an invented author for
            each text, and no names.
        words: wanted length of a text; none leaves it to the task ("author", "persona": the paper's 400).
        label_shares: of the corpus: the "records"' own, as the paper has them, "half"-way between these and equal ones,
            "even", or a table with a number for each label. Without a histogram the records' count as equal.
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
    label_shares: LabelShares = "records"
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
    check_named(options.label_shares, setting.labels)
    discriminator_kind = chosen(options, setting)
    if discriminator_kind == "teachers":
        _check_teachers(options, setting)
    if options.student == "fine-tuned":
        if discriminator_kind != "teachers":
            raise ConfigurationError(
                f'method.student = "fine-tuned" learns from teachers\' votes, and this plan has {discriminator_kind!r}',
                'set method.discriminator = "teachers", or method.student = "linear"',
            )
        check_folder(_student_folder(options, setting))
    if options.accounting == "paper" and (discriminator_kind != "teachers" or math.isfinite(setting.privacy.epsilon)):
        raise ConfigurationError(
            'method.accounting = "paper" charges all answers of the teachers as one, which is not private',
            'set privacy.epsilon = inf and method.discriminator = "teachers" in a simulation, or "exact"',
            code="not-private",
        )
    return _requests(options, setting, discriminator_kind)


def notes(options: Options, setting: Setting) -> list[str]:
    """Returns sentences for ``undersong plan``: the discriminator that "auto" chose, and the teachers needed."""
    discriminator_kind = chosen(options, setting)
    note_lines = []
    if options.discriminator == "auto":
        note_lines.append(f'Discriminator: "auto" stands for "{discriminator_kind}" in this plan.')
    if not math.isfinite(setting.privacy.epsilon):
        return note_lines
    teachers = _teachers(options, setting)
    if options.discriminator in ("auto", "teachers"):
        note_lines.append(
            f"Teachers: {options.queries} queries have noise of sigma {teachers.sigma:.1f} votes, so a useful answer"
            f" needs {teachers.needed} teachers (sigma at most a tenth of them); the plan has {teachers.total}."
        )
    if discriminator_kind == "teachers" and options.teacher == "fine-tuned":
        note_lines.append(
            f"Fine-tuned teachers take a party about a minute each, {teachers.per_party} in turn: plan the run with a"
            " --patience that outlasts them."
        )
    return note_lines


def chosen(options: Options, setting: Setting) -> Kind:
    """Returns the discriminator of this plan; "auto" chooses the one with the smaller error of its direction.

    The error follows from the planned noise. For "moments" it is sigma sqrt(classes) / n in every direction, for a mean
    over n records. For "teachers" it is sigma sqrt(d / r) / T: r votes of T teachers determine d coordinates. The plan
    does not know n. T replaces it as a lower bound, since a shard has at least one record.
    """
    if options.discriminator != "auto":
        return options.discriminator
    teachers = _teachers(options, setting)
    too_few = teachers.total < teachers.needed or options.queries >= options.samples
    if too_few or setting.privacy.norm_factor > 1:
        return "moments"
    moments_sigma = plan_sums(_requests(options, setting, "moments"), setting.privacy, setting.quorum)["moments"].sigma
    vote_noise = teachers.sigma * math.sqrt(options.embedding_size / options.queries)
    if vote_noise < moments_sigma * math.sqrt(max(1, len(setting.labels))):
        return "teachers"
    return "moments"


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the candidates that are kept."""
    discriminator_kind = chosen(options, run.setting)
    if discriminator_kind == "moments":
        run.check_embedding_size(options.embedding_size)
    # The tutor: the records' label shares, in which the generators write.
    label_shares, count_estimates, count_sigma = _tutor(options, run, discriminator_kind)
    run.record("label shares", 0, label_shares.tolist())
    run.generate("candidates", 0, _orders(options, run, label_shares))
    # The discriminator scores every candidate; it is judged by those that it was not fitted on.
    candidate_order = run.rng("candidates").permutation(len(run.pool))
    held_out_count = math.floor(len(candidate_order) * HELD_OUT)
    student: Discriminator | FineTunedStudent | None = None
    if discriminator_kind == "votes":  # WASP's votes
        near_votes, far_votes = run.votes("votes")
        scores = near_votes - far_votes
    elif discriminator_kind == "random":
        scores = run.rng("random").random(len(run.pool))
    else:
        if discriminator_kind == "teachers":
            student = _distilled(options, run, candidate_order[held_out_count:])
        else:
            student = _discriminant(options, run, candidate_order[held_out_count:], count_estimates, count_sigma)
        texts = [sample.text for sample in run.pool.samples]
        scores = student.scores(texts, run.embeddings(run.pool.samples), run.pool.label_of)
    run.record("discriminator", 0, discriminator_kind)
    run.record("student", 0, student)
    run.record(
        "held out",
        0,
        (
            [run.pool.samples[i] for i in candidate_order[:held_out_count]],
            run.pool.label_of[candidate_order[:held_out_count]],
        ),
    )
    # The best candidates of each class are kept.
    if options.kept is None:
        kept_share = options.keep
    else:
        kept_share = min(1.0, options.kept / len(run.pool))
    kept_rows = kept(scores, run.pool.label_of, label_shares, kept_share)
    return [run.pool.samples[i] for i in kept_rows]


def kept(scores: Float64, label_of: Int64, label_shares: Float64, share: float) -> list[int]:
    """Positions of the candidates with the highest scores of each class, ascending; ``share`` of all are kept.

    The classes have the proportions ``label_shares``, float64 [C], as far as each has enough candidates.

    >>> kept(np.array([3.0, 1.0, 2.0, 0.0]), np.array([0, 0, 0, 1]), np.array([0.5, 0.5]), 0.5)
    [0, 3]
    """
    candidate_count_of_label = np.bincount(label_of, minlength=len(label_shares))
    corpus_size = max(1, round(share * len(scores)))
    kept_count_of_label = places_by_label(candidate_count_of_label, label_shares, corpus_size)
    chosen_positions: list[int] = []
    for label, kept_count in enumerate(kept_count_of_label):
        chosen_positions += highest(scores, np.flatnonzero(label_of == label), int(kept_count)).tolist()
    return sorted(chosen_positions)


# The functions below make the plan.


def _requests(options: Options, setting: Setting, kind: Kind, teacher_count: int | None = None) -> list[SumRequest]:
    """Returns the private sums of the discriminator ``kind``; ``teacher_count`` per party are computed if None."""
    label_count = len(setting.labels)
    sum_requests: list[SumRequest] = []
    noise = None
    if options.accounting == "paper":
        noise = paper_noise(options.stated(setting.privacy), options.tutor_epsilon)
    if noise is not None:
        if label_count > 1 and options.tutor != "none":
            multiplier = noise.tutor if options.tutor == "noised" else 0.0
            sum_requests.append(SumRequest("labels", LabelHistogram(label_count), noise_multiplier=multiplier))
    elif (label_count > 1 and options.tutor_share) or kind == "moments":
        if not options.tutor_share:
            raise ConfigurationError(
                'method.tutor_share is 0, and discriminator = "moments" divides by the counts it pays for',
                "give it a share, such as 0.1",
            )
        count_statistic = LabelHistogram(label_count) if label_count else LengthHistogram(EVERYONE)
        sum_requests.append(SumRequest("labels", count_statistic, options.tutor_share))
    answer_share = 1.0 - options.tutor_share if sum_requests else 1.0
    if kind == "teachers":
        statistic = TeacherVotes(
            queries=options.queries,
            teachers=_teachers(options, setting).per_party if teacher_count is None else teacher_count,
            labels=label_count,
            half=options.half,
            fine_tuned=options.teacher == "fine-tuned",
            probabilities=options.answers == "probabilities",
        )
        if noise is None:
            answer_multiplier = None
        else:
            answer_multiplier = noise.answer / statistic.sensitivity.l2 * options.noise
        sum_requests.append(SumRequest("teachers", statistic, answer_share, noise_multiplier=answer_multiplier))
    elif kind == "moments":
        sum_requests.append(SumRequest("moments", EmbeddingSum(options.embedding_size, label_count), answer_share))
    elif kind == "votes":
        sum_requests.append(
            SumRequest(
                "votes", TopQVotes(q=options.votes, candidates=options.samples, labels=label_count), answer_share
            )
        )
    return sum_requests


@dataclass(frozen=True)
class TeacherNumbers:
    """Numbers of the teachers in a plan, and of those that a useful answer needs.

    Attributes:
        sigma: standard deviation of the noise of each query's count, in votes.
        needed: number of teachers, in all, that a useful answer needs: ten times sigma.
        per_party, total: numbers of teachers that the plan has.
    """

    sigma: float
    needed: int
    per_party: int
    total: int


def _teachers(options: Options, setting: Setting) -> TeacherNumbers:
    """Computes the numbers of teachers of a plan."""
    requests = _requests(options, setting, "teachers", teacher_count=1)  # any number: the noise does not depend on it
    sigma = plan_sums(requests, setting.privacy, setting.quorum)["teachers"].sigma
    needed_teachers = math.ceil(USEFUL * sigma)
    per_party = options.teachers or math.ceil(max(FEWEST, needed_teachers) / setting.quorum.parties)
    if setting.privacy.unit == "party":
        per_party = 1  # the unit, all that a party has, must lie in one teacher's shard
    return TeacherNumbers(sigma, needed_teachers, per_party, setting.quorum.parties * per_party)


def _check_teachers(options: Options, setting: Setting) -> None:
    """Raises ConfigurationError, with remedies, if noise hides the teachers' answers or a unit is overcharged."""
    if options.queries >= options.samples:
        raise ConfigurationError(
            f"method.queries = {options.queries} of {options.samples} samples leave none to train teachers against",
            "lower method.queries, or raise method.samples",
        )
    teachers, privacy = _teachers(options, setting), setting.privacy
    if not math.isfinite(privacy.epsilon):
        return
    if privacy.norm_factor > 1:
        raise ConfigurationError(
            'privacy.user_contribution = "sum": a unit lies in one shard and changes one teacher, however many'
            f" records it has, and must not be charged {privacy.norm_factor} times",
            'set privacy.user_contribution = "mean"',
        )
    if teachers.total >= teachers.needed:
        return
    more_teachers_remedy = f"set method.teachers to {math.ceil(teachers.needed / setting.quorum.parties)} (a party)"
    remedies = [more_teachers_remedy if privacy.unit != "party" else "raise privacy.epsilon"]
    affordable_queries = math.floor(options.queries * (teachers.total / (USEFUL * teachers.sigma)) ** 2)
    if affordable_queries >= FEWEST_QUERIES:
        remedies.append(f"lower method.queries to {affordable_queries}")
    raise ConfigurationError(
        f"method.teachers: {teachers.total} teachers in all cannot answer {options.queries} queries at epsilon"
        f" {privacy.epsilon:g}: the noise has sigma {teachers.sigma:.1f} votes, and a useful answer needs"
        f" {teachers.needed} teachers (sigma at most a tenth of them)",
        ", ".join([*remedies, 'or set method.discriminator = "moments"']),
    )


# The functions below carry out the run.


def _tutor(options: Options, run: RunContext, kind: Kind) -> tuple[Float64, Float64, float]:
    """Shares of the classes in the corpus, the records' noisy counts of them, and the noise of each count."""
    task_labels = run.setting.labels
    class_count = max(1, len(task_labels))
    if not any(request.name == "labels" for request in _requests(options, run.setting, kind)):
        equal_shares = np.full(class_count, 1.0 / class_count)
        return shares_beside(options.label_shares, equal_shares, task_labels), np.zeros(class_count), 0.0
    label_counts = run.private_sum("labels", [])
    wanted_shares = shares_beside(options.label_shares, shares_of_counts(label_counts.natural), task_labels)
    return wanted_shares, label_counts.natural, label_counts.sigma


def _orders(options: Options, run: RunContext, label_shares: Float64) -> list[Order]:
    """Orders without examples; every generator writes the same number of each class, but for the remainder."""
    generator_names, labels = run.setting.generators, run.setting.labels or ("",)
    ordered_labels = np.repeat(np.arange(len(labels)), largest_remainder(label_shares, options.samples))
    word_count = options.words
    if word_count is None and options.prompt != "zero_shot":
        word_count = PERSONA_WORDS
    return [
        Order(generator_names[i % len(generator_names)], options.prompt, labels[label], words=word_count)
        for i, label in enumerate(ordered_labels)
    ]


def _distilled(options: Options, run: RunContext, candidate_order: Int64) -> "Discriminator | FineTunedStudent":
    """Fits a student on teachers' votes for the first of ``candidate_order``; the next ones train the teachers."""
    query_count = min(options.queries, len(candidate_order) // 2)
    queries = [run.pool.samples[i] for i in candidate_order[:query_count]]
    contrast_samples = [run.pool.samples[i] for i in candidate_order[query_count : query_count + options.contrast]]
    sum_inputs: list[Input] = []
    if options.teacher == "fine-tuned":
        sum_inputs += run.publish_labelled_texts("queries", queries)
        sum_inputs += run.publish_labelled_texts("contrast", contrast_samples)
    else:
        queries_input, queries = run.publish_samples("queries", "queries", queries)
        contrast_input, contrast_samples = run.publish_samples("contrast", "contrast", contrast_samples)
        sum_inputs += [queries_input, contrast_input]
    noisy_votes = run.private_sum("teachers", sum_inputs)
    class_count = max(1, len(run.setting.labels))
    if options.student == "fine-tuned":
        vote_counts, query_classes = noisy_votes.natural[: len(queries)], _classes(run, queries)
        targets_are_hard = options.targets == "hard"
        return fine_tuned(
            [sample.text for sample in queries],
            vote_counts
            - (
                _all_teachers(options, run.setting, noisy_votes) / 2
                if targets_are_hard
                else average_by_group(vote_counts, query_classes)
            ),
            _student_folder(options, run.setting),
            seed=int(run.rng("student").integers(1 << 31)),
            hard=targets_are_hard,
            rate=options.student_rate,
        )
    whitening = Whitening(run.embeddings(contrast_samples), _classes(run, contrast_samples), class_count)
    return fit_student(
        whitening,
        run.embeddings(queries),
        _classes(run, queries),
        noisy_votes.natural[: len(queries)],
        sigma=noisy_votes.sigma,
        teacher_count=_all_teachers(options, run.setting, noisy_votes),
        class_count=class_count,
    )


def _all_teachers(options: Options, setting: Setting, noisy_votes: NoisySum) -> int:
    return len(noisy_votes.survivors) * _teachers(options, setting).per_party


def _discriminant(
    options: Options, run: RunContext, candidate_order: Int64, record_counts: Float64, count_sigma: float
) -> "Discriminator":
    candidates = [run.pool.samples[i] for i in candidate_order]
    embeddings, class_of = run.embeddings(candidates), _classes(run, candidates)
    whitening = Whitening(embeddings, class_of, len(record_counts))
    noisy_moments = run.private_sum("moments", [])
    return linear_discriminant(
        whitening,
        noisy_moments.natural.reshape(len(record_counts), -1),
        record_counts,
        sigma=noisy_moments.sigma,
        count_sigma=count_sigma,
    )


def _student_folder(options: Options, setting: Setting) -> Path:
    is_packaged = options.student_model == PACKAGED
    return model_folder(PACKAGED if is_packaged else setting.folder / options.student_model)


def _classes(run: RunContext, samples: Sequence[Sample]) -> Int64:
    """Each sample's label as a number; 0 where the task has none."""
    return np.maximum(run.label_numbers(samples), 0)


# The functions below score how private a candidate looks, from noisy votes or noisy moments. They see opened sums only,
# so they cost no privacy. Both discriminators are linear in the embedding, with one direction per class, and both are
# Bayesian with known noise: what noise alone explains is shrunk to 0, and a class with few records takes more of the
# direction that the classes share.

# Prior variances are chosen among these by marginal likelihood.
LEVELS = (0.0, *(float(level) for level in np.logspace(-4, 1, 11)))
VOTE_LEVELS = tuple(float(level) for level in np.logspace(-4, 0, 13))  # share of the votes' variance up to the largest
RESIDUAL = 0.3  # share of the votes' variance (without noise) that no linear score explains
OWN_SHARE = 1.0  # prior variance of a class's deviation beside that of the common direction, for votes


@dataclass(frozen=True, eq=False)
class Discriminator:
    """Linear discriminants that score texts, higher for what could have been private; scores compare within a class.

    Attributes:
        whitening: maps embeddings to coordinates in which the public candidates of every class have mean 0.
        directions: float64 [classes, d].
    """

    whitening: Whitening
    directions: Float64

    def scores(self, _texts: Sequence[str], embeddings: Float32, classes: Int64) -> Float64:
        """Scores of texts with their embeddings, float32 [n, d], and given classes, int64 [n]: float64 [n]."""
        whitened = self.whitening(embeddings, classes).astype(np.float64)
        class_scores: Float64 = np.einsum("nd,nd->n", whitened, self.directions[classes])
        return class_scores


def fit_student(
    whitening: Whitening,
    queries: Float32,
    query_classes: Int64,
    vote_counts: Float64,
    *,
    sigma: float,
    teacher_count: int,
    class_count: int,
) -> Discriminator:
    """Fits the student: Bayesian linear regression of noisy vote counts on the embeddings of the queries.

    Counts are centred by class, since the number of teachers that voted is private. Weighing them by their known noise
    says more than their majorities would, and needs no threshold. The variance of the votes without the noise is the
    likeliest one; scores are in its standard deviations.

    Args:
        whitening: from embeddings to the student's coordinates.
        queries, query_classes: embeddings and classes of the queries, float32 [r, d] and int64 [r].
        vote_counts: noisy votes of each query, float64 [r]; ``sigma`` is their noise.
        teacher_count: largest number of teachers, in all, that voted.
    """
    whitened = whitening(queries, query_classes).astype(np.float64)
    centred_votes = vote_counts - average_by_group(vote_counts, query_classes)
    is_same_class = query_classes[:, None] == query_classes
    kernel = whitened @ whitened.T * (1.0 + OWN_SHARE * is_same_class)
    kernel_scale = max(float(np.trace(kernel)) / max(1, len(centred_votes)), 1e-12)
    eigenvalues, eigenvectors = np.linalg.eigh(kernel / kernel_scale)
    rotated_votes = eigenvectors.T @ centred_votes

    def log_likelihood(signal: float) -> float:
        variance = signal * np.maximum(eigenvalues, 0.0) + sigma**2 + RESIDUAL * signal
        return float(-0.5 * (np.log(variance) + rotated_votes**2 / variance).sum())

    # A vote is 0 or 1, so counts vary by at most half of the teachers.
    vote_signal = max((teacher_count**2 / 4 * level for level in VOTE_LEVELS), key=log_likelihood)
    dual_weights = (
        math.sqrt(vote_signal)
        / kernel_scale
        * (eigenvectors @ (rotated_votes / (vote_signal * (eigenvalues + RESIDUAL) + sigma**2)))
    )
    class_sums = np.stack([(dual_weights * (query_classes == label)) @ whitened for label in range(class_count)])
    return Discriminator(whitening, dual_weights @ whitened + OWN_SHARE * class_sums)


def linear_discriminant(
    whitening: Whitening, sums: Float64, record_counts: Float64, *, sigma: float, count_sigma: float
) -> Discriminator:
    """Fits linear discriminants from noisy sums of each class's private embeddings, against the public candidates.

    In the axes of the public covariance a class's difference of means is a common part plus its own, both normal with
    variances in proportion to that covariance, observed with known noise and the sampling error of its records; the
    two proportions are those of the highest marginal likelihood. Fisher's direction is then the posterior mean of the
    difference, divided by the covariance.

    Args:
        sums: noisy sums of embeddings, float64 [classes, d]; ``sigma`` is the noise of a coordinate.
        record_counts: noisy numbers of records, float64 [classes]; ``count_sigma`` is the noise of each.
    """
    record_count_of_class = np.maximum(record_counts, max(1.0, count_sigma))[:, None]
    eigenvectors, variances = whitening.axes, whitening.variances
    observed_means = (sums / record_count_of_class - whitening.means) @ eigenvectors
    noise = (sigma / record_count_of_class) ** 2 + variances / record_count_of_class
    common_level, class_level = max(
        ((a, b) for a in LEVELS for b in (LEVELS if len(sums) > 1 else (0.0,))),
        key=lambda pair: _log_likelihood(observed_means, noise, pair[0] * variances, pair[1] * variances),
    )
    precision = 1.0 / (class_level * variances + noise)
    if common_level:
        common_mean = (observed_means * precision).sum(axis=0) / (
            1.0 / (common_level * variances) + precision.sum(axis=0)
        )
    else:
        common_mean = np.zeros(observed_means.shape[1])
    class_directions = common_mean + class_level * variances * precision * (observed_means - common_mean)
    return Discriminator(whitening, whitening.whitened_direction(class_directions / variances))


def _log_likelihood(observed: Float64, noise: Float64, common_variance: Float64, own_variance: Float64) -> float:
    """Log-likelihood of the differences of means ``observed`` [classes, d], up to a constant.

    ``common_variance`` is the variance [d] of what all classes share, ``own_variance`` that of a class's own part.
    """
    class_variances = own_variance + noise
    precision = (1.0 / class_variances).sum(axis=0)
    mahalanobis_term = (observed**2 / class_variances).sum() - (
        common_variance * (observed / class_variances).sum(axis=0) ** 2 / (1.0 + common_variance * precision)
    ).sum()
    return float(
        -0.5 * (np.log(class_variances).sum() + np.log1p(common_variance * precision).sum() + mahalanobis_term)
    )


def average_by_group(values: Float64, group: Int64) -> Float64:
    """Replaces each value by the mean of its group: float64 [n]; groups are numbered from 0, int64 [n]."""
    return (np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1))[group]


# The distilled student may be a fine-tuned encoder (Song et al. 2024): it reads texts, the linear one embeddings.
# It learns to tell the queries that more teachers than usual took for private from the others. Each query weighs as
# much as its noisy count is away from the mean of its class: a majority that noise alone may have made says little.
# The paper has neither that weight nor counts centred by class: its labels are the majorities themselves (``hard``).

SETTINGS = FineTuning(Path(), epochs=8, batch=16, learning_rate=5e-5, max_tokens=256)
PRIVATE, OTHER = "private", "synthetic"


@dataclass(frozen=True, eq=False)
class FineTunedStudent:
    """A fine-tuned encoder that scores texts, higher for what could have been private, within a class."""

    model: FineTunedModel

    def scores(self, texts: Sequence[str], _embeddings: Float32, _classes: Int64) -> Float64:
        """Log-odds of "private" for each text, float64 [n]."""
        probabilities = np.clip(self.model.probabilities(texts), 1e-12, None)
        return np.asarray(
            np.log(
                probabilities[:, self.model.labels.index(PRIVATE)] / probabilities[:, self.model.labels.index(OTHER)]
            ),
            dtype=np.float64,
        )


def fine_tuned(
    texts: Sequence[str], centred: Float64, folder: Path, *, seed: int, hard: bool = False, rate: float | None = None
) -> FineTunedStudent:
    """Fine-tunes the student, an encoder, on the queries ``texts`` and their noisy counts of votes for "private".

    Args:
        centred: the counts less their class's mean, float64 [r]; with ``hard``, less half of the teachers.
        folder: the encoder.
        hard: weighs all queries alike (Song et al. 2024, Eq. 1, 2); else by the distance of the count from 0.
        rate: learning rate; None is the encoder's usual one.

    Raises ConfigurationError where ``folder`` holds no usable encoder, or all counts are the same.
    """
    labels = [PRIVATE if centred_votes > 0 else OTHER for centred_votes in centred]
    settings = replace(SETTINGS, path=folder, learning_rate=rate or SETTINGS.learning_rate)
    text_weights = None if hard else np.abs(centred)
    return FineTunedStudent(fine_tune(texts, labels, settings, weights=text_weights, seed=seed))


# Figures of the method discriminator: the epsilon that its paper's noise spends, and its accuracy on real texts.

STRICT_SHARE = 0.25  # share of the synthetic texts that precision, recall and F1 count as real


@dataclass(frozen=True)
class PaperNoise:
    """Noise of Song et al. 2024, standard deviations in records.

    ``tutor`` is that of a class's count, ``answer`` that of the scalar sum for one query.

    The paper noises two counts for each query, private and public, and takes the larger; the difference decides, so one
    scalar of sigma / sqrt(2) decides by the same law.
    """

    tutor: float
    answer: float


def paper_noise(stated: Privacy, tutor_epsilon: float) -> PaperNoise:
    """Computes the noise of section 4: analytic Gaussians of sensitivity sqrt(2) at ``tutor_epsilon`` and at the rest.

    There is none at an infinite epsilon. The paper prints neither delta nor sigma. Deltas add (App. C), so each
    mechanism has half of the run's.

    >>> noise = paper_noise(Privacy(4.0, 1e-5), 0.4)
    >>> round(noise.answer * math.sqrt(2), 3)
    1.731
    """
    if math.isinf(stated.epsilon):
        return PaperNoise(0.0, 0.0)
    if stated.epsilon <= tutor_epsilon:
        raise ConfigurationError(
            f"method.tutor_epsilon {tutor_epsilon:g} leaves nothing of epsilon {stated.epsilon:g} to the teachers",
            "lower method.tutor_epsilon",
        )
    tutor_noise, answer_noise = (
        accounting.calibrate(lambda multiplier: [accounting.Gaussian(multiplier)], epsilon, stated.delta / 2)
        for epsilon in (tutor_epsilon, stated.epsilon - tutor_epsilon)
    )
    return PaperNoise(math.sqrt(2.0) * tutor_noise, answer_noise)


def paper_figures(stated: Privacy, query_count: int, tutor_epsilon: float) -> Mapping[str, float]:
    """Returns the noise (sigma) of one answer of the paper's teachers, and the epsilon of all answers by two countings.

    "epsilon_really_spent" is for two released counts per query, "epsilon_as_scalar_counts" for one. The mapping is
    empty if ``tutor_epsilon`` leaves the teachers nothing.
    """
    if stated.epsilon <= tutor_epsilon:
        return {}
    noise = paper_noise(stated, tutor_epsilon)
    return {
        "sigma": math.sqrt(2.0) * noise.answer,
        "epsilon_really_spent": _composed(noise.answer, query_count, stated.delta),
        "epsilon_as_scalar_counts": _composed(math.sqrt(2.0) * noise.answer, query_count, stated.delta),
    }


def figures(records: Records, embed: Embed, test: Sequence[str], labels: Int64) -> Mapping[str, Any]:
    """Measures how well the discriminator separates real test texts from candidates that it was not fitted on.

    Args:
        records: values that the run has noted, among them "discriminator", "student" and "held out".
        embed: texts to quantised embeddings.
        test: real texts, with ``labels`` as indices, int64 [n].
    """
    figures_by_name: dict[str, Any] = {"discriminator": records["discriminator"][-1][1]}
    student, (held_out_samples, held_out_classes) = records["student"][-1][1], records["held out"][-1][1]
    if student is None or not len(held_out_samples):
        return figures_by_name
    real_classes, synthetic_texts = np.maximum(labels, 0), [sample.text for sample in held_out_samples]
    judged_scores = (
        student.scores(test, embed(test), real_classes),
        real_classes,
        student.scores(synthetic_texts, embed(synthetic_texts), held_out_classes),
        held_out_classes,
    )
    accuracy, auc = discrimination(*judged_scores)
    precision, recall, f1 = precision_and_recall(*judged_scores, STRICT_SHARE)
    return figures_by_name | {
        "discriminator_accuracy": accuracy,
        "discriminator_auc": auc,
        "discriminator_precision": precision,
        "discriminator_recall": recall,
        "discriminator_f1": f1,
    }


def _composed(multiplier: float, count: int, delta: float) -> float:
    return accounting.epsilon([accounting.Gaussian(multiplier, count=count)], delta)


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    asks_first=lambda options, setting: any(request.name == "labels" for request in plan(options, setting)),
    packages=lambda options: ("torch", "transformers") if options.student == "fine-tuned" else (),
    notes=notes,
    paper_figures=lambda options, plan: paper_figures(plan.privacy, options.queries, options.tutor_epsilon),
    figures=figures,
)
