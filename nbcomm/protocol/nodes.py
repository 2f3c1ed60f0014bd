"""The messages between the notebook and a node: orders to its daemon, and its reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import msgspec

from .common import Message
from .output import Text
from .reports import Output

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""A valid process id; other numbers are refused."""


def wired(text: str) -> str:
    """Encode a text of the system for a message, which does not allow bytes that are not UTF-8."""
    return os.fsencode(text).decode("latin-1")


def unwired(text: str) -> str:
    """Decode a text that `wired` encoded."""
    return os.fsdecode(text.encode("latin-1"))


HEAD = 0
"""The number of the node on the notebook's machine."""


def name_of(node: int) -> str:
    """Return the name of a node's daemon on the link."""
    return f"node{node}"


def rank_name(rank: int, start: int) -> str:
    """Return the name of a rank's process on the link: another process of the rank has another one, and another key."""
    return f"rank{rank}-{start}"


def rank_named(name: str) -> int:
    """Return the rank whose process has a name.

    >>> rank_named(rank_name(3, 17))
    3
    """
    return int(name.removeprefix("rank").partition("-")[0])


def key_of(rank: int) -> str:
    """Return the key of a rank's process."""
    return f"rank {rank}"


def rank_of(key: str) -> int | None:
    """Return the rank that a process is, by its key; None for the controller.

    >>> rank_of(key_of(3)), rank_of("controller")
    (3, None)
    """
    return int(key.removeprefix("rank ")) if key.startswith("rank ") else None


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────
# Each has a number that no other order of this world has. An order that is not answered is given again to another
# daemon, and one with a number that was obeyed before is answered, but not done again.


class Claim(Message):
    """This notebook steers the world now. Answered by `Processes`, and then `Obeyed`.

    Attributes:
        number: of the order.
        pid: the process of the notebook.
        lease: seconds that the world lives without a notebook.
        living: the node's processes that live, as far as the notebook knows: what is written down may lack some.
    """

    number: int
    pid: Pid
    lease: float
    living: list[Started] = []


class Start(Message):
    """Start a process; its output goes to its log. Answered by `Started` or `Failed`.

    Attributes:
        number: of the order; the process's name in reports and further orders.
        key: "rank 3" or "controller".
        what: "engine" or "controller".
        argv: its arguments.
        env: its environment variables.
        cwd: the folder in which it starts.
        adds: ``env`` is added to the node's own variables, and where there is no such folder, it starts in the user's.
        public: the CURVE key of a rank's own connection to the notebook, in Z85 text; empty for the controller.
        secret: the other half. It is in no variable and no argument of the process, which a cell may show.
    """

    number: int
    key: str
    what: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    adds: bool = False
    public: str = ""
    secret: str = ""


class Signal(Message):
    """Signal the process that the order ``start`` has started, unless it has ended. Answered by `Obeyed`."""

    number: int
    start: int
    signal: int


class Look(Message):
    """See which processes have ended. Answered by `Obeyed`, behind `Processes` if that has another ``version``."""

    number: int
    version: int = 0


class ReadLog(Message):
    """Send the end of the log of a key's process. Answered by `LogTail`."""

    number: int
    key: str
    lines: int


class ReadFacts(Message):
    """Tell what the node offers to ranks now. Answered by `NodeFacts`."""

    number: int


class ServeGroups(Message):
    """Serve what the groups of this generation need of this node, and no more what the last one's did.

    It is the whole table, and answered by `Serving`. `NodeHello` tells what a daemon serves, so the next one gets it
    again.

    Attributes:
        number: of the order.
        generation: whose ranks meet.
        store: whether they meet in the store of this node.
        address: where ranks of other nodes reach this one: "tcp://10.0.0.1:*", or with the port of the last daemon;
            empty if none do.
        ranks: the names of those ranks' processes, by their public keys in Z85 text; no other is let in.
        pages: those of them whose pages are copied to here.
        again: another daemon has served them: ranks of this node may read the copies of pages that there are.
    """

    number: int
    generation: int
    store: bool = True
    address: str = ""
    ranks: dict[str, str] = {}
    pages: list[int] = []
    again: bool = False


class Shutdown(Message):
    """End everything."""

    number: int


Order = Claim | Start | Signal | Look | ReadLog | ReadFacts | ServeGroups | Shutdown


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────


class NodeHello(Message):
    """The daemon is connected, and nobody has claimed the world from it since. It says so again and again.

    Attributes:
        daemon: the number of this process among the node's daemons.
        generation: whose groups it serves; 0 if none.
        address: where ranks of other nodes reach it; empty if it does not listen for them.
    """

    daemon: int
    generation: int
    address: str = ""


class Ready(Message):
    """The imports are done. ``forks`` tells how children start; ``gpus`` is the number of CUDA devices they would see.

    ``why``: why they are not forked; ``note``: what the user should know; ``nccl``: its version, or "".
    """

    forks: bool
    gpus: int
    why: str
    note: str = ""
    nccl: str = ""


class Started(Message):
    """The process runs, or has run. ``start`` is the number of its order.

    ``public``: the key of its connection to the notebook; empty for the controller.
    """

    start: int
    key: str
    pid: int
    public: str = ""


class Failed(Message):
    """An order was not obeyed."""

    number: int
    why: str


class Obeyed(Message):
    """An order was obeyed."""

    number: int


class Serving(Message):
    """The groups are served. Ranks of other nodes reach this one at ``address``, which may have another port."""

    number: int
    address: str = ""


class LogTail(Message):
    """The end of a log."""

    number: int
    text: str


class NodeFacts(Message):
    """What is true of the node.

    Attributes:
        number: of the order.
        cores: that ranks may run on.
        memory: bytes that are free.
        host: the name of the machine.
        home: the node's directory.
        address: of this machine, where the other nodes reach it: as it is seen on the way to the notebook.
        versions: of Python and nbcomm, by name.
        clock: when it told this, by its clock (`time.time`), in seconds.
    """

    number: int
    cores: int
    memory: int
    host: str = ""
    home: str = ""
    address: str = ""
    versions: dict[str, str] = {}
    clock: float = 0.0


class UnsaidText(msgspec.Struct, array_like=True, frozen=True):
    """The rest of a captured file: from ``said`` on it was not said; ``data`` begins at ``begin``."""

    stream: str
    said: int
    begin: int
    data: bytes


class Unsaid(Message):
    """What a rank has written for a cell, but could not say any more, as far as it knew what was heard of it."""

    run: int
    texts: list[UnsaidText]


def unheard(unsaid: Unsaid, taken: Sequence[int]) -> Output | None:
    """Return what was not heard of the last text of a rank, of whose files so much was; None if that is nothing."""
    items = []
    for text, heard in zip(unsaid.texts, taken, strict=True):
        data = text.data[max(0, heard - text.begin) :].decode(errors="replace")
        if data:
            lacks = text.begin > max(text.said, heard)
            items.append(Text(text.stream, "(earlier output is not kept)\n" * lacks + data))
    return Output(unsaid.run, [*items]) if items else None


class Exited(Message):
    """The process has ended.

    ``status`` is minus the signal, or the exit code; None if another process was its parent. ``oom`` tells
    whether the system has killed processes for lack of memory since this process was started. ``why`` is in words, if
    they are known better. ``unsaid`` is what a rank has written, but could not say any more.
    """

    start: int
    key: str
    pid: int
    status: int | None
    oom: bool = False
    why: str = ""
    unsaid: Unsaid | None = None


class Processes(Message):
    """All that is known of the node's processes: those that live, and for each other key the last with its end.

    ``version`` grows with each change, and begins anew with another daemon.
    """

    version: int
    table: list[Started | Exited]


class Cleared(Message):
    """Nothing of the world is left on the node but the daemon, which ends now."""


Report = (
    NodeHello
    | Ready
    | Started  # from the zygote
    | Failed
    | Obeyed
    | Serving
    | LogTail
    | NodeFacts
    | Processes
    | Cleared
)


class NodeStatus(Message):
    """What the daemon tells any process of this user that asks: which notebook steers the world.

    Attributes:
        pid: the daemon's.
        holder: the process of the notebook that holds the world; 0 if none does.
        alone: seconds since the last notebook left.
        lease: seconds that the world lives without a notebook.
    """

    pid: int
    holder: int
    alone: float
    lease: float
