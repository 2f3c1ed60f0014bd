"""A rank's end of the mirror, which copies what is written on its page to other nodes; see `node.mirror`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from ...node.mirror import DONE, NODE, WORD

_PATIENCE = 1.0
"""Seconds that the copies may take; they take a round trip. After that this rank's calls are not compared between nodes
until the groups are formed again."""


class MirrorEnd:
    """A connection to the daemon of this node, made when it is first needed.

    Args:
        path: of the daemon's socket.

    Attributes:
        works: whether what is shown there arrives, as far as is known.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self.works = True

    def show(self, nodes: Sequence[int], at: int, word: int, block: bytes, *, wait: bool) -> None:
        """Have a word and the block behind it copied to these nodes.

        Args:
            nodes: their numbers.
            at: where on the page, in bytes.
            word: 64 bits.
            block: what stands behind it.
            wait: return when it is there.
        """
        if not self.works:
            return
        said = [WORD.pack(wait, len(nodes), len(block), at, word), *map(NODE.pack, nodes), block]
        with self._lock:
            try:
                connection = self._socket or self._connect()
                connection.sendall(b"".join(said))
                self.works = not wait or connection.recv(1) == DONE
            except OSError:
                self.works = False
            except BaseException:  # an interrupt: the answer that still comes would be taken for that to the next word
                self._close()
                raise
            if not self.works:
                self._close()

    def _connect(self) -> socket.socket:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE)
        self._socket.connect(os.fspath(self._path))
        return self._socket

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def begin(self) -> None:
        """Begin again: the daemon may be another one."""
        with self._lock:
            self._close()
            self.works = True

    def leave(self) -> None:
        """Leave the connection to the parent, in the child of a fork; nothing is shown any more."""
        self.works = False
        self._lock = threading.Lock()  # a thread that no longer exists may hold the other one
        self._close()
