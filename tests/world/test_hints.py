"""The first mistakes of a newcomer, in a real kernel: each gets its hint, once, below its error."""

from __future__ import annotations

import pytest

from .notebook import Notebook

pytestmark = pytest.mark.story  # a hint speaks of what the notebook has, and comes once

FIRST_LINE = "put %%distributed on the first line of this cell."


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rank", f"rank exists only on the ranks: {FIRST_LINE}"),
        ("all_reduce(1)", f"all_reduce exists only on the ranks: {FIRST_LINE}"),
        ("# look\n%%distributed\nrank", '%%distributed must be on the first line of a cell: move it above "# look".'),
        ("import os\n%%distributed\nrank", '%%distributed must be on the first line of a cell: move it above "import'),
        ("%%distribute\nrank", "Did you mean %%distributed?"),
        ("%distribute status", "Did you mean %distributed?"),
        ("%%distributed --drw\nrank", "did you mean --draw?"),
        ("%%distributed -n 4\nrank", "%distributed start -n sets the number of ranks."),
        ("%distributed statsu", "did you mean status"),
        ("import math\nlr = 3", ""),
        ("%%distributed\nlr", "copy it to them with %distributed push lr."),
        ("%%distributed\nmath.pi", "import it in a %%distributed cell."),
        ("lr_of_nobody", ""),
        ("%%distributed\nlr_of_nobody", ""),
    ],
)
def test_a_mistake_gets_its_hint(four: Notebook, code: str, said: str) -> None:
    cell = four.finish(four.submit(code))
    shown = cell.text + cell.error_text
    if said:
        assert shown.count(said) == 1, shown
    else:
        assert "nbcomm: " not in shown
        assert "The notebook has" not in shown


def test_a_magic_behind_a_blank_runs_or_gets_its_hint(four: Notebook) -> None:
    cell = four.finish(four.submit(" %%distributed\nrank * 0"))
    # IPython took such a cell up to 8.
    assert cell.text == "[0-3] 0\n" or "%%distributed must be at the start of its line" in cell.text, cell.text


def test_the_log_of_a_rank_has_nothing_in_it_that_is_no_news(four: Notebook) -> None:
    assert four.run("%distributed log 1").text.strip() == "(nothing)"


def test_behind_the_extension_there_are_no_hints(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook()
    assert FIRST_LINE in notebook.finish(notebook.submit("rank")).text
    notebook.run("%unload_ext nbcomm")
    assert FIRST_LINE not in notebook.finish(notebook.submit("rank")).text
