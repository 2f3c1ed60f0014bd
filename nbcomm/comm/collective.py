"""What all collectives of a Communicator share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .transport.exchange import known_call

Method = TypeVar("Method", bound=Callable[..., Any])


def collective(method: Method) -> Method:
    """Make a Communicator's method a collective.

    Its name is known to ranks that are in another one. Where there is a journal, its calls are kept. If it takes
    ``async_op``, it is begun beside the cell where that is asked, and returns a `Handle`; the method itself does not
    look at ``async_op``.
    """
    name = known_call(method.__name__)
    signature = inspect.signature(method)

    def begin(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            asked = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return method(self, *args, **kwargs)  # raises TypeError in Python's own words
        del asked["async_op"]
        del asked["self"]
        sync_grads = asked.pop("sync_grads", False)
        # The same method carries it out, on a thread of its own.
        return self._beside(name, asked.get("group"), lambda: call(self, **asked), sync_grads=sync_grads)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("async_op"):
            return begin(self, args, kwargs)
        journal = self.journal
        if journal is None:
            return method(self, *args, **kwargs)
        return journal.carry_out(name, method, (self, *args), kwargs)

    return call  # type: ignore[return-value]  # it takes and gives what the method does
