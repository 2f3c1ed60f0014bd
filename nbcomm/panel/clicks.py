"""What happens when somebody presses a button of the panel.

A busy kernel hears a click only when its cell has ended, which may be an hour later: by then nobody means it any
more, and what has become of the world since nobody knows. So each click says when it was, and a late one is dropped.
The page, which hears nothing, says after the same time that the kernel is busy.
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
"""Seconds after which a click is no longer meant."""

_REMEMBERED = 32
"""So many clicks are known again."""

_AHEAD = 1.0
"""Seconds by which a click may lie in the future: the page knows the kernel's clock only nearly."""


def useful_buttons(*, busy: bool, hurt: bool) -> list[str]:
    """The buttons that would change something now.

    Args:
        busy: something is under way: a request, a heal.
        hurt: a rank is dead, or another of the world's processes, which a heal mends too.
    """
    return [*(["interrupt"] if busy else []), *(["heal"] if hurt else []), "stop", "restart"]


class ButtonClicks:
    """Turns what the page says into actions, and answers it: ``heard`` before acting, ``done`` with a sentence after.

    Args:
        actions: what each button does, on the kernel's main thread; it returns a sentence, or raises one.
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
        """Take a message of the page; what is no press is ignored."""
        match content:
            case {"kind": "press", "action": str(action), "token": str(token), "at": float(at) | int(at)}:
                # The clock is read there, not here: it is the main thread that may be busy.
                self._on_main(lambda: self._press(action, token, at))
            case _:
                _log.debug("The panel's page said what the kernel does not understand: %r", content)

    def _press(self, action: str, token: str, at: float) -> None:
        now = self._wall()
        if not now - PATIENCE <= at <= now + _AHEAD:  # nor is NaN
            _log.debug("A click on %s at %s was heard at %s, and is dropped.", action, at, now)
            return
        if token in self._taken:  # the page sends it again until it hears that it was heard
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
        except Exception as error:  # noqa: BLE001  # whatever it is, the page says it; nobody else would
            _log.debug("%s, pressed in the panel, failed.", action, exc_info=True)
            return str(error) or type(error).__name__, False


def kernel_main(call: Callable[[], None]) -> None:
    """Run a call on the kernel's main thread: at once, or, where a subshell heard the page, when that is free."""
    if threading.current_thread() is threading.main_thread():
        call()
        return
    from IPython.core.getipython import get_ipython

    get_ipython().kernel.io_loop.add_callback(call)  # type: ignore[union-attr]
