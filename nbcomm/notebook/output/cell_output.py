"""A running cell's output: what the ranks send, merged, folded, and shown while it comes.

The link's thread puts in what arrives (`CellOutput.feed`); the thread that waits for the cell takes it out about ten
times a second (`CellOutput.render`) and shows it: settled lines for good, the rest live.

A rank that clears its output removes its part of what is shown. If nothing of other ranks is left, the cell is cleared;
otherwise it is cleared and what the others showed is merged again. If too much is already shown for that (2,000
pieces), it is cleared once every rank has cleared.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...faults import Faults
from ...protocol import Clear, Display, Failure, Item, Text
from ..display.area import Area
from ..display.displays import label, prefixed
from ..display.items import Block, Folded, FoldedItem, Line, Piece, Rich, View
from ..display.live import ScreenPicture, text_bundle
from ..display.terminal_lines import Reader
from ..widgets.rows import CellWidgets, as_view
from .cell_displays import CellDisplays
from .cell_options import CellOptions
from .execute_result import ResultScreen, Values, cell_area
from .folding import WINDOW, Impatience, Merger, Order
from .lanes import LaneView, RankLane
from .last_cell import KeptArea
from .late import LateOutput, is_late
from .long_output import LongOutput
from .rows import texts_of
from .unfolded import PIECES, waiting

if TYPE_CHECKING:
    from ..widgets.mirrors import Mirrors

_QUICK = 0.25
"""Seconds: a cell that ends sooner shows nothing live, and leaves plain outputs only."""

_WAIT = 0.15
"""Seconds after which what waits to be folded is shown live; at ten renders a second, within 0.25 s."""

_PATIENCE = 0.25
"""Seconds for which a rank may be further ahead of the others than the merge's window."""

_FAR_AHEAD = 20_000
"""Pieces that a rank may never be ahead, not even for a moment."""


class CellOutput:
    """The output of one cell.

    Args:
        ranks: the ranks that run the cell.
        options: how it is shown.
        area: where to show it; by default the cell that runs now.
        clock: the time in seconds, for tests.
        folder: where a file with all lines is made if they are too many for a page.

    Attributes:
        widgets: those of the ranks; None if there are none.
        lost: what could not be shown, in sentences, which are told at the end of the cell.
    """

    _faults: ClassVar[Faults] = Faults()
    """Of all cells: what fails in each of them is logged once."""

    def __init__(
        self,
        ranks: Sequence[int],
        options: CellOptions = CellOptions(),  # noqa: B008 - it is frozen
        *,
        area: Area | None = None,
        clock: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
    ) -> None:
        order: Order = "by_rank" if options.by_rank else "fold" if options.fold else "each"
        self.widgets: Mirrors | None = None
        self.lost: set[str] = set()
        self._order = order
        self._quiet = options.quiet
        self._clock = clock
        self._merger = Merger(ranks, order=order)
        self._readers = {rank: Reader() for rank in sorted(ranks)}
        self._ended: set[int] = set()
        self._screen = ResultScreen(area if area is not None else KeptArea(cell_area()), clock)
        self._lines = LongOutput(self._screen.write, self._screen.write_many, folder)
        self._values = Values(ranks)
        self._joinable: list[tuple[FoldedItem, ScreenPicture]] = []
        self._blocks = CellWidgets(self._screen)
        self._prefixes: dict[tuple[int, ...], str] = {}
        self._displays = CellDisplays(self._screen, clock)
        self._late = LateOutput(self._screen, self._displays)
        self._unfinished_since: dict[int, float] = {}
        self._started = clock()
        self._notice = self._noticed = ""  # what is to be shown, and what is
        self._tail: list[str | ScreenPicture] = []
        self._most = max(20, PIECES // len(self._readers))  # pieces of a rank that are seen before they are settled
        self._stale = False  # whether the live part must be rebuilt
        self._lock = threading.RLock()  # all that is shown
        self._inbox: list[tuple[float, int, list[Item] | None]] = []  # None: the rank's cell has ended
        self._inbox_lock = threading.Lock()  # held for moments only: the link's thread takes it
        self._begun = False  # something has arrived, and was taken out of the inbox
        self._closed = False

    @property
    def area(self) -> Area:
        """The area where it is shown."""
        return self._screen.area

    def feed(self, rank: int, items: list[Item]) -> None:
        """Take what a rank has shown, from any thread; after `close`, show it at once as late output."""
        with self._inbox_lock:
            if not self._closed:
                self._inbox.append((self._clock(), rank, items))
                return
        if not self._quiet:
            with self._lock, CellDisplays.lock:
                self._late.show(rank, items, self.widgets)
                self._displays.refresh(final=True)
                self._screen.flush()

    def ended(self, rank: int) -> None:
        """Note the end of this rank's cell: its unfinished lines are complete, and later output is late."""
        with self._inbox_lock:
            if not self._closed:
                self._inbox.append((self._clock(), rank, None))

    def notice(self, text: str) -> None:
        """Show a line of nbcomm's own below the live output, in place of the last one; "" removes it.

        From any thread, without waiting: the next `render` shows it.
        """
        self._notice = text

    def render(self) -> None:
        """Show what is new; must be called about ten times a second while the cell runs."""
        with _uninterrupted(), self._lock:
            now = self._clock()
            self._take(now)
            if self._quiet:
                return
            self._take_notice()
            self._settle(self._merger.settle())
            self._settle(self._merger.force(self._impatience(now), joinable=self._screen.area.updates))
            self._displays.refresh()
            self._show_live(now)

    def expose(self, rank: int) -> None:
        """Show all output of a rank that is about to ask for input, above the box; later output is below."""
        with _uninterrupted(), self._lock:
            now = self._clock()
            self._take(now)
            self._merger.push(rank, self._readers[rank].end(), now)  # the user's Enter ends the line
            self._unfinished_since.pop(rank, None)
            if self._quiet:
                return
            self._stale = True
            self._settle(self._merger.settle())
            if self._order != "by_rank":
                self._settle(self._merger.force(lambda lane: lane.rank == rank, joinable=self._screen.area.updates))
                self._lines.let_out()
                self._displays.refresh()
                self._screen.freeze()
                self._screen.flush()
            else:  # its place is below the ranks before it, which still run: it is shown live
                self._screen.live(self._live_parts())

    def cut(self) -> None:
        """Show later output below the input box, where a front end keeps the typed text."""
        with _uninterrupted(), self._lock:
            self._screen.freeze()
            self._screen.flush()
            self._stale = True

    def close(self, failures: Mapping[int, Failure] | None = None) -> None:  # noqa: ARG002 - see below
        """Show everything fed so far; the cell has ended on all ranks.

        Args:
            failures: what the ranks raised. It is not shown here: the caller raises `failures.cell_error`.
        """
        if self._close_empty():
            return
        with _uninterrupted(), self._lock:
            for rank in self._readers:
                self.ended(rank)
            while True:
                self._take(self._clock())
                if not self._quiet:
                    self._settle(self._merger.settle())
                    self._lines.let_out()
                    self._displays.refresh(final=True)
                    self._blocks.settle()
                    self._screen.close()
                    self._tail = []
                with self._inbox_lock:
                    if not self._inbox:
                        self._closed = True
                        break
            self._lines.close()

    def _close_empty(self) -> bool:
        """Close at once if nothing is to be shown, and return whether that was so: most small cells show nothing."""
        with self._inbox_lock:
            if self._begun or self._notice or self._noticed or self._screen.has_live:
                return False
            if any(items is not None for _, _, items in self._inbox):
                return False
            self._closed, self._inbox = True, []
        self._ended.update(self._readers)
        self._screen.closed = not self._quiet
        return True

    def append(self, bundle: dict[str, Any]) -> None:
        """Show a display of nbcomm's own after everything else, even if the cell is quiet."""
        with _uninterrupted(), self._lock:
            self._screen.display(bundle, {})

    def say(self, text: str, stream: str = "stdout") -> None:
        """Show a text of nbcomm's own after everything else, even if the cell is quiet."""
        with _uninterrupted(), self._lock:
            self._screen.write(stream, text)
            self._screen.flush()

    # ── taking in ───────────────────────────────────────────────────────────────────────────────────

    def _take_notice(self) -> None:
        before, self._noticed = self._noticed, self._notice
        if self._noticed == before:
            return
        self._stale = True
        if not (before or self._screen.area.updates):  # if nothing can be replaced, one line must do
            self._screen.write("stderr", self._noticed + "\n")

    def _take(self, now: float) -> None:
        """Move what has arrived into the merger's lanes."""
        with self._inbox_lock:
            inbox, self._inbox = self._inbox, []
            self._begun = self._begun or bool(inbox)
        if self._quiet or not inbox:
            return
        self._stale = True
        fresh: dict[int, list[tuple[float, list[Piece | Block]]]] = {}
        cleared: dict[int, bool] = {}
        for arrived, rank, items in inbox:
            pieces, clear = list[Piece | Block](), None
            with self._faults.beside("a piece of output could not be read", self.lost.add):
                pieces, clear = (self._end(rank), None) if items is None else self._read(rank, items)
            if clear is not None:
                cleared[rank] = clear.wait
                fresh.pop(rank, None)
            fresh.setdefault(rank, []).append((arrived, pieces))
        if cleared:
            self._clear(cleared, now)
        for rank, batches in fresh.items():
            for arrived, pieces in batches:
                try:
                    self._merger.push(rank, pieces, arrived)
                except Exception as error:  # noqa: BLE001 - what the other ranks have shown is not lost with it
                    self._faults.caught("a piece of output could not be read", error, self.lost.add)
            with self._faults.beside("a piece of output could not be read", self.lost.add):
                if rank in self._ended:
                    self._merger.end(rank)
                if self._readers[rank].unfinished:
                    self._unfinished_since.setdefault(rank, batches[-1][0])
                else:
                    self._unfinished_since.pop(rank, None)

    def _end(self, rank: int) -> list[Piece | Block]:
        self._ended.add(rank)
        return list(self._readers[rank].end())

    def _read(self, rank: int, items: Sequence[Item]) -> tuple[list[Piece | Block], Clear | None]:
        """Return the pieces that these items add, and the last `Clear` among them, after which those pieces came."""
        pieces: list[Piece | Block] = []
        clear = None
        for item in items:
            if rank in self._ended or is_late(item):
                self._late.show(rank, [item], self.widgets, kept=True)
                continue
            if isinstance(item, Text):
                pieces += self._readers[rank].read_text(item)
                continue
            with self._faults.beside("a piece of output could not be read", self.lost.add):
                for piece in self._readers[rank].read(item):
                    if isinstance(piece, Clear):
                        clear = piece
                        pieces.clear()
                    elif isinstance(piece, Display):
                        pieces += self._displays.update(rank, piece)
                    else:
                        if isinstance(piece, Rich):
                            self._displays.register(rank, piece)
                        view = as_view(piece, self.widgets)
                        pieces.append(self._values.marked(rank, item, view) if self._screen.has_results else view)
        return pieces, clear

    def _clear(self, waits: dict[int, bool], now: float) -> None:
        ranks = {lane.rank for lane in self._merger.lanes if lane.rank in waits and (lane.out or len(lane))}
        if not ranks:
            self._screen.clear_nothing(wait=any(waits.values()))
            return
        again = self._merger.cleared(ranks, now)
        if again is None:
            return
        self._merger = again
        kept = self._late.lines_of_others(ranks)
        empty = not kept and not any(len(lane) for lane in again.lanes)
        self._lines.clear()
        self._screen.clear(wait=not empty or any(waits[rank] for rank in ranks))
        self._displays.clear()
        self._joinable.clear()
        self._blocks.clear()
        self._late.begin_again(kept)

    # ── showing ─────────────────────────────────────────────────────────────────────────────────────

    def _impatience(self, now: float) -> Impatience:
        """Return a test for lanes that wait no longer for the others."""
        if self._order == "by_rank":
            return lambda _: False
        early = now - self._started < _QUICK
        updates = self._screen.area.updates

        def impatient(lane: RankLane | LaneView) -> bool:
            since = lane.since
            if since is None or early:
                return len(lane) > _FAR_AHEAD
            waited = now - since
            return (
                (waited >= _PATIENCE and len(lane) > WINDOW)
                or (waited >= _WAIT and not updates)
                or ((fixed := lane.fixed_since) is not None and now - fixed >= _WAIT)
                or lane.reach > self._most
                or len(lane) > _FAR_AHEAD
            )

        return impatient

    def _settle(self, entries: Sequence[Folded]) -> None:
        """Settle entries on the screen, and show which ranks joined the shown ones."""
        write, prefix, has_results = self._lines.write, self._prefix, self._screen.has_results
        for entry in entries:
            self._stale = True
            if not isinstance(entry, FoldedItem):
                for stream, text in texts_of(entry, prefix):
                    self._lines.write_many(stream, text)
                continue
            piece = entry.piece
            if isinstance(piece, Line):
                text = prefixed(prefix(entry.ranks), piece.text)
                if has_results and self._values.are_all(entry):
                    self._lines.let_out()
                    self._screen.result(text_bundle(text.removesuffix("\n")), {})
                else:
                    write(piece.stream, text)
            else:
                self._lines.let_out()
                self._show_rich(entry, piece)
        for entry in self._merger.joined:
            self._show_joined(entry)
        self._merger.joined.clear()

    def _prefix(self, ranks: tuple[int, ...]) -> str:
        prefix = self._prefixes.get(ranks)
        if prefix is None:
            prefix = self._prefixes[ranks] = label(ranks)
        return prefix

    def _show_rich(self, entry: FoldedItem, piece: Rich) -> None:
        if isinstance(piece, View):
            self._blocks.show(entry, self.widgets)
            return
        if piece.display_id:
            self._displays.show(dict(entry.parts))
            return
        prefix = self._prefix(entry.ranks)
        if self._values.are_all(entry):
            self._screen.write("stdout", prefix + "\n")
            self._screen.result(piece.first.data, piece.first.metadata)
            return
        picture = ScreenPicture(prefix, piece.first)
        self._screen.picture(picture, joinable=entry.forced)
        if entry.forced:
            self._joinable.append((entry, picture))

    def _show_joined(self, entry: FoldedItem) -> None:
        self._displays.join(entry)
        self._blocks.join(entry)
        for known, picture in self._joinable:
            if known is entry:
                picture.relabel(self._screen.area, self._prefix(entry.ranks))

    def _show_live(self, now: float) -> None:
        since = [lane.since for lane in self._merger.lanes] + list(self._unfinished_since.values())
        oldest = min((moment for moment in since if moment is not None), default=now)
        early = now - self._started < _QUICK
        if self._screen.has_live or self._noticed or (not early and now - oldest >= _WAIT):
            if self._stale and self._screen.area.updates:
                if not self._screen.due:
                    self._screen.flush()
                    return
                self._stale = False
                self._tail = self._live_parts()
            self._screen.live(self._tail)
        else:
            self._screen.flush()

    def _live_parts(self) -> list[str | ScreenPicture]:
        """Return what is not settled, as it would be if the ranks ended now; the notice last."""
        unfinished = {rank: self._readers[rank].unfinished for rank in self._unfinished_since}
        hidden, entries = self._merger.preview(unfinished, self._most)
        missing = [lane.rank for lane in self._merger.lanes if not lane.ended and not lane.rich]
        live = waiting(hidden, entries, self._prefix, missing)
        return [*self._lines.glimpse(), *live, *[self._noticed + "\n"] * bool(self._noticed)]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold ■ back while output is moved, so that none is lost."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, object]] = []
    signal.signal(signal.SIGINT, lambda *args: came.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])  # type: ignore[arg-type]
