"""A receive that accepts any source.

Gloo's own cannot be freed: it waits on no connection in particular, so neither shutting all connections nor the death
of every peer ends it. But each sender writes on the board what it is about to send. So this receive polls the board
until a rank has announced a message, and then receives from that rank by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.profiler import record_function

from ...threads import keep

_LOOK, _SELDOM = 0.0002, 0.01
"""Seconds between two looks at the board, at first and at most: shared memory cannot wake a waiting process."""


class AnyoneReceive(dist.Work):
    """The handle of a receive from any source; a thread looks for the sender, so that a wait finds it known.

    Args:
        find: begins to receive from a rank that has announced a message, and returns the sender's group rank and the
            handle; returns None if there is none. Raises if there can never be one.
        watched: has a wait recorded and its errors explained, as for any other handle.
    """

    def __init__(
        self,
        find: Callable[[], tuple[int, Any] | None],
        watched: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        super().__init__()
        self._find = find
        self._watched = watched
        self._found: tuple[int, Any] | None = None
        self._error: BaseException | None = None
        self._look()
        if not self._ready:
            keep("nbcomm-receive", self._search)

    def _look(self) -> None:
        try:
            self._found = self._find()
        except BaseException as error:  # noqa: BLE001 - who waits raises it
            self._error = error.with_traceback(None)  # its frames would keep the groups that are being released

    @property
    def _ready(self) -> bool:
        return self._found is not None or self._error is not None

    def _search(self) -> None:
        pause = _LOOK
        while not self._ready:
            time.sleep(pause)
            self._look()
            pause = min(pause * 1.2, _SELDOM)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the message is there."""
        with record_function("gloo:recvAnySource"):  # torch's own name, which a profile shows from its beginning
            return bool(self._watched(AnyoneReceive._wait, self, () if timeout is None else (timeout,), {}))

    def _wait(self, timeout: timedelta | None = None) -> bool:
        # No Event: a signal handler that raises inside one may leave its lock taken.
        began = time.monotonic()
        while not self._ready:
            if timeout is not None and time.monotonic() - began > timeout.total_seconds():
                raise RuntimeError(f"No rank sent anything within {timeout}.")
            time.sleep(_LOOK)
        if self._error is not None:
            raise self._error
        _, work = self._arrived()
        return bool(work.wait() if timeout is None else work.wait(timeout))

    def _arrived(self) -> tuple[int, Any]:
        if self._found is None:
            raise RuntimeError("The sender is not known yet.")
        return self._found

    def is_completed(self) -> bool:
        """Return whether the message has arrived, or can never arrive."""
        return self._error is not None or (self._found is not None and bool(self._found[1].is_completed()))

    def _source_rank(self) -> int:
        return self._arrived()[0]
