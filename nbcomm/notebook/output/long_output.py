"""The lines of a cell of which there are too many for a page: the first are shown, and the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST, LAST = 200_000, 1_000
"""How many lines are shown as they come; and how many of those behind them are shown at the end."""

_GLIMPSE = 10
"""How many of the last lines are seen while more come."""


class LongOutput:
    """Lines on their way to the screen.

    A notebook with 800,000 lines takes half a minute to show, and 17 MB.

    Args:
        write: shows a line of a stream.
        write_many: shows many lines of a stream.
    """

    def __init__(self, write: Callable[[str, str], object], write_many: Callable[[str, str], object]) -> None:
        self._write, self._write_many = write, write_many
        self._shown = self._dropped = 0
        self._last: deque[tuple[str, str]] = deque()

    def write(self, stream: str, text: str) -> None:
        """Show a line, or keep it for the end."""
        if self._shown < MOST:
            self._shown += 1
            self._write(stream, text)
            return
        if len(self._last) == LAST:
            self._dropped += 1
            self._last.popleft()
        self._last.append((stream, text))

    def write_many(self, stream: str, text: str) -> None:
        """Do the same with many lines."""
        count = text.count("\n")
        if self._shown + count <= MOST:
            self._shown += count
            self._write_many(stream, text)
        else:
            for line in text[:-1].split("\n"):
                self.write(stream, line + "\n")

    def let_out(self) -> None:
        """Show the last lines that are kept: something else comes, or the end."""
        if self._dropped:
            left_out = f"nbcomm: {self._dropped:,} lines are left out here: a page with all of them would be slow.\n"
            self._write("stderr", f"{left_out}nbcomm: write long output to a file, or run the cell with --quiet.\n")
        for stream, text in self._last:
            self._write(stream, text)
        self.forget()

    def forget(self) -> None:
        """Drop what is kept."""
        self._last.clear()
        self._dropped = 0

    def clear(self) -> None:
        """Begin anew: the cell has cleared its output."""
        self.forget()
        self._shown = 0

    def glimpse(self) -> list[str]:
        """Return what is seen of the lines that are kept, while more come."""
        if not self._last:
            return []
        count = self._dropped + len(self._last)
        some = list(self._last)[-_GLIMPSE:]
        return [f"nbcomm: {count:,} more lines; the last ones are:\n", *(text for _, text in some)]
