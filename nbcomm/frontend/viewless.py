"""Widgets without a view: they stand beside what the notebook's file keeps, and their JavaScript draws over that.

A page gets a widget's JavaScript as one module, which can import no file that lies beside it. So the files are joined.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.\.?/[\w./]+\.js)";\n', re.MULTILINE)


def module(main: Path) -> str:
    """A module's text with all that it imports by relative paths in front of it, each file once.

    Names at the top of the files must differ. What they export stays exported: tests call it.

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
    """Whether a notebook's front end may listen."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def open_widget(main: Path, read: Callable[[], dict[str, Any]] = dict) -> Any:
    """Open a widget without a view.

    Args:
        main: its JavaScript; the styles lie beside it, with the ending ``.css``.
        read: what the page is to know when it opens, and when it was reloaded: asked for whenever somebody reads the
            widget's state, and never sent on change.

    Returns:
        The widget; where it cannot be opened, one that does nothing: what it would draw over stays a plain table.
    """
    try:
        return _widget_class(main)(snapshot=_Current(read))
    except Exception as error:  # noqa: BLE001  # it is made of others' packages and of a kernel that may have no comms
        _tell(f"{type(error).__name__}: {error}")
        _log.debug("The widget of %s could not be opened.", main.name, exc_info=True)
        return _Nothing()


@functools.cache
def _tell(reason: str) -> None:
    """Say it, once: the panel, the views and the explorer fail alike."""
    _log.warning(
        "nbcomm: the panel is a plain table in this notebook, for its widget could not be opened (%s).", reason
    )


class _Nothing:
    """Stands for a widget that could not be opened: nobody hears what it says, and it hears nothing."""

    @property
    def layout(self) -> _Nothing:
        """Closed with it."""
        return self

    def send(self, message: dict[str, Any]) -> None:
        """Nothing."""

    def on_msg(self, hear: Callable[..., Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def close_widget(widget: Any) -> None:
    """Close it, and its layout: that is a widget of its own, which nobody else closes."""
    widget.layout.close()
    widget.close()


class _Current:
    """The value of the widget's one trait: whoever reads the widget's state gets the state of now."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self.read = read


@functools.cache
def _widget_class(main: Path) -> type[Any]:
    """Made late: anywidget takes longer to import than all of nbcomm."""
    import anywidget
    import traitlets

    class Viewless(anywidget.AnyWidget):
        _esm = module(main)
        _css = main.with_suffix(".css").read_text(encoding="utf-8")
        snapshot = traitlets.Instance(_Current).tag(sync=True, to_json=lambda current, _widget: current.read())

    # By its class's name a page knows whose styles these are: under one name, each widget's would replace the others'.
    Viewless.__name__ = f"Viewless_{main.stem}"
    return Viewless
