"""Replies that are not sent yet, and the vectors for which they wait."""

from collections.abc import Callable
from dataclasses import dataclass, field

from undersong_client.answering.computation import Computed, VectorRequest
from undersong_client.storage.outbox import NOTHING, Stored
from undersong_protocol.wire.messages import federation_pb2 as wire

Slot = tuple[str, str, bytes]  # run, sum and the attempt's coins


class DroppedRequest(Exception):
    """Raised if nobody waits for a reply: nothing is charged and nothing leaves. A new request for it is answered."""


class UnheardStream(Exception):
    """Raised if only the next frame of the asking stream can tell whether it stands. The request waits for it."""


class DeferredVector(Exception):
    """Raised once a request is charged and its vector is not ready; other requests are answered meanwhile."""


@dataclass
class Deferral:
    """A vector that is computed between two passes over its request.

    Attributes:
        vector_request: the vector that the first pass asks for.
        start_s: time at which its request was taken up, in monotonic seconds.
        computed: the vector, for the second pass.
        suspensions: how often the coordinator had ended or suspended the run by the first pass.
    """

    vector_request: VectorRequest | None = None
    computed: Computed | None = field(default=None, repr=False)
    suspensions: int = 0
    start_s: float = 0.0
    first_rung_s: float = 0.0

    @property
    def slot(self) -> Slot:
        """The attempt (run, sum, coins) whose vector is computed; no attempt's vector is computed twice at a time."""
        assert self.vector_request is not None
        return _slot_of(self.vector_request)

    def take(self, request: VectorRequest, start_s: float) -> Computed:
        """Returns the vector. Raises DeferredVector in the first pass, and if the request needs another vector."""
        is_same_vector = (
            self.vector_request is not None
            and _slot_of(self.vector_request) == _slot_of(request)
            and self.vector_request.inputs == request.inputs
        )
        if self.computed is None or not is_same_vector:
            self.vector_request = request
            self.computed = None
            self.start_s = start_s
            self.first_rung_s = request.planned.first_rung_s
            raise DeferredVector
        return self.computed


def _slot_of(request: VectorRequest) -> Slot:
    return request.run, request.planned.name, request.coins


@dataclass
class PendingReply:
    """The reply to one request, with the facts that decide when it may be sent.

    Attributes:
        reply: the reply's bytes; b"" until it is made.
        first_rung_s: first rung in seconds (undersong_protocol.limits) for a reply that depends on records, which
            leaves at the next rung; 0 for any other reply, which leaves at once.
        may_leave: returns True if the reply may still be sent. Call it after the wait, because people may have
            withdrawn their consent meanwhile.
        request: the request; None for bytes that are no request.
        kind: name of the reply's kind of body.
        stored: the end of the reply, if the party's journal holds it already.
        start_s: time at which the request was taken up, in monotonic seconds.
        is_asked: returns True while somebody asks for the reply.
        deferral: takes the vector that the reply needs; None computes it while the request is answered.
    """

    reply: bytes = field(default=b"", repr=False)
    first_rung_s: float = 0.0
    may_leave: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)
    request: wire.Request | None = field(default=None, repr=False)
    kind: str = ""
    stored: Stored = NOTHING
    start_s: float = 0.0
    is_asked: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)
    deferral: Deferral | None = field(default=None, repr=False, compare=False)
