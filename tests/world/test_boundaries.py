"""Faults of nbcomm's own, put into a real world's ranks and its notebook: each costs what the table says, no more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from .boundaries import CELL, HUGE, REST, ROOT, SENTENCE, TABLE, Boundary, Huge, guards, written
from .notebook import Cell, Notebook

SPOIL = """
import builtins, functools, importlib, threading, time
builtins.nbcomm_fired = fired = []

def spoil(module, attribute, how, thread, of):
    owner = importlib.import_module(module)
    *classes, name = attribute.split(".")
    for part in classes:
        owner = getattr(owner, part)
    found = vars(owner)[name]
    plain = found.fget if isinstance(found, property) else found
    @functools.wraps(plain)
    def spoiled(*args, **kwargs):
        this = threading.current_thread()
        here = not thread or (this is threading.main_thread() if thread == "main" else this.name == thread)
        raw = (memoryview, bytes, bytearray)
        about = [bytes(arg) if isinstance(arg, raw) else type(arg).__name__.encode() for arg in args]
        if fired or not here or (of and not any(of.encode() in words for words in about)):
            return plain(*args, **kwargs)
        fired.append(attribute)
        if how == "huge":
            raise TypeError("spoiled" + "!" * (30 << 20))
        if how == "raises":
            raise TypeError("spoiled")
        if how == "slow":
            time.sleep(1)
            return plain(*args, **kwargs)
    def put():
        setattr(owner, name, property(spoiled) if isinstance(found, property) else spoiled)
    def mend():
        setattr(owner, name, found)
    return put, mend
"""
"""Makes a function of nbcomm's fail once, on one thread, over one kind of message."""

ON_RANK = (
    SPOIL
    + """
from nbcomm.rank.main_loop import MainLoop
def at_the_next_cell(put):
    # The request that puts it there must not meet it, nor one of the notebook's between two cells.
    plain = MainLoop.put
    def armed(self, message, *args):
        if type(message).__name__ == "Run":
            MainLoop.put = plain
            put()
        return MainLoop.put(self, message, *args)
    MainLoop.put = armed
"""
)

ASK = """
def answered(*question):
    # On a busy machine a rank gives a question up that takes long: who types asks again.
    answers = (session._inquiries.ask(*question).result(timeout=30) for _ in range(20))
    return next(filter(None, answers))
"""

GOOD = "%%distributed\nall_reduce(rank)"
RIGHT = "[0-3] 6\n"


@pytest.fixture(scope="module")
def spoilable(four: Notebook) -> Notebook:
    """A world into which faults can be put."""
    four.run("from nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run(f"%%distributed -r 2\n{_apart(ON_RANK)}")
    four.run(_apart(SPOIL))
    four.run(ASK)
    four.run("import ctypes\nctypes.CDLL(None).mallopt(-3, 1 << 20);")  # what is large and freed is given back at once
    return four


@pytest.fixture
def world(spoilable: Notebook) -> Iterator[Notebook]:
    """It, and a look at whether all is well behind the test."""
    spoilable.run("%%distributed\nimport os, time\npid = os.getpid()")
    yield spoilable
    spoilable.end_all()
    assert RIGHT in spoilable.run(GOOD).text
    assert spoilable.run(GOOD).text == RIGHT
    assert spoilable.run("%%distributed\npid == os.getpid()").text == "[0-3] True\n"


def _apart(code: str) -> str:
    """Run code in names of its own: what runs in those of the cells is taken for the user's, on whatever thread."""
    return f"apart = {{}}\nexec({code!r}, apart)\nglobals().update(apart)"


def _put(world: Notebook, row: Boundary) -> None:
    """Have it fail from the next cell on, or, where that is another action, from now on."""
    module, _, attribute = row.spoiled.partition(":")
    wanted = f"{module!r}, {attribute!r}, {row.how!r}, {row.thread!r}, {row.of!r}"
    if row.side == "notebook":
        # Names of its own: `session.call` below would send the notebook's, if it had such.
        world.run(f"fired.clear(); put_here, mend_here = spoil({wanted}); put_here()")
        return
    world.run(f"%%distributed -r 2\nfired.clear(); put, mend = spoil({wanted})")
    at_once = row.action != "cell"
    world.run(f"session.call(lambda: {'put()' if at_once else 'at_the_next_cell(put)'}, ranks='2')")


def _mend(world: Notebook, row: Boundary) -> None:
    where, mend = ("", "mend_here") if row.side == "notebook" else ("%%distributed -r 2\n", "mend")
    look = f"{where}until = time.monotonic() + 50\nwhile not fired and time.monotonic() < until: time.sleep(0.05)\n"
    seen = world.run(f"{look}{mend}(); print('it has fired' if fired else 'nothing')")
    assert "it has fired" in seen.text


def _act(world: Notebook, row: Boundary) -> Cell:
    if row.action == "interrupt":
        return world.interrupted("%%distributed\nprint('on', flush=True)\ntime.sleep(60)", once="[0-3] on")
    if row.action == "hang":
        cell = world.run("%%distributed\nif rank != 1: barrier()", fails=True)
        assert "HangError" in cell.error_text
        return cell
    if row.action == "ask":
        world.run("session._inquiries.ask(2, 'complete', 'ran', 3);")
        world.run("answer = session._inquiries.ask(2, 'complete', 'ran', 3).result(timeout=50)")
        return world.run("assert 'rank' in answer['matches'], answer\nprint('[0-3] 6')")
    if row.action == "input":
        beside = "import threading\nthreading.Timer(0.5, print, ['beside']).start()\n"
        cell = world.submit(f"%%distributed -r 2\n{beside}word = input('what? ')\nprint('[0-3] 6')")
        world.until(lambda: "beside" in cell.text, 60, "nothing is shown beside the box", cell)
        world.answer(cell, "[2] what? ", "this")
        return world.finish(cell)
    code = {
        "cell": GOOD,
        "lost": GOOD,
        "printing": "%%distributed\nprint('some')\ntime.sleep(1)\nprint('more')\nall_reduce(rank)",
        "waiting": "%%distributed\nall_reduce(rank)\ntime.sleep(2)\nall_reduce(rank)",
        "drawing": "%%distributed --draw\nall_reduce(rank)",
        "tracing": "%%distributed --trace trace.json\nall_reduce(rank)",
    }[row.action]
    return world.run(code, fails=row.costs == CELL)


HERE = [row for row in TABLE if not row.elsewhere]


@pytest.mark.parametrize("row", HERE, ids=lambda row: f"{row.spoiled.partition(':')[2]}-{row.how}-{row.action}")
def test_a_fault_costs_what_the_table_says(world: Notebook, row: Boundary) -> None:
    _put(world, row)
    cell = _act(world, row)
    _mend(world, row)
    if row.costs == CELL:
        assert cell.error is not None, cell.text
        assert len(cell.error_text) < 3 << 20
        assert (row.told or row.guard) in cell.error_text
    elif row.costs == SENTENCE:
        said = f"nbcomm: on rank 2 {row.guard}" if row.side == "rank" else f"nbcomm: {row.guard}"
        assert f"{said}: TypeError: spoiled{'!!!' if row.how == 'huge' else '.'}" in cell.text
        assert cell.error is None, cell.error_text
        assert len(cell.text) < 50_000
    elif row.costs == REST:
        assert cell.error is None, cell.error_text
        assert f"nbcomm: {row.guard}: TypeError: spoiled." in cell.text, "it is lost, and nothing is said"
    elif row.action not in {"hang", "interrupt"}:
        assert cell.error is None, cell.error_text
        assert RIGHT in cell.text


MEMORY = """
import ctypes, gc, psutil
gc.collect(); ctypes.CDLL(None).malloc_trim(0); print(psutil.Process().memory_info().rss)
"""


LATE = {
    "a traceback: a deep recursion, in long lines",
    "the line of a collective, in 600 of them",
    "displays that could change, of many cells",
}
"""What takes longest, and has a test of less elsewhere: `make test-all` does it."""


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[pytest.mark.nightly] * (row.what in LATE), id=row.what) for row in HUGE]
)
def test_what_is_huge_costs_what_the_table_says(world: Notebook, row: Huge) -> None:
    world.run("%%distributed\nfrom IPython.display import display, HTML, JSON")
    world.run(GOOD)
    before = int(world.run(MEMORY).text)
    if row.before:
        world.run(row.before)
    cell = world.run(row.cell, fails=bool(row.error))
    assert world.run(GOOD).text == RIGHT
    assert row.shows in cell.text
    assert row.error in cell.error_text
    assert row.said in cell.text + cell.error_text
    assert len(cell.text + cell.error_text) < row.most
    if row.after:
        world.run(row.after)
    world.run(GOOD)
    deadline = time.monotonic() + 20
    while (kept := int(world.run(MEMORY).text) - before) >= 24 << 20:  # threads give theirs back a moment later
        assert time.monotonic() < deadline, kept


def test_every_guard_of_the_code_stands_in_the_table() -> None:
    assert guards() - {"the node's daemon failed in {}"} == {row.guard for row in TABLE if row.guard}


def test_what_is_done_elsewhere_is_done_there() -> None:
    for row in TABLE:
        if row.elsewhere:
            path, _, name = row.elsewhere.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), row.elsewhere


def test_the_page_has_the_table_as_it_is() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert written(text) == text, "write it anew: python -m tests.world.boundaries --write docs/reliability.md"
