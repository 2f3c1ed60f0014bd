"""What the README promises a newcomer, in a real JupyterLab, with four real ranks.

With NBCOMM_SCREENSHOTS=FOLDER the pictures of the README are taken on the way (``make screenshots``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import THEMES, Notebook, Server, shoot

LOAD = "%load_ext nbcomm"
START = "%distributed start -n 4"
FIRST = """%%distributed
x = torch.full((2,), float(rank), device=device)
all_reduce(x)"""
HANG = """%%distributed
if rank != 1:
    all_reduce(torch.ones(4))"""
PRINTING = """%%distributed
print("hello from rank", rank)
print("the world has", world_size, "ranks")"""
BLOCKING = """%%distributed
import pathlib, time
while rank > 0 and not pathlib.Path("{go}").exists():  # rank 0 is soon done
    time.sleep(0.02)
rank"""
FAILING = """%%distributed
assert rank != 2, "rank 2 is the odd one"
'fine'"""
STOP = "%distributed stop"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", THEMES)
def test_the_path_of_a_newcomer(notebook: Callable[..., Notebook], server: Server, theme: str) -> None:
    server.choose_theme(theme)
    go = server.root / f"go-{theme}"
    cells = [LOAD, START, HANG, FIRST, PRINTING, BLOCKING.format(go=go.name), FAILING, STOP]
    book = notebook(f"newcomer-{theme}.ipynb", *cells, viewport={"width": 1200, "height": 1200})
    book.page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.run(1)
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card').length === 4")
    book.start(2)
    verdict = book.cell(2).locator(".jp-OutputArea-output").filter(has_text="rank 1 has finished the cell")
    verdict.first.wait_for()
    book.idle()
    book.page.locator(".nbcomm-live .headline").filter(has_text="rank 1 did not reach all_reduce #1").wait_for()
    shoot(f"panel-{theme}", book.cell(1), book.cell(2))
    book.run(3)
    assert "[0-3] tensor([6., 6.])" in book.cell(3).inner_text()
    book.run(4)
    shown = book.cell(4).inner_text()
    assert "[2] hello from rank 2" in shown
    assert "[0-3] the world has 4 ranks" in shown

    book.start(5)  # the kernel is blocked until the file is there, and the panel tells who works
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card[data-mood=running]').length === 3")
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card[data-mood=idle]').length === 1")
    go.write_text("")
    book.cell(5).locator(".jp-OutputArea-output").filter(has_text="[3] 3").wait_for()

    book.start(6)
    error = book.cell(6).locator(".jp-OutputArea-output").filter(has_text="CellError")
    error.wait_for()
    assert "[2]" in error.inner_text()
    book.idle()  # the kernel drops a cell that comes before the failed one has replied
    book.run(7)
    book.page.wait_for_function("document.body.innerText.includes('Stopped 4 ranks on cpu')")

    saved = str(book.save())
    assert "application/vnd.jupyter.widget-view" not in saved
    assert "<table>" in saved
    assert book.errors == []
