"""A newcomer's first ten minutes in a real JupyterLab: mistakes, each with its hint, and what works after each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Notebook

MISTAKES = [
    # What is typed, and what is shown below it.
    ("rank", ["rank exists only on the ranks: put %%distributed on the first line of this cell."]),
    ("# my first collective\n%%distributed\nall_reduce(1)", ['move it above "# my first collective".']),
    ("%%distribute\nrank", ["Did you mean %%distributed?"]),
    ("%%distributed -n 8\nrank", ["%distributed start -n sets the number of ranks."]),
    ("%%distributed --drw\nall_reduce(1)", ["did you mean --draw?"]),
    ("%distributed restrat", ["did you mean restart"]),
    ("lr = 0.1", []),
    ("%%distributed\nlr * rank", ["copy it to them with %distributed push lr."]),
    ("%%distributed\nprint(rank", ["SyntaxError: incomplete input"]),
    (
        "%%distributed\nif rank == 0:\n    all_reduce(torch.ones(2))",
        ["can never complete:", "rank 0 waits in it, in line 3", "Let ranks 1-3 call it, too: if it is inside an if"],
    ),
    (
        "%%distributed\nall_reduce(torch.ones(rank + 1))",
        ["is not the same on all ranks", "No rank continued past it."],
    ),
    ("%%distributed -r 0\nall_reduce(1)", ["group="]),
    ("%distributed start -n 8", ["is already running", "%distributed restart"]),
]
GOOD = "%%distributed\nall_reduce(torch.ones(2))"


@pytest.mark.nightly
@pytest.mark.timeout(170)
def test_each_mistake_of_the_first_minutes_gets_its_hint(notebook: Callable[..., Notebook]) -> None:
    codes = [code for code, _ in MISTAKES]
    book = notebook("minutes.ipynb", "%load_ext nbcomm", GOOD, *codes, GOOD, "%distributed help")
    book.page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.run(1)
    assert "[0-3] tensor([4., 4.])" in book.cell(1).inner_text(), "the first cell starts a world by itself"
    for number, (code, hints) in enumerate(MISTAKES, 2):
        book.run(number)
        output = book.cell(number).locator(".jp-OutputArea")
        for hint in hints:
            output.filter(has_text=hint).first.wait_for()
            assert output.inner_text().count(hint) == 1, f"{code}: {hint} in {output.inner_text()}"
    book.run(len(MISTAKES) + 2)
    assert "[0-3] tensor([4., 4.])" in book.cell(len(MISTAKES) + 2).inner_text()
    book.run(len(MISTAKES) + 3)
    assert "a cell that begins with %%local runs here" in " ".join(book.cell(len(MISTAKES) + 3).inner_text().split())
    assert book.errors == []
