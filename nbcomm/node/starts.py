"""The starts that are ordered and not done yet: the zygote forks ranks, and the daemon itself starts all else.

A start is answered when it is done, or cannot be done. What a zygote has got and not done when it ends, the next one
gets: nothing is lost with it, and nothing is done twice, because its channel tells what it has begun before its end.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

import zmq

from ..faults import Faults
from ..protocol import Failed, Obeyed, Report, Signal, Start, Started
from ..world_dir import WorldDir, tail
from .processes.children import Children
from .processes.liveness import kill_with_children
from .zygote import Zygote

_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EAGAIN)
"""Numbers of errors that say that a zygote takes nothing any more."""


class Starts:
    """The starts of one world on this node.

    Args:
        home: the world's directory.
        zygote: forks ranks; the first one is started.
        children: the processes.
        poller: is told to watch the zygote's channel.
        answer: called with an order and its answer.
        faults: logs what goes wrong beside the work.

    Attributes:
        channel: that of the zygote that is listened to; None while there is none.
        hopeless: the first zygote has ended during its imports.
    """

    def __init__(  # noqa: PLR0913 - the last three by keyword
        self,
        home: WorldDir,
        zygote: Zygote,
        children: Children,
        *,
        poller: zmq.Poller,
        answer: Callable[[Start, Report], None],
        faults: Faults,
    ) -> None:
        self.channel = zygote.channel
        self.hopeless = False
        self._home = home
        self._zygote = zygote
        self._children = children
        self._poller = poller
        self._answer = answer
        self._faults = faults
        self._open: dict[int, Start] = {}
        self._handed: set[int] = set()  # of those, what the zygote has got
        self._unwanted: set[int] = set()  # and what is to be killed as soon as it is there
        self._zygote_end: int | None = None  # how the last one has ended, if that is known
        if self.channel is not None:
            poller.register(self.channel, zmq.POLLIN)

    def order(self, order: Start) -> None:
        """Start a process, as soon as that can be done."""
        self._open.setdefault(order.number, order)

    def signal(self, order: Signal) -> None:
        """Signal a process; one that is killed before it has been started is not wanted.

        Raises:
            OSError: it is not known whether it has ended.
        """
        if order.start in self._open and order.signal == signal.SIGKILL:
            self._unwanted.add(order.start)
        self._children.signal(order)

    # ── what can be done now ────────────────────────────────────────────────────────────────────────

    def go_on(self) -> None:
        """Start what is ordered, as far as that can be done now."""
        if not self._open:
            return
        unwanted = [order for number, order in self._open.items() if number in self._unwanted - self._handed]
        self._refuse(unwanted, "it was given up")
        if self._zygote.ready is None:
            return
        for order in list(self._open.values()):
            if order.what == "controller" or not self._zygote.ready.forks:
                self._spawn(order)
        waiting = [order for number, order in self._open.items() if number not in self._handed]
        if waiting and self._zygote.forks:
            try:
                self._zygote.order(waiting)
                self._handed.update(order.number for order in waiting)
            except OSError as error:
                if error.errno not in _GONE:  # else the next one gets them
                    self._refuse(waiting, str(error))

    def _spawn(self, order: Start) -> None:
        try:
            self._children.spawn(order)
        except Exception as error:  # noqa: BLE001 - the notebook waits for an answer
            self._refuse([order], str(error) or type(error).__name__)
        else:
            self._done(order.number)

    def _done(self, number: int) -> None:
        self._handed.discard(number)
        order = self._open.pop(number, None)
        if order is not None:
            self._answer(order, Obeyed(number))

    def _refuse(self, orders: Iterable[Start], why: str) -> None:
        for order in orders:
            self._open.pop(order.number, None)
            self._handed.discard(order.number)
            self._unwanted.discard(order.number)
            self._answer(order, Failed(order.number, why))

    # ── the zygote ──────────────────────────────────────────────────────────────────────────────────

    def hear(self) -> None:
        """Take what the zygote has reported."""
        was_ready = self._zygote.forks
        reports = self._zygote.receive()
        if reports is None:
            with suppress(KeyError):
                self._poller.unregister(self.channel)
            self.channel = None
            self._handed.clear()
            if not was_ready:
                self._miss()
        for report in reports or ():
            failed: list[str] = []
            with self._faults.beside("a start could not be noted", failed.append):
                self._take(report)
            if failed and isinstance(report, Started):  # nobody would ever end it
                kill_with_children(report.pid)
                self._refuse([order for number, order in self._open.items() if number == report.start], failed[0])

    def _take(self, report: Report) -> None:
        if isinstance(report, Started):
            self._children.add(report)
            if report.start in self._unwanted:
                self._unwanted.discard(report.start)
                self._children.signal(Signal(0, report.start, signal.SIGKILL))
            self._done(report.start)
        elif isinstance(report, Failed) and report.number in self._open:
            self._refuse([self._open[report.number]], report.why)

    def _miss(self) -> None:
        """Note that a zygote has ended before it could fork: it cannot import torch, or does not fork."""
        ready = self._zygote.ready
        if ready is not None and not ready.forks:
            return
        self.hopeless = ready is None  # its log tells why
        self.reap()
        if self._zygote_end is None or self._zygote_end < 0:
            return  # it was killed: the next one may do better
        why = f"what forks ranks has ended during its imports. Its log ends:\n{tail(self._home.daemon_log)}"
        self._refuse(list(self._open.values()), why)

    def keep_zygote(self) -> None:
        """Start another zygote, if that is due.

        Raises:
            OSError: it could not be started.
        """
        if self._zygote.backoff == 0.0:
            self._zygote_end = None
            self._zygote.start()
            self.channel = self._zygote.channel
            self._poller.register(self.channel, zmq.POLLIN)

    def reap(self) -> None:
        """Note which processes have ended, and whether the zygote has ended or was stopped."""
        others = self._children.reap(starting=bool(self._handed))
        if self._zygote.pid in others:
            self._zygote_end = others[self._zygote.pid]
            if self._zygote_end is None:
                self._zygote.kill()  # it was stopped, and nobody may ever let it go on
            else:
                self._zygote.pid = 0
