"""Worlds are found by their directories; what is in them may be anything."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nbcomm.launch import discovery
from nbcomm.protocol import NodeStatus, Obeyed
from nbcomm.protocol.codec import encode
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import WorldInfo


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # worlds of others, on this machine, are not meant
    monkeypatch.setattr(discovery, "_TIMEOUT", 60.0)  # who answers is a thread that may have no turn for a while
    made = tmp_path / f"nbcomm-{os.getuid()}"
    made.mkdir()
    return made


Serve = Callable[..., WorldDir]


@pytest.fixture
def serve(parent: Path) -> Iterator[Serve]:
    """Make a world whose daemon says one thing to all who come."""
    with ExitStack() as stack:

        def make(name: str, says: bytes, started: float = 1.0) -> WorldDir:
            home = WorldDir(parent / name)
            home.path.mkdir()
            home.write_world(WorldInfo("2 ranks on cpu", [], [], 29500, 60.0, started, "/home/me"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(os.fspath(home.daemon_socket))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(says)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            stack.callback(thread.join, 30)
            return home

        yield make


def status(holder: int = 0, alone: float = 12.0) -> bytes:
    return encode(NodeStatus(1, holder, alone, 60.0))


def test_without_worlds_there_are_none(parent: Path) -> None:
    assert discovery.find_worlds() == []


def test_worlds_are_listed_newest_first_with_whose_they_are(serve: Serve) -> None:
    serve("aaaa", status(), started=1.0)
    serve("bbbb", status(4242), started=2.0)
    newest, oldest = discovery.find_worlds()
    assert str(newest) == "bbbb: 2 ranks on cpu, started in /home/me, in use by process 4242"
    assert str(oldest) == "aaaa: 2 ranks on cpu, started in /home/me, free, ends in 48 s"
    assert (newest.holder, oldest.left) == (4242, 48.0)


@pytest.mark.parametrize("says", [b"", b"hello\n", b"\xff" * 64, status()[:-5], b"\xff", encode(Obeyed(1))])
def test_what_answers_otherwise_is_no_world(serve: Serve, says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_TIMEOUT", 0.5)
    serve("aaaa", says)
    assert discovery.find_worlds() == []


def test_directories_of_worlds_that_have_ended_are_passed_by(parent: Path, serve: Serve) -> None:
    (parent / "empty").mkdir()
    (parent / "file").write_text("not a world")
    (parent / "dead").mkdir()
    (parent / "dead" / "world.json").write_bytes(b"{")
    serve("aaaa", status())
    assert [world.home.id for world in discovery.find_worlds()] == ["aaaa"]


def test_one_whose_daemon_is_gone_is_passed_by(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_TIMEOUT", 0.2)
    home = WorldDir(parent / "aaaa")
    home.path.mkdir()
    home.write_world(WorldInfo("2 ranks on cpu", [], [], 29500, 60.0, 1.0, "/"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(home.daemon_socket))  # and nobody listens
    assert discovery.find_worlds() == []


def test_one_that_says_nothing_is_not_waited_for(serve: Serve, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_TIMEOUT", 0.2)
    home = WorldDir(parent / "aaaa")
    home.path.mkdir()
    home.write_world(WorldInfo("2 ranks on cpu", [], [], 29500, 60.0, 1.0, "/"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(home.daemon_socket))
        listener.listen()
        silent: list[str] = []
        assert discovery.find_worlds(silent=silent) == []
    assert silent == ["aaaa: TimeoutError"]


def test_whoever_wants_one_waits_for_a_slow_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_TIMEOUT", 0.0)
    serve("aaaa", status())
    assert [world.home.id for world in discovery.find_worlds(60.0)] == ["aaaa"]


def test_a_world_is_found_by_a_process_that_has_many_files_open(serve: Serve) -> None:
    serve("aaaa", status())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may not open so many files")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        assert [world.home.id for world in discovery.find_worlds()] == ["aaaa"]
