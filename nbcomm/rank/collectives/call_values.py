"""The values that a call takes and gives, in a few characters for each cell of its picture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...comm.transport.group_args import members_of, resolve
from ...number_ops import name_of
from ...short_repr import detailed, sketch
from .signatures import NAMES

_ITEMS = 64
"""The most entries of a list that is taken for one with an item for each rank."""

_LOOKED = 4096
"""Entries of a call's data or result that are read; for one value `detailed` has its own limit."""


ROOTS = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
"""The calls that have a root, and its argument's name."""


def _written(values: Sequence[Any]) -> list[str]:
    """Describe each value in enough detail that the notebook can show where the ranks' values differ."""
    return [detailed(value, min(1024, _LOOKED // max(1, len(values)))) for value in values]


class Drawn:
    """The values of one call.

    Attributes:
        how: its options: op, src, dst, mode, exclusive. For shares that are concatenated also this rank's length, and
            the whole result; of split_group the ranks of the group that it has made.
        before: what this rank gives; one text for each cell of the picture.
        after: what it gets; None until that is known.
        members: the ranks that take part.
    """

    def __init__(
        self,
        how: dict[str, Any],
        before: list[str],
        finish: Callable[[Any], list[str]],
        outputs: Any = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.how = how
        self.members: list[int] = []
        self.before = before
        self.after: list[str] | None = None
        self._finish: Callable[[Any], list[str]] | None = finish
        self._outputs = outputs
        self._written = _writes(outputs) if in_place else None
        self._lock = threading.RLock()  # to read a value may run a user's code, which may call a collective

    def finish(self, result: Any = None, *, late: bool = False) -> None:
        """Keep the result. A wait, gloo's thread and the end of the cell may all call this; the first call counts.

        Args:
            result: what the call has returned; None if it writes into tensors.
            late: the code behind the call may run already. If it has written into the call's tensors, as DDP does with
                its buckets, the result is lost.
        """
        with self._lock:  # who comes second finds the result there
            finish, outputs = self._finish, self._outputs
            try:
                if finish is not None:
                    after = finish(outputs if outputs is not None else result)
                    if not late or self._written is None or _writes(outputs) == self._written:
                        self.after = after
            finally:
                self._finish = self._outputs = None  # the picture holds no tensors

    def finish_late(self, *, ended: bool) -> None:
        """Settle the result after the cell: it is what torch has written by now."""
        if self._outputs is not None and ended:
            self.finish(late=True)
        self._finish = self._outputs = None


def _writes(tensors: Sequence[torch.Tensor]) -> int:
    """Count the writes into tensors, but for gloo's."""
    return sum(0 if tensor.is_inference() else tensor._version for tensor in tensors)  # noqa: SLF001 - as autograd


# ── a Communicator's methods ────────────────────────────────────────────────────────────────────────


def of_call(name: str, comm: Any, asked: dict[str, Any]) -> Drawn:
    """Look at a call of a Communicator's method before it is carried out.

    Args:
        name: the method's.
        comm: the Communicator.
        asked: its arguments by name.
    """
    if name == "split_group":
        return _division(comm, asked.get("color"))
    members = members_in(comm, asked.get("group"))
    how: dict[str, Any] = {key: asked[key] for key in ("src", "dst", "mode", "exclusive") if key in asked}
    if name in ("reduce", "all_reduce", "reduce_scatter", "scan"):
        how["op"] = _op(asked.get("op", "sum"))
    root = ROOTS.get(name)
    if root and 0 in members:  # the default is rank 0, which is not the first of every group
        how.setdefault(root, 0)
    size = len(members)
    data = asked.get("data", asked.get("items"))
    if how.get("mode") == "cat":  # the notebook sees this of all ranks, and so knows whether the shares are equal
        how["each"] = _length(data)
    giver = comm.rank == how.get("src", 0) or name not in ("broadcast", "scatter")
    if name == "scatter" or name in ("reduce_scatter", "all_to_all"):
        before = _items(data, size, shares=name == "reduce_scatter") if giver else []
    else:
        before = _written([data]) if giver and name not in ("recv", "barrier") else []

    def finish(result: Any) -> list[str]:
        if name in ("barrier", "send") or (name in ("gather", "reduce") and comm.rank != how.get("dst", 0)):
            return []
        if name in ("gather", "all_gather"):
            if "each" in how:
                how["whole"] = _written([result])
            return _gathered(data, result, size, how.get("mode", "list" if name == "gather" else "stack"))
        return _items(result, size) if name == "all_to_all" else _written([result])

    drawn = Drawn(how, before, finish)
    drawn.members = list(members)
    return drawn


def _division(comm: Any, color: Any) -> Drawn:
    how: dict[str, Any] = {}

    def finish(result: Any) -> list[str]:
        how["made"] = members_of(result)
        return _written([how["made"]]) if how["made"] else []

    drawn = Drawn(how, _written([color]), finish)
    drawn.members = list(range(comm.world_size))  # whichever group is divided
    return drawn


def members_in(comm: Any, group: Any) -> Sequence[int]:
    """Return the ranks that a call's ``group`` stands for; those of the world if it stands for none."""
    try:
        process_group = resolve(group)
        return range(comm.world_size) if process_group is None else members_of(process_group)
    except Exception:  # noqa: BLE001 - the method itself says what is wrong with it
        return range(comm.world_size)


def _op(op: Any) -> str:
    from ...comm.algorithms.reduce_ops import parse

    try:
        return parse(op).name
    except Exception:  # noqa: BLE001 - as above
        return str(op)


def _items(data: Any, size: int, *, shares: bool = False) -> list[str]:
    if isinstance(data, list | tuple) and len(data) == size <= _ITEMS:
        return _written(data)
    if hasattr(data, "shape") and len(data.shape) and data.shape[0] and data.shape[0] % size == 0 and size <= _ITEMS:
        rows = data.shape[0] // size
        parts = [data[place * rows : (place + 1) * rows] for place in range(size)]
        return _written([part if shares else part[0] for part in parts])
    return _written([data])


def _length(data: Any) -> int:
    return int(data.shape[0]) if getattr(data, "ndim", 0) else 1


def _gathered(data: Any, result: Any, size: int, mode: str) -> list[str]:
    if isinstance(result, list | tuple) and len(result) == size and not isinstance(data, list | tuple):
        return _written(result)
    shape = getattr(result, "shape", None)
    if shape is not None and len(shape):
        if mode != "cat" and shape[0] == size:
            return _written([*result])
        each = _length(data)
        if mode == "cat" and shape[0] == each * size:
            scalar = not getattr(data, "ndim", 0)
            return _written([result[i * each] if scalar else result[i * each : (i + 1) * each] for i in range(size)])
    return _written([result])


# ── torch's own, as they reach a process group ──────────────────────────────────────────────────────


def of_torch(method: str, args: tuple[Any, ...], members: list[int], rank: int) -> Drawn | None:
    """Look at a call of a process group before it is passed on; return None if it has no picture.

    Args:
        method: the process group's.
        args: its arguments.
        members: the group's global ranks.
        rank: this one's.
    """
    look = _LOOKS.get(NAMES.get(method, method))
    try:
        return None if look is None else look(args, members, rank)
    except (IndexError, AttributeError, TypeError, ValueError, RuntimeError):
        return None  # unusual arguments: no picture


def brought(name: str, args: tuple[Any, ...]) -> Any:
    """Return the tensors that a rank gives to a call of a process group."""
    if not args or name.startswith("recv"):  # a barrier has none, and a receive only a place for them
        return None
    return args[0] if name in ("all_reduce", "broadcast", "reduce", "send") or len(args) < 2 else args[1]


def _cells(tensors: Any) -> list[str]:
    return _written([tensor.detach() for tensor in tensors])


def _one(tensors: Any) -> list[str]:
    """Describe several tensors of one call as one cell."""
    return _cells(tensors) if len(tensors) == 1 else [" ".join(sketch(tensor.detach()) for tensor in tensors)[:60]]


def _parts(tensor: torch.Tensor, size: int, rows: Sequence[int] = ()) -> list[str]:
    if rows:
        return _cells(tensor.detach().split(list(rows)))
    return _cells(tensor.detach().reshape(-1).chunk(size)) if tensor.numel() % size == 0 else _cells([tensor])


def _root(options: Any, members: list[int]) -> int:
    return int(members[options.rootRank])


def _reduction(options: Any) -> str:
    op = options.reduceOp
    try:
        return name_of(str(getattr(op, "op", op)).rpartition(".")[2])
    except Exception:  # noqa: BLE001 - a reduction of torch's that nbcomm does not have
        return "sum"


def _broadcast(args: Any, members: list[int], rank: int) -> Drawn:
    tensors, src = args[0], _root(args[1], members)
    return Drawn({"src": src}, _one(tensors) if rank == src else [], _one, tensors, in_place=True)


def _all_reduce(args: Any, _members: list[int], _rank: int) -> Drawn:
    return Drawn({"op": _reduction(args[1])}, _one(args[0]), _one, args[0], in_place=True)


def _reduce(args: Any, members: list[int], rank: int) -> Drawn:
    dst = _root(args[1], members)
    how = {"op": _reduction(args[1]), "dst": dst}
    return Drawn(how, _one(args[0]), lambda tensors: _one(tensors) if rank == dst else [], args[0], in_place=True)


def _gather(args: Any, members: list[int], rank: int) -> Drawn:
    dst = _root(args[2], members)
    return Drawn({"dst": dst}, _one(args[1]), lambda lists: _cells(lists[0]) if rank == dst and lists else [], args[0])


def _scatter(args: Any, members: list[int], rank: int) -> Drawn:
    src = _root(args[2], members)
    return Drawn({"src": src}, _cells(args[1][0]) if rank == src and args[1] else [], _one, args[0])


def _all_gather(args: Any, _members: list[int], _rank: int) -> Drawn:
    return Drawn({}, _one(args[1]), lambda lists: _cells(lists[0]), args[0])


def _all_gather_flat(args: Any, members: list[int], _rank: int) -> Drawn:
    return Drawn({}, _cells([args[1]]), lambda out: _parts(out, len(members)), args[0])


def _reduce_scatter(args: Any, _members: list[int], _rank: int) -> Drawn:
    return Drawn({"op": _reduction(args[2])}, _cells(args[1][0]), _one, args[0])


def _reduce_scatter_flat(args: Any, members: list[int], _rank: int) -> Drawn:
    how = {"op": _reduction(args[2])}
    return Drawn(how, _parts(args[1], len(members)), lambda out: _cells([out]), args[0])


def _all_to_all(args: Any, _members: list[int], _rank: int) -> Drawn:
    return Drawn({}, _cells(args[1]), _cells, args[0])


def _all_to_all_flat(args: Any, members: list[int], _rank: int) -> Drawn:
    size, received, sent = len(members), args[2], args[3]
    return Drawn({}, _parts(args[1], size, sent), lambda out: _parts(out, size, received), args[0])


def _message(args: Any, members: list[int], rank: int, *, sends: bool) -> Drawn:
    peer = members[args[1]] if len(args) > 1 else None  # from any rank
    src, dst = (rank, peer) if sends else (peer, rank)
    how = {"src": src, "dst": dst}
    return Drawn(how, _one(args[0]), lambda _: [], ()) if sends else Drawn(how, [], _one, args[0])


_LOOKS: dict[str, Callable[[Any, list[int], int], Drawn | None]] = {
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_flat,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_flat,
    "barrier": lambda *_: Drawn({}, [], lambda _: [], ()),
    "broadcast": _broadcast,
    "gather": _gather,
    "recv": lambda args, members, rank: _message(args, members, rank, sends=False),
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_flat,
    "scatter": _scatter,
    "send": lambda args, members, rank: _message(args, members, rank, sends=True),
}
