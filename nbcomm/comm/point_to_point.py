"""Messages from one rank to another."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .collective import collective
from .member import Member
from .transport.async_lanes import Handle
from .transport.exchange import wait
from .transport.group_args import lane_of, resolve
from .transport.packets import pack

if TYPE_CHECKING:
    from .transport.group_args import Group


class _Coming(NamedTuple):
    """A receive that was begun."""

    handle: weakref.ref[Handle]  # weak: the received data is the user's to keep
    group: Any
    src: int | None
    tag: int
    lane: Any

    def holds_up(self, group: Any, src: int | None, tag: int) -> bool:
        """Return whether a receive with these arguments could take parts of this one's message, or the reverse."""
        return (self.group, self.tag) == (group, tag) and (self.src == src or None in {self.src, src})


class PointToPoint(Member):
    """Messages between two ranks."""

    @collective
    def send(self, data: Any, dst: int, tag: int = 0, *, group: Group = None) -> None:
        """Send data to rank ``dst``, which must call `recv` (or `sendrecv`).

        Args:
            data: any picklable value.
            dst: a global rank, other than this one.
            tag: a receiver takes what has its tag; messages of one tag arrive in order.
            group: the group that both are in; None for the world.

        Raises:
            CollectiveError: the data cannot be pickled, or ``dst`` cannot be sent to. Nothing is sent then.
        """
        channel = self._peer_wire(group, dst, "dst")
        wait(channel.post(pack(data, channel.carries, alone=True), dst, tag))

    @collective
    def recv(self, src: int | None = None, tag: int = 0, *, group: Group = None) -> Any:
        """Receive the data that rank ``src`` sends with `send`.

        Args:
            src: a global rank, or None for any source.
            tag: that of the message.
            group: the group that both are in; None for the world.

        Returns:
            The data; tensors that came from an accelerator on this rank's device.
        """
        channel = self._peer_wire(group, src, "src")
        return self._received(group, src, tag, lambda: channel.recv(src, tag).open(self.device))

    @collective
    def isend(self, data: Any, dst: int, tag: int = 0, *, group: Group = None) -> Handle:
        """Begin to send data to rank ``dst``, and go on; otherwise as `send`.

        Args:
            data: any picklable value; leave its tensors alone until the message is done.
            dst: a global rank, other than this one.
            tag: as in `send`.
            group: the group that both are in; None for the world.

        Returns:
            A handle: ``wait()`` until the data may be changed again, or ask whether it is ``done()``.
        """
        channel = self._peer_wire(group, dst, "dst")
        posted = channel.post(pack(data, channel.carries, alone=True), dst, tag)
        # gloo does not report when a message has left; it can only be waited for. Messages do not wait for each other.
        return self.lanes.begin(object(), lambda: wait(posted), issues=False)

    def irecv(self, src: int | None = None, tag: int = 0, *, group: Group = None) -> Handle:
        """Begin to receive what rank ``src`` sends, and go on; otherwise as `recv`.

        Args:
            src: a global rank, or None for any source.
            tag: that of the message. Receives with the same sender and tag get its messages in the order in which they
                were begun. A receive from any source waits for those of its tag that were begun before it, and they for
                it.
            group: the group that both are in; None for the world.

        Returns:
            A handle: ``wait()`` gives the data, ``done()`` says whether it has arrived.

        >>> coming = irecv((rank - 1) % world_size)  # doctest: +SKIP
        ... isend(rank, (rank + 1) % world_size)
        ... coming.wait()  # on rank 2 of 4
        1
        """
        self._peer_wire(group, src, "src")
        return self._begin_receive(group, src, tag, lambda: self.recv(src, tag, group=group))

    @collective
    def sendrecv(self, data: Any, dst: int, src: int, *, group: Group = None) -> Any:
        """Send data to ``dst`` while receiving from ``src``, so that a ring of ranks cannot lock up.

        Args:
            data: any picklable value.
            dst: a global rank; this rank itself only if ``src`` is, too.
            src: a global rank.
            group: the group that all three are in; None for the world.

        Returns:
            What ``src`` sent.

        >>> sendrecv(rank, dst=(rank + 1) % world_size, src=(rank - 1) % world_size)  # on rank 0 of 4  # doctest: +SKIP
        3
        """
        if dst == src == self.rank:
            channel = self._channel("sendrecv", group)
            return pack(data, channel.carries).open(self.device, sent=True)
        channel = self._peer_wire(group, dst, "dst")
        self._peer_wire(group, src, "src")
        posted = channel.post(pack(data, channel.carries, alone=True), dst, 0)
        got = self._received(group, src, 0, lambda: channel.recv(src, 0))
        wait(posted)
        return got.open(self.device)

    def _received(self, group: Any, src: int | None, tag: int, job: Callable[[], Any]) -> Any:
        """Receive now, but after the receives that were begun before."""
        if self._coming and not self.lanes.inside() and self._before(lane_of(resolve(group)), src, tag):
            return self._begin_receive(group, src, tag, job).wait()
        return job()

    def _begin_receive(self, group: Any, src: int | None, tag: int, job: Callable[[], Any]) -> Handle:
        # A message has several parts, of one sender and tag: two receives must not share the parts of one message. So a
        # receive joins the lane of the one that it has to wait for: a thread that waits for its lane is shown as
        # waiting for that rank.
        key = lane_of(resolve(group))
        before = self._before(key, src, tag)
        lane = before[-1].lane if before else (key, src, tag)
        others = [each.handle() for each in before if each.lane != lane]

        def in_turn() -> Any:
            while others:
                handle = others.pop()
                with suppress(Exception):  # it reports that itself
                    if handle is not None:
                        handle.wait()
            return job()

        handle = self.lanes.begin(lane, in_turn)
        self._coming.append(_Coming(weakref.ref(handle), key, src, tag, lane))
        return handle

    def _before(self, group: Any, src: int | None, tag: int) -> list[_Coming]:
        """Return the receives that another one has to wait for, in the order in which they were begun."""
        self._coming = [each for each in self._coming if (handle := each.handle()) is not None and not handle.done()]
        return [each for each in self._coming if each.holds_up(group, src, tag)]
