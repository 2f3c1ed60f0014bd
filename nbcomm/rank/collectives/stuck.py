"""Whether this rank waits for the others, and in which call: the link's thread reads it from what is recorded.

The main thread may be stuck in C++ meanwhile, and writes to the flight recorder without a lock. What is read here is
replaced, or changed in one step, and may be a moment old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any

import torch

from ...protocol import CollectiveState, MessageCount, PendingCall
from . import call_site
from .flight_recorder import Delegated, FlightRecorder
from .recorded_call import RecordedCall
from .stacks import TIMER, is_timer_of, may_join, of_all_threads

_TORCH = torch.__path__[0]
_STILL = 0.15
"""Seconds without a step, inside torch, after which the main thread counts as waiting for what is under way."""


class StuckDetector:
    """The reader of what the threads of a rank wait for.

    Args:
        recorder: what they have issued and wait for.
    """

    def __init__(self, recorder: FlightRecorder) -> None:
        self._recorder = recorder
        self._still: tuple[Any, float] = (None, 0.0)

    def blocked(self) -> bool:
        """Return whether the main thread waits for other ranks; inside C++, this needs repeated calls."""
        with of_all_threads() as frames:
            return bool(self._waits(frames.get(self._recorder.main or 0), self._recorder.delegated))

    def state(self) -> CollectiveState:
        """Return the state of this rank's collectives. Two answers close together show that nothing moved in between.

        The order matters to the verdict: first whether the main thread is stuck, then in what lanes wait, then which
        other threads there are, then the counts. What happens in between can only make the world look livelier than it
        is: a lane or thread that is begun meanwhile is seen, or its beginner has left the wait that was read.
        """
        recorder = self._recorder
        with of_all_threads() as frames:
            main = frames.get(recorder.main or 0)
            scope, lost = recorder.scope(), recorder.lost
            line, delegated = call_site.line_at(main, scope), recorder.delegated
            if delegated.thread is None:
                asked = call_site.of_frame(main, scope)
            else:
                asked = call_site.carried(recorder.carrier(delegated.thread))
            stuck = [lost] if lost else self._waits(main, delegated)
            joins = may_join(main)
        waiting = self._waits_of_lanes(delegated)
        with of_all_threads() as frames:
            threads = self._threads(frames, {delegated.thread, *waiting})
            beside = self._waits_elsewhere(frames) if joins else []
        issued, failed = recorder.issued(), recorder.failed()
        sent, received = self._messages()
        # Words are made last: a receive from any source may find its sender now and become one by name; the counts
        # allow for that.
        limited = delegated.limited
        waits = [_pending(call, line, call.where or asked, lost=call is lost, limited=limited) for call in stuck]
        lanes = [_of_lane(call, recorder.carrier(ident)) for ident, calls in waiting.items() for call in calls]
        return CollectiveState(issued, sent, received, waits, line, threads, beside, lanes, failed)

    def at_end(self) -> CollectiveState:
        """Return the same at the end of a request, on the main thread, which waits for nobody: after most cells.

        It costs a fraction: no call is looked for in the frames, where none is under way.
        """
        recorder = self._recorder
        if (
            recorder.live
            or recorder.on_device
            or recorder.waiting
            or recorder.waiting_beside
            or recorder.waiting_elsewhere
            or recorder.issuing
            or recorder.inside is not None
            or recorder.lost is not None
            or recorder.delegated.thread is not None
        ):
            return self.state()
        self._still = (None, 0.0)
        with of_all_threads() as frames:
            threads = self._threads(frames, ())
        return CollectiveState(recorder.issued(), *self._messages(), [], "", threads, [], [], recorder.failed())

    def _messages(self) -> tuple[list[MessageCount], list[MessageCount]]:
        sent: list[MessageCount] = []
        received: list[MessageCount] = []
        for log in self._recorder.logs():
            with log.lock:
                sent += [MessageCount(log.name, *key, number) for key, number in log.sent.items()]
                received += [MessageCount(log.name, *key, number) for key, number in log.received.items() if number]
        return sent, received

    def _waits(self, main: FrameType | None, delegated: Delegated) -> list[RecordedCall]:
        recorder = self._recorder
        awaited = (
            self._awaited(recorder.waiting) if delegated.thread is None else self._awaited_beside(delegated.thread)
        )
        if awaited or delegated.thread is not None:  # between two waits the other thread is free
            return awaited
        if recorder.inside is not None:
            return [recorder.inside]
        # In C++ that torch entered by itself (backward, wait_tensor) it is not known what is waited for. But a main
        # thread that does not move inside torch, while calls are under way, waits for one of them. And one that does
        # not move anywhere, while a GPU has calls to do for which no code can wait, reads what they make, or will wait
        # for them at the end of its cell; CUDA lets it spin meanwhile.
        device = recorder.undone() if recorder.on_device or recorder.live else []
        if main is None or not (device or (recorder.live and main.f_code.co_filename.startswith(_TORCH))):
            self._still = (None, 0.0)
            return []
        spent = 0.0 if device else _cpu_seconds(recorder.main)
        place = (id(main), main.f_lasti, spent)
        now = time.monotonic()
        if place != self._still[0]:
            self._still = (place, now)
            return []
        if now - self._still[1] < _STILL:
            return []
        return device or recorder.under_way()

    def _awaited(self, waiting: Sequence[tuple[Any, bool]]) -> list[RecordedCall]:
        try:
            work, limited = waiting[-1]
        except IndexError:
            return []
        found = self._recorder.live.get(id(work))
        if found is None or work.is_completed():
            return []
        found[1].limited = limited
        return [found[1]]

    def _awaited_beside(self, ident: int) -> list[RecordedCall]:
        """Return what a lane's thread waits in, or the one for which it waits."""
        return self._awaited(self._recorder.waiting_beside.get(self._recorder.carrier(ident), ()))

    def _waits_of_lanes(self, delegated: Delegated) -> dict[int, list[RecordedCall]]:
        """Return what lanes wait in that may issue more calls, by their threads; not for whom the main thread waits."""
        idents = self._recorder.issuing - {delegated.thread}
        return {ident: calls for ident in idents if (calls := self._awaited_beside(ident))}

    def _waits_elsewhere(self, frames: dict[int, FrameType]) -> list[PendingCall]:
        """Return what the user's threads wait in."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        scope, told = self._recorder.scope(), []
        for ident, waiting in list(self._recorder.waiting_elsewhere.items()):
            frame = frames.get(ident)
            for call in self._awaited(waiting) if frame is not None else ():
                line, where = call_site.line_at(frame, scope), call.where or call_site.of_frame(frame, scope)
                told.append(_pending(call, line, where, lost=False, thread=names.get(ident, "")))
        return told

    def _threads(self, frames: dict[int, FrameType], waiting: Collection[int | None]) -> int:
        """Return how many threads may issue calls at any time; it is known in what these lanes wait."""
        recorder = self._recorder
        scope = recorder.scope()
        count = len(recorder.issuing - {*waiting})  # they may issue more calls until they end
        for ident, top in frames.items():
            frame: FrameType | None = top if ident != recorder.main and not recorder.is_apart(ident) else None
            while frame is not None and frame.f_globals is not scope:
                if frame.f_code is TIMER and is_timer_of(frame, scope):
                    break
                frame = frame.f_back
            count += frame is not None
        return count


def _of_lane(call: RecordedCall, carrier: int) -> PendingCall:
    where = call.where or call_site.carried(carrier)
    return _pending(call, call_site.line_of(where.place), where, lost=False)


def _pending(  # noqa: PLR0913 - a call has these
    call: RecordedCall, line: str, where: call_site.Said, *, lost: bool, limited: bool = False, thread: str = ""
) -> PendingCall:
    # "all_reduce(float32 (3,), sum)", or "send of float32 (3,)"
    words = call.said.words.partition("|")[0] if call.said is not None else ""  # without an all-to-all's splits
    collective = call.kind == "collective"
    words = words.partition("(")[2].removesuffix(")") if collective else words.partition(" of ")[2]
    name, what = call_site.of_call(call.name, words, where, arrives=call.kind == "recv")
    begun = call_site.line_of(where.place)
    return PendingCall(
        call.kind,
        name,
        call.log.name,
        call.log.ranks,
        call.seq,
        what,
        line or begun,  # the code has ended: where it was called
        call.since,
        call.peer,
        call.tag,
        call.limited or limited,
        lost,
        begun if line and begun != line.replace(call_site.DEBUGGED, "") else "",
        thread,
        call.number,
    )


def _cpu_seconds(thread: int | None) -> float:
    clock = getattr(time, "pthread_getcpuclockid", None)  # not on macOS
    return time.clock_gettime(clock(thread)) if clock and thread else 0.0
