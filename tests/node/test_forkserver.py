"""The fork server with its agent: real ones in a home of their own, with a notebook's client, and whoever connects."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from nbcomm.errors import Interrupted, StartError
from nbcomm.launch.head import Head
from nbcomm.launch.ways import forkserver_process
from nbcomm.node import forkserver
from nbcomm.node.agent.rank_ends import STATUS
from nbcomm.node.seed.client import SeededProcess
from nbcomm.protocol import (
    Claim,
    Exited,
    Failed,
    ForkServerEnded,
    Left,
    Look,
    NodeStatus,
    Obeyed,
    Order,
    Ready,
    Report,
    ServeStore,
    Shutdown,
    Signal,
    Start,
    Started,
    Unwatched,
)
from nbcomm.protocol.codec import decode_status, encode
from nbcomm.protocol.framing import ASK, FramedSocket
from nbcomm.world_dir import HOME_VARIABLE, WorldDir
from nbcomm.world_info import WorldInfo

from .served import PATIENCE, Served, agent_of, await_that, has_ended, no_file_more, quickly

_NOTEBOOK = """
import sys, threading
from nbcomm.launch.head import Head
from nbcomm.world_dir import WorldDir

client = Head(WorldDir(sys.argv[1]), running=True)
client.wait_claimed(60)
client.set_lease(float(sys.argv[2]))
client.wait_for_ends(60)
print(flush=True)
threading.Event().wait()
"""
"""A notebook that takes a world, and is killed."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fork servers and engines that are soon there."""
    quickly(monkeypatch, tmp_path)


@pytest.fixture
def served(quick: None) -> Iterator[Served]:
    """One that the test may end."""
    made = Served()
    yield made
    made.close()


@pytest.fixture
def light(quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """One that forks nothing; the test may end it."""
    monkeypatch.setenv("NBCOMM_START", "spawn")
    made = Served()
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Served]:
    """One with real engines, which tests share that leave it alive."""
    made = Served()
    yield made
    made.close()


def stumble(step: str) -> Path:
    """Let a step of the fork server fail once; return the file that is there until it has."""
    file = Path(os.environ["STUMBLES"]) / step
    file.touch()
    return file


def opened(process: psutil.Process) -> set[str]:
    """What a process holds open."""
    held = set()
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            held.add(os.fspath(one.readlink()))
    return held


def descriptors(process: psutil.Process) -> set[str]:
    """The sockets and polls that a process holds open."""
    return {one for one in opened(process) if one.startswith(("socket", "anon_inode"))}


def logged(home: WorldDir) -> str:
    return home.forkserver_log.read_text()


# ── children ────────────────────────────────────────────────────────────────────────────────────────


def test_children_are_forked_here_and_their_end_is_told(lasting: Served) -> None:
    assert lasting.ready.forks, lasting.ready.why
    hasty = lasting.begin("hasty", "--no-such-option=1")
    ended = lasting.exits.get(timeout=PATIENCE)
    assert ended == Exited(hasty.start, "hasty", hasty.pid, 1)
    assert "no-such-option" in (lasting.home.path / "hasty.log").read_text()


def test_a_key_can_be_used_again(lasting: Served) -> None:
    pids = set()
    for _ in range(2):
        pids.add(lasting.begin("again", "--no-such-option=1").pid)
        assert lasting.exits.get(timeout=PATIENCE).key == "again"
    assert len(pids) == 2


def test_a_child_leads_a_group(lasting: Served) -> None:
    child = lasting.engine("waits")
    await_that(lambda: os.getpgid(child.pid) == child.pid, "its first deed after the fork")
    assert child.ppid() == lasting.forkserver.pid


def test_a_child_holds_nothing_of_the_fork_servers_open(served: Served) -> None:
    child = served.engine()
    ours = descriptors(served.forkserver)
    assert any(one.startswith("socket") for one in ours)
    await_that(lambda: not ours & descriptors(child), "it holds something open")


def test_where_forks_are_unwanted_children_are_started_plainly(light: Served) -> None:
    assert (light.ready.forks, light.ready.why) == (False, "NBCOMM_START=spawn")
    child = light.engine("waits")
    await_that(child.cmdline, "between fork and exec it has none")
    await_that(lambda: "quick_engine" in child.cmdline(), "it is another program")
    child.kill()
    start = light.client.processes["waits"].start
    assert light.exits.get(timeout=PATIENCE) == Exited(start, "waits", child.pid, -signal.SIGKILL)


def test_what_cannot_be_started_is_refused_in_words(
    light: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(forkserver_process, "to_start_in", lambda _: "/nowhere")
    with pytest.raises(StartError, match=r"Lost could not be started: .*nowhere"):
        light.begin("lost")
    monkeypatch.undo()
    assert light.engine("after").is_running()


def test_a_fork_that_fails_is_refused_in_words_and_harms_nobody(served: Served) -> None:
    survivor = served.engine("survivor")
    failing = stumble("fork")
    with pytest.raises(
        StartError, match=r"^Rank 1 could not be started: \[Errno 11\] Resource temporarily unavailable\.$"
    ):
        served.engine("rank 1")
    assert not failing.exists()
    assert survivor.is_running()
    assert served.engine("rank 1").is_running()


@pytest.mark.parametrize("step", ["kills", "waitpid"])
def test_an_end_is_told_whatever_fails_in_telling_it(served: Served, step: str) -> None:
    survivor, goes = served.engine("survivor"), served.engine("goes")
    failing = stumble(step)
    goes.kill()
    start = served.client.processes["goes"].start
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "goes", goes.pid, -signal.SIGKILL)
    assert not failing.exists()
    assert survivor.is_running()
    assert "on purpose" in logged(served.home)


def test_a_start_does_not_fail_where_kills_cannot_be_counted(served: Served) -> None:
    failing = stumble("kills")
    assert served.engine("uncounted").is_running()
    assert not failing.exists()


def test_orders_that_come_twice_are_done_once_and_answered_twice(served: Served) -> None:
    home = served.home.path
    environment = {**os.environ, HOME_VARIABLE: str(home)}
    numbers = served.client.numbers
    start = Start(next(numbers), "rank 0", "engine", [], environment, ".")
    answers = [served.client._orders.ask(start, PATIENCE) for _ in range(2)]
    assert answers == [Obeyed(start.number)] * 2
    agent = served.agent
    child = psutil.Process(served.client.processes["rank 0"].pid)
    assert set(served.forkserver.children()) == {agent, child}
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid
    assert served.client._orders.ask(start, PATIENCE) == Obeyed(start.number)
    assert served.forkserver.children() == [agent]
    assert served.exits.empty()


def test_what_was_refused_is_refused_again_and_not_tried(served: Served) -> None:
    stumble("fork")
    environment = {**os.environ, HOME_VARIABLE: str(served.home.path)}
    start = Start(next(served.client.numbers), "rank 0", "engine", [], environment, ".")
    first, second = (served.client._orders.ask(start, PATIENCE) for _ in range(2))
    assert isinstance(first, Failed)
    assert second == first
    assert "rank 0" not in served.client.processes


def test_signals_reach_the_process_of_their_start_only(served: Served) -> None:
    first = served.engine()
    start = served.client.processes["rank 0"].start
    first.kill()
    assert served.exits.get(timeout=PATIENCE).start == start
    second = served.engine()
    assert isinstance(
        served.client._orders.ask(Signal(next(served.client.numbers), start, signal.SIGKILL), PATIENCE), Obeyed
    )
    assert second.is_running()
    served.client.signal("rank 0", signal.SIGTERM)
    assert served.exits.get(timeout=PATIENCE).pid == second.pid


# ── strangers ───────────────────────────────────────────────────────────────────────────────────────


def said_by_a_stranger(home: WorldDir, *orders: Order | Left) -> NodeStatus:
    """Give orders as a process that is no rank, and ask for the status behind them."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(home.agent_socket))
        framed = FramedSocket(connection)
        for order in orders:
            framed.send([encode(order)])
            framed.send([b"", encode(order)])
        framed.send([STATUS], ASK)
        connection.settimeout(PATIENCE)
        while not (answers := framed.receive()):
            pass
        ((_, (frame,)),) = answers
        return decode_status(bytes(frame))


@pytest.mark.parametrize(
    "garbage",
    [b"hello\n", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", encode(Shutdown(1))],
    ids=["half", "numbers", "another language", "no frame"],
)
def test_garbage_ends_its_own_connection_only(served: Served, garbage: bytes) -> None:
    agent, child = served.agent, served.engine()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(os.fspath(served.home.agent_socket))
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    assert said_by_a_stranger(served.home).pid == agent.pid
    assert child.is_running()
    assert served.engine("rank 1").is_running()


def test_a_visitor_is_told_whose_the_world_is(served: Served) -> None:
    served.client.set_lease(77.0)
    served.client.wait_for_ends(PATIENCE)
    assert said_by_a_stranger(served.home) == NodeStatus(served.agent.pid, os.getpid(), 0.0, 77.0)
    served.engine()
    served.client.release()
    await_that(lambda: not said_by_a_stranger(served.home).holder, "it does not notice that the notebook left")
    first, second = (said_by_a_stranger(served.home) for _ in range(2))
    assert 0 < first.alone < second.alone < PATIENCE
    assert first.lease == 77.0


@pytest.mark.parametrize(
    "order",
    [
        Claim(1, 1, 0.0),
        Shutdown(1),
        Signal(1, 0, signal.SIGKILL),
        Start(1, "rank 0", "engine", [], {}, "."),
        Look(1),
        ServeStore(1, 1),
        Left(),
    ],
    ids=lambda order: type(order).__name__,
)
def test_who_does_not_hold_it_gives_no_orders(served: Served, order: Order) -> None:
    child = served.engine()
    aim = served.client.processes["rank 0"].start
    if isinstance(order, Signal):
        order = Signal(1, aim, signal.SIGKILL)
    before = said_by_a_stranger(served.home)
    assert before.holder == os.getpid()
    heard = len(served.client.heard)
    assert said_by_a_stranger(served.home, order) == before
    served.client.wait_for_ends(PATIENCE)
    assert [type(report) for report in served.client.heard[heard:]] == [Obeyed]
    assert child.is_running()
    assert set(served.forkserver.children()) == {served.agent, child}


# ── its end ─────────────────────────────────────────────────────────────────────────────────────────


def test_without_children_it_ends_with_its_notebook(light: Served) -> None:
    agent = light.agent
    light.client.set_lease(600.0)  # there is nothing to keep for so long
    light.client.release()
    light.await_end()
    assert not light.home.path.exists()
    assert has_ended(agent)


def test_without_children_it_stays_for_the_lease_where_a_world_has_begun(light: Served) -> None:
    """All ranks may be on other nodes, and the next notebook looks for the world here."""
    light.home.world_file.write_text("{}")
    began = time.monotonic()
    light.client.set_lease(1.0)
    light.client.release()
    light.await_end()
    assert time.monotonic() - began >= 1.0
    assert not light.home.path.exists()


def test_with_children_it_ends_after_the_lease(served: Served) -> None:
    child, agent = served.engine(), served.agent
    began = time.monotonic()
    served.client.set_lease(1.0)
    served.client.release()
    await_that(lambda: has_ended(child), "the rank lives on")
    assert time.monotonic() - began >= 1.0
    served.await_end()
    assert has_ended(agent)
    assert not served.home.path.exists()


def test_it_is_the_last_lease_that_counts(served: Served) -> None:
    child = served.engine()
    served.client.set_lease(600.0)
    served.client.set_lease(0.1)
    served.client.release()
    served.await_end()
    assert has_ended(child)


def test_a_notebook_that_is_killed_has_left(served: Served) -> None:
    child, agent = served.engine(), served.agent
    served.client.release()
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK, os.fspath(served.home.path), "0.5"], stdout=subprocess.PIPE
    )
    with notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == b"\n"
        assert said_by_a_stranger(served.home).holder == notebook.pid
        notebook.kill()
    served.await_end()
    assert has_ended(child)
    assert has_ended(agent)
    assert not served.home.path.exists()


def test_shutdown_ends_all_at_once(light: Served) -> None:
    child, agent = light.engine(), light.agent
    light.client.shutdown()
    assert has_ended(child)
    assert has_ended(agent)
    assert not light.home.path.exists()


def test_a_shutdown_does_not_wait_for_imports(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with importing(monkeypatch, tmp_path) as (client, _, agent):
        began = time.monotonic()
        client.shutdown()
        assert time.monotonic() - began < 10  # seconds that it would wait for an answer
        assert not client.home.path.exists()
        await_that(lambda: has_ended(agent), "the agent lives on")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_all(served: Served, number: signal.Signals) -> None:
    child, agent = served.engine(), served.agent
    served.forkserver.send_signal(number)
    served.await_end()
    assert has_ended(child)
    assert has_ended(agent)
    assert not served.home.path.exists()
    assert served.client.gone


def test_two_signals_to_end_at_once_end_all(served: Served) -> None:
    child, agent = served.engine(), served.agent
    served.forkserver.suspend()
    for number in (signal.SIGTERM, signal.SIGHUP):
        served.forkserver.send_signal(number)
    served.forkserver.resume()
    served.await_end()
    assert has_ended(child)
    await_that(lambda: has_ended(agent), "the agent lives on")
    assert not served.home.path.exists()


@pytest.mark.parametrize("whose", ["fork server", "agent"])
def test_a_signal_to_end_does_not_end_the_end(served: Served, whose: str) -> None:
    child, agent = served.engine(), served.agent
    if whose == "agent":
        orphaned(served)
    stumble("remove")
    served.client.set_lease(0.1)
    served.client.release()
    await_that(lambda: has_ended(agent), "the agent lives on")
    assert has_ended(child)
    assert not served.home.path.exists()


class importing(ExitStack):  # noqa: N801 - a context
    """A fork server whose imports never end, its client, and its agent."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__()
        slow = folder / "slow"
        slow.mkdir()
        (slow / "quick_engine.py").write_text("import threading\nthreading.Event().wait()")
        patch.setenv("PYTHONPATH", os.fspath(slow), prepend=os.pathsep)

    def __enter__(self) -> tuple[Head, SeededProcess, psutil.Process]:  # type: ignore[override]
        super().__enter__()
        client = Head(WorldDir.create())
        self.callback(client.shutdown)
        assert client._forkserver._process is not None
        await_that(lambda: client.agents == 1, "its agent does not come")
        agent = agent_of(client.home)
        assert agent is not None
        return client, client._forkserver._process, agent


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_is_ended_during_its_imports_leaves_no_agent(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    with importing(monkeypatch, tmp_path) as (client, process, agent):
        psutil.Process(process.pid).send_signal(number)
        process.status(PATIENCE)
        await_that(lambda: has_ended(agent), "the agent lives on")
        with pytest.raises(StartError, match=r"The process that starts the ranks ended\. It has written nothing\.$"):
            client.wait_ready(PATIENCE)


def test_a_server_that_cannot_import_tells_why(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "quick_engine.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path / "broken"), prepend=os.pathsep)
    client = Head(WorldDir.create())
    with pytest.raises(StartError, match="broken on purpose"):
        client.wait_ready(PATIENCE)
    client.shutdown()
    assert not client.home.path.exists()


def test_a_second_fork_server_that_cannot_import_leaves_a_living_world_its_directory(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = served.engine()
    served.home.write_world(WorldInfo("1 rank on cpu", [], [], 0, 60.0, 0.0, "/"))
    served.kill_forkserver()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "quick_engine.py").write_text("raise ImportError('broken on purpose')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.fspath(tmp_path / "broken"), prepend=os.pathsep)
        served.client.launch()
        with pytest.raises(StartError, match="broken on purpose"):
            served.client.wait_ready(PATIENCE)
    assert served.home.read_world().title == "1 rank on cpu"
    assert child.is_running()
    served.client.launch()
    assert served.client.wait_ready(PATIENCE).forks
    assert served.client.processes["rank 0"].pid == child.pid


@pytest.mark.parametrize("written", [b"{", None])
def test_a_directory_whose_world_cannot_be_read_is_no_empty_one(tmp_path: Path, written: bytes | None) -> None:
    home = WorldDir(tmp_path)
    assert not forkserver._is_inhabited(home)
    if written is None:
        (tmp_path / "world.json").mkdir()
    else:
        (tmp_path / "world.json").write_bytes(written)
    assert forkserver._is_inhabited(home)


# ── a fork server that has ended ────────────────────────────────────────────────────────────────────


def test_a_server_that_was_killed_is_noticed(light: Served) -> None:
    light.kill_forkserver()
    assert light.client.gone
    assert light.client.how == "was killed by SIGKILL"
    with pytest.raises(StartError, match="fork server"):
        light.engine()


def orphaned(served: Served) -> None:
    """Kill the fork server under a client that only its agent tells so."""
    client = served.attach()
    assert not client.gone
    served.forkserver.kill()
    served.await_end()
    await_that(lambda: client.gone, "the agent does not tell that the fork server has ended")


def test_the_agent_tells_that_the_fork_server_has_ended(served: Served) -> None:
    agent, child = served.agent, served.engine()
    orphaned(served)
    assert ForkServerEnded() in served.client.heard
    assert served.client.how == "has ended"
    assert child.is_running()
    assert served.agent == agent
    assert served.client.agents == 1


def test_the_agent_notices_ends_where_no_fork_server_does(served: Served) -> None:
    stays, goes, too = (served.engine(f"rank {rank}") for rank in range(3))
    orphaned(served)
    goes.kill()
    start = served.client.processes["rank 1"].start
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 1", goes.pid, None)
    too.kill()
    await_that(lambda: has_ended(too), "it lives on")
    served.client.wait_for_ends(PATIENCE)
    assert served.exits.get_nowait().key == "rank 2"
    assert stays.is_running()
    assert served.exits.empty()


def test_the_agent_ends_what_a_rank_has_left_behind_where_no_fork_server_does(served: Served) -> None:
    rank = psutil.Process(served.begin("rank 0", "--with-a-child").pid)
    await_that(rank.children, "it has no child process")
    (grandchild,) = rank.children()
    orphaned(served)
    rank.kill()
    assert served.exits.get(timeout=PATIENCE).pid == rank.pid
    await_that(lambda: has_ended(grandchild), "it lives on")


def test_the_agent_takes_no_rank_for_dead_because_too_many_files_are_open(served: Served) -> None:
    child = served.engine()
    orphaned(served)
    with no_file_more(served.agent.pid):
        served.client.wait_for_ends(PATIENCE)
    assert served.exits.empty()
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid


def test_the_agent_signals_where_no_fork_server_does(served: Served) -> None:
    child = served.engine()
    orphaned(served)
    served.client.signal("rank 0", signal.SIGTERM)
    assert served.exits.get(timeout=PATIENCE).pid == child.pid
    answer = served.client._orders.ask(Signal(next(served.client.numbers), 1, signal.SIGKILL), PATIENCE)
    assert isinstance(answer, Obeyed), "there is none to signal"


def test_the_agent_refuses_in_words_what_only_a_fork_server_can_do(served: Served) -> None:
    served.engine("rank 1")
    orphaned(served)
    start = Start(next(served.client.numbers), "rank 0", "engine", [], {}, ".")
    assert served.client._orders.ask(start, PATIENCE) == Failed(start.number, "the fork server has ended")
    with pytest.raises(StartError, match=r"The fork server of this world .*has ended.* Type %distributed heal"):
        served.engine()


def test_the_next_notebook_learns_of_the_agent_what_lives(served: Served) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    orphaned(served)
    goes.kill()
    served.exits.get(timeout=PATIENCE)
    second = served.attach()
    assert second.gone
    assert {key: process.pid for key, process in second.processes.items()} == {"rank 0": stays.pid}
    stays.kill()
    assert second.exits.get(timeout=PATIENCE).pid == stays.pid


def test_the_agent_keeps_the_lease_where_no_fork_server_does(served: Served) -> None:
    child, agent = served.engine(), served.agent
    orphaned(served)
    began = time.monotonic()
    served.client.set_lease(1.0)
    served.client.release()
    await_that(lambda: has_ended(child), "the rank lives on")
    assert time.monotonic() - began >= 1.0
    await_that(lambda: has_ended(agent), "the agent lives on")
    assert not served.home.path.exists()


def test_a_lease_that_has_begun_goes_on_when_the_fork_server_ends(served: Served) -> None:
    child, agent = served.engine(), served.agent
    served.client.set_lease(1.0)
    served.client.release()
    served.kill_forkserver()
    await_that(lambda: has_ended(child), "the rank lives on")
    await_that(lambda: has_ended(agent), "the agent lives on")
    assert not served.home.path.exists()


def test_the_agent_ends_all_where_no_fork_server_does(served: Served) -> None:
    child, agent = served.engine(), served.agent
    orphaned(served)
    began = time.monotonic()
    served.client.shutdown()
    assert time.monotonic() - began < 10  # seconds that it would wait for a fork server
    await_that(lambda: has_ended(child), "the rank lives on")  # it is killed, and nobody has waited for it
    await_that(lambda: has_ended(agent), "the agent lives on")
    assert not served.home.path.exists()


def test_a_process_that_has_the_pid_of_a_rank_is_not_harmed(served: Served) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            known = Started(1, "rank 9", stranger.pid)  # that rank has ended, and its number was used again
            served.home.write_children(f'[[1,"rank 9",{stranger.pid}]]'.encode())
            served.kill_forkserver()
            served.agent.kill()
            served.client.launch()
            served.client.wait_ready(PATIENCE)
            assert served.exits.get(timeout=PATIENCE) == Exited(known.start, known.key, known.pid, None)
            served.client.signal("rank 9", signal.SIGKILL)
            served.client.shutdown()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_another_fork_server_ends_the_agent_and_adopts_what_lives(served: Served) -> None:
    first, stays = served.agent, served.engine("rank 0")
    start = served.client.processes["rank 0"].start
    served.kill_forkserver()
    served.client.launch()
    assert served.client.wait_ready(PATIENCE).forks
    assert not served.client.gone
    assert served.agent != first
    await_that(lambda: has_ended(first), "the earlier agent lives on")
    assert served.client.agents == 2
    assert served.client.replaced.wait(PATIENCE)
    assert served.client.processes["rank 0"].pid == stays.pid
    another = served.engine("rank 1")
    served.client.signal("rank 0", signal.SIGTERM)
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 0", stays.pid, None)
    served.client.shutdown()
    assert has_ended(another)


def test_another_fork_server_tells_what_ended_meanwhile(served: Served) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    start = served.client.processes["rank 1"].start
    agent = served.agent
    agent.suspend()  # it sees nothing, so the fork server replaces it, or is killed, too
    served.kill_forkserver()
    goes.kill()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 1", goes.pid, None)
    await_that(lambda: has_ended(agent), "the earlier agent lives on")
    assert stays.is_running()
    assert served.exits.empty()


def test_another_fork_server_adopts_what_could_not_be_written_down(served: Served) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    served.agent.suspend()  # or it would tell who has ended
    served.kill_forkserver()
    served.home.write_children(b"[]")  # as on a full disk
    goes.kill()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    assert served.exits.get(timeout=PATIENCE).pid == goes.pid
    await_that(lambda: str(stays.pid) in served.home.read_children().decode(), "it is not written down")
    stays.kill()
    assert served.exits.get(timeout=PATIENCE).pid == stays.pid


def test_what_was_adopted_is_adopted_again(served: Served) -> None:
    child = served.engine()
    for _ in range(2):
        served.kill_forkserver()
        served.client.launch()
        served.client.wait_ready(PATIENCE)
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid
    assert served.client.agents == 3


def test_what_outlives_its_fork_server_ends_with_the_next_ones_lease(served: Served) -> None:
    child = served.engine()
    served.kill_forkserver()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    served.client.set_lease(0.2)
    served.client.release()
    served.await_end()
    await_that(lambda: has_ended(child), "the rank lives on")
    assert not served.home.path.exists()


def test_a_process_that_cannot_be_watched_is_told_with_the_reason_and_looked_at(served: Served) -> None:
    one, two = served.engine("rank 1"), served.engine("rank 2")
    served.kill_forkserver()
    failing = stumble("pidfd_open")
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    assert not failing.exists()
    start = served.client.processes["rank 1"].start
    assert served.client.unwatched == {"rank 1": "[Errno 24] Too many open files"}
    assert Unwatched(start, "rank 1", "[Errno 24] Too many open files") in served.client.heard
    assert served.exits.empty(), "both live"
    one.kill()
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 1", one.pid, None)
    assert not served.client.unwatched
    two.kill()
    assert served.exits.get(timeout=PATIENCE).key == "rank 2"


# ── another one while the first one lives ───────────────────────────────────────────────────────────


def launched(served: Served) -> SeededProcess:
    """Let the client take the fork server for gone; return the earlier one, a child of this process."""
    earlier = served.client._forkserver._process
    assert earlier is not None
    served.client.launch()
    return earlier


@pytest.mark.parametrize("stopped", [True, False])
def test_another_fork_server_ends_a_living_one_and_its_agent_and_takes_over(served: Served, stopped: bool) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    agent, first = served.agent, served.forkserver
    if stopped:
        first.suspend()
        agent.suspend()
    earlier = launched(served)
    assert served.client.wait_ready(PATIENCE).forks
    assert earlier.status(PATIENCE) == -signal.SIGKILL
    await_that(lambda: has_ended(agent), "the earlier agent lives on")
    assert served.agent.ppid() == served.forkserver.pid
    assert stays.is_running()
    goes.kill()
    assert served.exits.get(timeout=PATIENCE).pid == goes.pid
    assert served.engine("rank 1").is_running()
    assert served.home.path.exists()
    served.client.shutdown()
    await_that(lambda: has_ended(stays), "the rank lives on")  # it was adopted, so nobody has waited for it


def test_of_two_fork_servers_that_start_at_one_moment_one_serves(served: Served) -> None:
    stays = served.engine("rank 0")
    earliest = launched(served)
    other = launched(served)
    started = [other, served.client._forkserver._process]
    assert earliest.status(PATIENCE) == -signal.SIGKILL
    await_that(lambda: any(one.has_ended for one in started if one is not None), "both serve")
    (left,) = [one for one in started if one is not None and not one.has_ended]
    # The client may still hold the world through the agent of the one that was killed.
    served.agent_under(psutil.Process(left.pid))
    await_that(lambda: served.client.ready is not None and served.client._claimed, "neither serves")
    assert stays.is_running()
    assert served.client.processes["rank 0"].pid == stays.pid
    served.client._forkserver._process = left  # whichever it is
    stays.kill()
    assert served.exits.get(timeout=PATIENCE).pid == stays.pid


def test_a_rank_holds_no_descriptor_of_an_adopted_one(served: Served) -> None:
    stays = served.engine("rank 0")
    served.kill_forkserver()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    another = served.engine("rank 1")

    seat = os.fspath(served.home.path / "forkserver")
    assert any("pidfd" in one for one in opened(served.forkserver))
    assert seat in opened(served.forkserver)
    await_that(lambda: not any("pidfd" in one for one in opened(another)), "it sees when the other one ends")
    await_that(lambda: seat not in opened(another), "it keeps the file of the seat open")  # it closes that last
    assert stays.is_running()


# ── its agent ───────────────────────────────────────────────────────────────────────────────────────


def _stop(process: psutil.Process) -> None:
    process.suspend()


ENDS: dict[str, Callable[[psutil.Process], None]] = {"killed": psutil.Process.kill, "stopped": _stop}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["served", "light"])
def test_an_agent_that_ends_is_replaced_soon_and_all_is_told_anew(
    request: pytest.FixtureRequest, end: str, kind: str
) -> None:
    served: Served = request.getfixturevalue(kind)
    first = served.agent
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    goes.kill()
    ended = served.exits.get(timeout=PATIENCE)
    known = dict(served.client.processes)
    heard = len(served.client.heard)
    ENDS[end](first)
    served.await_agents(2, 10)
    assert served.client.replaced.is_set()
    assert has_ended(first)
    assert served.agent.ppid() == served.forkserver.pid
    told = served.client.heard[heard:]
    assert Started(known["rank 0"].start, "rank 0", stays.pid) in told
    assert ended in told
    assert Ready in map(type, told)
    assert served.client.processes == known
    assert served.exits.empty(), "it was told before"
    assert served.engine("rank 2").is_running()
    stays.kill()
    assert served.exits.get(timeout=PATIENCE).pid == stays.pid
    assert not served.client.gone


@pytest.mark.parametrize("times", [5])
def test_agents_are_replaced_again_and_again(served: Served, times: int) -> None:
    child = served.engine()
    for n in range(times):
        served.agent.kill()
        served.await_agents(n + 2)
    assert child.is_running()
    assert served.engine("rank 1").is_running()
    descriptors = len(list(Path(f"/proc/{served.forkserver.pid}/fd").iterdir()))
    served.agent.kill()
    served.await_agents(times + 2)
    assert len(list(Path(f"/proc/{served.forkserver.pid}/fd").iterdir())) == descriptors


def test_an_agent_that_ends_before_there_are_ranks_does_not_end_the_world(served: Served) -> None:
    served.client.set_lease(0.1)
    served.agent.kill()
    served.await_agents(2)
    assert served.engine().is_running()


def test_orders_that_an_agent_took_with_it_are_given_to_the_next(served: Served) -> None:
    served.forkserver.suspend()
    answers: queue.Queue[Report | None] = queue.Queue()
    order = Look(next(served.client.numbers))
    started: queue.Queue[int] = queue.Queue()

    def ask() -> None:
        answers.put(served.client._orders.ask(order, PATIENCE))

    def start() -> None:
        started.put(served.begin("rank 0").pid)

    threads = [threading.Thread(target=work) for work in (ask, start)]
    for thread in threads:
        thread.start()
    await_that(lambda: len(served.client._orders._open) == 2, "the orders are not given")
    served.agent.kill()
    assert answers.empty()
    served.forkserver.resume()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers.get_nowait() == Obeyed(order.number)
    child = psutil.Process(started.get_nowait())
    assert served.client.agents == 2
    assert set(served.forkserver.children()) == {served.agent, child}


def test_an_agent_that_cannot_be_forked_is_tried_again(served: Served) -> None:
    child = served.engine()
    failing = stumble("fork")
    served.agent.kill()
    served.await_agents(2, 10)
    assert not failing.exists()
    assert "Resource temporarily unavailable" in logged(served.home)
    assert served.engine("rank 1").is_running()
    assert child.is_running()


def test_agents_that_end_at_once_occupy_no_core_and_fill_no_disk(served: Served) -> None:
    child = served.engine()
    link = served.home.link_file.read_bytes()
    served.home.link_file.write_bytes(b"{")  # the next agent cannot begin
    served.agent.kill()
    await_that(lambda: "msgspec.DecodeError" in logged(served.home), "the agent begins nevertheless")
    began = time.monotonic()
    before = logged(served.home).count("msgspec.DecodeError")
    await_that(lambda: time.monotonic() - began > 1.0, "")
    after = logged(served.home).count("msgspec.DecodeError")
    assert after - before < 10 * (time.monotonic() - began)  # on a busy machine more than a second has passed
    served.home.link_file.write_bytes(link)
    served.await_agents(2, 10)
    assert child.is_running()


def test_an_agent_that_ends_while_no_notebook_is_there_does_not_prolong_the_lease(served: Served) -> None:
    child = served.engine()
    started = served.client._forkserver._process
    assert started is not None
    served.client.set_lease(2.0)
    began = time.monotonic()
    served.client.release()
    left = False
    killed: set[psutil.Process] = set()

    def is_over() -> bool:
        nonlocal left
        agent = agent_of(served.home)
        # On a busy machine the lease may be over before three of them have come.
        with suppress(OSError, EOFError, psutil.NoSuchProcess):
            left = left or not said_by_a_stranger(served.home).holder
            if left and agent is not None and len(killed) < 3:
                agent.kill()
                killed.add(agent)
        return started.has_ended

    await_that(is_over, "the fork server lives on")
    # Ten seconds are what a notebook has to claim the world from another agent; they do not count here.
    assert 2.0 <= time.monotonic() - began < 10.0
    assert has_ended(child)
    assert not served.home.path.exists()


# ── several notebooks, one after the other ──────────────────────────────────────────────────────────


def test_the_next_notebook_takes_over_and_hears_what_ended_meanwhile(served: Served) -> None:
    stays, goes = served.engine("stays"), served.engine("goes")
    start = served.client.processes["goes"].start
    served.client.set_lease(1e12)  # more than the system waits at once
    served.client.release()
    await_that(lambda: not said_by_a_stranger(served.home).holder, "it does not notice that the notebook left")
    os.kill(goes.pid, signal.SIGKILL)
    await_that(lambda: not goes.is_running(), "it is not reaped")
    second = served.attach()
    assert second.wait_ready(PATIENCE).forks
    assert second.processes["stays"].pid == stays.pid
    assert second.exits.get(timeout=PATIENCE) == Exited(start, "goes", goes.pid, -signal.SIGKILL)
    second.shutdown()
    assert has_ended(stays)
    served.await_end()
    assert not served.home.path.exists()


def test_what_a_key_was_used_for_again_is_all_that_the_next_notebook_hears(served: Served) -> None:
    served.begin("rank 0", "--fail")
    assert served.exits.get(timeout=PATIENCE).status == 1
    present = served.engine("rank 0")
    second = served.attach()
    assert second.processes["rank 0"].pid == present.pid
    assert second.exits.empty()


def test_a_fork_server_that_does_not_answer_is_ended_with_all_that_it_has_started(served: Served) -> None:
    child, agent = served.engine(), served.agent
    served.forkserver.suspend()
    served.client.shutdown(timeout=0.1)
    await_that(lambda: has_ended(child), "the rank lives on")
    await_that(lambda: has_ended(agent), "the agent lives on")
    served.await_end()
    assert not served.home.path.exists()


def test_a_start_that_is_given_up_ends_at_once_and_leaves_nothing(served: Served) -> None:
    survivor, agent = served.engine("survivor"), served.agent
    served.forkserver.suspend()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        served.client.start("rank 1", "engine", ["1"], given_up=lambda: time.monotonic() > began + 0.2)
    assert time.monotonic() - began < 10
    served.forkserver.resume()
    again = served.engine("rank 1")
    assert served.client.processes["rank 1"].pid == again.pid
    expected = {agent.pid, survivor.pid, again.pid}
    await_that(lambda: {child.pid for child in served.forkserver.children()} == expected, "more or fewer are left")
    served.client.wait_for_ends(PATIENCE)
    assert served.exits.empty()
    assert served.client.processes["rank 1"].exited is None
