"""What the notebook and the fork server say to each other: one JSON object a line."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""What a process may be called: a number that is no such thing must not travel on."""


def wired(text: str) -> str:
    """What the system may hand out and JSON does not take, as JSON takes it: bytes that are no UTF-8."""
    return os.fsencode(text).decode("latin-1")


def unwired(text: str) -> str:
    """The text that `wired` was given."""
    return os.fsdecode(text.encode("latin-1"))


class Start(msgspec.Struct, tag=True, frozen=True):
    """Start a process under a key; its output goes to ``log``. Any `Started` answers it."""

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
    """From now on this connection steers the world; answered by `Claimed`, or `Busy` if another one does."""

    pid: Pid


class Adopt(msgspec.Struct, tag=True, frozen=True):
    """Take care of processes that a fork server before this one has started: by key, their pids.

    Answered by `Adopted`; `Exited` tells, before, of those that are gone.
    """

    children: dict[str, Pid]


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """End everything."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Imports are done. ``forks`` tells how children start; ``gpus`` are the CUDA devices they would see."""

    forks: bool
    gpus: int
    why: str


class WorldStatus(msgspec.Struct, tag=True, frozen=True):
    """What a visitor is told first: who steers the world.

    Attributes:
        pid: the fork server's.
        holder: the process of the notebook that is connected; 0 if none is.
        alone: seconds since the last one left.
        lease: seconds that the world lives without one.
    """

    pid: int
    holder: int
    alone: float
    lease: float


class Claimed(msgspec.Struct, tag=True, frozen=True):
    """The world is yours. These processes live, by key; `Exited` tells of those that have ended meanwhile."""

    children: dict[str, int]


class Busy(msgspec.Struct, tag=True, frozen=True):
    """The notebook of another process steers this world."""

    holder: int


class Started(msgspec.Struct, tag=True, frozen=True):
    """The process runs."""

    key: str
    pid: int


class Adopted(msgspec.Struct, tag=True, frozen=True):
    """An `Adopt` is done. ``refused`` tells, by key, why a process that lives is not taken care of."""

    refused: dict[str, str]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The process could not be started."""

    key: str
    why: str


class Exited(msgspec.Struct, tag=True, frozen=True):
    """The process has ended.

    ``status`` is minus the signal, or the exit code; None where another process was its parent. ``oom`` tells
    whether the system has killed processes for lack of memory since this one was started.
    """

    key: str
    pid: int
    status: int | None
    oom: bool = False


Order = Start | Lease | Claim | Adopt | Shutdown
Report = Ready | WorldStatus | Claimed | Busy | Started | Adopted | Refused | Exited
