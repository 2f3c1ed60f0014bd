"""Messages from the notebook to a rank. Those that name several ranks do so in a text of `rank_lists`."""

from __future__ import annotations

from typing import Any

from .common import Listener, Message, Payload, RankPlacement


class FormGroups(Message):
    """Take this place and form the process group of ``generation``; a rank with groups re-forms all of them.

    Attributes:
        id: the request's id.
        place: the place of this rank.
        generation: the number of the generation, from 1; its ranks meet in a store of their own.
        master_addr: for libraries that read MASTER_ADDR; so is ``master_port``.
        timeout: seconds that a collective may take.
        absent: dead ranks; groups with them are not formed.
        newcomers: ranks with a new process; the other ranks tell them which groups exist.
        plain: why the groups are torch's own; empty if they are ours.
        nodes: the node of each rank, as the link numbers them; empty if there is only one.
        ahead: seconds by which the clock of this rank's machine is ahead of the notebook's.
        store: the node that has the store.
        listeners: where the daemons of nodes take what ranks of other nodes say; none if there is only one node.
    """

    id: int
    place: RankPlacement
    generation: int
    master_addr: str
    master_port: int
    timeout: float
    absent: str = ""
    newcomers: str = ""
    plain: str = ""
    nodes: list[int] = []
    ahead: float = 0.0
    store: int = 0
    listeners: list[Listener] = []


class Run(Message):
    """Run a cell on the main loop. ``ranks`` are all ranks that run it; ``number`` is the notebook's In[number].

    ``draw``: keep the values of its collectives for pictures; ``trace``: keep all of them, with their bytes.
    ``script``: the content of a script of the user's, which the code runs. Ranks may be on machines without the file.
    ``above``: how many lines stand above the code on its page: whatever names a line of it counts them.
    """

    id: int
    code: str
    ranks: str
    number: int
    draw: bool = False
    trace: bool = False
    script: bytes | None = None
    above: int = 0


class Push(Message):
    """Bind the names of the blob's dict in the user's namespace."""

    id: int
    blob: Payload


class Pull(Message):
    """Send back the values of these names, as a dict."""

    id: int
    names: list[str]


class Call(Message):
    """Call the blob's ``(function, args, kwargs)`` in the user's namespace and send back its result.

    With ``local_rank`` the function's first argument is the rank's own local rank. With ``trace`` the records of its
    collectives have their bytes.
    """

    id: int
    blob: Payload
    ranks: str
    local_rank: bool = False
    trace: bool = False


class DescribeVariables(Message):
    """Send back descriptions of variables, in a dict; ``names`` are names or expressions; empty: all of the user's.

    ``hashes``: add the hash of each value, so that ranks can be compared.
    """

    id: int
    names: list[str] = []
    hashes: bool = True


class SendVariable(Message):
    """Send back the value of ``name``, a name or an expression, in the form that a `CompareVariable` carries."""

    id: int
    name: str


class CompareVariable(Message):
    """Send back, in a dict, how the value of ``name`` differs from the blob's, which another rank has sent.

    Numbers that differ by at most ``atol`` count as equal.
    """

    id: int
    name: str
    blob: Payload
    atol: float = 0.0


class IntrospectRequest(Message):
    """Complete or inspect code that the user types; answer with an `IntrospectReply`, even if the main thread is busy.

    ``kind`` is "complete" or "inspect"; ``cursor`` is a position in ``code``, in characters; ``detail`` 1 means ``??``.
    """

    id: int
    kind: str
    code: str
    cursor: int
    detail: int = 0


class InputReply(Message):
    """The answer to an `InputRequest` of the same run and number.

    ``error`` is the name of an exception to raise instead ("EOFError" or "StdinNotImplementedError"), with ``text``.
    """

    run: int
    number: int
    text: str
    error: str = ""


class CommToRank(Message):
    """A message from the page to a comm of this rank; the fields are those of `CommFromRank`."""

    kind: str
    comm: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    buffers: list[bytes] = []


class Interrupt(Message):
    """Raise KeyboardInterrupt in the main thread if it runs the cell ``run``; else do nothing."""

    run: int


LONGEST_IMPORT = 20.0
"""Seconds for which an interrupt waits on a rank until a library has been imported."""


class Abort(Message):
    """End the groups' generation, and the request ``run`` if it runs: every wait in the generation fails.

    ``error`` is the name of the exception in `nbcomm.errors` to raise, with ``text``.
    """

    run: int
    generation: int
    error: str
    text: str


class StatusRequest(Message):
    """Answer with a `StatusReply`; both have no number in the stream.

    ``question``: the answer returns it, so that an answer to an earlier question is not mistaken for this one.
    """

    question: int = 0


class Greet(Message):
    """Send again what this notebook has not heard, as the header says; it has no number in the stream.

    ``asks``: say `Hello`, so that the notebook learns what the rank has not heard.
    """

    asks: bool = False


class Register(Message):
    """Register as an engine of ipyparallel's controller; answered by `Registered`, also where that was done before.

    ``connection`` is what the controller has written for engines: ports and keys, as JSON.
    """

    connection: str


class Stop(Message):
    """End the process, as Python ends a program."""


NOT_ENDING = "It does not end: it is in "
"""What a rank that was to end writes into its log, and then where it is, after more than a second."""


MainLoopRequest = FormGroups | Run | Push | Pull | Call | DescribeVariables | SendVariable | CompareVariable
"""The requests that the main loop handles one after the other, and answers with a `Done`."""

ToRank = (
    MainLoopRequest
    | IntrospectRequest
    | Interrupt
    | Abort
    | StatusRequest
    | Greet
    | Register
    | Stop
    | InputReply
    | CommToRank
)
