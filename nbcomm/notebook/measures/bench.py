"""Time against size of a collective, or of messages between each two ranks, with the costs that fit."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...analysis.bandwidth import bandwidths, rate
from ...analysis.fit import Cost, fit
from ...charts.curve import Curve
from ...charts.grid import Box, Grid
from ...durations import short
from ...errors import SpecError
from ...pictures.plan import NAMES
from ...rank_spec import named
from ...short_repr import amount
from ..execution.named_calls import World
from .world import on_ranks

OPS = tuple(name for name in NAMES if name not in ("barrier", "scan", "send"))
"""What can be measured; "pairs" are messages between each two ranks."""

PAIRS = "pairs"

_FIRST, _FACTOR = 1 << 10, 4
_ENOUGH = 0.3
"""Seconds that are spent on a size, but for a large one: it is measured three times at least."""

_FEW, _MANY = 3, 50
_MESSAGES = (1 << 10, 1 << 20)
"""The two sizes of messages: the small one tells what a message costs, and the large one how fast data moves."""

_SLOW = 2
"""A pair is slow if it takes this many times as long as the quickest quarter: one slow rank slows half of the pairs."""

_NAMED = 4
"""The most slow pairs that are named."""


class Bench(Curve):
    """What was measured of a collective. A notebook shows it as a picture; ``print`` writes it as a table.

    Attributes:
        op: the collective.
        ranks: how many there were.
        times: sizes in bytes that each rank brings, each with the median of its times, in seconds.
        cost: the line that fits.
        copy: seconds of a copy of the largest size in a rank's memory.
        complete: whether all sizes were measured; an interrupt leaves what there is.
    """

    def __init__(self, op: str, ranks: int, times: Sequence[tuple[int, float]], copy: float, *, complete: bool) -> None:
        self.op, self.ranks, self.copy, self.complete = op, ranks, copy, complete
        self.times = list(times)
        self.cost: Cost = fit(self.times)
        labels = [rate(bus * 1e9) for _, bus in self.bandwidths()]
        super().__init__(f"{op} on {ranks} ranks", times, self.cost.seconds, labels, notes=self._said())

    def bandwidths(self) -> list[tuple[float, float]]:
        """Return the algorithm and the bus bandwidth of each size in GB/s, by the definitions of nccl-tests."""
        return [bandwidths(self.op, size, seconds, self.ranks) for size, seconds in self.times]

    def rows(self) -> list[str]:
        """Write a table: sizes, times and bandwidths."""
        lines = [f"{'size':>10} {'time':>10} {'algorithm':>12} {'bus':>12}"]
        for (size, seconds), (algorithm, bus) in zip(self.times, self.bandwidths(), strict=True):
            lines.append(f"{amount(size):>10} {short(seconds):>10} {rate(algorithm * 1e9):>12} {rate(bus * 1e9):>12}")
        return lines

    def _said(self) -> list[str]:
        """Say what it means."""
        cost, notes = self.cost, []
        speed = rate(1 / cost.beta) if cost.beta else "any speed"
        notes.append(
            f"A call takes α = {_with(cost.alpha, cost.alpha_error)}, and moves {speed} (1/β) of what each rank brings."
        )
        if self.times[0][0] < cost.knee < math.inf:
            notes.append(
                f"Up to {amount(int(cost.knee))} (α/β) most of the time is α: many small calls cost more than one."
            )
        size, seconds = self.times[-1]
        if self.copy > 0:
            times = f"{float(f'{seconds / self.copy:.2g}'):,g}"
            notes.append(
                f"A copy of {amount(size)} in memory takes {short(self.copy)}: this call takes {times} times as long."
            )
        if not self.complete:
            notes.append("It was interrupted: larger sizes are not measured.")
        return notes


def bench(world: World, op: str = "all_reduce", most: int = 16 << 20) -> Bench:
    """Measure a collective at sizes from 1 KiB to ``most``, each four times the one before.

    Raises:
        SpecError: there is no such collective, or too few sizes.
    """
    if op not in OPS:
        raise SpecError(f"{op} cannot be measured. Choose {', '.join(OPS)} or {PAIRS}.")
    count = len(world.ranks)
    if count < 2:
        raise SpecError("A collective of one rank moves nothing: start a world of two or more.")
    times: list[tuple[int, float]] = []
    copy, complete = 0.0, True
    try:
        for size in _sizes(most, count):
            times.append((size, _median(world, op, size, _estimate(times, size))))
        copy = on_ranks(world, "times.of_copy", times[-1][0], ranks=world.ranks[:1])[0]
    except KeyboardInterrupt:
        if len(times) < 2:
            raise
        complete = False
    return Bench(op, count, times, copy, complete=complete)


def pairs(world: World) -> list[Grid]:
    """Measure messages between each two ranks: the time of a small one, and the speed of a large one.

    Raises:
        SpecError: the world has one rank.
    """
    if len(world.ranks) < 2:
        raise SpecError("One rank has no pairs: start a world of two or more.")
    times, speeds = time_pairs(world, world.ranks)
    small, large = map(amount, _MESSAGES)
    return [
        _table(world.ranks, f"Time of a message of {small}", times, short),
        _table(world.ranks, f"Speed of a message of {large}", speeds, rate),
    ]


def time_pairs(world: World, ranks: Sequence[int]) -> list[dict[tuple[int, int], float]]:
    """Return for each two of these ranks the seconds of a small message, and the bytes a second of a large one."""
    found: list[dict[tuple[int, int], float]] = [{}, {}]
    for pair in itertools.combinations(ranks, 2):
        for into, size, repeats in zip(found, _MESSAGES, (20, 5), strict=True):
            took = max(on_ranks(world, "times.of_message", pair, size, repeats, ranks=[*pair]))
            into[pair] = took if into is found[0] else size / max(took, 1e-9)
    return found


def _table(
    ranks: Sequence[int], title: str, of: Mapping[tuple[int, int], float], written: Callable[[float], str]
) -> Grid:
    most = max(of.values()) or 1.0
    took = {pair: value if written is short else 1 / (value or 1.0) for pair, value in of.items()}
    quick = sorted(took.values())[(len(took) - 1) // 4] or 1.0
    behind = {pair: each / quick for pair, each in took.items()}
    slow = sorted((pair for pair in of if behind[pair] >= _SLOW), key=lambda pair: -behind[pair])

    def box(one: int, other: int) -> Box:
        pair = min(one, other), max(one, other)
        mark = "▲ " * (pair in slow)
        return Box(mark + written(of[pair]), (one,), of[pair] / most) if pair in of else Box("", (one,), 0.0)

    told = [f"{named([*pair])} ({behind[pair]:.1f} times)" for pair in slow[:_NAMED]] + ["…"] * (len(slow) > _NAMED)
    notes = [f"▲ takes {_SLOW} times as long as the quickest quarter of the pairs, or longer: {', '.join(told)}."]
    boxes = {str(one): [box(one, other) for other in ranks] for one in ranks}
    return Grid(title, ("with rank", "rank"), [*map(str, ranks)], boxes, notes=notes * bool(slow))


def _sizes(most: int, ranks: int) -> Iterator[int]:
    """Yield the sizes; each can be cut into a part of whole numbers for each rank.

    Raises:
        SpecError: there is one size only, and no line through one point.
    """
    if most < _FIRST * _FACTOR:
        raise SpecError(f"Measure up to {amount(_FIRST * _FACTOR)} at least: a line needs two sizes.")
    size, part = _FIRST, 4 * ranks
    while size <= most:
        yield -(-size // part) * part
        size *= _FACTOR


def _estimate(times: Sequence[tuple[int, float]], size: int) -> int:
    """Return how often a size is measured, from the time of the one before."""
    if not times:
        return _FEW
    before, seconds = times[-1]
    return max(_FEW, min(_MANY, int(_ENOUGH / (seconds * max(1.0, size / before / 2)))))


def _median(world: World, op: str, size: int, repeats: int) -> float:
    """Measure one size; a call has ended when it has on its last rank."""
    told: list[list[float]] = on_ranks(world, "times.of_op", op, size, repeats)
    return float(statistics.median(max(each) for each in zip(*told, strict=True)))


def _with(value: float, error: float) -> str:
    return short(value) + (f" ± {short(error)}" if value / 100 < error < math.inf else "")
