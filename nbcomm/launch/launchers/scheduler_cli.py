"""The command line of a scheduler: one of its commands, and what it prints."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from ...errors import StartError

TIMEOUT = 30.0
"""Seconds that a scheduler's command may take; its server is slow when it is busy."""


def ask(who: str, command: Sequence[str], written: str = "", added: Mapping[str, str] | None = None) -> str:
    """Run a command of a scheduler and return what it prints.

    Args:
        who: the scheduler's name.
        command: its words.
        written: what it reads from its standard input.
        added: variables for its environment.

    Raises:
        StartError: it is not there, has failed, or does not answer.
    """
    environment = {**os.environ, **(added or {})}
    try:
        done = subprocess.run(  # noqa: S603 - the scheduler's own programs
            command, input=written, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
        )
    except OSError as error:
        raise StartError(
            f"{command[0]} could not be run ({error.strerror}); start the notebook where {who}'s commands are."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StartError(f"{who} has not answered within {TIMEOUT:g} s: {shlex.join(command)}.") from error
    if done.returncode:
        raise StartError(f"{who} refuses it ({shlex.join(command)}):\n{done.stderr.strip()}")
    return done.stdout
