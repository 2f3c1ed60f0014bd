"""64 ranks on four fake hosts: run by test_many.py, inside what enter.sh has made."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from ..world.notebook import Notebook, opened
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(400)]

NAMES = ("a", "b", "c", "d")
START = f"%distributed start --engines ssh --hosts {','.join(f'{name}:16' for name in NAMES)} --grace 20 --timeout 300"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with 16 ranks on each of four hosts."""
    with opened(tmp_path_factory.mktemp("many"), START, "%%distributed\nkept = rank") as notebook:
        yield notebook


def test_cells_run_on_all_and_what_is_alike_is_shown_once(hosts: Notebook) -> None:
    assert hosts.run("%%distributed\nnode_rank, all_reduce(rank)").lines == [
        "[0-15] (0, 2016)",
        "[16-31] (1, 2016)",
        "[32-47] (2, 2016)",
        "[48-63] (3, 2016)",
    ]
    table = [line.split() for line in hosts.run("%distributed status").lines]
    assert [row[:5] for row in table if row and "-" in row[0]] == [
        [f"{16 * node}-{16 * node + 15}", "0-15", str(node), f"({name})", "cpu"] for node, name in enumerate(NAMES)
    ]


def test_one_of_them_that_does_not_come_or_calls_something_else_is_named(hosts: Notebook) -> None:
    error = hosts.run("%%distributed\nif rank != 63: barrier()", fails=True).error_text
    assert "\n  ranks 0-62 wait in it, in line 2: if rank != 63: barrier()\n  rank 63 has finished the cell\n" in error
    error = hosts.run("%%distributed\nall_reduce(torch.ones(2 + (rank == 40)))", fails=True).error_text
    assert "rank 40 called all_reduce(float32 (3,), sum), line 2" in error
    assert "ranks 0-39,41-63 called all_reduce(float32 (2,), sum), line 2" in error
    assert hosts.run("%%distributed\nall_reduce(1)").text == "[0-63] 64\n"


def test_a_host_that_is_lost_costs_only_its_ranks(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nif rank == 63: time.sleep(600)\nbarrier()")
    hosts.until(lambda: "waiting for rank 63" in cell.text, 60, "the cell did not begin", cell)
    subprocess.run(["ip", "link", "set", "vd", "down"], check=True, timeout=10)
    try:
        error = hosts.finish(cell, 200).error_text
    finally:
        subprocess.run(["ip", "link", "set", "vd", "up"], check=True, timeout=10)
    assert "Ranks 48-63 were lost with node 3 (d), which does not answer" in error
    assert error.endswith(
        "CellError: 16 of 64 ranks failed: [48-63] RankDiedError; 48 others were stopped because of them"
    )
    healed = hosts.run("%distributed heal", 300).text
    assert "The daemon of node 3 (d) and ranks 48-63 are back" in healed
    assert hosts.run("%%distributed\nall_reduce(rank), 'kept' in globals()").lines == [
        "[0-47] (2016, True)",
        "[48-63] (2016, False)",
    ]


def test_the_next_kernel_attaches_to_all(hosts: Notebook) -> None:
    os.kill(hosts.pid, signal.SIGKILL)
    hosts.begin_again()
    hosts.run("%load_ext nbcomm")
    hosts.run("%distributed attach", 120)
    assert hosts.run("%%distributed\nall_reduce(rank), 'kept' in globals()").lines == [
        "[0-47] (2016, True)",
        "[48-63] (2016, False)",
    ]


def test_nothing_is_left_on_any_host(hosts: Notebook) -> None:
    """The last test: it ends the world."""
    hosts.run("%distributed stop", 120)
    assert node_homes(NAMES) == set()
