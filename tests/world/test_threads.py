"""The threads of nbcomm's own, in a notebook and on ranks, ended from outside: each goes on, and nothing is lost."""

from __future__ import annotations

import pytest

from .notebook import Notebook

END = """
import ctypes, sys, threading, time

def running():
    return {thread.name: thread for thread in threading.enumerate()}

def end(name):
    # SystemExit, for that passes every guard against exceptions; it is raised at the thread's next step of Python.
    sys.unraisablehook = sys.__unraisablehook__
    ident = ctypes.c_ulong(running()[name].ident)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit)) == 1
"""

GOOD = "%%distributed\nall_reduce(rank)"
RIGHT = "[0-3] 6\n"


def _apart(code: str) -> str:
    """Run code in names of its own: what runs in those of the cells is taken for the user's, on whatever thread."""
    return f"apart = {{}}\nexec({code!r}, apart)\nglobals().update(apart)"


@pytest.fixture(scope="module")
def world(four: Notebook) -> Notebook:
    """A world whose threads can be ended."""
    four.run("from nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run(_apart(END))
    four.run(f"%%distributed\n{_apart(END)}\nimport os\npid = os.getpid()")
    return four


def _is_well(world: Notebook) -> None:
    # The traceback may stand in any of these, once: the thread ends at its next step.
    for _ in range(2):
        assert RIGHT in world.run(GOOD, timeout=30).text
    assert "[0-3] True\n" in world.run("%%distributed\npid == os.getpid()").text
    cell = world.run("%%distributed\nif rank != 1: barrier()", fails=True, timeout=30)
    assert "rank 1 has finished" in cell.error_text
    assert RIGHT in world.run(GOOD, timeout=30).text


@pytest.mark.parametrize("name", ["link", "watch"])
def test_a_thread_of_the_notebook_goes_on(world: Notebook, name: str) -> None:
    world.run(f"end('nbcomm-{name}')")
    _is_well(world)
    assert f"nbcomm-{name}" in world.run("print(*running())").text


def test_a_rank_that_has_lost_its_link_makes_another(world: Notebook) -> None:
    world.run("%%distributed -r 2\nprint('before'); end('nbcomm-link')")
    _is_well(world)
    assert "nbcomm-link" in world.run("%%distributed -r 2\nprint(*running())").text
