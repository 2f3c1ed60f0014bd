"""Discovery of this user's live worlds on this machine, by their directories and their fork servers' answers."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ..node.forkserver_protocol import Report, WorldStatus
from ..world_dir import WorldDir, WorldInfo

_PATIENCE = 2.0
"""Seconds that a fork server has to answer; only imports can keep it busy for as long."""


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


def find_worlds() -> list[FoundWorld]:
    """Find the live worlds of this user, the newest first; this does not change them."""
    found = []
    for home in WorldDir.all():
        with suppress(OSError, msgspec.DecodeError):  # it is ending, or not started yet
            info, status = home.read_world(), _ask(home)
            found.append(FoundWorld(home, info, status.holder, status.lease - status.alone))
    return sorted(found, key=lambda world: -world.info.started)


def _ask(home: WorldDir) -> WorldStatus:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(os.fspath(home.forkserver_socket))
        said = b""
        while b"\n" not in said:
            data = connection.recv(4096)
            if not data:
                raise ConnectionError("The fork server has hung up.")
            said += data
    status = msgspec.json.decode(said.split(b"\n")[0], type=Report)
    if not isinstance(status, WorldStatus):
        raise msgspec.DecodeError("This is no fork server of this version.")
    return status
