"""What the notebook and the fork server say to each other: one JSON object a line."""

from __future__ import annotations

import msgspec


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


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """End everything."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Imports are done. ``forks`` tells how children start; ``gpus`` are the CUDA devices they would see."""

    forks: bool
    gpus: int
    why: str


class Started(msgspec.Struct, tag=True, frozen=True):
    """The process runs."""

    key: str
    pid: int


class Exited(msgspec.Struct, tag=True, frozen=True):
    """The process has ended; ``status`` is minus the signal, or the exit code."""

    key: str
    pid: int
    status: int


Order = Start | Lease | Shutdown
Report = Ready | Started | Exited
