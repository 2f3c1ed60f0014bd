"""What this rank is doing about the others: which calls it has issued, and which one it waits for.

Written by whoever calls a collective, read by the agent's thread while the main thread may be stuck. The calls
are few and must cost next to nothing: a counter, and one entry that lives as long as torch's handle does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch

from ...protocol import CollectiveState, MessageCount, PendingCall
from ..output.capture import NOBODY, run_of_thread
from . import call_site
from .any_source import AnyoneReceive
from .journal import Journal
from .recorded_call import Log, RecordedCall
from .stacks import is_timer_of, may_join, of_all_threads

_TORCH = torch.__path__[0]
_STILL = 0.15
"""Seconds without a step, inside torch, after which the main thread counts as waiting for what is under way."""

_MANY = 32
"""Handles that are kept before those that have ended are let go."""

_NEW_GROUP = "new_group"

_SILENT = "reduce_scatter_tensor"
"""Gloo tells of its end only whoever waits for it."""

_FIRST, _SLICED = (timedelta(seconds=0.01),), (timedelta(seconds=0.5),)
_NOT_YET = "Operation timed out"
"""What torch says when a slice of a wait is over."""

_GRACE, _TICK = 0.5, 0.002
"""Seconds in which a call whose connections were shut has failed, unless gloo has forgotten it; and between looks."""


class FlightRecorder:
    """What this process has issued and waits for.

    Args:
        scope: the namespace of the cells; a frame whose globals it is belongs to a cell.
        explain: what to raise in place of an error of torch's.
    """

    def __init__(
        self,
        scope: Callable[[], dict[str, Any] | None] = lambda: None,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self.scope = scope
        self._explain = explain
        self.journal = Journal(scope)
        self.main = threading.main_thread().ident
        self._logs: dict[str, Log] = {}
        self._formed: dict[str, int] = {}
        self._live: dict[int, tuple[Any, RecordedCall]] = {}
        self._enough = _MANY
        self._waiting: list[tuple[Any, bool]] = []
        self._beside: dict[int, list[tuple[Any, bool]]] = {}
        self._elsewhere: dict[int, list[tuple[Any, bool]]] = {}
        self._issuing: set[int] = set()
        self._lent: int | None = None
        self.run: int | None = None
        """The present request; None while threads of all cells count as those of earlier ones."""
        self.apart: dict[int, threading.Thread] = {}
        """Threads that run a user's code, but can issue nothing, by their idents; ask `is_apart`."""
        self.busy_beside = False
        """Whether anything goes on beside the cell, in an order that other calls must keep."""
        self._inside: RecordedCall | None = None
        self._last: RecordedCall | None = None
        self._lost: RecordedCall | None = None
        self._meetings = Log(_NEW_GROUP, [])
        self._left = False
        self._still: tuple[Any, float] = (None, 0.0)
        self.aborted = 0.0
        """When the present generation was aborted, by `time.monotonic`; 0 while it lives."""

    # ── written by whoever calls ────────────────────────────────────────────────────────────────────

    def begin_group(self, name: str, members: list[int], timeout: timedelta | None = None) -> Log:
        """A group is formed, or formed anew: its calls are counted from 1."""
        self._formed[name] = self.formed(name) + 1
        log = self._logs[name] = Log(name, members, timeout)
        return log

    def formed(self, name: str) -> int:
        """How often a group of this name has been formed in this generation."""
        return self._formed.get(name, 0)

    def forget(self) -> None:
        """All groups are about to be formed anew."""
        self._formed.clear()
        self._logs.clear()
        self._live.clear()
        self._meetings = Log(_NEW_GROUP, [])
        self._left = False

    def settle(self) -> None:
        """A cell begins: whatever an interrupt left behind is no wait of this one."""
        self._waiting.clear()
        self._elsewhere = {ident: waits for ident, waits in list(self._elsewhere.items()) if waits}
        self._inside = self._last = self._lost = self._lent = None

    @contextmanager
    def within(self, call: RecordedCall) -> Iterator[None]:
        """While torch's own method runs; few of them block, but they do so in C++."""
        before, self._inside = self._inside, call
        try:
            yield
        finally:
            self._inside = before

    def follow(self, work: Any, call: RecordedCall, *, failed: bool = False) -> None:
        """Keep what a handle stands for until it is waited for, or has ended.

        The handle itself is kept: C++ often holds no more than its future.
        """
        self._last = call
        self.journal.follow(call, failed=failed)
        if work is not None:
            self._live[id(work)] = (work, call)
            if len(self._live) > self._enough:
                self.tidy()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """While a call that lost its connection waits to hear why."""
        self._lost = self._last or self._inside
        try:
            yield
        finally:
            self._lost = None

    def tidy(self) -> None:
        """Let go of what has ended: a handle keeps its tensors."""
        unheld = self._unheld()
        for key, (work, _) in list(self._live.items()):
            if key in unheld or work.is_completed():
                self._end(key)
        self._enough = max(_MANY, 2 * len(self._live))  # or each call would ask all those that go on

    def going(self) -> set[str]:
        """The groups of which a call is under way."""
        return {call.log.name for call in self._under_way()}

    def _under_way(self) -> list[RecordedCall]:
        unheld = self._unheld()
        return [call for key, (work, call) in list(self._live.items()) if key not in unheld and not work.is_completed()]

    def _unheld(self) -> set[int]:
        """Works that say that they go on, and that nobody holds any more: C++ has waited for them (`wait_tensor`)."""
        silent = {key: held for key, held in list(self._live.items()) if held[1].name == _SILENT}
        return {key for key, holders in _holders(silent).items() if holders <= _ALONE} if silent else set()

    def close_journal(self) -> None:
        """A cell has ended: what C++ waited for has ended too, it is only not known when."""
        for work, call in list(self._live.values()):
            if call.entry is not None and call.entry.drawn is not None and work.is_completed():
                self.journal.finish(call.entry)

    def _end(self, key: int) -> None:
        """A handle has ended; of a receive from anyone it is known now from whom."""
        work, call = self._live.pop(key, (None, None))
        if work is None or call is None or call.kind != "recv" or call.peer is not None:
            return
        if isinstance(work, AnyoneReceive):  # it has counted by itself, when it found the sender
            return
        with suppress(RuntimeError):  # it failed, so it came from nobody
            source, received = call.log.members[work._source_rank()], call.log.received  # noqa: SLF001
            with call.log.lock:
                received[None, call.tag] -= 1
                received[source, call.tag] = received.get((source, call.tag), 0) + 1

    def wait(self, wait: Callable[..., Any], work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wait for a handle, and be seen to; in place of a lost connection, raise the reason.

        A collective of gloo is waited for in slices. A send that fails while gloo answers the other end is forgotten by
        gloo: nobody is told, and whoever waits for it waits until its time is over. That happens once in thousands of
        aborts, so now and then it is looked up whether there was one long ago. And whoever is still there after the
        first slice tells the others what its cell called, for they may do something else; if all goes well, it costs
        nothing.
        """
        limited = bool(args or kwargs)
        known, sliced = self._live.get(id(work)), False
        if known is not None and not limited and (patience := known[1].log.timeout) is not None:
            sliced = known[1].kind == "collective"
            # A message is given its time here, or gloo would take that which it had to connect.
            args = _FIRST if sliced else (patience,)
        ident = threading.get_ident()
        waiting = self._waiting if ident == self.main else self._waiting_in(ident)
        waiting.append((work, limited))
        if known is not None and known[1].entry is not None:
            known[1].entry.asked = known[1].entry.asked or time.time()  # until then the rank did its own work
        try:
            while True:
                try:
                    result = wait(work, *args, **kwargs)
                    break
                except RuntimeError as error:
                    if not sliced or _NOT_YET not in str(error):
                        raise self._explain(error) from None
                if known is not None:
                    self._go_on(known[1], first=args is _FIRST)
                args = _SLICED
        finally:
            if waiting:
                waiting.pop()
        if known is not None and known[1].entry is not None:
            self._note_end(known[1].entry)
        self._end(id(work))
        return result

    def _waiting_in(self, ident: int) -> list[tuple[Any, bool]]:
        """What a thread that is not the main one waits for."""
        ours = self._beside.get(ident)
        return self._elsewhere.setdefault(ident, []) if ours is None else ours

    def _go_on(self, call: RecordedCall, *, first: bool) -> None:
        """A slice of a wait is over."""
        if first and call.where is None:  # else it was begun earlier, and told then
            call.tell_place(self.scope())
        if self.aborted and time.monotonic() - self.aborted > _GRACE:
            call.log.stuck = True
            raise self._explain(RuntimeError("The connection was closed, but gloo did not notice it."))

    def _note_end(self, entry: Any) -> None:
        entry.end()
        self.journal.finish(entry)

    @contextmanager
    def beside(self, *, issues: bool) -> Iterator[None]:
        """While the calling thread carries on what a cell has begun, and perhaps issues more calls for it."""
        ident = threading.get_ident()
        self._beside[ident] = []
        if issues:
            self._issuing.add(ident)
        try:
            with self.journal.carrying():
                yield
        finally:
            self._issuing.discard(ident)
            del self._beside[ident]

    def of_earlier(self) -> bool:
        """Whether the calling thread works for an earlier cell than the present one."""
        return threading.get_ident() != self.main and run_of_thread() not in (None, NOBODY, self.run)

    def said(self) -> call_site.Said:
        """What the cell has called that is about to go on beside it."""
        return call_site.here(self.scope())

    def look_beside(self, *, busy: bool) -> None:
        """Whether anything goes on beside the cell has changed."""
        self.busy_beside = busy

    @staticmethod
    def carrying(said: call_site.Said) -> AbstractContextManager[None]:
        """While the calling thread carries out what a cell called before."""
        return call_site.carrying(said)

    @contextmanager
    def waiting_for(self, thread: int | None) -> Iterator[None]:
        """While the calling thread waits for one that carries on what a cell has begun."""
        if threading.get_ident() != self.main:
            yield
            return
        before, self._lent = self._lent, thread
        self.journal.wait_for(thread)
        try:
            yield
        finally:
            self._lent = before
            self.journal.wait_for(before)

    def await_ends(self) -> None:
        """Connections are shut: wait until all collectives have failed; what has not by then is stuck in gloo."""
        deadline = time.monotonic() + _GRACE
        for work, call in list(self._live.values()):
            if call.kind != "collective":  # of these gloo does not tell
                continue
            while not work.is_completed() and time.monotonic() < deadline:
                time.sleep(_TICK)
            call.log.stuck |= not work.is_completed()

    @property
    def meetings(self) -> int:
        """How many groups all ranks have begun to make."""
        return self._meetings.issued

    @contextmanager
    def meeting(self, members: list[int], *, counted: bool) -> Iterator[int]:
        """While a group is made; ``counted`` where every rank of the world takes part in the making."""
        log = self._meetings
        if counted:
            log.issued, self._left = next(log.positions), False
        call = RecordedCall("collective", _NEW_GROUP, Log(_NEW_GROUP, members), log.issued, None)
        call.limited = not counted
        try:
            with self.within(call):
                yield log.issued
        except BaseException:
            self._left |= counted  # for those that wait there, who leaves with an error has never come
            raise

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While the main thread stands still for a person, in whatever call: it waits for no rank meanwhile."""
        before = self._inside, self._waiting, self._lent
        self._inside, self._waiting, self._lent = None, [], None
        try:
            yield
        finally:
            self._inside, self._waiting, self._lent = before

    # ── read by the agent's thread ──────────────────────────────────────────────────────────────────

    def blocked(self) -> bool:
        """Whether the main thread waits for other ranks; within C++ that shows when it is asked repeatedly."""
        with of_all_threads() as frames:
            return bool(self._waits(frames.get(self.main or 0)))

    def doing(self) -> CollectiveState:
        """Tell it all; ask often enough, and it tells from two answers that nothing moved in between.

        The order matters to whoever judges: first whether the main thread is stuck, then which threads there are,
        then the counts. What comes between them can only make the world look livelier than it is.
        """
        with of_all_threads() as frames:
            main = frames.get(self.main or 0)
            scope, lost = self.scope(), self._lost
            line, lent = call_site.line_at(main, scope), self._lent
            asked = call_site.of_frame(main, scope) if lent is None else call_site.carried(lent)
            stuck = [lost] if lost else self._waits(main)
            joins = may_join(main)
        with of_all_threads() as frames:
            threads = self._threads(frames)
            beside = self._waits_elsewhere(frames) if joins else []
        logs = list(self._logs.values())
        issued = {log.name: log.issued for log in logs}
        if self._meetings.issued:
            issued[_NEW_GROUP] = self._meetings.issued - self._left
        sent: list[MessageCount] = []
        received: list[MessageCount] = []
        for log in logs:
            with log.lock:
                sent += [MessageCount(log.name, *key, number) for key, number in log.sent.items()]
                received += [MessageCount(log.name, *key, number) for key, number in log.received.items() if number]
        # In words at last: a receive from anyone that finds its sender now is one by name, which the counts allow for.
        waits = [_op(call, line, call.where or asked, lost=call is lost) for call in stuck]
        return CollectiveState(issued, sent, received, waits, line, threads, beside)

    def _waits(self, main: FrameType | None) -> list[RecordedCall]:
        lent = self._lent
        waiting = self._waiting if lent is None else self._beside.get(lent, ())
        awaited = self._awaited(waiting)
        if awaited or lent is not None:  # between two waits the other thread is free
            return awaited
        if self._inside is not None:
            return [self._inside]
        # In C++ that torch entered by itself (backward, wait_tensor) it is not known what is waited for. But a main
        # thread that stands still within torch, while calls are under way, waits for one of them.
        if main is None or not self._live or not main.f_code.co_filename.startswith(_TORCH):
            self._still = (None, 0.0)
            return []
        spent = _cpu_seconds(self.main)
        place = (id(main), main.f_lasti, spent)
        now = time.monotonic()
        if place != self._still[0]:
            self._still = (place, now)
            return []
        if now - self._still[1] < _STILL:
            return []
        return self._under_way()

    def _awaited(self, waiting: Sequence[tuple[Any, bool]]) -> list[RecordedCall]:
        try:
            work, limited = waiting[-1]
        except IndexError:
            return []
        found = self._live.get(id(work))
        if found is None or work.is_completed():
            return []
        found[1].limited = limited
        return [found[1]]

    def _waits_elsewhere(self, frames: dict[int, FrameType]) -> list[PendingCall]:
        """What threads of the user's wait in."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        scope, told = self.scope(), []
        for ident, waiting in list(self._elsewhere.items()):
            frame = frames.get(ident)
            for call in self._awaited(waiting) if frame is not None else ():
                line, where = call_site.line_at(frame, scope), call.where or call_site.of_frame(frame, scope)
                told.append(_op(call, line, where, lost=False, thread=names.get(ident, "")))
        return told

    def is_apart(self, ident: int) -> bool:
        """Return whether the thread with this ident runs a user's code, but can issue nothing."""
        thread = self.apart.get(ident)
        return thread is not None and thread.is_alive()  # a thread that was ended may have left it to another

    def _threads(self, frames: dict[int, FrameType]) -> int:
        scope = self.scope()
        count = len(self._issuing - {self._lent})  # they may issue more, as long as they go on
        for ident, top in frames.items():
            frame: FrameType | None = top if ident != self.main and not self.is_apart(ident) else None
            while frame is not None and frame.f_globals is not scope and not is_timer_of(frame, scope):
                frame = frame.f_back
            count += frame is not None
        return count


def _holders(live: dict[int, tuple[Any, Any]]) -> dict[int, int]:
    return {key: sys.getrefcount(work) for key, (work, _) in list(live.items())}


_ALONE = _holders({0: (object(), None)})[0]
"""What is counted where nobody but that dict holds a work: torch holds it by Python's count, too."""


def _op(call: RecordedCall, line: str, where: call_site.Said, *, lost: bool, thread: str = "") -> PendingCall:
    # "all_reduce(float32 (3,), sum)", or "send of float32 (3,)"
    words = call.said.words if call.said is not None else ""
    collective = call.kind == "collective"
    words = words.partition("(")[2].removesuffix(")") if collective else words.partition(" of ")[2]
    name, what = call_site.of_call(call.name, words, where, arrives=call.kind == "recv")
    begun = call_site.line_of(where.place)
    return PendingCall(
        call.kind,
        name,
        call.log.name,
        call.log.members,
        call.seq,
        what,
        line,
        call.since,
        call.peer,
        call.tag,
        call.limited,
        lost,
        begun if line and begun != line.replace(call_site.DEBUGGED, "") else "",
        thread,
    )


def _cpu_seconds(thread: int | None) -> float:
    clock = getattr(time, "pthread_getcpuclockid", None)  # not on macOS
    return time.clock_gettime(clock(thread)) if clock and thread else 0.0
