"""What this rank does with the others: which calls it has issued, and which ones its threads wait for.

The thread that calls a collective writes it; `stuck` reads it. A record must cost next to nothing: a counter, and one
entry that lives as long as torch's handle does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

from ...torch_internals import nccl
from ..clock import clock
from ..output.capture import NOBODY, run_of_thread
from . import call_site
from .any_source import AnyoneReceive
from .journal import Journal
from .recorded_call import Log, RecordedCall

_MANY = 32
"""Handles that are kept before ended ones are released."""

NEW_GROUP = "new_group"

_SILENT = "reduce_scatter_tensor"
"""Gloo reports its end only to a thread that waits for it."""

_UNKNOWN: Any = (None, None)
"""In place of a handle and its call."""

_FIRST, _SLICED = (timedelta(seconds=0.01),), (timedelta(seconds=0.5),)
_NOT_YET = "Operation timed out"
"""What torch says when a slice of a wait is over."""

_GRACE, _TICK = 0.5, 0.002
"""Seconds after which a call with shut connections has failed, unless gloo has forgotten it; and between looks."""


class Delegated(NamedTuple):
    """For whom the main thread waits.

    Attributes:
        thread: the ident of the background thread that it waits for; None if there is none.
        limited: it waits for a limited time.
    """

    thread: int | None = None
    limited: bool = False


class FlightRecorder:
    """The calls that this process has issued and waits for.

    Args:
        scope: the namespace of the cells; a frame whose globals it is belongs to a cell.
        explain: what to raise in place of an error of torch's.

    Attributes:
        main: the main thread's ident.
        run: the current request; None while threads of all cells count as those of earlier ones.
        live: the handles that may not have ended, each with its call, by their ids.
        on_device: calls that were waited for, but are only queued on the GPU, each with its mark there, by their ids.
        inside: the call in which torch's own method runs now, on the main thread.
        waiting: the handles that the main thread waits for, and whether for a limited time; the innermost last.
        waiting_beside: as `waiting`, for each thread that carries on what a cell has begun, by its ident.
        waiting_elsewhere: as `waiting`, for each of the user's threads.
        issuing: the idents of those in `waiting_beside` that may issue more calls.
        delegated: the background thread that the main thread waits for.
        delegated_beside: the one that a thread in `waiting_beside` waits for, by that thread's ident.
        lost: the call that has lost its connection, while it waits for the reason.
        apart: threads that run a user's code, but can issue nothing, by their idents; ask `is_apart`.
        busy_beside: whether anything runs in the background of the cell, in an order that other calls must keep.
        unseen: calls of the current request have ended, of which only C++ has seen how.
        aborted: when the current generation was aborted, by `time.monotonic`; 0 while it lives.
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
        self._formed: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.live: dict[int, tuple[Any, RecordedCall]] = {}
        self.on_device: dict[int, tuple[Any, RecordedCall]] = {}
        self._enough = _MANY
        self.waiting: list[tuple[Any, bool]] = []
        self.waiting_beside: dict[int, list[tuple[Any, bool]]] = {}
        self.waiting_elsewhere: dict[int, list[tuple[Any, bool]]] = {}
        self.issuing: set[int] = set()
        self.delegated = Delegated()
        self.delegated_beside: dict[int, int] = {}
        self.run: int | None = None
        self.apart: dict[int, threading.Thread] = {}
        self.busy_beside = False
        self.inside: RecordedCall | None = None
        self._last: RecordedCall | None = None
        self.lost: RecordedCall | None = None
        self._creations = Log(NEW_GROUP, [])
        self._left = self.unseen = False
        self.aborted = 0.0

    # ── groups ──────────────────────────────────────────────────────────────────────────────────────

    def begin_group(self, name: str, members: list[int], timeout: timedelta | None = None) -> Log:
        """Begin to count the calls of a group that is formed or re-formed, from 1."""
        self._formed[name, tuple(members)] += 1
        log = self._logs[name] = Log(name, members, timeout)
        return log

    def formed(self, name: str, members: list[int]) -> int:
        """Return how often a group of this name and these members has been formed in this generation.

        Names begin anew when a cell has destroyed the world: on some of the members a group of others had this one.
        """
        return self._formed[name, tuple(members)]

    def logs(self) -> list[Log]:
        """Return the calls of each group that exists."""
        return list(self._logs.values())

    @property
    def broken(self) -> bool:
        """Whether a call has failed in its transport: its group cannot carry out any other."""
        for log in self._logs.values():  # noqa: SIM110 - a generator would be called for each
            if log.broken:
                return True
        return False

    def issued(self) -> dict[str, int]:
        """Return the number of collectives issued in each group; if groups were made, also their number."""
        issued = {log.name: log.issued for log in self.logs()}
        if self._creations.issued:
            issued[NEW_GROUP] = self._creations.issued - self._left
        return issued

    def failed(self) -> dict[str, list[int]]:
        """Return which of the last collectives have failed here, in groups where one has."""
        return {log.name: [*log.failed] for log in self.logs() if log.failed}

    def forget(self) -> None:
        """Forget all groups, before they are re-formed."""
        self._formed.clear()
        self._logs.clear()
        self.live.clear()
        self.on_device.clear()
        self._creations = Log(NEW_GROUP, [])
        self._left = False

    def settle(self) -> None:
        """Clear waits that an interrupt left behind, before a cell begins."""
        self.waiting.clear()
        self.waiting_elsewhere = {ident: waits for ident, waits in list(self.waiting_elsewhere.items()) if waits}
        self.inside = self._last = self.lost = None
        self.unseen = False
        self.delegated = Delegated()

    @contextmanager
    def within(self, call: RecordedCall) -> Iterator[None]:
        """Mark the time in which torch's own method runs. Few methods block, but those do so in C++."""
        before, self.inside = self.inside, call
        try:
            yield
        finally:
            self.inside = before

    def follow(self, work: Any, call: RecordedCall, *, failed: bool = False) -> None:
        """Keep a handle with its call until it is waited for, or has ended.

        The handle itself is kept: C++ often holds only its future.
        """
        self._last = call
        self.journal.follow(call, failed=failed)
        if work is not None:
            self.live[id(work)] = (work, call)
            if len(self.live) > self._enough:
                self.tidy()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Mark the time in which a call that lost its connection waits for the reason."""
        self.lost = self._last or self.inside
        try:
            yield
        finally:
            self.lost = None

    def tidy(self) -> None:
        """Release what has ended: a handle keeps its tensors. The journal gets what C++ has waited for."""
        unheld = self._unheld() if self.live else set()
        for key, (work, call) in list(self.live.items()):
            ended = call.has_ended(work)
            if ended and call.entry is not None and self.journal.curious:
                self.journal.close(call.entry)
            if ended and call.log.is_gloos:
                call.look_for_failure(work)
            self.unseen |= key in unheld
            if ended or key in unheld:
                self._end(key)
        self._enough = max(_MANY, 2 * len(self.live))  # otherwise each call would ask all handles that have not ended

    def going(self) -> set[str]:
        """Return the names of groups that have a call under way."""
        return {call.log.name for call in self.under_way()}

    def under_way(self) -> list[RecordedCall]:
        """Return the calls whose handles have not ended."""
        unheld = self._unheld()
        return [call for key, (work, call) in list(self.live.items()) if key not in unheld and not call.has_ended(work)]

    def _unheld(self) -> set[int]:
        """Return handles that report no end, and that nobody else holds: C++ has waited for them (`wait_tensor`)."""
        return self._alone(lambda call: call.name == _SILENT)

    def _alone(self, which: Callable[[RecordedCall], bool]) -> set[int]:
        """Return those handles of some calls that nobody else holds."""
        some = {key: held for key, held in list(self.live.items()) if which(held[1])}
        return {key for key, holders in _holders(some).items() if holders <= _ALONE} if some else set()

    # ── what a GPU has yet to do ────────────────────────────────────────────────────────────────────

    def _queue(self, work: Any, call: RecordedCall) -> None:
        """Keep a call that was waited for, but is only queued on the GPU. Its handle would keep its tensors."""
        mark = None if work.is_completed() else nccl.mark()
        if mark is not None:
            if len(self.on_device) >= _MANY:
                self.undone()
            self.on_device[id(call)] = mark, call

    def undone(self) -> list[RecordedCall]:
        """Return the calls that the GPU has yet to do and that no code can wait for: nobody has their handles."""
        for key, (mark, _) in list(self.on_device.items()):
            if nccl.is_done(mark):
                self.on_device.pop(key, None)
        alone = self._alone(lambda call: not call.log.is_gloos)  # those of DDP, for which C++ lets the stream wait
        held = [held for key in alone if (held := self.live.get(key)) is not None]
        queued = [call for _, call in list(self.on_device.values())]
        return queued + [call for work, call in held if not call.has_ended(work)]

    def await_device(self, timeout: float | None = None) -> None:
        """Wait until the GPU has done them, at the end of a request, on the main thread.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            CollectiveError: they were aborted.
        """
        if not self.on_device and not self.live:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while (calls := self.undone()) and (deadline is None or time.monotonic() < deadline):
            with self.within(calls[0]):
                time.sleep(_TICK)
            if self.aborted and timeout is None:
                raise self._explain(RuntimeError("The connection was closed while the GPU still had calls to do."))

    def _end(self, key: int) -> None:
        """Settle a handle that has ended; of a receive from any source, note the sender."""
        work, call = self.live.pop(key, (None, None))
        if work is None or call is None or call.kind != "recv" or call.peer is not None:
            return
        if isinstance(work, AnyoneReceive):  # it noted the sender itself
            return
        with suppress(RuntimeError):  # it failed, so there is no sender
            source, received = call.log.members[work._source_rank()], call.log.received  # noqa: SLF001
            with call.log.lock:
                received[None, call.tag] -= 1
                received[source, call.tag] = received.get((source, call.tag), 0) + 1

    def wait(self, wait: Callable[..., Any], work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wait for a handle, and record the wait; in place of a lost connection, raise the reason.

        A collective of gloo is waited for in slices. If a send fails while gloo answers the other end, gloo forgets it:
        it reports nothing, and the waiting thread would wait until its timeout. That happens once in thousands of
        aborts, so between slices the abort's time is checked. A thread that still waits after the first slice also
        tells the other ranks what its cell called, for they may do something else; if all goes well, this costs
        nothing.
        """
        limited = bool(args or kwargs)
        _, call = self.live.get(id(work), _UNKNOWN)
        sliced = False
        if call is not None and not limited and (patience := call.log.timeout) is not None:
            sliced = call.kind == "collective"
            # A message gets the group's timeout here, or gloo would use the one that it had for connecting.
            args = _FIRST if sliced else (patience,)
        ident = threading.get_ident()
        waiting = self.waiting if ident == self.main else self._waiting_in(ident)
        waiting.append((work, limited))
        if call is not None and call.kept and not call.asked:
            call.asked = clock.now()  # until then the rank did its own work
        try:
            try:
                result = wait(work, *args, **kwargs)
            except RuntimeError as error:
                result = self._wait_on(wait, work, call, error, limited=limited, sliced=sliced)
        finally:
            if waiting:
                waiting.pop()
        if call is not None and call.kept:
            call.end()
            if call.drawn is not None:
                self.journal.finish(call)
        if sliced:
            self.live.pop(id(work), None)
        else:
            if call is not None and not call.log.is_gloos:
                self._queue(work, call)
            self._end(id(work))
        return result

    def _wait_on(  # noqa: PLR0913 - a wait has these
        self, wait: Callable[..., Any], work: Any, call: Any, error: RuntimeError, *, limited: bool, sliced: bool
    ) -> Any:
        """Go on with a wait after its first slice, or raise what it has raised."""
        first = True
        while True:
            if not sliced or _NOT_YET not in str(error):
                told = self._explain(error)
                if told is error and call is not None and not (limited and _NOT_YET in str(error)):
                    call.fail(limited=limited or bool(self.aborted))
                raise told from None
            self._go_on(call, first=first)
            first = False
            try:
                return wait(work, *_SLICED)
            except RuntimeError as other:
                error = other

    def _waiting_in(self, ident: int) -> list[tuple[Any, bool]]:
        """Return what a thread other than the main one waits for."""
        ours = self.waiting_beside.get(ident)
        return self.waiting_elsewhere.setdefault(ident, []) if ours is None else ours

    def _go_on(self, call: RecordedCall, *, first: bool) -> None:
        """Check a call after a slice of its wait."""
        if first and call.where is None:  # otherwise it began earlier, and its place was written then
            call.tell_place(self.scope())
        if self.aborted and time.monotonic() - self.aborted > _GRACE:
            call.log.stuck = True
            raise self._explain(RuntimeError("The connection was closed, but gloo did not notice it."))

    @contextmanager
    def beside(self, *, issues: bool) -> Iterator[None]:
        """Mark the calling thread as carrying on what a cell has begun, and perhaps issuing more calls for it."""
        ident = threading.get_ident()
        self.waiting_beside[ident] = []
        if issues:
            self.issuing.add(ident)
        try:
            with self.journal.carrying():
                yield
        finally:
            self.issuing.discard(ident)
            del self.waiting_beside[ident]

    def of_earlier(self) -> bool:
        """Return whether the calling thread works for a cell before the current one."""
        return threading.get_ident() != self.main and run_of_thread() not in (None, NOBODY, self.run)

    def said(self) -> call_site.Said:
        """Return the cell's call that is about to go on in the background."""
        return call_site.here(self.scope())

    def look_beside(self, *, busy: bool) -> None:
        """Note whether anything runs in the background of the cell."""
        self.busy_beside = busy

    @staticmethod
    def carrying(said: call_site.Said) -> AbstractContextManager[None]:
        """Mark the calling thread as carrying out what a cell called before."""
        return call_site.carrying(said)

    @contextmanager
    def waiting_for(self, thread: int | None, *, limited: bool = False) -> Iterator[None]:
        """Mark the wait of the calling thread for one that carries on what a cell has begun."""
        ident = threading.get_ident()
        if ident != self.main:
            if ident in self.waiting_beside and thread is not None:
                self.delegated_beside[ident] = thread
            try:
                yield
            finally:
                self.delegated_beside.pop(ident, None)
            return
        before, self.delegated = self.delegated, Delegated(thread, limited)
        self.journal.wait_for(thread)
        try:
            yield
        finally:
            self.delegated = before
            self.journal.wait_for(before.thread)

    def carrier(self, ident: int) -> int:
        """Return the background thread for which this one waits in the end; itself if it waits for none."""
        while (other := self.delegated_beside.get(ident)) is not None:
            ident = other
        return ident

    def await_ends(self) -> None:
        """Wait until all collectives have failed, after connections were shut; one that has not is stuck in gloo."""
        deadline = time.monotonic() + _GRACE
        for work, call in list(self.live.values()):
            if call.kind != "collective":  # gloo does not report the end of these
                continue
            while not work.is_completed() and time.monotonic() < deadline:
                time.sleep(_TICK)
            call.log.stuck |= not work.is_completed()

    @property
    def creations(self) -> int:
        """How many groups all ranks have begun to make."""
        return self._creations.issued

    @contextmanager
    def creation(self, members: list[int], *, counted: bool) -> Iterator[int]:
        """Mark the making of a group; ``counted`` where every rank of the world takes part in it."""
        log = self._creations
        if counted:
            log.issued, self._left = next(log.positions), False
        call = RecordedCall("collective", NEW_GROUP, Log(NEW_GROUP, members), log.issued, None)
        call.limited = not counted
        call.count(self.journal.turn, self.journal.turn.next(NEW_GROUP))
        try:
            with self.within(call):
                yield log.issued
        except BaseException:
            self._left |= counted  # for the ranks that wait there, a rank that leaves with an error has not arrived
            raise

    def is_apart(self, ident: int) -> bool:
        """Return whether the thread with this ident runs a user's code, but can issue nothing."""
        thread = self.apart.get(ident)
        return thread is not None and thread.is_alive()  # the ident of an ended thread may have been given to another

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Mark the time in which the main thread waits for user input, inside any call: it waits for no rank then."""
        before = self.inside, self.waiting, self.delegated
        self.inside, self.waiting, self.delegated = None, [], Delegated()
        try:
            yield
        finally:
            self.inside, self.waiting, self.delegated = before


def _holders(live: dict[int, tuple[Any, Any]]) -> dict[int, int]:
    return {key: sys.getrefcount(work) for key, (work, _) in list(live.items())}


_ALONE = _holders({0: (object(), None)})[0]
"""The count where only that dict holds a work: torch's own references are included in Python's count."""
