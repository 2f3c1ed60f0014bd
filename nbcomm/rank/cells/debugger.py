"""IPython's debugger in the cells of a rank: `breakpoint()`, `pdb.set_trace()`, ``%debug``, ``%pdb on``.

It reads commands as `input` does, so its prompt is the notebook's own input box. Differences from IPython's:

* ■ and a verdict end the cell. pdb treats a KeyboardInterrupt as a wish for a new prompt, and IPython as the end of the
debugger only; the cell would then go on, though the notebook waits for its end.
* While the debugger is active, the rank waits for no other rank, in whatever call it has stopped.
* Steps lead from one statement of the cell to the next, not into the code of IPython and nbcomm around them.

Commands at the prompt may call collectives: they are judged, and ended, as those of cells are.
"""

from __future__ import annotations

import pdb  # noqa: T100 - to put another class there
import sys
import threading
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import CodeType, FrameType
from typing import Any, ClassVar

from IPython.core import debugger as ipython
from torch import distributed

from ...errors import HangError, MismatchError
from ..collectives.flight_recorder import FlightRecorder
from ..output.capture import Capture
from .runner import CellRunner

_QUIT = "The command q ended the debugger, and the cell with it."
_ENDED = (
    "The debugger has no input, so it ends, and its code with it: ctrl-D was typed, or its cell has already ended, as "
    "for a widget's callback."
)

_NOTHING = "There is nothing to debug here: no cell has failed on this rank."

_AROUND = (
    "IPython.core.interactiveshell",
    "IPython.core.async_helpers",
    "IPython.core.displayhook",
    "ipykernel",
    "asyncio",
    *(f"nbcomm.rank.{module}" for module in ("cells.runner", "cells.stdin", "link", "main_loop", "output.capture")),
)
"""Modules around a cell, and below what it calls, in which a user does not want to stop."""

_NOWHERE = -1
"""The line at which bdb stops after `continue`."""

_BEHIND = {f"nbcomm.rank.{name}" for name in ("cells.runner.run", "cells.runner._run_async", "main_loop._call")}
"""Modules whose code runs after the cell's code has ended."""


class _Through(BaseException):
    """The exception that carries a KeyboardInterrupt past code that would catch it."""

    def __init__(self, reason: KeyboardInterrupt) -> None:
        super().__init__()
        self.reason = reason


class Debugger(ipython.Pdb):
    """The debugger of a rank; `install` puts it in place.

    Attributes:
        runner: knows whether the running cell is to end.
        record: learns that the main thread waits for user input.
    """

    runner: ClassVar[CellRunner]
    record: ClassVar[FlightRecorder]
    _why = _QUIT
    _begins = False
    _asked_in: frozenset[CodeType] | set[CodeType] = frozenset()

    def interaction(self, frame: FrameType | None, *args: Any) -> None:
        """Read commands until the code is to go on."""
        with self.record.aside() if _on_main() else nullcontext():
            try:
                super().interaction(frame, *args)  # type: ignore[no-untyped-call]
            except _Through as ended:
                raise ended.reason from None

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Decide whether to stop at the current event."""
        if self._begins:  # a finalizer that Python runs just now is nobody's next step
            return None
        try:
            return super().trace_dispatch(frame, event, arg)
        except BdbQuit:
            raise BdbQuit(self._why) from None
        except _Through as ended:  # raised by a breakpoint's own commands
            raise ended.reason from None

    def set_trace(self, frame: FrameType | None = None, **kwargs: Any) -> None:
        """Stop at once, in this frame; before Python 3.13 pdb stopped at the next line, in any code."""
        frame = frame or sys._getframe(1)  # noqa: SLF001 - as pdb does it
        self._why = _QUIT
        self._asked_in = {each.f_code for each in _up_to(frame, _around)}
        self._begins = True
        try:
            super().set_trace(frame, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            sys.settrace(None)
            self._begins = False
        self.interaction(frame, None)
        if self.quitting:
            raise BdbQuit(self._why)
        if self.breaks or self.stoplineno != _NOWHERE:
            sys.settrace(self.trace_dispatch)

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether to stop in this frame: only in a cell's code, and in what it calls."""
        code = frame.f_code
        if f"{frame.f_globals.get('__name__')}.{code.co_name}" in _BEHIND:
            self.set_continue()
        theirs = any(self._is_theirs(each) for each in _up_to(frame, _around))
        return theirs and bool(super().stop_here(frame))  # type: ignore[no-untyped-call]

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Handle a call; for a cell, IPython calls each statement."""
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Handle a return."""
        if not _is_statement(frame):
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Handle an exception; to IPython, a statement with ``await`` that has ended is one."""
        if _around(frame):
            self.set_step()
        else:
            super().user_exception(frame, exc_info)

    def _is_theirs(self, frame: FrameType) -> bool:
        """Return whether this is code of a cell or a script, or a function that had `breakpoint` in it."""
        return frame.f_globals.get("__name__") == "__main__" or frame.f_code in self._asked_in

    def onecmd(self, line: str) -> bool:
        """Carry out a command. pdb shows any exception, and goes on, though the cell may have to end."""
        over = bool(super().onecmd(line))
        reason = self.runner.to_end() if _on_main() else None
        if reason is not None:
            raise reason
        return over

    def do_EOF(self, arg: str) -> Any:  # noqa: N802 - cmd's name for it
        """Quit, since there is no more input."""
        self._why = _ENDED
        return super().do_EOF(arg)

    def _cmdloop(self) -> None:
        try:
            self.cmdloop()
        except KeyboardInterrupt as reason:
            raise _Through(reason) from None


def _up_to(frame: FrameType | None, end: Callable[[FrameType], bool]) -> Iterator[FrameType]:
    """Yield a frame and its callers, up to the first for which ``end`` is true."""
    while frame is not None and not end(frame):
        yield frame
        frame = frame.f_back


def _around(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_AROUND)


def _is_statement(frame: FrameType) -> bool:
    return frame.f_back is not None and _around(frame.f_back) and frame.f_back.f_code.co_name == "run_code"


def _on_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ends_the_cell(error: BaseException | None) -> bool:
    """Return whether ``%pdb on`` has met an error that ends the cell on all ranks; ``%debug`` may look at it later."""
    return isinstance(error, HangError | MismatchError)


def install(shell: Any, runner: CellRunner, capture: Capture, record: FlightRecorder) -> None:
    """Replace pdb's and IPython's debugger, as ipykernel does with its own.

    Args:
        shell: the engine's.
        runner: runs its cells.
        capture: knows what belongs to them.
        record: of the calls on the main thread.
    """
    Debugger.runner, Debugger.record = runner, record
    for module, name in ((pdb, "Pdb"), (ipython, "Pdb"), (ipython, "InterruptiblePdb")):
        setattr(module, name, Debugger)
    for name in {"_DistributedPdb"} & vars(distributed).keys():  # up to torch 2.9: later ones are made of what is there
        setattr(distributed, name, Debugger)
    shell.InteractiveTB.debugger_cls = Debugger
    sys.breakpointhook = (
        sys.__breakpointhook__
    )  # some versions of ipykernel install debugpy's, which has no client here
    # After `continue`, pdb handles interrupts itself, to stop again; so do its subclasses in other libraries.
    setattr(ipython.OldPdb, "sigint_handler", lambda _self, _number, frame: runner.interrupt(frame))  # noqa: B010 - mypy
    otherwise = shell.debugger

    def debug(force: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Debug the place where the last error was raised."""
        if not force and not shell.call_pdb:
            return
        if capture.attribution() is None:
            otherwise(force=force)
        elif getattr(sys, "last_traceback", None) is None:
            print(_NOTHING)  # noqa: T201 - in the cell that asked for it
        elif not _ends_the_cell(sys.exc_info()[1]):
            with runner.attended():
                otherwise(force=force)

    shell.debugger = debug
