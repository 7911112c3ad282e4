"""The account that a folder belongs to: a command as another account is refused before it writes."""

import os
import pwd
import shlex
import sys
from pathlib import Path

from undersong_common.errors import ConfigurationError

SEARCHED_BY_SUDO = ("", "/usr/local/bin", "/usr/bin", "/bin")  # sudo finds a program of these folders without a path.


def account_name(uid: int) -> str:
    """Returns the name of an account, or ``#`` and its number where the machine knows no name for it.

    ``sudo -u`` takes both.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):  # a container's uid need not have an account
        return f"#{uid}"


def caller_at_terminal() -> tuple[int, str]:
    """Returns the number and the name of the account from which this command was typed: that of who called ``sudo``.

    Root and the account that runs the command can state any; the threat model says so.
    """
    sudo_uid = os.environ.get("SUDO_UID", "")
    uid = int(sudo_uid) if sudo_uid.isascii() and sudo_uid.isdecimal() else os.getuid()
    return uid, account_name(uid)


def home_folder() -> Path:
    """Returns the account's home folder; for a number without an account and without $HOME, the working folder."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return Path.cwd()


def command_line(uid: int) -> str:
    """Returns this program's command line as the account ``uid`` runs it."""
    program = [sys.argv[0]]
    if sys.argv[0].endswith(".py"):  # "python -m" puts the path of a file there.
        program = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]
    elif os.path.dirname(sys.argv[0]) in SEARCHED_BY_SUDO:
        program = [os.path.basename(sys.argv[0])]
    return shlex.join(["sudo", "-u", account_name(uid), *program, *sys.argv[1:]])


def left_there_remedy() -> str:
    """Returns what to do about a file that another account has left in a folder of this account's."""
    return f"another account has left it there: let an administrator give it to {account_name(os.geteuid())}"


def account_remedy(path: Path) -> str:
    """Returns what to do about a path that this account may not use; "" if it and its folder are this account's."""
    if _path_owner(path.parent) == os.geteuid() != _path_owner(path):
        return left_there_remedy()
    for place in (path, path.parent):
        owner = _path_owner(place)
        if owner is not None and owner != os.geteuid():
            return f"run it as the account that it belongs to: {command_line(owner)}"
    return ""


def check_owner(folder: Path, marker: str = "") -> None:
    """Raises ConfigurationError where a folder belongs to another account than the one that runs this, root too.

    A file that another account writes into it could not be read by the program that serves it. A folder that does not
    exist yet is its maker's.

    Args:
        marker: the file whose owner counts; "" takes the folder's own, which a container's volume may have from root.
    """
    owner = None if _is_missing(folder / marker) else _path_owner(folder / marker)
    if owner is not None and owner != os.geteuid():
        raise ConfigurationError(
            f"this folder belongs to {account_name(owner)}, and you are {account_name(os.geteuid())}: {folder}",
            f"run it as {command_line(owner)}",
            code="other-account",
        )


def _is_missing(path: Path) -> bool:
    """True if nothing lies there; False for a path in a folder into which only another account may look."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _path_owner(path: Path) -> int | None:
    """The account of a path, or of the nearest folder above it that can be asked."""
    for place in (path, *path.absolute().parents):
        try:
            return os.stat(place).st_uid
        except OSError:
            continue
    return None
