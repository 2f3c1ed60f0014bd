"""A picture's values are taken once, by the first who notices that a call is done."""

from __future__ import annotations

import torch
import torch.distributed as dist

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


def reduced(tensor: torch.Tensor) -> Drawn:
    drawn = of_torch("allreduce", ([tensor], dist.AllreduceOptions()), [0, 1], 0)
    assert drawn is not None
    return drawn


def test_what_was_overwritten_before_anybody_looked_is_not_shown_as_the_result() -> None:
    bucket = torch.tensor([1.0, 2.0])
    first = reduced(bucket)
    bucket.data.numpy()[:] = [3.0, 4.0]  # as gloo does: autograd does not see it
    later = reduced(bucket)
    bucket.copy_(torch.tensor([5.0, 6.0]))  # the next backward
    first.finish(late=True)
    assert first.after is None
    later.finish()  # who waits in Python looks before the cell goes on
    assert later.after == ["[5 6]"]


def test_a_late_look_at_what_only_gloo_has_written_finds_the_result() -> None:
    with torch.inference_mode():
        untold = torch.tensor([1.0])  # it counts no writes
    for tensor in (torch.tensor([1.0]), untold):
        drawn = reduced(tensor)
        tensor.data.numpy()[:] = 3.0
        drawn.finish_late(ended=True)
        assert drawn.after == ["[3]"]
