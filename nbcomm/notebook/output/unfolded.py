"""How output that waits to be folded is shown meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..display.displays import prefixed
from ..display.items import FoldedItem, Line
from ..display.live import ScreenPicture
from .execute_result import RichValue

PIECES = 1600
"""The most pieces of all ranks together that are looked at."""

_LINES = 400
_CHARS = 30_000
_WIDTH = 1000


def waiting(
    hidden: int, entries: Sequence[FoldedItem], prefix: Callable[[tuple[int, ...]], str], missing: Sequence[int]
) -> list[str | ScreenPicture]:
    """Return what is not settled: the last lines, and the displays that can be shown before their place is certain.

    Args:
        hidden: how many pieces are before the entries.
        entries: what would be shown if the ranks ended now.
        prefix: the label of ranks.
        missing: ranks that may show a display and have none that waits.
    """
    parts: list[str | ScreenPicture] = []
    room, lines = _CHARS, 0
    for entry, above in zip(reversed(entries), reversed(_rooms(entries, missing)), strict=True):
        piece = entry.piece
        if isinstance(piece, RichValue):  # it waits for the other ranks' values
            text = str(piece.first.data.get("text/plain", ""))
        elif isinstance(piece, Line):
            text = piece.text
        else:
            if not piece.fixed:
                parts.append(ScreenPicture(prefix(entry.ranks), piece.first, above))
            continue
        if len(text) > _WIDTH:
            text = text[:_WIDTH] + "…"
        line = prefixed(prefix(entry.ranks), text)
        room -= len(line)
        if room < 0 or lines == _LINES:
            room = -1
            hidden += 1
        else:
            lines += 1
            parts.append(line)
    if hidden:
        parts.append(f"… (about {hidden} more lines wait for other ranks)\n")
    return parts[::-1]


def _rooms(entries: Sequence[FoldedItem], missing: Sequence[int]) -> list[int]:
    """Return how many displays need room above each: one for each missing rank between it and the last one."""
    rooms: list[int] = []
    last = -1
    for entry in entries:
        if isinstance(entry.piece, Line):
            rooms.append(0)
            continue
        lowest = min(entry.ranks)
        if last >= lowest:  # the ranks' next displays
            last = -1
        rooms.append(sum(last < rank < lowest for rank in missing))
        last = lowest
    return rooms
