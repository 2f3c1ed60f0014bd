"""The algorithms of the collectives: the messages of each step, and their costs.

The result equals `plan`'s for every algorithm and number of ranks (`tests/explorer/test_algorithms.py`). Costs are
counted from the messages; the same tests compare them with the textbook.

All ranks of a step send at the same time, and each sends at most one message and receives at most one: the naive
algorithms, in which one rank exchanges messages with all others, take a step for each message. Ranks are renumbered
so that ``src`` or ``dst``, if there is one, comes first.

Sources. Rings, binomial trees, recursive doubling and halving and the folding of ranks beyond a power of
two: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005. The scan in
⌈log₂ W⌉ steps: Hillis and Steele, "Data Parallel Algorithms", 1986. The barrier by dissemination: Hensgen, Finkel and
Manber, "Two Algorithms for Barrier Synchronization", 1988. all_to_all in ⌈log₂ W⌉ steps: Bruck et al., "Efficient
Algorithms for All-to-All Communications in Multiport Message-Passing Systems", 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import number_ops
from ..errors import CollectiveError
from ..pictures import plan as plans
from ..pictures.plan import Cell
from ..short_repr import sketch
from .patterns import (
    ahead,
    all_slots,
    around_ring,
    down_tree,
    filled,
    fold_in,
    fold_out,
    from_hub,
    own_slots,
    powers,
    to_hub,
    up_tree,
)
from .simulation import Board, Cost, Job, Row, Stage, State, divided, result_of, set_up, state_of

NAIVE, RING, TREE, DOUBLING = "naive", "ring", "tree", "recursive doubling"


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective.

    Attributes:
        carry: carries it out.
        title: its name in words.
        formula: see `Simulation`.
        cut: whether data of one piece is cut into as many chunks as there are ranks.
        beside: whether an exclusive result has a slot of its own, beside the running result.
    """

    carry: Callable[[Board, Job], None]
    title: str
    formula: tuple[str, str]
    cut: bool = False
    beside: bool = False


@dataclass(frozen=True)
class Simulation:
    """A collective, carried out.

    Attributes:
        name: "all_reduce".
        algorithm: one of its `ALGORITHMS`.
        title: the algorithm in words.
        formula: steps and data of the busiest rank by the textbook: ("2(W−1)", "2(W−1)/W"); "" where it has none.
        labels: the name of each slot.
        start: what every rank has at first.
        stages: the steps.
        result: what each rank gets, as in `plan`'s after; of a barrier the ranks that are known to have arrived.
        costs: the cost up to the end of each stage.
    """

    name: str
    algorithm: str
    title: str
    formula: tuple[str, str]
    labels: tuple[str, ...]
    start: State
    stages: tuple[Stage, ...]
    result: dict[int, tuple[Cell, ...]]
    costs: tuple[Cost, ...]

    @property
    def cost(self) -> Cost:
        """The total cost."""
        return self.costs[-1] if self.costs else Cost(0, 0, Fraction(), Fraction(), Fraction())


def run(  # noqa: PLR0913 - each is an option of the collective
    name: str,
    algorithm: str,
    values: Sequence[Any],
    *,
    op: str = "sum",
    src: int = 0,
    dst: int = 0,
    exclusive: bool = False,
    ranks: Sequence[int] | None = None,
) -> Simulation:
    """Carry out a collective.

    Args:
        name: one of the names in `ALGORITHMS`.
        algorithm: one of its algorithms.
        values: what each rank brings, as in `plan`; where chunks are needed, a list is cut into as many as there are
            ranks, and a number stands for a block filled with it.
        op: sum, mean, min, max, product, band, bor or bxor.
        src: the rank that gives, of broadcast and scatter.
        dst: the rank that gets, of gather and reduce.
        exclusive: of scan.
        ranks: the group's global ranks; 0 to W-1 by default.

    Raises:
        CollectiveError: the collective or the algorithm does not exist, or the values do not fit.
        OpError: the op does not exist, or is not defined for the values.

    >>> done = run("all_reduce", "ring", [1, 2, 3, 4])
    >>> done.cost.steps, str(done.cost.busiest), done.result[0][0].text
    (6, '3/2', '10')
    """
    if algorithm not in ALGORITHMS.get(name, ()):
        raise CollectiveError(
            f"The explorer has no algorithm {algorithm!r} for {name}; choose one of {', '.join(ALGORITHMS[name])}."
            if name in ALGORITHMS
            else f"The explorer has no {name!r}; choose one of {', '.join(ALGORITHMS)}."
        )
    members = tuple(range(len(values)) if ranks is None else ranks)
    op = number_ops.name_of(op)
    hub = {"broadcast": src, "scatter": src, "gather": dst, "reduce": dst}.get(name, *members[:1])
    whole = plans.plan(name, values, op=op, src=hub, dst=hub, ranks=members)
    job = Job(name, list(values), members.index(hub), op, exclusive, members)
    how = _HOW[name, algorithm]
    board = set_up(job, cut=how.cut, beside=how.beside)
    start = state_of(members, [list(row) for row in board.rows])
    how.carry(board, job)
    if name in plans.REDUCING and op == "mean":
        board.by_itself(
            "each complete sum is divided by the number of ranks in it", lambda _, row: [divided(c) for c in row]
        )
    result = {rank: result_of(job, place, board.rows[place], whole) for place, rank in enumerate(members)}
    stages = tuple(board.stages(members))
    return Simulation(
        name, algorithm, how.title, how.formula, tuple(board.labels), start, stages, result, tuple(board.costs())
    )


# ── the algorithms ──────────────────────────────────────────────────────────────────────────────────


def _through_hub(inwards: Callable[..., None], outwards: Callable[..., None], board: Board, job: Job) -> None:
    """Send to one rank, from one rank, or both: first inwards, then outwards."""
    everything = lambda _v, _n: all_slots(board)  # noqa: E731 - the same for each phase
    of_each = lambda v, n: own_slots(job, v, n)  # noqa: E731
    if job.name in ("gather", "all_gather"):
        inwards(board, job, "gather", of_each, adds=False)
    elif job.name not in ("broadcast", "scatter"):
        inwards(board, job, "arrive" if job.name == "barrier" else "reduce", everything, adds=True)
    if job.name in ("scatter", "reduce_scatter"):
        outwards(board, job, "scatter", of_each, moves=True)
    elif job.name not in ("gather", "reduce"):
        outwards(board, job, "release" if job.name == "barrier" else "broadcast", everything)


def _naive(board: Board, job: Job) -> None:
    """Send everything through one rank, which handles one message at a time."""
    _through_hub(to_hub, from_hub, board, job)


def _tree(board: Board, job: Job) -> None:
    """Send everything through one rank by a binomial tree."""
    _through_hub(up_tree, down_tree, board, job)


def _rings(board: Board, job: Job) -> None:
    """Let every rank send only to the next one."""
    if job.name in ("all_reduce", "reduce_scatter"):
        around_ring(
            board,
            job.size,
            "reduce-scatter",
            "every rank sends a chunk to the next rank, which combines it with its own",
            -1,
            adds=True,
        )
    if job.name in ("all_reduce", "all_gather"):
        around_ring(board, job.size, "all-gather", "every rank sends a complete chunk to the next rank", 0, adds=False)


def _pipeline(board: Board, job: Job) -> None:
    """Send chunk after chunk along a chain from the hub, or to it; several chunks are in transit at the same time."""
    down = job.name == "broadcast"
    chain = [job.at(place) for place in range(job.size)] if down else [job.at(place + 1) for place in range(job.size)]
    for step in range(2 * (job.size - 1)):
        links = [(link, step - link) for link in range(job.size - 1) if 0 <= step - link < job.size]
        sends = [(chain[link], chain[link + 1], [chunk]) for link, chunk in links]
        what = "every chunk in transit moves to the next rank"
        board.step(
            "", what if down else f"{what}, which combines it with its own", sends, adds=not down, moves=not down
        )


def _doubling(board: Board, job: Job) -> None:
    """Let partners exchange all their data; their distance doubles."""
    left = fold_in(board, job)
    for far in powers(left):
        sends = [(place, place ^ far, filled(board, place)) for place in range(left)]
        what = f"partners at distance {far} exchange their data"
        board.step("exchange", what, sends, adds=job.name == "all_reduce")
    fold_out(board, left, job.size, lambda _: all_slots(board))


def _halving(board: Board, job: Job) -> None:
    """Do recursive doubling in reverse: partners swap the halves for each other's side; distances halve."""
    left = fold_in(board, job)
    for far in reversed(powers(left)):
        # What is for the partner's side: slots whose rank (or the one that it stands in for) has the partner's bits.
        theirs = [[s for s in filled(board, p) if not (s % left ^ p ^ far) & far] for p in range(left)]
        sends = [(place, place ^ far, theirs[place]) for place in range(left)]
        board.step(
            "exchange",
            f"partners at distance {far} exchange the halves that belong to the other side",
            sends,
            adds=True,
            moves=True,
        )
    fold_out(board, left, job.size, lambda place: [place])


def _dissemination(board: Board, job: Job) -> None:
    for far in powers(job.size):
        sends = [(place, (place + far) % job.size, [0]) for place in range(job.size)]
        board.step("", f"every rank tells the rank {ahead(far)} which ranks have arrived", sends, adds=True)


def _one_by_one(board: Board, job: Job) -> None:
    """Let every rank in turn send to each of the others."""
    board.by_itself("every rank keeps its own item", _keep_own(board, mine := [list(row) for row in board.rows]))
    for place in range(job.size):
        for other in (other for other in range(job.size) if other != place):
            _give(board, mine, "", f"rank {job.ranks[place]} sends to rank {job.ranks[other]}", [(place, other)])


def _pairwise(board: Board, job: Job) -> None:
    """Let every rank send to the rank k places ahead, in step k."""
    board.by_itself("every rank keeps its own item", _keep_own(board, mine := [list(row) for row in board.rows]))
    for far in range(1, job.size):
        pairs = [(place, (place + far) % job.size) for place in range(job.size)]
        _give(board, mine, "", f"every rank sends to the rank {ahead(far)}", pairs)


def _keep_own(board: Board, mine: list[Row]) -> Callable[[int, Row], Row]:
    board.labels[:] = [label.replace("item", "from rank") for label in board.labels]
    return lambda place, row: [mine[place][place] if slot == place else None for slot in range(len(row))]


def _give(board: Board, mine: list[Row], phase: str, what: str, pairs: list[tuple[int, int]]) -> None:
    """Put each sender's item for its receiver into the receiver's slot for the sender."""
    for src, dst in pairs:
        board.rows[dst][src] = mine[src][dst]
    board.keep(phase, what, [(src, dst, (src,), False) for src, dst in pairs])


def _bruck(board: Board, job: Job) -> None:
    """Move items by the bits of their distance, so that each step moves half of them (Bruck et al. 1997)."""
    size = job.size
    board.labels[:] = [f"distance {far}" for far in range(size)]
    board.by_itself(
        "every rank sorts its items by their distance to the receiver",
        lambda p, row: [row[(p + i) % size] for i in range(size)],
    )
    for far in powers(size):
        slots = [slot for slot in range(size) if slot & far]
        sends = [(place, (place + far) % size, slots) for place in range(size)]
        board.step("", f"items whose distance has the bit {far} set move {ahead(far)}", sends)
    board.by_itself(
        "every rank sorts the received items by sender", lambda p, row: [row[(p - s) % size] for s in range(size)]
    )


def _chain(board: Board, job: Job) -> None:
    """Let each rank wait for the previous one."""
    carry = len(board.labels) - 1  # exclusive: the running result has a slot beside the output
    for place in range(job.size - 1):
        what = f"rank {job.ranks[place]} sends its running result to rank {job.ranks[place + 1]}"
        got = board.rows[place][carry]
        board.step("", what, [(place, place + 1, [carry])], adds=True)
        if carry:
            board.rows[place + 1][0] = got
            board.steps[-1][3][place + 1][0] = got
    if carry:
        _give_nothing(board, job)


def _hillis_steele(board: Board, job: Job) -> None:
    """Add what each rank receives from the rank 1, 2, 4, … places before it: each sum covers twice as many ranks."""
    for far in powers(job.size):
        sends = [(place, place + far, [0]) for place in range(job.size - far)]
        board.step("", f"every rank sends its partial result to the rank {ahead(far)}", sends, adds=True)
    if job.exclusive:
        board.step(
            "shift", "every rank sends its result to the next rank", [(p, p + 1, [0]) for p in range(job.size - 1)]
        )
        _give_nothing(board, job)


def _give_nothing(board: Board, job: Job) -> None:
    """Give the first rank of an exclusive scan what changes nothing; of a rank alone no step shows it."""
    value = plans.combine(job.op, [], like=[job.values[0]])
    board.rows[0][0] = Cell(sketch(value), (), value)
    if board.steps:
        board.steps[-1][3][0][0] = board.rows[0][0]


_HUB, _BINOMIAL, _LOG = "everything through one rank", "a binomial tree", "⌈log₂ W⌉"
_FOLDED = "recursive doubling; ranks beyond a power of two are folded in and out"

_HOW = {
    ("barrier", NAIVE): Algorithm(_naive, _HUB, ("2(W−1)", "0")),
    ("barrier", TREE): Algorithm(_tree, f"{_BINOMIAL} up and down", (f"2{_LOG}", "0")),
    ("barrier", DOUBLING): Algorithm(
        _dissemination, "dissemination: each rank notifies the rank 1, 2, 4, … places ahead", (_LOG, "0")
    ),
    ("broadcast", NAIVE): Algorithm(_naive, _HUB, ("W−1", "W−1")),
    ("broadcast", RING): Algorithm(_pipeline, "a pipeline of chunks around the ring", ("2(W−1)", "1"), cut=True),
    ("broadcast", TREE): Algorithm(_tree, _BINOMIAL, (_LOG, _LOG)),
    ("scatter", NAIVE): Algorithm(_naive, _HUB, ("W−1", "(W−1)/W")),
    ("scatter", TREE): Algorithm(_tree, f"{_BINOMIAL}: each rank forwards the items of its subtree", (_LOG, "(W−1)/W")),
    ("gather", NAIVE): Algorithm(_naive, _HUB, ("W−1", "1")),
    ("gather", TREE): Algorithm(_tree, f"{_BINOMIAL}: each rank sends the items of its subtree", (_LOG, "")),
    ("all_gather", NAIVE): Algorithm(_naive, f"{_HUB}, which sends all to each", ("2(W−1)", "W(W−1)")),
    ("all_gather", RING): Algorithm(_rings, "a ring: data goes around once", ("W−1", "W−1")),
    ("all_gather", TREE): Algorithm(_tree, f"{_BINOMIAL} up, then down with all items", (f"2{_LOG}", f"W{_LOG}")),
    ("all_gather", DOUBLING): Algorithm(_doubling, _FOLDED, ("", "")),
    ("reduce", NAIVE): Algorithm(_naive, _HUB, ("W−1", "1")),
    ("reduce", RING): Algorithm(_pipeline, "a pipeline of chunks around the ring", ("2(W−1)", "1"), cut=True),
    ("reduce", TREE): Algorithm(_tree, _BINOMIAL, (_LOG, "1")),
    ("all_reduce", NAIVE): Algorithm(_naive, f"{_HUB}, which sends the result to each", ("2(W−1)", "W−1")),
    ("all_reduce", RING): Algorithm(
        _rings, "a ring twice: reduce-scatter, then all-gather", ("2(W−1)", "2(W−1)/W"), cut=True
    ),
    ("all_reduce", TREE): Algorithm(_tree, f"{_BINOMIAL} up and down", (f"2{_LOG}", _LOG)),
    ("all_reduce", DOUBLING): Algorithm(_doubling, _FOLDED, ("", "")),
    ("reduce_scatter", NAIVE): Algorithm(_naive, f"{_HUB}, which sends out the shares", ("2(W−1)", "1")),
    ("reduce_scatter", RING): Algorithm(_rings, "a ring: each share goes around once", ("W−1", "(W−1)/W")),
    ("reduce_scatter", TREE): Algorithm(_tree, f"{_BINOMIAL} up, then down with the shares", (f"2{_LOG}", "")),
    ("reduce_scatter", DOUBLING): Algorithm(
        _halving, "recursive halving: recursive doubling in reverse order", ("", "")
    ),
    ("all_to_all", NAIVE): Algorithm(_one_by_one, "one message at a time", ("W(W−1)", "(W−1)/W")),
    ("all_to_all", RING): Algorithm(
        _pairwise, "pairwise: in step k, each rank sends to the rank k places ahead", ("W−1", "(W−1)/W")
    ),
    ("all_to_all", DOUBLING): Algorithm(_bruck, "Bruck's algorithm: fewer steps, more data", (_LOG, "")),
    ("scan", NAIVE): Algorithm(_chain, "a chain: each rank waits for the previous one", ("W−1", "1"), beside=True),
    ("scan", DOUBLING): Algorithm(_hillis_steele, "Hillis and Steele's algorithm: distances 1, 2, 4, …", ("", "")),
}

ALGORITHMS: dict[str, tuple[str, ...]] = {}
"""The algorithms of each collective, the simplest first."""
for _name, _algorithm in _HOW:
    ALGORITHMS[_name] = (*ALGORITHMS.get(_name, ()), _algorithm)
