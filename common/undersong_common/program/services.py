"""Installs and removes the systemd units of a program: makes its account and moves the program's folder to it.

The units lie in ``units/``. Every other copy of them is written from these, by ``service install`` and into the Debian
package. A record in /etc/undersong says what was done, so that it can be undone, and so that an installation or removal
that was interrupted goes on.
"""

import json
import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import holding, replace_file
from undersong_common.printable import shell_path
from undersong_common.program import moving
from undersong_common.program.moving import Move, Owner

UNITS = Path(__file__).parent / "units"
PROGRAMS = "/opt/undersong/bin/"  # The packaged units expect the programs there.
# Folders that ProtectHome and PrivateTmp keep from a unit.
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - nothing is written there
ADMINISTRATOR_UNITS = "/etc/systemd/system"
PACKAGE_UNITS = "/usr/lib/systemd/system"  # folder of the Debian package
SETTINGS_FOLDER = "/etc/undersong"
LOCKS = "/run"  # a lock needs to outlive no start of the machine, and a removal leaves none in /etc
INSTALLING, INSTALLED, REMOVING = "installing", "installed", "removing"


@dataclass(frozen=True)
class Service:
    """One program, a party's or a coordinator's, that systemd runs as a service.

    Attributes:
        name: the program, its main unit's name and the stem of the file in which the installation is noted.
        command: the words of the command line before ``install``.
        account: the system account that it runs under.
        folder: the account's folder, with everything that the service writes.
        home: the folder of the party or coordinator, below ``folder``.
        settings: name of the settings file, by which a folder is known as a party's or a coordinator's.
        units: names of its units.
        started: the units that are enabled and started where ``home`` is set up.
    """

    name: str
    command: str
    account: str
    folder: str
    home: str
    settings: str
    units: tuple[str, ...]
    started: tuple[str, ...]

    @property
    def record(self) -> str:
        return f"{SETTINGS_FOLDER}/{self.name}.installed.json"


@dataclass(frozen=True)
class InstallationRecord:
    """The record of an installation, as ``/etc/undersong/NAME.installed.json`` holds it.

    Attributes:
        state: "installing", "installed" or "removing".
        made_account: True if the installation made the account.
        moved_from: the folder that was moved; "" if none was.
        uid, gid: owner of that folder before it was moved.
        units: names of the units that were written.
        notes: what :meth:`MovableFolder.hold` returned: facts with which files outside the folder are moved and moved
            back.
    """

    state: str = INSTALLING
    made_account: bool = False
    moved_from: str = ""
    uid: int = 0
    gid: int = 0
    units: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.gid)


class MovableFolder:
    """The folder of a party or coordinator that an installation moves; a subclass knows what else belongs to it.

    Attributes:
        source: the folder before an installation; None if the account's folder is made later and none is moved.
    """

    def __init__(self, source: Path | None) -> None:
        self.source = source

    @property
    def options(self) -> list[str]:
        """The options of ``install`` that name this folder, for whoever types that command again as root."""
        if self.source is None:
            return []
        return ["--home", str(self.source)]

    def hold(self, owner: Owner) -> AbstractContextManager[Mapping[str, str]]:
        """Holds the locks of :attr:`source` within the context, whose value is the record's ``notes``.

        Raises ConfigurationError if a program uses the folder.
        """
        raise NotImplementedError

    def rewrite(self, settings: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
        """Returns the settings of a folder for its ``new`` place, with every path below ``old`` replaced."""
        return settings

    def arrive(self, notes: Mapping[str, str], account: Owner) -> None:
        """Moves the folder's files that lie outside it, before it is opened at its new place. May be called again."""

    def go_back(self, notes: Mapping[str, str], owner: Owner) -> None:
        """Undoes :meth:`arrive`, before the folder is opened at its old place. May be called again."""

    def is_ready(self, home: Path) -> bool:
        """Returns True if a service can run with ``home``, the folder at its new place."""
        return True


class Machine:
    """The machine whose files lie below ``root``. Only this class calls the system's programs."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, absolute: str | Path) -> Path:
        return self.root / str(absolute).lstrip("/")

    def call(self, *words: str) -> None:
        """Runs a program of the system. Raises ConfigurationError, with what the program says, if it fails."""
        try:
            process = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - words of this file
        except FileNotFoundError:
            raise ConfigurationError(
                f"the program {words[0]} is not on this machine", "run this command on Linux with systemd"
            ) from None
        if process.returncode:
            raise ConfigurationError(
                f"`{' '.join(words)}` failed: {process.stderr.strip()}",
                "remove the cause that it names, then try again",
            )

    def account(self, name: str) -> Owner | None:
        """Returns the numbers of an account and its group; None if there is no such account."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return Owner(entry.pw_uid, entry.pw_gid)

    def systemctl(self, *words: str) -> None:
        """Calls systemctl if systemd runs; it does not while an image is being built."""
        if self.path("/run/systemd/system").is_dir():
            self.call("systemctl", *words)


class Installation:
    """The installation of one service on a machine: made, continued and undone.

    Raises ConfigurationError where this is not root.
    """

    def __init__(self, service: Service, folder: MovableFolder, machine: Machine) -> None:
        self._service = service
        self._folder = folder
        self._machine = machine
        self._home = machine.path(service.home)
        self._account_folder = machine.path(service.folder)
        self._record_path = machine.path(service.record)
        self._record = self._read_record()

    def describe_steps(self) -> Iterator[str]:
        """Yields lines with the steps of the installation and its units, and changes nothing."""
        service = self._service
        yield f"# account {service.account} without log-in, its folder {service.folder}"
        if self._folder.source is not None:
            yield f"# moves {self._folder.source} to {service.home}, owned by {service.account}"
        yield f"# enables and starts, once {service.home} is ready: {' '.join(service.started)}"
        for unit_name, text in self._unit_files().items():
            yield f"# {ADMINISTRATOR_UNITS}/{unit_name}"
            yield text.rstrip("\n")

    def install(self) -> InstallationRecord:
        """Installs the service, or goes on with an installation that was interrupted.

        Raises ConfigurationError if units cannot see the environment, somebody else's unit stands in the way, a removal
        was interrupted, or a program uses the folder that should move.
        """
        with self._hold_lock("install"):
            if self._record.state == REMOVING:
                raise ConfigurationError(
                    f"the removal of {self._service.name} was interrupted",
                    f"end that removal first: {self._command_line('remove')}",
                    code="removal-interrupted",
                )
            check_environment(Path(sys.executable).parent / self._service.name)
            unit_files = self._unit_files()
            self._check_units(unit_files)
            account = self._machine.account(self._service.account)
            self._save_record(state=INSTALLING, made_account=self._record.made_account or account is None)
            account = account or self._make_account()
            self._give_folder(self._account_folder, account)
            self._bring_folder(account)
            for unit_name, text in unit_files.items():
                replace_file(self._machine.path(ADMINISTRATOR_UNITS) / unit_name, text.encode("utf-8"), mode=0o644)
            self._save_record(state=INSTALLED, units=tuple(unit_files))
            self._machine.systemctl("daemon-reload")
            if self.is_ready:
                self._machine.systemctl("enable", "--now", *self._service.started)
        return self._record

    def remove(self) -> InstallationRecord:
        """Stops the service, removes its units, and moves back the folder that the installation moved.

        A folder that was set up at the account's place stays there, with the account.
        """
        with self._hold_lock("remove"):
            if not self._record_path.exists():
                raise ConfigurationError(
                    f"{self._service.name} was not installed by `{self._service.command} install`",
                    "the Debian package is removed by apt",
                    code="not-installed",
                )
            record = self._record
            self._save_record(state=REMOVING)
            package_folder = self._machine.path(PACKAGE_UNITS)
            present_units = [
                unit_name
                for unit_name in self._service.units
                if self._unit_path(unit_name).exists() or (package_folder / unit_name).exists()
            ]
            if present_units:
                self._machine.systemctl("disable", "--now", *present_units)
            for unit_name in self._record.units:
                self._unit_path(unit_name).unlink(missing_ok=True)
            self._machine.systemctl("daemon-reload")
            if self._record.moved_from:
                self._send_back()
            if self._record.made_account and not (
                self._account_folder.exists() and any(self._account_folder.iterdir())
            ):
                if self._machine.account(self._service.account) is not None:
                    self._machine.call("userdel", self._service.account)
                moving.remove(self._account_folder)
            self._record_path.unlink()
        return record

    @property
    def is_ready(self) -> bool:
        """True if the service can run with the folder at the account's place."""
        return (self._home / self._service.settings).exists() and self._folder.is_ready(self._home)

    def _bring_folder(self, account: Owner) -> None:
        """Moves the folder to the account's place, or goes on with a move; does nothing without either."""
        source = self._source_to_move()
        if source is None:
            return
        with ExitStack() as locks:
            if (source / self._service.settings).exists():
                owner = moving.owner_of(source)
                folder_notes = locks.enter_context(self._folder.hold(owner))
                check_unused(source)
                self._save_record(moved_from=str(source), uid=owner.uid, gid=owner.gid, notes=dict(folder_notes))
            move = Move(source, self._home, self._service.settings, account, self._rewrite_settings(source, self._home))
            moving.move(move, lambda: self._folder.arrive(self._record.notes, account))

    def _source_to_move(self) -> Path | None:
        """Returns the folder that is to be moved or whose move was interrupted; None without one.

        Raises ConfigurationError if another folder is at the account's place already.
        """
        source = self._folder.source
        settings = self._service.settings
        moved_folder = None
        if self._record.moved_from:
            moved_folder = Path(self._record.moved_from)
        if moved_folder is not None and moved_folder.exists() and self._is_on_its_way(moved_folder):
            return moved_folder
        if source is None or (source == moved_folder and not (source / settings).exists()):
            return None
        if not (source / settings).exists():
            raise ConfigurationError(f"{source}: holds no {settings}", "name the folder with --home", code="no-folder")
        if (self._home / settings).exists():
            raise ConfigurationError(
                f"{source}: cannot move, because {self._home} is in use",
                f"move one of them away, or go on with the second: --home {shell_path(self._home)}",
                code="two-folders",
            )
        return source

    def _is_on_its_way(self, source: Path) -> bool:
        """Returns True if the move of ``source`` has not ended; False for a new folder at the old place."""
        has_arrived = (self._home / self._service.settings).exists()
        return not has_arrived or moving.is_moving(source) or not any(source.iterdir())

    def _send_back(self) -> None:
        former_home = Path(self._record.moved_from)
        owner = self._record.owner
        if not self._home.exists():
            return
        if not moving.is_moving(self._home):
            moving.owner_of(self._home)
        return_move = Move(
            self._home, former_home, self._service.settings, owner, self._rewrite_settings(self._home, former_home)
        )
        moving.move(return_move, lambda: self._folder.go_back(self._record.notes, owner))
        self._save_record(moved_from="")

    def _rewrite_settings(self, old: Path, new: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda settings: self._folder.rewrite(settings, old, new)

    def _unit_files(self) -> dict[str, str]:
        """Returns the units' texts by name, with this environment's paths; without those of the Debian package."""
        program_folder = f"{Path(sys.executable).parent}/"
        text_by_unit = {
            unit_name: (UNITS / unit_name).read_text("utf-8").replace(PROGRAMS, program_folder)
            for unit_name in self._service.units
        }
        package_folder = self._machine.path(PACKAGE_UNITS)
        return {
            unit_name: text
            for unit_name, text in text_by_unit.items()
            if not (package_folder / unit_name).exists() or (package_folder / unit_name).read_text("utf-8") != text
        }

    def _unit_path(self, name: str) -> Path:
        return self._machine.path(ADMINISTRATOR_UNITS) / name

    def _check_units(self, units: Mapping[str, str]) -> None:
        for unit_name, text in units.items():
            path = self._unit_path(unit_name)
            if path.exists() and unit_name not in self._record.units and path.read_text("utf-8") != text:
                raise ConfigurationError(
                    f"{path}: this unit exists already and was not written by this command",
                    f"move it away; changes of your own belong into `systemctl edit {unit_name}`",
                    code="unit-exists",
                )

    def _make_account(self) -> Owner:
        account_name = self._service.account
        folder = self._service.folder
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", folder, "--shell", "/usr/sbin/nologin")
        self._machine.call("useradd", *options, account_name)
        if (account := self._machine.account(account_name)) is None:
            raise ConfigurationError(
                f"the account {account_name} cannot be made", "make it, then try again", code="no-account"
            )
        return account

    def _give_folder(self, folder: Path, account: Owner) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(folder, account.uid, account.gid)

    def _read_record(self) -> InstallationRecord:
        if not self._record_path.exists():
            return InstallationRecord()
        record_json = json.loads(self._record_path.read_bytes())
        return InstallationRecord(**{**record_json, "units": tuple(record_json["units"])})

    def _save_record(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._record_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(self._record_path, json.dumps(asdict(self._record), indent=2).encode("utf-8") + b"\n")

    def _command_line(self, action: str) -> str:
        program, *command_arguments = self._service.command.split()
        options = self._folder.options if action == "install" else ()
        return shlex.join(["sudo", str(Path(sys.executable).parent / program), *command_arguments, action, *options])

    @contextmanager
    def _hold_lock(self, action: str) -> Iterator[None]:
        if os.geteuid():
            raise ConfigurationError(
                "only root may change units and accounts", self._command_line(action), code="not-root"
            )
        lock_path = self._machine.path(LOCKS) / f"{self._service.name}.service.lock"
        lock_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        busy_error = ConfigurationError(
            f"another `{self._service.command}` is under way", "wait until it has ended", code="service-busy"
        )
        with holding(lock_path, busy_error):
            self._record = self._read_record()
            yield


def check_environment(program: Path) -> None:
    """Raises ConfigurationError if systemd cannot start ``program`` from the Python environment of this process."""
    if not program.exists():
        raise ConfigurationError(
            f"{program}: this program, which the service starts, is missing",
            "install undersong into the environment that runs this command",
            code="no-program",
        )
    remedy = "install it into an environment that every account may read: sudo python3 -m venv /opt/undersong"
    for path in (program, Path(sys.prefix), Path(sys.executable).resolve(), Path(__file__)):
        if any(path.is_relative_to(folder) for folder in HIDDEN):
            raise ConfigurationError(
                f"{path}: systemd hides this path from services", remedy, code="hidden-environment"
            )
        for folder in (path, *path.parents):
            if not folder.stat().st_mode & (stat.S_IXOTH if folder.is_dir() else stat.S_IROTH):
                raise ConfigurationError(f"{folder}: other accounts cannot read it", remedy, code="hidden-environment")


def check_unused(folder: Path) -> None:
    """Raises ConfigurationError if another process has a file of ``folder`` open, or works in it."""
    for process_folder in Path("/proc").glob("[0-9]*"):
        if int(process_folder.name) == os.getpid():
            continue
        for open_path in (process_folder / "cwd", *_open_files(process_folder)):
            with suppress(OSError):
                if Path(os.readlink(open_path)).is_relative_to(folder):
                    raise ConfigurationError(
                        f"{folder}: process {process_folder.name} uses it",
                        "stop it: a daemon, a page or a command",
                        code="in-use",
                    )


def _open_files(process_folder: Path) -> list[Path]:
    with suppress(OSError):
        return list((process_folder / "fd").iterdir())
    return []
