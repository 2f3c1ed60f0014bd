"""The link, alone: real sockets and keys, with a fake daemon and fake ranks at the other ends."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from nbcomm.launch.link import Link, _End
from nbcomm.protocol import (
    CallRecord,
    Claim,
    Display,
    Done,
    Exited,
    FromRank,
    Greet,
    Hello,
    Interrupt,
    Look,
    Obeyed,
    Output,
    Payload,
    Processes,
    Pull,
    Push,
    Report,
    StatusReply,
    StatusRequest,
    Text,
    chunks,
)
from nbcomm.protocol.chunks import CHUNK, WINDOW, Piece, Sending
from nbcomm.protocol.codec import encode, to_frames
from nbcomm.protocol.losses import answer_lost
from nbcomm.protocol.nodes import Unsaid, UnsaidText, name_of, rank_name
from nbcomm.protocol.streams import Header
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from ..node.fake_daemon import PATIENCE, FakeDaemon, Peer
from ..node.ranks import FakeRank
from ..node.served import await_that

Heard = tuple[int, FromRank, list[bytes]]


class World:
    """A link in a home of its own, what it received, and its fake daemons."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.received: queue.Queue[Heard] = queue.Queue()
        self.reports: queue.Queue[Report] = queue.Queue()
        self.link = Link(self.home, self.reports.put)
        self.link.deliver_to(self.receive)
        self.daemons: list[FakeDaemon] = []
        self.ranks: list[FakeRank] = []

    def receive(self, rank: int, message: FromRank, frames: Any) -> None:
        self.received.put((rank, message, [bytes(frame) for frame in frames]))

    def join(self, **keys: bytes) -> FakeDaemon:
        """Another daemon connects."""
        self.daemons.append(FakeDaemon(self.home, **keys))
        return self.daemons[-1]

    @property
    def daemon(self) -> FakeDaemon:
        """The one that connected last."""
        return self.daemons[-1] if self.daemons else self.join()

    def greeted(self, rank: int, incarnation: int = 0) -> FakeRank:
        """A fake rank that the link knows."""
        fake = self.rank(rank, incarnation)
        fake.meet()
        assert self.next()[1] == Hello(rank, 1000 + rank, "host", 0, "2.13.0")
        return fake

    def rank(self, rank: int, incarnation: int = 0, info: LinkInfo | None = None) -> FakeRank:
        """A fake rank that the link admits."""
        self.ranks.append(FakeRank(rank, self.link, info or self.home.read_link(), incarnation))
        return self.ranks[-1]

    def next(self) -> Heard:
        return self.received.get(timeout=PATIENCE / 1000)

    def said(self) -> FromRank:
        """What a rank says next, but hello."""
        while True:
            _, message, _ = self.next()
            if not isinstance(message, Hello):
                return message

    def come_back(self) -> None:
        """Close the link, and let another notebook open one."""
        self.link.close()
        self.link = Link(self.home, self.reports.put)
        for rank in self.ranks:
            self.link.admit(rank.rank, rank.start, rank.info.client_public)
        self.link.deliver_to(self.receive)

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.close()
        for rank in self.ranks:
            rank.wire.close()
        self.link.close()
        self.home.remove()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_both_ends_speak_and_buffers_travel_raw(world: World) -> None:
    rank = world.greeted(3)
    big = os.urandom(1 << 16) * 1024
    world.link.send([3], Push(1, Payload(b"pickle", [len(big)])), [big])
    assert rank.hear() == (Push(1, Payload(b"pickle", [len(big)])), [big])
    rank.say(Done(1, 0.5), big)
    assert world.next() == (3, Done(1, 0.5), [big])


def test_each_rank_gets_its_own_messages_in_order(world: World) -> None:
    ranks = [world.greeted(number) for number in range(3)]
    for identity in range(50):
        world.link.send([identity % 3], Pull(identity, ["x"]))
    for number, rank in enumerate(ranks):
        assert [rank.hear()[0] for _ in range(number, 50, 3)] == [Pull(i, ["x"]) for i in range(number, 50, 3)]


def test_what_is_large_travels_in_chunks_and_only_as_far_as_it_is_taken(world: World) -> None:
    rank, quick = world.greeted(0), world.greeted(1)
    big = os.urandom(1 << 20) * 64
    world.link.send([0, 1], Push(1, Payload(b"pickle", [len(big)])), [big])
    world.link.send([0, 1], Interrupt(1))
    assert quick.hear()[1] == [big], "who reads waits for nobody"
    assert quick.hear()[0] == Interrupt(1)
    parts = []
    while rank.wire.socket.poll(300):
        parts.append(rank.wire.receive())
    assert max(sum(map(len, part)) for part in parts) < CHUNK + 100
    assert sum(sum(map(len, part)) for part in parts) < WINDOW + CHUNK
    rank.reconnect()
    rank.hello()
    assert rank.hear()[1] == [big]
    assert rank.hear()[0] == Interrupt(1)


def test_questions_to_a_rank_that_reads_nothing_do_not_pile_up(world: World) -> None:
    rank = world.greeted(0)
    for question in range(100):
        world.link.poll(question)
        while world.link._notifications:  # the link's thread has its turn
            time.sleep(0.001)
    world.link.send([0], Interrupt(1))
    questions = 0
    while not isinstance(rank.hear()[0], Interrupt):
        questions += 1
    assert 1 <= questions <= 30
    rank.tell(StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0))
    assert isinstance(world.next()[1], StatusReply)
    world.link.poll(7)
    assert rank.hear()[0] == StatusRequest(7)


def test_an_answer_for_which_the_notebook_has_no_memory_becomes_a_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = world.greeted(2)
    monkeypatch.setattr(chunks, "make_room", lambda size: memoryview(bytearray(size)) if size < 1000 else None)
    rank.stream.out.add(to_frames(Done(7, 0.5, blob=Payload(b"p", [3 * CHUNK])), [b"x" * 3 * CHUNK]))
    sending = Sending()
    sending.add(rank.stream.out.take())
    for header, frames in sending.leaving(rank.stream.header):
        rank.put(encode(header), frames)
    _, done, buffers = world.next()
    assert isinstance(done, Done)
    assert (done.id, done.seconds, done.failure, buffers) == (7, 0.5, answer_lost(2, 3 * CHUNK), [])
    rank.say(Done(8))
    assert world.next()[1] == Done(8)


def test_ranks_that_did_the_same_are_read_once_and_each_has_its_own_times(world: World) -> None:
    def answer(number: int) -> Done:
        began = 1e9 + number
        steps = [CallRecord("barrier", "collective", "0", "0-3", seq, seq, began + seq, 2e9) for seq in range(3)]
        return Done(1, 0.5 + number, began=began, steps=steps)

    ranks = [world.greeted(number) for number in range(4)]
    for rank in ranks:
        rank.say(answer(rank.rank))
    heard = sorted((world.next() for _ in ranks), key=lambda each: each[0])
    assert heard == [(number, answer(number), []) for number in range(4)]


def _strangers() -> dict[str, dict[str, bytes]]:
    public, secret = zmq.curve_keypair()
    other, _ = zmq.curve_keypair()
    return {
        "who has no keys": {"server": b""},
        "with keys of its own": {"public": public, "secret": secret},
        "who takes another for the server": {"server": other},
    }


@pytest.mark.parametrize("refused_before", [False, True])
@pytest.mark.parametrize("who", list(_strangers()))
def test_nobody_hears_a_stranger(world: World, who: str, refused_before: bool) -> None:
    stranger = world.join(**_strangers()[who])
    if refused_before:
        stranger.await_refusal()
    stranger.socket.setsockopt(zmq.SNDTIMEO, 0)
    with suppress(zmq.Again):  # once it is refused, its own ZeroMQ may take nothing more
        stranger.send(encode(Header(0, 5, 0, 0, 0)), encode(Hello(5, 1, "", 0, "")))
        stranger.report(Obeyed(1))
    if not refused_before:
        stranger.await_refusal()
    world.join()
    friend = world.greeted(1)  # and nothing was heard before this
    world.link.send([5, 1], StatusRequest())
    world.link.order(Look(1))
    assert friend.hear()[0] == StatusRequest()
    assert stranger.silent()
    assert world.received.empty()
    assert world.reports.empty()


@contextmanager
def _wiretap(world: World) -> Iterator[bytearray]:
    """Sit between the link and the ranks that join meanwhile, and record what these send."""
    path, recorded = world.home.link_socket, bytearray()
    behind = path.rename(path.with_name("behind.sock"))
    open_sockets: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                record += data
                sink.sendall(data)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        def accept() -> None:
            rank, _ = listener.accept()
            link = socket.socket(socket.AF_UNIX)
            link.connect(os.fspath(behind))
            open_sockets.extend((rank, link))
            threading.Thread(target=pump, args=(link, rank, bytearray()), daemon=True).start()
            pump(rank, link, recorded)

        threading.Thread(target=accept, daemon=True).start()
        yield recorded
        for end in open_sockets:
            end.shutdown(socket.SHUT_RDWR)
            end.close()
    path.unlink()
    behind.rename(path)


def test_a_recorded_connection_is_worth_nothing_played_back(world: World) -> None:
    with _wiretap(world) as recorded:
        world.greeted(0).wire.close()
    assert b"CURVE" in recorded
    assert b"Hello" not in recorded, "what passes is encrypted"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(PATIENCE / 1000)
        raw.connect(os.fspath(world.home.link_socket))
        raw.sendall(recorded)
        with suppress(ConnectionError):
            while raw.recv(4096):  # it ends the connection
                pass
    world.greeted(2)  # and nothing was heard before this


def test_noise_on_the_socket_ends_its_own_connection_only(world: World) -> None:
    for noise in (os.urandom(512), b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE" + bytes(45) + os.urandom(512)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(os.fspath(world.home.link_socket))
            raw.sendall(noise)
    world.greeted(0)


_DISPLAY = encode(Output(1, [Display({"a": "here"})]))
_NEXT = encode(Header(0, 0, 1, 0, 0))


@pytest.mark.parametrize(
    "frames",
    [
        [b"garbage"],
        [b"\x91\xa4Evil"],
        [b""],
        [],
        [b"", b""],
        [b"\xdd\xff\xff\xff\xff"],
        [_DISPLAY.replace(b"\xa4here", b"\xa4\xff\xff\xff\xff")],
        [_DISPLAY.replace(b"\xa4here", b"\x91" * 100_000 + b"\xc0")],
        [encode(StatusRequest())],
        [encode(Done(1))],
        [encode(Done(1)), b"no times"],
    ],
    ids=[
        "noise",
        "unknown",
        "empty",
        "none",
        "empties",
        "too long",
        "no text",
        "too deep",
        "the other way",
        "without its times",
        "with other times",
    ],
)
def test_garbage_from_within_is_dropped_and_the_link_lives(world: World, frames: list[bytes]) -> None:
    rank = world.greeted(0)
    rank.stream.out.add(frames)
    rank.pass_on()
    rank.put(encode(rank.stream.header()), frames)
    world.daemon.send(*(frames or [b""]))
    rank.tell(StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0))
    assert isinstance(world.next()[1], StatusReply)
    world.daemon.report(Obeyed(5))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(5)


@pytest.mark.parametrize("header", [b"", b"garbage", b"\x90", b"\x95\1\1\1\1\xa1x", b"\xff" * 100], ids=str)
def test_a_header_that_is_none_harms_nobody(world: World, header: bytes) -> None:
    rank = world.greeted(0)
    rank.put(header, [encode(Hello(0, 1, "", 0, ""))])
    rank.put(header, [])
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))


@pytest.mark.parametrize("sizes", [[-1, 2], [1 << 50], [5], [0]], ids=str)
def test_a_part_that_is_none_harms_nobody(world: World, sizes: list[int]) -> None:
    rank = world.greeted(0)
    for at in (0, 3):
        rank.put(encode(Piece(0, rank.stream._incarnation, 1, 0, 0, 0, sizes, at)), [b"x" * 100])
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))


@pytest.mark.parametrize("name", [b"node0", b"rank0-1", b"\xff\xfe"])
def test_a_rank_is_its_key_whatever_it_calls_itself(world: World, name: bytes) -> None:
    """It cannot speak as another one, or as a node, nor does it get what is for these."""
    first, second = world.greeted(0), world.greeted(1)
    world.daemon.report(Obeyed(0))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(0)
    liar = Peer(second.info, name=name.replace(b"rank0-1", first.info.name.encode()))
    header = encode(first.stream.header())
    liar.send(header, *to_frames(Hello(0, 1, "a lie", 0, "")))
    liar.send(header, *to_frames(StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0)))
    liar.send(encode(Obeyed(1)))
    second.say(Done(1))
    assert world.next()[:2] == (1, Done(1))
    liar.send(header, *to_frames(Hello(1, 1, "the last", 0, "")))
    assert world.next()[:2] == (1, Hello(1, 1, "the last", 0, "")), "and nothing was heard before this"
    assert world.reports.empty()
    world.link.send([0], Pull(1, ["x"]))
    world.link.order(Look(1))
    assert first.hear()[0] == Pull(1, ["x"])
    assert world.daemon.order() == Look(1)
    liar.close()


def test_who_takes_the_place_of_a_rank_with_its_key_and_leaves_is_a_break_that_mends_itself(world: World) -> None:
    rank = world.greeted(0)
    thief = FakeRank(0, world.link, world.home.read_link(), incarnation=rank.stream._incarnation)
    thief.wire.close()
    world.link.admit(0, thief.start + 1, rank.info.client_public)
    thief.wire = Peer(rank.info)
    rank.reconnect()
    rank.meet()
    assert isinstance(world.next()[1], Hello)
    thief.meet()
    assert isinstance(world.next()[1], Hello)
    world.link.send([0], Pull(1, ["x"]))
    assert thief.hear()[0] == Pull(1, ["x"])
    thief.wire.close()
    world.link.send([0], Pull(2, ["y"]))
    questions = itertools.count(1)
    while not rank.wire.socket.poll(100):  # that the thief has gone is noticed a moment later
        world.link.poll(next(questions))
    assert rank.hear()[0] == Pull(1, ["x"]), "it lacks that, and asks for it"
    assert rank.hear()[0] == Pull(2, ["y"])
    rank.say(Done(1))
    assert world.said() == Done(1)


def test_a_process_that_nobody_wants_is_not_let_in_and_one_that_is_in_is_not_heard(world: World) -> None:
    rank, other = world.greeted(0), world.greeted(1)
    world.link.dismiss(0, rank.start - 1)  # of an earlier start
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))
    world.link.dismiss(0, rank.start)
    rank.say(Done(2))
    rank.hello()
    other.say(Done(3))
    assert world.next()[:2] == (1, Done(3))
    rank.reconnect()
    rank.wire.await_refusal()


def test_a_name_is_bound_to_its_key(world: World) -> None:
    """Another node's daemon, which may connect, cannot speak as this one."""
    public, secret = zmq.curve_keypair()
    second: queue.Queue[Report] = queue.Queue()
    world.link.add(1, public.decode(), second.put)
    heard = world.link.heard()
    other = world.join(public=public, secret=secret, name=b"node0")
    other.send(encode(Header(0, 5, 0, 0, 0)), encode(Hello(9, 1, "", 0, "")))
    other.report(Obeyed(2))
    assert second.get(timeout=PATIENCE / 1000) == Obeyed(2)
    assert world.link.heard() == heard
    world.daemons.pop().close()
    friend = world.greeted(1)  # and nothing was heard before this
    friend.say(Done(1))
    assert world.next()[:2] == (1, Done(1))
    assert world.reports.empty()
    world.join().report(Obeyed(3))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(3)
    assert world.link.heard() > heard


def test_callbacks_that_fail_do_not_end_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    home = WorldDir.create()
    heard: queue.Queue[object] = queue.Queue()

    def receive(rank: int, message: FromRank, frames: Any) -> None:
        heard.put(message)
        raise ValueError("a bug in the session")

    def report(report: Report) -> None:
        heard.put(report)
        raise ValueError("a bug in the client")

    link = Link(home, report)
    link.deliver_to(receive)
    daemon = FakeDaemon(home)
    try:
        rank = FakeRank(0, link, home.read_link())
        rank.meet()
        rank.say(Done(1))
        assert [heard.get(timeout=PATIENCE / 1000) for _ in range(2)][1:] == [Done(1)]
        for n in (1, 2, 3):
            daemon.report(Obeyed(n))
        assert [heard.get(timeout=PATIENCE / 1000) for _ in range(3)] == [*map(Obeyed, (1, 2, 3))]
    finally:
        daemon.close()
        rank.wire.close()
        link.close()
        home.remove()
    said = capsys.readouterr().err
    assert "a bug in the session" in said
    assert "a bug in the client" in said


# ── orders and reports ──────────────────────────────────────────────────────────────────────────────


def test_orders_reach_the_daemon_and_its_reports_the_callback(world: World) -> None:
    world.daemon.report(Obeyed(1))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(1)
    for order in (Claim(1, 2, 3.0), Look(4)):
        world.link.order(order)
        assert world.daemon.order() == order
    world.daemon.report(Obeyed(4))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(4)


def test_without_a_daemon_orders_are_lost(world: World) -> None:
    plain, lost = world.link._post, threading.Event()

    def sending(*args: Any) -> None:
        plain(*args)
        lost.set()

    world.link._post = sending  # type: ignore[method-assign]
    world.link.order(Look(1))
    assert lost.wait(PATIENCE / 1000)  # or the daemon might be there before the link's thread has its turn
    world.daemon.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    world.link.order(Look(2))
    assert world.daemon.order() == Look(2)


def test_it_is_known_when_the_daemon_was_heard_last(world: World) -> None:
    before = world.link.heard()
    world.daemon.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    assert before < world.link.heard() <= time.monotonic()


# ── polls ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_poll_asks_each_rank_that_is_listened_to(world: World) -> None:
    ranks = [world.greeted(number) for number in range(3)]
    world.link.dismiss(1, ranks[1].start)
    world.link.poll(5)
    assert [ranks[number].hear()[0] for number in (0, 2)] == [StatusRequest(5)] * 2
    assert ranks[1].wire.silent()


def test_by_a_poll_a_rank_learns_what_was_heard_of_it_what_is_acknowledged_and_what_it_lacks(world: World) -> None:
    rank = world.greeted(0)
    rank.say(Done(1))
    rank.say(Done(2))
    for _ in range(2):
        world.next()
    world.link.acknowledged = 7
    world.link.send([0], Pull(1, ["x"]))
    world.link.poll(1)
    (first, pull, _), (second, question, _) = rank.receive(), rank.receive()
    assert (first.heard, first.acknowledged, pull) == (2, 7, Pull(1, ["x"]))
    assert (second.heard, second.acknowledged, second.after, question) == (2, 7, 1, StatusRequest(1))


def test_that_a_rank_has_ended_is_heard_behind_what_it_has_said(world: World) -> None:
    rank = world.greeted(0)
    seen: list[object] = []
    world.daemon.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    stuck, held = threading.Event(), threading.Event()

    def report(report: Report) -> None:
        if report == Obeyed(2):
            stuck.set()
            held.wait(PATIENCE / 1000)
        else:
            seen.append(report)

    world.link._nodes[0].report = report
    world.link.deliver_to(lambda _, message, __: seen.append(message))
    world.daemon.report(Obeyed(2))
    assert stuck.wait(PATIENCE / 1000)
    ended = Processes(1, [Exited(rank.start, "rank 0", 1000, 1)])
    world.daemon.report(ended)
    for number in range(20):
        rank.say(Done(number))
    time.sleep(0.3)  # until the system has brought all: the link reads it in one turn
    held.set()
    deadline = time.monotonic() + PATIENCE / 1000
    while len(seen) < 21 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [*map(Done, range(20)), ended]


@pytest.mark.parametrize(("taken", "shown"), [((0, 0), "abcdef"), ((5, 0), "cdef"), ((9, 9), None), ((2, 0), "abcdef")])
def test_of_the_last_text_of_a_rank_that_is_shown_which_was_not_heard_from_itself(
    world: World, taken: tuple[int, int], shown: str | None
) -> None:
    rank = world.greeted(0)
    rank.say(Output(5, [Text("stdout", "x")], taken))
    world.next()
    unsaid = Unsaid(5, [UnsaidText("stdout", 3, 3, b"abcdef"), UnsaidText("stderr", 0, 0, b"")])
    output = world.link.unheard(0, unsaid)
    assert output == (None if shown is None else Output(5, [Text("stdout", shown)]))


def test_what_cannot_be_sent_to_one_rank_is_sent_to_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [world.greeted(0), world.greeted(1)]

    def failing(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(world.link._end(1).stream.out, "add", failing)
        with pytest.raises(MemoryError):
            world.link.send_each({0: Pull(1, ["x"]), 1: Pull(1, ["x"])})
    world.link.send([0, 1], Pull(2, ["x"]))
    assert [rank.hear()[0] for rank in ranks] == [Pull(2, ["x"])] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_what_fails_while_it_is_sent_keeps_no_rank_from_being_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    ranks, tried = [world.greeted(number) for number in range(3)], threading.Event()
    plain = _End.leaving

    def leaving(end: _End, acknowledged: int) -> Any:
        if end.rank == failing:
            tried.set()
            raise KeyError(failing)
        return plain(end, acknowledged)

    monkeypatch.setattr(_End, "leaving", leaving)
    world.link.poll(1)
    assert tried.wait(PATIENCE / 1000)
    monkeypatch.setattr(_End, "leaving", plain)
    world.link.poll(2)
    for rank in ranks:
        assert isinstance(rank.hear()[0], StatusRequest)


def test_a_rank_whose_key_could_not_be_let_in_is_admitted_by_the_next_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise TypeError("once")

    public = zmq.curve_keypair()[0].decode()
    with monkeypatch.context() as patch:
        patch.setattr(world.link._keys, "add", failing)
        with pytest.raises(TypeError):
            world.link.admit(0, 5, public)
    assert world.link.keys([0]) == {}
    world.link.admit(0, 5, public)
    assert world.link.keys([0]) == {public: rank_name(0, 5)}


def test_a_rank_that_does_not_answer_is_asked_seldom_and_never_not_at_all(world: World) -> None:
    rank = world.greeted(0)
    asked: list[int] = []
    for question in range(1, 61):
        world.link.poll(question)
        while rank.wire.socket.poll(20):
            asked.append(rank.hear()[0].question)
    assert asked == [*range(1, 21), 25, 31, 38, 47, 58]


def test_what_cannot_be_read_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("on purpose")

    told: queue.Queue[str] = queue.Queue()
    world.link.tell = told.put
    rank = world.greeted(0)
    monkeypatch.setattr("nbcomm.launch.link.decode_from_rank", failing)
    rank.say(Output(5, [Text("stdout", "x")]))
    assert told.get(timeout=PATIENCE / 1000) == "a message could not be taken: RuntimeError: on purpose."
    assert "on purpose" in capsys.readouterr().err


# ── the streams ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_sent_before_the_rank_is_there_reaches_it_when_it_is(world: World) -> None:
    friend = world.greeted(1)
    for n in range(3):
        world.link.send([7, 1], Pull(n, ["x"]))
    assert [friend.hear()[0] for _ in range(3)] == [Pull(n, ["x"]) for n in range(3)]
    late = world.greeted(7)
    assert [late.hear()[0] for _ in range(3)] == [Pull(n, ["x"]) for n in range(3)]


def test_a_question_to_a_rank_that_is_not_there_harms_nobody(world: World) -> None:
    rank = world.greeted(0)
    world.link.send([7, 0], StatusRequest())
    assert rank.hear()[0] == StatusRequest()


def test_who_wants_no_greeting_gets_none(world: World) -> None:
    rank = world.greeted(0)
    rank.hello(asks=False)
    assert isinstance(world.next()[1], Hello)
    world.link.send([0], StatusRequest())
    _, message, _ = rank.receive()
    assert message == StatusRequest()


def test_notifications_come_behind_what_was_sent_before(world: World) -> None:
    rank = world.greeted(0)
    for n in range(50):
        world.link.send([0], Pull(n, ["x"]))
        world.link.send([0], StatusRequest(n))
    seen: list[int] = []
    for _ in range(100):
        header, message, _ = rank.receive()
        if isinstance(message, Pull):
            seen.append(message.id)
        else:
            assert isinstance(message, StatusRequest)
            assert header.number == 0
            assert header.after >= len(seen)
            assert message.question in seen


def test_what_a_rank_says_is_delivered_once_and_in_order(world: World) -> None:
    rank = world.greeted(0)
    rank.say(Done(1))
    again = [(rank.stream.header(sent), sent) for sent in _sent(rank, Done(2), Done(3))]
    for header, sent in (*again, *again):
        rank.put(encode(header), sent.frames)
    rank.say(Done(4))
    assert [world.next()[1] for _ in range(4)] == [Done(n) for n in range(1, 5)]
    assert world.received.empty()


def _sent(rank: FakeRank, *messages: Done) -> list[Any]:
    """Number messages, and do not send them."""
    for message in messages:
        rank.stream.out.add(to_frames(message))
    return rank.stream.out.take()


def test_what_was_lost_is_asked_for_once_and_sent_again(world: World) -> None:
    rank = world.greeted(0)
    _sent(rank, *(Done(n) for n in range(1, 4)))  # and they are lost
    for n in range(4, 7):
        rank.say(Done(n))
    header, message, _ = rank.receive()
    assert (message, header.heard) == (Greet(), 0)
    assert rank.stream.greet(header)
    rank.pass_on()
    assert [world.next()[1] for _ in range(6)] == [Done(n) for n in range(1, 7)]
    world.link.send([0], StatusRequest())
    assert rank.receive()[1] == StatusRequest(), "it asked once"
    assert world.received.empty()


def test_a_notification_too_shows_what_was_lost(world: World) -> None:
    rank = world.greeted(0)
    _sent(rank, Done(1))
    reply = StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0)
    rank.tell(reply)
    while not rank.take():
        pass
    assert world.next()[1] == Done(1), "the answer that came without what was before it is dropped"
    rank.tell(reply)
    assert world.next()[1] == reply


def test_after_a_break_both_send_again_what_the_other_lacks(world: World) -> None:
    rank = world.greeted(0)
    world.link.send([0], Pull(1, ["x"]))
    assert rank.hear()[0] == Pull(1, ["x"])
    rank.say(Done(1))
    assert world.next()[1] == Done(1)
    rank.wire.close()  # and with it is lost:
    for n in (2, 3):
        world.link.send([0], Pull(n, ["x"]))
    _sent(rank, Done(11), Done(12))
    rank.reconnect()
    rank.hello()
    assert [rank.hear()[0] for _ in range(2)] == [Pull(n, ["x"]) for n in (2, 3)]
    while not rank.take():  # a slow link has sent both by the new daemon, before it greeted
        pass
    assert [world.said() for _ in range(2)] == [Done(11), Done(12)]


def test_ranks_of_another_notebook_are_met(world: World) -> None:
    rank = world.greeted(0)
    rank.say(Output(5, [Text("stdout", "seen")]), run=5)
    rank.say(Done(4))
    assert [world.next()[1] for _ in range(2)] == [Output(5, [Text("stdout", "seen")]), Done(4)]
    before = world.link._session_id
    world.come_back()
    assert world.link._session_id > before
    rank.reconnect()
    rank.put(b"here", [])
    await_that(lambda: rank_name(0, rank.start) in world.link._routes, "the link reads nothing of it")
    other = world.greeted(1)
    other.say(Done(9))
    assert world.said() == Done(9)
    assert rank.wire.silent(), "it knows of no rank"
    world.link.meet([0])
    header, message, _ = rank.receive()
    assert (message, header.incarnation, header.session_id) == (Greet(asks=True), 0, world.link._session_id)
    assert rank.stream.is_new(header)
    rank.meet()
    assert world.said() == Output(5, [Text("stdout", "seen")])
    rank.say(Done(5))
    assert world.said() == Done(5), "what is of no cell does not come again"


def test_what_is_acknowledged_stands_in_each_header(world: World) -> None:
    rank = world.greeted(0)
    world.link.acknowledged = 7
    world.link.send([0], Pull(8, ["x"]))
    world.link.send([0], StatusRequest())
    assert [rank.receive()[0].acknowledged for _ in range(2)] == [7, 7]
    rank.hello()
    assert rank.receive()[0].acknowledged == 7


def test_each_header_tells_what_was_heard(world: World) -> None:
    rank = world.greeted(0)
    for n in range(1, 4):
        rank.say(Done(n))
        world.next()
        world.link.send([0], StatusRequest())
        header, _, _ = rank.receive()
        assert (header.heard, header.session_id, header.incarnation) == (n, world.link._session_id, 1000 + rank.pid)


def test_a_process_takes_the_place_of_another(world: World) -> None:
    first = world.greeted(0, incarnation=1)
    world.link.send([0], Pull(1, ["of the first"]))
    assert first.hear()
    second = world.greeted(0, incarnation=2)
    world.link.send([0], Pull(2, ["of the second"]))
    assert second.hear()[0] == Pull(2, ["of the second"])
    first.say(Done(1))
    first.hello()
    second.say(Done(2))
    assert world.next()[:2] == (0, Done(2)), "the first is not heard any more"


def test_what_was_sent_to_a_process_that_has_ended_is_forgotten(world: World) -> None:
    first = world.greeted(0, incarnation=1)
    world.link.lose(0)
    first.say(Done(1))
    world.link.send([0], Pull(2, ["of the second"]))
    second = world.greeted(0, incarnation=2)
    assert second.hear()[0] == Pull(2, ["of the second"])
    second.say(Done(2))
    assert world.next()[:2] == (0, Done(2))


def test_what_waits_for_a_process_that_never_came_is_forgotten_with_it(world: World) -> None:
    world.link.send([0], Pull(1, ["of the first"]))
    world.link.lose(0)
    rank = world.greeted(0)
    world.link.send([0], Pull(2, ["of the second"]))
    assert rank.hear()[0] == Pull(2, ["of the second"])


def test_until_somebody_wants_them_messages_stay_with_their_ranks(world: World) -> None:
    rank = world.greeted(0)
    world.link.deliver_to(None)
    for n in range(3):
        rank.say(Done(n))
    world.daemon.report(Obeyed(1))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(1), "reports are for another one"
    assert world.received.empty()
    world.link.deliver_to(world.receive)
    world.link.meet([])
    world.link.send([0], StatusRequest())
    assert rank.hear()[0] == StatusRequest()
    assert [world.said() for _ in range(3)] == [Done(n) for n in range(3)]


# ── daemons, and the end ─────────────────────────────────────────────────────────────────────────────


def test_a_daemon_that_was_replaced_takes_over_its_name(world: World) -> None:
    for _ in range(2):
        world.join().report(Obeyed(1))
        world.reports.get(timeout=PATIENCE / 1000)
    world.link.order(Look(1))
    assert world.daemon.order() == Look(1)


def test_the_keys_are_kept_for_the_next_notebook(world: World) -> None:
    rank = world.greeted(0)
    info = world.home.read_link()
    world.come_back()
    assert world.home.read_link() == info
    rank.wire.await_refusal()  # what it sent on the old connection now would be lost with it
    rank.meet()  # it has connected by itself
    world.next()
    world.link.send([0], Pull(1, []))
    assert rank.hear()[0] == Pull(1, [])


def test_closing_sends_what_waits_and_ends_thread_and_socket() -> None:
    world = World()
    rank = world.greeted(0)
    world.daemon.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    world.link.send([0], StatusRequest())
    world.link.order(Look(1))
    thread = world.link._thread
    world.link.close()
    assert rank.receive()[1] == StatusRequest()
    assert world.daemon.order() == Look(1)
    assert not thread.is_alive()
    assert not world.link._keys.is_alive()
    assert world.link._router.closed
    assert world.link._context.closed
    assert not world.home.link_socket.exists()
    world.close()


def test_a_link_whose_last_words_fail_is_closed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    thread = world.link._thread

    def spoiled() -> None:
        raise TypeError("spoiled")

    world.link._send_waiting = spoiled  # type: ignore[method-assign]
    world.link.close()
    assert not thread.is_alive()
    assert world.link._context.closed
    assert "spoiled" in capsys.readouterr().err
    world.home.remove()


# ── several nodes ───────────────────────────────────────────────────────────────────────────────────


class Second:
    """A second node, which has rank 1, and reaches the link over TCP."""

    def __init__(self, world: World) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self.world = world
        self.reports: queue.Queue[Report] = queue.Queue()
        self.address = world.link.listen("tcp://127.0.0.1:*")
        server = world.home.read_link().server_public
        self.info = LinkInfo(self.address, server, public, secret, name_of(1))
        self.introduce()
        self.daemon = self.join()

    def introduce(self) -> None:
        self.world.link.add(1, self.info.client_public, self.reports.put)

    def join(self) -> FakeDaemon:
        self.world.daemons.append(FakeDaemon(self.world.home, self.info))
        return self.world.daemons[-1]


@pytest.fixture
def two(world: World) -> tuple[World, FakeRank, Second, FakeRank]:
    """A world of two nodes with a rank each, whose hellos are read."""
    world.join()
    second = Second(world)
    ranks = world.rank(0), world.rank(1, info=second.info)
    for rank in ranks:
        rank.meet()
        assert world.next()[0] == rank.rank
    return world, ranks[0], second, ranks[1]


def test_ranks_anywhere_speak_for_themselves(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, _, other = two
    world.link.send([0, 1], Pull(1, ["x"]))
    world.link.send([1], StatusRequest())
    assert first.hear()[0] == Pull(1, ["x"])
    assert [other.hear()[0], other.hear()[0]] == [Pull(1, ["x"]), StatusRequest()]
    for rank in (other, first):
        rank.say(Done(1))
        assert world.next()[:2] == (rank.rank, Done(1))


def test_orders_and_reports_are_of_one_node(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, _, second, _ = two
    first = world.daemons[0]
    first.report(Obeyed(0))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(0)
    heard = world.link.heard()
    second.daemon.report(Obeyed(1))
    assert second.reports.get(timeout=PATIENCE / 1000) == Obeyed(1)
    world.link.order(Look(1), node=1)
    assert second.daemon.order() == Look(1)
    assert world.link.heard(1) > heard == world.link.heard()
    world.link.order(Look(2))
    assert first.order() == Look(2)
    assert world.reports.empty()
    assert second.daemon.silent()


def test_the_next_notebook_listens_where_the_last_one_did(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, _, second, other = two
    world.come_back()
    second.introduce()
    assert world.link.listen(second.address) == second.address
    other.wire.await_refusal()
    other.meet()  # it has connected by itself
    assert world.next()[0] == 1
    world.link.send([1], Pull(1, []))
    assert other.hear()[0] == Pull(1, [])


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "tcp://192.0.2.1:*", "garbage"])
def test_an_address_that_is_none_of_this_machine_is_refused_and_the_link_lives(world: World, address: str) -> None:
    with pytest.raises(zmq.ZMQError):
        world.link.listen(address)
    rank = world.greeted(0)
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))


def test_an_address_in_use_is_refused(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(zmq.ZMQError, match="in use"):
        world.link.listen(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


# ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_closed_link_drops_what_is_sent_and_closes_twice() -> None:
    world = World()
    world.link.close()
    world.link.send([0], StatusRequest())
    world.close()


def test_the_keys_are_for_this_user_alone(world: World) -> None:
    assert stat.S_IMODE(world.home.link_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(world.home.path.stat().st_mode) == 0o700
    assert not list(Path(world.home.path).glob("*.part"))
