"""A real notebook kernel for tests: run a cell, see what a reader would see.

Outputs are kept as a front end keeps them: streams are joined, updates of a display replace it, and what
arrives after its cell has ended still lands in that cell.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.manager import KernelManager

from .. import autopsy

_COLOUR = re.compile(r"\x1b\[[\d;]*m")

_CELLS, _LINES = 40, 30
"""So many cells of a page are told, and lines of each."""

SESSION = "from nbcomm.notebook.session import registry\nsession = registry.current()"
"""A cell that gives the notebook its session."""

Kind = TypeVar("Kind", bound="Notebook")


def with_ranks(folder: Path, ranks: int = 4, **environment: str) -> AbstractContextManager[Notebook]:
    """A notebook in a folder, with ranks on the CPU; its kernel is shut down in the end."""
    return started(Notebook(str(folder), **environment), ranks)


@contextmanager
def started(notebook: Kind, ranks: int) -> Iterator[Kind]:
    """Start ranks on the CPU in a notebook, whose kernel is shut down in the end."""
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run(f"%distributed start -n {ranks}", timeout=120)
        yield notebook
    finally:
        notebook.close()


@contextmanager
def opened(folder: Path, *cells: str) -> Iterator[Notebook]:
    """A notebook in a folder that has loaded the extension and run these cells; its kernel is shut down in the end."""
    notebook = Notebook(str(folder))
    try:
        notebook.run("%load_ext nbcomm")
        for code in cells:
            notebook.run(code, timeout=350)
        yield notebook
    finally:
        notebook.close()


class Shown(str):
    """A text that a page shows: it has a sentence also where that goes on in another line."""

    __slots__ = ()

    @property
    def flat(self) -> str:
        """The text in one line."""
        return _one_line(self)

    def __add__(self, other: str) -> Shown:
        return Shown(str.__add__(self, other))

    def __contains__(self, part: str) -> bool:
        return str.__contains__(self, part) or (bool(part.split()) and _one_line(part) in self.flat)

    def startswith(self, part: str) -> bool:  # type: ignore[override]
        return str.startswith(self, part) or self.flat.startswith(_one_line(part))

    def endswith(self, part: str) -> bool:  # type: ignore[override]
        return str.endswith(self, part) or self.flat.endswith(_one_line(part))

    def count(self, part: str) -> int:  # type: ignore[override]
        return max(str.count(self, part), self.flat.count(_one_line(part)) if part.split() else 0)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass
class Cell:
    """One executed cell and its outputs."""

    message: str
    code: str = ""
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
    def text(self) -> Shown:
        """Everything but the error as plain text, in order."""
        return Shown("".join(_plain(output) for output in self.outputs if output["kind"] != "error"))

    @property
    def lines(self) -> list[str]:
        """The lines of `text`."""
        return self.text.splitlines()

    def stream(self, name: str) -> Shown:
        """What went to stdout or stderr."""
        return Shown("".join(output["text"] for output in self.outputs if output["kind"] == name))

    @property
    def error(self) -> dict[str, Any] | None:
        """ename, evalue and traceback of the cell's error, if it failed."""
        return next((output for output in self.outputs if output["kind"] == "error"), None)

    @property
    def error_text(self) -> Shown:
        """The error as shown, without colours; empty if there was none."""
        return Shown(_COLOUR.sub("", "\n".join(self.error["traceback"])) if self.error else "")


@dataclass
class Box:
    """An input box: what stands before it, and whether what is typed is hidden."""

    prompt: str
    hidden: bool = False


def transcript(cell: Cell) -> str:
    """What a cell shows and what was typed, without what differs from run to run, and without colours."""
    text = re.sub(r"<ipython-input-[\w-]+>", "<cell>", _COLOUR.sub("", cell.text))
    text = re.sub(r"^waiting for .*\n", "", text, flags=re.MULTILINE)  # it appears when five seconds are over
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def _indented(text: str, margin: str) -> str:
    """The last lines of a text, each behind a margin."""
    lines = text.splitlines()
    return "\n".join(f"{margin}{line[:200]}" for line in ["…"] * (len(lines) > _LINES) + lines[-_LINES:])


def _plain(output: dict[str, Any]) -> str:
    if "text" in output:
        return str(output["text"])
    text = str(output["data"].get("text/plain", ""))
    return text if text.endswith("\n") or not text else text + "\n"


def comes_last(late: int, call: str, run: str) -> str:
    """A cell's code in which a rank calls torch one second after all others, however slow they are.

    Args:
        late: the rank.
        call: a call of torch that returns at once.
        run: another text for each run in a world.
    """
    return f"""
import time
known, others = dist.distributed_c10d._get_default_store(), [r for r in range(world_size) if r != {late}]
if rank == {late}:
    known.wait([f"{{r}} has called: {run}" for r in others])
    time.sleep(1)
work = {call}
known.set(f"{{rank}} has called: {run}", "1")
_ = work.wait()
"""


class Notebook:
    """A kernel of this Python, its own IPython directory, and the cells that it ran."""

    def __init__(self, directory: str, *, kernel: str = "python3", **environment: str) -> None:
        # By Unix sockets: TCP ports are chosen before the kernel binds them, and among many processes another one may
        # have them by then.
        self._place = tempfile.mkdtemp(prefix="k-")
        place = os.path.join(self._place, "k.json")  # noqa: PTH118 - jupyter_client takes a text
        self.manager = KernelManager(kernel_name=kernel, transport="ipc", connection_file=place)
        # A kernel that is killed because its shutdown takes long leaves its world to whoever comes next.
        self.manager.shutdown_wait_time = 60.0
        if kernel == "python3":
            self.manager.kernel_spec.argv[0] = sys.executable
        self._environment = {**os.environ, "IPYTHONDIR": directory, **environment}
        self._environment.pop("PYTEST_CURRENT_TEST", None)
        self.manager.start_kernel(env=self._environment, cwd=directory)
        self.cells: dict[str, Cell] = {}
        autopsy.remember(self)
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.cells = {}
        try:
            self.client.wait_for_ready(timeout=60)
        except RuntimeError as error:
            raise autopsy.OutOfTimeError(str(error)) from None
        self._displays: dict[str, list[dict[str, Any]]] = {}

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.pid)

    def submit(self, code: str, *, stdin: bool = True) -> Cell:
        """Send a cell without waiting for it; without ``stdin`` as a front end that has no input box."""
        cell = Cell(self.client.execute(code, store_history=True, allow_stdin=stdin, stop_on_error=False), code)
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

    def box(self, cell: Cell, timeout: float = 60.0) -> Box:
        """Wait for an input box."""
        box = self._box_or_end(cell, timeout)
        assert box is not None, f"the cell ended without a box: {cell.text}\n{cell.error_text}"
        return box

    def answer(self, cell: Cell, prompt: str, text: str) -> Box:
        """Wait for the box with this prompt and type a line into it, which stays to be seen as in a front end."""
        box = self.box(cell)
        assert box.prompt == prompt, f"{box.prompt!r} in place of {prompt!r}; the cell showed {cell.text}"
        self.type(cell, box, text)
        return box

    def type(self, cell: Cell, box: Box, text: str) -> None:
        """Type a line into a box that is open."""
        cell.add("stream", {"name": "stdin", "text": f"{box.prompt}{'····' if box.hidden else text}\n"})
        self.client.input(text)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Let a question wait for those of lower ranks however long they take: this machine may be busy."""
        at = "__import__('nbcomm.notebook.execution.input_prompts', fromlist=[''])._IN_ORDER"
        self.run(f"_in_order, {at} = {at}, 60.0")
        try:
            yield
        finally:
            self.end_all()  # where the test has failed at a box
            self.run(f"{at} = _in_order")

    def forget_boxes(self) -> None:
        """Nobody has typed into these boxes, and nobody will."""
        with suppress(queue.Empty):
            while True:
                self.client.get_stdin_msg(timeout=0)

    def play(self, code: str, shown: str, timeout: float = 60.0) -> Cell:
        """Run a cell, and type what is typed in a transcript; up to each box it must show what the transcript does."""
        cell, at = self.submit(code), 0
        while (box := self._box_or_end(cell, timeout)) is not None:
            at = f"\n{shown}".find(f"\n{box.prompt}", at)
            assert at >= 0, f"the transcript has no {box.prompt!r} behind {transcript(cell)!r}"
            self.until(lambda upto=shown[:at]: transcript(cell) == upto, timeout, f"not {shown[:at]!r}:", cell)
            text = shown[at + len(box.prompt) :].partition("\n")[0]
            self.type(cell, box, text)
            at += len(box.prompt + text)
        return cell

    def _box_or_end(self, cell: Cell, timeout: float) -> Box | None:
        opened: list[Box] = []

        def look() -> bool:
            with suppress(queue.Empty):
                content = self.client.get_stdin_msg(timeout=0)["content"]
                opened.append(Box(content["prompt"], hidden=content["password"]))
            return bool(opened) or cell.idle

        self.until(look, timeout, "neither a box nor the end; so far the cell showed:", cell)
        return opened[0] if opened else None

    def until(self, condition: Any, timeout: float, complaint: str, cell: Cell | None = None) -> None:
        """Take messages until a condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            shown = f"{cell.text}\n{cell.error_text}" if cell else ""
            if left <= 0:
                raise autopsy.OutOfTimeError(f"{complaint} {shown}")
            try:
                self._take(self.client.get_iopub_msg(timeout=min(left, 0.1)))
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

    def shown(self) -> str:
        """All that a reader would see, cell by cell, for whoever wonders why a test has run out of its time."""
        cells = list(self.cells.values())
        shown = [
            f"cell {place}, {'ended' if cell.idle else 'NOT ENDED'}:\n{_indented(cell.code, '  >>> ')}\n"
            f"{_indented(_COLOUR.sub('', cell.text) + cell.error_text, '      ')}"
            for place, cell in list(enumerate(cells, 1))[-_CELLS:]
        ]
        left_out = [f"({len(cells) - _CELLS} cells before these)"] * (len(cells) > _CELLS)
        return "\n".join([f"the notebook of kernel {self.pid}:", *left_out, *shown])

    def interrupt(self) -> None:
        """Press the notebook's stop button."""
        self.manager.interrupt_kernel()

    def interrupted(self, code: str, *, once: str = "on", times: int = 1, timeout: float = 45.0) -> Cell:
        """Run a cell, press stop once it shows something, and see it end with KeyboardInterrupt."""
        cell = self.submit(code)
        self.until(lambda: once in cell.text, 60, "the cell did not begin", cell)
        for _ in range(times):
            self.interrupt()
        self.finish(cell, timeout)
        assert cell.error is not None, cell.text
        assert cell.error["ename"] == "KeyboardInterrupt"
        return cell

    def end_all(self) -> None:
        """Interrupt what a failed test has left running, whether or not it shows an input box."""
        for cell in self.cells.values():
            if not cell.idle:
                self.interrupt()
                self.finish(cell)
        self.forget_boxes()

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
        autopsy.forget(self)
        if not self.manager.has_kernel:
            return
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        shutil.rmtree(self._place, ignore_errors=True)
