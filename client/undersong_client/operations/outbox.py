"""Reads the messages that left this building: their exact bytes and their meaning."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from undersong_client.home import PartyHome
from undersong_client.storage.outbox import Entry, Outbox
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, printable
from undersong_protocol.wire.messages import federation_pb2, secagg_pb2


def entries(home: Path, *, run: str | None = None, last: int | None = None) -> tuple[Entry, ...]:
    """Returns the messages that left, oldest first; optionally those of one run, or only the last ones."""
    return tuple(Outbox(PartyHome(home)).entries(run=run, last=last))


def listed(home: Path, *, run: str | None = None, last: int) -> list[tuple[Entry, str, bool]]:
    """Returns the last messages, newest first, each with the result of :func:`meaning`."""
    outbox = Outbox(PartyHome(home))
    return [(entry, *_meaning(outbox, entry)) for entry in outbox.entries(run=run, last=last)[::-1]]


def _meaning(outbox: Outbox, entry: Entry) -> tuple[str, bool]:
    try:
        return meaning(entry, outbox.data(entry.number))
    except ConfigurationError as error:
        if error.code != "bytes-not-saved":
            raise
        # The kind of a step of a sum does not say whether it was computed from records.
        return f"{KINDS.get(entry.kind, RESTORED)} {RESTORED_NOTE}", entry.kind not in KINDS


@dataclass(frozen=True)
class Message:
    """A message that left: its outbox entry, its exact bytes, and its decoded fields."""

    entry: Entry
    data: bytes
    decoded: dict[str, Any]

    def words(self) -> list[str]:
        """Returns the message in plain words, one line per fact."""
        entry = self.entry
        place = f"run {printable(entry.run)!r}" + (
            f", sum {printable(entry.query)!r}, attempt {entry.attempt}" if entry.query else ""
        )
        repetition = ""
        if entry.times > 1:
            repetition = f", {entry.times} times"
        lines = [
            f"Entry {entry.number}: {entry.bytes} bytes{repetition},"
            f" in answer to {printable(entry.answer_to) or 'nothing'}" + (f" ({place})." if entry.run else ".")
        ]
        sentence, of_records = meaning(entry, self.data)
        return [*lines, sentence, *([] if of_records else [NOTHING, *_quoted(entry.kind, self.data)])]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.entry), "decoded": self.decoded}


def message(home: Path, number: int) -> Message:
    """Reads and decodes the message with this number. Raises ConfigurationError if there is none."""
    outbox = Outbox(PartyHome(home))
    data = outbox.data(number)
    [outbox_entry] = (entry for entry in outbox.entries() if entry.number == number)
    return Message(outbox_entry, data, decode(outbox_entry.kind, data))


NOTHING = "It says nothing of the records."

KINDS = {
    "hello": "The first words of a connection: who this party is, its program, its embedding model.",
    "renewal": "A request for a new certificate, signed by this party's key.",
    "introduction": "Who this party is: name, public key, program, embedding model, the statistics that it knows.",
    "signature": "The consent to a plan: this party's signature over its hash.",
    "agreed": "That every party's signature under the plan was checked here.",
    "missing": "Which of the public data that a sum needs are not here yet.",
    "void_statement": "That this party gave nothing away that could open an attempt at a sum: signed.",
    "receipt": "The receipt: what this run has charged to this party's ledger, signed. No other run is in it.",
    "refusal": "That this party does not do what it was asked for.",
    "pending": "That nobody here has decided yet.",
    "noted": "That it is known here that a run has ended, or is suspended.",
}

STAGES = {
    secagg_pb2.ADVERTISE: "Fresh public keys for this attempt at the sum.",
    secagg_pb2.REVEAL: "Random numbers, from which it follows who masks with whom.",
    secagg_pb2.SHARE: "Pieces of the keys to this party's mask, each encrypted for one other party: so that the sum"
    " opens should this party be lost on the way.",
    secagg_pb2.CONSISTENCY: "This party's signature on who is in the sum.",
    secagg_pb2.UNMASK: "The pieces that open the sum of those who are in it, and nothing else.",
    secagg_pb2.VOID: "That this party gave nothing away that could open this attempt: signed.",
}

RESTORED = "A step of a sum."
RESTORED_NOTE = "It came back from saved evidence: its length and hash, not its bytes."

MASKED = (
    "The answer: whole numbers computed from the records, noise added, then a mask that cancels only in the sum over"
    " all parties. Alone they are random numbers to whoever reads them."
)


def meaning(entry: Entry, data: bytes) -> tuple[str, bool]:
    """Describes a message in one sentence; the second value is True if it was computed from records."""
    if entry.kind != "sum_reply":
        return KINDS.get(entry.kind, f"A message of kind {printable(entry.kind)!r}."), False
    stage = secagg_pb2.Reply.FromString(federation_pb2.Reply.FromString(data).sum_reply.payload)
    if stage.stage == secagg_pb2.MASK:
        return f"{MASKED} They take {counted(len(stage.body), 'byte')}.", True
    return STAGES.get(stage.stage, "A step of a sum."), False


def _quoted(kind: str, data: bytes) -> list[str]:
    """Words of the message that people wrote or will read."""
    if kind == "hello":
        return [f"  {printable(data.decode('utf-8', 'replace'))}"]
    if kind not in ("refusal", "pending"):
        return []
    reply = federation_pb2.Reply.FromString(data)
    return [f"  in these words: {printable(reply.pending.reason if kind == 'pending' else reply.refusal.problem)}"]


def decode(kind: str, data: bytes) -> dict[str, Any]:
    """Returns the fields of a message by name, with bytes as hex, or long bytes as their length and hash."""

    if kind in ("hello", "renewal"):
        return {"text": data.decode("utf-8", "replace")}
    try:
        reply = federation_pb2.Reply.FromString(data)
        fields = _fields(reply)
        if reply.WhichOneof("body") == "sum_reply":
            fields["sum_reply"] = _fields(secagg_pb2.Reply.FromString(reply.sum_reply.payload))
    except DecodeError:
        raise ConfigurationError("the entry cannot be decoded", "read it with the version that sent it") from None
    return fields


def _fields(message: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = {str(key): _value(item) for key, item in value.items()}
        elif hasattr(value, "__len__") and not isinstance(value, (bytes, str)):
            result[field.name] = [_value(item) for item in value]
        else:
            result[field.name] = _value(value)
    return result


def _value(value: Any) -> Any:
    if hasattr(value, "ListFields"):
        return _fields(value)
    if not isinstance(value, bytes):
        return value
    if value[:1] == b"{":
        return value.decode("utf-8", "replace")
    if len(value) <= 64:
        return value.hex()
    return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
