"""Messages in frames: whole after any interruption, sent once, and no peer makes the other allocate by promising."""

import hashlib
import os
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.errors import ConfigurationError, PeerFault
from undersong_protocol.secagg import keys
from undersong_protocol.wire import framing
from undersong_protocol.wire.framing import (
    CHUNK_BYTES,
    FrameLimits,
    Outgoing,
    Reassembler,
    SharedRoom,
    held_by,
    worth_deflating,
)
from undersong_protocol.wire.messages import transport_pb2 as wire

ID = b"i" * 16


def frames(outgoing: Outgoing, held: dict[bytes, bytes] | None = None) -> Iterator[Any]:
    """The transfer and its chunks, whose types the caller knows by their places."""
    return outgoing.frames(held)


def deliver(receiver: Reassembler, frames) -> list[framing.Envelope]:
    whole = []
    for frame in frames:
        # what travels is bytes: parse them again
        fresh = type(frame).FromString(frame.SerializeToString())
        assert len(frame.SerializeToString()) < framing.MAX_FRAME_BYTES
        arrived = receiver.transfer(fresh) if isinstance(fresh, wire.Transfer) else receiver.chunk(fresh)
        if arrived is not None:
            data = arrived.open()
            whole += [framing.Envelope(id_, data) for id_ in arrived.ids]
    return whole


def opened(receiver: Reassembler, frame: wire.Transfer) -> bytes:
    arrived = receiver.transfer(frame)
    assert arrived is not None
    return arrived.open()


def payload(size: int, seed: int, compressible: bool) -> bytes:
    generator = random.Random(seed)
    return bytes(size) if compressible else generator.randbytes(size)


@pytest.mark.heavy
@settings(max_examples=examples(20, 60), deadline=None)
@given(
    size=st.one_of(
        st.integers(0, 3000), st.sampled_from([CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES])
    ),
    seed=st.integers(0, 2**32),
    compressible=st.booleans(),
)
def test_every_framed_message_arrives_unchanged(size: int, seed: int, compressible: bool) -> None:
    data = payload(size, seed, compressible)
    (envelope,) = deliver(Reassembler("peer"), Outgoing(ID, data).frames())
    assert (envelope.id, envelope.data) == (ID, data)


@pytest.mark.heavy
@settings(max_examples=30, deadline=None)
@given(chunks=st.integers(2, 9), seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 9), max_size=4))
def test_interrupted_message_is_resumed_where_it_stopped(chunks: int, seed: int, cuts: list[int]) -> None:
    data = payload(chunks * CHUNK_BYTES - 5, seed, compressible=False)
    outgoing, receiver = Outgoing(ID, data), Reassembler("peer")
    sent = 0
    for cut in [*cuts, chunks + 1]:
        receiver.new_stream()
        frames = list(outgoing.frames(held_by(receiver.held())))
        random.Random(seed + cut).shuffle(tail := frames[1:])
        part = [frames[0], *tail][: cut + 1]
        sent += sum(isinstance(frame, wire.Chunk) for frame in part)
        whole = deliver(receiver, part)
        if whole:
            assert whole[0].data == data
            break
    else:
        pytest.fail("never whole")
    assert sent == chunks  # each chunk travelled once
    assert receiver.held_bytes == 0


def test_chunk_that_arrives_twice_does_not_change_the_message() -> None:
    data, receiver = os.urandom(2 * CHUNK_BYTES), Reassembler("peer")
    transfer, one, two = Outgoing(ID, data).frames()
    assert deliver(receiver, [transfer, one, one]) == []
    assert deliver(receiver, [two])[0].data == data


def transfer(data: bytes = b"abc", **changes) -> wire.Transfer:
    (frame,) = frames(Outgoing(ID, data))
    for key, value in changes.items():
        setattr(frame, key, value)
    return frame


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (transfer(id=b"short"), "no-id"),
        (transfer(content=b""), "no-id"),
        (transfer(content=b"x" * 32), "other-bytes"),
        (transfer(whole=b"abd"), "other-bytes"),
        (transfer(size=4, plain_size=4), "other-bytes"),
        (transfer(plain_size=4), "two-sizes"),
        (transfer(size=2**40, plain_size=2**40), "too-large"),
        (transfer(deflated=True, plain_size=2**40), "too-large"),
        (transfer(deflated=True), "not-deflated"),
        (transfer(size=CHUNK_BYTES + 1, plain_size=CHUNK_BYTES + 1), "long-frame"),
    ],
)
def test_malformed_transfer_is_refused_naming_its_sender(frame: wire.Transfer, code: str) -> None:
    with raises(PeerFault, code) as raised:
        opened(Reassembler("hospital"), frame)
    assert raised.value.problem.startswith("hospital: ")


def deflated(data: bytes, plain_size: int) -> wire.Transfer:
    body = zlib.compress(data)
    return wire.Transfer(
        id=ID,
        content=hashlib.sha256(body).digest(),
        size=len(body),
        plain_size=plain_size,
        deflated=True,
        whole=body,
    )


@pytest.mark.parametrize("stated", [0, 999, 1001])
def test_a_deflated_message_of_another_size_than_stated_is_refused(stated: int) -> None:
    with raises(PeerFault, "other-size"):
        opened(Reassembler("peer"), deflated(bytes(1000), stated))
    assert opened(Reassembler("peer"), deflated(bytes(1000), 1000)) == bytes(1000)


@pytest.mark.slow
def test_compression_bomb_is_not_inflated_beyond_its_stated_size() -> None:
    bomb = zlib.compress(bytes(2**26))
    frame = deflated(b"", 10)
    frame.whole, frame.size, frame.content = bomb, len(bomb), hashlib.sha256(bomb).digest()
    with raises(PeerFault, "other-size"):
        opened(Reassembler("peer"), frame)


def test_chunks_that_are_out_of_order_or_not_announced_are_refused() -> None:
    data = os.urandom(2 * CHUNK_BYTES + 7)
    transfer_frame, first, _, last = frames(Outgoing(ID, data))
    for wrong, code in [
        (wire.Chunk(content=b"y" * 32, index=0, data=b""), "unannounced"),
        (wire.Chunk(content=first.content, index=3, data=first.data), "wrong-chunk"),
        (wire.Chunk(content=first.content, index=0, data=first.data[:-1]), "wrong-chunk"),
        (wire.Chunk(content=first.content, index=0, data=last.data), "wrong-chunk"),
    ]:
        receiver = Reassembler("peer")
        receiver.transfer(transfer_frame)
        with raises(PeerFault, code):
            receiver.chunk(wrong)


def test_forged_chunk_spoils_its_message_which_is_asked_for_again() -> None:
    data, receiver = os.urandom(2 * CHUNK_BYTES), Reassembler("peer")
    outgoing = Outgoing(ID, data)
    start, one, two = outgoing.frames()
    forged = wire.Chunk(content=one.content, index=0, data=bytes(CHUNK_BYTES))
    with raises(PeerFault, "other-bytes"):
        deliver(receiver, [start, forged, two])
    assert receiver.held() == []
    assert deliver(receiver, outgoing.frames())[0].data == data


@pytest.mark.heavy
def test_memory_for_announced_messages_is_bounded() -> None:
    limits = FrameLimits(message_bytes=10 * CHUNK_BYTES, held_bytes=20 * CHUNK_BYTES)
    receiver = Reassembler("peer", limits)
    for number in range(20):
        outgoing = Outgoing(number.to_bytes(16, "little"), os.urandom(10 * CHUNK_BYTES))
        deliver(receiver, list(outgoing.frames())[:3])
        assert receiver.held_bytes <= limits.held_bytes
    assert len(receiver.held()) <= 2


def test_a_chunk_of_an_earlier_stream_needs_its_announcement_again() -> None:
    receiver = Reassembler("peer")
    start, one, _ = frames(Outgoing(ID, os.urandom(2 * CHUNK_BYTES)))
    deliver(receiver, [start, one])
    receiver.new_stream()
    with raises(PeerFault, "unannounced"):
        receiver.chunk(one)


@pytest.mark.parametrize("another_stream", [True, False])
def test_bytes_of_a_message_that_is_announced_anew_do_not_count(another_stream: bool) -> None:
    receiver = Reassembler("peer")
    start, one, two = frames(Outgoing(ID, os.urandom(2 * CHUNK_BYTES)))
    deliver(receiver, [start, one])
    anew = wire.Transfer(id=ID, content=start.content, size=start.size, plain_size=start.size - 1, deflated=True)
    if another_stream:
        receiver.new_stream()
        deliver(receiver, [anew])
        assert (receiver.held_bytes, receiver.held()) == (0, [])
        deliver(receiver, [two])
        assert receiver.held_bytes == CHUNK_BYTES
    else:
        with raises(PeerFault, "announced-twice"):
            receiver.transfer(anew)
        assert (receiver.held_bytes, receiver.held()) == (0, [])


@settings(max_examples=examples(50, 200), deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_hostile_frames_raise_only_a_peer_fault(data: bytes, chunk: bool) -> None:
    from google.protobuf.message import DecodeError

    receiver = Reassembler("peer")
    try:
        if chunk:
            receiver.chunk(wire.Chunk.FromString(data))
        else:
            receiver.transfer(wire.Transfer.FromString(data))
    except (PeerFault, DecodeError):
        pass


def test_repr_of_a_message_shows_none_of_its_content() -> None:
    outgoing = Outgoing(ID, b"private words")
    (envelope,) = deliver(Reassembler("peer"), outgoing.frames())
    assert "private" not in repr(outgoing) + repr(envelope)
    with pytest.raises(ConfigurationError, match="16 bytes"):
        Outgoing(b"id", b"")


def test_message_is_compressed_only_if_it_gets_smaller() -> None:
    assert Outgoing(ID, b"the same words " * 10_000).size < 2000
    assert Outgoing(ID, random.Random(1).randbytes(100_000)).size == 100_000


@pytest.mark.parametrize("made", ["mask", "key"])
def test_bytes_that_look_random_are_never_tried_for_compression(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = b"".join(keys.KemSecretKey(bytes([number] * 32)).public for number in range(8))
    even = random.Random(1).randbytes(8192) if made == "mask" else public
    uneven = [bytes(byte & 0x7F for byte in even), even[:100] * 80]
    assert all(map(worth_deflating, uneven))
    monkeypatch.setattr(framing, "zlib", None)
    assert not worth_deflating(even)
    for data in uneven:
        with pytest.raises(AttributeError):  # it is tried
            worth_deflating(data)


def bomb(plain_size: int, *, ids: int = 1) -> tuple[list[wire.Transfer], list[wire.Chunk]]:
    """A long message that inflates as much as is allowed, announced under several ids."""
    noise = random.Random(3).randbytes(framing.CHUNK_BYTES + plain_size // 80)
    body = zlib.compress(noise + bytes(plain_size - len(noise)), 9)
    content = hashlib.sha256(body).digest()
    starts = [
        wire.Transfer(
            id=number.to_bytes(16, "little"), content=content, size=len(body), plain_size=plain_size, deflated=True
        )
        for number in range(ids)
    ]
    cuts = range(0, len(body), CHUNK_BYTES)
    return starts, [wire.Chunk(content=content, index=at, data=body[b : b + CHUNK_BYTES]) for at, b in enumerate(cuts)]


@pytest.mark.slow
def test_message_with_many_ids_is_inflated_once_and_only_when_opened(monkeypatch) -> None:
    inflated: list[int] = []
    real = framing._inflate_body

    def inflate(peer: str, body: bytes, plain_size: int) -> bytes:
        inflated.append(plain_size)
        return real(peer, body, plain_size)

    monkeypatch.setattr(framing, "_inflate_body", inflate)
    starts, chunks = bomb(2**25, ids=framing.MAX_IDS)
    receiver = Reassembler("peer")
    for start in starts:
        assert receiver.transfer(start) is None
    tracemalloc.start()
    (arrived,) = [found for found in map(receiver.chunk, chunks) if found is not None]
    assert inflated == []
    assert tracemalloc.get_traced_memory()[1] < 2**22  # of 32 MiB
    assert (len(arrived.ids), arrived.plain_size) == (framing.MAX_IDS, 2**25)
    assert len(arrived.open()) == 2**25
    assert tracemalloc.get_traced_memory()[1] < 2.5 * 2**25
    tracemalloc.stop()
    assert inflated == [2**25]


@pytest.mark.heavy
def test_one_content_with_two_sizes_or_too_many_ids_is_refused() -> None:
    starts, _ = bomb(2**25, ids=framing.MAX_IDS + 1)
    receiver = Reassembler("peer")
    for start in starts[:-1]:
        receiver.transfer(start)
    with raises(PeerFault, "too-many-ids"):
        receiver.transfer(starts[-1])
    receiver = Reassembler("peer")
    receiver.transfer(starts[0])
    starts[1].plain_size -= 1
    with raises(PeerFault, "announced-twice"):
        receiver.transfer(starts[1])
    assert receiver.held_bytes == 0


@pytest.mark.heavy
def test_compression_bombs_are_refused_before_inflating_and_never_sent() -> None:
    zeros = bytes(2**26)
    frame = deflated(zeros, len(zeros))
    assert frame.size < CHUNK_BYTES
    with raises(PeerFault, "inflates-too-much"):
        Reassembler("peer").transfer(frame)
    assert deliver(Reassembler("peer"), Outgoing(ID, zeros).frames())[0].data == zeros


def test_a_message_that_nobody_waits_for_is_not_kept() -> None:
    starts, chunks = bomb(2**24)
    receiver = Reassembler("peer")
    receiver.decline(starts[0])
    assert [receiver.chunk(chunk) for chunk in chunks] == [None] * len(chunks)
    assert (receiver.held_bytes, receiver.held()) == (0, [])
    receiver.new_stream()
    with raises(PeerFault, "unannounced"):
        receiver.chunk(chunks[0])
    with raises(PeerFault, "too-large"):
        receiver.transfer(starts[0], largest_bytes=1000)


def test_late_chunks_of_a_message_no_longer_awaited_are_no_peer_fault() -> None:
    outgoing = Outgoing(ID, os.urandom(3 * CHUNK_BYTES))
    receiver = Reassembler("peer")
    deliver(receiver, list(frames(outgoing))[:2])
    receiver.new_stream()
    start, *rest = frames(outgoing, held_by(receiver.held()))
    receiver.decline(start)
    assert [receiver.chunk(chunk) for chunk in rest] == [None, None]
    assert (receiver.held_bytes, receiver.held()) == (0, [])


def test_sender_with_most_buffered_bytes_loses_some_if_room_is_short() -> None:
    room = SharedRoom(20 * CHUNK_BYTES)
    small, large = Reassembler("small", room=room), Reassembler("large", room=room)
    honest = list(Outgoing(ID, os.urandom(4 * CHUNK_BYTES)).frames())
    deliver(small, honest[:4])
    for number in range(10):
        deliver(large, list(Outgoing(number.to_bytes(16, "little"), os.urandom(6 * CHUNK_BYTES)).frames())[:6])
        assert room.held_bytes <= 20 * CHUNK_BYTES
    assert small.held_bytes == 3 * CHUNK_BYTES
    assert large.held_bytes == 15 * CHUNK_BYTES
    assert deliver(small, honest[4:])[0].id == ID
