"""The notebook's client of a node: its orders, and what is reported of the node's processes.

Orders go over the link to the node's daemon. That may die, and is replaced; so an order that is not answered is given
again to the next one. What the daemon knows of the processes is a table with a version: each look compares it. What a
node's daemon is to the notebook depends on where it runs: see `Daemon`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import zmq
from msgspec import structs

from ..errors import Interrupted, StartError
from ..faults import Faults, take_all
from ..protocol import (
    Claim,
    Cleared,
    Exited,
    Failed,
    LogTail,
    Look,
    NodeFacts,
    NodeHello,
    Obeyed,
    Processes,
    ReadFacts,
    ReadLog,
    Ready,
    Report,
    Serving,
    Shutdown,
    Signal,
    Start,
    Started,
)
from ..protocol.nodes import rank_of, wired
from ..rank_spec import capital
from ..threads import keep
from ..world_info import without_prologue
from .dead_nodes import await_end
from .launchers.daemon import Daemon
from .link import Link
from .orders import Orders, why_not
from .process_table import Process, ProcessTable
from .served import Served

BACK = "Type %distributed heal when it is back, or %distributed restart."
"""What to do about a node that was lost."""

_Answer = Obeyed | Failed | Serving | LogTail | NodeFacts
"""What answers an order."""

_TICK, _MOMENT = 0.01, 1.0
"""Seconds between two checks, and seconds in which a process that was told to end must do so."""

_FENCE = 30.0
"""Seconds in which a program on the node must have ended what is left there."""

_LATER = 10.0
"""Seconds by which a node may notice later than this notebook that it is left."""

_START = 60.0
"""Seconds that a start may take: a zygote that is new imports torch before."""

_PROGRAM_DOES = 3.0
"""Seconds in which a node's program starts another daemon, unless the last one was stopped."""

_SILENCE = 15.0
"""Seconds after which a daemon that does not answer counts as gone, where its process cannot be seen from here."""

_COMES, _PAUSE, _LONGEST = 15.0, 1.0, 30.0
"""Seconds in which one that was started must speak; and between two starts of such as end at once, at first and at
most: each takes a moment of a core."""


def _logged(said: str) -> str:
    """Return the end of a log as a sentence."""
    return f"Its log ends:\n{said.rstrip()}" if said.strip() else "It has written nothing."


def _wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for what nobody tells of; return whether it came about."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TICK)
    return True


class NodeClient:
    """The notebook's client of one node. It has nobody to speak to before ``link`` is set.

    Args:
        number: of the node, on the link.
        server: the node's daemon.
        numbers: gives each order a number that no other order of this world has.
        lease: seconds that the world lives without a notebook.

    Attributes:
        number: as above; so is ``lease``.
        link: to the node's daemon and its ranks.
        where: what tells it from the others in a sentence: " of node 1 (host)"; empty where there is only one.
        lost: why all of its processes count as dead: "does not answer"; empty as long as they do not.
        ready: what the daemon reported when it was ready; None before.
        processes: by key ("rank 3", "controller"), the process that was started last.
        daemons: how many of them have been connected.
        told: what `facts` returned last; None before.
        ahead: seconds by which its machine's clock is ahead of this one's, as `facts` has measured it.
        served: what its daemon serves of the groups.
        doubt: called when the node has ended, and this notebook has not told it to; returns the seconds within which
            somebody else calls `lose` if the machine was taken back.
    """

    link: Link

    def __init__(self, number: int, server: Daemon, numbers: Iterator[int], lease: float) -> None:
        self.number = number
        self.where = ""
        self.lost = ""
        self._losing = False
        self.ready: Ready | None = None
        self.daemons = 0
        self._daemon = 0
        self.lease = lease
        self._claim = 0
        self._claimed = self._leaving = self._cleared = self._is_deaf = False
        self._asked = self._launched = 0.0
        self._pause = _PAUSE
        self._on_daemon: Callable[[], None] = lambda: None
        self._faults = Faults()
        self._changed = threading.Condition()
        self._launching = threading.Lock()
        self._server = server
        self._orders = Orders(lambda order: self.link.order(order, number), numbers, self._changed, self._look_asking)
        self.served = Served(self._orders, self._changed, self._why_lost)
        self._table = ProcessTable(self._changed, self._faults)
        self.processes = self._table.last
        self.tell = self._table.tell
        self.told: NodeFacts | None = None
        self.ahead = 0.0
        self.doubt: Callable[[], float] = lambda: 0.0

    def launch(self) -> None:
        """Start a daemon, which takes over what an earlier one has started."""
        with self._changed:
            if self.lost:
                self.ready = None  # nothing is left there
            self._claimed, self.lost = False, ""
            self._launched, self._asked = time.monotonic(), 0.0
        self._server.start()

    @property
    def claimed(self) -> bool:
        """Whether the daemon has reported all that is known of the processes, and it was taken over."""
        return self._claimed and self._table.version >= 0

    def replace_daemon(self, *, now: bool = False) -> None:
        """Start another daemon, unless one is about to come; call this from any thread.

        Args:
            now: do it at once if the last one has ended, whenever it was started.
        """
        with self._launching:
            has_spoken = self.link.heard(self.number) > self._launched
            backoff = 0.0 if has_spoken or (now and self.gone) else self._pause if self.gone else _COMES
            if not self._leaving and time.monotonic() - self._launched >= backoff:
                self._pause = min(_LONGEST, 2 * self._pause)  # until it has come
                self.launch()

    @property
    def gone(self) -> bool:
        """Whether the daemon has ended."""
        server = self._server
        if self.lost:
            return True
        if server.is_ours and not (server.is_cut_off and self.ready is not None):  # else only its answers can tell
            return server.has_ended
        return self._unanswered and time.monotonic() - self._asked > _SILENCE

    @property
    def without_heal(self) -> str:
        """Why nothing can be started there any more, and what to do, in sentences; empty where `heal` may do it."""
        return self._server.without_heal if self.gone else ""

    @property
    def _unanswered(self) -> bool:
        return self._asked > self.link.heard(self.number)

    def _why_lost(self) -> str:
        """Return what has happened to a node that will not answer, and what to do; empty as long as it may."""
        return f"it {self.lost}. {self.without_heal or BACK}" if self.lost else ""

    @property
    def name(self) -> str:
        """What tells it from the others: "node 1 (host)"; empty where there is only one."""
        return self.where.removeprefix(" of ")

    @property
    def how(self) -> str:
        """How the daemon has ended, in words."""
        return self._server.how

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait_ready(self, timeout: float, given_up: Callable[[], bool] = lambda: False) -> Ready:
        """Wait until ranks can be started, and this notebook has claimed the world.

        Args:
            timeout: seconds.
            given_up: whether the caller has given up; checked all the time.

        Returns:
            What the zygote has reported after its imports.

        Raises:
            Interrupted: it was given up.
            StartError: it failed, or took longer than ``timeout`` seconds; the message contains its log.
        """
        self._orders.wait(lambda: (self.ready is not None and self.claimed) or self.gone, timeout, given_up)
        ready = self.ready
        if ready is not None and self.claimed:
            return ready
        raise self._failure(timeout)

    def wait_claimed(self, timeout: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until the daemon has reported all that is known of the processes; arguments as for `wait_ready`.

        Raises:
            Interrupted: it was given up.
            StartError: it has not.
        """
        self._orders.wait(lambda: self.claimed or (self._server.is_ours and self.gone), timeout, given_up)
        if self.claimed:
            return
        if self._server.is_ours:
            raise self._failure(timeout)
        raise StartError(f"The node of this world did not answer within {timeout:g} s.")

    def _failure(self, timeout: float) -> StartError:
        """Return the error of a daemon that has not come."""
        server = self._server
        if self.gone and server.starter:
            what = f"{server.starter} {server.how} before all nodes had joined"
        else:
            how = "ended" if self.gone else f"did not start within {timeout:.3g} s"
            what = f"The process that starts the ranks{self.where} {how}"
        failed, said = without_prologue(server.last_words())
        return StartError(f"{what}{f': {failed}' if failed else ''}. {_logged(said)}")

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        key: str,
        what: str,
        argv: list[str],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        given_up: Callable[[], bool] = lambda: False,
    ) -> Process:
        """Let the node start a process; see `new_start` and `start_all`."""
        (process,) = start_all([(self, self.new_start(key, what, argv, environment))], given_up)
        return process

    def new_start(
        self, key: str, what: str, argv: list[str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> Start:
        """Return the order to start a process, for `start_all`.

        Args:
            key: "rank 3" or "controller".
            what: "engine" or "controller".
            argv: its arguments.
            environment: variables beside those that processes of the node have anyway.

        Raises:
            StartError: nobody could do it.
        """
        if self.gone:
            remedy = self.without_heal or "Type %distributed heal to start another, or %distributed restart."
            raise StartError(f"The daemon{self.where or ' of this world'} {self.how}. {remedy}")
        server = self._server
        environment = {wired(name): wired(value) for name, value in server.environment(environment).items()}
        folder = wired(server.working_folder())
        order = Start(self._orders.number(), key, what, argv, environment, folder, adds=server.is_remote)
        rank = rank_of(key)
        if rank is None:
            return order
        public, secret = (half.decode() for half in zmq.curve_keypair())
        self.link.admit(rank, order.number, public)
        return structs.replace(order, public=public, secret=secret)

    def give_start(self, order: Start) -> None:
        """Order a process."""
        self._orders.give(order, asks=True)

    def await_start(self, order: Start, given_up: Callable[[], bool]) -> Process:
        """Wait for a process that was ordered; see `start_all`."""
        self._is_deaf = True  # as long as it does not answer, also if ■ ends the wait
        answer = self._orders.answer(order, _START, lambda: given_up() or self.gone, looks=False)
        self._is_deaf = answer is None
        if given_up():
            raise Interrupted
        if isinstance(answer, Failed):
            raise StartError(f"{capital(order.key)} could not be started: {answer.why.rstrip('.')}.")
        with self._changed:
            process = self._table.started(order.number, order.key)
            if process is not None and answer is not None:
                return process
        said = self._server.last_words()
        raise StartError(f"The daemon{self.where} did not start {order.key}. {_logged(said)}")

    def end_start(self, order: Start, *, wanted: bool) -> None:
        """Wait no more for a process that was ordered; one that is not wanted is killed, also if it comes only now."""
        self._orders.forget(order)
        if not wanted:
            self._abandon(order.number, order.key)

    def abandon(self, key: str) -> None:
        """End the process that was started last for a key, and forget it: nobody wants it any more."""
        process = self.processes.get(key)
        if process is not None:
            self._abandon(process.start, key)

    def _abandon(self, start: int, key: str) -> None:
        """Forget a start, and kill its process, also if that comes only now."""
        with self._changed:
            self._table.abandon(start, key)
        self._dismiss(start, key)
        self._orders.give(Signal(self._orders.number(), start, signal.SIGKILL))

    def signal(self, key: str, number: int) -> None:
        """Signal the process of a key, if it has not ended."""
        process = self.processes.get(key)
        if process is not None and process.exited is None:
            self._orders.give(Signal(self._orders.number(), process.start, number))

    def look(self) -> None:
        """Compare what is known here with what the node knows; where nobody answers, start another daemon.

        Nobody tells that a daemon was killed. The next one takes over the ranks, which have kept what they have to say.
        """
        now = time.monotonic()
        if self.ready is None or self.lost:
            return
        if self.gone and not self._server.is_far:
            self.replace_daemon()
        elif now - self.link.heard(self.number) < _MOMENT:
            pass
        elif not self._unanswered:
            self._asked = now
            self.link.order(Look(self._orders.number(), self._table.version), self.number)
        elif self._server.is_far:
            if now - self._asked > _SILENCE and not self._losing:
                self._losing = True
                keep("nbcomm-dead-node", self._lose, self._faults, again=0)
        elif now - self._asked > (_PROGRAM_DOES if self._server.is_remote else _MOMENT):
            self.replace_daemon()

    def _look_asking(self) -> bool:
        """Look after the daemon for who waits; return whether one that was started has not spoken yet."""
        with self._faults.beside("another daemon could not be started"):  # who asks is told that nobody answers
            self.look()
        return self._launched > self.link.heard(self.number)

    def _lose(self) -> None:
        """Declare the processes of a node dead that does not answer, as soon as they surely are."""
        try:
            ended = await_end(self._server, lambda: self.link.heard(self.number), self.lease, lambda: self._leaving)
            if not ended or self._leaving:
                return
            self.lose("does not answer")
        finally:
            self._losing = False

    def _lose_cleared(self, timeout: float) -> None:
        """Declare the processes dead of a node that somebody else has told to end, unless it is soon said who."""
        if timeout:
            keep("nbcomm-dead-node", partial(self._await_reason, timeout), self._faults, again=0)
        else:
            self.lose("was told to end")

    def _await_reason(self, timeout: float) -> None:
        if not _wait_until(lambda: bool(self.lost) or self._leaving, timeout):
            self.lose("was told to end")

    def lose(self, why: str) -> None:
        """Declare the node's processes dead, for nothing can live there any more.

        Args:
            why: what has happened to the node, in words: "does not answer".
        """
        self.lost = why
        why = f"was lost with {self.name or 'the daemon'}, which {why}"
        for key, process in list(self.processes.items()):
            if process.exited is None:
                self._note_end(Exited(process.start, key, process.pid, None, why=why))

    def _note_end(self, ended: Exited) -> None:
        take_all(partial(self._dismiss, ended.start, ended.key), partial(self._table.note_end, ended))

    def _dismiss(self, start: int, key: str) -> None:
        """Listen no more to the process of a start."""
        rank = rank_of(key)
        if rank is not None:
            self.link.dismiss(rank, start)

    def wait_for_ends(self, timeout: float) -> None:
        """Wait until all ends that the node can see now are reported."""
        self._orders.ask(Look(self._orders.number(), self._table.version), timeout)

    def log_tail(self, key: str, lines: int = 40) -> str:
        """Return the end of the log of a key's process."""
        if self.lost:
            return "(its machine does not answer)"
        answer = self._orders.ask(ReadLog(self._orders.number(), key, lines))
        return answer.text if isinstance(answer, LogTail) else "(the node does not answer)"

    def facts(self) -> NodeFacts:
        """Return what the node offers to ranks now.

        Raises:
            StartError: it does not answer.
        """
        asked = time.time()
        answer = self._orders.ask(ReadFacts(self._orders.number()))
        if isinstance(answer, NodeFacts):
            self.told = answer
            # It has told the time about half way between question and answer (Cristian 1989).
            self.ahead = answer.clock - (asked + time.time()) / 2 if self._server.is_far else 0.0
        else:
            raise StartError(
                f"The node could not tell its cores and memory: {why_not(answer)}. Type %distributed restart."
            )
        return answer

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        self.lease = seconds
        if self._daemon:
            self._send_claim()

    def _send_claim(self) -> None:
        self._claim = self._orders.number()
        self.link.order(Claim(self._claim, os.getpid(), self.lease, self._table.living()), self.number)

    # ── those who want to know ──────────────────────────────────────────────────────────────────────

    def report_to(self, on_exit: Callable[[Exited], None], on_daemon: Callable[[], None] = lambda: None) -> None:
        """Set the functions that get reports; pending ones are delivered at once.

        Args:
            on_exit: called when a process ends; mostly on the link's thread.
            on_daemon: called there when another daemon is connected: what only the last one had is lost.
        """
        self._on_daemon = on_daemon
        self._table.report_to(on_exit)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Start no daemon from now on, and claim the world from no daemon that has nothing to do."""
        with self._launching:
            self._leaving = True

    def end(self, timeout: float) -> None:
        """End every process of the world on the node, and wait until its directory is removed."""
        with self._faults.beside("the node could not be told to end"):
            if self.lost or self._is_told_to_end(timeout):
                return
        self._fence()  # neither can: they were killed, or do not react

    def _is_told_to_end(self, timeout: float) -> bool:
        """Let the daemon end the node; return whether it has ended."""
        server = self._server
        if not self.daemons and server.is_ours:
            joins = not server.has_ended
            server.kill()  # it hears nothing yet; its zygote ends with it
            if joins and server.is_far:  # what has ended is only the way to it
                self._fence()
            return True
        self._orders.give(Shutdown(self._orders.number()))
        # One that has not answered a start will not answer within ten seconds.
        ended = self._has_ended(_MOMENT if self._is_deaf or self.gone else timeout)
        if not ended and server.is_ours:
            server.kill()
        return ended

    def _fence(self) -> None:
        """End what is left there by another program; if that cannot be done, the node ends it itself in the end."""
        with self._faults.beside("what the node has left could not be ended"):
            try:
                self._server.fence(_FENCE, [started.pid for started in self._table.living()])
            except StartError as error:
                if self.daemons:  # else there was hardly anything, and its start has told why
                    sys.stderr.write(
                        f"nbcomm: {capital(self.name or 'the daemon')} did not say whether all of its processes "
                        f"have ended; those that still run end by themselves within {self.lease + _LATER:g} s. "
                        f"The reason: {error}.\n"
                    )

    def _has_ended(self, timeout: float) -> bool:
        """Wait until the node has removed the directory, and its daemon has ended."""
        server = self._server

        def ended() -> bool:
            seen = server.is_ours and not server.is_cut_off  # else only the daemon's last words tell
            return server.has_cleared or (self._cleared and not seen)

        return _wait_until(ended, timeout)

    def close(self) -> None:
        """Close what was opened to see the daemon."""
        self._server.close()

    # ── on the link's thread ────────────────────────────────────────────────────────────────────────

    def hear(self, report: Report) -> None:
        """Take a report of the node."""
        if isinstance(report, NodeHello):
            self._meet(report)
        elif isinstance(report, Processes):
            self._compare(report)
        else:
            with self._changed:
                self._note(report)
                self._changed.notify_all()
            if isinstance(report, Cleared) and not self._leaving:
                self._lose_cleared(self.doubt())

    def _compare(self, known: Processes) -> None:
        """Take over what the node knows of its processes, and listen to those that are ranks."""
        ended = [report for report in known.table if isinstance(report, Exited)]
        take_all(
            *(partial(self._dismiss, report.start, report.key) for report in ended),
            partial(self._table.compare, known.table),
        )
        for report in known.table:
            rank = rank_of(report.key)
            process = self._table.started(report.start, report.key)
            if rank is not None and isinstance(report, Started) and process is not None and process.exited is None:
                self.link.admit(rank, report.start, report.public)
        self._table.version = known.version

    def _meet(self, hello: NodeHello) -> None:
        """Claim the world from a daemon, and give it the orders that are not answered."""
        with self._changed:
            is_new, self._daemon = hello.daemon != self._daemon, hello.daemon
            self.daemons += is_new
            self.served.meet(hello)
            self._claimed, self._pause = False, _PAUSE
            self._table.version = -1  # another daemon counts anew
            orders = self._orders.open
        if self._leaving and not orders:
            return
        self._send_claim()
        for order in orders:
            self.link.order(order, self.number)
        if is_new and self.daemons > 1:
            with self._faults.beside("another daemon could not be noted"):
                self._on_daemon()

    def _note(self, report: Report) -> None:
        if isinstance(report, Ready):
            self.ready = report
        elif isinstance(report, Cleared):
            self._cleared = True
        elif isinstance(report, _Answer):
            if report.number == self._claim:
                self._claimed = True
                return
            self.served.note(self._orders.note(report.number, report), report)


def start_all(
    wanted: Sequence[tuple[NodeClient, Start]], given_up: Callable[[], bool] = lambda: False
) -> list[Process]:
    """Let nodes start processes: all are ordered before the first is waited for.

    Args:
        wanted: the node of each, with the order that its `NodeClient.new_start` has returned.
        given_up: whether nobody wants them any more; checked all the time.

    Raises:
        Interrupted: it was given up. None of them is left; those that still start are killed.
        StartError: one of them was not started, and the others are not left either.
    """
    is_done = False
    try:
        for node, order in wanted:
            node.give_start(order)
        made = [node.await_start(order, given_up) for node, order in wanted]
        is_done = True
        return made
    finally:
        for node, order in wanted:
            node.end_start(order, wanted=is_done)
