"""A page that is loaded again while a cell runs, or whose kernel ends: it is not wrong, and names the way back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import CLOSE, OPEN, Notebook, Server
from .test_world import LOAD, START

Make = Callable[..., Notebook]

CELL = """%%distributed
import pathlib, time
print("before")
time.sleep(0.6)
while not pathlib.Path("go-again").exists():
    time.sleep(0.02)
print("behind the reload")
1 / (rank - 2)"""
NO_PANEL = "%%distributed\nrank"  # it starts the default world
LAST = "%distributed last"
NEXT = "%%distributed\nall_reduce(1)"
NUMBER = ".jp-InputPrompt"


def _show(missed: Any, output: Any) -> None:
    missed.get_by_role("button", name="show it").click()
    output.wait_for()


def _loaded_again_in_mid_cell(
    notebook: Make, server: Server, name: str, app: str = "lab", start: str = START
) -> Notebook:
    """A notebook whose page was loaded again while its third cell ran, which has ended since."""
    book = notebook(f"{name}.ipynb", LOAD, start, CELL.replace("go-again", f"go-{name}"), LAST, NEXT)
    book.page.set_default_timeout(60_000)
    book.open(app=app)
    page = book.page
    book.run(0)
    book.run(1)
    book.save()
    book.start(2)
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-3] before").wait_for()
    book.save()

    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
    if start == START:
        # A kernel that runs a cell does not answer a new page, so what stands there is what was saved, and says so.
        page.wait_for_function(
            "/As of .*, when this copy was made: /.test(document.querySelector('.nbcomm-panel')?.innerText)"
        )
    assert page.locator(".nbcomm-live").count() == 0
    (server.root / f"go-{name}").touch()
    book.idle()
    return book


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("app", "start"),
    [("lab", START), ("lab", NO_PANEL), pytest.param("notebook", NO_PANEL, marks=pytest.mark.nightly)],
    ids=["lab", "lab-without-panel", "notebook-without-panel"],
)
def test_a_page_loaded_again_in_mid_cell_is_shown_what_it_has_missed(
    notebook: Make, server: Server, app: str, start: str
) -> None:
    book = _loaded_again_in_mid_cell(notebook, server, f"again-{app}-{start == START}", app, start)
    page, cell = book.page, book.cell(2)
    missed = page.locator(".nbcomm-missed")
    missed.wait_for()
    assert "This page missed output of In [3]: it was loaded while the cell ran." in missed.inner_text()
    assert page.locator(".nbcomm-live").count() == (start == START)
    assert "[0-3] behind the reload" not in cell.inner_text()
    _show(missed, cell.locator(".jp-OutputArea-output").filter(has_text="ZeroDivisionError").first)
    assert "[0-3] before\n[0-3] behind the reload" in cell.inner_text()
    assert cell.locator(NUMBER).inner_text() == "[3]:"
    missed.wait_for(state="hidden")
    # The file has it, and a page that is loaded again has missed nothing.
    saved = book.save()["cells"][2]
    assert saved["execution_count"] == 3
    assert [output["output_type"] for output in saved["outputs"]].index("error") == len(saved["outputs"]) - 1
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
    book.idle()
    book.start(3)
    again = book.cell(3).locator(".jp-OutputArea-output")
    again.filter(has_text="ZeroDivisionError").first.wait_for()
    shown = book.cell(3).inner_text()
    assert "In [3] on ranks 0-3 ended after" in shown
    assert "[0-3] before\n[0-3] behind the reload" in shown
    assert not missed.is_visible()
    assert book.errors == []


@pytest.mark.timeout(150)
def test_what_was_missed_is_kept_when_a_later_cell_has_run(notebook: Make, server: Server) -> None:
    book = _loaded_again_in_mid_cell(notebook, server, "later", start=NO_PANEL)
    missed = book.page.locator(".nbcomm-missed")
    missed.wait_for()
    book.run(4)
    assert missed.is_visible()
    book.run(3)
    shown = book.cell(3).inner_text()
    assert shown.index("[0-3] behind the reload") < shown.index("In [4] on ranks 0-3 ended after")
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_a_notebook_that_was_closed_in_mid_cell_has_missed_the_rest(notebook: Make, server: Server) -> None:
    book = notebook("closed.ipynb", LOAD, START, CELL.replace("go-again", "go-closed"), NEXT, own_page=True)
    page = book.page
    page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.run(1)
    book.start(2)
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-3] before").wait_for()
    book.save()
    page.evaluate(CLOSE)
    page.wait_for_function("document.querySelector('.jp-Notebook') === null")
    page.evaluate(OPEN, book.name)
    page.wait_for_selector(".nbcomm-panel")
    (server.root / "go-closed").touch()
    missed = page.locator(".nbcomm-missed")
    missed.wait_for()
    _show(missed, book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-3] behind the reload").first)
    assert book.errors == []


BACK = "%distributed attach"


@pytest.mark.timeout(180)
def test_a_panel_whose_kernel_was_restarted_names_the_way_back_and_lives_again(notebook: Make) -> None:
    book = notebook(
        "restarted.ipynb", LOAD, START, "%%distributed\nkept = rank", BACK, "%%distributed\nall_reduce(kept)"
    )
    page = book.page
    page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    panel = page.locator(".nbcomm-live").first
    panel.filter(has_text="all ranks idle").wait_for()
    page.evaluate("void jupyterapp.commands.execute('kernelmenu:restart')")
    page.locator(".jp-Dialog .jp-mod-warn").click()
    panel.filter(has_text="The kernel of this panel has ended.").wait_for()
    said = panel.locator(".headline").inner_text()
    assert "Its ranks and their variables live on for about" in said
    assert "in the next kernel, run %load_ext nbcomm and %distributed attach." in said
    # No button claims what nobody hears.
    for name in ("interrupt", "heal", "stop", "restart"):
        assert panel.get_by_role("button", name=name, exact=True).is_disabled()
    book.idle()
    book.start(0)
    told = book.cell(0).locator(".jp-OutputArea-output")
    told.filter(has_text="An earlier kernel of this notebook left 4 ranks on cpu, with their variables.").wait_for()
    book.run(3)
    # The old place is live again, beside the new one.
    page.wait_for_function("document.querySelectorAll('.nbcomm-live .card[data-mood=idle]').length === 8")
    assert book.page.locator(".nbcomm-live").count() == 2
    assert panel.get_by_role("button", name="stop", exact=True).is_enabled()
    book.run(4)
    assert "[0-3] 6" in book.cell(4).inner_text()
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_in_a_file_that_is_opened_again_nothing_is_dead_and_the_views_come_with_the_next_world(
    notebook: Make, server: Server
) -> None:
    book = notebook("saved-views.ipynb", LOAD, START, "%%distributed\nprint(rank)")
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    bar = book.cell(2).locator(".nbcomm-views-bar")
    bar.wait_for()
    (server.root / "opened-again.ipynb").write_text(json.dumps(book.save()))

    later = notebook("opened-again.ipynb", own_page=True)
    later.page.set_default_timeout(60_000)
    later.open()
    said = later.page.locator(".nbcomm-panel").inner_text()
    assert re.search(r"As of .*, when this copy was made: all ranks idle", said), said
    assert later.page.locator("[class^=nbcomm-views], .nbcomm-views-room, .nbcomm-live").count() == 0
    assert "[3] 3" in later.cell(2).inner_text()
    for cell in range(2):
        later.start(cell)
    later.page.wait_for_selector(".nbcomm-live")
    later.cell(2).locator(".nbcomm-views-bar").get_by_role("radio", name="by rank").click()
    later.cell(2).get_by_role("tab", name="3").wait_for()
    assert later.errors == book.errors == []
