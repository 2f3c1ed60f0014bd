"""Charts of values that the ranks hold: their memory, the samples that they get, the shards of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...charts.bars import Bars
from ...charts.chart import Chart
from ...charts.grid import Box, Grid
from ...charts.shards import Part, Shards, Whole
from ...charts.ticks import even_bytes
from ...errors import SpecError
from ...rank_spec import fold, named
from ...short_repr import amount
from ..execution.named_calls import World
from .world import on_ranks

_COLUMNS, _READ = 40, 10_000
"""The most samples that are drawn, and that are read; the rest of these are counted."""


_WHY = {
    "weights": "no module with parameters is among them",
    "gradients": "no backward() of a module among them has run since zero_grad()",
    "optimizer": "no optimizer among them has made a step, or it keeps nothing, as SGD without momentum",
    "activations": "no result is among them whose backward() has not run yet",
}
"""Why a kind of memory has no bar, where that is no matter of course."""


def draw(world: World, what: str, names: Sequence[str] = (), epochs: int = 3) -> Chart:
    """Draw values of the ranks; see `Commands.draw`."""
    if what not in KINDS:
        raise SpecError(
            f"{what} cannot be drawn. Choose {', '.join(KINDS)}; a cell's own record is drawn by "
            "%%distributed --chart step, pipeline or bytes."
        )
    if what != "memory" and len(names) != 1:
        raise SpecError(f"Name one value whose {what} are drawn: %distributed chart {what} NAME")
    if not 1 <= epochs <= 20:
        raise SpecError("Draw 1 to 20 epochs.")
    return KINDS[what](world, names, epochs)


def _memory(world: World, names: Sequence[str], _epochs: int) -> Chart:
    told = on_ranks(world, "memory.by_kind", list(names))
    kinds = [kind for kind in told[0] if any(each[kind] for each in told)]
    values = {f"rank {rank}": [each[kind] for kind in kinds] for rank, each in zip(world.ranks, told, strict=True)}
    of = ", ".join(names) or "all variables of the cells"
    notes = [f"No {kind}: {_WHY[kind]}." for kind in _WHY if kind not in kinds]
    return Bars(f"Memory of {of}", kinds, values, lambda size: amount(round(size)), even_bytes, notes=notes)


def _samples(world: World, names: Sequence[str], epochs: int) -> Chart:
    told = dict(zip(world.ranks, on_ranks(world, "samples.epochs", names[0], epochs, _READ), strict=True))
    seen = [sample for own in told.values() for epoch in own for sample in epoch]
    last = max(seen, default=-1)
    columns = min(last + 1, _COLUMNS)
    owners: list[dict[int, list[int]]] = [{sample: [] for sample in {*seen}} for _ in range(epochs)]
    for rank, own in told.items():
        for epoch, owned in enumerate(owners):
            for sample in own[epoch]:
                owned[sample].append(rank)
    boxes = {
        str(epoch): [
            Box(fold(sorted({*own})) + "²" * (len(own) > len({*own})), tuple(sorted({*own})))
            for sample in range(columns)
            for own in [owners[epoch].get(sample, [])]
        ]
        for epoch in range(epochs)
    }
    notes = [f"In each box are the ranks that get the sample{'; ² more than once' if _twice(boxes) else ''}."]
    for epoch, owned in enumerate(owners):
        again = sorted(sample for sample, own in owned.items() if len(own) > 1)
        missed = sorted({*range(last + 1)} - {sample for sample, own in owned.items() if own})
        said = [f"twice or more: {fold(again)}" * bool(again), f"nobody gets: {fold(missed)}" * bool(missed)]
        if any(said):
            notes.append(f"Epoch {epoch}: {'; '.join(filter(None, said))}.")
    if epochs > 1 and len({tuple(sorted((s, *own) for s, own in each.items())) for each in owners}) == 1:
        notes.append("Every epoch is the same: is set_epoch missing?")
    if last >= columns:
        notes.append(f"Of {last + 1} samples the first {columns} are drawn.")
    if any(len(epoch) >= _READ for own in told.values() for epoch in own):
        notes.append(f"Of each rank's samples only the first {_READ:,} were read.")
    return Grid(
        f"Who gets which sample of {names[0]}", ("sample", "epoch"), [*map(str, range(columns))], boxes, notes=notes
    )


def _twice(boxes: dict[str, list[Box]]) -> bool:
    return any("²" in box.text for own in boxes.values() for box in own)


def _shards(world: World, names: Sequence[str], _epochs: int) -> Chart:
    told = dict(zip(world.ranks, on_ranks(world, "shards.parts", names[0]), strict=True))
    first = next(iter(told.values()))
    tensors, missing = [], []
    for number, each in enumerate(first):
        where: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = {}
        for rank, own in told.items():
            if len(own) <= number or own[number]["shape"] != each["shape"]:
                missing.append(rank)
                continue
            part = own[number]
            where.setdefault((tuple(part["start"]), tuple(part["size"])), []).append(rank)
        parts = tuple(
            Part(start, size, tuple(ranks)) for (start, size), ranks in sorted(where.items()) if 0 not in size
        )
        shape = " × ".join(map(str, each["shape"])) or "a number"
        tensors.append(Whole(each["name"], shape, tuple(each["whole"]), parts, each["how"]))
    more = first[0]["more"] if first else 0
    notes = [
        f"… and {more} more tensors." if more else "",
        f"It has another shape on {named(sorted({*missing}))}, and is not drawn there." if missing else "",
    ]
    return Shards(f"Who holds which part of {names[0]}", tensors, notes=notes)


KINDS: dict[str, Callable[[World, Sequence[str], int], Chart]] = {
    "memory": _memory,
    "samples": _samples,
    "shards": _shards,
}
"""What can be drawn of the ranks' values."""
