"""One attempt at one private sum: the stage that is due, the replies so far, and the exchanges to come.

A sum's adverts, nonces and shares depend on the roster alone, not on its public inputs. Over a transport of expensive
messages, those of the next sum therefore travel in the messages in which one sum is masked, agreed on and unmasked.
From the second sum on only the three stages are left that need everybody's answer to the one before (two in direct
mode):

    messages of one sum                 alone    in a run
    direct (nothing is shared)              3           2
    complete graph                          5           3
    k-regular or Merkle graph               6           3

The first sum's adverts travel with everyone's signatures. A party that misses a message under which the next sum was
prepared loses nothing: it is asked again when that sum begins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from undersong_common.errors import RoundAborted, UndersongError
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.wire.messages import secagg_pb2

EXCHANGES_LEFT = {"mask": 3, "consistency": 2, "unmask": 1}  # exchanges from this stage on, itself included
EXCHANGES_LEFT_DIRECT = {"mask": 2, "consistency": 1}


@dataclass(eq=False)
class Course:
    """The course of one attempt at one private sum.

    Attributes:
        question: returns the hash of the sum's public inputs (q of docs/secagg.md), once it is the sum's turn.
        requests: requests of the stage that is due, by party; ``advertise`` holds those of the first stage.
        received: payloads received for this stage; None from a party whose answer cannot be used.
        has_inputs: True once the parties have been sent the public inputs.
        stalled: True if a party is late, so nothing more is prepared before the sum's own turn.
        result: the opened sum, or why the attempt has ended without one.
        request_cache: the last request by its kind: the values that it was made of, and its bytes.
    """

    name: str
    number: int
    parameters: SumParameters
    question: Callable[[], bytes]
    stage: int = 0
    requests: Mapping[str, bytes] = field(default_factory=dict)
    received: dict[str, bytes | None] = field(default_factory=dict)
    has_inputs: bool = False
    stalled: bool = False
    result: secagg.Opened | RoundAborted | None = None
    absences: dict[str, UndersongError] = field(default_factory=dict)
    request_cache: dict[str, tuple[tuple[object, ...], bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._machine = secagg.private_sum(self.parameters, self.question)
        self.requests = self.advertise = next(self._machine)

    @property
    def due(self) -> str:
        """The stage that is due, as secagg.proto names it; empty when the attempt has ended."""
        if self.result is not None or not self.requests:
            return ""
        return secagg_pb2.Request.FromString(next(iter(self.requests.values()))).WhichOneof("stage") or ""

    @property
    def left(self) -> int:
        """Number of exchanges left in which the next sum may be prepared; 0 before the masked inputs are due."""
        return (EXCHANGES_LEFT_DIRECT if self.parameters.direct else EXCHANGES_LEFT).get(self.due, 0)

    @property
    def preparation(self) -> int:
        """Number of exchanges of this sum that need no public inputs, and so may come before its turn."""
        if self.parameters.direct:
            return 1
        return 2 if self.parameters.graph is None else 3

    @property
    def wanted(self) -> list[str]:
        """The parties whose reply to this stage is missing."""
        return [party for party in self.requests if party not in self.received]

    def take(self, payloads: Mapping[str, bytes]) -> None:
        """Takes the stage's payloads and goes on to the next stage."""
        self.received = {}
        self.request_cache = {}
        try:
            self.requests = self._machine.send(payloads)
            self.stage += 1
        except StopIteration as stop:
            self.result = stop.value
        except RoundAborted as aborted:
            self.result = aborted
