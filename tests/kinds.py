"""Which part of the tests a test belongs to, by its folder or by a mark of its own; a `unit` test starts no process.

A pytest plugin; tests/conftest.py registers it. ``pytest -m unit`` does not even import the files of other parts.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import multiprocessing.util
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

KINDS = {
    "unit": "starts no process; `make quick` runs these",
    "ranks": "starts processes, such as ranks, a node's, or a plain Python, but no notebook's kernel",
    "world": "has a notebook's kernel, or a whole world",
    "outside": "needs a program that is not Python: a browser, node, ssh, Slurm, MPI; or builds the wheel",
}

FOLDERS = {
    "tests/browser": "outside",
    "tests/comm": "ranks",
    "tests/fabric": "ranks",
    "tests/gpu": "world",
    "tests/kernel": "world",
    "tests/launch": "ranks",
    "tests/node": "ranks",
    "tests/nodes": "outside",
    "tests/notebooks": "world",
    "tests/peers": "world",
    "tests/rank/groups": "ranks",
    "tests/torch_internals": "ranks",
    "tests/world": "world",
}
"""The part of each test of a folder. All others are `unit`; a test or file that is not as its folder has a mark."""

_MARK = re.compile(rf"pytest\.mark\.({'|'.join(KINDS)})\b")


def of_folder(path: PurePath) -> str:
    """The part to which a file's folder belongs; the path is relative to the repository."""
    return next((FOLDERS[str(folder)] for folder in path.parents if str(folder) in FOLDERS), "unit")


def in_file(file: Path) -> set[str]:
    """The parts to which tests of a file may belong, without importing it."""
    marked = set(_MARK.findall(file.read_text(encoding="utf-8")))
    return marked | {of_folder(file.relative_to(ROOT))}


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    for name, what in KINDS.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    _watch()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have no test of the one part that is asked for: importing all of them takes long."""
    asked = config.option.markexpr
    if asked not in KINDS or collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT):
        return None
    return None if asked in in_file(collection_path) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that has no such mark of its own as its folder says."""
    marked = {mark.name for mark in item.iter_markers()} & KINDS.keys()
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked as {' and as '.join(sorted(marked))}; it can be one of them.")
    if not marked:
        item.add_marker(of_folder(item.path.relative_to(ROOT)))


# ── a unit test starts no process ───────────────────────────────────────────────────────────────────

_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""What Python tells its audit hooks. multiprocessing tells nothing, and is asked."""

_watched: list[tuple[str, list[str]]] = []
"""The tests that must start nothing, the innermost last, and what each has started."""


class ProcessInUnitTestError(AssertionError):
    """A test of the part `unit` starts a process."""


@contextmanager
def no_process(who: str) -> Iterator[None]:
    """Refuse to start processes; whoever hides the refusal is told at the end of the block.

    Raises:
        ProcessInUnitTestError: where one would be started.
    """
    started: list[str] = []
    _watched.append((who, started))
    try:
        yield
    finally:
        _watched.pop()
    if started:
        raise ProcessInUnitTestError(_refusal(who, started))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch the fixtures of a unit test."""
    with _as_is_fit(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch a unit test."""
    with _as_is_fit(item):
        return (yield)


@contextmanager
def _as_is_fit(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("unit") is None:
        yield
    else:
        with no_process(item.nodeid):
            yield


def _refusal(who: str, started: Iterable[str]) -> str:
    return (
        f"{who} is a unit test, and would start a process ({', '.join(started)}). Unit tests start none: use a fake, "
        f"or mark it with pytest.mark.ranks, world or outside (tests/kinds.py)."
    )


def _refuse(what: str) -> None:
    if _watched:
        who, started = _watched[-1]
        started.append(what)
        raise ProcessInUnitTestError(_refusal(who, [what]))


@functools.cache  # a hook cannot be taken away, and is needed once
def _watch() -> None:
    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTS:
            _refuse(event)

    sys.addaudithook(hear)
    start, spawn = multiprocessing.process.BaseProcess.start, multiprocessing.util.spawnv_passfds

    def watched_start(self: Any) -> None:
        _refuse("multiprocessing")
        start(self)

    def watched_spawn(*args: Any) -> int:
        _refuse("multiprocessing")
        return spawn(*args)

    multiprocessing.process.BaseProcess.start = watched_start
    multiprocessing.util.spawnv_passfds = watched_spawn
