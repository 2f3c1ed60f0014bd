"""Messages on real sockets: of any size, to slow readers, and from those who stop in the middle or speak nonsense."""

from __future__ import annotations

import array
import gc
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from nbcomm.protocol import framing
from nbcomm.protocol.framing import ANSWER, ASK, LARGEST, OTHER, FramedSocket, Lost

from ..laws import examples

CHUNK = 1 << 18  # bytes that are read at once
PATIENCE = 60.0

Pair = tuple[FramedSocket, FramedSocket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = (FramedSocket(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, FramedSocket]]:
    """A socket to write anything to, and who reads it."""
    one, other = socket.socketpair()
    framed = FramedSocket(other)
    yield one, framed
    one.close()
    framed.close()


def patterned(size: int, salt: int = 0) -> bytes:
    """Return bytes of which no two stretches are alike."""
    return np.random.default_rng(size + salt).bytes(size)


def wire(frames: Sequence[bytes], kind: int = OTHER) -> bytes:
    lengths = b"".join(struct.pack("<Q", len(frame)) for frame in frames)
    return struct.pack("<II", kind, len(frames)) + lengths + b"".join(frames)


def arrived(sender: FramedSocket, receiver: FramedSocket) -> list[tuple[int, list[bytes]]]:
    """Write and read by turns until nothing is under way."""
    return [(kind, [bytes(frame) for frame in frames]) for kind, frames in arrived_as_they_are(sender, receiver)]


def arrived_as_they_are(sender: FramedSocket, receiver: FramedSocket) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        sender.flush()
        come = receiver.receive()
        messages += come or []
        if come is None and not sender.waits:
            return messages
    raise AssertionError("It never arrives.")


def until_it_ends(framed: FramedSocket) -> list[Any]:
    """Return what still comes."""
    messages: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            messages += framed.receive() or []
        except (EOFError, ConnectionResetError):
            return messages
    raise AssertionError("It never ends.")


# ── there and back ──────────────────────────────────────────────────────────────────────────────────


SIZES = [0, 1, 7, 8, 9, 4095, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 100, 2 * CHUNK, 2 * CHUNK + 1, 5 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_may_have_any_size(pair: Pair, size: int) -> None:
    before, frame = b"before", patterned(size)
    pair[0].send([before, frame, b"behind"], ASK)
    pair[0].send([frame])
    assert arrived(*pair) == [(ASK, [before, frame, b"behind"]), (OTHER, [frame])]


def test_frames_of_all_sizes_travel_together(pair: Pair) -> None:
    frames = [patterned(size, salt) for salt in range(2) for size in SIZES]
    pair[0].send(frames, ANSWER)
    assert arrived(*pair) == [(ANSWER, frames)]


@pytest.mark.parametrize("kind", [OTHER, ANSWER, ASK, (1 << 32) - 1])
def test_a_message_may_have_no_frames(pair: Pair, kind: int) -> None:
    for frames in ([], [b""], [b"", b"", b""], []):
        pair[0].send(frames, kind)
    assert arrived(*pair) == [(kind, []), (kind, [b""]), (kind, [b"", b"", b""]), (kind, [])]


@pytest.mark.parametrize("large", [0, CHUNK - 1, CHUNK, 1 << 20])
@pytest.mark.parametrize("count", [63, 64, 65, 200, 3000])
def test_a_message_may_have_many_frames(pair: Pair, count: int, large: int) -> None:
    """The system takes no more than 1024 at once, some of which are empty here."""
    frames = [b"%d" % number * (number % 3) for number in range(count)]
    frames.insert(count // 2, patterned(large))
    pair[0].send(frames)
    assert arrived(*pair) == [(OTHER, frames)]


def test_as_many_values_as_are_pushed_together_travel_as_frames(pair: Pair) -> None:
    frames = [struct.pack("<Q", number) for number in range(70_000)]
    pair[0].send(frames)
    assert arrived(*pair) == [(OTHER, frames)]


def test_a_frame_may_be_any_buffer(pair: Pair) -> None:
    numbers = array.array("d", [1.5, -2.0])
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    large = np.arange(CHUNK, dtype=np.float32)
    pair[0].send([bytearray(b"abc"), memoryview(b"def")[1:], numbers, table, large])
    assert arrived(*pair) == [(OTHER, [b"abc", b"ef", numbers.tobytes(), table.tobytes(), large.tobytes()])]


def test_the_wire_is_as_it_is_said(raw: tuple[socket.socket, FramedSocket]) -> None:
    plain, framed = raw
    framed.send([b"abc", b"", b"de"], ANSWER)
    assert plain.recv(100) == (
        b"\x01\x00\x00\x00\x03\x00\x00\x00"
        b"\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"
        b"abcde"
    )
    framed.send([])
    assert plain.recv(100) == wire([]) == bytes(8)


def test_it_can_be_polled(pair: Pair) -> None:
    assert pair[0].fileno() == pair[0].socket.fileno() >= 0
    pair[0].close()
    assert pair[0].fileno() == -1


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large elsewhere is small here."""
    monkeypatch.setattr(framing, "_CHUNK", 16)
    monkeypatch.setattr(framing, "_MOST_AT_ONCE", 40)


_MESSAGES = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 100).map(patterned), max_size=6)),
    max_size=5,
)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_MESSAGES, st.lists(st.integers(1, 80), max_size=20))
def test_it_does_not_matter_where_the_stream_is_cut(
    small_chunks: None, messages: list[tuple[int, list[bytes]]], cuts: list[int]
) -> None:
    writer, reader = socket.socketpair()
    with writer, reader:
        framed, heard = FramedSocket(reader), []
        sent = b"".join(wire(frames, kind) for kind, frames in messages)
        while sent:
            cut = cuts.pop() if cuts else len(sent)
            writer.sendall(sent[:cut])
            sent = sent[cut:]
            while (come := framed.receive()) is not None:
                heard += come
        assert heard == messages
        writer.close()
        with pytest.raises(EOFError):
            framed.receive()


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_MESSAGES)
def test_what_is_sent_is_what_arrives(small_chunks: None, messages: list[tuple[int, list[bytes]]]) -> None:
    ends = [FramedSocket(end) for end in socket.socketpair()]
    try:
        for kind, frames in messages:
            ends[0].send(frames, kind)
        assert arrived(ends[0], ends[1]) == messages
    finally:
        for end in ends:
            end.close()


# ── slow readers, and those who read from many ──────────────────────────────────────────────────────


def narrow(framed: FramedSocket) -> None:
    framed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system makes that a few kilobytes


def test_what_the_system_does_not_take_waits(pair: Pair) -> None:
    sender, receiver = pair
    narrow(sender)
    messages = [(kind, [patterned(size, kind), b"x" * kind]) for kind in range(3) for size in (3 * CHUNK, 10, 0)]
    assert not sender.waits
    for kind, frames in messages:
        sender.send(frames, kind)
    assert sender.waits
    assert arrived(*pair) == messages
    assert not sender.waits
    assert receiver.receive() is None


def test_nothing_waits_behind_empty_frames(pair: Pair) -> None:
    sender, _ = pair
    sender.send([b"x" * CHUNK, *[b""] * 200])
    expected = [(OTHER, [b"x" * CHUNK, *[b""] * 200])]
    assert arrived(*pair) == expected
    assert not sender.waits


def test_a_small_message_is_one_piece_and_a_large_frame_is_not_copied(pair: Pair) -> None:
    sender, _ = pair
    narrow(sender)
    sender.send([bytes(CHUNK)])
    assert sender.waits
    before = len(sender._out)
    sender.send([b"a", b"b", bytes(CHUNK - 1)])
    assert len(sender._out) == before + 1
    large = bytearray(CHUNK)
    sender.send([b"a", large])
    assert [view.obj for view in sender._out][-1] is large
    assert len(sender._out) == before + 4


def test_nobody_waits_for_a_slow_peer(pair: Pair) -> None:
    began = time.monotonic()
    for number in range(100):
        pair[0].send([patterned(CHUNK, number)])
    assert pair[1].receive() == []  # a part of the first
    assert time.monotonic() - began < PATIENCE


def test_what_has_come_is_told_from_nothing(pair: Pair) -> None:
    sender, receiver = pair
    assert receiver.receive() is None
    sender.socket.sendall(wire([b"abc"])[:-1])
    assert receiver.receive() == []
    assert receiver.receive() is None
    sender.socket.sendall(b"c")
    assert receiver.receive() == [(OTHER, [b"abc"])]
    sender.socket.sendall(wire([bytes(3 * CHUNK)])[:1000])
    assert receiver.receive() == []
    assert receiver.receive() is None  # in the middle of a large frame
    sender.socket.sendall(b"\0")
    assert receiver.receive() == []


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_LITTLE", 1 << 10)
    monkeypatch.setattr(framing, "_CHUNK", 1 << 10)
    monkeypatch.setattr(framing, "_MOST_AT_ONCE", 1 << 12)


@pytest.mark.parametrize("count", [1, 10, 50])
def test_others_have_their_turn_before_a_large_message_is_complete(few_at_once: None, pair: Pair, count: int) -> None:
    sender, receiver = pair
    size = (100 << 10) // count
    sender.send([bytes(size)] * count)
    assert not sender.waits  # all of it could be read at once
    turns = 0
    while (come := receiver.receive()) == []:
        turns += 1
    assert come == [(OTHER, [bytes(size)] * count)]
    assert turns >= (100 << 10) // ((1 << 12) + (1 << 10)) - 1


def test_a_turn_ends_when_as_much_as_it_may_take_was_read(few_at_once: None, pair: Pair) -> None:
    sender, receiver = pair
    frames = [bytes((1 << 12) + 1000), bytes(5000)]
    sender.send(frames)
    assert receiver.receive() == []  # the head and the first 1000 bytes, then as much as is read in one turn
    assert len(receiver.socket.recv(1 << 16, socket.MSG_PEEK)) == 5000
    assert receiver.receive() == []
    assert len(receiver.socket.recv(1 << 16, socket.MSG_PEEK)) == 5000 - (1 << 12)
    assert receiver.receive() == [(OTHER, frames)]


def test_a_turn_ends_when_as_much_as_it_may_take_was_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would have a turn while a quick reader takes all of a large message."""
    monkeypatch.setattr(framing, "_MOST_WRITTEN", 1 << 12)
    sender, receiver = pair
    frames = [patterned(100), patterned(CHUNK), patterned(5000)]
    sender.send(frames)
    turns, heard = 1, receiver.receive() or []
    while sender.waits:
        sender.flush()
        assert len(receiver.socket.recv(CHUNK, socket.MSG_PEEK)) <= 1 << 12
        heard += receiver.receive() or []
        turns += 1
    assert heard == [(OTHER, frames)]
    assert turns >= CHUNK >> 12


def memory() -> int:
    """Return how much of this process lies in memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells the memory so easily.")
def test_a_large_frame_costs_nothing_before_it_comes(raw: tuple[socket.socket, FramedSocket]) -> None:
    """To clear a gigabyte takes long, and no other thread of Python runs meanwhile."""
    plain, framed = raw
    before = memory()
    plain.sendall(head(5, 1 << 30) + b"small" + b"x" * 1000)
    assert framed.receive() == []
    assert framed.receive() is None
    plain.sendall(b"y" * 1000)
    assert framed.receive() == []
    assert memory() - before < 64 << 20


def test_a_large_frame_under_way_holds_up_no_other_connection(
    pair: Pair, raw: tuple[socket.socket, FramedSocket]
) -> None:
    """A reader of both hears the small messages of one between any two parts of the other."""
    sender, receiver = pair
    plain, other = raw
    sender.send([patterned(16 << 20)])
    heard: list[Any] = []
    turns = 0
    while not heard:
        plain.sendall(wire([b"small"]))
        assert other.receive() == [(OTHER, [b"small"])]
        heard = receiver.receive() or []
        sender.flush()
        turns += 1
    assert heard == [(OTHER, [patterned(16 << 20)])]
    assert turns > 3


def test_a_large_frame_is_writable_and_lives_as_long_as_a_view_of_it(pair: Pair) -> None:
    sender, receiver = pair
    sent = [patterned(size, size) for size in (2 * CHUNK, (1 << 20) - 1, 1 << 20, 5 << 20)]
    arrays = []
    for each in sent:
        sender.send([each])
        ((_, (frame,)),) = arrived_as_they_are(*pair)
        arrays.append(np.frombuffer(frame, np.uint8)[CHUNK:])
        assert arrays[-1].flags.writeable
        del frame
    receiver.close()
    gc.collect()
    for array_, each in zip(arrays, sent, strict=True):
        assert array_.tobytes() == each[CHUNK:]
    arrays[0][:] = 1
    assert arrays[1].tobytes() == sent[1][CHUNK:]


def test_many_small_messages_are_read_as_far_as_one_look_reaches(pair: Pair) -> None:
    for _ in range(1000):
        pair[0].send([b"small"])
    first = pair[1].receive()
    assert first is not None
    assert len(first) * len(wire([b"small"])) <= CHUNK
    assert len(first) + len(arrived(*pair)) == 1000


def test_a_stream_from_another_thread_arrives_in_order(pair: Pair) -> None:
    sender, receiver = pair
    narrow(sender)
    sent = [(number % 3, [patterned(number * 977 % 300_000, number), b"%d" % number]) for number in range(200)]

    def write() -> None:
        for kind, frames in sent:
            sender.send(frames, kind)
        deadline = time.monotonic() + PATIENCE
        while sender.waits and time.monotonic() < deadline:
            sender.flush()
            time.sleep(0.0001)

    writer = threading.Thread(target=write)
    writer.start()
    heard: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(heard) < len(sent) and time.monotonic() < deadline:
        heard += receiver.receive() or []
    writer.join(PATIENCE)
    assert heard == sent


# ── for which there is not enough memory ────────────────────────────────────────────────────────────


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """There is no memory for frames as large as CHUNK + 1 or more; the list tells for which it was asked."""
    asked: list[int] = []

    def refuse(size: int) -> None:
        asked.append(size)

    monkeypatch.setattr(framing, "_make_room", refuse)
    return asked


def test_a_small_frame_for_which_there_is_no_memory_is_lost_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(view: Any) -> bytes:
        if isinstance(view, memoryview) and len(view) > 100:
            raise MemoryError
        return bytes(view)

    monkeypatch.setattr(framing, "bytes", scarce, raising=False)
    sent = patterned(101)
    pair[0].send([b"before", sent, b"behind"])
    assert arrived_as_they_are(*pair) == [(OTHER, [b"before", Lost(101, sent[:64]), b"behind"])]


@pytest.mark.parametrize("size", [CHUNK + 1, 2 * CHUNK, 5 << 20])
@pytest.mark.parametrize("before", [0, 1, 50, 1000, CHUNK - 40, CHUNK - 24, CHUNK - 20])
def test_a_frame_for_which_there_is_no_memory_is_lost_and_nothing_else(
    pair: Pair, no_room: list[int], size: int, before: int
) -> None:
    sender, _ = pair
    sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
    large = patterned(size)
    sender.send([bytes(before), large, b"behind"], ASK)
    sender.send([b"the next"])
    lost = Lost(size, large[:64])
    assert arrived_as_they_are(*pair) == [(ASK, [bytes(before), lost, b"behind"]), (OTHER, [b"the next"])]
    assert no_room == [size]


def test_no_more_memory_is_asked_for_a_message_that_has_lost_a_frame(pair: Pair, no_room: list[int]) -> None:
    sender, _ = pair
    large = [patterned(CHUNK + 1 + salt, salt) for salt in range(3)]
    for _ in range(2):
        sender.send(large)
    lost = [Lost(len(each), each[:64]) for each in large]
    assert arrived_as_they_are(*pair) == [(OTHER, lost)] * 2
    assert no_room == [CHUNK + 1] * 2


def test_a_lost_frame_that_ends_in_the_middle_is_an_end(
    raw: tuple[socket.socket, FramedSocket], no_room: list[int]
) -> None:
    plain, framed = raw
    plain.sendall(head(2 * CHUNK) + bytes(1000))
    plain.close()
    assert until_it_ends(framed) == []
    assert no_room == [2 * CHUNK]


_SCARCE = """
import resource, socket, sys
from nbcomm.protocol.framing import FramedSocket, Lost

ours, theirs = (FramedSocket(end) for end in socket.socketpair())
_, hard = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
large = bytes(32 << 20)
heard = []
for frames in ([b"a", large, large], [b"b", large[: 1 << 20]]):
    ours.send(frames)
    while ours.waits:
        heard += theirs.receive() or []
        ours.flush()
    heard += theirs.receive() or []
(_, (a, one, two)), (_, (b, small)) = heard
assert (a, b, small) == (b"a", b"b", large[: 1 << 20]), heard
assert two == Lost(32 << 20, bytes(64)), two
"""


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="Other systems do not keep to such a limit.")
def test_under_a_limit_of_the_system_a_message_is_lost_and_the_next_is_heard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCARCE], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# ── the end, and nonsense ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("frames", [[b"abc", b"", b"defg"], []], ids=["three frames", "none"])
def test_an_end_in_the_middle_is_an_end(frames: list[bytes]) -> None:
    whole = wire([b"whole"])
    for cut in range(len(wire(frames))):
        writer, reader = socket.socketpair()
        with writer, reader:
            framed = FramedSocket(reader)
            writer.sendall(whole + wire(frames)[:cut])
            writer.close()
            assert framed.receive() == [(OTHER, [b"whole"])]
            for _ in range(2):
                with pytest.raises(EOFError):
                    framed.receive()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("part", [1, CHUNK, 2 * CHUNK - 1])
def test_last_words_before_a_large_frame_that_ends_in_the_middle_are_heard(
    raw: tuple[socket.socket, FramedSocket], part: int, apart: bool
) -> None:
    plain, framed = raw
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
    heard: list[Any] = []
    rest = memoryview(wire([b"last", b"words"]) + wire([bytes(2 * CHUNK)])[: 16 + part])
    plain.setblocking(False)
    while rest:
        try:
            rest = rest[plain.send(rest) :]
        except BlockingIOError:
            heard += framed.receive() or []
    if apart:
        while (come := framed.receive()) is not None:
            heard += come
    plain.close()
    heard += until_it_ends(framed)
    assert heard == [(OTHER, [b"last", b"words"])]
    with pytest.raises(EOFError):
        framed.receive()


def test_last_words_before_a_reset_are_heard(raw: tuple[socket.socket, FramedSocket]) -> None:
    plain, framed = raw
    framed.send([b"unheard"])
    plain.sendall(wire([b"last words"]) + wire([bytes(2 * CHUNK)])[:1000])
    plain.close()  # with something unread: the system reports a reset, once
    assert until_it_ends(framed) == [(OTHER, [b"last words"])]


def test_one_who_has_gone_is_noticed_when_something_is_sent(raw: tuple[socket.socket, FramedSocket]) -> None:
    plain, framed = raw
    narrow(framed)
    framed.send([bytes(CHUNK)])
    plain.close()
    with pytest.raises(OSError, match=r"pipe|reset"):
        framed.flush()
    with pytest.raises(OSError, match=r"pipe|reset"):
        framed.send([b"more"])


def head(*lengths: int, count: int | None = None) -> bytes:
    return struct.pack(f"<II{len(lengths)}Q", 0, len(lengths) if count is None else count, *lengths)


NONSENSE = {
    "as large as the largest": head(LARGEST),
    "larger": head(LARGEST + 1),
    "the largest number": head((1 << 64) - 1),
    "the second": head(1, LARGEST),
    "both together": head(LARGEST // 2, LARGEST // 2),
    "too many": head(count=(1 << 24) + 1),
    "the largest count": head(count=(1 << 32) - 1),
    "another language": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_who_claims_too_much_is_refused_at_once(raw: tuple[socket.socket, FramedSocket], nonsense: bytes) -> None:
    plain, framed = raw
    plain.sendall(nonsense)
    with pytest.raises(EOFError):
        framed.receive()


def test_nothing_is_set_aside_for_frames_that_are_only_announced(raw: tuple[socket.socket, FramedSocket]) -> None:
    plain, framed = raw
    plain.sendall(head(count=1 << 24))
    assert framed.receive() == []
    assert framed.receive() is None
    assert framed._head is None


def test_a_stranger_may_say_little() -> None:
    some = {(80,): True, (81,): False, (0,) * 11: True, (0,) * 12: False, (36, 36): True, (36, 37): False}
    for sizes, accepted in some.items():
        writer, reader = socket.socketpair()
        with writer, reader:
            framed = FramedSocket(reader, largest=96)
            frames = [bytes(size) for size in sizes]
            writer.sendall(wire(frames))
            if accepted:
                assert len(wire(frames)) == 96
                assert framed.receive() == [(OTHER, frames)]
            else:
                with pytest.raises(EOFError):
                    framed.receive()


def test_a_stranger_who_announces_many_frames_is_refused_before_they_come(
    raw: tuple[socket.socket, FramedSocket],
) -> None:
    plain, framed = raw
    framed.largest = 92
    plain.sendall(head(count=11))
    with pytest.raises(EOFError):
        framed.receive()


def test_who_becomes_known_may_say_more(raw: tuple[socket.socket, FramedSocket]) -> None:
    plain, framed = raw
    framed.largest = 92
    plain.sendall(wire([b"hello"]))
    assert framed.receive() == [(OTHER, [b"hello"])]
    framed.largest = LARGEST
    plain.sendall(wire([bytes(1000)]))
    assert framed.receive() == [(OTHER, [bytes(1000)])]


@examples(300)
@given(st.binary(max_size=100))
def test_bytes_that_nobody_meant_are_messages_or_an_end(said: bytes) -> None:
    writer, reader = socket.socketpair()
    with writer, reader:
        framed = FramedSocket(reader, largest=1 << 16)
        writer.sendall(said)
        writer.close()
        assert said.startswith(b"".join(wire(frames, kind) for kind, frames in until_it_ends(framed)))
