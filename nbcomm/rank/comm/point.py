"""From one rank to one other, and taking turns: what a Communicator does besides the collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...errors import CollectiveError
from .member import Member
from .objects import NOTICE, Mail, pack
from .wire import Wire, wait

if TYPE_CHECKING:
    from .groups import Group


class PointToPoint(Member):
    """Messages between two ranks, and blocks that ranks run one after the other."""

    # ---- from one rank to one other

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
        wire = self._peer_wire(group, dst, "dst")
        wait(wire.post(pack(data, wire.carries, alone=True), dst, tag))

    def recv(self, src: int | None = None, tag: int = 0, *, group: Group = None) -> Any:
        """Receive the data that rank ``src`` sends with `send`.

        Args:
            src: a global rank, or None for whichever rank sends first.
            tag: that of the message.
            group: the group that both are in; None for the world.

        Returns:
            The data; tensors that came from an accelerator on this rank's device.
        """
        wire = self._peer_wire(group, src, "src")
        return wire.recv(src, tag).open(self.device)

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
            wire = self._wire("sendrecv", group)
            return pack(data, wire.carries).open(self.device, sent=True)
        wire = self._peer_wire(group, dst, "dst")
        self._peer_wire(group, src, "src")
        posted = wire.post(pack(data, wire.carries, alone=True), dst, 0)
        got = wire.recv(src, 0)
        wait(posted)
        return got.open(self.device)

    # ---- taking turns

    @contextlib.contextmanager
    def rank_zero_first(self, local: bool = False, *, group: Group = None) -> Iterator[None]:  # noqa: FBT001, FBT002
        """Run the block on rank 0 first, then on the others. Every rank of the group must enter it.

        It is left together, too: no rank goes on before all are through.

        Args:
            local: local rank 0 of every node first, for disks that the nodes do not share.
            group: the ranks that take part, the group's first one first; None for the world.

        Raises:
            CollectiveError: the block failed on another rank; the message names it. The rank itself raises what
                it met.

        >>> with rank_zero_first():  # doctest: +SKIP
        ...     data = download()
        """
        wire = self._wire("rank_zero_first", group)
        first = self.local_rank == 0 if local else wire.me == 0
        failure: Exception | None = None
        if not first:
            _meet(wire, None)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # an interrupt is no Exception: it ends the others by its own means
            failure = error
        if first:
            _meet(wire, failure)
        if not (first and failure):  # else the others have left already
            _meet(wire, failure)
        if failure is not None:
            raise failure


def _meet(wire: Wire, failure: Exception | None) -> None:
    """Wait for the others, and learn whether they are well."""
    mail = Mail(NOTICE)
    if failure is not None:
        mail = Mail.error(f"failed in its block of rank_zero_first: {type(failure).__name__}: {failure}")
    try:
        wire.heads(mail)
    except CollectiveError:
        if failure is None:
            raise
