"""The notebook's client of a node: its orders, and what is reported of the node's processes.

Orders go over the link to the node's agent, which passes most of them on to the fork server. Either may die, and be
replaced; so an order that is not answered is given again to the next agent, and each agent reports all that is known of
the processes when the world is claimed from it. What a node's fork server is to the notebook depends on where it runs:
see `ForkServer`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ..errors import Interrupted, StartError
from ..faults import Faults
from ..protocol import (
    Claim,
    Cleared,
    Exited,
    Failed,
    ForkServerEnded,
    LogTail,
    Look,
    MirrorDoor,
    NodeFacts,
    NodeHello,
    Obeyed,
    ReadFacts,
    ReadLog,
    Ready,
    Report,
    Shutdown,
    Signal,
    Start,
    Started,
    StoreDoor,
    Unwatched,
)
from ..protocol.nodes import wired
from ..rank_spec import capital
from ..threads import keep
from ..world_info import without_prologue
from .absence import await_end
from .link import Link
from .meeting_place import MeetingPlace
from .orders import Orders, why_not
from .process_table import Process, ProcessTable
from .ways.fork_server import ForkServer

BACK = "Type %distributed heal when it is back, or %distributed restart."
"""What to do about a node that was lost."""

_Answer = Obeyed | Failed | StoreDoor | MirrorDoor | LogTail | NodeFacts
"""What answers an order."""

_TICK, _MOMENT = 0.01, 1.0
"""Seconds between two checks, and seconds in which a process that was told to end must do so."""

_SHORT = 0.3
"""Seconds in which an agent without a fork server must answer: who replaces one that is only slow loses nothing."""

_FENCE = 30.0
"""Seconds in which a program on the node must have ended what is left there."""

_LATER = 10.0
"""Seconds by which a node may notice later than this notebook that it is left."""

_START = 30.0
"""Seconds that a start may take."""

_SILENCE = 15.0
"""Seconds after which an agent that does not answer counts as gone, with the fork server: nobody replaces it."""


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
        server: the node's fork server.
        numbers: gives each order a number that no other order of this world has.
        lease: seconds that the world lives without a notebook.

    Attributes:
        number: as above; so is ``lease``.
        link: to the node's agent and its ranks.
        where: what tells it from the others in a sentence: " of node 1 (host)"; empty where there is only one.
        lost: why all of its processes count as dead: "does not answer"; empty as long as they do not.
        ready: what the fork server reported when it was ready; None before.
        processes: by key ("rank 3", "controller"), the process that was started last.
        unwatched: by key, why the fork server does not notice its end.
        agents: how many agents have been connected.
        told: what `facts` returned last; None before.
        ahead: seconds by which its machine's clock is ahead of this one's, as `facts` has measured it.
        meeting: where its ranks meet.
    """

    link: Link

    def __init__(self, number: int, server: ForkServer, numbers: Iterator[int], lease: float) -> None:
        self.number = number
        self.where = ""
        self.lost = ""
        self._losing = False
        self.ready: Ready | None = None
        self.agents = 0
        self._agent = 0
        self.lease = lease
        self._claim = 0
        self._claimed = self._gone = self._leaving = self._cleared = self._is_deaf = False
        self._asked = 0.0
        self._on_agent: Callable[[], None] = lambda: None
        self._faults = Faults()
        self._changed = threading.Condition()
        self._launching = threading.Lock()
        self._forkserver = server
        self._orders = Orders(lambda order: self.link.order(order, number), numbers, self._changed)
        self.meeting = MeetingPlace(self._orders, self._changed, self._why_lost)
        self._table = ProcessTable(self._changed, self._faults)
        self.processes, self.unwatched = self._table.last, self._table.unwatched
        self.is_present = self._table.is_present
        self.told: NodeFacts | None = None
        self.ahead = 0.0

    def launch(self) -> None:
        """Start a fork server; it starts an agent, and takes over what an earlier one has started."""
        with self._changed:
            self.ready, self._gone, self._claimed, self.lost = None, False, False, ""
        self._forkserver.start()

    def replace_forkserver(self) -> None:
        """Start another fork server if there is none; call this from any thread."""
        with self._launching:
            if self.gone and not self._leaving:
                self.launch()

    @property
    def gone(self) -> bool:
        """Whether the fork server has ended."""
        server = self._forkserver
        if self.lost:
            return True
        if server.is_ours and not (server.is_cut_off and self.ready is not None):  # else only its agent can tell
            return server.has_ended or (server.is_elsewhere and self._gone)  # its program stays while its agent lives
        return self._gone or (self._unanswered and time.monotonic() - self._asked > _SILENCE)

    @property
    def without_heal(self) -> str:
        """Why nothing can be started there any more, and what to do, in sentences; empty where `heal` may do it."""
        return self._forkserver.without_heal if self.gone else ""

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
            self._orders.wait(lambda: (self.ready is not None and self._claimed) or self.gone, timeout, given_up)
            if self.ready is not None and self._claimed:
                return self.ready
        server = self._forkserver
        if self.gone and server.starter:
            what = f"{server.starter} {server.how} before all nodes had joined"
        else:
            how = "ended" if self.gone else f"did not start within {timeout:.3g} s"
            what = f"The process that starts the ranks{self.where} {how}"
        failed, said = without_prologue(server.last_words())
        raise StartError(f"{what}{f': {failed}' if failed else ''}. {_logged(said)}")

    def wait_claimed(self, timeout: float) -> None:
        """Wait until the agent has reported all that is known of the processes, with or without a fork server.

        Raises:
            StartError: it has not.
        """
        with self._changed:
            self._orders.wait(lambda: self._claimed, timeout)
            if not self._claimed:
                raise StartError(f"The node of this world did not answer within {timeout:g} s.")

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
            raise StartError(f"The fork server{self.where or ' of this world'} {self.how}. {remedy}")
        server = self._forkserver
        environment = {wired(name): wired(value) for name, value in server.environment(environment).items()}
        folder = wired(server.working_folder())
        return Start(self._orders.number(), key, what, argv, environment, folder, adds=server.is_elsewhere)

    def give_start(self, order: Start) -> None:
        """Order a process."""
        self._orders.give(order, asks=True)

    def await_start(self, order: Start, given_up: Callable[[], bool]) -> Process:
        """Wait for a process that was ordered; see `start_all`."""
        self._is_deaf = True  # as long as it does not answer, also if ■ ends the wait
        answer = self._orders.answer(order, _START, lambda: given_up() or self.gone)
        self._is_deaf = answer is None
        if given_up():
            raise Interrupted
        if isinstance(answer, Failed):
            raise StartError(f"{capital(order.key)} could not be started: {answer.why.rstrip('.')}.")
        with self._changed:
            process = self._table.started(order.number, order.key)
            if process is not None and answer is not None:
                return process
        said = self._forkserver.last_words()
        raise StartError(f"The fork server{self.where} did not start {order.key}. {_logged(said)}")

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
        self._orders.give(Signal(self._orders.number(), start, signal.SIGKILL))

    def signal(self, key: str, number: int) -> None:
        """Signal the process of a key, if it has not ended."""
        process = self.processes.get(key)
        if process is not None and process.exited is None:
            self._orders.give(Signal(self._orders.number(), process.start, number))

    def look(self) -> None:
        """Ask a silent node for a word; where nobody is left to give it, start another fork server.

        Nobody tells that fork server and agent were killed. The next fork server takes over the ranks, which have kept
        what they have to say.
        """
        now, patience = time.monotonic(), _SHORT if self.gone else _MOMENT
        if self.ready is None or self.lost or now - self.link.heard(self.number) < patience:
            return
        if not self._unanswered:
            self._asked = now
            self.link.order(Look(self._orders.number()), self.number)
        elif self._forkserver.is_far:
            if now - self._asked > _SILENCE and not self._losing:
                self._losing = True
                keep("nbcomm-absence", self._lose, self._faults, again=0)
        elif now - self._asked > patience:
            self.replace_forkserver()

    def _lose(self) -> None:
        """Declare the processes of a node dead that does not answer, as soon as they surely are."""
        try:
            ended = await_end(self._forkserver, lambda: self.link.heard(self.number), self.lease, lambda: self._leaving)
            if not ended or self._leaving:
                return
            self.lose("does not answer")
        finally:
            self._losing = False

    def lose(self, why: str) -> None:
        """Declare the node's processes dead, for nothing can live there any more.

        Args:
            why: what has happened to the node, in words: "does not answer".
        """
        self.lost = why
        why = f"was lost with {self.name or 'the fork server'}, which {why}"
        for key, process in list(self.processes.items()):
            if process.exited is None:
                self._table.note_end(Exited(process.start, key, process.pid, None, why=why))

    def wait_for_ends(self, timeout: float) -> None:
        """Wait until all ends that the node can see now are reported."""
        self._orders.ask(Look(self._orders.number()), timeout)

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
            self.ahead = answer.clock - (asked + time.time()) / 2 if self._forkserver.is_far else 0.0
        else:
            raise StartError(
                f"The node could not tell its cores and memory: {why_not(answer)}. Type %distributed restart."
            )
        return answer

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        self.lease = seconds
        if self._agent:
            self._send_claim()

    def _send_claim(self) -> None:
        self._claim = self._orders.number()
        self.link.order(Claim(self._claim, os.getpid(), self.lease, self._table.living()), self.number)

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

    def leave(self) -> None:
        """Start no fork server from now on, and claim the world from no agent that has nothing to do."""
        with self._launching:
            self._leaving = True

    def end(self, timeout: float) -> None:
        """End every process of the world on the node, and wait until its directory is removed."""
        with self._faults.beside("the node could not be told to end"):
            if self.lost or self._is_told_to_end(timeout):
                return
        self._fence()  # neither can: they were killed, or do not react

    def _is_told_to_end(self, timeout: float) -> bool:
        """Let the fork server, or else the agent, end the node; return whether it has ended."""
        server = self._forkserver
        if self.ready is None and server.is_ours and not self.processes:
            joins = not server.has_ended
            server.kill()  # it is importing and hears nothing; its agent ends with it
            if joins and server.is_far:  # what has ended is only the way to it
                self._fence()
            return True
        self._orders.give(Shutdown(self._orders.number()))
        # A fork server that has not answered a start will not answer within ten seconds, and an agent alone is quick.
        ended = self._has_ended(_MOMENT if self._is_deaf or self.gone else timeout)
        if not ended and self._forkserver.is_ours:
            self._forkserver.kill()
            self._orders.give(Shutdown(self._orders.number()))  # the agent does it now
            ended = self._has_ended(_MOMENT)
        return ended

    def _fence(self) -> None:
        """End what is left there by another program; if that cannot be done, the node ends it itself in the end."""
        with self._faults.beside("what the node has left could not be ended"):
            try:
                self._forkserver.fence(_FENCE, [started.pid for started in self._table.living()])
            except StartError as error:
                if self.agents:  # else there was hardly anything, and its start has told why
                    sys.stderr.write(
                        f"nbcomm: {capital(self.name or 'the fork server')} did not tell whether all of its processes "
                        f"have ended; what is left ends by itself within {self.lease + _LATER:g} s. The reason: "
                        f"{error}.\n"
                    )

    def _has_ended(self, timeout: float) -> bool:
        """Wait until the node has removed the directory, and its fork server has ended."""
        server = self._forkserver

        def ended() -> bool:
            seen = server.is_ours and not server.is_cut_off  # else only the agent's last words tell
            return server.has_cleared or (self._cleared and not seen)

        return _wait_until(ended, timeout)

    def close(self) -> None:
        """Close what was opened to see the fork server."""
        self._forkserver.close()

    # ── on the link's thread ────────────────────────────────────────────────────────────────────────

    def hear(self, report: Report) -> None:
        """Take a report of the node."""
        if isinstance(report, NodeHello):
            self._meet(report)
        elif isinstance(report, Exited):
            self._table.note_end(report)
        else:
            with self._changed:
                self._note(report)
                self._changed.notify_all()
            if isinstance(report, Cleared) and not self._leaving:
                self.lose("was told to end")

    def _meet(self, hello: NodeHello) -> None:
        """Claim the world from an agent, and give it the orders that are not answered."""
        with self._changed:
            is_new, self._agent = hello.agent != self._agent, hello.agent
            self.agents += is_new
            self.meeting.store = hello.store
            self._claimed = False
            orders = self._orders.open
        if self._leaving and not orders:
            return
        self._send_claim()
        for order in orders:
            self.link.order(order, self.number)
        self.link.greet(self.number)
        if is_new and self.agents > 1:
            with self._faults.beside("another agent could not be noted"):
                self._on_agent()

    def _note(self, report: Report) -> None:
        if isinstance(report, Ready):
            self.ready, self._gone = report, False
        elif isinstance(report, Cleared):
            self._cleared = True
        elif isinstance(report, ForkServerEnded):
            self._gone = True
        elif isinstance(report, Started):
            self._table.note_start(report)
        elif isinstance(report, Unwatched):
            self._table.note_unwatched(report)
        elif isinstance(report, _Answer):
            if report.number == self._claim:
                self._claimed = True
                return
            self.meeting.note(self._orders.note(report.number, report), report)


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
