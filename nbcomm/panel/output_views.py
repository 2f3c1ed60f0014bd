"""What a page draws at cells' outputs: other views of them, and what it has missed of them.

A second widget without a view exists beside the panel's, also where there is no panel. Its JavaScript reads the merged
output in the page and asks the kernel for nothing; so the views work while a cell runs, and the stored output does not
change.

A page that is loaded while cells run never gets their output, and the notebook in the page shows that: those cells have
no number. So a page asks once which cells have run, tells which of them it lacks, and gets their output on a click.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import StateError
from ..frontend.quietly import quietly
from ..frontend.viewless import close_widget, open_widget

_HERE = Path(__file__).parent


class CellView(NamedTuple):
    """A cell that runs on the ranks or has run, by which a page knows whether it has missed its output.

    Attributes:
        number: as in In [number]; 0 = unknown.
        id: the front end's, of the cell in the notebook; empty = unknown.
        began: in seconds of `time.time`; no other cell of the world has the same.
        ended: the same; None while it runs.
    """

    number: int
    id: str
    began: float
    ended: float | None


class RanCell(Protocol):
    """What is kept of a cell.

    Attributes:
        missed: whether a page lacks its output.
    """

    missed: bool

    def view(self) -> CellView:
        """Return what a page needs to know of it."""

    def outputs(self) -> list[dict[str, Any]]:
        """Return its output, as a notebook's file has it; raise a `StateError` if it is too much for a message."""


def open_views(ran: Collection[RanCell] = ()) -> Callable[[], None]:
    """Open the views in the pages that show this notebook.

    A page keeps them when the widget closes, because the outputs of a world's cells stay after the world is stopped.

    Args:
        ran: the last cells, oldest first; it changes.

    Returns:
        A function that closes the widget.
    """
    opened = time.time()

    def read() -> dict[str, Any]:
        return {"opened": opened, "now": time.time(), "cells": [cell.view() for cell in [*ran]]}

    widget = open_widget(_HERE / "js" / "views.js", read)
    widget.on_msg(functools.partial(_hear, ran))
    return functools.partial(close_widget, widget)


def _hear(ran: Collection[RanCell], widget: Any, message: object, _buffers: object) -> None:
    """Note which cells' output a page lacks, or send it one of them."""
    match message:
        case {"kind": "lacks", "cells": list(began)}:
            for cell in [*ran]:
                cell.missed |= cell.view().began in began
        case {"kind": "show", "cell": float(one)}:
            for cell in [cell for cell in [*ran] if cell.view().began == one]:
                quietly(widget.send, {"kind": "output", "cell": one, **_output(cell)})


def _output(cell: RanCell) -> dict[str, Any]:
    try:
        outputs = cell.outputs()
    except StateError as error:
        return {"said": str(error)}
    cell.missed = False
    return {"outputs": outputs}
