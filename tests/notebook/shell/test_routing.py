"""Where a cell runs: what its text says, and who asks for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.notebook.shell import routing
from nbcomm.notebook.shell.hints import Hints
from nbcomm.notebook.shell.magics import DistributedMagics
from nbcomm.notebook.shell.routing import Kind, kind_of, lines_above, part_for_ranks


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("", Kind.NOTHING),
        ("\n \n\t\n", Kind.NOTHING),
        ("# a note", Kind.NOTHING),
        ("# one\n\n  # two\n", Kind.NOTHING),
        ("x = 1", Kind.PLAIN),
        ("\n\n# a note\nx = 1", Kind.PLAIN),
        ("'''\n%distributed status\n'''", Kind.PLAIN),
        ("%%time\nx = 1", Kind.PLAIN),
        ("%%distributed_other\nx", Kind.PLAIN),
        ("%%locals\nx", Kind.PLAIN),
        ("%distributed_other", Kind.PLAIN),
        ("%load_ext autoreload", Kind.PLAIN),
        ("%load_ext nbcomm_other", Kind.PLAIN),
        ("!ls", Kind.PLAIN),
        ("x?", Kind.PLAIN),
        ("%%local", Kind.LOCAL),
        ("%%local\nx = 1", Kind.LOCAL),
        ("\n  %%local\nx = 1", Kind.LOCAL),
        ("# a note\n%%local\nx = 1", Kind.LOCAL),
        ("%%distributed", Kind.DISTRIBUTED),
        ("\n%%distributed -r 0\nx", Kind.DISTRIBUTED),
        ("%%distributed\n%%local\nx", Kind.DISTRIBUTED),
        ("# a note\n%%distributed\nx", Kind.STEERING),
        ("%distributed", Kind.STEERING),
        ("# start\n\n%distributed start -n 4\nx = 1", Kind.STEERING),
        ("%distributed?", Kind.STEERING),
        ("?%distributed", Kind.STEERING),
        ("%%distributed?", Kind.STEERING),
        ("%%local?", Kind.STEERING),
        ("??%%distributed", Kind.STEERING),
        ("%load_ext nbcomm", Kind.STEERING),
        ("%reload_ext  nbcomm", Kind.STEERING),
        ("%unload_ext nbcomm\nx = 1", Kind.STEERING),
        ("exit", Kind.STEERING),
        ("quit()\n", Kind.STEERING),
        ("exit\nx = 1", Kind.PLAIN),
        ("exit(3)", Kind.PLAIN),
        ("exits", Kind.PLAIN),
    ],
)
def test_what_a_cell_says(cell: str, kind: Kind) -> None:
    assert kind_of(cell.splitlines(keepends=True))[0] is kind


@pytest.mark.parametrize(
    ("cell", "plain", "part"),
    [
        ("x = 1", True, ("x = 1", 0)),
        ("x = 1", False, None),
        ("# note\nx = 1", True, ("# note\nx = 1", 0)),
        ("", True, None),
        ("# note", True, None),
        ("%%distributed -r 0\nx = 1\ny", False, ("x = 1\ny", 19)),
        ("\n  %%distributed\n  x", False, ("  x", 17)),
        ("%%distributed\r\nx", False, ("x", 15)),
        ("%%distributed\n", False, ("", 14)),
        ("%%distributed -", True, None),
        ("%%local\nx", True, None),
        ("%distributed pu", True, None),
        ("%", True, None),
        ("%%dis", True, None),
        ("%dis", True, None),
        ("%%l", True, None),
        ("%%ti", True, ("%%ti", 0)),
        ("%dis\nx", True, ("%dis\nx", 0)),
    ],
)
def test_the_part_for_the_ranks(cell: str, plain: bool, part: tuple[str, int] | None) -> None:
    assert part_for_ranks(cell, plain=plain) == part


# ── in a shell ──────────────────────────────────────────────────────────────────────────────────────


class Shell(InteractiveShell):
    """A shell whose %%distributed notes what would go to the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.went: list[tuple[str, str]] = []
        self.auto: routing.Auto
        self.register_magic_function(lambda line, cell: self.went.append((line, cell)), "cell", "distributed")
        self.register_magic_function(lambda line: self.went.append((line, "")), "line", "distributed")

    def typed(self, cell: str) -> Any:
        """Run a cell as a prompt does."""
        return self.run_cell(cell, store_history=True)


def followed(shell: InteractiveShell) -> routing.Auto:
    auto = routing.Auto(shell, on=True)
    auto.install()
    return auto


@pytest.fixture
def shell() -> Iterator[Shell]:
    InteractiveShell.clear_instance()
    made = Shell()
    made.auto = followed(made)
    yield made
    made.auto.remove()
    assert "run_cell" not in vars(made)
    assert not [t for t in made.input_transformers_cleanup if isinstance(t, routing.Auto)]


@pytest.mark.parametrize(
    ("page", "code", "above"),
    [
        ("%%distributed\nx\n\ny", "x\n\ny\n", 1),
        ("\n \n%%distributed -r 0\n\nx\n\n", "\nx\n", 3),
        ("  %%distributed\n  if x:\n    y", "if x:\n  y\n", 1),
        ("%%time\n%%distributed\nx", "x\n", 2),
        ("\nx\ny", "x\ny\n", 1),
        ("x\ny", "x\ny\n", 0),
        ("run('x')", "x", 1),
        ("", "x", 1),
    ],
)
def test_the_lines_above_the_part_for_the_ranks(page: str, code: str, above: int) -> None:
    assert lines_above(page, code) == above


def test_a_plain_cell_goes_to_the_ranks_and_a_local_one_does_not(shell: Shell) -> None:
    shell.typed("x = 1")
    shell.typed("%%local\nx = 2")
    shell.typed("# only this")
    shell.typed("  ")
    shell.typed("%distributed status")
    shell.typed("%%distributed -r 0\nx = 3")
    shell.typed("%%time\nx = 4")
    assert shell.went == [("", "x = 1\n"), ("status", ""), ("-r 0", "x = 3\n"), ("", "%%time\nx = 4\n")]
    assert shell.user_ns["x"] == 2


def test_auto_off_leaves_plain_cells_here_and_still_knows_local(shell: Shell) -> None:
    shell.auto.on = False
    shell.typed("x = 1")
    shell.typed("%%local\ny = x + 1")
    assert shell.user_ns["y"] == 2
    assert shell.went == []


def test_history_is_what_was_typed(shell: Shell) -> None:
    shell.typed("x = 1")
    shell.typed("%%local\nx = 2")
    assert shell.history_manager is not None
    assert shell.history_manager.input_hist_raw[-2:] == ["x = 1", "%%local\nx = 2"]


@pytest.mark.parametrize(
    "cell", ["for i in range(3):", "x = (1,", "x = 1", "def f():\n    return 1", "x = = 1", "%%local\nx = 1", "'''a"]
)
def test_completeness_is_what_it_would_be_without_us(shell: Shell, cell: str) -> None:
    ours = shell.check_complete(cell)
    shell.auto.remove()
    assert ours == shell.check_complete(cell)


def test_a_local_cell_is_as_any_cell(shell: Shell) -> None:
    assert shell.typed("%%local\n1 + 1").result == 2
    assert shell.typed("%%local\n\n    y = 3\n    y").result == 3
    assert shell.typed("%%local\nimport asyncio\nawait asyncio.sleep(0, 7)").result == 7
    assert shell.typed("%%local\n\n%%capture text\nprint('in')").success
    assert str(shell.user_ns["text"]) == "in\n"
    assert shell.typed("%%local").success
    assert shell.typed("# why\n%%local  # here\ny").result == 3


def test_lines_of_a_local_cell_keep_their_numbers(shell: Shell) -> None:
    error = shell.typed("# why\n%%local\n\nx = 1\n1 / 0").error_in_exec
    assert error.__traceback__.tb_next.tb_lineno == 5


def test_something_behind_local_is_refused(shell: Shell) -> None:
    shell.register_magics(DistributedMagics(shell, shell.auto, Hints(shell, shell.auto)))
    for cell in ("%%local -r 0\nz = 1", "# why\n%%local z = 1\nz = 2"):
        assert "takes no arguments" in str(shell.typed(cell).error_in_exec)
    assert "z" not in shell.user_ns
    shell.run_cell_magic("local", "# here", "z = 1")
    assert shell.user_ns["z"] == 1


@pytest.mark.parametrize("history", [True, False])
def test_what_running_code_runs_stays_here(shell: Shell, history: bool, tmp_path: Any) -> None:
    inner = f"%%local\nget_ipython().run_cell('inner = 1', store_history={history})"
    shell.typed(inner)
    file = tmp_path / "file.ipy"
    file.write_text("from_file = 2\n")
    shell.typed(f"%%local\n%run {file}")
    shell.typed("%%local\n%timeit -n1 -r1 timed = 1")
    shell.typed("%%local\n%time timed = 3")
    assert (shell.user_ns["inner"], shell.user_ns["from_file"], shell.user_ns["timed"]) == (1, 2, 3)
    assert shell.went == []
    shell.typed("x = 1")
    assert shell.went == [("", "x = 1\n")]


def test_what_programs_run_stays_here(shell: Shell) -> None:
    shell.run_cell("quiet = 1", silent=True, store_history=True)
    shell.run_cell("startup = 1")
    shell.run_cell("get_ipython().run_cell('inner = 1', store_history=True)")
    assert {"quiet", "startup", "inner"} <= set(shell.user_ns)
    assert shell.went == []


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell", "post_execute", "post_run_cell"])
def test_what_hooks_run_stays_here(shell: Shell, event: str) -> None:
    def hook(*_: Any) -> None:
        shell.events.unregister(event, hook)
        shell.run_cell("hooked = 1", store_history=True)

    shell.events.register(event, hook)
    shell.typed("x = 1")
    assert shell.user_ns["hooked"] == 1
    assert shell.went == [("", "x = 1\n")]


def test_a_kernel_asks_for_a_person_if_it_is_loud_and_remembers(shell: Shell) -> None:
    class Kernel:
        async def do_execute(self, code: str, silent: bool, store_history: bool = True, **_: Any) -> Any:
            # As ipykernel: the cell is transformed twice.
            shell.transform_cell(code)
            return InteractiveShell.run_cell(shell, code, store_history=store_history, silent=silent)

    shell.auto.remove()
    kernel = shell.kernel = Kernel()
    shell.auto = followed(shell)
    for silent, store_history in ((True, True), (True, False), (False, False)):
        asyncio.run(kernel.do_execute("x = 1", silent, store_history, user_expressions={}))
    assert shell.went == []
    asyncio.run(kernel.do_execute("x = 1", False, cell_id="c"))
    assert shell.went == [("", "x = 1\n")]
    shell.auto.remove()
    assert vars(kernel) == {}


def test_a_cell_runs_also_if_it_cannot_be_noted_whose_it_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Kernel:
        async def do_execute(self, code: str, silent: bool, *_: Any) -> str:
            return f"done {code} {silent}"

    def asking(**_: Any) -> None:
        raise OSError("on purpose")

    shell.auto.remove()
    kernel = shell.kernel = Kernel()
    shell.auto = followed(shell)
    monkeypatch.setattr(routing, "_asking", asking)
    assert asyncio.run(kernel.do_execute("x = 1", False)) == "done x = 1 False"
    assert "nbcomm: whose cell it is could not be noted: OSError: on purpose." in capsys.readouterr().err


def test_whom_somebody_has_wrapped_before_us_stays_wrapped(shell: Shell) -> None:
    shell.auto.remove()
    shell.run_cell = theirs = functools.partial(shell.run_cell)
    shell.auto = followed(shell)
    shell.typed("x = 1")
    assert shell.went == [("", "x = 1\n")]
    shell.auto.remove()
    assert shell.run_cell is theirs
    del shell.run_cell


def test_whom_somebody_else_wraps_we_leave_wrapped(shell: Shell) -> None:
    ours = shell.run_cell
    shell.run_cell = theirs = functools.partial(ours)
    shell.auto.remove()
    assert shell.run_cell is theirs
    shell.typed("x = 1")
    assert shell.user_ns["x"] == 1
    del shell.run_cell
