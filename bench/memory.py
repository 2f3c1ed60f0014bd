"""The memory of one person: each lesson is played as it is, and all of its processes are measured meanwhile.

``python -m bench.memory [NUMBER …] [--reads SECONDS] [--set NAME=VALUE …] [--solved]`` prints a table: the largest sum
that was seen at one moment of a lesson, of the kernel, the seed, and the world (its daemon, zygote and ranks). It is
proportional memory (PSS): a page that several processes share is counted once. ``--set NBCOMM_PRELOAD=torch._dynamo``
measures what a setting changes. ``--solved`` writes nbcomm's own solutions into the cells that ask for a function, as a
learner would in the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from .deadline import SECONDS, deadline

_ROOT = Path(__file__).parents[1]

_SOLUTIONS = _ROOT / "nbcomm" / "lessons" / "solutions"
"""Read as files: an import of `nbcomm.lessons` would import torch, whose pages this process then shared."""

_MARK = "NBCOMM_BENCH"
"""A variable that all processes of one person inherit. It also gives each lesson a seed of its own, as in a hub, where
each person has a container."""

_PARTS = {"ipykernel_launcher": "kernel", "nbcomm.node.seed": "seed"}
"""By a word of its command line, what a process is; all others are the world's."""

_PAUSE = 0.15
"""Seconds between two looks. A look itself takes some hundredths: the system walks every page."""

_READ_BEFORE = ("%distributed start", "%distributed stop")
"""A person reads before these cells. Meanwhile the seed imports what training steps need: for the ranks to share, if
they are started after that."""


class _Peak:
    """The largest sum that was seen, and how it was made up.

    Args:
        mark: the value of `_MARK` in the processes that count.
    """

    def __init__(self, mark: str) -> None:
        self.parts: dict[str, int] = {}
        self.processes = 0
        self._mark = mark
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again meanwhile."""
        watcher = threading.Thread(target=self._watch, name="peak")
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE):
            parts: dict[str, int] = {}
            count = 0
            for process in psutil.process_iter():
                try:
                    part = self._part(process)
                    if part is not None:
                        parts[part] = parts.get(part, 0) + process.memory_full_info().pss
                        count += 1
                except psutil.Error:
                    continue  # it has ended, or is another user's
            if sum(parts.values()) > sum(self.parts.values()):
                self.parts, self.processes = parts, count

    def _part(self, process: psutil.Process) -> str | None:
        if process.environ().get(_MARK) != self._mark:
            return None
        words = process.cmdline()
        return next((_PARTS[word] for word in words if word in _PARTS), "world")


def measure(path: Path, settings: dict[str, str], reads: float, *, solved: bool) -> _Peak:
    """Play a lesson in a kernel of this Python, and return the peak of its memory.

    Raises:
        CellExecutionError: a cell has failed that is not meant to.
    """
    notebook = nbformat.read(path, as_version=4)
    if solved:
        _solve(notebook, path)
    mark = str(time.time_ns())
    kernel = KernelManager(kernel_name=NATIVE_KERNEL_NAME, kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    if kernel.has_trait("transport_encryption"):  # since jupyter_client 8.9
        kernel.set_trait("transport_encryption", "auto")
    kernel.shutdown_wait_time = 60.0  # a kernel that is killed leaves its world until the grace is over
    client = NotebookClient(notebook, km=kernel, timeout=300)
    peak = _Peak(mark)
    with tempfile.TemporaryDirectory() as folder, peak.watched():
        environment = {"NBCOMM_WARM": "5", "NBCOMM_CLASS": folder, **settings, _MARK: mark}
        try:
            client.start_new_kernel(env={**os.environ, **environment}, cwd=folder)
            client.start_new_kernel_client()
            for index, cell in enumerate(notebook.cells):
                if cell.source.startswith(_READ_BEFORE):
                    time.sleep(reads)
                client.execute_cell(cell, index)
        finally:
            # nbclient leaves a kernel that it was given.
            if client.kc is not None:
                client.kc.stop_channels()
            if kernel.has_kernel:
                kernel.shutdown_kernel()
    return peak


def _solve(notebook: Any, path: Path) -> None:
    answers, helpers = {}, []
    for node in ast.parse((_SOLUTIONS / f"{path.stem[3:]}.py").read_text(encoding="utf-8")).body:
        helpers.append(ast.unparse(node))
        if isinstance(node, ast.FunctionDef):
            answers[node.name] = "\n".join(helpers)
    for cell in notebook.cells:
        asked = re.search(r"^def (\w+)\(", cell.source, re.MULTILINE)
        if asked and asked[1] in answers:
            cell.source = f"%%distributed\n{answers[asked[1]]}"


def main() -> None:
    """Play the lessons that were asked for, and print a row for each as it comes."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="these lessons alone")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the kernel")
    parser.add_argument("--reads", type=float, default=0.0, metavar="SECONDS", help="before the start, and at the end")
    parser.add_argument("--solved", action="store_true", help="with nbcomm's own solutions of the puzzles")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.set)
    print(f"{'MiB PSS at the peak':<24}{'kernel':>8}{'seed':>8}{'world':>8}{'sum':>8}   processes")
    for path in sorted((_ROOT / "notebooks" / "lessons").glob("[0-9][0-9]_*.ipynb")):
        if options.numbers and int(path.stem[:2]) not in options.numbers:
            continue
        with deadline(SECONDS, path.stem):
            peak = measure(path, settings, options.reads, solved=options.solved)
        sizes = [peak.parts.get(part, 0) for part in ("kernel", "seed", "world")]
        figures = "".join(f"{size / 2**20:8.0f}" for size in (*sizes, sum(sizes)))
        print(f"{path.stem:<24}{figures}   {peak.processes}", flush=True)


if __name__ == "__main__":
    main()
