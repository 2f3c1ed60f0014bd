"""What a rank tells the notebook: answers, output, and what it asks of a person."""

from __future__ import annotations

from typing import Any

from .collectives import CallRecord, CollectiveState
from .common import Failure, Message, Payload
from .output import Item


class Hello(Message):
    """The agent is connected. ``gpus`` is how many CUDA devices the process sees."""

    rank: int
    pid: int
    host: str
    gpus: int
    torch: str


class Attached(Message):
    """The engine's shell is ready: from now on cells can run."""

    rank: int


class Resume(Message):
    """The rank is connected to a notebook that did not give it ``run``: what it has said of it follows once more.

    ``ranks`` are all that run it.
    """

    run: int
    ranks: list[int]


class Output(Message):
    """What a rank's cell has shown since the last one. All of a cell's come before its `Done`, late ones after."""

    run: int
    items: list[Item]


class Done(Message):
    """The answer to a request with an ``id``.

    ``failure`` is None where it worked; ``blob`` carries what was asked for. For a cell, ``interrupted``
    tells that it ended by KeyboardInterrupt, ``broken`` that its groups must be formed anew, ``doing`` how
    far the rank was when it ended, ``began`` when it had begun (by the rank's clock), ``steps`` what it made that
    needed other ranks, and ``dropped`` how many more there were before those, -1 where that could not be told.
    ``notes`` are sentences about what should have accompanied it, and failed.
    """

    id: int
    seconds: float = 0.0
    failure: Failure | None = None
    interrupted: bool = False
    blob: Payload | None = None
    broken: bool = False
    doing: CollectiveState | None = None
    began: float = 0.0
    steps: list[CallRecord] = []
    dropped: int = 0
    notes: list[str] = []


class Mismatch(Message):
    """Ranks do different things at the same place of a group, which this rank saw before it moved any data."""

    run: int | None
    generation: int
    text: str


class IntrospectReply(Message):
    """The answer to an `IntrospectRequest`; as in Jupyter's own ``complete_reply`` or ``inspect_reply``.

    ``content`` is empty where the rank cannot say, because it is not ready, or an earlier answer takes too long.
    """

    id: int
    content: dict[str, Any]


class InputRequest(Message):
    """A rank waits for a line that a person types: `input`, `getpass`, a debugger. Answered by a `InputReply`.

    ``number`` counts the questions of the rank; ``hidden``: what is typed must not be seen; ``dialogue``: a debugger
    asks, or something else that will ask again as soon as it has an answer.
    """

    run: int
    number: int
    prompt: str
    hidden: bool = False
    dialogue: bool = False


class InputCancelled(Message):
    """The rank waits no longer for the answer to this `InputRequest`: it was interrupted, say."""

    run: int
    number: int


class StatusReply(Message):
    """What a rank is doing now. Bytes of memory; ``since`` is the rank's clock (`time.time`) in seconds.

    ``steps`` are the last few of the running cell. Of the requests, ``heard`` is the last that has come, ``begun`` the
    last that was begun, ``answered`` the last whose answer has been sent. ``pss``: the memory is proportional, and else
    resident.
    """

    rank: int
    pid: int
    state: str
    since: float
    run: int | None
    memory: int
    device_memory: int
    device_total: int
    generation: int = 0
    doing: CollectiveState = CollectiveState()
    question: int = 0
    steps: list[CallRecord] = []
    heard: int = 0
    begun: int = 0
    answered: int = 0
    pss: bool = False


FromRank = (
    Hello | Attached | Resume | Output | Done | Mismatch | IntrospectReply | StatusReply | InputRequest | InputCancelled
)
