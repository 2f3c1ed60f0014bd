"""Whether the front end can replace what it has shown. No message says so: the kernel's parent process shows it."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NO_UPDATES = "NBCOMM_NO_UPDATES"
"""Environment variable for front ends that do not replace displays: output is only appended."""

_CONSOLES = {"jupyter-console", "jupyter_console", "jupyter-qtconsole", "qtconsole"}
"""Programs that start a kernel of their own, and ignore ``update_display_data``."""


def shows_updates() -> bool:
    """Return whether a display can be replaced in place.

    If not, an updated display would keep its first value for ever, and the later ones would be lost.
    """
    return not os.environ.get(NO_UPDATES) and not _is_of_a_console()


@functools.cache
def _is_of_a_console() -> bool:
    import psutil

    with suppress(psutil.Error):
        parent = psutil.Process().parent()
        return parent is not None and is_console(parent.cmdline())
    return False


def is_console(command: Sequence[str]) -> bool:
    """Return whether a command line is of a console that ignores updates.

    >>> is_console(["python3", "-m", "jupyter_console", "--kernel", "nbcomm"])
    True
    >>> is_console(["python3", "/usr/bin/jupyter-lab", "jupyter-console"])
    False
    """
    words = [word for word in command[:3] if word != "-m"]
    return any(Path(word).name in _CONSOLES for word in words[:2])
