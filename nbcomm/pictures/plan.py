"""A collective as data: the values before and after, and the flows between them; a picture only draws it.

The collectives are defined here once more, in plain Python over plain values. `tests/pictures/test_plan.py` compares
them with torch: every collective, every reduction, 2 to 16 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import number_ops
from ..errors import CollectiveError
from ..rank_spec import fold, named
from ..short_repr import detailed, sized, sketch, told_apart

REDUCING = ("reduce", "all_reduce", "reduce_scatter", "scan")
"""The collectives that have an op."""


@dataclass(frozen=True)
class Cell:
    """One value of one rank.

    Attributes:
        text: the text that is shown.
        sources: the ranks whose data is in it, ascending; several if it was reduced.
        value: the value itself, if the plan was made from values.
    """

    text: str
    sources: tuple[int, ...]
    value: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Flow:
    """A movement of data: from a rank's cell before to a rank's cell after."""

    src: int
    item: int
    dst: int
    place: int


@dataclass(frozen=True)
class How:
    """The options of a call.

    Attributes:
        op: a reduction's name.
        src: the rank that gives, of broadcast, scatter and send.
        dst: the rank that gets, of gather, reduce and send.
        mode: the mode of gather and all_gather.
        exclusive: whether a scan is exclusive.
        pairs: the senders and receivers of sendrecv; by default each rank sends to the next one.
        groups: the ranks of each group that split_group has made.
    """

    op: str = "sum"
    src: int = 0
    dst: int = 0
    mode: str = "stack"
    exclusive: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Plan:
    """One collective, ready to be drawn.

    Attributes:
        name: "all_reduce".
        ranks: the ranks that take part, in group order; all dicts below have them as keys.
        law: what it does, in one line.
        before: what each rank brings; an empty tuple if it brings nothing that is used.
        after: what each rank gets; an empty tuple for nothing.
        flows: the movements of data.
        hub: the text in the middle, where all flows meet: an op, or "all". Empty: flows are straight lines.
        title: the call, in words: "all_reduce · sum".
        notes: further lines below the picture.
        arrivals: when each rank arrived, in seconds after the first rank, where that is known.
        missing: ranks that did not arrive.
        how: the options of the call.
    """

    name: str
    ranks: tuple[int, ...]
    law: str
    before: dict[int, tuple[Cell, ...]]
    after: dict[int, tuple[Cell, ...]]
    flows: tuple[Flow, ...]
    hub: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()
    arrivals: dict[int, float] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    how: How = field(default_factory=How)


@dataclass(frozen=True)
class _Shape:
    """How a collective looks.

    Attributes:
        law: what it does, in words, with placeholders for op, src, dst and ranks.
        grouped: the law in a group, where ranks are not their places; empty if it is the same.
        sources: gives, for a rank, the ranks and the options, which (rank, cell) went into each of the rank's cells.
    """

    law: str
    sources: Callable[[int, Sequence[int], How], list[list[tuple[int, int]]]]
    grouped: str = ""


def _everybody(ranks: Sequence[int], cell: int = 0) -> list[tuple[int, int]]:
    return [(rank, cell) for rank in ranks]


def _scanned(rank: int, ranks: Sequence[int], how: How) -> list[list[tuple[int, int]]]:
    return [_everybody(ranks[: ranks.index(rank) + (not how.exclusive)])]


def _sent(rank: int, ranks: Sequence[int], how: How) -> list[list[tuple[int, int]]]:
    pairs = how.pairs or tuple((r, ranks[(i + 1) % len(ranks)]) for i, r in enumerate(ranks))
    return [[(src, 0)] for src, dst in pairs if dst == rank]


_SHAPES = {
    "barrier": _Shape("no rank continues before all have arrived", lambda *_: []),
    "broadcast": _Shape("out[r] = data of rank {src}, on every rank r", lambda _r, _s, how: [[(how.src, 0)]]),
    "scatter": _Shape(
        "out[r] = item r of rank {src}'s items",
        lambda rank, ranks, how: [[(how.src, ranks.index(rank))]],
        "the i-th of ranks {order} gets item i of rank {src}'s items, counted from 0",
    ),
    "gather": _Shape(
        "out = [{data}], on rank {dst} only",
        lambda rank, ranks, how: [[(other, 0)] for other in ranks] if rank == how.dst else [],
    ),
    "all_gather": _Shape("out = [{data}], on every rank", lambda _r, ranks, _h: [[(o, 0)] for o in ranks]),
    "reduce": _Shape(
        "out = {op} over all ranks r of data[r], on rank {dst} only",
        lambda rank, ranks, how: [_everybody(ranks)] if rank == how.dst else [],
    ),
    "all_reduce": _Shape("out = {op} over all ranks r of data[r], on every rank", lambda _r, s, _h: [_everybody(s)]),
    "reduce_scatter": _Shape(
        "out[r] = {op} over all ranks s of data[s][r]: rank r gets share r",
        lambda rank, ranks, _h: [_everybody(ranks, ranks.index(rank))],
        "the i-th of ranks {order} gets {op} over all of them of their shares i, counted from 0",
    ),
    "all_to_all": _Shape(
        "out[r][s] = items[s][r]: what rank s has for rank r",
        lambda rank, ranks, _h: [[(other, ranks.index(rank))] for other in ranks],
        "the i-th of ranks {order} gets item i of each of them, counted from 0",
    ),
    "scan": _Shape(
        "out[r] = {op} over the ranks {upto} r of data",
        _scanned,
        "out[r] = {op} over those of ranks {order} {upto} r of data, in this order",
    ),
    "send": _Shape(
        "out = data of rank {src}, on rank {dst}", lambda rank, _s, how: [[(how.src, 0)]] if rank == how.dst else []
    ),
    "sendrecv": _Shape("out[r] = data of the rank that sends to r", _sent),
    "split_group": _Shape(
        "ranks that pass the same color form a group; out = the group's ranks, in its order",
        lambda rank, _s, how: [_everybody(group) for group in how.groups if rank in group],
    ),
}

DRAWN = tuple(_SHAPES)
"""What of a cell is drawn."""

NAMES = tuple(name for name in DRAWN if name != "split_group")
"""The collectives that have a picture of any values: what split_group returns is no plain data."""

_HUBS = ("all_reduce", "all_gather", "reduce")
"""The collectives whose lines meet in one point: their n² straight lines could not be followed."""


def plan(  # noqa: PLR0913 - each is an option of the collective
    name: str,
    values: Sequence[Any] | None = None,
    *,
    n: int = 4,
    op: str = "sum",
    src: int | None = None,
    dst: int | None = None,
    mode: str = "stack",
    exclusive: bool = False,
    ranks: Sequence[int] | None = None,
) -> Plan:
    """Plan a collective of given values.

    Args:
        name: one of `NAMES`.
        values: what each rank brings, in rank order: numbers, texts, (nested) lists of numbers, arrays or tensors. Of
            scatter the items that ``src`` has; of reduce_scatter and all_to_all, for each rank a list with an entry
            for every rank; of barrier the seconds after which each rank arrives. None uses example values for ``n``
            ranks.
        n: the number of ranks, if ``values`` does not give it.
        op: sum, mean, min, max, product, band, bor or bxor.
        src: the rank that gives; by default the first.
        dst: the rank that gets; by default the first, and of send the one after ``src``.
        mode: the mode of gather and all_gather; the picture is the same.
        exclusive: whether a scan leaves out a rank's own data.
        ranks: the group's global ranks; 0 to n-1 by default.

    Raises:
        CollectiveError: the collective does not exist, or the values do not fit it.
        OpError: the op does not exist, or is not defined for the values.

    >>> [cell.text for cell in plan("all_reduce", [1, 2, 3]).after[0]]
    ['6']
    """
    if name not in NAMES:
        raise CollectiveError(f"There is no picture of {name!r}; choose one of {', '.join(NAMES)}.")
    values = made_up(name, n) if values is None else list(values)
    members = tuple(range(len(values)) if ranks is None else ranks)
    if not members:
        raise CollectiveError(f"{name} needs one value for each of its ranks, and there are none.")
    src = members[0] if src is None else src
    if dst is None:
        dst = members[(members.index(src) + 1) % len(members)] if name == "send" and src in members else members[0]
    _check(name, members, values, src, dst)
    how = How(number_ops.name_of(op), src, dst, mode, exclusive)
    brought = {rank: _brought(name, values, place) for place, rank in enumerate(members)}
    if name in ("broadcast", "send", "scatter"):
        brought = {rank: _brought(name, values, members.index(src)) if rank == src else () for rank in members}
    if name == "scatter":
        brought[src] = tuple(values)
    before = {rank: tuple(_cell(value, (rank,)) for value in cells) for rank, cells in brought.items()}
    after = {}
    for rank in members:
        cells = []
        for origins in _SHAPES[name].sources(rank, members, how):
            given = [brought[other][item] for other, item in origins]
            value = combine(how.op, given, like=brought[rank]) if name in REDUCING else given[0]
            cells.append(_cell(value, tuple(sorted({other for other, _ in origins}))))
        after[rank] = tuple(cells)
    made = assemble(name, members, how, _short(before), _short(after))
    made = replace(made, notes=sizes(_texts(before), _texts(after)))
    return replace(made, arrivals=_arrivals(members, values)) if name == "barrier" else made


def _arrivals(members: Sequence[int], seconds: Sequence[Any]) -> dict[int, float]:
    try:
        return {rank: max(0.0, float(at)) for rank, at in zip(members, seconds, strict=True)}
    except (TypeError, ValueError):
        raise CollectiveError(
            "A barrier moves no data: its values are the seconds after which each rank arrives, "
            f"not {sketch(list(seconds))}."
        ) from None


def assemble(
    name: str,
    ranks: Sequence[int],
    how: How,
    before: dict[int, tuple[Cell, ...]],
    after: dict[int, tuple[Cell, ...]],
) -> Plan:
    """Make a plan of given cells; the collective determines the flows, which join only cells that exist."""
    shape = _SHAPES[name]
    flows = [
        Flow(src, at, rank, to)
        for rank in ranks
        for place, origins in enumerate(shape.sources(rank, ranks, how))
        for src, item in origins
        if (at := _at(item, before[src])) is not None and (to := _at(place, after[rank])) is not None
    ]
    hub = (how.op if name in REDUCING else "all") if name in _HUBS and len(ranks) > 1 else ""
    words = {"op": how.op, "src": how.src, "dst": how.dst, "upto": "before" if how.exclusive else "up to"}
    words["order"], words["data"] = _some(ranks, "{}", 4), _some(ranks, "data of rank {}", 2)
    law = shape.law if list(ranks) == [*range(len(ranks))] else shape.grouped or shape.law
    law, title = law.format(**words), title_of(name, how)
    return Plan(name, tuple(ranks), law, before, after, tuple(flows), hub, title, how=how)


def sizes(before: Mapping[int, Sequence[str]], after: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    """Return a line that says how large the values are, if they are large arrays.

    Args:
        before: what each rank brings, as texts of `detailed`.
        after: what each rank gets.
    """
    had, got = _sizes(before), _sizes(after)
    if not had or not got or had == got:
        return tuple(f"each value: {size}" for size in [had or got] if size)
    return (f"each value before: {had}; after: {got}",)


def _sizes(texts: Mapping[int, Sequence[str]]) -> str:
    """Return the size that all values have, or each with its ranks."""
    found: dict[str, list[int]] = {}
    for rank, row in texts.items():
        for size in dict.fromkeys(sized(text)[1] for text in row):
            found.setdefault(size, []).append(rank)
    found.pop("", None)
    if len(found) <= 1:
        return "".join(found)
    return _some([f"{size} ({named(ranks)})" for size, ranks in found.items()], "{}", 3)


def _texts(rows: Mapping[int, Sequence[Cell]]) -> dict[int, list[str]]:
    return {rank: [cell.text for cell in row] for rank, row in rows.items()}


def _some(ranks: Sequence[Any], each: str, most: int) -> str:
    return ", ".join([each.format(rank) for rank in ranks[:most]] + ["…"] * (len(ranks) > most))


def _at(place: int, cells: Sequence[Cell]) -> int | None:
    """Return the index of the cell for a place, or None; a single uncut cell stands for all places."""
    return place if place < len(cells) else 0 if len(cells) == 1 else None


def sources_of(name: str, rank: int, ranks: Sequence[int], how: How) -> list[tuple[int, ...]]:
    """Return, for each cell that a rank gets, the ranks whose data is in it."""
    return [tuple(sorted({other for other, _ in origins})) for origins in _SHAPES[name].sources(rank, list(ranks), how)]


def title_of(name: str, how: How) -> str:
    """Return the call in words."""
    parts = [name]
    if name in REDUCING:
        parts.append(how.op)
    if name in ("broadcast", "scatter", "send"):
        parts.append(f"src {how.src}")
    if name in ("gather", "reduce", "send"):
        parts.append(f"dst {how.dst}")
    if name == "scan" and how.exclusive:
        parts.append("exclusive")
    return " · ".join(parts)


def made_up(name: str, n: int) -> list[Any]:
    """Return example values that make a collective visible: each shows its source rank, and its receiver."""
    if name in ("reduce_scatter", "all_to_all"):
        return [[10 * rank + item for item in range(1, n + 1)] for rank in range(1, n + 1)]
    if name == "barrier":
        return [round(0.1 + 0.37 * rank % 0.9, 2) for rank in range(n)]
    return list(range(1, n + 1)) if name in REDUCING else [10 * place for place in range(1, n + 1)]


def combine(op: str, values: Sequence[Any], *, like: Any = None) -> Any:
    """Reduce values element by element; return the op's identity in the shape of ``like`` if there are no values.

    >>> combine("max", [[1, 5], [4, 2]]), combine("mean", [1, 2])
    ([4, 5], 1.5)
    """
    plain = [_plain(value) for value in values]
    if not plain:
        shape = _plain(like[0]) if like else 0
        return [number_ops.identity(op) for _ in shape] if isinstance(shape, list) else number_ops.identity(op)
    if isinstance(plain[0], list):
        if any(not isinstance(value, list) or len(value) != len(plain[0]) for value in plain):
            raise CollectiveError(f"{op} needs values of one shape on every rank, not {', '.join(map(sketch, plain))}.")
        return [combine(op, row) for row in zip(*plain, strict=True)]
    return number_ops.reduce(op, plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _brought(name: str, values: Sequence[Any], place: int) -> tuple[Any, ...]:
    if name == "barrier":
        return ()
    return tuple(values[place]) if name in ("reduce_scatter", "all_to_all") else (values[place],)


def _cell(value: Any, sources: tuple[int, ...]) -> Cell:
    return Cell(detailed(value), sources, value)


def _short(rows: dict[int, tuple[Cell, ...]]) -> dict[int, tuple[Cell, ...]]:
    """Shorten the cells' texts so that they fit and still show where they differ."""
    texts = iter(told_apart([cell.text for row in rows.values() for cell in row]))
    return {rank: tuple(replace(cell, text=next(texts)) for cell in row) for rank, row in rows.items()}


def _check(name: str, members: Sequence[int], values: Sequence[Any], src: int, dst: int) -> None:
    if len(members) != len(values):
        raise CollectiveError(f"{name} needs one value for each of its ranks ({fold(members)}), not {len(values)}.")
    for word, rank in (("src", src), ("dst", dst)):
        if rank not in members:
            raise CollectiveError(f"{word}={rank} is not one of the ranks {fold(members)}.")
    if name == "send" and src == dst:
        raise CollectiveError(f"Rank {src} cannot send to itself; dst must be another rank.")
    if name in ("reduce_scatter", "all_to_all"):
        for rank, given in zip(members, values, strict=True):
            if not hasattr(given, "__len__") or len(given) != len(values):
                raise CollectiveError(
                    f"{name} needs {len(values)} items on every rank, one for each; rank {rank} has {sketch(given)}."
                )
