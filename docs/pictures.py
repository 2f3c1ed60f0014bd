"""Draws the pictures of docs/collectives and docs/charts again: ``python docs/pictures.py``.

``make screenshots`` does it, too.

tests/test_docs.py holds the files to what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbcomm
from nbcomm.analysis.schedule import Stretch
from nbcomm.charts.bars import Bars, Schedule
from nbcomm.charts.chart import Chart
from nbcomm.charts.from_record import SPENT
from nbcomm.charts.grid import Box, Grid
from nbcomm.charts.shards import Part, Shards, Whole
from nbcomm.charts.ticks import even_bytes
from nbcomm.durations import short
from nbcomm.notebook.measures.bench import Bench
from nbcomm.pictures.svg import draw
from nbcomm.rank_spec import fold
from nbcomm.short_repr import amount

DOCS = Path(__file__).parent
FOLDER, CHARTS = DOCS / "collectives" / "pictures", DOCS / "charts"

NUMBERS = [0, 10, 20, 30]
PICTURES: dict[str, dict[str, Any]] = {
    "all_gather": {"values": NUMBERS},
    "all_reduce": {"values": NUMBERS},
    "all_to_all": {"values": [[f"{rank}{item}" for item in range(4)] for rank in range(4)]},
    "barrier": {"values": [0.0, 0.2, 0.4, 0.6]},
    "broadcast": {"values": [{"lr": 0.1}, None, None, None]},
    "gather": {"values": NUMBERS},
    "reduce": {"values": NUMBERS},
    "reduce_scatter": {"values": [[0, 1, 2, 3]] * 4},
    "scan": {"values": NUMBERS},
    "scatter": {"values": ["a", "b", "c", "d"]},
    "sendrecv": {"values": [0, 1, 2, 3]},
}
"""Each collective with the values of its page."""


def make() -> dict[str, str]:
    """Each file's name and text."""
    return {f"{name}.svg": draw(nbcomm.draw(name, **how).plan, themed=True) + "\n" for name, how in PICTURES.items()}


def charts() -> dict[str, str]:
    """Each file of a chart, with made-up numbers, and its text."""
    times = [(1 << power, 9e-5 + 6e-10 * (1 << power) * (1 + 0.1 * (-1) ** (power // 2))) for power in range(10, 27, 2)]
    spent = {0: (62, 31, 12, 9), 1: (60, 33, 13, 8), 2: (81, 21, 12, 0), 3: (61, 30, 15, 8)}
    notes = [
        "Overlap: 69% of the transfer was hidden behind compute.",
        "rank 2 came last in 3 of 4 collectives; ranks 0-1,3 waited up to 0.1 s for it.",
    ]
    seconds = {f"rank {rank}": [each / 1000 for each in parts] for rank, parts in spent.items()}
    works = {
        rank: [
            *(Stretch("forward", rank + n, rank + n + 1, f"F{n}") for n in range(4)),
            *(Stretch("backward", 10 - rank + n, 11 - rank + n, f"B{n}") for n in range(4)),
        ]
        for rank in range(4)
    }
    given = {(0, 1): 40, (0, 2): 12, (0, 3): 9, (1, 0): 22, (1, 2): 31, (1, 3): 18, (2, 0): 8, (2, 1): 51, (2, 3): 12}
    given |= {(3, 0): 33, (3, 1): 20, (3, 2): 17}
    went = {
        str(src): [
            Box("" if src == dst else amount(given[src, dst] << 10), (src,), given.get((src, dst), 0) / 51)
            for dst in range(4)
        ]
        for src in range(4)
    }
    epochs = {
        str(epoch): [Box(fold(own), own) for sample in range(10) for own in [_owners(epoch, sample)]]
        for epoch in range(2)
    }
    quarter = tuple(Part((8 * rank, 0), (8, 8), (rank,)) for rank in range(4))
    mesh = tuple(Part((0, 16 * column), (8, 16), (column, column + 2)) for column in range(2))
    drawn: dict[str, Chart] = {
        "bench": Bench("all_reduce", 4, times, 0.0067, complete=True),
        "step": Bars("Where the time went", SPENT, seconds, short, notes=notes),
        "pipeline": Schedule(
            "The pipeline's schedule",
            ["forward", "backward"],
            works,
            notes=["Idle 43% of the time; (p − 1) / (m + p − 1) is 43% for 4 stages and 4 micro-batches."],
        ),
        "bytes": Grid("Bytes from rank to rank, 273 KiB in all", ("to rank", "from rank"), [*"0123"], went),
        "memory": Bars(
            "Memory of model, optimizer, loss",
            ["weights", "gradients", "optimizer", "activations"],
            {f"rank {rank}": [24 << 20, 24 << 20, 12 << 20, (5 + rank) << 20] for rank in range(4)},
            unit=lambda size: amount(round(size)),
            ticks=even_bytes,
        ),
        "samples": Grid(
            "Who gets which sample of loader",
            ("sample", "epoch"),
            [*map(str, range(10))],
            epochs,
            notes=[
                "In each box are the ranks that get the sample.",
                "Epoch 0: twice or more: 0-1.",
                "Epoch 1: twice or more: 1,4.",
            ],
        ),
        "shards": Shards(
            "Who holds which part of model",
            [
                Whole("model.up.weight", "32 × 8", (32, 8), quarter, "Shard(0)"),
                Whole("model.down.weight", "8 × 32", (8, 32), mesh, "Replicate over dp, Shard(1) over tp"),
            ],
        ),
    }
    return {f"{name}.svg": chart.themed + "\n" for name, chart in drawn.items()}


def _owners(epoch: int, sample: int) -> tuple[int, ...]:
    places = [place for place in range(12) if (place * (1 + 2 * epoch) + epoch) % 10 == sample]
    return tuple(sorted({place % 4 for place in places}))


if __name__ == "__main__":
    for folder, files in ((FOLDER, make()), (CHARTS, charts())):
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(folder / name)
