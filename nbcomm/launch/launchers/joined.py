"""A node that joins with a join token: its daemon, as the command that has started it shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import StartError
from ...node.join_token import JoinToken
from ...world_info import Launcher
from ..working_folder import here
from .program import Program, run_to_end
from .shared_launcher import SharedProgram

_CUT_OFF = 255
"""The exit status of ssh where ssh itself has failed."""

_OWN = ("CUDA_VISIBLE_DEVICES", "NBCOMM_", "SLURM_", "OMPI_", "PMIX_", "JPY_", "SSH_")
"""Beginnings of the names of variables that are each machine's, or each program's, own."""


class JoinedNode:
    """The daemon of a node that a command lets join: ``python -m nbcomm.node`` there, by ssh for example.

    Args:
        token: the join token, which the command reads from its standard input.
        launcher: how it is started.
        is_over: whether its machine was taken back, so that nothing can run there.
        taken_back: returns why nothing can be started there any more, and what to do, in sentences; empty where it can.
        shared: the program that starts those of all nodes, where none can be started alone.
    """

    is_remote = True

    def __init__(
        self,
        token: JoinToken,
        launcher: Launcher,
        is_over: Callable[[], bool] = lambda: False,
        taken_back: Callable[[], str] = lambda: "",
        *,
        shared: SharedProgram | None = None,
    ) -> None:
        self._token = token
        self._launcher = launcher
        self._is_over = is_over
        self._taken_back = taken_back
        self._begun = launcher.shared and shared is None  # another notebook has started all of them
        self._program: SharedProgram = shared or Program(launcher.command("nbcomm.node"), token.written())

    def start(self) -> None:
        """Let it join; if it has joined before, it takes over what it has started then.

        Raises:
            StartError: it cannot be started alone, and was started with the others before.
        """
        if not self._launcher.shared:
            self._program.start()
        elif not self._begun:
            self._begun = True
            self._program.start_once()
        else:
            raise StartError(self.without_heal)

    @property
    def starter(self) -> str:
        """What has started the programs of all nodes together, in words; empty where this one was started alone."""
        return str(self._program) if self._launcher.shared else ""

    @property
    def without_heal(self) -> str:
        """Why its program cannot be started again, and what to do, in sentences; empty where it can be."""
        if taken_back := self._taken_back():
            return taken_back
        if self._launcher.shared and self._begun:
            ended = f"{self._program} {self.how}. " if self.has_ended else ""
            return (
                f"{ended}The programs of all nodes were started together, and none can be started again alone; type "
                "%distributed restart to start all of them again."
            )
        return ""

    @property
    def is_far(self) -> bool:
        """Whether it is on another machine."""
        return self._launcher.is_far

    @property
    def is_cut_off(self) -> bool:
        """Whether ssh was cut off or has been killed: what it has started may go on.

        mpiexec ends, and lets all of its programs end, when one of them was killed: what that has started goes on. So
        may a job of a scheduler.
        """
        status = self._program.status
        if self._launcher.shared:
            return bool(status)
        return self.is_far and status is not None and (status == _CUT_OFF or status < 0)

    @property
    def is_ours(self) -> bool:
        """Whether this notebook has started it, so that its end is seen here."""
        return self._program.is_begun

    @property
    def has_ended(self) -> bool:
        """Whether one that this notebook has started has ended."""
        return self._program.status is not None

    @property
    def has_cleared(self) -> bool:
        """Whether nothing is left on the node: its program ends last."""
        return self.has_ended and not (self._launcher.shared and self.is_cut_off)

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        return self._program.how

    def kill(self) -> None:
        """Let it end the world on its node."""
        self._program.kill()

    def fence(self, timeout: float, pids: Sequence[int] = ()) -> None:
        """End what it and its daemon have left there, with these processes, and wait for that for so many seconds.

        Raises:
            StartError: it has failed, or was not done in time.
        """
        if self._is_over():
            return
        if self._launcher.shared:
            if not self.has_cleared:
                raise StartError("nothing can be started on one node alone")
            return
        run_to_end(self._launcher.command("nbcomm.node.fence", self._token.name, *map(str, pids)), timeout)

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that are added there to the node's own: those that the notebook has set, and these."""
        return {**_changed(), **added}

    def working_folder(self) -> str:
        """Return where processes start: where the notebook works, if there is such a folder there."""
        return here() or "/"

    def last_words(self) -> str:
        """Return the end of what the command said."""
        return self._program.last_words()

    def close(self) -> None:
        """Close what the command has said."""
        self._program.close()


def _changed() -> dict[str, str]:
    """Return the environment variables that this process has set since it began."""
    began = _at_first() or dict(os.environ)
    return {name: value for name, value in os.environ.items() if value != began.get(name) and not name.startswith(_OWN)}


def _at_first() -> dict[str, str]:
    """Return the environment with which this process began; nothing if that is not known.

    macOS does not tell, and a program that changes its title (setproctitle) may have written over it.
    """
    try:
        words = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    began = dict(word.split("=", 1) for word in words if "=" in word)
    return began if "PATH" in began else {}
