"""What libraries that show progress choose on a rank: output that fits into one compact block of the cell's output.

A rank is a kernel to them, so `tqdm.auto` would choose widgets, and rich an Output widget for each live display. As
text, bars of several ranks are lines of one block; they need no page that supports widgets, and are saved as they look.
Code that imports `tqdm.notebook` by name gets it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import re
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ...protocol import LIVE
from .capture import Capture
from .output_widget import Outlet

_LINK = re.compile(r"\x1b\]8;[^\x1b\x07]*(?:\x1b\\|\x07)")
"""A terminal's hyperlink, of which a page would show the bare codes."""

_capture: Capture | None = None
"""The rank's capture, once there is a shell."""


def of_cells(capture: Capture) -> None:
    """Set the rank's capture: from now on, cells may run."""
    global _capture  # noqa: PLW0603 - an engine's process is one rank
    _capture = capture


def watch_imports() -> None:
    """Adapt modules that are imported from now on, or are already imported."""
    sys.meta_path.insert(0, _Finder())
    for name, adapt in _ADAPTED.items():
        if name in sys.modules:
            adapt(sys.modules[name])


def _choose_text(module: ModuleType) -> None:
    """Make `tqdm.autonotebook` choose text."""
    import tqdm.asyncio
    import tqdm.std

    vars(module).update(tqdm=tqdm.std.tqdm, trange=tqdm.std.trange)
    if "tqdm.auto" in sys.modules:  # it has taken the choice already
        vars(sys.modules["tqdm.auto"])["tqdm"] = tqdm.asyncio.tqdm


def _show_in_place(module: ModuleType) -> None:
    """Make `rich.live` show live content as one text that is replaced, and not as a widget."""
    live: Any = module.Live
    start, stop = live.start, live.stop

    def start_in_place(self: Any, *args: Any, **kwargs: Any) -> None:
        of_cell = _capture is not None and _capture.attribution() is not None
        if of_cell and self.ipy_widget is None and self.console.is_jupyter:
            self.ipy_widget = InPlace()
        start(self, *args, **kwargs)

    def stop_with_the_last(self: Any) -> None:
        if self.is_started and isinstance(self.ipy_widget, InPlace) and not self.transient:
            self.refresh()  # in Jupyter rich leaves it at what it showed last
        stop(self)

    live.start, live.stop = start_in_place, stop_with_the_last


def _share_outputs(module: ModuleType) -> None:
    """Make `ipywidgets`' Output take what all threads and tasks print that enter it, not only the first."""
    output: Any = module.Output
    enter, leave = output.__enter__, output.__exit__
    crossing = threading.RLock()  # the last to leave stores what there is; who enters meanwhile would begin without it

    def enter_too(self: Any) -> Any:
        with crossing:
            before = getattr(self.comm, "outlet", None)
            entered = enter(self)
            if before is not None and self.comm.outlet is before:
                before.join()
            return entered

    def leave_too(self: Any, *error: Any) -> Any:
        with crossing:
            outlet = getattr(self.comm, "outlet", None)
            try:
                return leave(self, *error)
            finally:
                if outlet is not None:
                    outlet.leave()

    output.__enter__, output.__exit__ = enter_too, leave_too


def _print_text(module: ModuleType) -> None:
    """Make `rich.jupyter` print coloured text, which folds over ranks as any text does, and not HTML."""
    jupyter: Any = module
    display = jupyter.display

    def display_text(segments: Any, text: str) -> None:
        if _capture is None or _capture.attribution() is None:
            display(segments, text)
        elif text:  # when something live ends, rich shows an empty text
            from IPython.display import display as show

            show({"text/plain": _LINK.sub("", text).removesuffix("\n")}, raw=True)

    jupyter.display = display_text


_ADAPTED: dict[str, Callable[[ModuleType], None]] = {
    "ipywidgets.widgets.widget_output": _share_outputs,
    "tqdm.autonotebook": _choose_text,
    "rich.jupyter": _print_text,
    "rich.live": _show_in_place,
}


class _Finder(importlib.abc.MetaPathFinder):
    """The finder of modules that are adapted; their own loaders load them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _ADAPTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load, adapt = spec.loader.exec_module, _ADAPTED[fullname]
        instead = fullname == "tqdm.autonotebook"  # it would import all widgets only to choose them

        def load_and_adapt(module: ModuleType) -> None:
            if not instead:
                load(module)
            adapt(module)

        spec.loader.exec_module = load_and_adapt  # type: ignore[method-assign]
        return spec


class InPlace:
    """A replacement for the Output widget in which rich shows live content: a text under one ``display_id``."""

    def __init__(self) -> None:
        self._display_id = f"{LIVE}{uuid.uuid4().hex}"
        self._outlet = Outlet()
        self._shown: str | None = None

    def __enter__(self) -> None:
        self._outlet = Outlet()
        self._outlet.open()

    def __exit__(self, *_: object) -> None:
        self._outlet.close()
        texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in self._outlet.outputs]
        self._show("".join(texts).removesuffix("\n"))

    def clear_output(self, *, wait: bool = False) -> None:
        """Do nothing: new content replaces the old each time."""

    def close(self) -> None:
        """Leave nothing."""
        self._show("")

    def _show(self, text: str) -> None:
        from IPython.display import display

        if text == self._shown:
            return
        if self._shown is None:
            # On each rank it begins as the same empty text, so that those of all ranks are one display.
            display({"text/plain": ""}, raw=True, display_id=self._display_id)
        self._shown = text
        display({"text/plain": text}, raw=True, display_id=self._display_id, update=True)
