"""Measures the time since a moment by the machine's uptime, which a wrong clock cannot change, until a restart."""

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
        """Returns the seconds from this moment until ``now``, by the uptime.

        If the machine was restarted in between, it returns the clock's difference, which is below 0 if the clock was
        ahead at this moment.
        """
        if self.boot and self.boot == now.boot:
            return now.up - self.up
        return now.at - self.at


def instant(clock: Callable[[], float]) -> Instant:
    """Returns this moment, by ``clock`` and by files of the system, which no library that shifts the clock changes."""
    try:
        boot_id = BOOT_FILE.read_text(encoding="ascii").strip()
        up_s = float(UPTIME_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return Instant(clock())
    return Instant(clock(), boot_id, up_s)
