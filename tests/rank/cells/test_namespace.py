"""What a cell sees without importing it."""

from __future__ import annotations

import builtins
import types
from typing import Any

import pytest
import torch.distributed as dist

from nbcomm.cell_names import METHODS
from nbcomm.comm import Communicator
from nbcomm.rank.cells.namespace import HidingVariables, cell_names, install

from ...worlds import Worlds, worlds_of_a_module  # noqa: F401 - a fixture

GIVEN = {"rank": 3, "barrier": "ours", "sum": "ours, too"}


class Shell:
    """What a rank's shell has of names."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"__builtins__": builtins}
        self.user_ns_hidden: dict[str, Any] = {}

    def run(self, code: str, **given: Any) -> Any:
        """Run a cell, which may leave a variable `seen`."""
        install(self, given or GIVEN)
        exec(code, self.user_ns)  # noqa: S102 - as a rank runs a cell
        return self.user_ns.get("seen")

    def users(self) -> set[str]:
        """The names that ``%who`` lists."""
        nobody = object()
        return {name for name, value in self.user_ns.items() if value is not self.user_ns_hidden.get(name, nobody)}


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_cell_finds_the_names_and_the_builtins(shell: Shell) -> None:
    assert shell.run("seen = rank, barrier, len([1])") == (3, "ours", 1)


def test_all_finds_them_that_reads_globals(shell: Shell) -> None:
    shell.run("def typed_before(): return rank, globals()['rank'], eval('rank')")
    assert shell.run("seen = typed_before()") == (3, 3, 3)


def test_a_users_own_variable_wins_until_it_is_deleted(shell: Shell) -> None:
    shell.run("rank = 'mine'")
    assert shell.run("seen = rank") == "mine"
    shell.run("del rank, seen")
    assert shell.run("seen = rank") == 3


def test_names_that_change_are_given_anew_and_not_taken_for_the_users(shell: Shell) -> None:
    shell.run("barrier = 'mine'", rank=1, barrier="ours")
    assert shell.run("seen = rank, barrier", rank=2, barrier="ours") == (2, "mine")
    shell.run("del barrier")
    assert shell.run("seen = rank, barrier", rank=3, barrier="new") == (3, "new")


def test_only_the_users_variables_are_listed(shell: Shell) -> None:
    shell.run("x, barrier = 1, 2")
    assert shell.users() == {"__builtins__", "x", "barrier"}


def test_the_true_builtins_are_untouched_and_a_cell_can_change_them(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.run("seen = sum, __builtins__.sum") == ("ours, too", sum)
    monkeypatch.setattr(builtins, "added", 1, raising=False)
    assert shell.run("before = added; import builtins; builtins.added = 2; seen = before, added") == (1, 2)


NAMES = {
    "rank": 3,
    "world_size": 4,
    "device": "cpu",
    "dist": dist,
    "gather": print,
    "all_reduce": print,
    "split": print,
}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rank = 5", ["your variable rank hides nbcomm's rank; type del rank to undo this."]),
        ("for rank in range(3): pass", ["your variable rank hides nbcomm's rank; type del rank to undo this."]),
        ("rank, world_size = '3', 2", ["your variable rank ", "your variable world_size "]),
        ("def gather(x): return x", ["your function gather hides nbcomm's gather; type del gather to undo this."]),
        ("dist = 3.5", ["your variable dist "]),
        ("all_reduce = 1", ["your variable all_reduce "]),
        ("rank = 3", []),
        ("import numpy; rank = numpy.int64(3)", []),
        ("device = 'cuda'", []),
        ("split = 0.8", []),
        ("import torch.distributed as dist", []),
        ("from torch.distributed import all_reduce", []),
        ("all_reduce = print", []),
        ("def f(rank): gather = rank\n[rank for rank in range(9)]; f(1)", []),
    ],
)
def test_a_variable_that_surely_surprises_is_told_of_once(shell: Shell, code: str, said: list[str]) -> None:
    hiding = HidingVariables()
    shell.run(code, **NAMES)
    told = hiding.look(shell)
    assert len(told) == len(said)
    assert all(one.startswith(begin) for one, begin in zip(told, said, strict=True))
    shell.run(code, **NAMES)
    assert hiding.explain(shell, code, "", talks=True) == []


def test_it_is_told_again_after_it_was_deleted_and_not_of_what_a_script_sets(shell: Shell) -> None:
    hiding = HidingVariables()
    for _ in range(2):
        shell.run("rank = 5", **NAMES)
        assert len(hiding.look(shell)) == 1
        shell.run("del rank", **NAMES)
        assert hiding.look(shell) == []
    shell.run("rank = 5", **NAMES)
    assert hiding.look(shell, tell=False) == []
    assert hiding.look(shell) == []
    assert len(hiding.explain(shell, "rank + 1", "", talks=True)) == 1, "where it may explain something"


def test_what_is_no_surprise_is_told_of_where_the_cell_fails(shell: Shell) -> None:
    hiding = HidingVariables()
    shell.run("split = 0.8", **NAMES)
    assert hiding.explain(shell, "split = 0.8", "", talks=True) == []
    assert hiding.explain(shell, "split(1)", "TypeError", talks=False) == [
        "your variable split hides nbcomm's split; type del split to undo this."
    ]


def test_a_method_that_a_user_gives_the_communicator_is_the_cells_too() -> None:
    comm = Communicator(rank=0, world_size=1)
    before = cell_names(comm)
    assert cell_names(comm) is before
    comm.barrier = lambda: "mine"  # type: ignore[method-assign]
    assert cell_names(comm)["barrier"]() == "mine"
    del comm.barrier
    assert cell_names(comm)["barrier"] == comm.barrier


@pytest.mark.ranks
def test_every_collective_is_there_by_its_bare_name(worlds: Worlds) -> None:
    def look(comm: Communicator) -> Any:
        shell = types.SimpleNamespace(user_ns={}, user_ns_hidden={})
        install(shell, cell_names(comm))
        names = sorted(shell.user_ns)
        exec("seen = rank, global_rank, world_size, is_global_zero, all_reduce(1)", shell.user_ns)  # noqa: S102
        return names, shell.user_ns["seen"]

    for rank, (names, seen) in enumerate(worlds[2].run(look)):
        assert {"torch", "dist", "comm", "device", "local_rank", "node_rank", *METHODS} <= set(names)
        assert seen == (rank, rank, 2, rank == 0, 2)
