"""Other views of what a distributed cell has shown, drawn in the page: by rank, by value, a diff of two ranks.

Beside the panel's widget there is a second one without a view. Its JavaScript reads the merged output that is in the
page and asks nothing of the kernel; so it works while a cell runs, and nothing that is stored changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from ..frontend.viewless import close_widget, open_widget

_HERE = Path(__file__).parent


def open_views() -> Callable[[], None]:
    """Bring the views to the pages that show this notebook.

    A page keeps them when the widget closes: what a world's cells have shown is still there when it is stopped.

    Returns:
        Closes the widget.
    """
    return functools.partial(close_widget, open_widget(_HERE / "js" / "views.js"))
