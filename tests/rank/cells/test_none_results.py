"""A None of a collective is told of, and a None of the user's own is not."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.rank.cells import none_results

ON_0 = 'gives its result on rank 0 (dst) only. Use it below "if rank == 0:", or call all_'


class Comm:
    """A Communicator of rank 1, in which nobody else is."""

    rank = 1

    def gather(self, data: Any, dst: int = 0, **_: Any) -> Any:
        return [data] if dst == self.rank else None

    def reduce(self, data: Any, op: str = "sum", dst: int = 0, **_: Any) -> Any:
        return data if dst == self.rank and op else None

    def all_gather(self, data: Any) -> Any:
        return [data]

    def send(self, data: Any, dst: int) -> None:
        pass

    def barrier(self) -> None:
        pass


def torchs_all_reduce(tensor: Any, **_: Any) -> None:
    """What torch's function gives, without a group."""


@pytest.fixture(autouse=True)
def _torchs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = functools.wraps(dist.all_reduce)(torchs_all_reduce)
    monkeypatch.setattr(dist, "all_reduce", made)
    yield
    for name in [name for name in linecache.cache if name.startswith("<cell ")]:
        del linecache.cache[name]


def told(*cells: str, **own: Any) -> str:
    """What is said of the last cell, which fails."""
    comm = Comm()
    names = {name: getattr(comm, name) for name in ("gather", "reduce", "all_gather", "send", "barrier")}
    scope = {**names, "comm": comm, "dist": dist, "torch": torch, "rank": 1, "world_size": 2, **own}
    for number, cell in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        try:
            exec(compile(cell, file, "exec"), scope)  # noqa: S102 - as a rank runs a cell
        except Exception as error:  # noqa: BLE001 - whatever the cell raises
            at = none_results.statement(error, scope)
            assert at is not None
            return none_results.explain(error, at)
    pytest.fail("no cell has failed")


@pytest.mark.parametrize(
    "code",
    [
        "gather(rank)[0]",
        "g = gather(rank)\ng[0]",
        "g = gather(rank)\nprint(1); g[0]",
        "for one in gather(rank): print(one)",
        "for one in gather(rank):\n    print(one)",
        "[one for one in gather(rank)]",
        "len(gather(rank))",
        "a, b = gather(rank)",
        "a, b = comm.gather(rank)",
        "print(*gather(rank))",
        "sum(gather(rank))",
        "3 in gather(rank)",
        "torch.cat(gather(torch.ones(1)))",
        "torch.stack(gather(torch.ones(1)))",
        "gather(rank).append(1)",
        "gather(rank, dst=0)[0] = 1",
        "gather(rank, 0)[0]",
        "def f():\n    found = gather(rank)\n    return found[0]\nf()",
        "d = {1: 2}\nd[1], gather(rank)[0]",
    ],
)
def test_a_gather_for_another_rank_is_told_of(code: str) -> None:
    said = told(code)
    assert said.startswith(("gather(", "comm.gather("))
    assert said.endswith(f" is None: gather {ON_0}gather, which gives it on every rank."), said


@pytest.mark.parametrize(
    "code",
    [
        "total = reduce(rank)\ntotal + 1",
        "1 - reduce(rank)",
        "total = 1\ntotal += reduce(rank)",
        "-reduce(rank)",
        "if reduce(rank) > 3:\n    pass",
        "print(f'{reduce(rank):.2f}')",
        "reduce(torch.ones(2)).sum()",
        "float(reduce(torch.ones(2)))",
        "def mean(x):\n    total = reduce(x)\n    return total / world_size\nmean(3)",
    ],
)
def test_a_reduce_for_another_rank_is_told_of(code: str) -> None:
    assert f" is None: reduce {ON_0}reduce, which gives it on every rank." in told(code)


def test_the_rank_that_has_it_is_named_where_it_is_known() -> None:
    assert 'on rank 3 (dst) only. Use it below "if rank == 3:"' in told("reduce(1, 'max', 3) + 1")
    assert "on rank 2 (dst) only" in told("last = 2\ngather(1, dst=last)[0]")
    assert 'on dst only. Use it below "if rank == dst:"' in told("gather(1, dst=1 - 1)[0]")


def test_of_an_earlier_cell_nothing_is_said() -> None:
    assert told("g = gather(rank)", "g[0]") == ""
    assert told("g = gather(rank)", "h = g\nh[0]") == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("barrier()[0]", "barrier() is None: barrier returns nothing."),
        ("send(1, 0) + 1", "send(1, 0) is None: send returns nothing: recv returns the data, on the receiving rank"),
        ("y = dist.all_reduce(torch.ones(1))\ny + 1", "Use the arguments, or call all_reduce, without dist., which"),
        ("torch.distributed.all_reduce(torch.ones(1)) + 1", "torch's functions write into their arguments."),
    ],
)
def test_calls_that_return_nothing_are_told_of(code: str, said: str) -> None:
    assert said in told(code)


@pytest.mark.parametrize(
    "code",
    [
        "x = None\nx[0]",
        "x = [1, None][1]\nx[0] + len(gather(rank, dst=1))",
        "None + reduce(rank)",
        "x = None\nx + reduce(rank)",
        "g = gather(rank)\nif rank: g = None\ng[0]",
        "g = gather(rank) if rank > 5 else None\ng[0]",
        "gather(rank, dst=rank)[0][0][0]",
        "gather(rank, dst=1)[0].x",
        "{}.get(1)[0], gather(rank)[0]",
        "def show(found):\n    return found[0]\nshow(gather(rank))",
        "def f():\n    if rank > 5:\n        return gather(rank)\nf()[0]",
        "def f():\n    global g\n    g = None\ng = {}.get(1)\ng[0]",
        "gather(rank, async_op=True)[0]",
        "gather = {}.get\ngather(rank)[0]",
        "len(3)",
        "1 / 0",
        "all_gather(None)[0][0]",
        "import math as g\ng = None\ng[0]",
        "def f(g=None):\n    if rank > 5: g = gather(rank)\n    return g[0]\nf()",
        "for g in [None]:\n    if rank > 5: g = gather(rank)\n    g[0]",
        "reduce(torch.ones(2)).sum() + torch.ones(1).sum()",
    ],
)
def test_what_may_be_the_users_own_is_not(code: str) -> None:
    assert told(code) == ""


def test_a_cell_whose_text_is_not_known_is_left_alone() -> None:
    scope: dict[str, Any] = {"found": None}
    with pytest.raises(TypeError) as caught:
        exec("found[0]", scope)  # noqa: S102
    at = none_results.statement(caught.value, scope)
    assert at is None or none_results.explain(caught.value, at) == ""
    assert none_results.statement(caught.value, {}) is None
