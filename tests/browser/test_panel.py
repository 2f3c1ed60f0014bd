"""The panel in a real JupyterLab and a real Notebook 7: live, saved, reloaded.

The world is made up in the notebook. A blocking cell ends when the test has seen what it came for and writes
the file ``go``: nothing here waits for time to pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Notebook, Server

WORLD = """
import os, threading, time
from nbcomm.panel import Panel, RankView

def world(state, memory=300):
    return [RankView(r, r, 0, "host", "cpu", 1000 + r, state, time.time(), memory << 20) for r in range(4)]

panel = Panel("demo world", "gloo", world("idle"))
panel.show()
"""
AGAIN = "panel.show()"
BLOCK = """
done = threading.Event()
def watch():
    memory = 400
    while not done.wait(0.02):
        memory += 1
        panel.update(world("running", memory))
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
while not os.path.exists("{go}"):
    time.sleep(0.02)
done.set()
watcher.join()
panel.update(world("{end}"))
panel.settle()
"""
FAIL = """panel.update(world("failed")); panel.settle()"""

# Draws no conclusion from one look: every frame that the browser paints is looked at.
WATCH_FRAMES = """() => {
  window.bare = 0; window.frames = 0;
  const look = () => {
    window.frames += 1;
    for (const table of document.querySelectorAll(".nbcomm-panel > table")) window.bare += table.offsetParent !== null;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""

Make = Callable[..., Notebook]


def blocking(go: str, end: str) -> str:
    return BLOCK.format(go=go, end=end)


def live(book: Notebook, mood: str) -> Any:
    return book.page.locator(f".nbcomm-live .card[data-mood={mood}]")


def expect_cards(book: Notebook, mood: str, count: int) -> None:
    book.page.wait_for_function(
        "([mood, count]) => document.querySelectorAll(`.nbcomm-live .card[data-mood=${mood}]`).length === count",
        arg=[mood, count],
    )


@pytest.mark.timeout(90)
def test_it_is_live_while_a_cell_blocks_and_never_bare(notebook: Make, server: Server) -> None:
    book = notebook("live.ipynb", WORLD, AGAIN, blocking("go-live", "interrupted"))
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "idle", 8)
    book.page.evaluate(WATCH_FRAMES)
    book.start(2)
    expect_cards(book, "running", 8)
    process = live(book, "running").first.locator(".process")
    seen = process.inner_text()
    book.page.wait_for_function("([el, seen]) => el.innerText !== seen", arg=[process.element_handle(), seen])
    assert "running for" in book.page.locator(".nbcomm-live .headline").first.inner_text()

    # Typed letters belong to the card: "b" would insert a cell and "d d" delete one.
    cells = book.page.locator(".jp-Notebook .jp-CodeCell").count()
    live(book, "running").first.focus()
    book.page.keyboard.press("ArrowRight")
    assert book.page.evaluate("document.activeElement.dataset.rank") == "1"
    for letter in "bdd":
        book.page.keyboard.press(letter)
    assert book.page.locator(".jp-Notebook .jp-CodeCell").count() == cells

    (server.root / "go-live").touch()
    expect_cards(book, "interrupted", 8)
    book.idle()
    assert book.page.evaluate("document.activeElement.dataset.rank") == "1"
    stored = [output["data"]["text/plain"] for cell in book.save()["cells"][:2] for output in cell["outputs"]]
    assert ["ranks 0-3 interrupted\n" in lines for lines in stored] == [True, True]
    bare, frames = book.page.evaluate("[window.bare, window.frames]")
    assert bare == 0
    assert frames > 0
    assert book.errors == []


@pytest.mark.timeout(90)
def test_saved_and_reopened_without_a_kernel_it_is_a_table(notebook: Make, server: Server) -> None:
    book = notebook("saved.ipynb", WORLD, FAIL)
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "failed", 4)
    book.idle()
    saved = book.save()
    assert "widgets" not in saved["metadata"]
    [output] = saved["cells"][0]["outputs"]
    assert set(output["data"]) == {"text/html", "text/plain"}
    server.stop_kernels()

    # As whoever gets the file by mail: nobody's signature, and a kernel and language that are not there.
    saved["metadata"] = {"kernelspec": {"name": "gone", "display_name": "gone", "language": "gone"}}
    (server.root / "mailed.ipynb").write_text(json.dumps(saved))
    reader = notebook("mailed.ipynb")
    reader.open(kernel=False)
    reader.page.locator(".jp-Dialog .jp-mod-reject").click()
    table = reader.page.locator(".nbcomm-panel table")
    table.wait_for()
    assert table.locator("tbody tr").count() == 4
    assert "failed" in table.inner_text()
    assert reader.page.locator(".nbcomm-live").count() == 0
    assert reader.page.get_by_text("Error displaying widget").count() == 0
    assert reader.errors == []


@pytest.mark.timeout(90)
def test_a_reloaded_page_goes_live_again(notebook: Make, server: Server) -> None:
    book = notebook("reload.ipynb", WORLD, """panel.update(world("running"))""", blocking("go-reload", "failed"))
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "running", 4)
    book.save()
    book.page.reload()
    book.idle()
    expect_cards(book, "running", 4)
    book.start(2)
    (server.root / "go-reload").touch()
    expect_cards(book, "failed", 4)
    assert book.errors == []


@pytest.mark.timeout(90)
def test_it_works_in_notebook_7(notebook: Make, server: Server) -> None:
    book = notebook("seven.ipynb", WORLD, blocking("go-seven", "idle"), "panel.close()")
    book.open(app="notebook")
    book.run(0)
    expect_cards(book, "idle", 4)
    book.start(1)
    expect_cards(book, "running", 4)
    (server.root / "go-seven").touch()
    expect_cards(book, "idle", 4)
    book.run(2)
    book.page.locator(".nbcomm-panel").filter(has_text="stopped; this was the last state").wait_for()
    assert book.errors == []
