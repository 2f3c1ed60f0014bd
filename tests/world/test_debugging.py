"""IPython's debugger on ranks, in the notebook's input box."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nbcomm.rank_spec import parse

from .notebook import Notebook, transcript

pytestmark = pytest.mark.story  # it begins before any cell has failed

WORKS = "%%distributed\nall_reduce(1)"


@pytest.fixture(autouse=True)
def _leave_no_cell_behind(four: Notebook) -> Iterator[None]:
    """A test that fails at a box leaves the kernel to the next one."""
    yield
    four.end_all()


def play(notebook: Notebook, code: str, shown: str) -> None:
    """Run a cell, type what the transcript has behind its prompts, and see all that it has."""
    cell = notebook.play(code, shown)
    assert cell.error is None, cell.error_text
    assert transcript(cell) == shown


def test_nothing_to_debug_is_said_in_a_sentence(four: Notebook) -> None:
    shown = "[0] There is nothing to debug here: no cell has failed on this rank.\n"
    assert four.run("%distributed debug 0").text == shown
    assert "[0-3] There is nothing to debug" in four.run("%%distributed\n%debug").text
    assert "7" in four.run("%distributed debug 7", fails=True).error_text


def test_what_python_runs_as_the_debugger_begins_is_no_place_to_stop(four: Notebook) -> None:
    four.run(
        """\
%%distributed -r 0
import bdb
plain = bdb.Bdb.set_trace
def finalizer(): pass
def and_a_finalizer(self, *args, **kwargs):
    plain(self, *args, **kwargs)
    finalizer()
bdb.Bdb.set_trace = and_a_finalizer"""
    )
    try:
        play(
            four,
            "%%distributed -r 0\nbreakpoint()\nprint('on')",
            """\
[0] > <cell>(2)<module>()
[0]       1
[0] ----> 2 breakpoint()
[0]       3 print('on')
[0]
[0] ipdb> c
[0] on
""",
        )
    finally:
        four.run("%%distributed -r 0\nbdb.Bdb.set_trace = plain\ndel plain")


def test_steps_lead_through_the_statements_of_a_cell_and_no_further(four: Notebook) -> None:
    play(
        four,
        "%%distributed\nx = rank\nif rank == 1:\n    breakpoint()\ny = all_reduce(x)\nx + y if rank == 1 else None",
        """\
[1] > <cell>(4)<module>()
[1]       2 x = rank
[1]       3 if rank == 1:
[1] ----> 4     breakpoint()
[1]       5 y = all_reduce(x)
[1]       6 x + y if rank == 1 else None
[1]
[1] ipdb> p x
[1] 1
[1] ipdb> x = 11
[1] ipdb> n
[1] > <cell>(5)<module>()
[1]       2 x = rank
[1]       3 if rank == 1:
[1]       4     breakpoint()
[1] ----> 5 y = all_reduce(x)
[1]       6 x + y if rank == 1 else None
[1]
[1] ipdb> n
[1] > <cell>(6)<module>()
[1]       2 x = rank
[1]       3 if rank == 1:
[1]       4     breakpoint()
[1]       5 y = all_reduce(x)
[1] ----> 6 x + y if rank == 1 else None
[1]
[1] ipdb> n
[1] 27
""",
    )
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_steps_follow_an_awaiting_cell(four: Notebook) -> None:
    where = "[1] > <cell>({line})<module>()\n"
    cell = four.submit("%%distributed -r 1\nimport asyncio\nbreakpoint()\nawait asyncio.sleep(0.01)\nx = 1\nx + 1")
    for line in (3, 4, 5, 6):
        box = four.box(cell)
        four.until(lambda line=line: where.format(line=line) in transcript(cell), 60, f"not at line {line}", cell)
        four.type(cell, box, "s" if line == 4 else "n")
    assert four.finish(cell).lines[-1] == "[1] 2"


def test_several_ranks_are_debugged_one_after_the_other(four: Notebook) -> None:
    with four.in_order():
        cell = four.submit("%%distributed\nimport pdb\nbarrier()\npdb.set_trace()\ny = all_reduce(1)\ny")
        for rank in range(4):
            four.answer(cell, f"[{rank}] ipdb> ", "p rank")
            four.answer(cell, f"[{rank}] ipdb> ", "c")
        four.finish(cell)
    where = re.findall(r"^\[([0-9,-]+)\] .*----> 4", cell.text, re.MULTILINE)
    stopped = [rank for ranks in where for rank in parse(ranks, 4)]
    assert sorted(stopped) == [0, 1, 2, 3], "where those have stopped that ask at the same time is shown once"
    assert cell.lines[-1] == "[0-3] 4"


def test_others_wait_for_the_rank_that_is_debugged_and_are_freed_when_it_quits(four: Notebook) -> None:
    cell = four.submit("%%distributed\nif rank == 1:\n    breakpoint()\nall_reduce(1)")
    box = four.box(cell)
    four.until(
        lambda: "waiting for rank 1, at line 3 in the debugger: breakpoint()" in cell.text,
        20,
        "the others do not say for whom they wait:",
        cell,
    )
    assert not cell.idle, "and none of them is hopeless"
    four.type(cell, box, "q")
    error = four.finish(cell).error_text
    assert "[1]\nBdbQuit: The command q ended the debugger, and the cell with it." in error
    assert "[0,2-3]\nHangError: all_reduce #" in error
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_collectives_typed_at_the_prompt_are_judged(four: Notebook) -> None:
    cell = four.submit("%%distributed\nif rank == 1: breakpoint()\nelse: all_reduce(5)")
    four.answer(cell, "[1] ipdb> ", "p all_reduce(torch.ones(3))")
    error = four.finish(cell).error_text
    assert "MismatchError" in error
    four.forget_boxes()  # it may have asked once more before it was told
    cell = four.submit("%%distributed\nif rank == 1: breakpoint()\nelse: total = all_reduce(5)")
    four.answer(cell, "[1] ipdb> ", "total = all_reduce(6)")
    four.answer(cell, "[1] ipdb> ", "c")
    assert four.finish(cell).error_text == ""
    assert four.run("%%distributed\ntotal").text == "[0-3] 21\n"
    cell = four.submit("%%distributed\nif rank == 1: breakpoint()")
    four.answer(cell, "[1] ipdb> ", "barrier()")
    assert "can never complete:\n  rank 1 waits in it" in four.finish(cell).error_text
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_an_interrupt_ends_the_cell_at_the_prompt_and_in_what_was_typed_there(four: Notebook) -> None:
    goes_on = "    breakpoint()\n    print('on')\n    time.sleep(60)\n"
    for typed in (None, "import time; print('on', flush=True); time.sleep(60)", "c"):
        cell = four.submit(f"%%distributed\nimport time\nif rank == 1:\n{goes_on}barrier()")
        box = four.box(cell)
        if typed is not None:
            four.type(cell, box, typed)
            four.until(lambda cell=cell: "[1] on" in cell.lines, 60, "it does not go on", cell)
        four.interrupt()
        four.finish(cell, 50)
        assert cell.error is not None
        assert cell.error["ename"] == "KeyboardInterrupt", typed
        assert four.run(WORKS).text == "[0-3] 4\n"


def test_torchs_own_breakpoint_works_and_can_be_interrupted(four: Notebook) -> None:
    cell = four.submit("%%distributed\ndist.breakpoint(1)\nall_reduce(1)")
    four.answer(cell, "[1] ipdb> ", "up")
    four.answer(cell, "[1] ipdb> ", "c")
    assert four.finish(cell).lines[-1] == "[0-3] 4"
    cell = four.submit("%%distributed\ndist.breakpoint(1)")
    four.box(cell)
    four.interrupt()
    four.finish(cell, 50)
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_a_failed_cell_can_be_looked_at_afterwards(four: Notebook) -> None:
    code = "def half(a):\n    b = a - 1\n    return 1 / b\nhalf(rank)"
    assert "[1] ZeroDivisionError" in four.run(f"%%distributed\n{code}", fails=True).error_text
    play(
        four,
        "%distributed debug 1",
        """\
[1] > <cell>(4)half()
[1]       1
[1]       2 def half(a):
[1]       3     b = a - 1
[1] ----> 4     return 1 / b
[1]       5 half(rank)
[1]
[1] ipdb> p a, b
[1] (1, 0)
[1] ipdb> up
[1] > <cell>(5)<module>()
[1]       1
[1]       2 def half(a):
[1]       3     b = a - 1
[1]       4     return 1 / b
[1] ----> 5 half(rank)
[1]
[1] ipdb> q
""",
    )
    cell = four.submit("%distributed debug 1")
    four.answer(cell, "[1] ipdb> ", "\x04")
    assert four.finish(cell).error is None
    cell = four.submit("%distributed debug 1")
    four.box(cell)
    four.interrupt()
    assert "KeyboardInterrupt" in four.finish(cell, 50).error_text


def test_pdb_on_opens_it_where_a_cell_fails(four: Notebook) -> None:
    four.run("%%distributed\n%pdb on")
    for leave in ("q", None):
        cell = four.submit("%%distributed\nprint('before')\n1 / (rank - 2)")
        four.answer(cell, "[2] ipdb> ", "p rank")
        happened = "[2] ZeroDivisionError: division by zero"
        four.until(lambda cell=cell, what=happened: what in transcript(cell), 60, "what has happened is not told", cell)
        box = four.box(cell)
        if leave is None:
            four.interrupt()
        else:
            four.type(cell, box, leave)
        assert "[2] ZeroDivisionError" in four.finish(cell, 50).error_text
    hang = four.run("%%distributed\nif rank: barrier()", fails=True)
    assert "HangError" in hang.error_text, "it is not opened for what has ended the cell everywhere"
    four.run("%%distributed\n%pdb off")
    assert four.run(WORKS).text == "[0-3] 4\n"


def test_breakpoints_stay_from_cell_to_cell(four: Notebook) -> None:
    cell = four.submit("%%distributed -r 0\ndef twice(a):\n    return 2 * a\nbreakpoint()\ntwice(3)")
    for typed in ("b twice", "c", "p a", "c"):
        four.answer(cell, "[0] ipdb> ", typed)
    assert "[0] 3" in four.finish(cell).lines
    cell = four.submit("%%distributed -r 0\ntwice(4)")
    for typed in ("p a", "cl 1", "c"):
        four.answer(cell, "[0] ipdb> ", typed)
    assert four.finish(cell).lines[-1] == "[0] 8"
    assert four.run(WORKS).text == "[0-3] 4\n"
