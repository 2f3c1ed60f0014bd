"""Which collectives a cell has called, when, and, if requested, with which values.

`FlightRecorder` knows what is under way; the journal keeps what has been, for pictures, timelines and traces. It keeps
what the cell itself called: inside a Communicator's method, torch's own calls are only its means.

Every collective writes to it, so what cannot be asked for is not even looked at.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch

from ...faults import Faults
from ...protocol import CallRecord, rank_lists
from ...short_repr import size_of
from ..clock import clock
from . import call_site, call_values, shares
from .call_values import Drawn
from .recorded_call import RecordedCall, Step, Turn

_KEPT, _KEPT_TRACED, _DRAWN = 512, 100_000, 64
"""How many steps of a cell are kept: usually, when it is traced, and how many with their values."""

_RECENT = 16
"""How many of them are reported while the cell runs."""


class JournalEntry(Step):
    """One call of a Communicator's method; it may need several of torch's."""

    first = last = number = 0

    def __init__(self, name: str, kind: str, place: Any) -> None:
        self.name = name
        self.kind = kind
        self.place = place
        self.began = clock.now()

    def take(self, call: RecordedCall) -> None:
        """Take over what identifies the call to the other ranks."""
        self.log, self.peer, self.tag = call.log, call.peer, call.tag
        self.first = self.last = call.seq
        self.anyone = call if call.kind == "recv" and call.peer is None else None


class Journal:
    """The steps of the current cell.

    Attributes:
        drawing: whether the values before and after are kept, too.
        tracing: whether bytes of other data than one tensor are counted, and all steps kept.
        notes: what could not be noted of a call, in sentences; the call itself is carried out.
        turn: counts the calls of the request.
    """

    def __init__(self, scope: Callable[[], dict[str, Any] | None]) -> None:
        self.drawing = self.tracing = False
        self._scope = scope
        self._entries: deque[JournalEntry | RecordedCall] = deque(maxlen=_KEPT)
        self._count = 0
        self._current: dict[int, JournalEntry] = {}
        self._carried: dict[int, Step | None] = {}  # by the threads that carry out what a cell has begun
        self._awaited: int | None = None
        self._faults = Faults()
        self.notes: list[str] = []
        self.turn = Turn()

    def use(self, faults: Faults) -> None:
        """Set the object that takes errors beside a call."""
        self._faults = faults

    @property
    def curious(self) -> bool:
        """Whether more than times are kept."""
        return self.drawing or self.tracing

    def begin(self, *, drawing: bool = False, tracing: bool = False) -> None:
        """Begin a request, and forget the one before."""
        self.drawing, self.tracing = drawing, tracing
        self._entries = deque(maxlen=_KEPT_TRACED if tracing else _KEPT)
        self._count = 0
        self.notes = []
        self.turn.over, self.turn = True, Turn()

    def end(self) -> None:
        """End the request: later calls belong to none."""
        self.drawing = self.tracing = False

    # ── written by the thread that calls ────────────────────────────────────────────────────────────────

    def carry_out(self, name: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a Communicator's method; torch's calls inside it belong to it."""
        ident = threading.get_ident()
        if ident in self._current:
            return method(*args, **kwargs)
        frame = sys._getframe(2)  # noqa: SLF001 - who called, at no cost; `inspect` reads files
        own = frame.f_globals is self._scope()
        place = (frame.f_code.co_filename, frame.f_lineno) if own else call_site.carried().place
        entry = JournalEntry(name, _KINDS.get(name, "collective"), place)
        self._current[ident] = entry
        if self._carried:
            self._notice(entry, ident)
        try:
            if self.curious:
                return self._closely(entry, method, args, kwargs)
            data = args[1] if len(args) > 1 else kwargs.get("data")
            if type(data) is torch.Tensor:  # cheap to count; other data is counted only for a trace
                entry.nbytes = data.numel() * data.itemsize  # `nbytes` raises for a sparse one
            self._add(entry)
            result = method(*args, **kwargs)
        except BaseException:
            entry.failed = True
            raise
        finally:
            del self._current[ident]
        entry.ended = clock.now()
        return result

    def line(self) -> int:
        """Return the line of the cell that has made the current call of this thread; 0 if it is not known."""
        entry = self._current.get(threading.get_ident())
        place = entry.place if entry is not None else None
        place = place or call_site.of_frame(sys._getframe(1), self._scope()).place  # noqa: SLF001 - in another's function
        return place[1] if place is not None else 0

    def _closely(
        self, entry: JournalEntry, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        comm, *given = args
        asked: dict[str, Any] = {}
        with suppress(TypeError):  # the arguments do not fit: the method itself will say so
            asked = dict(_signature(method).bind(*args, **kwargs).arguments)
        with self._beside():
            if self.tracing:
                brought = None if entry.kind == "recv" else given[0] if given else asked.get("data")
                entry.nbytes = size_of(brought)
                members = call_values.members_in(comm, asked.get("group"))
                entry.gave = shares.of_call(entry.name, members, comm.rank, asked, entry.nbytes)
            if self.drawing and self._count < _DRAWN:
                entry.drawn = call_values.of_call(entry.name, comm, asked)
        entry.began = clock.now()
        self._add(entry)
        result = method(*args, **kwargs)
        entry.ended = clock.now()
        self.finish(entry, result)
        return result

    def finish(self, entry: Step, result: Any = None, *, late: bool = False) -> None:
        """Note the result of a call, if it is drawn; see `Drawn.finish`."""
        if entry.drawn is not None:
            with self._beside():
                entry.drawn.finish(result, late=late)

    def close(self, entry: Step) -> None:
        """Finish a call that has ended where Python did not see it."""
        if entry.watched:  # otherwise it is not known when it ended
            entry.end()
        self.finish(entry, late=True)

    def _beside(self) -> AbstractContextManager[None]:
        return self._faults.beside("the values of a call could not be read", self._note)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def look_at(self, method: str, args: tuple[Any, ...], members: list[int], rank: int) -> Drawn | None:
        """Return the values of a call that torch is about to get, if it is to be drawn."""
        if not self.drawing or threading.get_ident() in self._current or self._count >= _DRAWN:
            return None
        with self._beside():
            return call_values.of_torch(method, args, members, rank)
        return None

    def count(self, call: RecordedCall) -> int:
        """Count a call of torch, if this was not done; all of a Communicator's method are one. Return its number."""
        entry = self._current.get(threading.get_ident()) if self._current else None
        if entry is None:
            return call.count(self.turn)
        number = call.count(self.turn, entry.number)
        entry.number = entry.number or number
        return number

    def follow(self, call: RecordedCall, *, failed: bool = False) -> None:
        """Note a call of torch, or one that was refused: inside a Communicator's method, or by other code."""
        entry = self._current.get(threading.get_ident()) if self._current else None
        if entry is not None:
            number = call.count(self.turn, entry.number)
            entry.number = entry.number or number
            if entry.log is None:
                entry.take(call)
            else:
                entry.last = call.seq
            return
        if call.turn is None:  # as `count` does, in fewer steps
            call.turn = turn = self.turn
            counts, key = turn.counts, call.counted
            call.given = counts[key] = counts.get(key, 0) + 1
        call.kept = True
        if failed:
            call.failed = True
        if self._carried:
            self._notice(call, threading.get_ident())
        self._count += 1
        self._entries.append(call)

    def complete(self, entry: Step | None, drawn: Drawn | None, args: tuple[Any, ...], work: Any) -> None:
        """Keep what is asked for beside the times, after a call of torch outside of a Communicator's method."""
        if entry is None or not self.curious:
            return
        entry.drawn = drawn
        if self.tracing:
            with self._beside():
                entry.nbytes = size_of(call_values.brought(entry.name, args))
                rank = torch.distributed.get_rank()
                entry.gave = shares.of_torch(entry.name, args, entry.log.members, rank, entry.nbytes)
        # What C++ waits for (DDP, functional collectives) ends where Python does not see it, and may soon hold the data
        # of another call. To read NCCL's result is to wait for it, which this thread must not.
        gloo = entry.log.is_gloos
        if work is not None and (self.tracing or (drawn is not None and gloo)):
            with suppress(RuntimeError):  # this call, or this backend, has no future
                future = work.get_future()
                entry.watched = True
                future.add_done_callback(lambda _: self.close(entry) if gloo else entry.end())

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """Mark the calling thread as carrying out what a cell has begun, while nothing waits for it yet."""
        ident = threading.get_ident()
        self._carried[ident] = None
        try:
            yield
        finally:
            del self._carried[ident]

    def wait_for(self, thread: int | None) -> None:
        """Note that the main thread waits for what a thread carries out; None: it continues its own work."""
        self._awaited = thread
        entry = None if thread is None else self._carried.get(thread)
        if entry is not None and entry.asked == math.inf:
            entry.asked = clock.now()

    def _notice(self, entry: Step, ident: int) -> None:
        if ident in self._carried:
            entry.asked = math.inf
            self._carried[ident] = entry  # from now on `wait_for` sees it
            if ident == self._awaited:
                entry.asked = 0.0

    def _add(self, entry: JournalEntry) -> None:
        self._count += 1
        # Without nbcomm's own groups calls are not counted elsewhere; all ranks make the same calls in the same order.
        entry.first = entry.last = entry.first or self._count
        self._entries.append(entry)

    # ── read ────────────────────────────────────────────────────────────────────────────────────────

    def recent(self) -> list[CallRecord]:
        """Return the last few steps, while the cell runs; from any thread."""
        for _ in range(3):
            with suppress(RuntimeError):  # one was added meanwhile
                return [_told(entry, None) for entry in list(self._entries)[-_RECENT:] if entry.log is not None]
        return []

    def steps(self) -> list[CallRecord]:
        """Return all steps that are kept, once the cell has ended."""
        for entry in self._entries:
            if entry.drawn is not None:
                with self._beside():
                    entry.drawn.finish_late(ended=bool(entry.ended))
        return [
            _told(entry, entry.drawn) for entry in self._entries if entry.log is not None or entry.drawn is not None
        ]

    @property
    def dropped(self) -> int:
        """The number of steps that are not kept."""
        return self._count - len(self._entries)


_KINDS = {"send": "send", "isend": "send", "recv": "recv"}


@functools.cache
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(method)


def _told(entry: JournalEntry | RecordedCall, drawn: Drawn | None) -> CallRecord:
    """Return the step as a message, with its values if they are asked for: they may be long."""
    log = entry.log
    if isinstance(entry, JournalEntry) and entry.anyone is not None and entry.anyone.peer is not None:
        entry.take(entry.anyone)
    return CallRecord(
        entry.name,
        entry.kind,
        log.name if log is not None else "",
        log.ranks if log is not None else rank_lists.written(drawn.members) if drawn is not None else "",
        entry.first,
        entry.last,
        entry.began,
        entry.ended,
        entry.failed,
        entry.peer,
        entry.tag,
        call_site.line_of(entry.place),
        entry.nbytes,
        drawn.how if drawn is not None else None,
        drawn.before if drawn is not None else None,
        drawn.after if drawn is not None else None,
        entry.asked,
        entry.number,
        entry.gave,
    )
