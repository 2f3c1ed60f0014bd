"""The way to the store from another node: a real store, its door, and a relay, in one process."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq

from nbcomm.node import dealers
from nbcomm.node.store import receive
from nbcomm.node.store_relay import StoreDoor, StoreRelay
from nbcomm.world_info import LinkInfo

from .served import await_that
from .test_store import PATIENCE, Client, ServerThatSaysWhenItWaits


class Network:
    """A network between relay and door that can be cut and mended: a TCP proxy."""

    def __init__(self, target: str) -> None:
        self.port = int(target.rpartition(":")[2])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.ends: list[socket.socket] = []
        self.silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
                self.ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.silent:  # else it is lost, and nobody is told
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break the connections that there are, and none that is made meanwhile in their place."""
        ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Carry again, on other connections: one that has lost a part of a greeting would wait 30 s for it."""
        self.silent = False
        self.cut()

    def close(self) -> None:
        self.listener.close()
        self.cut()


class Served:
    """A store, its door and a relay, with a network between the two."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.public, self.secret = (key.decode() for key in zmq.curve_keypair())
        self.store = ServerThatSaysWhenItWaits(folder / "store.sock")
        opened.callback(self.store.close)
        self.door = StoreDoor(folder / "store.sock", "127.0.0.1", [self.public])
        opened.callback(self.door.close)
        self.network = Network(self.door.address)
        opened.callback(self.network.close)
        self.near, self.far = folder / "relay.sock", folder / "store.sock"
        self.relay = self.join(self.near, opened, self.public, self.secret)

    def join(self, path: Path, opened: ExitStack, public: str, secret: str) -> StoreRelay:
        info = LinkInfo("", "", public, secret)
        relay = StoreRelay(path, self.network.address, self.door.public, info)
        opened.callback(relay.close)
        return relay


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def served(tmp_path: Path, opened: ExitStack) -> Served:
    return Served(tmp_path, opened)


def test_a_rank_elsewhere_meets_those_of_the_head(served: Served) -> None:
    near, far = Client(served.near), Client(served.far)
    assert near.server == far.server, "it is the same store"
    far.ask("set", "key", b"value")
    assert near.ask("wait", ["key"], 0.0) == [b"value"]
    near.begin("wait", ["late"], 600.0)
    assert served.store.waited_for.acquire(timeout=PATIENCE)
    assert served.store.waited_for.acquire(timeout=PATIENCE)
    far.ask("set", "late", b"bird")
    assert near.end() == [b"bird"]


def test_each_connection_is_one_of_its_own(served: Served) -> None:
    waiting = [Client(served.near) for _ in range(20)]
    for number, one in enumerate(waiting):
        one.begin("wait", [f"key {number}"], 600.0)
    setting = Client(served.near)
    for number in reversed(range(20)):
        setting.ask("set", f"key {number}", str(number).encode())
        assert waiting[number].end() == [str(number).encode()]


def test_values_may_be_large(served: Served) -> None:
    near, value = Client(served.near), os.urandom(5 << 20)
    near.ask("set", "key", value)
    assert near.ask("wait", ["key"], 0.0) == [value]


def test_a_rank_that_reads_nothing_makes_no_other_wait(served: Served) -> None:
    stopped, other = Client(served.near), Client(served.near)
    value = os.urandom(5 << 20)
    other.ask("set", "large", value)
    for _ in range(3):
        stopped.begin("wait", ["large"], 0.0)
    assert other.ask("add", "n", 1) == 1
    assert [stopped.end() for _ in range(3)] == [[value]] * 3


def test_the_end_of_a_rank_ends_its_connection_at_the_store(served: Served) -> None:
    client = Client(served.near)
    assert len(served.store._connections) == 1
    client.socket.close()
    await_that(lambda: not served.store._connections, "the store does not notice")


def test_the_end_of_the_store_frees_who_waits(served: Served) -> None:
    client = Client(served.near)
    client.begin("wait", ["never"], 600.0)
    assert served.store.waited_for.acquire(timeout=PATIENCE)
    served.store.close()
    with pytest.raises(ConnectionError):
        client.end()
    with pytest.raises(ConnectionError):  # none is there
        Client(served.near)


@pytest.mark.parametrize("which", ["door", "relay"])
def test_the_end_of_the_way_frees_who_waits(served: Served, which: str) -> None:
    client = Client(served.near)
    client.begin("wait", ["never"], 600.0)
    assert served.store.waited_for.acquire(timeout=PATIENCE)
    getattr(served, which).close()
    with pytest.raises(ConnectionError):
        client.end()


def test_a_network_that_breaks_frees_who_waits_and_the_next_reach_the_same_store(served: Served) -> None:
    client, far = Client(served.near), Client(served.far)
    client.begin("wait", ["never"], 600.0)
    assert served.store.waited_for.acquire(timeout=PATIENCE)
    served.network.cut()
    with pytest.raises(ConnectionError):
        client.end()
    again = Client(served.near)
    assert again.server == client.server
    assert again.ask("add", "n", 1) == 1
    await_that(lambda: len(served.door._pipes) == 1, "the door still has the broken connection")
    assert far.ask("add", "n", 1) == 2


def test_a_network_that_carries_nothing_is_noticed(
    tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealers, "_BEAT", 50)
    monkeypatch.setattr(dealers, "_SILENCE", 200)
    served = Served(tmp_path, opened)
    client = Client(served.near)
    served.network.silent = True
    with pytest.raises(ConnectionError):
        receive(client.socket)
    served.network.mend()
    names = itertools.count()

    def reaches() -> bool:
        with suppress(ConnectionError):  # it came before the relay had noticed that the network broke to be mended
            return Client(served.near).ask("add", f"n{next(names)}", 1) == 1
        return False

    await_that(reaches, "it does not mend")


def test_a_way_that_fails_over_one_word_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, plain = threading.Event(), served.door._take

    def failing(frames: list[bytes]) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("on purpose")
        plain(frames)

    client = Client(served.near)
    monkeypatch.setattr(served.door, "_take", failing)
    client.begin("set", "lost", b"")
    assert failed.wait(PATIENCE)
    assert Client(served.near).ask("add", "n", 1) == 1
    assert "on purpose" in capsys.readouterr().err


def test_a_stranger_is_not_let_in(served: Served, tmp_path: Path, opened: ExitStack) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    served.join(tmp_path / "stranger.sock", opened, public, secret)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.3)
        connection.connect(os.fspath(tmp_path / "stranger.sock"))
        with pytest.raises((TimeoutError, ConnectionError)):
            receive(connection)
    assert not served.store._connections


def test_who_is_refused_ends_its_connections_and_waits_for_nobody(
    served: Served, tmp_path: Path, opened: ExitStack
) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    served.join(tmp_path / "refused.sock", opened, public, secret)
    for _ in range(20):  # it connects again and again
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(os.fspath(tmp_path / "refused.sock"))
            assert connection.recv(1) == b""


def test_nothing_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with ExitStack() as opened:
        served = Served(tmp_path, opened)
        Client(served.near).socket.close()
    await_that(
        lambda: not {one for one in set(threading.enumerate()) - before if one.name.startswith("nbcomm")}, "threads"
    )
    assert not served.near.exists()
    assert served.door._context.closed
    assert served.relay._context.closed


def test_an_address_that_is_none_of_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(zmq.ZMQError):
        StoreDoor(tmp_path / "store.sock", "192.0.2.1", [])
