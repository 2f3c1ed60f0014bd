"""ipyparallel's client is handed out when it knows every rank, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from nbcomm.errors import Interrupted, StateError
from nbcomm.launch import local_cluster
from nbcomm.launch.local_cluster import LocalCluster
from nbcomm.launch.process_table import Process
from nbcomm.world_dir import WorldDir


class Clients:
    """The clients that were made, each with the ranks that it knows: those of ``known`` in turn, the last for ever."""

    def __init__(self, *known: list[int]) -> None:
        self.known = [*known]
        self.made: list[Client] = []

    def __call__(self, _: str) -> Client:
        self.made.append(Client(self.known.pop(0) if len(self.known) > 1 else self.known[0]))
        return self.made[-1]


class Client:
    """Knows these ranks."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.closed = False

    def close(self, linger: int | None = None) -> None:
        """Note it."""
        self.closed = True


Cluster = Callable[..., "tuple[LocalCluster, Clients]"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without processes, whose clients know what the test says."""
    made: list[LocalCluster] = []
    handed_out: list[Clients] = []
    home = WorldDir.create()

    class Node:
        """The node's client, of which only the directory is needed."""

        def __init__(self) -> None:
            self.home = home

    def make(*known: list[int]) -> tuple[LocalCluster, Clients]:
        clients = Clients(*known)
        monkeypatch.setattr(local_cluster, "_Client", clients)
        monkeypatch.setattr(local_cluster, "_hears", lambda *_: True)
        monkeypatch.setattr(local_cluster, "_LOOK", 0.0)
        node: Any = Node()
        made.append(LocalCluster(node, running=True))
        handed_out.append(clients)
        return made[-1], clients

    yield make
    for one in made:
        one.close()
    home.remove()
    assert all(client.closed for clients in handed_out for client in clients.made)


def test_a_client_that_misses_a_rank_is_replaced(cluster: Cluster) -> None:
    owner, clients = cluster([0], [0], [0, 1])
    assert owner.client([0, 1]) is clients.made[2]
    assert [client.closed for client in clients.made] == [True, True, False]
    assert owner.client([0, 1]) is clients.made[2], "it is kept"


def test_a_client_that_misses_a_rank_later_is_replaced_then_and_stays_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, clients = cluster([0, 1])
    first = owner.client([0, 1])
    monkeypatch.setattr(local_cluster, "_PATIENCE", 0.05)
    first.ids = [0]  # rank 1 was replaced, and the client did not hear of it
    assert owner.client([0, 1]) is clients.made[1]
    assert not first.closed, "somebody may use it"


def test_a_client_that_hears_of_a_new_engine_in_time_is_kept(cluster: Cluster) -> None:
    owner, clients = cluster([0, 1])
    first = owner.client([0, 1])
    first.ids = [0]
    timer = threading.Timer(0.05, lambda: setattr(first, "ids", [0, 1]))
    timer.start()
    assert owner.client([0, 1]) is first
    assert len(clients.made) == 1
    timer.join()


def test_ranks_that_do_not_register_are_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_PATIENCE", 0.05)
    owner, clients = cluster([0])
    with pytest.raises(
        StateError, match=r"^Ranks 1-2 have not registered with ipyparallel's controller within 0\.05 s"
    ):
        owner.client([0, 1, 2])
    with pytest.raises(StateError, match=r"^Rank 1 has not registered"):
        owner.client([0, 1])
    assert all(client.closed for client in clients.made)
    clients.known = [[0, 1, 2]]
    assert owner.client([0, 1, 2]).ids == [0, 1, 2]


@pytest.mark.parametrize("what", ["rank 1", "controller"])
def test_a_process_that_is_started_as_it_is_given_up_is_not_left(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    home = WorldDir.create()
    said: list[str] = []
    began, given_up = threading.Event(), threading.Event()

    class Node:
        """Starts a process although that is given up; it is the only node, too."""

        home: WorldDir
        profile = ""
        host = "127.0.0.1"

        def of(self, _key: str) -> Node:
            return self

        def start(self, key: str, _what: str, _argv: list[str], *, environment: dict[str, str]) -> Process:
            assert environment
            began.set()
            assert given_up.wait(60)
            said.append(f"{key} starts")
            return Process(1, 4242)

        def give_up(self) -> None:
            given_up.set()

        def watch(self, *_: object) -> None:
            pass

        def abandon(self, key: str) -> None:
            said.append(f"{key} is not wanted")

    node: Any = Node()
    node.home = home
    monkeypatch.setattr(local_cluster, "_GRACE", 60.0)
    owner = LocalCluster(node, running=True)
    try:
        start = owner.start_controller if what == "controller" else partial(owner.start_engine, 1)
        with pytest.raises(Interrupted):
            start(began.is_set)
        assert said == [f"{what} starts", f"{what} is not wanted"]
    finally:
        owner.close()
        home.remove()


def test_a_client_that_is_interrupted_while_it_connects_is_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, clients = cluster([0, 1])

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_cluster, "_hears", interrupted)
    with pytest.raises(KeyboardInterrupt):
        owner.client([0, 1])
    assert clients.made[0].closed
    monkeypatch.setattr(local_cluster, "_hears", lambda *_: True)
    assert owner.client([0, 1]) is clients.made[1]
