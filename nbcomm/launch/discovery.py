"""Which worlds of this user live on this machine: found by their directories, and asked whose they are."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ..node.forkserver_protocol import Report, WorldStatus
from ..world_dir import WorldDir, WorldInfo

_PATIENCE = 2.0
"""Seconds that a fork server has to answer; it does nothing that takes longer, but may be importing."""


@dataclass(frozen=True)
class FoundWorld:
    """A world that lives.

    Attributes:
        home: its directory.
        info: what its notebook has left written.
        holder: the process of the notebook that steers it; 0 if none does.
        left: seconds that it will still live without one.
    """

    home: WorldDir
    info: WorldInfo
    holder: int
    left: float

    def __str__(self) -> str:
        whose = f"in use by process {self.holder}" if self.holder else f"free, ends in {self.left:.0f} s"
        return f"{self.home.id}: {self.info.title}, started in {self.info.cwd}, {whose}"


def find_worlds() -> list[FoundWorld]:
    """Find the worlds of this user that live, the newest first; looking at them changes nothing."""
    found = []
    for home in WorldDir.all():
        with suppress(OSError, msgspec.DecodeError):  # it is ending, or has not begun
            info, standing = home.read_world(), _ask(home)
            found.append(FoundWorld(home, info, standing.holder, standing.lease - standing.alone))
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
    standing = msgspec.json.decode(said.split(b"\n")[0], type=Report)
    if not isinstance(standing, WorldStatus):
        raise msgspec.DecodeError("This is no fork server of this version.")
    return standing
