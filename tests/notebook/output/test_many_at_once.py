"""What comes out many at once is what comes out piece by piece: the merge beside a plain one, on generated data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.notebook.display.items import Block, FoldedItem, Line, Piece, Rich, version
from nbcomm.notebook.output import cell_output, folding, history
from nbcomm.notebook.output.execute_result import TextValue
from nbcomm.notebook.output.folding import Merger
from nbcomm.protocol import Clear

from ..cells import Cell, png
from . import reference_folding as reference

OBJECT = "<A object at 0x7f{}0>"

PATTERNS: dict[str, Callable[[int, int], str]] = {
    "equal": lambda rank, i: f"line {i}",
    "different": lambda rank, i: f"{rank} {i}",
    "the same again": lambda rank, i: "again",
    "own, the same again": lambda rank, i: f"of {rank}",
    "two groups": lambda rank, i: f"group {rank % 2} {i}",
    "mixed": lambda rank, i: f"{i} {rank if i % 3 else ''}",
    "one odd": lambda rank, i: f"{i} {rank if (i, rank) == (7, 1) else ''}",
    "crossed": lambda rank, i: f"{(i + rank) % 5}",
    "shifted": lambda rank, i: f"{i + rank}",
    "blank": lambda rank, i: "",
    "objects": lambda rank, i: OBJECT.format(rank) if i % 20 == 3 else f"{i}",
    "no lines": lambda rank, i: ["html", "value", "two\nlines"][i % 3] if i % 40 == 39 else f"{i}",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_LEAST", 3)
    for module in (history, reference):
        monkeypatch.setattr(module, "_REMEMBERED", 60)


def piece_of(pattern: str, rank: int, i: int) -> Piece:
    text = PATTERNS[pattern](rank, i)
    if text == "html":
        return Rich(version({"text/html": f"{i // 80}"}, {}), "an id" if i % 3 else "")
    return TextValue("stdout", text) if text == "value" else Line("stderr" if i % 11 == 10 else "stdout", text)


def in_blocks(pieces: Sequence[Piece]) -> list[Piece | Block]:
    """The pieces as they arrive: consecutive lines of a stream are one block."""
    found: list[Piece | Block] = []
    for piece in pieces:
        if type(piece) is not Line or "\n" in piece.text:
            found.append(piece)
            continue
        before = found[-1] if found else None
        if isinstance(before, Block) and before.stream == piece.stream:
            found[-1] = Block(piece.stream, f"{before.text}{piece.text}\n", before.size + 1)
        else:
            found.append(Block(piece.stream, f"{piece.text}\n", 1))
    return found


def flat(entries: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [
        (entry.ranks, entry.piece, type(entry.piece), sorted(entry.parts), entry.forced)
        for many in entries
        for entry in many.entries()
    ]


def lanes(merger: Any) -> list[tuple[Any, ...]]:
    return [
        (len(lane), lane.since, lane.fixed_since, lane.reach, lane.out, lane.forgot, len(lane.history), lane.newest(7))
        for lane in merger.lanes
    ]


def steps(chosen: Random) -> tuple[int, list[tuple[Any, ...]]]:
    """What each rank shows, in chunks with bounds at random places, and what is asked of the merge in between."""
    ranks = chosen.randint(1, 4)
    made: list[tuple[Any, ...]] = []
    shown = [0] * ranks
    for _ in range(chosen.randint(1, 8)):
        pattern, count = chosen.choice(sorted(PATTERNS)), chosen.randint(1, 60)
        left = {rank: chosen.choice([count, count, count, count // 2, 0]) for rank in range(ranks)}
        while any(left.values()):
            rank = chosen.choice([rank for rank, some in left.items() if some])
            some = chosen.randint(1, left[rank])
            made.append(("push", rank, [(pattern, i) for i in range(shown[rank], shown[rank] + some)]))
            shown[rank] += some
            left[rank] -= some
            if chosen.random() < 0.5:
                how = ["settle"] * 5 + ["force"] * 3 + ["preview", "clear", "end"]
                made.append((chosen.choice(how), rank, chosen.randint(0, 50)))
                if made[-1][0] == "clear":  # what arrives is pushed after that
                    made.insert(-1, ("settle", rank, 0))
    return ranks, made


@given(
    st.integers(0, 1 << 32).map(Random),
    st.sampled_from(["fold", "fold", "each", "by_rank"]),
    st.integers(1, 20),
)
def test_both_give_the_same_at_each_step(chosen: Random, order: Any, window: int) -> None:
    check(chosen, order, window)


def check(chosen: Random, order: Any, window: int) -> None:  # noqa: C901 - one step after the other
    ranks, made = steps(chosen)
    new: Any = Merger(range(ranks), order=order, window=window)
    old: Any = reference.Merger(range(ranks), order=order, window=window)
    ended: set[int] = set()

    def both(of: Callable[[Any], Sequence[Any]]) -> None:
        ours, theirs = of(new), of(old)
        assert flat(ours) == [(e.ranks, e.piece, type(e.piece), sorted(e.parts), e.forced) for e in theirs]
        assert [(e.ranks, sorted(e.parts)) for e in new.joined] == [(e.ranks, sorted(e.parts)) for e in old.joined]
        assert lanes(new) == lanes(old)

    for at, (what, rank, more) in enumerate(made):
        if what == "push" and rank not in ended:
            pieces = [[piece_of(pattern, rank, i) for pattern, i in more] for _ in range(2)]
            new.push(rank, in_blocks(pieces[0]), float(at))
            old.push(rank, pieces[1], float(at))
        elif what == "settle":
            both(lambda merger: merger.settle())
        elif what == "force":
            if more % 2:
                both(lambda merger, more=more: merger.force(lambda lane: len(lane) > more))
            else:
                soon = float(at - more / 5)
                both(lambda merger, soon=soon: merger.force(lambda lane: lane.since < soon, joinable=soon > 3))
        elif what == "preview":
            ours, theirs = new.preview({}, more), old.preview({}, more)
            assert (ours[0], flat(ours[1])) == (theirs[0], [(*row[:4], False) for row in flat_of(theirs[1])])
        elif what == "clear":
            ours, theirs = (merger.cleared({rank}, float(at)) for merger in (new, old))
            assert (ours is None) == (theirs is None)
            new, old = ours or new, theirs or old
        elif what == "end":
            ended.add(rank)
            new.end(rank)
            old.end(rank)
    both(lambda merger: merger.settle())
    for rank in range(ranks):
        new.end(rank)
        old.end(rank)
    both(lambda merger: merger.settle())


def flat_of(entries: Sequence[FoldedItem]) -> list[tuple[Any, ...]]:
    return [(e.ranks, e.piece, type(e.piece), sorted(e.parts), e.forced) for e in entries]


class PlainMerger(reference.Merger):
    """The plain merge, for `CellOutput`."""

    def push(self, rank: int, pieces: Any, now: float = 0.0) -> None:
        apart = (line for piece in pieces for line in (piece.lines() if isinstance(piece, Block) else [piece]))
        super().push(rank, apart, now)


def shown(chosen: Random, merger: Any, **options: Any) -> list[tuple[Any, ...]]:
    """All that a page receives of a cell, whose ranks' output comes in chunks with bounds at random places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_output, "Merger", merger)
        cell = Cell(range(chosen.randint(1, 4)), **options)
        ranks = len(cell.output._readers)
        left = [""] * ranks
        for _ in range(chosen.randint(1, 6)):
            pattern, count = chosen.choice(sorted({*PATTERNS} - {"no lines"})), chosen.randint(1, 300)
            coloured = chosen.random() < 0.2
            for rank in range(ranks):
                made = [PATTERNS[pattern](rank, i) for i in range(count)]
                left[rank] += "".join(f"\x1b[31m{line}\x1b[0m\n" if coloured else f"{line}\n" for line in made)
            while any(left) and chosen.random() < 0.97:
                rank = chosen.choice([rank for rank in range(ranks) if left[rank]])
                size = chosen.randint(1, 2000)
                cell.write(rank, left[rank][:size], chosen.choice(["stdout"] * 9 + ["stderr"]))
                left[rank] = left[rank][size:]
                if chosen.random() < 0.3:
                    cell.tick(chosen.choice([0.1, 0.1, 0.5]))
            if chosen.random() < 0.1:
                cell.feed(0, Clear(chosen.random() < 0.5))
            if chosen.random() < 0.3:
                cell.feed(chosen.randrange(ranks), png("a picture"))
        for rank in range(ranks):
            cell.write(rank, left[rank])
        cell.close()
    names: dict[str, int] = {}
    return [
        tuple(names.setdefault(part, len(names)) if str(part).startswith("nbcomm-") else part for part in call)
        for call in cell.area.calls
        if call[0] != "comm"
    ]


@given(
    st.integers(0, 1 << 32),
    st.sampled_from([{}, {}, {"fold": False}, {"by_rank": True}, {"updates": False}]),
)
def test_a_page_receives_the_same_bytes(seed: int, options: dict[str, Any]) -> None:
    assert shown(Random(seed), Merger, **options) == shown(Random(seed), PlainMerger, **options)  # noqa: S311 - no secret
