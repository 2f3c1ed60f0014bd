"""The board on which a collective is simulated: what every rank has in its slots, and the messages of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ..pictures import plan as plans
from ..pictures.plan import Cell
from ..rank_spec import fold
from ..short_repr import sketch


@dataclass(frozen=True)
class Transfer:
    """A message from one rank to another in one step.

    Attributes:
        src: the sender.
        dst: the receiver.
        chunks: the slots that it fills, of those in `Simulation.labels`.
        adds: whether it is combined with the receiver's value, or replaces it.
    """

    src: int
    dst: int
    chunks: tuple[int, ...]
    adds: bool


State = dict[int, tuple[Cell | None, ...]]
"""What each rank has in each slot; None for nothing."""


@dataclass(frozen=True)
class Stage:
    """One step.

    Attributes:
        name: the step in words: "reduce-scatter, step 2 of 3: every rank sends a chunk to the next rank, …".
        messages: the messages that travel in it at the same time; none if each rank works on its own data.
        state: what every rank has after it.
    """

    name: str
    messages: tuple[Transfer, ...]
    state: State


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm; data is in units of n, which is what one rank brings (of scatter: what src brings).

    Attributes:
        steps: the number of steps in which messages travel.
        messages: the number of messages.
        busiest: the data that the rank sends that sends most.
        received: the data that the rank receives that receives most.
        total: the data that all ranks send.
    """

    steps: int
    messages: int
    busiest: Fraction
    received: Fraction
    total: Fraction


@dataclass(frozen=True)
class Job:
    """A call, with ranks as places 0…W-1.

    Attributes:
        values: what each place brings.
        hub: the place of src or dst; 0 if there is neither.
        op: the op of a reduction; "mean" is summed, and divided at the end.
        exclusive: whether a scan is exclusive.
        ranks: the rank of each place.
    """

    name: str
    values: Sequence[Any]
    hub: int
    op: str
    exclusive: bool
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """W."""
        return len(self.values)

    def at(self, place: int) -> int:
        """Return the place that is ``place`` positions after the hub."""
        return (place + self.hub) % self.size


Row = list[Cell | None]
Sends = Iterable[tuple[int, int, Iterable[int]]]
"""From place, to place, slots."""


@dataclass
class Board:
    """The data of every place, and the steps so far."""

    op: str
    rows: list[Row]
    labels: list[str]
    sizes: list[Fraction]
    steps: list[tuple[str, str, list[tuple[int, int, tuple[int, ...], bool]], list[Row]]] = field(default_factory=list)

    def step(self, phase: str, what: str, sends: Sends, *, adds: bool = False, moves: bool = False) -> None:
        """Let messages travel at the same time.

        Args:
            phase: the phase to which the step belongs; steps are counted within it.
            what: the step in words.
            sends: the messages.
            adds: combine them with the receivers' values.
            moves: remove what was sent from the sender's slots, because the sender no longer needs it.
        """
        letters = [(src, dst, tuple(chunks), adds) for src, dst, chunks in sends]
        old = [list(row) for row in self.rows]
        if moves:
            for src, _, chunks, _ in letters:
                for chunk in chunks:
                    self.rows[src][chunk] = None
        for src, dst, chunks, _ in letters:
            for chunk in chunks:
                here, new = self.rows[dst][chunk], old[src][chunk]
                self.rows[dst][chunk] = combined(self.op, here, new) if adds and here and new else new
        if letters:
            self.keep(phase, what, letters)

    def by_itself(self, what: str, change: Callable[[int, Row], Row]) -> None:
        """Let each rank change its own data, without messages."""
        self.rows = [change(place, row) for place, row in enumerate(self.rows)]
        self.keep("", what, [])

    def keep(self, phase: str, what: str, letters: list[tuple[int, int, tuple[int, ...], bool]]) -> None:
        """Record a step, with what every rank has after it."""
        self.steps.append((phase, what, letters, [list(row) for row in self.rows]))

    def stages(self, ranks: tuple[int, ...]) -> Iterator[Stage]:
        """Yield the steps, counted and named."""
        number: dict[str, int] = {}
        totals = {
            phase: sum(other == phase and bool(sent) for other, _, sent, _ in self.steps) for phase, *_ in self.steps
        }
        for phase, what, letters, rows in self.steps:
            number[phase] = number.get(phase, 0) + bool(letters)
            count = f"step {number[phase]} of {totals[phase]}" if letters else "no message"
            name = f"{f'{phase}, ' if phase else ''}{count}: {what}"
            messages = tuple(Transfer(ranks[src], ranks[dst], chunks, adds) for src, dst, chunks, adds in letters)
            yield Stage(name, messages, state_of(ranks, rows))

    def costs(self) -> Iterator[Cost]:
        """Yield the cost up to the end of each step."""
        sent, received = [Fraction()] * len(self.rows), [Fraction()] * len(self.rows)
        steps = messages = 0
        for _, _, letters, _ in self.steps:
            steps += bool(letters)
            messages += len(letters)
            for src, dst, chunks, _ in letters:
                size = sum((self.sizes[chunk] for chunk in chunks), Fraction())
                sent[src] += size
                received[dst] += size
            yield Cost(steps, messages, max(sent), max(received), sum(sent, Fraction()))


# ── the ranks' data at the beginning and at the end ─────────────────────────────────────────────────


def set_up(job: Job, *, cut: bool = False, beside: bool = False) -> Board:
    """Return a board with what every rank brings.

    ::

        call                                 slots of each rank at first, on 3 ranks; here those of rank 1
        barrier                              arrived: 1
        scatter, all_to_all, reduce_scatter  what is for rank 0 │ for rank 1 │ for rank 2    (scatter: of src only)
        gather, all_gather                   nothing            │ its data   │ nothing
        any other                            its data                                        (broadcast: of src only)
          cut                                chunk 0            │ chunk 1    │ chunk 2
          exclusive, beside                  nothing            │ its data

    Args:
        job: the call.
        cut: whether data of one piece is cut into as many chunks as there are ranks.
        beside: whether an exclusive result has a slot of its own, beside the running result.
    """
    if job.name == "barrier":
        return Board("", [[Cell(str(rank), (rank,))] for rank in job.ranks], ["arrived"], [Fraction()])
    op = "sum" if job.op == "mean" else job.op
    if job.name in ("reduce_scatter", "all_to_all", "scatter"):
        return _by_receiver(job, op)
    if job.name in ("gather", "all_gather"):
        return _by_sender(job, op)
    if cut:
        chunks = _only_of_hub(job, _cells(job, [_cut(value, job.size) for value in job.values]))
        return Board(op, chunks, [f"chunk {slot}" for slot in range(job.size)], _sizes(job.values[job.hub], job.size))
    rows = _only_of_hub(job, _cells(job, [[value] for value in job.values]))
    if job.exclusive and beside:
        return Board(op, [[None, *row] for row in rows], ["out", "running result"], [Fraction(1)] * 2)
    return Board(op, rows, ["data"], [Fraction(1)])


def _by_receiver(job: Job, op: str) -> Board:
    items = [list(job.values)] * job.size if job.name == "scatter" else [list(row) for row in job.values]
    word = "share" if job.name == "reduce_scatter" else "item"
    labels = [f"{word} {place}" for place in range(job.size)]
    return Board(op, _only_of_hub(job, _cells(job, items)), labels, [Fraction(1, job.size)] * job.size)


def _by_sender(job: Job, op: str) -> Board:
    rows = [
        [cell if slot == place else None for slot in range(job.size)]
        for place, (cell,) in enumerate(_cells(job, [[value] for value in job.values]))
    ]
    return Board(op, rows, [f"of rank {rank}" for rank in job.ranks], [Fraction(1)] * job.size)


def _cells(job: Job, values: Sequence[Sequence[Any]]) -> list[Row]:
    """Return each place's values as cells of its own."""
    return [[Cell(sketch(value), (rank,), value) for value in row] for row, rank in zip(values, job.ranks, strict=True)]


def _only_of_hub(job: Job, rows: list[Row]) -> list[Row]:
    """Empty the slots of all who bring nothing: in a scatter or broadcast, all but src."""
    if job.name not in ("scatter", "broadcast"):
        return rows
    return [row if place == job.hub else [None] * len(row) for place, row in enumerate(rows)]


def _cut(value: Any, parts: int) -> list[Any]:
    """Cut a list into parts of nearly equal lengths; repeat a value that is not a list."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list | tuple):
        return [plain] * parts
    step, more = divmod(len(plain), parts)
    ends = [step * part + min(part, more) for part in range(parts + 1)]
    return [list(plain[a:b]) for a, b in pairwise(ends)]


def _sizes(value: Any, parts: int) -> list[Fraction]:
    cut = _cut(value, parts)
    if not isinstance(cut[0], list):
        return [Fraction(1, parts)] * parts
    total = sum(map(len, cut))
    return [Fraction(len(part), total) if total else Fraction() for part in cut]


def result_of(job: Job, place: int, row: Row, whole: plans.Plan) -> tuple[Cell, ...]:
    """Return the cells of a rank's result, with chunks joined to one piece."""
    rank = job.ranks[place]
    if job.name in ("barrier", "all_gather", "all_to_all"):
        return tuple(cell for cell in row if cell)
    if job.name in ("gather", "reduce") and place != job.hub:
        return ()
    if job.name == "gather":
        return tuple(cell for cell in row if cell)
    if job.name in ("scatter", "reduce_scatter"):
        row = [row[place]]
    if job.name == "scan":
        row = row[:1]
    cells = [cell for cell in row if cell]
    if not cells:
        return ()
    value = cells[0].value
    if len(cells) > 1 and isinstance(value, list):
        value = [item for cell in cells for item in cell.value]
    if job.name == "broadcast":  # nothing was computed, so the result is src's own value, of any type
        value = whole.after[rank][0].value
    return (Cell(sketch(value), cells[0].sources, value),)


def state_of(ranks: Sequence[int], rows: Sequence[Row]) -> State:
    """Return a copy of the present state."""
    return {rank: tuple(row) for rank, row in zip(ranks, rows, strict=True)}


def combined(op: str, one: Cell, other: Cell) -> Cell:
    """Reduce two cells to one; without an op, join only their sources."""
    sources = tuple(sorted({*one.sources, *other.sources}))
    if not op:
        return Cell(fold(sources), sources)
    value = plans.combine(op, [one.value, other.value])
    return Cell(sketch(value), sources, value)


def divided(cell: Cell | None) -> Cell | None:
    """Divide a sum by the number of its sources; leave a cell without sources as it is."""
    if cell is None or not cell.sources:
        return cell
    value = _over(cell.value, len(cell.sources))
    return Cell(sketch(value), cell.sources, value)


def _over(value: Any, count: int) -> Any:
    plain = value.tolist() if hasattr(value, "tolist") else value
    return [_over(item, count) for item in plain] if isinstance(plain, list | tuple) else plain / count
