"""A notebook that its hosts reach only through the ssh that it opens to them: run by test_tunnel.py, inside."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..world.notebook import SESSION, Notebook, opened
from . import next_kernel
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]

WORKS = "%%distributed\nall_reduce(rank)"
START = "%distributed start --engines ssh --hosts a:2,b:2 --tunnel --timeout 120"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose ranks are on two hosts, behind tunnels."""
    with opened(tmp_path_factory.mktemp("tunnel"), START, "%%distributed\nkept = [rank]") as notebook:
        yield notebook


def sockets(*options: str) -> list[str]:
    """The local or the peer addresses of the TCP sockets of this machine, as ss tells them."""
    shown = subprocess.run(["ss", "-Htn", *options], capture_output=True, text=True, check=True, timeout=30).stdout
    return [line.split()[-2 if "-l" in options else -1] for line in shown.splitlines()]


def tunnels() -> list[psutil.Process]:
    """The ssh of each tunnel."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and process.info["cmdline"][0] == "ssh" and "-R" in process.info["cmdline"]
    ]


def test_cells_values_and_collectives_work(hosts: Notebook) -> None:
    assert hosts.run("%%distributed\nimport socket\nsocket.gethostname(), all_reduce(rank)").lines == [
        "[0-1] ('a', 6)",
        "[2-3] ('b', 6)",
    ]
    hosts.run("import numpy as np\nbig = np.arange(1 << 20)\n%distributed push big")
    assert hosts.run("%%distributed\nint(big.sum())").text == "[0-3] 549755289600\n"
    hosts.run("%distributed pull big")
    assert hosts.run("[int(one.sum()) for one in big] == [549755289600] * 4").text == "True\n"
    assert hosts.run("%%distributed\nimport os\nos.environ['MASTER_ADDR']").text == "[0-3] '10.77.0.11'\n"
    error = hosts.run("%%distributed\nall_reduce(torch.ones(2 + node_rank))", fails=True).error_text
    assert "ranks 0-1 called all_reduce(float32 (2,), sum), line 2\n  ranks 2-3 called all_reduce(float32 (3,)" in error


def test_only_ssh_leaves_this_machine_and_nothing_comes_in(hosts: Notebook) -> None:
    assert {address.rpartition(":")[0] for address in sockets("-l")} == {"127.0.0.1"}
    peers = [address for address in sockets("state", "established") if "10.77.0." in address]
    assert hosts.run(WORKS).text == "[0-3] 6\n"
    assert peers
    assert {address.rpartition(":")[2] for address in peers} == {"22"}


def test_an_ssh_that_ends_is_replaced_and_nothing_is_lost(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nfor n in range(60): print(n); time.sleep(0.1)\nall_reduce(rank)")
    hosts.until(lambda: "[0-3] 5\n" in cell.text, 60, "it does not print", cell)
    before = tunnels()
    assert len(before) == 2
    for process in before:
        process.kill()
    shown = [line for line in hosts.finish(cell).lines if not line.startswith("waiting")]
    assert shown == [*(f"[0-3] {n}" for n in range(60)), "[0-3] 6"]
    assert not {process.pid for process in before} & {process.pid for process in tunnels()}


@pytest.mark.nightly
def test_a_dead_rank_is_replaced(hosts: Notebook) -> None:
    error = hosts.run("%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)\nbarrier()", fails=True)
    assert "Rank 3 was killed by SIGKILL" in error.error_text
    hosts.run("%distributed heal")
    hosts.run("%%distributed -r 3\nkept = [3]")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


def test_ipyparallels_client_says_that_it_cannot_know_these_ranks(hosts: Notebook) -> None:
    hosts.run(SESSION)
    assert "session.client does not work with --tunnel" in hosts.run("session.client", fails=True).error_text


def test_the_next_kernel_opens_tunnels_of_its_own(hosts: Notebook) -> None:
    next_kernel.attaches(hosts)


def test_a_host_that_allows_no_tunnel_is_named(hosts: Notebook) -> None:
    path = Path("/run/fake-hosts/sshd_b.conf")
    path.write_text(path.read_text() + "AllowStreamLocalForwarding no\n")
    os.kill(int(path.with_suffix(".pid").read_text()), signal.SIGHUP)
    try:
        wrong = "%distributed start --world other --engines ssh --hosts b:1 --tunnel"
        error = hosts.run(wrong, 120, fails=True).error_text
        assert "The tunnel from b ended" in error
        assert "remote port forwarding failed" in error
    finally:
        path.write_text(path.read_text().replace("AllowStreamLocalForwarding no\n", ""))
        os.kill(int(path.with_suffix(".pid").read_text()), signal.SIGHUP)
    for line, said in {
        "--hosts b:1,localhost:1 --tunnel --engines ssh": "so it can have no ranks",
        "--tunnel -n 2": "--tunnel needs --engines ssh",
        "--tunnel --engines ssh --hosts b:1 --via 'x {host}'": "without --via",
    }.items():
        assert said in hosts.run(f"%distributed start --world other {line}", fails=True).error_text
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def await_nothing() -> None:
    """Wait until no tunnel, socket, or directory of a node is left."""
    deadline = time.monotonic() + 60
    while tunnels() or leftovers():
        assert time.monotonic() < deadline, [*tunnels(), *leftovers()]
        time.sleep(0.05)


def leftovers() -> list[Path]:
    """What worlds have on the hosts."""
    sockets = Path("/tmp").glob("nbcomm-*.sock")  # noqa: S108 - where they are on each host
    return [*sockets, *node_homes()]


def test_the_end_of_the_world_leaves_nothing(hosts: Notebook) -> None:
    hosts.run("%distributed stop")
    await_nothing()


@pytest.mark.nightly
def test_a_start_that_is_interrupted_leaves_nothing(hosts: Notebook) -> None:
    cell = hosts.submit(START)
    hosts.until(lambda: bool(tunnels()), 60, "no tunnel is opened", cell)
    hosts.interrupt()
    assert "KeyboardInterrupt" in hosts.finish(cell).error_text
    await_nothing()


def test_a_kernel_that_is_killed_leaves_nothing_after_the_grace(hosts: Notebook) -> None:
    hosts.run(f"{START} --grace 1", 150)
    os.kill(hosts.pid, signal.SIGKILL)
    await_nothing()
    hosts.begin_again()
