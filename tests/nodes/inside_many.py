"""64 ranks on four fake hosts: run by test_many.py, inside what enter.sh has made."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from ..world.notebook import Notebook

pytestmark = pytest.mark.timeout(400)

WORKS = "%%distributed\nall_reduce(rank)"
START = "%distributed start --engines ssh --hosts a:16,b:16,c:16,d:16 --grace 3 --timeout 200"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose ranks are on four hosts."""
    notebook = Notebook(str(tmp_path_factory.mktemp("many")))
    try:
        notebook.run("%load_ext nbcomm")
        began = time.monotonic()
        notebook.run(START, 250)
        print("START", time.monotonic() - began)
        notebook.run("%%distributed\nkept = [rank]")
        yield notebook
    finally:
        notebook.close()


def test_cells(hosts: Notebook) -> None:
    began = time.monotonic()
    print(hosts.run("%distributed").text)
    print(hosts.run("%%distributed\nnode_rank, all_reduce(1)").text)
    print(hosts.run("%%distributed\nrank * rank").text)
    print(hosts.run("%%distributed\nall_reduce(torch.ones(2) * rank)").text)
    print("CELLS", time.monotonic() - began)
    for _ in range(3):
        began = time.monotonic()
        hosts.run(WORKS)
        print("CELL", time.monotonic() - began)
    e = hosts.run("%%distributed\nif rank != 63: barrier()", fails=True).error_text
    print(e)
    e = hosts.run("%%distributed\nall_reduce(torch.ones(2 + (rank==40)))", fails=True).error_text
    print(e)


def test_death(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nif rank == 63: time.sleep(600)\nbarrier()")
    hosts.until(lambda: "waiting for rank 63" in cell.text, 60, "the cell did not begin", cell)
    began = time.monotonic()
    subprocess.run(["ip", "link", "set", "vd", "down"], check=True, timeout=10)
    try:
        e = hosts.finish(cell, 200).error_text
        print("DEATH", time.monotonic() - began, e)
    finally:
        subprocess.run(["ip", "link", "set", "vd", "up"], check=True, timeout=10)
    began = time.monotonic()
    print(hosts.run("%distributed heal", 200).text)
    print("HEAL", time.monotonic() - began)
    print(hosts.run("%%distributed\nall_reduce(rank), 'kept' in globals()").text)
    os.kill(hosts.pid, signal.SIGKILL)
    hosts.begin_again()
    hosts.run("%load_ext nbcomm")
    began = time.monotonic()
    print(hosts.run("%distributed attach", 120).text)
    print("ATTACH", time.monotonic() - began)
    print(hosts.run("%%distributed\nall_reduce(rank), 'kept' in globals()").text)
