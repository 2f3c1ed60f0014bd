"""How much of a call is for which rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nbcomm.rank.collectives.shares import of_call, of_torch

ROWS = [torch.zeros(2), torch.zeros(0), torch.zeros(1), torch.zeros(3)]
ROOT = SimpleNamespace(rootRank=1)


@pytest.mark.parametrize(
    ("name", "asked", "nbytes", "gave"),
    [
        ("all_gather", {}, 8, [8, 0, 8, 8]),
        ("all_reduce", {}, 8, [4, 0, 4, 4]),
        ("reduce_scatter", {}, 8, [2, 0, 2, 2]),
        ("all_to_all", {"items": ROWS}, 24, [8, 0, 4, 12]),
        ("all_to_all", {"items": torch.zeros(4, 2)}, 32, [8, 0, 8, 8]),
        ("broadcast", {"src": 1}, 8, [8, 0, 8, 8]),
        ("broadcast", {}, 8, [0, 0, 0, 0]),
        ("scatter", {"items": ROWS, "src": 1}, 24, [8, 0, 4, 12]),
        ("scatter", {"items": torch.zeros(4, 2), "src": 1}, 32, [8, 0, 8, 8]),
        ("scatter", {"items": ROWS}, 24, [0, 0, 0, 0]),
        ("gather", {"dst": 3}, 8, [0, 0, 0, 8]),
        ("gather", {"dst": 1}, 8, [0, 0, 0, 0]),
        ("reduce", {}, 8, [8, 0, 0, 0]),
        ("scan", {}, 8, [0, 0, 8, 8]),
        ("sendrecv", {"dst": 2, "src": 0}, 8, [0, 0, 8, 0]),
        ("barrier", {}, 0, None),
    ],
)
def test_rank_1_of_four_gives_by_a_method(
    name: str, asked: dict[str, Any], nbytes: int, gave: list[int] | None
) -> None:
    assert of_call(name, range(4), 1, asked, nbytes) == gave


def test_of_a_group_the_places_count() -> None:
    assert of_call("broadcast", [5, 3], 3, {"src": 3}, 8) == [8, 0]
    assert of_call("broadcast", [5, 3], 1, {"src": 3}, 8) is None


@pytest.mark.parametrize(
    ("name", "args", "nbytes", "gave"),
    [
        ("all_gather_into_tensor", ("out", "in"), 8, [8, 0, 8, 8]),
        ("all_reduce", ("tensors", "options"), 8, [4, 0, 4, 4]),
        ("reduce_scatter_tensor", ("out", "in"), 8, [2, 0, 2, 2]),
        ("all_to_all", ("out", ROWS), 24, [8, 0, 4, 12]),
        ("all_to_all_single", ("out", "in", [], []), 32, [8, 0, 8, 8]),
        ("all_to_all_single", ("out", "in", [1] * 4, [2, 0, 1, 3]), 24, [8, 0, 4, 12]),
        ("broadcast", ("tensors", ROOT), 8, [8, 0, 8, 8]),
        ("gather", ("out", "in", ROOT), 8, [0, 0, 0, 0]),
        ("scatter", ("out", "in", ROOT), 32, [8, 0, 8, 8]),
        ("barrier", (), 0, None),
    ],
)
def test_rank_1_of_four_gives_by_a_call_of_torchs(
    name: str, args: tuple[Any, ...], nbytes: int, gave: list[int] | None
) -> None:
    assert of_torch(name, args, range(4), 1, nbytes) == gave
