"""The panel: one card for each rank, live in the notebook, and a plain table in the saved file.

It sees only `RankView` snapshots: it imports neither torch nor the rest of the notebook side, and
anywidget only when a panel is first shown in a kernel.
"""

from __future__ import annotations

from .static import RankView, sentence, table_html, table_text
from .widget import Panel

__all__ = ["Panel", "RankView", "sentence", "table_html", "table_text"]
