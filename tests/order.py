"""Which tests run, and in which order: what is left to `make test-all`, and another order by ``--shuffle SEED``.

A pytest plugin; tests/conftest.py registers it.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pytest

from . import kinds

NIGHTLY = "nightly: what it guards is guarded by others, too, and it takes long: only `make test-all` runs it"
STORY = "story: the tests of this file are one story, and go on where the one before has ended"

_FIRST = ("outside", "world", "ranks", "unit")
"""Files with long tests begin first, so that no process is left alone with one of them in the end."""

_LEFT = pytest.StashKey[int]()


def add_option(parser: pytest.Parser) -> None:
    """Let the order be chosen."""
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="shuffle the files, and in each the tests that are no story"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    for mark in (NIGHTLY, STORY):
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: among so many objects that takes as long as all else, and finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in order, and leave the tests of each together: they share what its fixtures have made."""
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    if (seed := config.option.shuffle) is None:
        files.sort(key=_rank_of)
    else:
        shuffle(files, random.Random(seed))  # noqa: S311 - an order, no secret
    items[:] = [test for tests in files for test in tests]


def _rank_of(tests: list[pytest.Item]) -> int:
    return min(_FIRST.index(mark.name) for test in tests for mark in test.iter_markers() if mark.name in kinds.KINDS)


def shuffle(files: list[list[pytest.Item]], chance: random.Random) -> None:
    """Shuffle files, and the tests of each that is no story."""
    chance.shuffle(files)
    for tests in files:
        if tests[0].get_closest_marker("story") is None:
            chance.shuffle(tests)


# ── what is left to `make test-all` is told ─────────────────────────────────────────────────────────


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    """Count those that would have run, were they not marked."""
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            item.config.stash[_LEFT] = item.config.stash.get(_LEFT, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a process of pytest-xdist tell the one that reports; all have collected the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(_LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what such a process has told."""
    left = getattr(node, "workeroutput", {}).get("left", 0)
    node.config.stash[_LEFT] = max(left, node.config.stash.get(_LEFT, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many were left out, and where they run."""
    if left := config.stash.get(_LEFT, 0):
        terminalreporter.write_line(f"{left} tests are left to `make test-all`, which runs each night.")
