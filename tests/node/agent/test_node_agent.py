"""The node's agent: a real one, with a real link, fake ranks in processes of their own, and the test as fork server."""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import zmq

from nbcomm.launch import link as link_module
from nbcomm.launch.link import Link
from nbcomm.node.agent import node_agent as agent_module
from nbcomm.node.agent import store
from nbcomm.node.agent.node_agent import NodeAgent
from nbcomm.node.agent.rank_ends import STATUS
from nbcomm.protocol import (
    Claim,
    Done,
    Exited,
    Failed,
    ForkServerEnded,
    FromRank,
    Hello,
    Interrupt,
    Left,
    LogTail,
    Look,
    NodeHello,
    Obeyed,
    Order,
    Output,
    Payload,
    Pull,
    Push,
    ReadLog,
    Ready,
    Report,
    ServeStore,
    Shutdown,
    Signal,
    Start,
    Started,
    StatusReply,
    StatusRequest,
    Text,
)
from nbcomm.protocol.codec import decode_order, decode_status, encode
from nbcomm.protocol.framing import ANSWER, ASK, OTHER
from nbcomm.protocol.losses import answer_lost
from nbcomm.protocol.nodes import rank_of
from nbcomm.protocol.parcels import HEAD, ITSELF, NO_HEADER, Letter, unpack
from nbcomm.world_dir import HOME_VARIABLE, WorldDir
from nbcomm.world_info import LinkInfo

from ...world import lies
from ..ranks import PATIENCE, FakeRank, RankProcess, Wire
from ..served import await_that, has_ended

Heard = tuple[int, FromRank, list[bytes]]
T = TypeVar("T")


class Notebook:
    """The notebook's end: a link, and all that it has heard, in its order."""

    def __init__(self, home: WorldDir) -> None:
        self.events: queue.Queue[Report | Heard] = queue.Queue()
        self.link = Link(home, self.events.put)
        self.link.deliver_to(self._receive)

    def _receive(self, rank: int, message: FromRank, frames: Sequence[Any]) -> None:
        self.events.put((rank, message, [bytes(frame) for frame in frames]))

    def next(self) -> Report | Heard:
        return self.events.get(timeout=PATIENCE)

    def reported(self, kind: type[T]) -> T:
        """The next report of a kind; what comes before it is dropped."""
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event

    def said(self) -> Heard:
        """What a rank says next, but hello; reports are dropped."""
        while True:
            event = self.next()
            if isinstance(event, tuple) and not isinstance(event[1], Hello):
                return event

    def says_nothing(self, seconds: float = 0.3) -> bool:
        """Whether no rank is heard for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                event = self.events.get(timeout=left)
                if isinstance(event, tuple) and not isinstance(event[1], Hello):
                    return False
        return True

    def put(self, *letters: Letter) -> None:
        """Send letters as they are, in one parcel."""
        with self.link._lock:
            self.link._words.extend(link_module._Order(HEAD, letter) for letter in letters)
        self.link._rouse()


class Node:
    """An agent in a process of its own."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.notebook = Notebook(self.home)
        ours, theirs = socket.socketpair()
        self.forkserver = Wire(ours)
        command = [sys.executable, "-m", "nbcomm.node.agent_process", os.fspath(self.home.path)]
        with theirs, self.home.forkserver_log.open("wb") as log:
            self._popen = subprocess.Popen(
                [*command, str(theirs.fileno()), "7"],
                pass_fds=[theirs.fileno()],
                stderr=log,
                # glibc keeps freed memory, unless it takes each large block from the system; tests measure it.
                env={**os.environ, HOME_VARIABLE: os.fspath(self.home.path), "MALLOC_MMAP_THRESHOLD_": "131072"},
            )
        self.pid = self._popen.pid
        self.process = psutil.Process(self.pid)
        self._ranks: list[RankProcess] = []
        assert self.notebook.reported(NodeHello) == NodeHello(7, 0)
        self.tell(Ready(forks=True, gpus=0, why=""))
        self.notebook.reported(Ready)

    def tell(self, *reports: Report) -> None:
        """Report as the fork server."""
        for report in reports:
            self.forkserver.send([encode(report)])

    def order(self) -> Order | Left:
        """The next order that the fork server gets."""
        _, (frame,) = self.forkserver.next()
        return decode_order(bytes(frame))

    def process_of_rank(self) -> RankProcess:
        self._ranks.append(RankProcess(self.home))
        return self._ranks[-1]

    def rank(self, number: int) -> FakeRank:
        """A rank of which the agent knows, and the notebook, too."""
        process = self.process_of_rank()
        self.tell(Started(number, f"rank {number}", process.pid))
        rank = FakeRank(number, process)
        rank.meet()
        return rank

    def ranks(self, *numbers: int) -> list[FakeRank]:
        return [self.rank(number) for number in numbers]

    def status(self, connection: Wire | None = None) -> Any:
        """What the agent tells whoever asks."""
        made = socket.socket(socket.AF_UNIX)
        with made:
            if connection is None:
                made.connect(os.fspath(self.home.agent_socket))
                connection = Wire(made)
            connection.send([STATUS], ASK)
            kind, (frame,) = connection.next()
            assert kind == ANSWER
            return decode_status(bytes(frame))

    def connect(self) -> Wire:
        """Connect as a process that is no rank: this one."""
        made = socket.socket(socket.AF_UNIX)
        made.connect(os.fspath(self.home.agent_socket))
        return Wire(made)

    def pause(self) -> None:
        """Stop the agent: what happens now, it finds all at once."""
        self.process.suspend()
        await_that(lambda: self.process.status() == psutil.STATUS_STOPPED, "it runs on")

    def goes_on(self) -> bool:
        """Whether the agent is the same, and obeys."""
        self.notebook.link.order(ReadLog(0, "rank 0", 1))
        self.notebook.reported(LogTail)
        return self._popen.poll() is None

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return self._popen.wait(PATIENCE)

    def close(self) -> None:
        log = self.home.forkserver_log.read_text() if self.home.path.exists() else ""
        self._popen.kill()
        self._popen.wait()
        for rank in self._ranks:
            rank.close()
        self.forkserver.framed.close()
        self.notebook.link.close()
        self.home.remove()
        print(log)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


# ── letters ─────────────────────────────────────────────────────────────────────────────────────────

_MANY = [bytes([n]) * n for n in range(200)]

_BUFFERS = {
    "none": [],
    "empty": [b""],
    "small": [b"x"],
    "as long as is compared": [b"x" * (1 << 16)],
    "longer": [b"x" * ((1 << 16) + 1)],
    "a chunk": [b"x" * (1 << 18)],
    "two": [b"x" * (1 << 20), b"y" * (1 << 20)],
    "64 MiB": [os.urandom(1 << 16) * 1024],
    "many": _MANY,
}


@pytest.mark.parametrize("which", _BUFFERS)
def test_letters_pass_both_ways_as_they_are(node: Node, which: str) -> None:
    rank, buffers = node.rank(3), _BUFFERS[which]
    pushed = Push(1, Payload(b"pickle", [len(buffer) for buffer in buffers]))
    node.notebook.link.send([3], pushed, buffers)
    assert rank.hear() == (pushed, buffers)
    done = Done(1, 0.5, began=3.25)
    rank.say(done, *buffers)
    assert node.notebook.said() == (3, done, buffers)


def test_the_kind_of_a_letter_is_kept(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.send([0], StatusRequest(1))
    kind, _ = rank.wire.next()
    assert kind == ASK
    node.notebook.link.send([0], Pull(1, ["x"]))
    kind, _ = rank.wire.next()
    assert kind == ASK
    node.notebook.put(Letter(0, b"header", [b"frame"]))
    assert rank.wire.next() == (OTHER, [b"header", b"frame"])


def test_each_rank_gets_its_own_letters_in_order(node: Node) -> None:
    ranks = node.ranks(0, 1, 2)
    for identity in range(300):
        node.notebook.link.send([identity % 3], Pull(identity, ["x"]))
    for number, rank in enumerate(ranks):
        assert [rank.hear()[0] for _ in range(100)] == [Pull(i, ["x"]) for i in range(number, 300, 3)]


def test_what_ranks_say_comes_in_the_order_of_each(node: Node) -> None:
    ranks = node.ranks(0, 1, 2)
    for n in range(100):
        for rank in ranks:
            rank.say(Output(n, [Text("stdout", f"{n} of {rank.rank}")]), b"x" * n)
    heard: dict[int, list[FromRank]] = {0: [], 1: [], 2: []}
    for _ in range(300):
        rank, message, frames = node.notebook.said()
        assert isinstance(message, Output)
        assert frames == [b"x" * message.run]
        heard[rank].append(message)
    for number, messages in heard.items():
        assert messages == [Output(n, [Text("stdout", f"{n} of {number}")]) for n in range(100)]


def test_a_letter_to_a_rank_that_is_not_there_is_dropped(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.put(Letter(7, b"h", [b"x"]), Letter(-2, b"h", [b"x"]), Letter(0, b"h", [b"there"]))
    assert rank.wire.next() == (OTHER, [b"h", b"there"])


def parcels(node: Node, patch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """Return a list that fills with what the notebook gets."""
    got: list[list[bytes]] = []

    def recording(parcel: Sequence[Any]) -> list[Letter]:
        if threading.current_thread() is node.notebook.link._thread:  # other worlds of this process may live, too
            got.append([bytes(frame) for frame in parcel])
        return unpack(parcel)

    patch.setattr(link_module, "unpack", recording)
    return got


def test_answers_that_are_there_together_travel_together_and_what_is_equal_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, got = node.ranks(0, 1, 2, 3), parcels(node, monkeypatch)
    value, other = os.urandom(60_000), os.urandom(10)
    node.notebook.link.send(range(4), Pull(1, ["x"]))
    for rank in ranks:
        assert rank.hear()[0] == Pull(1, ["x"])
    node.pause()
    for rank in ranks:
        rank.say(Done(1), other if rank.rank == 2 else value)
    node.process.resume()
    assert {node.notebook.said()[0] for _ in range(4)} == {0, 1, 2, 3}
    (parcel,) = got
    assert len(unpack(parcel)) == 4
    assert parcel.count(value) == parcel.count(other) == 1
    assert len(parcel) == 5, "a list, the answer, its times, and two values"


def slow(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the agent wait long for other ranks."""
    lie = "nbcomm.node.agent.node_agent", "def lie(module):\n    module._TOGETHER = 600.0"
    for name, value in lies.told(folder / "lies", lie).items():
        patch.setenv(name, value)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Node]:
    """One whose agent waits long for other ranks' letters."""
    slow(monkeypatch, tmp_path)
    made = Node()
    yield made
    made.close()


def test_an_answer_waits_for_those_of_the_others_who_were_asked(patient: Node) -> None:
    first, second, third = patient.ranks(0, 1, 2)
    patient.notebook.link.send([0, 1], Pull(1, ["x"]))
    assert first.hear()
    assert second.hear()
    first.say(Done(1))
    third.say(Output(1, [Text("stdout", "meanwhile")]))
    for rank in (first, third):
        patient.status(rank.wire)  # what it said before has been read, so it comes before the second one's
    assert patient.notebook.says_nothing()
    second.say(Done(1))
    said = [patient.notebook.said()[:2] for _ in range(3)]
    assert said == [(0, Done(1)), (2, Output(1, [Text("stdout", "meanwhile")])), (1, Done(1))]


def test_what_nobody_was_asked_for_waits_for_nobody(patient: Node) -> None:
    first, _ = patient.ranks(0, 1)
    first.say(Output(1, [Text("stdout", "at once")]))
    assert patient.notebook.said()[0] == 0


def test_a_report_waits_for_nobody_and_comes_behind_what_was_said_before(patient: Node) -> None:
    first, second = patient.ranks(0, 1)
    patient.notebook.link.send([0, 1], Pull(1, ["x"]))
    assert first.hear()
    assert second.hear()
    first.say(Done(1))
    patient.status(first.wire)  # what it said before has been read
    patient.notebook.link.order(ReadLog(5, "rank 0", 1))
    assert patient.notebook.said()[:2] == (0, Done(1))
    assert patient.notebook.next() == LogTail(5, "(nothing)")


def test_nobody_waits_for_a_rank_that_has_ended(patient: Node) -> None:
    first, second = patient.ranks(0, 1)
    patient.notebook.link.send([0, 1], Pull(1, ["x"]))
    assert first.hear()
    assert second.hear()
    second.process.kill()
    patient.tell(Exited(1, "rank 1", second.pid, -9))
    patient.notebook.reported(Exited)
    first.say(Done(1))
    assert patient.notebook.said()[:2] == (0, Done(1))


def test_a_rank_that_reads_slowly_holds_nobody_up(node: Node) -> None:
    slow, quick = node.ranks(0, 1)
    big = os.urandom(1 << 16) * 1024
    node.notebook.link.send([0], Push(1, Payload(b"", [len(big)])), [big])
    for n in range(20):
        node.notebook.link.send([0, 1], Pull(n, []))
        assert quick.hear() == (Pull(n, []), [])
        quick.say(Done(n))
        assert node.notebook.said()[:2] == (1, Done(n))
    assert slow.hear() == (Push(1, Payload(b"", [len(big)])), [big])
    assert [slow.hear()[0] for _ in range(20)] == [Pull(n, []) for n in range(20)]


def test_a_rank_that_writes_slowly_holds_nobody_up(node: Node) -> None:
    slow, quick = node.ranks(0, 1)
    whole = bytearray(os.urandom(1 << 10) * 1024)
    sent = threading.Event()

    def say_slowly() -> None:
        slow.say(Done(1), whole)
        sent.set()

    slow.wire.framed.socket.sendall(head(1 << 10, 1 << 20) + bytes(5000))  # the rest of it never comes
    for n in range(20):
        node.notebook.link.send([1], Pull(n, []))
        assert quick.hear()
        quick.say(Done(n))
        assert node.notebook.said()[:2] == (1, Done(n))
    slow.reconnect()
    slow.meet()
    threading.Thread(target=say_slowly).start()
    assert node.notebook.said() == (0, Done(1), [bytes(whole)])
    assert sent.wait(PATIENCE)


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems do not keep to such a limit.")
def test_an_answer_for_which_the_agent_has_no_memory_becomes_a_failure(node: Node) -> None:
    rank, another = node.ranks(0, 1)
    large = bytes(192 << 20)
    free, hard = node.process.rlimit(psutil.RLIMIT_AS)
    node.process.rlimit(psutil.RLIMIT_AS, (node.process.memory_info().vms + (96 << 20), hard))
    rank.say(Done(1, 0.5), large)
    number, done, buffers = node.notebook.said()
    assert (number, done, buffers) == (0, Done(1, 0.5, failure=answer_lost(0, len(large))), [])
    rank.say(Done(2, blob=Payload(large)))
    (_, lost, _) = node.notebook.said()
    assert isinstance(lost, Done)
    assert (lost.id, lost.broken) == (2, True)
    rank.say(Output(3, [Text("stdout", large.decode())]))
    (_, told, _) = node.notebook.said()
    assert isinstance(told, Output)
    assert "bytes of output are lost" in str(told.items)
    rank.say(Done(3), b"small")  # on the same connection, and nothing is asked for again
    assert node.notebook.said() == (0, Done(3), [b"small"])
    assert rank.wire.silent()
    node.process.rlimit(psutil.RLIMIT_AS, (free, hard))
    for each in (rank, another):
        each.say(Done(4), large)
        assert node.notebook.said() == (each.rank, Done(4), [large])


# ── who is a rank ───────────────────────────────────────────────────────────────────────────────────


def test_a_rank_is_who_its_process_is_whatever_it_says(node: Node) -> None:
    one, two = node.ranks(1, 2)
    hello = Hello(2, one.pid, "host", 0, "2.13.0")
    one.tell(hello)
    while (event := node.notebook.next()) != (1, hello, []):
        assert isinstance(event, NodeHello | Started | tuple)
    one.say(Done(1))
    two.say(Done(2))
    assert sorted(node.notebook.said()[:2] for _ in range(2)) == [(1, Done(1)), (2, Done(2))]


def test_a_process_that_is_no_rank_is_not_heard(node: Node) -> None:
    friend, stranger = node.rank(0), FakeRank(1, node.process_of_rank())
    stranger.hello()
    stranger.say(Done(1))
    assert node.status(stranger.wire).pid == node.pid, "what it said before has been read"
    friend.say(Done(2))
    assert node.notebook.said()[:2] == (0, Done(2))
    node.notebook.link.send([1, 0], StatusRequest())
    assert friend.hear()[0] == StatusRequest()
    assert stranger.wire.silent()


def test_a_child_of_a_rank_is_no_rank(node: Node) -> None:
    rank = node.rank(0)
    child = node.connect()
    child.send([b"header", encode(Done(1))])
    node.status(child)
    rank.say(Done(2))
    assert node.notebook.said()[:2] == (0, Done(2))


def test_who_connects_before_it_is_known_is_heard_once_it_is(node: Node) -> None:
    process = node.process_of_rank()
    rank = FakeRank(4, process)
    hello = rank.hello()
    assert node.status(rank.wire).pid == node.pid
    started = Started(9, "rank 4", process.pid)
    node.tell(started)
    assert node.notebook.next() == started
    assert node.notebook.next() == (4, hello, []), "the notebook listens to it only when it knows of its process"
    node.notebook.link.send([4], Pull(1, ["x"]))
    assert rank.hear()[0] == Pull(1, ["x"])


def test_of_what_it_says_before_only_a_part_is_kept(node: Node) -> None:
    process = node.process_of_rank()
    rank = FakeRank(4, process)
    for _ in range(100):
        rank.hello()
    node.status(rank.wire)
    node.tell(Started(9, "rank 4", process.pid))
    node.notebook.reported(Started)
    node.notebook.link.order(ReadLog(5, "rank 4", 1))
    assert 1 <= sum(isinstance(event, tuple) for event in iter(node.notebook.next, LogTail(5, "(nothing)"))) < 100
    rank.meet()
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (4, Done(1))


def test_a_rank_that_connects_anew_has_given_the_earlier_connection_up(node: Node) -> None:
    rank = node.rank(0)
    earlier = rank.wire
    rank.reconnect()
    rank.meet()
    assert earlier.hung_up()
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


def test_a_rank_that_is_away_for_a_moment_gets_what_was_sent_meanwhile(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.send([0], Pull(1, []))
    assert rank.hear()[0] == Pull(1, [])
    rank.wire.framed.close()
    rank.process._made[-1].close()
    for n in range(2, 5):
        node.notebook.link.send([0], Pull(n, []))
    assert node.goes_on()
    rank.reconnect()
    rank.meet()
    assert [rank.hear()[0] for _ in range(3)] == [Pull(n, []) for n in range(2, 5)]


def test_what_a_rank_has_sent_before_its_end_comes_before_that(node: Node) -> None:
    rank = node.rank(0)
    node.pause()
    for n in range(10):
        rank.say(Output(n, [Text("stdout", "x" * 10_000)]))
    rank.process.kill()
    ended = Exited(0, "rank 0", rank.pid, -signal.SIGKILL)
    node.tell(ended)
    node.process.resume()
    for n in range(10):
        rank_number, message, _ = node.notebook.said()
        assert (rank_number, message) == (0, Output(n, [Text("stdout", "x" * 10_000)]))
    assert node.notebook.next() == ended


def test_the_connection_of_a_rank_that_has_ended_is_closed_whoever_holds_it_open(node: Node) -> None:
    rank = node.rank(0)
    rank.process.kill()
    node.tell(Exited(0, "rank 0", rank.pid, -signal.SIGKILL))
    assert rank.wire.hung_up()


def test_another_process_takes_the_place_of_a_rank(node: Node) -> None:
    first = node.rank(0)
    first.process.kill()
    node.tell(Exited(0, "rank 0", first.pid, 1))
    node.notebook.reported(Exited)
    node.notebook.link.lose(0)
    process = node.process_of_rank()
    node.tell(Started(12, "rank 0", process.pid))
    second = FakeRank(0, process)
    second.meet()
    node.notebook.link.send([0], Pull(1, []))
    assert second.hear()[0] == Pull(1, [])
    second.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


@pytest.mark.parametrize(
    ("key", "rank"), [("rank 0", 0), ("rank 12", 12), ("controller", None), ("waits", None)], ids=str
)
def test_a_rank_is_known_by_its_key(key: str, rank: int | None) -> None:
    assert rank_of(key) == rank


def test_the_controller_is_no_rank(node: Node) -> None:
    process = node.process_of_rank()
    node.tell(Started(1, "controller", process.pid))
    node.notebook.reported(Started)
    wire = Wire(process.connect())
    wire.send([b"header", encode(Done(1))])
    node.status(wire)
    node.rank(0).say(Done(2))
    assert node.notebook.said()[:2] == (0, Done(2))


# ── strangers ───────────────────────────────────────────────────────────────────────────────────────


def head(*lengths: int, kind: int = 0) -> bytes:
    """What stands before frames of these lengths."""
    return struct.pack(f"<II{len(lengths)}Q", kind, len(lengths), *lengths)


REFUSED = {
    "noise": b"\xff" * 100,
    "text": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "a huge frame": head(1 << 40),
    "a frame that is too large": head(1 << 17),
    "many frames that are too large": head(*[1 << 15] * 1000),
    "too many frames": b"\0\0\0\0\xff\xff\xff\x7f",
}

IGNORED = {
    "half a head": b"\0\0\0\0\1",
    "a head alone": head(100),
    "half a frame": head(100) + b"x" * 50,
    "no frame": head(),
    "one": head(1) + b"x",
    "an unknown kind": head(1, 1, kind=77) + b"xx",
    "a question that is none": head(6, kind=ASK) + b"stutus",
    "an empty question": head(kind=ASK),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_message_ends_its_own_connection_only(node: Node, what: str) -> None:
    rank, stranger = node.rank(0), node.connect()
    stranger.framed.socket.sendall(REFUSED[what])
    assert stranger.hung_up()
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


@pytest.mark.parametrize("what", IGNORED)
def test_what_a_stranger_says_is_ignored(node: Node, what: str) -> None:
    rank, stranger = node.rank(0), node.connect()
    stranger.framed.socket.sendall(IGNORED[what])
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))
    stranger.framed.socket.close()
    assert node.goes_on()


@pytest.mark.parametrize("what", [name for name in IGNORED if "half" not in name and "alone" not in name])
def test_what_a_rank_says_that_is_no_message_is_ignored(node: Node, what: str) -> None:
    rank = node.rank(0)
    rank.wire.framed.socket.sendall(IGNORED[what])
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


def test_a_rank_may_ask_for_the_status_too(node: Node) -> None:
    rank = node.rank(0)
    assert node.status(rank.wire).pid == node.pid


def test_many_strangers_are_no_harm(node: Node) -> None:
    rank = node.rank(0)
    descriptors = node.process.num_fds()
    strangers = [node.connect() for _ in range(100)]
    for stranger in strangers:
        stranger.framed.socket.sendall(head(1000) + b"x" * 500)
    assert node.status().pid == node.pid
    assert node.process.num_fds() >= descriptors + 100
    for stranger in strangers:
        stranger.framed.close()
    await_that(lambda: node.process.num_fds() <= descriptors, "it keeps connections that were closed")
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


def test_what_a_stranger_says_is_not_kept_for_ever(node: Node) -> None:
    before = node.process.memory_info().rss
    stranger = node.connect()
    for _ in range(1000):
        stranger.send([b"x" * 60_000])
    node.status(stranger)
    assert node.process.memory_info().rss - before < 30 << 20


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────


def leave(node: Node) -> None:
    """Close the notebook's end, and wait until the agent has noticed."""
    node.notebook.link.close()
    while not isinstance(node.order(), Left):
        pass


def test_what_is_said_without_a_notebook_is_not_kept(node: Node) -> None:
    rank = node.rank(0)
    leave(node)
    before = node.process.memory_info().rss
    for n in range(200):
        rank.say(Done(n), bytes(1 << 20))
    node.status(rank.wire)
    assert node.process.memory_info().rss - before < 50 << 20


_NOTEBOOK = """
import sys, threading
from nbcomm.launch.link import Link
from nbcomm.world_dir import WorldDir

link = Link(WorldDir(sys.argv[1]), lambda report: print(report, flush=True))
link.deliver_to(print)
link.meet([0])
threading.Event().wait()
"""


def test_what_a_notebook_did_not_take_does_not_wait_for_the_next(node: Node) -> None:
    rank = node.rank(0)
    leave(node)
    command = [sys.executable, "-c", _NOTEBOOK, os.fspath(node.home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stopped:
        assert stopped.stdout is not None
        assert b"NodeHello" in stopped.stdout.readline()
        rank.meet()
        stopped.send_signal(signal.SIGSTOP)
        before = node.process.memory_info().rss
        blob = os.urandom(1 << 20)
        for n in range(100):
            rank.say(Done(n), bytes([n]) + blob)
        node.status(rank.wire)
        assert node.process.memory_info().rss - before > 50 << 20, "it waits for the notebook that is there"
        stopped.kill()
    await_that(lambda: node.process.memory_info().rss - before < 50 << 20, "it keeps what nobody takes")


def test_a_new_notebook_is_greeted_and_takes_over(node: Node) -> None:
    rank = node.rank(0)
    for turn in range(4):
        leave(node)
        second = Notebook(node.home)
        assert second.next() == NodeHello(7, 0)
        node.notebook = second
        second.link.meet([0])
        second.link.send([0], Pull(turn, ["x"]))
        rank.hello()
        assert rank.hear()[0] == Pull(turn, ["x"])
        rank.say(Done(turn))
        assert second.said()[:2] == (0, Done(turn))


def test_notebooks_come_and_go_and_leave_nothing_open(node: Node) -> None:
    def once() -> None:
        leave(node)
        node.notebook = Notebook(node.home)
        node.notebook.reported(NodeHello)

    for _ in range(2):
        once()
    descriptors = node.process.num_fds()
    for _ in range(10):
        once()
    await_that(lambda: node.process.num_fds() <= descriptors, "it holds more open")


def test_an_order_that_comes_just_before_the_notebook_leaves_is_obeyed_before(node: Node) -> None:
    """Or the claim would come behind the farewell, and the world be held for ever."""
    node.notebook.link.order(Claim(1, 4242, 60.0))
    assert node.order() == Claim(1, 4242, 60.0)
    assert node.status().holder == 4242
    for number in range(5):
        node.pause()
        node.notebook.link.order(Claim(number, 4343, 33.0))
        node.notebook.link.close()
        node.process.resume()
        assert node.order() == Claim(number, 4343, 33.0)
        assert node.order() == Left()
        assert (node.status().holder, node.status().lease) == (0, 33.0)
        node.notebook = Notebook(node.home)
        node.notebook.reported(NodeHello)


def test_the_status_tells_who_holds_it_and_since_when_nobody_does(node: Node) -> None:
    assert node.status().holder == 0
    node.notebook.link.order(Claim(1, 4242, 77.0))
    node.order()
    status = node.status()
    assert (status.pid, status.holder, status.alone, status.lease) == (node.pid, 4242, 0.0, 77.0)
    began = time.monotonic()
    leave(node)
    first = node.status()
    assert first.holder == 0
    await_that(lambda: node.status().alone > first.alone, "time stands still")
    alone = node.status().alone
    assert alone <= time.monotonic() - began


def test_a_notebook_that_claims_nothing_is_no_notebook(node: Node) -> None:
    node.notebook.link.order(Claim(1, 4242, 77.0))
    leave(node)
    await_that(lambda: node.status().alone > 0.2, "")
    node.notebook = Notebook(node.home)
    node.notebook.reported(NodeHello)
    leave(node)
    assert node.status().alone > 0.2


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────

ORDERS = [
    Claim(5, 4242, 60.0),
    Start(6, "rank 0", "engine", ["--x"], {"A": "b"}, "/"),
    Signal(7, 6, 2),
    Look(8),
    Shutdown(9),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_orders_for_the_fork_server_reach_it_as_they_are(node: Node, order: Order) -> None:
    node.notebook.link.order(order)
    assert node.order() == order
    node.tell(Obeyed(order.number))
    assert node.notebook.next() == Obeyed(order.number)


def test_many_orders_reach_a_fork_server_that_is_busy(node: Node) -> None:
    environment = {"X": "x" * 100_000}
    orders = [Start(n, "rank 0", "engine", [], environment, "/") for n in range(50)]
    for order in orders:
        node.notebook.link.order(order)
    assert node.goes_on(), "it waits for nobody"
    assert [node.order() for _ in orders] == orders
    node.rank(0).say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


def test_the_end_of_a_log_is_read_here(node: Node) -> None:
    node.home.log(3).write_text("one\ntwo\nthree\n")
    node.notebook.link.order(ReadLog(5, "rank 3", 2))
    assert node.notebook.next() == LogTail(5, "two\nthree")


BAD = [
    Letter(ITSELF, NO_HEADER, []),
    Letter(ITSELF, NO_HEADER, [b"garbage"]),
    Letter(ITSELF, NO_HEADER, [b""]),
    Letter(ITSELF, NO_HEADER, [encode(Left())]),
    Letter(ITSELF, NO_HEADER, [encode(StatusRequest())]),
]


@pytest.mark.parametrize("bad", range(len(BAD)))
def test_what_is_no_order_harms_nobody(node: Node, bad: int) -> None:
    rank = node.rank(0)
    node.notebook.put(BAD[bad], Letter(0, b"h", [b"behind it"]))
    assert rank.wire.next() == (OTHER, [b"h", b"behind it"])
    assert node.goes_on()
    assert node.forkserver.silent()


def test_many_faults_at_once_do_not_end_it(node: Node) -> None:
    node.notebook.put(*[BAD[0]] * 200)
    assert node.goes_on()


@pytest.mark.parametrize(
    "parcel", [[b""], [b"garbage"], [b"\x91\x94\x00\xc4\x00\x91\x05\xc2"], [b"\x90", b"more"]], ids=str
)
def test_what_is_no_parcel_harms_nobody(node: Node, parcel: list[bytes]) -> None:
    sent = threading.Event()
    plain = node.notebook.link._send_waiting

    def instead() -> None:
        node.notebook.link._router.send_multipart([b"node0", *parcel])
        node.notebook.link._send_waiting = plain  # type: ignore[method-assign]
        sent.set()

    node.notebook.link._send_waiting = instead  # type: ignore[method-assign]
    node.notebook.link._rouse()
    assert sent.wait(PATIENCE)
    assert node.goes_on()


def test_what_is_no_report_harms_nobody(node: Node) -> None:
    for frames in ([b"garbage"], [b"two", b"frames"], [encode(Look(1))]):
        node.forkserver.send(frames)
    node.tell(Obeyed(77))
    assert node.notebook.next() == Obeyed(77)


def test_an_agent_whose_turns_all_fail_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_module, "_BREATH", 0.0)
    home = WorldDir.create()
    home.write_link(LinkInfo(f"ipc://{home.link_socket}", *[zmq.curve_keypair()[0].decode()] * 3))
    ours, theirs = socket.socketpair()
    agent = NodeAgent(home, theirs, 1)
    turns = []

    def turn() -> None:
        turns.append(1)
        if len(turns) != 30:
            raise RuntimeError("on purpose")

    monkeypatch.setattr(agent, "_turn", turn)
    try:
        agent.serve()
    finally:
        agent._notebook._close()
        agent._context.term()
        agent._ranks.listener.close()
        ours.close()
        theirs.close()
        home.remove()
    assert len(turns) == 30 + agent_module._MOST_FAILURES
    assert capsys.readouterr().err.count("RuntimeError: on purpose") == 1, "it fills no disk"


# ── the store ───────────────────────────────────────────────────────────────────────────────────────


class StoreClient:
    """Speaks to a store as a rank does."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(os.fspath(path))
        store.receive_name(self.socket)

    def ask(self, *request: Any) -> Any:
        store.send(self.socket, request)
        return store.receive(self.socket)

    def close(self) -> None:
        self.socket.close()


def obeyed(node: Node, order: Order) -> None:
    node.notebook.link.order(order)
    assert node.notebook.next() == Obeyed(order.number)


def test_the_store_is_served_and_not_begun_anew_by_an_order_that_comes_again(node: Node) -> None:
    first, second = node.home.store_socket(1), node.home.store_socket(2)
    obeyed(node, ServeStore(5, 1))
    client = StoreClient(first)
    client.ask("set", "key", b"value")
    obeyed(node, ServeStore(5, 1))
    assert client.ask("wait", ["key"], 0.0) == [b"value"]
    again = StoreClient(first)
    assert again.ask("check", ["key"])
    obeyed(node, ServeStore(6, 2))
    with pytest.raises(ConnectionError):
        client.ask("check", ["key"])
    with pytest.raises(OSError, match=r"No such file"):
        StoreClient(first)
    fresh = StoreClient(second)
    assert not fresh.ask("check", ["key"])
    for one in (client, again, fresh):
        one.close()


def test_a_store_that_an_agent_has_left_behind_is_removed(node: Node) -> None:
    left = node.home.store_socket(1)
    left.touch()
    obeyed(node, ServeStore(5, 2))
    assert not left.exists()
    assert node.home.store_socket(2).is_socket()


def test_a_store_that_waits_holds_nobody_up(node: Node) -> None:
    path = node.home.store_socket(1)
    obeyed(node, ServeStore(5, 1))
    waiting = StoreClient(path)
    store.send(waiting.socket, ["wait", ["late"], 600.0])
    rank = node.rank(0)
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))
    setting = StoreClient(path)
    setting.ask("set", "late", b"bird")
    assert store.receive(waiting.socket) == [b"bird"]
    waiting.close()
    setting.close()


def test_a_store_that_cannot_be_served_is_told_in_words(node: Node) -> None:
    node.home.store_socket(9).mkdir()
    node.notebook.link.order(ServeStore(5, 9))
    answer = node.notebook.next()
    assert isinstance(answer, Failed)
    assert (answer.number, "Is a directory" in answer.why) == (5, True)
    path = node.home.store_socket(1)
    obeyed(node, ServeStore(6, 1))
    client = StoreClient(path)
    assert client.ask("count") == 0
    client.close()
    node.notebook.link.order(ServeStore(7, 9))
    assert isinstance(node.notebook.next(), Failed)
    leave(node)
    node.notebook = Notebook(node.home)
    assert node.notebook.next() == NodeHello(7, 0), "the one before it was ended"


def test_the_next_notebook_is_told_which_store_is_served(node: Node) -> None:
    obeyed(node, ServeStore(5, 1))
    leave(node)
    node.notebook = Notebook(node.home)
    assert node.notebook.next() == NodeHello(7, 1)


# ── without a fork server ───────────────────────────────────────────────────────────────────────────


def hang_up(node: Node) -> None:
    """End as the fork server."""
    node.forkserver.framed.close()
    node.notebook.reported(ForkServerEnded)


def test_the_end_of_the_fork_server_is_told_even_if_it_never_had_an_order(node: Node) -> None:
    node.forkserver.framed.close()
    assert node.notebook.next() == ForkServerEnded()
    assert node.goes_on()


def test_reports_that_came_before_its_end_are_passed_on_before(node: Node) -> None:
    node.pause()
    node.tell(*map(Obeyed, range(100)))
    node.forkserver.framed.close()
    node.process.resume()
    assert [node.notebook.next() for _ in range(100)] == [*map(Obeyed, range(100))]
    assert node.notebook.next() == ForkServerEnded()


def test_ranks_and_notebook_speak_on_without_it(node: Node) -> None:
    rank = node.rank(0)
    hang_up(node)
    node.notebook.link.send([0], Pull(1, []))
    assert rank.hear()[0] == Pull(1, [])
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))


def test_it_tells_what_lives_and_that_nobody_starts_others(node: Node) -> None:
    stays, goes = node.ranks(0, 1)
    node.tell(Exited(1, "rank 1", goes.pid, 1))
    node.notebook.reported(Exited)
    hang_up(node)
    node.notebook.link.order(Claim(50, 4242, 60.0))
    assert node.notebook.next() == Started(0, "rank 0", stays.pid)
    assert node.notebook.next() == ForkServerEnded()
    assert node.notebook.next() == Obeyed(50)
    node.notebook.link.order(Start(51, "rank 1", "engine", [], {}, "/"))
    assert node.notebook.next() == Failed(51, "the fork server has ended")


def test_it_hears_a_rank_of_which_only_the_notebook_knows(node: Node) -> None:
    rank = FakeRank(0, node.process_of_rank())
    hang_up(node)
    node.notebook.link.order(Claim(50, 4242, 60.0, [Started(3, "rank 0", rank.pid)]))
    assert node.notebook.next() == Started(3, "rank 0", rank.pid)
    assert node.notebook.next() == ForkServerEnded()
    assert node.notebook.next() == Obeyed(50)
    rank.meet()
    rank.say(Done(1))
    assert node.notebook.said()[:2] == (0, Done(1))
    rank.process.kill()
    assert node.notebook.next() == Exited(3, "rank 0", rank.pid, None)


def test_it_tells_ends_and_the_last_words_before_them(node: Node) -> None:
    rank = node.rank(0)
    hang_up(node)
    node.pause()
    rank.say(Done(1))
    rank.process.kill()
    node.process.resume()
    assert node.notebook.said()[:2] == (0, Done(1))
    assert node.notebook.next() == Exited(0, "rank 0", rank.pid, None)
    node.notebook.link.order(Look(60))
    assert node.notebook.next() == Obeyed(60), "it is told once"


def test_it_signals_the_process_of_a_start_only(node: Node) -> None:
    one, two = node.ranks(0, 1)
    hang_up(node)
    obeyed(node, Signal(50, 77, signal.SIGKILL))
    obeyed(node, Signal(51, 1, signal.SIGTERM))
    assert two.process.process.wait(PATIENCE) == -signal.SIGTERM
    assert node.notebook.next() == Exited(1, "rank 1", two.pid, None)
    obeyed(node, Signal(52, 1, signal.SIGKILL))
    assert one.process.process.poll() is None


def test_it_harms_no_process_that_has_the_pid_of_a_rank(node: Node) -> None:
    rank = node.rank(0)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            node.tell(Started(9, "rank 9", stranger.pid))
            hang_up(node)
            node.notebook.link.order(Signal(50, 9, signal.SIGKILL))
            node.notebook.link.order(Shutdown(51))
            node.wait()
            assert rank.process.process.wait(PATIENCE) == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_it_ends_all_when_nobody_has_come_for_the_lease(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.order(Claim(1, 4242, 0.5))
    node.order()
    hang_up(node)
    began = time.monotonic()
    node.notebook.link.close()
    assert rank.process.process.wait(PATIENCE) == -signal.SIGKILL
    assert time.monotonic() - began >= 0.5
    assert node.wait() == 0
    assert not node.home.path.exists()


def test_with_a_notebook_it_goes_on_whatever_the_lease(node: Node) -> None:
    rank = node.rank(0)
    hang_up(node)
    node.notebook.link.order(Claim(1, 4242, 0.0))
    node.notebook.reported(Obeyed)
    for _ in range(3):
        node.notebook.link.order(Look(2))
        node.notebook.reported(Obeyed)
        time.sleep(0.3)  # longer than it sleeps
    assert rank.process.process.poll() is None
    assert node.goes_on()


def test_it_dies_with_a_fork_server_that_does_not_serve_yet(tmp_path: Path) -> None:
    """Of a start that is given up, nothing is left."""
    home = WorldDir.create()
    link = Link(home, lambda _: None)
    program = f"""
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
command = [sys.executable, "-m", "nbcomm.node.agent_process", {os.fspath(home.path)!r}, str(theirs.fileno()), "1"]
child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
print(child.pid, flush=True)
time.sleep(600)
"""
    try:
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            agent = psutil.Process(int(parent.stdout.readline()))
            await_that(home.agent_socket.exists, "it does not come")
            parent.kill()
        await_that(lambda: has_ended(agent), "it lives on")
    finally:
        link.close()
        home.remove()


def test_a_snapshot_is_an_answer(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.send([0], StatusRequest(3))
    assert rank.hear()[0] == StatusRequest(3)
    reply = StatusReply(0, rank.pid, "idle", 0.0, None, 1, 0, 0, question=3)
    rank.tell(reply)
    assert node.notebook.said()[:2] == (0, reply)


# ── polls ───────────────────────────────────────────────────────────────────────────────────────────


def test_it_asks_all_its_ranks_and_their_answers_travel_together(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, got = node.ranks(0, 1, 2), parcels(node, monkeypatch)
    node.notebook.link.poll(3)
    assert [rank.hear()[0] for rank in ranks] == [StatusRequest(3)] * 3
    node.pause()
    for rank in ranks:
        rank.tell(StatusReply(rank.rank, rank.pid, "idle", 0.0, None, 1, 0, 0, question=3))
    node.process.resume()
    assert {node.notebook.said()[0] for _ in ranks} == {0, 1, 2}
    assert len(got) == 1


def test_a_rank_that_lacks_a_letter_learns_it_from_a_poll_and_gets_it(node: Node) -> None:
    rank = node.rank(0)
    stream = node.notebook.link._streams[0]
    with node.notebook.link._lock:
        stream.out.add([encode(Pull(1, ["x"]))])
        stream.out.take()  # and it is lost on the way
        node.notebook.link._unheard.add(0)
    node.notebook.link.poll(3)
    assert rank.hear()[0] == Pull(1, ["x"])
    node.notebook.link.poll(4)
    assert rank.hear()[0] == StatusRequest(4)


def test_by_a_poll_a_rank_learns_what_was_heard_of_it(node: Node) -> None:
    rank = node.rank(0)
    rank.say(Done(1))
    node.notebook.said()
    assert rank.stream.out._kept
    node.notebook.link.poll(1)
    assert rank.hear()[0] == StatusRequest(1)
    assert not rank.stream.out._kept


def test_questions_to_a_rank_that_reads_nothing_do_not_pile_up(node: Node) -> None:
    deaf, other = node.ranks(0, 1)
    for question in range(2000):
        node.notebook.link.poll(question)
        assert other.hear()[0] == StatusRequest(question)
    node.notebook.link.send([0], Interrupt(1))
    heard: list[object] = []
    while Interrupt(1) not in heard:
        heard.append(deaf.hear()[0])
    assert 1 < len(heard) < 1000
    node.notebook.link.poll(3000)
    assert deaf.hear()[0] == StatusRequest(3000)


def test_a_letter_that_is_only_a_header_is_not_passed_on(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.put(Letter(0, b"header", []), Letter(0, b"header", [b"frame"]))
    assert rank.wire.next() == (OTHER, [b"header", b"frame"])


def test_a_process_in_the_place_of_one_that_has_ended_is_not_asked_with_what_that_had_heard(node: Node) -> None:
    first, friend = node.ranks(0, 1)
    first.process.kill()
    node.tell(Exited(0, "rank 0", first.pid, -9))
    node.notebook.reported(Exited)
    node.notebook.link.lose(0)
    second = node.process_of_rank()
    node.tell(Started(5, "rank 0", second.pid))
    rank = FakeRank(0, second)
    node.status(rank.wire)
    node.notebook.link.poll(1)
    assert friend.hear()[0] == StatusRequest(1)
    assert rank.wire.silent()
    rank.meet()
    node.notebook.link.poll(2)
    assert rank.hear()[0] == StatusRequest(2)


def test_another_notebook_asks_with_headers_of_its_own(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.close()
    node.notebook = Notebook(node.home)
    node.notebook.reported(NodeHello)
    node.notebook.link.poll(1)
    assert node.goes_on()
    node.notebook.link.meet([0])
    rank.hello()
    node.notebook.link.poll(2)
    assert rank.hear()[0] == StatusRequest(2)


def test_a_rank_that_a_notebook_does_not_know_yet_answers_no_poll_before_it_has_what_was_sent(node: Node) -> None:
    rank = node.rank(0)
    node.notebook.link.close()
    node.notebook = Notebook(node.home)
    node.notebook.reported(NodeHello)
    node.notebook.link.meet([0])  # the rank is busy, and says nothing
    node.notebook.link.send([0], Pull(1, ["x"]))
    node.notebook.link.poll(1)
    assert node.goes_on()
    assert rank.hear()[0] == Pull(1, ["x"])


def test_the_end_of_an_earlier_process_does_not_keep_the_present_one_from_polls(node: Node) -> None:
    rank, earlier = node.rank(0), node.process_of_rank()
    earlier.kill()
    node.tell(Exited(99, "rank 0", earlier.pid, 0))
    node.notebook.reported(Exited)
    node.notebook.link.poll(1)
    assert rank.hear()[0] == StatusRequest(1)
