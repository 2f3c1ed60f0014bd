"""Programs that are run to their end, or to their deadline: whatever they started in their group ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TIDY_SECONDS = 30
"""What an interrupted program has to end its ranks and to write what it knows."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        code: its exit code, or None if its deadline came first.
        text: what it wrote, errors in between.
        log: where that is kept.
    """

    code: int | None
    text: str
    log: Path

    @property
    def well(self) -> bool:
        return self.code == 0

    def told(self, lines: int = 25) -> str:
        """The end of what it wrote, and where the rest is."""
        how = "did not end in time" if self.code is None else f"ended with exit code {self.code}"
        return "\n".join([*self.text.splitlines()[-lines:], f"It {how}; all that it wrote is in {self.log}."])


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    within: float,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program in a process group of its own.

    Args:
        command: the program and its arguments.
        within: seconds after which it is interrupted, and soon after killed.
        log: the file that takes what it writes: a pipe would be held open by any child that stays.
        cwd: where it runs.
        env: its environment.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as written:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(within)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:  # the deadline, or Ctrl-C
                _end(process)
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"), log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the group, as Ctrl-C would, and kill what is left of it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TIDY_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
