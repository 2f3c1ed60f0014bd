"""The node's daemon dies, again and again: nothing that was said between notebook and ranks is lost, or done twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nbcomm.node.peers import listener_at
from nbcomm.world_dir import WorldDir

from .notebook import Notebook
from .processes import await_daemon

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
def _dying(home: WorldDir, pause: float, most: int, number: int = signal.SIGKILL) -> Iterator[list[int]]:
    """Let each daemon of the world end a moment after the last one.

    Not without end: on a busy machine a daemon may need longer than the pause until it is of use.
    """
    ended: list[int] = []
    over = threading.Event()

    def strike() -> None:
        while not over.wait(pause) and len(ended) < most:
            daemon = listener_at(home.daemon_socket)
            if daemon and daemon not in ended:
                with suppress(ProcessLookupError):
                    os.kill(daemon, number)
                ended.append(daemon)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()


def _count_until_two_have_ended(world: Notebook, home: WorldDir, pause: float, number: int) -> None:
    """See that each line is shown once, in as many cells as it takes: the next daemon may be there after the first."""
    with _dying(home, pause, 10, number) as ended:
        deadline = time.monotonic() + 60
        while len(ended) < 2 and time.monotonic() < deadline:
            assert world.run(COUNT, 60).lines == [f"[0-3] line {line}" for line in range(400)]
    assert len(ended) > 1


def test_each_line_is_shown_once(world: Notebook, home: WorldDir) -> None:
    _count_until_two_have_ended(world, home, 0.4, signal.SIGKILL)


def test_each_request_is_done_once(world: Notebook, home: WorldDir) -> None:
    with _dying(home, 0.3, 10) as ended:
        number, until = 0, time.monotonic() + 40
        while len(ended) < 3 and time.monotonic() < until:
            assert world.run(f"session.push(pushed={number})\nsession.pull('pushed')").text == f"{[number] * 4}\n"
            world.run(f"session.call(lambda: done.append({number}));")
            number += 1
    assert len(ended) > 2
    assert world.run(f"%%distributed\n(len(done), done == list(range({number})))").text == f"[0-3] ({number}, True)\n"


def test_cells_with_collectives_go_on_after_each(world: Notebook, home: WorldDir) -> None:
    with _dying(home, 1.5, 3) as ended:
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
    cell = world.submit("%%distributed\nimport time\nprint('on', flush=True)\ntime.sleep(100)")
    world.until(lambda: "[0-3] on" in cell.text, 20, "it did not begin", cell)
    with _dying(home, 0.0, 3):
        world.interrupt()
        world.finish(cell)
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"


def test_a_daemon_that_is_stopped_is_replaced(world: Notebook, home: WorldDir) -> None:
    _count_until_two_have_ended(world, home, 0.5, signal.SIGSTOP)
    assert world.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


# ── its store ───────────────────────────────────────────────────────────────────────────────────────


def _generation(world: Notebook) -> int:
    return int(world.run("print(session._generations.number)").text)


def _replace(world: Notebook, home: WorldDir) -> None:
    """Kill the daemon, and wait until another one serves."""
    earlier = await_daemon(world, home)
    os.kill(earlier, signal.SIGKILL)
    await_daemon(world, home, earlier)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_cell_that_runs_makes_a_group_after_it(
    world: Notebook, home: WorldDir, tmp_path: Path, at_once: bool
) -> None:
    before, gate = _generation(world), tmp_path / "gate"
    cell = world.submit(
        f"""\
%%distributed
import os, time
print("on", flush=True)
while not os.path.exists({os.fspath(gate)!r}): time.sleep(0.001)
made = new_group([0, 1])
(all_reduce(1, group=made) if rank < 2 else 2, all_reduce(1))"""
    )
    world.until(lambda: "[0-3] on" in cell.text, 20, "it did not begin", cell)
    if at_once:  # there is no store yet
        os.kill(await_daemon(world, home), signal.SIGKILL)
    else:
        _replace(world, home)
    gate.touch()
    world.finish(cell)
    assert cell.lines == ["[0-3] on", "[0-3] (2, 4)"], cell.error_text
    assert world.run("%%distributed\nall_reduce(1, group=made) if rank < 2 else 2").text == "[0-3] 2\n"
    assert _generation(world) == before, "nothing was to be formed again"


SHARDED = """\
%%distributed
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
sharded = torch.nn.Linear(8, 8)
fully_shard(sharded)
def accumulate(last):
    sharded.set_requires_gradient_sync(last)
    sharded(torch.full((2, 8), rank + 1.0)).sum().backward()
accumulate(False)
"""
"""A module with gradients that no rank has sent yet."""

TOTAL = "%%distributed\naccumulate(True)\nfloat(sum(one.grad.full_tensor().sum() for one in sharded.parameters()))"


def test_gradients_that_are_not_reduced_yet_are_kept(world: Notebook, home: WorldDir) -> None:
    world.run(SHARDED)
    expected = world.run(TOTAL).text
    world.run(SHARDED)
    _replace(world, home)
    assert world.run(TOTAL).text == expected
    assert expected != "[0-3] 0.0\n"
