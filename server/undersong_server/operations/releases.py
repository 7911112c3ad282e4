"""Results of finished runs: published files, the corpus to search, verification, dossier, evaluation."""

import io
import json
import os
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.models import embedders
from undersong_common.models.embedding import Embed, MemoryCache, PublicFileCache
from undersong_common.printable import counted, printable
from undersong_common.privacy import impact
from undersong_common.program.printed_page import PrintedPage
from undersong_common.text.table import Table, count_shared, read_column, read_table
from undersong_server.cluster import Cluster, connected, spread
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation.evaluate import EvaluationReport, evaluate_tables, read_sequences
from undersong_server.evaluation.label_mismatches import LabelMismatches, find_mismatches
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.methods.parts import support
from undersong_server.operations.uploads import table_name
from undersong_server.release.files import (
    ARCHIVE_NAME,
    CARD_NAME,
    CORPUS_NAMES,
    DOSSIER_NAME,
    FILES_WITHOUT_TEXTS,
    JSONL_NAME,
    LEFT_OUT_NAMES,
    MANIFEST_NAME,
    OPTIONAL_NAMES,
    OUTPUT_NAMES,
    SEQUENCES_NAME,
    SET_ASIDE_NAME,
    LeftOut,
    card_of_archive,
    copy_outputs,
    corpus_without,
    published_manifest,
    rows_file,
    sha256_of,
    sign_archive,
)
from undersong_server.release.own_score import OwnScore
from undersong_server.release.verify import PrivacyVerdict, dossier_page, verify
from undersong_server.report.card_facts import CardFacts
from undersong_server.report.data import measures_of
from undersong_server.report.evaluations import (
    Evaluated,
    evaluated,
    keep_evaluation,
    kept_mismatches,
    make_evaluation,
    name_test,
)
from undersong_server.report.rows import MOST_ROWS, frequent_phrases_by_row, split_at_phrases
from undersong_server.runs.held_out import folded_texts, is_same_file
from undersong_server.runs.planning import Planned, coordinator_task

__all__ = [
    "CORPUS_NAMES",
    "LEFT_OUT_NAMES",
    "PrivacyVerdict",
    "verify",
]  # commands and pages use these of release.verify
DRAWN_TEXTS = 1_000  # most texts that are drawn from a corpus where runs are compared
ASIDE_REASONS = {  # by the reason in set-aside.jsonl
    support.GENERATOR: "too few records are near its generator's texts",
    support.SUBJECT: f"it resembles {support.STRAY}",
    support.DOUBT: "the records do not clear its generator, of which many texts are off the subject",
    support.UNJUDGED: "the records do not clear its generator, and nothing judged its texts",
}


@dataclass(frozen=True)
class Exported:
    """Result of an export: the names of a run's files that were copied into ``folder``.

    ``marked`` counts the texts in them that the operator has marked.
    """

    run: str
    folder: Path
    files: tuple[str, ...]
    marked: int = 0


@dataclass(frozen=True)
class Marks:
    """Number of a run's published texts, and of those that the operator has marked as unfit for a receiver.

    ``aside`` counts the texts in the file set-aside.jsonl; 0 if there is none.
    """

    texts: int
    marked: int
    aside: int = 0

    @property
    def can_be_left_out(self) -> bool:
        """True if an export without the marked texts is possible: some are marked, and not all."""
        return 0 < self.marked < self.texts

    @property
    def included_words(self) -> str:
        """Says how many marked texts a file with the whole corpus has; "" for none."""
        if not self.marked:
            return ""
        return f"{counted(self.marked, 'marked text')} of {self.texts:,} included"


def count_marks(home: Path, run: str) -> Marks:
    """Counts a finished run's texts and marks. Raises ConfigurationError for one that has not finished."""
    marked_rows = CoordinatorHome(home).run(run).annotations().marked
    return Marks(count_texts(home, run), len(marked_rows), len(_aside_rows(_output(home, run))))


def export(
    home: Path, run: str, folder: Path, *, without_marked: bool = False, without_aside: bool = False
) -> Exported:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into ``folder``.

    A name that ends in ".zip" becomes one file of these and the dossier (:func:`archive`).

    Args:
        without_marked: leaves the marked texts out of an archive; a folder could not state that they are missing.
        without_aside: leaves the file set-aside.jsonl out of an archive, whose card and ``archive.json`` say so.

    Raises ConfigurationError for a run that is unknown or has not finished, if the folder cannot be written or holds
    another run, and without marked texts as :func:`archive_without_marked` does.
    """
    finished_run = CoordinatorHome(home).finished(run, "export it when it has finished")
    marked_rows = finished_run.annotations().marked
    if folder.suffix == ".zip":
        make_archive = archive_without_marked if without_marked else archive
        zip_bytes = make_archive(home, run, without_aside=without_aside)
        replace_file(folder, zip_bytes, durable=True)
        return Exported(run, folder.parent, (folder.name,), marked=0 if without_marked else len(marked_rows))
    if without_marked or without_aside:
        raise ConfigurationError(
            f"{folder}: an export that leaves texts out must be one .zip archive, not a folder",
            "name a file that ends in .zip with --out",
            code="no-archive",
        )
    _check_target(folder, finished_run.output)
    return Exported(run, folder, tuple(copy_outputs(finished_run.output, folder)), marked=len(marked_rows))


def dossier(
    home: Path, run: str, *, fingerprint: str | None, parties: Mapping[str, str], audit: Path | None
) -> "tuple[PrintedPage, PrivacyVerdict]":
    """Returns the page about a run that a privacy officer files, and the verdict of :func:`verify` on the run.

    Args:
        home: the coordinator's folder, for a run by its name.
        run: a published folder, or the name of a finished run at this coordinator.
        fingerprint, parties: arguments of :func:`verify`; a run at this coordinator defaults to its fingerprint.
        audit: a file that ``undersong audit --json`` wrote.

    Raises ConfigurationError for a ``run`` that is neither, and PrivacyRefusal if its manifest cannot be read.
    """
    folder = Path(run)
    if not (folder / MANIFEST_NAME).exists():
        coordinator_home = CoordinatorHome(home)
        folder = coordinator_home.finished(run, "write its dossier when it has finished").output
        fingerprint = fingerprint or coordinator_home.authority().fingerprint
    audit_result = None if audit is None else impact.read_audit(audit)
    privacy_verdict = verify(folder, fingerprint=fingerprint, parties=parties)
    return dossier_page(folder, privacy_verdict, fingerprint=fingerprint, audit=audit_result), privacy_verdict


def archive(home: Path, run: str, *, without_aside: bool = False) -> bytes:
    """Makes a ZIP file of everything that a finished run published, and its dossier.

    Args:
        without_aside: leaves the file set-aside.jsonl out, as card, ``archive.json`` and :func:`verify` then say.

    Raises ConfigurationError for a run that has not finished.
    """
    archived_names = _archived_names(home, run, without_aside=without_aside)
    published_files = {name: read_file(home, run, name) for name in archived_names}
    return _pack_archive(home, run, published_files, {})


def _archived_names(home: Path, run: str, *, without_aside: bool) -> list[str]:
    return [name for name in files(home, run) if not (without_aside and name == SET_ASIDE_NAME)]


def archive_without_marked(home: Path, run: str, *, without_aside: bool = False) -> bytes:
    """Makes the ZIP file of :func:`archive` with a corpus that lacks the marked texts.

    What shows texts of the corpus or numbers them is left out, too. The archive's signed ``archive.json`` states how
    many texts are missing, so that :func:`verify` knows the shorter corpus as the coordinator's.

    Raises ConfigurationError for a run that has not finished or has no marked text, and if all texts are marked.
    """
    output_folder = _output(home, run)
    marked_rows = CoordinatorHome(home).run(run).annotations().marked
    if not marked_rows:
        raise ConfigurationError(f"run {run!r} has no marked text", "mark texts on its Result first", code="no-marks")
    if len(marked_rows) >= len(_rows(output_folder)):
        raise ConfigurationError(f"run {run!r}: every text is marked", "take some marks away", code="no-text-left")
    corpus_contents, left_out = corpus_without(output_folder, marked_rows)
    archived_names = _archived_names(home, run, without_aside=without_aside)
    files_without_texts = {name: read_file(home, run, name) for name in archived_names if name in FILES_WITHOUT_TEXTS}
    return _pack_archive(home, run, files_without_texts, corpus_contents, left_out)


def _pack_archive(
    home: Path,
    run: str,
    published_files: Mapping[str, bytes],
    changed_files: Mapping[str, bytes],
    left_out: LeftOut | None = None,
) -> bytes:
    """Packs the published files, the ``changed_files``, card and dossier, and the coordinator's signed hashes of these.

    The card names the archive's own files, ``archive.json`` the optional ones that are not among ``published_files``.
    """
    # An unfinished run is refused here, by its name: the dossier's error would name a folder.
    output_folder = _output(home, run)
    home_authority = CoordinatorHome(home).authority()
    page, _ = dossier(home, str(output_folder), fingerprint=home_authority.fingerprint, parties={}, audit=None)
    added_files: dict[str, bytes | str] = {
        **changed_files,
        DOSSIER_NAME: page.html(at=time.strftime("%Y-%m-%d %H:%M %Z")),
    }
    card = {**published_files, **changed_files}.get(CARD_NAME)
    if card is not None:
        added_files[CARD_NAME] = card_of_archive(card.decode("utf-8"), {*published_files, *added_files, ARCHIVE_NAME})
    manifest = read_file(home, run, MANIFEST_NAME)
    left_out_files = [name for name in files(home, run) if name in OPTIONAL_NAMES and name not in published_files]
    added_files[ARCHIVE_NAME] = sign_archive(
        home_authority.signing_key, manifest, dict(added_files), left_out, left_out_files
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zip_file:
        for file_name, file_bytes in {**published_files, **added_files}.items():
            zip_file.writestr(f"{run}/{file_name}", file_bytes)
    return buffer.getvalue()


def _check_target(folder: Path, output: Path) -> None:
    """Raises ConfigurationError for a folder of another run, whose manifest would not match this run's texts."""
    if not (folder / MANIFEST_NAME).exists():
        return
    try:
        target_hash = published_manifest(folder).get("manifest_hash")
    except ConfigurationError:
        target_hash = None
    if target_hash != published_manifest(output).get("manifest_hash"):
        raise ConfigurationError(
            f"{folder}: holds the files of another run", "name another folder with --out", code="another-run-there"
        )


def _output(home: Path, run: str) -> Path:
    return CoordinatorHome(home).finished(run, "results are available when the run has finished").output


def files(home: Path, run: str) -> dict[str, int]:
    """Sizes in bytes of the published files by name. Raises ConfigurationError for a run that has not finished."""
    paths = [_output(home, run) / output_name for output_name in OUTPUT_NAMES]
    return {path.name: path.stat().st_size for path in paths if path.exists()}


def read_file(home: Path, run: str, name: str) -> bytes:
    """Reads a published file. Raises ConfigurationError for any other name."""
    if name not in files(home, run):
        raise ConfigurationError(f"run {run!r} has no file {name!r}", f"choose one of: {', '.join(files(home, run))}")
    return (_output(home, run) / name).read_bytes()


def own_score(folder: Path, options: EvaluationOptions, privacy_verdict: PrivacyVerdict | None = None) -> OwnScore:
    """Measures the panel, trained on a published corpus, on the reader's own test file, and compares it with the card.

    Args:
        privacy_verdict: what :func:`verify` found in the folder; None compares with no card.
    """
    report = evaluate(folder, options)
    test_path = options.test if isinstance(options.test, Path) else None
    test_name = test_path.name if test_path else "the test file"
    test_hash = (sha256_of(test_path) or "") if test_path else ""
    if not report.trained:
        return OwnScore(test_name, test_hash, f"on {test_name}: not measured, for the file or the corpus has no labels")
    first_models = report.trained[0]
    test_accuracy = first_models.accuracy_by_texts
    shared_count = 0
    if test_path:
        corpus_texts = {str(row["text"]) for row in _rows(folder)}
        shared_count = sum(text in corpus_texts for text in read_column(test_path, options.text_field))
    shared_words = (
        f"; {shared_count} of these texts stand in the corpus, so the score says too much" if shared_count else ""
    )
    return OwnScore(
        test_name,
        test_hash,
        f"on {test_name}: small models trained on this corpus label {test_accuracy.percent_words} of"
        f" {counted(first_models.scores.rows, 'text')} rightly ({first_models.description}){shared_words}",
        score=round(100 * test_accuracy.value, 1),
        by_label=first_models.accuracy_by_label,
        card=privacy_verdict.card if privacy_verdict else CardFacts(),
        card_is_of_these_texts=privacy_verdict is None or privacy_verdict.left_out is None,
    )


def count_mismatches(folder: Path) -> LabelMismatches:
    """Finds the texts of a published corpus that read like another label; not measured where they cannot be read."""
    try:
        table = _read_synthetic(rows_file(folder))
    except ConfigurationError:
        return LabelMismatches()
    return find_mismatches(table.texts, table.labels or ())


def verdict(home: Path, run: str) -> PrivacyVerdict:
    """Verifies a run's own folder with this coordinator's fingerprint, like `undersong verify`."""
    privacy_verdict = verify(_output(home, run), fingerprint=CoordinatorHome(home).authority().fingerprint)
    return replace(privacy_verdict, is_own=True)


@dataclass(frozen=True)
class Found:
    """Texts of a corpus that match a search.

    Attributes:
        texts: their published rows, in order.
        numbers: the row of each in the corpus, from 1.
        labels, generators: number of matching texts by name.
        corpus: number of texts in all.
        marked: rows of all marked texts.
        aside: number of texts in the file set-aside.jsonl.
        mismatches: all texts that read like another label; None if an earlier version has not counted them.
        pieces: where texts with a frequent phrase were searched, each text in pieces by its row, with whether a piece
            belongs to such a phrase; else empty.
    """

    texts: tuple[Mapping[str, Any], ...]
    numbers: tuple[int, ...]
    labels: Mapping[str, int]
    generators: Mapping[str, int]
    corpus: int
    marked: tuple[int, ...] = ()
    aside: int = 0
    mismatches: LabelMismatches | None = None
    pieces: Mapping[int, Sequence[tuple[str, bool]]] = field(default_factory=dict)


@dataclass(frozen=True)
class FrequentPhrases:
    """Phrases that many rows of a corpus share.

    Attributes:
        by_row: the phrases of each row that has one, by its number, from 1.
        rows: number of rows that were looked at; ``least_rows`` of them have a phrase at least, if it is frequent.
    """

    by_row: Mapping[int, set[str]]
    rows: int
    least_rows: int


def frequent_phrases(texts: Sequence[str]) -> FrequentPhrases:
    """Returns the frequent phrases of a corpus, of its drawn rows where it has more than MOST_ROWS."""
    rows = sorted(drawn_rows(len(texts), MOST_ROWS))
    phrases_by_row, least_rows = frequent_phrases_by_row([texts[row] for row in rows])
    by_row = {row + 1: phrases for row, phrases in zip(rows, phrases_by_row, strict=True) if phrases}
    return FrequentPhrases(by_row, len(rows), least_rows)


# Texts to search: those of the corpus, the marked ones, those set aside, those that read like another label, those with
# a frequent phrase.
Texts = Literal["", "marked", "aside", "mismatched", "phrases"]
MISMATCHED: Texts = "mismatched"
WITH_PHRASE: Texts = "phrases"


def search(home: Path, run: str, *, find: str = "", label: str = "", generator: str = "", texts: Texts = "") -> Found:
    """Returns the texts that contain ``find`` (in any case), with this label and generator; "" means any.

    The counts leave out their own filter: they state what another choice would give. Texts that were set aside have
    the rows of their own file, from 1, and the ``reason`` in words.
    """
    output_folder = _output(home, run)
    corpus_rows, aside_rows = _rows(output_folder), _aside_rows(output_folder)
    run_folder = CoordinatorHome(home).run(run)
    marked_rows, mismatches = run_folder.annotations().marked, kept_mismatches(run_folder)
    folded_find, phrases_by_row = find.casefold(), dict[int, set[str]]()
    if texts == WITH_PHRASE:
        phrases_by_row = dict(frequent_phrases([str(row.get("text", "")) for row in corpus_rows]).by_row)
        candidates = {row_number: corpus_rows[row_number - 1] for row_number in phrases_by_row}
    elif texts == "marked":
        candidates = {row_number: corpus_rows[row_number - 1] for row_number in marked_rows}
    elif texts == MISMATCHED:
        mismatched_rows = mismatches.label_by_row if mismatches is not None else {}
        candidates = {
            row_number: corpus_rows[row_number - 1] for row_number in mismatched_rows if row_number <= len(corpus_rows)
        }
    elif texts == "aside":
        candidates = dict(enumerate(map(_with_reason_words, aside_rows), 1))
    else:
        candidates = dict(enumerate(corpus_rows, 1))
    matching_rows = {
        row_number: row for row_number, row in candidates.items() if folded_find in str(row.get("text", "")).casefold()
    }
    rows_of_label = {
        row_number: row for row_number, row in matching_rows.items() if not label or row.get("label") == label
    }
    rows_of_generator = {
        row_number: row
        for row_number, row in matching_rows.items()
        if not generator or row.get("generator") == generator
    }
    shown_rows = {row_number: row for row_number, row in rows_of_label.items() if row_number in rows_of_generator}
    return Found(
        texts=tuple(shown_rows.values()),
        numbers=tuple(shown_rows),
        labels=dict(Counter(str(row.get("label", "")) for row in rows_of_generator.values())),
        generators=dict(Counter(str(row.get("generator", "")) for row in rows_of_label.values())),
        corpus=len(corpus_rows),
        marked=marked_rows,
        aside=len(aside_rows),
        mismatches=mismatches,
        pieces={
            row_number: split_at_phrases(str(shown_rows[row_number].get("text", "")), phrases)
            for row_number, phrases in phrases_by_row.items()
            if row_number in shown_rows
        },
    )


def _with_reason_words(row: dict[str, Any]) -> dict[str, Any]:
    """A row of set-aside.jsonl with its reason in words; a reason of a later version stays as it is."""
    reason = str(row.get("reason", ""))
    return {**row, "reason": ASIDE_REASONS.get(reason, reason)}


def count_texts(home: Path, run: str) -> int:
    """Number of a finished run's published texts. Raises ConfigurationError for one that has not finished."""
    return len(_rows(_output(home, run)))


def evaluate_run(home: Path, run: str, options: EvaluationOptions, *, test_name: str = "") -> Evaluated:
    """Evaluates a finished run's corpus beside a test file that is public, and keeps the figures for comparisons.

    Figures on another file than the run's own stand beside the run's own figures. At most :data:`DRAWN_TEXTS` drawn
    texts are judged, so that a figure does not tell one corpus's size from another's.

    Args:
        test_name: name of the test file where it was uploaded; "" takes that of the path.

    Raises ConfigurationError for a run that has not finished, if a generator has read the file, if a run of this
    coordinator has written some of its texts, and as :func:`evaluate` does.
    """
    run_folder = CoordinatorHome(home).finished(run, "evaluate it when it has finished")
    test_file = options.test
    if not isinstance(test_file, Path):
        raise ConfigurationError(f"{run}: is evaluated beside a test file only", "name a test file (--test)")
    _check_unread(run_folder.planned(), test_file, test_name or test_file.name)
    _check_unwritten(home, test_file, options.text_field, test_name or test_file.name)
    report = evaluate(run_folder.output, options, largest=DRAWN_TEXTS)
    new_evaluation = make_evaluation(
        name_test(test_file, test_name),
        measures_of(report),
        report.trained[0].accuracy_by_texts if report.trained else None,
        report.synthetic_rows,
    )
    keep_evaluation(run_folder, new_evaluation)
    return new_evaluation


def _check_unread(stored_plan: Planned, test_file: Path, test_name: str) -> None:
    """Raises ConfigurationError if a generator of the run has read the test file, or a copy of it."""
    task = coordinator_task(stored_plan.task, Path(stored_plan.folder), stored_plan.roster)
    for generator in task.generators:
        for file_name in generator.files:
            if is_same_file(task.locate(file_name), test_file):
                raise ConfigurationError(
                    f"{printable(test_name, 100)}: generator {generator.name} has read this file, so that the texts"
                    " would seem better than they are",
                    "choose a file that no generator has read",
                    code="test-file-read",
                )


def _check_unwritten(home: Path, test_file: Path, text_field: str, test_name: str) -> None:
    """Raises ConfigurationError if more than a few texts of the test file stand in a corpus of this coordinator."""
    test_texts = folded_texts(test_file, text_field)
    for folder in CoordinatorHome(home).runs():
        if shared_count := count_shared(test_texts, folded_texts(folder.output / JSONL_NAME, "text")):
            raise ConfigurationError(
                f"{printable(test_name, 100)}: {shared_count} of its {counted(len(test_texts), 'text')} were written by"
                f" the run {folder.name}, so that a score beside them says nothing of real texts",
                "choose real texts that are public",
                code="test-file-written",
            )


def own_evaluation(home: Path, run: str) -> Evaluated | None:
    """Returns a run's own figures beside a test file; None before an evaluation."""
    return evaluated(CoordinatorHome(home).run(run))


def evaluation_place(home: Path, run: str, evaluation: Evaluated) -> str:
    """Says where the figures of an evaluation stand: as the run's own, or beside them."""
    own_figures = own_evaluation(home, run)
    if own_figures is None or own_figures.file_hash == evaluation.file_hash:
        return f"Evaluated on {evaluation.test}."
    return f"Evaluated on {evaluation.test}. The run's own figures, on {own_figures.test}, stay."


def evaluate_uploaded(home: Path, run: str, content: bytes, name: str, options: EvaluationOptions) -> Evaluated:
    """Evaluates a finished run beside an uploaded test file, which keeps its name. Raises as :func:`evaluate_run`."""
    file_name, file_ending = table_name(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"test{file_ending}"
        path.write_bytes(content)
        try:
            return evaluate_run(home, run, replace(options, test=path), test_name=printable(file_name, 100))
        except ConfigurationError as error:
            problem = error.problem.replace(str(path), printable(file_name, 100))
            raise ConfigurationError(problem, error.remedy.replace(str(path), file_name), code=error.code) from None


def published_texts(home: Path, run: str) -> list[str] | None:
    """Returns the published texts of a run; None before publication. Raises ConfigurationError for an unknown run."""
    output_folder = CoordinatorHome(home).run(run).output
    if (output_folder / JSONL_NAME).is_file():
        return [str(row["text"]) for row in _rows(output_folder)]
    return None


def drawn_rows(row_count: int, drawn_count: int) -> list[int]:
    """Draws row numbers of a corpus without replacement, always the same ones; all in order where there are no more."""
    if row_count <= drawn_count:
        return list(range(row_count))
    return [int(row_number) for row_number in np.random.default_rng(0).permutation(row_count)[:drawn_count]]


def _rows(output: Path, name: str = JSONL_NAME) -> list[dict[str, Any]]:
    # A text may hold separators such as U+2028, which end a line for str.splitlines and not in this format.
    return [json.loads(line) for line in (output / name).read_bytes().split(b"\n") if line]


def _aside_rows(output: Path) -> list[dict[str, Any]]:
    """The rows of the texts that were set aside; none if there is no such file."""
    return _rows(output, SET_ASIDE_NAME) if (output / SET_ASIDE_NAME).exists() else []


def embedder(model: str, cluster: Cluster | None = None, public_cache: Path | None = None) -> Embed:
    """Texts to float32 unit vectors [n, d], cached in memory only, since the texts may be private.

    Args:
        model: "packaged", a local sentence-transformers folder, or "plug-in:NAME" (docs/extending.md).
        cluster: embeds where the texts are many; they leave this process.
        public_cache: file with embeddings of public texts, from which a stopped evaluation goes on; None unless all
            texts are public.
    """
    cache = MemoryCache() if public_cache is None else PublicFileCache(public_cache)
    return spread(embedders.load(model), model, cache, cluster).encode


def evaluate(
    folder: Path, options: EvaluationOptions, embed: Embed | None = None, *, largest: int | None = None
) -> EvaluationReport:
    """Evaluates the synthetic texts in ``folder``, the output of a finished run.

    Args:
        embed: texts to float32 unit vectors [n, d], in this process; None loads the embedder of the options.
        largest: number of texts that are drawn where the corpus has more; None takes all.

    Raises ConfigurationError where a file is missing or not usable.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"{folder}: no such folder", "name the output folder of a finished run", code="folder-missing"
        )
    if not (folder / JSONL_NAME).is_file():
        raise ConfigurationError(
            f"{folder}: holds no {JSONL_NAME}",
            "name the output folder of a finished run; one that was stopped continues when it is started again",
            code="run-unfinished",
        )
    synthetic_table = _read_synthetic(folder / JSONL_NAME)
    if largest is not None:
        synthetic_table = synthetic_table.take(drawn_rows(len(synthetic_table), largest))
    compared_files = (options.test, options.train_private, options.overlap, options.membership)
    if all(source is None for source in compared_files) and not options.personal_data:
        raise ConfigurationError(
            f"{folder}: no file was named to compare its texts with",
            "name a file to compare with (--test or --overlap)",
            code="nothing-to-compare",
        )
    if options.group_field and not isinstance(options.test, Path):
        raise ConfigurationError(
            "--group-field names a column of the test file, and no test file is given",
            "name it with --test",
            code="test-file-missing",
        )
    test_groups = read_column(options.test, options.group_field) if options.group_field else None  # type: ignore[arg-type]
    known_sequences = read_sequences(folder / SEQUENCES_NAME) if options.sequences else None
    with connected(options.ray) as cluster:
        public_cache = public_cache_path(os.environ) if options.public_data else None
        return evaluate_tables(
            str(folder),
            synthetic_table,
            options,
            embed=embed or embedder(options.embedder, cluster, public_cache),
            sequences=known_sequences,
            groups=test_groups,
        )


def _read_synthetic(path: Path) -> Table:
    """The run's texts. Rows are few enough to read twice where the task has no labels (all are "")."""
    try:
        return read_table(path, "text", "label")
    except ConfigurationError as error:
        if "is empty or not a label" not in error.problem:
            raise
        return read_table(path, "text")
