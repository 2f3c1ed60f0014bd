"""Asks the ranks what they do, and tells the panel: a thread, so that it goes on while a cell blocks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ..messages import Probe

if TYPE_CHECKING:
    from .session import Session

_BUSY, _IDLE = 0.25, 1.0
"""Seconds between two questions, while something runs and otherwise."""


class Watch:
    """Polls the agents of a session until closed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="nbcomm-watch", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Something begins to run: look soon, and often."""
        self._hurry.set()

    def close(self) -> None:
        """Stop asking."""
        self._closed = True
        self._hurry.set()
        self._thread.join(5)

    def _poll(self) -> None:
        session = self._session
        while not self._closed:
            session.link.send(session.ranks, Probe())
            if self._hurry.wait(_BUSY if session.busy else _IDLE) and not self._closed:
                self._hurry.clear()
                # A short cell is over before anybody could see its state: spend no time on it.
                time.sleep(_BUSY)
            if session.panel is not None and not self._closed:
                session.panel.update(session.views())
