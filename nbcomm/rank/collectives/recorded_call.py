"""One call that is under way, what the journal keeps of it, and the calls of one group, counted."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ...protocol import rank_lists
from ..clock import clock
from . import call_site
from .fingerprints import Fingerprint, FingerprintBoard

_FAILURES = 16


class Log:
    """The calls of one group.

    Args:
        name: the group's name.
        members: its global ranks, in group order.
        timeout: how long a call may take, in a group of gloo's; None for others.

    Attributes:
        ranks: the members as messages name them.
        board: where its calls are compared with other ranks'; None if they are not compared.
        life: the group's number there.
        failed: the last collectives that have failed here after they had begun.
        broken: a call has failed in its transport: gloo has closed the group's connections.
        stuck: a call has not ended although its connections were shut; the group must never be destroyed.
    """

    def __init__(self, name: str, members: list[int], timeout: timedelta | None = None) -> None:
        self.name = name
        self.members = members
        self.ranks = rank_lists.written(members)  # once, and not for each call
        self.key = f"{name} {self.ranks}"  # of the counts of its collectives: a text knows its hash
        self.timeout = timeout
        self.stuck = self.broken = False
        self.board: FingerprintBoard | None = None
        self.life = 0
        self.begin()
        self.lock = threading.Lock()  # a receive from any source becomes one by name, on a thread of its own
        self.sent: dict[tuple[int | None, int], int] = {}
        self.received: dict[tuple[int | None, int], int] = {}

    @property
    def is_gloos(self) -> bool:
        """Whether gloo carries out the calls."""
        return self.timeout is not None

    def begin(self) -> None:
        """Count the collectives from 1."""
        self.failed: deque[int] = deque(maxlen=_FAILURES)
        self.positions = itertools.count(1)
        self.issued = 0

    def take_back(self, call: RecordedCall) -> None:
        """Undo the count of a call that torch has refused: this rank has not arrived, and others may wait for it."""
        if call.kind == "collective":
            following = next(self.positions)
            if following == call.seq + 1:
                following, self.issued = call.seq, call.seq - 1
            self.positions = itertools.count(following)  # otherwise another thread has issued a call after it
            return
        counts = self.sent if call.kind == "send" else self.received
        with self.lock:
            if counts.get((call.peer, call.tag)) == call.seq:
                counts[call.peer, call.tag] -= 1


class Turn:
    """The calls of one request, counted as those count who read its code: what a method needs of torch is one call.

    Attributes:
        over: another request has begun since.
        counts: how many there were of each kind.
    """

    def __init__(self) -> None:
        self.over = False
        self.counts: dict[object, int] = {}

    def next(self, key: object) -> int:
        """Count one more call of a kind, and return its number."""
        number = self.counts[key] = self.counts.get(key, 0) + 1
        return number

    def take_back(self, key: object, number: int) -> None:
        """Uncount the last call of a kind: torch has refused it."""
        if self.counts.get(key) == number:
            self.counts[key] = number - 1


class Step:
    """What the journal keeps of a call. Few calls have all of it, and each must be made fast: hence the class's values.

    Attributes:
        place: file and line of the cell that made it; None where that is not known.
        first: its first call of torch in the group, by its number there; `last` likewise.
        anyone: its call, where that receives from any rank: who has sent is known later.
        gave: bytes for each member, where that is asked for.
        watched: its end is noted when it comes, whoever waits for it.
        asked: since when somebody has waited for it; until then the rank did its own work.
    """

    kind = "collective"
    name = ""
    log: Any = None
    place: Any = None
    peer: int | None = None
    tag = nbytes = 0
    anyone: Any = None
    drawn: Any = None
    gave: list[int] | None = None
    failed = watched = False
    asked = ended = 0.0

    def end(self) -> None:
        """Note the end; only the first call counts."""
        if not self.ended:
            self.ended = clock.now()


class RecordedCall(Step):
    """One call that is under way, and its own step in the journal, where the cell or a library made it.

    Attributes:
        kept: it is its own step.
        where: what the cell called, once it was looked up.
        turn: the request that has made it, once it is counted.
        counted: which calls it is counted with.
        given: its number among them.
    """

    kept = limited = False
    where: call_site.Said | None = None
    turn: Turn | None = None
    counted: object
    given = 0

    def __init__(  # noqa: PLR0913, PLR0917 - a call has these
        self, kind: str, name: str, log: Log, seq: int, said: Fingerprint | None, peer: int | None = None, tag: int = 0
    ) -> None:
        self.name = name
        self.log = log
        self.seq = seq
        self.said = said
        self.since = clock.now()
        if kind == "collective":
            self.counted = log.key
        else:
            self.kind, self.peer, self.tag = kind, peer, tag
            self.counted = kind, log.key, peer, tag

    @property
    def entry(self) -> RecordedCall | None:
        """Its step in the journal, if it is its own."""
        return self if self.kept else None

    @property
    def first(self) -> int:
        """Its position."""
        return self.seq

    last = first

    @property
    def began(self) -> float:
        """When it began."""
        return self.since

    def count(self, turn: Turn, number: int = 0) -> int:
        """Give it its number for people, and return that; by default the next one of its kind."""
        if self.turn is None:
            self.turn, self.given = turn, number or turn.next(self.counted)
        return self.given

    @property
    def number(self) -> int:
        """Its number for people, as that of a `PendingCall`."""
        return -1 if self.turn is None else 0 if self.turn.over else self.given

    def take_back(self) -> None:
        """Free its place in the order of calls: torch has refused it."""
        self.log.take_back(self)
        if self.turn is not None:
            self.turn.take_back(self.counted, self.given)

    def has_ended(self, work: Any) -> bool:
        """Return whether its handle has ended.

        Gloo ends the handle's future first: C++ that waits for that (DDP) goes on, and the cell may be over, before the
        handle says so. NCCL's future says nothing: it ends when the call has been queued.
        """
        if work.is_completed():
            return True
        with suppress(RuntimeError):  # messages, and some collectives, have no future
            return self.log.is_gloos and bool(work.get_future().done())
        return False

    def fail(self, *, limited: bool = False) -> None:
        """Note that the call has failed after it had begun; others may wait there, unless it is limited."""
        self.log.broken = True
        if self.kind == "collective" and not limited:
            self.log.failed.append(self.seq)

    def look_for_failure(self, work: Any) -> None:
        """Note whether a call that has ended has failed: C++ has waited for it, or nobody."""
        with suppress(RuntimeError):  # as in `has_ended`
            future = work.get_future()
            try:
                future.value()
            except RuntimeError:
                self.log.broken = True

    def tell_place(self, scope: dict[str, Any] | None) -> None:
        """Tell the other ranks what torch and the cell called, for the message of a rank that does something else."""
        self.where = where = call_site.here(scope)
        log = self.log
        if log.board is not None:
            if self.said is not None:
                log.board.put_words(log.life, self.seq, self.said)
            log.board.put_place(log.life, self.seq, where.block)
        if self.kept and self.place is None:
            self.place = where.place
