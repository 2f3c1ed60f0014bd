"""A future whose waiter goes on at once when it is done, and not in the event loop's next round."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any


class Baton(asyncio.Future[None]):
    """What one task waits for until `pass_on` is called, in a callback of its loop, where no task runs.

    The loop's next round costs a look at all that it watches: for a small cell that is a tenth of nbcomm's own work.
    """

    _then: tuple[Callable[[Any], object], contextvars.Context | None] | None = None

    def add_done_callback(
        self, then: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Keep how the waiting task goes on."""
        self._then = then, context

    def pass_on(self) -> None:
        """Let the task go on, until it waits for something else."""
        then, self._then = self._then, None
        if self.done() or then is None:  # it is cancelled, and goes on by itself
            return
        self.set_result(None)
        (then[1] or contextvars.copy_context()).run(then[0], self)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the wait; the task goes on in the loop's next round, as with any future."""
        then, self._then = self._then, None
        cancelled = super().cancel(msg)
        if cancelled and then is not None:
            self.get_loop().call_soon(then[0], self, context=then[1])
        return cancelled
