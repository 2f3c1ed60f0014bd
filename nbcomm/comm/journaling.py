"""Marks the methods whose calls a journal keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def journaled(name: str, method: Method) -> Method:
    """Make a Communicator's method one whose calls are kept, where there is a journal."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        journal = self.journal
        # What is begun beside the cell is carried out by this very method, on a thread of its own.
        if journal is None or kwargs.get("async_op"):
            return method(self, *args, **kwargs)
        return journal.carry_out(name, method, (self, *args), kwargs)

    return call  # type: ignore[return-value]  # it takes and gives what the method does
