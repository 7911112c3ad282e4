"""A party's attempts at private sums: in memory while they are under way, in its journal all the time.

Secrets of an attempt (its keys and seeds, the coins of its subsample) are stored in a compartment of the store, which
is destroyed when the attempt has ended. Answers stay, so that they can be sent again byte for byte. A
long reply is a row of its own and is written once: inside the machine's state, a masked vector would be sealed and
written anew at each later stage. The replies of an attempt that ended early are deleted with its secrets.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_client.home import ABANDONED_S, CLOCK_TOLERANCE_S
from undersong_client.storage.outbox import NOTHING, Stored
from undersong_client.storage.store import Compartment, Store
from undersong_common.errors import ConfigurationError, PrivacyRefusal, RoundAborted
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.keys import Encapsulate, encapsulate
from undersong_protocol.secagg.parameters import Entropy
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, question

COINS_BYTES = 32
COINS_PURPOSE = "/coins"  # this follows an attempt's key, so that its subsample has a separate stream of entropy
# A shorter reply stays in the machine's state: a separate row takes longer than to write such a reply three times.
LONGEST_REPLY_BYTES = 4096
# Attempts at one sum that may follow each other at once; aborts before a vector left cost nothing but time.
FREE_ATTEMPTS = 8
ATTEMPT_EVERY_S = 60.0

_ABANDONED = f"it was begun more than {ABANDONED_S / 86400:.0f} days ago"


@dataclass(eq=False)
class Attempt:
    """One attempt at one private sum.

    Attributes:
        key: name of the attempt in the journal.
        query: name of the sum in the plan.
        number: number of the attempt at this sum.
        inputs: references to the sum's public inputs; None until the coordinator has named them.
        coins: secret seed of the Poisson subsample; b"" once the attempt has ended.
        count: for a new attempt, number of attempts begun at this sum, this one included; 0 for an earlier one.
        before: for a new attempt, number of the last attempt that was begun at this sum before; -1 if none was.
        replies: stage and roll of the replies that have an entry of their own in the journal.
    """

    key: str
    manifest: Manifest
    query: str
    number: int
    machine: PartyMachine
    inputs: tuple[Input, ...] | None
    coins: bytes = field(repr=False)
    compartment: Compartment | None = None
    count: int = 0
    before: int = -1
    replies: set[tuple[Stage, int]] = field(default_factory=set)

    @cached_property
    def question(self) -> bytes:
        """q, the digest of the inputs that were named; it is the same in every attempt at a sum."""
        assert self.inputs is not None
        return question(self.inputs)

    @property
    def has_ended(self) -> bool:
        return self.machine.phase in (Phase.DONE, Phase.TOMBSTONED)


@dataclass(frozen=True)
class PartyKeys:
    """A party's signing key, and the randomness of its attempts.

    Attributes:
        identity: signing key, as the roster lists it.
        entropy: returns a source of random bytes for a named purpose; tests replace the operating system's.
        encapsulate: encapsulates secrets to other parties' ML-KEM keys; tests replace the library's.
        machine: the state machine of an attempt; a simulation may name one that an audit watches, a daemon never does.
    """

    identity: Ed25519PrivateKey = field(repr=False)
    entropy: Callable[[str], Entropy]
    encapsulate: Encapsulate = encapsulate
    machine: type[PartyMachine] = PartyMachine


class Attempts:
    """Finds, begins, journals and ends the attempts of one party.

    Args:
        store: the party's journal.
        name: the party's name, as the roster lists it.
        keys: the party's signing key, and the randomness of its attempts.
        clock: returns seconds since the epoch.
    """

    def __init__(self, store: Store, name: str, keys: PartyKeys, clock: Callable[[], float]) -> None:
        self._store = store
        self._name = name
        self._keys = keys
        self._clock = clock
        self._under_way: dict[str, Attempt] = {}

    def find(self, manifest: Manifest, query: str, attempt_number: int) -> Attempt | None:
        """Returns an attempt in its present state; None if it was never begun or its keys were destroyed."""
        attempt_key = _key(manifest, query, attempt_number)
        if attempt_key in self._under_way:
            return self._under_way[attempt_key]
        compartment = self._store.compartment(attempt_key)
        if compartment is not None and (machine_snapshot := compartment.get("machine")) is not None:
            sampling_coins = compartment.get("coins") or b""
        else:
            compartment = None
            machine_snapshot = self._store.get(f"{attempt_key}/ended")
            sampling_coins = b""
        if machine_snapshot is None:
            return None
        parameters = manifest.sum_parameters(query, attempt_number)
        reply_places: set[tuple[Stage, int]] = set()

        def read_reply(stage: Stage, roll_number: int) -> bytes | None:
            reply_places.add((stage, roll_number))
            return self._store.get(_reply_key(attempt_key, stage, roll_number))

        party_keys = self._keys
        machine = party_keys.machine.restore(
            parameters, self._name, party_keys.identity, machine_snapshot, party_keys.encapsulate, read_reply
        )
        restored_attempt = Attempt(
            attempt_key,
            manifest,
            query,
            attempt_number,
            machine,
            self._inputs(attempt_key),
            sampling_coins,
            compartment,
            replies=reply_places,
        )
        if compartment is not None:
            self._under_way[attempt_key] = restored_attempt
        return restored_attempt

    def new(self, manifest: Manifest, query: str, attempt_number: int) -> Attempt:
        """Begins an attempt with fresh keys; :meth:`keep` it before its first reply leaves.

        Raises PrivacyRefusal if ``attempt_number`` is not above all earlier ones, and RoundAborted if attempts come too
        fast.
        """
        start_record = self._read_start_record(manifest, query)
        if attempt_number <= start_record.last:
            raise PrivacyRefusal(
                f"{query}: attempt {attempt_number} is asked for after attempt {start_record.last},"
                " and nothing here knows its keys",
                "a new attempt takes the next number",
            )
        waited_s = self._clock() - start_record.at
        if start_record.count >= FREE_ATTEMPTS and 0 <= waited_s < ATTEMPT_EVERY_S:
            raise RoundAborted(
                f"{query}: attempts follow each other too fast: {start_record.count} attempts were begun, the last one"
                f" {waited_s:.0f} s ago",
                f"begin another one {ATTEMPT_EVERY_S:.0f} s after it, and find out why they end",
            )
        attempt_key = _key(manifest, query, attempt_number)
        party_keys = self._keys
        attempt_entropy = party_keys.entropy(attempt_key)
        parameters = manifest.sum_parameters(query, attempt_number)
        machine = party_keys.machine.open(
            parameters, self._name, party_keys.identity, attempt_entropy, party_keys.encapsulate
        )
        sampling_coins = party_keys.entropy(attempt_key + COINS_PURPOSE)(COINS_BYTES)
        start_count = start_record.count + 1
        return Attempt(
            attempt_key,
            manifest,
            query,
            attempt_number,
            machine,
            None,
            sampling_coins,
            count=start_count,
            before=start_record.last,
        )

    def last(self, manifest: Manifest, query: str) -> int:
        """Returns the number of the last attempt that was begun at a sum; -1 if none was."""
        return self._read_start_record(manifest, query).last

    def keep(
        self, attempt: Attempt, named_inputs: tuple[Input, ...] | None = None, question_digest: bytes = b""
    ) -> None:
        """Journals the present state of an attempt, on disk on return; destroys the secrets of one that has ended.

        It does not journal an attempt that was recorded as ended before, or that ended before it was first kept.

        Args:
            named_inputs: references to the public inputs, if this message named them; they fix the sum's question.
            question_digest: q, the digest of ``named_inputs``.
        """
        if attempt.has_ended and attempt.compartment is None:
            return
        manifest = attempt.manifest
        query = attempt.query
        long_replies = {
            reply_place: reply
            for reply_place, reply in attempt.machine.answered.items()
            if len(reply) > LONGEST_REPLY_BYTES
        }
        machine_snapshot = attempt.machine.snapshot(without=long_replies)
        journal_entries = {
            _reply_key(attempt.key, *place): reply
            for place, reply in long_replies.items()
            if place not in attempt.replies
        }
        if named_inputs is not None:
            attempt.inputs = named_inputs
            attempt.question = question_digest
            inputs_message = wire.OpenSum(inputs=[input_reference.to_wire() for input_reference in named_inputs])
            journal_entries[f"{attempt.key}/inputs"] = inputs_message.SerializeToString()
            journal_entries[_question_key(manifest, query)] = question_digest
        if attempt.has_ended:
            assert attempt.compartment is not None
            deleted_prefix = ""
            if attempt.machine.phase is Phase.TOMBSTONED:
                deleted_prefix = _replies_prefix(attempt.key)
            attempt.compartment.end({**journal_entries, f"{attempt.key}/ended": machine_snapshot}, deleted_prefix)
            attempt.compartment = None
            attempt.coins = b""
            self._under_way.pop(attempt.key, None)
            return
        sealed_entries = {"machine": machine_snapshot}
        if attempt.compartment is None:
            attempt.compartment = self._store.begin_compartment(attempt.key)
            start_record = _StartRecord(attempt.number, attempt.count, self._clock())
            sealed_entries["coins"] = attempt.coins
            sealed_entries["of"] = json.dumps([manifest.hash.hex(), query, attempt.number, start_record.at]).encode()
            journal_entries[_begun_key(manifest, query)] = json.dumps(vars(start_record)).encode()
        attempt.compartment.put_all(sealed_entries, journal_entries)
        attempt.replies.update(long_replies)
        self._under_way[attempt.key] = attempt

    def end(self, attempt: Attempt, reason: str) -> None:
        """Ends an attempt in any state, for good, and destroys its secrets."""
        attempt.machine.end(reason)
        self.keep(attempt)

    def end_run(self, manifest: Manifest) -> None:
        """Ends every attempt of a run."""
        for planned_sum in manifest.plan.sums:
            last_attempt = self.find(manifest, planned_sum.name, self.last(manifest, planned_sum.name))
            if last_attempt is not None:
                self.end(last_attempt, "the run has ended")

    def end_abandoned(self, manifest_of: Callable[[bytes], Manifest | None], over: Callable[[Manifest], str]) -> None:
        """Ends every attempt that will not go on, so that its secrets do not wait for a message that never comes.

        These are attempts of a run that is over, attempts that were begun ``ABANDONED_S`` ago, and unreadable ones.

        Args:
            manifest_of: returns the agreed manifest with this hash, or None.
            over: returns the reason why no request of a run is answered any more; "" if they are.
        """
        self._store.empty_log_again()
        for compartment in self._store.compartments():
            attempt_identity = compartment.get("of")
            if attempt_identity:
                manifest_hash, query, attempt_number, begun_s = json.loads(attempt_identity)
            else:
                manifest_hash = ""
                query = ""
                attempt_number = 0
                begun_s = 0.0
            manifest = manifest_of(bytes.fromhex(manifest_hash))
            try:
                if manifest is None:
                    abandoned_attempt = None
                else:
                    abandoned_attempt = self.find(manifest, query, attempt_number)
            except ConfigurationError:
                abandoned_attempt = None
            if manifest is None or abandoned_attempt is None:
                attempt_key = f"attempt/{manifest_hash}/{query}/{attempt_number}"
                compartment.end({}, _replies_prefix(attempt_key))
                self._under_way.pop(attempt_key, None)
            elif reason := over(manifest) or ("" if self._may_go_on(begun_s) else _ABANDONED):
                self.end(abandoned_attempt, reason)

    def _may_go_on(self, begun_s: float) -> bool:
        """False for an attempt that was begun too long ago, or, while the clock was wrong, ahead of now."""
        return -CLOCK_TOLERANCE_S <= self._clock() - begun_s < ABANDONED_S

    def forget(self) -> None:
        """Drops all attempts from memory, after a write to the journal has failed."""
        self._under_way.clear()

    def stored(self, attempt: Attempt, payload: bytes) -> Stored:
        """Returns a reference to the journal's entry that holds a reply; ``NOTHING`` if the reply has no own entry."""
        replies = attempt.machine.answered
        reply_place = next(
            (reply_place for reply_place in attempt.replies if replies.get(reply_place) == payload), None
        )
        if reply_place is None:
            return NOTHING
        return Stored(_reply_key(attempt.key, *reply_place), len(payload))

    def question(self, manifest: Manifest, query: str) -> bytes | None:
        """Returns q, the digest of a sum's public inputs, from its first attempt; None if they were not named yet."""
        return self._store.get(_question_key(manifest, query))

    def note_survivors(self, attempt: Attempt) -> None:
        """Stores for the party's people who is in a sum that its shares open; does nothing before that is known."""
        if survivors := attempt.machine.survivors:
            survivor_names = json.dumps(survivors).encode()
            self._store.put(_survivors_key(attempt.manifest, attempt.query), survivor_names)

    def _inputs(self, key: str) -> tuple[Input, ...] | None:
        if (inputs_bytes := self._store.get(f"{key}/inputs")) is None:
            return None
        return tuple(
            Input.from_wire(input_reference) for input_reference in wire.OpenSum.FromString(inputs_bytes).inputs
        )

    def _read_start_record(self, manifest: Manifest, query: str) -> "_StartRecord":
        record_bytes = self._store.get(_begun_key(manifest, query))
        if record_bytes:
            return _StartRecord(**json.loads(record_bytes))
        return _StartRecord(-1, 0, 0.0)


@dataclass(frozen=True)
class _StartRecord:
    """The attempts at a sum so far: the number of the last one, how many there were, and when the last was begun."""

    last: int
    count: int
    at: float


def _key(manifest: Manifest, query: str, attempt_number: int) -> str:
    return f"attempt/{manifest.hash.hex()}/{query}/{attempt_number}"


def _replies_prefix(key: str) -> str:
    # A hash, because a sum's name may hold slashes: no attempt's replies may begin as another attempt's do.
    return f"answered/{hashlib.sha256(key.encode()).hexdigest()[:40]}/"


def _reply_key(key: str, stage: Stage, roll: int) -> str:
    return f"{_replies_prefix(key)}{int(stage)}/{roll}"


def survivors_of(store: Store, manifest: Manifest, query: str) -> tuple[str, ...] | None:
    """Returns the parties in a sum that this party's shares opened; None if it has opened none of this name."""
    survivor_names = store.get(_survivors_key(manifest, query))
    if survivor_names is None:
        return None
    return tuple(json.loads(survivor_names))


def agreed_key(manifest_hash: bytes) -> str:
    """Returns the store's key of a plan of which this party has seen every party's signature: its run has begun."""
    return f"agreed/{manifest_hash.hex()}"


def _survivors_key(manifest: Manifest, query: str) -> str:
    return f"survivors/{manifest.hash.hex()}/{query}"


def _question_key(manifest: Manifest, query: str) -> str:
    return f"question/{manifest.hash.hex()}/{query}"


def _begun_key(manifest: Manifest, query: str) -> str:
    return f"begun/{manifest.hash.hex()}/{query}"
