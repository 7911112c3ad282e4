"""Moves the folder of a party or of a coordinator to another place and owner, so that there are never two of it.

Programs open such a folder only if it holds the settings file. So the move has four steps, and each can be repeated:

    1. the settings file is renamed to ``moving.json``: no program opens the folder from now on;
    2. the other entries go to the new place one by one, on another file system as copies that are on its disk;
    3. the settings file is written at the new place: from now on programs open the folder there;
    4. what is left at the old place is deleted.

Whatever interrupts it, at most one folder can be opened, and :func:`move` with the same places goes on.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file, sync_folder

WITHDRAWN = "moving.json"  # name of the settings file while its folder is moved
_ARRIVING = ".arriving"  # end of the name of a copy that is not complete yet
_LEFT = ".left-"  # begins the name of an entry whose copy has arrived


@dataclass(frozen=True)
class Owner:
    """The numbers of an account and of its group."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Move:
    """A move of one folder.

    Attributes:
        settings: name of the settings file by which such a folder is known.
        owner: account to which the folder belongs at its new place.
        rewrite: returns the settings as they are at the new place.
    """

    source: Path
    target: Path
    settings: str
    owner: Owner
    rewrite: Callable[[dict[str, Any]], dict[str, Any]] = lambda settings: settings


def is_moving(folder: Path) -> bool:
    """Returns True if a folder cannot be opened because its move was interrupted."""
    return (folder / WITHDRAWN).exists()


def owner_of(folder: Path) -> Owner:
    """Returns the account that owns a folder and everything in it.

    Raises ConfigurationError if it holds a link, or a file of somebody else: root would follow the link, and would give
    the file away.
    """
    folder_status = folder.lstat()
    for path in (folder, *_folder_entries(folder)):
        file_status = path.lstat()
        if not (stat.S_ISDIR(file_status.st_mode) or stat.S_ISREG(file_status.st_mode)):
            raise ConfigurationError(
                f"{path}: is a link, or neither file nor folder", "put the file itself there", code="is-a-link"
            )
        if file_status.st_uid != folder_status.st_uid or (
            stat.S_ISREG(file_status.st_mode) and file_status.st_nlink > 1
        ):
            raise ConfigurationError(
                f"{path}: belongs to another user than its folder, or has a second name (a hard link)",
                f"give it to the folder's owner (chown -R {folder_status.st_uid}), or remove the second name",
                code="other-owner",
            )
    return Owner(folder_status.st_uid, folder_status.st_gid)


def move(folder_move: Move, before_opening: Callable[[], None] = lambda: None) -> None:
    """Moves a folder, or goes on with a move that was interrupted.

    Args:
        before_opening: called when everything but the settings has arrived; may be called again after an interruption.

    Raises ConfigurationError if a folder of this kind is at the new place already.
    """
    source = folder_move.source
    target = folder_move.target
    if (source / folder_move.settings).exists():
        if (target / folder_move.settings).exists() or is_moving(target):
            raise ConfigurationError(
                f"{target}: is in use already, and {source} too",
                "move one of them away: they are never joined",
                code="two-folders",
            )
        os.rename(source / folder_move.settings, source / WITHDRAWN)
        sync_folder(source)
    if not (target / folder_move.settings).exists():
        _send_entries(folder_move)
        before_opening()
        _open(folder_move)
    os.chown(target / folder_move.settings, folder_move.owner.uid, folder_move.owner.gid)
    remove(source)
    sync_folder(source.parent)


def _send_entries(folder_move: Move) -> None:
    target = folder_move.target
    make_folder(target, folder_move.owner)
    for path in sorted(folder_move.source.iterdir()):
        if path.name == WITHDRAWN:
            continue
        if path.name.startswith(_LEFT):
            remove(path)
            continue
        remove(target / path.name)  # an earlier copy; the entry at the old place is whole
        try:
            os.rename(path, target / path.name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy_entry(path, target)
    sync_folder(target)
    sync_folder(folder_move.source)


def _copy_entry(path: Path, target: Path) -> None:
    """Moves a file or folder to another file system by a copy; one of the two places has all of it at any moment."""
    arriving_copy = target / _ARRIVING
    remove(arriving_copy)
    copy(path, arriving_copy)
    os.rename(arriving_copy, target / path.name)
    sync_folder(target)
    left_entry = path.with_name(_LEFT + path.name)
    os.rename(path, left_entry)
    remove(left_entry)


def _open(folder_move: Move) -> None:
    """Writes the settings file at the new place, so that programs can open the folder there."""
    settings = json.loads((folder_move.source / WITHDRAWN).read_bytes())
    change_owner(folder_move.target, folder_move.owner)
    settings_bytes = json.dumps(folder_move.rewrite(settings), indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
    replace_file(folder_move.target / folder_move.settings, settings_bytes)


def make_folder(folder: Path, owner: Owner) -> None:
    """Makes a folder of mode 0700, and those above it, with the rights of its owner, which must suffice.

    Raises ConfigurationError if something else lies there.
    """
    with acting_as(owner):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder_status = folder.lstat()
    if not stat.S_ISDIR(folder_status.st_mode) or folder_status.st_uid != owner.uid:
        raise ConfigurationError(f"{folder}: is a link, or belongs to another user", "move it away", code="other-owner")


def copy(path: Path, target: Path) -> None:
    """Copies a file or folder with its modes and times, onto the disk. Links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target, symlinks=True, copy_function=_copy_file)
        for folder in (target, *(entry for entry in _folder_entries(target) if entry.is_dir())):
            sync_folder(folder)
    else:
        _copy_file(str(path), str(target))


def _copy_file(source: str, target: str) -> str:
    shutil.copy2(source, target, follow_symlinks=False)
    descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return target


def change_owner(folder: Path, owner: Owner) -> None:
    """Gives a folder and everything in it to an account. Links are not followed."""
    for path in (folder, *_folder_entries(folder)):
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def remove(path: Path) -> None:
    """Deletes a file or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _folder_entries(folder: Path) -> Iterator[Path]:
    for parent_path, folders, file_names in os.walk(folder):
        yield from (Path(parent_path) / entry_name for entry_name in (*folders, *file_names))


@contextmanager
def acting_as(owner: Owner) -> Iterator[None]:
    """Runs the block of a process of root's with the rights of ``owner``, who then owns the files that it makes."""
    os.setegid(owner.gid)
    os.seteuid(owner.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
