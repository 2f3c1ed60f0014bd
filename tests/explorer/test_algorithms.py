"""Every algorithm gives what the plan gives, and costs what the textbook says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest

from nbcomm.errors import CollectiveError, OpError
from nbcomm.explorer import algorithms
from nbcomm.explorer.algorithms import ALGORITHMS, Run, run
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


def one_port(done: Run) -> bool:
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


@pytest.mark.parametrize("algorithm", ALGORITHMS["scan"])
def test_an_exclusive_scan_of_one_rank_gives_what_changes_nothing(algorithm: str) -> None:
    done = run("scan", algorithm, [5], exclusive=True, ranks=[2])
    assert done.result == plan("scan", [5], exclusive=True, ranks=[2]).after
    assert (done.stages, [cell.text for cell in done.result[2]]) == ((), ["0"])


def test_what_cannot_be_carried_out_is_a_sentence() -> None:
    with pytest.raises(CollectiveError, match="choose one of naive, ring, tree, recursive doubling"):
        run("all_reduce", "magic", [1, 2])
    with pytest.raises(CollectiveError, match="has no 'send'; choose one of barrier, broadcast"):
        run("send", "ring", [1, 2])
    with pytest.raises(OpError, match="There is no reduction"):
        run("reduce", "tree", [1, 2], op="median")
    with pytest.raises(CollectiveError, match="src=9"):
        run("broadcast", "tree", [1, 2], src=9)
    with pytest.raises((CollectiveError, OpError)):
        run("all_reduce", "ring", ["a", {"b": 1}])
    assert algorithms.run("all_reduce", "ring", [5]).cost.steps == 0
