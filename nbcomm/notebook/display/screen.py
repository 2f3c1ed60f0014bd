"""What one cell has on the screen, in order: settled text, displays, and at most one live text at the end.

Settled text is sent as ordinary stream messages. What may still change is kept in displays that are updated in place,
the live part. Once there is one, settled lines go into it too, above what may change, until it is full or a display
must come after it. Then it is frozen: its lines on stdout stay where they are, and from the first line on stderr they
are sent as streams, so that stderr looks like stderr. Only lines above a display of the live part stay there in any
case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .area import Area
from .items import Place
from .live import BYTES_PER_SECOND, Live, ScreenPicture

_FULL_LINES = 100
_FULL_CHARS = 8_000
_BACKOFF = (0.25, 4.0)  # seconds without a live text after one that was full within a second: they double
_LIVE_INTERVAL = 0.09  # seconds between two updates: ten a second, with some slack for the caller's clock


class Screen:
    """Shows one cell's output in its area."""

    def __init__(self, area: Area, clock: Callable[[], float]) -> None:
        self.area = area
        self.closed = False
        self.visited: set[Place] = set()  # places on this screen that another cell has given new values
        self._clock = clock
        self._unsent: list[tuple[str, str]] = []
        self._live: Live | None = None
        self._next_update = 0.0  # the first moment at which the live part may be sent again
        self._backoff = _BACKOFF[0]
        self._blank = 0  # frames of live parts that have stayed blank
        self._clear = False
        self._used = False

    def write(self, stream: str, text: str) -> None:
        """Show settled text, whole lines."""
        if self._live is None:
            self._unsent.append((stream, text))
            return
        self._live.write(stream, text)
        full = len(self._live.settled) >= _FULL_LINES or self._live.chars >= _FULL_CHARS
        if full and not self._live.holds:  # otherwise the displays would vanish, and be shown again
            # When so much is settled at once, the user sees progress anyway; many small outputs in a notebook are
            # useless.
            now = self._clock()
            self._backoff = min(2 * self._backoff, _BACKOFF[1]) if now - self._live.opened < 1 else _BACKOFF[0]
            self.freeze()
            self._next_update = max(self._next_update, now + self._backoff)

    def write_many(self, stream: str, text: str) -> None:
        """Do the same with many lines: one by one as long as there is a live part, which takes some of them."""
        at = 0
        while self._live is not None and at < len(text):
            begin, at = at, text.find("\n", at) + 1
            self.write(stream, text[begin:at])
        if at < len(text):
            self._unsent.append((stream, text[at:] if at else text))

    def live(self, tail: Sequence[str | ScreenPicture]) -> None:
        """Show what may still change, after all that is settled."""
        if not self.area.updates:
            self.flush()
            return
        if self._live is None:
            self.flush()
            if not tail or not self.due:
                return
            self._ready()
            self._live = Live(self.area, self._clock, self._blank)
        if not self.due:
            return
        self._live.tail = tail
        sent = self._live.refresh()
        if sent:
            self._next_update = self._clock() + max(_LIVE_INTERVAL, sent / BYTES_PER_SECOND)
        self._blank = self._live.blank
        if self._live.empty:
            self._live = None

    @property
    def has_live(self) -> bool:
        """Whether there is a live part now."""
        return self._live is not None

    @property
    def due(self) -> bool:
        """Whether the live part may be sent now: not too often, not too much."""
        return self._clock() >= self._next_update

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a display after all that is settled."""
        self.freeze()
        self.flush()
        self._ready()
        self.area.display(data, metadata, display_id)

    def picture(self, picture: ScreenPicture, *, joinable: bool = False) -> None:
        """Show a display under its label, after all that is settled.

        Args:
            picture: the display.
            joinable: whether its label may change.
        """
        if self._live is not None and self._live.holds:  # its place may be above what is shown already
            self._live.settle(picture)
            return
        if joinable:
            self.freeze()
            self.flush()
            self._ready()
            picture.stand(self.area)
        else:
            self.write("stdout", picture.label + "\n")
        self.display(picture.value.data, picture.value.metadata)

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace a display in place."""
        self.area.update(data, metadata, display_id)

    def clear(self, *, wait: bool) -> None:
        """Remove everything; with ``wait``, when the next output comes."""
        self._unsent.clear()
        self._live = None
        self._blank = 0
        if not self._used:
            return
        if wait:
            self._clear = True
        else:
            self._clear = self._used = False
            self.area.clear(wait=False)

    def freeze(self) -> None:
        """End the live part: what is settled in it stays, and the rest leaves the screen."""
        live, self._live = self._live, None
        if live is not None:
            self._unsent = live.end() + self._unsent
            self._blank = live.blank

    def flush(self) -> None:
        """Send pending settled text: one message for each run of the same stream."""
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
        """Show everything as settled, and close."""
        self.freeze()
        self.flush()
        self.closed = True

    def _ready(self) -> None:
        self._used = True
        if self._clear:
            self._clear = False
            self.area.clear(wait=True)
