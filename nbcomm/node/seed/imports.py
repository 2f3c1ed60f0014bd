"""What a process has imported, and whether a fresh one would import the same now."""

from __future__ import annotations

import importlib
import os
import site
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

_Mark = tuple[int, int]

_MADE_MEANWHILE: _Mark = (-1, -1)
"""The mark of a file that was changed while it was imported: it never holds again."""


class Imports:
    """The modules of this process, and the files that they came from."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._marks: dict[str, _Mark] = {}

    def take_stock(self) -> None:
        """Note the files of what has been imported since the last time. Call this right after the imports."""
        now = time.time_ns()
        for path in self._files() - self._marks.keys():
            mark = _mark(path)
            # One that is dated in the future comes from a machine whose clock is wrong.
            self._marks[path] = _MADE_MEANWHILE if self._began < mark[0] <= now else mark

    def _files(self) -> set[str]:
        modules = {file for module in list(sys.modules.values()) if isinstance(file := _file(module), str)}
        return modules | _path_files()

    def change(self) -> str:
        """Return which of the files has changed, in a sentence; nothing if a fresh process would read the same."""
        for path, mark in self._marks.items():
            if _mark(path) != mark:
                return f"{path} has changed since it was imported."
        added = sorted(_path_files() - self._marks.keys())
        return f"{added[0]} is new, and changes where Python looks for modules." if added else ""


def hidden() -> str:
    """Return which module of this process a fresh one would import from another file, in a sentence; else nothing.

    Call this with the working folder, and with the ``sys.path``, of that process.
    """
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if "." in name or name == "__main__" or spec is None or not spec.has_location:
            continue
        found = PathFinder.find_spec(name)
        if found is not None and found.origin not in (spec.origin, None):
            return f"{found.origin} hides {spec.origin}, which was imported."
    return ""


def _file(module: object) -> object:
    return getattr(module, "__file__", None)


def _mark(path: str) -> _Mark:
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def _path_files() -> set[str]:
    """Return the files that say where Python looks for modules."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    found = {os.fspath(path) for folder in folders if os.path.isdir(folder) for path in Path(folder).glob("*.pth")}  # noqa: PTH112 - it may not be there
    return found | {os.fspath(Path(sys.prefix) / "pyvenv.cfg")}
