"""What is lost on the way, or muted by a cell, is noticed, and the next cell is right; see `test_boundaries`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .notebook import Notebook


@pytest.fixture(autouse=True)
def _all_is_well_again(four: Notebook) -> Iterator[None]:
    yield
    four.end_all()
    assert "[0-3] 6\n" in four.run("%%distributed\nall_reduce(rank)").text
    assert four.run("%%distributed\nall_reduce(rank)").text == "[0-3] 6\n"


@pytest.fixture(scope="module")
def _session(four: Notebook) -> None:
    four.run("from nbcomm.notebook.session import registry\nsession = registry.current()")


pytestmark = pytest.mark.usefixtures("_session")


def test_a_cell_that_cancels_every_task_mutes_no_rank(four: Notebook) -> None:
    four.run("%%distributed\nimport asyncio\n[task.cancel() for task in asyncio.all_tasks(asyncio.get_event_loop())];")
    assert four.run("%%distributed\n1").text == "[0-3] 1\n"


def test_a_function_that_exits_is_answered(four: Notebook) -> None:
    cell = four.run("import sys\nsession.call(sys.exit)", fails=True)
    assert "SystemExit" in cell.error_text


ANSWER = """
from nbcomm.notebook.execution import dispatcher
plain = dispatcher.Dispatcher.hear
def deaf(self, rank, done, frames=()):
    if rank == 2 and done.failure is None:
        dispatcher.Dispatcher.hear = plain
        return
    plain(self, rank, done, frames)
dispatcher.Dispatcher.hear = deaf
"""

REQUEST = """
from nbcomm.protocol import Run
plain = session.link.send_each
def dropping(messages, buffers=()):
    if isinstance(messages.get(2), Run):
        session.link.send_each = plain
        del messages[2]
    plain(messages, buffers)
session.link.send_each = dropping
"""


@pytest.mark.parametrize(
    ("losing", "code", "what"),
    [
        pytest.param(ANSWER, "rank", "its answer was", id="an answer"),
        pytest.param(REQUEST, "all_reduce(rank)", "its request was", id="a request"),
    ],
)
def test_what_is_lost_on_the_way_is_noticed(four: Notebook, losing: str, code: str, what: str) -> None:
    four.run(losing)
    cell = four.run(f"%%distributed\n{code}", fails=True)
    assert f"nbcomm itself failed on rank 2 (RuntimeError: {what} lost in transit)" in cell.error_text


MUTE = """
from nbcomm.rank.main_loop import MainLoop
plain, left = MainLoop._answer, [1, 2, 3]
def mute(*args):
    if left.pop() == 1:
        MainLoop._answer = plain
    raise TypeError("on purpose")
MainLoop._answer = mute
"""


def test_an_answer_that_cannot_be_given_is_given_a_moment_later(four: Notebook) -> None:
    cell = four.run(f"%%distributed -r 2\nexec({MUTE!r}, {{}})", fails=True)
    assert "nbcomm itself failed on rank 2 (TypeError: on purpose)" in cell.error_text


ONCE = """
from nbcomm.rank.baton import Baton
from nbcomm.rank.main_loop import MainLoop
def spoiled(*args, **kwargs):
    {function} = plain
    raise TypeError("on purpose")
plain, {function} = {function}, spoiled
"""


@pytest.mark.parametrize("function", ["MainLoop._rouse", "MainLoop._next", "Baton.add_done_callback", "Baton.pass_on"])
def test_a_main_thread_that_was_not_roused_is_roused_again(four: Notebook, function: str) -> None:
    four.run(f"%%distributed -r 2\nkept = 7\nexec({ONCE.format(function=function)!r}, {{}})")
    for _ in range(2):
        assert four.run("%%distributed\nkept if rank == 2 else 7").text == "[0-3] 7\n"
    assert four.run("%%distributed\nimport gc\n_ = gc.collect()").text == "", "nothing is said of the lost task"


SETTLING = """
%%distributed
import os, threading, time
from nbcomm.rank.collectives.journal import Journal
steps, on = Journal.steps, threading.Event()
def slow(self):
    Journal.steps = steps
    on.set()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    return steps(self)
def tick():
    number = 0
    while not os.path.exists({go!r}):
        if on.wait(0.1):
            print("tick", number := number + 1, flush=True)
            time.sleep(0.1)
if rank == 1:
    Journal.steps = slow
    threading.Thread(target=tick).start()
"""


def test_a_daemon_does_not_wait_for_a_request_that_is_slow_to_settle(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = four.submit(SETTLING.format(go=str(go)).strip())
    try:
        four.until(lambda: "tick 1\n" in cell.text, 60, "it never began to settle", cell)
        four.interrupt()
        so_far = cell.text.count("tick")
        four.until(lambda: cell.text.count("tick") > so_far + 9, 60, "its output stood still", cell)
    finally:
        go.touch()
    four.finish(cell)


def test_a_rank_whose_event_loop_is_kept_is_named(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    keep = f"def keep():\n    while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    four.run(f"%%distributed -r 1\nimport asyncio, os, time\n{keep}\nasyncio.get_event_loop().call_soon(keep);")
    try:
        cell = four.submit("%%distributed\nrank")
        told = "rank 1 cannot begin: a task or a callback of an earlier cell is still running"
        four.until(lambda: told in cell.text, 60, "nothing was said", cell)
    finally:
        go.touch()
    assert four.finish(cell).error is None
    assert told not in cell.text


def test_nobody_waits_for_a_rank_that_could_not_make_a_group(four: Notebook) -> None:
    broken = (
        "from nbcomm.rank.groups.rendezvous import StoreClient\nplain = StoreClient.set\n"
        "def set_once(self, key, value):\n"
        "    StoreClient.set = plain\n    raise OSError(24, 'Too many open files')\n"
        "StoreClient.set = set_once"
    )
    four.run(f"%%distributed -r 1\nexec({broken!r}, {{}})")
    cell = four.run("%%distributed\nimport torch.distributed as dist\ndist.new_group([0, 1]);", fails=True)
    assert "Too many open files" in cell.error_text
    assert "HangError" in cell.error_text


BREAK = """
import importlib, threading
*path, kind, method = {step!r}.split(".")
kind = getattr(importlib.import_module("nbcomm." + ".".join(path)), kind)
plain, here, left = getattr(kind, method), threading.get_ident(), [{error}("on purpose")]
def broken(*args, **kwargs):
    if threading.get_ident() == here and left:
        raise left.pop()
    return plain(*args, **kwargs)
session._generations.stale = {stale}
setattr(kind, method, broken)
"""

CELL, PUSH, PULL, WHO = "%%distributed\nrank", "session.push(x=1)", "session.pull('rank')", "session.who('rank')"


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
@pytest.mark.parametrize(
    ("code", "step", "stale"),
    [
        (CELL, "analysis.collective_log.CollectiveLog.begin", False),
        (CELL, "notebook.execution.input_prompts.InputPrompts.begin", False),
        (CELL, "notebook.output.past_cells.PastOutputs.add", False),
        (CELL, "notebook.execution.hang_watch.HangWatch.hurry", False),
        (CELL, "notebook.execution.dispatcher.Dispatcher.lose_dead", False),
        (CELL, "launch.link.Link._end", False),
        (CELL, "launch.nodes.Nodes.compare_clocks", True),
        (CELL, "notebook.cluster.generations.Generations._form", True),
        (CELL, "notebook.execution.dispatcher.Dispatcher.lose_dead", True),
        (CELL, "launch.link.Link._end", True),
        *((code, "notebook.execution.dispatcher.Dispatcher.lose_dead", False) for code in (PUSH, PULL, WHO)),
        *((code, "notebook.execution.interrupts.InterruptCounter.__enter__", False) for code in (PUSH, PULL, WHO)),
        *((code, "launch.link.Link._end", False) for code in (PUSH, PULL, WHO)),
    ],
)
def test_what_could_not_be_sent_keeps_no_rank_busy(
    four: Notebook, code: str, step: str, error: str, *, stale: bool
) -> None:
    """Each step of a request, from its making to its sending, fails once, on the thread that asks."""
    four.run(BREAK.format(step=step, error=error, stale=stale))
    four.run(code, fails=True)
    assert four.run("setattr(kind, method, plain)\nleft, session.busy").text == "([], False)\n"
    assert four.run("%%distributed\nall_reduce(rank)").text == "[0-3] 6\n"


def test_a_question_that_could_not_be_put_costs_no_answer(four: Notebook) -> None:
    step = "notebook.execution.input_prompts.InputPrompts._due"
    four.run(BREAK.format(step=step, error="ValueError", stale=False))
    cell = four.submit("%%distributed -r 1\ninput('name? ')")
    four.answer(cell, "[1] name? ", "one")
    assert "'one'" in four.finish(cell).text
    four.run("setattr(kind, method, plain)")


@pytest.mark.parametrize("thread", ["nbcomm-link", "MainThread"])
def test_output_that_is_lost_is_told_whichever_thread_has_lost_it(four: Notebook, thread: str) -> None:
    lossy = (
        "import threading, time\nfrom nbcomm.rank.output.capture import Capture\n"
        "plain, lost = Capture.take, threading.Event()\n"
        "def take(self, **how):\n"
        f"    if threading.current_thread().name != {thread!r}: return plain(self, **how)\n"
        "    Capture.take = plain\n    lost.set()\n    raise OSError('on purpose')\n"
        "Capture.take = take\n"
    )
    wait = "print('x', flush=True)\nspace['lost'].wait(50)" if thread == "nbcomm-link" else "1"
    cell = four.run(f"%%distributed -r 1\nexec({lossy!r}, space := {{}})\n{wait};")
    told = "on rank 1 some of its output is lost: OSError: on purpose."
    assert cell.text.count(told) == 1
    assert told not in four.run("%%distributed\n1").text
