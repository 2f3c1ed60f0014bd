"""Tab and Shift-Tab in a cell for ranks, in a real JupyterLab: what they show comes from a rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Notebook

# A cold answer of a busy machine takes longer than whoever types would wait.
LOAD = "%load_ext nbcomm\nfrom nbcomm.notebook.shell import completion; completion.PATIENCE = 60"
START = "%distributed start -n 2"
DEFINE = """%%distributed -r 1
from nbcomm.rank.cells import completion_thread; completion_thread.PATIENCE = completion_thread._ENOUGH = 60
def there_for_help(alpha):
    'What it does on rank 1.'
there_are = 1"""


@pytest.mark.timeout(150)
def test_tab_and_shift_tab_know_the_ranks_names(notebook: Callable[..., Notebook]) -> None:
    book = notebook("typing.ipynb", LOAD, START, DEFINE, "%%distributed -r 1")
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    page, typed = book.page, book.cell(3).locator(".cm-content")
    typed.click()
    page.keyboard.press("Control+End")
    page.keyboard.press("Enter")
    page.keyboard.type("there_")
    page.keyboard.press("Tab")
    items = page.locator(".jp-Completer-item")
    items.filter(has_text="there_are").first.wait_for()
    choice = items.filter(has_text="there_for_help").first
    choice.wait_for()
    choice.click()
    typed.filter(has_text="there_for_help").wait_for()
    assert typed.inner_text().splitlines() == ["%%distributed -r 1", "there_for_help"]
    page.keyboard.press("Shift+Tab")
    page.locator(".jp-Tooltip").filter(has_text="What it does on rank 1.").wait_for()
    page.keyboard.press("Escape")
    assert book.errors == []
