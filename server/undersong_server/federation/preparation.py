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

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import RoundAborted, UndersongError
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire.messages import secagg_pb2
from undersong_server.database.journal import Journal, json_bytes

ROUNDS_LEFT = {"mask": 3, "consistency": 2, "unmask": 1}  # number of exchanges from this round to the last, by round
ROUNDS_LEFT_DIRECT = {"mask": 2, "consistency": 1}


@dataclass(eq=False)
class SumAttempt:
    """One attempt at one private sum: its requests, its replies, and its outcome.

    Attributes:
        question: returns the hash of the sum's public inputs (q of docs/secagg.md), once it is the sum's turn.
        requests: requests of the stage that is due, by party; ``first_requests`` holds those of the first stage.
        replies: payloads received for this stage; None from a party whose answer cannot be used.
        has_inputs: True once the parties have been sent the public inputs.
        is_stalled: True if a party is late, so nothing more is prepared before the sum's own turn.
        outcome: the opened sum, or why the attempt has ended without one.
        request_cache: by kind of request, the values that the last one was made of, and its bytes.
    """

    name: str
    number: int
    parameters: SumParameters
    question: Callable[[], bytes]
    stage: int = 0
    requests: Mapping[str, bytes] = field(default_factory=dict)
    replies: dict[str, bytes | None] = field(default_factory=dict)
    has_inputs: bool = False
    is_stalled: bool = False
    outcome: secagg.UnmaskedSum | RoundAborted | None = None
    absences: dict[str, UndersongError] = field(default_factory=dict)
    request_cache: dict[str, tuple[tuple[object, ...], bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._machine = secagg.private_sum(self.parameters, self.question)
        self.requests = self.first_requests = next(self._machine)

    @property
    def round(self) -> str:
        """Name of the present round as secagg.proto has it; "" when the attempt has ended."""
        if self.outcome is not None or not self.requests:
            return ""
        return secagg_pb2.Request.FromString(next(iter(self.requests.values()))).WhichOneof("stage") or ""

    @property
    def rounds_left(self) -> int:
        """Number of exchanges left in which the next sum may be prepared; 0 before the masked inputs are due."""
        return (ROUNDS_LEFT_DIRECT if self.parameters.direct else ROUNDS_LEFT).get(self.round, 0)

    @property
    def rounds_without_inputs(self) -> int:
        """Number of exchanges of this sum that need no public inputs, so that they may be made in advance."""
        if self.parameters.direct:
            return 1
        if self.parameters.graph is None:
            return 2
        return 3

    @property
    def pending(self) -> list[str]:
        """The parties whose reply to this stage is missing."""
        return [party for party in self.requests if party not in self.replies]

    def end_round(self, payloads: Mapping[str, bytes]) -> None:
        """Ends the present round with these payloads, and begins the next one."""
        self.replies = {}
        self.request_cache = {}
        try:
            self.requests = self._machine.send(payloads)
            self.stage += 1
        except StopIteration as stop:
            self.outcome = stop.value
        except RoundAborted as aborted:
            self.outcome = aborted


class Preparation:
    """The attempts under way, replayed from the journal, and the sum that may be prepared beside another one.

    Args:
        is_batched: True if one message carries several requests; otherwise nothing is prepared.
    """

    def __init__(self, manifest: Manifest, journal: Journal, *, is_batched: bool) -> None:
        self._manifest = manifest
        self._journal = journal
        self._is_batched = is_batched
        self._attempts: dict[tuple[str, int], SumAttempt] = {}

    def find(self, name: str, attempt_number: int) -> SumAttempt:
        """Returns the attempt under way, or else a new one to which the replies in the journal were given."""
        known_attempt = self._attempts.get((name, attempt_number))
        if known_attempt is None:
            parameters = self._manifest.sum_parameters(name, attempt_number)
            known_attempt = SumAttempt(
                name, attempt_number, parameters, lambda: bytes.fromhex(self._journal.get_json(f"sum/{name}/question"))
            )
            while (
                known_attempt.outcome is None
                and (journaled_replies := self._journaled_replies(known_attempt)) is not None
            ):
                known_attempt.end_round(journaled_replies)
            known_attempt.has_inputs = known_attempt.stage > 0 and not self._is_batched
            self._attempts[name, attempt_number] = known_attempt
        return known_attempt

    def forget(self, attempt: SumAttempt) -> None:
        """Drops an attempt that has ended."""
        del self._attempts[attempt.name, attempt.number]

    def find_next(self, name: str | None) -> SumAttempt | None:
        """Returns the first attempt at the sum after ``name`` in the plan; None if none can be prepared.

        Args:
            name: None takes the plan's first sum.
        """
        if not self._is_batched:
            return None
        sum_names = [planned_sum.name for planned_sum in self._manifest.plan.sums]
        if name is None:
            next_index = 0
        else:
            next_index = sum_names.index(name) + 1
        if next_index >= len(sum_names) or opened_sum(self._journal, sum_names[next_index]) is not None:
            return None
        if self.void_statements(sum_names[next_index], 0):
            return None  # The sum's first attempt is over.
        return self.find(sum_names[next_index], 0)

    def prepare_next(self, attempt: SumAttempt) -> SumAttempt | None:
        """Returns the attempt at the next sum whose round travels with the next exchange of ``attempt``.

        Returns None if ``attempt`` is not at its masked vectors yet, if no sum follows, or if a party was late in the
        next sum's preparation. It also returns None while later exchanges of ``attempt`` suffice: a party that drops
        out after the preparation is missing from the next sum.

        Args:
            attempt: the attempt at the present sum.
        """
        if not attempt.rounds_left:
            return None
        next_attempt = self.find_next(attempt.name)
        if (
            next_attempt is None
            or next_attempt.is_stalled
            or next_attempt.round not in ("advertise", "reveal", "share")
        ):
            return None
        is_time = next_attempt.stage or attempt.rounds_left <= next_attempt.rounds_without_inputs
        if is_time:
            return next_attempt
        return None

    def end_round(self, attempt: SumAttempt) -> None:
        """Journals the replies of the present round, and begins the next one with them."""
        payload_by_party = {
            party: payload for party in attempt.requests if (payload := attempt.replies.get(party)) is not None
        }
        round_key = _round_key(attempt)
        round_entries = [(f"{round_key}/{party}", payload) for party, payload in payload_by_party.items()]
        self._journal.put_all([*round_entries, (round_key, json_bytes(list(payload_by_party)))])
        attempt.end_round(payload_by_party)

    def void_statements(self, name: str, number: int) -> dict[str, bytes] | None:
        """Returns the certificate that makes an attempt void; {} if it is not void, None if nobody was asked yet."""
        stored_statements = self._journal.get_json(f"sum/{name}/void/{number}")
        if stored_statements is None:
            return None
        return {party: bytes.fromhex(statement_hex) for party, statement_hex in stored_statements.items()}

    def _journaled_replies(self, attempt: SumAttempt) -> dict[str, bytes] | None:
        """Payloads by party of the present round, from the journal; None if it has not been answered."""
        round_key = _round_key(attempt)
        parties = self._journal.get_json(round_key)
        if parties is None:
            return None
        return {party: self._journal.get(f"{round_key}/{party}") or b"" for party in parties}


def opened_sum(journal: Journal, name: str) -> NoisySum | None:
    """Reads the private sum ``name`` from a run's journal; None if the run has not opened it."""
    sum_meta = journal.get_json(f"sum/{name}/meta")
    value_bytes = journal.get(f"sum/{name}/values")
    if sum_meta is None or value_bytes is None:
        return None
    return noisy_sum(np.load(io.BytesIO(value_bytes), allow_pickle=False), sum_meta)


def noisy_sum(values: Int64, meta: Mapping[str, Any]) -> NoisySum:
    """Returns the opened sum of these values, with its journaled facts."""
    return NoisySum(values, meta["scale"], meta["variance"] ** 0.5 / meta["scale"], tuple(meta["survivors"]))


def _round_key(attempt: SumAttempt) -> str:
    return f"sum/{attempt.name}/attempt/{attempt.number}/stage/{attempt.stage}"
