"""The messages between the notebook and the fork server: one JSON object a line."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""A valid process id; other numbers are refused."""


def wired(text: str) -> str:
    """Encode a text of the system for JSON, which does not allow bytes that are not UTF-8."""
    return os.fsencode(text).decode("latin-1")


def unwired(text: str) -> str:
    """Decode a text that `wired` encoded."""
    return os.fsdecode(text.encode("latin-1"))


class Start(msgspec.Struct, tag=True, frozen=True):
    """Start a process under a key; its output goes to ``log``. Answered by `Started` or `Refused`."""

    key: str
    what: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str


class Lease(msgspec.Struct, tag=True, frozen=True):
    """From now on, live this many seconds without a notebook."""

    seconds: float


class Claim(msgspec.Struct, tag=True, frozen=True):
    """Claim the world for this connection. Answered by `Claimed`, or `Busy` if another connection holds it."""

    pid: Pid


class Adopt(msgspec.Struct, tag=True, frozen=True):
    """Watch processes that an earlier fork server started: by key, their pids.

    Answered by `Adopted`, after an `Exited` for each process that is gone.
    """

    children: dict[str, Pid]


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """End everything."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Imports are done. ``forks`` tells how children start; ``gpus`` is the number of CUDA devices they would see."""

    forks: bool
    gpus: int
    why: str


class WorldStatus(msgspec.Struct, tag=True, frozen=True):
    """The first message to each connection: which notebook steers the world.

    Attributes:
        pid: the fork server's pid.
        holder: the process of the notebook that holds the world; 0 if none does.
        alone: seconds since the last notebook left.
        lease: seconds that the world lives without a notebook.
    """

    pid: int
    holder: int
    alone: float
    lease: float


class Claimed(msgspec.Struct, tag=True, frozen=True):
    """The connection holds the world. These processes live, by key; an `Exited` follows for each that has ended."""

    children: dict[str, int]


class Busy(msgspec.Struct, tag=True, frozen=True):
    """The notebook of another process steers this world."""

    holder: int


class Started(msgspec.Struct, tag=True, frozen=True):
    """The process runs."""

    key: str
    pid: int


class Adopted(msgspec.Struct, tag=True, frozen=True):
    """An `Adopt` is done. ``refused`` tells, by key, why a live process is not watched."""

    refused: dict[str, str]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The process could not be started."""

    key: str
    why: str


class Exited(msgspec.Struct, tag=True, frozen=True):
    """The process has ended.

    ``status`` is minus the signal, or the exit code; None if another process was its parent. ``oom`` tells
    whether the system has killed processes for lack of memory since this process was started.
    """

    key: str
    pid: int
    status: int | None
    oom: bool = False


Order = Start | Lease | Claim | Adopt | Shutdown
Report = Ready | WorldStatus | Claimed | Busy | Started | Adopted | Refused | Exited
