"""The agent of a node: the one process through which the node's ranks speak with the notebook.

One thread waits for all of them: the notebook, the ranks, and the fork server whose child the agent is. It passes
letters on without reading them, and asks all ranks what they do when the notebook wants to know. What several ranks say
within a millisecond goes to the notebook in one parcel; if all ranks that were asked have answered, at once.

The agent keeps nothing that cannot be lost. If it dies, the fork server starts another one; ranks and notebook connect
to that, and repeat what the other has not heard. If the fork server dies, the agent stands in: it notices which ranks
end, and ends all of them when no notebook has come for the lease.
"""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec
import zmq

from ...faults import Faults
from ...protocol import (
    Claim,
    Cleared,
    Exited,
    Failed,
    ForkServerEnded,
    Left,
    LogTail,
    Look,
    Mirror,
    NodeHello,
    NodeStatus,
    Obeyed,
    OpenMirror,
    Order,
    Poll,
    ReadFacts,
    ReadLog,
    Ready,
    RelayStore,
    Report,
    ServeStore,
    Shutdown,
    Signal,
    Start,
    Started,
)
from ...protocol.codec import decode_order, decode_report, encode
from ...protocol.framing import FramedSocket
from ...protocol.nodes import rank_of
from ...protocol.parcels import ITSELF, NO_HEADER, Letter
from ...world_dir import WorldDir
from .. import unsaid
from ..processes import fork_signals, parenthood
from ..processes.liveness import end, has_ended, kill_orphans, lives
from . import facts
from .mirrors import Mirrors
from .node_store import NodeStore
from .notebook_end import NotebookEnd
from .polls import Polls
from .rank_ends import IN, OUT, RankEnds

_TOGETHER = 0.001
"""Seconds that a letter waits for those of other ranks."""

_LOOK = 0.25
"""Seconds between two looks at the ranks' processes, where no fork server watches them."""

_LONGEST_SLEEP = 3600.0
_BREATH = 0.1
"""Seconds of pause after a failed turn: one that fails at once each time must not use up a core."""

_MOST_FAILURES = 50
"""Failed turns in a row after which the agent ends: another one may do better."""


class NodeAgent:
    """The agent's loop.

    Args:
        home: the world's directory.
        channel: the socket to the fork server.
        number: of this process among the node's agents.
    """

    def __init__(self, home: WorldDir, channel: socket.socket, number: int) -> None:
        self._home = home
        self._number = number
        self._faults = Faults()
        self._holder = 0
        self._alone_since = time.monotonic()
        self._lease = home.read_lease()
        self._living: dict[int, Started] = {}  # by start
        self._batch: list[Letter] = []
        self._batch_since = 0.0
        self._asked: set[int] = set()
        self._polls = Polls()
        self._next_look = 0.0
        self._failures, self._stumbled = 0, False
        self._poller = zmq.Poller()
        self._channel: FramedSocket | None = FramedSocket(channel)
        self._watch_channel()
        self._ranks = RankEnds(home.agent_socket, self._poller, self._status)
        self._mirrors = Mirrors(home, self._ranks.rank_of)
        self._context = zmq.Context()
        self._link = home.read_link()
        self._store = NodeStore(home, self._link)
        self._notebook = NotebookEnd(self._context, self._link, self._poller)

    def serve(self) -> None:
        """Serve until the process is ended."""
        while self._failures < _MOST_FAILURES:
            self._stumbled = False
            with self._going_on("a turn"):
                self._turn()
            self._failures = self._failures + 1 if self._stumbled else 0
            if self._stumbled:
                time.sleep(_BREATH)

    def _going_on(self, what: str) -> AbstractContextManager[None]:
        return self._faults.beside(f"the node's agent failed in {what}", self._stumble)

    def _stumble(self, _: str) -> None:
        self._stumbled = True

    def _turn(self) -> None:
        """Wait until something happens, and handle it."""
        if self._notebook.closed:
            with self._going_on("opening the link again"):
                self._notebook.open()
        ready = dict(self._poller.poll(math.ceil(self._patience() * 1000)))
        if self._notebook.monitor in ready:
            with self._going_on("what the link's monitor told"):
                for there in self._notebook.looks_up():
                    self._greet() if there else self._part()
        if self._notebook.link in ready:
            self._hear_notebook()
        if self._channel is not None and self._channel.fileno() in ready:
            with self._going_on("what the fork server sent"):
                self._hear_fork_server(ready[self._channel.fileno()])
        for source, flags in ready.items():
            if source in self._ranks:
                with self._going_on("what a rank sent"):
                    self._attend(source, flags)
        if self._ranks.listener.fileno() in ready:
            with self._going_on("a connection"):
                self._ranks.accept()
        if self._channel is None:
            with self._going_on("a look at the processes"):
                self._stand_in()
        self._pass_on()

    def _patience(self) -> float:
        """Return the seconds until something is due."""
        if self._batch:
            return max(0.0, self._batch_since + _TOGETHER - time.monotonic())
        return _LOOK if self._channel is None or self._notebook.closed else _LONGEST_SLEEP

    # ── the notebook ────────────────────────────────────────────────────────────────────────────────

    def _greet(self) -> None:
        self._asked.clear()
        self._polls.clear()
        self._report(NodeHello(self._number, self._store.generation))

    def _part(self) -> None:
        """Note that the notebook has gone, or its end of the link; what it has sent before may claim the world."""
        while self._hear_notebook():
            pass
        if self._holder:
            self._holder, self._alone_since = 0, time.monotonic()
        self._asked.clear()
        self._tell_fork_server(encode(Left()))

    def _hear_notebook(self) -> bool:
        """Read what the notebook has sent; return whether there was anything."""
        heard = False
        with self._going_on("what the notebook sent"):
            for letter in self._notebook.receive():
                heard = True
                with self._going_on("a letter of the notebook"):
                    self._deliver(letter)
        return heard

    def _deliver(self, letter: Letter) -> None:
        if letter.rank != ITSELF:
            self._polls.note(letter)
            if letter.frames:
                self._send(letter)
            return
        frame = bytes(letter.frames[0])
        order: Order | Left | Poll | None = None
        with suppress(msgspec.DecodeError):  # a newer notebook may give orders unknown to this version
            order = decode_order(frame)
        if isinstance(order, Poll):
            # One that reads nothing would only get more to read, before an interrupt.
            for question in self._polls.letters(order, self._ranks.reading):
                self._send(question)
        elif order is not None and not isinstance(order, Left):
            try:
                self._obey(order, frame)
            except Exception as error:
                self._report(Failed(order.number, str(error) or type(error).__name__))
                raise

    def _send(self, letter: Letter) -> None:
        if self._ranks.send(letter) and letter.asks:
            self._asked.add(letter.rank)

    def _obey(self, order: Order, frame: bytes) -> None:
        if isinstance(order, ReadLog):
            self._report(LogTail(order.number, self._home.log_tail(order.key, order.lines)))
        elif isinstance(order, ReadFacts):
            self._report(facts.of_node(order.number, self._home, self._link))
        elif isinstance(order, ServeStore | RelayStore):
            self._report(self._store.obey(order))
        elif isinstance(order, OpenMirror | Mirror):
            self._report(self._mirrors.obey(order))
        else:
            if isinstance(order, Claim):
                self._holder, self._lease = order.pid, order.lease
            if not self._tell_fork_server(frame):
                self._obey_alone(order)

    def _obey_alone(self, order: Order) -> None:
        """Do what can be done without a fork server."""
        if isinstance(order, Claim):
            for started in order.living:  # the fork server may have ended before it knew of all
                if started.start not in self._living:
                    self._learn(started)
            for started in self._living.values():
                self._report(started)
            self._report(ForkServerEnded())
        elif isinstance(order, Start):
            self._report(Failed(order.number, "the fork server has ended"))
            return
        elif isinstance(order, Signal):
            aim = self._living.get(order.start)
            if aim is not None and lives(self._home, aim.pid):
                with suppress(ProcessLookupError):
                    os.kill(aim.pid, order.signal)
        elif isinstance(order, Look):
            self._find_ended()
        elif isinstance(order, Shutdown):
            self._end_world()
        self._report(Obeyed(order.number))

    def _report(self, report: Report) -> None:
        self._say(encode(report))

    def _say(self, frame: Any) -> None:
        """Send a report to the notebook, behind all that the ranks have said before."""
        self._batch.append(Letter(ITSELF, NO_HEADER, [frame]))
        self._flush()

    # ── the ranks ───────────────────────────────────────────────────────────────────────────────────

    def _attend(self, descriptor: int, flags: int) -> None:
        if flags & OUT:
            self._ranks.write(descriptor)
        if descriptor in self._ranks and flags & ~OUT:
            self._collect(self._ranks.read(descriptor))

    def _collect(self, letters: list[Letter]) -> None:
        if letters and not self._batch:
            self._batch_since = time.monotonic()
        for letter in letters:
            self._batch.append(letter)
            if letter.asks:
                self._asked.discard(letter.rank)

    def _pass_on(self) -> None:
        """Send what has come from the ranks, when it is due."""
        if self._batch and (not self._asked or time.monotonic() >= self._batch_since + _TOGETHER):
            self._flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._notebook.send(batch)

    def _status(self) -> NodeStatus:
        alone = 0.0 if self._holder else time.monotonic() - self._alone_since
        return NodeStatus(os.getpid(), self._holder, alone, self._lease)

    # ── the fork server ─────────────────────────────────────────────────────────────────────────────

    def _tell_fork_server(self, frame: bytes) -> bool:
        """Pass an order on; return False if there is no fork server."""
        if self._channel is None:
            return False
        try:
            self._channel.send([frame])
        except OSError:
            return False  # its end is about to be noticed
        self._watch_channel()
        return True

    def _watch_channel(self) -> None:
        if self._channel is not None:
            self._poller.register(self._channel.fileno(), IN | OUT if self._channel.waits else IN)

    def _hear_fork_server(self, flags: int) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101 - for mypy
        try:
            if flags & OUT:
                channel.flush()
                self._watch_channel()
            messages = channel.receive() or []
        except (EOFError, OSError, MemoryError):  # what was read in part cannot be read on
            self._lose_fork_server()
            return
        for _, frames in messages:
            with self._going_on("a report of the fork server"):
                self._pass_report_on(bytes(frames[0]))

    def _pass_report_on(self, frame: bytes) -> None:
        report = decode_report(frame)
        try:
            if isinstance(report, Exited):
                frame = encode(self._note_end(report))
        finally:
            self._say(frame)
        self._learn(report)

    def _learn(self, report: Report) -> None:
        """Note what a report says; the notebook has it already, and listens to a rank only since then."""
        if isinstance(report, Cleared):
            self._leave()
        elif isinstance(report, Ready):
            parenthood.outlive_parent()
        elif isinstance(report, Started):
            self._living[report.start] = report
            rank = rank_of(report.key)
            if rank is not None:
                self._collect(self._ranks.know(rank, report.pid))

    def _note_end(self, report: Exited) -> Exited:
        """Note an end; return its report, with what a rank has not said."""
        self._living.pop(report.start, None)
        self._collect(self._ranks.part(report.pid))  # its last words come before its end
        self._asked &= self._ranks.connected
        rank = rank_of(report.key)
        if rank is not None and rank not in self._ranks.connected:  # else another process is in its place
            self._polls.forget(rank)
            with self._going_on("what a rank has not said"):
                return msgspec.structs.replace(report, unsaid=unsaid.read(self._home, rank))
        return report

    def _lose_fork_server(self) -> None:
        assert self._channel is not None  # noqa: S101 - for mypy
        self._poller.unregister(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self._report(ForkServerEnded())

    def _stand_in(self) -> None:
        """Do the fork server's work, now that it has ended, as far as its heir can."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        self._find_ended()
        if not self._holder and now - self._alone_since >= self._lease:
            self._end_world()

    def _find_ended(self) -> None:
        for start, started in list(self._living.items()):
            if has_ended(self._home, started.pid):
                kill_orphans(self._home, started.pid)
                ended = Exited(start, started.key, started.pid, None)
                self._report(self._note_end(ended))

    def _end_world(self) -> None:
        fork_signals.ignore()
        for started in self._living.values():
            end(self._home, started.pid)
        self._home.remove()
        self._report(Cleared())
        self._leave()

    def _leave(self) -> None:
        """End, when the notebook has heard all."""
        self._notebook.close()
        os._exit(0)
