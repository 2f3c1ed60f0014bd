"""How gradients flow back through a collective.

The forward pass has already run, without autograd and fused. `tie` only connects its results with the tensors that they
came from. The backward pass is one collective, the reverse of the forward one, which every rank of the group must
reach:

==============  =========================================================================
forward         gradient of a rank's data
==============  =========================================================================
broadcast       on ``src`` the sum of all ranks' gradients; elsewhere zero, if any data was given
scatter         on ``src`` each rank's gradient, for that rank's item; elsewhere as above
gather          from ``dst`` the gradient of this rank's part
all_gather      the sum of all ranks' gradients of this rank's part
reduce          from ``dst`` its gradient (divided by W, for a mean)
all_reduce      the sum of all ranks' gradients (divided by W, for a mean)
reduce_scatter  each rank's gradient, for that rank's share (divided by W, for a mean)
all_to_all      each rank's gradient, for the item that it was sent
scan            the sum of the gradients of this rank and those after it
==============  =========================================================================

Reductions that are not linear (min, max, product) gather all ranks' values and reduce them with autograd on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ...errors import CollectiveError
from ...rank_spec import rows_by_rank
from ..transport import pytrees
from ..transport.exchange import GroupChannel
from ..transport.packets import pack
from . import reduce_ops
from .reduce import exchange, reduce_many

Grads = Sequence[torch.Tensor]
Back = Callable[[Grads], Sequence["torch.Tensor | None"]]
"""The function from the gradients of a collective's results to those of its data, on one rank."""
Wired = Callable[[], GroupChannel]
"""The function that returns the group's channel when needed: backward is another call, perhaps in another cell."""


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, back: Back, results: Grads, *_: torch.Tensor) -> Any:
        ctx.back = back
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *ctx.back([grad.detach() for grad in grads])


def tie(results: Grads, inputs: Grads, back: Back) -> list[torch.Tensor]:
    """Connect detached results with the tensors that they came from.

    Args:
        results: of the forward pass, on this rank.
        inputs: this rank's tensors: those that they depend on, or others, whose gradient is zero. A rank that gave
            none still takes part in the backward pass.
        back: gives a gradient for each input, or nothing if the results depend on none of them.
    """
    inputs = inputs or [torch.zeros((), requires_grad=True)]
    nothing = [one.new_zeros(()).expand_as(one) for one in inputs]
    return list(_Tie.apply(lambda grads: back(grads) or nothing, results, *inputs))  # type: ignore[no-untyped-call]


def link(device: torch.device, inputs: Grads, back: Back) -> torch.Tensor:
    """Return a zero in place of results that another rank has: its backward takes part in that rank's backward."""
    return tie([torch.zeros((), device=device)], inputs, back)[0]


def requires_grad(data: Any) -> list[bool]:
    """Return whether each leaf requires grad, in walking order."""
    return [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytrees.flat(data)]


def needing(data: Any) -> list[Any]:
    """Return the leaves that require grad."""
    return chosen(data, requires_grad(data))


def chosen(data: Any, flags: Iterable[bool]) -> list[Any]:
    """Return the leaves that are flagged."""
    return [leaf for leaf, flag in zip(pytrees.flat(data), flags, strict=True) if flag]


def replaced(data: Any, flags: Iterable[bool], new: Grads) -> Any:
    """Return the same data with the flagged leaves replaced."""
    fresh = iter(new)
    return pytrees.fill(
        data, iter([next(fresh) if flag else leaf for leaf, flag in zip(pytrees.flat(data), flags, strict=True)])
    )


def agree(channel: GroupChannel, flags: Any) -> list[Any]:
    """Return every rank's statement about which of its tensors require grad."""
    return exchange(channel, pack(flags, channel.carries))


def check_alike(channel: GroupChannel, needs: Sequence[Sequence[bool]], what: str) -> None:
    """Raise unless the same tensors require grad everywhere.

    Args:
        channel: the group.
        needs: for each rank, which leaves do.
        what: whose leaves they are, for the message: "rank" or "item".
    """
    if any(need != needs[0] for need in needs):
        texts = [
            "has 1 tensor that requires grad" if sum(need) == 1 else f"has {sum(need)} tensors that require grad"
            for need in needs
        ]
        raise CollectiveError(
            f"With sync_grads=True the same tensors must require grad {what},\n"
            f"as backward is a collective too:\n{rows_by_rank(channel.ranks, texts)}"
        )


# ---- backward passes


def summed(channel: Wired, scale: float = 1.0) -> Back:
    """Return the backward of all_reduce: the sum over all ranks."""

    def back(grads: Grads) -> list[torch.Tensor]:
        totals = _sums(channel(), grads)
        return totals if scale == 1 else [total * scale for total in totals]

    return back


def summed_part(channel: Wired) -> Back:
    """Return the backward of all_gather, with each tensor's parts in group order: the sum for this rank's part."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        return _sums(known, grads)[known.me :: known.size]

    return back


def summed_on(channel: Wired, src: int) -> Back:
    """Return the backward of broadcast: the sum over all ranks, on ``src``."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        totals = reduce_many(known, grads, reduce_ops.parse("sum"), src)
        return totals if known.ranks[known.me] == src else []

    return back


def gathered_on(channel: Wired, src: int) -> Back:
    """Return the backward of scatter: the ranks' gradients in group order, on ``src``."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        packet = pack(list(grads), known.carries)
        packets = known.gather(packet, known.heads(packet), src)
        return [grad for got in packets or () for grad in got.open(known.device)]

    return back


def scattered_from(channel: Wired, dst: int) -> Back:
    """Return the backward of gather, with each tensor's parts in group order on ``dst``: this rank's part."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        packets = None
        if known.ranks[known.me] == dst:
            packets = [pack(list(grads[place :: known.size]), known.carries) for place in range(known.size)]
        got: list[torch.Tensor] = known.scatter(packets, dst).open(known.device)
        return got

    return back


def broadcast_from(channel: Wired, dst: int, scale: float) -> Back:
    """Return the backward of reduce: the gradients of ``dst``."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        if known.ranks[known.me] != dst:
            return known.broadcast(dst).open(known.device)  # type: ignore[union-attr, no-any-return]  # it is a list
        scaled = [grad * scale for grad in grads]
        for work, _ in known.post_broadcast(pack(scaled, known.carries)):
            work.wait()
        return scaled

    return back


def gathered(channel: Wired, scale: float) -> Back:
    """Return the backward of reduce_scatter: the ranks' gradients in group order."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        rows = exchange(known, pack([grad * scale for grad in grads], known.carries))
        return [grad.clone() for row in rows for grad in row]

    return back


def exchanged(channel: Wired, counts: Sequence[int]) -> Back:
    """Return the backward of all_to_all, with results in group order, ``counts`` from each: what was sent to each."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known, rest = channel(), iter(grads)
        packets = [pack([next(rest) for _ in range(count)], known.carries) for count in counts]
        return [grad for got in known.all_to_all(packets) for grad in got.open(known.device)]

    return back


def summed_from_here(channel: Wired, scale: float, *, exclusive: bool) -> Back:
    """Return the backward of scan: the sum over this rank (unless ``exclusive``) and later ones, times ``scale``."""

    def back(grads: Grads) -> list[torch.Tensor]:
        known = channel()
        rows = exchange(known, pack([grad * scale for grad in grads], known.carries))
        later = rows[known.me + exclusive :]
        return [torch.stack(own).sum(0) for own in zip(*later, strict=True)] or [torch.zeros_like(g) for g in grads]

    return back


def _sums(channel: GroupChannel, grads: Grads) -> list[torch.Tensor]:
    return reduce_many(channel, grads, reduce_ops.parse("sum"))
