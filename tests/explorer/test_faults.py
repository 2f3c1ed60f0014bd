"""What the explorer says of a broken collective is what nbcomm says when one is broken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import nbcomm
from nbcomm.errors import CellError
from nbcomm.explorer.algorithms import ALGORITHMS
from nbcomm.explorer.faults import BREAKS, BrokenCall, breaks_of, broken
from nbcomm.notebook.session.session import Session
from nbcomm.rank_spec import parse
from nbcomm.sentences import in_one_line

CASES = [(BrokenCall(name, 4), how) for name in ALGORITHMS for how in breaks_of(name)]
CASES += [(BrokenCall(name, 4, op=op), "shape") for name in ("all_reduce", "reduce", "scan") for op in ("mean", "band")]


WAITING = re.compile(r"ranks? ([\d,-]+) waits? in it")


def waiting(text: str) -> set[int]:
    """The ranks that are said to wait."""
    found = WAITING.search(text)
    assert found is not None, text
    return set(parse(found[1], 4))


@pytest.fixture(scope="module")
def four() -> Iterator[Session]:
    with nbcomm.start(4) as session:
        yield session


def cell(call: BrokenCall, how: str, rank: int) -> str:
    """Break it for real."""
    many = call.name in ("scatter", "reduce_scatter", "all_to_all")
    line = call.line.replace("x", "[x] * world_size", 1) if many else call.line
    bits = ", dtype=torch.int64" if call.op == "band" else ""
    data = f"x = torch.ones(3 if rank == {rank} else 2{bits})\n" if how == "shape" else "x = rank\n"
    if how == "absent":
        return f"{data}if rank != {rank}: {line}"
    if how == "other":
        return f"{data}{line} if rank != {rank} else {'all_reduce' if call.name == 'all_gather' else 'all_gather'}(x)"
    if how == "op":
        return data + line[:-1] + f", op='max' if rank == {rank} else '{call.op}')"
    return data + line


def said(session: Session, code: str) -> str:
    try:
        session.run(code)
    except CellError as error:
        return str(error)
    return ""


@pytest.mark.world
@pytest.mark.parametrize(("call", "how"), CASES, ids=[f"{call.name} {call.op} {how}" for call, how in CASES])
def test_the_words_are_nbcomms(four: Session, call: BrokenCall, how: str) -> None:
    told = broken(call, how, 2)
    real = said(four, cell(call, how, 2))
    assert bool(told.error) == bool(real), real
    if not real:
        assert told.text.startswith("Nothing breaks.")
        return
    assert f"{told.error}: " in real
    if how == "absent":
        # What to do stands beside it in the explorer, and is more: it knows the cell.
        assert "Let rank 2 call it, too: take it out of the if." in real
        name, _, meant = in_one_line(told.text).partition(" can never complete: ")
        real, _, said_of_it = real.partition("Let rank 2")[0].partition(" can never complete: ")
        assert name.replace("#1", "#") in re.sub(r"#\d+", "#", real)
        assert "rank 2 has finished the cell" in said_of_it
        assert "line 2: if rank != 2: " in said_of_it
        # When it is judged, some may be still to come, and who has its data may be still about to leave.
        assert waiting(said_of_it) & waiting(meant)
        assert not waiting(said_of_it) & set(told.missing)
    elif "Nothing was moved" in real or told.error == "CollectiveError":
        assert in_one_line(told.text)[:250] in real
    else:  # a real world names the ranks that it has heard of by then, and how the data was packed
        assert told.text.endswith("No rank continued past it.")
        assert real.endswith("No rank continued past it.")
        assert "is not the same on all ranks" in real
        if how == "shape":
            called = r"called (\w+\(\w+ \(\d,\), \w+(?:, dst 0)?\), line 2)"
            assert set(re.findall(called, real)) == set(re.findall(called, told.text)) != set()


@pytest.mark.parametrize("name", ["broadcast", "scatter"])
def test_without_the_rank_that_gives_all_others_wait(name: str) -> None:
    told = broken(BrokenCall(name, 4, src=2), "absent", 2)
    assert told.waits == (0, 1, 3)
    assert "\n  ranks 0-1,3 wait in it, in line 2: if rank != 2: " in told.text
    assert told.text.endswith("\n  rank 2 has finished the cell")


def test_a_group_without_the_root_is_no_remedy() -> None:
    for call in (BrokenCall("broadcast", 4, src=2), BrokenCall("reduce", 4, dst=2)):
        assert broken(call, "absent", 2).remedy == "Let every rank call it: take it out of the if."
        assert "g = new_group([0, 2, 3])" in broken(call, "absent", 1).remedy


@pytest.mark.world
@pytest.mark.parametrize("mode", ["cat", "list"])
def test_other_modes_take_other_shapes(four: Session, mode: str) -> None:
    call = BrokenCall("all_gather", 4, mode=mode)
    assert broken(call, "shape", 1).error == ""
    assert said(four, cell(call, "shape", 1)) == ""


def test_every_break_of_every_call_is_told_in_sentences() -> None:
    for name in ALGORITHMS:
        for size in (2, 16):
            for how in breaks_of(name):
                for rank in range(size):
                    options: dict[str, Any] = {"op": "max", "src": size - 1, "dst": size - 1, "exclusive": True}
                    told = broken(BrokenCall(name, size, **options), how, rank)
                    assert told.text.endswith((".", "has finished the cell"))
                    assert bool(told.remedy) == bool(told.error)
                    assert not set(told.waits) & set(told.missing)
    assert set(BREAKS) == {"absent", "other", "op", "shape"}
    assert "op" not in breaks_of("barrier")


@pytest.mark.world
def test_the_ops_words_with_other_arguments(four: Session) -> None:
    for call in (BrokenCall("reduce", 4, dst=3), BrokenCall("scan", 4, exclusive=True)):
        assert in_one_line(broken(call, "op", 1).text) in said(four, cell(call, "op", 1))
