"""Ranks ask, and a person answers in the notebook's own input box."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .notebook import Notebook

WORKS = "%%distributed\nall_reduce(1)"


@pytest.fixture(autouse=True)
def _leave_no_cell_behind(four: Notebook) -> Iterator[None]:
    """A test that fails at a box leaves the kernel to the next one."""
    yield
    four.end_all()


def test_one_rank_asks_and_tells_the_others(four: Notebook) -> None:
    cell = four.submit("%%distributed\nname = input('Name? ') if rank == 2 else None\nbroadcast(name, 2)")
    four.answer(cell, "[2] Name? ", "Ünï ")
    assert four.finish(cell).lines == ["[2] Name? Ünï ", "[0-3] 'Ünï '"]


def test_all_ranks_ask_in_order_of_rank(four: Notebook) -> None:
    with four.in_order():
        cell = four.submit("%%distributed\nbarrier()\nanswer = input('Name? ')")
        for rank in range(4):
            four.answer(cell, f"[{rank}] Name? ", "" if rank == 1 else f"person {rank}")
        four.finish(cell)
    assert four.run("%%distributed\nanswer").lines == [
        "[0] 'person 0'",
        "[1] ''",
        "[2] 'person 2'",
        "[3] 'person 3'",
    ]


def test_a_password_is_hidden_and_lines_of_stdin_are_asked_for_until_their_end(four: Notebook) -> None:
    cell = four.submit(
        "%%distributed -r 1\nimport getpass, sys\ngetpass.getpass(), sys.stdin.readline(), list(sys.stdin)"
    )
    assert four.answer(cell, "[1] Password: ", "secret").hidden
    assert not four.answer(cell, "[1] ", "line").hidden
    four.answer(cell, "[1] ", "more")
    four.answer(cell, "[1] ", "\x04")
    assert "('secret', 'line\\n', ['more\\n'])" in four.finish(cell).text


def test_the_end_of_the_input_is_an_error_of_the_rank(four: Notebook) -> None:
    cell = four.submit("%%distributed -r 3\ninput('Name? ')")
    four.answer(cell, "[3] Name? ", "\x04")
    assert "EOFError" in four.finish(cell).error_text
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_what_was_printed_before_is_above_the_box_and_others_go_on_below(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = four.submit(f"""\
%%distributed
import pathlib, time
if rank == 2:
    print('Your name', end=':')
    x = input()
else:
    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)
    print('others went on', flush=True)
all_reduce(1)
""")
    box = four.box(cell)
    four.until(lambda: cell.text == "[2] Your name:\n", 60, "what came before is not there:", cell)
    go.touch()
    four.until(lambda: "[0-1,3] others went on" in cell.text, 60, "nothing of the others:", cell)
    four.type(cell, box, "Ann")
    assert four.finish(cell).lines[-1] == "[0-3] 4"


@pytest.mark.parametrize(
    "code",
    [
        "input('Name? ')",
        "if rank == 2: input('Name? ')\nbarrier()",
        "import asyncio\nasync def ask(): input('Name? ')\nawait asyncio.create_task(ask())",
        "while True:\n    try: input('Name? ')\n    except KeyboardInterrupt: pass",
    ],
    ids=["all", "one", "task", "caught"],
)
def test_an_interrupt_at_the_box_ends_the_cell_everywhere(four: Notebook, code: str) -> None:
    cell = four.submit(f"%%distributed\n{code}")
    four.box(cell)
    four.interrupt()
    four.finish(cell)
    assert cell.error is not None
    assert cell.error["ename"] == ("CellError" if "except" in code else "KeyboardInterrupt")
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_an_interrupt_from_the_panel_ends_it_too(four: Notebook) -> None:
    four.run(
        "import threading\nfrom nbcomm.notebook.session import registry\n"
        "def press():\n"
        "    while 'asks' not in registry.current()._dispatcher.input_requests.waiting: pass\n"
        "    registry.current().interrupt()\n"
        "threading.Thread(target=press).start()"
    )
    cell = four.submit("%%distributed\ninput('Name? ') if rank == 3 else barrier()")
    four.finish(cell)
    assert "KeyboardInterrupt" in cell.error_text
    four.forget_boxes()
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_a_verdict_on_others_ends_it_too(four: Notebook) -> None:
    cell = four.submit("%%distributed\nif rank == 0: input('Name? ')\nelif rank == 1: barrier()")
    four.finish(cell)
    assert "can never complete:\n  rank 1 waits in it, in " in cell.error_text
    assert "\n  ranks 2-3 have finished" in cell.error_text
    four.forget_boxes()
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_a_late_answer_is_dropped(four: Notebook) -> None:
    cell = four.submit("%%distributed\nif rank == 0: input('Old? ')\nelif rank == 1: barrier()")
    four.finish(cell)
    four.forget_boxes()
    four.client.input("late")
    cell = four.submit("%%distributed -r 2\ninput('New? ')")
    four.answer(cell, "[2] New? ", "new")
    assert four.finish(cell).lines == ["[2] New? new", "[2] 'new'"]


def test_where_the_front_end_has_no_box_the_rank_is_told(four: Notebook) -> None:
    cell = four.finish(four.submit("%%distributed\ninput('Name? ') if rank == 1 else rank", stdin=False))
    assert (
        "StdinNotImplementedError: Rank 1 asks for input (Name?), but this front end has no input box"
        in cell.error_text
    )
    assert cell.lines == ["[0] 0", "[2] 2", "[3] 3"]
    cell = four.finish(four.submit("%%distributed -r 1\nbreakpoint()", stdin=False))
    assert "Rank 1 asks for input (ipdb>), but this front end has no input box" in cell.error_text


def test_a_thread_may_ask_while_its_cell_runs(four: Notebook) -> None:
    cell = four.submit(
        "%%distributed -r 1\nimport threading\ngot = []\n"
        "thread = threading.Thread(target=lambda: got.append(input('Thread? ')))\nthread.start(); thread.join()\ngot"
    )
    four.answer(cell, "[1] Thread? ", "yes")
    assert four.finish(cell).lines[-1] == "[1] ['yes']"


def test_ipyparallels_own_cells_ask_nobody(four: Notebook) -> None:
    four.run("from nbcomm.notebook.session import registry\nview = registry.current().client[1]")
    failed = four.run("view.execute('input()', block=True)", fails=True)
    assert "StdinNotImplementedError" in failed.error_text, "as it is without us"


def test_a_rank_that_is_killed_while_its_box_is_open_ends_the_cell(four: Notebook) -> None:
    pid = int(four.run("%%distributed -r 1\nimport os\nos.getpid()").text.removeprefix("[1] "))
    cell = four.submit("%%distributed\ninput('Name? ') if rank == 1 else rank")
    four.box(cell)
    os.kill(pid, signal.SIGKILL)
    four.finish(cell)
    assert "Rank 1 was killed by SIGKILL" in cell.error_text
    four.run("%distributed heal")
    assert four.run(WORKS).text == "[0-3] 4\n"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A place for this test's worlds alone, with a short path as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield directory


def test_a_question_outlives_its_notebook_and_is_asked_by_the_next(
    open_notebook: Callable[..., Notebook], elsewhere: str
) -> None:
    notebook = open_notebook("%distributed start -n 2", TMPDIR=elsewhere)
    cell = notebook.submit("%%distributed\nprint('before')\nx = [input('One? '), input('Two? ')] if rank else []\nx")
    notebook.answer(cell, "[1] One? ", "first")
    notebook.box(cell)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()
    notebook.run("%load_ext nbcomm")
    cell = notebook.submit("%distributed attach")
    notebook.answer(cell, "[1] Two? ", "second")
    shown = notebook.finish(cell).text
    assert "[0-1] before" in shown
    assert "[1] ['first', 'second']" in shown
    notebook.run("%distributed stop")
