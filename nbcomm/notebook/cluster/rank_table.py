"""What the notebook knows of each rank: its place, its last report, whether it lives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil
from msgspec import structs

from ...node.processes.exit_status import how_it_ended
from ...panel import RankView
from ...panel.words import STOPPED_BECAUSE, on_gpu
from ...protocol import CollectiveState, Done, FromRank, Hello, RankPlacement, Registered, StatusReply
from ...protocol.nodes import key_of
from ...rank_spec import listed, named, said_of, together
from ..output.failures import first_line

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Question:
    """One status request to all living ranks, and which of them have not answered.

    Args:
        number: the request's number.
        ranks: those that are asked.

    Attributes:
        silent: those that live and have answered neither it nor a later one.
    """

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.ranks = list(ranks)
        self.silent = set(self.ranks)
        self._answered = threading.Event()

    def note(self, rank: int) -> None:
        """Note that a rank has answered, or never will."""
        self.silent.discard(rank)
        if not self.silent:
            self._answered.set()

    def wait(self, timeout: float) -> None:
        """Wait until no rank is silent, at most ``timeout`` seconds."""
        if self.silent:
            self._answered.wait(timeout)


class RankTable:
    """The ranks of one world, filled in from other threads as they report.

    Args:
        log_tail: returns the end of a process's log, by its key, of at most so many lines.
    """

    def __init__(self, log_tail: Callable[[str, int], str], without_heal: Callable[[str], str] = lambda _: "") -> None:
        self.places: list[RankPlacement] = []
        self.hellos: dict[int, Hello] = {}
        self.attached: set[int] = set()
        self.dead: dict[int, str] = {}
        """Ranks whose process has ended by itself, and how: "was killed by SIGKILL"."""
        self.registered: dict[int, Registered] = {}
        """What ranks have answered when this notebook has asked them to register as engines."""
        self._log_tail = log_tail
        self._without_heal = without_heal
        self._snapshots: dict[int, StatusReply] = {}
        self._doings: dict[int, tuple[int, CollectiveState]] = {}
        self._heard: dict[int, float] = {}
        self._told: dict[int, int] = {}  # the last request whose answer told what its rank was doing
        self._errors: dict[int, str] = {}
        self._stopped: dict[int, str] = {}  # those whose error only says that others failed, and which, in words
        self.died: dict[int, float] = {}  # when, by `time.time`; 0 is unknown
        self._begun: dict[int, float] = {}  # when the process that has not reported yet was known first
        self._ended: dict[int, tuple[float, float, str]] = {}  # when a cell ended there, by two clocks, and how
        self._question = 0
        self._questions: list[Question] = []  # those whose answers somebody waits for: two at most
        self._changed = threading.Condition()

    @property
    def ranks(self) -> list[int]:
        """All ranks, ascending."""
        return [place.rank for place in self.places]

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each rank."""
        return {place.rank: place.node_rank for place in self.places}

    @property
    def living(self) -> list[int]:
        """The ranks whose process has not ended, ascending."""
        return [rank for rank in self.ranks if rank not in self.dead]

    @property
    def title(self) -> str:
        """The number of ranks, and their device: "4 ranks on cpu"."""
        devices = sorted({place.device.split(":")[0] for place in self.places})
        n = len(self.places)
        return f"{n} rank{'s' if n > 1 else ''} on {' and '.join(devices)}"

    def wait(self, timeout: float) -> None:
        """Wait until a rank reports anything, at most ``timeout`` seconds."""
        with self._changed:
            self._changed.wait(timeout)

    def hear(self, rank: int, message: FromRank) -> None:
        """Record a message of a rank about itself."""
        if isinstance(message, StatusReply):
            self.note(rank, message)
        elif isinstance(message, Hello):
            self.greet(message)
        elif isinstance(message, Registered):
            self.registered[rank] = message

    def greet(self, hello: Hello) -> None:
        """Record a rank's process: it is connected, and perhaps it can run cells."""
        with self._changed:
            self.hellos[hello.rank] = hello
            self._begun.setdefault(hello.rank, time.time())
            if hello.attached:
                self.attached.add(hello.rank)
            self._changed.notify_all()

    @property
    def question(self) -> int:
        """The number of the last status request; a `StatusReply` has the number of the one that it answers."""
        return self._question

    @contextmanager
    def asking(self) -> Iterator[Question]:
        """Give a status request to the living ranks its number, and note its answers until the end of the block."""
        with self._changed:
            self._question += 1
            question = Question(self._question, self.living)
            self._questions.append(question)
        try:
            yield question
        finally:
            with self._changed:
                self._questions.remove(question)

    def note(self, rank: int, snapshot: StatusReply) -> None:
        """Record what a rank reports that it does.

        A report has no place among the answers: it may be older than one that has overtaken it, and then says of a
        rank that has issued more since, and has ended its cell, that it will never come.
        """
        with self._changed:
            if snapshot.answered >= self._told.get(rank, 0):
                self._snapshots[rank] = snapshot
                self._doings[rank] = snapshot.generation, snapshot.doing
                self._heard[rank] = time.monotonic()
            for question in self._questions:
                if question.number <= snapshot.question:
                    question.note(rank)
            self._changed.notify_all()

    def note_doing(self, rank: int, generation: int, done: Done) -> None:
        """Record how far a rank was when its part of a cell ended, if its answer says so."""
        known = self._doings.get(rank)
        if done.doing is None or (known is not None and known[1] is done.doing and known[0] == generation):
            return
        with self._changed:
            self._doings[rank] = generation, done.doing
            self._told[rank] = max(done.id, self._told.get(rank, 0))

    def snapshot(self, rank: int) -> StatusReply | None:
        """Return a rank's last report; None if there is none yet."""
        return self._snapshots.get(rank)

    def doing(self, rank: int, generation: int) -> CollectiveState:
        """Return how far a rank is in a generation, as far as is known."""
        known = self._doings.get(rank)
        return known[1] if known is not None and known[0] == generation else CollectiveState()

    def doings(self, generation: int) -> dict[int, CollectiveState]:
        """Return how far each living rank is in a generation."""
        return {rank: self.doing(rank, generation) for rank in self.living}

    def silent_for(self, ranks: Iterable[int], seconds: float) -> list[int]:
        """Return those of some living ranks that have sent nothing for ``seconds``, though constantly asked."""
        now = time.monotonic()
        return [rank for rank in ranks if rank not in self.dead and now - self._heard.get(rank, now) > seconds]

    def stopped(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks whose processes a signal has stopped; of other machines nothing is known."""
        here, found = socket.gethostname(), []
        for rank in ranks:
            hello = self.hellos.get(rank)
            with suppress(psutil.Error, OSError):
                if hello is not None and hello.host == here and psutil.Process(hello.pid).status() in _STOPPED:
                    found.append(rank)
        return found

    def importing(self, ranks: Iterable[int], run: int) -> dict[int, str]:
        """Return which of some ranks import a library in this request, as they last said, and which."""
        said = ((rank, self._snapshots.get(rank)) for rank in ranks if rank not in self.dead)
        return {rank: it.importing for rank, it in said if it is not None and it.run == run and it.importing}

    def note_death(
        self, rank: int, status: int | None, *, oom: bool = False, why: str = "", at: float | None = None
    ) -> str:
        """Record the end of a rank's process; return it in words, which are ``why`` where that is given.

        ``at`` is when it ended, by `time.time`, and 0 if that is unknown; by default it has just ended.
        """
        with self._changed:
            if at is not None or rank not in self.dead:
                self.died[rank] = time.time() if at is None else at
            self.dead[rank] = why or how_it_ended(status, oom=oom)
            for question in self._questions:
                question.note(rank)
            self._changed.notify_all()
        return self.dead[rank]

    def begin_again(self, ranks: Iterable[int]) -> None:
        """Reset these ranks, before new processes take their places."""
        with self._changed:
            for rank in ranks:
                self.attached.discard(rank)
                self._begun[rank] = time.time()
                for known in (
                    self.dead,
                    self.registered,
                    self._snapshots,
                    self._doings,
                    self._heard,
                    self._told,
                    self._errors,
                    self._stopped,
                    self._ended,
                ):
                    known.pop(rank, None)

    def note_part(self, rank: int, done: Done, culprits: Sequence[int] = ()) -> None:
        """Record how a rank's part of a cell has ended, with one line of its error; earlier reports are past.

        ``culprits`` are those because of whose failure it was stopped, if it has not failed by itself.
        """
        with self._changed:  # once: it is taken for each rank of each cell
            self._errors.pop(rank, None)
            self._stopped.pop(rank, None)
            if done.failure is not None:
                self._errors[rank] = first_line(done.failure)
                if culprits:
                    how = "died" if self.dead.keys() >= {*culprits} else "failed"
                    self._stopped[rank] = f"{STOPPED_BECAUSE}{named(culprits)} {how}"
            state = "interrupted" if done.interrupted else "failed" if done.failure else "idle"
            self._ended[rank] = time.monotonic(), time.time(), state  # as it will say itself when it is asked

    def note_formed(self, ranks: Iterable[int]) -> None:
        """Record that ranks have formed their groups: if their last report says that they start, that is past.

        On a busy machine the next report may come after the panel of a notebook's file was written.
        """
        with self._changed:
            for rank in ranks:
                snapshot = self._snapshots.get(rank)
                if snapshot is not None and snapshot.state == "starting":
                    self._ended[rank] = time.monotonic(), time.time(), "idle"

    def forget_errors(self) -> None:
        """Forget earlier errors: they are repaired, or belong to a cell before the one that begins."""
        with self._changed:
            self._errors.clear()
            self._stopped.clear()

    def dead_among(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks whose process has ended."""
        return [rank for rank in ranks if rank in self.dead]

    def views(self, parted: tuple[float, str] | None = None) -> list[RankView]:
        """Return the panel's rows, in rank order; ``parted`` is when the world was left or stopped, and which."""
        return [self._view(place, parted) for place in self.places]

    def _view(self, place: RankPlacement, parted: tuple[float, str] | None) -> RankView:
        hello, snapshot = self.hellos[place.rank], self._snapshots.get(place.rank)
        heard, since, how = self._ended.get(place.rank, (0.0, 0.0, ""))
        if snapshot is not None and heard > self._heard.get(place.rank, 0.0):  # it may have been reset just now
            snapshot = structs.replace(snapshot, state=how, since=since)
        elif snapshot is not None and 0 < (snapshot.run or 0) <= self._told.get(place.rank, 0):
            # It is from before the rank's answer, and no later one has come. What was no cell leaves the state alone.
            snapshot = structs.replace(snapshot, state=how or "idle", since=since or snapshot.since)
        if snapshot is not None:
            state, note, since = snapshot.state, "", snapshot.since
        else:  # a process that is new has not said anything yet
            state, note = ("idle" if place.rank in self.attached else "starting"), ""
            since = self._begun.get(place.rank, 0.0)
        if state in ("failed", "interrupted") and place.rank not in self._errors:
            state = "idle"  # the failure was in a cell before the last one: it has done nothing since
        end = self.dead.get(place.rank)
        ended = (self.died[place.rank], end) if end is not None else parted
        if ended is not None:
            state, (since, note) = "dead", ended
        elif snapshot is not None and state == "running" and snapshot.doing.waits:
            (op, *_) = snapshot.doing.waits
            state, note, since = "waiting", op.called(op.name), min(op.since for op in snapshot.doing.waits)
        elif state == "failed" and place.rank in self._stopped:
            state, note = "interrupted", self._stopped[place.rank]
        figures = snapshot if ended is None else None  # they would be those of a process that is no more
        return RankView(
            rank=place.rank,
            local_rank=place.local_rank,
            node_rank=place.node_rank,
            host=hello.host,
            device=place.device,
            pid=hello.pid,
            state=state,
            since=since,
            memory=figures.memory if figures else 0,
            pss=figures is not None and figures.pss,
            device_memory=figures.device_memory if figures else 0,
            device_total=figures.device_total if figures else 0,
            on_gpu=self._on_gpu(place, figures) if figures and figures.device_name else "",
            note=note,
            error="" if note else self._errors.get(place.rank, ""),  # the note says it, or is news of a later cell
        )

    def _on_gpu(self, place: RankPlacement, figures: StatusReply) -> str:
        places = self.places if place.sharing > 1 else []
        here = place.node_rank, place.device
        others = [other.rank for other in places if (other.node_rank, other.device) == here and other is not place]
        return on_gpu(figures.device_name, figures.allocated, figures.reserved, others)

    def without_heal(self, rank: int) -> str:
        """Return why a dead rank cannot be replaced, and what to do, in sentences; empty where it can be."""
        return self._without_heal(key_of(rank))

    def log(self, rank: int, lines: int = 40) -> str:
        """Return the end of a rank's log: what its engine logged, and what it last wrote to descriptor 2."""
        return self._log_tail(key_of(rank), lines)


def imports_of(importing: Mapping[int, str]) -> str:
    """Describe what ranks import, those that import the same together.

    >>> imports_of({0: "sympy", 1: "pandas", 2: "sympy"})
    'ranks 0,2 are importing sympy and rank 1 is importing pandas'
    """
    alike = together([*importing], [*importing.values()])
    return listed([said_of(who, f"is importing {what}") for what, who in alike.items()])
