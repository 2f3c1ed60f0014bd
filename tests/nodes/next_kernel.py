"""The story of a kernel that dies under a cell of four ranks, wherever these are."""

from __future__ import annotations

import os
import signal

from ..world.notebook import Notebook

_CELL = "%%distributed\nimport time\nfor n in range(20): print(n); time.sleep(0.2)\nall_reduce(rank)"


def attaches(notebook: Notebook, *cells: str) -> None:
    """Kill the kernel under a cell that prints: the next one attaches, shows all of it once, and nothing is lost.

    Args:
        notebook: each of its ranks has ``kept = [rank]``.
        cells: what the next kernel runs before it attaches.
    """
    cell = notebook.submit(_CELL)
    notebook.until(lambda: "[0-3] 2\n" in cell.text, 60, "it does not print", cell)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()
    for code in ("%load_ext nbcomm", *cells):
        notebook.run(code)
    cell = notebook.run("%distributed attach", 120)
    assert [line for line in cell.lines if line.startswith("[0-3]")] == [*(f"[0-3] {n}" for n in range(20)), "[0-3] 6"]
    assert notebook.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"
