"""The end of ranks is that of a Python program: what a cell has left open is written, and what was registered runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .notebook import Notebook

LEFT = """
import atexit, csv, gzip, io, logging, logging.handlers, tempfile, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
plain = open("plain", "w"); plain.write("not closed")
rows = csv.writer(open("rows", "w")); rows.writerow([1, 2])
zipped = gzip.open("zipped.gz", "wb"); zipped.write(b"not closed" * 1000)
logging.kept = open("of a module", "w"); logging.kept.write("not closed")
memory = logging.handlers.MemoryHandler(100, target=logging.FileHandler("log"))
logging.getLogger("left").addHandler(memory)
logging.getLogger("left").error("not flushed")
atexit.register(lambda: open("atexit", "w").write("ran"))
folder = tempfile.TemporaryDirectory(dir=".", prefix="folder")
named = tempfile.NamedTemporaryFile(dir=".", prefix="named")
class Held: pass
held = Held()
weakref.finalize(held, lambda: open("finalized", "w").write("ran"))
def work(): time.sleep(0.3); open("thread", "w").write("joined")
threading.Thread(target=work).start()
pool = ThreadPoolExecutor(1)
later = pool.submit(lambda: (time.sleep(0.3), open("pool", "w").write("joined")))
from torch.utils.data import DataLoader
batches = iter(DataLoader(range(4), num_workers=1, persistent_workers=True)); next(batches)
"""
"""What needs an end."""


def contents(folder: Path) -> dict[str, object]:
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return {name: len(text) if name.endswith(".gz") else text for name, text in found.items()}


def pids_of(notebook: Notebook) -> list[int]:
    shown = notebook.run("%%distributed\nimport os\nos.getpid()").lines
    return [int(line.partition("] ")[2]) for line in shown]


@pytest.mark.timeout(120)
def test_a_rank_ends_as_python_does(open_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    here, there = tmp_path / "python", tmp_path / "rank"
    for folder in (here, there):
        folder.mkdir()
    subprocess.run([sys.executable, "-c", LEFT], cwd=here, check=True, timeout=60)
    notebook = open_notebook("%distributed start -n 2")
    pids = pids_of(notebook)
    notebook.run(f"%%distributed -r 1\nos.chdir({str(there)!r})\n{LEFT}")
    children = psutil.Process(pids[1]).children()
    assert notebook.run("%distributed stop").text == "Stopped 2 ranks on cpu.\n"
    assert contents(there) == contents(here)
    assert {path.name for path in there.iterdir()} == {path.name for path in here.iterdir()}
    assert {"plain", "atexit", "finalized", "thread", "pool"} <= contents(here).keys()
    assert not any(map(psutil.pid_exists, pids))
    assert children, "the loader's worker"
    assert not any(child.is_running() for child in children)


@pytest.mark.timeout(120)
def test_what_hangs_is_ended_and_named(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%distributed start -n 2")
    notebook.run(
        "%%distributed -r 1\nimport atexit, time\ndef hangs():\n    time.sleep(1000)\natexit.register(hangs)\nNone"
    )
    told = notebook.run("%distributed stop").text
    assert "nbcomm: Rank 1 did not end by itself, and was ended: it was in hangs, line 4 of In[" in told
    assert "Rank 0" not in told
    notebook.run("%distributed start -n 2")
    code = "import threading\ngo_on = threading.Event()\nthreading.Thread(target=go_on.wait, name='never ends').start()"
    notebook.run(f"%%distributed\n{code}")
    told = notebook.run("%distributed restart").text
    assert "nbcomm: Rank 0 did not end by itself, and was ended: it was in a wait for never ends." in told
    assert "[0-1] 2" in notebook.run("%%distributed\nall_reduce(1)").text


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "what",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "recv(1 - rank)",
        "import asyncio; await asyncio.sleep(1000)",
    ],
)
def test_the_kernels_end_in_the_middle_of_a_cell_is_an_end_too(
    open_notebook: Callable[..., Notebook], tmp_path: Path, what: str
) -> None:
    notebook = open_notebook("%distributed start -n 2")
    notebook.run(f"%%distributed\nimport os\nfile = open(f'{tmp_path}/rank{{rank}}', 'w')\nfile.write('not closed');")
    pids = pids_of(notebook)
    notebook.submit(f"%%distributed\nopen(f'{tmp_path}/begun{{rank}}', 'w').close()\n{what}")
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"begun{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    notebook.close()
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["not closed"] * 2


def test_a_rank_that_is_stopped_by_a_signal_costs_seconds_and_no_more(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%distributed start -n 2")
    pid = int(notebook.run("%%distributed -r 1\nimport os\nos.getpid()").text[4:])
    os.kill(pid, 19)
    told = notebook.run("%distributed stop", 30).text
    assert "nbcomm: Rank 1 did not end by itself, and was ended" in told
    assert not psutil.pid_exists(pid)
