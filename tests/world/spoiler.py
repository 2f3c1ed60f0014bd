"""Makes functions of nbcomm fail in the process that loads it: a notebook's kernel, or a rank. See `derived`.

A test orders it by a Unix socket, past all of nbcomm: what it breaks may be the only way to a cell there. A function is
spoiled by its code: so all who have it, by whatever name, meet the fault. Of functions that are made inside others, at
each call anew, nothing is known here; whoever makes them is spoiled.
"""

from __future__ import annotations

import builtins
import functools
import json
import re
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = "nbcomm"

_HOOK = "_nbcomm_spoiler"
"""What a spoiled function calls, among the builtins: all modules see it."""


class _Place:
    """A function of nbcomm's, and the same one with its own code, under another name."""

    def __init__(self, key: str, function: FunctionType) -> None:
        self.key = key
        self.function = function
        self.plain = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.plain.__kwdefaults__ = function.__kwdefaults__
        self._spoiled: CodeType | None = None

    def spoil(self, number: int) -> None:
        """Let the function call the hook in its place."""
        if self._spoiled is None:
            self._spoiled = _calling(number, self.plain.__code__)
        self.function.__code__ = self._spoiled

    def mend(self) -> None:
        """Give the function its own code again."""
        self.function.__code__ = self.plain.__code__


def _calling(number: int, code: CodeType) -> CodeType:
    """Return code that calls the hook, and fits a function with the closure of this code."""
    names = code.co_freevars
    closed = [f"    {' = '.join(names)} = None", f"    def spoiled(*args, **kwargs):\n        if 0: {', '.join(names)}"]
    lines = [
        "def make():",
        *(closed if names else ["    def spoiled(*args, **kwargs):"]),
        f"        return {_HOOK}({number}, args, kwargs)",
        "    return spoiled.__code__",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)  # noqa: S102
    made: CodeType = scope["make"]()
    more = {"co_qualname": code.co_qualname} if sys.version_info >= (3, 11) else {}
    return made.replace(co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, **more)


def _functions() -> Iterator[FunctionType]:
    """Return the functions of the modules of nbcomm that are imported here, and of their classes."""
    for name, module in [*sys.modules.items()]:
        if isinstance(module, ModuleType) and (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")):
            for value in [*vars(module).values()]:
                yield from _of(value)
                if isinstance(value, type):
                    for inner in [*vars(value).values()]:
                        yield from _of(inner)


def _of(value: object) -> Iterator[FunctionType]:
    """Return the functions that a name of a module or class stands for."""
    if isinstance(value, FunctionType):
        yield value
        yield from _of(vars(value).get("__wrapped__"))
    elif isinstance(value, property):
        for part in (value.fget, value.fset):
            yield from _of(part)
    elif isinstance(value, staticmethod | classmethod):
        yield from _of(value.__func__)
    elif isinstance(value, functools.cached_property):
        yield from _of(value.func)


class Spoiler:
    """The functions of one process.

    Args:
        path: the socket by which it is ordered.
    """

    def __init__(self, path: Path) -> None:
        self._places: list[_Place] = []
        self._known: set[int] = set()
        self._calls: Counter[tuple[int, str]] = Counter()
        self._tracing = False
        self._spoiled: set[int] = set()
        self._thread, self._once, self._fired = "", True, 0
        setattr(builtins, _HOOK, self._hook)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, name="spoiler", daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rw") as lines:
                try:
                    order = json.loads(lines.readline())
                    answer = getattr(self, order.pop("do"))(**order)
                except Exception:  # noqa: BLE001 - the test shows it
                    answer = {"error": traceback.format_exc()}
                lines.write(json.dumps(answer) + "\n")

    def _look(self) -> None:
        """Find the functions; of modules that were imported meanwhile, too."""
        for function in _functions():
            key = f"{function.__module__}:{function.__qualname__}"
            inside = str(function.__module__).startswith(_PACKAGE) and "<" not in function.__code__.co_filename
            if inside and id(function) not in self._known:
                self._known.add(id(function))  # a module keeps it, or its class does
                self._places.append(_Place(key, function))

    def _hook(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._tracing:
            self._calls[number, _thread()] += 1
        elif number in self._spoiled and not (self._once and self._fired) and _thread() == self._thread:
            self._fired += 1
            raise TypeError("spoiled")
        return self._places[number].plain(*args, **kwargs)

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def trace(self) -> int:
        """Note from now on which functions are called, on which threads; return how many there are."""
        self._look()
        self._calls.clear()
        self._tracing = True
        for number, place in enumerate(self._places):
            place.spoil(number)
        return len(self._places)

    def traced(self) -> list[tuple[str, str, int]]:
        """Return which functions were called since `trace`, on which thread, how often."""
        for place in self._places:
            place.mend()
        self._tracing = False
        return [(self._places[number].key, thread, calls) for (number, thread), calls in [*self._calls.items()]]

    def spoil(self, key: str, thread: str, *, once: bool) -> int:
        """Let a function raise on a thread, once or until it is mended; return how many have the name."""
        self._look()
        self._thread, self._once, self._fired = thread, once, 0
        self._spoiled = {number for number, place in enumerate(self._places) if place.key == key}
        for number in self._spoiled:
            self._places[number].spoil(number)
        return len(self._spoiled)

    def mend(self) -> int:
        """Let it be as before; return how often it has raised."""
        for number in self._spoiled:
            self._places[number].mend()
        self._spoiled = set()
        return self._fired

    @staticmethod
    def stacks() -> dict[str, str]:
        """Return what each thread does."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()
        return {names.get(ident, "?"): "".join(traceback.format_stack(frame)[-6:]) for ident, frame in frames.items()}


def _thread() -> str:
    """Return a name for this thread that one with the same work has, too."""
    this = threading.current_thread()
    return "main" if this is threading.main_thread() else re.sub(r"\d+", "N", this.name)
