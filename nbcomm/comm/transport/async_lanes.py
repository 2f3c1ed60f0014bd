"""Asynchronous calls: what `async_op=True`, `isend` and `irecv` return.

A collective of nbcomm may take several rounds, each of which needs the one before, so it cannot be begun and left to
the backend as one of torch's can. A thread carries it on. Calls that must keep an order share a *lane*, which runs one
after the other: the collectives of one group, since every rank must issue them alike, and the receives of one sender
and tag. Different lanes never wait for each other, or ranks that begin in another order would lock up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from ...annotations import as_written
from ...errors import CollectiveError, NbcommError
from ...faults import described
from ...threads import keep

_LOOK = 0.05
"""Seconds between two checks of a waiting thread; a signal handler may raise in between."""


class WaitWatch(Protocol):
    """The recorder of waits, which knows who waits for whom."""

    def beside(self, *, issues: bool) -> AbstractContextManager[None]:
        """Mark the calling thread as carrying on what a cell has begun, and perhaps issuing more calls for it."""

    def waiting_for(self, thread: int | None, *, limited: bool) -> AbstractContextManager[None]:
        """Mark the wait of the calling thread for another one."""

    def said(self) -> Any:
        """Return the cell's call that is about to go on in the background."""

    def carrying(self, said: Any) -> AbstractContextManager[None]:
        """Mark the calling thread as carrying out what a cell called before."""

    def look_beside(self, *, busy: bool) -> None:
        """Note whether anything runs in the background of the cell."""

    def of_earlier(self) -> bool:
        """Return whether the calling thread was started by a cell before the current one."""


@as_written
class Handle:
    """A call that was begun and may still go on. Its data must be left alone until it is done."""

    def __init__(self, job: Callable[[], Any], lane: AsyncLane) -> None:
        self._job: Callable[[], Any] | None = job
        self._lane = lane
        self._said = lane.called()
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = False
        self._gate = threading.Lock()  # taken until the end. No Event: an interrupt inside one may leave it taken
        self._gate.acquire()

    def done(self) -> bool:
        """Return whether the call has ended, well or not; never wait."""
        return self._ended

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call has ended, and return its result; the same as `result`.

        Args:
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            TimeoutError: it goes on; wait again.
            CollectiveError: it has failed. Or any other error that the call would have raised.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if not self._ended:
            with self._lane.waited_for(limited=timeout is not None):
                while not self._ended:
                    left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"It did not complete within {timeout:g} s, and is still running.")
                    if self._gate.acquire(timeout=left):
                        self._gate.release()
        error = self._error
        if isinstance(error, NbcommError):
            raise type(error)(*error.args)  # a new one: the lane thread's traceback means nothing here
        if error is not None:
            raise error
        return self._result

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call would have returned without ``async_op``; wait for it, as `wait` does."""
        return self.wait(timeout)

    def carry_out(self) -> None:
        """Carry out the call; must be called on the lane's thread."""
        job, self._job = self._job, None
        assert job is not None  # noqa: S101 - a lane takes each of them once
        try:
            with self._lane.carrying(self._said):
                self._result = job()
        except KeyboardInterrupt:  # in the cell that began it, or the one after; who waits was not interrupted
            self._error = CollectiveError("This call was in progress when a cell was interrupted; start it again.")
        except BaseException as error:  # noqa: BLE001 - who waits raises it
            self._error = error
        self._ended = True
        self._gate.release()

    def refuse(self, reason: str) -> None:
        """End the call without carrying it out."""
        self._job, self._error, self._ended = None, CollectiveError(reason), True
        self._gate.release()


class AsyncLane:
    """A queue of calls, run one after the other on a thread that lives while there is something to do."""

    def __init__(self, lanes: AsyncLanes, key: Hashable, *, issues: bool) -> None:
        self._lanes = lanes
        self._key = key
        self._issues = issues
        self._queue: deque[Handle] = deque()
        self._present: Handle | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether anything is under way or waiting."""
        return self._thread is not None

    def waited_for(self, *, limited: bool = False) -> AbstractContextManager[None]:
        """Mark the wait of the calling thread for this lane; ``limited``: it ends by itself."""
        thread, watch = self._thread, self._lanes.watch
        if watch is None:
            return nullcontext()
        return watch.waiting_for(thread.ident if thread is not None else None, limited=limited)

    def called(self) -> Any:
        """Return the cell's call that this lane is to carry out."""
        watch = self._lanes.watch
        return None if watch is None else watch.said()

    def carrying(self, said: Any) -> AbstractContextManager[None]:
        """Mark the lane's thread as carrying out a call."""
        watch = self._lanes.watch
        return nullcontext() if watch is None else watch.carrying(said)

    def begin(self, job: Callable[[], Any]) -> Handle:
        """Queue a call after all earlier ones; the lock must be held."""
        begun = Handle(job, self)
        self._queue.append(begun)
        if self._thread is None:
            try:
                self._thread = keep("nbcomm-lane", self._work, again=0, lost=self._lost)
            except RuntimeError:  # no thread is available
                self._queue.pop()
                self._lanes.forget(self._key)
                raise
        return begun

    def drain(self) -> None:
        """Wait until nothing is under way; errors are those of the handles."""
        with self.waited_for():
            while self._thread is not None:
                time.sleep(_LOOK / 50)

    def refuse(self, reason: str) -> None:
        """Drop what has not begun."""
        with self._lanes.lock:
            while self._queue:
                self._queue.popleft().refuse(reason)

    def left_behind(self, reason: str) -> None:
        """In the child of a fork: there is no such thread here, so nobody does what it had to do."""
        for handle in (self._present, *self._queue):
            if handle is not None and not handle.done():
                handle.refuse(reason)
        self._thread = None

    def _work(self) -> None:
        lanes = self._lanes
        lanes.threads.add(threading.get_ident())
        device, watch = lanes.device, lanes.watch
        with nullcontext() if watch is None else watch.beside(issues=self._issues):
            if device.type == "cuda":
                torch.cuda.set_device(device)  # each thread has its own current device
            while True:
                with lanes.lock:
                    if not self._queue:
                        self._end()
                        return
                    self._present = self._queue[0]  # first: `left_behind` must find it in one of both
                    self._queue.popleft()
                self._present.carry_out()
                self._present = None

    def _end(self) -> None:
        self._thread = None
        self._lanes.threads.discard(threading.get_ident())
        self._lanes.forget(self._key)

    def _lost(self, error: BaseException) -> None:
        """Refuse all calls of the lane after its thread has failed, so that waiting threads get an error."""
        reason = f"nbcomm itself failed in an asynchronous call ({described(error)}); please report it."
        with self._lanes.lock:
            for handle in (self._present, *self._queue):
                if handle is not None and not handle.done():
                    handle.refuse(reason)
            self._present = None
            self._queue.clear()
            self._end()


class AsyncLanes:
    """All lanes of one rank.

    Args:
        device: what their threads use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.watch: WaitWatch | None = None
        self.lock = threading.Lock()
        self.threads: set[int] = set()
        self._lanes: dict[Hashable, AsyncLane] = {}

    @property
    def any(self) -> bool:
        """Whether anything goes on."""
        return bool(self._lanes)

    def begin(self, key: Hashable, job: Callable[[], Any], *, issues: bool = True) -> Handle:
        """Carry something out, after all else in its lane.

        Args:
            key: of the lane.
            job: what to do.
            issues: it makes calls, and does not only wait for those that are made.
        """
        with self.lock:
            lane = self._lanes.setdefault(key, AsyncLane(self, key, issues=issues))
            if self.watch is not None:
                self.watch.look_beside(busy=True)
            return lane.begin(job)

    def in_order(self, key: Hashable, job: Callable[[], Any]) -> Any:
        """Do something now that must not overtake what its lane still does."""
        return self.begin(key, job).wait() if self._lanes and self.busy(key) else job()

    def busy(self, key: Hashable) -> bool:
        """Return whether a lane has work that the calling thread would have to wait for."""
        lane = self._lanes.get(key)
        return lane is not None and lane.busy and not self.inside()

    def drain(self, key: Hashable) -> None:
        """Wait until a lane has nothing to do."""
        lane = self._lanes.get(key)
        if lane is not None and not self.inside():
            lane.drain()

    def inside(self) -> bool:
        """Return whether the calling thread is a lane's."""
        return threading.get_ident() in self.threads

    def earlier(self) -> bool:
        """Return whether the calling thread completes a call of an earlier cell, which needs no rank of this cell."""
        return self.inside() or (self.watch is not None and self.watch.of_earlier())

    def forget(self, key: Hashable) -> None:
        """Remove a lane that has no more work; the caller holds the lock."""
        del self._lanes[key]
        if self.watch is not None and not self._lanes:
            self.watch.look_beside(busy=False)

    def leave_behind(self, reason: str) -> None:
        """Begin again in the child of a fork: one of the threads that are no more may have held the lock.

        Args:
            reason: what the handles raise that were under way.
        """
        self.lock = threading.Lock()
        left, self._lanes = self._lanes, {}
        self.threads = set()
        for lane in left.values():
            lane.left_behind(reason)
        if self.watch is not None:
            self.watch.look_beside(busy=False)

    def end(self, reason: str, patience: float) -> None:
        """Fail what has not begun: the groups are about to be re-formed. Calls in flight must have failed before.

        Args:
            reason: what its handles raise.
            patience: seconds for those that are under way.
        """
        until = time.monotonic() + patience
        while self._lanes and time.monotonic() < until:
            for lane in list(self._lanes.values()):
                lane.refuse(reason)
            time.sleep(_LOOK / 50)
