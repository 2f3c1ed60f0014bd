"""What is loaded into a shell is there once, and gone afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbcomm
from nbcomm.node.seed import client
from nbcomm.notebook.shell import extension


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell, which is gone afterwards: other tests are about a Python without one. No seed warms up."""
    monkeypatch.setattr(client, "hold", lambda: None)
    yield InteractiveShell.instance()
    extension.unload()
    InteractiveShell.clear_instance()


def parts(shell: Any) -> list[Any]:
    """All of a shell that an extension may change."""
    magics = shell.magics_manager.magics
    return [
        list(shell.input_transformers_cleanup),
        {event: list(found) for event, found in shell.events.callbacks.items()},
        list(shell.Completer.custom_matchers),
        [name in magics[kind] for kind in ("line", "cell") for name in ("distributed", "local")],
        "run_cell" in vars(shell),
    ]


def test_loaded_twice_it_is_there_once_and_unloaded_it_leaves_nothing(shell: InteractiveShell) -> None:
    before = parts(shell)
    loaded = extension.load(shell)
    once = parts(shell)
    assert once != before
    assert extension.load(shell) is loaded
    assert parts(shell) == once
    extension.unload()
    assert parts(shell) == before
    extension.unload()


def test_cells_that_say_nothing_go_to_the_ranks_while_it_is_loaded_and_on(shell: InteractiveShell) -> None:
    assert not extension.distributes_cells()
    extension.load(shell)
    shell.run_line_magic("distributed", "auto on")
    assert extension.distributes_cells()
    extension.unload()
    assert not extension.distributes_cells()


def test_another_shell_takes_it_over(shell: InteractiveShell) -> None:
    before = parts(shell)
    extension.load(shell)
    other = InteractiveShell()
    assert extension.load(other).shell is other
    assert parts(shell)[1] == before[1]


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_it_is_loaded_and_then_it_is_as_before(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, collects: bool
) -> None:
    def fail(_: object) -> None:
        assert not gc.isenabled()
        raise OSError("on purpose")

    monkeypatch.setattr(client, "hold", lambda: None)
    monkeypatch.setattr(extension, "load", fail)
    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(OSError, match="on purpose"):
            nbcomm.load_ipython_extension(shell)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.ranks
def test_what_only_a_start_or_some_commands_need_is_imported_by_them() -> None:
    code = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
os.environ["NBCOMM_WARM"] = "0"
InteractiveShell.instance().run_line_magic("load_ext", "nbcomm")
print(*sys.modules)
import nbcomm.launch.nodes, nbcomm.notebook.session.session
print(*sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded, started = (set(line.split()) for line in said.splitlines()[-2:])
    by_commands = {"analysis.perfetto", "launch.launchers.slurm", "notebook.variables.comparison", "pictures"}
    by_commands |= {"notebook.cluster.joining", "scripts.writer"}
    by_a_start = {"analysis", "launch.nodes", "notebook.session.session", "panel", "scripts"}
    assert "nbcomm.notebook.session.registry" in loaded
    assert not loaded & {"tomllib", "tomli", *(f"nbcomm.{name}" for name in by_a_start | by_commands)}
    assert not started & {f"nbcomm.{name}" for name in by_commands}
    assert started >= {f"nbcomm.{name}" for name in by_a_start}
