"""What a learner has done: one line for each check, hint and prediction, in a file that outlives the kernel.

The file is the learner's own, unless a teacher has named a folder for the class (`CLASS_VARIABLE`): then it is there,
with the learner's name. A line says what was checked, when, and what kind of mistake it was; never what was typed, but
for predictions.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLASS_VARIABLE = "NBCOMM_CLASS"
"""The environment variable that names the folder of a class."""

_LEARNER_VARIABLES = ("NBCOMM_LEARNER", "JUPYTERHUB_USER")
"""Environment variables that name the learner; a hub's users often have one and the same name in the system."""


@dataclass
class Done:
    """What one learner has done with one puzzle.

    Attributes:
        tries: how many checks there were until the first that was right, with it.
        solved: when it was right for the first time, in seconds since 1970; 0 if never.
        last: when something was done last.
        hints: how many were shown.
        predicted: what was predicted, as it was typed; None if nothing was.
        mistakes: the kinds of mistakes, in order.
    """

    tries: int = 0
    solved: float = 0.0
    last: float = 0.0
    hints: int = 0
    predicted: str | None = None
    mistakes: list[str] = field(default_factory=list)


class Progress:
    """The file of one learner.

    Args:
        file: where it is, or is to be.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, puzzle: str) -> Done:
        """Return what was done with a puzzle."""
        return self.read().get(puzzle, Done())

    def read(self) -> dict[str, Done]:
        """Return what was done with each puzzle, in the order in which they were begun."""
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace")
        except OSError:  # there is none yet, or it cannot be read: a check needs none
            return {}
        return gathered(text.splitlines())

    def note(self, puzzle: str, **what: Any) -> str:
        """Append a line; return why that was impossible, in a sentence, or ""."""
        line = json.dumps({"at": round(time.time(), 3), "puzzle": puzzle, **what}, ensure_ascii=False) + "\n"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(line.encode())  # in one write, so that two notebooks' lines stay whole
        except OSError as error:
            return f"Your progress was not kept: {error.strerror or error} ({self._file})."
        return ""


def gathered(lines: Iterable[str]) -> dict[str, Done]:
    """Return what lines of a file say of each puzzle; lines that are none are left out."""
    found: dict[str, Done] = {}
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):  # half a line of a full disk, or somebody's own
            _take(found, json.loads(line))
    return found


def _take(found: dict[str, Done], said: Mapping[str, Any]) -> None:
    at, puzzle = float(said["at"]), str(said["puzzle"])
    done = found.setdefault(puzzle, Done())
    done.last = max(done.last, at)
    if "right" in said and not done.solved:
        done.tries += 1
        done.solved = at if said["right"] else 0.0
        if mistake := said.get("mistake"):
            done.mistakes.append(str(mistake))
    if "predicted" in said and done.predicted is None:
        done.predicted = str(said["predicted"])
    done.hints = max(done.hints, int(said.get("hint", 0)))


def of_this_learner(environment: Mapping[str, str] = os.environ) -> Progress:
    """Return the file of whoever runs this notebook."""
    folder = environment.get(CLASS_VARIABLE)
    if folder:
        return Progress(Path(folder).expanduser() / f"{_learner(environment)}.jsonl")
    from jupyter_core.paths import jupyter_data_dir  # imported here: most notebooks check nothing

    return Progress(Path(jupyter_data_dir()) / "nbcomm" / "progress.jsonl")


def _learner(environment: Mapping[str, str]) -> str:
    """Return the learner's name, as a file may be called."""
    named = next(filter(None, map(environment.get, _LEARNER_VARIABLES)), None)
    if named is None:
        try:
            named = getpass.getuser()
        except (OSError, KeyError):  # a container may have no entry for its user
            named = f"user-{os.getuid()}"
    return re.sub(r"[^\w.@-]", "_", named).lstrip(".") or "learner"
