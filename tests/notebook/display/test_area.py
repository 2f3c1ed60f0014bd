"""Areas: output lands in the cell it belongs to, whenever it comes and from whichever thread."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from nbcomm.notebook.display.area import TerminalArea, current_area
from nbcomm.notebook.output.cell_output import CellOutput
from nbcomm.protocol import Display, Text

from ..recording_area import RecordingArea

_DEADLINE = 60


class Notebook:
    """A real kernel, and the outputs of its cells by message, as a front end keeps them."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._areas: dict[str, RecordingArea] = {}
        self._idle: set[str] = set()

    def run(self, code: str) -> RecordingArea:
        """Run a cell to its end; its area goes on filling while later cells run."""
        message = self._client.execute(code, store_history=True)
        area = self._areas[message] = RecordingArea()
        self.wait(lambda: message in self._idle)
        return area

    def wait(self, done: Any) -> None:
        """Take messages until a condition holds."""
        deadline = time.monotonic() + _DEADLINE
        while not done():
            message = self._client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
            self._take(message["parent_header"].get("msg_id"), message["msg_type"], message["content"])

    def _take(self, cell: str, kind: str, content: dict[str, Any]) -> None:
        area = self._areas.get(cell)
        if kind == "update_display_data":
            for each in self._areas.values():
                each.update(content["data"], content["metadata"], content["transient"]["display_id"])
        elif area is None:
            return
        elif kind == "stream":
            area.stream(content["name"], content["text"])
        elif kind == "display_data":
            area.display(content["data"], content["metadata"], content["transient"].get("display_id", ""))
        elif kind == "clear_output":
            area.clear(wait=content["wait"])
        elif kind == "error":
            area.stream("error", "\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            self._idle.add(cell)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager = KernelManager()
    # This interpreter, whatever kernels are installed here.
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_DEADLINE)
        notebook = Notebook(client)
        notebook.run(
            "import threading, time\n"
            "from nbcomm.protocol import Text, Display, Result, Clear\n"
            "from nbcomm.notebook.output.cell_output import CellOutput\n"
            "def on_thread(function, *args):\n"
            "    thread = threading.Thread(target=function, args=args)\n"
            "    thread.start()\n"
            "    thread.join()\n"
        )
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.world
def test_a_cell_shows_its_ranks_output_and_nothing_else(notebook):
    area = notebook.run(
        "print('before')\n"
        "out = CellOutput(range(4))\n"
        "for rank in range(4):\n"
        "    on_thread(out.feed, rank, [Text('stdout', 'same\\n'), Text('stderr', f'{rank > 1}\\n')])\n"
        "    on_thread(out.feed, rank, [Display({'text/html': '<b>x</b>', 'text/plain': 'x'})])\n"
        "out.render()\n"
        "out.close()\n"
        "print('after')\n"
    )
    assert area.shown == [
        "before\n[0-3] same\n",
        "[0-1] False\n[2-3] True\n",
        "[0-3]\n",
        "<text/html=<b>x</b>, text/plain=x>",
        "after\n",
    ]


@pytest.mark.world
def test_late_output_lands_in_its_own_cell_after_another_has_run(notebook):
    first = notebook.run("out = CellOutput([0])\nout.feed(0, [Text('stdout', 'first\\n')])\nout.close()")
    second = notebook.run(
        "on_thread(out.feed, 0, [Text('stdout', 'from a thread\\n'), Text('stderr', 'in red\\n')])\nprint('second')"
    )
    out_of_no_cell = notebook.run(
        "timer = threading.Timer(0.05, out.feed, [0, [Text('stdout', 'when nothing runs\\n')]])\ntimer.start()"
    )
    notebook.wait(lambda: "when nothing runs" in first.text)
    assert first.shown == [
        "[0] first\n[0] (late) from a thread\n",
        "[0] (late) in red\n",
        "[0] (late) when nothing runs\n",
    ]
    assert second.shown == ["second\n"]
    assert out_of_no_cell.shown == []


@pytest.mark.world
def test_live_output_is_there_while_the_cell_runs_and_stays_in_place(notebook):
    area = notebook.run(
        "now = 0.0\n"
        "out = CellOutput(range(2), clock=lambda: now)\n"
        "out.feed(1, [Text('stdout', 'ahead\\n')])\n"
        "now = 1.0\n"
        "out.render()\n"
        "out.feed(0, [Text('stdout', 'ahead\\nand on\\n')])\n"
        "now = 2.0\n"
        "out.render()\n"
        "out.close()\n"
    )
    assert area.shown == ["[0-1] ahead\n[0] and on"]
    assert [call[0] for call in area.calls].count("display") == 1


@pytest.mark.world
def test_a_display_is_updated_from_a_later_cell(notebook):
    first = notebook.run(
        "out = CellOutput([0])\nout.feed(0, [Display({'text/plain': '0'}, display_id='h')])\nout.close()"
    )
    second = notebook.run(
        "out = CellOutput([0])\nout.feed(0, [Display({'text/plain': '1'}, display_id='h', update=True)])\nout.close()"
    )
    assert (first.shown, second.shown) == (["[0] 1"], [])


@pytest.mark.world
def test_clearing_clears_the_cell(notebook):
    area = notebook.run(
        "out = CellOutput([0])\n"
        "for step in range(3):\n"
        "    out.feed(0, [Clear(True), Text('stdout', f'step {step}\\n')])\n"
        "    out.render()\n"
        "out.close()"
    )
    assert area.shown == ["[0] step 2\n"]


@pytest.mark.world
def test_captured_output_is_captured(notebook):
    area = notebook.run(
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as captured:\n"
        "    out = CellOutput([0])\n"
        "    out.feed(0, [Text('stdout', 'a\\n'), Display({'text/html': 'b', 'text/plain': 'c'})])\n"
        "    out.close()\n"
        "print(captured.stdout.split(), captured.outputs[-1].data)"
    )
    assert area.shown == ["['[0]', 'a', '[0]'] {'text/html': 'b', 'text/plain': 'c'}\n"]


def test_plain_python_prints():
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        output = CellOutput(range(2))
    for rank in range(2):
        output.feed(rank, [Text("stdout", "a\n"), Text("stderr", "b\n")])
        output.feed(rank, [Display({"text/plain": "a plot", "image/png": "…"}), Display({"image/png": "…"})])
    output.close()
    assert stdout.getvalue() == "[0-1] a\n[0-1]\na plot\n[0-1]\n<image/png>\n"
    assert stderr.getvalue() == "[0-1] b\n"


def test_outside_ipython_the_area_is_the_terminal():
    area = current_area()
    assert isinstance(area, TerminalArea)
    assert not area.updates


@pytest.mark.world
def test_ipython_in_a_terminal_prints_settled_lines():
    code = (
        "from nbcomm.notebook.output.cell_output import CellOutput\n"
        "from nbcomm.protocol import Text, Display\n"
        "out = CellOutput(range(2))\n"
        "for rank in range(2):\n"
        "    out.feed(rank, [Text('stdout', 'a\\n'), Display({'text/html': 'b', 'text/plain': 'a table'})])\n"
        "out.render(); out.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", code],
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=True,
    )
    assert done.stdout == "[0-1] a\n[0-1]\na table\n"


def test_a_recording_is_what_a_notebook_is_left_with():
    area = RecordingArea()
    area.stream("stdout", "a\n")
    area.clear(wait=True)
    assert area.text == "a\n"
    area.display({"text/plain": "0"}, {}, "id")
    area.update({"text/plain": "1"}, {}, "id")
    assert area.shown == ["1"]
    area.clear(wait=False)
    assert area.shown == []
    assert [call[0] for call in area.calls] == ["stream", "clear", "display", "update", "clear"]
