"""A node on another machine: ``python -m nbcomm.node [TOKEN]`` joins a world, and stays until that ends.

The join token is read from a file, or from standard input. ssh, srun, mpiexec or HTCondor start this program, and see
its end. The work is done by the node's daemon, a process of its own, which lives on if whoever has started this program
is cut off: the notebook may come back within the lease.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from ..errors import StartError
from ..world_dir import WorldDir
from . import join_token
from .fence import fence
from .peers import Probe
from .processes.children import written_down
from .processes.daemon_lock import DaemonLock
from .start import last_words, start_daemon

_TICK = 0.25

_TIMEOUT = 0.5
"""Seconds without a daemon after which another one is started: one that was replaced is killed by the next one."""

_SILENCE, _PAUSE = 5.0, 1.0
"""Seconds after which a daemon that does not answer is replaced: somebody has stopped it. And between two questions."""


class NodeProgram:
    """The daemons of a directory, one after another, until they and all that they have started have ended.

    A scheduler ends all that this program has started when it ends itself.

    Args:
        home: the directory.
    """

    def __init__(self, home: WorldDir) -> None:
        self._home = home
        self._way_back = home.read_link().socket
        self._lock = DaemonLock(home.daemon_lock)
        self._probe = Probe(home.daemon_socket, _SILENCE, _PAUSE)
        self._told_to_end = False
        self._daemon: subprocess.Popen[bytes] | None = None
        self._wake, self._woken = socket.socketpair()

    def serve(self) -> int:
        """Serve until nothing of the world is left on this node; what a daemon said is shown if it has failed.

        Returns:
            The exit status of the last daemon.
        """
        for end in (self._wake, self._woken):
            end.setblocking(False)  # noqa: FBT003 - positional only
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is only cut off
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it ends a pause
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        with self._home.daemon_log.open("a+b") as log:
            while True:
                folder = os.path.expanduser("~")  # noqa: PTH111 - pathlib's raises where there is none
                self._daemon = daemon = start_daemon(self._home, log, folder)
                if self._told_to_end:  # just before it was there
                    daemon.terminate()
                while daemon.poll() is None and not self._probe.is_stuck():
                    self._sleep()
                if daemon.returncode:
                    with suppress(OSError):  # whoever listened is cut off
                        print(last_words(log), file=sys.stderr, flush=True)  # noqa: T201 - the program's output
                if not self._needs_another():
                    break
            status = daemon.wait()
        if not written_down(self._home):
            self._home.remove()  # it was ended before it could do that
        if self._way_back:
            with suppress(OSError):
                os.unlink(self._way_back)  # noqa: PTH108 - sshd leaves the sockets of its tunnels behind
        return status if status >= 0 else 128 - status

    def _needs_another(self) -> bool:
        """Wait for what a daemon has left that was killed, or is stuck: the next one takes over its ranks.

        Returns:
            Whether nobody else has started one.
        """
        others = written_down(self._home)
        served = time.monotonic()
        with suppress(FileNotFoundError):  # the directory is removed just now
            while self._home.path.exists():
                holder = self._lock.holder()
                if not holder and not others:
                    return False
                if self._told_to_end:
                    fence(self._home)
                    return False
                if holder and self._probe.is_stuck():
                    self._probe.close()  # what it knows is of that one
                    return True
                served = time.monotonic() if holder else served
                if time.monotonic() - served > _TIMEOUT:
                    return True
                self._sleep()
        return False

    def _sleep(self) -> None:
        """Wait for a signal, or for the next look."""
        if select.select([self._woken], [], [], _TICK)[0]:
            self._woken.recv(4096)

    def _end(self, *_: Any) -> None:
        """Let the daemon end the world on this node."""
        self._told_to_end = True
        if self._daemon is not None:
            self._daemon.terminate()


def main() -> int:
    """Join the world of a token; return the exit status."""
    try:
        return NodeProgram(join_token.read(sys.argv[1] if len(sys.argv) > 1 else None).redeem()).serve()
    except StartError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the program's output
        return 1


if __name__ == "__main__":
    sys.exit(main())
