"""Descriptors that a rank and a notebook keep for nbcomm, for a cell may use up all.

Gloo ends the process where it cannot accept a connection, so without them the forming of groups, after a cell has
opened files until it could not, would cost the rank and its variables. Without them, too, Python shows no line of an
error's source, and a value that is sent finds no file.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import select
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from .errors import StateError

_KEPT = 48


class Reserve:
    """Descriptors of the null device, which are closed where nbcomm needs some."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._is_lent = False
        self._fill()

    def _fill(self) -> None:
        with suppress(OSError):  # there are fewer then
            while len(self._kept) < _KEPT:
                self._kept.append(os.dup(self._kept[0]) if self._kept else os.open(os.devnull, os.O_RDONLY))

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the block have them; main thread."""
        if self._is_lent:  # to a block around this one, which goes on with them
            yield
            return
        while self._kept:
            os.close(self._kept.pop())
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False
            self._fill()

    def if_needed(self) -> AbstractContextManager[None]:
        """Let the block have them if few others are left: one or two would not be enough; main thread."""
        # To close and make them again for each cell would take longer than most of what a small one does here.
        return self.lent() if _few_left() else nullcontext()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let the block, a command, have them if few others are left; main thread.

        Raises:
            StateError: they are not enough.
        """
        with self.if_needed():
            try:
                yield
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise StateError(f"Nothing more can be opened: {_all_used('this notebook')}") from error

    @staticmethod
    def explain() -> list[str]:
        """Return what to say of an error while the process may open no more."""
        if not _none_left():
            return []
        return [_all_used("the process")]


def _all_used(who: str) -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    said = f"all {limit} files and connections that {who} may have (RLIMIT_NOFILE) are open: close some, or delete"
    return f"{said} the variables that hold them."


def _few_left() -> bool:
    """Return whether there may be fewer than are kept: the highest numbers of all are taken last."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or len(_highest(limit).poll(0)) < _KEPT


@functools.lru_cache(maxsize=1)
def _highest(limit: int) -> select.poll:
    """Return what tells of the highest numbers, in one call, for each that it is not open."""
    numbers = select.poll()
    for number in range(max(0, limit - _KEPT), limit):
        numbers.register(number, 0)
    return numbers


def _none_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False
