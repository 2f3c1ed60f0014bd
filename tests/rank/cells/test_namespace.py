"""What a cell sees without importing it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from nbcomm.cell_names import METHODS
from nbcomm.comm import Communicator
from nbcomm.rank.cells.namespace import cell_names, install

from ...worlds import Worlds, worlds_of_a_module  # noqa: F401 - a fixture


def run(code: str, namespace: dict[str, Any]) -> Any:
    """Run a cell of one line, which may leave a variable `seen`."""
    exec(code, namespace)  # noqa: S102 - as a rank runs a cell
    return namespace.get("seen")


@pytest.fixture
def namespace() -> dict[str, Any]:
    made: dict[str, Any] = {}
    install(made, {"rank": 3, "barrier": "ours", "sum": "ours, too"})
    return made


def test_a_cell_finds_the_names_and_the_builtins(namespace: dict[str, Any]) -> None:
    assert run("seen = rank, barrier, len([1])", namespace) == (3, "ours", 1)


def test_a_users_own_variable_wins_until_it_is_deleted(namespace: dict[str, Any]) -> None:
    run("rank = 'mine'", namespace)
    install(namespace, {"rank": 3})  # before the next cell
    assert run("seen = rank", namespace) == "mine"
    assert run("del rank; seen = rank", namespace) == 3


def test_the_users_variables_stay_the_users_alone(namespace: dict[str, Any]) -> None:
    assert set(namespace) == {"__builtins__"}


def test_the_true_builtins_are_untouched(namespace: dict[str, Any]) -> None:
    assert not hasattr(builtins, "barrier")
    assert sum([1, 2]) == 3
    assert run("seen = sum", namespace) == "ours, too"


def test_a_builtin_that_was_added_later_is_seen_in_the_next_cell(
    namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "added_by_gettext", 1, raising=False)
    install(namespace, {})
    assert run("seen = added_by_gettext", namespace) == 1


@pytest.mark.ranks
def test_every_collective_is_there_by_its_bare_name(worlds: Worlds) -> None:
    def look(comm: Communicator) -> Any:
        names = cell_names(comm)
        scope: dict[str, Any] = {}
        install(scope, names)
        return sorted(names), run("seen = rank, global_rank, world_size, is_global_zero, all_reduce(1)", scope)

    for rank, (names, seen) in enumerate(worlds[2].run(look)):
        assert {"torch", "dist", "comm", "device", "local_rank", "node_rank", *METHODS} <= set(names)
        assert seen == (rank, rank, 2, rank == 0, 2)
