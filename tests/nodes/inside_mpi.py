"""A world that a real mpiexec starts on two fake hosts: run by test_mpi.py, inside what enter.sh has made."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..node.served import await_that
from ..world.notebook import Notebook, opened
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]

WORKS = "%%distributed\nall_reduce(rank)"
DIES = "%%distributed\nimport os\nif rank == 2: os.kill(os.getpid(), 9)\nbarrier()"
START = "%distributed start --engines mpi --hosts a:2,b:1 --timeout 120"
BETWEEN = "--line '-mca oob_tcp_if_include br0,eth0'"
"""By which interfaces Open MPI's own programs speak; nbcomm's do not use MPI."""


def programs() -> list[psutil.Process]:
    """The nodes' programs, and mpiexec."""
    words = {process: " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])}
    return [process for process, line in words.items() if "-m nbcomm.node " in line and "ssh" not in line.split()[0]]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose ranks are on two hosts."""
    with opened(tmp_path_factory.mktemp("mpi"), f"{START} {BETWEEN}", "%%distributed\nkept = [rank]") as notebook:
        yield notebook


def test_each_rank_is_on_its_host_and_the_tokens_are_gone(hosts: Notebook) -> None:
    code = "import os, socket\nprint(socket.gethostname(), node_rank, local_rank, os.environ['GLOO_SOCKET_IFNAME'])"
    assert hosts.run(f"%%distributed\n{code}").lines == ["[0] a 0 0 eth0", "[1] a 0 1 eth0", "[2] b 1 0 eth0"]
    assert hosts.run(WORKS).text == "[0-2] 3\n"
    assert list((Path.home() / ".nbcomm").iterdir()) == []


@pytest.mark.nightly
def test_values_travel_without_memory_that_is_shared(hosts: Notebook) -> None:
    hosts.run("import numpy as np\nbig = np.arange(1 << 20)\n%distributed push big")
    assert hosts.run("%%distributed\nint(big.sum())").text == "[0-2] 549755289600\n"
    hosts.run("%distributed pull big")
    assert hosts.run("[int(one.sum()) for one in big] == [549755289600] * 3").text == "True\n"


def test_a_dead_rank_is_replaced_though_mpi_cannot(hosts: Notebook) -> None:
    assert "Rank 2 was killed by SIGKILL" in hosts.run(DIES, fails=True).error_text
    hosts.run("%distributed heal")
    hosts.run("%%distributed -r 2\nkept = [2]")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-2] (3, True)\n"


def test_a_killed_daemon_is_replaced_by_its_nodes_program_and_its_ranks_go_on(hosts: Notebook) -> None:
    hosts.run("%%distributed -r 2\nimport psutil\npsutil.Process().parent().kill()")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-2] (3, True)\n"
    assert "Rank 2 has ended" in hosts.run(DIES, fails=True).error_text
    hosts.run("%distributed heal")
    hosts.run("%%distributed -r 2\nkept = [2]")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-2] (3, True)\n"


def test_the_next_kernel_attaches(hosts: Notebook) -> None:
    os.kill(hosts.pid, signal.SIGKILL)
    hosts.begin_again()
    hosts.run("%load_ext nbcomm")
    hosts.run("%distributed attach", 120)
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-2] (3, True)\n"
    assert "Rank 2 was killed by SIGKILL" in hosts.run(DIES, fails=True).error_text
    hosts.run("%distributed heal")
    assert hosts.run(WORKS).text == "[0-2] 3\n"


@pytest.mark.nightly
def test_a_restart_starts_all_again(hosts: Notebook) -> None:
    hosts.run("%distributed restart", 150)
    assert hosts.run(WORKS).text == "[0-2] 3\n"


def test_the_end_of_one_nodes_program_is_that_of_all(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nif rank < 2: time.sleep(600)\nbarrier()")
    hosts.until(lambda: "waiting for ranks 0-1" in cell.text, 60, "it does not begin", cell)
    (of_b,) = [process for process in programs() if process.environ().get("OMPI_COMM_WORLD_RANK") == "1"]
    of_b.kill()
    error = hosts.finish(cell, 60).error_text
    assert "Ranks 0-1 were lost with node 0 (a), which was told to end" in error
    assert "type %distributed restart to start all of them again" in error
    assert "heal" not in error
    assert hosts.run("%%distributed -r 2\n'alive'").text == "[2] 'alive'\n"
    await_that(lambda: programs() == [], "programs live on")
    error = hosts.run("%distributed heal", fails=True).error_text
    assert re.search(
        r"Nothing was replaced: .*\. (mpiexec ended with exit code \d+\. )?The programs of all nodes", error.flat
    )
    hosts.run("%distributed restart", 150)
    assert hosts.run(WORKS).text == "[0-2] 3\n"


def test_a_start_that_fails_says_what_mpiexec_says(hosts: Notebook) -> None:
    start = f"%distributed start --world other --engines mpi {BETWEEN}"
    error = hosts.run(f"{start} --hosts a:1,b:1 --python /nowhere/python", fails=True).error_text
    assert "/nowhere/python" in error
    error = hosts.run(f"{start} --hosts a:1,nowhere:1", fails=True).error_text
    assert "StartError: mpiexec ended with exit code" in error
    assert "ssh: Could not resolve hostname nowhere" in error
    error = hosts.run(f"{start} --hosts a:1,b:1 --prologue '[ $HOSTNAME = a ] || exit 3'", fails=True).error_text
    assert "before all nodes had joined: the prologue has failed with exit code 3 on b. Its log ends:" in error
    assert "How many ranks?" in hosts.run(start, fails=True).error_text
    shown = hosts.run(f"{start} --hosts a:1,b:1 --python py --dry-run").text
    assert shown.startswith("mpiexec -n 2 --host a,b --map-by ppr:1:node --bind-to none ")
    assert shown.endswith("-mca oob_tcp_if_include br0,eth0 py -m nbcomm.node TICKETS\n")
    assert hosts.run(WORKS).text == "[0-2] 3\n"
    assert list((Path.home() / ".nbcomm").iterdir()) == []


def test_nothing_is_left_on_any_host(hosts: Notebook) -> None:
    """The last test: it ends the world."""
    hosts.run("%distributed stop")
    await_that(lambda: programs() == [], "programs live on")
    assert node_homes() == set()
