"""Combination of the values that several ranks sent: stacked, concatenated, as lists, or as whole objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...analysis import mismatch
from ...errors import CollectiveError
from ...rank_spec import rows_by_rank
from ..transport import pytrees
from ..transport.exchange import GroupChannel
from ..transport.fusion import fused
from ..transport.packets import ALONE_FROM, Spec, plain

MODES = ("stack", "cat", "list", "object")


def check_mode(mode: str) -> None:
    """Raise unless ``mode`` is one of `MODES`."""
    if mode not in MODES:
        raise CollectiveError(f"There is no mode {mode!r}; write {', '.join(map(repr, MODES[:-1]))} or {MODES[-1]!r}.")


def check_bare(channel: GroupChannel, specs: Sequence[Spec | None], mode: str) -> bool:
    """Decide by the heads whether their tensors can be joined at once.

    Returns:
        Whether every rank sent one tensor, and all of the same shape and dtype.

    Raises:
        CollectiveError: every rank sent one tensor, and ``mode`` cannot join them.
    """
    known = [spec for spec in specs if spec is not None]
    if len(known) < len(specs) or mode == "object":
        return False
    _check_joinable(channel, "data", [_words(spec) for spec in known], [(s.dtype, s.shape) for s in known], mode)
    return len({(spec.dtype, spec.shape, spec.side) for spec in known}) == 1


def summary(data: Any) -> tuple[bytes, list[Any]]:
    """Return what the ranks must know of each other before their tensors can be gathered fused.

    Returns:
        A digest of structure, shapes and dtypes, and the leaves that are not tensors.
    """
    outline = pytrees.outline(data, lambda leaf: pytrees.describe(leaf) if plain(leaf) else "another leaf")
    digest = hashlib.blake2b(outline.encode(), digest_size=16).digest()
    return digest, [leaf for leaf in pytrees.flat(data) if not plain(leaf)]


def gather_fused(channel: GroupChannel, data: Any, others: Sequence[Sequence[Any]], mode: str) -> Any:
    """Gather nested data whose tensors are alike on every rank: one collective for each dtype and device.

    Args:
        channel: the group.
        data: what this rank gave.
        others: for each rank the leaves that are not tensors; they were already sent.
        mode: "stack", "cat" or "list".
    """
    leaves = pytrees.flat(data)
    tensors = [leaf.detach() for leaf in leaves if plain(leaf)]
    gathered = iter(
        fused(
            tensors,
            channel.stacked,
            alone=lambda tensor: channel.stacked(tensor.reshape(-1)).view(channel.size, *tensor.shape),
            alone_from=ALONE_FROM,
        )
    )
    rest = iter(zip(*others, strict=True))

    paths = [path for path, _ in pytrees.leaves(data)] if others[0] else [""] * len(leaves)

    def joined(path: str, leaf: Any) -> Any:
        if not plain(leaf):
            return _join_leaves(channel, path, next(rest), mode)
        rows = next(gathered)
        if mode == "list":
            return [row.clone() for row in rows]
        return rows if mode == "stack" or leaf.ndim == 0 else rows.flatten(0, 1)

    return pytrees.fill(data, iter([joined(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]))


def join(channel: GroupChannel, values: Sequence[Any], mode: str, own: int) -> Any:
    """Combine the values of all ranks, leaf by leaf.

    Args:
        channel: the group.
        values: one per rank, in group order.
        mode: how.
        own: the index of the value whose classes the result has.
    """
    if mode == "object":
        return list(values)
    return pytrees.merge(
        values,
        own,
        lambda texts: rows_by_rank(channel.ranks, channel.placed(texts)),
        lambda path, leaves: _join_leaves(channel, path, leaves, mode),
    )


def _join_leaves(channel: GroupChannel, path: str, leaves: Sequence[Any], mode: str) -> Any:
    for kind, stack, cat in _JOINED:
        if any(isinstance(leaf, kind) for leaf in leaves):
            if mode == "list":
                return list(leaves)
            marks = [(each.dtype, tuple(each.shape)) if isinstance(each, kind) else None for each in leaves]
            _check_joinable(channel, path, [pytrees.describe(leaf) for leaf in leaves], marks, mode)
            return stack(leaves) if mode == "stack" or leaves[0].ndim == 0 else cat(leaves)
    return list(leaves)


_JOINED: tuple[tuple[Any, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (torch.Tensor, torch.stack, torch.cat),
    (np.ma.MaskedArray, np.ma.stack, np.ma.concatenate),
    (np.ndarray, np.stack, np.concatenate),
)


def _check_joinable(
    channel: GroupChannel,
    path: str,
    texts: Sequence[str],
    marks: Sequence[tuple[Any, tuple[int, ...]] | None],
    mode: str,
) -> None:
    """Raise if these tensors (dtype and shape; None for other leaves) cannot be joined."""
    if mode == "list":
        return
    if mode == "stack":
        fits = None not in marks and len(set(marks)) == 1
        remedy = mismatch.STACK
    else:
        fits = None not in marks and len({(mark[0], len(mark[1]), mark[1][1:]) for mark in marks if mark}) == 1
        remedy = mismatch.CAT
    if not fits:
        raise CollectiveError(mismatch.not_joinable(path, channel.ranks, channel.placed(texts), remedy))


def _words(spec: Spec) -> str:
    return pytrees.describe(torch.empty(spec.shape, dtype=spec.dtype, device="meta"))
