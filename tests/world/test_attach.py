"""The notebook may die: its world waits for the next kernel, with its variables and the cell that runs on it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from .notebook import Notebook

Open = Callable[..., Notebook]

MAKE = "%%distributed\nkept, pair = rank * 10, new_group([0, 1])\nprint('made')"
KEPT = "%%distributed\n(kept == rank * 10, all_reduce(1), all_reduce(1, group=pair) if rank < 2 else 2)"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A place for this test's worlds alone, with a short path as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield directory


@pytest.fixture
def notebook(open_notebook: Open, elsewhere: str) -> Notebook:
    return open_notebook("%distributed start -n 3 --grace 60", MAKE, TMPDIR=elsewhere)


def _begin_again(notebook: Notebook) -> None:
    """What a person does after the kernel is back."""
    assert "of an earlier kernel live on" in notebook.run("%load_ext nbcomm").text


def _kill(notebook: Notebook) -> None:
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()


def test_a_restarted_kernel_finds_its_world(notebook: Notebook) -> None:
    notebook.restart()
    _begin_again(notebook)
    cell = notebook.run("%distributed attach")
    assert "Attached to 3 ranks on cpu, gloo." in cell.text
    assert "made" not in cell.text, "the cell had ended, and been seen"
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
    notebook.run("%distributed stop")


def test_a_killed_kernel_finds_its_world_and_the_cell_that_runs_with_all_its_output(notebook: Notebook) -> None:
    cell = notebook.submit(
        "%%distributed\nimport time\nfor i in range(60):\n  print(i, flush=True); time.sleep(0.1)\nall_reduce(1)"
    )
    notebook.until(lambda: "\n5\n" in cell.text.replace("[0-2] ", "\n"), 20, "it does not run", cell)
    _kill(notebook)
    _begin_again(notebook)
    shown = notebook.run("%distributed attach", timeout=30)
    lines = shown.text[shown.text.index("[0-2] 0\n") :].splitlines()
    assert lines == [f"[0-2] {i}" for i in range(60)] + ["[0-2] 3"]
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"


def test_a_cell_that_ended_unseen_is_shown_with_its_error(notebook: Notebook) -> None:
    cell = notebook.submit("%%distributed\nimport time\nprint('on', flush=True); time.sleep(2)\nif rank == 1: 1 / 0")
    notebook.until(lambda: "on" in cell.text, 20, "it does not run", cell)
    _kill(notebook)
    time.sleep(3)  # the cell ends while there is no notebook
    notebook.run("%load_ext nbcomm")
    shown = notebook.run("%distributed attach", fails=True)
    assert "[0-2] on" in shown.text
    assert "[1] ZeroDivisionError" in shown.error_text
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"


def test_what_hangs_or_runs_on_is_ended_by_the_next_notebook(notebook: Notebook) -> None:
    cell = notebook.submit("%%distributed\nprint('on', flush=True)\nif rank: barrier()")
    notebook.until(lambda: "on" in cell.text, 20, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm")
    assert "Error" in notebook.run("%distributed attach", timeout=30, fails=True).error_text
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
    cell = notebook.submit("%%distributed\nimport time\nprint('on', flush=True); time.sleep(60)")
    notebook.until(lambda: "on" in cell.text, 20, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm")
    notebook.interrupted("%distributed attach", once="[0-2] on")
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"


def test_a_rank_that_died_meanwhile_is_named_and_healed(notebook: Notebook) -> None:
    pid = int(notebook.run("%%distributed -r 1\nimport os\nos.getpid()").text.removeprefix("[1] "))
    _kill(notebook)
    os.kill(pid, signal.SIGKILL)
    notebook.run("%load_ext nbcomm")
    notebook.run("%distributed attach")
    assert "Rank 1 was killed by SIGKILL" in notebook.run("%%distributed\n1", fails=True).error_text
    assert "Rank 1 is back" in notebook.run("%distributed heal").text
    assert notebook.run("%%distributed\n(all_reduce(1), globals().get('kept'))").lines == [
        "[0] (3, 0)",
        "[1] (3, None)",
        "[2] (3, 20)",
    ]


def test_two_notebooks_never_share_a_world(notebook: Notebook, open_notebook: Open, elsewhere: str) -> None:
    where = notebook.run("from nbcomm.notebook import worlds\nprint(worlds.current().home.id)").text.strip()
    other = open_notebook(TMPDIR=elsewhere)
    assert "No world without a notebook lives" in other.run("%distributed attach", fails=True).error_text
    refused = other.run(f"%distributed attach {where}", fails=True).error_text
    assert f"in use by the notebook of process {notebook.pid}" in refused
    other.run("%distributed start -n 2")
    assert "steers a world of 2 ranks" in other.run("%distributed attach", fails=True).error_text
    assert other.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"


def test_of_two_that_attach_at_once_the_loser_touches_nothing(
    notebook: Notebook, open_notebook: Open, elsewhere: str
) -> None:
    other = open_notebook(TMPDIR=elsewhere)
    # Both have found it free; then the first one claims it.
    other.run("from nbcomm.launch.found import find_worlds\nfrom nbcomm.notebook import worlds\nw, = find_worlds()")
    refused = other.run("worlds._take_up(w, '')", fails=True)
    assert refused.error_text == f"StateError: This world is in use by the notebook of process {notebook.pid}."
    began = time.monotonic()
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
    notebook.run("%%distributed -r 2\nimport os\nos.kill(os.getpid(), 9)", fails=True)
    assert "Rank 2 is back" in notebook.run("%distributed heal").text
    notebook.run(MAKE)
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
    assert time.monotonic() - began < 20, "the new rank has looked for the notebook where it is not"
    notebook.run("%distributed stop")
    assert "No world" in other.run("%distributed attach", fails=True).error_text


def test_of_several_worlds_one_must_be_named(open_notebook: Open, elsewhere: str) -> None:
    cells = "%distributed start -n 2 --grace 60", "%%distributed\nkept = 1"
    first, second = (open_notebook(*cells, TMPDIR=elsewhere) for _ in range(2))
    for one in (first, second):
        os.kill(one.pid, signal.SIGKILL)
        one.begin_again()
    first.run("%load_ext nbcomm")
    refused = first.run("%distributed attach", fails=True).error_text
    assert "There are 2 worlds to choose from" in refused
    names = [line.split(":")[0].strip() for line in refused.splitlines() if "2 ranks on cpu" in line]
    assert "No world 'nonsense' lives" in first.run("%distributed attach nonsense", fails=True).error_text
    second.run("%load_ext nbcomm")
    for one, name in zip((first, second), names, strict=True):
        one.run(f"%distributed attach {name}")
        assert one.run("%%distributed\nkept").text == "[0-1] 1\n"
        one.run("%distributed stop")


def test_a_killed_controller_and_a_killed_fork_server_are_named_and_replaced(notebook: Notebook) -> None:
    notebook.run("import os, time\nfrom nbcomm.notebook import worlds\ns = worlds.current()\np = s._processes")
    for kill, said in (
        ("p.forkserver.pids['controller']", "controller was killed by SIGKILL"),
        ("p.forkserver.pid", "The fork server"),
    ):
        notebook.run(f"os.kill({kill}, 9)\nwhile not s.troubles: time.sleep(0.01)")
        assert said in notebook.run("%distributed").text
        assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n", "cells run on"
        assert "back after" in notebook.run("%distributed heal").text
        notebook.run("%%distributed -r 2\nimport os\nos.kill(os.getpid(), 9)", fails=True)
        assert "Rank 2 is back" in notebook.run("%distributed heal").text
        notebook.run(MAKE)
        assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
    notebook.run("%distributed stop")


def test_an_attach_that_is_interrupted_before_the_cell_is_shown_leaves_it_running(notebook: Notebook) -> None:
    cell = notebook.submit("%%distributed\nimport time\nprint('on', flush=True); time.sleep(60)")
    notebook.until(lambda: "on" in cell.text, 20, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm\nfrom nbcomm.notebook import worlds\nworlds.use(worlds.attach())")
    assert "still runs an earlier cell" in notebook.run("%%distributed\n1", fails=True).error_text
    notebook.run("%distributed interrupt\ns = worlds.current()\nwhile s.busy: s._roster.wait(0.01)")
    assert notebook.run(KEPT).text == "[0-2] (True, 3, 2)\n"
