"""The party as a service of the hospital's machine: its units, and the party's folder moved to their account."""

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from undersong_client.home import SETTINGS, PartyHome
from undersong_client.records import snapshot
from undersong_client.storage import datasets
from undersong_client.storage.checkpoints import check, salted
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.ledger import Ledger
from undersong_common.program import moving
from undersong_common.program.moving import Owner, acting_as
from undersong_common.program.services import HIDDEN, Installation, Machine, MovableFolder, Service

ACCOUNT = "undersong-party"
FOLDER = "/var/lib/undersong-party"
STATE = f"{FOLDER}/state/undersong"
_PATH_SETTINGS = (
    "data",
    "exclusions",
    "database",
    "embedder",
    "teacher_model",
    "cache",
)  # settings that may name a path


def service() -> Service:
    """Returns the hospital's units; the page is started where its packages are installed."""
    page_units = ("undersong-page.service",) if find_spec("fastapi") else ()
    return Service(
        name="undersong-party",
        command="undersong-party service",
        account=ACCOUNT,
        folder=FOLDER,
        home=f"{FOLDER}/home",
        settings=SETTINGS,
        units=(
            "undersong-party.service",
            "undersong-page.service",
            "undersong-refresh.service",
            "undersong-refresh.timer",
        ),
        started=("undersong-party.service", *page_units),
    )


def installation(home: Path | None, state: Path | None, machine: Machine | None = None) -> Installation:
    """Returns the installation of a party.

    Args:
        home: the party's folder that moves; None moves none.
        state: the folder with the heads of its ledger; None is the usual one of the folder's owner.
    """
    machine = machine or Machine()
    return Installation(service(), PartyFolder(home, state, machine.path(STATE)), machine)


def source_hidden_from_account() -> str:
    """Returns the data set's source if the account cannot read it for ``data refresh``; "" otherwise."""
    machine = Machine()
    service_account = machine.account(ACCOUNT)
    service_home = machine.path(f"{FOLDER}/home")
    if service_account is None or not (service_home / SETTINGS).exists():
        return ""
    with acting_as(service_account):
        data_source = PartyHome(service_home).settings.data
        is_hidden = any(Path(data_source).is_relative_to(folder) for folder in HIDDEN)
        if data_source and (is_hidden or not os.access(data_source, os.R_OK, effective_ids=True)):
            return data_source
        return ""


class PartyFolder(MovableFolder):
    """A party's folder. The heads of its ledger move with it, and the cache of embeddings goes into it.

    The heads also stay where they were: whoever adds the same notes under the old account has no fresh budget.
    """

    def __init__(self, source: Path | None, state: Path | None, target_state: Path) -> None:
        super().__init__(source)
        self._state = state
        self._target_state = target_state

    @property
    def options(self) -> list[str]:
        return [*super().options, *([] if self._state is None else ["--state", str(self._state)])]

    @contextmanager
    def hold(self, owner: Owner) -> Iterator[Mapping[str, str]]:
        assert self.source is not None
        with acting_as(owner):
            party_home = PartyHome(self.source)
            running_lock = party_home.running()
            running_lock.__enter__()
        try:
            state_folder = self._state or _usual_state(owner)
            self._check_target(state_folder)
            with acting_as(owner):
                _write_heads(party_home, state_folder / "ledgers")
                _take_cache_in(party_home)
            yield {"state": str(state_folder)}
        finally:
            running_lock.__exit__(None, None, None)

    def _check_target(self, state: Path) -> None:
        """Raises ConfigurationError if heads of other ledgers lie in the account's state folder already."""
        salt_paths = [folder / "ledgers" / "salt" for folder in (state, self._target_state)]
        if salt_paths[1].exists() and not (
            salt_paths[0].exists() and salt_paths[0].read_bytes() == salt_paths[1].read_bytes()
        ):
            raise ConfigurationError(
                f"{self._target_state}: holds checkpoints of another party's ledger",
                "use the folder of the party that was here before, or ask your privacy officer",
                code="other-heads",
            )

    def rewrite(self, settings: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
        moved_settings = {}
        for path_setting in _PATH_SETTINGS:
            path = Path(str(settings.get(path_setting, "")))
            if path.is_relative_to(old):
                moved_settings[path_setting] = str(new / path.relative_to(old))
        return {**settings, **moved_settings}

    def arrive(self, notes: Mapping[str, str], account: Owner) -> None:
        state_folder = Path(notes["state"])
        moving.make_folder(self._target_state.parent, account)
        if (state_folder / "ledgers").exists():
            _copy_heads(state_folder, self._target_state, account)

    def go_back(self, notes: Mapping[str, str], owner: Owner) -> None:
        if (self._target_state / "ledgers").exists():
            state_folder = Path(notes["state"])
            moving.make_folder(state_folder.parent, owner)
            _copy_heads(self._target_state, state_folder, owner)
        moving.remove(self._target_state.parent)

    def is_ready(self, home: Path) -> bool:
        return (home / "keys" / "tls.pem").exists()


def _usual_state(owner: Owner) -> Path:
    """The state folder of an account that has set no XDG_STATE_HOME."""
    try:
        folder = Path(pwd.getpwuid(owner.uid).pw_dir)
    except KeyError:
        raise ConfigurationError(
            f"user {owner.uid} has no account, so their state folder cannot be found",
            "name the state folder with --state",
            code="no-account",
        ) from None
    return folder / ".local" / "state" / "undersong"


def _write_heads(home: PartyHome, checkpoints: Path) -> None:
    """Writes the ledger's newest head into the state folder; the service sees no other place with heads."""
    if not home.settings.data or not home.ledger.exists():
        return
    if not (checkpoints / "salt").exists() or snapshot.facts(home).salted != salted(checkpoints):
        raise ConfigurationError(
            f"{checkpoints}: holds no head of this party's ledger",
            "name with --state the folder `undersong` in $XDG_STATE_HOME of whoever added the data set",
            code="other-state-folder",
        )
    ledger_checkpoints, _ = datasets.checkpoints_of(home, checkpoints)
    ledger = Ledger.read(home.ledger)
    check(ledger_checkpoints.read(), ledger)
    ledger_checkpoints.keep(ledger)


def _take_cache_in(home: PartyHome) -> None:
    """Copies the cache of embeddings into the folder: elsewhere no unit may write."""
    cache_folder = Path(home.settings.cache or home.path)
    party_cache_folder = home.path / "cache"
    if not home.settings.cache or cache_folder.is_relative_to(home.path):
        return
    party_cache_folder.mkdir(mode=0o700, exist_ok=True)
    for path in sorted(cache_folder.glob(snapshot.EMBEDDINGS + "*")) if os.access(cache_folder, os.R_OK) else ():
        shutil.copy2(path, party_cache_folder / path.name)
    home.change(cache=str(party_cache_folder))
    for path in sorted(cache_folder.glob(snapshot.EMBEDDINGS + "*")) if os.access(cache_folder, os.W_OK) else ():
        path.unlink()


def _copy_heads(source: Path, target: Path, owner: Owner) -> None:
    """Copies the state folder's heads over those of the same names, which are older."""
    moving.make_folder(target, owner)
    moving.make_folder(target / "ledgers", owner)
    for path in sorted((source / "ledgers").iterdir()):
        if path.is_file() and not path.is_symlink():
            copied_file = target / "ledgers" / path.name
            moving.copy(path, copied_file)
            os.chown(copied_file, owner.uid, owner.gid)
