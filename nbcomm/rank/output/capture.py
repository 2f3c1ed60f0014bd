"""What a rank shows, on its way to the link: text, displays and results, in the order it was made.

Why this is not simply `sys.stdout = something`:

* A child process or C code writes to descriptors 1 and 2, not to Python's streams. While cells can run, these
descriptors refer to two files. Files, not pipes: a pipe fills, and C code that holds the GIL while it writes would then
wait for a reader that waits for the GIL. Before each Python write, and at the end of a cell, new content of the files
is taken first, so that the order stays the true one.
* A thread may go on printing after its cell has ended. Each text belongs to the cell that started the thread: a task
inherits that from its context, a thread from the thread that started it.
* A rank may also serve ipyparallel's own client, whose cells must keep their own output: what belongs to no cell of
nbcomm goes elsewhere.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from ...node import unsaid
from ...protocol import Clear, CommFromRank, Display, Item, Text
from ...torch_versions import without_gloos_lines
from . import output_widget
from .captured_file import CapturedFile
from .carriage_returns import settle_returns
from .streams import OutSide, Side, restore_missing

_size = os.lseek  # a quarter of the time of `fstat`
_run: contextvars.ContextVar[int | None] = contextvars.ContextVar("nbcomm_run", default=None)

_STARTED_BY = "_nbcomm_run"
"""The attribute of a thread that holds the cell run whose code started it."""

NOBODY = -1
"""The cell run of output that is dropped."""

_LATE_LINE = 1.0
"""Seconds that late output which lacks the end of its line waits for it."""

_Key = tuple[int, str, bool]
"""Whose text it is: the cell run, the stream, and whether the run has ended."""


class Capture:
    """The collector of what the cells of one rank show.

    Args:
        files: for "stdout" and "stderr", the files of their descriptors after `claim_descriptors`.
        say: called with a sentence when what descriptors get is lost, or may be.

    Attributes:
        lock: held while anything is added or taken.
        followers: called, under the lock, before the pending items are taken.
        streams: Python's sides of stdout and stderr, by name.
    """

    def __init__(self, files: dict[str, Path], say: Callable[[str], object] = lambda _: None) -> None:
        self.lock = threading.RLock()  # a signal handler may print while the main thread is in here
        self._pending: list[tuple[int, Item]] = []
        self._text: list[str] = []
        self._text_key: _Key | None = None
        self._begun: dict[_Key, tuple[float, str]] = {}  # late lines without their end, and since when
        self._updates: dict[str, int] = {}  # of comms: which pending item may still get new values
        self.followers: list[Callable[[], None]] = []
        self.streams: dict[str, Side] = {}
        self._running: int | None = None
        self._last: int | None = None
        self._files = [CapturedFile(at, name, files[name], say) for at, name in ((1, "stdout"), (2, "stderr"))]
        self._claimed: list[CapturedFile] = []
        self._unkept: dict[str, list[str]] = {name: [] for name in files}  # what is in no file yet
        self._noted: tuple[int, tuple[int, int]] | None = None
        self._is_noted = False  # in the file, too
        self._note = -1
        self._note_path = files["stdout"].with_suffix(".said")
        self.taken: tuple[int, int] | None = None
        """How much of the files was taken."""
        self.in_child = False
        """True in a process that a cell forked: it has no link, and writes to the descriptors."""
        os.register_at_fork(before=self.lock.acquire, after_in_parent=self.lock.release, after_in_child=self._forked)

    def _forked(self) -> None:
        self.in_child = True
        self.lock.release()

    def claim_descriptors(self) -> None:
        """Capture what is written to descriptors 1 and 2, from now on; repeated calls change nothing."""
        for file in self._files:
            file.claim()
        self._claimed = self._files
        if self._note < 0:
            with suppress(OSError):  # no further file can be made: what it has not said then ends with the process
                self._note = os.open(self._note_path, os.O_WRONLY | os.O_CREAT, 0o600)
                self.note_said((self._files[0].taken, self._files[1].taken))

    def stream(self, name: str, otherwise: TextIO) -> Side:
        """Make a text stream that captures what belongs to a cell and passes the rest to another stream."""
        self.streams[name] = stream = OutSide(self, name, otherwise)
        return stream

    @contextmanager
    def of_run(self, run: int) -> Iterator[None]:
        """Attribute what this context shows in the block to that cell run."""
        restore_missing()
        with self.lock:
            self._take_descriptors()  # earlier text belongs to the cell before
            for file in self._files:
                file.heal()
            for stream in self.streams.values():
                stream.open_again()
            self._running = self._last = run
            if self._noted is not None:
                self.note_said(self._noted[1])
        token, back = _run.set(run), output_widget.outside()
        try:
            yield
        finally:
            back()
            _run.reset(token)

    @contextmanager
    def on_behalf_of(self, run: int) -> Iterator[None]:
        """Attribute what this context shows in the block to that cell run, which has ended: it is late."""
        token, back = _run.set(run), output_widget.outside()
        try:
            yield
        finally:
            back()
            _run.reset(token)

    def keep(self, stream: str) -> None:
        """Write what was printed to the stream's file: from now on it is shown, whatever ends the process."""
        with self.lock:
            texts, self._unkept[stream] = self._unkept[stream], []
            for file in self._files:
                if texts and file.name == stream:
                    file.keep("".join(texts))

    def note_said(self, said: tuple[int, int]) -> None:
        """Note down how much of the files is said: what is behind it is shown if the process ends now."""
        with self.lock:
            for file, size in zip(self._files, said, strict=True):
                if size > file.due:
                    file.release(size)
            wanted = self._last or 0, said
            if self._note >= 0 and not (self._is_noted and self._noted == wanted):
                self._noted, self._is_noted = wanted, unsaid.note(self._note, *wanted)

    def attribution(self) -> int | None:
        """Return the cell run that the current code belongs to; None if it is not nbcomm's."""
        run = _run.get()
        if run is not None:
            return run
        run = run_of_thread()
        unknown = threading._DummyThread  # noqa: SLF001 - there is no public name
        if run is None and isinstance(threading.current_thread(), unknown):
            return self._last  # a thread made by C code: its cell is unknown
        return run

    def is_late(self, run: int) -> bool:
        """Return whether a cell run has ended."""
        return run != self._running

    def is_apart(self, run: int) -> bool:
        """Return whether what this context shows does not go where the running cell's output goes."""
        return self.is_late(run) or output_widget.current() is not None

    def write(self, run: int, stream: str, text: str) -> None:
        """Add text that a cell printed."""
        if run == NOBODY:
            return
        with self.lock:
            outlet = output_widget.current()  # in the lock, as in the others: else it may close before it takes
            if outlet is not None:
                outlet.take(Text(stream, text))
                return
            for file in self._claimed:  # in this way, without a call: each print does it twice or more
                if _size(file.own, 0, os.SEEK_END) != file.known:
                    self._take_descriptors()
                    break
            if (run, stream, run != self._running) != self._text_key:
                self._append_text(run, stream, text)
            else:
                self._text.append(text)
            if run == self._last:
                self._unkept[stream].append(text)

    def show(self, run: int, item: Item) -> None:
        """Add an item other than text."""
        if run == NOBODY:
            return
        with self.lock:
            outlet = output_widget.current()
            if outlet is not None:
                outlet.take(item)
                return
            self._take_descriptors()
            self._close_text()
            self._pending.append((run, item))

    def fail(self, name: str, message: str, lines: list[str]) -> bool:
        """Add an exception's traceback if this context's output does not go to its cell; otherwise return False."""
        with self.lock:
            outlet = output_widget.current()
            if outlet is not None:
                outlet.fail(name, message, lines)
        return outlet is not None

    def tell(self, run: int, item: CommFromRank) -> None:
        """Add a comm's message. Of a widget's updates that wait together one is sent, with the last values."""
        if run == NOBODY:
            return
        with self.lock:
            self._close_text()
            if item.kind != "msg" or item.data.get("method") != "update" or item.buffers:
                self._updates.clear()  # a widget may refer to one that was opened before: nothing passes this one
                self._pending.append((run, item))
                return
            at = self._updates.setdefault(item.comm, len(self._pending))
            if at == len(self._pending):
                self._pending.append((run, item))
                return
            of_run, before = self._pending[at]
            assert isinstance(before, CommFromRank)  # noqa: S101 - for mypy: nothing else is noted there
            state = {**before.data["state"], **item.data["state"]}
            self._pending[at] = of_run, msgspec.structs.replace(before, data={**before.data, "state": state})

    def take(self, *, end: bool = False) -> list[tuple[int, list[Item]]]:
        """Take all pending items, grouped by cell run, in order.

        Args:
            end: the running cell has ended; what C code still holds in its own buffer is written out too.
        """
        with self.lock:
            for follower in [*self.followers]:
                follower()
            if end:
                for file in self._files:
                    file.flush_c()
            for name in self._unkept:
                self.keep(name)  # what is said is in the file, too: how much of that is said tells all
            self._take_descriptors(final=end)
            for file in self._files:
                file.reserve()
            self.taken = self._files[0].taken, self._files[1].taken
            self._close_text()
            self._let_begun_lines_go()
            if end:
                self._running = None
            pending, self._pending = self._pending, []
            self._updates.clear()
        grouped: list[tuple[int, list[Item]]] = []
        for run, item in pending:
            if not grouped or grouped[-1][0] != run:
                grouped.append((run, []))
            grouped[-1][1].append(item)
        return grouped

    def _take_descriptors(self, *, final: bool = False) -> None:
        if self._last is None:
            return
        for file in self._files:
            size = file.size()  # what comes later is left for the next time: a child may never stop writing
            while text := file.read(size, final=final):
                if shown := without_gloos_lines(text):  # a newcomer would ask what is wrong with them
                    self._append_text(self._last, file.name, shown)
            file.note_read(size)

    def _append_text(self, run: int, stream: str, text: str) -> None:
        key = (run, stream, self.is_late(run))
        if key != self._text_key:
            self._close_text()
            self._text_key = key
        self._text.append(text)

    def _close_text(self) -> None:
        if self._text and self._text_key is not None:
            text = "".join(self._text)
            self._text = []
            if self._text_key[2]:
                text = self._cut_late(self._text_key, text)
            self._add_text(self._text_key, text)

    def _cut_late(self, key: _Key, text: str) -> str:
        """Hold back the line that late text ends in: a print that is under way comes in several parts."""
        since, begun = self._begun.pop(key, (time.monotonic(), ""))
        lines, newline, rest = (begun + text).rpartition("\n")
        if rest:
            self._begun[key] = (time.monotonic() if newline else since), rest
        return lines + newline

    def _let_begun_lines_go(self) -> None:
        for key, (since, begun) in [*self._begun.items()]:
            if time.monotonic() - since > _LATE_LINE:
                del self._begun[key]
                self._add_text(key, begun)

    def _add_text(self, key: _Key, text: str) -> None:
        run, stream, late = key
        if text:
            self._pending.append((run, Text(stream, settle_returns(text), late)))


def run_of_thread() -> int | None:
    """Return the cell run of the current code: its context's, or its starting thread's; None if there is none."""
    run = _run.get()
    return getattr(threading.current_thread(), _STARTED_BY, None) if run is None else run


@contextmanager
def unheard() -> Iterator[None]:
    """Drop what this context, and the threads that it starts, print and display in the block."""
    token = _run.set(NOBODY)
    try:
        yield
    finally:
        _run.reset(token)


def follow_threads() -> None:
    """Make each thread remember the cell run of the thread that started it."""
    start = threading.Thread.start

    def start_and_remember(thread: threading.Thread) -> None:
        setattr(thread, _STARTED_BY, run_of_thread())
        output_widget.inherit(thread)
        start(thread)

    threading.Thread.start = start_and_remember  # type: ignore[assignment,method-assign]


def route_displays(publisher: Any, capture: Capture) -> None:
    """Make an IPython display publisher pass what belongs to a cell of nbcomm to the capture."""
    publish, clear_output = publisher.publish, publisher.clear_output

    def route(data: dict[str, Any], metadata: dict[str, Any] | None = None, *args: Any, **kwargs: Any) -> None:
        run = capture.attribution()
        if run is None:
            publish(data, metadata, *args, **kwargs)
            return
        transient = kwargs.get("transient") or {}
        identity, update = str(transient.get("display_id", "")), bool(kwargs.get("update"))
        # Keyword names in Jupyter's messages may differ from those in Python.
        named, about = ({str(name): value for name, value in each.items()} for each in (data, metadata or {}))
        capture.show(run, Display(named, about, identity, update, capture.is_late(run)))

    def route_clear(wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        run = capture.attribution()
        if run is None:
            clear_output(wait)
        else:
            capture.show(run, Clear(wait))

    publisher.publish, publisher.clear_output = route, route_clear
