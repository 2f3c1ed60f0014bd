"""Output that comes after its rank's cell has ended: shown at once, in the same place, marked as late."""

from __future__ import annotations

from ...protocol import Display, Item, Text
from ..display.displays import label, prefixed
from ..display.terminal_lines import LineReader


class LateText:
    """Turns late text into marked lines.

    A chunk is shown when it comes. If its last line has no end yet, it gets one, and what follows is a line
    of its own.
    """

    def __init__(self) -> None:
        self._readers: dict[tuple[int, str], LineReader] = {}
        self._cut: set[tuple[int, str]] = set()

    def lines(self, rank: int, item: Text) -> list[tuple[str, str]]:
        """The lines to show, with their streams."""
        stream = "stderr" if item.stream == "stderr" else "stdout"
        key = (rank, stream)
        reader = self._readers.setdefault(key, LineReader())
        text = item.text
        if key in self._cut:
            text = text.removeprefix("\n")
        lines = reader.feed(text)
        last = reader.finish()
        lines += last
        if last:
            self._cut.add(key)
        elif item.text:
            self._cut.discard(key)
        return [(stream, prefixed(late_label(rank), line)) for line in lines]


def late_label(rank: int) -> str:
    """The prefix of late output: ``[1] (late)``."""
    return f"{label([rank])} (late)"


def is_late(item: Item) -> bool:
    """Whether the rank itself marked it as late."""
    return isinstance(item, (Text, Display)) and item.late
