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
    party_outbox = Outbox(PartyHome(home))
    return [(entry, *_meaning(party_outbox, entry)) for entry in party_outbox.entries(run=run, last=last)[::-1]]


def _meaning(outbox: Outbox, entry: Entry) -> tuple[str, bool]:
    try:
        return meaning(entry, outbox.data(entry.number))
    except ConfigurationError as error:
        if error.code != "bytes-not-saved":
            raise
        # The kind of a step of a sum does not say whether it was computed from records.
        return f"{KINDS.get(entry.kind, RESTORED)} {RESTORED_NOTE}", entry.kind not in KINDS


@dataclass(frozen=True)
class SentMessage:
    """A message that left: its outbox entry, its exact bytes, and its decoded fields."""

    entry: Entry
    data: bytes
    decoded: dict[str, Any]

    def words(self) -> list[str]:
        """Returns the message in plain words, one line per fact."""
        sent_entry = self.entry
        place_words = f"run {printable(sent_entry.run)!r}" + (
            f", sum {printable(sent_entry.query)!r}, attempt {sent_entry.attempt}" if sent_entry.query else ""
        )
        repetition_words = ""
        if sent_entry.times > 1:
            repetition_words = f", {sent_entry.times} times"
        message_lines = [
            f"Entry {sent_entry.number}: {sent_entry.bytes} bytes{repetition_words},"
            f" in answer to {printable(sent_entry.answer_to) or 'nothing'}"
            + (f" ({place_words})." if sent_entry.run else ".")
        ]
        sentence, is_of_records = meaning(sent_entry, self.data)
        return [*message_lines, sentence, *([] if is_of_records else [NOTHING, *_quoted(sent_entry.kind, self.data)])]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.entry), "decoded": self.decoded}


def message(home: Path, entry_number: int) -> SentMessage:
    """Reads and decodes the message with this number. Raises ConfigurationError if there is none."""
    party_outbox = Outbox(PartyHome(home))
    message_bytes = party_outbox.data(entry_number)
    [outbox_entry] = (sent_entry for sent_entry in party_outbox.entries() if sent_entry.number == entry_number)
    return SentMessage(outbox_entry, message_bytes, decode(outbox_entry.kind, message_bytes))


NOTHING = "It says nothing of the records."

# Meaning of a message by its kind.
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

# Meaning of a step of a sum by its stage, for every stage whose reply is not computed from records.
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
    secagg_reply = secagg_pb2.Reply.FromString(federation_pb2.Reply.FromString(data).sum_reply.payload)
    if secagg_reply.stage == secagg_pb2.MASK:
        return f"{MASKED} They take {counted(len(secagg_reply.body), 'byte')}.", True
    return STAGES.get(secagg_reply.stage, "A step of a sum."), False


def _quoted(kind: str, data: bytes) -> list[str]:
    """Returns, as lines, the words of a message that people wrote or will read."""
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
        reply_fields = _fields(reply)
        if reply.WhichOneof("body") == "sum_reply":
            reply_fields["sum_reply"] = _fields(secagg_pb2.Reply.FromString(reply.sum_reply.payload))
    except DecodeError:
        raise ConfigurationError(
            f"this entry of the outbox, of kind {printable(kind)!r}, cannot be decoded",
            "read it with the version that sent it",
        ) from None
    return reply_fields


def _fields(message: Any) -> dict[str, Any]:
    field_values: dict[str, Any] = {}
    for message_field, field_value in message.ListFields():
        if message_field.message_type is not None and message_field.message_type.GetOptions().map_entry:
            field_values[message_field.name] = {
                str(item_key): _value(item_value) for item_key, item_value in field_value.items()
            }
        elif hasattr(field_value, "__len__") and not isinstance(field_value, (bytes, str)):
            field_values[message_field.name] = [_value(item) for item in field_value]
        else:
            field_values[message_field.name] = _value(field_value)
    return field_values


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
