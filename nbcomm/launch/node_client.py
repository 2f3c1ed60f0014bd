"""The notebook's client of a node: its orders, and what is reported of the node's processes.

Orders go over the link to the node's agent, which passes most of them on to the fork server. Either may die, and be
replaced; so an order that is not answered is given again to the next agent, and each agent reports all that is known of
the processes when the world is claimed from it.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ..errors import Interrupted, StartError, StateError
from ..faults import Faults
from ..protocol import (
    Claim,
    Exited,
    Failed,
    ForkServerEnded,
    LogTail,
    Look,
    NodeFacts,
    NodeHello,
    Obeyed,
    Order,
    ReadFacts,
    ReadLog,
    Ready,
    Report,
    ServeStore,
    Shutdown,
    Signal,
    Start,
    Started,
    Unwatched,
)
from ..protocol.nodes import wired
from ..rank_spec import capital
from ..world_dir import WorldDir
from .forkserver_process import ForkServerProcess
from .link import Link
from .process_table import Process, ProcessTable
from .working_folder import to_start_in

_GONE = "The fork server of this world has ended; type %distributed heal to start another, or %distributed restart."

_TICK, _MOMENT = 0.05, 1.0
"""Seconds between two checks, and seconds in which a process that was told to end must do so."""

_SHORT = 0.3
"""Seconds in which an agent without a fork server must answer: who replaces one that is only slow loses nothing."""

_ANSWER = 10.0
"""Seconds that a node has to answer a short order; an agent that has just ended is replaced in tenths."""

_FENCE = 30.0
"""Seconds in which a program on the node must have ended what is left there."""

_START = 30.0
"""Seconds that a start may take."""

_SILENCE = 15.0
"""Seconds after which an agent that does not answer counts as gone, with the fork server: nobody replaces it."""


def _wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for what nobody tells of; return whether it came about."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TICK / 5)
    return True


def _why_not(answer: Report | None) -> str:
    """Tell why a short order was not done; None is no answer."""
    return answer.why if isinstance(answer, Failed) else f"no answer within {_ANSWER:g} s"


class NodeClient:
    """The notebook's client of the only node.

    Args:
        home: the world's directory, which must exist.
        running: the node's processes run already, started by another notebook.

    Raises:
        StateError: another notebook holds the world, or it has ended.

    Attributes:
        link: to the node's agent and its ranks.
        ready: what the fork server reported when it was ready; None before.
        processes: by key ("rank 3", "controller"), the process that was started last.
        unwatched: by key, why the fork server does not notice its end.
        agents: how many agents have been connected.
        store: the generation whose store the present one serves; 0 if it serves none.
    """

    def __init__(self, home: WorldDir, *, running: bool = False) -> None:
        self.home = home
        self.ready: Ready | None = None
        self.agents = 0
        self.store = 0
        self._store_order = 0
        self._agent = 0
        self._lease = home.read_lease()
        self._claim = 0
        self._claimed = self._gone = self._leaving = self._given_up = False
        self._asked = 0.0
        self._open: dict[int, Order] = {}
        self._answers: dict[int, Report | None] = {}  # to those who wait for one
        self._on_agent: Callable[[], None] = lambda: None
        self._faults = Faults()
        self._changed = threading.Condition()
        self._launching = threading.Lock()
        self._table = ProcessTable(self._changed, self._faults)
        self.processes, self.unwatched, self.watch = self._table.last, self._table.unwatched, self._table.watch
        try:
            self._hold()
            self._forkserver = ForkServerProcess(home, running=running)
            self._numbers = itertools.count(home.next_epoch())  # no order of another notebook has one of these
            with self._changed:  # an agent may greet at once, and is heard when there is a link to answer on
                self.link = Link(home, self._hear, self._table.is_present)
            if not running:
                try:
                    self.launch()
                except BaseException:
                    self.link.close()
                    raise
        except BaseException as error:
            home.let_go()
            if not running:
                home.remove()
            elif isinstance(error, FileNotFoundError):
                raise StateError(f"The world {home.id} has ended.") from None
            raise

    def _hold(self) -> None:
        if not self.home.hold():
            raise StateError(f"This world is in use by the notebook of process {self.home.holder()}.")

    def launch(self) -> None:
        """Start a fork server; it starts an agent, and takes over what an earlier one has started."""
        with self._changed:
            self.ready, self._gone, self._claimed = None, False, False
        self._forkserver.start()

    def replace_forkserver(self) -> None:
        """Start another fork server if there is none; call this from any thread."""
        with self._launching:
            if self.gone and not self._leaving:
                self.launch()

    @property
    def gone(self) -> bool:
        """Whether the fork server has ended."""
        if self._forkserver.is_ours:
            return self._forkserver.has_ended
        return self._gone or (self._unanswered and time.monotonic() - self._asked > _SILENCE)

    @property
    def _unanswered(self) -> bool:
        return self._asked > self.link.heard()

    @property
    def how(self) -> str:
        """How the fork server has ended, in words."""
        return self._forkserver.how

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait_ready(self, timeout: float, given_up: Callable[[], bool] = lambda: False) -> Ready:
        """Wait until the fork server has finished its imports and this notebook has claimed the world.

        Args:
            timeout: seconds.
            given_up: whether the caller has given up; checked all the time.

        Returns:
            The fork server's report.

        Raises:
            Interrupted: it was given up.
            StartError: it failed, or took longer than ``timeout`` seconds; the message contains its log.
        """
        with self._changed:
            self._await(lambda: (self.ready is not None and self._claimed) or self.gone, timeout, given_up)
            if self.ready is not None and self._claimed:
                return self.ready
        how = "ended" if self.gone else f"did not start within {timeout:g} s"
        raise StartError(f"The process that starts the ranks {how}. Its log ends:\n{self._forkserver.last_words()}")

    def wait_claimed(self, timeout: float) -> None:
        """Wait until the agent has reported all that is known of the processes, with or without a fork server.

        Raises:
            StartError: it has not.
        """
        with self._changed:
            self._await(lambda: self._claimed, timeout)
            if not self._claimed:
                raise StartError(f"The node of this world did not answer within {timeout:g} s.")

    def _await(
        self, condition: Callable[[], bool], timeout: float, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until a condition holds or the time is over. The caller holds ``_changed``."""
        deadline = time.monotonic() + timeout
        while not condition() and time.monotonic() < deadline:
            if given_up():
                raise Interrupted
            self._changed.wait(_TICK)

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def _order(self, order: Order) -> None:
        with self._changed:
            self._open[order.number] = order
        self.link.order(order)

    def _ask(self, order: Order, timeout: float, over: Callable[[], bool] = lambda: False) -> Report | None:
        """Give an order, and return its answer; None if there is none in time, or it is over."""
        with self._changed:
            self._answers[order.number] = None
        try:
            self._order(order)
            with self._changed:
                self._await(lambda: self._answers[order.number] is not None or over(), timeout)
                return self._answers[order.number]
        finally:  # also after ■: nobody waits for it any more, so no other agent gets it
            with self._changed:
                self._open.pop(order.number, None)
                del self._answers[order.number]

    def start(self, key: str, what: str, argv: list[str], *, environment: dict[str, str]) -> Process:
        """Let the node start a process.

        Raises:
            StartError: it was not started, or the start was abandoned (`give_up`); if it still starts, it is killed.
        """
        if self.gone:
            raise StartError(_GONE)
        self._given_up = False
        environment = {wired(name): wired(value) for name, value in environment.items()}
        order = Start(next(self._numbers), key, what, argv, environment, wired(to_start_in(self.home)))
        answer = self._ask(order, _START, lambda: self._given_up or self.gone)
        if isinstance(answer, Failed):
            raise StartError(f"{capital(key)} could not be started: {answer.why.rstrip('.')}.")
        with self._changed:
            process = self._table.started(order.number, key)
            if process is not None and answer is not None and not self._given_up:
                return process
        self._abandon(order.number, key)
        raise StartError(f"The fork server did not start {key}. Its log ends:\n{self._forkserver.last_words()}")

    def give_up(self) -> None:
        """Abandon the start that is in progress; call this from any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def abandon(self, key: str) -> None:
        """End the process that was started last for a key, and forget it: nobody wants it any more."""
        process = self.processes.get(key)
        if process is not None and process.exited is None:
            self._abandon(process.start, key)

    def _abandon(self, start: int, key: str) -> None:
        """Forget a start, and kill its process, also if that comes only now."""
        with self._changed:
            self._table.abandon(start, key)
        self._order(Signal(next(self._numbers), start, signal.SIGKILL))

    def signal(self, key: str, number: int) -> None:
        """Signal the process of a key, if it has not ended."""
        process = self.processes.get(key)
        if process is not None and process.exited is None:
            self._order(Signal(next(self._numbers), process.start, number))

    def look(self) -> None:
        """Ask a silent node for a word; where nobody is left to give it, start another fork server.

        Nobody tells that fork server and agent were killed. The next fork server takes over the ranks, which have kept
        what they have to say.
        """
        now, patience = time.monotonic(), _SHORT if self.gone else _MOMENT
        if self.ready is None or now - self.link.heard() < patience:
            return
        if not self._unanswered:
            self._asked = now
            self.link.order(Look(next(self._numbers)))
        elif now - self._asked > patience:
            self.replace_forkserver()

    def wait_for_ends(self, timeout: float) -> None:
        """Wait until all ends that the node can see now are reported."""
        self._ask(Look(next(self._numbers)), timeout)

    def log_tail(self, key: str, lines: int = 40) -> str:
        """Return the end of the log of a key's process."""
        answer = self._ask(ReadLog(next(self._numbers), key, lines), _ANSWER)
        return answer.text if isinstance(answer, LogTail) else "(the node does not answer)"

    def facts(self) -> NodeFacts:
        """Return what the node offers to ranks now.

        Raises:
            StartError: it does not answer.
        """
        answer = self._ask(ReadFacts(next(self._numbers)), _ANSWER)
        if not isinstance(answer, NodeFacts):
            raise StartError(
                f"The node could not tell its cores and memory: {_why_not(answer)}. Type %distributed restart."
            )
        return answer

    def serve_store(self, generation: int) -> None:
        """Let the node serve the rendezvous of a generation.

        Raises:
            StateError: it does not.
        """
        answer = self._ask(ServeStore(next(self._numbers), generation), _ANSWER)
        if not isinstance(answer, Obeyed):
            why = _why_not(answer)
            raise StateError(f"The node could not serve the ranks' store: {why}. Type %distributed heal to mend it.")

    def serve_store_again(self, generation: int) -> None:
        """Let another agent serve a store where the last one did; do not wait for it. Any thread may call this."""
        with self._changed:
            under_way = any(isinstance(order, ServeStore) for order in self._open.values())
        if not under_way and self.store != generation:
            self._order(ServeStore(next(self._numbers), generation))

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        self._lease = seconds
        self.home.write_lease(seconds)
        if self._agent:
            self._send_claim()

    def _send_claim(self) -> None:
        self._claim = next(self._numbers)
        self.link.order(Claim(self._claim, os.getpid(), self._lease))

    # ── those who want to know ──────────────────────────────────────────────────────────────────────

    def report_to(self, on_exit: Callable[[Exited], None], on_agent: Callable[[], None] = lambda: None) -> None:
        """Set the functions that get reports; pending ones are delivered at once.

        Args:
            on_exit: called when a process ends; mostly on the link's thread.
            on_agent: called there when another agent is connected: what only the last one had is lost.
        """
        self._on_agent = on_agent
        self._table.report_to(on_exit)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────

    def _leave(self) -> None:
        with self._launching:  # no fork server is started from now on
            self._leaving = True

    def release(self) -> None:
        """Release the world without ending it; its lease runs from now on."""
        self._leave()
        self.link.close()
        self.home.let_go()
        self._forkserver.close()

    def shutdown(self, timeout: float = 10.0) -> None:
        """End every process of the world, and wait until its directory is removed."""
        self._leave()
        if self.ready is None and self._forkserver.is_ours and not self.processes:
            self._forkserver.kill()  # it is importing and hears nothing; its agent ends with it
            self.home.remove()
        else:
            self._end_world(timeout)
        self.link.close()
        self.home.let_go()
        self._forkserver.close()
        self.home.remove()  # the node did this, unless it was killed

    def _end_world(self, timeout: float) -> None:
        self._order(Shutdown(next(self._numbers)))
        # A fork server that has not answered a start will not answer within ten seconds, and an agent alone is quick.
        ended = self._has_ended(_MOMENT if self._table.abandoned or self.gone else timeout)
        if not ended and self._forkserver.is_ours:
            self._forkserver.kill()
            self._order(Shutdown(next(self._numbers)))  # the agent does it now
            ended = self._has_ended(_MOMENT)
        if not ended:  # neither can: they were killed, or do not react
            with self._faults.beside("what the node has left could not be ended"):
                command = [sys.executable, "-m", "nbcomm.node.fence", str(self.home.path)]
                subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_FENCE, check=True)  # noqa: S603

    def _has_ended(self, timeout: float) -> bool:
        """Wait until the node has removed the directory, and its fork server has ended."""
        server = self._forkserver
        return _wait_until(lambda: not self.home.path.exists() and (server.has_ended or not server.is_ours), timeout)

    # ── on the link's thread ────────────────────────────────────────────────────────────────────────

    def _hear(self, report: Report) -> None:
        if isinstance(report, NodeHello):
            self._meet(report)
        elif isinstance(report, Exited):
            self._table.note_end(report)
        else:
            with self._changed:
                self._note(report)
                self._changed.notify_all()

    def _meet(self, hello: NodeHello) -> None:
        """Claim the world from an agent, and give it the orders that are not answered."""
        with self._changed:
            is_new, self._agent = hello.agent != self._agent, hello.agent
            self.agents += is_new
            self.store = hello.store
            self._claimed = False
            orders = list(self._open.values())
        if self._leaving and not orders:
            return
        self._send_claim()
        for order in orders:
            self.link.order(order)
        self.link.greet()
        if is_new and self.agents > 1:
            with self._faults.beside("another agent could not be noted"):
                self._on_agent()

    def _note(self, report: Report) -> None:
        if isinstance(report, Ready):
            self.ready, self._gone = report, False
        elif isinstance(report, ForkServerEnded):
            self._gone = True
        elif isinstance(report, Started):
            self._table.note_start(report)
        elif isinstance(report, Unwatched):
            self._table.note_unwatched(report)
        elif isinstance(report, Obeyed | Failed | LogTail | NodeFacts):
            if report.number == self._claim:
                self._claimed = True
            elif order := self._open.pop(report.number, None):
                if report.number in self._answers:
                    self._answers[report.number] = report
                if isinstance(order, ServeStore) and report.number > self._store_order:
                    self._store_order = report.number
                    self.store = order.generation if isinstance(report, Obeyed) else 0  # the last one was ended before
