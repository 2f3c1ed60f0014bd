"""The lines of a cell of which there are too many for a page: the first are shown, and the last; a file has all."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from .whole_output import WholeOutput

VARIABLE = "NBCOMM_LINES"
"""The environment variable with the number of lines that are shown as they come."""

MOST, LAST = 200_000, 1_000
"""How many lines are shown as they come; and how many of those behind them, at most, are shown at the end."""

_GLIMPSE = 10
"""How many of the last lines are seen while more come."""


class LongOutput:
    """Lines on their way to the screen.

    A notebook with 800,000 lines takes half a minute to show, and 17 MB.

    Args:
        write: shows a line of a stream.
        write_many: shows many lines of a stream.
        folder: where a file with all of them is made if they are too many.
    """

    def __init__(
        self,
        write: Callable[[str, str], object],
        write_many: Callable[[str, str], object],
        folder: Path | None = None,
    ) -> None:
        self._write, self._write_many = write, write_many
        self._whole = WholeOutput(folder)
        self._most, self._wrong = _most()
        self._keep = min(LAST, self._most)
        self._shown = self._dropped = 0
        self._last: deque[tuple[str, str]] = deque()

    def write(self, stream: str, text: str) -> None:
        """Show a line, or keep it for the end."""
        self._whole.write(text)
        self._tell_what_is_wrong()
        if self._shown < self._most:
            self._shown += 1
            self._write(stream, text)
        else:
            self._keep_last(stream, [text])

    def write_many(self, stream: str, text: str) -> None:
        """Do the same with many lines."""
        self._whole.write(text)
        self._tell_what_is_wrong()
        count = text.count("\n")
        if self._shown + count <= self._most:
            self._shown += count
            self._write_many(stream, text)
            return
        lines = [f"{line}\n" for line in text[:-1].split("\n")]
        room = self._most - self._shown
        if room:
            self._shown = self._most
            self._write_many(stream, "".join(lines[:room]))
        self._keep_last(stream, lines[room:])

    def let_out(self) -> None:
        """Show the last lines that are kept: something else comes, or the end."""
        if self._dropped:
            self._write("stderr", f"nbcomm: {self._dropped:,} lines are left out here: {self._where()}\n")
        for stream, text in self._last:
            self._write(stream, text)
        self._forget()

    def clear(self) -> None:
        """Begin again: the cell has cleared its output."""
        self._forget()
        self._whole.clear()
        self._shown = 0

    def close(self) -> None:
        """End the file with all lines; without one that is left out here, it is not needed."""
        self._whole.close()

    def glimpse(self) -> list[str]:
        """Return what is seen of the lines that are kept, while more come."""
        if not self._last:
            return []
        count = self._dropped + len(self._last)
        some = list(self._last)[-_GLIMPSE:]
        return [f"nbcomm: {count:,} more lines; the last ones are:\n", *(text for _, text in some)]

    def _keep_last(self, stream: str, lines: list[str]) -> None:
        too_many = max(0, len(self._last) + len(lines) - self._keep)
        self._dropped += too_many
        for _ in range(min(too_many, len(self._last))):
            self._last.popleft()
        self._last.extend((stream, line) for line in lines[-self._keep :])

    def _forget(self) -> None:
        self._last.clear()
        self._dropped = 0

    def _where(self) -> str:
        path = self._whole.want()
        if path is None:
            lost = f", and {self._whole.lost}" if self._whole.lost else ""
            return (
                f"a page with all of them would be slow{lost}.\n"
                "nbcomm: write long output to a file, or run the cell with --quiet."
            )
        return (
            "a page with all of them would be slow.\n"
            f"nbcomm: all lines of this cell are in {path} until the world stops or ten more cells are as long; "
            "copy the file to keep it.\n"
            f"nbcomm: {VARIABLE} sets how many lines a cell shows before that (now {self._most:,})."
        )

    def _tell_what_is_wrong(self) -> None:
        if self._wrong:
            wrong, self._wrong = self._wrong, ""
            self._write("stderr", f"{wrong}\n")


def _most() -> tuple[int, str]:
    """Return how many lines are shown as they come, and what is wrong with the user's number."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return MOST, ""
    digits = text.replace("_", "").replace(",", "")
    if digits.isdecimal() and int(digits[:18]):
        return int(digits[:18]), ""
    return MOST, f"nbcomm: {VARIABLE} must be a number of lines above 0, not {text!r}; {MOST:,} are shown."
