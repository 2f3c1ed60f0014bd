"""Scripts on this rank, as torchrun would start them, but in the running process.

Why not IPython's ``%run``: a script that ends with an error or an exit status does not fail its cell, its arguments are
quoted and globbed a second time, and what it leaves behind (stale modules beside it, streams, handlers) stays. Why not
`runpy`: it deletes the script's variables at the end, so that its functions no longer find them.

As with ``%run``, the script's variables become the cells' own afterwards.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import importlib.machinery
import importlib.util
import linecache
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.getipython import get_ipython

from ...comm import lending
from ...errors import ExitError, ScriptError
from ..output.streams import Side, flush_all

scope: dict[str, Any] | None = None
"""The variables of the running script; None between scripts. A frame whose globals they are belongs to it."""

_content: bytes | None = None
"""What the notebook has read of the script: this machine may have no such file, or an older one."""

_name = ""
"""A name of this run of a script, the same on all ranks."""

_STREAMS = ("stdin", "stdout", "stderr", "excepthook", "displayhook")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_brought: dict[str, ModuleType] = {}
"""Modules that scripts have imported from beside them: the next script imports them again."""


@contextmanager
def instead_of_cell(content: bytes, name: str) -> Iterator[None]:
    """Mark a cell that only calls `run`: its one line is not the user's, so no frame counts until the script's.

    Args:
        content: the script's.
        name: of this run, the same on all ranks.
    """
    global scope, _content, _name  # noqa: PLW0603 - one script at a time
    scope, _content, _name = {}, content, name
    try:
        yield
    finally:
        scope = _content = None


def run(file: str, argv: list[str]) -> None:
    """Run the script of `instead_of_cell` as ``__main__``.

    Args:
        file: its full path, on the notebook's machine.
        argv: what it finds in `sys.argv`, its own name first.

    Raises:
        ExitError: it has ended with an exit status other than 0, or with a message.
        ScriptError: there is no script: this is not the cell that nbcomm has made for one.
    """
    global scope  # noqa: PLW0603 - one script at a time
    if _content is None:
        raise ScriptError("Only nbcomm calls this: type %%distributed --file and the script's name.")
    code = compile(_content, file, "exec", dont_inherit=True)
    _quote(file, _content)
    module, before = _main_module(file), scope
    try:
        with _like_a_process(module, file, argv), lending.to_script(_name):
            scope = vars(module)
            exec(code, scope)  # noqa: S102 - it is what the user asked for
    except SystemExit as end:
        ended = _said(end.code, argv[0])
    except Exception as error:
        _begin_with_script(error)
        raise
    else:
        ended = ""
    finally:
        scope = before
        _shell().user_ns.update({name: value for name, value in vars(module).items() if not name.startswith("__")})
    if ended:
        raise ExitError(ended)


def _quote(file: str, content: bytes) -> None:
    """Let tracebacks and `inspect` quote what runs; they read the file where it is the same here."""
    linecache.cache.pop(file, None)
    with suppress(OSError):
        if Path(file).read_bytes() == content:
            return
    lines = importlib.util.decode_source(content).splitlines(keepends=True)
    linecache.cache[file] = (len(content), None, lines, file)  # None: it is not looked whether the file has changed


def _begin_with_script(error: Exception) -> None:
    """Make the traceback that IPython shows begin at the script."""
    trace = error.__traceback__
    if hasattr(error, "_render_traceback_") or trace is None:
        return
    with suppress(AttributeError):  # an exception may have slots alone
        error._render_traceback_ = lambda: _shell().InteractiveTB.structured_traceback(  # type: ignore[attr-defined]
            type(error), error, trace.tb_next, tb_offset=0
        )


def _shell() -> Any:
    return get_ipython()


def _said(status: Any, name: str) -> str:
    """Describe an exit status as Python interprets it; empty for success."""
    if status is None or status == 0:
        return ""
    if isinstance(status, int):
        return f"{name} has ended with exit status {int(status)}."
    return f"{name} has ended with the message: {status}"


def _main_module(file: str) -> ModuleType:
    module = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    vars(module).update(__file__=file, __builtins__=builtins, __loader__=loader, __cached__=None)
    return module


@contextmanager
def _like_a_process(module: ModuleType, file: str, argv: list[str]) -> Iterator[None]:
    """Give a script the conditions of a process of its own, and restore the rank's afterwards."""
    undo: list[Callable[[], None]] = []
    try:
        _keep_descriptors(undo)  # restored last: a stream that a script has made closes them when it is collected
        _keep(undo)
        sys.argv, sys.path[0:0] = argv, [str(Path(file).resolve().parent)]
        sys.modules["__main__"] = module
        if "get_ipython" in vars(builtins):  # a script finds no IPython, and so behaves as under torchrun
            trap = _shell().builtin_trap
            undo.append(lambda: None if "get_ipython" in vars(builtins) else trap.activate())
            trap.deactivate()
        _keep_builtins(undo)
        _leave_loop(undo)
        _forget_modules(undo, Path(file).resolve().parent)
        yield
    finally:
        interrupted: BaseException | None = None
        while undo:  # each may be done twice, and ■ may be pressed more than once
            try:
                undo[-1]()
                undo.pop()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


def _keep(undo: list[Callable[[], None]]) -> None:
    """Save what a script may change in its process, if that would disturb later cells."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    streams = {name: getattr(sys, name) for name in _STREAMS}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    method = multiprocessing.get_start_method(allow_none=True)
    try:
        folder: str | None = str(Path.cwd())
    except OSError:
        folder = None

    def back() -> None:
        flush_all()
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
        for name, stream in streams.items():
            setattr(sys, name, stream)
            if isinstance(stream, Side):
                stream.open_again()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        multiprocessing.set_start_method(method, force=True)
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)

    undo.append(back)
    sys.displayhook = sys.__displayhook__
    multiprocessing.set_start_method(None, force=True)  # a process of its own has not chosen one yet


def _keep_descriptors(undo: list[Callable[[], None]]) -> None:
    """Let a script close or redirect the descriptors of its streams."""
    copies: dict[int, int] = {}

    def back() -> None:
        for number in [*copies]:
            os.dup2(copies[number], number)
            os.close(copies.pop(number))

    undo.append(back)
    for number in (0, 1, 2):
        with suppress(OSError):  # a cell before has closed it
            copies[number] = os.dup(number)


def _keep_builtins(undo: list[Callable[[], None]]) -> None:
    """Let a script change builtins, as those that print on one rank do; its second run must not change them twice.

    Its ``exit()`` ends the script: that of `site` would close the rank's stdin as well.
    """
    there = dict(vars(builtins))

    def back() -> None:
        vars(builtins).update(there)
        for name in vars(builtins).keys() - there.keys():
            del vars(builtins)[name]

    undo.append(back)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)


def _leave_loop(undo: list[Callable[[], None]]) -> None:
    """Make ``asyncio.run`` work: cells run on the engine's loop, and a script has a thread without one."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - those who write event loops are told to use these
    if loop is None:
        return
    task = asyncio.current_task(loop)

    def back() -> None:
        asyncio._set_running_loop(loop)  # noqa: SLF001
        asyncio.set_event_loop(loop)
        if task is not None and asyncio.current_task(loop) is not task:
            asyncio.tasks._enter_task(loop, task)  # noqa: SLF001

    undo.append(back)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001
    asyncio._set_running_loop(None)  # noqa: SLF001


def _forget_modules(undo: list[Callable[[], None]], folder: Path) -> None:
    """Import again what lies beside a script: users edit both, and a new process would see the change."""
    for name, module in _brought.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _brought.clear()
    importlib.invalidate_caches()
    before = set(sys.modules)

    def note() -> None:
        new = {name: sys.modules[name] for name in set(sys.modules) - before if name.partition(".")[0] not in before}
        _brought.update({name: module for name, module in new.items() if _lies_in(module, folder)})

    undo.append(note)


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return any(Path(path).is_relative_to(folder) for path in getattr(module, "__path__", ()))
    place = Path(file)
    return place.suffix == ".py" and place.is_relative_to(folder) and "site-packages" not in place.parts
