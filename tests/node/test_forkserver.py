"""The fork server, alone: a real one in a home of its own, and whoever connects to it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from nbcomm.errors import StartError, StateError
from nbcomm.launch.forkserver_client import ForkServerClient
from nbcomm.node.forkserver_protocol import (
    Adopt,
    Busy,
    Claim,
    Exited,
    Lease,
    Order,
    Report,
    Shutdown,
    Start,
    WorldStatus,
)
from nbcomm.world_dir import HOME_VARIABLE, WorldDir, WorldInfo

from ..world import lies

PATIENCE = 60.0

STUMBLES = (
    "nbcomm.node.oom",
    """
import errno, os

def stumbles(step, error):
    # Fails once for each time that a file with its name was put where this looks.
    def stumbling(*args):
        try:
            os.unlink(os.path.join(os.environ["STUMBLES"], step.__name__))
        except FileNotFoundError:
            return step(*args)
        raise error
    return stumbling

def lie(module):
    os.fork = stumbles(os.fork, OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    os.pidfd_open = stumbles(os.pidfd_open, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    os.waitpid = stumbles(os.waitpid, RuntimeError("on purpose"))
    module.kills = stumbles(module.kills, RuntimeError("on purpose"))
""",
)
"""A fork server whose steps fail when the test wants it."""


class Served:
    """A client, its fork server, and the deaths that it reported."""

    def __init__(self, pythonpath: str = os.environ.get("PYTHONPATH", "")) -> None:
        self.pythonpath = pythonpath
        self.exits: queue.Queue[Exited] = queue.Queue()
        self.home = WorldDir.create()
        self.client = ForkServerClient(self.home)
        self.client.report_to(self.exits.put, lambda _: None)
        self.ready = self.client.wait_ready(PATIENCE)
        self.process = psutil.Process(self.client._process.pid)

    def begin(self, key: str, *argv: str, what: str = "engine", cwd: str = ".") -> int:
        """Start a process that may have ended before anybody looks at it."""
        environment = {**os.environ, HOME_VARIABLE: str(self.home.path), "PYTHONPATH": self.pythonpath}
        order = Start(key, what, list(argv), environment, cwd, str(self.home.path / f"{key}.log"))
        return self.client.start(order)

    def start(self, key: str, *argv: str, what: str = "engine") -> psutil.Process:
        return psutil.Process(self.begin(key, *argv, what=what))

    def engine_that_waits(self, key: str = "waits") -> psutil.Process:
        """An engine that waits long for a controller which never comes."""
        return self.start(key, f"--profile-dir={self.home.profile}", "--IPEngine.wait_for_url_file=300")

    def hang_up(self) -> None:
        """Do as a notebook does that is killed."""
        assert self.client._socket is not None
        self.client._socket.shutdown(socket.SHUT_RDWR)

    def await_end(self) -> None:
        # Its parent is this process, whose client waits for it on a thread.
        deadline = time.monotonic() + PATIENCE
        while self.client._process.poll() is None:
            assert time.monotonic() < deadline, "the fork server lives on"
            threading.Event().wait(0.01)


@pytest.fixture
def served() -> Iterator[Served]:
    """One that the test may end."""
    made = Served()
    yield made
    made.client.shutdown()


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """One that the test may end, soon there: it forks nothing, and finds no torch to count GPUs with."""
    before = os.environ.get("PYTHONPATH", "")
    (tmp_path / "torch.py").write_text("raise ImportError('left out to save time')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("NBCOMM_START", "spawn")
    made = Served(before)
    yield made
    made.client.shutdown()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Served]:
    """One that tests share which leave it alive."""
    made = Served()
    yield made
    made.client.shutdown()


def test_children_are_forked_here_and_their_end_is_told(lasting: Served) -> None:
    assert lasting.ready.forks, lasting.ready.why
    lasting.begin("hasty", "--no-such-option=1")
    ended = lasting.exits.get(timeout=PATIENCE)
    assert (ended.key, ended.status) == ("hasty", 2)
    assert "no-such-option" in (lasting.home.path / "hasty.log").read_text()


def test_a_key_can_be_used_again(lasting: Served) -> None:
    pids = set()
    for _ in range(2):
        pids.add(lasting.begin("again", "--no-such-option=1"))
        assert lasting.exits.get(timeout=PATIENCE).key == "again"
    assert len(pids) == 2


def test_a_child_leads_a_group(lasting: Served) -> None:
    child = lasting.engine_that_waits()
    deadline = time.monotonic() + PATIENCE
    while os.getpgid(child.pid) != child.pid:  # its first deed after the fork
        assert time.monotonic() < deadline
    assert child.ppid() == lasting.process.pid


def test_garbage_ends_its_own_connection_only(lasting: Served) -> None:
    for garbage in (b"hello\n", b'{"type":"Evil"}\n', b"\xff\xfe\n", b'{"type":"Start"}\n'):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(os.fspath(lasting.home.forkserver_socket))
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert lasting.engine_that_waits("still").is_running()


def test_without_children_it_ends_with_its_notebook(light: Served) -> None:
    light.client.set_lease(600.0)  # there is nothing to keep for so long
    light.hang_up()
    light.await_end()
    assert not light.home.path.exists()


def test_with_children_it_ends_after_the_lease(served: Served) -> None:
    child = served.engine_that_waits()
    served.client.set_lease(1.0)
    with socket.socket(socket.AF_UNIX) as other:  # what was ordered before has been read when this is welcomed
        other.connect(os.fspath(served.home.forkserver_socket))
        assert other.recv(4096)
        served.hang_up()
        assert child.is_running()
    served.await_end()
    assert not child.is_running()
    assert not served.home.path.exists()


def test_shutdown_ends_all_at_once(light: Served) -> None:
    child = light.engine_that_waits()
    assert child.is_running()
    light.client.shutdown()
    assert not child.is_running()
    assert not light.home.path.exists()


def test_a_shutdown_does_not_wait_for_imports() -> None:
    home = WorldDir.create()
    client = ForkServerClient(home)
    began = time.monotonic()
    client.shutdown()
    assert time.monotonic() - began < PATIENCE / 10
    assert not home.path.exists()


def test_a_server_that_was_killed_is_noticed(light: Served) -> None:
    light.process.kill()
    light.await_end()
    with pytest.raises(StartError, match="fork server"):
        light.engine_that_waits()


def test_where_forks_are_unwanted_children_are_started_plainly(light: Served) -> None:
    assert (light.ready.forks, light.ready.why) == (False, "NBCOMM_START=spawn")
    child = light.engine_that_waits()
    deadline = time.monotonic() + PATIENCE
    while not (said := child.cmdline()) and time.monotonic() < deadline:  # between fork and exec it has none
        time.sleep(0.01)
    assert "nbcomm.rank.engine" in said
    child.kill()
    assert light.exits.get(timeout=PATIENCE) == Exited("waits", child.pid, -signal.SIGKILL)


def test_a_server_that_cannot_import_tells_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ipyparallel.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    home = WorldDir.create()
    client = ForkServerClient(home)
    with pytest.raises(StartError, match="broken on purpose"):
        client.wait_ready(PATIENCE)
    client.shutdown()
    assert not home.path.exists()


# ── several notebooks, one after the other ──────────────────────────────────────────────────────────


def said_to(served: Served, *orders: Order) -> list[Report]:
    """Connect as another notebook would, say something, and return what is answered until it hangs up or is silent."""
    reports = []
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(PATIENCE)
        visitor.connect(os.fspath(served.home.forkserver_socket))
        for order in orders:
            visitor.sendall(msgspec.json.encode(order) + b"\n")
        visitor.shutdown(socket.SHUT_WR)
        with visitor.makefile("rb") as answers, contextlib.suppress(ConnectionResetError):
            reports = [msgspec.json.decode(line, type=Report) for line in answers]
    return reports


def test_a_visitor_is_told_whose_the_world_is(lasting: Served) -> None:
    (status,) = said_to(lasting)
    assert isinstance(status, WorldStatus)
    assert (status.pid, status.holder, status.alone) == (lasting.process.pid, os.getpid(), 0)


def test_a_world_that_is_held_cannot_be_claimed(lasting: Served) -> None:
    assert said_to(lasting, Claim(4242))[1:] == [Busy(os.getpid())]
    assert said_to(lasting)[0].holder == os.getpid()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "order", [Shutdown(), Lease(0.0), Adopt({"rank 0": 1})], ids=lambda order: type(order).__name__
)
def test_who_does_not_hold_it_gives_no_orders(lasting: Served, order: Order) -> None:
    assert len(said_to(lasting, order)) == 1
    assert lasting.engine_that_waits("unharmed").is_running()


def test_the_next_notebook_takes_over_and_hears_what_ended_meanwhile(served: Served) -> None:
    stays, goes = served.engine_that_waits("stays"), served.engine_that_waits("goes")
    served.client.set_lease(1e12)  # more than the system waits at once
    served.client.release()
    while said_to(served)[0].holder:  # type: ignore[union-attr]
        pass
    os.kill(goes.pid, signal.SIGKILL)
    assert psutil.wait_procs([goes], PATIENCE) is not None
    heard: queue.Queue[Exited] = queue.Queue()
    second = ForkServerClient(served.home, running=True)
    second.report_to(heard.put, lambda _: None)
    assert second.wait_ready(PATIENCE).forks
    assert second.pids["stays"] == stays.pid
    assert heard.get(timeout=PATIENCE) == Exited("goes", goes.pid, -signal.SIGKILL)
    second.shutdown()
    assert not stays.is_running()
    served.await_end()
    assert not served.home.path.exists()


def test_ends_that_nobody_was_told_of_are_told_to_the_next_who_asks(light: Served) -> None:
    heard: list[object] = []
    second = ForkServerClient(light.home, running=True)  # nobody is told of anything yet
    with contextlib.suppress(StateError):
        second.wait_ready(PATIENCE)
    second._hear(Exited("rank 0", 1, 0))
    second.report_to(heard.append, heard.append)
    second._hear(Exited("rank 1", 2, 0))
    assert heard == [Exited("rank 0", 1, 0), Exited("rank 1", 2, 0)]
    second.release()


def test_what_is_not_understood_ends_no_listening(light: Served, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"nonsense\n" + msgspec.json.encode(Exited("rank 7", 1, 0)) + b"\n")
        theirs.shutdown(socket.SHUT_WR)
        light.client._hear_all(ours)
    assert light.exits.get(timeout=PATIENCE) == Exited("rank 7", 1, 0)
    assert "JSON is malformed" in capfd.readouterr().err


def test_who_fails_over_an_end_is_told_of_the_next(light: Served, capfd: pytest.CaptureFixture[str]) -> None:
    heard: queue.Queue[Exited] = queue.Queue()

    def failing(ended: Exited) -> None:
        heard.put(ended)
        raise RuntimeError("on purpose")

    light.client.report_to(failing, lambda _: None)
    light.client.watch("first", failing)  # type: ignore[arg-type]
    for key in ("first", "second"):
        os.kill(light.engine_that_waits(key).pid, signal.SIGKILL)
        while (ended := heard.get(timeout=PATIENCE)) == -signal.SIGKILL:
            pass
        assert ended.key == key
    assert "on purpose" in capfd.readouterr().err
    assert not light.client.gone
    light.client.report_to(light.exits.put, lambda _: None)


def test_a_notebook_that_comes_too_early_is_told_who_is_there(lasting: Served) -> None:
    second = ForkServerClient(lasting.home, running=True)
    with pytest.raises(StateError, match=f"in use by the notebook of process {os.getpid()}"):
        second.wait_ready(PATIENCE)
    second.release()


def test_what_outlives_its_fork_server_ends_with_the_world(light: Served) -> None:
    child = light.engine_that_waits()  # it hears no notebook, as a rank in C code does not
    deadline = time.monotonic() + PATIENCE
    while HOME_VARIABLE not in child.environ():  # until it has become what it is to be, nothing can be read of it
        assert time.monotonic() < deadline
    stranger = subprocess.Popen(["sleep", "600"])
    light.client.pids["rank 9"] = stranger.pid  # that rank has ended, and its number was used again
    light.process.kill()
    light.await_end()
    while not light.client.gone:
        assert time.monotonic() < deadline
    assert child.is_running()
    light.client.shutdown()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_what_cannot_be_started_is_refused_in_words(light: Served) -> None:
    with pytest.raises(StartError, match=r"Lost could not be started: .*nowhere"):
        light.begin("lost", cwd="/nowhere")
    assert light.engine_that_waits("after").is_running()


@pytest.fixture(scope="module")
def stumbling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """One with steps that fail once a file is put into a folder under their name, and that folder."""
    folder = tmp_path_factory.mktemp("stumbles")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in lies.told(folder / "lies", STUMBLES).items():
            patch.setenv(name, value, prepend=os.pathsep)
        patch.setenv("STUMBLES", str(folder))
        made = Served()
        yield made, folder
        made.client.shutdown()


def test_a_fork_that_fails_is_refused_in_words_and_harms_nobody(stumbling: tuple[Served, Path]) -> None:
    served, folder = stumbling
    survivor = served.engine_that_waits("survivor")
    (folder / "fork").touch()
    with pytest.raises(
        StartError, match=r"^Rank 1 could not be started: \[Errno 11\] Resource temporarily unavailable\.$"
    ):
        served.engine_that_waits("rank 1")
    assert not (folder / "fork").exists()
    assert survivor.is_running()
    assert served.engine_that_waits("rank 1").is_running()


@pytest.mark.parametrize("step", ["kills", "waitpid"])
def test_an_end_is_told_whatever_fails_in_telling_it(stumbling: tuple[Served, Path], step: str) -> None:
    served, folder = stumbling
    survivor, goes = served.engine_that_waits("survivor of it"), served.engine_that_waits("goes")
    (folder / step).touch()
    goes.kill()
    assert served.exits.get(timeout=PATIENCE) == Exited("goes", goes.pid, -signal.SIGKILL)
    assert not (folder / step).exists()
    assert survivor.is_running()
    assert "on purpose" in served.home.forkserver_log.read_text()


def test_a_start_does_not_fail_where_kills_cannot_be_counted(stumbling: tuple[Served, Path]) -> None:
    served, folder = stumbling
    (folder / "kills").touch()
    assert served.engine_that_waits("uncounted").is_running()
    assert not (folder / "kills").exists()


def test_a_process_that_cannot_be_watched_over_is_told_with_the_reason(stumbling: tuple[Served, Path]) -> None:
    served, folder = stumbling
    one, two = served.engine_that_waits("one"), served.engine_that_waits("two")
    (folder / "pidfd_open").touch()
    assert served.client.adopt({"rank 1": one.pid, "rank 2": two.pid}) == {"rank 1": "[Errno 24] Too many open files"}
    assert one.is_running()
    assert served.exits.empty(), "it lives"
    two.kill()
    ends = {served.exits.get(timeout=PATIENCE).key for _ in range(2)}
    assert ends == {"two", "rank 2"}


def test_a_start_that_is_given_up_ends_at_once_and_leaves_nothing(served: Served) -> None:
    survivor = served.engine_that_waits("survivor")
    served.process.suspend()
    failed: queue.Queue[BaseException] = queue.Queue()

    def begin() -> None:
        try:
            served.begin("rank 1", f"--profile-dir={served.home.profile}", "--IPEngine.wait_for_url_file=300")
        except StartError as error:
            failed.put(error)

    starter = threading.Thread(target=begin)
    starter.start()
    began = time.monotonic()
    while failed.empty():
        assert time.monotonic() - began < 10
        served.client.give_up()  # it may only now begin to wait
    starter.join()
    served.process.resume()
    again = served.engine_that_waits("rank 1")
    assert served.client.pids["rank 1"] == again.pid
    gone_by = time.monotonic() + PATIENCE
    while {child.pid for child in served.process.children()} != {survivor.pid, again.pid}:
        assert time.monotonic() < gone_by, served.process.children()
    assert served.exits.empty()
    assert "rank 1" not in served.client.exited


def test_a_fork_server_that_does_not_answer_is_ended_with_all_that_it_has_started(served: Served) -> None:
    child = served.engine_that_waits("rank 0")
    served.process.suspend()
    served.client.shutdown(timeout=0.1)
    psutil.wait_procs([child], PATIENCE)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not served.home.path.exists()


def test_processes_of_another_fork_server_are_watched_over(served: Served) -> None:
    served.client.set_lease(60.0)
    orphan = served.engine_that_waits("rank 0")
    served.process.kill()
    served.await_end()
    heard: queue.Queue[Exited] = queue.Queue()
    successor = ForkServerClient(served.home)
    successor.report_to(heard.put, lambda _: None)
    successor.wait_ready(PATIENCE)
    successor.adopt({"rank 0": orphan.pid, "rank 1": os.getpid()})  # this test is none of the world's processes
    assert heard.get(timeout=PATIENCE) == Exited("rank 1", os.getpid(), None)
    os.kill(orphan.pid, signal.SIGKILL)
    assert heard.get(timeout=PATIENCE) == Exited("rank 0", orphan.pid, None)
    successor.shutdown()


def test_a_second_fork_server_that_cannot_import_leaves_a_living_world_its_directory(
    light: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    light.home.write_world(WorldInfo("1 rank on cpu", [], [], 0, 60.0, 0.0, "/"))
    light.process.kill()
    light.await_end()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ipyparallel.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.delenv("NBCOMM_START")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"), prepend=os.pathsep)
    successor = ForkServerClient(light.home)
    with pytest.raises(StartError, match="broken on purpose"):
        successor.wait_ready(PATIENCE)
    assert light.home.read_world().title == "1 rank on cpu"
