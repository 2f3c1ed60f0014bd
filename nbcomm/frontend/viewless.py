"""Widgets without a view: the notebook's file keeps a plain display, and the widget's JavaScript draws over it.

A page gets a widget's JavaScript as one module, which cannot import files beside it. So the files are joined.
"""

from __future__ import annotations

import functools
import logging
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .quietly import quietly

_log = logging.getLogger(__name__)

_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.\.?/[\w./]+\.js)";\n', re.MULTILINE)


def module(main: Path) -> str:
    """Return a module's text, preceded by the files that it imports by relative paths, each once.

    Names at the top of the files must differ. The files' exports stay exported, because tests call them.

    Args:
        main: the file with the default export.
    """
    parts: dict[Path, str] = {}
    _collect(main.resolve(), parts)
    return "\n".join(parts.values())


def _collect(file: Path, parts: dict[Path, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for path in _IMPORT.findall(text):
        needed = (file.parent / path).resolve()
        if needed not in parts:
            _collect(needed, parts)
    parts[file] = _IMPORT.sub("", text)


def in_kernel() -> bool:
    """Tell whether this process is a kernel, so that a front end may be connected."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def open_widget(main: Path, read: Callable[[], dict[str, Any]] = dict) -> Any:
    """Open a widget without a view.

    Args:
        main: its JavaScript; the styles are beside it in a file with the suffix ``.css``.
        read: returns what the page needs when it opens or was reloaded. It is called whenever the widget's state is
            read, and its value is never sent on change.

    Returns:
        The widget; if it cannot be opened, one that does nothing, and the plain table stays visible.
    """
    key = uuid.uuid4().hex
    try:
        widget = _widget_class(main)(snapshot=_Current(read), key=key, model_id=key)
        widget.on_msg(functools.partial(_send_again, read))
        _hear_each_page(widget.comm)
    except Exception as error:  # noqa: BLE001  # it depends on other packages, and on a kernel that may have no comms
        _tell(f"{type(error).__name__}: {error}")
        _log.debug("The widget of %s could not be opened.", main.name, exc_info=True)
        return _Nothing()
    return widget


def _hear_each_page(comm: Any) -> None:
    """Let the pages' messages reach the subshells that the pages name.

    ipykernel 7.4 passes what a page says to the subshell of the request that it has served last when the comm spoke. It
    may be that of a page that is gone. Then nothing that the next page says is heard, until somebody runs a cell.
    """
    with suppress(AttributeError):
        comm._reply_subshell_for = None  # noqa: SLF001 - it is asked for by name, and may be missing


def _send_again(read: Callable[[], dict[str, Any]], widget: Any, message: object, _buffers: object) -> None:
    """Answer a page that says that it has missed messages; ignore all else."""
    if message == {"kind": "missed"}:
        quietly(widget.send, read())


@functools.cache
def _tell(reason: str) -> None:
    """Log the reason once: the panel, the views and the explorer fail for the same reason."""
    _log.warning(
        "nbcomm: the panel is a plain table in this notebook, for its widget could not be opened (%s).", reason
    )


class _Nothing:
    """A stand-in for a widget that could not be opened: it sends and receives nothing."""

    @property
    def layout(self) -> _Nothing:
        """The layout, which `close_widget` closes too: this object itself."""
        return self

    def send(self, message: dict[str, Any]) -> None:
        """Do nothing."""

    def on_msg(self, hear: Callable[..., Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def close_widget(widget: Any) -> None:
    """Close a widget, and its layout: the layout is a widget of its own, which nothing else closes."""
    widget.layout.close()
    widget.close()


class _Current:
    """The value of the widget's one trait: each reading of the widget's state gives the present state."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self.read = read


@functools.cache
def _widget_class(main: Path) -> type[Any]:
    """Make the class of a widget at its first use: anywidget takes longer to import than all of nbcomm."""
    import anywidget
    import traitlets

    class Viewless(anywidget.AnyWidget):
        _esm = module(main)
        _css = main.with_suffix(".css").read_text(encoding="utf-8")
        key = traitlets.Unicode().tag(sync=True)  # the model's own, by which the page finds it
        snapshot = traitlets.Instance(_Current).tag(sync=True, to_json=lambda current, _widget: current.read())

    # A page keeps styles by the name of the class: under one name, each widget's styles would replace the others'.
    Viewless.__name__ = f"Viewless_{main.stem}"
    return Viewless
