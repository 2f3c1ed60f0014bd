"""Other views of a distributed cell's output, drawn in the page: by rank, by value, a diff of two ranks.

A second widget without a view exists beside the panel's. Its JavaScript reads the merged output in the page and does
not ask the kernel; so it works while a cell runs, and the stored output does not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from ..frontend.viewless import close_widget, open_widget

_HERE = Path(__file__).parent


def open_views() -> Callable[[], None]:
    """Open the views in the pages that show this notebook.

    A page keeps them when the widget closes, because the outputs of a world's cells stay after the world is stopped.

    Returns:
        A function that closes the widget.
    """
    return functools.partial(close_widget, open_widget(_HERE / "js" / "views.js"))
