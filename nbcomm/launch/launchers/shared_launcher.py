"""One command that starts the programs of all nodes: mpiexec, or a job of a scheduler.

Such a command passes its standard input to one program at most, so the join tokens are files, in a directory of the
user's home that nobody else can read; each program takes the one of its own number. They are removed when all have
joined.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...node.join_token import JoinToken
from ...world_dir import private_file
from ...world_info import Launcher


class SharedProgram(Protocol):
    """The command, as the nodes that it starts see it; see `Program`."""

    def __str__(self) -> str:
        """Return how it is named in a sentence."""

    @property
    def is_begun(self) -> bool:
        """Whether it was started."""

    @property
    def status(self) -> int | None:
        """Its exit status; None as long as it runs."""

    @property
    def how(self) -> str:
        """How it has ended, in words."""

    def start(self) -> None:
        """Start it."""

    def start_once(self) -> bool:
        """Start it, if that was not done; return whether it was not."""

    def kill(self) -> None:
        """Let it end, and make it end."""

    def last_words(self) -> str:
        """Return the end of what it said."""

    def close(self) -> None:
        """Close what was opened to see it."""


def folder_of(world: str) -> Path:
    """Return the directory with what the programs of a world share: one that all of its machines see."""
    return Path.home() / ".nbcomm" / world


def forget(world: str) -> None:
    """Remove that directory."""
    shutil.rmtree(folder_of(world), ignore_errors=True)


class SharedLauncher(ABC):
    """One start of the programs of all nodes.

    Args:
        names: what each node is called before it has joined.
        launcher: how a program is started on each, but for the command.
        hosts: the machines; empty where they are not known before.
    """

    def __init__(self, names: Sequence[str], launcher: Launcher, hosts: Sequence[str] = ()) -> None:
        self._names = [*names]
        self._launcher = launcher
        self._hosts = [*hosts]
        self._tokens: list[Path] = []

    def launchers(self) -> list[Launcher]:
        """Return the launcher of each node; its machine is known when it has joined."""
        plain = self._launcher
        return [
            Launcher(plain.python, name, prologue=plain.prologue, wrapper=plain.wrapper, shared=True)
            for name in self._names
        ]

    @abstractmethod
    def begin(self, tokens: Sequence[JoinToken]) -> SharedProgram:
        """Write the tokens, and return the program that starts all nodes.

        Raises:
            StartError: it cannot be started.
        """

    def await_run(self, tell: Callable[[str], None], joins: Callable[[], bool]) -> bool:  # noqa: ARG002 - see Batch
        """Wait until the program, which was started, does run; return whether that took place in a queue.

        Args:
            tell: called with what it waits for, in words.
            joins: whether a node speaks already.
        """
        return False

    def _write(self, tokens: Sequence[JoinToken]) -> Path:
        """Write the tokens; return their directory."""
        folder = folder_of(tokens[0].world)
        folder.mkdir(mode=0o700, parents=True)
        self._tokens = [folder / str(number) for number in range(len(tokens))]
        for path, token in zip(self._tokens, tokens, strict=True):
            with private_file(path) as file:
                file.write(token.written())
        return folder

    def end(self) -> None:
        """Remove the tokens, and their directory if nothing else is there."""
        for path in self._tokens:
            path.unlink(missing_ok=True)
        if self._tokens:
            with suppress(OSError):
                self._tokens[0].parent.rmdir()

    def in_order(self, counts: Sequence[int], found: Sequence[str]) -> list[int]:
        """Return the number of ranks of each node, for the machines may have been numbered in another order.

        Args:
            counts: in the order of the hosts.
            found: the name of the machine of each node.
        """
        wanted = {
            host.rpartition("@")[2].partition(".")[0]: count for host, count in zip(self._hosts, counts, strict=False)
        }
        short = [name.partition(".")[0] for name in found]
        return [wanted[name] for name in short] if set(short) == set(wanted) else [*counts]
