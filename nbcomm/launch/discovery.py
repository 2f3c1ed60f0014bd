"""Discovery of this user's live worlds on this machine, by their directories and the answers of their daemons."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import msgspec

from ..protocol import NodeStatus
from ..protocol.codec import decode_status
from ..world_dir import WorldDir
from ..world_info import WorldInfo

_TIMEOUT = 2.0
"""Seconds that a daemon has to answer by default."""

_REPLACED = 0.5
"""Seconds in which a daemon that has ended just now is replaced; else the world has ended, too."""

_TICK = 0.05


@dataclass(frozen=True)
class FoundWorld:
    """A live world.

    Attributes:
        home: its directory.
        info: what its notebook wrote about it.
        holder: the process of the notebook that steers it; 0 if none does.
        left: seconds that it will still live without a notebook.
    """

    home: WorldDir
    info: WorldInfo
    holder: int
    left: float

    def __str__(self) -> str:
        whose = f"in use by process {self.holder}" if self.holder else f"free, ends in {self.left:.0f} s"
        return f"{self.home.id}: {self.info.title}, started in {self.info.cwd}, {whose}"


def find_worlds(timeout: float | None = None, silent: list[str] | None = None) -> list[FoundWorld]:
    """Find the live worlds of this user, the newest first; this does not change them.

    Args:
        timeout: seconds that each daemon has to answer; by default few, for those who only look around.
        silent: gets a line for each world that is there, and does not answer.
    """
    found = []
    for home in WorldDir.all():
        try:
            info, status = home.read_world(), _ask(home, _TIMEOUT if timeout is None else timeout)
            found.append(FoundWorld(home, info, status.holder, status.lease - status.alone))
        except (OSError, msgspec.DecodeError) as error:  # it is ending, or not started yet
            if silent is not None and home.world_file.exists():
                silent.append(f"{home.id}: {str(error) or type(error).__name__}")
    return sorted(found, key=lambda world: -world.info.started)


def _ask(home: WorldDir, timeout: float) -> NodeStatus:
    deadline = time.monotonic() + _REPLACED
    while True:
        try:
            return _ask_once(home, timeout)
        except (ConnectionError, EOFError):
            if time.monotonic() > deadline or not home.path.exists():
                raise ConnectionError("The node's daemon does not answer.") from None
            time.sleep(_TICK)


def _ask_once(home: WorldDir, timeout: float) -> NodeStatus:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(os.fspath(home.daemon_socket))
        told = b""
        try:
            while more := connection.recv(4096):
                told += more
        except TimeoutError:
            raise TimeoutError from None  # without words of its own, it is told by its name
    if not told:
        raise EOFError
    return decode_status(told)
