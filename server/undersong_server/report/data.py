"""One plain value of a finished run, from which the report, the card and the screen are made.

Everything here is public or synthetic. No count, text or statistic of private records has a place in it.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from undersong_common import printable
from undersong_common.arrays import Int64
from undersong_common.intervals import Interval, over_seeds
from undersong_common.privacy import impact
from undersong_protocol.agreement import words
from undersong_protocol.agreement.participation import Participation
from undersong_protocol.agreement.plan import Privacy, Quorum
from undersong_server.evaluation.evaluate import Distances, EvaluationReport
from undersong_server.evaluation.label_mismatches import LabelMismatches
from undersong_server.generators.author import AuthorUsage
from undersong_server.generators.cleaning import DUPLICATE, NEAR_DUPLICATE
from undersong_server.generators.reading import CUT, REFUSED
from undersong_server.methods.parts.private_score import PrivateScore
from undersong_server.pool import Sample
from undersong_server.report.guesses import Guesses
from undersong_server.report.sum_answers import SumAnswer
from undersong_server.report.terms import CorpusTerms, TextSource
from undersong_server.report.writers import WRITERS, Writer
from undersong_server.runs.task import PublicationSection

UNITS = {
    "sample": "one record",
    "user": "one patient (all records of one patient's id at one hospital)",
    "party": "one whole hospital (present with its records, or present with none)",
}
UNIT_WORDS = {"sample": "record", "user": "patient", "party": "hospital"}


@dataclass(frozen=True)
class PrivacyStatement:
    """The privacy that was promised and spent.

    Attributes:
        promise: epsilon and delta of the whole run; epsilon is inf for a run without noise.
        quorum: the federation's shape.
        epsilon_after: cumulative epsilon after each private sum, in order; empty if none was asked.
        epsilon_if_all_others_collude: epsilon of one party's records against the operator and all other parties; None
            if it was not computed.
        best_guess, best_guess_if_all_others_collude: largest chance of a right guess about one unit, by the
            promise and against all others; None if it was not computed.
        epsilon_against_all_as_it_ran, best_guess_against_all_as_it_ran: the same against all others, by the
            parties' receipts; None without receipts.
        best_guess_at_all_hospitals: largest chance by the promise of a right guess about one patient with records at
            each hospital; None for other units.
        insecure_noise: True if the noise came from a fixed seed (tests), so nothing is private.
    """

    promise: Privacy
    quorum: Quorum
    epsilon_after: tuple[float, ...]
    epsilon_if_all_others_collude: float | None = None
    insecure_noise: bool = False
    best_guess: float | None = None
    best_guess_if_all_others_collude: float | None = None
    epsilon_against_all_as_it_ran: float | None = None
    best_guess_against_all_as_it_ran: float | None = None
    best_guess_at_all_hospitals: float | None = None

    @property
    def is_private(self) -> bool:
        """True if the release carries a privacy guarantee: epsilon is finite and the noise secret."""
        return math.isfinite(self.promise.epsilon) and not self.insecure_noise

    @property
    def headline(self) -> str:
        """The guarantee in one sentence, or that there is none and why."""
        if self.insecure_noise:
            return "Not private: the noise came from a fixed seed, which is for tests only."
        if not math.isfinite(self.promise.epsilon):
            return "Not private: epsilon is infinite; noise, if the run had any, was for research."
        if not self.epsilon_after:
            return "No private record was asked anything: the texts depend on public inputs only."
        sums = len(self.epsilon_after)
        sums_scope = f"over all {sums} private sums together" if sums > 1 else "over its one private sum"
        return (
            f"The texts are ({number(self.promise.epsilon)}, {number(self.promise.delta)})-differentially"
            f" private for one {UNIT_WORDS[self.promise.unit]} that is added or removed, {sums_scope}."
        )

    @property
    def guesses(self) -> Guesses:
        """The best guesses about one unit, each with who guesses."""
        return Guesses(
            self.promise,
            UNIT_WORDS[self.promise.unit],
            self.quorum.parties,
            self.best_guess,
            self.best_guess_at_all_hospitals,
            self.best_guess_if_all_others_collude,
            self.best_guess_against_all_as_it_ran,
        )

    @property
    def warning(self) -> str:
        """The warning of a corpus without a guarantee; "" for any other."""
        return "" if self.is_private else words.NO_GUARANTEE

    @property
    def terms(self) -> tuple[tuple[str, str], ...]:
        """Unit, neighbouring relation and the other terms of the guarantee, as (term, meaning)."""
        nominal_suffix = "" if self.is_private else f", {words.NOMINAL}"
        caution = "" if self.is_private else f" ({words.NOMINAL}: they protect nobody here)"
        term_rows = [
            ("Privacy unit", UNITS[self.promise.unit]),
            ("Neighbouring data sets", "differ by the presence of one unit (add/remove)"),
            (f"Epsilon, delta{caution}", f"{number(self.promise.epsilon)}, {number(self.promise.delta)}"),
            ("Private sums", str(len(self.epsilon_after))),
        ]
        if self.promise.unit != "sample":
            contribution_words = "as much as one record" if self.promise.contribution == "mean" else "as their sum"
            unit_name = UNIT_WORDS[self.promise.unit]
            term_rows.append(
                (
                    f"Records of one {unit_name}",
                    f"at most {self.promise.max_per_unit} count, together {contribution_words}",
                )
            )
        missing_words = f", of which at most {self.quorum.tolerated_dropouts} may be missing from a sum that opens"
        term_rows.append(
            ("Hospitals", f"{self.quorum.parties}{missing_words if self.quorum.tolerated_dropouts else ''}")
        )
        term_rows.append(("Messages safe from later quantum computers", "yes" if self.quorum.post_quantum else "no"))
        if self.epsilon_if_all_others_collude is not None:
            alone_name = f"Epsilon if all others collude, {words.AS_PLANNED}{nominal_suffix}"
            at_delta = f"at delta {number(self.promise.delta)}"
            term_rows.append((alone_name, f"at most {number(self.epsilon_if_all_others_collude)}, {at_delta}"))
        if self.epsilon_against_all_as_it_ran is not None:
            alone_name = f"The same, {words.AS_IT_RAN}{nominal_suffix}"
            ran_words = number(self.epsilon_against_all_as_it_ran)
            term_rows.append((alone_name, f"{ran_words}, which undersong verify recomputes from the receipts"))
        return tuple(term_rows)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Conditions under which the guarantee holds, a sentence each; empty if the run is not private."""
        if not self.is_private or not self.epsilon_after:
            return ()
        assumptions = impact.assumptions(self.quorum.colluders, self.quorum.parties, self.promise.unit)
        # That sentence stands beside the promise's figures already.
        return tuple(assumption for assumption in assumptions if assumption != impact.SEVERAL_HOSPITALS)


NO_PRIVATE_DATA = ", no private data"  # end of a baseline's name, which is cut off where a sentence says the same
ZERO_SHOT = f"zero-shot texts{NO_PRIVATE_DATA}"
ALONE = f"{{}} alone{NO_PRIVATE_DATA}"  # names the baseline of the generators that wrote the corpus
WHY_UNPUBLISHED = {  # reasons for which a text that is not set aside is in no file
    "contradicted": "under a label that models contradict",
    "not chosen": "not chosen",
    "surplus": "more than the task asks for",
}


def reasons_unpublished(counts: Mapping[str, int], texts: int) -> str:
    """Says why so many ``texts`` are in no file, with counts where the method recorded all of them."""
    if sum(counts.values()) != texts:
        return f"{', '.join(WHY_UNPUBLISHED.values())}, not counted apart"
    return printable.joined([f"{count} {WHY_UNPUBLISHED[reason]}" for reason, count in counts.items() if count])


FEWER = "prompts that show fewer examples than ordered, for want of room"


@dataclass(frozen=True)
class GeneratorUse:
    """The orders and answers of one generator, and their counts. ``writer`` holds the plan's words on it.

    ``source``: whose texts it gives or learns from, with their licence, as the makers state it; "" if they do not.
    """

    name: str
    kind: str
    count: AuthorUsage
    writer: str = ""
    source: str = ""

    @property
    def is_copied(self) -> bool:
        """True if its texts are those of a file, which somebody wrote before."""
        return words.is_copied(self.writer)

    @property
    def tokens(self) -> int:
        return self.count.prompt_tokens + self.count.completion_tokens

    @property
    def faults(self) -> tuple[int, int, int, int]:
        """Answers that were refused, cut, a duplicate or a near duplicate; a cut one may have been kept in part."""
        fault_counts = self.count.faults
        return fault_counts[REFUSED], self.count.cut, fault_counts[DUPLICATE], fault_counts[NEAR_DUPLICATE]

    @property
    def other(self) -> list[tuple[str, int]]:
        """Answers that were no text for another reason, by that reason."""
        reported_faults = (REFUSED, CUT, DUPLICATE, NEAR_DUPLICATE)
        return sorted(
            (fault_kind, count) for fault_kind, count in self.count.faults.items() if fault_kind not in reported_faults
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the generator's answers in short sentences, such as repeats of a replay file."""
        note_counts = {**self.count.notes, FEWER: self.count.fewer_examples, self._lost_words: self.count.lost}
        return [f"{note}: {count}" for note, count in sorted(note_counts.items()) if count]

    @property
    def _lost_words(self) -> str:
        largest_loss = f"{self.count.lost_tokens} tokens, US$ {self.count.lost_usd:.4f}"
        return f"answers lost on the way, which cost {largest_loss} at most, beside the figures here"


@dataclass(frozen=True)
class Accuracy:
    """The panel, or a task model beside it, on a public test set, trained on one kind of data.

    ``ours`` marks this run's own texts, ``reference`` the panel on texts that no record steered. ``reads_private``
    marks a model trained on the private records themselves: such a figure is no part of the release. The screen shows
    it to whoever holds the records; no file does. ``model`` says which one was trained; ``interval`` is the accuracy's
    over several seeds, ``by_texts`` the exact one that the number of test texts gives it: of a mean over models, which
    varies less than one of them, it covers at least as often as it says. ``by_model`` holds the accuracy of each of the
    panel's models by its name; it is empty for one model. ``by_label`` holds the share of each label's test texts
    that are labelled rightly.
    """

    data: str
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    rarest_recall: float
    ours: bool = False
    reads_private: bool = False
    model: str = ""
    interval: Interval | None = None
    reference: bool = False
    by_texts: Interval | None = None
    by_model: Mapping[str, float] = field(default_factory=dict)
    by_label: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ReportData:
    """Values of a finished run that its report, card and last screen show.

    Attributes:
        run: its name; task: the task's name; description: what one text is, as the task file says.
        method: wire name of the method; settings: its options as (key, value).
        labels, generators: names in the task file's order; labels may be empty.
        weights: rows [rounds or rounds + 1], each one weight per generator, those of round 0 first.
        weight_errors: standard error that the noise gives each of the last weights; empty where none was computed.
        samples: the corpus.
        measures: figures of the corpus beside the public test set; none reads a private record.
        seeds: number of seeds with which the task models were trained.
        seconds: wall-clock time by phase, in order of display.
        created: date and time in words; "" if the output must not depend on the time.
        plan_hash: SHA-256 (hex) of the manifest that every party signed; "" if there is none.
        purpose: of the task, as the hospitals approved it.
        earlier: what the plan that this run replaces has told of the records; "" if it replaces none.
        unopened: a sentence on each hospital that was charged for sums which were opened without it.
        test_hash: SHA-256 (hex) of the public test file; "" without one.
        test_source: whose test texts these are and whether they are real, as the makers state it; "" if they do not.
        publication: statements of its makers to those who receive the data set.
        publisher: name and fingerprint of the coordinator that signs it; "" for both if none does.
        operator: name and contact of who asked the hospitals, as the plan states them; "" for what it does not state.
        remarks: sentences about this run that its reader should see.
        refused_labels: labels without a text, because every order of them was refused for its content.
        score: how good the corpus is, measured on the private records by a private sum; None if it was not measured.
        gain: share of the records that are labelled rightly by the texts and labels which the records chose, less the
            share by all texts, and its standard error, by a private sum; None if it was not measured.
        has_unread_score: the sum that measures the score was opened, but of hospitals whose number of records no sum
            has told.
        set_aside: number of texts that the records do not support, which are not in the corpus.
        aside_starts: of a few of them, the generator and the first words.
        writers: what each generator wrote and what became of it; empty if no run stands behind the values.
        mended_labels: texts of the corpus under another label than they were ordered for; None if that is unknown.
        mismatches: the texts of the corpus that read like another label than their own.
        support_measured: True if a private sum measured which texts the records support, and found one
            generator at least supported.
        unpublished_counts: number of texts in no file by reason, those of ``WHY_UNPUBLISHED``; empty if unrecorded.
        participation: the hospitals, and which of them are in each opened sum; None if no run stands behind the values.
        questions: what the hospitals were asked, a clause each.
        frequent_label: label that most records have and its share of them, by the sum of labels; None without it.
        sum_questions: the name of each planned sum, in order, and what it asks.
        sum_answers: what each of them asked, gave and decided.
        files: the name of each published file, and what it is for.
        steered: what the private sums are recorded to have decided, a clause each.
        simulated: True if one program played every hospital.
    """

    run: str
    task: str
    description: str
    method: str
    labels: tuple[str, ...]
    generators: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    samples: tuple[Sample, ...]
    privacy: PrivacyStatement
    settings: tuple[tuple[str, str], ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    usage: tuple[GeneratorUse, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    measures: "tuple[Measure, ...]" = ()
    weight_errors: tuple[float, ...] = ()
    seeds: int = 1
    test_set: str = ""
    statement_hash: str = ""
    created: str = ""
    version: str = ""
    plan_hash: str = ""
    embedder: str = ""
    remarks: tuple[str, ...] = ()
    refused_labels: tuple[str, ...] = ()
    score: PrivateScore | None = None
    has_unread_score: bool = False
    gain: tuple[float, float] | None = None
    set_aside: int = 0
    aside_starts: tuple[tuple[str, str], ...] = ()
    writers: tuple[Writer, ...] = ()
    mended_labels: int | None = None
    mismatches: LabelMismatches = field(default_factory=LabelMismatches)
    support_measured: bool = False
    unpublished_counts: Mapping[str, int] = field(default_factory=dict)
    participation: Participation | None = None
    questions: tuple[str, ...] = ()
    frequent_label: tuple[str, float] | None = None
    sum_questions: tuple[tuple[str, str], ...] = ()
    sum_answers: tuple[SumAnswer, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    steered: tuple[str, ...] = ()
    simulated: bool = False
    purpose: str = ""
    earlier: str = ""
    unopened: tuple[str, ...] = ()
    test_hash: str = ""
    test_source: str = ""
    publication: PublicationSection = field(default_factory=PublicationSection)
    publisher: tuple[str, str] = ("", "")
    operator: tuple[str, str] = ("", "")

    @property
    def has_equal_weights(self) -> bool:
        """True if the noise of private sums explains each difference of the last weights from equal ones."""
        return bool(self.weights) and are_equal(self.weights[-1], self.weight_errors)

    @property
    def published_accuracy(self) -> tuple[Accuracy, ...]:
        """The accuracies that may stand in a file: those of models that were not trained on private records."""
        return tuple(accuracy for accuracy in self.accuracy if not accuracy.reads_private)

    @property
    def own_accuracy(self) -> Accuracy | None:
        """The panel's accuracy of the corpus itself; None if no test file was evaluated."""
        return next((accuracy for accuracy in self.published_accuracy if accuracy.ours), None)

    def is_told(self, accuracy: Accuracy) -> bool:
        """True if the answer on the corpus's worth has this accuracy already, so that no table repeats it."""
        return accuracy.reference or accuracy is self.own_accuracy

    @property
    def has_untold_accuracy(self) -> bool:
        """True if an accuracy, or its interval over seeds, stands nowhere but in the table of task models."""
        return any(accuracy.interval or not self.is_told(accuracy) for accuracy in self.published_accuracy)

    @property
    def summary(self) -> str:
        """The finished run in a few figures: its texts, its promise, and those of its two scores that were measured."""
        summary_parts = [printable.counted(len(self.samples), "text")]
        epsilon = number(self.privacy.promise.epsilon) if self.privacy.epsilon_after else "0"
        summary_parts.append(f"epsilon {epsilon}" if self.privacy.is_private else "not private")
        if self.own_accuracy is not None:
            summary_parts.append(f"panel {100 * self.own_accuracy.accuracy:.1f} %")
        if self.score is not None and self.score.is_share:
            summary_parts.append(f"private score {100 * self.score.value:.1f} %")
        return ", ".join(summary_parts)

    @property
    def authors(self) -> tuple[str, ...]:
        """The generators that wrote at least one text of the corpus; all of them if it has no text."""
        writer_names = {sample.generator for sample in self.samples}
        return tuple(name for name in self.generators if name in writer_names) or self.generators

    @property
    def author_uses(self) -> tuple[GeneratorUse, ...]:
        """The usage of those generators of :attr:`authors` that have one."""
        authors = self.authors
        return tuple(generator_use for generator_use in self.usage if generator_use.name in authors)

    @property
    def terms(self) -> CorpusTerms:
        """The terms of the corpus."""
        contacts = (self.publication.contact, self.operator[1])
        return CorpusTerms(
            licence=self.publication.licence,
            contacts=tuple(contact for contact in contacts if contact),
            sources=tuple(TextSource(use.name, use.kind, use.source) for use in self.author_uses),
            invented_records=self.publication.invented_records,
        )

    @property
    def noun(self) -> str:
        """Noun for one text of the corpus: "text" if a generator copied texts from a file, else "synthetic text"."""
        return "text" if any(use.is_copied for use in self.author_uses) else "synthetic text"

    @property
    def tags(self) -> tuple[str, ...]:
        """The corpus's tags for a hub of data sets."""
        is_synthetic = not self.author_uses or not all(use.is_copied for use in self.author_uses)
        tag_holds = {"synthetic": is_synthetic, "differential-privacy": self.privacy.is_private}
        return tuple(tag for tag, holds in tag_holds.items() if holds)

    @property
    def origin(self) -> str:
        """Says if the texts of the corpus are invented, by what the plan says of the generators that gave them."""
        return words.origin_sentences([use.writer or use.name for use in self.author_uses] or [""])

    @property
    def nothing_aside(self) -> str:
        """Says that no text is off the subject, as far as the records can tell; "" if that was not measured."""
        return "No text is set aside for its subject." if self.support_measured and not self.set_aside else ""

    @property
    def unpublished(self) -> str:
        """Says what became of the texts that generators gave and that are not published; "" if there are none."""
        kept_count, published_count = sum(use.count.kept for use in self.usage), len(self.samples)
        other_count = kept_count - published_count - self.set_aside
        if other_count <= 0:
            return ""
        whose_words = f' "{WRITERS}" says whose they are.' if self.writers else ""
        beside_words = " Beside the texts set aside, the" if self.set_aside else f"{self.nothing_aside} The"
        return (
            f"{beside_words.strip()} method left out {number(other_count)} of the"
            f" {printable.counted(kept_count, 'text')} that were kept when they were written. They are in no file:"
            f" {reasons_unpublished(self.unpublished_counts, other_count)}.{whose_words}"
        )

    @property
    def repeats(self) -> int:
        """Number of seeds of the task models; 1 if no interval was computed."""
        return self.seeds if any(text_measure.interval for text_measure in self.measures) else 1

    @property
    def rounds(self) -> int:
        """Number of rounds in which texts were written."""
        return 1 + max((sample.round for sample in self.samples), default=-1)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The task's labels, then every other label that a sample carries, such as ""."""
        extra_labels = dict.fromkeys(sample.label for sample in self.samples if sample.label not in self.labels)
        return (*self.labels, *extra_labels)

    @property
    def named_labels(self) -> tuple[str, ...]:
        """The labels but for "", which samples without a label carry."""
        return tuple(name for name in self.label_names if name)

    def counts(self) -> Int64:
        """Number of samples by label name and generator, int64 [labels, generators]."""
        text_counts = Counter((sample.label, sample.generator) for sample in self.samples)
        count_rows = [[text_counts[label, generator] for generator in self.generators] for label in self.label_names]
        return np.array(count_rows, dtype=np.int64).reshape(len(count_rows), len(self.generators))


number = partial(printable.number, nothing="–", infinite="infinity")


Good = Literal["high", "low", "beside"]
WORDS: dict[Good, str] = {"high": "high is good", "low": "low is good", "beside": "good near the mark"}


@dataclass(frozen=True)
class Measure:
    """One figure of the report, with its scale and how to read it.

    Attributes:
        name: in words; says: what it tells, in one sentence.
        value: the figure; ``scale``: the ends of its scale, in words.
        good: the good end of the scale, or that a figure near ``mark`` is good.
        mark: a figure to compare with, NaN if there is none; ``mark_name`` says whose it is.
        interval: over the seeds, None if nothing was trained or with one seed only.
        percent: shown in per cent.
    """

    name: str
    says: str
    value: float
    scale: str
    good: Good
    mark: float = math.nan
    mark_name: str = ""
    interval: Interval | None = None
    percent: bool = False

    @property
    def shown(self) -> str:
        """The figure as text, in per cent if ``percent``."""
        return self.written(self.value)

    @property
    def good_words(self) -> str:
        return WORDS[self.good]

    @property
    def in_words(self) -> str:
        """The figure with its scale, the good end of it, and what it compares."""
        return f"{self.name} {self.shown} ({self.scale}, {self.good_words}: {self.says})"

    def written(self, value: float) -> str:
        """Formats any figure on this scale, as :attr:`shown` does."""
        if self.percent:
            return f"{100 * value:.1f} %"
        return f"{value:z.1f}" if max(value, self.value) > 20 else f"{value:z.3f}"  # no minus before a zero


Figures = tuple[tuple[Accuracy, ...], tuple[Measure, ...]]
"""Figures of a corpus beside the task's public test file."""


WEIGHT_ERRORS = 2.0  # A weight within so many standard errors of an equal one tells nothing.
EQUAL_WEIGHTS = "not distinguishable from equal"


def are_equal(weights: Sequence[float], errors: Sequence[float]) -> bool:
    """Returns True if the noise of private sums explains each difference of the weights from equal ones.

    One generator has nothing to be equal to.

    >>> are_equal([0.8, 0.2], [0.1, 0.1]), are_equal([0.56, 0.44], [0.1, 0.1]), are_equal([0.5, 0.5], [])
    (False, True, False)
    >>> are_equal([1.0], [0.0])
    False
    """
    if not errors or len(weights) < 2:
        return False
    equal_weight = 1 / len(weights)
    return all(
        abs(weight - equal_weight) <= WEIGHT_ERRORS * error for weight, error in zip(weights, errors, strict=True)
    )


def measures_of(report: EvaluationReport) -> tuple[Measure, ...]:
    """Returns a corpus's figures beside a test file, in reading order, without those that could not be computed.

    Reads the panel's scores, the distances to the first reference and the label errors, nothing else.
    """
    measure_list = [
        _over_seeds(name, says, report.trained[0].interval(key)) for key, name, says in USEFUL if report.trained
    ]
    measure_list += _distance_measures(report.distances[0]) if report.distances else []
    if report.label_errors is not None:
        says = f"labels that models which did not see the text disagree with (confident learning). {MIXED_CASES}"
        measure_list.append(_over_seeds(DOUBTFUL_LABELS, says, over_seeds(report.label_error_shares), "low"))
    return tuple(measure for measure in measure_list if math.isfinite(measure.value))


PANEL_SCORE = "panel score"
DOUBTFUL_LABELS = "doubtful labels"
MIXED_CASES = "Texts that mix several cases are mostly missed by this figure."
USEFUL = (
    ("accuracy", PANEL_SCORE, "share of the test texts that small models of the corpus label rightly; their mean"),
    ("balanced_accuracy", "balanced accuracy", "the same with every label weighing alike"),
    ("macro_f1", "macro-F1", "precision and recall of each label together, every label weighing alike"),
    ("rarest_recall", "rarest label", "share of the test texts of the rarest label that are found"),
)


def _over_seeds(name: str, says: str, interval: Interval, better_end: Good = "high") -> Measure:
    shown_interval = None if math.isnan(interval.low) else interval
    return Measure(name, says, interval.value, "0 to 100 %", better_end, interval=shown_interval, percent=True)


def _distance_measures(distances: Distances) -> list[Measure]:
    test_words = "the test texts'"

    def share(name: str, value: float, says: str, better_end: Good = "high") -> Measure:
        return Measure(name, says, value, "0 to 1", better_end)

    def alike(name: str, value: float, mark: float, says: str) -> Measure:
        return Measure(name, says, value, "0 to 1", "beside", mark, test_words)

    return [
        Measure(
            "Frechet distance",
            "how far mean and spread of the embeddings are from the test texts'; depends on the number of texts",
            distances.frechet,
            "0 and up",
            "low",
        ),
        share("precision", distances.precision, "synthetic texts that lie where test texts lie"),
        share("recall", distances.recall, "test texts that lie where synthetic texts lie"),
        Measure(
            "density",
            "in how many neighbourhoods of test texts a synthetic text lies on average, beside equal sets",
            distances.density,
            "0 and up",
            "beside",
            1.0,
            "equal sets'",
        ),
        share(
            "coverage",
            distances.coverage,
            "test texts with a synthetic text near; about 0.97 for two halves of one set",
        ),
        share("MAUVE", distances.mauve, "how far the two sets are one distribution, seen from all their mixtures"),
        alike(
            "different word pairs",
            distances.distinct_bigrams,
            distances.reference_distinct_bigrams,
            f"of all word pairs in {number(distances.rows)} drawn texts of each set; of more texts it is smaller",
        ),
        Measure(
            "Vendi score",
            "how many different texts the corpus holds in effect",
            distances.vendi,
            f"1 to {distances.rows}",
            "beside",
            distances.reference_vendi,
            test_words,
        ),
        alike(
            "self-similarity",
            distances.self_similarity,
            distances.reference_self_similarity,
            "mean cosine of two texts",
        ),
        Measure(
            "bits per word",
            "what a small language model that read the corpus needs per word of the test texts",
            distances.next_word_after,
            "0 and up",
            "low",
            distances.next_word_before,
            "before the corpus",
        ),
        share("length divergence", distances.length, "between the lengths of both sets, in bits", "low"),
        share(
            "label divergence",
            math.nan if distances.label is None else distances.label,
            "between the label shares of both sets, in bits",
            "low",
        ),
    ]
