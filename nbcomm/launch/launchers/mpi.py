"""MPI: mpiexec starts one program on each node, all at once. nbcomm does not use MPI for anything else.

mpiexec ends all programs when one of them is killed. A rank is none of them: it can die, and be replaced, as elsewhere.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence

from ...errors import StartError
from ...node.join_token import JoinToken
from ...world_info import Launcher, behind
from .program import Program
from .shared_launcher import SharedLauncher, folder_of

MPIEXEC = "mpiexec"

FIRST = 5
"""How many of its first lines tell why it has failed: what ssh said of a host. Dozens of general ones follow."""

_TIMEOUT = 30.0
"""Seconds in which mpiexec must tell what it is."""


class Mpi(SharedLauncher):
    """One start of the programs of all nodes.

    Args:
        hosts: their machines; empty for those that mpiexec knows by itself, in a job of a scheduler.
        nodes: how many there are.
        launcher: how a program is started on each, but for mpiexec.
        lines: options for mpiexec, as a shell would read them.
    """

    def __init__(self, hosts: Sequence[str], nodes: int, launcher: Launcher, lines: Sequence[str] = ()) -> None:
        super().__init__(hosts or [f"process {number} of mpiexec" for number in range(nodes)], launcher, hosts)
        self._nodes = nodes
        self._lines = [word for line in lines for word in shlex.split(line)]

    def command(self, tokens: str = "TICKETS") -> list[str]:
        """Return the command, with the directory of the tokens.

        Raises:
            StartError: there is no mpiexec.
        """
        return [
            MPIEXEC,
            "-n",
            str(self._nodes),
            *one_each(self._hosts),
            *self._lines,
            *self._launcher.command("nbcomm.node", tokens),
        ]

    def begin(self, tokens: Sequence[JoinToken]) -> Program:
        """Write the tokens, and return the program that starts all nodes.

        Raises:
            StartError: there is no mpiexec.
        """
        command = self.command(os.fspath(folder_of(tokens[0].world)))
        self._write(tokens)
        return Program(command, first=FIRST)


def one_each(hosts: Sequence[str], prologue: str = "") -> list[str]:
    """Return the options that put one program on each machine, in mpiexec's own words.

    Args:
        hosts: the machines; empty for those that mpiexec knows by itself.
        prologue: lines for a shell, which may be what makes mpiexec known.

    Raises:
        StartError: there is no mpiexec.
    """
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own mpiexec
            behind(prologue, [MPIEXEC, "--version"]), capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(
            f"mpiexec could not be asked for its version: {error}. Is it installed, and on PATH?"
        ) from error
    if prologue and asked.returncode:
        raise StartError(f"mpiexec could not be asked for its version: {asked.stderr.strip()}")
    if "Open MPI" in asked.stdout or "OpenRTE" in asked.stdout:
        return open_mpis(hosts)
    return [*(["-hosts", ",".join(hosts)] if hosts else []), "-ppn", "1"]  # MPICH, Intel MPI


def open_mpis(hosts: Sequence[str]) -> list[str]:
    """Return those options in Open MPI's words."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    named = ["--host", ",".join(hosts)] if hosts else []
    return [*named, "--map-by", "ppr:1:node", "--bind-to", "none", *root]
