"""Widgets that several ranks show at the same place: one output, with a row for each rank."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from ...frontend.quietly import quietly
from ..display.area import Area
from ..display.displays import label, prefixed
from ..display.items import VIEW, FoldedItem, Piece, Rich, View
from ..display.live import new_display_id, text_bundle
from ..display.screen import Screen
from .as_text import bundle_text, wording

if TYPE_CHECKING:
    from .mirrors import Mirrors

_log = logging.getLogger(__name__)

_GRID = {
    "grid_template_columns": "max-content minmax(0, 1fr)",
    "grid_gap": "0 8px",
    "margin": "0 0 0 6px",  # the labels are aligned below those of text
}
_LIKE_TEXT = {"font_family": "var(--jp-code-font-family, monospace)", "font_size": "var(--jp-code-font-size, inherit)"}


class CellWidgets:
    """The blocks of one cell.

    Args:
        screen: where they are.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: list[tuple[FoldedItem, WidgetRows]] = []

    def show(self, entry: FoldedItem, widgets: Mirrors | None) -> None:
        """Show what ranks show at one place."""
        self._shown.append((entry, WidgetRows(self._screen, widgets, _views(entry))))

    def join(self, entry: FoldedItem) -> None:
        """Add ranks to a place that is shown."""
        for known, block in self._shown:
            if known is entry:
                block.join(_views(entry))

    def settle(self) -> None:
        """Settle the blocks at the cell's end."""
        for _, block in self._shown:
            block.settle()

    def clear(self) -> None:
        """Remove the blocks: the cell's output is cleared."""
        for _, block in self._shown:
            block.vanish()
        self._shown.clear()


def _views(entry: FoldedItem) -> dict[int, View]:
    return {rank: part for rank, part in entry.parts.items() if isinstance(part, View)}


def as_view(piece: Piece, widgets: Mirrors | None) -> Piece:
    """Return a widget's view, if the piece is one; one that can be replaced is an ordinary display."""
    if not isinstance(piece, Rich) or piece.display_id or VIEW not in piece.first.data:
        return piece
    view = piece.first.data[VIEW]
    if not isinstance(view, dict):  # a display that only claims to be one
        return piece
    model = str(view.get("model_id", ""))
    return View(piece.first, model, widgets.kind(model) if widgets is not None else "")


class WidgetRows:
    """One place on the screen.

    The output is the view of a grid that is made here: labels, and the ranks' widgets beside them. Without its widgets
    it is shown as text: in a terminal, in the notebook's file, and when the world has stopped.

    Args:
        screen: where it is.
        mirrors: knows the ranks' widgets; None if there are none.
        parts: what each rank shows.
        mark: comes after the ranks' labels: "(late)".
    """

    def __init__(self, screen: Screen, mirrors: Mirrors | None, parts: dict[int, View], mark: str = "") -> None:
        self.screen = screen
        self._mirrors = mirrors
        self._mark = mark
        self._rows: dict[int, tuple[str, str]] = {}
        self._labels: dict[int, Any] = {}
        self._instead: dict[int, Any] = {}
        self._grid: Any = None
        self._display_id = ""
        self._shown = ""
        self._lock = threading.RLock()
        if mirrors is not None:
            mirrors.keep(self)
        self.join(parts)

    def join(self, parts: dict[int, View]) -> None:
        """Add the parts of more ranks."""
        with self._lock:
            for rank, part in parts.items():
                if self._mirrors is None or not self._mirrors.has_closed(part.model):
                    self._rows[rank] = part.model, bundle_text(part.first.data)
            self._rows = dict(sorted(self._rows.items()))
            self._fill()

    def drop(self, model: str) -> None:
        """Remove the row of a widget that has closed."""
        with self._lock:
            if any(shown == model for shown, _ in self._rows.values()):
                self._rows = {rank: row for rank, row in self._rows.items() if row[0] != model}
                self._fill()

    def settle(self) -> None:
        """Save the text of the widgets as they look now, at the cell's end."""
        with self._lock:
            if self._display_id and self._text() != self._shown and self.screen.area.updates:
                self.screen.update(self._bundle(), {}, self._display_id)

    def leave(self, area: Area | None = None) -> None:
        """Show text in place of the widgets, which are about to close.

        Args:
            area: of the cell that runs now. A program that runs notebooks without a page gets displays from that one
                only.
        """
        with self._lock:
            if self._display_id and self.screen.area.updates:
                area = area if area is not None and area.updates else self.screen.area
                area.update(text_bundle(self._text()), {}, self._display_id)
            self._rows.clear()
            self._close_grid()

    def vanish(self) -> None:
        """Remove the block: the cell's output is cleared."""
        with self._lock:
            self._rows.clear()
            self._display_id = ""
            self._close_grid()
        if self._mirrors is not None:
            self._mirrors.forget(self)

    def _fill(self) -> None:
        """Give the grid a row for each rank, and the screen the grid."""
        before = self._grid
        self._fill_grid()
        if self._display_id:
            if self.screen.area.updates and (self._grid is None or self._grid is not before):
                self.screen.update(self._bundle(), {}, self._display_id)
        elif self._rows:
            self._display_id = new_display_id()
            self.screen.display(self._bundle(), {}, self._display_id)

    def _fill_grid(self) -> None:
        find = self._mirrors.widget if self._mirrors is not None else lambda _: None
        widgets = {rank: find(model) for rank, (model, _) in self._rows.items()}
        if not any(widgets.values()):
            self._close_grid()
            return
        try:
            self._draw(widgets)
        except Exception:  # noqa: BLE001 - whatever it is, the ranks' widgets are shown as text
            _log.debug("A block of widgets could not be made.", exc_info=True)
            self._close_grid()

    def _draw(self, widgets: dict[int, Any]) -> None:
        import ipywidgets

        if self._grid is None:
            self._grid = ipywidgets.GridBox(layout=ipywidgets.Layout(**_GRID))
        known = [*self._labels.values()]
        for rank in sorted(widgets.keys() - self._labels.keys()):
            # They look the same: one layout and one style are enough.
            shared = {"layout": known[0].layout, "style": known[0].style} if known else {"style": _LIKE_TEXT}
            texts = [f"{label([rank])} {self._mark}".rstrip()]
            if widgets[rank] is None:  # of a process that has gone, or from before this notebook
                texts.append(self._rows[rank][1])
            self._labels[rank], *instead = (ipywidgets.Label(text, **shared) for text in texts)
            self._instead[rank] = instead[0] if instead else None
            known.append(self._labels[rank])
        self._grid.children = [
            part for rank in sorted(widgets) for part in (self._labels[rank], widgets[rank] or self._instead[rank])
        ]

    def _close_grid(self) -> None:
        grid, self._grid = self._grid, None
        if grid is None:
            return
        made = [grid, grid.layout, *self._labels.values(), *filter(None, self._instead.values())]
        if self._labels:  # there are none if the first could not be made; the others share them
            first = next(iter(self._labels.values()))
            made += [first.layout, first.style]
        self._labels.clear()
        self._instead.clear()
        for widget in made:
            quietly(widget.close)

    def _bundle(self) -> dict[str, Any]:
        self._shown = self._text()
        bundle = text_bundle(self._shown)
        if self._grid is not None:
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self._grid.model_id}
        return bundle

    def _text(self) -> str:
        rows = []
        for rank, (model, text) in self._rows.items():
            words = (wording(self._mirrors.state, model) if self._mirrors else "") or text
            rows.append(prefixed(f"{label([rank])} {self._mark}".rstrip(), words))
        return "".join(rows).removesuffix("\n")
