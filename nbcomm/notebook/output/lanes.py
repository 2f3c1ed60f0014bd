"""What one rank has shown and is not merged yet; pure, as `folding` is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from ...short_repr import without_addresses
from ..display.items import Block, Line, Piece, Rich

_STALE = 4096
"""How many pieces that are out a lane may hold before it drops them."""


def key_of(piece: Piece) -> Piece:
    """Return what is equal for two ranks' pieces if they are to fold.

    The address of an object differs between ranks or not by chance. So lines that differ in nothing else are equal.
    """
    if isinstance(piece, Line) and (text := without_addresses(piece.text)) != piece.text:
        return Line(piece.stream, text)
    return piece


class RankLane:
    """One rank's pieces that are not shown yet, in order. Blocks are taken apart when their lines are looked at."""

    __slots__ = (
        "_at",
        "_blocks",
        "_pieces",
        "_special",
        "arrivals",
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
    )

    def __init__(self, rank: int, bit: int) -> None:
        self.rank = rank
        self.bit = bit
        self._pieces: list[Piece] = []  # the first ones, from `_at` on
        self._at = 0
        self._blocks: deque[Piece | Block] = deque()  # those behind them
        self._special: deque[int] = deque()  # places of pieces that are no plain lines of their own
        self.keys: deque[Piece] = deque()  # of the first pieces, in the window that is searched
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
        return self.pushed - self.out

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

    @property
    def plain(self) -> int:
        """How many plain lines are first: of one line each, without addresses, and no cell's value."""
        return self._special[0] - self.out if self._special else len(self)

    def push(self, pieces: Iterable[Piece | Block], now: float) -> None:
        """Add what the rank has shown at ``now``."""
        before = self.pushed
        for piece in _without_addresses_in_blocks(pieces):
            if isinstance(piece, Block):
                self.pushed += piece.size
            else:
                if type(piece) is not Line or "\n" in piece.text or " at 0x" in piece.text:
                    self._special.append(self.pushed)
                if isinstance(piece, Rich):
                    self.rich.append((self.pushed, now, piece.fixed))
                self.pushed += 1
            self._blocks.append(piece)
        if self.pushed > before and (not self.arrivals or self.pushed > self.arrivals[-1][0]):
            self.arrivals.append((self.pushed, now))

    def first(self, count: int, start: int = 0) -> list[Piece]:
        """Return the first ``count`` waiting pieces, but for ``start`` of them; fewer if there are fewer."""
        pieces, blocks, end = self._pieces, self._blocks, self._at + count
        while len(pieces) < end and blocks:
            piece = blocks.popleft()
            if isinstance(piece, Block):
                pieces += piece.lines()
            else:
                pieces.append(piece)
        return pieces[self._at + start : end]

    @property
    def head(self) -> Piece:
        """The first waiting piece; there must be one."""
        return self._pieces[self._at] if self._at < len(self._pieces) else self.first(1)[0]

    def newest(self, count: int) -> list[Piece]:
        """Return the last ``count`` waiting pieces, in order."""
        last: list[list[Piece]] = []
        for piece in reversed(self._blocks):
            if count <= 0:
                break
            some: list[Piece] = [*piece.lines()[-count:]] if isinstance(piece, Block) else [piece]
            last.append(some)
            count -= len(some)
        if count > 0:
            last.append(self._pieces[max(self._at, len(self._pieces) - count) :])
        return [*chain.from_iterable(reversed(last))]

    def waiting(self) -> list[Piece]:
        """Return all waiting pieces."""
        return self.first(len(self))

    @property
    def block(self) -> Block | None:
        """What is first, if it is a block that nobody has taken apart."""
        first = self._blocks[0] if self._blocks and self._at == len(self._pieces) else None
        return first if isinstance(first, Block) else None

    def skip_text(self, letters: int, count: int) -> None:
        """Let the first lines of the first block be out."""
        block = self._blocks.popleft()
        if isinstance(block, Block) and block.size > count:
            self._blocks.appendleft(Block(block.stream, block.text[letters:], block.size - count))
        self._note_out(count)

    def skip(self, count: int) -> None:
        """Let the first ``count`` pieces be out, which `first` has returned."""
        self._at += count
        if self._at > _STALE and 2 * self._at > len(self._pieces):
            del self._pieces[: self._at]
            self._at = 0
        self._note_out(count)

    def drop(self) -> None:
        """Forget all that waits."""
        self._pieces, self._at = [], 0
        self._blocks.clear()
        self._note_out(len(self))

    def _note_out(self, count: int) -> None:
        out = self.out = self.out + count
        while self._special and self._special[0] < out:
            self._special.popleft()
        while self.rich and self.rich[0][0] < out:
            self.rich.popleft()
        while self.arrivals and self.arrivals[0][0] <= out:
            self.arrivals.popleft()


def _without_addresses_in_blocks(pieces: Iterable[Piece | Block]) -> Iterator[Piece | Block]:
    for piece in pieces:
        if isinstance(piece, Block) and " at 0x" in piece.text:  # rare, and then each line is looked at
            yield from piece.lines()
        else:
            yield piece


class LaneView:
    """A lane as it will be when its next pieces, which are plain lines, are out."""

    def __init__(self, lane: RankLane, out: int) -> None:
        self.rank = lane.rank
        self.fixed_since, self.reach = lane.fixed_since, lane.reach
        self._left = len(lane) - out
        arrivals = lane.arrivals
        at = bisect_left(arrivals, lane.out + out + 1, key=lambda arrival: arrival[0])
        self.since = next((when for _, when in islice(arrivals, at, at + 1)), None)

    def __len__(self) -> int:
        return self._left
