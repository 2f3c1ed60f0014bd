"""What has run on a world, kept for a script: cells with how they ended, pushes, and other changes of the ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ... import scripts
from ...errors import StateError
from ...scripts import history

_ASIDE = "%debug"
"""A cell that inspects what another has left: not a part of what a script does."""


class CellLog:
    """The record of what one session does; a restarted world has a new one.

    Args:
        attached: the world had another notebook before this one.
    """

    def __init__(self, *, attached: bool = False) -> None:
        self._attached = attached
        self._entries: list[scripts.Entry] = []
        self._texts: dict[str, str] = {}

    @contextmanager
    def cell(self, number: int, code: str, ranks: Sequence[int], size: int, file: str | None = None) -> Iterator[None]:
        """Record a cell, or a file, with the way in which the block ends."""
        if code.strip() == _ASIDE:
            yield
            return
        outcome: history.Outcome = "done"
        try:
            yield
        except BaseException as error:
            if isinstance(error, StateError):
                raise  # it has not run
            outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self._note(number, code, _some(ranks, size), outcome, file)
            raise
        self._note(number, code, _some(ranks, size), outcome, file)

    def _note(
        self, number: int, code: str, ranks: tuple[int, ...] | None, outcome: history.Outcome, file: str | None
    ) -> None:
        if file is not None:
            self._entries.append(scripts.RanFile(number, file, ranks, outcome))
        else:  # a program may run the same text a million times
            self._entries.append(scripts.Ran(number, self._texts.setdefault(code, code), ranks, outcome))

    @property
    def last(self) -> str:
        """The text of the last cell; "" if none has run, or the last was a file."""
        ran = [entry for entry in self._entries if isinstance(entry, scripts.Ran | scripts.RanFile)]
        return ran[-1].code if ran and isinstance(ran[-1], scripts.Ran) else ""

    def pushed(self, variables: dict[str, Any], ranks: Sequence[int], size: int) -> None:
        """Record that variables were pushed from the notebook."""
        self._entries.append(history.pushed(variables, _some(ranks, size)))

    def called(self, name: str, ranks: Sequence[int], size: int) -> None:
        """Record that a function was called from the notebook's side."""
        self._entries.append(scripts.Called(name, _some(ranks, size)))

    def replaced(self, ranks: Sequence[int], size: int) -> None:
        """Record that new processes have replaced ranks."""
        self._entries.append(scripts.Replaced(_some(ranks, size)))

    def save(self, path: str, size: int, *, force: bool, everything: bool) -> str:
        """Write the script; see `Session.save`."""
        # Imported here: it is needed only now, and each start would wait for it.
        from ...scripts import files, writer

        file = files.check(path, force=force)
        if not any(isinstance(entry, scripts.Ran) and entry.outcome == "done" for entry in self._entries):
            raise StateError(
                "No distributed cell has succeeded in this notebook yet, so there is nothing to save; nothing was "
                "written."
            )
        made = writer.write(
            self._entries, name=file.name, world_size=size, attached=self._attached, everything=everything
        )
        files.write(file, made.text)
        cells, typed = f"{made.cells} cell{'s' * (made.cells != 1)}", shlex.quote(_shown(file))
        return "\n".join([f"{_shown(file)} has {cells}: torchrun --nproc-per-node {size} {typed}", *made.notes])


def _some(ranks: Sequence[int], size: int) -> tuple[int, ...] | None:
    return None if len(ranks) == size else tuple(ranks)


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
