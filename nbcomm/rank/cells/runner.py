"""Cells on the engine's main loop, run by IPython, one after the other.

The shell is the engine's: history, ``_``, magics, ``!cmd``, ``;`` and top-level ``await`` are IPython's. Only results
and tracebacks go elsewhere than in a notebook's kernel.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # nobody has stubs of it
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from ...errors import CellSyntaxError, CollectiveError, again
from ...faults import told
from ...protocol import Done, Failure, Result, Run
from ...protocol.requests import LONGEST_IMPORT
from ..collectives.stacks import of_all_threads
from ..output.capture import Capture
from ..output.streams import flush_all
from . import forks
from .tracebacks import end_at_caller, modules_by_file, reasons

_MOMENT = 0.02
"""Seconds after which an interrupt that came at a bad moment is repeated."""

_due = 0
"""The process in which an interrupt is about to be repeated; a forked child has no thread that does it."""

_SIGINT = int(signal.SIGINT)

_INTERRUPTIONS = ("KeyboardInterrupt", "CancelledError")


class _Insisting(KeyboardInterrupt):
    """The exception for a cell that catches errors and goes on; ``except Exception`` does not catch it."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(*reason.args)
        self.reason = reason


class _CutError(BaseException):
    """The end of a traceback that is being made: IPython would print a KeyboardInterrupt in its place."""


class CellRunner:
    """Runs one cell at a time in the engine's shell.

    Args:
        shell: the engine's `InteractiveShell`.
        capture: where output goes.
        explain: gives a better reason for an error of torch's, or the same one.
        finish: waits for what code that has ended well has left to do.
    """

    def __init__(
        self,
        shell: Any,
        capture: Capture,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._explain = explain
        self._finish = finish
        self._pid = os.getpid()
        self._reason: BaseException | None = None
        self._insist = False
        self._shell = shell
        self._capture = capture
        self._run: int | None = None  # the cell that runs
        self._is_callback = False
        self._tracebacks: list[tuple[str, str, str]] = []
        self._result: Any = None  # of the last cell that failed
        self._interruptible = self._showing = False
        self._request, self._interrupts = 0, 0
        self._hit: FrameType | None = None  # where an interrupt came that is being handled
        self._importing = 0.0  # since when an interrupt waits for the end of an import
        self._task: asyncio.Task[Any] | None = None
        self._handler: Callable[[int, FrameType | None], None] | None = None
        shell.cells = self

    async def run(self, message: Run) -> Done:
        """Run a cell and report how it ended; its output is in the capture when this returns."""
        shell = self._shell
        began = time.perf_counter()
        self._forget_error()
        if shell.execution_count != message.number:
            shell.execution_count = message.number
        with self._capture.of_run(message.id):
            try:
                self._run = message.id
                # An Output widget takes what is printed in answer to a message, so there is one; the kernel tells it.
                # It is of no session: ipyparallel's clients look for theirs.
                parent = {"msg_id": f"nbcomm-{message.id}", "msg_type": "execute_request", "session": ""}
                shell.kernel.set_parent([], {"header": parent})
                try:
                    with self.interruptible():
                        shell.begin_page(message.code, message.above)
                        result = await self._run_cell(message.code)
                        flush_all()
                        self._end_forked_child(result)
                        self._result = None if result.success else result  # a good one may keep much data alive
                        if result.success:
                            self._finish()
                except (KeyboardInterrupt, CollectiveError) as caught:  # it hit IPython's own code around the cell
                    self._end_forked_child(None)
                    error = caught.reason if isinstance(caught, _Insisting) else caught
                    name = type(error).__name__
                    return self._done(message.id, began, told(name, str(error), f"{name}: {error}".rstrip(": ")))
                return self._done(message.id, began, self._failure(result))
            finally:
                self._forget_cell()

    def _forget_cell(self) -> None:
        self._run = None
        self._shell.end_page()
        for kept in ("outputs", "exceptions"):  # for %notebook, too; only newer versions have them
            getattr(self._shell.history_manager, kept, {}).clear()

    def _forget_error(self) -> None:
        """Release the result of the last failed cell: IPython's frames and this object refer to each other.

        Otherwise the variables of its functions would stay alive until the next full garbage collection. What
        ``%debug`` needs is kept elsewhere, until the next error.
        """
        if self._result is not None:
            self._result.error_before_exec = self._result.error_in_exec = self._result = None

    @property
    def error(self) -> BaseException | None:
        """What the last cell has raised while it ran; None if it ended well."""
        return self._result.error_in_exec if self._result is not None else None

    @property
    def _in_child(self) -> bool:
        """Whether this is a process that a cell has forked."""
        return os.getpid() != self._pid

    def _end_forked_child(self, result: Any) -> None:
        """End the process if it is a child that the cell has forked: a second process must not go on as this rank.

        That happens to a child that leaves the cell instead of exiting, and to one that an interrupt hits before it has
        become another program. Its parent may wait for it, or for what it holds open.
        """
        if not self._in_child:
            return
        failure = self._failure(result) if result is not None else None
        if failure is not None:
            os.write(2, f"{failure.traceback}\n".encode(errors="replace"))
        forks.leave(0 if result is not None and failure is None else 1)

    async def _run_cell(self, code: str) -> Any:
        shell = self._shell
        transformed = None
        with suppress(Exception):  # IPython meets it again, and reports it in its own words
            transformed = shell.transform_cell(code)
        if transformed is None:
            return shell.run_cell(code, store_history=True)
        if shell.should_run_async(code, transformed_cell=transformed):
            return await self._run_async(code, transformed)
        return shell.run_transformed(code, transformed)

    async def _run_async(self, code: str, transformed: str) -> Any:
        shell = self._shell
        self._task = asyncio.ensure_future(shell.run_cell_async(code, store_history=True, transformed_cell=transformed))
        result = None
        try:
            result = await self._task
        except asyncio.CancelledError:
            raise self._reason_to_end() from None
        finally:
            # run_cell does this for cells without await; for those with await, the caller must.
            shell.events.trigger("post_execute")
            if result is not None:
                shell.events.trigger("post_run_cell", result)
        return result

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let interrupts raise KeyboardInterrupt in the block; at other times they do nothing."""
        self._request, self._interrupts, self._importing = self._request + 1, 0, 0.0
        self._reason, self._insist = None, False
        self._take_signals_back()
        try:
            self._interruptible = True
            yield
        finally:
            self._interruptible = False
            self._task = None
            self._take_signals_back()

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt has reached the current request."""
        return self._interrupts > 0

    def interrupts(self) -> tuple[int, int]:
        """Return the current request's number, and how many interrupts have reached it."""
        return self._request, self._interrupts

    def interrupted_since(self, then: tuple[int, int]) -> bool:
        """Return whether an interrupt has reached the current request since `interrupts` returned ``then``."""
        return self._interrupts > (then[1] if then[0] == self._request else 0)

    def to_end(self) -> BaseException | None:
        """Return the exception to end the current request with, if an interrupt reached it; even if it caught that."""
        if not self.interrupted:
            return None
        # A KeyboardInterrupt in a task beside the cell's would end the event loop, and with it the rank.
        beside = self._task is not None and not _inside(sys._getframe(), self._shell.run_code.__code__)  # noqa: SLF001
        return asyncio.CancelledError() if beside else self._reason_to_end()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Allow interrupts while a user looks at how the cell's code has ended."""
        self._print_tracebacks()
        before = self._interruptible, self._showing
        self._interruptible, self._showing = True, False
        try:
            yield
        finally:
            self._interruptible, self._showing = before

    def end_with(self, reason: BaseException, *, insist: bool = False) -> None:
        """Raise this at the next interrupt of the current request, instead of KeyboardInterrupt; any thread.

        Args:
            reason: what to raise.
            insist: raise it as something that ``except Exception`` does not catch, but report ``reason``.
        """
        self._reason, self._insist = reason, insist

    def fail(self, error: BaseException) -> bool:
        """Let the cell that awaits end with what has left the event loop; return False if none does. Main thread."""
        if self._task is None or self._task.done():
            return False
        self.end_with(error)
        self._interrupts += 1
        self._task.cancel()
        return True

    def take_signals(self) -> None:
        """Make SIGINT end the current request; main thread."""
        self._handler = lambda _number, frame: self.interrupt(frame)
        signal.signal(signal.SIGINT, self._handler)

    def give_signals_back(self) -> None:
        """Leave SIGINT to Python in a process that a cell has forked, unless the cell has a handler of its own."""
        handler, self._handler = self._handler, None
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _take_signals_back(self) -> None:
        """Take SIGINT back from a handler that user code has set, as trainers do: ■ would not work from then on."""
        # That of `signal` itself looks for a function among the members of an enum first, at three times the cost.
        if self._handler is not None and _signal.getsignal(_SIGINT) is not self._handler:
            signal.signal(signal.SIGINT, self._handler)

    def _reason_to_end(self) -> BaseException:
        if self._showing:
            return _CutError()
        if self._reason is None:
            return KeyboardInterrupt()
        fresh = again(self._reason)
        return _Insisting(fresh) if self._insist else fresh

    def interrupt(self, frame: FrameType | None) -> None:
        """End the running cell, and nothing else; the handler of SIGINT."""
        if not self._interruptible or self._hit is not None:  # whoever insists repeats one that hits this handler
            return
        if self._showing and self._reason is not None:  # it has ended by that, or by what is shown
            return
        self._hit = frame
        try:
            self._interrupt(frame)
        finally:
            self._hit = None

    def _interrupt(self, frame: FrameType | None) -> None:
        # Raised between a fork and its name, it would become an UnboundLocalError, and the child live on unnoticed.
        # Raised while an earlier one that Python has discarded is repeated, it would be discarded with that.
        if _between_fork_and_name(frame) or _inside(frame, _swallowed.__code__) or self._in_import(frame):
            _interrupt_soon()
            return
        self._importing = 0.0
        self._interrupts += 1
        if self._task is None or _inside(frame, self._shell.run_code.__code__):
            raise self._reason_to_end() from None
        # An awaiting cell has no frame to raise in: the signal hit the idle event loop.
        task = self._task
        task.get_loop().call_soon_threadsafe(task.cancel)
        if self._interrupts > 1 and self._is_users(frame):  # a task beside the cell's, which lets no other one run
            raise asyncio.CancelledError from None

    def _in_import(self, frame: FrameType | None) -> bool:
        """Return whether a library is being imported: half of it would stay, and be taken for the whole from then on.

        The first DDP imports Dynamo and SymPy for seconds. A library that never ends is interrupted at last.
        """
        if not _imported_library(frame, self._shell.user_ns):
            return False
        self._importing = self._importing or time.monotonic()
        self._interrupts += 1  # it was heard: nobody has to insist
        return time.monotonic() - self._importing < LONGEST_IMPORT

    def importing(self) -> str:
        """Return the library that the current request imports, for whose end an interrupt waits; any thread."""
        with of_all_threads() as frames:
            frame = self._hit or frames.get(threading.main_thread().ident or 0)
            return _imported_library(frame, self._shell.user_ns)

    def _is_users(self, frame: FrameType | None) -> bool:
        """Return whether a cell's code runs in the frame."""
        while frame is not None and frame.f_globals is not self._shell.user_ns:
            frame = frame.f_back
        return frame is not None

    @contextmanager
    def callback(self) -> Iterator[None]:
        """Print what a widget's callback raises in the block, and let ■ end it."""
        self._is_callback = True
        try:
            with self.interruptible():
                yield
        finally:
            self._is_callback = False

    # ── what the shell is about to show, see `shell.Cells` ──────────────────────────────────────────

    def take_interrupt(self, error: BaseException | None) -> bool:
        """Take the error with which the code of a cell has ended, if that is ■."""
        if self._run is None:
            return False
        # The cell's code has ended: an interrupt would now only spoil the report.
        self._interruptible = False
        if self.ended_by_interrupt(error) or (self._in_child and type(error) is KeyboardInterrupt):
            expected = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | SystemExit)
            if not expected and not type(error).__module__.startswith("pexpect"):
                self._capture.write(self._run, "stderr", f"{type(error).__name__}: {error}\n")  # not lost, and no more
            # The notebook reports it once for all ranks. To read torch's sources for a traceback takes half a second.
            self._tracebacks.append((_INTERRUPTIONS[0], "", _INTERRUPTIONS[0]))
            return True
        end_at_caller(error)
        return False

    def take_error(self, kind: type[BaseException], value: BaseException, lines: list[str]) -> bool:
        """Keep an error of the cell, or print that of a callback."""
        if self._run is None and not self._is_callback:
            return False
        if isinstance(value, SystemExit) and self._in_child:
            forks.end(value)
        if self._capture.fail(kind.__name__, str(value), lines):
            pass  # inside an Output widget, which catches what is raised in it
        elif self._is_callback:
            sys.stderr.write("\n".join(lines) + "\n")
        else:
            # A cell may show several (a failing %run, a post_execute hook); the last one is the cell's own.
            self._print_tracebacks()
            self._tracebacks.append((kind.__name__, str(value), "\n".join(lines)))
        return True

    def take_result(self, result: Result) -> bool:
        """Show the value of the cell's last expression."""
        if self._run is None:
            return False
        self._capture.show(self._run, result)
        return True

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Let ■ end the making of a traceback in the block: its error counts as that, and is not looked at any more."""
        if self._run is None or self._interruptible:  # the cell's code goes on behind it
            yield
            return
        self._interruptible = self._showing = True
        try:
            with modules_by_file():
                yield
        except _CutError:
            self._tracebacks.append((_INTERRUPTIONS[0], "", _INTERRUPTIONS[0]))
        finally:
            self._interruptible = self._showing = False

    def shown_error(self) -> tuple[str, str, str] | None:
        """Return the name, the message and the text of the cell's last error; None if none runs."""
        return None if self._run is None else [("", "", ""), *self._tracebacks][-1]

    def ended_by_interrupt(self, error: BaseException | None) -> bool:
        """Return whether the request was interrupted, and this error is that, or was raised because of it.

        An awaiting cell is cancelled. Libraries end what they do and raise an error of their own, as Lightning, which
        calls ``sys.exit``; and a ``finally`` may fail. IPython runs ``!`` with pexpect: if a second one comes when
        that has just waited for its child, it believes that somebody else has done so.
        """
        return self.interrupted and any(map(self._is_interrupt, reasons(error)))

    def _is_interrupt(self, error: BaseException) -> bool:
        return type(error) is KeyboardInterrupt or (type(error) is asyncio.CancelledError and self._reason is None)

    def _print_tracebacks(self) -> None:
        for _, _, text in self._tracebacks:
            self._capture.write(self._run or 0, "stderr", text + "\n")
        self._tracebacks.clear()

    def _failure(self, result: Any) -> Failure | None:
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            self._print_tracebacks()
            return None
        name, message, text = self._tracebacks.pop() if self._tracebacks else (type(error).__name__, str(error), "")
        self._tracebacks.clear()
        if isinstance(result.error_before_exec, SyntaxError):
            broken = result.error_before_exec  # nothing of the cell has run
            name, message = CellSyntaxError.__name__, f"{broken.msg} (line {broken.lineno})"
        stopped = type(error) is asyncio.CancelledError and self._reason is not None
        reason = self._reason if stopped else error.reason if isinstance(error, _Insisting) else self._explain(error)
        if reason is not error:  # C++ met it, and knows less than nbcomm does
            name, message = type(reason).__name__, str(reason)
            return told(name, message, f"{name}: {message}".rstrip(": "))
        return told(name, message, text or f"{name}: {message}")

    def _done(self, run: int, began: float, failure: Failure | None) -> Done:
        # An awaiting cell ends by the cancellation of its task, any other by the KeyboardInterrupt itself.
        interrupted = self.interrupted and failure is not None and failure.name in _INTERRUPTIONS
        return Done(run, time.perf_counter() - began, failure, interrupted)


def signal_main() -> None:
    """Interrupt the main thread; any thread."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def _inside(frame: FrameType | None, code: Any) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _imported_library(frame: FrameType | None, scope: dict[str, Any]) -> str:
    """Return the installed module whose body code with this scope has caused to run; empty if there is none.

    Of modules that import each other it is the first. Below nbcomm's own frames is the program that this process was
    begun with, and that may be installed, too.
    """
    library, above = "", None
    while frame is not None:
        if frame.f_globals is scope:
            return library
        name = str(frame.f_globals.get("__name__"))
        if above is None and name.startswith("nbcomm."):
            above = library
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith((sys.prefix, sys.base_prefix)):
            library = name
        frame = frame.f_back
    return library if above is None else above


def _between_fork_and_name(frame: FrameType | None) -> bool:
    """Return whether ``!`` may have forked a child that IPython has no name for yet: it could not be ended."""
    module = sys.modules.get("IPython.utils._process_posix")  # Windows has another
    if module is None:
        return False
    code = module.ProcessHandler.system.__code__
    while frame is not None:
        if frame.f_code is code:
            return "child" not in frame.f_locals
        frame = frame.f_back
    return False


def handle_interrupts(runner: CellRunner) -> None:
    """Let SIGINT end the running cell; must be called on the main thread."""
    runner.take_signals()
    forks.give_back(runner.give_signals_back)
    sys.unraisablehook = partial(_swallowed, sys.unraisablehook)


def _swallowed(before: Callable[[sys.UnraisableHookArgs], object], what: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that Python discards, as it does with all exceptions from a ``__del__`` and the like."""
    if isinstance(what.exc_value, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        _interrupt_soon()
    else:
        before(what)


def _interrupt_soon() -> None:
    """Interrupt the main thread again a little later, when nothing discards it any more; once, however many came."""
    global _due  # noqa: PLW0603 - a process has one main thread
    if _due == os.getpid():
        return
    _due = os.getpid()
    try:
        threading.Timer(_MOMENT, _interrupt_again, [threading.main_thread().ident]).start()
    except BaseException:
        _due = 0
        raise


_DEAF = (_swallowed.__code__, CellRunner.interrupt.__code__)


def _interrupt_again(main: int) -> None:
    global _due  # noqa: PLW0603
    # Where machines are busy, it may still wait for this very thread to start: there the signal would be lost, in what
    # discards it or in the handler of the one before. A child has no handler that sees that.
    while any(_inside(sys._current_frames().get(main), code) for code in _DEAF):  # noqa: SLF001 - the only way
        time.sleep(_MOMENT)
    _due = 0  # before: the signal may be put off once more
    signal_main()
