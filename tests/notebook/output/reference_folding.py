"""The merge as it is told: piece by piece, without a way to take many at once; see `test_many_at_once`.

Every rank has a lane, a queue of the pieces it has shown. The merge goes over the lanes in rounds, lowest
rank first, and in a round each rank moves at most once:

* equal heads are one entry, with the ranks that agree; addresses of objects make no difference (`key_of`);
* a head that another rank has further back in its lane waits, so that the two can be folded there;
* if all heads wait (the ranks crossed), the lowest rank goes first.

So every rank's own order is kept, and the result depends on the sequences alone: while ranks still run,
only what no later piece can change comes out (`Merger.settle`). "Further back" is bounded by a window, so
that the work per piece is constant and a silent rank cannot hold back the others for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal

from nbcomm.notebook.display.items import FoldedItem, Line, Piece, Rich, size_of
from nbcomm.short_repr import without_addresses

WINDOW = 400
"""How many pieces of a lane are searched for a line that another rank shows now."""

_REMEMBERED = 2000
"""The most pieces already shown that can be taken back when some of the ranks clear their output."""

_REMEMBERED_LETTERS = 16 << 20
"""The most characters of them: what is shown stays in memory for that."""

Order = Literal["fold", "each", "by_rank"]


def key_of(piece: Piece) -> Piece:
    """Return what is equal for two ranks' pieces if they are to fold.

    The address of an object differs between ranks or not by chance. So lines that differ in nothing else are equal.
    """
    if isinstance(piece, Line) and (text := without_addresses(piece.text)) != piece.text:
        return Line(piece.stream, text)
    return piece


class RankLane:
    """One rank's pieces that are not shown yet: the window that is searched, and the rest."""

    __slots__ = (
        "arrivals",
        "beyond",
        "bit",
        "counts",
        "ended",
        "forgot",
        "history",
        "keys",
        "last",
        "out",
        "pushed",
        "rank",
        "rich",
        "window",
    )

    def __init__(self, rank: int, bit: int) -> None:
        self.rank = rank
        self.bit = bit
        self.window: deque[Piece] = deque()
        self.keys: deque[Piece] = deque()  # of the window's pieces
        self.beyond: deque[Piece] = deque()
        self.counts: dict[Piece, int] = {}
        self.ended = False
        self.pushed = 0
        self.out = 0
        self.arrivals: deque[tuple[int, float]] = deque()  # (pieces pushed by then, when)
        self.rich: deque[tuple[int, float, bool]] = deque()  # (place of a Rich in the lane, when it came, fixed?)
        self.history: list[Piece] = []  # what is out since the rank last cleared
        self.forgot = False  # whether the history has gaps
        self.last = -1  # the entry that this rank was last part of

    def __len__(self) -> int:
        return len(self.window) + len(self.beyond)

    @property
    def since(self) -> float | None:
        """The arrival time of the oldest waiting piece; None if none waits."""
        return self.arrivals[0][1] if self.arrivals else None

    @property
    def fixed_since(self) -> float | None:
        """The arrival time of the oldest waiting `Rich` that is fixed; None if none waits."""
        return next((when for _, when, fixed in self.rich if fixed), None)

    @property
    def reach(self) -> int:
        """The number of the lane's last pieces, from its first waiting `Rich` on; 0 if none waits."""
        return self.pushed - self.rich[0][0] if self.rich else 0

    def newest(self, count: int) -> list[Piece]:
        """Return the last ``count`` waiting pieces, in order."""
        pieces = list(islice(reversed(self.beyond), count))
        pieces += islice(reversed(self.window), count - len(pieces))
        return pieces[::-1]


class Merger:
    """Merges lanes as they fill.

    Args:
        ranks: the ranks, each once.
        order: "fold"; "each": nothing is folded, the rounds stay; "by_rank": all of the lowest rank first.
        window: see `WINDOW`.
    """

    def __init__(self, ranks: Iterable[int], *, order: Order = "fold", window: int = WINDOW) -> None:
        self._lanes = [RankLane(rank, 1 << i) for i, rank in enumerate(sorted(ranks))]
        self._by_rank = {lane.rank: lane for lane in self._lanes}
        self._order = order
        self._size = window
        self._within: dict[Piece, int] = {}  # ranks (as bits) that have the piece in their window
        self._heads: dict[Piece, int] = {}  # ranks that have it as their head
        self._unsure = (1 << len(self._lanes)) - 1  # ranks whose window may still get any piece
        self._groups: dict[int, tuple[int, ...]] = {}
        self._at = 0  # the lane that is looked at in this round
        self._moved = 0  # the ranks that moved in this round
        self._remember, self._letters = _REMEMBERED, _REMEMBERED_LETTERS
        self._count = 0
        self._joinable: dict[Piece, list[tuple[int, FoldedItem]]] = {}
        self.joined: list[FoldedItem] = []
        """Entries already out that a rank joined since this list was last emptied."""

    @property
    def lanes(self) -> Sequence[RankLane]:
        """The lanes, to read."""
        return self._lanes

    def push(self, rank: int, pieces: Iterable[Piece], now: float = 0.0) -> None:
        """Add what a rank has shown at ``now``."""
        lane = self._by_rank[rank]
        for piece in pieces:
            if isinstance(piece, Rich):
                lane.rich.append((lane.pushed, now, piece.fixed))
            lane.pushed += 1
            lane.beyond.append(piece)
        if lane.beyond and (not lane.arrivals or lane.pushed > lane.arrivals[-1][0]):
            lane.arrivals.append((lane.pushed, now))
        self._fill(lane)
        if self._joinable:
            self._join(lane)

    def end(self, rank: int) -> None:
        """Nothing more comes from this rank."""
        lane = self._by_rank[rank]
        lane.ended = True
        self._unsure &= ~lane.bit

    def settle(self) -> list[FoldedItem]:
        """Return the next entries that are final."""
        entries = []
        while (entry := self._next(sure=True)) is not None:
            entries.append(entry)
        return entries

    def force(self, impatient: Callable[[RankLane], bool], *, joinable: bool = True) -> list[FoldedItem]:
        """Return the next entries as if no more output came, until no lane is impatient.

        Args:
            impatient: asked for lanes in which something waits.
            joinable: whether a rank may later join a display that comes out now.
        """
        entries = []
        while any(impatient(lane) for lane in self._lanes if lane.arrivals):
            entry = self._next(sure=False)
            if entry is None:
                break
            if entry.parts and joinable:
                entry.forced = True
                self._joinable.setdefault(entry.piece, []).append((self._count, entry))
            entries.append(entry)
        return entries

    def preview(self, unfinished: Mapping[int, Sequence[Line]], limit: int) -> tuple[int, list[FoldedItem]]:
        """Return the entries if the ranks ended now, of each rank's last ``limit`` pieces; unfinished lines come last.

        Returns:
            How many older pieces are left out, and the entries.
        """
        hidden, waiting = 0, {}
        for lane in self._lanes:
            waiting[lane.rank] = lane.newest(limit)
            hidden += len(lane) - len(waiting[lane.rank])
        # Bars stay at the bottom: merged with the rest, they would jump as the ranks take turns.
        return hidden, [*_merged(waiting, self._order, self._size), *_merged(unfinished, self._order, self._size)]

    def cleared(self, ranks: set[int], now: float) -> Merger | None:
        """Start again without what these ranks have shown: the others' pieces are merged again.

        Returns:
            The merger to go on with, or None if too much of the others is out to take it back; then only
            what these ranks had waiting is gone.
        """
        for lane in self._lanes:
            if lane.rank in ranks:
                while lane.window:
                    self._pop(lane)
                self._remember += len(lane.history)
                self._letters += sum(map(size_of, lane.history))
                lane.history = []
                lane.forgot = False
        if any(lane.forgot for lane in self._lanes):
            return None
        again = type(self)(self._by_rank, order=self._order, window=self._size)
        for lane in self._lanes:
            for piece in lane.history:
                if isinstance(piece, Rich):
                    piece.place = None
            again.push(lane.rank, [*lane.history, *lane.window, *lane.beyond], now)
            if lane.ended:
                again.end(lane.rank)
        return again

    def _next(self, *, sure: bool) -> FoldedItem | None:
        """Return the next entry; None if there is none, or, with ``sure``, if a later piece could change it.

        Three ranks have shown this, the oldest pieces on the left::

            rank 0   a  x  z      round 1   a of rank 0
            rank 1   b  x                   b of rank 1
            rank 2   x                      rank 2's x waits: ranks 0 and 1 have it further back
                                  round 2   x of ranks 0-2
                                  round 3   z of rank 0

        With ``sure``, a comes out only when ranks 1 and 2 have ended or their windows are full, for either may still
        show an a. x comes out at once, for nobody else could. A rank that runs and has nothing holds up the round when
        its turn comes.
        """
        if self._order == "by_rank":
            return self._next_by_rank(sure=sure)
        while True:
            if self._at == len(self._lanes):
                moved, self._at, self._moved = self._moved, 0, 0
                if not moved:
                    return self._crossed()
            lane = self._lanes[self._at]
            if sure and not lane.window and not lane.ended:
                return None
            agreeing = self._agreeing(lane)
            if sure and agreeing and self._others_may_show_it(agreeing):
                return None
            self._at += 1
            if agreeing:
                self._moved |= agreeing
                return self._out(agreeing)

    def _next_by_rank(self, *, sure: bool) -> FoldedItem | None:
        for lane in self._lanes:
            if lane.window:
                return self._out(lane.bit)
            if sure and not lane.ended:
                break
        return None

    def _agreeing(self, lane: RankLane) -> int:
        """Return the ranks that show the lane's head together; 0 if it waits for one of them, or for a new round."""
        if not lane.window or self._moved & lane.bit:
            return 0
        if self._order == "each":
            return lane.bit
        head = lane.keys[0]
        agreeing = self._heads[head]
        return agreeing if self._within[head] == agreeing and not agreeing & self._moved else 0

    def _others_may_show_it(self, agreeing: int) -> bool:
        """Return whether another rank may still get the piece that these agree on."""
        return self._order == "fold" and bool(self._unsure & ~agreeing)

    def _crossed(self) -> FoldedItem | None:
        """Return the lowest rank's head where all heads wait for each other; None if there are none."""
        # No rank that still runs is without a head here: we would have stopped at it.
        lane = next((lane for lane in self._lanes if lane.window), None)
        return None if lane is None else self._out(self._heads[lane.keys[0]])

    def _out(self, bits: int) -> FoldedItem:
        """Take the heads of these lanes out as one entry."""
        ranks = self._groups.get(bits)
        if ranks is None:
            ranks = self._groups[bits] = tuple(lane.rank for lane in self._lanes if lane.bit & bits)
        self._count += 1
        parts: dict[int, Rich] = {}
        first: Line | None = None
        for rank in ranks:
            lane = self._by_rank[rank]
            piece = self._pop(lane)
            lane.last = self._count
            if isinstance(piece, Rich):
                parts[rank] = piece
            elif first is None:
                first = piece
            elif piece.text != first.text:
                piece = first = piece._replace(text=without_addresses(piece.text))
        if self._joinable:
            for rank in ranks:
                self._join(self._by_rank[rank])
        return FoldedItem(ranks, piece, parts)

    def _join(self, lane: RankLane) -> None:
        """Let the lane's head join an equal entry that is out already, if that keeps the rank's order."""
        while lane.window and isinstance(head := lane.window[0], Rich):
            for number, entry in self._joinable.get(head, ()):
                if number > lane.last and lane.rank not in entry.parts:
                    entry.parts[lane.rank] = head
                    entry.ranks = tuple(sorted(entry.parts))
                    self._pop(lane)
                    lane.last = number
                    self.joined.append(entry)
                    break
            else:
                return

    def _fill(self, lane: RankLane) -> None:
        """Move pieces into the lane's window, as far as it has room."""
        window, beyond, keys = lane.window, lane.beyond, lane.keys
        fold, counts, within, bit = self._order == "fold", lane.counts, self._within, lane.bit
        while beyond and len(window) < self._size:
            piece = beyond.popleft()
            window.append(piece)
            if fold:
                key = key_of(piece)
                keys.append(key)
                if len(window) == 1:
                    self._heads[key] = self._heads.get(key, 0) | bit
                seen = counts.get(key, 0)
                counts[key] = seen + 1
                if not seen:
                    within[key] = within.get(key, 0) | bit
        if len(window) >= self._size or lane.ended:
            self._unsure &= ~bit

    def _pop(self, lane: RankLane) -> Piece:
        """Take the lane's head out and keep all counts right."""
        window, bit = lane.window, lane.bit
        piece = window.popleft()
        if self._order == "fold":
            key = lane.keys.popleft()
            _unset(self._heads, key, bit)
            left = lane.counts[key] - 1
            if left:
                lane.counts[key] = left
            else:
                del lane.counts[key]
                _unset(self._within, key, bit)
            if window:
                self._heads[lane.keys[0]] = self._heads.get(lane.keys[0], 0) | bit
        lane.out += 1
        while lane.arrivals and lane.arrivals[0][0] <= lane.out:
            lane.arrivals.popleft()
        while lane.rich and lane.rich[0][0] < lane.out:
            lane.rich.popleft()
        if self._remember > 0 and self._letters > 0:
            self._remember -= 1
            self._letters -= size_of(piece)
            lane.history.append(piece)
        else:
            lane.forgot = True
        if lane.beyond:
            self._fill(lane)
        elif not lane.ended:
            self._unsure |= bit
        return piece


def _unset(bits: dict[Piece, int], piece: Piece, bit: int) -> None:
    left = bits[piece] & ~bit
    if left:
        bits[piece] = left
    else:
        del bits[piece]


def merge(
    sequences: Mapping[int, Iterable[Piece]], *, order: Order = "fold", window: int = WINDOW
) -> list[tuple[tuple[int, ...], Piece]]:
    """Merge complete sequences, one per rank.

    >>> a, b, end = Line("stdout", "a"), Line("stdout", "b"), Line("stdout", "end")
    >>> [(ranks, line.text) for ranks, line in merge({0: [a, end], 1: [b, end]})]
    [((0,), 'a'), ((1,), 'b'), ((0, 1), 'end')]
    """
    return [(entry.ranks, entry.piece) for entry in _merged(sequences, order, window)]


def _merged(sequences: Mapping[int, Iterable[Piece]], order: Order, window: int) -> list[FoldedItem]:
    merger = Merger(sequences, order=order, window=window)
    for rank, pieces in sequences.items():
        merger.push(rank, pieces)
        merger.end(rank)
    return merger.settle()
