"""The displays with an id that a cell shows or changes, also those of earlier cells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from ...protocol import Display
from ..display.displays import DisplayRegistry, SharedDisplay
from ..display.items import FoldedItem, Piece, Place, Rich, version
from ..display.screen import Screen
from ..display.terminal_lines import piece_of


class CellDisplays:
    """The displays with an id of all cells, followed for one of them.

    A cell may change what an earlier one has shown. If that one still runs, too, it shows the change itself, on its
    thread.

    Args:
        screen: where the cell shows.
        clock: the time in seconds.
    """

    lock: ClassVar[threading.RLock] = threading.RLock()
    """The guard of the displays and the closed screens of all cells; taken after the lock of a cell's output."""

    _registry: ClassVar[DisplayRegistry] = DisplayRegistry()
    """Of all cells, since one may change what another has shown."""

    def __init__(self, screen: Screen, clock: Callable[[], float]) -> None:
        self._screen = screen
        self._clock = clock
        self._restless: set[Place] = set()

    def register(self, rank: int, part: Rich) -> None:
        """Register a display, if it has an id."""
        if part.display_id:
            with self.lock:
                self._registry.add(rank, part)

    def update(self, rank: int, item: Display) -> list[Piece]:
        """Give a display its new value; an unknown one (it was shown before a restart) is shown as new.

        Returns:
            What is to be shown as new.
        """
        with self.lock:
            parts = self._registry.update(rank, item.display_id, version(item.data, item.metadata))
            if parts is not None:
                self._restless.update(part.place for part in parts if part.place is not None)
                return []
        pieces = piece_of(item)
        for piece in pieces:
            if isinstance(piece, Rich):
                self.register(rank, piece)
        return pieces

    def show(self, parts: dict[int, Rich]) -> None:
        """Show a display with an id, which these ranks share."""
        with self.lock:
            place = SharedDisplay(self._screen, parts, self._clock())
            if place.patient:
                self._restless.add(place)

    def join(self, entry: FoldedItem) -> None:
        """Add more ranks to a display that is shown."""
        place = next((part.place for part in entry.parts.values() if part.place is not None), None)
        if place is not None:
            with self.lock:
                for rank, part in entry.parts.items():
                    place.join(rank, part)
                self._restless.add(place)

    def clear(self) -> None:
        """Stop changing the cell's displays: its output is cleared."""
        self._restless = {place for place in self._restless if place.screen is not self._screen}

    def refresh(self, *, final: bool = False) -> None:
        """Show the new values."""
        if not self._restless and not self._screen.visited:
            return
        with self.lock:
            now = self._clock()
            restless, self._restless = self._restless | self._screen.visited, set()
            self._screen.visited.clear()
            for place in restless:
                if place.screen is not self._screen and not place.screen.closed:
                    place.screen.visited.add(place)  # that cell runs: it shows it, on its own thread
                elif place.refresh(now, final=final):
                    self._restless.add(place)
