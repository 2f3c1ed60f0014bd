"""What one cell has on the screen, in order: settled text, displays, and at most one live text at the end.

Settled text goes out as ordinary stream messages. What may still change is kept in one display that is
updated in place, the live text. Once it is there, settled lines go into it too, above what may change, until
it is full or a display must come after it; then it is frozen: its lines on stdout stay where they are, and
from the first line on stderr they go out as streams, so that stderr looks like stderr.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .area import Area

if TYPE_CHECKING:
    from .slots import Slot

_FULL_LINES = 100
_FULL_CHARS = 8_000
_CHARS_PER_SECOND = 250_000  # of updates: a Jupyter server drops output above 1 MB/s
_BACKOFF = (0.25, 4.0)  # seconds without a live text after one that was full within a second: it doubles
_LIVE_INTERVAL = 0.09  # seconds between two updates: ten a second, with some slack for the caller's clock


def text_bundle(text: str) -> dict[str, Any]:
    """A MIME bundle of text. An empty text is an empty bundle, for which a notebook draws nothing."""
    return {"text/plain": text} if text else {}


def new_display_id() -> str:
    """A display_id that nobody else has."""
    return f"nbcomm-{uuid.uuid4().hex}"


class _Live:
    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.display_id = new_display_id()
        self.settled: list[tuple[str, str]] = []
        self.chars = 0
        self.tail = ""
        self.shown = ""

    @property
    def text(self) -> str:
        settled = "".join(text for _, text in self.settled)
        return (settled + self.tail).removesuffix("\n")


class Screen:
    """Shows one cell's output in its area."""

    def __init__(self, area: Area, clock: Callable[[], float]) -> None:
        self.area = area
        self.closed = False
        self.visited: set[Slot] = set()  # slots on this screen that another cell has given new values
        self._clock = clock
        self._unsent: list[tuple[str, str]] = []
        self._live: _Live | None = None
        self._next_update = 0.0  # the first moment at which a live text may be sent again
        self._backoff = _BACKOFF[0]
        self._clear = False
        self._used = False

    def write(self, stream: str, text: str) -> None:
        """Show settled text, whole lines."""
        if self._live is None:
            self._unsent.append((stream, text))
            return
        self._live.settled.append((stream, text))
        self._live.chars += len(text)
        if len(self._live.settled) >= _FULL_LINES or self._live.chars >= _FULL_CHARS:
            # Where so much is settled at once, the person sees it move; a notebook full of small outputs helps nobody.
            now = self._clock()
            self._backoff = min(2 * self._backoff, _BACKOFF[1]) if now - self._live.opened < 1 else _BACKOFF[0]
            self.freeze()
            self._next_update = max(self._next_update, now + self._backoff)

    def live(self, tail: str) -> None:
        """Show text that may still change after all that is settled; "" if there is none."""
        if not self.area.updates:
            self.flush()
            return
        if self._live is None:
            self.flush()
            if not tail or not self.due:
                return
            self._ready()
            self._live = _Live(self._clock())
            self._live.tail = tail
            self._live.shown = self._live.text
            self.area.display(text_bundle(self._live.text), {}, self._live.display_id)
            self._updated(self._live.text)
            return
        self._live.tail = tail
        text = self._live.text
        if text != self._live.shown and self.due:
            self._live.shown = text
            self.area.update(text_bundle(text), {}, self._live.display_id)
            self._updated(text)

    @property
    def has_live(self) -> bool:
        """Whether there is a live text now."""
        return self._live is not None

    @property
    def due(self) -> bool:
        """Whether a live text may be sent now: not too often, not too much."""
        return self._clock() >= self._next_update

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a display after all that is settled."""
        self.freeze()
        self.flush()
        self._ready()
        self.area.display(data, metadata, display_id)

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace a display in place."""
        self.area.update(data, metadata, display_id)

    def clear(self, *, wait: bool) -> None:
        """Remove everything; with ``wait``, when the next output comes."""
        self._unsent.clear()
        self._live = None
        if not self._used:
            return
        if wait:
            self._clear = True
        else:
            self._clear = self._used = False
            self.area.clear(wait=False)

    def freeze(self) -> None:
        """End the live text: what is settled in it stays, and what is not leaves the screen."""
        live, self._live = self._live, None
        if live is None:
            return
        stay = next((i for i, (stream, _) in enumerate(live.settled) if stream != "stdout"), len(live.settled))
        text = "".join(text for _, text in live.settled[:stay]).removesuffix("\n")
        if text != live.shown:
            self.area.update(text_bundle(text), {}, live.display_id)
        self._unsent = live.settled[stay:] + self._unsent

    def flush(self) -> None:
        """Send the settled text that waits to be sent: one message for each run of the same stream."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        self._ready()
        run: list[str] = []
        for i, (stream, text) in enumerate(unsent):
            run.append(text)
            if i + 1 == len(unsent) or unsent[i + 1][0] != stream:
                self.area.stream(stream, "".join(run))
                run.clear()

    def close(self) -> None:
        """Everything is settled and shown."""
        self.freeze()
        self.flush()
        self.closed = True

    def _updated(self, text: str) -> None:
        self._next_update = self._clock() + max(_LIVE_INTERVAL, len(text) / _CHARS_PER_SECOND)

    def _ready(self) -> None:
        self._used = True
        if self._clear:
            self._clear = False
            self.area.clear(wait=True)
