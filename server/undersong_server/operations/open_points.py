"""Points of a finished run that stay open before its texts are published, each from what was measured or planned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from undersong_common.printable import counted, joined, number
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.evaluation.label_mismatches import LabelMismatches
from undersong_server.operations import comparison
from undersong_server.operations.overview import run_plan
from undersong_server.operations.releases import MISMATCHED, WITH_PHRASE, Found, frequent_phrases, search
from undersong_server.report.answers import WORD_SALAD
from undersong_server.report.evaluations import evaluated
from undersong_server.report.rows import PHRASE_WORDS
from undersong_server.report.terms import NGRAM, TextSource

NOWHERE = "nowhere"  # A place of publication that begins so says that the texts are not published.
MANY_ROWS = 0.25  # share of rows with a frequent phrase, from which on an operator is told


@dataclass(frozen=True)
class OpenPoint:
    """One point: a sentence, and a link to the place that says more, by its words and its address.

    ``is_of_terms``: True if the plan lacks terms without which nobody may publish the texts.
    """

    words: str
    link: str
    address: str
    is_of_terms: bool = False


@dataclass(frozen=True)
class PublishAnswer:
    """Says in a sentence (``words``) if an operator publishes a run; ``is_no`` is True if plan or alarm forbids it."""

    words: str
    is_no: bool = False


def publish_answer(
    home: Path, run: str, judgement: comparison.ResultJudgement, points: Sequence[OpenPoint]
) -> PublishAnswer:
    """Advises whether the texts of a finished run may be published; the answer begins with Yes, Not yet or No.

    Args:
        judgement, points: the run's, of :func:`comparison.judge` and :func:`open_points`.
    """
    points_words = f"{counted(len(points), 'point')} {'is' if len(points) == 1 else 'are'} open"
    if reason := bar_to_publication(home, run):
        return PublishAnswer(f"No, because {reason}{f'; {points_words}' if points else ''}.", is_no=True)
    if judgement.alarms:
        return PublishAnswer(f"No, because the texts are bad by what was measured; {points_words}.", is_no=True)
    if points:
        return PublishAnswer(f"Not yet: {points_words}.")
    return PublishAnswer("Yes: nothing that was measured or planned speaks against it.")


def bar_to_publication(home: Path, run: str) -> str:
    """Returns why a run's plan keeps its texts from being published, as a clause; "" if it does not."""
    publication = run_plan(home, run).planned.task.get("publication", {})
    if str(publication.get("where", "")).lstrip().casefold().startswith(NOWHERE):
        return "whoever planned it wrote that the texts are published nowhere"
    if publication.get("invented_records"):
        return "it is a demonstration: by its plan every record is invented"
    return ""


def lacks_terms(home: Path, run: str) -> bool:
    """Returns True if a finished run's plan lacks the texts' licence, or the source of a generator's texts."""
    return any(point.is_of_terms for point in _source_points(home, run, search(home, run)))


def open_points(home: Path, run: str, judgement: comparison.ResultJudgement) -> tuple[OpenPoint, ...]:
    """Returns what speaks against publishing a finished run, or is not known yet. The most serious point is first.

    Args:
        judgement: the run's, of :func:`comparison.judge`.

    Raises ConfigurationError for a run that is unknown or has not finished.
    """
    corpus = search(home, run)
    result_address = f"/runs/one/{quote(run)}/result"
    texts_to_read = _texts_to_read(home, run, corpus, result_address)
    return (*_quality_points(home, run, result_address, judgement), *texts_to_read, *_source_points(home, run, corpus))


def count_open_points(home: Path, run: str) -> int:
    """Counts a finished run's open points."""
    return len(open_points(home, run, comparison.judge(home, run)))


def _quality_points(
    home: Path, run: str, result_address: str, judgement: comparison.ResultJudgement
) -> Iterator[OpenPoint]:
    run_folder = CoordinatorHome(home).run(run)
    for alarm in judgement.alarms:
        yield OpenPoint(alarm, "How good", f"{result_address}#evaluation")
    if evaluated(run_folder) is None:
        yield OpenPoint("No public test file says how good the texts are.", "Evaluate", f"{result_address}#evaluate")
    if judgement.help is not None and judgement.help.sign != 1:
        clause = judgement.help.clause
        yield OpenPoint(f"{clause[0].upper()}{clause[1:]}.", "How good", f"{result_address}#evaluation")


def _texts_to_read(home: Path, run: str, corpus: Found, result_address: str) -> Iterator[OpenPoint]:
    for unread_texts in comparison.texts_to_read(home, run, corpus.generators):
        query = urlencode({"generator": unread_texts.generator})
        point_words = f"{counted(unread_texts.texts, 'text')} of {unread_texts.generator}: {unread_texts.reason}."
        yield OpenPoint(point_words, "Read them", f"{result_address}?{query}#corpus")
    phrases = frequent_phrases([str(row["text"]) for row in corpus.texts])
    phrase_row_count = len(phrases.by_row)
    if phrases.rows and phrase_row_count >= MANY_ROWS * phrases.rows:
        row_percent = 100 * phrase_row_count / phrases.rows
        point_words = (
            f"{number(phrase_row_count)} of {counted(phrases.rows, 'row')} ({row_percent:.0f} %) hold a stock phrase,"
            f" {PHRASE_WORDS} words in a row that stand in {phrases.least_rows} or more rows: the texts vary little."
        )
        yield OpenPoint(point_words, "Read these rows", f"{result_address}?marked={WITH_PHRASE}#corpus")
    mismatches = corpus.mismatches or LabelMismatches()
    if unmarked_rows := mismatches.label_by_row.keys() - {*corpus.marked}:
        point_words = f"{mismatches.sentence} Not marked of these: {number(len(unmarked_rows))}."
        yield OpenPoint(point_words, "Read them", f"{result_address}?marked={MISMATCHED}#corpus")
    if corpus.aside:
        point_words = (
            f"The archive also holds the file set-aside.jsonl, with {counted(corpus.aside, 'text')} of no corpus:"
        )
        by_generator = search(home, run, texts="aside").generators
        point_words += f" {joined([f'{number(count)} of {name}' for name, count in by_generator.items()])}."
        yield OpenPoint(point_words, "Read its texts", f"{result_address}?marked=aside#corpus")


def _source_points(home: Path, run: str, corpus: Found) -> Iterator[OpenPoint]:
    run_address = f"/runs/one/{quote(run)}"
    task = run_plan(home, run).planned.task
    generator_tables = [table for table in task.get("generators", ()) if corpus.generators.get(str(table.get("name")))]
    if word_salads := [str(table["name"]) for table in generator_tables if table.get("kind") == NGRAM]:
        yield OpenPoint(f"{joined(word_salads)}: {WORD_SALAD}", "Read texts", f"{run_address}/result?find=#corpus")
    sources = [
        TextSource(*(str(table.get(key, "")) for key in ("name", "kind", "source"))) for table in generator_tables
    ]
    if unnamed_sources := [source.name for source in sources if not source.is_stated]:
        point_words = f"The plan does not name the source of the texts of {joined(unnamed_sources)}, nor its licence."
        yield OpenPoint(
            point_words, "State it in another plan: Generators, Source", "/runs/new#earlier", is_of_terms=True
        )
    if not task.get("publication", {}).get("licence"):
        point_words = "The plan states no licence for the texts."
        yield OpenPoint(point_words, "The report", f"{run_address}/report", is_of_terms=True)
