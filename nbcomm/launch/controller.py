"""ipyparallel's controller: a process of the head that starts when somebody asks for `session.client`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from ..errors import StartError, StateError
from ..node.processes.exit_status import how_it_ended
from ..world_dir import private_file

if TYPE_CHECKING:
    from .node_client import NodeClient
    from .nodes import Nodes

KEY = "controller"

_HEARTBEAT = 100
"""Milliseconds between the controller's heartbeats, which limit how soon ipyparallel's clients see a new engine."""

_ARGUMENTS = [
    f"--HeartMonitor.period={_HEARTBEAT}",
    "--HeartMonitor.max_heartmonitor_misses=100",
    "--usethreads",
    "--scheme=none",  # the balanced scheduler would be a process that nbcomm does not use
    "--IPController.broadcast_scheduler_depth=0",
    "--nodb",
]

_TIMEOUT, _TICK = 30.0, 0.01
"""Seconds until the controller must have written how to connect to it; seconds between checks."""


class Controller:
    """The controller of a world, which exists from the moment that somebody has asked for it.

    Args:
        nodes: of the world; it runs on the head.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._profile = nodes.home.profile

    @property
    def _node(self) -> NodeClient:
        return self._nodes.of(KEY)

    @property
    def exists(self) -> bool:
        """Whether it was started, by this notebook or an earlier one."""
        return KEY in self._node.processes

    @property
    def pid(self) -> int:
        """The process that was started last; 0 if none was."""
        process = self._node.processes.get(KEY)
        return process.pid if process is not None else 0

    @property
    def end(self) -> str:
        """How it has ended, in words; empty while it runs, and if it was never started."""
        process = self._node.processes.get(KEY)
        if process is None or process.exited is None:
            return ""
        return how_it_ended(process.exited.status, oom=process.exited.oom)

    @property
    def connection(self) -> str:
        """What it has written for engines; empty until it has written all that others need."""
        try:
            written = [file.read_text() for file in self._files if json.loads(file.read_text())]
        except (OSError, ValueError):  # not yet, or a part of it
            return ""
        return written[-1]

    @property
    def client_file(self) -> str:
        """The file from which its clients read how to connect."""
        return str(self._files[0])

    @property
    def _files(self) -> tuple[Path, Path]:
        security = self._profile / "security"
        return security / "ipcontroller-client.json", security / "ipcontroller-engine.json"

    def await_ready(self) -> str:
        """Return what it has written for engines; start it if it does not exist, and else only wait for it.

        Raises:
            StateError: it has ended.
            StartError: it could not be started; nothing of it is left.
        """
        connection = self.connection
        if self.exists and connection:
            if self.end:
                raise StateError(
                    f"ipyparallel's controller {self.end}, so session.client does not work. Cells run without it. "
                    "Type %distributed heal to start another controller."
                )
            return connection
        try:
            if not self.exists:
                self.begin()
            return self._await_files()
        except BaseException:  # also ■: half of it would be taken for the whole
            self._node.abandon(KEY)
            raise

    def replace(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start another one in the place of one that has ended, on the same ports.

        Raises:
            Interrupted: it was given up, and no process of it is left.
            StartError: it could not be started.
        """
        self._start(["--reuse"], given_up)

    def begin(self) -> None:
        """Start it if it was never started, or has ended as it started; `await_ready` waits for it.

        Raises:
            StartError: it could not be started.
        """
        if self.exists and (self.connection or not self.end):
            return
        for file in self._files:  # of one that was given up as it started
            file.unlink(missing_ok=True)
        self._write_keys()
        self._start([])

    def _start(self, more: Sequence[str], given_up: Callable[[], bool] = lambda: False) -> None:
        arguments = [*_ARGUMENTS, f"--ip={self._nodes.host}", f"--profile-dir={self._profile}", *more]
        self._node.start(KEY, "controller", arguments, given_up=given_up)

    def _write_keys(self) -> None:
        """Write the controller's keys: CURVE keys, which it requires of all who connect, and its signing key.

        Without CURVE any user of the machine could connect, and one short message would stop ipyparallel's queues: they
        read a message's parts without counting them. The keys are in a file, so that a replacement of the controller
        has the same keys, and engines find it again. Messages are signed too, because clients warn of unsigned ones.
        """
        public, secret = zmq.curve_keypair()
        with private_file(self._profile / "ipcontroller_config.py") as file:
            settings = {
                "IPController.curve_publickey": public,
                "IPController.curve_secretkey": secret,
                "IPController.enable_curve": True,
                "Session.key": secrets.token_hex(32).encode(),
            }
            file.write("".join(f"c.{name} = {value!r}\n" for name, value in settings.items()).encode())

    def _await_files(self) -> str:
        deadline = time.monotonic() + _TIMEOUT
        while not (connection := self.connection):
            how = self.end or (f"did not start within {_TIMEOUT:g} s" if time.monotonic() > deadline else "")
            if how:
                raise StartError(f"ipyparallel's controller {how}. Its log ends:\n{self._node.log_tail(KEY)}")
            time.sleep(_TICK)
        return connection
