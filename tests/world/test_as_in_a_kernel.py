"""What IPython does with a cell, ranks do: each case runs in the notebook's own kernel and on a rank, side by side."""

from __future__ import annotations

import re

import pytest

from .notebook import Cell, Notebook

SAME = {
    "one-line magics without %": ["pwd", "env X_OF_A_TEST=5", "import os; os.environ.pop('X_OF_A_TEST')", "ls -d /usr"],
    "their own help": ["alias_magic spelled pwd", "spelled"],
    "autocall": [",print a b", ";print a b", "/print 1"],
    "a user's syntax": [
        (
            "def swap(lines): return [line.replace('<<<', '=') for line in lines]\n"
            "get_ipython().input_transformers_cleanup.append(swap)"
        ),
        "x <<< 5\ny <<< 6\nx, y",
        "get_ipython().input_transformers_cleanup.remove(swap)",
        "x <<< 5",
    ],
    "a user's syntax for the tree": [
        (
            "import ast\nclass Doubled(ast.NodeTransformer):\n"
            "    def visit_Constant(self, node): return ast.Constant(node.value * 2)\n"
            "doubled = Doubled()\nget_ipython().ast_transformers.append(doubled)"
        ),
        "21",
        "get_ipython().ast_transformers.remove(doubled)",
    ],
    "no syntax": ["x = = 1", "def f(:", "for", "  x = 1\n y = 2", "return 1", "print('unfinished", "'\\d'"],
    "another showtraceback": [
        "def mine(*_, **__): print('mine')\nget_ipython().showtraceback = mine",
        "1 / 0",
        "del get_ipython().showtraceback",
        "1 / 0",
    ],
    "as rich does it": [
        (
            "ip = get_ipython()\nplain = ip.showtraceback\n"
            "ip.showtraceback = lambda *args, **more: (print('rich'), plain(*args, **more))"
        ),
        "1 / 0",
        "[][1]",
        "del ip.showtraceback\n1 / 0",
    ],
    "a user's exceptions": [
        (
            "def handle(self, kind, value, tb, tb_offset=None): print('handled', value)\n"
            "get_ipython().set_custom_exc((ZeroDivisionError,), handle)"
        ),
        "1 / 0",
        "get_ipython().set_custom_exc((), None)",
        "1 / 0",
    ],
    "another display hook": [
        "trap = get_ipython().display_trap\nbefore, trap.hook = trap.hook, lambda value: print('hook', value)\nNone;",
        "5",
        "6",
        "trap.hook = before",
        "7",
    ],
    "another sys.displayhook": ["import sys\nsys.displayhook = lambda value: print('for one cell', value)\n8", "9"],
    "the module of cells": [
        "' '.join(sorted(name for name in globals() if name.startswith('__')))",
        "import sys\nmain = sys.modules['__main__']\nprint(main.__doc__, main.__spec__, vars(main) is globals())",
    ],
    "a magic that fails": ["%prun -q 1 / 0", "%run /no/such/file.py"],
    "cells in a cell": [
        "get_ipython().run_cell('1 + 1').success",
        "1 + 1",
    ],
    "how errors are told": ["%xmode Minimal", "1 / 0", "%xmode Context"],
}
"""Cells one after the other; the last leaves IPython as it was."""

FAILING = re.compile(r"\n*CellError: 4 of 4 ranks failed.*", re.DOTALL)


def told(cell: Cell) -> tuple[list[str], list[str]]:
    """What a cell shows and what it says of its error, without who says it, and which cell it is."""
    error = FAILING.sub("", cell.error_text.replace("[0-3]\n", "")) if cell.error else ""
    shown = [line.removeprefix("[0-3] ") for line in cell.text.splitlines()]
    return [_without_numbers(line) for line in shown], [_without_numbers(line) for line in error.strip().splitlines()]


def _without_numbers(line: str) -> str:
    line = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
    return re.sub(r"In\[\d+\]|<ipython-input-\S+>|\(\d+\.py", "In[n]", line)


@pytest.mark.parametrize("what", SAME)
def test_it_is_as_in_the_notebooks_own_kernel(four: Notebook, what: str) -> None:
    here = [told(four.finish(four.submit(cell))) for cell in SAME[what]]
    four.run("%distributed auto on")  # both count lines from the same one
    try:
        there = [told(four.finish(four.submit(cell))) for cell in SAME[what]]
    finally:
        four.run("%distributed auto off")
    for cell, shown, expected in zip(SAME[what], there, here, strict=True):
        assert shown[0] == expected[0], cell
        assert shown[1] == expected[1] or (not expected[1] and len(shown[1]) == 1), cell  # shown by the user's own code


def test_a_syntax_that_one_rank_alone_has_is_no_syntax_error_of_all(four: Notebook) -> None:
    four.run(
        "%%distributed -r 1\ndef swap(lines): return [line.replace('<<<', '=') for line in lines]\n"
        "get_ipython().input_transformers_cleanup.append(swap)"
    )
    cell = four.run("%%distributed\nmade <<< 5", fails=True)
    assert "3 of 4 ranks failed: [0,2-3] CellSyntaxError" in cell.error_text
    assert four.run("%%distributed -r 1\nmade\n").text == "[1] 5\n"
    four.run("%%distributed -r 1\nget_ipython().input_transformers_cleanup.remove(swap)")


def test_a_transformer_that_fails_is_the_cells_error(four: Notebook) -> None:
    four.run(
        "%%distributed\ndef fails(lines):\n    if 'bad' in lines[0]: raise ValueError('not this')\n    return lines\n"
        "get_ipython().input_transformers_post.append(fails)"
    )
    cell = four.run("%%distributed\nbad = 1", fails=True)
    assert "4 of 4 ranks failed: [0-3] ValueError" in cell.error_text
    assert "in fails(lines)" in cell.error_text
    assert "InternalError" not in cell.error_text
    assert four.run("%%distributed\nget_ipython().input_transformers_post.remove(fails)\n5").text == "[0-3] 5\n"


def test_what_a_users_showtraceback_shows_is_shown_below_the_error_of_all(four: Notebook) -> None:
    four.run(
        "%%distributed\nget_ipython()._showtraceback = lambda kind, value, lines: print('mine:', kind.__name__, value)"
    )
    cell = four.run("%%distributed\n1 / 0", fails=True)
    assert cell.text == "[0-3] mine: ZeroDivisionError division by zero\n"
    assert "4 of 4 ranks failed: [0-3] ZeroDivisionError" in cell.error_text
    four.run("%%distributed\ndel get_ipython()._showtraceback")


def test_del_of_what_was_never_set_is_pythons_own_error(four: Notebook) -> None:
    error = four.run("%%distributed\ndel get_ipython().showtraceback", fails=True).error_text
    assert "has no attribute 'showtraceback'" in error
    assert "In[" in error, "its own line is shown"
    assert four.run("%%distributed\n1").text == "[0-3] 1\n"


def test_what_is_stored_is_each_ranks_own(four: Notebook) -> None:
    for _ in range(3):
        four.run("%%distributed\nstored = rank * 10\n%store stored")
        four.run("%%distributed\ndel stored\n%store -r stored")
        assert four.run("%%distributed\nstored").lines == [f"[{rank}] {rank * 10}" for rank in range(4)]
        four.run("%%distributed\n%store -z")


def test_a_cache_of_compiled_cells_is_each_ranks_own(four: Notebook) -> None:
    # Where %%cython writes a library under the name of its code, and loads it: half a file if another rank writes it.
    cell = four.run("%%distributed\nfrom IPython.paths import get_ipython_cache_dir\nget_ipython_cache_dir()")
    places = [line.split(maxsplit=1)[1] for line in cell.lines]
    assert [place.rsplit("/", 1)[1] for place in places] == ["rank0'", "rank1'", "rank2'", "rank3'"]


INSTALLS = """%%distributed
import time
from pathlib import Path
log = Path("installs")
barrier()

def install(command):
    with log.open("a", buffering=1) as told:
        told.write(f"{rank} begins\\n")
        {waits}
        told.write(f"{rank} ends\\n")

shell = get_ipython()
shell.system = install
try:
    %pip install something
finally:
    del shell.system
"""


def test_ranks_of_a_machine_install_one_after_the_other(four: Notebook) -> None:
    four.run(INSTALLS.replace("{waits}", "time.sleep(0.05)"))
    told = four.run("%%distributed -r 0\nprint(log.read_text(), end='')\nlog.unlink()")
    events = [line.split()[1:] for line in told.lines]
    assert [event[1] for event in events] == ["begins", "ends"] * 4
    assert [event[0] for event in events[::2]] == [event[0] for event in events[1::2]]
    assert {event[0] for event in events} == set("0123")


def test_an_interrupt_ends_ranks_that_wait_for_their_turn_to_install(four: Notebook) -> None:
    four.interrupted(INSTALLS.replace("{waits}", "print('installs'); time.sleep(60)"), once="installs")
    # The next one may have its turn a moment before it hears of the interrupt, too.
    assert "ends" not in four.run("%%distributed -r 0\nprint(log.read_text())\nlog.unlink()").text


STRAY = """\
%%distributed
import asyncio, signal, sys
try:
    import nest_asyncio2 as nest
except ImportError:  # an older ipykernel
    import nest_asyncio as nest
kept, loop = 10 * rank, asyncio.get_running_loop()
def alarm(*_):
    raise TimeoutError("the alarm")
signal.signal(signal.SIGALRM, alarm)
async def leave(error):
    await asyncio.sleep(0.1)
    raise error
"""


@pytest.mark.parametrize(
    ("code", "fails", "late"),
    [
        ("loop.stop()", "", ""),
        ("_ = signal.setitimer(signal.ITIMER_REAL, 0.2)", "", "TimeoutError: the alarm"),
        ("_ = signal.setitimer(signal.ITIMER_REAL, 0.2); await asyncio.sleep(30)", "TimeoutError: the alarm", ""),
        ("task = asyncio.ensure_future(leave(SystemExit(3)))", "", "SystemExit: 3"),
        ("task = asyncio.ensure_future(leave(KeyboardInterrupt())); await asyncio.sleep(30)", "KeyboardInterrupt", ""),
        ("_ = loop.call_later(0.1, sys.exit, 4)", "", "SystemExit: 4"),
        ("_ = loop.call_later(0.1, sys.exit, 4); await asyncio.sleep(30)", "SystemExit: 4", ""),
        ("nest.apply()\nfor _ in range(20): asyncio.run(asyncio.sleep(0.01))", "", ""),
    ],
)
def test_what_leaves_the_event_loop_does_not_end_the_rank(four: Notebook, code: str, fails: str, late: str) -> None:
    four.run(STRAY)
    cell = four.run(f"%%distributed\n{code}", fails=bool(fails))
    assert fails in cell.error_text
    if late:
        four.until(lambda: cell.text.count(late) == 4, 30, "the late error was not shown", cell)
        assert f"[0] (late) {late}" in cell.text
    assert four.run("%%distributed\n(await asyncio.sleep(0.01, kept)) // 10, all_reduce(1)").lines[-1] == "[3] (3, 4)"
    if not late and not fails:
        assert "Traceback" not in cell.text


def test_a_fault_beside_what_leaves_the_event_loop_ends_no_rank(four: Notebook) -> None:
    spoil = (
        "from nbcomm.rank.cells.runner import CellRunner\nplain = CellRunner.fail\n"
        "def fail(*_):\n    CellRunner.fail = plain\n    raise OSError('spoiled')\nCellRunner.fail = fail"
    )
    four.run(f"{STRAY}exec({spoil!r}, {{}})")
    four.run("%%distributed\nimport time\n_ = loop.call_later(0.1, sys.exit, 4); await asyncio.sleep(0.3)")
    assert four.run("%%distributed\nkept // 10, all_reduce(1)").lines[-1] == "[3] (3, 4)"
