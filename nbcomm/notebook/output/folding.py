"""What several ranks showed, folded into one sequence; pure: no clock, no screen.

Every rank has a lane, a queue of the pieces it has shown. The merge goes over the lanes in rounds, lowest
rank first, and in a round each rank moves at most once:

* equal heads are one entry, with the ranks that agree; addresses of objects make no difference (`key_of`);
* a head that another rank has further back in its lane waits, so that the two can be folded there;
* if all heads wait (the ranks crossed), the lowest rank goes first.

So every rank's own order is kept, and the result depends on the sequences alone: while ranks still run,
only what no later piece can change comes out (`Merger.settle`). "Further back" is bounded by a window, so
that the work per piece is constant and a silent rank cannot hold back the others for ever.

Where much waits, its entries come out many at once, as the rounds would give them: text that is the same on all ranks
before it is taken apart (`Merger._equal_text`), and lines if none of them is in one place on one rank and in another
place on another one (`Merger._leap`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

from ...short_repr import without_addresses
from ..display.items import Block, Folded, FoldedBlock, FoldedItem, FoldedLines, FoldedRows, Line, Piece, Rich
from .history import History
from .lanes import LaneView, RankLane
from .rows import Ranks, aligned, are_disjoint, common_lines, common_rows, folded_rows, rows_of
from .windows import Windows

WINDOW = 400
"""How many pieces of a lane are searched for a line that another rank shows now."""

_SELDOM = 8
"""Of how many rounds one is looked at for that, where it was not worth it before."""

_LEAST = 64
"""How many rows must come out at once to be worth a look at the windows of all lanes."""

Order = Literal["fold", "each", "by_rank"]

Impatience = Callable[[RankLane | LaneView], bool]


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
        self._windows = Windows(self._lanes, window)
        self._unsure = (1 << len(self._lanes)) - 1  # ranks whose window may still get any piece
        self._silent = self._unsure  # ranks that still run, and of which nothing waits
        self._groups: dict[int, tuple[int, ...]] = {}
        self._at = 0  # the lane that is looked at in this round
        self._moved = 0  # the ranks that moved in this round
        self._rest = 0  # rounds until it is worth trying again to take many at once
        self._history = History()
        self._count = 0
        self._joinable: dict[Piece, list[tuple[int, FoldedItem]]] = {}
        self.joined: list[FoldedItem] = []
        """Entries already out that a rank joined since this list was last emptied."""

    @property
    def lanes(self) -> Sequence[RankLane]:
        """The lanes, to read."""
        return self._lanes

    def push(self, rank: int, pieces: Iterable[Piece | Block], now: float = 0.0) -> None:
        """Add what a rank has shown at ``now``."""
        lane = self._by_rank[rank]
        lane.push(pieces, now)
        self._windows.add(lane)
        self._look_whether_sure(lane)
        if self._joinable:
            self._join(lane)

    def end(self, rank: int) -> None:
        """Nothing more comes from this rank."""
        lane = self._by_rank[rank]
        lane.ended = True
        self._look_whether_sure(lane)

    def settle(self) -> list[Folded]:
        """Return the next entries that are final."""
        entries: list[Folded] = []
        while (entry := self._step(sure=True)) is not None:
            entries.append(entry)
        return entries

    def force(self, impatient: Impatience, *, joinable: bool = True) -> list[Folded]:
        """Return the next entries as if no more output came, until no lane is impatient.

        Args:
            impatient: asked for lanes in which something waits. A lane that is not impatient does not become so when
                more of it is out.
            joinable: whether a rank may later join a display that comes out now.
        """
        entries: list[Folded] = []
        while any(impatient(lane) for lane in self._lanes if lane.arrivals):
            entry = self._step(sure=False, impatient=impatient)
            if entry is None:
                break
            if isinstance(entry, FoldedItem) and entry.parts and joinable:
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
        self._pass_waiting()
        self._windows.forget()
        those = [self._by_rank[rank] for rank in ranks]
        self._history.drop(those)
        for lane in those:
            lane.drop()
            self._look_whether_sure(lane)
        if any(lane.forgot for lane in self._lanes):
            return None
        again = Merger(self._by_rank, order=self._order, window=self._size)
        for lane in self._lanes:
            for piece in lane.history:
                if isinstance(piece, Rich):
                    piece.place = None
            again.push(lane.rank, [*lane.history, *lane.waiting()], now)
            if lane.ended:
                again.end(lane.rank)
        return again

    # ── one entry after the other ───────────────────────────────────────────────────────────────────

    def _step(self, *, sure: bool, impatient: Impatience | None = None) -> Folded | None:
        if self._order == "by_rank":
            return self._next_by_rank(sure=sure, many=impatient is None)
        return self._next(sure=sure, impatient=impatient)

    def _next(self, *, sure: bool, impatient: Impatience | None) -> Folded | None:
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
        # Before a silent rank says more, nothing is final, and the windows need not be searched.
        while not (sure and self._order == "fold" and self._silent):
            if self._at == len(self._lanes):
                moved, self._at, self._moved = self._moved, 0, 0
                if not moved:
                    return self._crossed()
            if not self._at:
                if self._rest % _SELDOM:
                    self._rest -= 1
                elif (many := self._leap(sure=sure, impatient=impatient)) is not None:
                    return many
            lane = self._lanes[self._at]
            if sure and not len(lane) and not lane.ended:
                return None
            agreeing = self._agreeing(lane)
            if sure and agreeing and self._others_may_show_it(agreeing):
                return None
            self._at += 1
            if agreeing:
                self._moved |= agreeing
                return self._out(agreeing)
        return None

    def _pass_waiting(self) -> None:
        """Pass the heads that wait for others in this round, as `_next` does before it stops at a silent rank."""
        while self._order == "fold" and self._silent:
            if self._at == len(self._lanes):
                if not self._moved:
                    return
                self._at = self._moved = 0
            lane = self._lanes[self._at]
            if (not len(lane) and not lane.ended) or self._agreeing(lane):
                return
            self._at += 1

    def _next_by_rank(self, *, sure: bool, many: bool) -> Folded | None:
        for lane in self._lanes:
            count = lane.plain
            if count > 1 and many:
                return self._rows_out([lane], count, rows_of([(lane.rank,)], [lane.first(count)]))
            if len(lane):
                return self._out(lane.bit)
            if sure and not lane.ended:
                break
        return None

    def _agreeing(self, lane: RankLane) -> int:
        """Return the ranks that show the lane's head together; 0 if it waits for one of them, or for a new round."""
        if not len(lane) or self._moved & lane.bit:
            return 0
        if self._order == "each":
            return lane.bit
        agreeing, within = self._windows.with_head(lane)
        return agreeing if within == agreeing and not agreeing & self._moved else 0

    def _others_may_show_it(self, agreeing: int) -> bool:
        """Return whether another rank may still get the piece that these agree on."""
        return self._order == "fold" and bool(self._unsure & ~agreeing)

    def _crossed(self) -> FoldedItem | None:
        """Return the lowest rank's head where all heads wait for each other; None if there are none."""
        # No rank that still runs is without a head here: we would have stopped at it.
        lane = next((lane for lane in self._lanes if len(lane)), None)
        return None if lane is None else self._out(self._windows.with_head(lane)[0])

    def _out(self, bits: int) -> FoldedItem:
        """Take the heads of these lanes out as one entry."""
        ranks = self._group(bits)
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

    def _group(self, bits: int) -> tuple[int, ...]:
        ranks = self._groups.get(bits)
        if ranks is None:
            ranks = self._groups[bits] = tuple(lane.rank for lane in self._lanes if lane.bit & bits)
        return ranks

    def _join(self, lane: RankLane) -> None:
        """Let the lane's head join an equal entry that is out already, if that keeps the rank's order."""
        while len(lane) and isinstance(head := lane.head, Rich):
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

    def _look_whether_sure(self, lane: RankLane) -> None:
        """Note whether the lane's window may still get any piece."""
        if lane.ended or len(lane) >= self._size:
            self._unsure &= ~lane.bit
        else:
            self._unsure |= lane.bit
        if lane.ended or lane.out < lane.pushed:
            self._silent &= ~lane.bit
        else:
            self._silent |= lane.bit

    def _pop(self, lane: RankLane) -> Piece:
        """Take the lane's head out and keep all counts right."""
        piece = lane.head
        lane.skip(1)
        self._windows.step(lane)
        self._history.note(lane, piece)
        self._look_whether_sure(lane)
        return piece

    # ── many entries at once ────────────────────────────────────────────────────────────────────────

    def _leap(self, *, sure: bool, impatient: Impatience | None) -> Folded | None:
        """Return the entries of the next rounds, if they can be told without each window's search; a round begins.

        In row k are the lanes' pieces number k. If no line of a row is in another row of a rank that lacks it in this
        one, as far as the windows reach, each round takes one row: its equal lines are one entry.
        """
        lanes = [lane for lane in self._lanes if len(lane)]
        if sure and len(lanes) < len(self._lanes) and not all(lane.ended for lane in self._lanes if not len(lane)):
            return None
        if self._order == "fold" and impatient is None and (text := self._equal_text(lanes)) is not None:
            return text
        most = min((lane.plain for lane in lanes), default=0)
        if most < _LEAST:
            self._rest = max(self._rest, _SELDOM) - 1
            return None
        equal = self._order == "fold" and self._are_equal(lanes)
        if self._rest and (impatient is not None or not equal):
            self._rest -= 1
            return None
        if impatient is not None:
            most = self._still_impatient(most, impatient)
        rows = self._rows(lanes, most, equal=equal, sure=sure) if most >= _LEAST else None
        if rows is None:
            self._rest = max(_LEAST, most)  # so that such looks take a small part of the time
            return None
        return self._rows_out(lanes, *rows)

    def _rows(
        self, lanes: Sequence[RankLane], most: int, *, equal: bool, sure: bool
    ) -> tuple[int, FoldedRows | FoldedLines] | None:
        """Return how many rows may come out at once, ``most`` at most, and their lines; None if they are too few."""
        ranks = [lane.rank for lane in lanes]
        if equal:
            columns = [lane.first(most) for lane in lanes]
            count = common_rows(columns, most)
            return count, rows_of([tuple(ranks)], [columns[0][:count]])
        if self._order == "each":
            return most, rows_of([(rank,) for rank in ranks], [lane.first(most) for lane in lanes])
        running = [len(lane) for lane in lanes if not lane.ended] if sure else []
        count = min([most, *(length - self._size for length in running)])  # a window that is not full may get anything
        while count >= _LEAST:
            columns = [lane.first(count + self._size + 1) for lane in lanes]
            first = [column[:count] for column in columns]
            if are_disjoint(columns):
                return count, rows_of([(rank,) for rank in ranks], first)
            if aligned(columns):
                return count, folded_rows(ranks, first)
            count //= 2
        return None

    def _are_equal(self, lanes: Sequence[RankLane]) -> bool:
        """Return whether so many of the first lines are equal that they can come out at once."""
        head = lanes[0].head
        if any(lane.head != head for lane in lanes):
            return False
        some = lanes[0].first(_LEAST)
        return all(lane.first(_LEAST) == some for lane in lanes)

    def _still_impatient(self, most: int, impatient: Impatience) -> int:
        """Return how many rows, ``most`` at most, are out when a lane is impatient for the last time."""

        def content(rows: int) -> bool:
            later = (LaneView(lane, rows) for lane in self._lanes if len(lane))
            return not any(impatient(lane) for lane in later if lane.since is not None)

        if content(min(_LEAST, most)):
            return 0  # too few in any case
        return bisect_left(range(1, most + 1), 1, key=content)

    def _equal_text(self, lanes: Sequence[RankLane]) -> FoldedBlock | None:
        """Take out the lines that the lanes begin with, if they are equal and nobody has taken them apart."""
        blocks = [lane.block for lane in lanes]
        first = blocks[0] if blocks else None
        if first is None or any(block is None or block.stream != first.stream for block in blocks):
            return None
        text = common_lines([block.text for block in blocks if block is not None])
        if not text:
            return None
        block = Block(first.stream, text, text.count("\n"))
        ranks = tuple(lane.rank for lane in lanes)
        for lane in lanes:
            lane.skip_text(len(text), block.size)
        self._end_rows(lanes, ranks, ((ranks, line) for block in [block] for line in block.lines()))
        return FoldedBlock(ranks, block)

    def _rows_out(
        self, lanes: Sequence[RankLane], count: int, rows: FoldedRows | FoldedLines
    ) -> FoldedRows | FoldedLines:
        """Take this many pieces of each lane out as these entries."""
        for lane in lanes:
            lane.skip(count)
        self._end_rows(lanes, rows.last, rows.lines())
        return rows

    def _end_rows(self, lanes: Sequence[RankLane], last: Ranks, lines: Iterable[tuple[Ranks, Line]]) -> None:
        """Go on behind the entries of several rounds, as if they had come out one by one.

        Args:
            lanes: those that have moved.
            last: the ranks of the last entry.
            lines: the entries.
        """
        self._windows.forget()
        self._at = self._by_rank[last[0]].bit.bit_length()
        self._moved = sum(lane.bit for lane in lanes)
        self._count += 1
        self._history.note_many({lane.rank: lane for lane in lanes}, lines)
        for lane in lanes:
            lane.last = self._count
            self._look_whether_sure(lane)
            if self._joinable:
                self._join(lane)


def merge(
    sequences: Mapping[int, Iterable[Piece]], *, order: Order = "fold", window: int = WINDOW
) -> list[tuple[tuple[int, ...], Piece]]:
    """Merge complete sequences, one per rank.

    >>> a, b, end = Line("stdout", "a"), Line("stdout", "b"), Line("stdout", "end")
    >>> [(ranks, line.text) for ranks, line in merge({0: [a, end], 1: [b, end]})]
    [((0,), 'a'), ((1,), 'b'), ((0, 1), 'end')]
    """
    return [(entry.ranks, entry.piece) for entry in _merged(sequences, order, window)]


def _merged(sequences: Mapping[int, Iterable[Piece | Block]], order: Order, window: int) -> list[FoldedItem]:
    merger = Merger(sequences, order=order, window=window)
    for rank, pieces in sequences.items():
        merger.push(rank, pieces)
        merger.end(rank)
    return [*chain.from_iterable(many.entries() for many in merger.settle())]
