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

    def pass_on(self) -> bool:
        """Let the task go on, until it waits for something else; return False if no task has ever come to wait."""
        then = self._then
        if then is None:
            return self.done()  # it is cancelled, and goes on by itself
        if not self.done():
            self.set_result(None)
        # It is kept: if an interrupt comes before the task runs, the next one passes on.
        (then[1] or contextvars.copy_context()).run(then[0], self)
        return True

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the wait; the task goes on in the loop's next round, as with any future."""
        then, self._then = self._then, None
        cancelled = super().cancel(msg)
        if cancelled and then is not None:
            self.get_loop().call_soon(then[0], self, context=then[1])
        return cancelled
