"""The link, alone: real sockets and keys, with fake ranks at the other end."""

from __future__ import annotations

import os
import queue
import socket
import stat
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from nbcomm.notebook.cluster.link import Link
from nbcomm.protocol import (
    Display,
    Done,
    FromRank,
    Hello,
    Output,
    Payload,
    Pull,
    Push,
    StatusReply,
    StatusRequest,
    ToRank,
)
from nbcomm.protocol.codec import decode_to_rank, encode
from nbcomm.world_dir import WorldDir

PATIENCE = 10_000
"""Milliseconds that a test waits for a message that must come."""


_REFUSED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class FakeRank:
    """Speaks to the link as a rank's agent does."""

    def __init__(self, home: WorldDir, rank: int, **keys: bytes) -> None:
        info = home.read_link()
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, keys.get("name", b"rank%d" % rank))
        self.socket.setsockopt(zmq.LINGER, 0)
        if keys.get("server", b"own"):
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.get("server", info.server_public.encode()))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.get("public", info.client_public.encode()))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.get("secret", info.client_secret.encode()))
        self.fate = self.socket.get_monitor_socket(_REFUSED)
        self.socket.connect(info.address)

    def send(self, message: FromRank, *buffers: Any) -> None:
        self.socket.send_multipart([encode(message), *buffers])

    def receive(self) -> tuple[ToRank, list[bytes]]:
        assert self.socket.poll(PATIENCE), "the link sent nothing"
        body, *frames = self.socket.recv_multipart()
        return decode_to_rank(body), frames

    def await_refusal(self) -> None:
        """Wait until the link has ended this connection."""
        assert self.fate.poll(PATIENCE), "the link neither took nor refused it"

    def close(self) -> None:
        self.socket.disable_monitor()
        self.fate.close()
        self.socket.close()
        self.context.term()


class World:
    """A link in a home of its own, what it received, and its fake ranks."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.received: queue.Queue[tuple[int, FromRank, list[bytes]]] = queue.Queue()
        self.link = Link(self.home, 60.0, self._receive)
        self.ranks: list[FakeRank] = []

    def _receive(self, rank: int, message: FromRank, frames: Any) -> None:
        self.received.put((rank, message, [bytes(frame) for frame in frames]))

    def join(self, rank: int, **keys: bytes) -> FakeRank:
        self.ranks.append(FakeRank(self.home, rank, **keys))
        return self.ranks[-1]

    def greeted(self, rank: int) -> FakeRank:
        """A fake rank that the link knows."""
        fake = self.join(rank)
        fake.send(_hello(rank))
        assert self.next()[1] == _hello(rank)
        return fake

    def next(self) -> tuple[int, FromRank, list[bytes]]:
        return self.received.get(timeout=PATIENCE / 1000)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.link.close()
        self.home.remove()


def _hello(rank: int) -> Hello:
    return Hello(rank, 1000 + rank, "host", 0, "2.13.0")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_both_ends_speak_and_buffers_travel_raw(world: World) -> None:
    rank = world.greeted(3)
    big = os.urandom(1 << 16) * 1024
    world.link.send([3], Push(1, Payload(b"pickle", [len(big)])), [big])
    message, frames = rank.receive()
    assert message == Push(1, Payload(b"pickle", [len(big)]))
    assert frames == [big]
    rank.send(Done(1, 0.5), big)
    assert world.next() == (3, Done(1, 0.5), [big])


def test_each_rank_gets_its_own_messages_in_order(world: World) -> None:
    ranks = [world.greeted(number) for number in range(3)]
    for identity in range(50):
        world.link.send([identity % 3], Pull(identity, ["x"]))
    for number, rank in enumerate(ranks):
        assert [rank.receive()[0] for _ in range(number, 50, 3)] == [Pull(i, ["x"]) for i in range(number, 50, 3)]


def test_a_message_to_a_rank_that_is_not_there_is_dropped(world: World) -> None:
    rank = world.greeted(0)
    world.link.send([7, 0], StatusRequest())
    assert rank.receive()[0] == StatusRequest()


def _strangers() -> dict[str, dict[str, bytes]]:
    public, secret = zmq.curve_keypair()
    other, _ = zmq.curve_keypair()
    return {
        "who has no keys": {"server": b""},
        "with keys of its own": {"public": public, "secret": secret},
        "who takes another for the server": {"server": other},
    }


@pytest.mark.parametrize("who", list(_strangers()))
def test_nobody_hears_a_stranger(world: World, who: str) -> None:
    stranger = world.join(5, **_strangers()[who])
    stranger.send(_hello(5))
    stranger.await_refusal()
    friend = world.greeted(1)  # and nothing was heard before this
    world.link.send([5, 1], StatusRequest())
    assert friend.receive()[0] == StatusRequest()
    assert not stranger.socket.poll(0)
    assert world.received.empty()


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
        world.greeted(0).close()
        world.ranks.clear()
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


@pytest.mark.parametrize(
    "frames",
    [
        [b"garbage"],
        [b"\x91\xa4Evil"],
        [b""],
        [b"", b""],
        [b"\xdd\xff\xff\xff\xff"],
        [_DISPLAY.replace(b"\xa4here", b"\xa4\xff\xff\xff\xff")],
        [_DISPLAY.replace(b"\xa4here", b"\x91" * 100_000 + b"\xc0")],
        [encode(StatusRequest())],
    ],
    ids=["noise", "unknown", "empty", "empties", "too long", "no text", "too deep", "the other way"],
)
def test_garbage_from_within_is_dropped_and_the_link_lives(world: World, frames: list[bytes]) -> None:
    rank = world.greeted(0)
    rank.socket.send_multipart(frames)
    rank.send(StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0))
    assert isinstance(world.next()[1], StatusReply)


@pytest.mark.parametrize("name", [b"stranger", b"rank", b"\xff\xfe"])
def test_who_has_the_keys_but_no_rank_is_not_heard(world: World, name: bytes) -> None:
    world.join(9, name=name).send(_hello(9))
    friend = world.greeted(1)  # and nothing was heard before this
    friend.send(Done(1))
    assert world.next()[:2] == (1, Done(1))


def test_a_callback_that_fails_does_not_end_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    home = WorldDir.create()
    heard = threading.Event()

    def receive(rank: int, message: FromRank, frames: Any) -> None:
        if isinstance(message, Done):
            heard.set()
        raise ValueError("a bug in the session")

    link = Link(home, 60.0, receive)
    rank = FakeRank(home, 0)
    try:
        rank.send(_hello(0))
        rank.send(Done(1))
        assert heard.wait(PATIENCE / 1000)
    finally:
        rank.close()
        link.close()
        home.remove()
    assert "a bug in the session" in capsys.readouterr().err


def test_a_rank_that_was_replaced_takes_over_its_name(world: World) -> None:
    world.greeted(0)
    second = world.greeted(0)
    world.link.send([0], StatusRequest())
    assert second.receive()[0] == StatusRequest()


def test_closing_sends_what_waits_and_ends_thread_and_socket() -> None:
    world = World()
    rank = world.greeted(0)
    world.link.send([0], StatusRequest())
    thread = world.link._thread
    world.link.close()
    assert rank.receive()[0] == StatusRequest()
    assert not thread.is_alive()
    assert not world.link._authenticator.is_alive()
    assert world.link._router.closed
    assert world.link._context.closed
    assert not world.home.link_socket.exists()
    rank.close()
    world.home.remove()


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
    poller, stopped = zmq.Poller(), threading.Event()
    for rank in ranks:
        poller.register(rank.socket, zmq.POLLIN)

    def answer() -> None:
        while not stopped.is_set():
            for end, _ in poller.poll(50):
                end.recv_multipart()
                end.send(encode(Done(1)))

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
        print(f"\nround trip of the link, {size} ranks in one thread: median {median:.2f} ms")
