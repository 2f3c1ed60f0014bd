"""The node's agent dies, again and again: nothing that was said between notebook and ranks is lost, or done twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from nbcomm.node.peers import listener_at
from nbcomm.world_dir import WorldDir

from .notebook import Notebook

COUNT = """\
%%distributed
import time
for number in range(400):
    print("line", number, flush=True); time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def world(four: Notebook) -> Notebook:
    """Four ranks with a variable that counts what is done to it."""
    four.run("from nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run("%%distributed\ndone = []")
    return four


@pytest.fixture
def home(world: Notebook) -> WorldDir:
    """Its directory."""
    return WorldDir(world.run("print(session.home.path)").text.strip())


@contextmanager
def _dying(home: WorldDir, pause: float, most: int = 100, number: int = signal.SIGKILL) -> Iterator[list[int]]:
    """Let each agent of the world end a moment after the last one."""
    ended: list[int] = []
    over = threading.Event()

    def strike() -> None:
        while not over.wait(pause) and len(ended) < most:
            agent = listener_at(home.agent_socket)
            if agent and agent not in ended:
                with suppress(ProcessLookupError):
                    os.kill(agent, number)
                ended.append(agent)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()


def test_each_line_is_shown_once(world: Notebook, home: WorldDir) -> None:
    with _dying(home, 0.4) as ended:
        cell = world.run(COUNT, 60)
    assert len(ended) > 1
    assert cell.lines == [f"[0-3] line {number}" for number in range(400)]


def test_each_request_is_done_once(world: Notebook, home: WorldDir) -> None:
    # Only cells that form no groups: those are formed again after each agent, whose store they meet in.
    with _dying(home, 0.3) as ended:
        number, until = 0, time.monotonic() + 40
        while len(ended) < 3 and time.monotonic() < until:
            assert world.run(f"session.push(pushed={number})\nsession.pull('pushed')").text == f"{[number] * 4}\n"
            world.run(f"session.call(lambda: done.append({number}));")
            number += 1
    assert len(ended) > 2
    assert world.run(f"%%distributed\n(len(done), done == list(range({number})))").text == f"[0-3] ({number}, True)\n"


def test_cells_with_collectives_go_on_after_each(world: Notebook, home: WorldDir) -> None:
    with _dying(home, 1.5) as ended:
        until = time.monotonic() + 20
        while len(ended) < 3 and time.monotonic() < until:
            world.run("%%distributed\nall_reduce(1)", 60)
    assert world.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_large_value_arrives_whole(world: Notebook, home: WorldDir) -> None:
    world.run("import numpy\nbig = numpy.random.bytes(20 << 20)")
    with _dying(home, 0.1, 3):
        world.run("session.push(big=big)", 60)
    with _dying(home, 0.1, 3):
        assert world.run("{value == big for value in session.pull('big')}", 60).text == "{True}\n"


def test_an_interrupt_arrives(world: Notebook, home: WorldDir) -> None:
    cell = world.submit("%%distributed\nprint('on', flush=True)\ntime.sleep(60)")
    world.until(lambda: "[0-3] on" in cell.text, 20, "it did not begin", cell)
    with _dying(home, 0.0, 3):
        world.interrupt()
        world.finish(cell, 20)
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_an_agent_that_is_stopped_is_replaced(world: Notebook, home: WorldDir) -> None:
    with _dying(home, 0.5, number=signal.SIGSTOP) as ended:
        cell = world.run(COUNT, 60)
    assert len(ended) > 1
    assert cell.lines == [f"[0-3] line {number}" for number in range(400)]
    assert world.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
