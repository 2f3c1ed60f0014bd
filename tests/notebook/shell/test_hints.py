"""What a person may have meant, said below the error."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.errors import CellError
from nbcomm.notebook.shell import hints
from nbcomm.notebook.shell.routing import Auto

NOT_FOUND = UsageError("Cell magic `%%…` not found.")
NOT_OURS = "cannot import name 'rank' from 'nbcomm' (/nbcomm/__init__.py)"
OWN_CELL = (
    "%%distributed must be on the first line of a cell. What is above it has run: put %%distributed, with what is "
    "below it, into a cell of its own."
)


def unknown(name: str) -> NameError:
    return NameError(f"name {name!r} is not defined", name=name)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("rank", unknown("rank"), "rank exists only on the ranks: put %%distributed on the first line of this cell."),
        ("x = fabric.rank", unknown("fabric"), "fabric exists only on the ranks"),
        ("allreduce(1)", unknown("allreduce"), "Did you mean all_reduce? It exists only on the ranks: put"),
        (
            "dist.get_rank()",
            unknown("dist"),
            "The ranks have imported dist, but the notebook has not: put %%distributed",
        ),
        ("from nbcomm import rank", ImportError(NOT_OURS), "rank is not imported: %%distributed cells have it"),
        ("%load_ext nbcomm\n\n%%distributed\nrank", NOT_FOUND, OWN_CELL),
        ("# look\nimport os\n%distributed start\n%%distributed", NOT_FOUND, OWN_CELL),
        ("!ls\n%%local\nrank", NOT_FOUND, OWN_CELL.replace("distributed", "local")),
        ("%% distributed -r 0\nrank", NOT_FOUND, "Write %%distributed, without a blank."),
        ("% distributed start", NOT_FOUND, "Write %distributed, without a blank."),
        ("%distributed\nx = 1", None, "begin it with %%distributed, with two percent signs."),
        ("%distributed\nrank", unknown("rank"), "begin it with %%distributed, with two percent signs."),
        ("# look\n%%distributed\nrank", NOT_FOUND, 'move it above "# look".'),
        ("\n\nimport os\n\n%%distributed -r 0\nrank", NOT_FOUND, 'move it above "import os".'),
        ("x = 1\n%%local\nx", NOT_FOUND, '%%local must be on the first line of a cell: move it above "x = 1".'),
        (f"{'y' * 99}\n%%distributed\nx", NOT_FOUND, "…"),
        (" %%distributed\nrank", IndentationError(), "%%distributed must be at the start of its line"),
        ("%%distribute\nrank", NOT_FOUND, "Did you mean %%distributed?"),
        ("%%Distributed\nrank", NOT_FOUND, "Did you mean %%distributed?"),
        ("%distribted status", NOT_FOUND, "Did you mean %distributed?"),
        ("%%nbcomm\nrank", NOT_FOUND, "Did you mean %%distributed?"),
        ("%%rank [0, 2]\nx", NOT_FOUND, "Did you mean %%distributed -r 0,2?"),
        ("%%rank\nx", NOT_FOUND, "Did you mean %%distributed?"),
    ],
)
def test_a_first_mistake_gets_its_hint(code: str, error: BaseException | None, said: str) -> None:
    assert said in hints.hint(code, error)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("lr", unknown("lr")),
        ("%distributed\n%distributed who\n# and so on", None),
        ("%distributed push x\ny = 1", None),
        ("import nbcom", ImportError("No module named 'nbcom'")),
        ("x = = 1", SyntaxError()),
        ('x = """\n%%distributed\n""" 1', SyntaxError()),
        ("%%timeit_all\nx", NOT_FOUND),
        ("%%distributed --drw\nx", NOT_FOUND),
        ("%%distributed\nx = '''\n%%distributed'''", ValueError()),
        ("", NOT_FOUND),
        ("1 / 0", ZeroDivisionError()),
    ],
)
def test_what_is_no_such_mistake_gets_none(code: str, error: BaseException | None) -> None:
    assert hints.hint(code, error) == ""


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([0, 1], "Ranks 0-1 have a variable loss, but the notebook does not: put %%distributed on the first line of"),
        ([2], "Rank 2 has a variable loss"),
    ],
)
def test_a_variable_that_only_ranks_have_is_told_of(ranks: list[int], said: str) -> None:
    told = hints.hint("loss", unknown("loss"), holders=lambda name: ranks if name == "loss" else [])
    assert told.startswith(said)
    assert told.endswith("or copy the value here with %distributed pull loss.")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lr"], ""),
        (["lr", "lt"], "lt is not defined in the notebook; nothing was pushed."),
        (["lossy"], "lossy is not defined in the notebook; did you mean loss_y? Nothing was pushed."),
        (
            ["there"],
            "there is not defined in the notebook, but on rank 1: %distributed pull there copies it from there.",
        ),
        (["lr=3"], "push copies variables, and lr=3 is none: set it in the notebook first."),
        (["lr.x"], "push takes the names of variables, and lr.x is an expression: bind it to a name."),
    ],
)
def test_what_cannot_be_pushed_is_told_with_a_remedy(names: list[str], said: str) -> None:
    told = hints.unpushed(names, {"lr": 1, "loss_y": 2}, lambda name: [1] if name == "there" else [])
    assert told.startswith(said)
    assert bool(told) == bool(said)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["there"], ""),
        (["there", "lr"], "The notebook has a variable lr: %distributed push lr copies it to the ranks."),
        (["nowhere"], "%distributed who lists the variables of the ranks."),
        (["there.x"], "pull takes the names of variables: bind there.x to one in a %%distributed cell."),
    ],
)
def test_what_cannot_be_pulled_is_told_with_a_remedy(names: list[str], said: str) -> None:
    assert hints.unpulled(names, {"lr": 1}, lambda name: [1] if name == "there" else []) == said


def test_a_cell_that_percent_local_keeps_here_is_told_to_take_that_away() -> None:
    assert "remove %%local" in hints.hint("%%local\nrank", unknown("rank"), local=True)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"lr": 3}, "copy it to them with %distributed push lr."),
        ({"lr": math}, "import it in a %%distributed cell."),
        ({}, ""),
    ],
)
def test_a_name_that_the_notebook_has_is_told_of(here: dict[str, Any], said: str) -> None:
    error = CellError("4 of 4 ranks failed: [0-3] NameError: name 'lr' is not defined", {0: "…"}, "…")
    shell: Any = SimpleNamespace(user_ns=here)
    with pytest.raises(CellError), hints.Hints(shell, Auto(shell)).suggesting():
        raise error
    last = error._render_traceback_()[-1].replace("\n", " ")
    assert last.endswith(said)
    assert last.startswith("The notebook has" if said else "CellError: ")


@pytest.mark.parametrize(
    ("ranks", "here", "said"),
    [
        ([0], {}, "Only rank 0 has a variable lr: set it on all ranks, or send it to them by lr = broadcast("),
        ([1, 3], {"lr": 3}, "Only ranks 1,3 have a variable lr: set it on the other ranks, too."),
        ([1], {}, "lr = broadcast(lr if rank == 1 else None, 1)."),
    ],
)
def test_a_name_that_other_ranks_have_is_told_of(ranks: list[int], here: dict[str, Any], said: str) -> None:
    error = CellError("1 of 4 ranks failed: [2] NameError: name 'lr' is not defined", {2: "…"}, "…")
    shell: Any = SimpleNamespace(user_ns=here)
    with (
        pytest.raises(CellError),
        hints.Hints(shell, Auto(shell)).suggesting(lambda name: ranks if name == "lr" else []),
    ):
        raise error
    assert said in error._render_traceback_()[-1].replace("\n", " ")


def test_a_name_that_the_failed_ranks_have_is_not_missing() -> None:
    error = CellError("1 of 4 ranks failed: [2] NameError: name 'lr' is not defined", {2: "…"}, "…")
    assert not hints.for_ranks(error, {}, lambda _: [0, 1, 2, 3]), "it was a script"


def test_a_name_that_is_nearly_one_of_nbcomms_is_corrected() -> None:
    error = CellError("1 of 1 rank failed: [0] NameError: name 'worldsize' is not defined", {0: "…"}, "…")
    assert hints.for_ranks(error, {}, lambda _: []) == "Did you mean world_size?"


@pytest.mark.parametrize(
    ("here", "ranks", "said"), [({}, [], "Others have it."), ({"lr": 3}, [], "push lr."), ({}, [0], "Only")]
)
def test_a_name_that_nothing_else_has_may_be_on_ranks_that_were_left(
    here: dict[str, Any], ranks: list[int], said: str
) -> None:
    error = CellError("1 of 2 ranks failed: [1] NameError: name 'lr' is not defined", {1: "…"}, "…")
    told = hints.for_ranks(error, here, lambda _: ranks, lambda: "Others have it.")
    assert said in told
    assert ("Others" in told) == (said == "Others have it.")


def test_a_name_of_nbcomms_that_was_deleted_comes_back() -> None:
    error = CellError("1 of 1 rank failed: [0] NameError: name 'rank' is not defined", {0: "…"}, "…")
    assert hints.for_ranks(error, {"rank": 1}, lambda _: []) == "The next cell has nbcomm's rank again."


def test_a_hint_that_cannot_be_given_costs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "hint", None)
    monkeypatch.setattr(hints, "for_ranks", None)
    shell = InteractiveShell.instance()
    try:
        told = hints.Hints(shell, Auto(shell))
        told.install()
        result = shell.run_cell("1 / 0")
        told.remove()
    finally:
        InteractiveShell.clear_instance()
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "nbcomm: " not in capsys.readouterr().err
    with pytest.raises(CellError, match="one"), told.suggesting():
        raise CellError("one", {})
