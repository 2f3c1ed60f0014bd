"""Messages in chunks: what arrives is what was sent, however it is cut, and only so much is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.protocol import chunks
from nbcomm.protocol.chunks import Lost, Piece, Receiving, Sending, make_room, size_of
from nbcomm.protocol.codec import decode_piece, encode
from nbcomm.protocol.streams import Header, Sent

SESSION, INCARNATION = 7, 8
FRAMES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def header(sent: Sent) -> Header:
    return Header(SESSION, INCARNATION, sent.number, sent.after, 3, 2)


def numbered(messages: Sequence[Sequence[Any]]) -> list[Sent]:
    return [Sent(number, number - 1, frames, asks=False) for number, frames in enumerate(messages, 1)]


def leaving(sending: Sending) -> list[tuple[Piece, Sequence[Any]]]:
    """What leaves now, as it is read at the other end."""
    return [(decode_piece(encode(piece)), frames) for piece, frames in sending.leaving(header)]


def plain(frames: Sequence[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


@given(st.lists(FRAMES, max_size=8), st.integers(1, 30), st.integers(1, 60))
def test_all_arrives_in_order_and_no_more_is_under_way_than_the_window(
    messages: list[list[bytes]], chunk: int, window: int
) -> None:
    sending, receiving = Sending(chunk, window), Receiving(window)
    sending.add(numbered(messages))
    arrived: list[list[bytes]] = []
    for _ in range(1000):
        left = leaving(sending)
        if not left:
            break
        assert sum(size_of(frames) for _, frames in left) < window + chunk
        for piece, frames in left:
            assert size_of(frames) <= chunk
            whole = receiving.take(piece, frames)
            if whole is not None:
                assert (piece.heard, piece.acknowledged) == (3, 2)
                arrived.append(plain(whole))
        taken = receiving.due()
        if taken is not None:
            sending.hear(len(arrived), taken)
    assert arrived == messages
    assert sending.idle


@given(FRAMES.filter(lambda frames: size_of(frames) > 3), st.data())
def test_a_message_that_lacks_a_part_is_dropped_and_comes_again_whole(frames: list[bytes], data: st.DataObject) -> None:
    receiving = Receiving()

    def pieces() -> list[tuple[Piece, Sequence[Any]]]:
        sending = Sending(chunk=3)
        sending.add(numbered([frames]))
        return leaving(sending)

    lost = data.draw(st.integers(0, len(pieces()) - 1))
    for place, (piece, part) in enumerate(pieces()):
        if place != lost:
            assert receiving.take(piece, part) is None
    *early, last = [receiving.take(piece, part) for piece, part in pieces()]
    assert not any(early)
    assert last is not None
    assert plain(last) == frames


def test_a_new_message_takes_the_place_of_one_that_came_in_part_and_notifications_do_not() -> None:
    receiving = Receiving()
    first = Piece(SESSION, INCARNATION, 1, 0, 0, sizes=[4])
    assert receiving.take(first, [b"ab"]) is None
    assert receiving.take(Piece(SESSION, INCARNATION, 0, 0, 0), [b"word"]) == [b"word"]
    assert receiving.take(Piece(SESSION, INCARNATION, 2, 1, 0), [b"next"]) == [b"next"]
    assert receiving.take(Piece(SESSION, INCARNATION, 1, 0, 0, at=2), [b"cd"]) is None


def test_what_arrives_in_parts_is_writable_and_owns_its_memory() -> None:
    receiving = Receiving()
    data = bytearray(b"abcd")
    receiving.take(Piece(SESSION, INCARNATION, 1, 0, 0, sizes=[4, 0]), [memoryview(data)[:2]])
    whole = receiving.take(Piece(SESSION, INCARNATION, 1, 0, 0, at=2), [memoryview(data)[2:]])
    data[:] = b"....."[:4]
    assert whole is not None
    assert plain(whole) == [b"abcd", b""]
    whole[0][0] = 0


@pytest.mark.parametrize("sizes", [[-1, 3], [1 << 41], [2]])
def test_a_part_that_is_none_is_refused(sizes: list[int]) -> None:
    with pytest.raises(msgspec.DecodeError):
        Receiving().take(Piece(SESSION, INCARNATION, 1, 0, 0, sizes=sizes), [b"abc"])


def test_without_memory_a_frame_is_lost_and_its_beginning_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "make_room", lambda size: make_room(size) if size < 1000 else None)
    receiving, sending = Receiving(), Sending(chunk=100)
    large = bytes(range(256)) * 40
    sending.add(numbered([[b"first", large, b"last"], [b"next"]]))
    *_, whole, following = [receiving.take(piece, part) for piece, part in leaving(sending)]
    assert whole is not None
    assert [whole[0], whole[1]] == [b"first", Lost(len(large), large[:64])]
    assert following == [b"next"]


def test_where_one_large_frame_has_no_room_the_others_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made: deque[int] = deque()

    def scarce(size: int) -> memoryview | None:
        made.append(size)
        return memoryview(bytearray(size)) if len(made) < 3 else None

    monkeypatch.setattr(chunks, "make_room", scarce)
    monkeypatch.setattr(chunks, "_MAPPED_FROM", 8)
    cut = chunks._Cut((1, 1, 1), [4, 8, 8])
    cut.fill(memoryview(b"abcd" + b"x" * 16))
    assert cut.frames() == [b"abcd", Lost(8, b"x" * 8), Lost(8, b"x" * 8)]


def test_there_is_no_room_for_what_no_machine_has() -> None:
    assert make_room(1 << 62) is None
    assert make_room(5) == bytes(5)


def test_a_stale_acknowledgement_opens_nothing() -> None:
    sending = Sending(chunk=10, window=10)
    sending.add(numbered([[b"x" * 10]] * 3))
    assert len(leaving(sending)) == 1
    assert leaving(sending) == []
    sending.hear(0)
    assert leaving(sending) == []
    sending.hear(0, 4)
    assert len(leaving(sending)) == 1, "a part was taken"
    sending.hear(0, 3)
    assert leaving(sending) == []
    sending.hear(2)
    assert len(leaving(sending)) == 1
    sending.clear()
    assert sending.idle
    assert sending.open


def test_a_plain_header_is_a_whole_message_and_a_piece_is_a_header() -> None:
    whole = Header(1, 2, 3, 4, 5, 6)
    assert decode_piece(encode(whole)) == Piece(1, 2, 3, 4, 5, 6)
    assert msgspec.msgpack.decode(encode(Piece(1, 2, 3, 4, 5, 6, [7], 8)), type=Header) == whole
