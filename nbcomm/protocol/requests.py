"""What the notebook asks of a rank."""

from __future__ import annotations

from typing import Any

from .common import Message, Payload, RankPlacement


class FormGroups(Message):
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


class Run(Message):
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


class Push(Message):
    """Bind the names of the blob's dict in the user's namespace."""

    id: int
    blob: Payload


class Pull(Message):
    """Send back the values of these names, as a dict."""

    id: int
    names: list[str]


class Call(Message):
    """Call the blob's ``(function, args, kwargs)`` in the user's namespace and send back what it returns.

    With ``local_rank`` the function's first argument is the rank's own local rank.
    """

    id: int
    blob: Payload
    ranks: list[int]
    local_rank: bool = False


class DescribeVariables(Message):
    """Send back what variables are, in a dict; ``names``, or expressions of names, empty: all that the user made.

    ``hashes``: with the hash of each value, so that ranks can be compared.
    """

    id: int
    names: list[str] = []
    hashes: bool = True


class SendVariable(Message):
    """Send back the value of ``name``, a name or an expression, in the form in which a `CompareVariable` has it."""

    id: int
    name: str


class CompareVariable(Message):
    """Say, in a dict, how the value of ``name`` differs from the blob's, which another rank has offered.

    Numbers that are no further apart than ``atol`` are as good as equal.
    """

    id: int
    name: str
    blob: Payload
    atol: float = 0.0


class IntrospectRequest(Message):
    """Answer with a `IntrospectReply`, also while the main thread is busy: what a person asks while typing.

    ``kind`` is "complete" or "inspect"; ``cursor`` is a position in ``code``, in characters; ``detail`` 1 means ``??``.
    """

    id: int
    kind: str
    code: str
    cursor: int
    detail: int = 0


class InputReply(Message):
    """The answer to an `InputRequest` of the same run and number.

    ``error`` is the name of what is to be raised instead ("EOFError" or "StdinNotImplementedError"), with ``text``.
    """

    run: int
    number: int
    text: str
    error: str = ""


class CommToRank(Message):
    """What the page says to a comm of this rank; the fields are those of `CommFromRank`."""

    kind: str
    comm: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    buffers: list[bytes] = []


class Interrupt(Message):
    """Raise KeyboardInterrupt in the main thread if it runs the cell ``run``; else nothing."""

    run: int


class Abort(Message):
    """End the group's generation, and the request ``run`` if it runs: everything that waits for it fails.

    ``error`` is the name of the exception to raise, of those in `nbcomm.errors`, with ``text``.
    """

    run: int
    generation: int
    error: str
    text: str


class StatusRequest(Message):
    """Answer with a `StatusReply`. Any message, this one too, renews the lease.

    ``seen``: whatever was said of requests up to this id has been heard; a later notebook need not be told.
    ``question``: the answer carries it back, so an answer to an earlier question is not taken for it.
    """

    seen: int = 0
    question: int = 0


class Stop(Message):
    """End the process."""


MainLoopRequest = FormGroups | Run | Push | Pull | Call | DescribeVariables | SendVariable | CompareVariable
"""What the main loop does, one after the other, and answers with a `Done`."""

ToRank = MainLoopRequest | IntrospectRequest | Interrupt | Abort | StatusRequest | Stop | InputReply | CommToRank
