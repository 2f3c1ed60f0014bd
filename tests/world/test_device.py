"""What a GPU has yet to do when the code of a cell has ended: with marks that tell it in place of a GPU's.

Everything else is real. A call of torch with NCCL returns when it is queued, and so does its wait.
"""

from __future__ import annotations

import time

import pytest

from .notebook import Notebook

QUEUE = """%%distributed
import os, time
from nbcomm.rank.collectives.fingerprints import entry
from nbcomm.rank.collectives.recorded_call import RecordedCall

class Mark:
    def __init__(self, done):
        self.query = done

def queue(done):
    "Call all_reduce as if the data were on a GPU, which has done it when ``done`` is true, or it was aborted."
    group, hub = dist.group.WORLD, dist.group.WORLD._hub
    log, generation = group._log, hub.generation
    log.issued = next(log.positions)
    call = RecordedCall("collective", "all_reduce", log, log.issued, entry(1, "all_reduce(float32 (2,), sum)"))
    call.tell_place(hub.record.scope())
    hub.record.follow(None, call)
    over = lambda: done() or hub.ended() or hub.generation != generation
    hub.record.on_device[id(call)] = Mark(over), call

def in_seconds(wait):
    at = time.monotonic() + wait
    return lambda: time.monotonic() > at

def never():
    return False
"""

HANG = "all_reduce #1 of the world (float32 (2,), sum) can never complete"


@pytest.fixture
def ready(four: Notebook) -> Notebook:
    """Ranks that can queue."""
    four.run(QUEUE)
    return four


def test_a_cell_is_done_when_its_calls_on_the_device_are(ready: Notebook) -> None:
    began = time.monotonic()
    cell = ready.run("%%distributed\nqueue(in_seconds(0.5))\nprint('queued')")
    assert cell.text == "[0-3] queued\n"
    assert time.monotonic() - began > 0.5
    assert ready.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_rank_that_skips_one_is_told_at_the_end_of_this_cell(ready: Notebook) -> None:
    cell = ready.run("%%distributed\nif rank != 1: queue(never)", fails=True)
    assert HANG in cell.error_text
    assert "rank 1 has finished the cell" in cell.error_text
    assert "ranks 0,2-3 wait in it, in line " in cell.error_text
    assert ready.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_rank_that_comes_late_is_waited_for(ready: Notebook) -> None:
    cell = ready.run(
        "%%distributed\nif rank == 1: time.sleep(3)\nqueue(in_seconds(1 if rank == 1 else 4))\nprint('done')"
    )
    assert cell.text.endswith("done\n")
    assert cell.error is None


def test_a_rank_that_reads_what_never_comes_is_freed(ready: Notebook) -> None:
    ready.run(
        "%%distributed\n"
        "reading, writing = os.pipe()\n"
        "class Backend:\n"
        "    def abort(self): os.write(writing, b'.')\n"
        "backend = Backend()"
    )
    code = (
        "%%distributed\nif rank == 0:\n    dist.group.WORLD.on_devices.append(backend)\n    queue(never)\n"
        "    os.read(reading, 1)  # as x.item() does\n    print('read')"
    )
    cell = ready.run(code, fails=True)
    assert HANG in cell.error_text
    assert "rank 0 waits in it, begun in line " in cell.error_text
    assert ": os.read(reading, 1)" in cell.error_text
    assert ready.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_an_interrupt_ends_the_wait(ready: Notebook) -> None:
    cell = ready.submit("%%distributed\nif rank == 1: time.sleep(60)\nqueue(never)")
    ready.until(lambda: "waiting for rank 1" in cell.text, 30, "nobody waits", cell)
    began = time.monotonic()
    ready.interrupt()
    ready.finish(cell, 30)
    assert time.monotonic() - began < 10
    assert "KeyboardInterrupt" in cell.error_text
    assert ready.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_what_a_cell_that_failed_has_left_on_the_device_is_ended(ready: Notebook) -> None:
    cell = ready.run("%%distributed\nif rank == 0: queue(never)\n1 / 0", fails=True)
    assert "ZeroDivisionError" in cell.error_text
    assert "HangError" not in cell.error_text
    assert ready.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
