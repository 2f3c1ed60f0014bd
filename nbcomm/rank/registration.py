"""A rank's way to ipyparallel's controller, which it goes when the notebook asks for that.

ipyparallel is imported only then. The kernel of its engine takes the place of the rank's, and has the same shell.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..protocol import Registered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..faults import Faults
    from .output.capture import Capture


class Registration:
    """Makes this rank an engine whose id is its number.

    Args:
        rank: its number.
        shell: the rank's.
        capture: what its cells show.
        loop: of the main thread.
        answer: called each time when it is done, or has failed.
        faults: logs failures.
    """

    def __init__(  # noqa: PLR0913 - what an engine needs, and what is made known of it
        self,
        rank: int,
        shell: Any,
        capture: Capture,
        *,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Registered], None],
        faults: Faults,
    ) -> None:
        self._rank = rank
        self._shell = shell
        self._capture = capture
        self._loop = loop
        self._answer = answer
        self._faults = faults
        self._engine: Any = None
        self._connection = ""
        self._work: asyncio.Task[None] | None = None

    def ask(self, connection: str) -> None:
        """Register when the main thread runs no cell; the link's thread may call this.

        Args:
            connection: what the controller has written for engines.
        """
        self._loop.call_soon_threadsafe(self._begin, connection)

    def _begin(self, connection: str) -> None:
        before = self._work

        async def work() -> None:
            engine = failure = ""
            try:
                if before is not None and not before.done():
                    await asyncio.wait([before])
                engine = await self._register(connection)
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - it must be answered
                self._faults.log("this rank could not register with ipyparallel's controller", error)
                failure = str(error) or type(error).__name__
            self._answer(Registered(engine, failure))

        self._work = asyncio.ensure_future(work())

    async def _register(self, connection: str) -> str:
        if connection == self._connection:
            self._engine.say_again()
        else:
            from .ipyparallel_engine import Engine

            self._engine = await Engine.begin(self._rank, connection, self._shell, self._capture)
            self._connection = connection
        name: str = self._engine.ident
        return name
