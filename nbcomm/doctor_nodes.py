"""Checks of a start on several machines: it is made, looked at from all sides, and stopped.

What the ranks measure is what a world would have: the time of a message and the bandwidth between each two nodes go
through gloo, on the interface that the ranks use.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .doctor import CheckResult
from .errors import NbcommError
from .notebook.cluster.joining import in_words
from .notebook.measures.bench import time_pairs
from .notebook.session import registry

if TYPE_CHECKING:
    from .notebook.cluster.start_options import StartOptions
    from .notebook.session.session import Session

_GB = 1 << 30
_CLOCKS = 1.0
"""Seconds by which the clocks of two machines may differ before times in logs and traces confuse."""

_SLOW = 3.0
"""How many times slower than the median a pair of nodes may be before it is named."""


class Room(NamedTuple):
    """What a rank sees on its machine.

    Attributes:
        host: its name.
        clock: its time.
        disk: bytes that are free for files.
        memory: bytes that are free in shared memory.
        network: the interface of gloo, that of NCCL if it is another one, and devices that NCCL can use beside it:
            InfiniBand's, and others that speak like it.
    """

    host: str
    clock: float
    disk: int
    memory: int
    network: list[str]


def findings(options: StartOptions) -> Iterator[tuple[str, CheckResult]]:
    """Run the checks one by one as the caller iterates, and yield each one's subject and verdict.

    Args:
        options: the start that is tried.
    """
    try:
        if options.engines != "local":
            yield "commands", CheckResult("ok", in_words(options))
        began = time.monotonic()
        session = registry.start(progress=_said, **{**vars(options), "name": ""})
    except NbcommError as error:
        yield "start", CheckResult("fail", f"{error}")
        return
    with session:
        yield "start", CheckResult("ok", f"{session.title} are up in {time.monotonic() - began:.1f} s.")
        try:
            yield from _nodes(session)
        except NbcommError as error:
            yield "ranks", CheckResult("fail", f"{error}")


def _said(doing: str, ready: int, of: int) -> None:
    """Say nothing: each check is one line."""


def _nodes(session: Session) -> Iterator[tuple[str, CheckResult]]:
    firsts: dict[int, int] = {}
    for view in session.views():
        firsts.setdefault(view.node_rank, view.rank)
    ranks = [*firsts.values()]
    for node, rank in firsts.items():
        yield f"node {node}", _node(session, node, rank)
    if len(ranks) > 1:
        times, speeds = time_pairs(session, ranks)
        names = {rank: f"node {node}" for node, rank in firsts.items()}
        yield "time of a message", slowest(times, names, "µs", 1e6)
        yield "bandwidth", slowest(speeds, names, "MB/s", 0.0)


def _node(session: Session, node: int, rank: int) -> CheckResult:
    """Check the machine of a node by its first rank."""
    before = time.time()
    (room,) = session.call(look_around, ranks=[rank])
    after = time.time()
    views = [view for view in session.views() if view.node_rank == node]
    what = f"{room.host}: {len(views)} rank{'s' * (len(views) > 1)} on {views[0].device}"
    off = 0.0 if before <= room.clock <= after else min(room.clock - before, room.clock - after, key=abs)
    what += f", network {', '.join(room.network)}"
    what += f", {room.disk / _GB:.1f} GB free for files and {room.memory / _GB:.1f} GB in shared memory"
    if abs(off) > _CLOCKS:
        return CheckResult("warn", f"{what}; its clock is {off:+.1f} s off this machine's: let both use NTP.")
    if min(room.disk, room.memory) < _GB // 4:
        return CheckResult("warn", f"{what}; that is little: large values and logs may not fit.")
    return CheckResult("ok", f"{what}; its clock agrees.")


# ── on a rank ───────────────────────────────────────────────────────────────────────────────────────


def look_around() -> Room:
    """Return what this rank's machine has."""
    import socket

    shared = "/dev/shm"  # noqa: S108 - only looked at
    free = [shutil.disk_usage(path).free for path in (tempfile.gettempdir(), shared if os.path.isdir(shared) else "/")]  # noqa: PTH112
    interfaces = [os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]]
    rdma = sorted(each.name for each in Path("/sys/class/infiniband").glob("*"))
    return Room(socket.gethostname(), time.time(), free[0], free[1], [*dict.fromkeys([*interfaces, *rdma])])


def slowest(found: dict[tuple[int, int], float], names: dict[int, str], unit: str, factor: float) -> CheckResult:
    """Say how pairs of nodes compare, and name one that is much slower than the others.

    Args:
        found: by pair, seconds, or bytes a second.
        names: of the nodes, by their first ranks.
        unit: in which that is said.
        factor: from seconds to the unit; 0 for bytes a second, which are better if they are more.
    """
    rate = not factor
    shown = {pair: value / 1e6 if rate else value * factor for pair, value in found.items()}
    worst = min(shown, key=shown.__getitem__) if rate else max(shown, key=shown.__getitem__)
    middle, value = statistics.median(shown.values()), shown[worst]
    said = f"{middle:.0f} {unit} between two nodes (median of {len(shown)} pair{'s' * (len(shown) > 1)})"
    if (middle / max(value, 1e-9) if rate else value / max(middle, 1e-9)) > _SLOW:
        between = " and ".join(names[rank] for rank in worst)
        return CheckResult("warn", f"{said}; between {between} only {value:.0f} {unit}: look at that link.")
    return CheckResult("ok", f"{said}.")
