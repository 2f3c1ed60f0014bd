"""Every algorithm gives what the plan gives, and costs what the textbook says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from nbcomm.errors import CollectiveError, OpError
from nbcomm.explorer import algorithms
from nbcomm.explorer.algorithms import ALGORITHMS, Simulation, run
from nbcomm.explorer.patterns import ahead
from nbcomm.explorer.simulation import Cost
from nbcomm.number_ops import PAIRS
from nbcomm.pictures.plan import NAMES, REDUCING, Cell, made_up, plan

SIZES = range(2, 17)
EACH = [(name, algorithm) for name, some in ALGORITHMS.items() for algorithm in some]


def options(name: str, size: int) -> Iterator[dict[str, object]]:
    """Every op, and every src or dst, that the call may have."""
    if name in ("broadcast", "scatter"):
        yield from ({"src": rank} for rank in range(size))
    elif name == "gather":
        yield from ({"dst": rank} for rank in range(size))
    elif name == "reduce":
        yield from ({"op": op, "dst": (size - 1) * (at % 2)} for at, op in enumerate(PAIRS))
        yield from ({"dst": rank} for rank in range(size))
    elif name == "scan":
        yield from ({"op": op, "exclusive": exclusive} for op in PAIRS for exclusive in (False, True))
    elif name in REDUCING:
        yield from ({"op": op} for op in PAIRS)
    else:
        yield {}


def same(one: tuple[Cell, ...], other: tuple[Cell, ...]) -> bool:
    """Cells compare without their values, and NaN is not itself."""
    return one == other and all(
        a.value == b.value or (a.value != a.value and b.value != b.value) for a, b in zip(one, other, strict=True)
    )


def one_port(done: Simulation) -> bool:
    """Whether no rank sends two messages, or receives two, in one step."""
    ends = [[[m.src for m in stage.messages], [m.dst for m in stage.messages]] for stage in done.stages]
    return all(len(set(side)) == len(side) for both in ends for side in both)


def test_every_collective_but_messages_has_algorithms() -> None:
    assert set(ALGORITHMS) == set(NAMES) - {"send", "sendrecv"}
    assert {name for _, name in EACH} == {"naive", "ring", "tree", "recursive doubling"}


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_the_result_is_the_plans(name: str, algorithm: str) -> None:
    for size in SIZES:
        values = made_up(name, size)
        for how in options(name, size):
            done = run(name, algorithm, values, **how)
            assert one_port(done), (size, how)
            if name == "barrier":
                assert {cell.sources for (cell,) in done.result.values()} == {tuple(range(size))}
                continue
            after = plan(name, values, **how).after
            assert done.result.keys() == after.keys()
            assert all(same(done.result[rank], after[rank]) for rank in after), (size, how)


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_nothing_comes_from_nowhere(name: str, algorithm: str) -> None:
    """What a rank has in a slot after a step it had before, or it arrived in a message of that step."""
    for size in (2, 5, 8, 13):
        done = run(name, algorithm, made_up(name, size))
        before = done.start
        for stage in done.stages:
            got = {(m.dst, chunk) for m in stage.messages for chunk in m.chunks}
            for rank, row in stage.state.items():
                for slot, cell in enumerate(row):
                    if stage.messages and cell is not None and (rank, slot) not in got:
                        assert cell == before[rank][slot] or name == "scan", (size, stage.name)
            before = stage.state


@pytest.mark.parametrize("name", ["broadcast", "reduce", "all_reduce", "scan"])
def test_lists_are_cut_and_joined(name: str) -> None:
    for size, length in [(4, 8), (4, 6), (5, 3), (3, 0)]:
        values = [[10 * rank + item for item in range(length)] for rank in range(size)]
        for algorithm in ALGORITHMS[name]:
            assert run(name, algorithm, values).result == plan(name, values).after, (algorithm, size, length)


def test_tensors_and_texts_are_carried_too() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.arange(6) + rank for rank in range(4)]
    for algorithm in ALGORITHMS["all_reduce"]:
        assert run("all_reduce", algorithm, arrays, op="mean").result == plan("all_reduce", arrays, op="mean").after
    for algorithm in ALGORITHMS["broadcast"]:
        assert (
            run("broadcast", algorithm, ["a", "b", "c"], src=1).result
            == plan("broadcast", ["a", "b", "c"], src=1).after
        )


def test_ranks_of_a_group_keep_their_names() -> None:
    done = run("reduce", "tree", [1, 2, 3], dst=7, ranks=[2, 5, 7])
    assert [cell.text for cell in done.result[7]] == ["6"]
    assert {m.dst for m in done.stages[-1].messages} == {7}
    assert "rank 5 sends to rank 7" in "".join(
        s.name for s in run("gather", "naive", [1, 2, 3], dst=7, ranks=[2, 5, 7]).stages
    )


def value_of(formula: str, size: int) -> Fraction:
    """Evaluate a formula as it is printed."""
    text = formula.replace("⌈log₂ W⌉", "L").replace("\N{MINUS SIGN}", "-")
    for factor in ("(", "W", "L"):
        for before in ("2", "W", ")"):
            text = text.replace(f"{before}{factor}", f"{before}*{factor}")
    text = text.replace("/W", "*Fraction(1, W)")
    return Fraction(eval(text, {"W": size, "L": math.ceil(math.log2(size)), "Fraction": Fraction}))  # noqa: S307 - our own


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_the_cost_is_what_the_formula_beside_it_says(name: str, algorithm: str) -> None:
    for size in SIZES:
        done = run(name, algorithm, made_up(name, size))
        for formula, counted in zip(done.formula, (done.cost.steps, done.cost.busiest), strict=True):
            assert not formula or value_of(formula, size) == counted, size


def test_the_cost_is_the_textbooks() -> None:
    """Thakur, Rabenseifner and Gropp 2005; of recursive doubling for powers of two, and with two more steps else."""
    for size in SIZES:
        log, whole = math.ceil(math.log2(size)), 2 ** math.floor(math.log2(size))
        folded = 0 if whole == size else 2
        w = Fraction(size)
        cost = {(name, algorithm): run(name, algorithm, made_up(name, size)).cost for name, algorithm in EACH}
        ring, doubling = cost["all_reduce", "ring"], cost["all_reduce", "recursive doubling"]
        assert (ring.steps, ring.busiest, ring.total) == (2 * (size - 1), 2 * (w - 1) / w, 2 * (w - 1))
        assert doubling.steps == int(math.log2(whole)) + folded
        assert doubling.busiest == int(math.log2(whole)) + bool(folded)
        assert cost["broadcast", "tree"].messages == cost["reduce", "tree"].messages == size - 1
        assert cost["broadcast", "tree"].steps == cost["scatter", "tree"].steps == cost["gather", "tree"].steps == log
        assert cost["scatter", "tree"].busiest == (w - 1) / w
        assert cost["gather", "tree"].received == cost["gather", "naive"].received == w - 1
        assert cost["barrier", "recursive doubling"].messages == size * log
        assert cost["scan", "recursive doubling"].steps == log
        assert cost["reduce_scatter", "ring"].total == size - 1
        if not folded:
            assert (
                cost["reduce_scatter", "recursive doubling"].steps
                == cost["all_gather", "recursive doubling"].steps
                == log
            )
            assert cost["reduce_scatter", "recursive doubling"].busiest == (w - 1) / w
            assert cost["all_gather", "recursive doubling"].busiest == w - 1
            assert cost["all_to_all", "recursive doubling"].busiest == Fraction(log, 2)
            assert cost["all_to_all", "recursive doubling"].steps == log


def test_an_exclusive_scan_costs_one_step_more() -> None:
    assert run("scan", "recursive doubling", [1] * 8, exclusive=True).cost.steps == 4
    assert run("scan", "naive", [1] * 8, exclusive=True).cost.steps == 7


def test_steps_are_named_in_words() -> None:
    names = [stage.name for stage in run("all_reduce", "ring", [1, 2, 3, 4], op="mean").stages]
    assert (
        names[1]
        == "reduce-scatter, step 2 of 3: every rank sends a chunk to the next rank, which combines it with its own"
    )
    assert names[3] == "all-gather, step 1 of 3: every rank sends a complete chunk to the next rank"
    assert names[6] == "no message: each complete sum is divided by the number of ranks in it"


HUB = {"rank # sends to rank #"}
UP = {f"every second remaining rank sends to the rank {far}" for far in ("next to it", "# places away")}
DOWN = {f"every rank reached so far sends to the rank {far}" for far in ("next to it", "# places away")}
AHEAD = ("# place ahead", "# places ahead")
ADDS = {"every rank sends a chunk to the next rank, which combines it with its own"}
ON = {"every rank sends a complete chunk to the next rank"}
CHUNK = "every chunk in transit moves to the next rank"
KEEPS = {"every rank keeps its own item"}
FOLDED = {
    "fold in": {"each rank after the first # sends its data to one of them"},
    "fold out": {"the ranks that were folded in receive the result"},
    "exchange": {"partners at distance # exchange their data"},
}
PHASES = {
    ("barrier", "naive"): {"arrive": HUB, "release": HUB},
    ("barrier", "tree"): {"arrive": UP, "release": DOWN},
    ("barrier", "recursive doubling"): {
        "": {f"every rank tells the rank {far} which ranks have arrived" for far in AHEAD}
    },
    ("broadcast", "naive"): {"broadcast": HUB},
    ("broadcast", "ring"): {"": {CHUNK}},
    ("broadcast", "tree"): {"broadcast": DOWN},
    ("scatter", "naive"): {"scatter": HUB},
    ("scatter", "tree"): {"scatter": DOWN},
    ("gather", "naive"): {"gather": HUB},
    ("gather", "tree"): {"gather": UP},
    ("all_gather", "naive"): {"gather": HUB, "broadcast": HUB},
    ("all_gather", "ring"): {"all-gather": ON},
    ("all_gather", "tree"): {"gather": UP, "broadcast": DOWN},
    ("all_gather", "recursive doubling"): FOLDED,
    ("reduce", "naive"): {"reduce": HUB},
    ("reduce", "ring"): {"": {f"{CHUNK}, which combines it with its own"}},
    ("reduce", "tree"): {"reduce": UP},
    ("all_reduce", "naive"): {"reduce": HUB, "broadcast": HUB},
    ("all_reduce", "ring"): {"reduce-scatter": ADDS, "all-gather": ON},
    ("all_reduce", "tree"): {"reduce": UP, "broadcast": DOWN},
    ("all_reduce", "recursive doubling"): FOLDED,
    ("reduce_scatter", "naive"): {"reduce": HUB, "scatter": HUB},
    ("reduce_scatter", "ring"): {"reduce-scatter": ADDS},
    ("reduce_scatter", "tree"): {"reduce": UP, "scatter": DOWN},
    ("reduce_scatter", "recursive doubling"): {
        **FOLDED,
        "exchange": {"partners at distance # exchange the halves that belong to the other side"},
    },
    ("all_to_all", "naive"): {"no message": KEEPS, "": HUB},
    ("all_to_all", "ring"): {"no message": KEEPS, "": {f"every rank sends to the rank {far}" for far in AHEAD}},
    ("all_to_all", "recursive doubling"): {
        "no message": {
            "every rank sorts its items by their distance to the receiver",
            "every rank sorts the received items by sender",
        },
        "": {f"items whose distance has the bit # set move {far}" for far in AHEAD},
    },
    ("scan", "naive"): {"": {"rank # sends its running result to rank #"}},
    ("scan", "recursive doubling"): {"": {f"every rank sends its partial result to the rank {far}" for far in AHEAD}},
}


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_every_step_is_named_by_its_phase_its_number_and_what_is_sent(name: str, algorithm: str) -> None:
    told: dict[str, set[str]] = {}
    numbers: dict[str, list[tuple[int, int]]] = {}
    for stage in run(name, algorithm, made_up(name, 6)).stages:
        before, _, what = stage.name.partition(": ")
        phase, _, step = before.rpartition("step ")
        phase = phase.removesuffix(", ") if step != before else before
        told.setdefault(phase, set()).add(re.sub("[0-9]+", "#", what))
        if step != before:
            number, _, count = step.partition(" of ")
            numbers.setdefault(phase, []).append((int(number), int(count)))
    assert told == PHASES[name, algorithm]
    for pairs in numbers.values():
        assert pairs == [(number, len(pairs)) for number in range(1, len(pairs) + 1)]


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_messages_go_where_the_words_say(name: str, algorithm: str) -> None:
    for size in (2, 5, 8):
        for stage in run(name, algorithm, made_up(name, size)).stages:
            words = re.search(
                "([0-9]+) places? (?:ahead|away)|distance ([0-9]+)|next|rank ([0-9]+) .* rank ([0-9]+)", stage.name
            )
            for message in stage.messages if words else ():
                far = (message.dst - message.src) % size
                if words[3]:
                    assert (message.src, message.dst) == (int(words[3]), int(words[4])), stage.name
                elif words[2]:
                    assert abs(message.dst - message.src) == int(words[2]), stage.name
                elif "every second" in stage.name:
                    assert -far % size == int(words[1] or 1), stage.name
                else:
                    assert far == int(words[1] or 1), stage.name


def test_the_ranks_of_a_message_are_named() -> None:
    def named(name: str, algorithm: str, **more: Any) -> list[str]:
        stages = run(name, algorithm, made_up(name, 3), ranks=[2, 5, 7], **more).stages
        return [stage.name.partition(": ")[2] for stage in stages if stage.messages]

    assert named("gather", "naive", dst=5) == ["rank 7 sends to rank 5", "rank 2 sends to rank 5"]
    assert named("broadcast", "naive", src=5) == ["rank 5 sends to rank 7", "rank 5 sends to rank 2"]
    assert named("scan", "naive") == [f"rank {a} sends its running result to rank {b}" for a, b in [(2, 5), (5, 7)]]
    pairs = [(2, 5), (2, 7), (5, 2), (5, 7), (7, 2), (7, 5)]
    assert named("all_to_all", "naive") == [f"rank {src} sends to rank {dst}" for src, dst in pairs]
    assert [stage.name for stage in run("scan", "recursive doubling", [1, 2, 3], exclusive=True).stages[-1:]] == [
        "shift, step 1 of 1: every rank sends its result to the next rank"
    ]


@pytest.mark.parametrize(
    ("name", "algorithm"), [each for each in EACH if each[0] in {"reduce", "reduce_scatter", "scatter"}]
)
def test_what_is_handed_over_is_in_one_place_only(name: str, algorithm: str) -> None:
    for size in (2, 4, 6, 8):
        for stage in run(name, algorithm, made_up(name, size)).stages:
            if stage.name.startswith(("exchange", "fold")) and size == 6:
                continue  # the ranks beyond a power of two keep what they have
            for cells in zip(*stage.state.values(), strict=True):
                sources = [source for cell in cells if cell is not None for source in cell.sources]
                assert len(sources) == len(set(sources)), (size, stage.name)


@pytest.mark.parametrize(
    ("name", "algorithm"), [each for each in EACH if each[0] in {"barrier", "broadcast", "gather", "all_gather"}]
)
def test_who_passes_something_on_keeps_it(name: str, algorithm: str) -> None:
    for size in (2, 5, 8):
        done = run(name, algorithm, made_up(name, size))
        before = done.start
        for stage in done.stages:
            for rank, row in stage.state.items():
                assert all(now is not None for was, now in zip(before[rank], row, strict=True) if was is not None)
            before = stage.state


HUBS = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
AROUND = (
    "0>1:0 1>2:1 2>3:2 3>4:3 4>0:4 | 0>1:4 1>2:0 2>3:1 3>4:2 4>0:3 | "
    "0>1:3 1>2:4 2>3:0 3>4:1 4>0:2 | 0>1:2 1>2:3 2>3:4 3>4:0 4>0:1"
)
REDUCED = (
    "0+1:4 1+2:0 2+3:1 3+4:2 4+0:3 | 0+1:3 1+2:4 2+3:0 3+4:1 4+0:2 | "
    "0+1:2 1+2:3 2+3:4 3+4:0 4+0:1 | 0+1:1 1+2:2 2+3:3 3+4:4 4+0:0"
)
THERE = "1+0:0 | 2+0:0 | 3+0:0 | 4+0:0"
BACK = "0>1:0 | 0>2:0 | 0>3:0 | 0>4:0"
TREE_THERE = "1+0:0 3+2:0 | 2+0:0 | 4+0:0"
TREE_BACK = "0>4:0 | 0>2:0 | 0>1:0 2>3:0"
SENT = {
    ("barrier", "naive"): f"{THERE} | {BACK}",
    ("barrier", "tree"): f"{TREE_THERE} | {TREE_BACK}",
    ("barrier", "recursive doubling"): (
        "0+1:0 1+2:0 2+3:0 3+4:0 4+0:0 | 0+2:0 1+3:0 2+4:0 3+0:0 4+1:0 | 0+4:0 1+0:0 2+1:0 3+2:0 4+3:0"
    ),
    ("broadcast", "naive"): "1>2:0 | 1>3:0 | 1>4:0 | 1>0:0",
    ("broadcast", "ring"): (
        "1>2:0 | 1>2:1 2>3:0 | 1>2:2 2>3:1 3>4:0 | 1>2:3 2>3:2 3>4:1 4>0:0 | 1>2:4 2>3:3 3>4:2 4>0:1 | "
        "2>3:4 3>4:3 4>0:2 | 3>4:4 4>0:3 | 4>0:4"
    ),
    ("broadcast", "tree"): "1>0:0 | 1>3:0 | 1>2:0 3>4:0",
    ("scatter", "naive"): "1>2:2 | 1>3:3 | 1>4:4 | 1>0:0",
    ("scatter", "tree"): "1>0:0 | 1>3:34 | 1>2:2 3>4:4",
    ("gather", "naive"): "2>1:2 | 3>1:3 | 4>1:4 | 0>1:0",
    ("gather", "tree"): "2>1:2 4>3:4 | 3>1:34 | 0>1:0",
    ("all_gather", "naive"): "1>0:1 | 2>0:2 | 3>0:3 | 4>0:4 | 0>1:01234 | 0>2:01234 | 0>3:01234 | 0>4:01234",
    ("all_gather", "ring"): AROUND,
    ("all_gather", "tree"): "1>0:1 3>2:3 | 2>0:23 | 4>0:4 | 0>4:01234 | 0>2:01234 | 0>1:01234 2>3:01234",
    ("all_gather", "recursive doubling"): (
        "4>0:4 | 0>1:04 1>0:1 2>3:2 3>2:3 | 0>2:014 1>3:014 2>0:23 3>1:23 | 0>4:01234"
    ),
    ("reduce", "naive"): "2+1:0 | 3+1:0 | 4+1:0 | 0+1:0",
    ("reduce", "ring"): (
        "2+3:0 | 2+3:1 3+4:0 | 2+3:2 3+4:1 4+0:0 | 2+3:3 3+4:2 4+0:1 0+1:0 | 2+3:4 3+4:3 4+0:2 0+1:1 | "
        "3+4:4 4+0:3 0+1:2 | 4+0:4 0+1:3 | 0+1:4"
    ),
    ("reduce", "tree"): "2+1:0 4+3:0 | 3+1:0 | 0+1:0",
    ("all_reduce", "naive"): f"{THERE} | {BACK}",
    ("all_reduce", "ring"): f"{REDUCED} | {AROUND}",
    ("all_reduce", "tree"): f"{TREE_THERE} | {TREE_BACK}",
    ("all_reduce", "recursive doubling"): ("4+0:0 | 0+1:0 1+0:0 2+3:0 3+2:0 | 0+2:0 1+3:0 2+0:0 3+1:0 | 0>4:0"),
    ("reduce_scatter", "naive"): "1+0:01234 | 2+0:01234 | 3+0:01234 | 4+0:01234 | 0>1:1 | 0>2:2 | 0>3:3 | 0>4:4",
    ("reduce_scatter", "ring"): REDUCED,
    ("reduce_scatter", "tree"): "1+0:01234 3+2:01234 | 2+0:01234 | 4+0:01234 | 0>4:4 | 0>2:23 | 0>1:1 2>3:3",
    ("reduce_scatter", "recursive doubling"): (
        "4+0:01234 | 0+2:23 1+3:23 2+0:014 3+1:014 | 0+1:1 1+0:04 2+3:3 3+2:2 | 0>4:4"
    ),
    ("all_to_all", "naive"): "- | " + " | ".join(f"{a}>{b}:{a}" for a in range(5) for b in range(5) if a != b),
    ("all_to_all", "ring"): (
        "- | 0>1:0 1>2:1 2>3:2 3>4:3 4>0:4 | 0>2:0 1>3:1 2>4:2 3>0:3 4>1:4 | "
        "0>3:0 1>4:1 2>0:2 3>1:3 4>2:4 | 0>4:0 1>0:1 2>1:2 3>2:3 4>3:4"
    ),
    ("all_to_all", "recursive doubling"): (
        "- | 0>1:13 1>2:13 2>3:13 3>4:13 4>0:13 | 0>2:23 1>3:23 2>4:23 3>0:23 4>1:23 | "
        "0>4:4 1>0:4 2>1:4 3>2:4 4>3:4 | -"
    ),
    ("scan", "naive"): "0+1:0 | 1+2:0 | 2+3:0 | 3+4:0",
    ("scan", "recursive doubling"): "0+1:0 1+2:0 2+3:0 3+4:0 | 0+2:0 1+3:0 2+4:0 | 0+4:0",
}
"""What 5 ranks send in each step, where rank 1 is the src or dst: sender>receiver:slots, a + where it is combined."""


def sent(done: Simulation) -> str:
    """The messages, as above."""
    return " | ".join(
        " ".join(f"{m.src}{'>+'[m.adds]}{m.dst}:{''.join(map(str, m.chunks))}" for m in stage.messages) or "-"
        for stage in done.stages
    )


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_who_sends_what_to_whom(name: str, algorithm: str) -> None:
    done = run(name, algorithm, made_up(name, 5), **{HUBS[name]: 1} if name in HUBS else {})
    assert sent(done) == SENT[name, algorithm]


def hands_over(name: str, algorithm: str, phase: str) -> bool:
    """Whether a sender has no more of what it sends in this phase."""
    in_parts = (name, algorithm) in {("reduce", "ring"), ("reduce_scatter", "recursive doubling")}
    return phase in {"reduce", "scatter", "reduce-scatter"} or (in_parts and phase in {"", "exchange"})


@pytest.mark.parametrize(("name", "algorithm"), [each for each in EACH if each[0] != "all_to_all"])
def test_the_state_is_what_the_messages_make_of_it(name: str, algorithm: str) -> None:
    for size in (2, 5, 7, 8):
        done = run(name, algorithm, made_up(name, size))
        state = sources_of(done.start)
        for stage in done.stages:
            before = {rank: list(row) for rank, row in state.items()}
            phase = stage.name.rpartition("step ")[0].removesuffix(", ")
            for message in stage.messages if hands_over(name, algorithm, phase) else ():
                for chunk in message.chunks:
                    state[message.src][chunk] = None
            for message in stage.messages:
                row = state[message.dst]
                for chunk in message.chunks:
                    new = before[message.src][chunk]
                    row[chunk] = new | row[chunk] if message.adds and new and row[chunk] else new
            assert sources_of(stage.state) == state, (size, stage.name)


def sources_of(state: dict[int, tuple[Cell | None, ...]]) -> dict[int, list[set[int] | None]]:
    return {rank: [None if cell is None else set(cell.sources) for cell in row] for rank, row in state.items()}


def texts(state: dict[int, tuple[Cell | None, ...]]) -> list[str]:
    """What each rank has in its slots, a . for nothing."""
    return [" ".join("." if cell is None else cell.text for cell in row) for row in state.values()]


def test_an_item_of_an_all_to_all_lies_in_its_senders_slot() -> None:
    for algorithm in ("naive", "ring"):
        done = run("all_to_all", algorithm, made_up("all_to_all", 3))
        assert done.labels == ("from rank 0", "from rank 1", "from rank 2")
        assert texts(done.start) == ["11 12 13", "21 22 23", "31 32 33"]
        assert texts(done.stages[0].state) == ["11 . .", ". 22 .", ". . 33"]
        assert texts(done.stages[-1].state) == ["11 21 31", "12 22 32", "13 23 33"]
    assert texts(run("all_to_all", "naive", made_up("all_to_all", 3)).stages[1].state) == [
        "11 . .",
        "12 22 .",
        ". . 33",
    ]
    assert texts(done.stages[1].state) == ["11 . 31", "12 22 .", ". 23 33"]


def test_items_of_brucks_all_to_all_lie_by_their_distance() -> None:
    done = run("all_to_all", "recursive doubling", made_up("all_to_all", 3))
    assert done.labels == ("distance 0", "distance 1", "distance 2")
    assert [texts(stage.state) for stage in done.stages] == [
        ["11 12 13", "22 23 21", "33 31 32"],
        ["11 31 13", "22 12 21", "33 23 32"],
        ["11 31 21", "22 12 32", "33 23 13"],
        ["11 21 31", "12 22 32", "13 23 33"],
    ]


def test_what_an_exclusive_scan_passes_on_lies_beside_its_result() -> None:
    done = run("scan", "naive", [1, 2, 3, 4], exclusive=True)
    assert done.labels == ("out", "running result")
    assert sent(done) == "0+1:1 | 1+2:1 | 2+3:1"
    assert [texts(stage.state) for stage in done.stages] == [
        [". 1", "1 3", ". 3", ". 4"],
        [". 1", "1 3", "3 6", ". 4"],
        ["0 1", "1 3", "3 6", "6 10"],
    ]


def test_hillis_and_steeles_exclusive_scan_ends_with_a_shift() -> None:
    done = run("scan", "recursive doubling", [1, 2, 3, 4], exclusive=True)
    assert sent(done) == "0+1:0 1+2:0 2+3:0 | 0+2:0 1+3:0 | 0>1:0 1>2:0 2>3:0"
    assert [texts(stage.state) for stage in done.stages] == [
        ["1", "3", "5", "7"],
        ["1", "3", "6", "10"],
        ["0", "1", "3", "6"],
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS["scan"])
def test_the_first_of_an_exclusive_scan_gets_what_changes_nothing_in_the_shape_of_its_own(algorithm: str) -> None:
    done = run("scan", algorithm, [[5, 6], [7, 8], [9, 9]], op="product", exclusive=True)
    assert done.result == plan("scan", [[5, 6], [7, 8], [9, 9]], op="product", exclusive=True).after
    first = done.result[0][0]
    assert (first.text, first.sources, first.value) == ("[1 1]", (), [1, 1])
    assert done.stages[-1].state[0][0] == first


@pytest.mark.parametrize(("name", "algorithm"), EACH)
def test_a_run_costs_what_its_last_step_comes_to(name: str, algorithm: str) -> None:
    done = run(name, algorithm, made_up(name, 5))
    assert len(done.costs) == len(done.stages)
    assert done.cost is done.costs[-1]
    assert done.cost.messages == sum(len(stage.messages) for stage in done.stages)


def test_what_one_rank_does_alone_costs_nothing() -> None:
    assert run("all_reduce", "ring", [5]).cost == Cost(0, 0, Fraction(), Fraction(), Fraction())


@pytest.mark.parametrize("algorithm", ALGORITHMS["scan"])
def test_an_exclusive_scan_of_one_rank_gives_what_changes_nothing(algorithm: str) -> None:
    done = run("scan", algorithm, [5], exclusive=True, ranks=[2])
    assert done.result == plan("scan", [5], exclusive=True, ranks=[2]).after
    assert (done.stages, [cell.text for cell in done.result[2]]) == ((), ["0"])


def test_what_cannot_be_carried_out_is_a_sentence() -> None:
    with pytest.raises(CollectiveError) as refused:
        run("all_reduce", "magic", [1, 2])
    choice = "choose one of naive, ring, tree, recursive doubling."
    assert str(refused.value) == f"The explorer has no algorithm 'magic' for all_reduce; {choice}"
    with pytest.raises(CollectiveError) as refused:
        run("send", "ring", [1, 2])
    assert str(refused.value) == f"The explorer has no 'send'; choose one of {', '.join(ALGORITHMS)}."
    with pytest.raises(OpError, match="There is no reduction"):
        run("reduce", "tree", [1, 2], op="median")
    with pytest.raises(CollectiveError, match="src=9"):
        run("broadcast", "tree", [1, 2], src=9)
    with pytest.raises((CollectiveError, OpError)):
        run("all_reduce", "ring", ["a", {"b": 1}])
    assert algorithms.run("all_reduce", "ring", [5]).cost.steps == 0
    # An op that is defined for values for which the default is not.
    assert run("all_reduce", "naive", [{1, 2}, {2, 3}], op="band").result[0][0].value == {2}


def test_how_far_ahead_in_words() -> None:
    assert [ahead(distance) for distance in (1, 2, 4)] == ["1 place ahead", "2 places ahead", "4 places ahead"]
