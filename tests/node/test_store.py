"""The server of the store, over its bare protocol: what its clients do is tested with them."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbcomm.node.store import Store, StoreServer, receive, receive_name, send

from .loops import ServedStore

PATIENCE = 30.0


class Client:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(os.fspath(path))
        self.server = receive_name(self.socket)

    def begin(self, *request: Any) -> None:
        send(self.socket, request)

    def end(self) -> Any:
        return receive(self.socket)

    def ask(self, *request: Any) -> Any:
        self.begin(*request)
        return self.end()


class StoreThatSaysWhenItWaits(Store):
    """A store that tells when a client has come to wait for a key."""

    def __init__(self) -> None:
        self.waited_for = threading.Semaphore(0)
        super().__init__()

    def _settle(self, *args: Any) -> None:
        super()._settle(*args)
        self.waited_for.release()


class Server(ServedStore):
    """A server of such a store."""

    def __init__(self, path: Path) -> None:
        made = StoreThatSaysWhenItWaits()
        self.waited_for = made.waited_for
        super().__init__(path, made)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sock"


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    made = Server(path)
    yield made
    made.close()


@pytest.fixture
def client(server: Server, path: Path) -> Iterator[Client]:
    made = Client(path)
    yield made
    made.socket.close()


def test_each_request_has_one_reply(client: Client) -> None:
    assert client.ask("set", "key", b"value") is None
    assert client.ask("wait", ["key"], 0.0) == [b"value"]
    assert client.ask("wait", ["key", "absent"], 0.0) is None
    assert client.ask("add", "n", 5) == 5
    assert client.ask("add", "n", -7) == -2
    assert client.ask("append", "key", b"s") is None
    assert client.ask("compare_set", "key", b"values", b"other") == b"other"
    assert client.ask("compare_set", "key", b"wrong", b"never") == b"other"
    assert client.ask("compare_set", "absent", b"wrong", b"never") == b"wrong"
    assert client.ask("check", ["key", "n"]) is True
    assert client.ask("check", ["key", "absent"]) is False
    assert client.ask("count") == 2
    assert client.ask("delete", "key") is True
    assert client.ask("delete", "key") is False


def test_values_may_be_large(client: Client) -> None:
    value = os.urandom(5 << 20)
    client.ask("set", "key", value)
    assert client.ask("wait", ["key"], 0.0) == [value]


@pytest.mark.parametrize(
    "by", [("set", "late", b"bird"), ("append", "late", b"bird"), ("compare_set", "late", b"", b"bird")]
)
def test_waiting_ends_when_the_key_is_there(server: Server, path: Path, by: tuple[Any, ...]) -> None:
    waiting, setting = [Client(path) for _ in range(5)], Client(path)
    for one in waiting:
        one.begin("wait", ["late"], 600.0)
        assert server.waited_for.acquire(timeout=PATIENCE)
    setting.ask(*by)
    assert [one.end() for one in waiting] == [[b"bird"]] * 5


def test_a_sum_ends_waiting_too(server: Server, path: Path) -> None:
    waiting, adding = Client(path), Client(path)
    waiting.begin("wait", ["n"], 600.0)
    assert server.waited_for.acquire(timeout=PATIENCE)
    adding.ask("add", "n", 3)
    assert waiting.end() == [b"3"]


def test_waiting_for_what_does_not_come_ends_in_time(client: Client) -> None:
    began = time.monotonic()
    assert client.ask("wait", ["never"], 0.2) is None
    assert time.monotonic() - began >= 0.2


def test_a_server_that_closes_frees_who_waits(path: Path) -> None:
    server = Server(path)
    clients = [Client(path) for _ in range(3)]
    for one in clients[:2]:
        one.begin("wait", ["never"], 600.0)
        assert server.waited_for.acquire(timeout=PATIENCE)
    clients[2].ask("count")
    server.close()
    for one in clients:
        with pytest.raises(ConnectionError):
            one.end()
    assert not path.exists()
    assert server.store.due == float("inf")


def test_a_server_closes_twice_and_leaves_no_descriptor(path: Path) -> None:
    before = psutil.Process().num_fds()
    server = StoreServer(path, Store())
    server.close()
    server.close()
    assert psutil.Process().num_fds() == before


def test_who_comes_to_a_closed_server_is_not_served(path: Path) -> None:
    server = StoreServer(path, Store())
    late = socket.socket(socket.AF_UNIX)
    late.settimeout(PATIENCE)
    late.connect(os.fspath(path))
    server.close()
    with pytest.raises(ConnectionError):  # noqa: PT012 - it may be refused at either step
        send(late, ["count"])
        receive(late)
    late.close()


def test_who_goes_while_it_waits_is_forgotten(server: Server, path: Path) -> None:
    waiting, other = Client(path), Client(path)
    waiting.begin("wait", ["late"], 600.0)
    assert server.waited_for.acquire(timeout=PATIENCE)
    waiting.socket.close()
    while server.clients() > 1:
        time.sleep(0.001)
    assert server.call(lambda: server.store.due) == float("inf")
    other.ask("set", "late", b"bird")
    assert other.ask("check", ["late"])


def test_who_reads_nothing_makes_no_other_wait(client: Client, path: Path) -> None:
    stopped, value = Client(path), os.urandom(5 << 20)
    client.ask("set", "large", value)
    for _ in range(3):
        stopped.begin("wait", ["large"], 0.0)
    assert client.ask("add", "n", 1) == 1
    assert [stopped.end() for _ in range(3)] == [[value]] * 3


def test_a_request_may_come_in_parts_and_several_at_once(path: Path, client: Client) -> None:
    pair = [_sent(["add", "n", 1]), _sent(["add", "n", 2])]
    for byte in pair[0]:
        client.socket.sendall(bytes([byte]))
    assert client.end() == 1
    client.socket.sendall(b"".join(pair))
    assert [client.end(), client.end()] == [2, 4]


def _sent(request: Any) -> bytes:
    near, far = socket.socketpair()
    with near, far:
        send(near, request)
        return far.recv(1 << 16)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\1\xc1",
        b"\0\0\0\4oops",
        b"\0\0\0\7\x92\xa4evil\1",
        b"\0\0\0\0",
        b"\0\0\0\1\x90",
        b"\0\0\0\2\x91\xc0",
        b"\0\0\0\7\x91\xa5count" + b"\0\0\0\1\xc1",
        b"\0\0\0\x08\x92\xa5check\x01",
    ],
    ids=["noise", "text", "unknown", "nothing", "no verb", "nil", "behind a request", "a number for a list"],
)
def test_garbage_ends_its_own_connection_only(client: Client, path: Path, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(os.fspath(path))
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(100):
            pass
    client.ask("set", "still", b"there")
    assert client.ask("wait", ["still"], 0.0) == [b"there"]


def test_what_cannot_be_done_ends_its_own_connection_only(client: Client, path: Path) -> None:
    client.ask("set", "word", b"no number")
    other = Client(path)
    other.begin("add", "word", 1)
    with pytest.raises(ConnectionError):
        other.end()
    assert client.ask("wait", ["word"], 0.0) == [b"no number"]
    assert Client(path).ask("count") == 1


def test_a_length_that_lies_takes_no_memory(client: Client, path: Path) -> None:
    before = psutil.Process().memory_info().rss
    liars = [Client(path) for _ in range(8)]
    for liar in liars:
        liar.socket.sendall(b"\xff\xff\xff\xff" + b"x" * 1000)
    assert client.ask("count") == 0
    assert psutil.Process().memory_info().rss - before < 100 << 20
    for liar in liars:
        liar.socket.close()


def test_a_server_that_has_no_descriptor_left_serves_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, left = socket.socket.accept, [3]

    def accept(listener: socket.socket) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    server = Server(path)
    assert Client(path).ask("count") == 0
    assert left == [0]
    server.close()


def test_what_a_killed_server_left_is_no_obstacle(path: Path) -> None:
    for name in (path, path.with_suffix(".part")):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(os.fspath(name))  # its file outlives it
    server = Server(path)
    assert Client(path).ask("count") == 0
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.with_suffix(".part").exists()
    server.close()


def test_a_socket_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        StoreServer(tmp_path / "nowhere" / "store.sock", Store())
    assert psutil.Process().num_fds() == before
