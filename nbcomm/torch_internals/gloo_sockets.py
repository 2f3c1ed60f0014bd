"""Gloo's connections, distinguished from all other sockets of the process: shutting them frees those who wait on them.

A rank that waits in a gloo collective cannot be freed otherwise: torch has no abort that reaches it.

A device of gloo's has one listening socket, and each connection of gloo's leads to one: where it was accepted, its own
address is that of the listening socket; where it was opened, its peer's is. So it is enough to know the addresses of
this process's devices, and of those of the ranks that it has groups with. The first are found by looking which socket
appears when a device is made; the ranks tell each other theirs in the store where they meet anyway.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from .c10d import StandIn, c10d, dist, put

THREADS = 2
"""Threads of a gloo group for each device, as in torch's own options; DDP's logger shows the number."""

LOOPBACK = "127.0.0.1"
"""Where our groups listen if all ranks are on one machine."""

_KEY = "nbcomm/gloo/"
"""What the ranks tell each other in a group of torch's own stands behind this."""

_TRIES = 20
"""How often a device is made anew because other sockets have appeared beside its own; one such time is rare already."""

_making = threading.Lock()
"""One device at a time is made in this process, so that each sees one socket appear."""

_FOLDERS = Path("/proc/self/fd"), Path("/dev/fd")
"""Where a process finds its descriptors: on Linux both (the second not in every container), elsewhere the second."""

_Address = tuple[str, int]


class GlooSockets:
    """The sockets of the gloo groups that nbcomm makes, or torch for ``torch.distributed``; no others are touched."""

    def __init__(self) -> None:
        self._devices: dict[tuple[tuple[str, str], ...], tuple[Any, _Address | None]] = {}
        """By where it was asked to listen: a device, which lives as long as this object, and where it listens."""
        self.host = LOOPBACK
        """The address of this machine at which our groups listen."""
        self._listeners: set[_Address] = set()
        self._peers: set[_Address] = set()

    # ── devices ─────────────────────────────────────────────────────────────────────────────────────

    def options(self, timeout: timedelta) -> Any:
        """Return options for a `ProcessGroupGloo` of ours."""
        return self._options(timeout, [self._device(hostname=self.host)[0]])

    def address(self) -> str:
        """Return where our groups listen, for `meet` on the other ranks; empty if that is not known."""
        return _told([self._device(hostname=self.host)[1]])

    @functools.cached_property
    def alone(self) -> Any:
        """A gloo backend without other members.

        It has the device of our groups: each device has a thread that wakes up a hundred times a second.
        """
        return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, self.options(c10d.default_pg_timeout))

    @staticmethod
    def _options(timeout: timedelta, devices: list[Any]) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._threads = THREADS * len(devices)
        options._devices = devices
        return options

    def _device(self, **where: str) -> tuple[Any, _Address | None]:
        """Return a device and its address: one for all groups, as each would bring a thread and descriptors."""
        key = tuple(where.items())
        # At once, whatever the environment says: the end of a group that connects later would end a shared device.
        create = partial(dist.ProcessGroupGloo.create_device, lazy_init=False, **where)
        if not where:
            create = partial(dist.ProcessGroupGloo.create_default_device, lazy_init=False)
        with _making:
            if key not in self._devices:
                self._devices[key] = made = _found(create)
                if made[1] is not None:
                    self._listeners.add(made[1])
            return self._devices[key]

    # ── the other ranks ─────────────────────────────────────────────────────────────────────────────

    def meet(self, told: Iterable[bytes | str]) -> None:
        """Note where other ranks listen, as their `address` says.

        Args:
            told: what they have said; something else than addresses is passed over.
        """
        for words in told:
            for line in (words if isinstance(words, str) else words.decode(errors="replace")).splitlines():
                host, _, port = line.rpartition(" ")
                if host and port.isdecimal():
                    self._peers.add((host, int(port)))

    def forget(self) -> None:
        """Forget where other ranks listen: the next groups are formed with others, and a port may get a new owner."""
        self._peers = set()

    # ── torch's own groups ──────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def following_torch(self) -> Iterator[None]:
        """Know the connections of the groups that torch itself makes for ``torch.distributed`` in the block."""
        plain = getattr(c10d, "ProcessGroupGloo", None)
        if not all(hasattr(plain, name) for name in ("_Options", "create_device", "create_default_device")):
            yield
            return
        undo = put(c10d, "ProcessGroupGloo", StandIn(plain, self._make_for_torch))
        try:
            yield
        finally:
            undo()

    def _make_for_torch(self, plain: Any, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        """Make what torch asks for, where it would listen, on devices whose addresses are known."""
        if args or set(kwargs) != {"timeout"}:  # its options name a device
            return plain(store, rank, size, *args, **kwargs)
        names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
        devices = [self._device(interface=name) for name in names] or [self._device()]
        store.set(f"{_KEY}{rank}", _told(address for _, address in devices))
        made = plain(store, rank, size, self._options(kwargs["timeout"], [device for device, _ in devices]))
        # Gloo has heard from all by now, and each of nbcomm's ranks has told its addresses before. No other process
        # does, so nobody waits.
        with contextlib.suppress(RuntimeError):  # not every store can tell what it has
            keys = [f"{_KEY}{other}" for other in range(size)]
            if not store.check(keys):
                keys = [key for key in keys if store.check([key])]
            self.meet(store.multi_get(keys))
        return made

    # ── connections ─────────────────────────────────────────────────────────────────────────────────

    def shut_connections(self) -> int:
        """Shut every gloo connection of this process: a wait on one, at either end, gets an error.

        The sockets are shut, but not closed, because gloo closes its sockets itself.

        Returns:
            The number of shut connections.
        """
        shut = 0
        for connection in self._connections():
            with contextlib.suppress(OSError):  # it has just ended
                # For reading only: gloo notices that at once, and closes the socket. With writing shut too, gloo could
                # first fail to write an answer to the other end; it would forget that, and the wait for the message.
                connection.shutdown(socket.SHUT_RD)
                shut += 1
        return shut

    def connections(self) -> int:
        """Count the connections that `shut_connections` would find; 0 if it is not known where gloo listens."""
        known = all(address is not None for _, address in self._devices.values())
        return sum(1 for _ in self._connections()) if known else 0

    def _connections(self) -> Iterator[socket.socket]:
        for one in _tcp_sockets():
            try:
                own, peer = one.getsockname()[:2], one.getpeername()[:2]
            except OSError:
                continue  # it is closed by now, or listens: gloo ends the process without its listening socket
            if own in self._listeners or peer in self._peers:
                yield one


def _told(addresses: Iterable[_Address | None]) -> str:
    return "\n".join(f"{address[0]} {address[1]}" for address in addresses if address is not None)


def _found(create: Callable[[], Any]) -> tuple[Any, _Address | None]:
    """Make a device, and find where it listens; None where that cannot be told. `_making` must be held."""
    for _ in range(_TRIES):
        before = _without_peer()
        device = create()
        appeared = _without_peer() - before
        if len(appeared) == 1:  # else another thread has opened a socket meanwhile
            return device, appeared.pop()
    return device, None


def _without_peer() -> set[_Address]:
    """Return the addresses of the sockets that listen: they have a port, and no peer.

    A socket that has lost its peer has none either. Not every system tells which one listens.
    """
    found = set()
    for one in _tcp_sockets():
        with contextlib.suppress(OSError):  # it is closed by now
            address = one.getsockname()[:2]
            try:
                one.getpeername()
            except OSError:
                if address[1]:
                    found.add(address)
    return found


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yield each TCP socket of this process as a copy of its descriptor, which is closed when the next is taken."""
    for number in _descriptors():
        with contextlib.ExitStack() as opened:
            try:
                one = _opened(number, opened)
                tcp = one is not None and one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
            except OSError:
                continue  # it is closed by now
            if one is not None and tcp and one.family in (socket.AF_INET, socket.AF_INET6):
                yield one


def _opened(number: int, opened: contextlib.ExitStack) -> socket.socket | None:
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return None
    duplicate = os.dup(number)
    try:
        blocking = os.get_blocking(duplicate)
        # Where the user has set a default timeout, Python would let no call of that socket wait any more, whoever has
        # opened it. With the flag, which not every system has, it believes that this is done.
        one = socket.socket(type=socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0), fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
    opened.enter_context(one)
    if os.get_blocking(duplicate) != blocking:
        os.set_blocking(duplicate, blocking)
    return one


def _descriptors() -> list[int]:
    folder = next(folder for folder in _FOLDERS if folder.exists())
    return [int(entry.name) for entry in folder.iterdir()]
