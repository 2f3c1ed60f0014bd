"""A page that is loaded again while a cell runs: nothing in it is false, and what was missed can be had."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Notebook, Server
from .test_world import LOAD, START

CELL = """%%distributed
import pathlib, time
print("before")
time.sleep(0.6)
while not pathlib.Path("go-again").exists():
    time.sleep(0.02)
print("behind the reload")
1 / (rank - 2)"""
LAST = "%distributed last"


@pytest.mark.timeout(150)
def test_a_page_loaded_again_in_mid_cell(notebook: Callable[..., Notebook], server: Server) -> None:
    book = notebook("again.ipynb", LOAD, START, CELL, LAST)
    page = book.page
    page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.run(1)
    book.save()
    book.start(2)
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-3] before").wait_for()
    book.save()

    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
    # A kernel that runs a cell does not answer a new page, so what stands there is what was saved, and says so.
    page.wait_for_function("document.querySelector('.nbcomm-panel')?.innerText.includes('(a copy, as of ')")
    assert page.locator(".nbcomm-live").count() == 0

    (server.root / "go-again").touch()
    page.wait_for_function("/1 failed/.test(document.querySelector('.nbcomm-live')?.innerText)")
    book.idle()
    book.start(3)
    again = book.cell(3).locator(".jp-OutputArea-output")
    again.filter(has_text="ZeroDivisionError").first.wait_for()
    shown = book.cell(3).inner_text()
    assert "In [3] on ranks 0-3 ended after" in shown
    assert "[0-3] before\n[0-3] behind the reload" in shown
    assert book.errors == []
