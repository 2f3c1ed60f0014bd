"""What goes wrong, as a person sees it in a real JupyterLab: a wait, ■, a verdict, a death, a heal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Notebook, Server

CELLS = [
    "%load_ext nbcomm",
    "%distributed start -n 4",
    "%%distributed\nimport os, time\nkept = rank",
    "%%distributed\nif rank == 1:\n    time.sleep(600)\nbarrier()",
    "%%distributed\nif rank != 1:\n    all_reduce(torch.ones(4))",
    "%%distributed\nif rank == 2:\n    os.kill(os.getpid(), 9)\nbarrier()",
    "%distributed heal",
    "%%distributed\nall_reduce(1), globals().get('kept')",
]


def _cards(page: Any, mood: str, count: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('.nbcomm-live .card[data-mood={mood}]').length === {count}")


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_waits_verdicts_and_deaths_are_seen_and_mended(notebook: Callable[..., Notebook]) -> None:
    book = notebook("reliability.ipynb", *CELLS, viewport={"width": 1200, "height": 1400})
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)

    book.start(3)  # three wait for one that computes: no verdict, but said, in the panel and below the cell
    _cards(book.page, "waiting", 3)
    book.cell(3).locator(".jp-OutputArea-output").filter(has_text="wait").wait_for()
    assert "rank 1" in book.cell(3).inner_text()
    book.page.get_by_role("button", name="Interrupt the kernel").click()
    book.cell(3).locator(".jp-OutputArea-output").filter(has_text="KeyboardInterrupt").wait_for()
    book.idle()

    book.start(4)
    book.cell(4).locator(".jp-OutputArea-output").filter(has_text="rank 1 has finished the cell").first.wait_for()
    book.idle()
    book.start(5)
    book.cell(5).locator(".jp-OutputArea-output").filter(has_text="Rank 2 was killed by SIGKILL").first.wait_for()
    _cards(book.page, "dead", 1)
    book.idle()
    book.run(6)
    assert "Rank 2 is back" in book.cell(6).inner_text()
    _cards(book.page, "idle", 4)
    book.run(7)
    assert "[2] (4, None)" in book.cell(7).inner_text()
    assert "[3] (4, 3)" in book.cell(7).inner_text()
    assert book.errors == []


FAILS = "%%distributed\nx = torch.ones(4)\nif rank == 2:\n    raise ValueError('bad batch')\nall_reduce(x)"
DIES = "%%distributed\nif rank == 1:\n    os.kill(os.getpid(), 9)\nall_reduce(x)"
LATER = "import time\ntime.sleep(4)\n%distributed status"


def _figure(row: Any, name: str) -> str:
    return str(row.locator(f".{name}").inner_text())


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("size", "theme"), [(4, "light"), (16, "dark")])
def test_one_rank_fails_and_one_dies_and_the_others_were_only_stopped_for_it(
    notebook: Callable[..., Notebook], server: Server, size: int, theme: str
) -> None:
    server.choose_theme(theme)
    book = notebook(
        f"stopped-{size}.ipynb",
        "%load_ext nbcomm",
        f"%distributed start -n {size}",
        "%%distributed\nimport os",
        FAILS,
        DIES,
        LATER,
        "%distributed heal",
        viewport={"width": 1200, "height": 1400},
    )
    book.page.set_default_timeout(60_000)
    book.open()
    for cell in range(3):
        book.run(cell)
    sentence, chips = book.page.locator(".nbcomm-live .headline"), book.page.locator(".nbcomm-live .chips")
    for cell, said, count in (
        (3, f"rank 2 failed (ValueError: bad batch) · {size - 1} others were stopped because of it", "1 failed"),
        (4, f"rank 1 was killed by SIGKILL · {size - 1} others were stopped because of it", "1 dead"),
    ):
        book.start(cell)
        book.idle()
        sentence.filter(has_text=said).wait_for()
        if size > 8:  # a few have cards
            chips.filter(has_text=count).filter(has_text=f"{size - 1} interrupted").wait_for()
        assert chips.is_visible() == (size > 8)
        shown = " ".join(book.cell(cell).inner_text().split())  # a sentence may go over two lines
        assert f"CellError: 1 of {size} ranks failed" in shown
        assert f"{size - 1} others were stopped because of it" in shown
    assert shown.count("killed by SIGKILL") == 1
    book.run(5)  # the time of the dead is that since the death, and not since the end of the cell before
    status = book.cell(5).inner_text()
    (dead,) = [line for line in status.splitlines() if " dead " in line]
    assert "–" in dead, "it has no memory"
    if size == 4:
        card = book.page.locator(".nbcomm-live .card[data-mood=dead]")
        assert _figure(card, "process") == "cpu"
        assert _figure(card, "since").startswith("for ")
        assert _figure(card, "blame") == "was killed by SIGKILL"
    book.run(6)
    assert "Rank 1 is back" in book.cell(6).inner_text()
    assert book.errors == []
