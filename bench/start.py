"""How long until the first collective is done: with a fresh import of torch, from the seed, and after a restart."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from .deadline import SECONDS
from .rows import Row, seconds

_NOTEBOOK = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
import ipykernel.kernelapp  # as a kernel has before its first cell
shell, n = InteractiveShell.instance(), int(sys.argv[1])
shell.history_manager.enabled = False

def until_the_first_collective(line):
    shell.run_line_magic("distributed", line)
    shell.run_cell_magic("distributed", "--quiet", "all_reduce(rank)")

began = time.perf_counter()
shell.run_line_magic("load_ext", "nbcomm")
time.sleep(float(sys.argv[2]))
began += float(sys.argv[2])
until_the_first_collective(f"start -n {n}")
told = {"start": time.perf_counter() - began}
began = time.perf_counter()
until_the_first_collective("restart")
told["restart"] = time.perf_counter() - began
shell.run_cell_magic("distributed", "--quiet", '''
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 8)).sum().backward()
optimizer.step()
''')
from nbcomm.notebook.session import registry
told["home"], told["how"] = str(registry.current().home.path), registry.current().how_started
print(json.dumps(told), flush=True)
sys.stdin.read()
registry.current().stop()
"""
"""A notebook: it tells the seconds from `%load_ext`, and from `restart`, to the first collective; then it waits.

It may pause between `%load_ext` and the start, as a person does, which does not count.
"""

_MB = 1 << 20


class _Notebook:
    """A process that is a notebook.

    Args:
        n: ranks.
        environment: notebooks with the same one have the same seed.
        pause: seconds between `%load_ext` and the start.
    """

    def __init__(self, n: int, environment: str, pause: float = 0.0) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the text above
            [sys.executable, "-c", _NOTEBOOK, str(n), str(pause)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NBCOMM_BENCH": environment, "NBCOMM_WARM": "20"},
        )
        for line in self._process.stdout or ():  # behind what the start says of itself
            if line.startswith(b"{"):
                self.told = json.loads(line)
                return
        raise RuntimeError("the notebook has ended")

    def memory(self) -> tuple[float, float]:
        """The proportional memory of notebook, seed and all of the world, and what of it the seed alone would have.

        In MB.
        """
        seed = alone = 0
        used = psutil.Process(self._process.pid).memory_full_info().pss
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if environment.get("NBCOMM_HOME") == self.told["home"]:
                    used += process.memory_full_info().pss
                    parent = process.parent()
                    if parent is not None and "nbcomm.node.seed" in parent.cmdline():
                        seed, alone = parent.memory_full_info().pss, parent.memory_info().rss
            except psutil.Error:
                continue
        return (used + seed) / _MB, alone / _MB

    def close(self) -> None:
        """End it, and its world."""
        self._process.communicate(timeout=SECONDS)


def _import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def _played(n: int, environment: str, pause: float = 0.0) -> dict[str, float]:
    notebook = _Notebook(n, environment, pause)
    notebook.close()
    return notebook.told


def measure(rounds: int, *, full: bool) -> list[Row]:
    """Starts against one import of torch: cold, of a second notebook, and again."""
    rows, mark = [], str(time.time_ns())
    rounds = max(1, rounds // 10)
    imports = []
    for n, cold_target in ((2, None), (4, 1.15), (16, 1.3)) if full else ((4, 1.15),):
        told: dict[str, list[float]] = {"cold": [], "warm": [], "restart": []}
        plain = []
        for turn in range(rounds):  # in turns, so that a busy moment hits all of them
            environment = f"{mark} {n} {turn}"
            plain.append(seconds(_import_torch))
            told["cold"].append(_played(n, environment)["start"])
            plain.append(seconds(_import_torch))
            again = _played(n, environment, pause=0.2)
            told["warm"].append(again["start"])
            told["restart"].append(again["restart"])
        once = statistics.median(plain)
        imports += plain
        for what, target in (("cold", cold_target), ("warm", 0.2), ("restart", 0.2)):
            took = statistics.median(told[what])
            figures = f"{took:.2f} s, import torch {once:.2f} s"
            row = f"{what}, to the first collective, {n} ranks / import torch"
            rows.append(Row(row, figures, took / once, target if n == 4 or what == "cold" else None))
    rows.append(_memory(mark))
    if full:
        rows.append(_ten_at_once(mark, statistics.median(imports)))
    return rows


def _memory(mark: str) -> Row:
    notebook = _Notebook(2, f"{mark} memory", pause=20.0)  # while a person reads, the seed imports what training needs
    used, alone = notebook.memory()
    notebook.close()
    figures = f"{used:.0f} MB PSS with the seed, which alone has {alone:.0f} MB"
    what = "memory that a notebook and 2 ranks add to the seed, after a DDP step / 250 MB"
    return Row(what, figures, (used - alone) / 250, 1.0)


def _ten_at_once(mark: str, once: float) -> Row:
    began = time.perf_counter()
    with ThreadPoolExecutor(10) as pool:
        slowest = max(pool.map(lambda _: _played(2, f"{mark} ten")["start"], range(10)))
    figures = f"all ended after {time.perf_counter() - began:.1f} s"
    return Row("ten notebooks at once, the slowest start / import torch", figures, slowest / once)
