"""Who can reach a world on this machine: its own user, over loopback and private sockets, and nobody else."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import nbcomm
from nbcomm.notebook.session import Session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with nbcomm.start(2) as started:
        started.run("group = new_group([0, 1]); all_reduce(1, group=group)", quiet=True)
        yield started


def _processes(session: Session) -> list[psutil.Process]:
    server = psutil.Process(session._forkserver._process.pid)
    return [server, *server.children(recursive=True)]


def test_every_listening_socket_is_on_loopback(session: Session) -> None:
    processes = _processes(session)
    assert len(processes) >= 4
    listening = [
        connection.laddr
        for process in [psutil.Process(), *processes]
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening, "gloo and the controller listen somewhere"
    assert all(ipaddress.ip_address(address.ip).is_loopback for address in listening), listening


def test_every_file_is_for_this_user_alone(session: Session) -> None:
    home = session.home.path
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert home.stat().st_uid == os.getuid()
    # These hold keys; what else lies there is kept by the directory.
    keys = [session.home.link_file, *Path(session.home.profile, "security").glob("ipcontroller-*.json")]
    assert len(keys) >= 3
    assert {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in keys} == dict.fromkeys(
        (file.name for file in keys), "0o600"
    )


def test_garbage_on_every_socket_while_a_cell_runs(session: Session) -> None:
    ended = threading.Event()
    cell = threading.Thread(target=lambda: (session.run("import time; time.sleep(2)", quiet=True), ended.set()))
    cell.start()
    sockets = [path for path in session.home.path.iterdir() if path.is_socket()]
    assert len(sockets) >= 3, "link, fork server, store"
    for path in sockets:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\0" * 4096):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(os.fspath(path))
                with suppress(OSError):  # it has hung up on us already
                    stranger.sendall(garbage)
    cell.join(60)
    assert ended.is_set()
    session.run("second = new_group([0, 1]); x = all_reduce(rank, group=second)", quiet=True)
    assert session.pull("x") == [1, 1]
