"""The hospital's folder: its files, their access rights, and how they are replaced.

    settings.json      party name, embedder, where the data set is
    keys/              identity.key, store.key, data.key, tls.pem (TLS key, certificate, chain), tls.next.pem
    coordinator.json   the trusted coordinator: addresses, CA, signing key, fingerprint
    policy.json        what this hospital allows, signed by its identity key
    data.sealed        the data set as it was added, encrypted: what the party answers from
    held_out.sealed    records that were kept out of it to judge a corpus by, encrypted
    ledger.jsonl       what every release of the data set cost
    exclusions.jsonl   which lists of patients who take no part have acted: keyed hashes and counts
    requests/          runs that were proposed, and what was decided
    page/              accounts of the hospital's page, and its log
    journal.sqlite     state of the protocol, encrypted, and the exact bytes that left
    attempts/          keys of the attempts under way in the journal, each destroyed when its attempt ends
    drill/             a drill's invented records
    blocks/            public data of runs, named by content
    status.json        what the daemon last said about itself
    held.json          what the machine lacks now, so that a step of the daemon is held up

Files are 0600 and folders 0700; anything looser is refused, because another user of the machine could have read it.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError, MissingRights
from undersong_common.files import holding, is_empty, is_held, replace_file
from undersong_common.models.model_files import MAX_WINDOWS
from undersong_common.printable import name_fault, noun, printable, shell_path
from undersong_common.program import moving
from undersong_common.program.machine import HeldStep, fault_of, held_steps, named_faults
from undersong_common.program.owner import account_name, check_owner, left_there_remedy
from undersong_common.text.patient_ids import Choice
from undersong_common.text.row_files import has_suffix

if TYPE_CHECKING:
    from undersong_common.models.embedding import Embedder

VERSION = 2  # one number for all files of the folder; version 1 had none
FOLDER_MODE = 0o700
FILE_MODE = 0o600
SETTINGS = "settings.json"
REFUSED_START = "the daemon refuses to start"
PATIENT = "patient"  # the default meaning of a column of user ids
VARIABLE = "env:"  # prefix of the name of an environment variable that holds a database's URL
CLOCK_TOLERANCE_S = 60.0  # largest difference from the coordinator's clock without a warning
LONGEST_PERIOD = 100  # characters of the words for the period that the records cover
ABANDONED_S = 7 * 86400.0  # time from an attempt's start until its secrets are destroyed, if it has not ended


@dataclass(frozen=True)
class Declared:
    """A data set's declaration, as the party's settings keep it.

    Attributes:
        data: the source's file or folder; a file ``.sql`` holds a query.
        text_field, label_field, user_field: names of columns; "" for no column. ``a.b`` names a value in a nested row.
        attribute_fields: columns by the attribute of the operator's task files that they stand for.
        encoding: encoding of a text file.
        label_map: label by the value in the source; the value "" leaves the record out. The key "" stands for a missing
            value, and "*" for any other one.
        row_filter: the hospital's command that reads every row as a line of JSON and writes the rows to use.
        database: file that holds the database's URL, or ``env:NAME`` of a variable that holds it.
        exclusions: file or query with the identifiers of patients to leave out.
        hold_out: per cent of the patients (without ids: of the records) that are held out, to judge a corpus by.
        quoting: "csv" or "none", of a CSV or TSV file that can be read either way; "" if nobody had to choose.
        sheet: name of the sheet of a workbook; "" for the only one that is filled.
        same_patient, other_patient: kinds of look-alikes among ids (undersong_common.text.patient_ids) that a person
            has decided about: they are the same patient, or another one.
        fhir_systems: base of the FHIR system by the folder of the export that holds its resources.
        also_status: statuses of documents that count beside the finished ones.
        user_is: word for whom one value of ``user_field`` stands for: "patient", "case", or another noun; "" where
            nobody has been asked, which stands for "patient".
        period: the period that the records cover, in a person's words; "" where nobody has stated it.
    """

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\W\d_]{0,24}", self.user_is):
            raise ConfigurationError(
                f"--user-is {printable(self.user_is, 40)!r} is no single noun",
                "name one noun in the singular: --user-is patient, or --user-is case",
                code="user-is-no-word",
            )
        if self.period and (fault := name_fault(self.period, LONGEST_PERIOD)):
            raise ConfigurationError(
                f"the period of the records {fault}",
                'write one line, such as --period "January 2024 to June 2025"',
                code="period-no-line",
            )

    data: str
    text_field: str = "text"
    label_field: str = ""
    user_field: str = ""
    attribute_fields: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    label_map: Mapping[str, str] = field(default_factory=dict)
    row_filter: str = ""
    database: str = ""
    exclusions: str = ""
    hold_out: int = 0
    quoting: str = ""
    sheet: str = ""
    same_patient: Sequence[str] = ()
    other_patient: Sequence[str] = ()
    fhir_systems: Mapping[str, str] = field(default_factory=dict)
    also_status: Sequence[str] = ()
    user_is: str = ""
    period: str = ""

    @classmethod
    def of(cls, settings: Any) -> "Declared":
        """Returns the declaration that a party's settings hold."""
        return cls(**{setting_name: getattr(settings, setting_name) for setting_name in cls.__dataclass_fields__})

    @property
    def path(self) -> Path:
        return Path(self.data)

    def check_names(self) -> None:
        """Raises ConfigurationError for a blank name, of which a path would be the working folder's.

        A column or a file that may be left out is left out by "", and by no other blank name.
        """
        optional_names = (
            self.label_field,
            self.user_field,
            self.exclusions,
            self.database,
            *self.attribute_fields.values(),
        )
        ConfigurationError.raise_first(
            (not self.data.strip(), "no file was named", "name the file with the records", "no-name"),
            (not self.text_field.strip(), "no column of texts was named", "name the column with the texts", "no-name"),
            (
                any(column_name and not column_name.strip() for column_name in optional_names),
                "a name of a column or of a file is blank",
                "name it, or leave it out",
                "no-name",
            ),
        )

    def absolute(self) -> "Declared":
        """Returns the same declaration with absolute paths, for a program that starts in another folder.

        Raises ConfigurationError for a blank name.
        """
        self.check_names()

        def absolute(path_text: str) -> str:
            if path_text and not path_text.startswith(VARIABLE):
                return str(Path(path_text).absolute())
            return path_text

        return replace(
            self, data=absolute(self.data), exclusions=absolute(self.exclusions), database=absolute(self.database)
        )

    @property
    def choice(self) -> Choice:
        """The decisions about look-alikes. Raises ConfigurationError for an unknown kind."""
        other_kinds = set(self.other_patient)
        if len(self.fhir_systems) > 1 and "bases" not in self.same_patient:
            other_kinds.add(
                "bases"
            )  # A person who names the systems has decided that their ids are different patients.
        return Choice(frozenset(self.same_patient), frozenset(other_kinds))

    def decided(self, same_patient: str, other_patient: str) -> "Declared":
        """Returns this declaration with new decisions about look-alikes. One about a kind replaces the one before.

        Args:
            same_patient, other_patient: kinds ("zeros,case") whose ids are one patient, or two.
        """
        same_kinds, other_kinds = (
            {identifier_kind.strip() for identifier_kind in written_kinds.split(",") if identifier_kind.strip()}
            for written_kinds in (same_patient, other_patient)
        )
        return replace(
            self,
            same_patient=sorted(same_kinds | (set(self.same_patient) - other_kinds)),
            other_patient=sorted(other_kinds | (set(self.other_patient) - same_kinds)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        column_names = (self.text_field, self.label_field, self.user_field, *self.attribute_fields.values())
        return tuple(column_name for column_name in column_names if column_name)

    @property
    def is_files(self) -> bool:
        """True if reading the source starts no program and queries no database."""
        return not (self.row_filter or has_suffix(self.path, ".sql") or has_suffix(Path(self.exclusions), ".sql"))


@dataclass(frozen=True, kw_only=True)
class PartySettings(Declared):
    """The settings of a party and the declaration of its data set, as ``settings.json`` holds them.

    Attributes:
        data, text_field: "" until a data set is added.
        party: this party's name.
        embedder: "packaged" or the folder of a local model.
        max_windows: windows of a long text that the embedder reads (undersong_common.models.embedding), as in the task
            files.
        keep_until: last day (ISO 8601) on which the data set may be answered from; "" for no end.
        teacher_model: "packaged" or the folder of a local model for fine-tuning teachers; "" for no model.
        notify: command or address that gets notices for people (undersong_common.program.notices); "" for no notices.
        share_budget: True tells the operator how much epsilon is left.
        share_policy: True tells the operator the policy's bounds.
        insecure_noise_seed: tests only; reproducible keys and noise, no privacy at all.
        drill: True for a rehearsal with invented records; set when the folder is made, never by a message.
        drill_sha256: SHA-256 (hex) of the file of invented records; a drill's folder takes no other records.
        joined_ids: for each refresh at which ids of one patient were joined that had been apart: the time (``at_s``),
            the number of these ids (``ids``) and of the patients whose they are (``patients``).
        accepted_shares: shares of the source's rows, by the reason for which they are not read, that a person has
            accepted; more of them are asked about again.
        format: version of all files of the folder; a folder of another version is refused and left as it is.
    """

    data: str = ""
    text_field: str = ""
    party: str
    embedder: str = "packaged"
    max_windows: int = MAX_WINDOWS
    keep_until: str = ""
    cache: str = ""
    teacher_model: str = ""
    notify: str = ""
    share_budget: bool = False
    share_policy: bool = False
    insecure_noise_seed: int | None = None
    drill: bool = False
    drill_sha256: str = ""
    joined_ids: Sequence[Mapping[str, Any]] = ()
    accepted_shares: Mapping[str, float] = field(default_factory=dict)
    format: int = 1

    def load_embedder(self) -> "Embedder":
        """Loads the embedder of these settings. Raises as :func:`undersong_common.models.embedders.load`."""
        from undersong_common.models import embedders

        return embedders.load(self.embedder, self.max_windows)


class WrittenByAnotherVersion(ConfigurationError):
    """A file of the party's folder that another version of the program wrote."""


def _inside(name: str) -> cached_property[Path]:
    return cached_property(lambda home: home.path / name)


class PartyHome:
    """A party's folder. Raises ConfigurationError if it does not exist, or if other users may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if moving.is_moving(self.path):
            raise ConfigurationError(
                f"{path}: is on its way to the service's account or back, and was interrupted",
                "go on with it: the same `undersong-party service install` or `service remove` again",
                code="moving",
            )
        if not (self.path / SETTINGS).exists():
            raise ConfigurationError(
                f"{path}: this folder holds no party",
                "make one with `undersong-party enroll PACKAGE` or `init NAME`, or name it with --home",
                code="no-party",
            )
        self.check_modes()
        if self.settings.format != VERSION:
            raise self._other_version

    def __repr__(self) -> str:
        return f"PartyHome({str(self.path)!r})"

    @classmethod
    def create(cls, path: Path, settings: PartySettings) -> "PartyHome":
        """Makes a party's folder with these settings. Raises ConfigurationError if the folder is not empty."""
        path = path.absolute()
        if path.exists() and (not path.is_dir() or not is_empty(path)):
            raise ConfigurationError(
                f"{path}: is not an empty folder", "name another one with --home", code="folder-not-empty"
            )
        make_folder(path)
        os.chmod(path, FOLDER_MODE)
        for folder_name in ("keys", "requests", "blocks"):
            make_folder(path / folder_name)
        write_json(path / "settings.json", asdict(replace(settings, format=VERSION)))
        return cls(path)

    @property
    def settings(self) -> PartySettings:
        settings_json = read_json(self.path / "settings.json")
        try:
            return PartySettings(**settings_json)
        except TypeError:
            raise self._other_version from None

    @property
    def _other_version(self) -> WrittenByAnotherVersion:
        return WrittenByAnotherVersion(
            f"{self.path}: was set up by another version of this program; nothing in it was changed",
            'run that version, or go on in a new folder: docs/service.md, "Upgrade"',
            code="other-version",
        )

    def change(self, **changes: Any) -> PartySettings:
        """Changes fields of the settings, writes the file and returns the new settings."""
        settings = PartySettings(**{**asdict(self.settings), **changes})
        write_json(self.path / "settings.json", asdict(settings))
        return settings

    @property
    def is_reachable(self) -> bool:
        """False while the folder is away, as one is whose disk is not mounted."""
        return os.path.lexists(self._settings_file)

    def check_reachable(self) -> None:
        """Raises MachineFault while the folder does not exist or cannot be entered, such as an unmounted one."""
        if not self.is_reachable:
            missing_home = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            raise fault_of(missing_home, root=self.path / SETTINGS)

    @cached_property
    def _settings_file(self) -> str:
        return str(self.path / SETTINGS)

    def check_modes(self) -> None:
        """Raises ConfigurationError for the first file that is a link, is another user's, or that others may read."""
        for path in (self.path, *self._private_paths()):
            try:
                file_status = path.lstat()
            except FileNotFoundError:
                continue  # a temporary file that has been renamed meanwhile
            if stat.S_ISLNK(file_status.st_mode):
                raise ConfigurationError(f"{path}: is a link", "put the file itself there", code="is-a-link")
            if file_status.st_uid != os.geteuid():
                check_owner(self.path)
                raise MissingRights(
                    f"{path}: belongs to {account_name(file_status.st_uid)},"
                    f" and this folder to {account_name(os.geteuid())}",
                    left_there_remedy(),
                    code="other-account",
                )
            if stat.S_IMODE(file_status.st_mode) & 0o077:
                if stat.S_ISDIR(file_status.st_mode):
                    wanted_mode = FOLDER_MODE
                else:
                    wanted_mode = FILE_MODE
                raise MissingRights(
                    f"{path}: others may read it (mode {stat.S_IMODE(file_status.st_mode):04o})",
                    f"chmod {wanted_mode:o} {shell_path(path)}",
                    code="readable-by-others",
                )

    def _private_paths(self) -> Iterator[Path]:
        for path in self.path.iterdir():
            if path.name == "blocks":
                yield path  # This folder holds public blocks.
                continue
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from path.iterdir()

    # Paths inside the folder. Each is computed once, because an answer needs dozens of them.

    keys = _inside("keys")
    coordinator = _inside("coordinator.json")
    policy = _inside("policy.json")
    drill_records = _inside("drill/records.jsonl")  # the only file that may be the data set of a drill
    sealed = _inside("data.sealed")
    held_out = _inside("held_out.sealed")
    ledger = _inside("ledger.jsonl")
    exclusions = _inside("exclusions.jsonl")  # the objectors' lists that have acted, as keyed hashes and counts
    requests = _inside("requests")
    page = _inside("page")
    journal = _inside("journal.sqlite")
    attempts = _inside("attempts")
    blocks = _inside("blocks")
    status = _inside("status.json")
    pause = _inside("paused")  # exists while the hospital takes part in nothing

    @property
    def held_steps_file(self) -> Path:
        """The file in which the daemon tells what is held up."""
        return self.path / "held.json"

    @property
    def held_steps(self) -> tuple[HeldStep, ...]:
        """The steps of the daemon that are held up now; () if no daemon runs."""
        if self.is_running:
            return held_steps(self.held_steps_file)
        return ()

    def note_refused_start(self, problem: str, remedy: str, *, at: float) -> None:
        """Records why the daemon does not start, for this party's people to see with ``status``."""
        write_json(self.status, {"state": REFUSED_START, "problem": problem, "remedy": remedy, "written_s": at})

    def running(self) -> AbstractContextManager[None]:
        """Holds the lock of the folder's one running daemon. Raises ConfigurationError if another process holds it."""
        return holding(
            self._lock,
            ConfigurationError(
                f"{self.path}: a daemon runs here already",
                "stop it first: systemctl stop undersong-party",
                code="daemon-runs",
            ),
        )

    @property
    def is_running(self) -> bool:
        return is_held(self._lock)

    @property
    def _lock(self) -> Path:
        return self.path / "daemon.lock"


def clock_words(offset_s: float) -> str:
    """Returns in words how far this machine's clock is ahead of the coordinator's (``offset_s`` above 0) or behind."""
    return f"{abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the coordinator's"


def unit_word(unit: str, user_is: str = "", count: int = 1) -> str:
    """Returns the word for a privacy unit, for "user" the word that the person who added the data has chosen.

    >>> unit_word("user", count=2), unit_word("user", "case"), unit_word("sample", "case")
    ('patients', 'case', 'record')
    """
    unit_noun = {"sample": "record", "user": user_is or PATIENT}.get(unit, unit)
    return noun(count, unit_noun, f"{unit_noun[:-1]}ies" if unit_noun.endswith("y") else "")


# Roots of column names whose values are episodes of care: one patient has several. hadm_id is MIMIC's admission.
CASES = ("fall", "case", "encounter", "visit", "stay", "episod", "admission", "aufenthalt", "hadm", "sejour", "séjour")


def is_named_like_a_case(column: str) -> bool:
    """Returns True if a column of user ids may name episodes of care, so that a person has to say what it names.

    >>> [is_named_like_a_case(name) for name in ("Fall", "encounter_id", "patient", "FALLNR", "pid")]
    [True, True, False, True, False]
    """
    return any(name_root in column.casefold() for name_root in CASES)


def chosen_user_is(settings: "PartySettings", column: str, stated_word: str) -> str:
    """Returns the word for a user of this column: the ``stated_word``, or the one stated for the same column before.

    Raises ConfigurationError if nothing was said of a column that is named like a case.
    """
    earlier_word = settings.user_is if column == settings.user_field else ""
    if not (stated_word or earlier_word) and is_named_like_a_case(column):
        raise ConfigurationError(
            f"does one value of the column {printable(column, 60)!r} stand for one patient, or for one case, of which a"
            " patient may have several?",
            "--user-is patient, or --user-is case; if there is a column of patient numbers, name it by --user-field",
            code="user-is-unanswered",
        )
    return stated_word or earlier_word


def case_caution(word: str) -> str:
    """Returns the caution for users who are no patients; "" for patients.

    >>> case_caution("case")
    'one case is protected, not one patient: a patient with three cases is protected as three'
    >>> case_caution("patient")
    ''
    """
    if word in ("", PATIENT):
        return ""
    plural_word = unit_word("user", word, 2)
    return f"one {word} is protected, not one patient: a patient with three {plural_word} is protected as three"


def make_folder(path: Path) -> None:
    """Makes a folder with mode 0700, and missing folders above it with the usual mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    with named_faults(path):
        replace_file(path, json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8") + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises ConfigurationError that names the file if it is missing or damaged."""
    try:
        file_bytes = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: is missing", "restore it from a backup", code="file-missing") from None
    except OSError as error:
        raise fault_of(error, path) from None
    return json_object(file_bytes, path)


def json_object(data: bytes, path: Path) -> dict[str, Any]:
    """Returns the JSON object in ``data``. Raises ConfigurationError that names the file ``path`` if it holds none."""
    try:
        json_value = json.loads(data)
        if not isinstance(json_value, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: is damaged", "restore it from a backup", code="file-damaged") from None
    return json_value


def read_grant(path: Path) -> bytes:
    """Reads the operator's answer to this party's request. Raises ConfigurationError as :func:`read_input`."""
    if not path.exists():
        raise ConfigurationError(
            f"{path}: the operator's answer is not here yet",
            "hand the operator the request file and read its fingerprint aloud; they sign it and send this file."
            " Nothing is lost meanwhile",
            code="no-grant-yet",
        )
    return read_input(path)


def read_input(path: Path, largest: int = 2**20) -> bytes:
    """Reads a file that a person names. Raises ConfigurationError if it is unreadable or above ``largest`` bytes."""
    try:
        with path.open("rb") as file:
            input_bytes = file.read(largest + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}", "check the path", code="unreadable"
        ) from None
    if len(input_bytes) > largest:
        raise ConfigurationError(
            f"{path}: is longer than {largest} bytes", "check that it is the file that this step takes"
        )
    return input_bytes
