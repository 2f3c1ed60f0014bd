"""What is known of the front end: whether it can replace what it has shown, and its name for the running cell.

No message says whether it can: the kernel's parent process shows it.
"""

from __future__ import annotations

import functools
import os
import sys
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


def id_of_running_cell() -> str:
    """Return the front end's id of the cell whose code runs; empty if it has told none."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython() if ipython is not None else None, "kernel", None)
    match getattr(kernel, "get_parent", dict)():
        case {"metadata": {"cellId": str(identity)}}:
            return identity
    return ""
