"""A coordinator's folder: creation, facts, audit log, serving, health check and backup.

A drill's folder gets a small task. A backup is one file, made while the coordinator is served.
"""

import json
import os
import random
import re
import sqlite3
import stat
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, MachineFault
from undersong_common.files import file_state, is_empty, sync_folder
from undersong_common.pages.duties import terminal_identity
from undersong_common.pages.serving import is_loopback
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.program import drill as invented_records
from undersong_common.program import notices
from undersong_common.program.machine import HeldStep, fault_of
from undersong_server import defaults
from undersong_server.coordinator.home import CoordinatorHome, CoordinatorSettings, host_port
from undersong_server.operations.contacts import reachable_contact, stated_line
from undersong_server.runs.folder import ENDED, UNREADABLE, RunFolder, UnreadableRun

SHARED_S = 5.0  # pause between two looks at a registry that other machines share
HEALTH_S = 5.0  # longest wait for an answer to the health check
DRILL_TEXTS = 300  # rows of each generator's corpus in a drill
DRILL_TASK = """\
# A drill: invented records at every party, two small generators, a few private sums. Plan it like any other task.
[task]
name = "drill"
description = {description}
labels = {labels}
purpose = "A rehearsal of the federation, its people and its machines."

[publication]
where = "nowhere: what comes out is thrown away"
language = "en"

[privacy]
epsilon = 2.0
delta = 1e-5
unit = "user"
max_per_user = 4

[federation]
tolerated_dropouts = 0
colluders = 0

[method]
name = "wasp"
samples = 120
rounds = 3
examples = 4
shortlist = 4

[[generators]]
name = "logbook"
kind = "ngram"
corpus = "logbook.jsonl"

[[generators]]
name = "jumble"
kind = "ngram"
corpus = "jumble.jsonl"
"""


@dataclass(frozen=True)
class CoordinatorFacts:
    """A coordinator as its operator sees it; everything in it is public.

    Attributes:
        fingerprint: fingerprint that each hospital compares by telephone or on paper.
        addresses: host:port by which parties reach it; ``bind`` and ``metrics`` are where it listens.
        certificate_names, certificate_expires_at: host names in the server's certificate, and its end in seconds since
            the epoch.
        served: True while a process serves it.
        drill: True for rehearsals only.
        held_up: the steps that the serving process tries again and again because they fail, and since when.
        not_yet_valid: the certificates that begin in the future: "authority", "server".
        operator, contact: who asks, as each plan states it; "" where the task files say it.
    """

    home: Path
    name: str
    fingerprint: str
    addresses: tuple[str, ...]
    bind: str
    metrics: str
    certificate_names: tuple[str, ...]
    certificate_expires_at: float
    served: bool
    drill: bool
    held_up: tuple[HeldStep, ...] = ()
    not_yet_valid: tuple[str, ...] = ()
    operator: str = ""
    contact: str = ""

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """The addresses that reach this machine only, so that no hospital on another one connects by them."""
        return tuple(address for address in self.addresses if is_loopback(address.rpartition(":")[0]))


def create(home: Path, new: defaults.NewCoordinator) -> CoordinatorFacts:
    """Makes a coordinator's folder: certificate authority, signing key, registry. Nothing is sent anywhere.

    Raises ConfigurationError if one exists, or a name or address is invalid.
    """
    CoordinatorHome.create(home, _settings_of(new), now=time.time())
    if new.drill:
        _write_drill_task(home / "drill")
    return show(home)


def check_settings(home: Path, stated: defaults.NewCoordinator) -> None:
    """Raises ConfigurationError if a setting in ``stated`` differs from that of the coordinator in ``home``.

    A setting at its default counts as not stated.
    """
    settings, stated_settings = CoordinatorHome(home).settings, _settings_of(stated)
    for field in fields(stated):
        is_stated = getattr(stated, field.name) not in (field.default, (), [])
        if is_stated and getattr(stated_settings, field.name) != getattr(settings, field.name):
            raise ConfigurationError(
                f"{home}: an option states another value of {field.name!r} than this coordinator has",
                "leave the option out; `undersong coordinator change` changes operator, contact and bind",
                code="other-settings",
            )


def _settings_of(new: defaults.NewCoordinator) -> CoordinatorSettings:
    return CoordinatorSettings(
        name=new.name,
        bind=new.bind,
        addresses=tuple(new.addresses),
        metrics=new.metrics,
        drill=new.drill,
        storage=new.storage,
        operator=stated_line(new.operator),
        contact=reachable_contact(new.contact),
    )


def change(
    home: Path, *, operator: str | None = None, contact: str | None = None, bind: str | None = None
) -> CoordinatorFacts:
    """Changes who asks, as every plan from now on states it to the hospitals, and where the coordinator listens.

    The keys stay as they are, and so does every value that is None.

    Args:
        operator: legal name of who runs the coordinator.
        contact: a person there, with telephone number or address; refused without either.
        bind: host:port to listen on, from the next start on.
    """
    coordinator_home = CoordinatorHome(home)
    changes = {}
    if operator is not None:
        changes["operator"] = stated_line(operator)
    if contact is not None:
        changes["contact"] = reachable_contact(contact)
    if bind is not None:
        host_port(bind)
        changes["bind"] = bind
    coordinator_home.change(**changes)
    return show(home)


def notify(home: Path, target: str | None, *, test: bool = False) -> tuple[dict[str, Any], str, bool]:
    """Sets the command or address that gets notices for people; returns what :func:`notices.describe_target` does.

    Args:
        target: the command or address; "" tells nobody, None changes nothing.
        test: sends a test notice now.
    """
    coordinator_home = CoordinatorHome(home)
    if target:
        notices.check_target(target)
    if target is not None:
        coordinator_home.change(notify=target)
    return notices.describe_target(coordinator_home.settings.notify, coordinator_home.settings.name, test=test)


def _write_drill_task(folder: Path) -> None:
    """Writes the task and its two corpora: invented texts with their labels, and the same with shuffled labels."""
    folder.mkdir()
    random_source = random.SystemRandom()
    invented_texts = invented_records.invent_records(DRILL_TEXTS, random_source)
    invented_labels = [record.label for record in invented_texts]
    for generator_name in ("logbook", "jumble"):
        json_rows = (
            {"text": record.text, "label": label} for record, label in zip(invented_texts, invented_labels, strict=True)
        )
        (folder / f"{generator_name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in json_rows), encoding="utf-8"
        )
        random_source.shuffle(invented_labels)
    task_values = {
        "description": json.dumps(invented_records.DESCRIPTION),
        "labels": json.dumps(list(invented_records.LABELS)),
    }
    (folder / "task.toml").write_text(DRILL_TASK.format(**task_values), encoding="utf-8")


def show(home: Path) -> CoordinatorFacts:
    """Returns the facts of the coordinator in ``home``. Raises ConfigurationError if there is none."""
    coordinator_home = CoordinatorHome(home)
    home_authority = coordinator_home.authority()
    settings = coordinator_home.settings
    return CoordinatorFacts(
        home=home,
        name=settings.name,
        fingerprint=home_authority.fingerprint,
        addresses=settings.addresses,
        bind=settings.bind,
        metrics=settings.metrics,
        certificate_names=tuple(home_authority.server_names),
        certificate_expires_at=home_authority.server_expires_at,
        served=coordinator_home.served,
        drill=settings.drill,
        held_up=coordinator_home.held_steps,
        not_yet_valid=home_authority.not_yet_valid(time.time()),
        operator=settings.operator,
        contact=settings.contact,
    )


def is_served(home: Path) -> bool:
    """True while a process serves the coordinator. Raises ConfigurationError if ``home`` holds no coordinator."""
    return CoordinatorHome(home).served


def mark(home: Path) -> list[object]:
    """A value that changes when a party connects, leaves, is invited, signed or revoked, and with the settings."""
    coordinator_home = CoordinatorHome(home)
    watched_names = ("registry.sqlite", "registry.sqlite-wal", "coordinator.json")
    if coordinator_home.settings.storage:
        shared_tick = time.time() // SHARED_S
    else:
        shared_tick = 0
    return [
        list(coordinator_home.connected),
        shared_tick,
        *(file_state(coordinator_home.path / name) for name in watched_names),
    ]


def console_folder(home: Path) -> Path:
    """The folder for the console's accounts and drafts and the audit log. Raises ConfigurationError if no coordinator.

    It lies in the coordinator's folder.
    """
    return CoordinatorHome(home).path / "console"


def audit_log(home: Path) -> AuditLog:
    """The audit log: who changed what and when, by the console or by a command."""
    return AuditLog(console_folder(home) / FILE_NAME)


def note_command(home: Path, action: str, about: str) -> None:
    """Appends an action from a terminal to the audit log, with the account of this machine from which it was typed."""
    audit_log(home).note(terminal_identity(), action, about)


def serve(
    home: Path,
    *,
    public_cache: Path,
    environment: Mapping[str, str],
    keepalive_s: float,
    ray: str | None = None,
    standby: bool = False,
) -> None:
    """Listens for the parties and drives the runs until SIGTERM or SIGINT; started again, it continues.

    Call ``undersong_common.program.entry.only_tls_1_3`` first, before anything imports gRPC.

    Args:
        public_cache: file with embeddings of public texts.
        environment: variables in which generators find their keys.
        keepalive_s: silence on a stream after which either side sends a ping.
        ray: address of a Ray cluster that shares the work of the runs' models and embeddings; None for none.
        standby: True waits while another process serves the coordinator, and takes over when that has died.
    """
    from undersong_server.coordinator import service  # imports gRPC

    service.serve(
        CoordinatorHome(home),
        public_cache=public_cache,
        environment=environment,
        keepalive_s=keepalive_s,
        ray=ray,
        standby=standby,
    )


def health(home: Path) -> dict[str, Any]:
    """Returns the serving process's answer of ``/healthz``. Raises ConfigurationError if it does not answer.

    Its "status" is "ok" or a problem; "connected" lists parties, and "runs" holds each run's state.
    """
    coordinator_home = CoordinatorHome(home)
    serving_address = coordinator_home.serving
    if serving_address is None or not serving_address.metrics_port:
        raise ConfigurationError(
            f"{home}: no process serves this coordinator, or it has no address for metrics",
            "start `undersong coordinator serve`",
            code="not-served",
        )
    host = coordinator_home.settings.metrics.rpartition(":")[0].strip("[]")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    if ":" in host:
        url_host = f"[{host}]"
    else:
        url_host = host
    try:
        # No proxy: one that the environment names would look for this address on its own machine.
        direct_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct_opener.open(f"http://{url_host}:{serving_address.metrics_port}/healthz", timeout=HEALTH_S) as reply:
            health_json: dict[str, Any] = json.loads(reply.read())
    except (urllib.error.URLError, OSError):
        raise ConfigurationError(
            f"{home}: the serving process does not answer", "read the log of `undersong coordinator serve`"
        ) from None
    return health_json


# One file that holds a whole coordinator, made while it is served, and its way back into an empty folder.
SCHEMA_VERSION = 1
_BACKUP_NOTE = "undersong-backup.json"
_SQLITE_HEADER = b"SQLite format 3\0"
# A backup leaves these files out: the serving process or SQLite makes them anew.
_MADE_ANEW = re.compile(r"\..*|.*\.lock|(serving|held)\.json|.*-(wal|shm)")


@dataclass(frozen=True)
class Backup:
    """A backup that was read back and checked.

    Attributes:
        made_at: seconds since the epoch.
        fingerprint: the coordinator's, which the hospitals have compared.
        runs: state of each run, by name; "unreadable" for one whose files are not what this program writes.
        paused: runs that were under way, and wait for the operator in the restored folder.
        faults: what is wrong with the files of a run, by its name. Every other run is whole.
    """

    file: Path
    coordinator: str
    fingerprint: str
    made_at: float
    runs: Mapping[str, str]
    paused: tuple[str, ...]
    faults: Mapping[str, str]


def back_up(home: Path, file: Path) -> Backup:
    """Writes the coordinator's whole folder into one file (mode 0600), and reads that back as a check.

    Each database is copied in one transaction, so that a serving process need not stop. What is wrong with the files of
    one run keeps nothing else out: they are copied as they are, and the backup names the run.

    Raises ConfigurationError where ``file`` exists, or what was written does not pass :func:`check_backup`.
    """
    coordinator_home = CoordinatorHome(home)
    if file.exists():
        raise ConfigurationError(f"{file}: exists already", "name another file", code="backup-exists")
    file.parent.mkdir(parents=True, exist_ok=True)
    if coordinator_home.settings.storage:
        raise ConfigurationError(
            f"{home}: its registry, journals and runs are in the database of --storage, not in this folder",
            "back the database up by its own tools (pg_dump), and keep a copy of authority/ and coordinator.json",
            code="backup-elsewhere",
        )
    coordinator_home.registry().close()  # A registry of another version is refused here, by an error that names it.
    backup_note = {
        "format": SCHEMA_VERSION,
        "made_at": time.time(),
        "fingerprint": coordinator_home.authority().fingerprint,
    }
    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as folder:
        archive_path = Path(folder) / "backup"
        with zipfile.ZipFile(archive_path, "x", zipfile.ZIP_DEFLATED) as archive:
            fault_by_run: dict[str, str] = {}
            for run in coordinator_home.runs():
                _read_run(run, fault_by_run)
            fault_by_run |= _add_all(archive, home, Path(folder) / "database")
            archive.writestr(_BACKUP_NOTE, json.dumps({**backup_note, "faults": fault_by_run}))
        os.chmod(archive_path, 0o600)
        checked_backup = check_backup(archive_path)
        with archive_path.open("rb") as archive_file:
            os.fsync(archive_file.fileno())
        os.replace(archive_path, file)
    sync_folder(file.parent)
    return replace(checked_backup, file=file)


def check_backup(file: Path) -> Backup:
    """Reads a whole backup and opens its keys, registry and runs.

    Raises ConfigurationError if it is damaged; what is damaged in one run is among the backup's ``faults``.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _unpack(file, Path(folder))


def restore(file: Path, home: Path) -> Backup:
    """Makes the coordinator anew from a backup, in a folder that is empty or missing.

    A run that was under way is paused: parties may have answered more of it than the backup holds.

    Raises ConfigurationError where ``home`` holds anything, or the backup is damaged.
    """
    if home.exists() and not is_empty(home):
        raise ConfigurationError(
            f"{home}: is not empty, and a coordinator is never replaced", "name another --home", code="home-not-empty"
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    home_exists = home.exists()  # It may be a mounted file system, which no other folder can replace.
    with tempfile.TemporaryDirectory(prefix=f".{home.name}.", dir=home if home_exists else home.parent) as folder:
        unpacked_home = Path(folder) / "home"
        unpacked_home.mkdir(mode=0o700)
        unpacked_backup = _unpack(file, unpacked_home)
        for run in unpacked_backup.paused:
            RunFolder(unpacked_home / "runs" / run).request("pause")
        if not home_exists:
            os.replace(unpacked_home, home)
            return unpacked_backup
        # The settings go last: without them the folder holds no coordinator, should the machine stop here.
        for path in sorted(unpacked_home.iterdir(), key=lambda path: path.name == "coordinator.json"):
            os.replace(path, home / path.name)
    sync_folder(home.parent)
    return unpacked_backup


def _add_all(archive: zipfile.ZipFile, home: Path, scratch_file: Path) -> dict[str, str]:
    """Adds every file of a coordinator's folder to a backup; returns what could not be read, by run.

    Raises the error's :func:`fault_of` where the file is no run's, or the machine lacks something.
    """
    fault_by_run: dict[str, str] = {}

    def leave_out(error: OSError | sqlite3.Error, path: Path) -> None:
        file_fault = fault_of(error, path)
        relative_name = path.relative_to(home)
        if isinstance(file_fault, MachineFault) or not (run := _run_of(relative_name)):
            raise file_fault from None
        fault_by_run[run] = f"{relative_name.name}: cannot be read, and is not in the backup"

    walked_folders = os.walk(home, onerror=lambda error: leave_out(error, Path(error.filename)))
    paths = [Path(folder, file_name) for folder, _, file_names in walked_folders for file_name in file_names]
    # A run's status is copied first, so that the files of a run that it calls finished are all there.
    for path in sorted(paths, key=lambda path: (path.name != "status.json", path)):
        try:
            if stat.S_ISREG(path.stat().st_mode) and not _MADE_ANEW.fullmatch(path.name):
                _add(archive, path, path.relative_to(home), scratch_file)
        except FileNotFoundError:  # replaced or removed since the folder was listed
            continue
        except (OSError, sqlite3.Error) as error:
            leave_out(error, path)
    return fault_by_run


def _run_of(relative_path: Path) -> str:
    """The run to which a path in a coordinator's folder belongs; "" for what belongs to all."""
    if relative_path.parts[0] == "runs" and len(relative_path.parts) > 1:
        return relative_path.parts[1]
    return ""


def _add(archive: zipfile.ZipFile, path: Path, name_in_archive: Path, scratch_file: Path) -> None:
    with path.open("rb") as file:
        is_database = file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    if not is_database:
        archive.write(path, name_in_archive)
        return
    try:
        with (
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source_database,
            closing(sqlite3.connect(scratch_file)) as target_database,
        ):
            source_database.backup(target_database)
        archive.write(scratch_file, name_in_archive)
    except sqlite3.DatabaseError as error:
        if fault_of(error, path).code != "damaged" or not _run_of(name_in_archive):
            raise
        archive.write(path, name_in_archive)
        write_ahead_log = path.with_name(f"{path.name}-wal")
        if write_ahead_log.exists():
            archive.write(write_ahead_log, name_in_archive.with_name(write_ahead_log.name))
    finally:
        scratch_file.unlink(missing_ok=True)


def _unpack(file: Path, folder: Path) -> Backup:
    damage_error = ConfigurationError(f"{file}: is damaged, or no backup", "use another backup", code="backup-damaged")
    format_error = ConfigurationError(
        f"{file}: is a backup of another format than {SCHEMA_VERSION}",
        "restore it with the program that made it",
        code="backup-format",
    )
    try:
        with zipfile.ZipFile(file) as archive:
            backup_note = json.loads(archive.read(_BACKUP_NOTE))
            if backup_note["format"] != SCHEMA_VERSION:
                raise format_error
            archive.extractall(folder)
        (folder / _BACKUP_NOTE).unlink()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        fault_by_run: dict[str, str] = {}
        for path in folder.rglob("*.sqlite"):
            if not _is_whole(path):
                if not (run_name := _run_of(path.relative_to(folder))):
                    raise damage_error
                fault_by_run[run_name] = f"{path.name}: is damaged"
        unpacked_home = CoordinatorHome(folder)
        if unpacked_home.authority().fingerprint != backup_note["fingerprint"]:
            raise damage_error
        unpacked_home.registry().close()
        run_states = {run.name: _read_run(run, fault_by_run) for run in unpacked_home.runs()}
        source_faults = backup_note.get("faults", {})  # A backup that version 0.3.0 made has no such key.
        run_states |= dict.fromkeys(source_faults, UNREADABLE)
        fault_by_run |= source_faults
        under_way = tuple(run.name for run in unpacked_home.runs() if _is_under_way(run))
        return Backup(
            file,
            unpacked_home.settings.name,
            backup_note["fingerprint"],
            backup_note["made_at"],
            run_states,
            under_way,
            fault_by_run,
        )
    except (
        *(zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, sqlite3.DatabaseError),
        *(KeyError, TypeError, ValueError, ConfigurationError),
    ) as error:
        raise (format_error if error is format_error else damage_error) from None


def _is_whole(database: Path) -> bool:
    try:
        with closing(sqlite3.connect(database)) as connection:
            return bool(connection.execute("PRAGMA quick_check").fetchone() == ("ok",))
    except sqlite3.DatabaseError:
        return False


def _read_run(run: RunFolder, fault_by_run: dict[str, str]) -> str:
    """Returns the state of a run in a backup, and adds the faults of the run's files to ``fault_by_run``."""
    try:
        run.planned(), run.requested(), run.annotations()
        status = run.status()
        run.heard(status)
    except UnreadableRun as error:
        fault_by_run[run.name] = f"{error.file}: {error.reason}"
        return UNREADABLE
    return status.state


def _is_under_way(run: RunFolder) -> bool:
    """True if a serving process would drive the run; nobody drives one whose requested action cannot be read."""
    try:
        requested_action = run.requested()
    except UnreadableRun:
        return False
    if requested_action.action != "run":
        return False
    try:
        status = run.status()
    except UnreadableRun:
        return True
    return not (status.state in ENDED and status.number >= requested_action.number)
