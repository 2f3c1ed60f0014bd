"""What a cell sees without importing it."""

from __future__ import annotations

import builtins
import types
from typing import Any

import pytest

from nbcomm.cell_names import METHODS
from nbcomm.comm import Communicator
from nbcomm.rank.cells.namespace import cell_names, install

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
