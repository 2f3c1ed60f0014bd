"""A world on two fake hosts, started over ssh: run by test_ssh.py, inside what fake_hosts/enter.sh has made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..notebooks.playing import played_with
from ..world.notebook import SESSION, Notebook, opened
from . import next_kernel
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]

WORKS = "%%distributed\nall_reduce(rank)"
START = "%distributed start --engines ssh --hosts a:2,b:2 --timeout 120"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose ranks are on two hosts."""
    with opened(
        tmp_path_factory.mktemp("ssh"),
        START,
        SESSION,
        "%%distributed\nkept = [rank]",
    ) as notebook:
        yield notebook


def test_each_rank_is_on_its_host_and_meets_the_others_at_its_address(hosts: Notebook) -> None:
    code = "import os, socket\nprint(socket.gethostname(), node_rank, local_rank, os.environ['GLOO_SOCKET_IFNAME'])"
    assert hosts.run(f"%%distributed\n{code}").lines == [
        "[0] a 0 0 eth0",
        "[1] a 0 1 eth0",
        "[2] b 1 0 eth0",
        "[3] b 1 1 eth0",
    ]
    assert hosts.run("%%distributed\nos.environ['MASTER_ADDR']").text == "[0-3] '10.77.0.11'\n"
    table = hosts.run("%distributed status").text
    assert "0 (a)" in table
    assert "1 (b)" in table


def test_collectives_groups_and_messages_go_across(hosts: Notebook) -> None:
    assert hosts.run("%%distributed\nall_reduce(torch.ones(2) * rank).tolist()").text == "[0-3] [6.0, 6.0]\n"
    across = "%%distributed\ngroup = new_group([1, 2])\nall_reduce(rank, group=group) if rank in (1, 2) else None"
    assert hosts.run(across).text == "[1-2] 3\n"
    assert hosts.run("%%distributed -r 0,3\nsendrecv(rank, 3 - rank, 3 - rank)").lines == ["[0] 3", "[3] 0"]


def test_nothing_listens_but_at_the_addresses_of_the_hosts(hosts: Notebook) -> None:
    """And on loopback: no socket of ours is open to whoever reaches the machine by another way."""
    listening = set()
    for name in ("a", "b"):
        shown = subprocess.run(
            ["ip", "netns", "exec", name, "ss", "-Hltnp"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        listening |= {line.split()[3].rpartition(":")[0] for line in shown.splitlines() if "sshd" not in line}
    assert {"10.77.0.11", "10.77.0.12"} <= listening
    assert listening <= {"10.77.0.11", "10.77.0.12", "127.0.0.1"}
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def test_values_travel_without_memory_or_files_that_are_shared(hosts: Notebook) -> None:
    hosts.run("import numpy as np\nbig = np.arange(1 << 20)\n%distributed push big")
    assert hosts.run("%%distributed\nint(big.sum())").text == "[0-3] 549755289600\n"
    hosts.run("%distributed pull big")
    assert hosts.run("[int(one.sum()) for one in big] == [549755289600] * 4").text == "True\n"
    assert hosts.run("float(session.call(lambda: rank * np.ones(1 << 18))[3].sum())").text == "786432.0\n"


def test_a_script_of_the_notebooks_machine_runs_on_all(hosts: Notebook) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".py") as script:  # each host has its own
        script.write("import os, sys\nassert not os.path.exists(__file__)\nprint(sys.argv[1:])\n1 / int(sys.argv[1])\n")
        script.flush()
        assert hosts.run(f"%%distributed --file {script.name} 4").text == "[0-3] ['4']\n"
        failed = hosts.run(f"%distributed run {script.name} 0", fails=True)
    assert "----> 4 1 / int(sys.argv[1])" in failed.error_text
    assert "CellError: 4 of 4 ranks failed: [0-3] ZeroDivisionError" in failed.error_text


def test_calls_that_differ_between_hosts_move_no_data_and_end_no_process(hosts: Notebook) -> None:
    error = hosts.run("%%distributed\nall_reduce(torch.ones(2 + node_rank))", fails=True).error_text
    assert "ranks 0-1 called all_reduce(float32 (2,), sum), line 2\n  ranks 2-3 called all_reduce(float32 (3,)" in error
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def test_a_network_that_is_cut_and_mended_costs_only_time(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nfor n in range(60): print(n); time.sleep(0.1)\nall_reduce(rank)")
    hosts.until(lambda: "[0-3] 5\n" in cell.text, 60, "it does not print", cell)
    subprocess.run(["ip", "link", "set", "vb", "down"], check=True, timeout=10)
    time.sleep(5)  # so long is the network cut: longer than the link's heartbeats wait
    subprocess.run(["ip", "link", "set", "vb", "up"], check=True, timeout=10)
    shown = [line for line in hosts.finish(cell).lines if not line.startswith("waiting")]
    assert shown == [*(f"[0-3] {n}" for n in range(60)), "[0-3] 6"]
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def test_the_ssh_that_has_started_a_node_may_end(hosts: Notebook) -> None:
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "ssh" and "nbcomm.node" in " ".join(process.info["cmdline"]):
            process.kill()
    assert hosts.run(WORKS).text == "[0-3] 6\n"
    assert hosts.run("print(session.troubles)").text == "[]\n"


def test_the_next_kernel_attaches_over_the_network(hosts: Notebook) -> None:
    next_kernel.attaches(hosts)
    hosts.run(SESSION)


def test_what_cannot_start_says_why(hosts: Notebook) -> None:
    wrong = "%distributed start --world other --engines ssh"
    error = hosts.run(f"{wrong} --hosts b:1 --python /nowhere/python", fails=True).error_text
    assert "of node 0 (b) ended. Its log ends:" in error
    assert "/nowhere/python" in error
    error = hosts.run(f"{wrong} --hosts nowhere.invalid:1 --address 10.77.0.1", fails=True).error_text
    assert "of node 0 (nowhere.invalid) ended" in error
    assert "ould not resolve hostname" in error
    error = hosts.run(f"{wrong} --hosts b:1 --address 10.99.0.1", fails=True).error_text
    assert "Nothing can listen at 10.99.0.1" in error
    failed = hosts.run(f"{wrong} --hosts a:1,b:1 --prologue 'echo hm; exit 3'", fails=True)
    assert "of node 0 (a) ended: the prologue has failed with exit code 3 on a. Its log ends:\nhm" in failed.error_text
    assert failed.text == "", "what could not be ended on the other host, where nothing had begun, is no news"
    reached = f"{wrong} --hosts a:1 --via 'ip netns exec {{host}}' --address 127.0.0.1"
    error = hosts.run(reached, fails=True).error_text
    assert "The notebook was not reached at tcp://127.0.0.1:" in error
    for line, said in {
        wrong: "--engines ssh needs hosts; write for example --hosts a:4,b:4.",
        f"{wrong} --hosts a,b": "How many ranks?",
        f"{wrong} --hosts a:1,a:2": "a stands twice in --hosts",
        f"{wrong} --hosts localhost:1,b:1 --address 127.0.0.1": "at which b cannot reach this machine",
        f"{wrong} --hosts a:1 -n 2": "--hosts has 1 ranks, and -n says 2",
        f"{wrong} --hosts a:1,b:1 --nodes 2": "--hosts says how many nodes there are",
        "%distributed start --world other --hosts a:1": "--hosts a:1 needs --engines ssh or mpi.",
        f"{wrong} --hosts a:x": "'a:x' is no host with a number of ranks",
    }.items():
        assert said in hosts.run(line, fails=True).error_text
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def test_a_start_that_is_interrupted_leaves_nothing_on_the_hosts(hosts: Notebook) -> None:
    before = node_homes()
    cell = hosts.submit("%distributed start --world given-up --engines ssh --hosts a:1,b:1")
    hosts.until(lambda: len(node_homes() - before) == 2, 60, "no node joins", cell)
    hosts.interrupt()
    assert "KeyboardInterrupt" in hosts.finish(cell).error_text
    assert node_homes() <= before
    words = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    there = {word for line in words if "-m nbcomm.node.daemon" in line for word in line.split() if "-node" in word}
    assert there == {str(path) for path in before}
    assert hosts.run(WORKS).text == "[0-3] 6\n"


def test_the_notebooks_own_machine_may_have_ranks_too(hosts: Notebook) -> None:
    hosts.run("%distributed start --world mixed --engines ssh --hosts b:1,localhost:1 --timeout 120", 150)
    code = "%%distributed --world mixed\nimport socket\nprint(socket.gethostname(), node_rank, all_reduce(1))"
    assert hosts.run(code).lines == ["[0] head 0 2", "[1] b 1 2"]
    error = hosts.run("%%distributed --world mixed\nall_reduce(torch.ones(1 + rank))", fails=True).error_text
    assert "MismatchError" in error
    hosts.run("%distributed stop --world mixed")
    hosts.run("%distributed start --world alone --engines ssh --hosts localhost:2")
    assert hosts.run("%%distributed --world alone\nall_reduce(rank)").text == "[0-1] 1\n"
    hosts.run("%distributed stop --world alone")


@pytest.mark.nightly
def test_the_doctor_looks_at_the_whole_way(hosts: Notebook) -> None:
    command = [sys.executable, "-m", "nbcomm", "doctor", "--engines", "ssh"]
    tried = subprocess.run([*command, "--hosts", "a:1,b:1"], capture_output=True, text=True, check=True, timeout=120)
    for line in (
        "node 0             a: 1 rank on cpu, network eth0",
        "node 1             b: 1 rank on cpu, network eth0",
        "This start works.",
    ):
        assert line in tried.stdout
    wrong = [*command, "--hosts", "a:1,b:1", "--python", "/nowhere/python"]
    failed = subprocess.run(wrong, capture_output=True, text=True, check=False, timeout=120)
    assert failed.returncode == 1
    assert "/nowhere/python" in failed.stdout
    assert hosts.run(WORKS).text == "[0-3] 6\n"


@pytest.mark.nightly
def test_times_of_a_machine_whose_clock_is_wrong_are_told_by_the_notebooks_clock(
    hosts: Notebook, tmp_path: Path
) -> None:
    wrong = "import socket, time\nreal = time.time\ntime.time = lambda: real() + 100 * (socket.gethostname() == 'b')\n"
    (tmp_path / "sitecustomize.py").write_text(wrong)
    hosts.run(
        f"%distributed start --world late --engines ssh --hosts a:1,b:1 --prologue 'export PYTHONPATH={tmp_path}' "
        "--timeout 120",
        150,
    )
    there = hosts.run("%%distributed --world late\nimport time\ntime.time()").text
    late, early = (float(line.split()[1]) for line in reversed(there.splitlines()))
    assert 90 < late - early < 110, "the clocks differ"
    trace = tmp_path / "late.json"
    hosts.run(f"%%distributed --world late --trace {trace}\nif rank == 0: time.sleep(0.5)\nbarrier()")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "barrier"]
    ends = {event["pid"]: (event["ts"] + event["dur"]) / 1e6 for event in events if "dur" in event}
    assert set(ends) == {0, 1}
    assert abs(ends[0] - ends[1]) < 10
    assert "idle" in hosts.run("%distributed status --world late").text
    said = hosts.run("%distributed status --world late").text
    assert not re.search(r"\((1|2) min", said), said
    hosts.run("%distributed stop --world late")


@pytest.mark.nightly
def test_another_command_may_take_the_place_of_ssh(hosts: Notebook) -> None:
    hosts.run(
        "%distributed start --world via --engines ssh --hosts a:1,b:1 --via 'ip netns exec {host}' "
        "--prologue 'export SAID=it' --timeout 120",
        150,
    )
    code = "%%distributed --world via\nimport os\nprint(os.environ['SAID'], node_rank, all_reduce(1))"
    assert hosts.run(code).lines == ["[0] it 0 2", "[1] it 1 2"]
    hosts.run("%distributed stop --world via")


@pytest.mark.nightly
def test_the_first_notebook_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = played_with('engines = "ssh"\nhosts = "a,b"', tmp_path, monkeypatch, capsys)
    assert re.search(r"^3 +1 +1 \(b\) ", page, re.MULTILINE)


def test_a_machine_that_is_lost_is_told_and_may_come_back(hosts: Notebook) -> None:
    hosts.run("%distributed start --world lost --engines ssh --hosts a:1,b:1 --grace 3 --timeout 120", 150)
    hosts.run("%%distributed --world lost\nkept = rank")
    cell = hosts.submit("%%distributed --world lost\nimport time\nif rank == 1: time.sleep(600)\nbarrier()")
    hosts.until(lambda: "waiting for rank 1" in cell.text, 60, "the cell did not begin", cell)
    began = time.monotonic()
    subprocess.run(["ip", "link", "set", "vb", "down"], check=True, timeout=10)
    try:
        error = hosts.finish(cell, 120).error_text
        assert 3 < time.monotonic() - began < 90, "the grace, ten seconds, and what a busy machine adds"
        assert "Rank 1 was lost with node 1 (b), which does not answer" in error
        assert hosts.run("%%distributed --world lost -r 0\nkept").text == "[0] 0\n"
        error = hosts.run("%distributed heal --world lost", fails=True).error_text
        assert "of node 1 (b) ended. Its log ends:\nssh: connect to host" in error
        assert hosts.run("%%distributed --world lost -r 0\nkept").text == "[0] 0\n"
    finally:
        subprocess.run(["ip", "link", "set", "vb", "up"], check=True, timeout=10)
    hosts.run("%distributed heal --world lost", 120)
    assert hosts.run("%%distributed --world lost\nall_reduce(rank), globals().get('kept')").lines == [
        "[0] (1, 0)",
        "[1] (1, None)",
    ]
    hosts.run("%distributed stop --world lost")


def test_nothing_is_left_on_any_host(hosts: Notebook) -> None:
    """The last test: it ends the world."""
    pids = [int(pid) for pid in hosts.run("print(*[view.pid for view in session.views()])").text.split()]
    hosts.run("%distributed stop")
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank lives on"
        time.sleep(0.05)
    assert node_homes() == set()
