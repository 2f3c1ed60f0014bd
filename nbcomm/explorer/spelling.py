"""One call as nbcomm, torch, Lightning Fabric and Ignite spell it; `tests/explorer/test_spelling.py` runs each.

The spellings are those of torch 2.13, Fabric 2.6 and Ignite 0.5.5.
"""

from __future__ import annotations

from ..errors import CollectiveError
from ..number_ops import name_of
from ..pictures.plan import NAMES

NONE = "–"
"""The mark of a library without such a call; the reason follows in parentheses."""

LIBRARIES = {"nbcomm": "nbcomm", "torch": "torch", "fabric": "Lightning Fabric", "ignite": "Ignite"}
"""The keys of `spell`, and the name of each library."""

_RANK, _SIZE = "dist.get_rank()", "dist.get_world_size()"
_TORCH_OPS = {"sum": "", "mean": "", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
_IGNITE_OPS = {"sum": "", "mean": "", "product": "PRODUCT", "min": "MIN", "max": "MAX", "band": "AND", "bor": "OR"}
_ALL_REDUCE_DOES = f"{NONE} (all_reduce gives the result to every rank)"
_ALL_GATHER_DOES = f"{NONE} (all_gather gives them to every rank)"


def spell(  # noqa: PLR0913 - each is an option of the collective
    name: str,
    *,
    op: str = "sum",
    src: int = 0,
    dst: int = 0,
    mode: str | None = None,
    exclusive: bool = False,
    data: str = "x",
) -> dict[str, str]:
    """Spell a call in each library.

    Args:
        name: one of `NAMES`.
        op: the op of a reduction.
        src: the rank that gives.
        dst: the rank that gets.
        mode: stack, cat or list; by default nbcomm's: list for gather, stack for all_gather.
        exclusive: whether a scan is exclusive.
        data: the name of the data: a tensor; for scatter, reduce_scatter and all_to_all a list of tensors.

    Returns:
        A line to paste for each of `LIBRARIES`, or "–" and why there is none. If the call returns nothing, the result
        is in ``out``, or (reduce, all_reduce and broadcast of torch) in the data itself.

    Raises:
        CollectiveError: the collective does not exist.
        OpError: the op does not exist.

    >>> spell("all_reduce", op="max")["torch"]
    'dist.all_reduce(x, op=dist.ReduceOp.MAX)'
    """
    if name not in NAMES:
        raise CollectiveError(f"There is no collective {name!r}; choose one of {', '.join(NAMES)}.")
    op, mode = name_of(op), mode or ("list" if name == "gather" else "stack")
    fabric, ignite = _others(name, op, src, mode, data)
    return {
        "nbcomm": _nbcomm(name, op, src, dst, mode, exclusive=exclusive, data=data),
        "torch": _torch(name, op, src, dst, mode, data=data),
        "fabric": fabric,
        "ignite": ignite,
    }


def _nbcomm(name: str, op: str, src: int, dst: int, mode: str, *, exclusive: bool, data: str) -> str:  # noqa: PLR0913
    arguments = [] if name == "barrier" else [data]
    if name in ("reduce", "all_reduce", "reduce_scatter", "scan") and op != "sum":
        arguments.append(f'"{op}"')
    if name in ("broadcast", "scatter"):
        arguments.append(f"src={src}")
    if name in ("gather", "reduce"):
        arguments.append(f"dst={dst}")
    if (name, mode) not in (("all_gather", "stack"), ("gather", "list")) and name in ("gather", "all_gather"):
        arguments.append(f'mode="{mode}"')
    if name == "scan" and exclusive:
        arguments.append("exclusive=True")
    if name == "send":
        return f"send({data}, dst={dst}) if rank == {src} else recv(src={src}) if rank == {dst} else None"
    if name == "sendrecv":
        return f"sendrecv({data}, dst=(rank + 1) % world_size, src=(rank - 1) % world_size)"
    return f"{name}({', '.join(arguments)})"


def _torch(name: str, op: str, src: int, dst: int, mode: str, *, data: str) -> str:  # noqa: PLR0913
    word = _TORCH_OPS.get(op, op.upper())
    how = f", op=dist.ReduceOp.{word}" if word else ""
    # gloo has no ReduceOp.AVG; a divided sum works with every backend.
    over = f"; {{}} /= {_SIZE}" if op == "mean" else ""
    one = f"out = torch.empty_like({data}[0])"
    each = f"[torch.empty_like({data}) for _ in range({_SIZE})]"
    before = "before torch 2.13"
    return {
        "barrier": "dist.barrier()",
        "broadcast": f"dist.broadcast({data}, src={src})",
        "scatter": f"{one}; dist.scatter(out, {data} if {_RANK} == {src} else None, src={src})",
        "gather": f"out = {each} if {_RANK} == {dst} else None; dist.gather({data}, out, dst={dst})"
        + ("" if mode == "list" else f"; out = torch.{mode}(out) if out else None"),
        "all_gather": {
            "stack": f"out = torch.cat([{data}[None]] * {_SIZE}); dist.all_gather_single(out, {data}[None])"
            f"  # all_gather_into_tensor {before}",
            "cat": f"out = torch.cat([{data}] * {_SIZE}); dist.all_gather_single(out, {data})"
            f"  # all_gather_into_tensor {before}",
            "list": f"out = {each}; dist.all_gather(out, {data})",
        }.get(mode, ""),
        "reduce": f"dist.reduce({data}, dst={dst}{how}){over.format(data)}",
        "all_reduce": f"dist.all_reduce({data}{how}){over.format(data)}",
        "reduce_scatter": f"{one}; dist.reduce_scatter(out, {data}{how}){over.format('out')}",
        "all_to_all": f"out = [torch.empty_like(item) for item in {data}]; dist.all_to_all(out, {data})",
        "scan": f"{NONE} (it has no scan)",
        "send": f"dist.send({data}, dst={dst}) if {_RANK} == {src} else "
        f"dist.recv({data}, src={src}) if {_RANK} == {dst} else None",
        "sendrecv": f"out = torch.empty_like({data}); sent = dist.isend({data}, dst=({_RANK} + 1) % {_SIZE}); "
        f"dist.recv(out, src=({_RANK} - 1) % {_SIZE}); sent.wait()",
    }[name]


def _others(name: str, op: str, src: int, mode: str, data: str) -> tuple[str, str]:
    """Return the lines of Fabric and Ignite, which have four of these calls."""
    word = _IGNITE_OPS.get(op)
    reduced = f'idist.all_reduce({data}, "{word}")' if word else f"idist.all_reduce({data})"
    if op == "mean":
        reduced += " / idist.get_world_size()"
    have = {
        "barrier": ("fabric.barrier()", "idist.barrier()"),
        "broadcast": (f"fabric.broadcast({data}, src={src})", f"idist.broadcast({data}, src={src})"),
        "all_gather": {
            "stack": (f"fabric.all_gather({data})", f"idist.all_gather({data}[None])"),
            "cat": (f"fabric.all_gather({data}).flatten(0, 1)", f"idist.all_gather({data})"),
            "list": (f"list(fabric.all_gather({data}))", f"list(idist.all_gather({data}[None]))"),
        }.get(mode, ("", "")),
        "all_reduce": (
            f'fabric.all_reduce({data}, reduce_op="{op}")',
            f"{NONE} (it has no {op})" if word is None else reduced,
        ),
    }
    none = {
        "reduce": _ALL_REDUCE_DOES,
        "gather": _ALL_GATHER_DOES,
        "send": f"{NONE} (it has collectives only)",
        "sendrecv": f"{NONE} (it has collectives only)",
    }.get(name, f"{NONE} (it has no {name})")
    return have.get(name, (none, none))
