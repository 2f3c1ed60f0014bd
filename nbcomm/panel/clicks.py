"""The clicks on the panel's buttons.

A busy kernel receives a click only when its cell has ended, which may be an hour later: by then the user no longer
wants it, and the world may have changed. So each click carries its time, and a late one is dropped. The page, which
gets no answer, says after the same time that the kernel is busy.

A page that has just been loaded may believe the kernel's clock to be seconds behind. So it is told the time where a
click is late, and clicks again if, by its own clock, the click is fresh.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

_log = logging.getLogger(__name__)

PATIENCE = 1.5
"""Seconds after which a click is dropped."""

_REMEMBERED = 32
"""How many clicks are remembered, to recognise repeated ones."""

_AHEAD = 1.0
"""Seconds by which a click may lie in the future: the page knows the kernel's clock only approximately."""


def useful_buttons(*, busy: bool, hurt: bool) -> list[str]:
    """Return the buttons that would change something now.

    Args:
        busy: whether a request or a heal is in progress.
        hurt: whether a rank is dead, or another of the world's processes, which a heal replaces too.
    """
    return [*(["interrupt"] if busy else []), *(["heal"] if hurt else []), "stop", "restart"]


class ButtonClicks:
    """The handler of the page's clicks, which answers ``heard`` before an action and ``done`` with a sentence after it.

    To a click that it drops because it is late, it answers ``late`` with the time.

    Args:
        actions: the function of each button, called on the kernel's main thread; it returns a sentence, or raises an
            error with one.
        send: sends a message to the page.
        on_main: runs a call on the kernel's main thread, at once or soon.
        wall: the kernel's clock.
    """

    def __init__(
        self,
        actions: Mapping[str, Callable[[], str]],
        send: Callable[[dict[str, Any]], object],
        *,
        on_main: Callable[[Callable[[], None]], object] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._actions, self._send, self._wall = actions, send, wall
        self._on_main = on_main or kernel_main
        self._taken: deque[str] = deque(maxlen=_REMEMBERED)

    def hear(self, content: object) -> None:
        """Take a message from the page; ignore it if it is not a click."""
        match content:
            case {"kind": "press", "action": str(action), "token": str(token), "at": float(at) | int(at)}:
                # `_press` reads the clock on the main thread, because that thread may be busy.
                self._on_main(lambda: self._press(action, token, at))
            case _:
                _log.debug("The panel's page said what the kernel does not understand: %r", content)

    def _press(self, action: str, token: str, at: float) -> None:
        now = self._wall()
        if not now - PATIENCE <= at <= now + _AHEAD:  # nor is NaN
            _log.debug("A click on %s at %s was heard at %s, and is dropped.", action, at, now)
            if at < now:
                self._send({"kind": "late", "token": token, "now": now})
            return
        if token in self._taken:  # the page repeats it until it gets ``heard``
            return
        self._taken.append(token)
        self._send({"kind": "heard", "token": token})
        said, well = self._do(action)
        self._send({"kind": "done", "token": token, "text": said, "ok": well})

    def _do(self, action: str) -> tuple[str, bool]:
        do = self._actions.get(action)
        if do is None:
            return f"This world has no {action!r}; it has: {', '.join(self._actions)}.", False
        try:
            return do(), True
        except KeyboardInterrupt:
            return f"The {action} was interrupted.", False
        except Exception as error:  # noqa: BLE001  # any error is shown in the page, because nothing else shows it
            _log.debug("%s, pressed in the panel, failed.", action, exc_info=True)
            return str(error) or type(error).__name__, False


def kernel_main(call: Callable[[], None]) -> None:
    """Run a call on the kernel's main thread: at once, or, if a subshell got the message, when that thread is free."""
    if threading.current_thread() is threading.main_thread():
        call()
        return
    from IPython.core.getipython import get_ipython

    get_ipython().kernel.io_loop.add_callback(call)  # type: ignore[union-attr]
