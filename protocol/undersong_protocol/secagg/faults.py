"""The error of a private sum that ends without an answer; it names the parties at fault."""

from __future__ import annotations

from undersong_common.errors import PeerFault, RoundAborted

COORDINATOR = "coordinator"


class SumAborted(RoundAborted):
    """This attempt opened nothing. ``faults`` holds every protocol fault found, ``stage`` where it ended."""

    def __init__(self, stage: str, problem: str, remedy: str, faults: tuple[PeerFault, ...] = ()) -> None:
        named = "; ".join(str(fault.args[0]).splitlines()[0] for fault in faults)
        super().__init__(f"{stage}: {problem}" + (f" (faults: {named})" if named else ""), remedy)
        self.stage = stage
        self.faults = faults
