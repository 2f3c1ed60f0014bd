"""The process that starts, reaps and outlives the processes of one world on one node.

It is a fork of the seed (`seed`), which has imported torch; where there is none, ``python -m nbcomm.node.forkserver
HOME`` imports torch by itself. A rank is then a fork of it, which is ready in a tenth of a second and shares most
of its memory. If forking is not possible (macOS), this process starts its children plainly, and everything else is the
same.

It has one thread only: after a fork, the child has only the thread that called it, and every lock that another
thread held stays locked forever. So this process never runs a tensor operation, never uses CUDA, opens no ZMQ
context, and waits for orders, deaths and the end of its lease in one `select`.

Its first child is the node's agent, through which it gets its orders and reports what becomes of them. It starts
another agent when that one ends. While the agent has a notebook, the world lives. When no notebook has been there for
the lease, or `Shutdown` is ordered, it ends every process that it started, removes the directory, and ends. It does
this without the notebook, because a killed notebook cannot.

One fork server serves a directory. Another one that starts there, because a notebook has heard nothing from the first,
ends it, whether it was stopped or was only slow, and takes over its ranks.

Nothing else ends it, because its end is the end of every rank. A failed order is answered with the reason. If a step
of its own fails, that is logged, and the step is tried again.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from ..faults import Faults
from ..protocol import Claim, Cleared, Failed, Left, Look, Obeyed, Order, Poll, Ready, Report, Shutdown, Signal, Start
from ..protocol.codec import decode_order, encode
from ..world_dir import HOME_VARIABLE, WorldDir
from .agent_process import AgentProcess
from .processes import fork_signals
from .processes.children import Children, written_down
from .processes.seat import Seat
from .processes.warmup import prepare

_FIRST_VISIT = 10.0
"""Seconds that the notebook has to claim the world after the start, or from another agent."""

_UNREACHED = (
    "nbcomm: The notebook was not reached at {} within {:g} s. Can this machine reach that address? A firewall may be "
    "in the way, or --address may name the wrong one.\n"
)

_LONGEST_SLEEP = 3600.0
"""Seconds after which the lease is checked again: the system's wait refuses about 25 days."""

_BREATH = 0.1
"""Seconds of pause after a failed step: a step that fails again at once must not occupy a core, or fill the disk."""

_LOOK = 0.25
"""Seconds between two looks at processes whose ends nothing tells."""

_REMEMBERED = 1000
"""Answers that are kept for orders that come again."""


class ForkServer:
    """The loop that handles orders and deaths.

    Args:
        home: the world's directory.
        ready: what is reported to a notebook that claims the world.
        agent: the node's agent.
        seat: this process has it as the only fork server of the directory.
    """

    def __init__(self, home: WorldDir, ready: Ready, agent: AgentProcess, seat: Seat) -> None:
        self._home = home
        self._seat = seat
        self._ready = ready
        self._agent = agent
        self._lease = 0.0
        self._held = self._was_held = False
        self._alone_since = time.monotonic()
        self._met = False
        self._answers: OrderedDict[int, Report] = OrderedDict()
        self._faults = Faults()
        self._stumbled = False
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)  # noqa: FBT003 - positional only
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake `select`
        for number in fork_signals.ENDING:
            signal.signal(number, self._ordered_to_end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listening: Any = None
        self._children = Children(home, self._selector, self._report, self._let_go, self._faults)
        self._children.forks = ready.forks
        agent.forks = ready.forks
        agent.let_go = self._let_go_for_agent
        agent.last_words = self._hear_last_words

    def serve(self) -> None:
        """Serve until the world ends."""
        try:
            with self._going_on("the processes of an earlier fork server"):
                self._children.adopt_all()
                self._introduce()
            while not self._lease_is_over():
                with self._going_on("a turn"):
                    self._turn()
            if not self._was_held:
                sys.stderr.write(_UNREACHED.format(self._home.read_link().address, self._grace()))
                raise SystemExit(1)
        finally:
            self._end()

    def _turn(self) -> None:
        """Wait until something happens, and handle it."""
        self._listen()
        patience = self._patience()
        if self._stumbled:
            # The failed step may have consumed the only notice of work that remains to be done.
            self._stumbled, patience = False, 0.0
            time.sleep(_BREATH)
        events = self._selector.select(patience)
        for key, mask in events:
            with self._going_on("an event"):
                self._attend(key.fileobj, mask)
        self._children.reap()
        self._children.look()
        with self._going_on("the agent's end"):
            self._keep_agent()

    def _listen(self) -> None:
        """Watch the channel of the present agent, and whether it can be written, if something waits."""
        channel = self._agent.channel
        if self._listening is not channel:
            if self._listening is not None:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(self._listening)
            self._listening = channel
            if channel is not None:
                self._selector.register(channel, selectors.EVENT_READ)
        if channel is not None:
            waits = selectors.EVENT_WRITE if channel.waits else 0
            self._selector.modify(channel, selectors.EVENT_READ | waits)

    def _attend(self, source: Any, mask: int) -> None:
        if source is self._woken:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
        elif isinstance(source, int):
            self._children.bury(source)
        elif source is self._agent.channel:
            self._hear_agent(mask)

    def _going_on(self, what: str) -> AbstractContextManager[None]:
        """Return a context for a step that may fail: its error is logged, and another turn follows soon."""
        return self._faults.beside(f"the fork server stumbled over {what}", self._stumble)

    def _stumble(self, _: str) -> None:
        self._stumbled = True

    def _patience(self) -> float:
        limits = [_LONGEST_SLEEP]
        if self._children.due:
            limits.append(_LOOK)
        if self._agent.patience is not None:
            limits.append(self._agent.patience)
        if not self._held:
            limits.append(max(0.0, self._alone_since + self._grace() - time.monotonic()))
        return min(limits)

    def _grace(self) -> float:
        if not self._met:
            return max(_FIRST_VISIT, self._home.read_lease() if self._is_inhabited else 0.0)
        return self._lease if self._is_inhabited else 0.0

    @property
    def _is_inhabited(self) -> bool:
        """Whether another notebook may want the world: its ranks may all be on other nodes."""
        return self._children.any or self._home.world_file.exists()

    def _lease_is_over(self) -> bool:
        return not self._held and time.monotonic() - self._alone_since >= self._grace()

    def _ordered_to_end(self, *_: Any) -> None:
        fork_signals.ignore()  # a second one must not end the end
        raise SystemExit

    # ── the agent ───────────────────────────────────────────────────────────────────────────────────

    def _keep_agent(self) -> None:
        """Start another agent if there is none, and tell it which processes live."""
        if not self._agent.reap():
            return
        if self._held:
            self._leave()  # until the notebook claims the world from the new one
            self._met = False
        self._introduce()

    def _introduce(self) -> None:
        """Tell the agent that this process serves, and which ranks live: it listens to no others."""
        self._report(self._ready)
        for started in self._children.living():
            self._report(started)

    def _leave(self) -> None:
        if self._held:
            self._held, self._alone_since = False, time.monotonic()

    def _hear_last_words(self) -> None:
        """Do what an agent that has ended has passed on before: that the notebook has left, for example."""
        with self._going_on("the last words of the agent"):
            while self._hear_agent(selectors.EVENT_READ):
                pass

    def _hear_agent(self, mask: int) -> bool:
        """Do what the agent passes on; return whether there was anything."""
        channel = self._agent.channel
        assert channel is not None  # noqa: S101 - for mypy
        try:
            if mask & selectors.EVENT_WRITE:
                channel.flush()
            messages = channel.receive() if mask & selectors.EVENT_READ else None
        except (EOFError, OSError):
            self._agent.end()  # it ends, and `_keep_agent` sees it
            return False
        for _, (frame,) in messages or []:
            order = decode_order(bytes(frame))
            if isinstance(order, Left):
                self._leave()
            elif not isinstance(order, Poll):  # the agent does not pass those on
                with self._going_on(f"a {type(order).__name__}"):
                    self._obey(order)
        return messages is not None

    def _report(self, report: Report) -> None:
        if self._agent.channel is not None:
            with suppress(OSError):  # it has ended; the next one asks for all
                self._agent.channel.send([encode(report)])

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def _obey(self, order: Order) -> None:
        """Do what is ordered, and answer; an order that comes again is only answered again."""
        known = self._answers.get(order.number)
        if known is not None:
            self._report(known)
            return
        try:
            answer = self._do(order)
        except Exception as error:  # noqa: BLE001 - too many processes, no memory, a missing working directory
            answer = Failed(order.number, str(error) or type(error).__name__)
        if not isinstance(order, Claim):  # each agent must hear of all again
            self._answers[order.number] = answer
            while len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        self._report(answer)

    def _do(self, order: Order) -> Report:
        if isinstance(order, Claim):
            self._lease = order.lease
            self._held = self._was_held = self._met = True
            self._children.adopt(order.living)
            for report in self._children.state():
                self._report(report)
            self._report(self._ready)
        elif isinstance(order, Start):
            self._children.start(order)
        elif isinstance(order, Signal):
            self._children.signal(order)
        elif isinstance(order, Look):
            self._children.reap()
            self._children.look()
        elif isinstance(order, Shutdown):
            raise SystemExit
        return Obeyed(order.number)

    # ── forks, and the end ──────────────────────────────────────────────────────────────────────────

    def _let_go(self) -> None:
        """Close what only this process uses; in a child."""
        self._let_go_for_agent()
        if self._agent.channel is not None:
            self._agent.channel.close()

    def _let_go_for_agent(self) -> None:
        self._selector.close()
        self._children.let_go()
        self._seat.close()
        for connection in (self._woken, self._wake):
            connection.close()

    def _end(self) -> None:
        fork_signals.ignore()
        signal.set_wakeup_fd(-1)
        self._children.end_all()
        self._home.remove()
        self._agent.dismiss(encode(Cleared()))


def _is_inhabited(home: WorldDir) -> bool:
    """Tell whether an earlier fork server started ranks in this directory, which they still need."""
    return bool(written_down(home)) or home.world_file.exists()  # which may not be readable just now


def run(home: WorldDir, prepared: Callable[[], Ready]) -> None:
    """Serve a world, whose directory this process has as `HOME_VARIABLE`, too.

    Args:
        home: the directory.
        prepared: makes this process ready for forks.
    """
    seat = Seat(home.forkserver_seat)
    seat.take_over()
    agent = AgentProcess(home, seat.close)
    try:
        agent.end_earlier()
        agent.start()
        ready = prepared()
    except BaseException:  # noqa: BLE001 - an interrupt must not leave the directory either
        fork_signals.ignore()
        agent.end()  # first: one that misses its directory would have the last word in the log
        # The log may be removed with the directory, because the notebook holds it open.
        with suppress(OSError):  # the disk is full
            traceback.print_exc()
            sys.stderr.flush()
        if not _is_inhabited(home):
            home.remove()
        raise SystemExit(1) from None
    ForkServer(home, ready, agent, seat).serve()


def main() -> None:
    """Serve the world whose directory is the first argument."""
    home = WorldDir(sys.argv[1])
    os.environ[HOME_VARIABLE] = str(home.path)
    run(home, prepare)


if __name__ == "__main__":
    main()
