"""Python's sides of a rank's streams: `sys.stdin`, `sys.stdout` and `sys.stderr`, as programs expect them.

They are what an ordinary process has: `io.TextIOWrapper` with bytes below, which a script may wrap, reconfigure, detach
or close. What a cell or a script does to them ends with it: the next one finds them open.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

NAMES = ("stdin", "stdout", "stderr")


class Collector(Protocol):
    """What knows whose code uses a stream, and takes what it writes."""

    in_child: bool

    def attribution(self) -> int | None:
        """Return the cell run that the current code belongs to; None if it is not nbcomm's."""

    def is_apart(self, run: int) -> bool:
        """Return whether what this context shows does not go where the running cell's output goes."""

    def write(self, run: int, stream: str, text: str) -> None:
        """Add text that a cell printed."""

    def keep(self, stream: str) -> None:
        """Write what was printed to the stream's file: from now on it is shown, whatever ends the process."""


class Side(io.TextIOWrapper):
    """Python's side of one of a rank's streams; it has no terminal.

    Args:
        capture: knows whose code uses it.
        name: "stdin", "stdout" or "stderr".
        otherwise: the stream for what belongs to no cell of nbcomm.
        binary: the bytes below it.
    """

    def __init__(self, capture: Collector, name: str, otherwise: TextIO, binary: Bytes) -> None:
        self._capture = capture
        self._stream = name
        self._otherwise = otherwise
        self._bytes = binary
        super().__init__(cast("Any", binary), **self._format)
        self._usual = self.encoding, self.errors, self.line_buffering
        vars(self)["mode"] = "r" if name == "stdin" else "w"  # the interpreter, too, sets this one by hand

    @property
    def _format(self) -> dict[str, Any]:
        errors = "backslashreplace" if self._stream == "stderr" else "strict"  # for who asks: no text is refused
        return {"encoding": "utf-8", "errors": errors, "line_buffering": self._stream == "stderr"}

    def lead_to(self, otherwise: TextIO) -> None:
        """Pass what belongs to no cell of nbcomm to another stream from now on."""
        self._otherwise = otherwise

    def open_again(self) -> None:
        """Undo what code before did to it."""
        self._bytes.shut = False
        if self._stream != "stdin" and (self.encoding, self.errors, self.line_buffering) != self._usual:
            self.reconfigure(**self._format)

    def __getattr__(self, name: str) -> Any:
        # ipykernel tells its own streams which message they answer, and asks them for more; they stay reachable.
        return getattr(self._otherwise, name)

    def isatty(self) -> bool:
        """Return False: there is no terminal."""
        return False

    def detach(self) -> Any:
        """Return the bytes below it, for another wrapper; it stays usable, for the cells to come."""
        self.flush()
        return self._bytes

    def _check_open(self) -> None:
        if self._bytes.shut:
            raise ValueError("I/O operation on closed file.")


class Bytes(io.BufferedIOBase):
    """The bytes below one of Python's streams.

    Attributes:
        shut: whether it is closed, for the rest of the cell.
    """

    def __init__(self, name: str, mode: str, number: Callable[[], int]) -> None:
        self.shut = False
        self._collected = False
        self.name = f"<{name}>"
        self.mode = mode
        self._number = number

    def close(self) -> None:
        """Refuse what comes until the next cell."""
        self.shut, self._collected = self.shut or not self._collected, False

    def _dealloc_warn(self, _: object) -> None:
        """Let the close that follows do nothing: CPython tells so that a wrapper is collected."""
        self._collected = True

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self.shut

    def detach(self) -> Any:
        """Return this object: there is nothing below it."""
        return self

    @property
    def raw(self) -> Any:
        """This object: nothing is held back."""
        return self

    def fileno(self) -> int:
        """Return the process' descriptor."""
        return self._number()

    def readable(self) -> bool:
        """Return whether it is stdin's."""
        return self.mode == "rb"

    def writable(self) -> bool:
        """Return whether it is that of stdout or stderr."""
        return self.mode == "wb"


class OutSide(Side):
    """Python's side of stdout or stderr."""

    def __init__(self, capture: Collector, name: str, otherwise: TextIO) -> None:
        self._number = 1 if name == "stdout" else 2
        self._lines: TextIO | None = None
        super().__init__(capture, name, otherwise, _OutBytes(capture, name, self._number, self._pass_on))

    def write(self, text: str, /) -> int:
        """Show a text in the cell that it belongs to."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._bytes.shut:
            self._check_open()
        capture = self._capture
        if capture.in_child:
            count = self._in_lines().write(text)
            if self.write_through:
                self._in_lines().flush()
            return count
        run = capture.attribution()
        if run is None:
            return self._otherwise.write(text)
        capture.write(run, self._stream, text)
        if (self.line_buffering and "\n" in text) or self.write_through:
            capture.keep(self._stream)
        return len(text)

    def flush(self) -> None:
        """Write what was printed to where a death of the process does not take it."""
        self._check_open()
        if self._capture.in_child:
            self._in_lines().flush()
        elif self._capture.attribution() is None:
            self._otherwise.flush()
        else:
            self._capture.keep(self._stream)

    def fileno(self) -> int:
        """Return the process' descriptor."""
        return self._number

    def _in_lines(self) -> TextIO:
        """Return the stream of a process that a cell has forked: lines of several such processes must arrive whole."""
        if self._lines is None:
            self._lines = open(self._number, "w", 1, "utf-8", "replace", closefd=False)  # noqa: SIM115
        return self._lines

    def _pass_on(self, data: bytes) -> None:
        self._otherwise.write(data.decode(errors="replace"))


class _OutBytes(Bytes):
    """The bytes below stdout or stderr: what is written goes to the descriptor, as in any process.

    Args:
        capture: knows whose code uses it.
        name: "stdout" or "stderr".
        number: the descriptor.
        pass_on: takes what belongs to no cell of nbcomm.
    """

    def __init__(self, capture: Collector, name: str, number: int, pass_on: Callable[[bytes], None]) -> None:
        super().__init__(name, "wb", lambda: number)
        self._capture = capture
        self._stream = name
        self._pass_on = pass_on

    def write(self, data: Buffer, /) -> int:
        """Write all of these bytes."""
        if self.shut:
            raise ValueError("write to closed file")
        rest = memoryview(data).cast("B")
        size, capture = len(rest), self._capture
        run = None if capture.in_child else capture.attribution()
        if run is None and not capture.in_child:
            self._pass_on(bytes(rest))
        elif run is not None and capture.is_apart(run):
            capture.write(run, self._stream, bytes(rest).decode(errors="replace"))
        else:
            while rest:
                rest = rest[os.write(self.fileno(), rest) :]
        return size


def stand_in(name: str, side: Side) -> None:
    """Make a side the process' stream, and what programs restore it from."""
    setattr(sys, name, side)
    setattr(sys, f"__{name}__", side)


def restore_missing() -> None:
    """Give the process back the streams that user code has deleted: IPython needs them for the next cell."""
    for name in NAMES:
        if not hasattr(sys, name):
            setattr(sys, name, getattr(sys, f"__{name}__", None))


def flush_all() -> None:
    """Flush what user code has put in the place of stdout and stderr, as a process does at its end, and a kernel."""
    for name in NAMES[1:]:
        stream = getattr(sys, name, None)
        if not isinstance(stream, Side | None):
            with suppress(Exception):  # it is the user's, who may have closed it
                stream.flush()
