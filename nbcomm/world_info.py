"""What is written down of a world in its directory, for its own nodes and for the next notebook."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec

from .protocol import Hello, RankPlacement
from .protocol.common import LOOPBACK
from .protocol.nodes import HEAD, name_of


class LinkInfo(msgspec.Struct, frozen=True):
    """What a node's daemon needs to reach the notebook and to authenticate it; keys are CURVE keys in Z85 text.

    ``name`` is the daemon's on the link, bound to its key. A ``tunnelled`` address is a socket on the daemon's machine
    that leads to the notebook's.
    """

    address: str
    server_public: str
    client_public: str
    client_secret: str
    name: str = name_of(HEAD)
    tunnelled: bool = False

    @property
    def is_here(self) -> bool:
        """Whether the notebook is on the machine of the daemon."""
        return not self.tunnelled and self.address.startswith(("ipc://", f"tcp://{LOOPBACK}:"))

    @property
    def socket(self) -> str:
        """The path of the socket on the daemon's machine that leads to the notebook's; empty without a tunnel."""
        return self.address.removeprefix("ipc://") if self.tunnelled else ""


_PROLOGUE = """\
trap "echo nbcomm: the prologue has failed with exit code \\$? on \\$HOSTNAME >&2" EXIT
{lines}
case $? in 0) ;; *) echo "nbcomm: the last line of the prologue has failed with exit code $? on $HOSTNAME" >&2 ;; esac
trap - EXIT
exec {command}"""

_FAILED = re.compile(r"^nbcomm: (the .*prologue has failed .*)\n?", re.MULTILINE)


def behind(prologue: str, words: list[str]) -> list[str]:
    """Return a command that a login shell runs behind some lines; without lines, the command itself.

    If the lines end the shell, or the last one fails, it says so: see `without_prologue`.
    """
    return ["bash", "-lc", _PROLOGUE.format(lines=prologue, command=shlex.join(words))] if prologue else words


def without_prologue(said: str) -> tuple[str, str]:
    r"""Return how the lines before a program have failed, in words, and what was said beside that.

    >>> without_prologue("no module x\nnbcomm: the prologue has failed with exit code 3 on b\n")
    ('the prologue has failed with exit code 3 on b', 'no module x\n')
    >>> without_prologue("no route to b")
    ('', 'no route to b')
    """
    failed = list(dict.fromkeys(_FAILED.findall(said)))
    more = f" (and on {len(failed) - 2} more)" if len(failed) > 2 else ""
    return " and ".join(failed[:2]) + more, _FAILED.sub("", said)


class Launcher(msgspec.Struct, frozen=True):
    """How a program is started on a node.

    Attributes:
        python: the interpreter there.
        host: its machine; empty for this one.
        prefix: what makes a command one of that machine: ``["ssh", "host"]``; nothing on this one.
        as_text: whether the prefix takes a text for a shell there, as ssh does, and not words.
        prologue: lines for a login shell there, before each program: ``module load python``.
        wrapper: what stands before the interpreter: ``["apptainer", "exec", "image.sif"]``.
        shared: whether one command starts the programs of all nodes, as mpiexec does: none can be started alone.
    """

    python: str
    host: str = ""
    prefix: list[str] = []
    as_text: bool = False
    prologue: str = ""
    wrapper: list[str] = []
    shared: bool = False

    @property
    def is_far(self) -> bool:
        """Whether it leads to another machine, which may die or be cut off, and shares no memory with this one."""
        return bool(self.host)

    def command(self, module: str, *argv: str) -> list[str]:
        """Return the command that runs a module there."""
        words = behind(self.prologue, [*self.wrapper, self.python, "-m", module, *argv])
        return [*self.prefix, *([shlex.join(words)] if self.as_text else words)]


class JobInfo(msgspec.Struct, frozen=True):
    """A scheduler's job that the nodes of a world are in.

    Attributes:
        number: the scheduler's.
        ours: whether it was submitted for this world, and ends with it.
    """

    number: str
    ours: bool


class JoinedInfo(msgspec.Struct, frozen=True):
    """A node that has joined a world, as another notebook needs to know it.

    Attributes:
        number: of the node, on the link.
        node: its ``NODE_RANK``, by which users know it; another number where the head has no ranks.
        link: what its daemon has been given.
        launcher: how programs are started there.
        ranks: those that it has.
        port: of the notebook's machine, to which its tunnel leads; 0 if it has none.
    """

    number: int
    node: int
    link: LinkInfo
    launcher: Launcher
    ranks: list[int] = []
    port: int = 0


class WorldInfo(msgspec.Struct, frozen=True):
    """What another notebook needs to know about a world to steer it.

    Attributes:
        title: the number of ranks, and their devices.
        places: the placement of each rank.
        hellos: the last `Hello` of each rank's process.
        port: the ranks' MASTER_PORT.
        grace: seconds that the world lives without a notebook.
        started: when it was started, in seconds of `time.time`.
        cwd: the directory in which it was started.
        name: the name that the notebook gave it; often empty.
        plain: why its process groups are torch's own; empty if they are ours.
        notebook: Jupyter's name of the notebook that steered it last; empty if that is not known.
        nodes: those beside the head.
        job: the scheduler's job that they are in.
        options: what its user has asked for, by name.
    """

    title: str
    places: list[RankPlacement]
    hellos: list[Hello]
    port: int
    grace: float
    started: float
    cwd: str
    name: str = ""
    plain: str = ""
    notebook: str = ""
    nodes: list[JoinedInfo] = []
    job: JobInfo | None = None
    options: dict[str, Any] = {}
