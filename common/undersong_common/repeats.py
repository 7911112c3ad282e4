"""A message that comes again and again is shown once, then counted until another one comes or a minute has passed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable

QUIET_S = 60.0
# A number that stands by itself: not part of a name, a date, an address, or something quoted.
_NUMBER = re.compile(r"(?<![\w.:/'\"-])\d+(?:\.\d+)?(?![.:/'\"-]*\w)(?!['\"])")


def without_numbers(message: str) -> str:
    """What near duplicates of a message have in common: all but the numbers that stand by themselves.

    >>> without_numbers("votes/1: attempt 2 is void, next try in 0.5 s")
    'votes/1: attempt # is void, next try in # s'
    >>> without_numbers("site-2 at 10.0.0.7 refused run 'spring 3'")
    "site-2 at 10.0.0.7 refused run 'spring 3'"
    """
    return _NUMBER.sub("#", message)


class Repeats:
    """Decides what is shown of a stream of messages. Threads may share it.

    Only messages that follow one another are counted together: what is shown last is always the last kind that came.

    Args:
        quiet_s: after so long a message is shown again, however alike.
    """

    def __init__(self, quiet_s: float = QUIET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet_s = quiet_s
        self._clock = clock
        self._last: tuple[Hashable, float] = (None, 0.0)  # what the last shown message is like, and when it was shown
        self._kept_back = 0
        self._lock = threading.Lock()

    def shown(self, message: str, alike: Hashable = None) -> tuple[str, ...]:
        """The lines to show: none for a message like the last one; else it, after a word of those that were not shown.

        Args:
            alike: what is equal for messages that are alike; without it, the message :func:`without_numbers`.
        """
        alike = without_numbers(message) if alike is None else alike
        with self._lock:
            now = self._clock()
            last, at = self._last
            if alike == last and now - at < self._quiet_s:
                self._kept_back += 1
                return ()
            more, self._kept_back, self._last = self._kept_back, 0, (alike, now)
        return (f"({more} more like it)", message) if more else (message,)
