"""What a trivial cell and a start cost in messages, encodings, wake-ups and calls: counted, for seconds tell nothing.

All numbers are in the two tables. Who makes a cell cheaper makes them smaller; who makes one larger says here why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .notebook import SESSION, Notebook

N = 2
CELLS = 5

CELL = {
    "notebook": {
        "messages to ranks": 1,  # one object, for all of them
        "answers of ranks": N,
        "orders to nodes": 0,
        "encodings": 1 + N,  # and a header for each rank
        "decodings": 3 * N,  # of each answer the header, what may be alike, and what is the rank's own
        "wake-ups of the link's thread": 1,
        "wake-ups of the watch": 1,
    },
    "rank": {
        "messages from the notebook": 1,
        "messages to the notebook": 1,
        "encodings": 3,  # as above
        "decodings": 2,
        "wake-ups of the link's thread": 1,
        "wake-ups of the main thread": 1,
    },
}
"""By process and what is counted, how much of it a cell needs that shows nothing, while nobody asks how it stands."""

ALIKE = {"decodings"}
"""What may be less: answers that are alike are decoded once, if they come together."""

CALLS = {"notebook": 293, "rank": 182}
"""The most calls of our own functions on the thread that runs such a cell, from the magic on, if it is soon over.

Three of the rank's look whether torch and the groups are as they were before the cell: `World.look_back`,
`unfinished.finish`, and `FlightRecorder.broken`; and three more whether a block of DTensor's is open, where that is
imported: by the seed, for example.
"""

START = {
    "messages to ranks": 1,  # to form the groups
    "answers of ranks": N,
    "orders to nodes": 6,
}
"""What the notebook does for a start; what it does while it waits grows with the time that a machine takes."""

_BEGIN = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\nfrom tests.world import counting\n"


def counted(notebook: Notebook, code: str) -> list[dict[str, int]]:
    """Return what a cell prints as counts, in each process that runs it."""
    return [eval(line.partition("{")[1] + line.partition("{")[2]) for line in notebook.run(code).text.splitlines()]  # noqa: S307 - our own


def test_a_trivial_cell_costs_no_more(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(f"%distributed start -n {N}", f"{SESSION}\nsession._watch.close()")
    notebook.run(f"{_BEGIN}counting.begin('notebook')")
    notebook.run(f"%%distributed\n{_BEGIN}counting.begin('rank')")
    for _ in range(3):
        notebook.run("%%distributed\nx = 1")
    seen = []
    for _ in range(CELLS):
        notebook.run("_ = counting.take()")
        notebook.run("%%distributed\nx = 1")
        seen += counted(notebook, "print(counting.take())")
    check("notebook", seen)
    notebook.run("%%distributed\nseen = []")
    for _ in range(CELLS):
        notebook.run("%%distributed\nseen.append(counting.take())")
    for rank in range(N):
        check("rank", counted(notebook, f"%%distributed -r {rank}\nfor one in seen[1:]: print(one)"))


def check(where: str, seen: list[dict[str, int]]) -> None:
    assert min(there.pop("calls of our own functions") for there in seen) <= CALLS[where]
    for there in seen:
        assert there.keys() == {what for what, number in CELL[where].items() if number}
        for what, number in there.items():
            assert number <= CELL[where][what], (where, what)
            assert what in ALIKE or number == CELL[where][what], (where, what)


def test_a_start_costs_no_more(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(f"{_BEGIN}counting.begin('notebook')")
    notebook.run(f"%distributed start -n {N}")
    (there,) = counted(notebook, "print(counting.take())")
    assert {what: there[what] for what in START} == START
