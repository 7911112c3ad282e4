"""Moments from which a time is counted that no clock shortens: by the machine's uptime, until it is restarted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BOOT_FILE, UPTIME_FILE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")


@dataclass(frozen=True)
class Instant:
    """A moment by the clock, and by the uptime of the machine.

    Attributes:
        at: seconds since the epoch, by a clock that may be wrong.
        boot: start of the machine since which its uptime counts; "" where the system tells none.
        up: seconds of uptime.
    """

    at: float
    boot: str = ""
    up: float = 0.0

    def passed_s(self, now: "Instant") -> float:
        """Returns the seconds until ``now``; below 0 if this moment was noted by a clock that was ahead.

        The clock counts only where the machine was restarted in between.
        """
        if self.boot and self.boot == now.boot:
            return now.up - self.up
        return now.at - self.at


def instant(clock: Callable[[], float]) -> Instant:
    """Returns this moment, by ``clock`` and by files of the system, which no library that shifts the clock changes."""
    try:
        boot = BOOT_FILE.read_text(encoding="ascii").strip()
        up_s = float(UPTIME_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return Instant(clock())
    return Instant(clock(), boot, up_s)
