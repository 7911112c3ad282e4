"""Actions on the daemon for this party's people: its status, pause and resume, and the checks."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_client.consent.policy_file import former_trust
from undersong_client.home import REFUSED_START, PartyHome, read_json
from undersong_common.files import replace_file
from undersong_common.program.machine import HeldStep

if TYPE_CHECKING:
    from undersong_client.link.checks import Finding


@dataclass(frozen=True)
class DaemonStatus:
    """The daemon's last report about itself.

    Attributes:
        state: "connected", "paused", "waiting" and so on; for no daemon "not running", "never started", or that it
            refuses to start.
        facts: the other values of ``status.json``.
        held_up: the steps of the daemon that this machine's faults hold up, and since when.
        former_trust: sentence on trust in the policy that has no effect any more; "" without it.
    """

    party: str
    running: bool
    state: str
    paused: bool
    drill: bool
    facts: Mapping[str, Any]
    held_up: tuple[HeldStep, ...] = ()
    former_trust: str = ""

    @property
    def well(self) -> bool:
        """True if the daemon is connected, or paused by its people."""
        return self.running and self.state in ("connected", "paused")

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "facts"}
        return {**self.facts, **fields, "held_up": [asdict(step) for step in self.held_up]}


def status(home: Path) -> DaemonStatus:
    """Returns the state of the daemon of a party's folder."""
    party_home = PartyHome(home)
    running = party_home.is_running
    facts: dict[str, Any] = read_json(party_home.status) if party_home.status.exists() else {}
    is_stated = running or facts.get("state") == REFUSED_START
    state = facts.get("state", "never started") if is_stated else "not running"
    settings = party_home.settings
    return DaemonStatus(
        settings.party,
        running,
        state,
        party_home.pause.exists(),
        settings.drill,
        facts,
        party_home.held_steps,
        former_trust(party_home),
    )


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
