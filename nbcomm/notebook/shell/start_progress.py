"""The progress bar of a starting world; one display, updated in place."""

from __future__ import annotations

import html
import sys
import time

from IPython import get_ipython
from IPython.display import display

from ..display.frontends import shows_updates

_WIDTH = 24
_ERASE = "\r\x1b[K"  # the line of a terminal


class StartProgress:
    """The progress of a start. A terminal has it in one line; if nothing can be updated, only the end is printed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        shell = get_ipython()
        # Only a kernel's front end can update what it has shown, and not every one does.
        self._live = shell is not None and hasattr(shell, "kernel") and shows_updates()
        self._handle = None

    @property
    def seconds(self) -> float:
        """Seconds since the start began."""
        return time.monotonic() - self._began

    def __call__(self, doing: str, ready: int, of: int) -> None:
        """Show a step of the start; see `start_options.Progress`."""
        if not self._live:
            if sys.stdout.isatty():  # a sign of life, which the next line replaces
                print(f"{_ERASE}Starting: {doing} …", end="", flush=True)
            return
        filled = _WIDTH * ready // of if of else 0
        count = f"{ready} of {of} ranks" if of else "ranks"
        text = f"Starting: {doing}  {'█' * filled}{'░' * (_WIDTH - filled)}  {count}"
        bar = f'<div>Starting: {html.escape(doing)} <progress value="{ready}" max="{of or 1}"></progress> {count}</div>'
        self._show({"text/plain": text, "text/html": bar})

    def finish(self, sentence: str) -> None:
        """Replace the bar by a sentence."""
        if self._live:
            self._show({"text/plain": sentence})
        else:
            print(f"{_ERASE * sys.stdout.isatty()}{sentence}")

    def clear(self) -> None:
        """Remove the bar: the error that follows says what happened."""
        if self._handle is not None:
            self._show({"text/plain": ""})
        elif not self._live and sys.stdout.isatty():
            print(_ERASE, end="", flush=True)

    def _show(self, bundle: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
