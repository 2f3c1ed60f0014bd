"""What a person sees in pages that lack something; docs/elsewhere.md has the table, tests/world the kernels' part."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbcomm.frontend import viewless
from nbcomm.panel import output_views

from .conftest import Notebook, Server
from .test_panel import UNHEARD, expect_said, press
from .test_widgets import SLIDER
from .test_world import LOAD, START, STOP

Make = Callable[..., Notebook]
OWN_PAGES = True
"""JupyterLab is loaded for each test here: it lacks something."""

VIEWS = Path(output_views.__file__).parent / "js" / "views.js"
USED = re.compile(r"(?<![\w-])(?:jp|lm|cm)-[\w-]+|jupyter-widgets|data-(?:jp|lm)-[\w-]+|data-mime-type")
"""What JupyterLab calls its own: classes and attributes; its styles' variables (--jp-…) have values to fall back on."""

MIXED = """%%distributed
print("hello from", rank)
print("the same")
rank % 2"""
FAILING = "%%distributed\n1 / (rank - 1)"


@contextlib.contextmanager
def disabled(server: Server, extension: str) -> Iterator[None]:
    """Pages that are opened meanwhile do not have this extension, as after ``jupyter labextension disable``."""
    config = server.settings.parents[2] / "config_dir" / "labconfig" / "page_config.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps({"disabledExtensions": {extension: True}}))
    try:
        yield
    finally:
        config.unlink()


@pytest.mark.timeout(150)
@pytest.mark.nightly
@pytest.mark.parametrize("extension", ["anywidget", "@jupyter-widgets/jupyterlab-manager"])
def test_without_an_extension_the_panel_is_its_table(notebook: Make, server: Server, extension: str) -> None:
    name = extension.rpartition("/")[2]
    book = notebook(f"without-{name}.ipynb", LOAD, START, MIXED, SLIDER, FAILING, STOP)
    book.page.set_default_timeout(30_000)
    with disabled(server, extension):
        book.open()
    for cell in range(4):
        book.run(cell)
    table = book.cell(1).locator(".nbcomm-panel table")
    assert table.locator("tbody tr").count() == 4
    assert "[2] hello from 2" in book.cell(2).inner_text()
    if extension == "anywidget":
        book.cell(3).locator(".noUi-handle").wait_for()
    else:
        book.cell(3).locator("pre").filter(has_text="[0] rate: 0.3").wait_for()
    book.run(4)
    book.page.wait_for_function(
        "el => el.innerText.includes('rank 1 failed')", arg=book.cell(1).locator(".nbcomm-panel").element_handle()
    )
    book.run(5)
    book.page.locator(".nbcomm-panel").filter(has_text="stopped; this was the last state").wait_for()
    assert book.page.locator(".nbcomm-live").count() == 0
    assert book.page.locator(".jp-Dialog").count() == 0
    assert "Error displaying" not in book.page.locator("body").inner_text()


# ── JupyterLab's own names ──

ASKING = """%%distributed
print("hello from", rank)
print("the same")
name = input("Name? ") if rank == 1 else None"""
RENAME = f"""import pathlib
read = pathlib.Path.read_text
def renamed(self, *args, **keys):
    text = read(self, *args, **keys)
    return re.sub({USED.pattern!r}, "gone", text) if self.suffix in (".js", ".css") else text
import re
pathlib.Path.read_text = renamed
{LOAD}"""
OPEN = """text => import(URL.createObjectURL(new Blob([text], {type: "text/javascript"})))
  .then(module => module.default.initialize({model: {on() {}, send() {}, get() {}, widget_manager: {}}}))
  .then(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))))"""


def used() -> list[str]:
    """Every name of JupyterLab's that the views look for in the page."""
    text = viewless.module(VIEWS) + VIEWS.with_suffix(".css").read_text()
    return sorted(set(USED.findall(text)))


def test_every_name_of_jupyterlab_that_is_used_is_in_the_docs() -> None:
    written = (VIEWS.parents[3] / "docs" / "elsewhere.md").read_text()
    files = [*VIEWS.parents[2].glob("*/js/*.[jc]s*")]
    names = {name for file in files for name in USED.findall(file.read_text())}
    assert set(used()) <= names
    assert sorted(name for name in names if f"`{name}`" not in written) == []


@pytest.mark.timeout(150)
def test_where_all_names_are_others_the_panel_lives_and_there_are_no_views(notebook: Make) -> None:
    book = notebook("renamed.ipynb", RENAME, START, MIXED, FAILING, STOP)
    book.page.set_default_timeout(30_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card').length === 4")
    assert "[2] hello from 2\n[3] hello from 3\n[0-3] the same\n[0,2] 0\n[1,3] 1" in book.cell(2).inner_text()
    book.run(3)
    book.page.wait_for_function("/1 failed/.test(document.querySelector('.nbcomm-live')?.innerText)")
    assert book.page.locator(".nbcomm-views").count() == 0
    book.run(4)
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_where_one_name_is_another_nothing_is_hidden_that_is_shown_nowhere(notebook: Make, browser: Any) -> None:
    book = notebook("one-name.ipynb", LOAD, START, ASKING)
    book.page.set_default_timeout(30_000)
    book.open()
    book.run(0)
    book.run(1)
    book.start(2)
    book.cell(2).locator(".jp-Stdin input").wait_for()
    book.cell(2).locator(".nbcomm-views-bar").wait_for()
    html = book.page.evaluate(
        """() => {
            const copy = document.querySelector(".jp-Notebook").cloneNode(true);
            for (const el of copy.querySelectorAll(".nbcomm-views")) el.remove();
            return copy.outerHTML;
        }"""
    )
    book.cell(2).locator(".jp-Stdin input").press("Enter")
    script, style = viewless.module(VIEWS), VIEWS.with_suffix(".css").read_text()
    found: dict[str, list[str]] = {}
    with contextlib.closing(browser.new_context()) as context:
        for name in ["", *used()]:
            page = context.new_page()
            page.set_default_timeout(10_000)
            wrong = found[name] = []
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(error.message))
            renamed = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])" if name else "(?!)")
            page.set_content(html)
            page.add_style_tag(content=renamed.sub("gone", style))
            page.evaluate(OPEN, renamed.sub("gone", script))
            cell = page.locator(".jp-CodeCell").nth(2)
            radios = cell.get_by_role("radio")
            if not name:
                assert radios.count() == 4  # else this test would look at nothing
            for _ in range(2):  # there and back again
                for place in range(radios.count()):
                    radios.nth(place).evaluate("el => el.click()")
                    shown = cell.inner_text()
                    view = radios.nth(place).inner_text()
                    wrong += [f"{view}: no {text!r}" for text in ("hello from", "the same") if text not in shown]
                    own = cell.locator(".jp-OutputArea-child input:not(.nbcomm-views input)").first
                    if not own.is_visible():
                        wrong.append(f"{view}: no input box")
            if radios.count():
                radios.first.evaluate("el => el.click()")
            shown = cell.inner_text()
            for line in ("[0] hello from 0", "[3] hello from 3", "[0-3] the same"):
                if line not in shown:
                    wrong.append(f"merged: no {line!r}")
            page.close()
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# ── subshells, which hear the page while a cell runs ──

APP = """
import os
from ipykernel.kernelapp import IPKernelApp
class App(IPKernelApp):
    def init_control(self, context):
        super().init_control(context)
        self.shell_channel_thread = None
try:
    App.launch_instance()
finally:  # where another process has taken a port, Jupyter starts it again; by itself it would wait for that thread
    os._exit(1)
"""
BUSY = """%%distributed
import pathlib, time
while not pathlib.Path("go-{who}").exists():
    time.sleep(0.02)
"went on" """
FOREVER = """%%distributed
import time
print("begins")
time.sleep(600)"""


@contextlib.contextmanager
def without_subshells(server: Server, who: str) -> Iterator[None]:
    """A kernel "plain" that has none, as ipykernel 6; or pages that use none, as JupyterLab's before 4.4."""
    home = server.settings.parents[2]
    spec = home / "data_dir" / "kernels" / "plain"
    setting = server.settings / "kernels-settings.jupyterlab-settings"
    if who == "kernel":
        spec.mkdir(parents=True)
        argv = [sys.executable, "-c", APP, "-f", "{connection_file}"]
        kernel = {"argv": argv, "display_name": "plain", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(kernel))
    else:
        setting.write_text(json.dumps({"commsOverSubshells": "disabled"}))
    try:
        yield
    finally:
        setting.unlink(missing_ok=True)
        shutil.rmtree(spec, ignore_errors=True)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("who", ["kernel", pytest.param("page", marks=pytest.mark.nightly)])
def test_without_subshells_all_is_heard_behind_the_cell_and_an_interrupt_at_once(
    notebook: Make, server: Server, who: str
) -> None:
    name, kernel = f"subshells-{who}.ipynb", "plain" if who == "kernel" else "python3"
    tell = "get_ipython().kernel._supports_kernel_subshells"
    cells = [LOAD, START, SLIDER, BUSY.format(who=who), "%%distributed -r 0\nrate.value", FOREVER, tell]
    server.write(name, *cells, kernel=kernel)
    with without_subshells(server, who):
        book = notebook(name)
        book.kernel = "plain" if who == "kernel" else "Python 3"
        book.page.set_default_timeout(30_000)
        book.open()
        for cell in range(3):
            book.run(cell)
        book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card').length === 4")
        book.start(3)
        book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .card[data-mood=running]').length === 4")
        book.cell(2).locator(".noUi-handle").focus()
        book.page.keyboard.press("ArrowRight")
        press(book, "stop")  # heal is disabled: nobody is dead
        book.page.locator(".nbcomm-live").get_by_role("button", name="Yes").click()
        expect_said(book, UNHEARD)
        (server.root / f"go-{who}").touch()
        book.cell(3).locator(".jp-OutputArea-output").filter(has_text="[0-3] 'went on'").wait_for()
        book.idle()
        book.run(4)
        assert "[0] 0.4" in book.cell(4).inner_text()
        book.start(5)
        book.cell(5).locator(".jp-OutputArea-output").filter(has_text="begins").wait_for()
        press(book, "interrupt")
        book.cell(5).get_by_text("KeyboardInterrupt").first.wait_for()
        expect_said(book, "The interrupt was sent, as by the notebook's ■ button.")
        book.idle()
        book.run(6)
        assert str(who == "page") in book.cell(6).inner_text()
    assert book.errors == []
