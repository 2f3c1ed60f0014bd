"""The node's ends of the connections to its ranks.

A rank is known by its process: the system says which process is at the other end of a Unix socket, and the fork server
which process it has started for which rank. So no rank can speak as another. Any other process of this user may only
ask for the status of the world.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from ...protocol import NodeStatus
from ...protocol.codec import encode
from ...protocol.framing import ANSWER, ASK, LARGEST, OTHER, FramedSocket
from ...protocol.losses import bytes_lost, instead
from ...protocol.parcels import Letter
from .peers import listening_at, pid_of

IN, OUT = int(zmq.POLLIN), int(zmq.POLLOUT)
"""Flags of a poll: as enumerations they would cost a microsecond each time."""

STATUS = b"status"
"""What a process sends to be told the status of the world."""

_STRANGERS_LARGEST = 1 << 16
"""Bytes of the largest frame from a process that is not known yet; a rank says Hello first."""

_STRANGERS_MOST = 16
"""Messages that are kept of it."""


class _End:
    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.framed = FramedSocket(connection, _STRANGERS_LARGEST)
        self.pid = pid
        self.rank: int | None = None
        self.early: list[tuple[int, Sequence[Any]]] = []


class RankEnds:
    """The connections of one node's ranks.

    Args:
        path: of the socket on which they are accepted; one that is there is replaced.
        poller: is told which descriptors to watch.
        status: returns the status of the world.
    """

    def __init__(self, path: Path, poller: zmq.Poller, status: Callable[[], NodeStatus]) -> None:
        self._poller = poller
        self._status = status
        self._ranks: dict[int, int] = {}  # by the pid of its living process
        self._ends: dict[int, _End] = {}  # by descriptor
        self._of_rank: dict[int, _End] = {}
        self.listener = listening_at(path)
        self.listener.setblocking(False)  # noqa: FBT003 - positional only
        poller.register(self.listener, zmq.POLLIN)

    def __contains__(self, descriptor: object) -> bool:
        return descriptor in self._ends

    @property
    def connected(self) -> set[int]:
        """The ranks that are connected."""
        return set(self._of_rank)

    @property
    def reading(self) -> set[int]:
        """The ranks that have taken all that was sent to them."""
        return {rank for rank, end in self._of_rank.items() if not end.framed.waits}

    def rank_of(self, pid: int) -> int | None:
        """Return the rank that a process is; None if it is none. Any thread may ask."""
        return self._ranks.get(pid)

    def know(self, rank: int, pid: int) -> list[Letter]:
        """Note that this process is a rank; return what it has sent already."""
        self._ranks[pid] = rank
        return [letter for end in list(self._ends.values()) if end.pid == pid for letter in self._admit(end)]

    def part(self, pid: int) -> list[Letter]:
        """Note that a process has ended; return what it had still sent."""
        letters = []
        for descriptor, end in list(self._ends.items()):
            if end.pid == pid:
                while descriptor in self._ends and (heard := self._read(end)) is not None:
                    letters += heard
                self._close(end)  # its children may hold it open
        self._ranks.pop(pid, None)
        return letters

    # ── events ──────────────────────────────────────────────────────────────────────────────────────

    def accept(self) -> None:
        """Accept a connection, if one waits."""
        with suppress(BlockingIOError):
            connection, _ = self.listener.accept()
            try:
                end = _End(connection, pid_of(connection))
            except OSError:
                connection.close()
                return
            self._ends[connection.fileno()] = end
            self._watch(end)
            self._admit(end)

    def _admit(self, end: _End) -> list[Letter]:
        """Let a connection speak as its rank, if it is one's; return what it has said already."""
        rank = self._ranks.get(end.pid)
        if rank is None or end.rank is not None:
            return []
        earlier = self._of_rank.get(rank)
        if earlier is not None:
            self._close(earlier)  # the rank has given that up
        end.rank, end.framed.largest = rank, LARGEST
        self._of_rank[rank] = end
        early, end.early = end.early, []
        return [letter for kind, frames in early for letter in self._letters(end, kind, frames)]

    def read(self, descriptor: int) -> list[Letter]:
        """Read from a connection; return the letters that are complete."""
        return self._read(self._ends[descriptor]) or []

    def _read(self, end: _End) -> list[Letter] | None:
        """Read once; return None if there was nothing, or nothing will ever be."""
        try:
            messages = end.framed.receive()
        except (EOFError, OSError, MemoryError):
            self._close(end)
            return None
        if messages is None:
            return None
        return [letter for kind, frames in messages for letter in self._letters(end, kind, frames)]

    def _letters(self, end: _End, kind: int, frames: Sequence[Any]) -> list[Letter]:
        if kind == ASK and [*frames[:1]] == [STATUS]:
            with suppress(OSError):
                end.framed.send([encode(self._status())], ANSWER)
            return []
        if end.rank is None:
            if len(end.early) < _STRANGERS_MOST:
                end.early.append((kind, frames))  # its process may have been started just now
            return []
        if len(frames) < 2 or bytes_lost(frames[:1]):
            return []
        body = instead(end.rank, frames[1:]) if bytes_lost(frames) else frames[1:]
        return [Letter(end.rank, bytes(frames[0]), body, kind == ANSWER)]

    def write(self, descriptor: int) -> None:
        """Write on, now that a connection takes more."""
        end = self._ends[descriptor]
        try:
            end.framed.flush()
        except OSError:
            self._close(end)
        else:
            self._watch(end)

    def send(self, letter: Letter) -> bool:
        """Send a letter to its rank; return False if that is not connected."""
        end = self._of_rank.get(letter.rank)
        if end is None:
            return False
        try:
            end.framed.send([letter.header, *letter.frames], ASK if letter.asks else OTHER)
        except OSError:
            self._close(end)
            return False
        self._watch(end)
        return True

    def _watch(self, end: _End) -> None:
        self._poller.register(end.framed.fileno(), IN | OUT if end.framed.waits else IN)

    def _close(self, end: _End) -> None:
        descriptor = end.framed.fileno()
        if self._ends.get(descriptor) is not end:
            return  # it was closed before
        del self._ends[descriptor]
        with suppress(KeyError):
            self._poller.unregister(descriptor)
        if end.rank is not None and self._of_rank.get(end.rank) is end:
            del self._of_rank[end.rank]
        end.framed.close()
