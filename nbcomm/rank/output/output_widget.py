"""Where output goes that does not go to its cell: into an Output widget, or into a live display.

A notebook's page assigns such output by the message that it answers; here the context that makes it decides: a task, or
a thread and the threads that it starts.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import msgspec
from ipykernel.jsonutil import encode_images
from jupyter_client.jsonutil import json_default

from ...protocol import Clear, Display, Item, Result, Text
from .carriage_returns import settle_returns

_open: contextvars.ContextVar[tuple[Outlet, ...]] = contextvars.ContextVar("nbcomm_outlets", default=())

_STARTED_IN = "_nbcomm_outlets"
"""The attribute of a thread that holds the outlets of the code that started it."""


class Outlet:
    """A target that takes what its context prints and displays while it is open.

    Args:
        outputs: what it holds already, as in a notebook's file.

    Attributes:
        is_open: whether it takes anything.
        changes: how often it has taken something.
    """

    any_used: ClassVar[bool] = False
    """Whether any has been open in this process: each print asks."""

    def __init__(self, outputs: Iterable[dict[str, Any]] = ()) -> None:
        self.is_open = False
        self.changes = 0
        self._outputs = [_Output(dict(output)) for output in outputs]
        self._clear = False

    def open(self) -> None:
        """Take from now on what this context shows; if several are open, the last one takes it."""
        self.is_open = True
        self.join()

    def close(self) -> None:
        """Take no more, from any context."""
        self.is_open = False
        _open.set(tuple(outlet for outlet in _open.get() if outlet is not self))

    def join(self) -> None:
        """Take what this context shows, too, or once more."""
        Outlet.any_used = True
        _open.set((*_open.get(), self))

    def leave(self) -> None:
        """Undo one `join`."""
        outlets = [*_open.get()]
        if self in outlets:
            del outlets[len(outlets) - 1 - outlets[::-1].index(self)]
            _open.set(tuple(outlets))

    def take(self, item: Item) -> None:
        """Take one item."""
        self.changes += 1
        if isinstance(item, Clear):
            self._clear = item.wait
            if not item.wait:
                self._outputs.clear()
            return
        if isinstance(item, Display) and item.update:
            for output in self._outputs:
                if output.display_id == item.display_id:
                    output.content.update(data=plain(encode_images(item.data)), metadata=plain(item.metadata))
            return
        if self._clear:
            self._clear = False
            self._outputs.clear()
        if isinstance(item, Text):
            last = self._outputs[-1] if self._outputs else None
            if last is None or last.content.get("name") != item.stream:
                last = _Output({"output_type": "stream", "name": item.stream, "text": ""})
                self._outputs.append(last)
            last.more.append(item.text)
        elif isinstance(item, Display | Result):
            content = {"output_type": "display_data", "data": plain(encode_images(item.data))}
            content["metadata"] = plain(item.metadata)
            self._outputs.append(_Output(content, item.display_id if isinstance(item, Display) else ""))

    def fail(self, name: str, message: str, lines: list[str]) -> None:
        """Take an exception's traceback."""
        self.changes += 1
        content = {"output_type": "error", "ename": name, "evalue": message, "traceback": lines}
        self._outputs.append(_Output(content))

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """What it holds, as in a notebook's file; consecutive texts of one stream are one."""
        return [output.settled() for output in self._outputs]


class _Output:
    """One output; new text is joined when it is asked for, and not each time it comes."""

    def __init__(self, content: dict[str, Any], display_id: str = "") -> None:
        self.content = content
        self.display_id = display_id
        self.more: list[str] = []

    def settled(self) -> dict[str, Any]:
        if self.more:
            self.content["text"] = settle_returns("".join([self.content["text"], *self.more]))
            self.more.clear()
        return dict(self.content)


def current() -> Outlet | None:
    """Return the outlet that takes what this context shows; None if that goes to its cell."""
    if not Outlet.any_used:
        return None
    outlets = _open.get() or getattr(threading.current_thread(), _STARTED_IN, ())
    return next((outlet for outlet in reversed(outlets) if outlet.is_open), None)


def inherit(thread: threading.Thread) -> None:
    """Let a thread that is about to start show things where this context does."""
    outlets = _open.get() or getattr(threading.current_thread(), _STARTED_IN, ())
    if outlets:
        setattr(thread, _STARTED_IN, outlets)


def outside() -> Callable[[], None]:
    """Leave all outlets, as a new cell does; return a function that enters them again."""
    token = _open.set(())
    return lambda: _open.reset(token)


def plain(value: Any) -> Any:
    """Return a copy that can be sent: what a notebook's kernel would make JSON of."""
    try:
        return msgspec.to_builtins(value, enc_hook=json_default, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return value  # the link replaces what it cannot encode
