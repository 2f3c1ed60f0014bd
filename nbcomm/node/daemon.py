"""The daemon of a node: the one process that starts, watches and ends the processes of one world there.

It has one loop, which waits for the notebook, for its children, and for other processes of this user that want to know
whose the world is. It keeps the world's lease, and serves the ranks' groups (`Rendezvous`). It never imports
torch: its first child, the `zygote`, has done that, and forks.

While it has a notebook, the world lives. When no notebook has been there for the lease, or `Shutdown` is ordered, it
ends every process that it has started, removes the directory, and ends. It does this without the notebook, because a
killed notebook cannot.

Its own end costs no rank. One daemon serves a directory: another one that starts there, because a notebook has heard
nothing from the first, ends it, whether it was stopped or was only slow, and takes over its processes.

What it knows is a table that is compared, not a row of news: see `Children`. A failed order is answered with the
reason. If a step of its own fails, that is logged, and the step is tried again.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn

import msgspec
import zmq

from ..faults import Faults
from ..protocol import (
    Claim,
    Cleared,
    Failed,
    LogTail,
    Look,
    NodeHello,
    NodeStatus,
    Obeyed,
    Order,
    Processes,
    ReadFacts,
    ReadLog,
    Ready,
    Report,
    ServeGroups,
    Shutdown,
    Signal,
    Start,
    Started,
)
from ..protocol.codec import decode_order, encode
from ..world_dir import HOME_VARIABLE, WorldDir
from . import facts
from .notebook_end import NotebookEnd
from .peers import listening_at
from .processes import fork_signals, parenthood
from .processes.children import Children, written_down
from .processes.daemon_lock import DaemonLock
from .processes.warmup import prepare
from .rendezvous import Rendezvous
from .starts import Starts
from .zygote import Zygote

_FIRST_VISIT = 10.0
"""Seconds that the notebook has to claim the world after the start, or from another daemon."""

_UNREACHED = (
    "nbcomm: The notebook was not reached at {} within {:g} s. Can this machine reach that address? A firewall may be "
    "in the way, or --address may name the wrong one.\n"
)

_LOOK = 0.25
"""Seconds between two looks at processes whose ends nothing tells."""

_GREETING = 1.0
"""Seconds after which a notebook that is connected, and has not claimed the world, is greeted again."""

_LONGEST_SLEEP = 3600.0
_BACKOFF = 0.1
"""Seconds of pause after a failed turn: one that fails at once each time must not use up a core, or fill the disk."""

_REMEMBERED = 1000
"""Answers that are kept for orders that come again."""

_LAST = 1.0
"""Seconds that forks have to be complete when the world ends."""

_TICK = 0.002


class Daemon:
    """The daemon's loop.

    Args:
        home: the world's directory.
        zygote: forks ranks; the first one is started.
        lock: this process has it as the only daemon of the directory.
    """

    def __init__(self, home: WorldDir, zygote: Zygote, lock: DaemonLock) -> None:
        self._home = home
        self._zygote = zygote
        self._lock = lock
        self._number = time.time_ns()
        self._faults = Faults()
        self._stumbled = self._over = self._failed = False
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)  # noqa: FBT003 - positional only
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the loop
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in fork_signals.ENDING:
            signal.signal(number, self._ordered_to_end)
        self._poller = zmq.Poller()
        self._poller.register(self._woken, zmq.POLLIN)
        self._children = Children(home, self._poller, self._faults)
        self._starts = Starts(
            home, zygote, self._children, poller=self._poller, answer=self._answer, faults=self._faults
        )
        self._answers: OrderedDict[int, Report] = OrderedDict()
        self._next_look = 0.0
        # The notebook, and what it has been told on this connection.
        self._holder = 0
        self._was_held = False
        self._lease = home.read_lease()
        self._alone_since = time.monotonic()
        self._met = False
        self._greeted = -math.inf
        self._told = -1
        self._told_ready = False
        self._listener = listening_at(home.daemon_socket)
        self._listener.setblocking(False)  # noqa: FBT003 - positional only
        self._poller.register(self._listener, zmq.POLLIN)
        self._context = zmq.Context()
        self._link = home.read_link()
        self._rendezvous = Rendezvous(home, self._link, self._poller, self._faults)
        self._notebook = NotebookEnd(self._context, self._link, self._poller)

    def serve(self) -> NoReturn:
        """Serve until the world ends, and this process with it."""
        try:
            with self._going_on("the processes of an earlier daemon"):
                self._children.adopt_all()
            while not (self._over or self._lease_is_over()):
                # A step that has failed may have consumed the only notice of work that remains to be done.
                timeout, self._stumbled = 0.0 if self._stumbled else self._timeout(), False
                with self._going_on("a turn"):
                    self._turn(timeout)
                if self._stumbled:
                    time.sleep(_BACKOFF)
            if not (self._was_held or self._over):
                sys.stderr.write(_UNREACHED.format(self._link.address, self._grace()))
                self._failed = True
        finally:
            self._end()

    def _turn(self, timeout: float) -> None:
        """Wait until something happens, for so many seconds at most, and handle it."""
        if self._notebook.closed:
            with self._going_on("opening the link again"):
                self._notebook.open()
        ready = dict(self._poller.poll(math.ceil(timeout * 1000)))
        if self._woken.fileno() in ready:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
        with self._going_on("what the groups need"):
            self._rendezvous.serve(ready)
        if self._notebook.monitor in ready:
            with self._going_on("what the link's monitor told"):
                self._look_who_is_there()
        if self._notebook.link in ready:
            self._hear_notebook()
        if self._starts.channel is not None and self._starts.channel.fileno() in ready:
            with self._going_on("what the zygote sent"):
                self._hear_zygote()
        for source in ready:
            if self._children.is_watched(source):
                with self._going_on("an end"):
                    self._children.on_exit(source)
        if self._listener.fileno() in ready:
            with self._going_on("a connection"):
                self._tell_status()
        self._look()
        with self._going_on("starting a zygote"):
            if not self._over:
                self._starts.keep_zygote()
        with self._going_on("a start"):
            self._starts.go_on()
        with self._going_on("what the notebook is to know"):
            self._tell()

    def _going_on(self, what: str) -> AbstractContextManager[None]:
        """Return a context for a step that may fail: its error is logged, and another turn follows soon."""
        return self._faults.beside(f"the node's daemon failed in {what}", self._stumble)

    def _stumble(self, _: str) -> None:
        self._stumbled = True

    def _timeout(self) -> float:
        """Return the seconds until something is due."""
        limits = [_LONGEST_SLEEP]
        if self._children.due or self._notebook.closed:
            limits.append(_LOOK)
        if self._zygote.backoff is not None:
            limits.append(self._zygote.backoff)
        if self._notebook.connected and not self._holder:
            limits.append(max(0.0, self._greeted + _GREETING - time.monotonic()))
        if not self._holder:
            limits.append(max(0.0, self._alone_since + self._grace() - time.monotonic()))
        limits.append(max(0.0, self._rendezvous.due - time.monotonic()))
        return min(limits)

    # ── the lease ───────────────────────────────────────────────────────────────────────────────────

    def _grace(self) -> float:
        if not self._met:
            return max(_FIRST_VISIT, self._lease if self._is_inhabited else 0.0)
        return self._lease if self._is_inhabited else 0.0

    @property
    def _is_inhabited(self) -> bool:
        """Whether another notebook may want the world: its ranks may all be on other nodes."""
        return self._children.any or self._home.world_file.exists()

    def _lease_is_over(self) -> bool:
        return not self._holder and time.monotonic() - self._alone_since >= self._grace()

    def _ordered_to_end(self, *_: Any) -> None:
        self._over = True

    # ── the notebook ────────────────────────────────────────────────────────────────────────────────

    def _look_who_is_there(self) -> None:
        for there in self._notebook.looks_up():
            self._greet() if there else self._part()

    def _greet(self) -> None:
        self._greeted, self._told, self._told_ready = -math.inf, -1, False

    def _part(self) -> None:
        """Note that the notebook has gone, or its end of the link; what it has sent before may claim the world."""
        while self._hear_notebook():
            pass
        if self._holder:
            self._holder, self._alone_since = 0, time.monotonic()

    def _hear_notebook(self) -> bool:
        """Read what the notebook has sent; return whether there was anything."""
        heard = False
        with self._going_on("what the notebook sent"):
            for frames in self._notebook.receive():
                heard = True
                with self._going_on("an order of the notebook"):
                    self._deliver(frames[0].bytes)
        return heard

    def _deliver(self, frame: bytes) -> None:
        order: Order | None = None
        with suppress(msgspec.DecodeError):  # a newer notebook may give orders unknown to this version
            order = decode_order(frame)
        if order is not None:
            self._obey(order)

    def _tell(self) -> None:
        """Tell the notebook what it does not know yet."""
        if not self._notebook.connected:
            return
        if not self._holder:
            if time.monotonic() - self._greeted >= _GREETING:
                self._greeted = time.monotonic()
                self._report(NodeHello(self._number, self._rendezvous.generation, self._rendezvous.address))
            return
        if self._zygote.ready is not None and not self._told_ready:
            self._report(self._zygote.ready)
            self._told_ready = True
        if self._told != self._children.version:
            self._told = self._children.version
            self._report(Processes(self._told, self._children.table()))

    def _report(self, report: Report) -> None:
        self._notebook.send([encode(report)])

    def _tell_status(self) -> None:
        """Tell a process of this user that has connected which notebook steers the world."""
        with suppress(BlockingIOError):  # it has gone
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                connection.send(encode(self._status()), socket.MSG_DONTWAIT)  # a new connection takes so much

    def _status(self) -> NodeStatus:
        alone = 0.0 if self._holder else time.monotonic() - self._alone_since
        return NodeStatus(os.getpid(), self._holder, alone, self._lease)

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def _obey(self, order: Order) -> None:
        """Do what is ordered, and answer; an order that comes again is only answered again."""
        answer = self._answers.get(order.number)
        if answer is None:
            if isinstance(order, Start) and not self._children.knows(order.number):
                self._starts.order(order)  # it is answered when it is done
                return
            try:
                answer = self._do(order)
            except Exception as error:  # noqa: BLE001 - whatever it is, the notebook waits for an answer
                answer = Failed(order.number, str(error) or type(error).__name__)
        self._answer(order, answer)

    def _answer(self, order: Order, answer: Report) -> None:
        if not isinstance(order, Claim | Look):
            self._answers[order.number] = answer
            while len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        self._tell()  # what it is about comes before its answer
        self._report(answer)

    def _do(self, order: Order) -> Report:
        if isinstance(order, Start):
            pass  # an earlier daemon has done it, and could not answer
        elif isinstance(order, Claim):
            self._lease, self._holder = order.lease, order.pid
            self._was_held = self._met = True
            self._told, self._told_ready = -1, False
            self._children.adopt(order.living)
        elif isinstance(order, Look):
            self._compare(order)
        elif isinstance(order, Signal):
            self._starts.signal(order)
        elif isinstance(order, Shutdown):
            self._over = True
        else:
            return self._serve(order)
        return Obeyed(order.number)

    def _compare(self, order: Look) -> None:
        """See what has ended, and whether the notebook knows all that is known here."""
        self._reap()
        self._children.look()
        if order.version == self._children.version:
            self._children.forget_unsaid()
        else:
            self._told = -1

    def _serve(self, order: Order) -> Report:
        if isinstance(order, ReadLog):
            return LogTail(order.number, self._home.log_tail(order.key, order.lines))
        if isinstance(order, ReadFacts):
            return facts.of_node(order.number, self._home, self._link)
        assert isinstance(order, ServeGroups)  # noqa: S101 - for mypy
        return self._rendezvous.obey(order)

    def _hear_zygote(self) -> None:
        self._starts.hear()
        if self._starts.hopeless and not self._is_inhabited:
            self._over = self._failed = True

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        self._reap()
        if self._children.due and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            with self._going_on("a look at the processes"):
                self._children.look()

    def _reap(self) -> None:
        with self._going_on("a look at what has ended"):
            self._starts.reap()

    def _end(self) -> NoReturn:
        fork_signals.ignore()
        try:
            self._end_zygote()
            with self._going_on("ending all"):
                self._children.end_all()
            self._home.remove()
            if self._holder:
                self._report(Cleared())
            self._notebook.close()
        except BaseException:  # noqa: BLE001 - this process ends, whatever fails
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(1 if self._failed else 0)

    def _end_zygote(self) -> None:
        """End the zygote, and hear of all that it has forked."""
        self._zygote.kill()
        deadline = time.monotonic() + _LAST
        while self._zygote.channel is not None and time.monotonic() < deadline:
            with self._going_on("what the zygote sent"):
                for report in self._zygote.receive() or ():
                    if isinstance(report, Started):
                        self._children.add(report)
            time.sleep(_TICK)


def run(home: WorldDir, prepared: Callable[[], Ready] = prepare) -> NoReturn:
    """Serve a world, whose directory this process has as `HOME_VARIABLE`, too.

    Args:
        home: the directory.
        prepared: makes the first zygote ready for forks.
    """
    lock = DaemonLock(home.daemon_lock)
    try:
        lock.take_over()
        parenthood.adopt_orphans()
        zygote = Zygote(home, lock.close)
        # Before this process has a context of ZeroMQ, whose threads no fork survives.
        zygote.fork(prepared) if sys.platform == "linux" else zygote.start()
        daemon = Daemon(home, zygote, lock)
    except BaseException:  # noqa: BLE001 - an interrupt must not leave the directory either
        fork_signals.ignore()
        with suppress(OSError):  # the disk is full
            traceback.print_exc()
            sys.stderr.flush()
        if not is_inhabited(home):
            home.remove()
        os._exit(1)
    daemon.serve()


def is_inhabited(home: WorldDir) -> bool:
    """Tell whether an earlier daemon has started processes in this directory, which still need it."""
    return bool(written_down(home)) or home.world_file.exists()  # which may not be readable just now


def main() -> None:
    """Serve the world whose directory is the first argument."""
    home = WorldDir(sys.argv[1])
    os.environ[HOME_VARIABLE] = str(home.path)
    run(home)


if __name__ == "__main__":
    main()
