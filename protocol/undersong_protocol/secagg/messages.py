"""Parses and writes messages. It checks versions, lengths and stages; the state machines check the meaning."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from undersong_common.errors import PeerFault, PrivacyRefusal, RoundAborted
from undersong_protocol.secagg import merkle
from undersong_protocol.secagg.drawn import INDEX
from undersong_protocol.secagg.keys import KEY_BYTES, check_public_key, check_signature
from undersong_protocol.secagg.parameters import Member, SumParameters, member_leaf
from undersong_protocol.secagg.sid import DIGEST_BYTES, VERSION, adverts_hash
from undersong_protocol.secagg.state import PartyState, Peer
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.codec import parsed
from undersong_protocol.wire.messages import secagg_pb2 as wire

COORDINATOR = "coordinator"


class SumAborted(RoundAborted):
    """An attempt that opened nothing. ``faults`` holds all protocol faults found, ``stage`` the round that ended it."""

    def __init__(self, stage: str, problem: str, remedy: str, faults: tuple[PeerFault, ...] = ()) -> None:
        fault_lines = "; ".join(str(fault.args[0]).splitlines()[0] for fault in faults)
        super().__init__(f"{stage}: {problem}" + (f" (faults: {fault_lines})" if fault_lines else ""), remedy)
        self.stage = stage
        self.faults = faults


REQUEST_BYTES = 2**16  # the largest part of a request that does not grow with the parties
REQUEST_BYTES_A_PARTY = 8192  # an advert with its keys, sealed shares and their hashes


@dataclass(frozen=True)
class Advert:
    """A party's public ``keys`` and commitments for one attempt, with the signed bytes that they were read from."""

    party: int
    keys: wire.Advert
    body: bytes
    signature: bytes


class Parsed(NamedTuple):
    """A reply whose signature is valid; ``kem_keys`` accompany an advert and are not signed (their hashes are)."""

    body: bytes
    signature: bytes
    kem_keys: bytes


def check_version(version: int, sender: str) -> None:
    """Raises PeerFault that names ``sender`` unless a message has this program's version of the protocol."""
    if version != VERSION:
        raise PeerFault(
            sender,
            f"speaks version {version} of secure aggregation, this program speaks {VERSION}",
            "run the same version of undersong on both sides",
        )


def request_bytes(parameters: SumParameters, **stage: object) -> bytes:
    """Serialises the request of one stage: ``request_bytes(parameters, share=wire.ShareRequest(...))``."""
    message = wire.Request(version=VERSION, sid=parameters.sid, **stage)  # type: ignore[arg-type]
    return message.SerializeToString(deterministic=True)


def advertise_request(parameters: SumParameters) -> bytes:
    """Returns the first request of an attempt, which is the same for every party and follows from the parameters."""
    return request_bytes(
        parameters,
        advertise=wire.AdvertiseRequest(
            parties=parameters.size,
            roster=parameters.roster_hash,
            threshold=parameters.threshold,
            tolerated_dropouts=parameters.tolerated_dropouts,
            colluders=parameters.colluders,
            dimension=parameters.dimension,
            modulus_bits=parameters.modulus_bits,
            sigma=parameters.sigma,
            graph_above=parameters.graph_above,
            law=parameters.law,
            post_quantum=parameters.post_quantum,
            merkle_above=parameters.merkle_above if parameters.merkle else 0,
        ),
    )


def parse_request(parameters: SumParameters, data: bytes) -> tuple[Stage, int, wire.Request]:
    """Parses a request into (stage, roll, message); ``roll`` numbers repeated nonce rounds and is 0 for other stages.

    Raises PeerFault for malformed bytes or another version, PrivacyRefusal for another attempt's session id.
    """
    allowed_bytes = REQUEST_BYTES + REQUEST_BYTES_A_PARTY * parameters.size
    if len(data) > allowed_bytes:
        raise PeerFault(
            COORDINATOR, f"sent a secure-aggregation request of {len(data)} bytes; {allowed_bytes} are allowed"
        )
    message = parsed(wire.Request, data, COORDINATOR, "sent bytes that are no secure-aggregation request")
    check_version(message.version, COORDINATOR)
    if message.sid != parameters.sid:
        raise PrivacyRefusal(
            f"request for another private sum than {parameters.query!r} attempt {parameters.attempt} of run "
            f"{parameters.run!r} (replayed or foreign sid)",
            "send each request to the attempt it was made for",
            code="request-of-another-sum",
        )
    stage_name = message.WhichOneof("stage")
    if stage_name is None:
        raise PeerFault(COORDINATOR, "sent a request without a stage")
    return Stage[stage_name.upper()], message.reveal.roll if stage_name == "reveal" else 0, message


def reply_bytes(
    parameters: SumParameters,
    party: int,
    stage: Stage,
    body: Sequence[bytes],
    signature: bytes,
    kem_keys: bytes = b"",
) -> bytes:
    """Serialises a reply whose ``body`` is given in parts.

    It writes protobuf's wire format itself, field by field in ascending order as the library does, because each pass of
    a body of tens of megabytes through a message object copies it.
    """
    reply_head = wire.Reply(version=VERSION, sid=parameters.sid, party=party, stage=int(stage))  # type: ignore[arg-type]
    reply_parts = [reply_head.SerializeToString(deterministic=True)]
    body_bytes = sum(map(len, body))
    if body_bytes:
        reply_parts += [_BODY_TAG, _encode_varint(body_bytes), *body]
    reply_parts.append(wire.Reply(signature=signature, kem_keys=kem_keys).SerializeToString(deterministic=True))
    return b"".join(reply_parts)


# Protobuf's tag of a reply's ``body``: field 5, length-delimited.
_BODY_TAG = b"\x2a"


def _encode_varint(number: int) -> bytes:
    encoded_bytes = bytearray()
    while number > 0x7F:
        encoded_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    encoded_bytes.append(number)
    return bytes(encoded_bytes)


def parse_reply(parameters: SumParameters, name: str, data: bytes, stage: Stage) -> Parsed:
    """Parses the reply of party ``name`` to ``stage`` and checks its signature.

    Raises PeerFault that names the party for a malformed reply or a false signature.
    """
    message = parsed(wire.Reply, data, name, f"answered {stage.title} with bytes that are no reply")
    check_version(message.version, name)
    party = parameters.index(name)
    if message.sid != parameters.sid:
        raise PeerFault(name, f"answered {stage.title} of another private sum")
    if message.party != party:
        raise PeerFault(name, f"answered {stage.title} in another party's place")
    if int(message.stage) != stage:
        raise PeerFault(name, f"answered another stage than {stage.title} (late or repeated reply)")
    reply_body = message.body
    signature = message.signature
    kem_keys = message.kem_keys
    expected_key_bytes = parameters.kem_keys_bytes if stage is Stage.ADVERTISE else 0
    if len(kem_keys) != expected_key_bytes:
        raise PeerFault(
            name, f"sent {len(kem_keys)} bytes of ML-KEM-768 keys with {stage.title} instead of {expected_key_bytes}"
        )
    check_signature(
        parameters.roster[party].identity,
        name,
        parameters.sid,
        stage,
        party,
        reply_body,
        signature,
        f"{stage.title} reply",
    )
    return Parsed(reply_body, signature, kem_keys)


def parse_advert(parameters: SumParameters, party: int, body: bytes, signature: bytes) -> Advert:
    """Parses the advert of the party with this roster index and checks its contents, not its signature.

    Raises PeerFault that names the party.
    """
    party_name = parameters.name(party)
    message = parsed(wire.Advert, body, party_name, "its advert is malformed")
    if message.terms != parameters.terms:
        raise PeerFault(
            party_name,
            "its advert is for other terms (roster, threshold, dropouts, colluders, dimension, ring, sigma or kind of "
            "masks)",
            "every party must approve the same manifest",
        )
    check_public_key(party_name, message.channel_key)
    check_public_key(party_name, message.mask_key)
    expected_fields = (
        (message.commitment, not parameters.direct),
        (message.noise_anchor, parameters.noise_plan.removal),
        (message.nonce_commitment, parameters.graph is not None and not parameters.merkle),
        (message.channel_kem, parameters.post_quantum and not parameters.direct),
        (message.mask_kem, parameters.post_quantum),
    )
    if any(len(field_value) != (DIGEST_BYTES if is_present else 0) for field_value, is_present in expected_fields):
        raise PeerFault(party_name, "its advert lacks a commitment or a hash of this mode, or has one too many")
    return Advert(party, message, body, signature)


def check_fresh(name: str, advert: Advert, used_values: set[bytes]) -> None:
    """Adds an advert's keys and commitments to ``used_values``; raises PeerFault of the party for a used one."""
    field_values = [value for advert_field, value in advert.keys.ListFields() if advert_field.name != "terms"]
    if len(set(field_values)) != len(field_values) or not used_values.isdisjoint(field_values):
        raise PeerFault(name, "advertised a duplicate key or commitment", "it must make fresh keys for each attempt")
    used_values.update(field_values)


def adverts_to_wire(adverts: Iterable[Advert]) -> list[wire.SignedAdvert]:
    """Returns adverts as a request carries them, ascending by roster index."""
    return [
        wire.SignedAdvert(party=advert.party, body=advert.body, signature=advert.signature)
        for advert in sorted(adverts, key=lambda advert: advert.party)
    ]


Entry = tuple[int, bytes, bytes]
"""Roster index, body and signature of an advert."""


class Adverts(dict[int, Advert]):
    """The checked adverts of one request, by party. They are public and never change, so readers share the object."""

    def __init__(self, parameters: SumParameters, entries: Sequence[Entry], reader_entry: Entry) -> None:
        """See :func:`adverts_from_wire`."""
        super().__init__()
        self._parameters = parameters
        self._unverified = reader_entry
        used_values: set[bytes] = set()
        last_party = -1
        for party, body, signature in entries:
            if not last_party < party < parameters.size:
                raise PeerFault(COORDINATOR, "listed adverts out of order, twice, or of a party that is not enrolled")
            last_party = party
            if (party, body, signature) != reader_entry:
                _check_advert(parameters, party, body, signature)
            self[party] = parse_advert(parameters, party, body, signature)
            check_fresh(parameters.name(party), self[party], used_values)

    def verify(self, reader_entry: Entry) -> None:
        """Checks the one signature that the first reader of this object did not check, because it was its own.

        Raises PeerFault, which names the signer, if the signature is false.

        Args:
            reader_entry: roster index, body and signature of the current reader; the first reader checks nothing.
        """
        if reader_entry != self._unverified and self._unverified[0] in self:
            _check_advert(self._parameters, *self._unverified)

    @cached_property
    def hash(self) -> bytes:
        """The transcript sid' of these adverts, 32 bytes."""
        return adverts_hash(
            self._parameters.sid, self._parameters.terms, ((party, advert.body) for party, advert in self.items())
        )

    @cached_property
    def peers(self) -> dict[int, Peer]:
        """The adverts' keys and commitments, as each party keeps those of the others."""
        return {
            party: Peer(
                channel_key=advert.keys.channel_key,
                mask_key=advert.keys.mask_key,
                nonce_commitment=advert.keys.nonce_commitment,
                channel_kem=advert.keys.channel_kem,
                mask_kem=advert.keys.mask_kem,
            )
            for party, advert in self.items()
        }


def _check_advert(parameters: SumParameters, party: int, body: bytes, signature: bytes) -> None:
    member = parameters.roster[party]
    check_signature(member.identity, member.name, parameters.sid, Stage.ADVERTISE, party, body, signature, "its advert")


def adverts_from_wire(
    parameters: SumParameters, signed_adverts: Sequence[wire.SignedAdvert], reader_entry: Entry
) -> Adverts:
    """Parses and checks all adverts in a request (enrolment, signature, contents, fresh keys); by roster index.

    Equal requests for one attempt give the same object: the parties of a simulation are all shown the same adverts.

    Args:
        reader_entry: roster index, body and signature of the reader's own advert. It is not verified again.

    Raises PeerFault that names the party of a wrong advert, or the coordinator if indices are not strictly ascending.
    """
    signed_entries = tuple([(entry.party, entry.body, entry.signature) for entry in signed_adverts])
    cache_key = parameters.sid, parameters.terms, signed_entries
    cached_adverts = _LAST.get(cache_key)
    if cached_adverts is None:
        cached_adverts = Adverts(parameters, signed_entries, reader_entry)
        _LAST.clear()
        _LAST[cache_key] = cached_adverts
    cached_adverts.verify(reader_entry)
    return cached_adverts


_LAST: dict[tuple[bytes, bytes, tuple[Entry, ...]], Adverts] = {}  # the adverts that were read last


CHOOSER_BYTES = INDEX.size + 2 * KEY_BYTES


def advert_leaf(advert: Advert | None, party: int) -> bytes:
    """Returns the hash (32 bytes) of a party's leaf in the adverts' Merkle tree; None is a party without an advert."""
    if advert is None:
        return merkle.leaf("absent", party)
    return merkle.leaf("advert", party, advert.body)


def chooser_bytes(advert: Advert) -> bytes:
    """Returns a chooser as a share-keys request of the Merkle graph shows it: roster index and both X25519 keys."""
    return INDEX.pack(advert.party) + advert.keys.channel_key + advert.keys.mask_key


def around_from_wire(
    parameters: SumParameters, reader_index: int, party_state: PartyState, request: wire.ShareRequest
) -> tuple[tuple[int, ...], dict[int, Peer]]:
    """Checks what a share-keys request of the Merkle graph shows a party; returns (choosers, peers by roster index).

    The parties that it drew come with proofs, under the roots that it knows, of their leaves in roster and adverts, and
    with their signatures. Choosers come with keys alone. They know this party's keys, so what it masks or deals for a
    chooser's false keys is accepted by nobody and cancels nothing (docs/secagg.md, "The Merkle graph").

    Raises PeerFault that names the coordinator, or a party with a wrong advert.
    """
    present_parties = frozenset(party_state.present)
    drawn_parties = [party for party in party_state.drawn if party in present_parties]
    if (
        request.nonces
        or [entry.party for entry in request.adverts] != drawn_parties
        or len(request.roster) != len(drawn_parties)
    ):
        raise PeerFault(COORDINATOR, "showed nonces, or adverts of others than the parties that this one drew")
    member_by_party = {
        party: Member(enrolled_member.name, enrolled_member.identity)
        for party, enrolled_member in zip(drawn_parties, request.roster, strict=True)
    }
    _check_leaves(parameters, party_state, request, member_by_party)
    used_values: set[bytes] = set()
    check_fresh(
        parameters.name(reader_index), parse_advert(parameters, reader_index, party_state.advert, b""), used_values
    )
    peer_by_party: dict[int, Peer] = {}
    for entry in request.adverts:
        member = member_by_party[entry.party]
        advert = _read_drawn_advert(parameters, member, entry)
        check_fresh(member.name, advert, used_values)
        peer_by_party[entry.party] = Peer(
            channel_key=advert.keys.channel_key,
            mask_key=advert.keys.mask_key,
            channel_kem=advert.keys.channel_kem,
            mask_kem=advert.keys.mask_kem,
            identity=member.identity,
        )
    chooser_entries = _read_choosers(parameters, reader_index, present_parties, request.choosers)
    for party, (channel_key, mask_key) in chooser_entries.items():
        drawn_peer = peer_by_party.get(party)
        if drawn_peer is not None:
            if (channel_key, mask_key) != (drawn_peer.channel_key, drawn_peer.mask_key):
                raise PeerFault(COORDINATOR, f"shows two sets of keys of {member_by_party[party].name} (swapped keys)")
            continue
        for agreement_key in (channel_key, mask_key):
            check_public_key(parameters.name(party), agreement_key)
        if channel_key == mask_key or not used_values.isdisjoint((channel_key, mask_key)):
            raise PeerFault(
                parameters.name(party),
                "advertised a duplicate key",
                "it must make fresh keys for each attempt",
            )
        used_values.update((channel_key, mask_key))
        peer_by_party[party] = Peer(channel_key=channel_key, mask_key=mask_key)
    return tuple(chooser_entries), peer_by_party


def _check_leaves(
    parameters: SumParameters,
    party_state: PartyState,
    request: wire.ShareRequest,
    member_by_party: Mapping[int, Member],
) -> None:
    """Checks members and adverts under the roots that the party knows. Raises PeerFault that names the coordinator."""
    party_count = parameters.size
    roster_leaves = {party: member_leaf(party, member) for party, member in member_by_party.items()}
    merkle.check(
        "roster",
        parameters.roster_hash,
        party_count,
        roster_leaves,
        request.roster_proof,
        COORDINATOR,
        "the roster's members",
    )
    advert_leaves = {entry.party: merkle.leaf("advert", entry.party, entry.body) for entry in request.adverts}
    merkle.check(
        "adverts",
        party_state.adverts_hash,
        party_count,
        advert_leaves,
        request.adverts_proof,
        COORDINATOR,
        "the adverts",
    )


def _read_drawn_advert(parameters: SumParameters, member: Member, entry: wire.SignedAdvert) -> Advert:
    """Returns the advert of a party that the reader drew. Raises PeerFault that names the party unless it signed it."""
    check_signature(
        *(member.identity, member.name, parameters.sid, Stage.ADVERTISE),
        *(entry.party, entry.body, entry.signature, "its advert"),
    )
    return parse_advert(parameters, entry.party, entry.body, entry.signature)


def _read_choosers(
    parameters: SumParameters, reader_index: int, present: frozenset[int], data: bytes
) -> dict[int, tuple[bytes, bytes]]:
    """Returns channel and mask key of each party that is said to have drawn the reader, by roster index, ascending.

    Raises PeerFault that names the coordinator, for more parties than can have drawn the reader or a malformed list.
    """
    chooser_count = len(data) // CHOOSER_BYTES
    largest_count = parameters.draw.choosers + parameters.colluders
    if chooser_count > largest_count:
        raise PeerFault(
            COORDINATOR, f"{chooser_count} parties are said to have drawn this one; at most {largest_count} can have"
        )
    keys_by_chooser: dict[int, tuple[bytes, bytes]] = {}
    previous_chooser = -1
    for chooser_bytes in split_blocks(data, CHOOSER_BYTES, chooser_count, COORDINATOR, "choosers"):
        party = INDEX.unpack_from(chooser_bytes)[0]
        if party == reader_index or party not in present or party <= previous_chooser:
            raise PeerFault(COORDINATOR, "listed choosers out of order, or parties that did not advertise")
        keys_by_chooser[party] = chooser_bytes[INDEX.size : -KEY_BYTES], chooser_bytes[-KEY_BYTES:]
        previous_chooser = party
    return keys_by_chooser


def drawn_bytes(parties: Iterable[int]) -> bytes:
    """Returns the roster indices that a party drew as its reply holds them, 4 bytes each."""
    return b"".join(map(INDEX.pack, parties))


def parse_drawn(parameters: SumParameters, party: int, body: bytes) -> tuple[int, ...]:
    """Returns the roster indices that ``party`` drew. Raises PeerFault that names it if no draw gives these."""
    party_name = parameters.name(party)
    draw_degree = parameters.draw.degree
    index_blocks = split_blocks(body, INDEX.size, draw_degree, party_name, "the neighbours that it drew")
    neighbours = tuple([INDEX.unpack(block)[0] for block in index_blocks])
    if party in neighbours or list(neighbours) != sorted(set(neighbours)) or neighbours[-1] >= parameters.size:
        raise PeerFault(party_name, f"did not draw {draw_degree} different other parties")
    return neighbours


def split_blocks(data: bytes, size: int, count: int, sender: str, subject: str) -> list[bytes]:
    """Splits ``data`` into ``count`` blocks of ``size`` bytes.

    Raises PeerFault that names ``sender`` for another length; ``subject`` names the data in it.
    """
    if len(data) != size * count:
        raise PeerFault(sender, f"{subject}: expected {count} blocks of {size} bytes, got {len(data)} bytes")
    return [data[start_byte : start_byte + size] for start_byte in range(0, len(data), size)]


def to_bitmap(parties: Iterable[int], size: int) -> bytes:
    """Returns the bitmap of roster indices ``parties`` for a roster of ``size``: bit i % 8 of byte i / 8 is party i.

    >>> to_bitmap({0, 9}, 10).hex()
    '0102'
    """
    # One integer instead of a byte array would be copied for each party.
    bitmap_bytes = bytearray((size + 7) // 8)
    for party in parties:
        bitmap_bytes[party >> 3] |= 1 << (party & 7)
    return bytes(bitmap_bytes)


@lru_cache(maxsize=8)  # the parties of a simulation are shown the same sets, and keep them
def from_bitmap(data: bytes, size: int, sender: str, subject: str) -> tuple[int, ...]:
    """Returns the roster indices in a bitmap, ascending.

    Raises PeerFault that names ``sender`` for another length or set padding bits.
    """
    bitmap_number = int.from_bytes(data, "little")
    if len(data) != (size + 7) // 8 or bitmap_number >> size:
        raise PeerFault(sender, f"{subject} is no set over a roster of {size} parties")
    return tuple([party for party, bit in enumerate(reversed(f"{bitmap_number:b}")) if bit == "1"])
