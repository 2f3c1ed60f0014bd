"""A hang, a straggler, a death and their pictures, as a person sees them, with four real ranks.

With NBCOMM_SCREENSHOTS=FOLDER the pictures of the docs are taken on the way (``make screenshots``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import THEMES, Notebook, Server, shoot
from .test_panel import PATIENT

LOAD = f"%load_ext nbcomm\n{PATIENT}"
START = "%distributed start -n 4"
HANG = """%%distributed --draw
gradient = torch.full((2,), float(rank))
if rank != 2:
    all_reduce(gradient)"""
DRAWN = """%%distributed --draw
share = reduce_scatter(torch.arange(4) + 10 * rank)
all_gather(share, mode="cat")"""
# Rank 1 is late by as much after all others are there, not after the cell began.
LATE = """%%distributed
import pathlib, time
for step in range(4):
    pathlib.Path(f"late-THEME-{step}-{rank}").touch()
    while rank == 1 and len(list(pathlib.Path().glob(f"late-THEME-{step}-*"))) < 4: time.sleep(0.01)
    time.sleep(0.9 if rank == 1 else 0)
    all_reduce(step)"""
ENDLESS = """%%distributed
print("begun", rank, flush=True)
while True:
    time.sleep(0.01)"""
KILL = """%%distributed
import os
if rank == 3: os.kill(os.getpid(), 9)"""
AGAIN = """%%distributed
all_reduce(1)"""
EXPLORE = """import nbcomm
nbcomm.explore()"""
STOP = "%distributed stop"
BESIDE = """() => document.querySelector(".jp-LinkedOutputView").getBoundingClientRect().left
  >= document.querySelector(".jp-NotebookPanel").getBoundingClientRect().right"""
WIDTH = "img => img.decode().then(() => img.naturalWidth)"  # it has none until it is decoded

Make = Callable[..., Notebook]


def panel(book: Notebook) -> Any:
    return book.page.locator(".nbcomm-live").first


def await_text(book: Notebook, locator: Any, text: str, timeout: float = 20_000) -> None:
    locator.filter(has_text=text).first.wait_for(timeout=timeout)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("app", "theme"), [("lab", "light"), pytest.param("notebook", "dark", marks=pytest.mark.nightly)]
)
def test_what_goes_wrong_is_seen_and_mended_in_the_panel(notebook: Make, server: Server, app: str, theme: str) -> None:
    server.choose_theme(theme)
    cells = [LOAD, START, HANG, LATE.replace("THEME", theme), ENDLESS, KILL, AGAIN, STOP]
    book = notebook(f"story-{theme}.ipynb", *cells, viewport={"width": 1200 if app == "lab" else 880, "height": 1000})
    book.page.set_default_timeout(30_000)
    book.open(app=app)
    book.run(0)
    book.run(1)
    await_text(book, panel(book), "all ranks idle")

    # A hang: the culprit's card is marked, and in the ladder it is the one that is missing.
    book.start(2)
    await_text(book, book.cell(2).locator(".jp-OutputArea-output"), "rank 2 has finished the cell")
    await_text(
        book, panel(book).locator(".headline"), "rank 2 did not reach all_reduce #1; ranks 0-1,3 were stopped in it"
    )
    ladder = panel(book).locator("table")
    ladder.wait_for()
    row = ladder.locator("tbody tr").nth(2)
    assert "not reached" in row.inner_text()
    picture = book.cell(2).locator("img[alt*='rank 2 did not arrive']")
    picture.wait_for()
    assert picture.evaluate(WIDTH) > 300
    shoot(f"hang-{theme}", panel(book))
    shoot(f"hang-picture-{theme}", picture)

    # A straggler: its time is told apart from the waiting of the others.
    book.idle()
    book.run(3)
    await_text(book, panel(book), "rank 1 came last in 4 of 4 collectives")
    # More than a fifth of the cell was waiting: that opens by itself.
    stretch = panel(book).locator(".span[data-kind=waiting]").first
    stretch.hover()
    await_text(book, panel(book).locator(".tip"), "rank 0 · waiting in all_reduce #")
    assert "line 7: all_reduce(step)" in panel(book).locator(".tip").inner_text()
    book.page.mouse.move(2, 2)
    shoot(f"timeline-{theme}", panel(book))

    # The button ends a cell that blocks the kernel.
    book.start(4)
    await_text(book, book.cell(4).locator(".jp-OutputArea-output"), "begun 3")
    panel(book).get_by_role("button", name="interrupt").click()
    await_text(book, book.cell(4).locator(".jp-OutputArea-output"), "KeyboardInterrupt")
    book.idle()

    # A death, and the button that heals.
    book.start(5)
    await_text(book, book.cell(5).locator(".jp-OutputArea-output"), "rank 3 was killed by SIGKILL")
    book.idle()
    panel(book).get_by_role("button", name="heal").click()
    await_text(book, panel(book), "Rank 3 is back")
    book.run(6)
    await_text(book, book.cell(6).locator(".jp-OutputArea-output"), "[0-3] 4")
    book.run(7)
    assert book.errors == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("theme", THEMES)
def test_a_panel_beside_the_notebook_is_live_while_another_one_scrolls_away(
    notebook: Make, server: Server, theme: str
) -> None:
    server.choose_theme(theme)
    hang = "%%distributed\nif rank != 2:\n    barrier()"
    book = notebook(
        f"beside-{theme}.ipynb", "%load_ext nbcomm", START, hang, STOP, viewport={"width": 1500, "height": 640}
    )
    book.page.set_default_timeout(30_000)
    book.open()
    book.page.evaluate("jupyterapp.shell.collapseLeft()")
    book.run(0)
    book.run(1)
    await_text(book, panel(book), "all ranks idle")
    panel(book).locator(".headline").click(button="right")
    book.page.get_by_role("menuitem", name="Create New View for Cell Output").click()
    beside = book.page.locator(".jp-LinkedOutputView")
    await_text(book, beside.locator(".nbcomm-live"), "all ranks idle")
    tab, edge = (
        book.page.locator(".lm-TabBar-tab", has_text="Output View"),
        book.page.viewport_size["width"] - 60,
    )  # left of the sidebar
    tab.hover()
    book.page.mouse.down()
    book.page.mouse.move(edge - 100, 300, steps=5)
    book.page.mouse.move(edge, 300, steps=5)
    book.page.mouse.up()
    book.page.wait_for_function(BESIDE)
    book.start(2)
    await_text(book, beside.locator(".nbcomm-live .headline"), "rank 2 did not reach barrier #1")
    book.idle()
    book.cell(3).scroll_into_view_if_needed()
    shoot(f"beside-{theme}", book.page.locator(".jp-NotebookPanel"), beside)
    book.run(3)
    await_text(book, beside.locator(".nbcomm-live"), "stopped")
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_the_panels_stop_and_restart_ask_first_and_show_the_new_world_in_place(notebook: Make) -> None:
    book = notebook("restart.ipynb", LOAD, START, AGAIN, viewport={"width": 1200, "height": 900})
    book.page.set_default_timeout(30_000)
    book.open()
    book.run(0)
    book.run(1)
    await_text(book, panel(book), "all ranks idle")
    before = panel(book).locator(".where").first.inner_text()
    panel(book).get_by_role("button", name="restart").click()
    book.page.keyboard.press("Escape")  # no
    panel(book).get_by_role("button", name="restart").click()
    panel(book).get_by_role("button", name="Yes").click()
    book.page.wait_for_function(
        "before => [...document.querySelectorAll('.nbcomm-live .where')].some(el => el.innerText !== before)",
        arg=before,
    )
    await_text(book, panel(book), "all ranks idle", 60_000)
    book.run(2)
    await_text(book, book.cell(2).locator(".jp-OutputArea-output"), "[0-3] 4")
    panel(book).get_by_role("button", name="stop").click()
    panel(book).get_by_role("button", name="Yes").click()
    await_text(book, book.page.locator(".nbcomm-panel"), "stopped; this was the last state")
    assert book.errors == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("theme", THEMES)
def test_what_is_saved_is_whole_without_a_kernel_and_without_a_network(
    notebook: Make, server: Server, browser: Any, theme: str
) -> None:
    server.choose_theme(theme)
    name = f"saved-{theme}.ipynb"
    book = notebook(name, LOAD, START, DRAWN, EXPLORE, STOP, viewport={"width": 1200, "height": 1000})
    book.page.set_default_timeout(30_000)
    book.open()
    for cell in range(4):
        book.run(cell)
    explorer = book.page.locator(".nbcomm-explorer")
    explorer.first.wait_for()
    for _ in range(2):
        explorer.first.get_by_role("button", name="Next").click()
    shoot(f"draw-{theme}", book.cell(2))
    shoot(f"explorer-{theme}", explorer.first)
    book.run(4)
    saved = book.save()
    text = str(saved)
    assert "application/vnd.jupyter.widget-view" not in text
    assert "widgets" not in saved["metadata"]
    kinds = [set(output.get("data", {})) for output in saved["cells"][2]["outputs"]]
    assert kinds.count({"image/png", "text/html", "text/plain"}) == 2

    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--log-level=ERROR", name]
    subprocess.run(command, cwd=server.root, check=True, timeout=60)
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((server.root / f"saved-{theme}.html").as_uri(), wait_until="domcontentloaded")
    for collective in ("reduce_scatter", "all_gather"):
        assert page.locator(f"img[alt^='{collective} ·']").evaluate(WIDTH) > 300
    assert page.locator("table").filter(has_text="local").count() >= 1
    assert "Error displaying widget" not in page.content()
    context.close()
    assert book.errors == []
