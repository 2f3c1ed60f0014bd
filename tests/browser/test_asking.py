"""What ranks ask, in a real JupyterLab: the notebook's own box, and the debugger in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Notebook

ASK = "%%distributed\nname = input('Name? ') if rank == 1 else None\nbroadcast(name, src=1)"
DEBUG = "%%distributed\nif rank == 1:\n    breakpoint()\nall_reduce(rank + 1)"


@pytest.mark.timeout(150)
def test_a_rank_asks_and_is_debugged_in_the_notebooks_box(notebook: Callable[..., Notebook]) -> None:
    book = notebook("asking.ipynb", "%load_ext nbcomm", "%distributed start -n 2", ASK, DEBUG)
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(2):
        book.run(cell)

    def answer(cell: int, prompt: str, text: str, shown: str) -> None:
        stdin: Any = book.cell(cell).locator(".jp-Stdin").filter(has_text=prompt)
        box = stdin.locator("input").element_handle()
        box.fill(text)
        box.press("Enter")
        box.wait_for_element_state("hidden")  # it becomes text, at times after the next one has come
        book.cell(cell).locator(".jp-OutputArea-output").filter(has_text=shown).first.wait_for()

    book.start(2)
    answer(2, "[1] Name?", "Ada", "[0-1] 'Ada'")
    book.start(3)
    panel = book.cell(1).locator(".nbcomm-panel")
    panel.filter(has_text="waiting for rank 1, at line 3 in the debugger: breakpoint()").wait_for()
    answer(3, "[1] ipdb>", "p rank * 10", "[1] 10")
    answer(3, "[1] ipdb>", "c", "[0-1] 3")
    assert book.errors == []
