"""Messages from a rank to the notebook: answers, output, and requests for input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .collectives import CallRecord, CollectiveState
from .common import Failure, Message, Payload
from .output import Item
from .transit import SharedPart


class Hello(Message):
    """The rank is connected; it has no number in the stream, and says how far the rank has heard the notebook.

    Attributes:
        rank: which it is.
        pid: its process.
        host: the name of its machine.
        gpus: the number of CUDA devices that the process sees.
        torch: the version.
        attached: whether the engine's shell is ready to run cells.
        run: the last cell about which a notebook may lack messages, which are repeated next; 0 if there is none.
        ranks: all ranks that run it, as `rank_lists` writes them.
        asks: whether the rank wants a `Greet`.
        printed: what the user's startup files have printed there, or its end.
    """

    rank: int
    pid: int
    host: str
    gpus: int
    torch: str
    attached: bool = False
    run: int = 0
    ranks: str = ""
    asks: bool = True
    printed: str = ""


class Output(Message):
    """What a rank's cell has shown since the last `Output`. All of a cell's come before its `Done`, late ones after.

    ``taken``: up to where it and those before it show what is in the rank's captured files; None where that is unknown.
    """

    run: int
    items: list[Item]
    taken: tuple[int, int] | None = None


class Done(Message):
    """The answer to a request with an ``id``.

    ``failure`` is None if it succeeded; ``blob`` carries the requested values. For a cell, ``interrupted`` tells
    that it ended by KeyboardInterrupt, ``broken`` that its groups must be re-formed, ``doing`` the rank's progress
    when it ended, ``began`` when it began (by the rank's clock), ``steps`` its calls that needed other ranks, and
    ``dropped`` how many earlier ones are not kept, -1 if that is not known. ``notes`` are sentences about secondary
    work that failed. ``shared``, in transit only, has what ranks say alike of the ``steps`` (see `transit`).
    """

    id: int
    seconds: float = 0.0
    failure: Failure | None = None
    interrupted: bool = False
    blob: Payload | None = None
    broken: bool = False
    doing: CollectiveState | None = None
    began: float = 0.0
    steps: Sequence[CallRecord] = []
    dropped: int = 0
    notes: list[str] = []
    shared: SharedPart | None = None


class Mismatch(Message):
    """The ranks' calls with one sequence number do not match, which this rank saw before it moved any data."""

    run: int | None
    generation: int
    text: str


class IntrospectReply(Message):
    """The answer to an `IntrospectRequest`, as in Jupyter's own ``complete_reply`` or ``inspect_reply``.

    ``content`` is empty if the rank cannot answer, because it is not ready, or an earlier answer takes too long.
    """

    id: int
    content: dict[str, Any]


class InputRequest(Message):
    """A rank waits for a line from the user: `input`, `getpass`, a debugger. Answered by an `InputReply`.

    ``number`` counts the rank's requests; ``hidden``: the typed text must not be shown; ``dialogue``: a debugger asks,
    or another program that asks again after each answer.
    """

    run: int
    number: int
    prompt: str
    hidden: bool = False
    dialogue: bool = False


class InputCancelled(Message):
    """The rank no longer waits for the answer to this `InputRequest`, for example because it was interrupted."""

    run: int
    number: int


class StatusReply(Message):
    """A rank's present state. Memory is in bytes; ``since`` is by the rank's clock (`time.time`) in seconds.

    ``steps`` are the last few of the running cell. Of the requests, ``heard`` is the last that arrived, ``begun`` the
    last that was begun, ``answered`` the last whose answer had been sent when the first of all this was read.
    ``pss``: the memory is proportional; else it is resident. ``shared`` is as in a `Done`. ``importing`` is the library
    that the main thread imports, for whose end an interrupt waits; empty if it imports none. ``ending`` is the request
    that was told to end, 0 if none was, and ``asking`` has what the rank asks a user and has no answer to: the notebook
    compares both with what it wants. Of the GPU, ``device_memory`` is what all processes use of ``device_total``,
    ``allocated`` what this rank's tensors have, and ``reserved`` what torch keeps for it.
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
    steps: Sequence[CallRecord] = []
    heard: int = 0
    begun: int = 0
    answered: int = 0
    pss: bool = False
    shared: SharedPart | None = None
    importing: str = ""
    ending: int = 0
    asking: Sequence[InputRequest] = []
    device_name: str = ""
    allocated: int = 0
    reserved: int = 0


class Registered(Message):
    """The rank is an engine of ipyparallel's controller, with this name; or ``failure`` tells why it is not."""

    engine: str
    failure: str = ""


FromRank = Hello | Output | Done | Mismatch | IntrospectReply | StatusReply | InputRequest | InputCancelled | Registered
