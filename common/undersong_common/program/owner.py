"""The account that a folder belongs to: a command as another account is refused before it writes."""

import os
import pwd
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from undersong_common.errors import MissingRights

SEARCHED_BY_SUDO = ("", "/usr/local/bin", "/usr/bin", "/bin")  # sudo finds a program of these folders without a path.
ROOT_UID, NO_UID = 0, 2**32 - 1
UID_DIGITS = 10
SHELLS_OF_NOBODY = ("nologin", "false")  # An account with such a shell is a service's.
HOME_OPTION = "--home"
# Variables that name folders of this program, beside the one of --home. sudo passes no variable on.
FOLDER_VARIABLES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "UNDERSONG_CACHE")

_program_folder: Path | None = None


def account_name(uid: int) -> str:
    """Returns the name of an account, or ``#`` and its number where the machine knows no name for it.

    ``sudo -u`` takes both.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError, OSError):  # a container's uid need not have an account
        return f"#{uid}"


def is_account_of_machine(name: str) -> bool:
    """Returns True if the machine knows an account of this name, and for ``#`` with a number, which has no name."""
    try:
        return name.startswith("#") or bool(pwd.getpwnam(name))
    except (KeyError, ValueError):  # pwd raises ValueError for a name with a NUL character.
        return False


@dataclass(frozen=True)
class Caller:
    """The account of the machine from which a command was typed.

    Attributes:
        doubt: reason why nobody can tell which person it is; "" if nothing speaks against the account.
    """

    uid: int
    name: str
    doubt: str = ""


def caller_at_terminal() -> Caller:
    """Returns the account from which this command was typed: that of whoever called ``sudo``, ``su`` or the like.

    It is the account of the processes that have started this one. Nobody but root can make another account's process
    start theirs. If the account of the log-in, which the kernel's audit keeps, or $SUDO_UID is another one, ``doubt``
    says so. Neither proves who it is: anybody can set the variable, and the log-in once, where none is noted.
    """
    command_uid = os.getuid()
    login_uid = _login_uid()
    starter_uids = list(dict.fromkeys(uid for uid in _ancestor_uids() if uid not in (ROOT_UID, command_uid)))
    stated_uid = _stated_uid()
    uid_without_starter = ROOT_UID if ROOT_UID in (login_uid, stated_uid) else command_uid
    uid = starter_uids[0] if starter_uids else uid_without_starter
    account_names = " and ".join(account_name(account) for account in starter_uids)
    namespace_reason = namespace_doubt()
    doubts = (
        (bool(namespace_reason), namespace_reason),
        (len(starter_uids) > 1, f"the accounts {account_names} have started this one after the other"),
        (login_uid not in (None, uid), f"this is a log-in of {account_name(login_uid or ROOT_UID)}"),
        (stated_uid not in (None, ROOT_UID, uid), f"$SUDO_UID states another account, {stated_uid}"),
        (
            uid != ROOT_UID and not _is_of_a_person(uid),
            f"no person of this machine has the account {account_name(uid)}",
        ),
    )
    return Caller(uid, account_name(uid), next((doubt for is_true, doubt in doubts if is_true), ""))


def _stated_uid() -> int | None:
    """Returns the number of the account that $SUDO_UID states; None if it states none."""
    text = os.environ.get("SUDO_UID", "")
    if text.isascii() and text.isdecimal() and len(text) <= UID_DIGITS:
        return int(text)
    return None


def _ancestor_uids() -> list[int]:
    """Returns the account numbers of this process's parent, its parent and so on, as far as the system tells them."""
    uids = []
    parent_pid = os.getppid()
    while parent_pid > 0:
        try:
            status_lines = Path(f"/proc/{parent_pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            status_fields = {
                status_field: uid_fields.split()
                for status_field, _, uid_fields in (line.partition(":") for line in status_lines)
            }
            parent_pid = int(status_fields["PPid"][0])
            uid = int(status_fields["Uid"][0])
        except (OSError, KeyError, ValueError, IndexError):
            break
        uids.append(uid)
    return uids


def _login_uid() -> int | None:
    """Returns the account number of the log-in of this process; None if none is known, as in a container."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if uid >= NO_UID:
        return None
    return uid


def namespace_doubt() -> str:
    """Returns the reason why account numbers or the uptime may not be the machine's own, as in a container; else ""."""
    if _is_in_user_namespace():
        return "this runs in a user namespace, in which anybody takes any number"
    if _is_time_shifted():
        return "this runs in a time namespace, in which the machine's uptime is another"
    return ""


def _is_time_shifted() -> bool:
    """Returns True if the uptime is not the machine's own; False on a system without time namespaces."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(word != "0" for line in lines for word in line.split()[1:])


def _is_in_user_namespace() -> bool:
    """Returns True if account numbers are not the machine's own, and on a Linux that does not tell it."""
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", str(NO_UID)]
    except OSError:
        return sys.platform == "linux"


def _is_of_a_person(uid: int) -> bool:
    """Returns True for an account with which somebody can log in."""
    try:
        return os.path.basename(pwd.getpwuid(uid).pw_shell) not in SHELLS_OF_NOBODY
    except (KeyError, OverflowError, OSError):
        return False


def home_folder() -> Path:
    """Returns the account's home folder; for a number without an account and without $HOME, the working folder."""
    try:
        if os.environ.get("HOME") == "":  # Python takes it for the root of the file system
            return Path(pwd.getpwuid(os.getuid()).pw_dir)
        return Path.home()
    except (RuntimeError, KeyError):
        return Path.cwd()


def work_in(folder: Path) -> None:
    """Remembers the folder of the party or coordinator of this command, which :func:`command_line` adds as --home.

    A command that ``sudo -u`` runs has neither the variable that names it nor the same $HOME.
    """
    global _program_folder
    _program_folder = folder.absolute()


def command_line(uid: int) -> str:
    """Returns this program's command line as the account ``uid`` runs it, with the folders that it works with."""
    program_words = [sys.argv[0]]
    if sys.argv[0].endswith(".py"):  # "python -m" puts the path of a file there.
        program_words = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]
    elif os.path.dirname(sys.argv[0]) in SEARCHED_BY_SUDO:
        program_words = [os.path.basename(sys.argv[0])]
    argument_words = sys.argv[1:]
    if _program_folder is not None and not any(re.match(rf"{HOME_OPTION}(=|$)", word) for word in argument_words):
        if "--" in argument_words:
            options_end = argument_words.index("--")
        else:
            options_end = len(argument_words)
        argument_words[options_end:options_end] = [HOME_OPTION, str(_program_folder)]
    # A variable is passed on only for a folder of that account, because it could not open one of the caller's.
    folder_settings = [
        f"{variable_name}={value}"
        for variable_name in FOLDER_VARIABLES
        if (value := os.environ.get(variable_name)) and _path_owner(Path(value)) == uid
    ]
    variable_words = ["env", *folder_settings] if folder_settings else []
    return shlex.join(["sudo", "-u", account_name(uid), *variable_words, *program_words, *argument_words])


def left_there_remedy() -> str:
    """Returns the remedy for a file that another account has left in a folder of this account."""
    return f"another account has left it there: let an administrator give it to {account_name(os.geteuid())}"


def account_remedy(path: Path) -> str:
    """Returns the remedy for a path that this account may not use; "" if it and its folder are this account's."""
    if _path_owner(path.parent) == os.geteuid() != _path_owner(path):
        return left_there_remedy()
    is_of_program = _program_folder is None or path.absolute().is_relative_to(_program_folder)
    for owned_path in (path, path.parent):
        owner = _path_owner(owned_path)
        if owner is not None and owner != os.geteuid():
            if is_of_program:
                return f"run it as the account that it belongs to: {command_line(owner)}"
            return f"it belongs to {account_name(owner)}: let them give {account_name(os.geteuid())} the right to it"
    return ""


def check_owner(folder: Path, marker: str = "") -> None:
    """Raises MissingRights if a folder belongs to another account than the one that runs this command, even to root.

    The program that serves the folder could not read a file that another account writes into it. A folder that does not
    exist yet is not refused.

    Args:
        marker: the file whose owner counts; "" takes the folder's own, which a container's volume may have from root.
    """
    if _is_missing(folder / marker):
        owner = None
    else:
        owner = _path_owner(folder / marker)
    if owner is not None and owner != os.geteuid():
        raise MissingRights(
            f"this folder belongs to {account_name(owner)}, and you are {account_name(os.geteuid())}: {folder}",
            f"run it as {command_line(owner)}",
            code="other-account",
        )


def _is_missing(path: Path) -> bool:
    """Returns True if no file has this path; False also in a folder into which only another account may look."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _path_owner(path: Path) -> int | None:
    """Returns the owner's number of a path, or of the nearest folder above it that can be asked; None without one."""
    for parent_path in (path, *path.absolute().parents):
        try:
            return os.stat(parent_path).st_uid
        except OSError:
            continue
    return None
