"""The agent's process, kept by the fork server: forked first, and replaced when it has ended or was stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress

from ..protocol.framing import FramedSocket
from ..world_dir import WorldDir
from .agent.node_agent import NodeAgent
from .agent.peers import pid_of
from .processes import fork_signals, parenthood
from .processes.seat import Seat

_AGAIN = 0.2
"""Seconds between two starts: agents that end at once must not occupy a core, or fill the disk."""


_FAREWELL, _TICK = 1.0, 0.002
"""Seconds that an agent has for its last words, and seconds between two looks."""


class AgentProcess:
    """The present agent.

    Args:
        home: the world's directory.
        let_go: closes, in the agent, what only the fork server uses.

    Attributes:
        channel: the socket to it; None while there is no agent.
        forks: it is a fork of this process; else it is started plainly.
        last_words: hears what an agent that has ended has still sent.
    """

    def __init__(self, home: WorldDir, let_go: Callable[[], None] = lambda: None) -> None:
        self.channel: FramedSocket | None = None
        self.let_go = let_go
        self.last_words: Callable[[], None] = lambda: None
        self.forks = sys.platform == "linux"
        self._home = home
        self._pid = 0
        self._spawned: subprocess.Popen[bytes] | None = None
        self._due = 0.0

    def end_earlier(self) -> None:
        """End the agent of an earlier fork server, which must have ended; no agent of it comes after this.

        Raises:
            TimeoutError: it does not end.
        """
        seat = Seat(self._home.agent_seat)
        try:
            seat.vacate()
        finally:
            seat.close()

    def start(self) -> None:
        """Start an agent.

        Raises:
            OSError: it could not be started.
        """
        self._due = time.monotonic() + _AGAIN
        ours, theirs = socket.socketpair()
        number = time.time_ns()
        try:
            with fork_signals.held_back() if self.forks else nullcontext():
                self._pid = self._fork(ours, theirs, number) if self.forks else self._spawn(theirs, number)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.channel = FramedSocket(ours)

    def _fork(self, ours: socket.socket, theirs: socket.socket, number: int) -> int:
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                ours.close()
                self.let_go()
            _become(self._home, theirs, number)
        return pid

    def _spawn(self, theirs: socket.socket, number: int) -> int:
        command = [sys.executable, "-m", "nbcomm.node.agent_process", str(self._home.path)]
        descriptor = theirs.fileno()
        self._spawned = subprocess.Popen(  # noqa: S603 - our own module
            [*command, str(descriptor), str(number)], pass_fds=[descriptor]
        )
        return self._spawned.pid

    @property
    def patience(self) -> float | None:
        """Seconds until another try to start an agent is due; None if there is one."""
        return None if self._pid else max(0.0, self._due - time.monotonic())

    def reap(self) -> bool:
        """Replace the agent, if it has ended or was stopped; return whether there is another one now.

        Raises:
            OSError: no other one could be started; call this again after `patience`.
        """
        if self._pid:
            try:
                done, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                done, status = self._pid, 0
            if not done:
                return False
            if os.WIFSTOPPED(status):  # nobody may ever let it go on, and no notebook can reach the ranks until then
                self.end()
            self._pid, self._spawned = 0, None
            self.last_words()
            self._hang_up()
        if time.monotonic() < self._due:  # the last one could not be started, or ended at once
            return False
        self.start()
        return True

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def dismiss(self, last: bytes) -> None:
        """Let the agent pass a last report on, after which it ends; kill it if it does not."""
        if self._pid and self.channel is not None:
            with suppress(OSError):
                self.channel.send([last])
            deadline = time.monotonic() + _FAREWELL
            while self.channel.waits and time.monotonic() < deadline:
                with suppress(OSError):
                    self.channel.flush()
            with suppress(ChildProcessError):
                while time.monotonic() < deadline:
                    if os.waitpid(self._pid, os.WNOHANG)[0]:
                        self._pid = 0
                        return
                    time.sleep(_TICK)
        self.end()

    def end(self) -> None:
        """Kill the agent."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _become(home: WorldDir, channel: socket.socket, number: int) -> None:
    """Turn this process into the agent; it does not return."""
    try:
        parenthood.die_with_parent()  # until that says that it serves: a start that is given up leaves nothing
        os.setsid()
        fork_signals.let_through()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        seat = Seat(home.agent_seat)
        seat.take()
        if os.getppid() != pid_of(channel):  # its fork server was ended before it sat here, where the next one looks
            os._exit(1)
        NodeAgent(home, channel, number).serve()
    except BaseException:  # noqa: BLE001 - nothing may return into the fork server's own loop
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    _become(WorldDir(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
