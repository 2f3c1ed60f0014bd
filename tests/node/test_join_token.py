"""A node on another machine: its join token, and the program that joins a world with it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from nbcomm.errors import StartError
from nbcomm.node.join_token import JoinToken, read
from nbcomm.node.processes.liveness import lives
from nbcomm.protocol import Claim, NodeHello, Obeyed, Report, Shutdown
from nbcomm.protocol.codec import decode_report, encode
from nbcomm.world_dir import HOME_VARIABLE, WorldDir
from nbcomm.world_info import LinkInfo

from .served import PATIENCE, await_that, has_ended, quickly


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The nodes' directories are this test's alone, and their daemons are there soon."""
    quickly(monkeypatch, tmp_path)
    monkeypatch.setattr("tempfile.tempdir", None)
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    yield made
    made.close()


class Notebook:
    """What a node finds at the address of its token."""

    def __init__(self) -> None:
        self.public, self.secret = zmq.curve_keypair()
        self.node, self._node_secret = zmq.curve_keypair()
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.CURVE_SERVER, 1)
        self.router.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.bind("tcp://127.0.0.1:*")
        self.address = self.router.get_string(zmq.LAST_ENDPOINT)
        self.identity = b""

    def token(self) -> JoinToken:
        keys = (key.decode() for key in (self.public, self.node, self._node_secret))
        return JoinToken("w", LinkInfo(self.address, *keys, name="node3"), 30.0)

    def order(self, order: Claim | Shutdown) -> None:
        self.router.send_multipart([self.identity, encode(order)])

    def reports(self, until: type[Report]) -> list[Report]:
        """What the node reports until this."""
        told: list[Report] = []
        while not told or not isinstance(told[-1], until):
            assert self.router.poll(PATIENCE * 1000), told
            self.identity, report = self.router.recv_multipart()
            told.append(decode_report(report))
        return told

    def close(self) -> None:
        self.router.close()
        self.context.term()


def test_a_token_is_one_line_and_makes_a_directory_of_its_own(notebook: Notebook) -> None:
    token = notebook.token()
    assert token.written().count(b"\n") == 1
    home = token.redeem()
    assert home.path.name == "w-node3"
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert home.read_link() == token.link
    assert home.read_lease() == 30.0
    assert token.redeem().path == home.path, "the node joins once more"
    home.remove()


def test_a_token_that_others_can_read_is_refused(notebook: Notebook, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(notebook.token().written())
    path.chmod(0o640)
    with pytest.raises(StartError, match=r"can be read by others \(mode 640\); its mode must be 600"):
        read(os.fspath(path))
    path.chmod(0o600)
    assert read(os.fspath(path)) == notebook.token()


@pytest.mark.parametrize("line", [b"", b"garbage", b"{}", b'{"world": 3}'])
def test_what_is_no_token_is_said(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(line)
    path.chmod(0o600)
    with pytest.raises(StartError, match="This is no join token of a world"):
        read(os.fspath(path))
    with pytest.raises(StartError, match="cannot be read: No such file"):
        read(os.fspath(tmp_path / "nothing"))


# ── the program ─────────────────────────────────────────────────────────────────────────────────────


def begin(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "nbcomm.node", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def joined(notebook: Notebook) -> subprocess.Popen[bytes]:
    """A node that has joined, and is claimed."""
    program = begin()
    assert program.stdin is not None
    program.stdin.write(notebook.token().written())
    program.stdin.close()
    program.stdin = None
    assert isinstance(notebook.reports(NodeHello)[-1], NodeHello)
    notebook.order(Claim(1, os.getpid(), 30.0))
    assert notebook.reports(Obeyed)[-1] == Obeyed(1)
    return program


def home_of(notebook: Notebook) -> WorldDir:
    return WorldDir(Path(os.environ["TMPDIR"]) / f"nbcomm-{os.getuid()}" / f"w-{notebook.token().link.name}")


def told_to_end(program: subprocess.Popen[bytes], notebook: Notebook, number: int = signal.SIGTERM) -> None:
    """See that it ends, and its directory with it."""
    program.send_signal(number)
    program.communicate(timeout=PATIENCE)
    assert not home_of(notebook).path.exists()


def test_it_joins_and_ends_with_the_world(notebook: Notebook) -> None:
    program = joined(notebook)
    assert home_of(notebook).path.exists()
    notebook.order(Shutdown(2))
    out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, out, err) == (0, b"", b"")
    assert not home_of(notebook).path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_told_to_end_ends_the_world_on_its_node(notebook: Notebook, number: signal.Signals) -> None:
    program = joined(notebook)
    program.send_signal(signal.SIGHUP)  # whoever has started it is cut off
    told_to_end(program, notebook, number)


def test_a_node_that_cannot_start_says_why(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "stubs" / "quick_engine.py").write_text("raise SystemError('no engine on purpose')")
    program = begin()
    _, err = program.communicate(notebook.token().written(), timeout=PATIENCE)
    assert program.returncode == 1
    assert err.decode().rstrip().endswith("SystemError: no engine on purpose")
    await_that(lambda: not home_of(notebook).path.exists(), "its directory is left")


def test_without_a_token_it_says_so(notebook: Notebook) -> None:
    program = begin()
    out, err = program.communicate(b"", timeout=PATIENCE)
    assert (program.returncode, out) == (1, b"")
    assert err.decode().startswith("This is no join token of a world: ")


@contextmanager
def left_behind(home: WorldDir) -> Iterator[subprocess.Popen[bytes]]:
    """A process that the daemon has started, as far as is written down."""
    environment = {**os.environ, HOME_VARIABLE: os.fspath(home.path)}
    with subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as rank:
        try:
            await_that(lambda: lives(home, rank.pid), "in the midst of an exec nothing can be read of it")
            home.write_children(msgspec.json.encode([(1, "rank 0", rank.pid, "")]))
            yield rank
        finally:
            rank.kill()


def test_it_starts_another_daemon_where_ranks_live_whose_daemon_was_killed(notebook: Notebook) -> None:
    """A scheduler ends all that the program has started when it ends."""
    program = joined(notebook)
    (daemon,) = psutil.Process(program.pid).children()
    with left_behind(home_of(notebook)) as rank:
        daemon.kill()
        notebook.reports(NodeHello)
        assert program.poll() is None
        assert psutil.Process(program.pid).children() != [daemon]
        assert rank.poll() is None
        told_to_end(program, notebook)
        rank.wait(PATIENCE)


def test_a_daemon_that_was_stopped_is_replaced_and_ended(notebook: Notebook) -> None:
    program = joined(notebook)
    (daemon,) = psutil.Process(program.pid).children()
    with left_behind(home_of(notebook)) as rank:
        daemon.suspend()
        notebook.reports(NodeHello)
        await_that(lambda: has_ended(daemon), "the next one has not ended it")
        assert program.poll() is None
        assert rank.poll() is None
        told_to_end(program, notebook)
        rank.wait(PATIENCE)


def test_one_that_was_stopped_keeps_nobody_from_ending(notebook: Notebook) -> None:
    program = joined(notebook)
    (daemon,) = psutil.Process(program.pid).children()
    daemon.suspend()
    told_to_end(program, notebook)
    assert has_ended(daemon)


def test_who_has_lost_its_daemon_ends_what_is_left_when_it_is_told_to(notebook: Notebook) -> None:
    program = joined(notebook)
    (daemon,) = psutil.Process(program.pid).children()
    with left_behind(home_of(notebook)) as rank:
        daemon.kill()
        await_that(lambda: has_ended(daemon), "it lives on")
        told_to_end(program, notebook)
        rank.wait(PATIENCE)
