"""What travels on the link between the notebook and a rank: typed structs; `nbcomm.protocol.codec` encodes them.

A message is one ZMQ multipart: the encoded struct first, then the raw buffers that belong to it (the
tensors of a `Push`, say), which are never copied into the struct.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Encoded as an array, the class's name first: smaller than a map, and unknown types are refused."""


# ── pieces ──────────────────────────────────────────────────────────────────────────────────────────


class RankPlacement(msgspec.Struct, array_like=True, frozen=True):
    """Where one rank sits; the numbers are torchrun's.

    ``device`` is what `torch.device` takes: ``"cpu"`` or ``"cuda:1"``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int
    device: str
    backend: str
    threads: int


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An exception as its rank rendered it; ``traceback`` may hold ANSI colours."""

    name: str
    message: str
    traceback: str


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """A pickled value. Its out-of-band buffers travel as frames, or in a file when ``path`` is set.

    ``sizes`` are the buffers' lengths in bytes, in order.
    """

    pickled: bytes
    sizes: list[int] = []
    path: str = ""


class Text(msgspec.Struct, tag="t", array_like=True, frozen=True):
    """Text written to ``stream`` ("stdout" or "stderr"), of any length, in the order it was written.

    ``late``: a background thread wrote it after its cell had ended.
    """

    stream: str
    text: str
    late: bool = False


class Display(msgspec.Struct, tag="d", array_like=True, frozen=True):
    """A display: a MIME bundle. With ``update`` it replaces what the rank showed under ``display_id``."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str = ""
    update: bool = False
    late: bool = False


LIVE = "nbcomm-live-"
"""How the ``display_id`` of a text begins that changes all the time, as a progress bar does."""


class Result(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """The value of the cell's last expression, as a MIME bundle."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}


class Clear(msgspec.Struct, tag="c", array_like=True, frozen=True):
    """``clear_output``: this rank's output of the cell so far goes; with ``wait``, at its next output."""

    wait: bool = False


class CommFromRank(msgspec.Struct, tag="m", array_like=True, frozen=True):
    """What a comm made on the rank (a widget's, say) tells its other half in the page.

    Attributes:
        kind: "open", "msg" or "close".
        comm: its id.
        data: as in Jupyter's own messages; so is ``metadata``.
        target: who is to answer an "open": "jupyter.widget" for widgets.
        buffers: binary parts, which ``data`` refers to.
        late: it came after its cell had ended.
    """

    kind: str
    comm: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    target: str = ""
    buffers: list[bytes] = []
    late: bool = False


Item = Text | Display | Result | Clear | CommFromRank


class PendingCall(msgspec.Struct, array_like=True, frozen=True):
    """A call on one rank that needs other ranks: a collective, a send, or a receive.

    Attributes:
        kind: "collective", "send" or "recv".
        name: what was called: "all_reduce", "new_group", "send", …
        group: the process group's name.
        members: the group's global ranks.
        seq: the position, from 1, among this rank's collectives in the group; of a send or receive, among
            this rank's of the same kind, group, peer and tag.
        what: shape, dtype and reduction in words: "float32 (4,), sum". Often empty.
        line: the line of the cell that called: "line 3: all_reduce(x)". Empty where it is not known.
        since: when, by the rank's clock (`time.time`), in seconds.
        peer: of a send or receive the other global rank; None for a receive from whoever sends first.
        tag: of a send or receive.
        limited: the wait for it ends by itself, because the caller gave a timeout.
        lost: it has failed, because a connection to another rank was lost; the rank waits to hear why.
        begun: the line of the cell that began it, where it is waited for in another one.
        thread: the name of the thread that waits, if that is not the main one.
    """

    kind: str
    name: str
    group: str
    members: list[int]
    seq: int
    what: str
    line: str
    since: float
    peer: int | None = None
    tag: int = 0
    limited: bool = False
    lost: bool = False
    begun: str = ""
    thread: str = ""


class MessageCount(msgspec.Struct, array_like=True, frozen=True):
    """How many sends to (or receives from) one peer with one tag a rank has issued in a group.

    ``peer`` None: receives from whoever sends first that have not ended; those that have count for who sent.
    """

    group: str
    peer: int | None
    tag: int
    number: int


class CollectiveState(msgspec.Struct, array_like=True, frozen=True):
    """How far a rank is with what needs other ranks; all numbers count from the forming of the group.

    Attributes:
        issued: for each of its groups, how many collectives this rank has issued.
        sent: its sends.
        received: its receives.
        waits: the main thread is stuck until one of these completes; empty where it is not stuck.
        line: what the main thread executes: "line 3: time.sleep(60)".
        threads: threads that run code of cells beside the main thread, and may issue something yet.
        beside: what such threads wait in, while the main thread waits for a thread.
    """

    issued: dict[str, int] = {}
    sent: list[MessageCount] = []
    received: list[MessageCount] = []
    waits: list[PendingCall] = []
    line: str = ""
    threads: int = 0
    beside: list[PendingCall] = []


class CallRecord(msgspec.Struct, array_like=True, frozen=True):
    """A call that a cell made and that needed other ranks, as its journal has it.

    Attributes:
        name: what was called: "all_reduce".
        kind: "collective", "send" or "recv".
        group: the process group's name; empty where nothing moved.
        members: its global ranks.
        first: its sequence number; ``last`` that of the last of torch's calls that it took.
        began: by the rank's clock (`time.time`), in seconds; so is ``ended``, 0 where that is not known.
        failed: it raised.
        peer: of a send or receive; so is ``tag``.
        line: the line of the cell; often empty.
        nbytes: bytes of data that the rank brought; 0 unless it was one tensor, or the cell was traced.
        how: op, src, dst and so on; None unless the cell was drawn. So are ``before`` and ``after``: the values of the
            rank, a text for each cell of the picture.
        asked: when Python began to wait for it, where that was later; 0 where it did not, or that is not known.
            Infinity for what was begun with ``async_op`` as long as nobody waits for it.
    """

    name: str
    kind: str
    group: str
    members: list[int]
    first: int
    last: int
    began: float
    ended: float
    failed: bool = False
    peer: int | None = None
    tag: int = 0
    line: str = ""
    nbytes: int = 0
    how: dict[str, Any] | None = None
    before: list[str] | None = None
    after: list[str] | None = None
    asked: float = 0.0


# ── notebook → rank ─────────────────────────────────────────────────────────────────────────────────


class FormGroups(_Message):
    """Take this place and form the process group of ``generation``; a rank that has one forms all its groups anew.

    Attributes:
        id: the request's.
        place: where this rank sits.
        store: the socket of the rendezvous, fresh for each generation.
        serves: this rank serves the store.
        generation: from 1.
        master_addr: for libraries that read MASTER_ADDR; so is ``master_port``.
        timeout: seconds that a collective may take.
        board: the directory of the board on which the ranks compare their calls; "" for none.
        absent: ranks that are dead: groups with them are not formed.
        newcomers: ranks whose process is new: the others tell them which groups there are.
        plain: why the groups are torch's own; empty if they are ours.
    """

    id: int
    place: RankPlacement
    store: str
    serves: bool
    generation: int
    master_addr: str
    master_port: int
    timeout: float
    board: str = ""
    absent: list[int] = []
    newcomers: list[int] = []
    plain: str = ""


class Run(_Message):
    """Run a cell on the main loop. ``ranks`` are all that run it; ``number`` is the notebook's In[number].

    ``draw``: keep the values of its collectives for pictures; ``trace``: keep all of them, with their bytes.
    ``script``: the code is not the user's, but runs a script of theirs.
    """

    id: int
    code: str
    ranks: list[int]
    number: int
    draw: bool = False
    trace: bool = False
    script: bool = False


class Push(_Message):
    """Bind the names of the blob's dict in the user's namespace."""

    id: int
    blob: Payload


class Pull(_Message):
    """Send back the values of these names, as a dict."""

    id: int
    names: list[str]


class Call(_Message):
    """Call the blob's ``(function, args, kwargs)`` in the user's namespace and send back what it returns.

    With ``local_rank`` the function's first argument is the rank's own local rank.
    """

    id: int
    blob: Payload
    ranks: list[int]
    local_rank: bool = False


class DescribeVariables(_Message):
    """Send back what variables are, in a dict; ``names``, or expressions of names, empty: all that the user made.

    ``hashes``: with the hash of each value, so that ranks can be compared.
    """

    id: int
    names: list[str] = []
    hashes: bool = True


class SendVariable(_Message):
    """Send back the value of ``name``, a name or an expression, in the form in which a `CompareVariable` has it."""

    id: int
    name: str


class CompareVariable(_Message):
    """Say, in a dict, how the value of ``name`` differs from the blob's, which another rank has offered.

    Numbers that are no further apart than ``atol`` are as good as equal.
    """

    id: int
    name: str
    blob: Payload
    atol: float = 0.0


class IntrospectRequest(_Message):
    """Answer with a `IntrospectReply`, also while the main thread is busy: what a person asks while typing.

    ``kind`` is "complete" or "inspect"; ``cursor`` is a position in ``code``, in characters; ``detail`` 1 means ``??``.
    """

    id: int
    kind: str
    code: str
    cursor: int
    detail: int = 0


class InputReply(_Message):
    """The answer to an `InputRequest` of the same run and number.

    ``error`` is the name of what is to be raised instead ("EOFError" or "StdinNotImplementedError"), with ``text``.
    """

    run: int
    number: int
    text: str
    error: str = ""


class CommToRank(_Message):
    """What the page says to a comm of this rank; the fields are those of `CommFromRank`."""

    kind: str
    comm: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    buffers: list[bytes] = []


class Interrupt(_Message):
    """Raise KeyboardInterrupt in the main thread if it runs the cell ``run``; else nothing."""

    run: int


class Abort(_Message):
    """End the group's generation, and the request ``run`` if it runs: everything that waits for it fails.

    ``error`` is the name of the exception to raise, of those in `nbcomm.errors`, with ``text``.
    """

    run: int
    generation: int
    error: str
    text: str


class StatusRequest(_Message):
    """Answer with a `StatusReply`. Any message, this one too, renews the lease.

    ``seen``: whatever was said of requests up to this id has been heard; a later notebook need not be told.
    ``question``: the answer carries it back, so an answer to an earlier question is not taken for it.
    """

    seen: int = 0
    question: int = 0


class Stop(_Message):
    """End the process."""


# ── rank → notebook ─────────────────────────────────────────────────────────────────────────────────


class Hello(_Message):
    """The agent is connected. ``gpus`` is how many CUDA devices the process sees."""

    rank: int
    pid: int
    host: str
    gpus: int
    torch: str


class Attached(_Message):
    """The engine's shell is ready: from now on cells can run."""

    rank: int


class Resume(_Message):
    """The rank is connected to a notebook that did not give it ``run``: what it has said of it follows once more.

    ``ranks`` are all that run it.
    """

    run: int
    ranks: list[int]


class Output(_Message):
    """What a rank's cell has shown since the last one. All of a cell's come before its `Done`, late ones after."""

    run: int
    items: list[Item]


class Done(_Message):
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


class Mismatch(_Message):
    """Ranks do different things at the same place of a group, which this rank saw before it moved any data."""

    run: int | None
    generation: int
    text: str


class IntrospectReply(_Message):
    """The answer to an `IntrospectRequest`; as in Jupyter's own ``complete_reply`` or ``inspect_reply``.

    ``content`` is empty where the rank cannot say, because it is not ready, or an earlier answer takes too long.
    """

    id: int
    content: dict[str, Any]


class InputRequest(_Message):
    """A rank waits for a line that a person types: `input`, `getpass`, a debugger. Answered by a `InputReply`.

    ``number`` counts the questions of the rank; ``hidden``: what is typed must not be seen; ``dialogue``: a debugger
    asks, or something else that will ask again as soon as it has an answer.
    """

    run: int
    number: int
    prompt: str
    hidden: bool = False
    dialogue: bool = False


class InputCancelled(_Message):
    """The rank waits no longer for the answer to this `InputRequest`: it was interrupted, say."""

    run: int
    number: int


class StatusReply(_Message):
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


MainLoopRequest = FormGroups | Run | Push | Pull | Call | DescribeVariables | SendVariable | CompareVariable
"""What the main loop does, one after the other, and answers with a `Done`."""

ToRank = MainLoopRequest | IntrospectRequest | Interrupt | Abort | StatusRequest | Stop | InputReply | CommToRank
FromRank = (
    Hello | Attached | Resume | Output | Done | Mismatch | IntrospectReply | StatusReply | InputRequest | InputCancelled
)
