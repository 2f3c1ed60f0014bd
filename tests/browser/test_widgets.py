"""Widgets and bars of real ranks in a real JupyterLab: moved with the keyboard, and there again after a reload.

With NBCOMM_SCREENSHOTS=FOLDER the pictures of docs/widgets.md are taken on the way (``make screenshots``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .conftest import THEMES, Notebook, Server, shoot

SLIDER = """%%distributed -r 0
import ipywidgets
rate = ipywidgets.FloatSlider(0.3, min=0, max=1, step=0.1, description="rate")
rate"""
BARS = """%%distributed
from tqdm.notebook import tqdm
for _ in tqdm(range(100 * (rank + 1)), desc="training"): pass"""
TEXT = """%%distributed
from tqdm.auto import tqdm
from rich.progress import track
for _ in tqdm(range(100), desc=f"shard {rank}"): pass
for _ in track(range(100 + rank), f"part {rank}"): pass"""


def run_until_it_says(book: Notebook, cell: int, text: str) -> None:
    """Run a cell again and again: it may overtake what a widget's page has just sent."""
    deadline = time.monotonic() + 60
    book.run(cell)
    while text not in book.cell(cell).inner_text():
        assert time.monotonic() < deadline, book.cell(cell).inner_text()
        book.run(cell)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", THEMES)
def test_a_slider_of_a_rank_and_bars_of_all(notebook: Callable[..., Notebook], server: Server, theme: str) -> None:
    server.choose_theme(theme)
    cells = ["%load_ext nbcomm", "%distributed start -n 4", SLIDER, "%%distributed -r 0\nrate.value", BARS, TEXT]
    book = notebook(f"widgets-{theme}.ipynb", *cells, "%distributed stop", viewport={"width": 1200, "height": 1250})
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    book.cell(2).locator(".noUi-handle").focus()
    for _ in range(3):
        book.page.keyboard.press("ArrowRight")
    moved = book.cell(2).locator(".widget-readout").filter(has_text="0.60")
    moved.wait_for()
    run_until_it_says(book, 3, "[0] 0.6")

    book.run(4)
    block = book.cell(4).locator(".widget-gridbox")
    block.wait_for()
    bars = block.locator(".widget-hprogress")
    bars.nth(3).wait_for()
    assert (block.count(), bars.count()) == (1, 4)
    assert [f"[{rank}]" in block.inner_text() for rank in range(4)] == [True] * 4
    book.run(5)
    shoot(f"widgets-{theme}", *map(book.cell, range(2, 6)))

    book.save()
    book.page.reload()
    book.idle()
    moved.wait_for()
    bars.nth(3).wait_for()
    book.cell(2).locator(".noUi-handle").focus()
    book.page.keyboard.press("ArrowRight")
    book.cell(2).locator(".widget-readout").filter(has_text="0.70").wait_for()
    run_until_it_says(book, 3, "[0] 0.7")

    # What a page has read from the file it does not replace any more; what it has seen come, it does.
    book.run(4)
    block.wait_for()
    book.run(6)
    book.cell(4).locator("pre").filter(has_text="[3] training: 100% |██████████| 400/400").wait_for()
    assert "application/vnd.jupyter.widget-view" not in str(book.save()["cells"][4])
    assert book.errors == []
