"""The commands ``undersong-party data ...``, ``ledger`` and ``restore-ledger``."""

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undersong_client import operations
from undersong_client.cli.options import (
    DespiteCautions,
    HomeFolder,
    OtherPatient,
    SamePatient,
    checkpoints_folder,
    confirm_cautions,
    home_of,
    is_used_up,
    local_time,
    print_json,
    print_result,
    spending_words,
    warn,
)
from undersong_client.cli.rules import Questions, budget_lines
from undersong_client.home import PartyHome, case_caution, chosen_user_is, unit_word
from undersong_common.errors import ConfigurationError, named_options
from undersong_common.models.model_files import PACKAGED
from undersong_common.printable import counted, first_named, printable, that_hold
from undersong_common.program.options import AsJson, with_options
from undersong_common.program.terminal import show_lines, show_rows

if TYPE_CHECKING:
    from undersong_client.home import Declared, PartySettings
    from undersong_client.operations.data import LedgerFacts, Look
    from undersong_client.storage.checkpoints import RestoredLedger
    from undersong_client.storage.datasets import Survey


data_app = typer.Typer(help="This party's data set. None of these commands sends anything.", no_args_is_help=True)

AbandonRuns = Annotated[
    bool,
    typer.Option(
        "--abandon-runs", help="End the runs that are under way here, at what they have charged; never refunded."
    ),
]
ChargeMissing = Annotated[
    bool,
    typer.Option(
        "--charge-missing",
        help="Where no backup holds everything: count as spent all that may be missing, and go on from there.",
    ),
]
Receipts = Annotated[
    list[Path] | None,
    typer.Option(
        "--receipts",
        metavar="MANIFEST.json",
        help="Of a published data set that this party took part in: its receipt there is counted; repeatable.",
    ),
]


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    app.add_typer(data_app, name="data")
    app.command()(ledger)
    app.command("restore-ledger")(restore_ledger)


@dataclass(frozen=True)
class SourceOptions:
    """The source of a data set, the columns to read, and the records to leave out."""

    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSONL, NDJSON, CSV, TSV (also .gz), Parquet or XLSX; FHIR NDJSON (also a folder); a query (.sql).",
        ),
    ]
    text_field: Annotated[str, typer.Option(help="The column of texts; a.b is a value inside a nested one.")] = "text"
    label_field: Annotated[str, typer.Option(help="The column of labels; none if empty.")] = ""
    user_field: Annotated[str, typer.Option(help="The column of patient numbers; none if empty.")] = ""
    user_is: Annotated[
        str,
        typer.Option(
            metavar="patient|case|WORD", help="Whom one value of that column stands for: the word of every sentence."
        ),
    ] = ""
    period: Annotated[
        str,
        typer.Option(metavar="WORDS", help="What period the records cover: one line for your own sheet, never sent."),
    ] = ""
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN", help="A column that stands for an attribute of the operator's; repeatable."
        ),
    ] = None
    encoding: Annotated[str, typer.Option(help="Of a CSV, TSV or JSONL file, for example latin-1.")] = "utf-8"
    quoting: Annotated[
        str, typer.Option(metavar="csv|none", help="Of a CSV or TSV file: quotes enclose fields, or are letters.")
    ] = ""
    sheet: Annotated[str, typer.Option(metavar="NAME", help="The sheet of a workbook, where several are filled.")] = ""
    same_patient: SamePatient = None
    other_patient: OtherPatient = None
    fhir_system: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER=BASE",
            help="Whose resources a folder of a FHIR export holds: the server's base; repeatable.",
        ),
    ] = None
    also_status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="FHIR documents of this status count too, as preliminary; repeatable."),
    ] = None
    label_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW",
            help="A label by what stands there; *=NEW: any other, =NEW: none there, OLD=: leave out; repeatable.",
        ),
    ] = None
    row_filter: Annotated[
        str, typer.Option("--filter", help="A program of yours: rows in and rows out, one JSON object a line.")
    ] = ""
    database: Annotated[
        str, typer.Option(metavar="FILE|env:NAME", help="Where the URL of a query's database is; never the URL itself.")
    ] = ""
    exclude: Annotated[
        Path | None,
        typer.Option(help="Identifiers of patients who take no part: one a line, or a query. Kept until --no-exclude."),
    ] = None
    hold_out: Annotated[
        int | None,
        typer.Option(
            help="Per cent of the patients to keep out, to judge a corpus by (default: as before).", min=0, max=50
        ),
    ] = None
    no_exclude: Annotated[bool, typer.Option("--no-exclude", help="The exclusion list acts no more.")] = False
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where encrypted embeddings are kept (default: beside the data).")
    ] = None

    def declaration(self, settings: "PartySettings") -> "Declared":
        """Returns the declaration that the options make; may ask at a terminal whom a value of ``user_field`` names."""
        from undersong_client.home import Declared

        declared_source = Declared(
            data=str(self.file),
            text_field=self.text_field,
            label_field=self.label_field,
            user_field=self.user_field,
            attribute_fields=dict(map(_parse_attribute, self.attribute or ())),
            encoding=self.encoding,
            label_map=dict(map(_parse_label_pair, self.label_map or ())),
            row_filter=self.row_filter,
            database=self.database,
            exclusions="" if self.no_exclude else str(self.exclude or settings.exclusions),
            hold_out=settings.hold_out if self.hold_out is None else self.hold_out,
            quoting=self.quoting,
            sheet=self.sheet,
            same_patient=settings.same_patient,
            other_patient=settings.other_patient,
            fhir_systems=dict(map(_parse_fhir_system, self.fhir_system or ())),
            also_status=tuple(map(_check_status, self.also_status or ())),
            user_is=ask_user_is(settings, self.user_field, self.user_is),
            period=self.period.strip(),
        )
        return declared_source.decided(self.same_patient or "", self.other_patient or "")


@dataclass(frozen=True)
class FirstRules:
    """The budget and the allowed questions that a data set begins with."""

    epsilon: Annotated[float | None, typer.Option(help="Sets the budget too, as `budget set` does.")] = None
    delta: Annotated[float | None, typer.Option(help="Of that budget (default: by the number of patients).")] = None
    per_run: Annotated[float | None, typer.Option(help="Of that budget: the most of one run.")] = None
    questions: Questions = None

    def check(self) -> None:
        """Raises ConfigurationError for a budget without epsilon."""
        if self.epsilon is None and (self.delta is not None or self.per_run is not None):
            raise ConfigurationError(
                "a budget needs an epsilon", "give --epsilon too, or leave --delta and --per-run out"
            )

    def set(self, folder: Path, confirm: Callable[[Sequence[str]], None]) -> list[str]:
        """Sets the rules that were named, and returns lines about the budget."""
        from undersong_client.consent.rules import PolicyChoices

        rule_lines = []
        if self.epsilon is not None:
            budget_facts = operations.rules.set_budget(
                folder, epsilon=self.epsilon, delta=self.delta, per_run=self.per_run, confirm=confirm
            )
            warn(budget_facts.warnings)
            rule_lines = budget_lines(budget_facts)
        if self.questions:
            operations.rules.set_policy(folder, PolicyChoices(questions=self.questions), confirm=confirm)
        return rule_lines


@dataclass(frozen=True)
class Continuation:
    """The way in which a data set continues the one before it, or one whose ledger was lost."""

    abandon_runs: AbandonRuns = False
    new_version: Annotated[
        bool, typer.Option("--new-version", help="The file replaces the present one; what was spent stays spent.")
    ] = False
    restore_ledger: Annotated[
        Path | None, typer.Option(help="A backup of this data set's ledger, after this party's folder was lost.")
    ] = None
    charge_missing: ChargeMissing = False
    receipts: Receipts = None


@data_app.command()
@with_options()
def add(
    source: SourceOptions,
    rules: FirstRules,
    continuation: Continuation,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Read and count, show three masked records and what is skipped; seal nothing."),
    ] = False,
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Declares the data set and says what is in it: counts, empty records, duplicates. Sends nothing."""
    from undersong_client.storage.addition import AdditionOptions

    folder = home_of(home)
    rules.check()
    declared_source = source.declaration(PartyHome(folder).settings)
    if dry_run:
        _look_at(folder, declared_source, as_json)
        return
    confirm_by_option = partial(confirm_cautions, is_confirmed=despite_cautions)
    added_data = operations.data.add(
        folder,
        declared_source,
        checkpoints=checkpoints_folder(folder),
        options=AdditionOptions(
            cache=source.cache_dir,
            new_version=continuation.new_version,
            abandon=continuation.abandon_runs,
            confirm=confirm_by_option,
            rows_read=show_rows_read(time.monotonic()),
        ),
        restoration=operations.data.Restoration(
            continuation.restore_ledger, continuation.charge_missing, continuation.receipts or ()
        ),
        progress=show_progress(time.monotonic()),
    )
    rule_lines = rules.set(folder, confirm_by_option)
    result_lines = [
        *_survey_lines(added_data.survey, declared_source.user_is),
        *_without_vector(added_data.without_vector),
        *rule_lines,
        *([added_data.lapse_words] if added_data.lapse_words else []),
        f"data set {added_data.ledger.fingerprint[:16]}...; nothing was sent",
        *(() if added_data.restored is None else _restored_lines(added_data.restored)),
    ]
    print_result(as_json, added_data.to_json(), *result_lines)


def _look_at(folder: Path, declaration: "Declared", as_json: bool) -> None:
    """Shows what a declaration would add. Raises ConfigurationError with every problem that would stop it."""
    source_look = operations.data.look(folder, declaration, rows_read=show_rows_read(time.monotonic()))
    stop_problems = [problem for problem, _ in source_look.faults]
    look_json = {**asdict(source_look.survey), "examples": source_look.examples, "stops": stop_problems}
    if not (as_json and stop_problems):  # --json prints one object, which holds the error too.
        print_result(as_json, look_json, *_look_lines(source_look, declaration.user_is))
    if stop_problems:
        stop_faults = [(f"`data add` would stop: {problem}", remedy) for problem, remedy in source_look.faults]
        stop_error = ConfigurationError.together(stop_faults, code="would-stop")
        stop_error.report = look_json
        raise stop_error


def _survey_lines(survey: "Survey", user_is: str) -> Iterator[str]:
    from undersong_client.records.declared import first_places
    from undersong_client.records.objections import exclusion_sentence
    from undersong_client.records.sources import by_reason

    empty_words = counted(survey.empty, "without text is", "without text are")
    people = unit_word("user", user_is, survey.users or 0)
    filter_rows = survey.filter_rows or (0, 0)
    yield from that_hold(
        (True, f"{counted(survey.records, 'record')} of {counted(survey.rows, 'row')}; {empty_words} left out"),
        (True, f"{counted(survey.duplicates, 'record repeats', 'records repeat')} another one's text"),
        (
            survey.labels,
            f"labels: {_label_words(survey.labels)}",
        ),
        (survey.users is not None, f"{survey.users} {people}; the one with most records has {survey.largest_user}"),
        (survey.users is not None and case_caution(user_is), case_caution(user_is)),
        (survey.lengths.words, f"{survey.lengths.words}; nobody else is told"),
        (
            survey.listed_identifiers is not None,
            exclusion_sentence(survey.listed_identifiers or 0, survey.excluded_patients, survey.excluded_records),
        ),
        (
            survey.filter_rows,
            f"the filter: {counted(filter_rows[0], 'row')} in, {counted(filter_rows[1], 'row')} out",
        ),
        (
            survey.missing_words,
            f"{counted(survey.missing_words, 'text or label is', 'texts or labels are')} a word for a missing value"
            " (None, N/A, -) and counts",
        ),
        *(
            (True, f"labels differ by capital letters only: {', '.join(label_forms)}")
            for label_forms in survey.label_forms
        ),
        *((True, f"{look_alikes.sentence}") for look_alikes in survey.look_alikes),
        (survey.held_out, f"held out: {counted(survey.held_out, 'record')}; no run is answered from them"),
    )
    for reason, skipped_rows in by_reason(survey.skipped):
        place_words = first_places([row.places for row in skipped_rows], " (--json names all)")
        yield f"not read: {len(skipped_rows)}, because {reason}: {place_words}"


def _label_words(count_by_label: Mapping[str, int]) -> str:
    from undersong_client.consent.sheet import MOST_NAMES

    label_counts = [f"{label} {record_count}" for label, record_count in count_by_label.items()]
    return first_named(label_counts, MOST_NAMES, " (--json names all)")


def _look_lines(look: "Look", user_is: str) -> Iterator[str]:
    yield from _survey_lines(look.survey, user_is)
    for label, character_count, label_shape in look.examples:
        yield f"example, masked: {label + ', ' if label else ''}{character_count} characters: {label_shape}"
    yield "dry run: nothing was sealed and nothing was sent"


def ask_user_is(settings: "PartySettings", column: str, stated_word: str) -> str:
    """Returns the word for a user; asks at a terminal if the column is named like a case and nothing was stated."""
    try:
        return chosen_user_is(settings, column, stated_word)
    except ConfigurationError as error:
        if not sys.stdin.isatty():
            raise
        return str(typer.prompt(f"{error.problem} (patient, case)")).strip()


def _parse_label_pair(label_option: str) -> tuple[str, str]:
    old_label, equals_sign, new_label = label_option.rpartition("=")
    if not equals_sign:
        raise ConfigurationError(f"--label-map {label_option!r} is no OLD=NEW", "write, for example, 18842-5=discharge")
    return old_label.strip(), new_label.strip()


@data_app.command()
def refresh(
    same_patient: SamePatient = None,
    other_patient: OtherPatient = None,
    abandon_runs: AbandonRuns = False,
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Reads the declared source anew as the next version, and says what has changed; what was spent stays spent."""
    from undersong_client.storage.addition import AdditionOptions

    folder = home_of(home)
    with _whole_remedies():
        refreshed_data = operations.data.refresh(
            folder,
            same_patient=same_patient or "",
            other_patient=other_patient or "",
            checkpoints=checkpoints_folder(folder),
            options=AdditionOptions(
                abandon=abandon_runs,
                confirm=lambda cautions: confirm_cautions(cautions, despite_cautions),
                rows_read=show_rows_read(time.monotonic()),
            ),
            progress=show_progress(time.monotonic()),
        )
    change_words = ["unchanged"]
    if refreshed_data.new_records or refreshed_data.gone_records:
        label_counts = _label_words(refreshed_data.labels_before)
        change_words = [
            f"changed: {refreshed_data.new_records} records are new, {refreshed_data.gone_records} are gone;"
            f" {refreshed_data.new_patients} patients are new, {refreshed_data.gone_patients} are gone",
            *([f"labels before: {label_counts}"] if label_counts else []),
            "what was spent stays spent, for new patients too",
        ]
    if refreshed_data.joined_ids:
        change_words.append(
            f"{refreshed_data.joined_ids} ids of the version before have become"
            f" {counted(refreshed_data.joined_patients, 'patient')}:"
            " such a patient has paid for each of these ids in earlier runs"
        )
    if refreshed_data.added.lapse_words:
        change_words.append(refreshed_data.added.lapse_words)
    survey_lines = _survey_lines(refreshed_data.added.survey, PartyHome(folder).settings.user_is)
    fingerprint_words = f"data set {refreshed_data.added.ledger.fingerprint[:16]}...; nothing was sent"
    print_result(as_json, refreshed_data.to_json(), *survey_lines, *change_words, fingerprint_words)


@contextmanager
def _whole_remedies() -> Iterator[None]:
    """Adds to an error's remedy the command that takes its option, if `data refresh` does not take it."""
    try:
        yield
    except ConfigurationError as error:
        refresh_options = {
            f"--{option_name.replace('_', '-')}" for option_name in inspect.signature(refresh).parameters
        }
        if "undersong-party" in error.remedy or named_options(error.remedy) <= refresh_options | {"--json"}:
            raise
        option_remedy = (
            f"{error.remedy} (undersong-party data add FILE --new-version, with this option and those of before)"
        )
        raise ConfigurationError(error.problem, option_remedy, code=error.code, told=error.told) from None


@data_app.command("keep-until")
def keep_until(
    last: Annotated[str, typer.Argument(metavar="DATE", help="Such as 2027-12-31; none for no end.")],
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Sets the last day on which the data set is answered from. After it every run is refused. Sends nothing."""
    try:
        if last == "none":
            last_day = None
        else:
            last_day = date.fromisoformat(last)
    except ValueError:
        raise ConfigurationError(f"{last!r} is no date", "write it as 2027-12-31, or none") from None
    operations.data.keep_until(home_of(home), last_day)
    if last_day is None:
        sentence = "no last day is set"
    else:
        sentence = f"answered from until {last}; then: undersong-party data erase"
    print_result(as_json, {"keep_until": "" if last_day is None else last}, sentence)


@data_app.command()
def erase(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Deletes the sealed records and their embeddings; the ledger stays. Your own file is not touched."""
    operations.data.erase(home_of(home))
    sentence = "erased: the sealed records and their embeddings; the ledger stays. Stop the daemon's service too"
    print_result(as_json, {"erased": True}, sentence)


def _parse_fhir_system(system_option: str) -> tuple[str, str]:
    folder, equals_sign, base_address = (option_part.strip() for option_part in system_option.partition("="))
    if not (folder and equals_sign and "://" in base_address):
        raise ConfigurationError(
            f"--fhir-system {system_option!r} is no FOLDER=BASE", "write, for example, siteA=https://ehr.example/fhir"
        )
    return folder, base_address


def _check_status(status: str) -> str:
    from undersong_client.records.fhir.documents import IN_ERROR, STATUSES

    allowed_statuses = sorted(STATUSES - {IN_ERROR})
    if status not in allowed_statuses:
        raise ConfigurationError(
            f"--also-status {status!r} is no status that can count", f"one of {', '.join(allowed_statuses)}"
        )
    return status


def _parse_attribute(attribute_option: str) -> tuple[str, str]:
    attribute_name, equals_sign, column = (option_part.strip() for option_part in attribute_option.partition("="))
    if not (attribute_name and equals_sign and column):
        raise ConfigurationError(
            f"--attribute {attribute_option!r} is no NAME=COLUMN", "write, for example, sex=Geschlecht"
        )
    return attribute_name, column


def restore_ledger(
    backup: Annotated[Path | None, typer.Argument(metavar="[BACKUP]", help="The latest copy of the ledger.")] = None,
    charge_missing: ChargeMissing = False,
    receipts: Receipts = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Restores the ledger if it is lost, broken, or older than what was released. Sends nothing."""
    restored_ledger = operations.data.restore_ledger(
        home_of(home),
        checkpoints=checkpoints_folder(home_of(home)),
        backup=backup,
        charge_missing=charge_missing,
        receipts=receipts or (),
    )
    print_result(as_json, restored_ledger.to_json(), *_restored_lines(restored_ledger))


def _restored_lines(restored: "RestoredLedger") -> Iterator[str]:
    run_names = ", ".join(printable(run) for run in restored.runs)
    yield from that_hold(
        (True, f"the ledger counts again, with {counted(len(restored.ledger.entries()), 'entry', 'entries')}"),
        (run_names, f"counted as spent, because it may have been: {run_names}; these runs have ended here"),
        (restored.whole_budget, "nothing shows what was released before: a whole budget counts as spent"),
        (True, spending_words(restored.spending)),
    )
    if restored.spending.budget is None:
        earlier_budget = restored.earlier_budget
        budget_options = "--epsilon E --delta D"
        budget_note = ""
        if earlier_budget is not None:
            budget_options = f"--epsilon {earlier_budget.epsilon:g} --delta {earlier_budget.delta:g}"
            budget_note = "    (what it was before)"
        yield f"every run is refused until one is set; next: undersong-party budget set {budget_options}{budget_note}"


def _without_vector(record_count: int) -> list[str]:
    record_words = counted(record_count, "record has", "records have")
    caution = f"{record_words} no vector from the embedder and will count as zero in every sum; nobody else is told"
    if record_count:
        return [caution]
    return []


def show_rows_read(begun_s: float) -> Any:
    """Returns a function that shows the number of rows read, each second after the first two."""
    printed_at_s = begun_s + 1.0

    def show(rows: int) -> None:
        nonlocal printed_at_s
        now_s = time.monotonic()
        if now_s - printed_at_s < 1.0:
            return
        printed_at_s = now_s
        line_end = "\r" if sys.stderr.isatty() else "\n"
        print(f"read {counted(rows, 'row')}   ", end=line_end, file=sys.stderr, flush=True)

    return show


def show_progress(begun_s: float) -> Any:
    printed_at_s = 0.0

    def show(done: int, total: int) -> None:
        nonlocal printed_at_s
        now_s = time.monotonic()
        if done < total and now_s - printed_at_s < 1.0:
            return
        printed_at_s = now_s
        remaining_s = (now_s - begun_s) * (total - done) / max(done, 1)
        if sys.stderr.isatty() and done < total:
            line_end = "\r"
        else:
            line_end = "\n"
        progress_line = f"embedded {done} of {counted(total, 'record')}, about {remaining_s:.0f} s left   "
        print(progress_line, end=line_end, file=sys.stderr, flush=True)

    return show


@data_app.command("teacher-model")
def teacher_model(
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help='A local transformers encoder, or "packaged".')
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Take part in no run that fine-tunes teachers.")] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Names the local model that runs with fine-tuned teachers use; a running daemon uses it at once. Sends nothing."""
    from undersong_common.models import fine_tuning

    party_home = PartyHome(home_of(home))
    if none == (folder is not None):
        raise ConfigurationError(
            "teacher-model takes exactly one of FOLDER and --none", 'name a FOLDER, or "packaged", or pass --none'
        )
    if folder in (None, PACKAGED):
        model_folder = folder
    else:
        model_folder = str(Path(folder).absolute())
    if model_folder is not None:
        fine_tuning.load(model_folder, classes=2)
    settings = party_home.change(teacher_model=model_folder or "")
    sentence = f"teacher model: {settings.teacher_model or 'none'}; nothing was sent"
    print_result(as_json, {"teacher_model": settings.teacher_model}, sentence)


@data_app.command()
def show(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Shows the declared file and its fields."""
    from undersong_client.storage.datasets import exclusion_words

    settings = PartyHome(home_of(home)).settings
    setting_names = (
        "data",
        "text_field",
        "label_field",
        "user_field",
        "user_is",
        "period",
        "attribute_fields",
        "label_map",
        "row_filter",
        "database",
        "exclusions",
        "quoting",
        "sheet",
        "same_patient",
        "other_patient",
        "fhir_systems",
        "also_status",
        "keep_until",
        "cache",
        "embedder",
        "max_windows",
        "teacher_model",
    )
    setting_by_name = {setting_name: getattr(settings, setting_name) for setting_name in setting_names}
    setting_by_name["objections"] = exclusion_words(PartyHome(home_of(home)))
    print_result(
        as_json,
        setting_by_name,
        *(f"{setting_name}: {setting_value or 'none'}" for setting_name, setting_value in setting_by_name.items()),
    )


def ledger(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every entry against the chain, change nothing.")
    ] = False,
    backup: Annotated[Path | None, typer.Option(help="Copy the ledger to this file.")] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Shows the cost of every release of the data set, and the budget that is left."""
    ledger_facts = operations.data.ledger(home_of(home), verify=verify)
    if backup is not None:
        operations.data.back_up_ledger(home_of(home), backup)
    if as_json:
        print_json(ledger_facts.to_json())
        return
    show_rows(
        ("entry", "kind", "run", "sum", "attempt", "epsilon alone", "when"),
        [
            (
                str(entry["entry"]),
                entry["kind"],
                str(entry.get("run", "")),
                str(entry.get("query", "")),
                str(entry.get("attempt", "")),
                f"{entry['epsilon']:.3g}" if entry["kind"] == "charge" and "epsilon" in entry else "",
                local_time(entry["at"]),
            )
            for entry in ledger_facts.entries
        ],
        "empty",
    )
    if ledger_facts.verified is not None:
        print(
            f"{counted(ledger_facts.verified, 'entry', 'entries')}, the chain holds; head {ledger_facts.head[:16]}..."
        )
    if ledger_facts.runs:
        print()
        _print_costs(ledger_facts)
    show_lines([spending_words(ledger_facts.spending), *filter(None, [ledger_facts.total])])


def _print_costs(facts: "LedgerFacts") -> None:
    """Prints what each run cost, and how much of the budget was left after it, all at one delta."""
    total_budget = facts.spending.budget
    show_rows(
        ("run", "releases", "epsilon alone", "spent after it", "left after it", ""),
        [
            (
                run_cost.run,
                f"{run_cost.releases}{' *' if run_cost.whole_plan else ''}",
                f"{run_cost.epsilon:.4g}",
                f"{run_cost.spent:.4g}",
                "" if total_budget is None else f"{max(0.0, total_budget - run_cost.spent):.4g}",
                "" if total_budget is None else _bar(run_cost.spent, total_budget),
            )
            for run_cost in facts.runs
        ],
        "",
    )
    if any(cost.whole_plan for cost in facts.runs):
        show_lines(["* Charged at its whole plan: stopping a run of sub-sampled or Laplace sums does not refund."])
    if len(facts.runs) > 1:
        show_lines(["Runs of Gaussian noise cost less together than the sum of each alone."])


def _bar(spent: float, total: float) -> str:
    """A bar of ten characters that shows the used part of a budget."""
    if is_used_up(spent, total):
        filled_cell_count = 10
    else:
        filled_cell_count = int(10 * spent / total)
    return "#" * filled_cell_count + "." * (10 - filled_cell_count)
