"""Values between the notebook and the ranks, and the collectives against torch's own."""

from __future__ import annotations

import numpy as np

import nbcomm
from nbcomm.notebook.session import Session

from .rows import Row, interleaved

_MB = 1 << 20

_SETUP = """
import statistics, time
def timed(work, rounds):
    work(); samples = []
    for _ in range(rounds):
        dist.barrier(); began = time.perf_counter(); work(); samples.append(time.perf_counter() - began)
    return statistics.median(samples)
def raw_all_reduce(x):
    y = x.clone(); dist.all_reduce(y); return y
def raw_broadcast(x):
    y = x.clone(); dist.broadcast(y, 0); return y
"""


def measure(rounds: int, *, full: bool) -> list[Row]:
    """64 MB to and from 4 ranks; one tensor, and a collection of a thousand, through the Communicator."""
    with nbcomm.start(4) as session:
        session.run(_SETUP, quiet=True)
        return [*_transfers(session, rounds), *_overheads(session, rounds, full=full), _collection(session)]


def _transfers(session: Session, rounds: int) -> list[Row]:
    array = np.ones(64 * _MB, dtype=np.uint8)
    session.push(array=array)
    copy, push, pull = interleaved(
        max(3, rounds // 10),
        lambda: [array.copy() for _ in range(4)],
        lambda: session.push(array=array),
        lambda: session.pull("array"),
    )
    figures = f"push {push * 1e3:.0f} ms, memcpy {copy * 1e3:.0f} ms"
    return [
        Row("64 MB array to 4 ranks / memcpy of 4 × 64 MB", figures, push / copy, 2.0),
        Row("64 MB array from 4 ranks / memcpy of 4 × 64 MB", f"pull {pull * 1e3:.0f} ms", pull / copy),
    ]


def _overheads(session: Session, rounds: int, *, full: bool) -> list[Row]:
    rows = []
    for size, name in ((8, "8 B"), (_MB, "1 MB"), (64 * _MB, "64 MB")) if full else ((8, "8 B"), (_MB, "1 MB")):
        session.run(f"x = torch.zeros({size} // 4)", quiet=True)
        for call in ("all_reduce", "broadcast"):
            code = f"raw = timed(lambda: raw_{call}(x), {rounds}); ours = timed(lambda: {call}(x), {rounds})"
            session.run(code, quiet=True)
            raw, ours = session.pull("raw")[0], session.pull("ours")[0]
            figures = f"{ours * 1e6:.0f} µs, torch {raw * 1e6:.0f} µs"
            rows.append(Row(f"{call}, {name}, 4 ranks / torch.distributed", figures, ours / raw, 1.1))
    return rows


def _collection(session: Session) -> Row:
    session.run(
        "leaves = [torch.ones(4) for _ in range(1000)]\n"
        "one_by_one = timed(lambda: [raw_all_reduce(leaf) for leaf in leaves], 1)\n"
        "fused = timed(lambda: all_reduce(leaves), 5)",
        quiet=True,
    )
    one_by_one, fused = session.pull("one_by_one")[0], session.pull("fused")[0]
    figures = f"fused {fused * 1e3:.0f} ms, one by one {one_by_one * 1e3:.0f} ms"
    return Row("all_reduce of 1,000 small tensors / one call each", figures, fused / one_by_one, 1 / 50)
