"""The daemon with its zygote: real ones in a home of their own, with a notebook's client, and whoever connects."""

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
from nbcomm.launch.launchers import daemon_process
from nbcomm.node import daemon as node_daemon
from nbcomm.node.seed.client import SeededProcess
from nbcomm.protocol import (
    Claim,
    Exited,
    Failed,
    NodeStatus,
    Obeyed,
    Shutdown,
    Signal,
    Start,
    Started,
)
from nbcomm.protocol.codec import decode_status, encode
from nbcomm.world_dir import HOME_VARIABLE, WorldDir
from nbcomm.world_info import WorldInfo

from .served import PATIENCE, Served, await_that, daemon_of, has_ended, no_file_more, quickly, zygote_of

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
    """Daemons and engines that are soon there."""
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
    """Let a step of the node fail once; return the file that is there until it has."""
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


def sockets(process: psutil.Process) -> int:
    return sum(one.startswith("socket") for one in descriptors(process))


def logged(home: WorldDir) -> str:
    return home.daemon_log.read_text()


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
    child = lasting.engine("rank 7")
    await_that(lambda: os.getpgid(child.pid) == child.pid, "its first deed after the fork")
    await_that(lambda: child.ppid() == lasting.daemon.pid, "whoever has forked it has not ended")


def test_a_child_holds_nothing_of_the_daemons_open(served: Served) -> None:
    child = served.engine()
    ours = descriptors(served.daemon) | descriptors(served.zygote)
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
    with monkeypatch.context() as lost:
        lost.setattr(daemon_process, "to_start_in", lambda _: "/nowhere")
        with pytest.raises(StartError, match=r"Lost could not be started: .*nowhere"):
            light.begin("lost")
    after = light.engine("after")
    await_that(lambda: "quick_engine" in after.cmdline(), "it is another program")


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
    child = psutil.Process(served.client.processes["rank 0"].pid)
    await_that(lambda: served.ranks() == {child}, "more or fewer are there")
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid
    assert served.client._orders.ask(start, PATIENCE) == Obeyed(start.number)
    assert served.ranks() == set()
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


def status_of(home: WorldDir) -> NodeStatus:
    """What a process that is no rank is told."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(os.fspath(home.daemon_socket))
        told = b""
        while more := connection.recv(4096):
            told += more
        return decode_status(told)


@pytest.mark.parametrize(
    "said",
    [b"hello\n", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", encode(Shutdown(1)), encode(Claim(1, 1, 0.0))],
    ids=["half", "numbers", "another language", "an order", "a claim"],
)
def test_what_a_stranger_says_is_not_read(served: Served, said: bytes) -> None:
    child, before = served.engine(), status_of(served.home)
    with socket.socket(socket.AF_UNIX) as stranger, suppress(ConnectionError):
        stranger.settimeout(PATIENCE)
        stranger.connect(os.fspath(served.home.daemon_socket))
        stranger.sendall(said)
        while stranger.recv(4096):
            pass
    assert status_of(served.home) == before
    assert before.holder == os.getpid()
    served.client.wait_for_ends(PATIENCE)
    assert child.is_running()
    await_that(lambda: served.ranks() == {child}, "more or fewer are there")
    assert served.engine("rank 1").is_running()


def test_a_visitor_is_told_whose_the_world_is(served: Served) -> None:
    served.client.set_lease(77.0)
    served.client.wait_for_ends(PATIENCE)
    assert status_of(served.home) == NodeStatus(served.daemon.pid, os.getpid(), 0.0, 77.0)
    served.engine()
    served.client.release()
    await_that(lambda: not status_of(served.home).holder, "it does not notice that the notebook left")
    first, second = (status_of(served.home) for _ in range(2))
    assert 0 < first.alone < second.alone < PATIENCE
    assert first.lease == 77.0


# ── its end ─────────────────────────────────────────────────────────────────────────────────────────


def test_without_children_it_ends_with_its_notebook(light: Served) -> None:
    zygote = zygote_of(light.daemon)
    light.client.set_lease(600.0)  # there is nothing to keep for so long
    light.client.release()
    light.await_end()
    assert not light.home.path.exists()
    assert zygote is None or has_ended(zygote)


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
    child, zygote = served.engine(), served.zygote
    began = time.monotonic()
    served.client.set_lease(1.0)
    served.client.release()
    await_that(lambda: has_ended(child), "the rank lives on")
    assert time.monotonic() - began >= 1.0
    served.await_end()
    assert has_ended(zygote)
    assert not served.home.path.exists()


def test_it_is_the_last_lease_that_counts(served: Served) -> None:
    child = served.engine()
    served.client.set_lease(600.0)
    served.client.set_lease(0.1)
    served.client.release()
    served.await_end()
    assert has_ended(child)


def test_a_notebook_that_is_killed_has_left(served: Served) -> None:
    child, zygote = served.engine(), served.zygote
    served.client.release()
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK, os.fspath(served.home.path), "0.5"], stdout=subprocess.PIPE
    )
    with notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == b"\n"
        assert status_of(served.home).holder == notebook.pid
        notebook.kill()
    served.await_end()
    assert has_ended(child)
    assert has_ended(zygote)
    assert not served.home.path.exists()


def test_shutdown_ends_all_at_once(light: Served) -> None:
    child, daemon = light.engine(), light.daemon
    light.client.shutdown()
    assert has_ended(child)
    assert has_ended(daemon)
    assert not light.home.path.exists()


def test_a_shutdown_does_not_wait_for_imports(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with importing(monkeypatch, tmp_path) as (client, _, zygote):
        began = time.monotonic()
        client.shutdown()
        assert time.monotonic() - began < 10  # seconds that it would wait for an answer
        assert not client.home.path.exists()
        await_that(lambda: has_ended(zygote), "the zygote lives on")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_all(served: Served, number: signal.Signals) -> None:
    child, zygote = served.engine(), served.zygote
    served.daemon.send_signal(number)
    served.await_end()
    assert has_ended(child)
    assert has_ended(zygote)
    assert not served.home.path.exists()
    assert served.client.gone


def test_two_signals_to_end_at_once_end_all(served: Served) -> None:
    child, zygote = served.engine(), served.zygote
    daemon = served.daemon
    daemon.suspend()
    for number in (signal.SIGTERM, signal.SIGHUP):
        served.daemon.send_signal(number)
    daemon.resume()
    served.await_end()
    assert has_ended(child)
    await_that(lambda: has_ended(zygote), "the zygote lives on")
    assert not served.home.path.exists()


def test_a_signal_to_end_does_not_end_the_end(served: Served) -> None:
    child, zygote = served.engine(), served.zygote
    stumble("remove")
    served.client.set_lease(0.1)
    served.client.release()
    served.await_end()
    assert has_ended(child)
    assert has_ended(zygote)
    assert not served.home.path.exists()


class importing(ExitStack):  # noqa: N801 - a context
    """A daemon whose zygote never ends its imports, with its client and that zygote."""

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
        assert client._process._process is not None
        await_that(lambda: client.daemons == 1, "it does not come")
        daemon = daemon_of(client.home)
        assert daemon is not None
        zygote = zygote_of(daemon)
        assert zygote is not None
        return client, client._process._process, zygote


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_is_ended_during_the_imports_leaves_no_zygote(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    with importing(monkeypatch, tmp_path) as (client, process, zygote):
        psutil.Process(process.pid).send_signal(number)
        process.status(PATIENCE)
        await_that(lambda: has_ended(zygote), "the zygote lives on")
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


def test_a_zygote_that_cannot_import_leaves_a_living_world_its_daemon(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = served.engine()
    served.home.write_world(WorldInfo("1 rank on cpu", [], [], 0, 60.0, 0.0, "/"))
    served.kill_daemon()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "quick_engine.py").write_text("raise ImportError('broken on purpose')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.fspath(broken), prepend=os.pathsep)
        served.client.launch()
        served.client.wait_claimed(PATIENCE)
        with pytest.raises(StartError, match=r"(?s)what forks ranks has ended during its imports.*broken on purpose"):
            served.engine("rank 1")
    assert served.home.read_world().title == "1 rank on cpu"
    assert child.is_running()
    (broken / "quick_engine.py").unlink()
    assert served.engine("rank 1").is_running(), "the next zygote can"
    assert served.client.processes["rank 0"].pid == child.pid


@pytest.mark.parametrize("written", [b"{", None])
def test_a_directory_whose_world_cannot_be_read_is_no_empty_one(tmp_path: Path, written: bytes | None) -> None:
    home = WorldDir(tmp_path)
    assert not node_daemon.is_inhabited(home)
    if written is None:
        (tmp_path / "world.json").mkdir()
    else:
        (tmp_path / "world.json").write_bytes(written)
    assert node_daemon.is_inhabited(home)


# ── a daemon that has ended ─────────────────────────────────────────────────────────────────────────


def test_one_that_was_killed_is_noticed(light: Served) -> None:
    light.kill_daemon()
    assert light.client.gone
    assert light.client.how == "was killed by SIGKILL"
    with pytest.raises(StartError, match=r"The daemon of this world was killed by SIGKILL\. Type %distributed heal"):
        light.engine()


def test_with_it_ends_its_zygote_and_no_rank(served: Served) -> None:
    child, zygote = served.engine(), served.zygote
    served.kill_daemon()
    await_that(lambda: has_ended(zygote), "the zygote lives on")
    assert child.is_running()


def test_the_notebook_starts_another_one_by_itself(served: Served) -> None:
    first, child = served.daemon, served.engine()
    served.kill_daemon()

    def is_back() -> bool:
        served.client.look()
        return served.client.daemons == 2 and served.client.claimed

    await_that(is_back, "no other daemon comes")
    assert served.daemon != first
    assert served.client.processes["rank 0"].pid == child.pid
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid


def test_a_process_that_has_the_pid_of_a_rank_is_not_harmed(served: Served) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            known = Started(1, "rank 9", stranger.pid)  # that rank has ended, and its number was used again
            served.home.write_children(f'[[1,"rank 9",{stranger.pid},""]]'.encode())
            served.kill_daemon()
            served.client.launch()
            served.client.wait_claimed(PATIENCE)
            assert served.exits.get(timeout=PATIENCE) == Exited(known.start, known.key, known.pid, None)
            served.client.signal("rank 9", signal.SIGKILL)
            served.client.shutdown()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_another_one_adopts_what_lives(served: Served) -> None:
    stays = served.engine("rank 0")
    start = served.client.processes["rank 0"].start
    served.kill_daemon()
    served.client.launch()
    assert served.client.wait_ready(PATIENCE).forks
    assert not served.client.gone
    served.await_daemons(2)
    assert served.client.replaced.wait(PATIENCE)
    assert served.client.processes["rank 0"].pid == stays.pid
    another = served.engine("rank 1")
    served.client.signal("rank 0", signal.SIGTERM)
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 0", stays.pid, None)
    served.client.shutdown()
    assert has_ended(another)


def test_another_one_tells_what_ended_meanwhile(served: Served) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    start = served.client.processes["rank 1"].start
    served.kill_daemon()
    goes.kill()
    served.client.launch()
    served.client.wait_claimed(PATIENCE)
    assert served.exits.get(timeout=PATIENCE) == Exited(start, "rank 1", goes.pid, None)
    assert stays.is_running()
    assert served.exits.empty()


def test_another_one_adopts_what_could_not_be_written_down(served: Served) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    served.kill_daemon()
    served.home.write_children(b"[]")  # as on a full disk
    goes.kill()
    served.client.launch()
    served.client.wait_claimed(PATIENCE)
    assert served.exits.get(timeout=PATIENCE).pid == goes.pid
    await_that(lambda: str(stays.pid) in served.home.read_children().decode(), "it is not written down")
    stays.kill()
    assert served.exits.get(timeout=PATIENCE).pid == stays.pid


def test_what_was_adopted_is_adopted_again(served: Served) -> None:
    child = served.engine()
    for _ in range(2):
        served.kill_daemon()
        served.client.launch()
        served.client.wait_ready(PATIENCE)
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid
    assert served.client.daemons == 3


def test_what_outlives_its_daemon_ends_with_the_next_ones_lease(served: Served) -> None:
    child = served.engine()
    served.kill_daemon()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    served.client.set_lease(0.2)
    served.client.release()
    served.await_end()
    await_that(lambda: has_ended(child), "the rank lives on")
    assert not served.home.path.exists()


def test_a_process_that_cannot_be_watched_is_looked_at(served: Served) -> None:
    one, two = served.engine("rank 1"), served.engine("rank 2")
    served.kill_daemon()
    failing = stumble("pidfd_open")
    served.client.launch()
    served.client.wait_claimed(PATIENCE)
    assert not failing.exists()
    assert served.exits.empty(), "both live"
    for child in (one, two):
        child.kill()
        assert served.exits.get(timeout=PATIENCE).pid == child.pid


def test_no_rank_is_taken_for_dead_because_too_many_files_are_open(served: Served) -> None:
    child = served.engine()
    served.kill_daemon()
    stumble("pidfd_open")
    served.client.launch()
    served.client.wait_claimed(PATIENCE)
    with no_file_more(served.daemon.pid):
        served.client.wait_for_ends(PATIENCE)
    assert served.exits.empty()
    child.kill()
    assert served.exits.get(timeout=PATIENCE).pid == child.pid


def test_with_an_adopted_rank_ends_what_it_has_left_behind(served: Served) -> None:
    rank = psutil.Process(served.begin("rank 0", "--with-a-child").pid)
    await_that(rank.children, "it has no child process")
    (grandchild,) = rank.children()
    served.kill_daemon()
    served.client.launch()
    served.client.wait_claimed(PATIENCE)
    rank.kill()
    assert served.exits.get(timeout=PATIENCE).pid == rank.pid
    await_that(lambda: has_ended(grandchild), "it lives on")


# ── another one while the first one lives ───────────────────────────────────────────────────────────


def launched(served: Served) -> SeededProcess:
    """Let the client take the daemon for gone; return the earlier one, a child of this process."""
    earlier = served.client._process._process
    assert earlier is not None
    served.client.launch()
    return earlier


@pytest.mark.parametrize("stopped", [True, False])
def test_another_one_ends_a_living_one_and_takes_over(served: Served, stopped: bool) -> None:
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    if stopped:
        served.daemon.suspend()
    earlier = launched(served)
    served.await_daemons(2)
    assert served.client.wait_ready(PATIENCE).forks
    assert earlier.status(PATIENCE) == -signal.SIGKILL
    assert served.daemon == served.launched
    assert stays.is_running()
    goes.kill()
    assert served.exits.get(timeout=PATIENCE).pid == goes.pid
    assert served.engine("rank 1").is_running()
    assert served.home.path.exists()
    served.client.shutdown()
    await_that(lambda: has_ended(stays), "the rank lives on")  # it was adopted, so nobody has waited for it


def test_of_two_that_start_at_one_moment_one_serves(served: Served) -> None:
    stays = served.engine("rank 0")
    earliest = launched(served)
    other = launched(served)
    started = [other, served.client._process._process]
    assert earliest.status(PATIENCE) == -signal.SIGKILL
    await_that(lambda: any(one.has_ended for one in started if one is not None), "both serve")
    (left,) = [one for one in started if one is not None and not one.has_ended]
    # The client may still hold the world through the one that was killed.
    await_that(lambda: (there := daemon_of(served.home)) is not None and there.pid == left.pid, "neither serves")
    await_that(lambda: served.client.daemons > 1 and served.client.claimed, "neither is heard")
    assert stays.is_running()
    assert served.client.processes["rank 0"].pid == stays.pid
    served.client._process._process = left  # whichever it is
    stays.kill()
    assert served.exits.get(timeout=PATIENCE).pid == stays.pid


def test_a_rank_holds_no_descriptor_of_an_adopted_one(served: Served) -> None:
    stays = served.engine("rank 0")
    served.kill_daemon()
    served.client.launch()
    served.client.wait_ready(PATIENCE)
    another = served.engine("rank 1")

    lock = os.fspath(served.home.daemon_lock)
    assert any("pidfd" in one for one in opened(served.daemon))
    assert lock in opened(served.daemon)
    await_that(lambda: not any("pidfd" in one for one in opened(another)), "it sees when the other one ends")
    assert lock not in opened(another)
    assert lock not in opened(served.zygote)
    assert stays.is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_ends_while_no_notebook_is_there_is_not_missed_before_the_next_notebook(
    served: Served, number: signal.Signals
) -> None:
    """Its ranks keep the lease by themselves (tests/world), and the next notebook starts another one."""
    child = served.engine()
    served.client.set_lease(600.0)
    served.client.release()
    served.daemon.send_signal(number)
    if number == signal.SIGKILL:
        served.await_end()
    second = served.attach(claims=False)
    second.launch()
    second.wait_claimed(PATIENCE)
    assert second.processes["rank 0"].pid == child.pid


# ── its zygote ──────────────────────────────────────────────────────────────────────────────────────


def _stop(process: psutil.Process) -> None:
    process.suspend()


ENDS: dict[str, Callable[[psutil.Process], None]] = {"killed": psutil.Process.kill, "stopped": _stop}


@pytest.mark.parametrize("end", ENDS)
def test_a_zygote_that_ends_costs_no_rank_and_is_replaced(served: Served, end: str) -> None:
    daemon, first = served.daemon, served.zygote
    stays, goes = served.engine("rank 0"), served.engine("rank 1")
    start = served.client.processes["rank 1"].start
    ENDS[end](first)
    goes.send_signal(signal.SIGSEGV)
    ended = served.exits.get(timeout=PATIENCE)
    assert ended == Exited(start, "rank 1", goes.pid, -signal.SIGSEGV), "its cause is known all the same"
    assert served.engine("rank 1").is_running()
    assert has_ended(first)
    assert served.daemon == daemon
    assert served.client.daemons == 1
    assert stays.is_running()


@pytest.mark.parametrize("end", ENDS)
def test_a_start_that_a_zygote_took_with_it_is_done_by_the_next(served: Served, end: str) -> None:
    served.zygote.suspend()  # before the daemon knows of it, or after
    started: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=lambda: started.put(served.begin("rank 0").pid))
    thread.start()
    if end == "killed":
        served.zygote.kill()
    thread.join(PATIENCE)
    child = psutil.Process(started.get_nowait())
    await_that(lambda: served.ranks() == {child}, "more or fewer are left")


def test_zygotes_are_replaced_again_and_again(served: Served) -> None:
    child = served.engine()
    held = sockets(served.daemon)
    for n in range(4):
        first = served.zygote
        first.kill()
        await_that(lambda: has_ended(first), "it lives on")  # noqa: B023 - it is called at once
        assert served.engine(f"rank {n + 1}").is_running()
    await_that(lambda: sockets(served.daemon) == held, "it holds more or fewer open")
    assert child.is_running()


def test_zygotes_that_end_at_once_occupy_no_core_and_fill_no_disk(served: Served, tmp_path: Path) -> None:
    child = served.engine()
    stubs = tmp_path / "stubs"
    engine = (stubs / "quick_engine.py").read_text()
    (stubs / "quick_engine.py").write_text("raise ImportError('broken on purpose')")
    served.zygote.kill()
    await_that(lambda: "broken on purpose" in logged(served.home), "it begins nevertheless")
    began, before = time.monotonic(), logged(served.home).count("ImportError: broken on purpose")
    await_that(lambda: time.monotonic() - began > 2.0, "")
    after = logged(served.home).count("ImportError: broken on purpose")
    assert after - before < 10 * (time.monotonic() - began)  # on a busy machine more than two seconds have passed
    (stubs / "quick_engine.py").write_text(engine)
    await_that(lambda: isinstance(_tried(served), psutil.Process), "none comes any more")
    assert child.is_running()


def _tried(served: Served) -> psutil.Process | None:
    with suppress(StartError):
        return served.engine("rank 1")
    return None


# ── several notebooks, one after the other ──────────────────────────────────────────────────────────


def test_the_next_notebook_takes_over_and_hears_what_ended_meanwhile(served: Served) -> None:
    stays, goes = served.engine("stays"), served.engine("goes")
    start = served.client.processes["goes"].start
    served.client.set_lease(1e12)  # more than the system waits at once
    served.client.release()
    await_that(lambda: not status_of(served.home).holder, "it does not notice that the notebook left")
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


def test_one_that_does_not_answer_is_ended_with_all_that_it_has_started(served: Served) -> None:
    child, zygote = served.engine(), served.zygote
    served.daemon.suspend()
    served.client.shutdown(timeout=0.1)
    await_that(lambda: has_ended(child), "the rank lives on")
    await_that(lambda: has_ended(zygote), "the zygote lives on")
    served.await_end()
    assert not served.home.path.exists()


@pytest.mark.parametrize("whose", ["daemon", "zygote"])
def test_a_start_that_is_given_up_ends_at_once_and_leaves_nothing(served: Served, whose: str) -> None:
    survivor = served.engine("survivor")
    stopped = served.daemon if whose == "daemon" else served.zygote
    stopped.suspend()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        served.client.start("rank 1", "engine", ["1"], given_up=lambda: True)
    assert time.monotonic() - began < 10
    with suppress(psutil.NoSuchProcess):
        stopped.resume()
    again = served.engine("rank 1")
    assert served.client.processes["rank 1"].pid == again.pid
    await_that(lambda: served.ranks() == {survivor, again}, "more or fewer are left")
    served.client.wait_for_ends(PATIENCE)
    assert served.exits.empty()
    assert served.client.processes["rank 1"].exited is None
