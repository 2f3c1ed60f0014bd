"""Moves packets among the ranks of one group: the torch collectives for data that is not reduced.

Every collective here begins with the heads (see `packets`), so each rank learns what the others hold before it commits
to a size. What does not fit into a head follows in as few messages as there are kinds of memory. A rank that has
nothing to send because something failed sends an error instead: no rank is left waiting.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...analysis import mismatch
from ...errors import CollectiveError, MismatchError
from ...rank_spec import by_rank
from ...torch_internals.process_groups import is_plain
from .packets import ERROR, HEAD_BYTES, NOTICE, Packet, Side, as_bytes, from_small_head, small_head

# torch 2.13 renamed these two and warns of the old names.
all_gather_single: Callable[..., None] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Callable[..., None] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Posted = tuple[Any, torch.Tensor]  # work to wait for, and the memory that must live until then

SIDES: tuple[Side, ...] = ("host", "device")
_ROUNDS: dict[Side, int] = {"host": 1, "device": 2}  # the bits of Packet.rounds

_PAD_UP_TO = 1 << 16  # uneven parts up to this size are padded; beyond, that would waste memory on every rank


class GroupChannel:
    """One group, as this rank uses it.

    Attributes:
        group: what torch's functions take; None for the world.
        ranks: the members' global ranks, in group order.
        me: this process's place among them.
        size: how many they are.
        device: where tensors from an accelerator are received.
        call: the name of the collective that it is used for at present.
        lines: those that called it, in group order, after `heads`; 0 where that is not known.
        host: the memory for everything else: the CPU, or ``device`` if the group has no backend for the CPU.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        ranks: Sequence[int],
        me: int,
        device: torch.device,
        line: Callable[[], int] = lambda: 0,
    ) -> None:
        self.group = group
        self._line = line
        self.lines: Sequence[int] = ()
        self.ranks = list(ranks)
        self.me = me
        self.size = len(self.ranks)
        self.call = ""
        self.device = device
        self._backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
        self.host = torch.device("cpu") if "cpu" in self._backends else device
        self._reductions: dict[Any, Any] = {}  # torch's options by op, which are made once
        self._roots: dict[int, Any] = {}

    def carries(self, tensor: torch.Tensor) -> bool:
        """Return whether the group moves this tensor without a copy to the CPU (gloo's own would be no shorter)."""
        return tensor.is_cpu or self._backends.get(tensor.device.type, "gloo") != "gloo"

    def bitwise(self, device: torch.device) -> bool:
        """Return whether the backend for ``device`` supports band, bor and bxor."""
        return self._backends.get(device.type, "gloo") == "gloo"

    # ---- one plain tensor of the CPU: what `torch.distributed` does for it, without its questions

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether `reduced` and `passed` take this tensor."""
        return is_plain([tensor]) and not tensor.is_complex() and self.host.type == "cpu"

    def reduced(self, values: torch.Tensor, op: Any) -> None:
        """Reduce contiguous values in place, on all ranks."""
        options = self._reductions.get(op)
        if options is None:
            options = self._reductions[op] = dist.AllreduceOptions()
            options.reduceOp, options.asyncOp = op, False
        group: Any = self.group or dist.group.WORLD
        work = group.allreduce([values], options)
        if work is not None:
            work.wait()

    def passed(self, values: torch.Tensor, src: int) -> None:
        """Broadcast contiguous values from ``src``, in place."""
        options = self._roots.get(src)
        if options is None:
            options = self._roots[src] = dist.BroadcastOptions()
            options.rootRank, options.rootTensor, options.asyncOp = self.ranks.index(src), 0, False
        group: Any = self.group or dist.group.WORLD
        work = group.broadcast([values], options)
        if work is not None:
            work.wait()

    # ---- collectives

    def broadcast_small(self, tensor: torch.Tensor) -> bool:
        """Send a tensor that fits into a head; return whether it was sent."""
        head = small_head(tensor) if self.takes(tensor) else None
        if head is not None:
            self.passed(head, self.ranks[self.me])
        return head is not None

    def broadcast(self, src: int) -> Packet | torch.Tensor:
        """Receive what ``src`` posts: one message if it fits in the head, else one more for each part.

        Returns:
            A tensor that is all that was sent, or a packet.
        """
        head = self._on_host(_empty_head())
        if self.takes(head):
            self.passed(head, src)
            small = from_small_head(head)
            if small is not None:
                return small
        else:
            dist.broadcast(head, src, group=self.group)
        got = Packet.from_head(head.cpu())
        self._refuse([got], [src])
        for part in self._arriving(got):
            dist.broadcast(part, src, group=self.group)
        return got

    def post_broadcast(self, packet: Packet) -> list[Posted]:
        """Begin to send a packet to every rank, all parts at once; see `broadcast`."""
        parts = [self._on_host(packet.head()), *self._departing(packet)]
        src = self.ranks[self.me]
        return [(dist.broadcast(part, src, group=self.group, async_op=True), part) for part in parts]

    def heads(self, packet: Packet) -> list[Packet]:
        """Everybody's head to everybody, in group order.

        Raises:
            MismatchError: the ranks are not in the same collective. It is raised on every rank.
            CollectiveError: a rank sent an error. It is raised on every rank.
        """
        packet.call, packet.line = _code(self.call), self._line()
        blocks = torch.empty(self.size * HEAD_BYTES, dtype=torch.uint8, device=self.host)
        all_gather_single(blocks, self._on_host(packet.head()), group=self.group)
        heads = [Packet.from_head(block) for block in blocks.cpu().split(HEAD_BYTES)]
        self.lines = [head.line for head in heads]
        self._check_calls([head.call for head in heads])
        self._refuse(heads, self.ranks)
        return heads

    def all_gather(self, packet: Packet, heads: list[Packet]) -> list[Packet]:
        """Send the rest of every rank's packet to every rank, after `heads`."""
        for side in SIDES:
            sizes = [head.size(side) for head in heads]
            self._deliver(heads, self._share(sizes, packet.part(side), side), side)
        expected = [head.expected_alone() for head in heads]
        for turn in range(max(map(len, expected))):
            specs = [mine[turn] if turn < len(mine) else None for mine in expected]
            for side in SIDES:
                sizes = [spec.nbytes if spec and spec.side == side else 0 for spec in specs]
                mine = packet.alone[turn] if sizes[self.me] else None
                for head, part in zip(heads, self._share(sizes, mine, side), strict=True):
                    head.alone.extend([] if part is None else [part])
        return heads

    def rows(self, data: torch.Tensor) -> torch.Tensor:
        """Everybody's values in one flat tensor, one rank after the other; all have equally many."""
        if data.is_cpu:
            data = self._on_host(data)
        flat = torch.empty(self.size * data.numel(), dtype=data.dtype, device=data.device)
        all_gather_single(flat, data.reshape(-1), group=self.group)
        return flat

    def stacked(self, data: torch.Tensor) -> torch.Tensor:
        """Everybody's values, one rank in each row, of any dtype; all are 1-D and equally long."""
        values = data if self.carries(data) else data.to(self.host)
        flat = self.rows(as_bytes(values)).view(data.dtype)
        return flat.view(self.size, data.numel()).to(data.device)

    def gather(self, packet: Packet, heads: list[Packet], dst: int) -> list[Packet] | None:
        """Send the rest of every rank's packet to ``dst``, after `heads`; None elsewhere. No part goes separately."""
        at = self.ranks.index(dst)
        for side in SIDES:
            sizes = [head.size(side) for head in heads]
            out: list[torch.Tensor | None] = [None] * self.size
            out[at] = packet.part(side)
            if len(set(sizes)) == 1 and sizes[0]:
                parts = self._empty(sizes, side) if self.me == at else None
                dist.gather(self._sent(out[at], side), parts, dst, group=self.group)
                self._deliver(heads, parts or [], side)
            elif any(sizes):
                expected = sizes if self.me == at else [0] * self.size
                got = self._exchange(out, expected, side)
                self._deliver(heads if self.me == at else [], got, side)  # elsewhere nothing has come
        return heads if self.me == at else None

    def scatter(self, packets: Sequence[Packet] | None, src: int) -> Packet:
        """Send one packet to each rank from ``src``, which passes them in group order. No part is sent separately."""
        head = self._on_host(_empty_head())
        if packets is not None:
            # Only src sees every size, but the later rounds need every rank: so src says which there will be.
            rounds = _rounds(packets)
            for packet in packets:
                packet.rounds = rounds
            dist.scatter(head, [self._on_host(packet.head()) for packet in packets], src, group=self.group)
        else:
            dist.scatter(head, src=src, group=self.group)
        got = Packet.from_head(head.cpu())
        self._refuse([got], [src])
        at = self.ranks.index(src)
        for side in _in_rounds(got.rounds):
            expected = [0] * self.size
            expected[at] = got.size(side)
            out = [packet.part(side) for packet in packets] if packets is not None else [None] * self.size
            self._deliver([got], [self._exchange(out, expected, side)[at]], side)
        return got

    def all_to_all(self, packets: Sequence[Packet] | Packet) -> list[Packet]:
        """Send one packet from each rank to each rank, or raise one error on all. No part is sent separately."""
        if isinstance(packets, Packet):
            self.heads(packets)
            return []  # not reached: the error has been raised
        rounds = 0
        for head in self.heads(Packet(NOTICE, rounds=_rounds(packets))):
            rounds |= head.rounds
        out_heads = self._on_host(torch.cat([packet.head() for packet in packets]))
        in_heads = torch.empty_like(out_heads)
        dist.all_to_all_single(in_heads, out_heads, group=self.group)
        got = [Packet.from_head(head) for head in in_heads.cpu().split(HEAD_BYTES)]
        for side in _in_rounds(rounds):
            out = [packet.part(side) for packet in packets]
            expected = [packet.size(side) for packet in got]
            self._deliver(got, self._exchange(out, expected, side), side)
        return got

    # ---- from one rank to one other

    def post(self, packet: Packet, dst: int, tag: int) -> list[Posted]:
        """Begin to send a packet to one rank, all parts at once."""
        parts = [self._on_host(packet.head()), *self._departing(packet)]
        return [(dist.isend(part, dst, group=self.group, tag=tag), part) for part in parts]

    def recv(self, src: int | None, tag: int) -> Packet:
        """Receive a packet from ``src``, or from the rank that sends first; all its parts come from one rank."""
        head = self._on_host(_empty_head())
        sender = dist.recv(head, src, group=self.group, tag=tag)
        got = Packet.from_head(head.cpu())
        for part in self._arriving(got):
            dist.recv(part, sender, group=self.group, tag=tag)
        self._refuse([got], [sender])
        return got

    # ---- parts

    def _departing(self, packet: Packet) -> Iterator[torch.Tensor]:
        """Return what follows the head, as buffers to send from."""
        for side in SIDES:
            part = packet.part(side)
            if part is not None:
                yield self._sent(part, side)
        for spec, part in zip(packet.expected_alone(), packet.alone, strict=True):
            yield self._sent(part, spec.side)

    def _arriving(self, packet: Packet) -> Iterator[torch.Tensor]:
        """Yield buffers to receive what follows the head; each is filled when the next one is asked for."""
        for side in SIDES:
            if packet.size(side):
                (part,) = self._empty([packet.size(side)], side)
                yield part
                self._deliver([packet], [part], side)
        for spec in packet.expected_alone():
            (part,) = self._empty([spec.nbytes], spec.side)
            yield part
            packet.alone.append(part if spec.side == "device" else part.cpu())

    def _deliver(self, packets: Sequence[Packet], parts: Sequence[torch.Tensor | None], side: Side) -> None:
        for packet, part in zip(packets, parts, strict=False):
            if part is not None and packet.size(side):
                packet.take(part if side == "device" else part.cpu(), side)

    def _share(self, sizes: list[int], mine: torch.Tensor | None, side: Side) -> Sequence[torch.Tensor | None]:
        """Send every rank's bytes, of these sizes, to every rank; None for a rank that has none."""
        if not any(sizes):
            return [None] * self.size
        data = self._sent(mine, side)
        if len(set(sizes)) == 1:
            parts = self._empty(sizes, side)
            dist.all_gather(parts, data, group=self.group)
            return parts
        if max(sizes) <= _PAD_UP_TO:
            return self._share_padded(sizes, data)
        return self._share_in_turn(sizes, data, side)

    def _share_padded(self, sizes: list[int], data: torch.Tensor) -> Sequence[torch.Tensor | None]:
        padded = torch.nn.functional.pad(data, (0, max(sizes) - data.numel()))
        rows = self.rows(padded).split(max(sizes))
        return [row[:size].clone() if size else None for row, size in zip(rows, sizes, strict=True)]

    def _share_in_turn(self, sizes: list[int], data: torch.Tensor, side: Side) -> Sequence[torch.Tensor | None]:
        """Let each rank that has something broadcast it."""
        parts = self._empty(sizes, side)
        parts[self.me] = data
        for rank, part in zip(self.ranks, parts, strict=True):
            if part.numel():
                dist.broadcast(part, rank, group=self.group)
        parts[self.me] = data.clone()  # what was sent is the sender's own
        return [part if part.numel() else None for part in parts]

    def _exchange(self, out: Sequence[torch.Tensor | None], expected: list[int], side: Side) -> Sequence[torch.Tensor]:
        """Bytes from each rank to each rank; every rank knows what it will receive."""
        pieces = [piece for piece in out if piece is not None]
        data = self._sent(pieces[0] if len(pieces) == 1 else torch.cat(pieces) if pieces else None, side)
        (got,) = self._empty([sum(expected)], side)
        sizes = [0 if piece is None else piece.numel() for piece in out]
        dist.all_to_all_single(got, data, expected, sizes, group=self.group)
        parts = got.split(expected)
        return parts if sum(map(bool, expected)) <= 1 else [part.clone() for part in parts]

    def _sent(self, part: torch.Tensor | None, side: Side) -> torch.Tensor:
        if part is None:
            return self._empty([0], side)[0]
        return part if side == "device" else self._on_host(part)

    def _empty(self, sizes: Sequence[int], side: Side) -> list[torch.Tensor]:
        where = self.device if side == "device" else self.host
        return [torch.empty(size, dtype=torch.uint8, device=where) for size in sizes]

    def _on_host(self, data: torch.Tensor) -> torch.Tensor:
        return data.to(self.host)  # the same tensor, if it is there already

    def _check_calls(self, codes: Sequence[int]) -> None:
        # To torch they are all one call: everybody's 512 bytes to everybody.
        if len(set(codes)) > 1:
            calls = [_calls.get(code, "something else") for code in codes]
            raise MismatchError(mismatch.other_method(self.ranks, self.placed(calls)))

    def placed(self, texts: Sequence[str]) -> list[str]:
        """Return what is told of each rank after `heads`, with the line that it is in."""
        lines = self.lines or [0] * self.size
        return [f"{text}, line {line}" if line else text for text, line in zip(texts, lines, strict=True)]

    def _refuse(self, packets: Sequence[Packet], ranks: Sequence[int]) -> None:
        failed = {rank: packet.text for rank, packet in zip(ranks, packets, strict=True) if packet.kind == ERROR}
        if failed:
            raise CollectiveError(f"Nothing was moved: {by_rank(list(failed), list(failed.values()))}")


_calls: dict[int, str] = {}


def known_call(name: str) -> str:
    """Register a call's name, so that ranks in another call can name it; return the name."""
    _calls[_code(name)] = name
    return name


@functools.cache
def _code(name: str) -> int:
    return zlib.crc32(name.encode()) & 0xFFFF


def wait(posted: list[Posted]) -> None:
    """Wait until everything posted is on its way."""
    for work, _ in posted:
        if work is not None:
            work.wait()


@contextlib.contextmanager
def own_error(met: Exception | None) -> Iterator[None]:
    """Raise this rank's own error in place of the one that the block raises while it reports the error to others."""
    try:
        yield
    except CollectiveError as error:
        if isinstance(met, CollectiveError):
            raise met from met.__cause__  # else a traceback would show it once more, as its own cause
        raise error from met


def _empty_head() -> torch.Tensor:
    return torch.empty(HEAD_BYTES, dtype=torch.uint8)


def _rounds(packets: Sequence[Packet]) -> int:
    return sum(flag for side, flag in _ROUNDS.items() if any(packet.size(side) for packet in packets))


def _in_rounds(rounds: int) -> list[Side]:
    return [side for side, flag in _ROUNDS.items() if rounds & flag]
