"""All lines of a cell in a file, for the case that they become too many for a page."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TextIO

_HELD = 1 << 20
"""Characters that are held in memory before there is a file: most cells show less, and need none."""

_FILES = 10
"""How many cells' files stay in one folder; the oldest is removed first."""


class WholeOutput:
    """The lines of one cell.

    Args:
        folder: where the file is made; without one, nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: list[str] = []
        self._letters = 0
        self._file: TextIO | None = None
        self._is_wanted = False
        self.lost = ""
        """Why it could not be written; empty if it could."""

    def write(self, text: str) -> None:
        """Add whole lines."""
        if self.lost or self._folder is None:
            return
        self._held.append(text)
        self._letters += len(text)
        if self._letters > _HELD:
            self._write_held()

    def want(self) -> Path | None:
        """Keep the file after the cell's end; return its path, or None if it could not be written."""
        self._is_wanted = True
        self._write_held()
        return None if self._file is None else Path(self._file.name)

    def clear(self) -> None:
        """Begin again: the cell has cleared its output."""
        self._held, self._letters = [], 0
        self._drop()
        self.lost = ""

    def close(self) -> None:
        """End the file, and remove it if nobody wants it."""
        if self._is_wanted and self._file is not None:
            self._write_held()
            if self._file is not None:
                self._file.close()
                self._file = None
        self.clear()

    def _write_held(self) -> None:
        try:
            if self._file is None and self._folder is not None and not self.lost:
                self._file = _new(self._folder)
            if self._file is not None:
                self._file.write("".join(self._held))
                self._file.flush()
        except OSError as error:  # the disk is full; the cell goes on
            self._drop()
            self.lost = f"no file with them could be written in {self._folder} ({error.strerror})"
        self._held, self._letters = [], 0

    def _drop(self) -> None:
        file, self._file, self._is_wanted = self._file, None, False
        if file is not None:
            with suppress(OSError):  # what could not be written is still in its buffer
                file.close()
            Path(file.name).unlink(missing_ok=True)


def _new(folder: Path) -> TextIO:
    numbers = sorted(int(digits) for path in folder.glob("output-*.txt") if (digits := path.stem[7:]).isdigit())
    for number in numbers[: 1 - _FILES]:
        _path(folder, number).unlink(missing_ok=True)
    path = _path(folder, max(numbers, default=0) + 1)
    return path.open("x", encoding="utf-8", errors="backslashreplace", newline="")


def _path(folder: Path, number: int) -> Path:
    return folder / f"output-{number}.txt"
