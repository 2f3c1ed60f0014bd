"""The panel's one sentence, where more is known than the ranks' states tell: for whom they wait, who did not come."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.story import Ladder
from . import RankView
from .words import ladder_line, troubled_rung

_MET = ("HangError", "MismatchError")


def headline(views: Sequence[RankView], ladder: Ladder, waiting: str) -> str | None:
    """Choose the sentence; None leaves it to the states.

    Args:
        views: all ranks.
        ladder: of the cell that runs or ran last.
        waiting: for whom ranks wait now, in words; often empty.
    """
    if any(view.state == "dead" for view in views):
        return None  # the states name it first
    if waiting:
        return waiting
    if any(view.error.startswith(_MET) for view in views):
        rung = troubled_rung(ladder)
        # Where all failed alike, the error itself says more.
        return ladder_line(ladder) if rung is not None and {"missing", "other"} & {*rung.marks} else None
    return None
