"""The panel: one card for each rank, live in the notebook, and a plain table in the saved file.

It uses only plain data (`RankView`, `Ladder`, `Timeline`): it imports neither torch nor the rest of the notebook side,
and anywidget only when a panel is first shown in a kernel.
"""

from __future__ import annotations

from ..analysis.story import Ladder, Timeline
from .clicks import useful_buttons
from .panel import Panel
from .saved_table import table_text
from .words import JobView, RankView

__all__ = [
    "JobView",
    "Ladder",
    "Panel",
    "RankView",
    "Timeline",
    "table_text",
    "useful_buttons",
]
