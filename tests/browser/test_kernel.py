"""The cluster kernel as a person meets it: chosen in JupyterLab or Notebook 7, typed into, interrupted, restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nbcomm.kernel import spec

from .conftest import Notebook, Server

FOREVER = """print("on", flush=True)
if rank == 1:
    import time
    time.sleep(600)
barrier()"""


@pytest.fixture
def kernel(server: Server) -> Iterator[str]:
    """The kernel's name on the server that runs."""
    kernels = server.root.parent / "data_dir" / "kernels"
    spec.install(kernels, 4, device="cpu")
    yield "nbcomm"
    spec.remove(folder=kernels)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.nightly)])
def test_every_cell_runs_on_the_ranks(notebook: Callable[..., Notebook], server: Server, kernel: str, app: str) -> None:
    name = f"cluster-{app}.ipynb"
    server.write(name, "", "", FOREVER, "'kept' in globals(), all_reduce(1)", "%%local\nworld = 'none'", kernel=kernel)
    book = notebook(name)
    book.kernel = "PyTorch distributed, 4 ranks (nbcomm)"
    book.page.set_default_timeout(60_000)
    book.open(app=app)
    for cell, code in enumerate(("kept = rank", "all_reduce(kept)")):
        book.cell(cell).locator(".cm-content").click()
        book.page.keyboard.insert_text(code)
        book.run(cell)
    book.cell(1).locator(".jp-OutputArea-output").filter(has_text="[0-3] 6").wait_for()
    book.run(4)
    assert book.cell(4).locator(".jp-OutputArea-output").count() == 0

    book.start(2)
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-3] on").wait_for()
    book.page.locator("[data-jp-item-name=interrupt]").first.click()
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="KeyboardInterrupt").wait_for()
    book.idle()
    book.run(3)
    book.cell(3).locator(".jp-OutputArea-output").filter(has_text="[0-3] (True, 4)").wait_for()

    book.page.locator("[data-jp-item-name=restart]").first.click()
    book.page.locator(".jp-Dialog .jp-mod-accept").click()
    book.page.locator(".jp-Dialog").wait_for(state="detached")
    book.cell(3).locator(".jp-OutputArea-output").filter(has_text="[0-3] (True, 4)").wait_for()
    book.start(3)
    book.cell(3).locator(".jp-OutputArea-output").filter(has_text="[0-3] (False, 4)").wait_for()
    assert book.errors == []


@pytest.mark.timeout(150)
def test_the_views_of_an_output_need_no_panel(notebook: Callable[..., Notebook], server: Server, kernel: str) -> None:
    server.write("cluster-views.ipynb", "print('part', rank // 2)", kernel=kernel)
    book = notebook("cluster-views.ipynb")
    book.kernel = "PyTorch distributed, 4 ranks (nbcomm)"
    book.page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.cell(0).get_by_role("radio", name="by rank").press("Enter")
    view = book.cell(0).locator(".nbcomm-views-host")
    view.get_by_text("part 0").wait_for()
    view.get_by_role("tab", name="rank 3").click()
    view.get_by_text("part 1").wait_for()
    assert book.page.locator(".nbcomm-live").count() == 0
    assert book.errors == []
