"""The panel's sentence if more is known than the ranks' states: which ranks they wait for, which did not arrive."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.story import Ladder
from . import RankView
from .words import STOPPED_BECAUSE, ladder_line, troubled_rung

_MET = ("HangError", "MismatchError")


def headline(views: Sequence[RankView], ladder: Ladder, waiting: str) -> str | None:
    """Choose the panel's sentence; return None to derive it from the states.

    Args:
        views: all ranks.
        ladder: the ladder of the cell that runs or ran last.
        waiting: what the ranks wait for now, in words; often empty.
    """
    if any(view.state == "dead" or view.note.startswith(STOPPED_BECAUSE) for view in views):
        return None  # the sentence of the states names first who has died or failed
    if waiting:
        return waiting
    if any(view.error.startswith(_MET) for view in views):
        rung = troubled_rung(ladder)
        # If all ranks failed in the same way, the error itself says more.
        return ladder_line(ladder) if rung is not None and {"missing", "other"} & {*rung.marks} else None
    return None
