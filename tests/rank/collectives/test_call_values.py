"""A picture's values are taken once, by the first who notices that a call is done."""

from __future__ import annotations

import torch

from nbcomm.rank.collectives.call_values import Drawn, of_torch


def gathered() -> Drawn:
    out = [torch.tensor([1]), torch.tensor([2])]
    drawn = of_torch("allgather", ([out], [torch.tensor([1])]), [0, 1], 0)
    assert drawn is not None
    return drawn


def test_who_notices_the_end_later_changes_nothing() -> None:
    drawn = gathered()
    drawn.finish()
    drawn.finish()  # the wait has seen it, and so does the cell's end
    drawn.finish_late(ended=True)
    assert drawn.after == ["[1]", "[2]"]


def test_what_has_not_ended_with_its_cell_stays_without_values() -> None:
    drawn = gathered()
    drawn.finish_late(ended=False)
    drawn.finish()  # a later cell waits for it
    assert drawn.after is None
