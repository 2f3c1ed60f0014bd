"""MPI: mpiexec starts one program on each node, all at once. nbcomm does not use MPI for anything else.

mpiexec passes its standard input to one process at most, so the tickets are files, in a directory of the user's home
that nobody else can read; each program takes the one of its own number. They are removed when all have joined.

mpiexec ends all programs when one of them is killed. A rank is none of them: it can die, and be replaced, as elsewhere.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...errors import StartError
from ...node.ticket import Ticket
from ...world_dir import private_file
from ...world_info import Way
from .program import Program

_MPIEXEC = "mpiexec"

_PATIENCE = 30.0
"""Seconds in which mpiexec must tell what it is."""


class Mpi:
    """One start of the programs of all nodes.

    Args:
        hosts: their machines; empty for those that mpiexec knows by itself, in a job of a scheduler.
        nodes: how many there are.
        way: how a program is started on each, but for mpiexec.
        lines: options for mpiexec, as a shell would read them.
    """

    def __init__(self, hosts: Sequence[str], nodes: int, way: Way, lines: Sequence[str] = ()) -> None:
        self._hosts = [*hosts]
        self._nodes = nodes
        self._way = way
        self._lines = [word for line in lines for word in shlex.split(line)]
        self._tickets: Path | None = None

    def ways(self) -> list[Way]:
        """Return the way of each node; its machine is known when it has joined."""
        plain = self._way
        names = self._hosts or [f"process {number} of mpiexec" for number in range(self._nodes)]
        return [
            Way(plain.python, name, prologue=plain.prologue, wrapper=plain.wrapper, together=True) for name in names
        ]

    def command(self, tickets: str = "TICKETS") -> list[str]:
        """Return the command, with the directory of the tickets.

        Raises:
            StartError: there is no mpiexec.
        """
        return [
            _MPIEXEC,
            "-n",
            str(self._nodes),
            *self._one_each(),
            *self._lines,
            *self._way.command("nbcomm.node", tickets),
        ]

    def _one_each(self) -> list[str]:
        """Return the options that put one program on each machine, in mpiexec's own words."""
        try:
            asked = subprocess.run(  # noqa: S603 - the user's own mpiexec
                [_MPIEXEC, "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartError(
                f"mpiexec could not be asked for its version: {error}. Is it installed, and on PATH?"
            ) from error
        hosts = ",".join(self._hosts)
        if "Open MPI" in asked.stdout or "OpenRTE" in asked.stdout:
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            return [*(["--host", hosts] if hosts else []), "--map-by", "ppr:1:node", "--bind-to", "none", *root]
        return [*(["-hosts", hosts] if hosts else []), "-ppn", "1"]  # MPICH, Intel MPI

    def begin(self, tickets: Sequence[Ticket]) -> Program:
        """Write the tickets, and return the program that starts all nodes.

        Raises:
            StartError: there is no mpiexec.
        """
        self._tickets = Path.home() / ".nbcomm" / tickets[0].world
        command = self.command(os.fspath(self._tickets))
        self._tickets.mkdir(mode=0o700, parents=True)
        for number, ticket in enumerate(tickets):
            with private_file(self._tickets / str(number)) as file:
                file.write(ticket.written())
        return Program(command)

    def end(self) -> None:
        """Remove the tickets."""
        if self._tickets is not None:
            shutil.rmtree(self._tickets, ignore_errors=True)

    def in_order(self, counts: Sequence[int], found: Sequence[str]) -> list[int]:
        """Return the number of ranks of each node, for mpiexec may have numbered the machines in another order.

        Args:
            counts: in the order of the hosts.
            found: the name of the machine of each node.

        >>> Mpi(["a", "me@b.example"], 2, Way("python")).in_order([4, 3], ["b", "a"])
        [3, 4]
        """
        wanted = {
            host.rpartition("@")[2].partition(".")[0]: count for host, count in zip(self._hosts, counts, strict=False)
        }
        short = [name.partition(".")[0] for name in found]
        return [wanted[name] for name in short] if set(short) == set(wanted) else [*counts]
