"""A notebook, three ranks and a daemon, in a way between them that breaks: what is sent arrives once, and in order.

The machine is played with the streams alone (`test_streams`), and with the classes that use them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nbcomm.protocol.streams import Header, NotebookStream, Outgoing, RankStream

RANKS = (0, 1, 2)


def nothing_is_left(out: Outgoing) -> bool:
    """Whether it keeps no message, and knows that."""
    return not (out._kept or out._passing or out._gaps or out._output)


def may_hear(owed: list[int], heard: list[int], dropped: set[int]) -> list[int]:
    """Return what is to be heard of what is owed: what was dropped for lack of room may have come before that."""
    return [number for number in owed if number in heard or number not in dropped]


class Message(NamedTuple):
    """What is under way; a report of the daemon has no header. ``behind``: so many were said before it."""

    rank: int
    what: str
    header: Header | None = None
    text: Any = None
    behind: int = 0


Way = deque[Message]


class Notebook:
    """It uses its streams as `launch.link` does, and notes what it says to each process and hears of it.

    Attributes:
        sent: what was said to each process that it has met, by incarnation; so is ``heard``.
        to: what was said to the present process of each rank, or to its first if there is none yet.
        incarnations: the present processes, as the daemon tells.
    """

    def __init__(self, session_id: int, process: Callable[[int], Process]) -> None:
        self.session_id = session_id
        self.acknowledged = 0
        self.streams = {rank: NotebookStream(session_id) for rank in RANKS}
        self.sent: dict[int, list[int]] = {}
        self.heard: dict[int, list[int]] = {}
        self._process = process
        self.to: dict[int, list[int]] = {rank: [] for rank in RANKS}
        self.incarnations: dict[int, int] = {}
        self._notifications: list[tuple[int, str]] = []
        self._due: set[int] = set()
        self._count = itertools.count(session_id * 1000)

    def send(self, rank: int) -> None:
        text = next(self._count)
        self.streams[rank].out.add([text])
        self.to[rank].append(text)
        self._due.add(rank)

    @property
    def wants_to_speak(self) -> bool:
        return bool(self._notifications or self._due)

    def ask(self) -> None:
        self._notifications += [(rank, "question") for rank in RANKS]

    def turn(self) -> Iterator[Message]:
        due, self._due = self._due, set()
        for rank in sorted(due):
            stream = self.streams[rank]
            for sent in stream.out.take() if stream.known else ():
                yield Message(rank, "message", stream.header(sent, self.acknowledged), sent.frames[0])
        notifications, self._notifications = self._notifications, []
        for rank, what in notifications:
            yield Message(
                rank, what, self.streams[rank].header(acknowledged=self.acknowledged), behind=len(self.to[rank])
            )

    def hear(self, message: Message) -> None:
        rank, header = message.rank, message.header
        if header is None:
            self._hear_daemon(rank, message.what, message.text)
            return
        stream = self.streams[rank]
        if message.what.startswith("hello"):
            out = stream.out
            if stream.meet(header):
                self.to[rank] = self.to[rank] if stream.out is out else []
                self.sent[header.incarnation] = self.to[rank]
                self._due.add(rank)
                if message.what == "hello, greet me" or header.session_id != self.session_id:
                    self._notifications.append((rank, "greet"))
            return
        lacked = stream.lacking
        accepted = stream.accepts(header)
        if stream.lacking and not (lacked and header.number):
            self._notifications.append((rank, "greet"))
        if accepted:
            self.take(header.incarnation, message.text if header.number else None, message.behind)

    def take(self, incarnation: int, text: int | None, behind: int = 0) -> None:
        """Note what a process says, or that it speaks behind what it has said before."""
        heard, process = self.heard.setdefault(incarnation, []), self._process(incarnation)
        owed = process.owed(self.session_id)
        if text is not None and text > 0:
            heard.append(text)
        elif text is not None:
            assert process.dropped  # a gap
        assert heard == may_hear(owed, heard, process.dropped)[: len(heard)]  # in order, once, and only what is for it
        assert heard[-1:] >= [n for n in owed if n <= behind and n not in process.dropped][-1:]

    def _hear_daemon(self, rank: int, what: str, incarnation: int) -> None:
        if what == "daemon":
            self._notifications += [(each, "greet, say hello") for each in RANKS]
        elif what == "started":
            self.incarnations[rank] = incarnation
        elif self.incarnations.get(rank) == incarnation:
            del self.incarnations[rank]
            self.streams[rank].end()
            self.to[rank] = []


def gap(run: int) -> list[bytes]:
    return [(-1 - run).to_bytes(4, "big", signed=True)]


class Watched(Outgoing):
    """It tells which message is dropped for lack of room, before that is done."""

    def __init__(self, most: float, most_unheard: float, drops: Callable[[int], None]) -> None:
        super().__init__(most, gap, most_unheard)
        self._drops = drops

    def _drop_oldest(self) -> bool:
        number = next(number for number, kept in self._kept.items() if kept.droppable)
        size = self._kept[number].size
        if not super()._drop_oldest():
            return False
        self._output += size
        self._drops(number)
        self._output -= size
        return True


class Process:
    """It uses its stream as `rank.messages` does, and notes what it says, and hears of each notebook, by session id.

    Attributes:
        dropped: what was dropped for lack of room.
        most: bytes of output that it keeps; a message has four.
        most_unheard: the same for a notebook that is there.
    """

    most = most_unheard = float("inf")

    def __init__(self, rank: int, incarnation: int, notebook: Callable[[int], Notebook]) -> None:
        self.rank = rank
        self.incarnation = incarnation
        self.lives = True
        self.out = Watched(self.most, self.most_unheard, self._drops)
        self.stream = RankStream(incarnation, self.out)
        self.heard: dict[int, list[int]] = {}
        self.dropped: set[int] = set()
        self._notebook = notebook
        self._said: list[int] = []  # of each message the cell, or 0
        self._past: dict[int, tuple[list[int], int]] = {}  # what a notebook must hear from before it came
        self._noted = 0
        self._notifications: list[str] = []
        self._greeted = False

    def say(self, run: int) -> None:
        self._said.append(run)
        number = len(self._said)
        self.out.add([number.to_bytes(4, "big")], run, output=number % 4 != 0)

    def _drops(self, number: int) -> None:
        """Note that a message is dropped: none that a notebook which is there is still to hear, unless it is slow."""
        self.dropped.add(number)
        if self.out.live and number not in self._notebook(self.stream.session_id).heard.get(self.incarnation, []):
            assert self.out._output > self.most_unheard
            assert number <= self.out.last

    def owed(self, session_id: int) -> list[int]:
        """Return the numbers of all that this notebook must hear."""
        past, since = self._past.get(session_id, ([], len(self._said)))
        return past + list(range(since + 1, len(self._said) + 1))

    @property
    def wants_to_speak(self) -> bool:
        return bool(self._notifications or (self._greeted and self.stream.out.newest > self.stream.out.last))

    def connect(self) -> None:
        self._greeted = False
        self._notifications.append("hello, greet me")

    def turn(self, *, connected: bool) -> Iterator[Message]:
        self.stream.out.live = self._greeted and connected
        if self._greeted and connected:
            for sent in self.stream.out.take():
                text = int.from_bytes(sent.frames[0], "big", signed=True)
                yield Message(self.rank, "message", self.stream.header(sent), text)
        notifications, self._notifications = self._notifications, []
        for what in notifications if connected else ():
            yield Message(self.rank, what, self.stream.header(), behind=len(self._said))

    def hear(self, message: Message) -> None:
        header, stream = message.header, self.stream
        assert header is not None
        past = self._past_runs()
        is_new = stream.is_new(header)
        lacked = stream.lacking
        if is_new:
            self._past[header.session_id] = past, len(self._said)
            self._greeted = False
        if message.what.startswith("greet"):
            self._greeted = stream.greet(header) or self._greeted
            if message.what == "greet, say hello" or not self._greeted:
                self._notifications.append("hello" if self._greeted else "hello, greet me")
        else:
            accepted = stream.accepts(header)
            if is_new:
                self._notifications.append("hello, greet me")
            elif stream.lacking and not (lacked and header.number):
                self._notifications.append("hello")
            if accepted:
                self._take(message, header)
        self._note(header)

    def _past_runs(self) -> list[int]:
        """Return what a notebook that comes now must hear of what was said before."""
        acknowledged = self.stream.acknowledged
        return [n for n, run in enumerate(self._said, 1) if run > acknowledged or (run and n > self._noted)]

    def _note(self, header: Header) -> None:
        if (header.session_id, header.incarnation) == (self.stream.session_id, self.incarnation):
            self._noted = max(self._noted, header.heard)

    def _take(self, message: Message, header: Header) -> None:
        heard, sent = (
            self.heard.setdefault(header.session_id, []),
            self._notebook(header.session_id).sent.get(self.incarnation, []),
        )
        if message.what == "question":
            self._notifications.append("answer")
            assert not header.incarnation or len(heard) >= message.behind
        else:
            heard.append(message.text)
        assert heard == sent[: len(heard)]  # in order, once, and nothing that was for another process


SOME = st.sets(st.sampled_from(RANKS), min_size=1)


class Ways(RuleBasedStateMachine):
    """A notebook, three ranks and a daemon that loses, repeats and delays; all of them may be replaced at any time.

    Attributes:
        breaks: whether they are replaced, and connections break; else single messages are lost or come again.
    """

    breaks: ClassVar[bool] = True
    notebook_type: ClassVar[type[Notebook]] = Notebook
    process_type: ClassVar[type[Process]] = Process

    def __init__(self) -> None:
        super().__init__()
        self._notebooks: dict[int, Notebook] = {}
        self._by_incarnation: dict[int, Process] = {}
        self._ranks: dict[int, Process] = {}
        self._link: tuple[Way, Way] | None = None  # to the notebook, and from it
        self._ends: dict[int, tuple[Way, Way]] = {}  # from the rank, and to it
        self._late: list[tuple[bool, Message]] = []  # of connections that are gone, and whether it is for the notebook
        self._run = 1

    @initialize()
    def begin(self) -> None:
        self.another_notebook_comes()
        for rank in RANKS:
            self._start(rank)
        self._come_to_rest()

    # ── what is said ──

    @rule(ranks=SOME, times=st.integers(1, 3))
    def notebook_says(self, ranks: set[int], times: int) -> None:
        for rank in sorted(ranks) * times:
            self._notebook.send(rank)
        self._turn()

    @rule(ranks=SOME, runs=st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=4))
    def ranks_say(self, ranks: set[int], runs: list[int | None]) -> None:
        for rank in sorted(ranks):
            if self._ranks[rank].lives:
                for back in runs:
                    self._ranks[rank].say(0 if back is None else max(1, self._run - back))
                self._rank_turns(rank)

    @rule(back=st.integers(0, 2))
    def next_cell_begins_and_an_earlier_is_acknowledged(self, back: int) -> None:
        self._notebook.acknowledged = max(self._notebook.acknowledged, self._run - back)
        self._run += 1

    @rule()
    def notebook_asks(self) -> None:
        self._notebook.ask()
        self._turn()

    # ── what moves ──

    @rule(moves=st.lists(st.integers(0, 100), min_size=1, max_size=15))
    def some_of_it_moves(self, moves: list[int]) -> None:
        for move in moves:
            places = self._places()
            if places:
                places[move % len(places)]()

    @rule()
    def all_of_it_moves(self) -> None:
        self._come_to_rest()

    def _places(self) -> list[Callable[[], None]]:
        """Return what could happen next if nothing broke."""
        places: list[Callable[[], None]] = []
        if self._link is None:
            places.append(self._make_link)
        else:
            if self._notebook.wants_to_speak:
                places.append(self._turn)
            if self._link[0]:
                places.append(self._arrive)
            if self._link[1]:
                places.append(self._relay)
        for rank, process in self._ranks.items():
            if not process.lives:
                places.append(partial(self._start, rank))
            elif rank not in self._ends:
                places.append(partial(self._connect, rank))
            else:
                if process.wants_to_speak:
                    places.append(partial(self._rank_turns, rank))
                places += [partial(self._up, rank)] * bool(self._ends[rank][0])
                places += [partial(self._down, rank)] * bool(self._ends[rank][1])
        return places

    def _come_to_rest(self) -> None:
        for _ in range(2000):
            places = self._places()
            if not places:
                return
            places[0]()
        raise AssertionError("They never stop to talk.")

    def _make_link(self) -> None:
        self._link = deque(), deque()
        self._report(Message(-1, "daemon"))
        for rank, process in self._ranks.items():
            self._report(Message(rank, "started", text=process.incarnation))
            if not process.lives:
                self._report(Message(rank, "ended", text=process.incarnation))

    def _turn(self) -> None:
        messages = list(self._notebook.turn())
        if self._link is not None:
            self._link[1].extend(messages)

    def _arrive(self) -> None:
        if self._link is not None:
            self._notebook.hear(self._link[0].popleft())

    def _relay(self) -> None:
        if self._link is not None:
            message = self._link[1].popleft()
            if message.rank in self._ends:
                self._ends[message.rank][1].append(message)

    def _report(self, message: Message) -> None:
        if self._link is not None:
            self._link[0].append(message)

    def _connect(self, rank: int) -> None:
        self._ends[rank] = deque(), deque()
        self._ranks[rank].connect()

    def _rank_turns(self, rank: int) -> None:
        messages = list(self._ranks[rank].turn(connected=rank in self._ends))
        if rank in self._ends:
            self._ends[rank][0].extend(messages)

    def _up(self, rank: int) -> None:
        self._report(self._ends[rank][0].popleft())

    def _down(self, rank: int) -> None:
        self._ranks[rank].hear(self._ends[rank][1].popleft())

    # ── what breaks ──

    @rule(which=st.integers(0, 1000), repeats=st.booleans())
    def one_is_lost_or_comes_again_later(self, which: int, *, repeats: bool) -> None:
        ways = [(True, up) for up, _ in self._ends.values()] + [(False, down) for _, down in self._ends.values()]
        ways += [] if self._link is None else [(True, self._link[0]), (False, self._link[1])]
        there = [(up, way, at) for up, way in ways for at, message in enumerate(way) if message.header is not None]
        if there:
            up, way, at = there[which % len(there)]
            if repeats:
                self._late.append((up, way[at]))
            else:
                del way[at]

    @precondition(lambda self: self._late)
    @rule(those=st.lists(st.integers(0, 1000), min_size=1, max_size=10))
    def some_come_late(self, those: list[int]) -> None:
        for which in those[: len(self._late)]:
            up, message = self._late.pop(which % len(self._late))
            process = self._ranks[message.rank]
            assert message.header is not None
            if not up and process.lives:
                process.hear(message)
            elif up and message.header.incarnation in {
                self._notebook.incarnations.get(message.rank),
                *self._notebook.sent,
            }:
                # What a process says comes behind its start, and its last words before its end, whatever the way.
                self._notebook.hear(message)

    @precondition(lambda self: self.breaks)
    @rule(ranks=SOME, link=st.booleans())
    def connections_break(self, ranks: set[int], *, link: bool) -> None:
        if link:
            self._break_link()
        for rank in ranks:
            self._break_end(rank)

    def _break_link(self) -> None:
        if self._link is not None:
            self._late += [(True, message) for message in self._link[0] if message.header is not None]
            self._late += [(False, message) for message in self._link[1]]
            self._link = None

    def _break_end(self, rank: int) -> None:
        up, down = self._ends.pop(rank, ((), ()))
        self._late += [(True, message) for message in up] + [(False, message) for message in down]
        for _ in up:  # while it is not connected, the rank forgets what may be lost
            list(self._ranks[rank].turn(connected=False))

    @precondition(lambda self: self.breaks)
    @rule()
    def daemon_dies(self) -> None:
        self.connections_break(set(RANKS), link=True)

    @precondition(lambda self: self.breaks)
    @rule(ranks=SOME, replaced=st.booleans())
    def ranks_die(self, ranks: set[int], *, replaced: bool) -> None:
        for rank in sorted(ranks):
            if self._ranks[rank].lives:
                while rank in self._ends and self._ends[rank][0]:
                    self._up(rank)
                self._break_end(rank)
                self._ranks[rank].lives = False
                self._report(Message(rank, "ended", text=self._ranks[rank].incarnation))
                if replaced:
                    self._start(rank)

    @precondition(lambda self: self.breaks)
    @rule()
    def another_notebook_comes(self) -> None:
        self._break_link()
        session_id = len(self._notebooks) + 1
        self._notebooks[session_id] = self.notebook_type(session_id, self._by_incarnation.__getitem__)

    @property
    def _notebook(self) -> Notebook:
        return self._notebooks[len(self._notebooks)]

    def _start(self, rank: int) -> None:
        incarnation = len(self._by_incarnation) + 1
        process = self.process_type(rank, incarnation, self._notebooks.__getitem__)
        self._ranks[rank] = self._by_incarnation[incarnation] = process
        self._report(Message(rank, "started", text=incarnation))

    # ── what is left in the end ──

    @rule()
    def nothing_breaks_any_more(self) -> None:
        """A loss without a break needs a question to be noticed; one behind it needs another to be answered."""
        self._come_to_rest()
        for _ in range(2):
            self._notebook.ask()
            self._come_to_rest()
        self._all_is_heard()
        self._all_is_forgotten()

    @precondition(lambda self: self.breaks)
    @rule()
    def nothing_breaks_after_the_daemon(self) -> None:
        """After a break, no question is needed."""
        self.daemon_dies()
        self._come_to_rest()
        self._all_is_heard()

    @precondition(lambda self: self.breaks)
    @rule()
    def nothing_breaks_after_the_link(self) -> None:
        self._break_link()
        self._come_to_rest()
        self._all_is_heard()

    def _all_is_heard(self) -> None:
        notebook = self._notebook
        for rank, process in self._ranks.items():
            assert process.heard.get(notebook.session_id, []) == notebook.sent[process.incarnation]
            assert notebook.sent[process.incarnation] is notebook.to[rank]
            heard = notebook.heard.get(process.incarnation, [])
            assert heard == may_hear(process.owed(notebook.session_id), heard, process.dropped)

    def _all_is_forgotten(self) -> None:
        notebook = self._notebook
        notebook.acknowledged = self._run
        notebook.ask()
        self._come_to_rest()
        for rank, process in self._ranks.items():
            for stream in (notebook.streams[rank], process.stream):
                assert nothing_is_left(stream.out)
                assert not stream.lacking

    def teardown(self) -> None:
        if self._notebooks:
            self.nothing_breaks_any_more()
