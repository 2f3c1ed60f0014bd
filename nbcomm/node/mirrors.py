"""The present mirror of this node: the board between nodes, in one generation after the other."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol import Mirror, MirrorDoor, Obeyed, OpenMirror, Report
from ..world_dir import WorldDir
from . import mirror


class Mirrors:
    """Opens a mirror, and begins it when the doors of the other nodes are known.

    Args:
        home: the node's directory.
        rank_of: returns the rank that a process of this node is; None if it is none.
    """

    def __init__(self, home: WorldDir, rank_of: Callable[[int], int | None]) -> None:
        self._home = home
        self._rank_of = rank_of
        self._opened = self._begun = 0
        self._present: mirror.Mirror | None = None

    def obey(self, order: OpenMirror | Mirror) -> Report:
        """Do what is ordered; return the answer. An order that comes again is only answered again.

        Raises:
            OSError: there is no room for the copies of pages.
            zmq.ZMQError: this machine has no such address.
            RuntimeError: it is not open.
        """
        if isinstance(order, OpenMirror):
            if order.number > self._opened:
                self._open(order)
        elif order.number > self._begun:
            if self._present is None:
                raise RuntimeError("the daemon is another one")
            self._present.begin(order.peers)
            self._begun = order.number
        if isinstance(order, Mirror) or self._present is None:
            return Obeyed(order.number)
        return MirrorDoor(order.number, self._present.address, self._present.public)

    def _open(self, order: OpenMirror) -> None:
        if self._present is not None:
            self._present.close()
            self._present = None
        self._present = mirror.Mirror(self._home, self._home.read_link(), order.host, order.nodes, self._rank_of)
        self._opened = order.number
