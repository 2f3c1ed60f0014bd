"""A node that joins by a ticket: its fork server, as the command that has started it shows it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import StartError
from ...node.ticket import Ticket
from ...world_info import Way
from ..working_folder import here
from .program import Program
from .together import SharedProgram

_CUT_OFF = 255
"""The exit status of ssh where ssh itself has failed."""

_OWN = ("CUDA_VISIBLE_DEVICES", "NBCOMM_", "SLURM_", "OMPI_", "PMIX_", "JPY_", "SSH_")
"""Beginnings of the names of variables that are each machine's, or each program's, own."""


class JoinedNode:
    """The fork server of a node that a command lets join: ``python -m nbcomm.node`` there, by ssh for example.

    Args:
        ticket: what the command reads from its standard input.
        way: how it is started.
        is_over: whether its machine was taken back, so that nothing can run there.
        shared: the program that starts those of all nodes, where none can be started alone.
    """

    is_elsewhere = True

    def __init__(
        self,
        ticket: Ticket,
        way: Way,
        is_over: Callable[[], bool] = lambda: False,
        shared: SharedProgram | None = None,
    ) -> None:
        self._ticket = ticket
        self._way = way
        self._is_over = is_over
        self._begun = False
        self._program: SharedProgram = shared or Program(way.command("nbcomm.node"), ticket.written())

    def start(self) -> None:
        """Let it join; if it has joined before, it takes over what it has started then.

        Raises:
            StartError: it cannot be started alone, and was started with the others before.
        """
        if not self._way.together:
            self._program.start()
        elif not self._begun:
            self._begun = True
            self._program.start_once()
        else:
            raise StartError(
                f"The program of {self._way.host} was started with those of all nodes, and cannot be started again "
                "alone; type %distributed restart."
            )

    @property
    def is_far(self) -> bool:
        """Whether it is on another machine."""
        return self._way.is_far

    @property
    def is_cut_off(self) -> bool:
        """Whether ssh was cut off or has been killed: what it has started may go on.

        mpiexec ends, and lets all of its programs end, when one of them was killed: what that has started goes on. So
        may a job of a scheduler.
        """
        status = self._program.status
        if self._way.together:
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
        return self.has_ended and not (self._way.together and self.is_cut_off)

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        return self._program.how

    def kill(self) -> None:
        """Let it end the world on its node."""
        self._program.kill()

    def fence(self, timeout: float, pids: Sequence[int] = ()) -> None:
        """End what it and its agent have left there, with these processes, and wait for that for so many seconds.

        Raises:
            OSError: that could not be begun.
            subprocess.SubprocessError: it has failed, or was not done in time.
        """
        if self._is_over():
            return
        if self._way.together:
            if not self.has_cleared:
                raise OSError("Nothing can be started there alone.")
            return
        command = self._way.command("nbcomm.node.fence", self._ticket.name, *map(str, pids))
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=True)  # noqa: S603

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
