"""Records which sheets were shown, on which terminal and when. ``approve`` accepts only these.

A terminal is a login session with a controlling terminal. A plan shown in one window cannot be approved in another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undersong_client.home import PartyHome, read_json, write_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.printable import printable, shell_word

LASTS_S = 3600.0  # a screen that was filled longer ago is not remembered
MOST_SESSIONS = 50
MOST_SEEN = 1000


def session() -> str:
    """This terminal's session: user, process number and start of its leader. Empty where there is no terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return ""
    leader = os.getsid(0)
    started = ""
    with contextlib.suppress(OSError, IndexError):  # numbers are used again; times of the start are not
        started = (
            Path(f"/proc/{leader}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    return f"{os.geteuid()}:{leader}:{started}"


def note(home: PartyHome, run: str, manifest: str, sheet: str, *, at: float) -> None:
    """Notes that this program shows a run's plan and its sheet (their hashes, hex), and on which terminal, if any."""
    sessions, seen = _read(home)
    seen = {key: when for key, when in seen.items() if key != manifest}
    seen = dict(list(seen.items())[-MOST_SEEN + 1 :]) | {manifest: (at, sheet)}
    if sys.stdout.isatty() and (here := session()):  # what went into a file or a pipe, no window has shown
        sessions = {key: value for key, value in sessions.items() if key != here}
        sessions = dict(list(sessions.items())[-MOST_SESSIONS + 1 :])
        sessions[here] = {"run": run, "manifest": manifest, "sheet": sheet, "at_s": at}
    write_json(home.shown, {"sessions": sessions, "seen": seen})


def seen(home: PartyHome) -> dict[str, tuple[float, str]]:
    """Returns when each plan was last shown to anybody here, and the hash of its sheet, by the plan's hash (hex)."""
    return _read(home)[1]


def check(home: PartyHome, run: str, manifest: str, changes: Sequence[str], *, at: float) -> str:
    """Returns the hash of the sheet that this terminal showed, if it showed this very plan last and a moment ago.

    Args:
        changes: what another plan under this name would have changed since.

    Raises:
        ConfigurationError: it has shown none, or another run's.
        PrivacyRefusal: the plan was changed since.
    """
    here = session()
    remedy = f"undersong-party preview {shell_word(run)}, then approve it with the words that it shows"
    if not here:
        raise ConfigurationError("--latest-shown needs a terminal: here is none", remedy)
    last = _read(home)[0].get(here)
    if last is None or last.get("run") != run or not 0 <= at - float(last.get("at_s", 0.0)) <= LASTS_S:
        raise ConfigurationError(f"this terminal has not shown run {run!r} last", remedy)
    if last.get("manifest") != manifest:
        raise PrivacyRefusal(
            f"the plan of run {run!r} was CHANGED since this terminal showed it: "
            + printable("; ".join(changes) or "see its preview"),
            remedy,
        )
    return str(last["sheet"])


def _read(home: PartyHome) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[float, str]]]:
    try:
        value = read_json(home.shown)
        return dict(value["sessions"]), {key: (float(when), str(sheet)) for key, (when, sheet) in value["seen"].items()}
    except (AttributeError, ConfigurationError, KeyError, TypeError, ValueError):
        return {}, {}  # nothing was shown yet: all that is lost is a convenience
