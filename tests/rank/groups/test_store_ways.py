"""The way of a rank to the store on another node: what ends a wait there, and what is let in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from nbcomm.node import dealers
from nbcomm.rank.groups.rendezvous import StoreClient
from nbcomm.rank.groups.store_ways import UnixWay

from ...node.network import Network
from ...node.nodes import RankKeys, ServedNode
from ...node.served import await_that

PATIENCE = 30.0


class Waiter:
    """A rank that waits for a key that nobody sets."""

    def __init__(self, client: StoreClient, node: ServedNode) -> None:
        self.errors: list[BaseException] = []
        self._client = client
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()
        rendezvous = node.served.rendezvous
        await_that(lambda: rendezvous._store is not None and rendezvous._store._waiting, "it does not wait")

    def _wait(self) -> None:
        try:
            self._client.get("never")
        except dist.DistNetworkError as error:
            self.errors.append(error)

    def fails(self) -> str:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        (error,) = self.errors
        return str(error)


@pytest.fixture
def node() -> Iterator[ServedNode]:
    made = ServedNode()
    made.serve(1, ranks=[1, 2])
    yield made
    made.close()


@pytest.fixture
def client(node: ServedNode) -> Iterator[StoreClient]:
    made = StoreClient(node.way(1, 1), 600.0)
    yield made
    made.abort()


def test_ranks_of_all_nodes_meet_in_one_store(node: ServedNode, client: StoreClient) -> None:
    here = StoreClient(UnixWay(node.home.store_socket(1)), 30.0)
    here.set("key", "value")
    assert client.get("key") == b"value"
    assert [client.add("n", 1), here.add("n", 1), StoreClient(node.way(2, 1), 30.0).add("n", 1)] == [1, 2, 3]


def test_values_may_be_large(client: StoreClient) -> None:
    value = os.urandom(5 << 20)
    client.set("key", value)
    assert client.get("key") == value


def test_an_abort_frees_who_waits_at_once(node: ServedNode, client: StoreClient) -> None:
    waiter = Waiter(client, node)
    client.abort()
    waiter.fails()
    with pytest.raises(dist.DistNetworkError):
        client.set("key", "value")


def test_the_child_of_a_fork_ends_and_a_call_that_waits_goes_on(node: ServedNode, client: StoreClient) -> None:
    waiter = Waiter(client, node)
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    StoreClient(node.way(2, 1), 30.0).set("never", "yet")
    waiter.thread.join(PATIENCE)
    assert not waiter.thread.is_alive()
    assert not waiter.errors


def test_the_end_of_the_daemon_frees_who_waits(node: ServedNode, client: StoreClient) -> None:
    waiter = Waiter(client, node)
    node.replace_daemon()
    assert "is gone" in waiter.fails()


def test_what_begins_after_the_daemons_end_meets_at_the_next_one(node: ServedNode, client: StoreClient) -> None:
    client.set("key", "value")
    client.settle(meets=True)
    node.replace_daemon()
    waiting = threading.Thread(target=lambda: client.set("new", "value"), daemon=True)
    waiting.start()  # none serves there yet
    before = node.address
    node.serve(1, ranks=[1, 2], again=True)
    assert node.address == before
    waiting.join(PATIENCE)
    assert client.check(["new"])
    assert not client.check(["key"])


def test_what_has_begun_does_not_go_on_in_another_store(node: ServedNode, client: StoreClient) -> None:
    client.settle(meets=True)
    client.set("here/0", "")
    node.replace_daemon()
    node.serve(1, ranks=[1, 2], again=True)
    with pytest.raises(dist.DistNetworkError, match="is gone"):
        client.get("here/1")


def test_a_network_that_carries_nothing_is_noticed(node: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealers, "_BEAT", 50)
    monkeypatch.setattr(dealers, "_SILENCE", 200)
    network = Network(node.address)
    waiter = Waiter(StoreClient(node.way(1, 1, network.address), 600.0), node)
    network.silent = True
    assert "is gone" in waiter.fails()
    network.close()


def test_a_rank_of_an_earlier_generation_asks_the_next_store_nothing(node: ServedNode, client: StoreClient) -> None:
    client.set("key", "value")
    node.serve(2, ranks=[1, 2])
    with pytest.raises(dist.DistNetworkError, match="refused the request"):
        client.set("key", "late")
    late = StoreClient(node.way(1, 1), 0.1)
    with pytest.raises(dist.DistStoreError, match=r"No store started at tcp://127\.0\.0\.1:\d+ within 0\.1 s"):
        late.set("key", "late")
    assert not StoreClient(node.way(1, 2), 30.0).check(["key"])


def test_a_process_that_was_replaced_is_not_heard_although_it_is_connected(node: ServedNode) -> None:
    stale = node.connection(1)
    ask = StoreClient(node.way(1, 1), 30.0)
    ask.set("key", "value")
    node.ranks[1] = RankKeys(1, start=2)
    node.serve(2, ranks=[1, 2])
    stale.send([b"", b"\x92\xa4meet\x02"])
    assert StoreClient(node.way(1, 2), 30.0).num_keys() == 0
    assert stale.receive(0.1) is None


def test_a_stranger_is_refused_until_it_is_known(node: ServedNode) -> None:
    node.ranks[3] = RankKeys(3)
    stranger = StoreClient(node.way(3, 1), 30.0)
    with pytest.raises(dist.DistNetworkError, match="refused"):
        stranger.set("key", "value")
    stranger.settle(meets=True)  # as a rank does that waits for the next daemon
    waiting = threading.Thread(target=lambda: stranger.set("key", "value"), daemon=True)
    waiting.start()
    node.serve(1, ranks=[1, 2, 3], again=True)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert StoreClient(node.way(1, 1), 30.0).check(["key"])


def test_what_cannot_be_done_fails_the_call_alone(node: ServedNode, client: StoreClient) -> None:
    client.set("word", "no number")
    with pytest.raises(dist.DistNetworkError, match="refused the request"):
        client.add("word", 1)
    other = StoreClient(node.way(2, 1), 30.0)
    assert other.get("word") == b"no number"
