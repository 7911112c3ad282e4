"""Actions on the daemon for this party's people: its status, pause and resume, and the checks."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_client.consent.policy_file import former_trust
from undersong_client.home import REFUSED_START, PartyHome, read_json
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.printable import duration
from undersong_common.program.machine import HeldStep

if TYPE_CHECKING:
    from undersong_client.link.checks import Finding

LONGEST_UNWRITTEN_S = 30.0  # a daemon that runs writes its status every 5 s


@dataclass(frozen=True)
class DaemonStatus:
    """The daemon's last report about itself.

    Attributes:
        state: "connected", "paused", "waiting" and so on; for no daemon "not running", "never started", or that it
            refuses to start.
        facts: the other values of ``status.json``.
        held_up: the steps of the daemon that this machine's faults hold up, and since when.
        former_trust: sentence on trust in the policy that has no effect any more; "" without it.
        at_s: time at which this was read, seconds since the epoch.
    """

    party: str
    running: bool
    state: str
    paused: bool
    drill: bool
    facts: Mapping[str, Any]
    held_up: tuple[HeldStep, ...] = ()
    former_trust: str = ""
    at_s: float = 0.0

    @property
    def well(self) -> bool:
        """True if the daemon is connected, or paused by its people, and neither it nor the coordinator is silent."""
        return self.running and self.state in ("connected", "paused") and not self.silence

    @property
    def silence(self) -> str:
        """Sentence on a daemon or a coordinator that has been silent for too long; "" for none.

        A process that was stopped, or whose machine sleeps, cannot say so itself.
        """
        if not self.running:
            return ""
        unwritten_s, unheard_s = (
            self.at_s - self.facts.get(time_key, self.at_s) for time_key in ("written_s", "heard_s")
        )
        if unwritten_s > LONGEST_UNWRITTEN_S:
            return f"the daemon itself was last heard {duration(unwritten_s)} ago: it was stopped, or its machine hangs"
        if self.state in ("connected", "paused") and unheard_s > self.facts.get("longest_silence_s", math.inf):
            return f"the coordinator was last heard {duration(unheard_s)} ago; the daemon connects anew by itself"
        return ""

    def to_json(self) -> dict[str, Any]:
        status_fields = {
            field_name: field_value
            for field_name, field_value in vars(self).items()
            if field_name not in ("facts", "at_s")
        }
        return {
            **self.facts,
            **status_fields,
            "held_up": [asdict(held_step) for held_step in self.held_up],
            "silence": self.silence,
        }


def status(home: Path) -> DaemonStatus:
    """Returns the state of the daemon of a party's folder."""
    party_home = PartyHome(home)
    is_running = party_home.is_running
    status_facts = _stated_facts(party_home)
    is_stated = is_running or status_facts.get("state") == REFUSED_START
    if is_stated:
        link_state = status_facts.get("state", "never started")
    else:
        link_state = "not running"
    settings = party_home.settings
    return DaemonStatus(
        settings.party,
        is_running,
        link_state,
        party_home.pause.exists(),
        settings.drill,
        status_facts,
        party_home.held_steps,
        former_trust(party_home),
        time.time(),
    )


def _stated_facts(home: PartyHome) -> dict[str, Any]:
    """Reads what the daemon last wrote about itself; a file that cannot be read becomes a problem of the daemon."""
    if not home.status.exists():
        return {}
    try:
        return read_json(home.status)
    except ConfigurationError as error:
        return {"state": "unknown", "problem": error.problem, "remedy": "the daemon writes it anew when it runs"}


def pause(home: Path) -> None:
    """Makes the daemon answer no requests until :func:`resume`."""
    replace_file(PartyHome(home).pause, b"paused\n")


def resume(home: Path) -> None:
    """Ends :func:`pause`: the daemon answers requests again."""
    PartyHome(home).pause.unlink(missing_ok=True)


def check(home: Path, *, checkpoints: Path, offline: bool = False) -> "Iterator[Finding]":
    """Runs all checks of a party's folder and yields each finding as it is made.

    Call ``only_tls_1_3`` before gRPC is imported.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        offline: True leaves out the checks that need the coordinator.
    """
    from undersong_client.link import checks

    return checks.check(PartyHome(home), checkpoints=checkpoints, environment=os.environ, offline=offline)
