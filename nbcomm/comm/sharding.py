"""Shares of data: which rank has which part, how parts of unequal length are padded, and joined again.

``split`` and accelerate's ``split_between_processes`` give contiguous blocks, and one item more to the first ranks if
the division is not even: 10 items on 4 ranks are 3, 3, 2, 2. A ``DistributedSampler`` deals in turn (``strided``), and
repeats items from the beginning. `gather_for_metrics` reverses either.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import CollectiveError
from .reductions import Reductions
from .transport import pytrees
from .transport.group_args import resolve

_ARRAYS = (torch.Tensor, np.ndarray)


class Sharding(Reductions):
    """Data that the ranks divide among themselves."""

    def split(
        self,
        data: Any,
        pad: bool = False,  # noqa: FBT001, FBT002
        strided: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Any = None,
    ) -> Any:
        """Take this rank's share of data that every rank has. Not a collective: nothing moves.

        Args:
            data: a tensor or array (cut along the first dimension), a list, tuple, range or other sequence, a
                map-style dataset, or a dict of such, all of one length.
            pad: repeat the last item (of the share; of all data, if the share is empty) so that all shares are equally
                long. `gather_for_metrics` drops what was added.
            strided: deal the items in turn, and not in blocks.
            group: the ranks that share; None for the world.

        Returns:
            Of tensors a view, of sequences one of the same type where slices are; of a dataset a
            ``torch.utils.data.Subset``. On W ranks a share of N items has N//W of them, or one more.

        Raises:
            CollectiveError: the data has no length, a dict's values are of different lengths, or ``pad`` has nothing
                to repeat.

        >>> split(list(range(10)))  # on rank 1 of 4  # doctest: +SKIP
        [3, 4, 5]
        """
        channel = self._wire_of(resolve(group))
        if isinstance(data, Mapping):
            lengths = {key: _length(value) for key, value in data.items()}
            if len(set(lengths.values())) > 1:
                said = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
                raise CollectiveError(f"split needs values of one length in a dict; these are {said} long.")
            if not isinstance(data, dict):
                shares = {key: self.split(value, pad, strided, group=group) for key, value in data.items()}
                return type(data)(shares) if isinstance(data, UserDict) else shares
            return pytrees.rebuild(
                data, [self.split(v, pad, strided, group=group) for _, v in pytrees.children(data) or ()]
            )
        total = _length(data)
        places = shares_of_places(total, channel.size, strided=strided)
        mine, longest = list(places[channel.me]), max(map(len, places))
        if pad and len(mine) < longest:
            mine += [mine[-1] if mine else total - 1] * (longest - len(mine))
            return _taken(data, mine)
        return _taken(data, places[channel.me])

    def pad_across_ranks(
        self,
        data: Any,
        dim: int = 0,
        pad_index: float = 0,
        pad_first: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Any = None,
    ) -> Any:
        """Make tensors as long as the longest of any rank. Every rank of the group must call this.

        accelerate's ``pad_across_processes``, with its arguments.

        Args:
            data: a tensor or array, or nested data of them; other leaves are left as they are.
            dim: the dimension to fill up; tensors that do not have it are left as they are.
            pad_index: the value to fill with.
            pad_first: fill in front.
            group: the ranks that take part; None for the world.

        Raises:
            CollectiveError: the ranks' data differ in structure.

        >>> pad_across_ranks(torch.ones(rank + 1))  # on rank 0 of 2  # doctest: +SKIP
        tensor([1., 0.])
        """
        leaves = pytrees.flat(data)
        have = [
            leaf.shape[dim] if isinstance(leaf, _ARRAYS) and -leaf.ndim <= dim < leaf.ndim else -1 for leaf in leaves
        ]
        rows = self.all_gather(have, "object", group=group)
        if len(set(map(len, rows))) > 1:
            raise CollectiveError(
                f"The ranks passed different numbers of leaves to pad_across_ranks: {[*map(len, rows)]}."
            )
        longest = [max(row[place] for row in rows) for place in range(len(have))]
        return pytrees.fill(
            data,
            iter(
                [
                    _padded(leaf, dim, long - own, pad_index, first=pad_first) if 0 <= own < long else leaf
                    for leaf, own, long in zip(leaves, have, longest, strict=True)
                ]
            ),
        )

    def gather_for_metrics(
        self,
        data: Any,
        total: int,
        strided: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Any = None,
    ) -> Any:
        """Collect what the ranks made of their shares, in the order of the whole, without what was added to pad.

        Every rank of the group must call this. (accelerate's function of this name knows ``total`` from its
        dataloader.)

        Args:
            data: a tensor or array whose first dimension counts this rank's samples, a list of samples, or nested
                dicts, tuples and dataclasses of tensors.
            total: how many samples there are without the repeated ones.
            strided: the samples were dealt in turn, as ``DistributedSampler`` does; not in blocks, as `split` does.
            group: the ranks that take part; None for the world.

        Returns:
            Data like ``data`` of ``total`` samples, on every rank.

        Raises:
            CollectiveError: a rank has fewer samples than its share of ``total``.

        >>> gather_for_metrics(split(torch.arange(10), pad=True) ** 2, total=10)  # doctest: +SKIP
        tensor([ 0,  1,  4,  9, 16, 25, 36, 49, 64, 81])
        """
        channel = self._wire_of(resolve(group))
        places = shares_of_places(total, channel.size, strided=strided)
        mine = len(places[channel.me])
        listed = isinstance(data, list)
        leaves = [data] if listed else pytrees.flat(data)
        refusal = _refusal(leaves, mine, total, listed=listed)
        _check_shares(channel.ranks, self.all_gather((refusal, total, strided), "object", group=group))
        order = list(itertools.chain(*places))
        if listed:
            samples = itertools.chain(*self.all_gather(data[:mine], "object", group=group))
            return [sample for _, sample in sorted(zip(order, samples, strict=True), key=lambda pair: pair[0])]
        whole = self.all_gather(pytrees.fill(data, iter([leaf[:mine] for leaf in leaves])), "cat", group=group)
        if not strided:
            return whole
        back = np.argsort(order)
        return pytrees.map_leaves(
            lambda leaf: leaf[torch.from_numpy(back).to(leaf.device) if isinstance(leaf, torch.Tensor) else back], whole
        )


def shares_of_places(total: int, size: int, *, strided: bool) -> list[range]:
    """Return which indices belong to each rank.

    >>> shares_of_places(10, 4, strided=False)
    [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    >>> shares_of_places(10, 4, strided=True)
    [range(0, 10, 4), range(1, 10, 4), range(2, 10, 4), range(3, 10, 4)]
    """
    if strided:
        return [range(rank, total, size) for rank in range(size)]
    short, more = divmod(total, size)
    starts = [rank * short + min(rank, more) for rank in range(size + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def _refusal(leaves: Sequence[Any], share: int, total: int, *, listed: bool) -> str:
    """Say what speaks against these leaves as a rank's share of ``total`` samples; empty if nothing does."""
    for leaf in leaves:
        if not (listed or (isinstance(leaf, _ARRAYS) and leaf.ndim)):
            return f"passed {pytrees.describe(leaf)}, which has no samples"
    for leaf in leaves:
        if len(leaf) < share:
            return f"passed {len(leaf)} samples, but its share of {total} is {share}"
    return ""


def _check_shares(ranks: Sequence[int], said: Sequence[tuple[str, int, bool]]) -> None:
    """Raise, alike on every rank, unless each has said: no refusal, and the same total and strided."""
    refusals = [refusal for refusal, *_ in said]
    if not any(refusals) and len(set(said)) > 1:
        refusals = [f"passed total={total}, strided={strided}" for _, total, strided in said]
    if any(refusals):
        told = [f"rank {rank} {refusal}" for rank, refusal in zip(ranks, refusals, strict=True) if refusal]
        raise CollectiveError(f"gather_for_metrics cannot continue: {'; '.join(told)}.")


def _length(data: Any) -> int:
    if isinstance(data, _ARRAYS) and data.ndim:
        return len(data)
    if not isinstance(data, (*_ARRAYS, set, frozenset)) and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return len(data)
    raise CollectiveError(f"split needs data with a length and an order, not {pytrees.describe(data)}.")


def _taken(data: Any, places: Sequence[int]) -> Any:
    if isinstance(places, range):
        at = slice(places.start, places.stop, places.step)
        if isinstance(data, (*_ARRAYS, list, tuple, str, bytes, range)):
            return data[at]
    if isinstance(data, _ARRAYS):
        return data[list(places)]
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, list(places))
    items = [data[place] for place in places]
    if isinstance(data, str):
        return "".join(items)
    if isinstance(data, bytes):
        return bytes(items)
    return tuple(items) if type(data) is tuple else items


def _padded(leaf: Any, dim: int, missing: int, value: float, *, first: bool) -> Any:
    shape = list(leaf.shape)
    shape[dim] = missing
    if isinstance(leaf, np.ndarray):
        filler: Any = np.full(shape, value, leaf.dtype)
        joined = np.ma.concatenate if isinstance(leaf, np.ma.MaskedArray) else np.concatenate
        return joined([filler, leaf] if first else [leaf, filler], dim)
    filler = leaf.new_full(shape, value)
    return torch.cat([filler, leaf] if first else [leaf, filler], dim)
