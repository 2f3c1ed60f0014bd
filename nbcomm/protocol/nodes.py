"""The messages between the notebook and a node: orders to its agent and fork server, and their reports."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from .common import Message
from .reports import Output

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""A valid process id; other numbers are refused."""


def wired(text: str) -> str:
    """Encode a text of the system for a message, which does not allow bytes that are not UTF-8."""
    return os.fsencode(text).decode("latin-1")


def unwired(text: str) -> str:
    """Decode a text that `wired` encoded."""
    return os.fsdecode(text.encode("latin-1"))


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
# agent, and one with a number that was obeyed before is answered, but not done again.


class Claim(Message):
    """This notebook steers the world now. Answered by all that is known of the processes, and then `Obeyed`.

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
    """

    number: int
    key: str
    what: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    adds: bool = False


class Signal(Message):
    """Signal the process that the order ``start`` has started, unless it has ended. Answered by `Obeyed`."""

    number: int
    start: int
    signal: int


class Look(Message):
    """Report the processes that have ended, now. Answered by `Obeyed`, after the reports."""

    number: int


class ReadLog(Message):
    """Send the end of the log of a key's process. Answered by `LogTail`."""

    number: int
    key: str
    lines: int


class ReadFacts(Message):
    """Tell what the node offers to ranks now. Answered by `NodeFacts`."""

    number: int


class ServeStore(Message):
    """Serve the rendezvous of this generation; end that of the last one. Answered by `Obeyed`, or by `StoreDoor`.

    Attributes:
        number: of the order.
        generation: whose ranks meet there.
        host: the address of this machine at which other nodes reach it; empty if there are none.
        nodes: their public keys, in Z85 text.
    """

    number: int
    generation: int
    host: str = ""
    nodes: list[str] = []


class RelayStore(Message):
    """Lead the ranks of this node to the store of another one; end that of the last generation. Answered by `Obeyed`.

    ``address`` and ``public`` are those of the `StoreDoor`.
    """

    number: int
    generation: int
    address: str
    public: str


class OpenMirror(Message):
    """Let the agents of other nodes write on copies of their ranks' pages here. Answered by `MirrorDoor`.

    Attributes:
        number: of the order.
        host: the address of this machine at which they reach it.
        nodes: their public keys, in Z85 text, by the number of the node.
    """

    number: int
    host: str
    nodes: dict[int, str]


class MirrorPeer(Message):
    """Another node: where its agent lets others write, and the ranks that it has."""

    node: int
    address: str
    public: str
    ranks: list[int]


class Mirror(Message):
    """Begin: what the ranks of this node write on their pages goes to these other nodes. Answered by `Obeyed`."""

    number: int
    peers: list[MirrorPeer]


class Shutdown(Message):
    """End everything."""

    number: int


Order = Claim | Start | Signal | Look | ReadLog | ReadFacts | ServeStore | RelayStore | OpenMirror | Mirror | Shutdown


class Poll(Message):
    """Send a `StatusRequest` with this question to each rank of the node; only the ranks answer."""

    question: int


class Left(Message):
    """To the fork server from its agent: no notebook is connected any more."""


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────


class NodeHello(Message):
    """The agent is connected. ``agent`` is the number of this process among the node's agents.

    ``store``: the generation whose store it serves, or leads to; 0 if there is none.
    """

    agent: int
    store: int


class Ready(Message):
    """The imports are done. ``forks`` tells how children start; ``gpus`` is the number of CUDA devices they would see.

    ``why``: why they are not forked; ``note``: what the user should know.
    """

    forks: bool
    gpus: int
    why: str
    note: str = ""


class Started(Message):
    """The process runs, or ran: an `Exited` follows if it has ended. ``start`` is the number of its order."""

    start: int
    key: str
    pid: int


class Failed(Message):
    """An order was not obeyed."""

    number: int
    why: str


class Obeyed(Message):
    """An order was obeyed."""

    number: int


class StoreDoor(Message):
    """The store is served, and other nodes reach it at this address, where its end has this CURVE key in Z85 text."""

    number: int
    address: str
    public: str


class MirrorDoor(Message):
    """Other nodes' agents write at this address, where this end has this CURVE key in Z85 text."""

    number: int
    address: str
    public: str


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
    unsaid: Output | None = None


class Unwatched(Message):
    """The process lives, but the fork server, which did not start it, cannot wait for its end; ``why`` is in words."""

    start: int
    key: str
    why: str


class ForkServerEnded(Message):
    """The fork server has ended; its agent and the ranks go on."""


class Cleared(Message):
    """Nothing of the world is left on the node but the agent, which ends now."""


Report = (
    NodeHello
    | Ready
    | Started
    | Failed
    | Obeyed
    | StoreDoor
    | MirrorDoor
    | LogTail
    | NodeFacts
    | Exited
    | Unwatched
    | ForkServerEnded
    | Cleared
)


class NodeStatus(Message):
    """What the agent tells any process of this user that asks: which notebook steers the world.

    Attributes:
        pid: the agent's.
        holder: the process of the notebook that holds the world; 0 if none does.
        alone: seconds since the last notebook left.
        lease: seconds that the world lives without a notebook.
    """

    pid: int
    holder: int
    alone: float
    lease: float
