"""A way back to a notebook that other machines cannot reach: a socket there, which ssh leads to a port here.

A laptop behind a router reaches the hosts, and they do not reach it. So this machine opens an ssh to each of them that
listens there on a socket of the user's own, and passes on what connects. If that ssh ends, another one is started; the
link between notebook and daemon bears the gap as it bears a network that is cut.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from ...errors import StartError
from ...faults import take_all
from ...node.start import last_words
from ...protocol.common import LOOPBACK
from ...threads import keep
from ...world_info import JoinedInfo

_OPTIONS = ("-o", "ExitOnForwardFailure=yes")
_TIMEOUT = 30.0
"""Seconds in which the socket must be there."""

_GRACE, _LAST = 1.0, 5.0
"""Seconds that an ssh has to end by itself, and that the last one has to remove the socket."""

_TICK, _PAUSE, _LONGEST = 0.1, 0.5, 10.0
"""Seconds between two looks; between two tries, more and more, up to the last."""


def command(ssh: Sequence[str], path: str, port: int | str) -> list[str]:
    """Return the command that opens a tunnel; it reads until its input ends, and then the tunnel does.

    Args:
        ssh: the words before a command for the host.
        path: of the socket there.
        port: here.
    """
    *options, host = ssh
    return [*options, *_OPTIONS, "-R", f"{path}:{LOOPBACK}:{port}", host, "cat"]


class Tunnel:
    """A socket on a host that leads to a port of this machine, as long as this process lives.

    Args:
        ssh: the words before a command for the host: ``["ssh", …, "host"]``.
        path: of the socket there.
        port: here.
    """

    def __init__(self, ssh: Sequence[str], path: str, port: int) -> None:
        self._ssh = [*ssh]
        self._path = path
        self._command = command(ssh, path, port)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = 0
        self._closed = threading.Event()
        self._removes = False
        self._keeper: threading.Thread | None = None

    def begin(self) -> None:
        """Open it, and again whenever it ends; do not wait for it."""
        self._keeper = keep("nbcomm-tunnel", self._keep)

    def open(self) -> None:
        """Open it, and wait until what connects there comes through.

        Raises:
            StartError: ssh does not do it; the message has its words.
        """
        self.begin()
        deadline = time.monotonic() + _TIMEOUT
        while not self._there("test", "-S", self._path):
            if self._ends or time.monotonic() > deadline:
                how = "ended" if self._ends else f"did not make {self._path} within {_TIMEOUT:g} s"
                raise StartError(
                    f"The tunnel from {self._ssh[-1]} {how}; its sshd must allow AllowStreamLocalForwarding. ssh "
                    f"said:\n{last_words(self._log)}"
                )
            if self._closed.wait(_TICK):
                raise StartError(f"The tunnel from {self._ssh[-1]} is not wanted any more.")

    def _there(self, *words: str, timeout: float = _TIMEOUT, last: bool = False) -> bool:
        """Run a command on the host; return whether it went well.

        Args:
            words: of the command.
            timeout: seconds until it is given up.
            last: it belongs to the end; others are given up when the tunnel is closed.
        """
        none = subprocess.DEVNULL
        process = subprocess.Popen([*self._ssh, shlex.join(words)], stdin=none, stdout=none, stderr=none)  # noqa: S603
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None and time.monotonic() < deadline and (last or not self._closed.is_set()):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TICK)
            return process.returncode == 0
        finally:
            process.kill()
            process.wait()

    def _keep(self) -> None:
        """Start one ssh after the other."""
        pause = _PAUSE
        while not self._closed.is_set():
            self._there("rm", "-f", self._path)  # sshd leaves it behind, and does not listen at one that is there
            if self._closed.is_set():
                break
            began = time.monotonic()
            self._process = process = subprocess.Popen(  # noqa: S603 - our own words
                self._command,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # so that it does not get the notebook's Ctrl-C
            )
            process.wait()
            self._ends += 1
            pause = _PAUSE if time.monotonic() - began > _LONGEST else min(_LONGEST, pause * 2)
            self._closed.wait(pause)
        if self._removes:
            self._there("rm", "-f", self._path, timeout=_LAST, last=True)

    def end(self, *, removes: bool) -> None:
        """Let it end, and do not wait for that.

        Args:
            removes: whether its socket there goes, too. The node's program removes that as it ends, but it may never
                have begun. A world that goes on may have another notebook by now, whose tunnel this is.
        """
        self._removes = removes
        self._closed.set()
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """Wait until it has ended, after `end`."""
        began = time.monotonic()
        while self._keeper is not None and self._keeper.is_alive():
            if self._process is not None:  # or the next one, which may just have been started
                if time.monotonic() - began < _GRACE:
                    self._process.terminate()
                else:
                    self._process.kill()
            self._keeper.join(_TICK)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._log.close()


class Tunnels:
    """The tunnels of a world."""

    def __init__(self) -> None:
        self._all: list[Tunnel] = []

    @property
    def are_open(self) -> bool:
        """Whether there are some."""
        return bool(self._all)

    def open(self, infos: Sequence[JoinedInfo]) -> None:
        """Open the tunnels of those nodes that have one, all at once.

        Raises:
            StartError: one cannot be opened.
        """
        tunnels = self._of(infos)
        if not tunnels:
            return
        pool = ThreadPoolExecutor(len(tunnels))
        try:
            for opened in [pool.submit(tunnel.open) for tunnel in tunnels]:
                opened.result()
        except BaseException:  # ■, too
            self.close(removes=True)
            raise
        finally:
            pool.shutdown(wait=False)

    def begin(self, infos: Sequence[JoinedInfo]) -> None:
        """Open them again under another notebook; a host that cannot be reached keeps nobody waiting."""
        for tunnel in self._of(infos):
            tunnel.begin()

    def _of(self, infos: Sequence[JoinedInfo]) -> list[Tunnel]:
        tunnels = [Tunnel(info.launcher.prefix, info.link.socket, info.port) for info in infos if info.port]
        self._all += tunnels
        return tunnels

    def close(self, *, removes: bool) -> None:
        """Close them all; ``removes`` is that of `Tunnel.end`."""
        closing, self._all = self._all, []
        take_all(*(partial(tunnel.end, removes=removes) for tunnel in closing), *(tunnel.close for tunnel in closing))
