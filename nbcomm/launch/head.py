"""The head: the node on the notebook's machine. Its directory is the world's, and whoever steers the world holds it."""

from __future__ import annotations

import itertools

from ..errors import StateError
from ..faults import take_all
from ..protocol.nodes import HEAD
from ..world_dir import WorldDir
from .launchers.daemon_process import DaemonProcess
from .link import Link
from .node_client import NodeClient


class Head(NodeClient):
    """The notebook's client of the node on its own machine; it makes the link, and ends the world.

    Args:
        home: the world's directory, which must exist.
        running: the node's processes run already, started by another notebook.

    Raises:
        StateError: another notebook holds the world, or it has ended.

    Attributes:
        home: as above.
        numbers: for the orders to all nodes of the world.
    """

    def __init__(self, home: WorldDir, *, running: bool = False) -> None:
        self.home = home
        try:
            self._hold()
            self._process = server = DaemonProcess(home, running=running)
            self.numbers = itertools.count(home.next_session_id())  # no order of another notebook has one of these
            super().__init__(HEAD, server, self.numbers, home.read_lease())
            with self._changed:  # a daemon may greet at once, and is heard when there is a link to answer on
                self.link = Link(home, self.hear)
            if not running:
                try:
                    self.launch()
                except BaseException:
                    self.link.close()
                    raise
        except BaseException as error:
            home.let_go()
            if not running:
                home.remove()
            elif isinstance(error, FileNotFoundError):
                raise StateError(f"The world {home.id} has ended.") from None
            raise

    def _hold(self) -> None:
        if not self.home.hold():
            raise StateError(f"This world is in use by the notebook of process {self.home.holder()}.")

    @property
    def how_started(self) -> str:
        """Whether its start was warm, in a sentence; nothing if another notebook has started it."""
        if not self._process.is_ours:
            return ""
        if why := self._process.cold:
            return f"Cold start: torch was imported for this world, because {why}."
        return "Warm start: torch was imported before."

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        if self.home.read_lease() != seconds:  # a world that was taken up goes on where nothing can be written
            self.home.write_lease(seconds)
        super().set_lease(seconds)

    def release(self) -> None:
        """Release the world without ending it; its lease runs from now on. Twice is no error."""
        take_all(self.leave, self.link.close, self.home.let_go, self.close)

    def shutdown(self, timeout: float = 10.0) -> None:
        """End every process of the world, and wait until its directory is removed."""
        take_all(self.leave, lambda: self.end(timeout), self.finish)

    def finish(self) -> None:
        """Close everything, now that the world has ended."""
        # The node has removed the directory, unless it was killed.
        take_all(self.link.close, self.home.let_go, self.close, self.home.remove)
