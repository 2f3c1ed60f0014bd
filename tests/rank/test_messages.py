"""A rank's messages: each rule by itself, and with the notebook's real link on a way that breaks."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import zmq
from hypothesis.stateful import invariant

from nbcomm.launch import link as link_module
from nbcomm.launch.link import Link
from nbcomm.protocol import (
    CallRecord,
    Done,
    FromRank,
    Greet,
    Hello,
    Output,
    Pull,
    StatusReply,
    StatusRequest,
    Text,
    ToRank,
)
from nbcomm.protocol.chunks import CHUNK, WINDOW, Piece, Receiving
from nbcomm.protocol.codec import decode_from_rank, decode_piece, decode_to_rank, encode, from_frames, to_frames
from nbcomm.protocol.nodes import rank_name
from nbcomm.protocol.streams import Header, NotebookStream, Outgoing
from nbcomm.rank.messages import Messages

from ..laws import examples
from ..protocol.ways import RANKS, Message, Notebook, Process, Ways, gap

SESSION, INCARNATION = 1000, 77


class Rank:
    """A rank's messages, with a clock that the test sets, and the other end of the stream."""

    def __init__(self, out: Outgoing | None = None) -> None:
        self.now = 0.0
        self.met = 0
        self.out = out or Outgoing()
        self.messages = Messages(INCARNATION, self.out, self._hello, self._meet, lambda: self.now)
        self.notebook = NotebookStream(SESSION)

    def _hello(self, *, asks: bool) -> Hello:
        return Hello(0, 1, "host", 0, "2.13.0", asks=asks)

    def _meet(self) -> None:
        self.met += 1

    def say(self, number: int, run: int = 1, *, output: bool = False) -> None:
        self.messages.send(to_frames(Done(number)), run, output=output)

    def leaving(self, *, connected: bool = True) -> list[tuple[int, FromRank]]:
        """What is sent now: the number of each, and the message."""
        left = list(self.messages.leaving(connected=connected))
        return [(message.header.number, decode_from_rank(message.frames[0])) for message in left]

    def numbers(self) -> list[int]:
        """The number of each message that is sent now, or of each part of one."""
        return [message.header.number for message in self.messages.leaving(connected=True)]

    def greet(self, *, asks: bool = False) -> bool:
        return self.messages.hear(self.notebook.header(), Greet(asks))

    def meet(self) -> None:
        """Connect, and be greeted by the notebook."""
        self.messages.connect(1)
        (hello,) = self.messages.leaving(connected=True)
        assert self.notebook.meet(hello.header)
        self.greet()


def test_nothing_is_sent_before_a_greeting_but_notifications() -> None:
    rank = Rank()
    rank.say(1)
    rank.messages.connect(1)
    ((number, hello),) = rank.leaving()
    assert (number, hello) == (0, rank._hello(asks=True))
    assert rank.notebook.meet(Header(0, INCARNATION, 0, 0, 0))
    assert not rank.greet()
    assert rank.leaving() == [(1, Done(1))]
    assert rank.leaving() == []


def test_each_connection_begins_with_a_greeting() -> None:
    rank = Rank()
    rank.meet()
    rank.say(1)
    assert rank.leaving() == [(1, Done(1))]
    rank.messages.connect(1)
    assert rank.leaving() == [(0, rank._hello(asks=True))]
    rank.greet()
    assert rank.leaving() == [(1, Done(1))], "nobody has said that it was heard"


def test_without_a_connection_notifications_are_lost_and_the_rest_waits() -> None:
    rank = Rank()
    rank.meet()
    rank.say(1)
    rank.messages.notify(rank._hello(asks=False))
    assert rank.leaving(connected=False) == []
    assert rank.leaving() == [(1, Done(1))]


def test_one_that_asks_gets_a_hello_and_so_does_one_that_does_not_know_this_process() -> None:
    rank = Rank()
    rank.meet()
    assert rank.leaving() == []
    rank.greet(asks=True)
    assert rank.leaving() == [(0, rank._hello(asks=False))]
    rank.messages.connect(1)
    rank.leaving()
    assert not rank.messages.hear(Header(SESSION, 0, 0, 0, 0), Greet())
    assert rank.leaving() == [(0, rank._hello(asks=True))]


def test_a_new_notebook_is_met_once_and_gets_a_hello() -> None:
    rank = Rank()
    rank.meet()
    assert rank.met == 1
    rank.say(1, run=5)
    assert rank.leaving() == [(1, Done(1))]
    later = Header(SESSION + 1, INCARNATION, 0, 0, 0)
    for _ in range(2):
        assert rank.messages.hear(later, StatusRequest())
    assert rank.met == 2
    assert rank.leaving() == [(0, rank._hello(asks=True))], "it has not greeted"


def test_hello_is_said_again_until_it_is_answered() -> None:
    rank = Rank()
    rank.messages.connect(1)
    asks = [(0, rank._hello(asks=True))]
    assert rank.leaving() == asks
    for seconds, said in ((0.5, []), (0.5, asks), (0.5, []), (0.5, asks)):
        rank.now += seconds
        assert rank.leaving() == said
    assert rank.notebook.meet(Header(0, INCARNATION, 0, 0, 0))
    rank.greet()
    rank.leaving()
    rank.now += 9.0
    assert rank.leaving() == []


@pytest.mark.parametrize("what", ["_sending", "_receiving", "_hello"])
def test_a_connection_that_could_not_be_begun_is_begun_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def failing(*_: object, **__: object) -> Any:
        raise TypeError("once")

    rank = Rank()
    rank.meet()
    with monkeypatch.context() as patch:
        owner, name = (rank.messages, what) if what == "_hello" else (getattr(rank.messages, what), "clear")
        patch.setattr(owner, name, failing)
        with pytest.raises(TypeError):
            rank.messages.connect(7)
    assert rank.messages.connection != 7, "so that it is tried again"
    rank.messages.connect(7)
    assert rank.leaving()[-1:] == [(0, rank._hello(asks=True))]


def test_a_notebook_that_could_not_be_met_is_met_with_its_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise TypeError("once")

    rank = Rank()
    with monkeypatch.context() as patch:
        patch.setattr(rank.messages, "_meet", failing)
        with pytest.raises(TypeError):
            rank.messages.hear(Header(SESSION, 0, 0, 0, 0), Greet())
    assert rank.met == 0
    rank.messages.hear(Header(SESSION, 0, 0, 0, 0), Greet())
    assert rank.met == 1


def test_what_was_sent_while_something_large_left_comes_before_what_it_does_now() -> None:
    """Else the notebook hears that it has answered before it hears the answer, and takes that for lost."""
    rank = Rank()
    rank.meet()
    rank.messages.send(to_frames(Output(1, [Text("stdout", "x" * (2 * WINDOW))])), 1, output=True)
    large = rank.numbers()
    rank.say(1)
    reply = StatusReply(0, 1, "idle", 0.0, None, 1, 0, 0, answered=1)
    rank.messages.notify(reply)
    while not large or large[-1]:
        rank.messages.arrive(Piece(SESSION, INCARNATION, 0, 0, 0, at=CHUNK * len(large)), [])
        large += rank.numbers()
    assert large == [*sorted(large[:-1]), 0]
    assert {*large} == {1, 2, 0}
    assert large.count(2) == 1


def test_a_missing_message_is_asked_for_once() -> None:
    rank = Rank()
    rank.meet()
    assert not rank.messages.hear(Header(SESSION, INCARNATION, 3, 2, 0), Pull(1, []))
    assert rank.leaving() == [(0, rank._hello(asks=False))]
    assert not rank.messages.hear(Header(SESSION, INCARNATION, 4, 3, 0), Pull(1, []))
    assert rank.leaving() == []
    assert not rank.messages.hear(Header(SESSION, INCARNATION, 0, 4, 0), StatusRequest())
    assert rank.leaving() == [(0, rank._hello(asks=False))]
    assert rank.messages.hear(Header(SESSION, INCARNATION, 1, 0, 0), None), "one that cannot be decoded keeps its place"


def test_what_a_rank_does_travels_in_two_parts() -> None:
    rank = Rank()
    rank.meet()
    steps = [CallRecord("all_reduce", "collective", "0", "0-7", seq, seq, 1.0, 2.0) for seq in range(3)]
    reply = StatusReply(0, 1, "running", 0.0, 1, 1, 0, 0, steps=steps)
    rank.messages.notify(reply)
    (message,) = rank.messages.leaving(connected=True)
    assert message.frames[0].count(b"0-7") == 1, "its group's members are there once"
    told, rest = from_frames(decode_from_rank(message.frames[0]), message.frames[1:])
    assert (told, list(rest)) == (reply, [])


def test_what_is_acknowledged_is_known() -> None:
    rank = Rank()
    rank.meet()
    assert rank.messages.acknowledged == 0
    rank.messages.hear(rank.notebook.header(acknowledged=7), StatusRequest())
    assert rank.messages.acknowledged == 7


def test_a_notification_does_not_come_behind_what_is_said_while_it_leaves() -> None:
    """Else the notebook would ask again for a message that is just being sent, and may be a gigabyte."""
    rank = Rank()
    rank.meet()
    rank.say(1)
    rank.messages.notify(rank._hello(asks=False))
    left = rank.messages.leaving(connected=True)
    assert next(left).header.number == 1
    rank.say(2)  # by another thread
    rank.messages.notify(rank._hello(asks=False))
    (notification,) = left
    assert (notification.header.number, notification.header.after) == (0, 1)
    second, notification = rank.messages.leaving(connected=True)
    assert (second.header.number, notification.header.after) == (2, 2)


def test_before_a_greeting_a_notification_shows_what_waits() -> None:
    rank = Rank()
    rank.messages.connect(1)
    rank.say(1)
    (notification,) = rank.messages.leaving(connected=True)
    assert notification.header.after == 1


@pytest.mark.parametrize(("away", "all_of_it"), [(4.9, True), (5.0, False)])
def test_output_is_kept_for_a_notebook_that_is_away_for_a_moment(away: float, *, all_of_it: bool) -> None:
    """A daemon that dies is replaced: the notebook is there all the time."""
    rank = Rank(Outgoing(10, gap))
    rank.meet()
    rank.leaving()
    rank.now = away
    rank.messages.connect(1)
    rank.leaving()
    for number in range(5):
        rank.say(number, run=1, output=True)
    rank.greet()
    rank.messages.hear(rank.notebook.header(), Greet())
    left = [message.header.number for message in rank.messages.leaving(connected=True)]
    assert (left == [1, 2, 3, 4, 5]) is all_of_it


def test_no_output_is_kept_for_a_notebook_that_never_came() -> None:
    rank = Rank(Outgoing(10, gap))
    assert rank.leaving() == []
    for number in range(5):
        rank.say(number, run=1, output=True)
    assert len(rank.out._kept) == 2, "a gap, and the last"


def test_what_is_large_leaves_as_it_is_taken_and_notifications_come_behind_it() -> None:
    rank, taking = Rank(), Receiving()
    rank.meet()
    big = [b"first", b"x" * (WINDOW + 3 * CHUNK)]
    rank.messages.send(big)
    rank.messages.notify(rank._hello(asks=False))
    whole = None
    for turn in range(20):
        left = list(rank.messages.leaving(connected=True))
        assert sum(len(frame) for message in left for frame in message.frames) <= WINDOW + CHUNK
        notifications = [message for message in left if not message.header.number]
        for message in left:
            if message.header.number:
                piece = decode_piece(encode(message.header))
                whole = whole or taking.take(piece, message.frames)
        if notifications:
            break
        taken = taking.due()
        assert taken is not None, turn
        assert rank.messages.arrive(Piece(SESSION, INCARNATION, 0, 0, 0, at=taken), []) is None
    assert whole is not None
    assert [bytes(frame) for frame in whole] == big
    assert decode_from_rank(notifications[0].frames[0]) == rank._hello(asks=False)


def test_a_break_in_a_large_message_begins_it_again() -> None:
    rank = Rank()
    rank.meet()
    rank.messages.send([b"x" * 4 * WINDOW])
    first = list(rank.messages.leaving(connected=True))
    assert rank.messages.leaving(connected=True) is not None
    assert list(rank.messages.leaving(connected=True)) == []
    rank.messages.connect(1)
    rank.greet()
    again = list(rank.messages.leaving(connected=True))
    assert [message.header.at for message in again if message.header.number] == [message.header.at for message in first]  # type: ignore[attr-defined]


def test_what_the_notebook_sends_in_parts_is_heard_when_it_is_whole() -> None:
    rank = Rank()
    rank.meet()
    frames = [b"a" * 5, b"b" * 7]
    parts = [
        (Piece(SESSION, INCARNATION, 1, 0, 0, sizes=[5, 7]), b"aaaaabb"),
        (Piece(SESSION, INCARNATION, 1, 0, 0, at=7), b"bbbbb"),
    ]
    assert rank.messages.arrive(parts[0][0], [parts[0][1]]) is None
    notification = Piece(SESSION, INCARNATION, 0, 0, 0)
    assert rank.messages.arrive(notification, [b"a question"]) == [b"a question"], "that may come between"
    whole = rank.messages.arrive(parts[1][0], [parts[1][1]])
    assert whole is not None
    assert [bytes(frame) for frame in whole] == frames


def test_it_is_known_what_the_present_notebook_has_heard() -> None:
    rank = Rank()
    rank.meet()
    assert rank.messages.heard == 0
    rank.messages.arrive(Piece(SESSION, INCARNATION, 0, 0, 5), [b"a word"])
    rank.messages.arrive(Piece(SESSION, INCARNATION + 1, 0, 0, 9), [b"of another"])
    assert rank.messages.heard == 5
    rank.messages.hear(Header(SESSION + 1, INCARNATION, 0, 0, 0), StatusRequest())
    assert rank.messages.heard == 0


def test_for_a_notebook_that_takes_nothing_no_more_is_kept_than_for_one_that_is_stopped() -> None:
    rank = Rank(Outgoing(10, gap, most_unheard=2 * WINDOW))
    rank.meet()
    for turn in range(10):
        rank.messages.send([b"x" * WINDOW], 1, output=True)
        list(rank.messages.leaving(connected=True))
        rank.now = 10.0 * turn
        assert sum(kept.size for kept in rank.out._kept.values()) <= 3 * WINDOW
    assert rank.out.newest == 10


# ── with the real link, on a way that breaks ────────────────────────────────────────────────────────


class Router:
    """In the place of the link's socket: what it sends, and what it is to receive."""

    def __init__(self) -> None:
        self.sent: deque[Sequence[Any]] = deque()
        self.come: deque[Sequence[Any]] = deque()

    def send_multipart(self, frames: Sequence[Any], **_: Any) -> None:
        self.sent.append(frames)

    def recv_multipart(self, *_: Any, **__: Any) -> list[Any]:
        if not self.come:
            raise zmq.Again
        name, *frames = self.come.popleft()
        return [
            SimpleNamespace(bytes=frame, buffer=memoryview(frame), get=lambda _: name.decode())
            for frame in (name, *frames)
        ]


class QuietLink(Link):
    """The notebook's link without its thread and its socket: the test takes each step."""

    router: Router

    def _bind(self, _: Any) -> Any:
        self._keys = mock.Mock()
        self._keys.name = lambda frame: frame.get("User-Id")
        self.router = Router()
        return self.router


class RealNotebook(Notebook):
    """The notebook's real link, and notes of what it says to each process and hears of it."""

    def __init__(self, session_id: int, process: Callable[[int], Process]) -> None:
        super().__init__(session_id, process)
        home: Any = SimpleNamespace(next_session_id=lambda: session_id, link_socket=Path("unused"))
        with mock.patch.object(link_module, "keep"):
            self.link = QuietLink(home, lambda _: None)
        self.link.deliver_to(self._receive)
        self.link.meet(RANKS)
        self.streams = {rank: self.link._ends[rank].stream for rank in RANKS}
        self._starts: dict[int, int] = {}  # by incarnation
        self._known: dict[int, int] = {}
        self._questions = itertools.count(1)

    def send(self, rank: int) -> None:
        text = next(self._count)
        self.to[rank].append(text)
        self.link.send([rank], Pull(text, ["x"]))

    def ask(self) -> None:
        for rank in RANKS:
            self.link.send([rank], StatusRequest(len(self.to[rank])))

    @property
    def wants_to_speak(self) -> bool:
        return bool(self.link._notifications or self.link._due)

    def turn(self) -> Iterator[Message]:
        self.link.acknowledged = self.acknowledged
        self.link._send_waiting()
        while self.link.router.sent:
            name, header, *frames = self.link.router.sent.popleft()
            yield Message(int(name.decode()[4:].partition("-")[0]), "real", decode_piece(header), frames)

    def hear(self, message: Message) -> None:
        if message.header is None:
            self._hear_daemon(message.rank, message.what, message.text)
        else:
            name = rank_name(message.rank, self._starts.get(message.header.incarnation, 0))
            self.link.router.come.append([name.encode(), encode(message.header), *message.text])
            self.link._take_arrived()

    def _hear_daemon(self, rank: int, what: str, incarnation: int) -> None:
        if what == "started":
            self.incarnations[rank] = incarnation
            self._starts[incarnation] = incarnation
            self.link.admit(rank, incarnation, "")
            name = rank_name(rank, incarnation)
            self.link._note_route(name, name.encode())  # in truth it speaks first, on a connection of its own
            self.link.meet([rank])
        elif what == "daemon":
            pass
        elif self.incarnations.get(rank) == incarnation:
            del self.incarnations[rank]
            self.link.dismiss(rank, incarnation)
            self.link.lose(rank)
            self.to[rank] = []
            self._known.pop(rank, None)

    def _receive(self, rank: int, message: FromRank, _: Sequence[Any]) -> None:
        if isinstance(message, Hello):
            if self._known.get(rank, message.pid) != message.pid:
                self.to[rank] = []
            self._known[rank] = message.pid
            self.sent[message.pid] = self.to[rank]
        elif isinstance(message, StatusReply):
            self.take(self._known[rank], None, message.question)
        else:
            assert isinstance(message, Done)
            self.take(self._known[rank], message.id)


class RealProcess(Process):
    """A rank's real messages, and notes of what they say, and hear of each notebook."""

    def __init__(self, rank: int, incarnation: int, notebook: Callable[[int], Notebook]) -> None:
        super().__init__(rank, incarnation, notebook)
        self.now = 0.0
        self.messages = Messages(incarnation, self.out, self._hello, self._meet, self._clock)
        self.stream = self.messages._stream
        self._coming: tuple[Header, list[int]] | None = None

    def _clock(self) -> float:
        self.now += 1.0  # so that a notebook has gone now and then
        return self.now

    def _hello(self, *, asks: bool) -> Hello:
        return Hello(self.rank, self.incarnation, "host", 0, "2.13.0", asks=asks)

    def _meet(self) -> None:
        assert self._coming is not None
        header, past = self._coming
        self._past[header.session_id] = past, len(self._said)

    def say(self, run: int) -> None:
        self._said.append(run)
        number = len(self._said)
        self.messages.send(to_frames(Done(number)), run, output=number % 4 != 0)

    @property
    def wants_to_speak(self) -> bool:
        return bool(self.messages._notifications or (self.messages._greeted and self.out.newest > self.out.last))

    def connect(self) -> None:
        self.messages.connect(1)

    def turn(self, *, connected: bool) -> Iterator[Message]:
        for message in self.messages.leaving(connected=connected):
            yield Message(self.rank, "real", message.header, message.frames)

    def hear(self, message: Message) -> None:
        header = message.header
        assert header is not None
        assert isinstance(header, Piece)
        self._coming = header, self._past_runs()
        frames = self.messages.arrive(header, message.text)
        if frames is not None:
            decoded = decode_to_rank(frames[0])
            if self.messages.hear(header, decoded):
                self._do(decoded, header)
        self._note(header)

    def _do(self, message: ToRank, header: Header) -> None:
        heard, sent = (
            self.heard.setdefault(header.session_id, []),
            self._notebook(header.session_id).sent.get(self.incarnation, []),
        )
        if isinstance(message, StatusRequest):
            said = len(self._said)
            self.messages.notify(StatusReply(self.rank, self.incarnation, "idle", 0.0, None, 1, 0, 0, question=said))
            assert not header.incarnation or len(heard) >= message.question
        else:
            assert isinstance(message, Pull)
            heard.append(message.id)
        assert heard == sent[: len(heard)]  # in order, once, and nothing that was not for another process


class RealWays(Ways):
    """The machine of the streams, with the real ends."""

    notebook_type = RealNotebook
    process_type = RealProcess

    @invariant()
    def nothing_failed(self) -> None:
        """The link logs what fails there, and goes on."""
        for notebook in self._notebooks.values():
            assert isinstance(notebook, RealNotebook)
            assert not notebook.link._faults._known


TestRealWays = RealWays.TestCase
TestRealWays.settings = examples(300, stateful_step_count=50)


class LossyWays(RealWays):
    """Nothing breaks here, so what is lost is noticed by questions only."""

    breaks = False


TestLossyWays = LossyWays.TestCase
TestLossyWays.settings = examples(100, stateful_step_count=50)
