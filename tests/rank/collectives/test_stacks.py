"""Looking at what other threads do never harms them."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from nbcomm.rank.collectives import stacks

STRESS = """
import contextlib, gc, sys, threading, time
from nbcomm.rank.collectives import stacks

main = threading.get_ident()

def let_others_go_on(phase, info):  # as a finalizer may
    if threading.get_ident() == main:
        time.sleep(0.0005)

def deep(n):
    return deep(n - 1) if n else time.sleep(0.0002)

def work():
    while time.monotonic() < until:
        deep(900)  # and all these frames are given back

until = time.monotonic() + 3
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
gc.callbacks.append(let_others_go_on)
gc.set_threshold(1)
while time.monotonic() < until:
    with stacks.of_all_threads() as found:
        for frame in found.values():
            while frame is not None:
                frame = frame.f_back
gc.callbacks.clear()
for thread in threads:
    thread.join()
print("well")
"""


@pytest.mark.ranks
def test_frames_of_threads_that_run_are_walked_while_garbage_is_collected() -> None:
    ended = subprocess.run([sys.executable, "-c", STRESS], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended.stderr


def test_the_collector_is_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with stacks.of_all_threads() as found:
                assert not gc.isenabled()
                assert found
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


LOOK = """
import gc, threading, weakref
from nbcomm.rank.collectives import stacks

class Large:
    pass

def work():
    large = Large()
    seen.append(weakref.ref(large))
    begun.set()
    ends.wait()

gc.disable()
seen, begun, ends = [], threading.Event(), threading.Event()
thread = threading.Thread(target=work)
thread.start()
begun.wait()

def look():
    with stacks.of_all_threads() as found:
        assert found[thread.ident].f_back is not None

look()
ends.set()
thread.join()
print(seen[0]())
"""


@pytest.mark.ranks
def test_what_a_function_has_held_is_freed_at_its_end_though_it_was_looked_at() -> None:
    """It fails on Python 3.12 and newer if the frames are let go by a collection alone."""
    ended = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "None\n"), ended.stderr
