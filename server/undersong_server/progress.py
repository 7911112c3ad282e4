"""How a run tells whoever waits what it is doing: phases with a count, so that a display can estimate the rest."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A display of phases. ``done`` of ``total`` units; calling again with the same phase moves it on."""

    def update(self, phase: str, done: int, total: int) -> None: ...

    def say(self, message: str) -> None:
        """One line that stays on the screen: public words only."""


class Silent:
    """Shows nothing (tests, ``--json``, ``--quiet``)."""

    def update(self, phase: str, done: int, total: int) -> None: ...

    def say(self, message: str) -> None: ...
