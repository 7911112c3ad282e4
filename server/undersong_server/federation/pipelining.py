"""Private sums over transports whose messages are expensive: as few of them per sum as the protocol allows.

A sum's adverts, nonces and shares depend on the roster alone, not on its public inputs. So while one sum is masked,
agreed on and unmasked, those of the next one travel in the same messages, and from the second sum on only the three
stages that need everybody's answer to the one before are left (two in direct mode):

    messages of one sum                 alone    in a run
    direct (nothing is shared)              3           2
    complete graph                          5           3
    k-regular graph                         6           3

The first sum's adverts travel with everyone's signatures. A party that misses a message under which the next sum was
being prepared loses nothing: it is asked again when that sum begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from undersong_common.errors import RoundAborted, TransportError, UndersongError
from undersong_protocol import codec
from undersong_protocol.messages import federation_pb2 as wire
from undersong_protocol.messages import secagg_pb2
from undersong_protocol.public import Input, named_blocks
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.parameters import SumParameters
from undersong_server.federation.driver import BatchTransport, Federation, Lazily, decode, expect, opened_sum

LEFT = {"mask": 3, "consistency": 2, "unmask": 1}  # exchanges from this stage on, itself included
LEFT_DIRECT = {"mask": 2, "consistency": 1}


@dataclass(eq=False)
class _Course:
    """One attempt at one sum, as far as it has come.

    Attributes:
        requests: of the stage that is due, by party; empty where the attempt has ended.
        came: payloads that came for this stage so far, None from a party whose answer cannot be used.
        question: gives q once it is the sum's turn.
        named: whether the parties were told the public inputs.
        stalled: somebody is late; nothing more is prepared before the sum's own turn.
    """

    name: str
    number: int
    parameters: SumParameters
    question: Callable[[], bytes]
    stage: int = 0
    requests: Mapping[str, bytes] = field(default_factory=dict)
    came: dict[str, bytes | None] = field(default_factory=dict)
    named: bool = False
    stalled: bool = False
    opened: secagg.Opened | None = None
    aborted: RoundAborted | None = None
    absences: dict[str, UndersongError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._machine = secagg.private_sum(self.parameters, self.question)
        self.advertise: Mapping[str, bytes] = next(self._machine)
        self.requests = self.advertise

    @property
    def ended(self) -> bool:
        return self.opened is not None or self.aborted is not None

    @property
    def due(self) -> str:
        """The stage that is due, as secagg.proto names it; empty where the attempt has ended."""
        if self.ended or not self.requests:
            return ""
        return secagg_pb2.Request.FromString(next(iter(self.requests.values()))).WhichOneof("stage") or ""

    @property
    def left(self) -> int:
        """Exchanges to come while a next sum may be prepared; 0 before the masked inputs are due."""
        return (LEFT_DIRECT if self.parameters.direct else LEFT).get(self.due, 0)

    @property
    def preparation(self) -> int:
        """Exchanges that need no public inputs."""
        return 1 if self.parameters.direct else 2 if self.parameters.graph is None else 3

    @property
    def wanted(self) -> list[str]:
        return [party for party in self.requests if party not in self.came]

    def take(self, payloads: Mapping[str, bytes]) -> None:
        """The stage's replies; on to the next stage."""
        self.came = {}
        try:
            self.requests = self._machine.send(payloads)
            self.stage += 1
        except StopIteration as stop:
            self.opened = stop.value
        except RoundAborted as aborted:
            self.aborted = aborted


class PipelinedFederation(Federation):
    """:class:`Federation` with the fewest messages; what is asked, charged and opened is the same.

    Args:
        transport: carries several requests in one message.
    """

    def __init__(self, transport: BatchTransport, *arguments: Any, **options: Any) -> None:
        super().__init__(transport, *arguments, **options)
        self._batches = transport
        self._courses: dict[tuple[str, int], _Course] = {}

    def _show_signatures(self, names: Sequence[str], timeout_s: float) -> dict[str, wire.Reply]:
        first = self._next(None)
        if first is not None and (first.ended or first.stage):
            first = None
        agreement = self._agreement()
        count = 1 if first is None else 2
        shown = {}
        for name, replies in self._send(
            names, lambda name: [agreement, *([self._prepare(first, name)] if first else [])]
        ).items():
            if len(replies) != count:
                continue
            shown[name] = replies[0]
            if replies[0].WhichOneof("body") == "agreed":
                self._agreed.add(name)
                if first is not None:
                    self._note(first, name, replies[1])
        if first is not None:
            self._settle(first, patient=True)
        return shown

    def _attempt(self, name: str, attempt: int, inputs: Sequence[Input]) -> secagg.Opened:
        course = self._course(name, attempt)
        self._absences.update(course.absences)
        course.absences = self._absences
        while not course.ended:
            self._progress.update(f"private sum {name}", course.stage, 5)
            self._exchange_stage(course, inputs, self._ahead(course))
        del self._courses[name, attempt]
        if course.aborted is not None:
            raise course.aborted
        assert course.opened is not None
        return course.opened

    def _course(self, name: str, attempt: int) -> _Course:
        """The attempt as it stands: under way, or as far as the journal goes."""
        known = self._courses.get((name, attempt))
        if known is None:
            known = _Course(name, attempt, self.manifest.sum_parameters(name, attempt), lambda: self._asked(name))
            while not known.ended and (answered := self._stage_replies(name, attempt, known.stage)) is not None:
                known.take(answered)
            self._courses[name, attempt] = known
        return known

    def _next(self, name: str | None) -> _Course | None:
        """The first attempt at the sum after ``name`` in the plan (None: at the first one); None where it is open."""
        names = [planned.name for planned in self.manifest.plan.sums]
        place = 0 if name is None else names.index(name) + 1
        if place >= len(names) or opened_sum(self._journal, names[place]) is not None:
            return None
        if self._void_statements(names[place], 0):
            return None  # its first attempt is over
        return self._course(names[place], 0)

    def _ahead(self, course: _Course) -> _Course | None:
        """The sum to prepare with this exchange. Begun as late as possible: what waits could only drop out."""
        if not course.left:
            return None
        following = self._next(course.name)
        if following is None or following.ended or following.stalled or following.due not in ("advertise", *_EARLY):
            return None
        return following if following.stage or course.left <= following.preparation else None

    def _exchange_stage(self, course: _Course, inputs: Sequence[Input], ahead: _Course | None) -> None:
        """One exchange, repeated only to parties that lack public blocks."""
        wanted = named_blocks(inputs)
        lacking = self._lacking(course.wanted, wanted)
        asked = course.wanted
        while asked:
            early = set() if ahead is None else set(ahead.wanted)
            sizes: dict[str, int] = {}

            def ask(
                party: str,
                asked: Sequence[str] = tuple(asked),
                early: Set[str] = frozenset(early),
                sizes: dict[str, int] = sizes,
                ahead: _Course | None = ahead,
            ) -> list[wire.Request]:
                part = self._part(course, party, inputs, lacking[party]) if party in asked else []
                sizes[party] = len(part)
                return [*part, self._early(ahead, party)] if ahead is not None and party in early else part

            again = []
            for party, replies in self._send(list(dict.fromkeys([*asked, *early])), ask).items():
                own = sizes[party]
                if len(replies) != own + (party in early):
                    continue  # as good as no answer
                if own and replies[0].WhichOneof("body") == "agreed":
                    self._agreed.add(party)
                if own and (missing := _missing(replies[:own])) is not None:
                    # asked once more, with what it lacks; a party that then still lacks something is left out
                    if set(missing) - set(lacking[party]):
                        again.append(party)
                    lacking[party] = missing
                elif own:
                    if course.due == "mask" or course.named:
                        self._held[party].update(wanted)
                    self._note(course, party, replies[own - 1])
                if ahead is not None and party in early:
                    self._note(ahead, party, replies[own])
            if ahead is not None:
                self._settle(ahead, patient=True)
                ahead = None
            asked = again
        self._settle(course, patient=False)

    def _part(
        self, course: _Course, party: str, inputs: Sequence[Input], blocks: Sequence[bytes]
    ) -> list[wire.Request]:
        """What one party is asked for a sum whose turn it is."""
        part = [] if party in self._agreed else [self._agreement()]
        if course.due == "advertise":
            if course.number == 0:
                return [*part, self._prepare(course, party)]
            course.named = True
            return [*part, self._open(course, party, inputs, blocks)]
        if course.due == "mask" and not course.named:
            part.append(self._open(course, party, inputs, blocks))
        return [*part, self._step(course.name, course.number, course.requests[party])]

    def _early(self, course: _Course, party: str) -> wire.Request:
        if course.due == "advertise":
            return self._prepare(course, party)
        return self._step(course.name, course.number, course.requests[party])

    def _prepare(self, course: _Course, party: str) -> wire.Request:
        return wire.Request(
            version=codec.VERSION,
            prepare_sum=wire.PrepareSum(
                manifest_hash=self.manifest.hash,
                sum=course.name,
                attempt=course.number,
                payload=course.advertise[party],
            ),
        )

    def _open(self, course: _Course, party: str, inputs: Sequence[Input], blocks: Sequence[bytes]) -> wire.Request:
        return self._opening(course.name, course.number, course.advertise[party], inputs, blocks)

    def _note(self, course: _Course, party: str, reply: wire.Reply) -> None:
        """Keeps a reply's payload, or why it is none."""
        try:
            course.came[party] = expect(party, reply, "sum_reply").sum_reply.payload
        except UndersongError as error:
            course.came[party] = None
            course.absences[party] = error
            self._progress.say(f"{course.name}: left out: {error.problem}")

    def _settle(self, course: _Course, *, patient: bool) -> None:
        """Journals the stage and goes on to the next one, without whoever is late; ``patient``: not without them."""
        if course.wanted and patient:
            course.stalled = True
            return
        for party in course.wanted:
            course.absences[party] = TransportError(f"{party}: does not answer")
            self._progress.say(f"{course.name}: left out: {party}: does not answer")
        payloads = {party: payload for party in course.requests if (payload := course.came.get(party)) is not None}
        self._keep_stage(course.name, course.number, course.stage, payloads)
        course.take(payloads)

    def _send(
        self, parties: Sequence[str], ask: Callable[[str], Sequence[wire.Request]]
    ) -> dict[str, list[wire.Reply]]:
        """What every party answers to what ``ask`` makes for it, when its message is sent."""
        requests = Lazily(parties, lambda party: [request.SerializeToString() for request in ask(party)])
        raw = self._batches.exchange_batches(requests, timeout_s=self._timeout_s)
        return {name: [decode(name, reply) for reply in replies] for name, replies in raw.items()}


_EARLY = ("reveal", "share")


def _missing(replies: Sequence[wire.Reply]) -> list[bytes] | None:
    """Public blocks that a party lacks; None where it lacks none."""
    return next((list(reply.missing.blocks) for reply in replies if reply.WhichOneof("body") == "missing"), None)
