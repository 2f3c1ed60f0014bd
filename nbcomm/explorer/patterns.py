"""The patterns of messages that algorithms share: to a hub and from it, up and down a tree, around a ring.

Places of a tree are counted from the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..pictures import plan as plans
from .simulation import Board, Job


def all_slots(board: Board) -> Iterable[int]:
    """Return every slot, whatever the place."""
    return range(len(board.labels))


def own_slots(job: Job, first: int, count: int) -> list[int]:
    """Return the slots of up to ``count`` places from ``first`` on."""
    return [job.at(place) for place in range(first, min(first + count, job.size))]


def powers(size: int) -> list[int]:
    """Return 1, 2, 4, … below the size."""
    return [1 << bit for bit in range((size - 1).bit_length())]


def to_hub(board: Board, job: Job, phase: str, slots: Callable[[int, int], Iterable[int]], *, adds: bool) -> None:
    """Let one rank after the other send to the hub."""
    for v in range(1, job.size):
        what = f"rank {job.ranks[job.at(v)]} sends to rank {job.ranks[job.hub]}"
        board.step(phase, what, [(job.at(v), job.hub, slots(v, 1))], adds=adds, moves=adds and bool(board.op))


def from_hub(
    board: Board, job: Job, phase: str, slots: Callable[[int, int], Iterable[int]], *, moves: bool = False
) -> None:
    """Let the hub send to one rank after the other."""
    for v in range(1, job.size):
        what = f"rank {job.ranks[job.hub]} sends to rank {job.ranks[job.at(v)]}"
        board.step(phase, what, [(job.hub, job.at(v), slots(v, 1))], moves=moves)


def up_tree(board: Board, job: Job, phase: str, slots: Callable[[int, int], Iterable[int]], *, adds: bool) -> None:
    """Send up a binomial tree to the hub: in each step every second remaining rank sends its data and is done."""
    for far in powers(job.size):
        pairs = [(v, v - far) for v in range(far, job.size, 2 * far)]
        sends = [(job.at(v), job.at(to), slots(v, far)) for v, to in pairs]
        board.step(
            phase,
            f"every second remaining rank sends to the rank {_far(far)}",
            sends,
            adds=adds,
            moves=adds and bool(board.op),
        )


def down_tree(
    board: Board, job: Job, phase: str, slots: Callable[[int, int], Iterable[int]], *, moves: bool = False
) -> None:
    """Send down a binomial tree from the hub: each step doubles the number of ranks that have the data."""
    for far in reversed(powers(job.size)):
        pairs = [(v, v + far) for v in range(0, job.size - far, 2 * far)]
        sends = [(job.at(v), job.at(to), slots(to, far)) for v, to in pairs]
        board.step(phase, f"every rank reached so far sends to the rank {_far(far)}", sends, moves=moves)


def _far(distance: int) -> str:
    return "next to it" if distance == 1 else f"{distance} places away"


def ahead(distance: int) -> str:
    """Return how far ahead in the order of ranks, in words."""
    return f"{distance} place{'s' if distance > 1 else ''} ahead"


def around_ring(  # noqa: PLR0913 - of one pattern
    board: Board, size: int, phase: str, what: str, shift: int, *, adds: bool
) -> None:
    """Pass one slot of every rank on, W−1 times: first the slot at the distance ``shift`` from the rank's place."""
    for step in range(size - 1):
        sends = [(place, (place + 1) % size, [(place + shift - step) % size]) for place in range(size)]
        board.step(phase, what, sends, adds=adds, moves=adds)


def fold_in(board: Board, job: Job) -> int:
    """Let the ranks beyond a power of two send their data to other ranks; return how many ranks remain."""
    left = 1 << (job.size.bit_length() - 1)
    sends = [(place, place - left, filled(board, place)) for place in range(left, job.size)]
    board.step(
        "fold in",
        f"each rank after the first {left} sends its data to one of them",
        sends,
        adds=job.name in plans.REDUCING,
    )
    return left


def fold_out(board: Board, left: int, size: int, slots: Callable[[int], Iterable[int]]) -> None:
    """Give these slots to the ranks that were folded in."""
    sends = [(place - left, place, slots(place)) for place in range(left, size)]
    board.step("fold out", "the ranks that were folded in receive the result", sends)


def filled(board: Board, place: int) -> list[int]:
    """Return the slots in which a place has something."""
    return [slot for slot, cell in enumerate(board.rows[place]) if cell]
