"""A command that lets nodes join, as a process of this machine: ssh, srun or mpiexec."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress

from ...errors import StartError
from ...node.processes.exit_status import how_it_ended
from ...node.start import last_words

_LINES = 5
"""Lines of what a command said that has failed."""

_END = 5.0
"""Seconds in which a program that was told to end must do so."""


def run_to_end(command: Sequence[str], timeout: float) -> None:
    """Run a command that says nothing if all is well.

    Raises:
        StartError: it could not be begun, has failed, or did not end in time; the message has its last words.
    """
    name = os.path.basename(command[0])  # noqa: PTH119 - a word of a command
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=True)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise StartError(f"{name} did not end within {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()[-_LINES:]
        raise StartError("\n".join([f"{name} {how_it_ended(error.returncode)}", *said])) from None
    except OSError as error:
        raise StartError(f"{name} could not be run: {error.strerror}") from None


class Program:
    """A command, which can be started again.

    Args:
        command: its words.
        told: what it reads from its standard input.
        first: how many of the first lines that it says are worth showing: mpiexec goes on when it has told the cause.
    """

    def __init__(self, command: Sequence[str], told: bytes = b"", first: int = 0) -> None:
        self._command = [*command]
        self._told = told
        self._first = first
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it

    def __str__(self) -> str:
        """Return how it is named in a sentence."""
        return os.path.basename(self._command[0])  # noqa: PTH119 - a word of a command

    def start(self) -> None:
        """Start it, also where an earlier one still runs."""
        self._process = process = subprocess.Popen(  # noqa: S603 - our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that it does not get the notebook's Ctrl-C
        )
        assert process.stdin is not None  # noqa: S101 - for mypy
        with suppress(BrokenPipeError):  # it has ended already, and says why
            process.stdin.write(self._told)
            process.stdin.close()

    def start_once(self) -> bool:
        """Start it, if that was not done; return whether it was not."""
        with self._starting:
            if self._process is not None:
                return False
            self.start()
            return True

    @property
    def is_begun(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    @property
    def status(self) -> int | None:
        """Its exit status; negative for a signal, None as long as it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        status = self.status
        return "has ended" if status is None else how_it_ended(status)

    def kill(self) -> None:
        """Let it end, and make it end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Return the end of what it said."""
        return last_words(self._log, first=self._first)

    def close(self) -> None:
        """Close what it has said."""
        self._log.close()
