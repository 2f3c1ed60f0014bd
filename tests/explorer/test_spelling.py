"""Every spelling that the explorer offers runs, in a world of two ranks, and gives what the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nbcomm
from nbcomm.errors import CollectiveError, OpError
from nbcomm.explorer.spelling import LIBRARIES, NONE, spell
from nbcomm.notebook.session.session import Session
from nbcomm.number_ops import PAIRS
from nbcomm.pictures.plan import NAMES, REDUCING, plan

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("barrier", {}),
    *(("broadcast", {"src": src}) for src in (0, 1)),
    *(("scatter", {"src": src}) for src in (0, 1)),
    *(("gather", {"dst": dst, "mode": mode}) for dst in (0, 1) for mode in ("list", "stack", "cat")),
    *(("all_gather", {"mode": mode}) for mode in ("stack", "cat", "list")),
    *(("reduce", {"op": op, "dst": dst}) for op in PAIRS for dst in (0, 1)),
    *((name, {"op": op}) for name in ("all_reduce", "reduce_scatter") for op in PAIRS),
    ("all_to_all", {}),
    *(("scan", {"op": op, "exclusive": exclusive}) for op in PAIRS for exclusive in (False, True)),
    ("send", {"src": 0, "dst": 1}),
    ("sendrecv", {}),
]
VALUES = [[3, 6], [5, 10]]
"""What each rank has: integers, for band and bor."""


@pytest.fixture(scope="module")
def two() -> Iterator[Session]:
    with nbcomm.start(2) as session:
        yield session


def given(name: str) -> list[Any]:
    """The ranks' data as lists; of scatter the items that src has."""
    if name in ("scatter", "reduce_scatter", "all_to_all"):
        items = [[[10 * rank + 2 * item + 1, item + 7] for item in range(2)] for rank in range(2)]
        return items[0] if name == "scatter" else items
    return VALUES


def all_lines() -> list[tuple[str, str, dict[str, Any], str]]:
    return [
        (library, name, how, line)
        for name, how in CALLS
        for library, line in spell(name, **how).items()
        if not line.startswith(NONE)
    ]


def on_rank(lines: list[tuple[str, str, dict[str, Any], str]], given_: dict[str, list[Any]]) -> list[Any]:
    """Run every line as a cell would; what it gives, as plain lists."""
    import ast
    import warnings

    import ignite.distributed as idist
    import torch
    import torch.distributed as dist
    from lightning_fabric import Fabric

    import nbcomm

    warnings.simplefilter("ignore")
    comm = nbcomm.init()
    fabric = Fabric(accelerator="cpu", devices=comm.world_size, strategy="ddp")
    fabric.launch()
    calls = ["barrier", "broadcast", "scatter", "gather", "all_gather", "reduce", "all_reduce", "reduce_scatter"]
    calls += ["all_to_all", "scan", "send", "recv", "sendrecv"]

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    answers = []
    for library, name, how, line in lines:
        dtype = torch.float64 if how.get("op") == "mean" else torch.int64
        rows = given_[name]
        if name in ("scatter", "reduce_scatter", "all_to_all"):
            mine = rows if name == "scatter" else rows[comm.rank]
            data: Any = [torch.tensor(item, dtype=dtype) for item in mine]
        else:
            data = torch.tensor(rows[comm.rank], dtype=dtype)
        scope = {"x": data, "torch": torch, "dist": dist, "fabric": fabric, "idist": idist}
        if library == "nbcomm":
            scope |= {"rank": comm.rank, "world_size": comm.world_size} | {call: getattr(comm, call) for call in calls}
        tree, got = ast.parse(line), None
        if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
            got = eval(line, scope)  # noqa: S307 - our own
            if library == "torch":
                got = scope["x"]
        else:
            exec(line, scope)  # noqa: S102
            got = scope.get("out", scope["x"])
        answers.append(plain(got))
    return answers


def expected(name: str, how: dict[str, Any], rank: int) -> Any:
    options = {key: value for key, value in how.items() if key != "mode"}
    after = [cell.value for cell in plan(name, given(name), n=2, **options).after[rank]]
    after = [value.tolist() if hasattr(value, "tolist") else value for value in after]
    if name in ("gather", "all_gather", "all_to_all"):
        return [number for row in after for number in row] if how.get("mode") == "cat" else after
    return after[0] if after else None


@pytest.mark.world
def test_every_line_gives_what_the_plan_says(two: Session) -> None:
    lines = all_lines()
    answers = two.call(on_rank, lines, {name: given(name) for name in NAMES})
    assert {library for library, *_ in lines} == set(LIBRARIES)
    wrong = []
    for (library, name, how, line), *got in zip(lines, *answers, strict=True):
        for rank, answer in enumerate(got):
            only_one = {"gather": "dst", "reduce": "dst", "send": "dst"}.get(name)
            if name == "barrier" or (only_one and rank != how[only_one]):
                continue  # nothing is promised there
            want = expected(name, how, rank)
            if how.get("exclusive") and rank == 0:
                continue  # what a rank without a rank before it gets depends on the dtype (test_scanning)
            if answer != want:
                wrong.append((library, line, rank, answer, want))
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_line_or_a_reason(name: str) -> None:
    for mode in (None, "stack", "cat", "list"):
        for op in PAIRS if name in REDUCING else ("sum",):
            said = spell(name, op=op, mode=mode)
            assert set(said) == set(LIBRARIES)
            assert not said["nbcomm"].startswith(NONE)
            for line in said.values():
                assert line
                assert not line.startswith(NONE) or line.startswith(f"{NONE} (")


def test_what_is_not_there_is_a_sentence() -> None:
    with pytest.raises(CollectiveError, match="There is no collective 'magic'"):
        spell("magic")
    with pytest.raises(OpError, match="There is no reduction 'median'"):
        spell("all_reduce", op="median")


def test_the_data_may_have_another_name() -> None:
    assert spell("all_reduce", op="AVG", data="loss") == {
        "nbcomm": 'all_reduce(loss, "mean")',
        "torch": "dist.all_reduce(loss); loss /= dist.get_world_size()",
        "fabric": 'fabric.all_reduce(loss, reduce_op="mean")',
        "ignite": "idist.all_reduce(loss) / idist.get_world_size()",
    }
