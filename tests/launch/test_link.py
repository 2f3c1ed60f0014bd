"""The link, alone: real sockets and keys, with a fake agent at the other end, and fake ranks behind it."""

from __future__ import annotations

import os
import queue
import socket
import stat
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from nbcomm.launch.link import Link
from nbcomm.protocol import (
    CallRecord,
    Claim,
    Display,
    Done,
    FromRank,
    Greet,
    Hello,
    Interrupt,
    Look,
    Obeyed,
    Output,
    Payload,
    Poll,
    Pull,
    Push,
    Report,
    StatusReply,
    StatusRequest,
    Text,
)
from nbcomm.protocol.codec import decode_header, decode_order, decode_to_rank, encode, to_frames
from nbcomm.protocol.framing import ANSWER
from nbcomm.protocol.parcels import ITSELF, NO_HEADER, Letter, name_of, pack, unpack
from nbcomm.protocol.streams import Header
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from ..node.fake_agent import PATIENCE, FakeAgent
from ..node.ranks import Speaker

Heard = tuple[int, FromRank, list[bytes]]


class FakeRank(Speaker):
    """A rank behind a fake agent."""

    def __init__(self, rank: int, agent: FakeAgent, life: int = 0) -> None:
        super().__init__(rank, 1000 + rank, life)
        self.agent = agent

    def put(self, header: bytes, frames: Sequence[Any], kind: int) -> None:
        self.agent.send(Letter(self.rank, header, frames, kind == ANSWER))

    def get(self) -> tuple[bytes, list[bytes]]:
        letter = self.agent.next(self.rank)
        return letter.header, [bytes(frame) for frame in letter.frames]


class World:
    """A link in a home of its own, what it received, and its fake agents."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.received: queue.Queue[Heard] = queue.Queue()
        self.reports: queue.Queue[Report] = queue.Queue()
        self.link = Link(self.home, self.reports.put)
        self.link.deliver_to(self.receive)
        self.agents: list[FakeAgent] = []

    def receive(self, rank: int, message: FromRank, frames: Any) -> None:
        self.received.put((rank, message, [bytes(frame) for frame in frames]))

    def join(self, **keys: bytes) -> FakeAgent:
        """Another agent connects."""
        self.agents.append(FakeAgent(self.home, **keys))
        return self.agents[-1]

    @property
    def agent(self) -> FakeAgent:
        """The one that connected last."""
        return self.agents[-1] if self.agents else self.join()

    def greeted(self, rank: int, life: int = 0) -> FakeRank:
        """A fake rank that the link knows."""
        fake = FakeRank(rank, self.agent, life)
        fake.meet()
        assert self.next()[1] == Hello(rank, 1000 + rank, "host", 0, "2.13.0")
        return fake

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
        self.link.deliver_to(self.receive)

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
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


def test_what_goes_to_all_travels_once(world: World) -> None:
    ranks = [world.greeted(number) for number in range(4)]
    blob = os.urandom(1 << 20)
    parcels: list[list[bytes]] = []
    plain = world.agent.socket.recv_multipart

    def recording() -> list[bytes]:
        parcels.append(plain())
        return parcels[-1]

    world.agent.socket.recv_multipart = recording  # type: ignore[method-assign]
    world.link.send(range(4), Push(1, Payload(b"pickle", [len(blob)])), [blob])
    assert [rank.hear()[1] for rank in ranks] == [[blob]] * 4
    (parcel,) = parcels
    assert len(parcel) == 3, "a list, the message, and its buffer"


def test_ranks_that_did_the_same_share_a_frame_and_each_has_its_own_times(world: World) -> None:
    def answer(number: int) -> Done:
        began = 1e9 + number
        steps = [CallRecord("barrier", "collective", "0", "0-3", seq, seq, began + seq, 2e9) for seq in range(3)]
        return Done(1, 0.5 + number, began=began, steps=steps)

    ranks = [world.greeted(number) for number in range(4)]
    said = [(rank, rank.stream.header(sent), sent) for rank in ranks for sent in _sent(rank, answer(rank.rank))]
    letters = [Letter(rank.rank, encode(header), sent.frames) for rank, header, sent in said]
    assert len(pack(letters)) == 1 + 1 + 4
    world.agent.send(*letters)
    assert [world.next() for _ in ranks] == [(number, answer(number), []) for number in range(4)]


def test_what_asks_is_marked(world: World) -> None:
    world.greeted(0)
    world.link.send([0], StatusRequest())
    world.link.send([0], Pull(1, ["x"]))
    world.link.send([0], Interrupt(1))
    letters = [world.agent.next(0) for _ in range(3)]
    marked = {type(decode_to_rank(letter.frames[0])): letter.asks for letter in letters}
    assert marked == {StatusRequest: True, Pull: True, Interrupt: False}


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
        FakeRank(5, stranger).hello()
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
        world.greeted(0)
        world.agents.pop().close()
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
    rank.put(encode(rank.stream.header()), frames, 0)
    world.agent.send(Letter(ITSELF, NO_HEADER, frames))
    rank.tell(StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0))
    assert isinstance(world.next()[1], StatusReply)
    world.agent.report(Obeyed(5))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(5)


@pytest.mark.parametrize("header", [b"", b"garbage", b"\x90", b"\x95\1\1\1\1\xa1x", b"\xff" * 100], ids=str)
def test_a_header_that_is_none_harms_nobody(world: World, header: bytes) -> None:
    rank = world.greeted(0)
    world.agent.send(Letter(0, header, [encode(Hello(0, 1, "", 0, ""))]), Letter(99, header, [b"x"]))
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))


@pytest.mark.parametrize("parcel", [[b""], [b"garbage"], [b"\x91\x94\0\xc4\0\x91\5\xc2"], [b"\x91" * 5000]], ids=len)
def test_what_is_no_parcel_harms_nobody(world: World, parcel: list[bytes]) -> None:
    rank = world.greeted(0)
    world.agent.socket.send_multipart(parcel)
    rank.say(Done(1))
    assert world.next()[:2] == (0, Done(1))


@pytest.mark.parametrize("name", [b"stranger", b"node", b"node1", b"rank0", b"\xff\xfe"])
def test_who_has_the_keys_but_another_name_is_not_heard(world: World, name: bytes) -> None:
    other = world.join(name=name)
    FakeRank(9, other).hello()
    other.report(Obeyed(1))
    world.join()
    friend = world.greeted(1)  # and nothing was heard before this
    friend.say(Done(1))
    assert world.next()[:2] == (1, Done(1))
    assert world.reports.empty()


def test_a_name_is_bound_to_its_key(world: World) -> None:
    """Another node's agent, which may connect, cannot speak as this one."""
    public, secret = zmq.curve_keypair()
    world.link.add(1, public.decode(), world.reports.put)
    heard = world.link.heard()
    plain, come = world.link._router.recv_multipart, threading.Semaphore(0)

    def counting(*args: Any, **options: Any) -> Any:
        parcel = plain(*args, **options)
        come.release()
        return parcel

    world.link._router.recv_multipart = counting  # type: ignore[method-assign]
    other = world.join(public=public, secret=secret)
    other.report(Obeyed(1))
    FakeRank(9, other).hello()
    own = world.join(public=public, secret=secret, name=b"node1")
    own.report(Obeyed(2))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(2)
    assert all(come.acquire(timeout=PATIENCE / 1000) for _ in range(3))
    assert world.link.heard() == heard
    while world.agents:  # or the one with the same name might come back and take it again
        world.agents.pop().close()
    world.join()
    friend = world.greeted(1)  # and nothing was heard before this
    friend.say(Done(1))
    assert world.next()[:2] == (1, Done(1))
    assert world.reports.empty()
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
    agent = FakeAgent(home)
    try:
        rank = FakeRank(0, agent)
        rank.meet()
        rank.say(Done(1))
        agent.report(Obeyed(1))
        agent.send(*[Letter(ITSELF, NO_HEADER, [encode(Obeyed(n))]) for n in (2, 3)])
        assert [heard.get(timeout=PATIENCE / 1000) for _ in range(5)][1:] == [Done(1), *map(Obeyed, (1, 2, 3))]
    finally:
        agent.close()
        link.close()
        home.remove()
    said = capsys.readouterr().err
    assert "a bug in the session" in said
    assert "a bug in the client" in said


# ── orders and reports ──────────────────────────────────────────────────────────────────────────────


def test_orders_reach_the_agent_and_its_reports_the_callback(world: World) -> None:
    world.greeted(0)
    for order in (Claim(1, 2, 3.0), Look(4)):
        world.link.order(order)
        letter = world.agent.next(ITSELF)
        assert decode_order(letter.frames[0]) == order
        assert (letter.header, letter.asks) == (NO_HEADER, False)
    world.agent.report(Obeyed(4))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(4)


def test_without_an_agent_orders_are_lost(world: World) -> None:
    plain, lost = world.link._router.send_multipart, threading.Event()

    def sending(*args: Any, **options: Any) -> None:
        plain(*args, **options)
        lost.set()

    world.link._router.send_multipart = sending  # type: ignore[method-assign]
    world.link.order(Look(1))
    assert lost.wait(PATIENCE / 1000)  # or the agent might be there before the link's thread has its turn
    world.greeted(0)
    world.link.order(Look(2))
    assert world.agent.order() == Look(2)


def test_it_is_known_when_the_agent_was_heard_last(world: World) -> None:
    rank = world.greeted(0)
    before = world.link.heard()
    rank.say(Done(1))
    world.next()
    assert before < world.link.heard() <= time.monotonic()


# ── polls ───────────────────────────────────────────────────────────────────────────────────────────


def polled(world: World, question: int) -> dict[int, Header]:
    """Let the link poll; return the headers that it gives the agent for that."""
    known = len(world.agent.parcels)
    world.link.poll(question)
    assert world.agent.order() == Poll(question)
    # The link's thread may have had a turn between the headers and the order: then they are in two parcels.
    letters = [letter for parcel in world.agent.parcels[known:] for letter in parcel]
    return {letter.rank: decode_header(letter.header) for letter in letters if not letter.frames}


def test_a_poll_is_one_order_however_many_ranks_there_are(world: World) -> None:
    for rank in range(8):
        world.greeted(rank)
    assert polled(world, 1) == {}
    assert polled(world, 2) == {}


def test_before_a_poll_the_ranks_that_have_said_something_are_told_that_it_was_heard(world: World) -> None:
    ranks = [world.greeted(number) for number in range(3)]
    ranks[1].say(Done(1))
    ranks[1].say(Done(2))
    ranks[2].say(Done(1))
    for _ in range(3):
        world.next()
    assert {rank: header.heard for rank, header in polled(world, 1).items()} == {1: 2, 2: 1}
    assert polled(world, 2) == {}


def test_before_a_poll_all_ranks_are_told_what_is_settled_now(world: World) -> None:
    for rank in range(3):
        world.greeted(rank)
    world.link.settled = 7
    assert {rank: header.settled for rank, header in polled(world, 1).items()} == dict.fromkeys(range(3), 7)
    assert polled(world, 2) == {}


def test_a_poll_comes_behind_what_was_sent_before(world: World) -> None:
    rank = world.greeted(0)
    world.link.send([0], Pull(1, ["x"]))
    world.link.poll(1)
    assert world.agent.order() == Poll(1)
    letters = [letter for parcel in world.agent.parcels for letter in parcel]
    kinds = [decode_to_rank(letter.frames[0]) for letter in letters if letter.frames and letter.rank != ITSELF]
    assert kinds[-1] == Pull(1, ["x"])
    assert letters[-1].rank == ITSELF
    assert rank.hear()[0] == Pull(1, ["x"])


def test_before_each_poll_a_rank_is_told_of_what_it_has_not_heard(world: World) -> None:
    rank = world.greeted(0)
    world.greeted(1)
    world.link.send([0], Pull(1, ["x"]))
    for question in range(2):
        assert {number: header.after for number, header in polled(world, question).items()} == {0: 1}
    assert rank.hear()[0] == Pull(1, ["x"])
    rank.say(Done(1))
    world.next()
    assert list(polled(world, 3)) == [0], "it is told that its answer was heard"
    assert polled(world, 4) == {}


# ── the streams ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_sent_before_the_rank_is_there_reaches_it_when_it_is(world: World) -> None:
    friend = world.greeted(1)
    for n in range(3):
        world.link.send([7, 1], Pull(n, ["x"]))
    assert [friend.hear()[0] for _ in range(3)] == [Pull(n, ["x"]) for n in range(3)]
    assert all(letter.rank != 7 for parcel in world.agent.parcels for letter in parcel)
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


def test_words_come_behind_what_was_sent_before(world: World) -> None:
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
        rank.put(encode(header), sent.frames, 0)
    rank.say(Done(4))
    assert [world.next()[1] for _ in range(4)] == [Done(n) for n in range(1, 5)]
    assert world.received.empty()


def _sent(rank: FakeRank, *messages: Done) -> list[Any]:
    """Number messages, and do not send them."""
    for message in messages:
        rank.stream.out.add(to_frames(message), asks=True)
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


def test_a_word_too_shows_what_was_lost(world: World) -> None:
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
    world.agents.pop().close()  # and with it is lost:
    for n in (2, 3):
        world.link.send([0], Pull(n, ["x"]))
    rank.agent = world.join()
    _sent(rank, Done(11), Done(12))
    world.agent.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    world.link.greet()
    rank.hello()
    assert [rank.hear()[0] for _ in range(2)] == [Pull(n, ["x"]) for n in (2, 3)]
    while not rank.take():  # a slow link has sent both by the new agent, before it greeted
        pass
    assert [world.said() for _ in range(2)] == [Done(11), Done(12)]


def test_all_that_are_known_are_greeted_when_the_agent_is_another(world: World) -> None:
    ranks = [world.greeted(number) for number in range(3)]
    world.join()
    world.agent.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    world.link.greet()
    for rank in ranks:
        rank.agent = world.agent
        header, message, _ = rank.receive()
        assert message == Greet(asks=True)
        assert rank.stream.greet(header)


def test_ranks_of_another_notebook_are_met(world: World) -> None:
    rank = world.greeted(0)
    rank.say(Output(5, [Text("stdout", "seen")]), run=5)
    rank.say(Done(4))
    assert [world.next()[1] for _ in range(2)] == [Output(5, [Text("stdout", "seen")]), Done(4)]
    before = world.link._epoch
    world.come_back()
    assert world.link._epoch > before
    world.agents.pop().close()
    rank.agent = world.join()
    world.agent.report(Obeyed(1))
    world.reports.get(timeout=PATIENCE / 1000)
    assert world.agent.silent(), "it knows of no rank"
    world.link.meet([0])
    header, message, _ = rank.receive()
    assert (message, header.life, header.epoch) == (Greet(asks=True), 0, world.link._epoch)
    assert rank.stream.is_new(header)
    rank.meet()
    assert world.said() == Output(5, [Text("stdout", "seen")])
    rank.say(Done(5))
    assert world.said() == Done(5), "what is of no cell does not come again"


def test_what_is_settled_stands_in_each_header(world: World) -> None:
    rank = world.greeted(0)
    world.link.settled = 7
    world.link.send([0], Pull(8, ["x"]))
    world.link.send([0], StatusRequest())
    assert [rank.receive()[0].settled for _ in range(2)] == [7, 7]
    rank.hello()
    assert rank.receive()[0].settled == 7


def test_each_header_tells_what_was_heard(world: World) -> None:
    rank = world.greeted(0)
    for n in range(1, 4):
        rank.say(Done(n))
        world.next()
        world.link.send([0], StatusRequest())
        header, _, _ = rank.receive()
        assert (header.heard, header.epoch, header.life) == (n, world.link._epoch, 1000 + rank.pid)


def test_a_process_takes_the_place_of_another(world: World) -> None:
    first = world.greeted(0, life=1)
    world.link.send([0], Pull(1, ["of the first"]))
    assert first.hear()
    second = world.greeted(0, life=2)
    world.link.send([0], Pull(2, ["of the second"]))
    assert second.hear()[0] == Pull(2, ["of the second"])
    first.say(Done(1))
    first.hello()
    second.say(Done(2))
    assert world.next()[:2] == (0, Done(2)), "the first is not heard any more"


def test_what_was_sent_to_a_process_that_has_ended_is_forgotten(world: World) -> None:
    first = world.greeted(0, life=1)
    first.agent.silent()
    world.link.lose(0)
    first.say(Done(1))
    world.link.send([0], Pull(2, ["of the second"]))
    second = world.greeted(0, life=2)
    assert second.hear()[0] == Pull(2, ["of the second"])
    second.say(Done(2))
    assert world.next()[:2] == (0, Done(2))


def test_what_waits_for_a_process_that_never_came_is_forgotten_with_it(world: World) -> None:
    world.link.send([0], Pull(1, ["of the first"]))
    world.link.lose(0)
    rank = world.greeted(0)
    world.link.send([0], Pull(2, ["of the second"]))
    assert rank.hear()[0] == Pull(2, ["of the second"])


def test_only_the_present_process_of_a_rank_is_heard() -> None:
    home = WorldDir.create()
    received: queue.Queue[tuple[int, FromRank]] = queue.Queue()
    link = Link(home, lambda _: None, lambda rank, pid: (rank, pid) == (3, 1003))
    link.deliver_to(lambda rank, message, _: received.put((rank, message)))
    agent = FakeAgent(home)
    try:
        for rank in (2, 3):
            FakeRank(rank, agent).hello()
        FakeRank(3, agent, life=5).tell(Hello(3, 77, "", 0, ""))
        present = FakeRank(3, agent)
        present.meet()
        present.say(Done(1))
        heard = [received.get(timeout=PATIENCE / 1000) for _ in range(3)]
        assert [rank for rank, _ in heard] == [3] * 3
        assert heard[-1] == (3, Done(1))
    finally:
        agent.close()
        link.close()
        home.remove()


def test_until_somebody_wants_them_messages_stay_with_their_ranks(world: World) -> None:
    rank = world.greeted(0)
    world.link.deliver_to(None)
    for n in range(3):
        rank.say(Done(n))
    world.agent.report(Obeyed(1))
    assert world.reports.get(timeout=PATIENCE / 1000) == Obeyed(1), "reports are for another one"
    assert world.received.empty()
    world.link.deliver_to(world.receive)
    world.link.greet()
    world.link.send([0], StatusRequest())
    assert rank.hear()[0] == StatusRequest()
    assert [world.said() for _ in range(3)] == [Done(n) for n in range(3)]


# ── agents, and the end ─────────────────────────────────────────────────────────────────────────────


def test_an_agent_that_was_replaced_takes_over_its_name(world: World) -> None:
    world.greeted(0)
    world.join()
    world.greeted(1)
    world.link.order(Look(1))
    assert world.agent.order() == Look(1)


def test_the_keys_are_kept_for_the_next_notebook(world: World) -> None:
    rank = world.greeted(0)
    info = world.home.read_link()
    world.come_back()
    assert world.home.read_link() == info
    world.agent.await_refusal()  # what it sent on the old connection now would be lost with it
    rank.meet()  # the agent has connected by itself
    world.next()
    world.link.send([0], Pull(1, []))
    assert rank.hear()[0] == Pull(1, [])


def test_closing_sends_what_waits_and_ends_thread_and_socket() -> None:
    world = World()
    rank = world.greeted(0)
    world.link.send([0], StatusRequest())
    world.link.order(Look(1))
    thread = world.link._thread
    world.link.close()
    assert rank.receive()[1] == StatusRequest()
    assert world.agent.order() == Look(1)
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
        self.agent = self.join()

    def introduce(self) -> None:
        self.world.link.add(1, self.info.client_public, self.reports.put)
        self.world.link.place([1], 1)

    def join(self) -> FakeAgent:
        self.world.agents.append(FakeAgent(self.world.home, self.info))
        return self.world.agents[-1]


@pytest.fixture
def two(world: World) -> tuple[World, FakeRank, Second, FakeRank]:
    """A world of two nodes with a rank each; what they were greeted with is read."""
    head = world.join()
    second = Second(world)
    ranks = FakeRank(0, head), FakeRank(1, second.agent)
    for rank in ranks:
        rank.meet()
        assert world.next()[0] == rank.rank
    return world, ranks[0], second, ranks[1]


def test_each_node_gets_what_is_for_its_ranks(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, second, other = two
    world.link.send([0, 1], Pull(1, ["x"]))
    world.link.send([1], StatusRequest())
    assert first.hear()[0] == Pull(1, ["x"])
    assert [other.hear()[0], other.hear()[0]] == [Pull(1, ["x"]), StatusRequest()]
    for rank in (other, first):
        rank.say(Done(1))
        assert world.next()[:2] == (rank.rank, Done(1))
    assert {letter.rank for parcel in first.agent.parcels for letter in parcel} == {0}
    assert {letter.rank for parcel in second.agent.parcels for letter in parcel} == {1}


def test_orders_and_reports_are_of_one_node(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, second, _ = two
    heard = world.link.heard()
    world.link.order(Look(1), node=1)
    assert second.agent.order() == Look(1)
    second.agent.report(Obeyed(1))
    assert second.reports.get(timeout=PATIENCE / 1000) == Obeyed(1)
    assert world.link.heard(1) > heard == world.link.heard()
    world.link.order(Look(2))
    assert first.agent.order() == Look(2)
    assert world.reports.empty()
    assert second.agent.silent()


def test_a_poll_is_one_order_to_each_node(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, second, _ = two
    world.link.poll(7)
    assert first.agent.order() == second.agent.order() == Poll(7)


def test_a_node_speaks_for_its_own_ranks_only(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, second, other = two
    liar, stranger = FakeRank(0, second.agent, life=9), FakeRank(5, second.agent)
    for lie in (liar, stranger):
        lie.hello()
    first.say(Done(1))
    other.say(Done(1))
    assert sorted([world.next()[:2], world.next()[:2]]) == [(0, Done(1)), (1, Done(1))]
    assert world.received.empty()


def test_a_node_that_is_another_one_greets_its_own_ranks(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, first, _, other = two
    world.link.greet(1)
    assert other.receive()[1] == Greet(asks=True)
    assert first.agent.silent()


def test_the_next_notebook_listens_where_the_last_one_did(two: tuple[World, FakeRank, Second, FakeRank]) -> None:
    world, _, second, other = two
    world.come_back()
    second.introduce()
    assert world.link.listen(second.address) == second.address
    second.agent.await_refusal()
    other.meet()  # its agent has connected by itself
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


@pytest.mark.parametrize("size", [1, 4, 8, 32])
def test_round_trips(world: World, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [world.greeted(number) for number in range(size)]
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.is_set():
            if world.agent.socket.poll(50):
                unpacked = unpack(world.agent.socket.recv_multipart())
                letters = []
                for letter in unpacked:
                    ranks[letter.rank].stream.out.add(to_frames(Done(1)), asks=True)
                    (sent,) = ranks[letter.rank].stream.out.take()
                    header = encode(ranks[letter.rank].stream.header(sent))
                    letters.append(Letter(letter.rank, header, sent.frames, asks=True))
                world.agent.send(*letters)

    thread = threading.Thread(target=answer)
    thread.start()
    took = []
    try:
        for _ in range(50):
            began = time.perf_counter()
            world.link.send(range(size), StatusRequest())
            assert {world.next()[0] for _ in range(size)} == set(range(size))
            took.append(time.perf_counter() - began)
    finally:
        stopped.set()
        thread.join()
    with capsys.disabled():
        median = statistics.median(took) * 1e3
        print(f"\nround trip of the link, {size} ranks behind a fake agent: median {median:.2f} ms")
