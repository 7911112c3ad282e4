"""Who changed what at a coordinator and when: by the console and by the commands, in one log."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from undersong_common.pages.audit import FILE_NAME, AuditEntry, AuditLog
from undersong_server.coordinator.home import CoordinatorHome


def folder(home: Path) -> Path:
    """Where the console keeps its accounts, drafts and audit log, in the coordinator's folder."""
    return CoordinatorHome(home).path / "console"


def log(home: Path) -> AuditLog:
    """The log of a coordinator. Raises ConfigurationError where there is none."""
    return AuditLog(folder(home) / FILE_NAME)


def note_command(home: Path, what: str, about: str) -> None:
    """Notes what somebody at a terminal has changed, by the name of their account on this machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have none of that number
        user = f"user {os.getuid()}"
    log(home).note(f"{user} at the terminal", what, about)


def entries(home: Path) -> list[AuditEntry]:
    """Oldest first, their chain checked. Raises PrivacyRefusal that names the first entry that was changed."""
    return log(home).entries()
