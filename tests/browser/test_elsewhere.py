"""What a person sees in pages that lack something; docs/elsewhere.md has the table, tests/world the kernels' part."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from .conftest import Notebook, Server
from .test_widgets import SLIDER
from .test_world import LOAD, START, STOP

Make = Callable[..., Notebook]

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
