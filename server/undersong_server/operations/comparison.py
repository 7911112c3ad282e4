"""Comparison of runs: what they promise and cost, and figures of their texts that corpora of any size can share."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from undersong_common.errors import ConfigurationError
from undersong_common.intervals import Interval, over_seeds
from undersong_common.pages.store import Grade
from undersong_common.printable import counted, finite, joined, number, printable, that_hold
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.evaluation.metrics import distinct_n
from undersong_server.methods.parts.private_score import NORMAL_95, PrivateScore
from undersong_server.operations.form import change_value, change_words
from undersong_server.operations.overview import RunPlanFacts, live, run_plan
from undersong_server.operations.releases import DRAWN_TEXTS, Found, published_texts
from undersong_server.operations.runs import plan_differences
from undersong_server.report.before_training import nearness_words
from undersong_server.report.data import DOUBTFUL_LABELS, PANEL_SCORE, UNIT_WORDS, WORDS, Good, reasons_unpublished
from undersong_server.report.evaluations import NAME_BY_KEY, Evaluated, evaluated, evaluated_beside, kept_help
from undersong_server.report.html import series_chart
from undersong_server.report.verdict import (
    ABOVE_GUESSING,
    BETTER,
    DOUBTFUL,
    HARDLY,
    HELP,
    NOT_MEASURED,
    OWN_RECORDS,
    TEST_TEXTS,
    UNMEASURED,
    RecordsHelp,
    alarms,
    doubt_words,
    plain_words,
    similarity_help,
)
from undersong_server.runs.folder import RunFolder

MOST_DIFFERENCES = 8  # largest number of differences that the line above the figures names
# That line begins with these keys of a task file, or sections of keys, because they tell runs apart best.
DIFFERENCES_FIRST = (
    *("task.labels", "method.name", "privacy.epsilon", "parties", "method.samples", "generators", "evaluation.test"),
    *("privacy", "method", "task"),
)
CLOSE_COUNTS = 1.1  # largest ratio of two runs' numbers of drawn texts at which their figures are comparable
BLOCKS = 10  # blocks of equally many drawn texts, whose spread gives the interval
NOTHING = "–"  # stands where a run has no such figure
# Reasons why somebody should read a generator's texts first.
STOPPED = "the last round ordered none from it"
UNJUDGED = "the records neither clear nor refuse it, and nothing judged its texts one by one"
NEAR_REAL = "good near the value of real texts"
HOW_GOOD = "How good"  # group of the figures that say how good a run's texts are
PRIVATE_SCORE = "private score"
CORPUS_TEXTS = "texts of the corpus, without marked ones"
WORD_PAIRS = "different word pairs, drawn texts alone"  # The evaluation has "different word pairs" too.
HEADLINE = (HELP, PRIVATE_SCORE, PANEL_SCORE, DOUBTFUL_LABELS, "promised epsilon", CORPUS_TEXTS, "money, US$")
LEADING = {  # The first of these figures that was measured is read first, for the reason beside it.
    PRIVATE_SCORE: (
        "The private score comes first because it is measured on the hospitals' own records; every other figure looks"
        " at public texts."
    ),
    PANEL_SCORE: (
        "The panel score comes first because it says how well models trained on the texts label real ones, and no"
        " private score, which would be of the hospitals' own records, was measured."
    ),
    WORD_PAIRS: (
        "No figure says yet how good the texts are, since neither a private score nor a panel score was measured:"
        " evaluate on a public test file. This one says only how varied they are."
    ),
    "promised epsilon": "No text is published yet. This one says only how much is promised to a patient.",
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # A spreadsheet takes a cell that begins with one of these for a formula.


@dataclass(frozen=True)
class ComparedRun:
    """One run in a comparison.

    Attributes:
        state: its state in words (:attr:`undersong_server.runs.folder.RunStatus.state_words`).
        epsilon: promised epsilon; None if the run is not private. ``spent`` is epsilon after the opened sums.
        weights: last weight of each generator; ``weight_errors`` their standard errors by the noise, if they are told.
        calls, kept: number of texts ordered and kept; ``price_usd`` is their cost.
        score: the private score, where the method measures one.
        judgement: how good its texts are, in the sentences that begin its Result screen; "" before publication.
        help: a word for what its card says of the records' help; "" before publication.
        texts: number of texts of the corpus, without those that the operator has marked; None before publication.
        text_figures: figures of the drawn texts by name.
        evaluated: figures from a test file (`undersong run evaluate`); None before that.
    """

    run: str
    state: str
    method: str
    epsilon: float | None
    delta: float
    unit: str
    spent: float | None
    parties: int
    weights: Mapping[str, float]
    weight_errors: Mapping[str, float]
    calls: int
    kept: int
    price_usd: float
    score: PrivateScore | None
    judgement: str
    help: str
    texts: int | None
    text_figures: Mapping[str, Interval]
    evaluated: Evaluated | None = None


@dataclass(frozen=True)
class ComparedFigure:
    """One run's figure: in words, and as a number with its interval where it has them.

    ``has_mark``: True if the words also state the value of real texts, with which to compare.
    """

    words: str = NOTHING
    value: float = math.nan
    interval: Interval | None = None
    has_mark: bool = False

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.value)

    def exceeds(self, other: "ComparedFigure", sign: float) -> bool:
        """True if this figure is better than the other, and their intervals do not meet.

        Args:
            sign: 1 where high is good, -1 where low is.
        """
        own_interval, other_interval = (
            cell.interval or Interval(cell.value, cell.value, cell.value) for cell in (self, other)
        )
        return own_interval.low > other_interval.high if sign > 0 else own_interval.high < other_interval.low

    @property
    def half(self) -> float:
        """Half of the interval's width; 0 without an interval."""
        if self.interval is None:
            return 0.0
        return (self.interval.high - self.interval.low) / 2


@dataclass(frozen=True)
class Figure:
    """One figure of all compared runs.

    Attributes:
        good: the good end of its scale; None for a figure that is neither good nor bad, or does not compare.
        mark: the figure near which it is good, and whose that is; "" where it has none, or runs have different ones.
        not_compared: why the runs do not compare by it; "" where they do, or it is neither good nor bad.
    """

    group: str
    name: str
    cells: tuple[ComparedFigure, ...]
    good: Good | None = None
    percent: bool = False
    mark: str = ""
    not_compared: str = ""

    @property
    def good_words(self) -> str:
        if self.good is None:
            return self.not_compared
        if self.good == "beside":
            if self.mark:
                return f"good near {self.mark}"
            return NEAR_REAL if any(cell.has_mark for cell in self.cells) else ""
        return WORDS[self.good]

    @property
    def verdict(self) -> str:
        """Names the best run by its number, or says that none is certainly best; "" if the runs do not compare."""
        known_places = [place for place, cell in enumerate(self.cells) if cell.is_known]
        if not self.compares or len(known_places) < 2:
            return ""
        sign = 1.0 if self.good == "high" else -1.0
        best_place, *other_places = sorted(known_places, key=lambda place: -sign * self.cells[place].value)
        if all(self.cells[place].value == self.cells[best_place].value for place in other_places):
            return "equal"
        if all(self.cells[best_place].exceeds(self.cells[place], sign) for place in other_places):
            return f"best: run {best_place + 1}"
        return "not certain which run is best"

    @property
    def compares(self) -> bool:
        """True if runs can be sorted and drawn by this figure."""
        return self.good in ("high", "low") and any(math.isfinite(cell.value) for cell in self.cells)


@dataclass(frozen=True)
class LeadingFigure:
    """The figure that a reader of a comparison should read first, and the reason."""

    figure: Figure
    reason: str


def leading_figure(figures: Sequence[Figure], chosen: str = "") -> LeadingFigure | None:
    """Returns the figure that matters most among those that were measured; None if there is none.

    Args:
        chosen: name of the figure that a person sorts by; "" for none.
    """
    measured = {figure.name: figure for figure in figures if figure.compares}
    reasons = {chosen: "You chose this figure.", **{name: why for name, why in LEADING.items() if name != chosen}}
    return next((LeadingFigure(measured[name], reason) for name, reason in reasons.items() if name in measured), None)


@dataclass(frozen=True)
class RunAhead:
    """The best run by a figure. Each run is given by its index in the comparison.

    Attributes:
        place: index of the best run; ``others`` are the indices of the other runs that have the figure.
        close: those of ``others`` whose intervals meet the best run's, so that chance may explain the difference.
    """

    place: int
    others: tuple[int, ...]
    close: tuple[int, ...]

    @property
    def is_certain(self) -> bool:
        """True if the best run's interval lies apart from that of every other run."""
        return not self.close


def shown_scores(figures: Sequence[Figure], leading: LeadingFigure | None) -> tuple[Figure, ...]:
    """Returns the leading figure, then private score and panel score where they were measured and do not lead."""
    if leading is None:
        return ()
    scores = (figure for figure in figures if figure.compares and figure.name in (PRIVATE_SCORE, PANEL_SCORE))
    return (leading.figure, *(figure for figure in scores if figure is not leading.figure))


@dataclass(frozen=True)
class RunComparison:
    """Compared runs and their figures, in order.

    Attributes:
        drawn: number of texts drawn from each corpus to compare them; 0 while no run is published.
        differences: what was planned otherwise, each with its value in every run; first what matters most.
    """

    runs: tuple[ComparedRun, ...]
    drawn: int = 0
    sorted_by: str = ""
    figures: tuple[Figure, ...] = field(default=())
    differences: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def groups(self) -> Mapping[str, list[Figure]]:
        figures_by_group: dict[str, list[Figure]] = {}
        for figure in self.figures:
            figures_by_group.setdefault(figure.group, []).append(figure)
        return figures_by_group

    @property
    def headline(self) -> tuple[Figure, ...]:
        """The few figures that a reader needs first: those of :data:`HEADLINE` that some run has."""
        figure_by_name = {
            figure.name: figure for figure in self.figures if any(cell.words != NOTHING for cell in figure.cells)
        }
        return tuple(figure_by_name[name] for name in HEADLINE if name in figure_by_name)

    @property
    def leading(self) -> LeadingFigure | None:
        """The figure to read first, which the chart draws: the one that the runs are sorted by, else of ``LEADING``."""
        return leading_figure(self.figures, self.sorted_by)

    @property
    def judgements(self) -> tuple[str, ...]:
        """A line on each run whose texts are published, with the judgement that begins its Result."""
        return tuple(printable(f"{run.run}: {run.judgement}", 1_000) for run in self.runs if run.judgement)

    @property
    def ahead(self) -> "RunAhead | None":
        """The best run by the leading figure; None where that is no figure of quality and nobody chose it."""
        if self.leading is None or (self.leading.figure.group != HOW_GOOD and not self.sorted_by):
            return None
        return self._find_best()

    def _find_best(self) -> "RunAhead | None":
        """The best run by the leading figure; None where fewer than two runs have one."""
        figure = self.leading.figure if self.leading else None
        known_places = [] if figure is None else [place for place, cell in enumerate(figure.cells) if cell.is_known]
        if figure is None or len(known_places) < 2:
            return None
        sign = 1.0 if figure.good == "high" else -1.0
        best_place, *other_places = sorted(known_places, key=lambda place: -sign * figure.cells[place].value)
        close_places = tuple(
            place for place in other_places if not figure.cells[best_place].exceeds(figure.cells[place], sign)
        )
        return RunAhead(best_place, tuple(other_places), close_places)

    @property
    def conclusion(self) -> str:
        """Says which run is ahead, if one is better than texts without records, and the promises; "" for one run."""
        if len(self.runs) < 2:
            return ""
        return " ".join((self._ahead_words(), self._help_words(), self._promise_words()))

    def _ahead_words(self) -> str:
        if self.ahead is None or self.leading is None:
            return "No measured figure says which run is ahead."
        figure = self.leading.figure
        run_values = [
            f"run {place + 1} has {figure.cells[place].words}" for place in (self.ahead.place, *self.ahead.others)
        ]
        if self.ahead.is_certain:
            opening = f"Run {self.ahead.place + 1} is ahead by {figure.name}"
        else:
            opening = f"The runs are not told apart by {figure.name}"
        other_records = ""
        if figure.name == PRIVATE_SCORE and any(words == change_words("parties") for words, _ in self.differences):
            other_records = " Their hospitals differ, so each score is measured on other records."
        return f"{opening}: {joined(run_values)}.{other_records}"

    def _help_words(self) -> str:
        runs_by_help: dict[str, list[str]] = {}
        for run_number, run in enumerate(self.runs, 1):
            runs_by_help.setdefault(run.help or NOT_MEASURED, []).append(f"run {run_number}")
        return " ".join(
            f"{HELP[0].upper()}{HELP[1:]}, {words}: {joined(run_names)}." for words, run_names in runs_by_help.items()
        )

    def _promise_words(self) -> str:
        promises = ["not private" if run.epsilon is None else f"epsilon {number(run.epsilon)}" for run in self.runs]
        if len(set(promises)) == 1:
            return f"All of them promise {promises[0]}." if self.runs[0].epsilon is not None else "None is private."
        return f"Promises: {joined([f'run {run_number} {words}' for run_number, words in enumerate(promises, 1)])}."

    @property
    def difference_words(self) -> str:
        """Says in what the runs were planned otherwise, each run by its number; "" for one run."""
        if len(self.runs) < 2:
            return ""
        if not self.differences:
            return "These runs have the same task file and hospitals: chance tells them apart, and how far each came."
        shown_differences = [
            f"{key} ({'; '.join(f'{number}: {printable(value, 80)}' for number, value in enumerate(values, 1))})"
            for key, values in self.differences[:MOST_DIFFERENCES]
        ]
        further_count = len(self.differences) - len(shown_differences)
        further_words = [counted(further_count, "further setting")] if further_count else []
        return f"These runs differ in {joined([*shown_differences, *further_words])}."

    @property
    def size_words(self) -> str:
        """Says why a private score compares corpora of different sizes and another figure does not; "" elsewhere."""
        sizes = [run.texts for run in self.runs if run.texts is not None and run.score is not None]
        if len(sizes) < 2 or _are_close(sizes):
            return ""
        sizes_words = joined([number(size) for size in sizes])
        return (
            f"The corpora have {sizes_words} texts. The private score judges each corpus as"
            " it is, and more texts may raise it; so it compares what receivers get. Figures on a test file are of"
            " models that learned from drawn texts, and compare only where equally many were drawn."
        )

    @property
    def best_words(self) -> str:
        """Says which run is best by the leading figure, and for which others that is not certain; "" for one run."""
        ahead = self._find_best()
        if ahead is None or self.leading is None:
            return ""
        figure = self.leading.figure
        runs_without = [run.run for place, run in enumerate(self.runs) if place not in (ahead.place, *ahead.others)]
        sentences = [f"Best by it: {self.runs[ahead.place].run}, {figure.cells[ahead.place].words}."]
        if ahead.close:
            sentences += self._close_words(figure, ahead.place, ahead.close)
        if runs_without:
            sentences.append(f"Without this figure: {joined(runs_without)}.")
        return " ".join(sentences)

    def _close_words(self, figure: Figure, best_place: int, close_places: Sequence[int]) -> list[str]:
        """Sentences on the runs with the indices ``close_places``, than which the best run is not certainly better."""
        best_value = figure.cells[best_place].value
        equal_runs = [self.runs[place].run for place in close_places if figure.cells[place].value == best_value]
        worse_runs = [self.runs[place].run for place in close_places if figure.cells[place].value != best_value]
        return that_hold(
            (equal_runs, f"As good by it: {joined(equal_runs)}."),
            (worse_runs, f"It is better than {joined(worse_runs)}, but the intervals overlap: not certain."),
        )

    @property
    def chart(self) -> Markup:
        """The runs' values of one figure with their intervals; "" for fewer than two runs that have it."""
        figure = self.leading.figure if self.leading else None
        if figure is None or sum(cell.is_known for cell in figure.cells) < 2:
            return Markup("")
        cell_points = [(cell.value, cell.half) if math.isfinite(cell.value) else None for cell in figure.cells]
        chart_name = f"{figure.name} ({figure.good_words})"
        description = "; ".join(f"{run.run} {cell.words}" for run, cell in zip(self.runs, figure.cells, strict=True))
        return series_chart(
            f"{chart_name}: {description}",
            # A run's name is longer than its place below a chart; the screen lists the names by these numbers.
            [str(run_number) for run_number in range(1, len(self.runs) + 1)],
            {figure.name: cell_points},
            axis=f"run by its number; {chart_name}",
            names=[run.run for run in self.runs],
            form="points",
            percent=figure.percent,
            height=220,
        )

    def csv(self) -> bytes:
        """Returns the figures as a table for a spreadsheet: one row per figure, one column per run."""
        table_file = io.StringIO()
        writer = csv.writer(table_file)
        writer.writerow(("group", "figure", "good", *(_cell(run.run) for run in self.runs)))
        for figure in self.figures:
            cell_words = (_cell(cell.words) for cell in figure.cells)
            writer.writerow((figure.group, _cell(figure.name), figure.good_words, *cell_words))
        return table_file.getvalue().encode("utf-8")


def _cell(text: str) -> str:
    """Quotes a text that a spreadsheet would compute as a formula: models and other people wrote it."""
    if text.startswith(FORMULA):
        return f"'{text}"
    return text


def compare(home: Path, runs: Sequence[str], *, sort: str = "") -> RunComparison:
    """Compares runs, in their order or by one figure, the best first.

    Args:
        sort: name of a figure that has a good end; "" keeps the order of ``runs``.

    Raises ConfigurationError for an unknown run or figure.
    """
    texts_by_run = {run: published_texts(home, run) for run in dict.fromkeys(runs)}
    corpus_sizes = [len(texts) for texts in texts_by_run.values() if texts]
    sample_size = min([DRAWN_TEXTS, *corpus_sizes]) if corpus_sizes else 0
    evaluations = _common_evaluations([CoordinatorHome(home).run(run) for run in texts_by_run])
    compared_runs = tuple(
        replace(_compared(home, run, texts, sample_size), evaluated=evaluation)
        for (run, texts), evaluation in zip(texts_by_run.items(), evaluations, strict=True)
    )
    run_comparison = RunComparison(compared_runs, sample_size, figures=tuple(_figures(compared_runs, sample_size)))
    if sort:
        run_comparison = _sorted(run_comparison, NAME_BY_KEY.get(sort, sort))
    return replace(run_comparison, differences=_differences(home, run_comparison.runs))


def _difference_rank(key: str) -> int:
    """Position of a key, or else of its section, in :data:`DIFFERENCES_FIRST`; behind all for another key."""
    places = {name: place for place, name in enumerate(DIFFERENCES_FIRST)}
    return places.get(key, places.get(key.partition(".")[0], len(places)))


def _differences(home: Path, runs: Sequence[ComparedRun]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    plans = [CoordinatorHome(home).run(run.run).planned() for run in runs]
    differences = plan_differences(plans) if plans else ()
    ranked_differences = sorted(differences, key=lambda row: _difference_rank(row[0]))
    return tuple((change_words(key), tuple(map(change_value, values))) for key, values in ranked_differences)


def how_good(home: Path, run: str) -> tuple[Figure, ...]:
    """Returns one run's figures of the group :data:`HOW_GOOD`. Raises ConfigurationError for an unknown run."""
    live_score = live(home, run, run_plan(home, run)).score
    return tuple(_how_good([live_score], [evaluated(CoordinatorHome(home).run(run))]))


def beside_figures(home: Path, run: str) -> tuple[tuple[Evaluated, tuple[Figure, ...]], ...]:
    """Returns one run's evaluations on other test files than its own, each with its figures.

    Raises ConfigurationError for an unknown run.
    """
    return tuple(
        (evaluation, tuple(figure for figure in _evaluated_figures([evaluation]) if figure.good is not None))
        for evaluation in evaluated_beside(CoordinatorHome(home).run(run))
    )


def leading_meaning(home: Path, run: str, leading: LeadingFigure | None) -> str:
    """Returns what one run's leading figure means, in the words of its card; "" if it is no share of right labels."""
    of_what = {PRIVATE_SCORE: OWN_RECORDS, PANEL_SCORE: TEST_TEXTS}.get(leading.figure.name if leading else "")
    if leading is None or of_what is None or not leading.figure.percent:
        return ""
    labels = run_plan(home, run).planned.task["task"].get("labels", ())
    return plain_words(leading.figure.cells[0].value, of_what, len(labels))


@dataclass(frozen=True)
class ResultJudgement:
    """A finished run's alarms, and whether its texts are good in one sentence; "" where an alarm says it.

    ``help`` is what its card says of the records' help; None before a run has finished, or of an earlier version's.
    """

    alarms: tuple[str, ...] = ()
    words: str = ""
    grade: Grade = "warn"
    help: RecordsHelp | None = None

    @property
    def sentences(self) -> str:
        """The alarms, and the judgement's sentence after them, in one paragraph."""
        return " ".join(filter(None, (*self.alarms, self.words)))


@dataclass(frozen=True)
class NamedScores:
    """A run's two scores, each in a sentence with its name and what it was measured on; "" where it was not."""

    panel: str = ""
    private: str = ""


def named_scores(home: Path, run: str, figures: Sequence[Figure]) -> NamedScores:
    """Returns a run's panel score and private score in words, from its figures of :func:`how_good`.

    Raises ConfigurationError for an unknown run.
    """
    evaluation = evaluated(CoordinatorHome(home).run(run))
    words_by_name = {figure.name: figure.cells[0].words for figure in figures if figure.cells[0].is_known}
    panel_sentence, private_sentence = "", ""
    if evaluation is not None and PANEL_SCORE in words_by_name:
        panel_sentence = (
            f"Panel score, on the test file {evaluation.file_name}: this corpus {words_by_name[PANEL_SCORE]}."
        )
    if PRIVATE_SCORE in words_by_name:
        private_sentence = f"Private score, on the hospitals' own records: this corpus {words_by_name[PRIVATE_SCORE]}."
    return NamedScores(panel_sentence, private_sentence)


# The colour of a result's box, by the sign of the records' help.
GRADES: Mapping[int | None, Grade] = {1: "done", 0: "warn", -1: "bad", None: "news"}


def judge(home: Path, run: str) -> ResultJudgement:
    """Returns what a reader must know first of a corpus, by the figures that were measured, with or without labels.

    Raises ConfigurationError for an unknown run.
    """
    plan = run_plan(home, run)
    return _judge(CoordinatorHome(home).run(run), plan, live(home, run, plan).score)


def _judge(run_folder: RunFolder, plan: RunPlanFacts, score: PrivateScore | None) -> ResultJudgement:
    evaluation = evaluated(run_folder)
    low_shares: list[float] = []
    wrong_labels = math.nan
    if score is not None and score.is_share:
        low_shares.append(score.low)
    if evaluation is not None and PANEL_SCORE in evaluation.measures:
        panel = evaluation.measures[PANEL_SCORE]
        low_shares.append((panel.interval or (panel.value,))[0])
    if evaluation is not None and DOUBTFUL_LABELS in evaluation.measures:
        wrong_labels = evaluation.measures[DOUBTFUL_LABELS].value
    alarm_sentences = alarms(len(plan.planned.task["task"].get("labels", ())), low_shares, wrong_labels)
    if score is not None and score.zero_shot is not None:
        by_similarity = similarity_help(score.value, score.zero_shot)
        return ResultJudgement(alarm_sentences, by_similarity.words, GRADES[by_similarity.sign], by_similarity)
    records_help = kept_help(run_folder)
    if not low_shares:
        return ResultJudgement(alarm_sentences, UNMEASURED, help=records_help)
    if HARDLY in alarm_sentences:
        return ResultJudgement(alarm_sentences, help=records_help)
    if records_help is None:
        return ResultJudgement(alarm_sentences, BETTER, "news")
    words = f"{ABOVE_GUESSING} {records_help.words}"
    return ResultJudgement(alarm_sentences, words, GRADES[records_help.sign], records_help)


@dataclass(frozen=True)
class TextsToRead:
    """Number of published texts of a generator that somebody should read first, and the reason in a clause."""

    generator: str
    texts: int
    reason: str


def texts_to_read(home: Path, run: str, text_counts: Mapping[str, int]) -> tuple[TextsToRead, ...]:
    """Returns the generators with published texts that nothing judged, or from which the last round ordered none.

    Args:
        text_counts: number of published texts by generator.
    """
    live_run = live(home, run, run_plan(home, run))
    last_weights = live_run.weights[-1] if live_run.weights else ()
    stopped_generators = [name for name, weight in zip(live_run.generators, last_weights, strict=False) if weight == 0]
    reason_by_generator = dict.fromkeys(stopped_generators, STOPPED) | dict.fromkeys(live_run.unjudged, UNJUDGED)
    return tuple(
        TextsToRead(name, text_counts[name], reason)
        for name, reason in reason_by_generator.items()
        if text_counts.get(name)
    )


@dataclass(frozen=True)
class CorpusRemainder:
    """Two sentences on the texts that a finished run did not publish; each may be empty.

    Attributes:
        aside: says how many records are nearest to each generator's texts, which decides what is set aside.
        unpublished: says how many texts are in no file, and why.
    """

    aside: str = ""
    unpublished: str = ""


def corpus_remainder(home: Path, run: str, corpus: Found) -> CorpusRemainder:
    """Returns what became of a finished run's texts outside its corpus; ``corpus`` counts the texts in files."""
    live_run = live(home, run, run_plan(home, run))
    counts_words = live_run.counts_words
    unpublished_count = live_run.kept - corpus.corpus - corpus.aside
    unpublished_words = ""
    if unpublished_count > 0:
        reasons = reasons_unpublished(live_run.unpublished, unpublished_count)
        written_words = counted(live_run.kept, "text")
        unpublished_words = (
            f"{number(unpublished_count)} of the {written_words} that generators wrote are in no file: {reasons}."
        )
    return CorpusRemainder(f"{counts_words[:1].upper()}{counts_words[1:]}", unpublished_words)


def explain_figures(home: Path, run: str) -> tuple[str, ...]:
    """Returns the card's sentences on how near the texts are to the test file and on doubtful labels, if measured."""
    evaluation = evaluated(CoordinatorHome(home).run(run))
    if evaluation is None:
        return ()
    value_by_name = {name: measure.value for name, measure in evaluation.measures.items()}
    wrong_share = value_by_name.get(DOUBTFUL_LABELS, math.nan)
    # :func:`judge` has an alarm for a larger share.
    doubt_sentence = doubt_words(wrong_share, decimals=1) if wrong_share < DOUBTFUL else ""
    return tuple(filter(None, (nearness_words(value_by_name, evaluation.figures, evaluation.test), doubt_sentence)))


def _sorted(comparison: RunComparison, sort: str) -> RunComparison:
    figure_by_name = {figure.name: figure for figure in comparison.figures if figure.compares}
    figure = figure_by_name.get(sort)
    if figure is None:
        raise ConfigurationError(
            f"these runs have no figure {sort!r} to sort by",
            f"choose one of: {', '.join(figure_by_name)}",
            code="unknown-figure",
        )
    sort_sign = -1.0 if figure.good == "high" else 1.0

    def rank(place: int) -> tuple[bool, float]:
        cell_value = figure.cells[place].value
        return math.isnan(cell_value), sort_sign * cell_value

    run_order = sorted(range(len(comparison.runs)), key=rank)
    sorted_figures = (
        replace(figure, cells=tuple(figure.cells[place] for place in run_order)) for figure in comparison.figures
    )
    runs = tuple(comparison.runs[place] for place in run_order)
    return replace(comparison, runs=runs, sorted_by=sort, figures=tuple(sorted_figures))


def _compared(home: Path, run: str, texts: Sequence[str] | None, drawn_count: int) -> ComparedRun:
    plan = run_plan(home, run)
    live_run = live(home, run, plan)
    run_folder = CoordinatorHome(home).run(run)
    last_weights: Sequence[float] = ()
    if live_run.weights:
        last_weights = live_run.weights[-1]
    spent: float | None = 0.0
    if live_run.sums:
        spent = live_run.sums[-1].epsilon_after
    compared_run = ComparedRun(
        run=run,
        state=run_folder.status().state_words,
        method=plan.figures.method,
        epsilon=finite(plan.figures.privacy.epsilon),
        delta=plan.figures.privacy.delta,
        unit=plan.figures.privacy.unit,
        spent=spent,
        parties=len(plan.planned.roster),
        weights=dict(zip(live_run.generators, last_weights, strict=False)),
        weight_errors=dict(zip(live_run.generators, live_run.last_weight_errors, strict=False)),
        calls=sum(int(usage["calls"]) for usage in live_run.usage.values()),
        kept=sum(int(usage["kept"]) for usage in live_run.usage.values()),
        price_usd=sum(float(usage["price_usd"]) for usage in live_run.usage.values()),
        score=live_run.score,
        judgement="",
        help="",
        texts=None,
        text_figures={},
    )
    if texts is None:
        return compared_run
    text_figures: Mapping[str, Interval] = {}
    if texts:
        text_figures = _text_figures(texts, drawn_count)
    judgement = _judge(run_folder, plan, live_run.score)
    return replace(
        compared_run,
        judgement=judgement.sentences,
        help="" if judgement.help is None else judgement.help.word,
        texts=len(texts) - len(run_folder.annotations().marked),
        text_figures=text_figures,
    )


@dataclass(frozen=True)
class TextFigure:
    """A figure of drawn texts: its name, how it is computed of a block of them, its good end and its scale."""

    name: str
    compute: Callable[[Sequence[str]], float]
    good: Good | None = None
    percent: bool = False


TEXT_FIGURES = (
    TextFigure(WORD_PAIRS, lambda texts: distinct_n(texts, 2), "high", percent=True),
    TextFigure("words per text", lambda texts: float(np.mean([len(text.split()) for text in texts]))),
    TextFigure("texts that repeat another", lambda texts: 1 - len(set(texts)) / len(texts), "low", percent=True),
)


def _text_figures(texts: Sequence[str], drawn_count: int) -> Mapping[str, Interval]:
    """Mean and interval of each of TEXT_FIGURES over blocks of so many texts drawn from a corpus."""
    # A corpus stands in the order of its rounds and labels: neighbours are more alike than drawn texts.
    mixed_row_numbers = np.random.default_rng(0).permutation(len(texts))[:drawn_count]
    text_blocks = _blocks([texts[row_number] for row_number in mixed_row_numbers])
    return {
        figure.name: over_seeds([figure.compute(text_block) for text_block in text_blocks]) for figure in TEXT_FIGURES
    }


def _blocks(texts: Sequence[str]) -> list[Sequence[str]]:
    """The texts in :data:`BLOCKS` blocks of the same size; in one block where they are too few for blocks of two."""
    block_size = len(texts) // BLOCKS
    if block_size < 2:
        return [texts]
    return [texts[block_start : block_start + block_size] for block_start in range(0, block_size * BLOCKS, block_size)]


def _figures(runs: Sequence[ComparedRun], drawn_count: int) -> Iterator[Figure]:
    def word_figure(group: str, name: str, read_value: Callable[[ComparedRun], str]) -> Figure:
        return Figure(group, name, tuple(ComparedFigure(read_value(run)) for run in runs))

    def number_figure(
        group: str,
        name: str,
        read_value: Callable[[ComparedRun], float | None],
        good: Good | None,
        missing: str = NOTHING,
    ) -> Figure:
        run_values = [read_value(run) for run in runs]
        number_cells = tuple(
            ComparedFigure(missing) if value is None else ComparedFigure(number(value), float(value))
            for value in run_values
        )
        return Figure(group, name, number_cells, good)

    yield word_figure("Promise", "state", lambda run: run.state)
    yield word_figure("Promise", "method", lambda run: run.method)
    yield number_figure("Promise", "hospitals", lambda run: run.parties, None)
    yield number_figure("Promise", "promised epsilon", lambda run: run.epsilon, "low", "not private")
    yield number_figure("Promise", "delta", lambda run: run.delta, None)
    yield word_figure("Promise", "privacy unit", lambda run: UNIT_WORDS[run.unit])
    yield number_figure("Promise", "epsilon spent", lambda run: run.spent, None, "no privacy")
    yield number_figure("Cost", "calls", lambda run: run.calls, None)
    yield number_figure("Cost", "texts written, usable", lambda run: run.kept, None)
    price_cells = tuple(ComparedFigure(f"{run.price_usd:.2f}", run.price_usd) for run in runs)
    yield Figure("Cost", "money, US$", price_cells, "low")
    yield word_figure(HOW_GOOD, HELP, lambda run: run.help or NOTHING)
    yield from _how_good([run.score for run in runs], [run.evaluated for run in runs])
    yield number_figure("Texts", CORPUS_TEXTS, lambda run: run.texts, None)
    for figure in TEXT_FIGURES if any(run.text_figures for run in runs) else ():
        text_cells = tuple(
            _interval_cell(run.text_figures[figure.name], percent=figure.percent)
            if run.text_figures
            else ComparedFigure()
            for run in runs
        )
        yield Figure(
            f"Texts, of {drawn_count:,} drawn of each run", figure.name, text_cells, figure.good, figure.percent
        )
    for weight_name in _names(run.weights for run in runs):
        weight_cells = tuple(
            _weight_cell(run, weight_name) if weight_name in run.weights else ComparedFigure() for run in runs
        )
        yield Figure("Weights", f"weight of {weight_name}, last round", weight_cells, None, percent=True)


def _how_good(scores: Sequence[PrivateScore | None], evaluated_runs: Sequence[Evaluated | None]) -> Iterator[Figure]:
    """The private score and the figures of `undersong run evaluate` of each run."""
    are_shares = all(score is None or score.is_share for score in scores)
    score_cells = tuple(
        ComparedFigure()
        if score is None
        else _interval_cell(Interval(score.value, score.low, score.high), percent=are_shares)
        for score in scores
    )
    yield Figure(HOW_GOOD, PRIVATE_SCORE, score_cells, "high", percent=are_shares)
    yield from _evaluated_figures(evaluated_runs)


def _evaluated_figures(evaluated_runs: Sequence[Evaluated | None]) -> Iterator[Figure]:
    """The figures of `undersong run evaluate` of each run.

    Runs compare by them only where the test file is the same and the numbers of texts are close. Elsewhere each figure
    says why they do not.
    """
    test_cells = tuple(
        ComparedFigure(evaluation.test if evaluation else "not measured") for evaluation in evaluated_runs
    )
    yield Figure(HOW_GOOD, "test file", test_cells)
    known_evaluations = [evaluation for evaluation in evaluated_runs if evaluation is not None]
    if not known_evaluations:
        return
    size_cells = tuple(
        ComparedFigure(evaluation.texts_words if evaluation else NOTHING) for evaluation in evaluated_runs
    )
    yield Figure(HOW_GOOD, "texts drawn for it", size_cells)
    is_one_file = len({evaluation.file_hash for evaluation in known_evaluations}) == 1
    are_comparable = is_one_file and _are_close([evaluation.texts for evaluation in known_evaluations])
    not_compared = ""
    if not are_comparable and len(known_evaluations) > 1:
        not_compared = _why_not_compared(known_evaluations, is_one_file=is_one_file)
    for measure_name in _names(evaluation.figures for evaluation in known_evaluations):
        measures = [
            evaluation.measures[measure_name] for evaluation in known_evaluations if measure_name in evaluation.measures
        ]
        directions = {measure.good for measure in measures}
        percent_flags = {measure.percent for measure in measures}
        good_direction = directions.pop() if are_comparable and len(directions) == 1 else None
        marks = {measure.mark for measure in measures}
        common_mark = marks.pop() if len(marks) == 1 else ""
        measure_cells = tuple(
            _evaluated_cell(evaluation, measure_name, with_mark=not common_mark) for evaluation in evaluated_runs
        )
        is_percent = percent_flags == {True}
        yield Figure(HOW_GOOD, measure_name, measure_cells, good_direction, is_percent, common_mark, not_compared)


def _why_not_compared(evaluations: Sequence[Evaluated], *, is_one_file: bool) -> str:
    """Says why figures of these evaluations do not compare: by their files, or by their numbers of texts."""
    if not is_one_file:
        return "not comparable: on different test files"
    sizes = joined([evaluation.texts_words for evaluation in evaluations])
    return f"not comparable: small models learned from {sizes} texts"


def _are_close(text_counts: Sequence[int]) -> bool:
    """True for numbers of drawn texts that differ too little to matter for a figure; 0 stands for an unknown one."""
    return min(text_counts) > 0 and max(text_counts) <= CLOSE_COUNTS * min(text_counts)


def _common_evaluations(folders: Sequence[RunFolder]) -> list[Evaluated | None]:
    """Each run's own evaluation; where these have different test files, those on the first file that all have."""
    own_evaluations = [evaluated(folder) for folder in folders]
    evaluations_by_run = [
        {}
        if own_evaluation is None
        else {evaluation.file_hash: evaluation for evaluation in (own_evaluation, *evaluated_beside(folder))}
        for folder, own_evaluation in zip(folders, own_evaluations, strict=True)
    ]
    first_evaluations, *other_evaluations = list(filter(None, evaluations_by_run)) or [{}]
    common_hash = next(
        (file for file in first_evaluations if all(file in evaluations for evaluations in other_evaluations)), None
    )
    if common_hash is None:
        return own_evaluations
    return [evaluations.get(common_hash) for evaluations in evaluations_by_run]


def _evaluated_cell(evaluation: Evaluated | None, name: str, *, with_mark: bool) -> ComparedFigure:
    if evaluation is None or name not in evaluation.figures:
        return ComparedFigure()
    measure = evaluation.measures.get(name)
    if measure is None:
        return ComparedFigure(evaluation.figures[name])
    if measure.mark and with_mark:
        return ComparedFigure(f"{evaluation.figures[name]} (beside {measure.mark})", measure.value, has_mark=True)
    if measure.interval is None:
        return ComparedFigure(evaluation.figures[name], measure.value)
    return _interval_cell(Interval(measure.value, *measure.interval), percent=measure.percent)


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for named_values in mappings for name in named_values))


def _weight_cell(run: ComparedRun, name: str) -> ComparedFigure:
    run_weight, weight_radius = run.weights[name], NORMAL_95 * run.weight_errors.get(name, math.nan)
    return _interval_cell(Interval(run_weight, run_weight - weight_radius, run_weight + weight_radius), percent=True)


def _interval_cell(interval: Interval, *, percent: bool) -> ComparedFigure:
    interval_words = interval.percent_words if percent else interval.in_words(number)
    return ComparedFigure(interval_words, interval.value, None if math.isnan(interval.low) else interval)
