"""Inputs of puzzles: fresh for each seed, and alike on all ranks for one."""

from __future__ import annotations

import torch

from nbcomm.lessons.draw import Draw


def drawn(seed: int, rank: int) -> list[object]:
    draw = Draw(seed, rank)
    return [draw.number(), draw.word(), draw.choice("abcdefgh"), draw.tensor(4).tolist(), str(draw.value())]


def test_a_rank_draws_what_another_rank_can_draw_for_it() -> None:
    assert drawn(7, 2) == drawn(7, 2)


def test_other_seeds_and_other_ranks_draw_something_else() -> None:
    assert len({str(drawn(seed, rank)) for seed in range(5) for rank in range(-1, 4)}) == 25


def test_numbers_and_tensors_are_of_what_was_asked_for() -> None:
    draw = Draw(1, 0)
    assert {draw.number(2, 4) for _ in range(100)} == {2, 3, 4}
    whole = draw.tensor(1000, dtype=torch.int64)
    assert (whole.dtype, int(whole.min()), int(whole.max())) == (torch.int64, -9, 9)
    assert draw.tensor(2, 3).shape == (2, 3)
    assert {type(draw.value()).__name__ for _ in range(100)} == {"int", "str", "list", "Tensor"}
