"""Output that comes after its rank's cell has ended: shown at once, in the same place, marked as late."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from ...protocol import Display, Item, Result, Text
from ..display.displays import label, prefixed
from ..display.items import Line, Piece, View
from ..display.terminal_lines import LineReader, piece_of
from ..widgets.rows import WidgetRows, as_view
from .cell_displays import CellDisplays
from .execute_result import ResultScreen

if TYPE_CHECKING:
    from ..widgets.mirrors import Mirrors


class LateText:
    """The conversion of late text into marked lines.

    A chunk is shown when it comes. If its last line has no newline yet, it gets one, and later text is a line of its
    own.
    """

    def __init__(self) -> None:
        self._readers: dict[tuple[int, str], LineReader] = {}
        self._cut: set[tuple[int, str]] = set()

    def lines(self, rank: int, item: Text) -> list[tuple[str, str]]:
        """Return the lines to show, with their streams."""
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


class LateOutput:
    """Late output, shown at the end of a cell's output.

    Args:
        screen: the cell's.
        displays: the cell's.
    """

    def __init__(self, screen: ResultScreen, displays: CellDisplays) -> None:
        self._screen = screen
        self._displays = displays
        self._text = LateText()
        self._kept: list[tuple[int, str, str]] = []

    def show(self, rank: int, items: Sequence[Item], widgets: Mirrors | None, *, kept: bool = False) -> None:
        """Show what a rank has sent.

        Args:
            rank: the sender.
            items: what it has sent.
            widgets: those of the ranks.
            kept: other ranks' cells go on; if they clear the output, its text is shown again.
        """
        for item in items:
            if isinstance(item, Text):
                for stream, line in self._text.lines(rank, item):
                    self._write(rank, stream, line, kept=kept)
            elif isinstance(item, Display) and item.update:
                for piece in self._displays.update(rank, item):
                    self._show_piece(rank, piece, widgets, kept=kept)
            elif isinstance(item, Display | Result):  # it is undefined what a late Clear would clear
                for piece in piece_of(item):
                    self._show_piece(rank, piece, widgets, kept=kept)

    def lines_of_others(self, ranks: Container[int]) -> list[tuple[int, str, str]]:
        """Return the lines that are kept of other ranks than these: each with its rank and stream."""
        return [line for line in self._kept if line[0] not in ranks]

    def begin_again(self, lines: Sequence[tuple[int, str, str]]) -> None:
        """Show these lines again, after the output was cleared."""
        self._kept.clear()
        for rank, stream, line in lines:
            self._write(rank, stream, line, kept=True)

    def _show_piece(self, rank: int, piece: Piece, widgets: Mirrors | None, *, kept: bool) -> None:
        if isinstance(piece, Line):
            self._write(rank, piece.stream, prefixed(late_label(rank), piece.text), kept=kept)
            return
        view = as_view(piece, widgets)
        if isinstance(view, View):
            WidgetRows(self._screen, widgets, {rank: view}, "(late)")
            return
        self._write(rank, "stdout", late_label(rank) + "\n", kept=kept)
        self._displays.register(rank, piece)
        if piece.display_id:
            self._displays.show({rank: piece})
        else:
            self._screen.display(piece.first.data, piece.first.metadata)

    def _write(self, rank: int, stream: str, line: str, *, kept: bool) -> None:
        self._screen.write(stream, line)
        if kept:
            self._kept.append((rank, stream, line))


def late_label(rank: int) -> str:
    """Return the prefix of late output: ``[1] (late)``."""
    return f"{label([rank])} (late)"


def is_late(item: Item) -> bool:
    """Return whether the rank itself marked it as late."""
    return isinstance(item, (Text, Display)) and item.late
