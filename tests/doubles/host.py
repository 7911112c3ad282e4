"""A party's durable host, as the protocol asks for it: ledger, journal, send, and a power cut at any point between."""

from enum import Enum

from tests.doubles.secagg import answer, enrolled_key, entropy_of, stage_of, vector_of
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import SECRETS, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire


class Cut(Enum):
    """Where the power goes, while one request is handled."""

    BEFORE = "before the request is read"
    COMPUTED = "after the reply is computed"
    CHARGED = "after the ledger is written"
    JOURNALED = "after the journal is written"
    SENT = "after the reply is sent"


class Host:
    """One party: ``snapshot``, ``ledger`` and ``sent`` survive a cut, the machine does not."""

    def __init__(self, parameters: SumParameters, name: str) -> None:
        self.parameters = parameters
        self.name = name
        self.snapshot: bytes | None = None
        self.ledger: list[bytes] = []
        self.sent: dict[tuple[Stage, int], set[bytes]] = {}
        self.secrets: dict[str, bytes] = {}
        self._machine: PartyMachine | None = None
        self._boots = 0

    def _boot(self) -> PartyMachine:
        identity = enrolled_key(self.name)
        if self.snapshot is not None:
            return PartyMachine.restore(self.parameters, self.name, identity, self.snapshot)
        self._boots += 1
        entropy = entropy_of(self.name, self.parameters.attempt, self._boots)
        self.secrets = {}

        def drawn(size: int) -> bytes:
            value = entropy(size)
            self.secrets[SECRETS[len(self.secrets)]] = value
            return value

        return PartyMachine.open(self.parameters, self.name, identity, drawn)

    def deliver(self, request: bytes, cut: Cut | None = None) -> bytes | None:
        """The reply that leaves, or None where the power went before it could. Refusals are journaled, then raised."""
        if cut is Cut.BEFORE:
            self._machine = None
            return None
        machine = self._machine = self._machine or self._boot()
        try:
            reply = answer(machine, request, vector_of(self.name, self.parameters.dimension))
        except Exception:
            self.snapshot = machine.snapshot()
            raise
        if cut is Cut.COMPUTED:
            self._machine = None
            return None
        if reply.vector and self.parameters.sid not in self.ledger:
            self.ledger.append(self.parameters.sid)
        if cut is Cut.CHARGED:
            self._machine = None
            return None
        self.snapshot = machine.snapshot()
        if cut is Cut.JOURNALED:
            self._machine = None
            return None
        message = wire.Request.FromString(request)
        self.sent.setdefault((stage_of(message), message.reveal.roll), set()).add(reply.payload)
        if cut is Cut.SENT:
            self._machine = None
        return reply.payload
