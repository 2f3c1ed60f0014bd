"""What a rank reports about its collectives, sends and receives: those that wait, and those that have ended."""

from __future__ import annotations

from typing import Any

import msgspec

from . import rank_lists


class PendingCall(msgspec.Struct, array_like=True, frozen=True):
    """A call on one rank that needs other ranks: a collective, a send, or a receive.

    Attributes:
        kind: "collective", "send" or "recv".
        name: what was called: "all_reduce", "new_group", "send", …
        group: the process group's name.
        ranks: the group's global ranks, as `rank_lists` writes them.
        seq: the position, from 1, among this rank's collectives in the group; of a send or receive, among this
            rank's calls of the same kind, group, peer and tag.
        what: shape, dtype and reduction in words: "float32 (4,), sum". Often empty.
        line: the line of the cell that called: "line 3: all_reduce(x)". Empty if it is not known.
        since: when, by the rank's clock (`time.time`), in seconds.
        peer: of a send or receive the other global rank; None for a receive that accepts any source.
        tag: the tag of a send or receive.
        limited: whether the wait for it ends by itself, because the caller gave a timeout.
        lost: whether it has failed because a connection to another rank was lost; the rank waits for the reason.
        begun: the line of the cell that began it, if the rank waits for it in another line.
        thread: the name of the thread that waits, if that is not the main one.
        number: its number for people: the position, from 1, among the calls that the cell has made of this group; of a
            send or receive, among those to or from this rank. 0: an earlier cell has made it. Negative: it is not
            counted, and ``seq`` stands for it.
    """

    kind: str
    name: str
    group: str
    ranks: str
    seq: int
    what: str
    line: str
    since: float
    peer: int | None = None
    tag: int = 0
    limited: bool = False
    lost: bool = False
    begun: str = ""
    thread: str = ""
    number: int = -1

    def called(self, name: str) -> str:
        """Return a name of it with its number: ``all_reduce #3``."""
        number = self.seq if self.number < 0 else self.number
        return f"{name} #{number}" if number else f"an earlier cell's {name}"

    @property
    def members(self) -> tuple[int, ...]:
        """The group's global ranks, in group order."""
        return rank_lists.read(self.ranks)


class MessageCount(msgspec.Struct, array_like=True, frozen=True):
    """How many sends to (or receives from) one peer with one tag a rank has issued in a group.

    ``peer`` None: receives that accept any source and have not ended; ended ones count for their sender.
    """

    group: str
    peer: int | None
    tag: int
    number: int


class CollectiveState(msgspec.Struct, array_like=True, frozen=True):
    """A rank's progress in calls that need other ranks; all numbers count from the forming of the group.

    Attributes:
        issued: for each of its groups, how many collectives this rank has issued.
        sent: the counts of its sends.
        received: the counts of its receives.
        waits: the main thread is stuck until one of these completes; empty if it is not stuck.
        line: what the main thread executes: "line 3: time.sleep(60)".
        threads: the number of threads that run code of cells beside the main thread, and may issue calls at any time.
        beside: the calls in which such threads wait, while the main thread waits for a thread.
        lanes: the calls in which threads of nbcomm's own wait that carry on what a cell has begun, other than the one
            for which the main thread waits; each of them may issue more calls once its wait has ended.
        failed: for each of its groups, the last collectives that this rank has issued and that have failed here alone,
            as far as it knows: the other ranks may wait for it there.
    """

    issued: dict[str, int] = {}
    sent: list[MessageCount] = []
    received: list[MessageCount] = []
    waits: list[PendingCall] = []
    line: str = ""
    threads: int = 0
    beside: list[PendingCall] = []
    lanes: list[PendingCall] = []
    failed: dict[str, list[int]] = {}


class CallRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record in the journal of a call of a cell that needed other ranks.

    Attributes:
        name: what was called: "all_reduce".
        kind: "collective", "send" or "recv".
        group: the process group's name; empty if nothing moved.
        ranks: the group's global ranks, as `rank_lists` writes them.
        first: its sequence number; ``last`` is that of the last torch call that it made.
        began: when it began, by the rank's clock (`time.time`), in seconds; so is ``ended``, 0 if that is not known.
        failed: whether it raised.
        peer: the other rank of a send or receive; ``tag`` is its tag.
        line: the line of the cell; often empty.
        nbytes: bytes of data that the rank brought; 0 unless it was one tensor, or the cell was traced.
        how: op, src, dst and so on; None unless the cell was drawn. So are ``before`` and ``after``: the values of the
            rank, a text for each cell of the picture.
        asked: when Python began to wait for it, if later than ``began``; 0 if it did not, or that is not known.
            Infinity for a call with ``async_op`` that no code waits for yet.
        number: its number for people, as that of a `PendingCall`; 0 if it is not counted.
        gave: bytes that the rank gave to each member, in group order; None unless the cell was traced. Messages have
            none.
    """

    name: str
    kind: str
    group: str
    ranks: str
    first: int
    last: int
    began: float
    ended: float
    failed: bool = False
    peer: int | None = None
    tag: int = 0
    line: str = ""
    nbytes: int = 0
    how: dict[str, Any] | None = None
    before: list[str] | None = None
    after: list[str] | None = None
    asked: float = 0.0
    number: int = 0
    gave: list[int] | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The group's global ranks, in group order."""
        return rank_lists.read(self.ranks)
