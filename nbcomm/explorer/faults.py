"""A collective, broken on purpose: what nbcomm says when one rank does something else than the others.

The real verdict judges a hang, and the sentences about ranks that differ are the real ones.
`tests/explorer/test_faults.py` breaks a real world in each of these ways, and compares. Only the words on how a real
world packs data are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis import mismatch
from ..analysis.verdict import judge
from ..analysis.wait_graph import RankReport
from ..pictures.plan import REDUCING
from ..protocol import CollectiveState, PendingCall, rank_lists
from ..rank_spec import named
from .spelling import spell

BREAKS = {
    "absent": "never calls it",
    "other": "calls another collective",
    "op": "passes another op",
    "shape": "has data of another shape",
}
"""What the odd rank may do, as the end of a sentence about it."""

_ONE_GIVES, _ONE_GETS = ("broadcast", "scatter"), ("gather", "reduce")
_SHAPE, _OTHER_SHAPE = (2,), (3,)
_LINE = "line 2"
"""Where the call is in a cell: below the magic's line."""


@dataclass(frozen=True)
class Broken:
    """The result of breaking a collective.

    Attributes:
        error: the exception that every rank in ``waits`` or ``refused`` gets; "" if nothing breaks.
        text: its message, or why nothing breaks.
        remedy: what to do.
        waits: the ranks that wait forever.
        missing: the ranks for which they wait.
        refused: the ranks that nbcomm refuses before any data moves.
    """

    error: str
    text: str
    remedy: str = ""
    waits: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()


@dataclass(frozen=True)
class BrokenCall:
    """The call that the other ranks make."""

    name: str
    size: int
    op: str = "sum"
    src: int = 0
    dst: int = 0
    mode: str = "stack"
    exclusive: bool = False

    @property
    def line(self) -> str:
        """The call as nbcomm spells it."""
        mode = self.mode if self.name == "all_gather" else None
        how = {"op": self.op, "src": self.src, "dst": self.dst}
        return spell(self.name, mode=mode, exclusive=self.exclusive, **how)["nbcomm"]  # type: ignore[arg-type]


def breaks_of(name: str) -> list[str]:
    """Return the ways in which a collective can be broken, as keys of `BREAKS`."""
    return [how for how in BREAKS if (how != "op" or name in REDUCING) and (how != "shape" or name != "barrier")]


def broken(call: BrokenCall, how: str, rank: int) -> Broken:
    """Return the result if one rank does something else.

    >>> print(broken(BrokenCall("all_reduce", 4), "absent", 2).text)
    all_reduce #1 of the world can never complete:
      ranks 0-1,3 wait in it, in line 2: if rank != 2: all_reduce(x)
      rank 2 has finished the cell
    """
    return {"absent": _absent, "other": _other, "op": _op, "shape": _shape}[how](call, rank)


def _absent(call: BrokenCall, rank: int) -> Broken:
    others = _others(call, rank)
    # The rank that gives to each other rank notices the missing one; the ranks that get from it have what they need.
    waits = [call.src] if call.name in _ONE_GIVES and rank != call.src else others
    everyone = rank_lists.written(range(call.size))
    pending = PendingCall(
        "collective", call.name, "0", everyone, 1, "", f"{_LINE}: if rank != {rank}: {call.line}", 0.0
    )
    issued = {other: CollectiveState({"0": int(other != rank)}) for other in range(call.size)}
    reports = {other: RankReport(other, "finished", doing=state) for other, state in issued.items()}
    reports |= {one: RankReport(one, "running", doing=CollectiveState({"0": 1}, waits=[pending])) for one in waits}
    verdict = judge(reports)
    grouped = call.line[:-1] + ("" if call.line.endswith("()") else ", ") + "group=g)"
    apart = (
        f" Or, if only {named(others)} should take part, make a group of them on all ranks, g = new_group({others}), "
        f"and call {grouped} on them."
    )
    root = call.src if call.name in _ONE_GIVES else call.dst if call.name in _ONE_GETS else None
    # A group without the rank that gives, or gets, could not make this call.
    remedy = f"Let every rank call it: take it out of the if.{'' if rank == root else apart}"
    return Broken("HangError", verdict.why, remedy, tuple(verdict.stuck), tuple(verdict.waits[0].missing))


def _other(call: BrokenCall, rank: int) -> Broken:
    instead = "all_reduce" if call.name == "all_gather" else "all_gather"
    ranks = range(call.size)
    calls = [f"{instead if other == rank else call.name}, {_LINE}" for other in ranks]
    if call.name in ("barrier", *_ONE_GIVES):
        text = mismatch.other_call(call.name, 1, "the world", ranks, calls)
    else:
        text = mismatch.other_method(ranks, calls)
    remedy = f"Let every rank call the same collectives in the same order: rank {rank} must call {call.name}, too."
    return _refused("MismatchError", text, remedy, call)


def _op(call: BrokenCall, rank: int) -> Broken:
    instead = "min" if call.op == "max" else "max"
    rest = f", dst={call.dst}" if call.name == "reduce" else ", exclusive" if call.exclusive else ""
    ranks = range(call.size)
    calls = [f"{call.name} with {instead if other == rank else call.op}{rest}, {_LINE}" for other in ranks]
    text = mismatch.other_op(ranks, calls)
    return _refused(
        "MismatchError", text, f"Pass the same op on every rank: rank {rank} must pass {call.op}, too.", call
    )


def _shape(call: BrokenCall, rank: int) -> Broken:
    odd = f"Rank {rank} has a tensor of shape {_OTHER_SHAPE}, the others of shape {_SHAPE}"
    fine = {
        "broadcast": f"only the data of rank {call.src} is used, and its shape is sent with it.",
        "scatter": "the shape of each item is sent with it.",
        "gather": f"rank {call.dst} gets a list, and its tensors may have any shape.",
        "all_to_all": "the shape of each item is sent with it.",
    }
    if call.name == "all_gather" and call.mode != "stack":
        fine["all_gather"] = (
            "the tensors of a list may have any shape."
            if call.mode == "list"
            else "cat concatenates tensors of different lengths."
        )
    if call.name in fine:
        return Broken("", f"Nothing breaks. {odd}; {fine[call.name]}")
    dtype = "int64" if call.op in ("band", "bor", "bxor") and call.name in REDUCING else "float32"  # has no bit ops
    ranks = range(call.size)
    shapes = [_OTHER_SHAPE if other == rank else _SHAPE for other in ranks]
    remedy = f"Give the data the same shape on every rank: look at x.shape on rank {rank}."
    if call.name in ("all_reduce", "reduce"):
        rest = f", dst {call.dst}" if call.name == "reduce" else ""
        op = "sum" if call.op == "mean" else call.op  # it is divided afterwards
        calls = [f"{call.name}({dtype} {shape}, {op}{rest}), {_LINE}" for shape in shapes]
        text = mismatch.other_call(call.name, 1, "the world", ranks, calls)
        return _refused("MismatchError", text, remedy, call)
    data = [f"a {dtype} tensor of shape {shape}, {_LINE}" for shape in shapes]
    if call.name == "all_gather":
        text = mismatch.not_joinable("data", ranks, data, mismatch.STACK)
        return _refused("CollectiveError", text, 'Pass mode="list", or mode="cat" if the lengths may differ.', call)
    text = mismatch.other_data("data[0]" if call.name == "reduce_scatter" else "data", ranks, data)
    return _refused("CollectiveError", text, remedy, call)


def _refused(error: str, text: str, remedy: str, call: BrokenCall) -> Broken:
    return Broken(error, text, remedy, refused=tuple(range(call.size)))


def _others(call: BrokenCall, rank: int) -> Sequence[int]:
    return [other for other in range(call.size) if other != rank]
