"""A world of 64 ranks on one machine, through a real kernel: cells, deaths, healing, another notebook."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable

import pytest

from .notebook import Notebook

RANKS = 64
SUM = RANKS * (RANKS - 1) // 2
CELLS = 30

PIDS = """\
import json
from nbcomm.notebook.session import registry
print(json.dumps([view.pid for view in registry.current().status()]))
"""

LONG = """\
%%distributed
import time
print('on', flush=True)
for number in range(80): print(number, flush=True); time.sleep(0.1)
"""


@pytest.mark.nightly
def test_64_ranks_run_cells_lose_two_are_healed_and_attached_to(open_notebook: Callable[..., Notebook]) -> None:
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as elsewhere:
        notebook = open_notebook(TMPDIR=elsewhere)
        notebook.run(f"%distributed start -n {RANKS}", 120)
        notebook.run("%%distributed\nkept = []")
        for number in range(CELLS):
            notebook.run(f"%%distributed\nkept.append({number})")
        right = notebook.run(f"%%distributed\n(kept == list(range({CELLS})), all_reduce(rank))")
        assert right.text == f"[0-63] (True, {SUM})\n"
        pids = json.loads(notebook.run(PIDS).text)
        for rank in (5, 40):
            os.kill(pids[rank], signal.SIGKILL)
        assert "Ranks 5,40 are back" in notebook.run("%distributed heal").text
        assert notebook.run("%%distributed\nall_reduce(rank)").text == f"[0-63] {SUM}\n"
        cell = notebook.submit(LONG)
        notebook.until(lambda: "[0-63] 3" in cell.text, 60, "it does not run", cell)
        os.kill(notebook.pid, signal.SIGKILL)
        notebook.begin_again()
        notebook.run("%load_ext nbcomm")
        shown = notebook.run("%distributed attach")
        assert [line for line in shown.lines if line[0] == "["] == [f"[0-63] {line}" for line in ("on", *range(80))]
        left = notebook.run("%%distributed\n(len(globals().get('kept', ())), all_reduce(rank))")
        assert left.lines == [f"[0-4,6-39,41-63] ({CELLS}, {SUM})", f"[5,40] (0, {SUM})"]
        notebook.run("%distributed stop")
