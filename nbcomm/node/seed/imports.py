"""What a process has imported, and whether a fresh one would import the same now."""

from __future__ import annotations

import filecmp
import importlib
import os
import site
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

_Mark = tuple[int, int]

_MADE_MEANWHILE: _Mark = (-1, -1)
"""The mark of a file that was changed while it was imported: it never holds again."""

_WRITER, _WRITTEN = "torch.distributed.nn.jit.instantiator", "INSTANTIATED_TEMPLATE_DIR_PATH"
"""torch up to 2.9 writes a module into a temporary folder that this names, and imports it; each process has its own."""


class Imports:
    """The modules of this process, and the files that they came from.

    What is asked is asked in a fork, and at each start. So this keeps its own texts, one beside the other: to touch a
    thousand modules, or their names, would copy each page that has one of them.
    """

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._marks: dict[bytes, _Mark] = {}
        self._origins: dict[bytes, bytes] = {}  # the files of modules that are in no package, by name

    def take_stock(self) -> None:
        """Note the files of what has been imported since the last time. Call this right after the imports."""
        now = time.time_ns()
        for path in _module_files() | _path_files():
            if path not in self._marks:
                mark = _mark(path)
                # One that is dated in the future comes from a machine whose clock is wrong.
                self._marks[path] = _MADE_MEANWHILE if self._began < mark[0] <= now else mark
        self._origins = dict(_origins())

    def change(self) -> str:
        """Return which of the files has changed, in a sentence; nothing if a fresh process would read the same."""
        for path, mark in self._marks.items():
            if _mark(path) != mark:
                return f"{os.fsdecode(path)} has changed since it was imported."
        added = sorted(_path_files() - self._marks.keys())
        return f"{os.fsdecode(added[0])} is new, and changes where Python looks for modules." if added else ""

    def hidden(self) -> str:
        """Return which module a fresh process would import from another file that differs, in words; else nothing.

        Call this with the working folder, and with the ``sys.path``, of that process.
        """
        doubtful = self._doubtful()
        if doubtful:
            importlib.invalidate_caches()
        for name in doubtful:
            origin, found = os.fsdecode(self._origins[name]), PathFinder.find_spec(os.fsdecode(name))
            if found is not None and found.origin not in (origin, None) and _differs(Path(origin), Path(found.origin)):
                return f"in this folder Python imports {found.origin}, and the seed has imported {origin}."
        return ""

    def _doubtful(self) -> list[bytes]:
        """Return the modules whose names are in a folder of the path that they did not come from.

        To search for all of them takes twenty times as long.
        """
        doubtful = set()
        for folder in map(os.fsencode, sys.path):
            try:
                names = {entry.partition(b".")[0] for entry in os.listdir(folder or b".")}  # noqa: PTH208 - see above
            except FileNotFoundError:
                continue
            except OSError:  # an archive, or a folder that can only be searched
                return list(self._origins)
            for name in names & self._origins.keys():
                if not self._origins[name].startswith(os.path.join(folder, name)):  # noqa: PTH118 - bytes
                    doubtful.add(name)
        return sorted(doubtful)


def _differs(imported: Path, other: Path) -> bool:
    """Return whether another place has another module; what was installed from a checkout is the same there."""
    files = [imported]
    if imported.name == "__init__.py":
        files += [*imported.parent.rglob("*.py"), *imported.parent.rglob("*.so")]
    pairs = ((file, other.parent / file.relative_to(imported.parent)) for file in files)
    try:
        return not all(filecmp.cmp(*pair, shallow=False) for pair in pairs)
    except OSError:  # the other place has no such file
        return True


def _module_files() -> set[bytes]:
    own = getattr(sys.modules.get(_WRITER), _WRITTEN, None)
    files = {file for module in list(sys.modules.values()) if isinstance(file := _file(module), str)}
    return {os.fsencode(file) for file in files if own is None or os.path.dirname(file) != own}  # noqa: PTH120 - thousands of them


def _origins() -> Iterator[tuple[bytes, bytes]]:
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if "." in name or name == "__main__" or spec is None or not spec.has_location:
            continue
        if isinstance(spec.origin, str):
            yield os.fsencode(name), os.fsencode(spec.origin)


def _file(module: object) -> object:
    return getattr(module, "__file__", None)


def _mark(path: bytes) -> _Mark:
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def _path_files() -> set[bytes]:
    """Return the files that say where Python looks for modules."""
    found = {os.fsencode(Path(sys.prefix) / "pyvenv.cfg")}
    for folder in map(os.fsencode, [*site.getsitepackages(), site.getusersitepackages()]):
        with suppress(OSError):  # it may not be there
            found |= {os.path.join(folder, file) for file in os.listdir(folder) if file.endswith(b".pth")}  # noqa: PTH118, PTH208
    return found
