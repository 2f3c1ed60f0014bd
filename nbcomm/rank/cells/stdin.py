"""Input on a rank: `input`, `getpass` and `sys.stdin`, answered in the notebook's own input box.

The thread that asks waits for an `InputReply`. The link's thread sends the question, after all earlier output, and
hands over the answer. The main thread waits in a way that a signal ends, as an interrupt and a verdict do.

Code that belongs to no cell of nbcomm (ipyparallel's own cells) asks as before. A child that a cell has forked has no
link, and a thread whose cell has ended has no notebook that waits for it: both get the end of input.
"""

from __future__ import annotations

import builtins
import getpass
import itertools
import queue
import sys
import threading
from cmd import Cmd
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TextIO

from IPython.core.error import StdinNotImplementedError

from ...protocol import InputCancelled, InputReply, InputRequest
from ..collectives.flight_recorder import FlightRecorder
from ..output.capture import Capture
from ..output.streams import Bytes, Side, stand_in

_LOOK = 0.1
"""Seconds between two checks whether the answer is no longer needed; the answer itself is noticed at once."""

_ERRORS = {"EOFError": EOFError, "StdinNotImplementedError": StdinNotImplementedError}


class _Answer:
    """The answer to one question, for the thread that waits for it.

    A lock, since a signal handler that raises nothing may run longer than a wait takes: before Python 3.13,
    `SimpleQueue.get` with a timeout then waits for ever.
    """

    def __init__(self) -> None:
        self._reply: InputReply | None = None
        self._lacking = threading.Lock()
        self._lacking.acquire()

    def give(self, reply: InputReply) -> None:
        """Hand over the answer, once."""
        self._reply = reply
        self._lacking.release()

    def wait(self, seconds: float) -> InputReply | None:
        """Wait for the answer for a while; None if it has not come."""
        self._lacking.acquire(timeout=seconds)
        return self._reply


class InputPrompter:
    """Input for the cells of one rank.

    Args:
        capture: knows which cell asks, and whether it runs.
        record: learns that the main thread waits for user input, and for no rank.
        to_end: the exception that the running cell is to end with, if any.
        rouse: wakes the link's thread, which then calls `take`.
    """

    def __init__(
        self,
        capture: Capture,
        record: FlightRecorder,
        to_end: Callable[[], BaseException | None],
        rouse: Callable[[], None],
    ) -> None:
        self._capture = capture
        self._record = record
        self._to_end = to_end
        self._rouse = rouse
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[InputRequest, _Answer]] = {}
        self._unsaid: queue.SimpleQueue[InputRequest | InputCancelled] = queue.SimpleQueue()

    def install(self) -> None:
        """Replace Python's own functions; repeated calls change nothing."""
        if isinstance(sys.stdin, _Stdin):
            return
        otherwise, hidden_otherwise = builtins.input, getpass.getpass

        def ask(prompt: object = "", /) -> str:
            """Read a line that is typed in the notebook; the trailing newline is stripped."""
            __tracebackhide__ = True
            if self._capture.attribution() is None:
                return otherwise(prompt)
            # A debugger, or another loop of commands, asks from there.
            return self.ask(str(prompt), dialogue=sys._getframe(1).f_code is Cmd.cmdloop.__code__)  # noqa: SLF001

        def ask_hidden(prompt: str = "Password: ", *args: Any, **kwargs: Any) -> str:
            """Read a line that is typed in the notebook, without showing it."""
            __tracebackhide__ = True
            if self._capture.attribution() is None:
                return hidden_otherwise(prompt, *args, **kwargs)
            return self.ask(str(prompt), hidden=True)

        ask.__name__ = ask.__qualname__ = "input"
        ask_hidden.__name__ = ask_hidden.__qualname__ = "getpass"
        builtins.input, getpass.getpass = ask, ask_hidden
        stand_in("stdin", _Stdin(self, self._capture, sys.stdin))

    # ── the thread that asks ────────────────────────────────────────────────────────────────────────────

    def ask(self, prompt: str, *, hidden: bool = False, dialogue: bool = False) -> str:
        """Wait for a line that a user types.

        Raises:
            EOFError: the user has ended the input, or no notebook can be asked.
            StdinNotImplementedError: the front end has no input box.
        """
        __tracebackhide__ = True  # IPython's tracebacks, and its debugger, stop at the caller
        run, main = self._capture.attribution(), threading.current_thread() is threading.main_thread()
        self._check(run, main=main)
        assert run is not None  # noqa: S101 - for mypy: who belongs to no cell asks elsewhere
        asking = InputRequest(run, next(self._numbers), prompt, hidden, dialogue)
        answer, reply = _Answer(), None
        try:
            self._open[asking.number] = asking, answer
            self._unsaid.put(asking)
            self._rouse()
            with self._record.aside() if main else nullcontext():
                reply = self._wait(answer, run, main=main)
        finally:
            self._open.pop(asking.number, None)
            if reply is None:
                self._unsaid.put(InputCancelled(run, asking.number))
                self._rouse()
        if reply.error:
            raise _ERRORS.get(reply.error, EOFError)(reply.text)
        return reply.text

    def _check(self, run: int | None, *, main: bool) -> None:
        __tracebackhide__ = True
        if self._capture.in_child:
            raise EOFError(
                "A process that a cell forked cannot ask for input: only the rank itself is connected to the notebook."
            )
        if run is None or self._capture.is_late(run):
            raise EOFError("The cell of this code has ended, so the code cannot ask for input.")
        if main and self._to_end() is not None:  # the cell has caught that, and asks again
            raise EOFError("The cell is being ended, so it cannot ask for input any more.")

    def _wait(self, answer: _Answer, run: int, *, main: bool) -> InputReply:
        __tracebackhide__ = True
        while (reply := answer.wait(_LOOK)) is None:
            if not main:
                self._check(run, main=main)
            elif (reason := self._to_end()) is not None:  # in a task beside the cell's the signal raises nothing
                raise reason
        return reply

    # ── the link's thread ──────────────────────────────────────────────────────────────────────────

    def take(self) -> list[InputRequest | InputCancelled]:
        """Return what is to be sent now; output shown before must be sent first."""
        unsaid = []
        while not self._unsaid.empty():
            unsaid.append(self._unsaid.get())
        return unsaid

    def open(self) -> list[InputRequest]:
        """Return the questions without an answer, for a notebook that has not received them."""
        return [asking for asking, _ in list(self._open.values())]

    def hear(self, reply: InputReply) -> None:
        """Hand over an answer; it is dropped if its question has ended, or has one."""
        asking, answer = self._open.get(reply.number, (None, None))
        if asking is None or answer is None or asking.run != reply.run:
            return
        if self._open.pop(reply.number, None) is not None:
            answer.give(reply)


class _Stdin(Side):
    """Python's side of stdin: every line is a question."""

    def __init__(self, asker: InputPrompter, capture: Capture, otherwise: TextIO) -> None:
        super().__init__(capture, "stdin", otherwise, _StdinBytes(self.readline, otherwise.fileno))
        self._asker = asker
        self._rest = ""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        if self._capture.attribution() is None:
            return self._otherwise.readline(-1 if size is None else size)
        if not self._rest:
            try:
                self._rest = self._asker.ask("") + "\n"
            except EOFError:
                return ""
        end = len(self._rest) if size is None or size < 0 else size
        line, self._rest = self._rest[:end], self._rest[end:]
        return line

    def read(self, size: int | None = -1, /) -> str:
        if self._capture.attribution() is None:
            return self._otherwise.read(-1 if size is None else size)
        text = ""
        while size is None or size < 0 or len(text) < size:
            line = self.readline(-1 if size is None or size < 0 else size - len(text))
            text += line
            if not line:
                break
        return text

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def fileno(self) -> int:
        return self._otherwise.fileno()

    def close(self) -> None:
        """Keep stdin open: the next cell may ask, too."""


class _StdinBytes(Bytes):
    """The bytes below stdin: a line that was asked for, after another."""

    def __init__(self, readline: Callable[[], str], number: Callable[[], int]) -> None:
        super().__init__("stdin", "rb", number)
        self._readline = readline
        self._rest = b""

    def read(self, size: int | None = -1, /) -> bytes:
        lacks = float("inf") if size is None or size < 0 else size
        while len(self._rest) < lacks and (line := self._readline()):
            self._rest += line.encode()
        return self._take(len(self._rest) if lacks > len(self._rest) else int(lacks))

    def read1(self, size: int = -1, /) -> bytes:
        """Return at most a line: who wraps this one does not wait for more than is there."""
        self._rest = self._rest or self._readline().encode()
        return self._take(len(self._rest) if size < 0 else size)

    def _take(self, size: int) -> bytes:
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def close(self) -> None:
        """Keep stdin open: the next cell may ask, too."""
