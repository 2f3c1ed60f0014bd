"""The Communicator against raw torch.distributed, and nested data against Fabric and Ignite, in one run."""

from __future__ import annotations

import nbcomm
from nbcomm.notebook.session.session import Session

from .rows import Row

_MB = 1 << 20

_SETUP = """
import statistics, time
import warnings; warnings.simplefilter("ignore")

def timed(rounds, *works):
    # In turn, so that a busy moment hits all of them; each begins when every rank is there.
    samples = [[] for _ in works]
    for work in works: work()
    for _ in range(rounds):
        for kept, work in zip(samples, works):
            dist.barrier(); began = time.perf_counter(); work(); kept.append(time.perf_counter() - began)
    return [statistics.median(kept) for kept in samples]

def raw_all_reduce(x):
    y = x.clone(); dist.all_reduce(y); return y
def raw_broadcast(x):
    y = x.clone(); dist.broadcast(y, 0); return y
def raw_all_gather(x):
    y = torch.empty(world_size * x.numel()); dist.all_gather_single(y, x); return y
def raw_reduce_scatter(x):
    y = torch.empty(x.shape[0] // world_size); dist.reduce_scatter_single(y, x); return y
def raw_reduce(x):
    y = x.clone(); dist.reduce(y, 0); return y
"""


_FABRIC = "accelerator='cpu', strategy='ddp', devices=world_size"


def measure(rounds: int, *, full: bool) -> list[Row]:
    """One tensor of 8 B to 64 MB; a thousand small ones; 64 MB within an object."""
    with nbcomm.start(4) as session:
        session.run(_SETUP, quiet=True)
        return [*_overheads(session, rounds, full=full), *_nested(session), _object(session, rounds)]


def _medians(session: Session, rounds: int, *works: str) -> list[float]:
    """Time expressions in cells of every rank; rank 0's medians, in seconds."""
    session.run(f"medians = timed({rounds}, {', '.join(f'lambda: {work}' for work in works)})", quiet=True)
    medians: list[float] = session.pull("medians")[0]
    return medians


def _overheads(session: Session, rounds: int, *, full: bool) -> list[Row]:
    rows = []
    calls = (
        ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce") if full else ("all_reduce", "broadcast")
    )
    for size, name in ((8, "8 B"), (_MB, "1 MB"), (64 * _MB, "64 MB")):
        session.run(f"x = torch.zeros(max({size} // 4, world_size))", quiet=True)
        enough = rounds if size < 64 * _MB else max(3, rounds // 10)
        for call in calls:
            raw, ours = _medians(session, enough, f"raw_{call}(x)", f"{call}(x)")
            figures = f"{ours * 1e6:.0f} µs, torch {raw * 1e6:.0f} µs"
            rows.append(Row(f"{call}, {name}, 4 ranks / torch.distributed", figures, ours / raw, 1.1))
    return rows


def _nested(session: Session) -> list[Row]:
    session.run(
        "leaves = [torch.ones(4) for _ in range(1000)]\nnested = {'a': leaves[:500], 'b': {'c': tuple(leaves[500:])}}",
        quiet=True,
    )
    one_by_one, fused = _medians(session, 5, "[raw_all_reduce(leaf) for leaf in leaves]", "all_reduce(nested)")
    figures = f"fused {fused * 1e3:.1f} ms, one by one {one_by_one * 1e3:.0f} ms"
    rows = [Row("all_reduce of 1,000 small tensors / one call each", figures, fused / one_by_one, 1 / 50)]
    others = {
        "Fabric": (
            f"import lightning_fabric\nother = lightning_fabric.Fabric({_FABRIC}); other.launch()",
            "other.all_reduce(nested, reduce_op='sum')",
            "other.all_gather(nested)",
        ),
        "Ignite": (
            "import ignite.distributed as idist",
            "[idist.all_reduce(leaf.clone()) for leaf in leaves]",
            "[idist.all_gather(leaf) for leaf in leaves]",
        ),
    }
    for name, (setup, reduce, gather) in others.items():
        try:
            session.run(setup, quiet=True)
        except nbcomm.CellError:
            rows.append(Row(f"1,000 small tensors / {name}", f"{name} is not installed"))
            continue
        for call, theirs in (("all_reduce", reduce), ("all_gather", gather)):
            other, ours = _medians(session, 3, theirs, f"{call}(nested)")
            figures = f"{ours * 1e3:.1f} ms, {name} {other * 1e3:.0f} ms"
            rows.append(Row(f"{call} of 1,000 small tensors / {name}", figures, ours / other, 1 / 50))
    return rows


def _object(session: Session, rounds: int) -> Row:
    arrays = f"x = torch.zeros({16 * _MB})\nthing = {{'array': np.zeros({16 * _MB}, 'float32'), 'n': 1}}"
    session.run(f"import numpy as np\n{arrays}", quiet=True)
    plain, inside = _medians(session, max(3, rounds // 10), "broadcast(x)", "broadcast(thing)")
    figures = f"{inside * 1e3:.0f} ms, tensor {plain * 1e3:.0f} ms"
    return Row("broadcast of 64 MB within an object / of a tensor", figures, inside / plain, 2.0)
