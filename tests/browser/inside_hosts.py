"""The panel of a world on two fake hosts: run by tests/nodes/test_panel.py, inside what enter.sh has made."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from .conftest import Notebook, Server

START = "%distributed start --engines ssh --hosts a:5,b:4 --timeout 150"
WAITING = """%%distributed
import pathlib, time
while rank > 4 and not pathlib.Path("{go}").exists():
    time.sleep(0.02)
all_reduce(torch.ones(1 << 20)).sum().item()"""


@pytest.mark.timeout(240)
def test_the_panel_shows_which_ranks_are_on_which_host_and_how_fast_data_moves(
    notebook: Callable[..., Notebook], server: Server
) -> None:
    go = server.root / "go"
    book = notebook("hosts.ipynb", "%load_ext nbcomm", START, WAITING.format(go=go), "%distributed stop")
    book.page.set_default_timeout(60_000)
    book.open()
    book.run(0)
    book.run(1)
    panel = book.cell(1).locator(".nbcomm-live")
    for host, ranks in (("node 0 (a)", 5), ("node 1 (b)", 4)):
        expect(panel.get_by_role("group", name=host).get_by_role("option")).to_have_count(ranks)

    book.start(2)
    panel.filter(has_text="waiting for ranks 5-8, at line 4: time.sleep(0.02)").wait_for()
    there = panel.get_by_role("group", name="node 1 (b)")
    expect(there.locator(".tile[data-mood=running]")).to_have_count(4, timeout=30_000)
    go.touch()
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="[0-8] 9437184.0").wait_for()
    panel.filter(has_text=re.compile(r"waited up to .* for it · \d+(\.\d+)? [MG]B/s between nodes")).wait_for()
    book.idle()
    book.run(3)
    assert book.errors == []
