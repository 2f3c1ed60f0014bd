"""A real notebook kernel for tests: run a cell, see what a reader would see.

Outputs are kept as a front end keeps them: streams are joined, updates of a display replace it, and what
arrives after its cell has ended still lands in that cell.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@contextmanager
def with_ranks(folder: Path, ranks: int = 4) -> Iterator[Notebook]:
    """A notebook in a folder, with ranks on the CPU; its kernel is shut down in the end."""
    notebook = Notebook(str(folder))
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run(f"%distributed start -n {ranks}", timeout=120)
        yield notebook
    finally:
        notebook.close()


@dataclass
class Cell:
    """One executed cell and its outputs."""

    message: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    idle: bool = False
    cleared: bool = False

    def clear(self) -> None:
        """Forget the outputs so far."""
        self.outputs.clear()
        self.cleared = False

    def add(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Keep an output; text goes on where text of the same stream ended."""
        if kind == "stream" and self.outputs and self.outputs[-1]["kind"] == content["name"]:
            self.outputs[-1]["text"] += content["text"]
            return self.outputs[-1]
        self.outputs.append({**content, "kind": content["name"] if kind == "stream" else kind})
        return self.outputs[-1]

    @property
    def text(self) -> str:
        """Everything but the error as plain text, in order."""
        return "".join(_plain(output) for output in self.outputs if output["kind"] != "error")

    @property
    def lines(self) -> list[str]:
        """The lines of `text`."""
        return self.text.splitlines()

    def stream(self, name: str) -> str:
        """What went to stdout or stderr."""
        return "".join(output["text"] for output in self.outputs if output["kind"] == name)

    @property
    def error(self) -> dict[str, Any] | None:
        """ename, evalue and traceback of the cell's error, if it failed."""
        return next((output for output in self.outputs if output["kind"] == "error"), None)

    @property
    def error_text(self) -> str:
        """The error as shown, without colours; empty if there was none."""
        return _COLOUR.sub("", "\n".join(self.error["traceback"])) if self.error else ""


def _plain(output: dict[str, Any]) -> str:
    if "text" in output:
        return str(output["text"])
    text = str(output["data"].get("text/plain", ""))
    return text if text.endswith("\n") or not text else text + "\n"


class Notebook:
    """A kernel of this Python, its own IPython directory, and the cells that it ran."""

    def __init__(self, directory: str, *, kernel: str = "python3", **environment: str) -> None:
        self.manager = KernelManager(kernel_name=kernel)
        if kernel == "python3":
            self.manager.kernel_spec.argv[0] = sys.executable
        self._environment = {**os.environ, "IPYTHONDIR": directory, **environment}
        self._environment.pop("PYTEST_CURRENT_TEST", None)
        self.manager.start_kernel(env=self._environment, cwd=directory)
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.cells: dict[str, Cell] = {}
        self._displays: dict[str, list[dict[str, Any]]] = {}

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.pid)

    def submit(self, code: str) -> Cell:
        """Send a cell without waiting for it."""
        cell = Cell(self.client.execute(code, store_history=True))
        self.cells[cell.message] = cell
        return cell

    def run(self, code: str, timeout: float = 60.0, *, fails: bool = False) -> Cell:
        """Run a cell to its end; a cell that fails, or fails to, is the test's failure."""
        cell = self.finish(self.submit(code), timeout)
        if fails:
            failed = cell.error is not None or "UsageError" in cell.stream("stderr")
            assert failed, f"no error from {code!r}: {cell.text}"
        else:
            assert cell.error is None, f"{code!r} failed:\n{cell.error_text}"
        return cell

    def finish(self, cell: Cell, timeout: float = 60.0) -> Cell:
        """Wait for the end of a cell."""
        self.until(lambda: cell.idle, timeout, f"cell {cell.message} did not end; so far it showed:", cell)
        return cell

    def until(self, condition: Any, timeout: float, complaint: str, cell: Cell | None = None) -> None:
        """Take messages until a condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            shown = f"{cell.text}\n{cell.error_text}" if cell else ""
            assert left > 0, f"{complaint} {shown}"
            try:
                self._take(self.client.get_iopub_msg(timeout=min(left, 0.2)))
            except queue.Empty:
                assert self.manager.is_alive(), f"the kernel died; {complaint} {shown}"

    def _take(self, message: dict[str, Any]) -> None:
        content, kind = message["content"], message["msg_type"]
        if kind == "update_display_data":
            self._update(content)
        cell = self.cells.get(message["parent_header"].get("msg_id"))
        if cell is None:
            return
        if kind == "execute_input":
            cell.number = content["execution_count"]
        elif kind == "status":
            cell.idle |= content["execution_state"] == "idle"
        elif kind == "clear_output":
            cell.cleared = True
            if not content["wait"]:
                cell.clear()
        elif kind in ("stream", "display_data", "execute_result", "error"):
            if cell.cleared:
                cell.clear()
            output = cell.add(kind, content)
            if identity := content.get("transient", {}).get("display_id"):
                self._displays.setdefault(identity, []).append(output)

    def _update(self, content: dict[str, Any]) -> None:
        for output in self._displays.get(content["transient"]["display_id"], []):
            output["data"] = content["data"]

    def interrupt(self) -> None:
        """Press the notebook's stop button."""
        self.manager.interrupt_kernel()

    def interrupted(self, code: str, *, once: str = "on", times: int = 1, timeout: float = 15.0) -> Cell:
        """Run a cell, press stop once it shows something, and see it end with KeyboardInterrupt."""
        cell = self.submit(code)
        self.until(lambda: once in cell.text, 20, "the cell did not begin", cell)
        for _ in range(times):
            self.interrupt()
        self.finish(cell, timeout)
        assert cell.error is not None, cell.text
        assert cell.error["ename"] == "KeyboardInterrupt"
        return cell

    def restart(self) -> None:
        """Restart the kernel, as the notebook's menu does."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=False)
        self._connect()

    def begin_again(self) -> None:
        """Start another kernel in place of one that was killed."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self._connect()

    def close(self) -> None:
        """Shut the kernel down, as closing the notebook does."""
        if not self.manager.has_kernel:
            return
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
