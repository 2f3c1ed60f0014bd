"""The ends of connections by CURVE: what a process says to a node's listener reaches that, or nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from nbcomm.node.dealers import Connection, dealer
from nbcomm.world_info import LinkInfo

from .nodes import RankKeys, ServedNode
from .served import await_that

PATIENCE = 30.0
MEET = [b"", b"\x92\xa4meet\x01"]


@pytest.fixture
def node() -> Iterator[ServedNode]:
    made = ServedNode()
    made.serve(1, ranks=[1])
    yield made
    made.close()


def _send_for(seconds: float, link: zmq.Socket[bytes]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        link.send(b"a word")
        time.sleep(0.01)


def test_who_is_refused_does_not_wait_for_ever(node: ServedNode) -> None:
    outside = zmq.Context()
    public, secret = (key.decode() for key in zmq.curve_keypair())
    try:
        link = dealer(outside, node.public, LinkInfo("", "", public, secret))
        fate = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED)
        link.connect(node.address)
        assert fate.poll(10_000)
        with pytest.raises(zmq.Again):
            _send_for(10, link)
    finally:
        outside.destroy(linger=0)


def test_a_connection_tells_whether_it_is_there(node: ServedNode) -> None:
    link = node.connection(1)
    await_that(lambda: link.look() and link.connected, "it does not connect")
    link.send(MEET)
    assert link.receive(PATIENCE)
    node.replace_daemon()
    await_that(lambda: not link.look(), "it is not lost")
    assert not link.connected


def test_a_connection_that_is_lost_is_never_made_again(node: ServedNode) -> None:
    link = node.connection(1)
    link.send(MEET)
    assert link.receive(PATIENCE)
    node.replace_daemon()
    node.serve(1, ranks=[1], again=True)
    with pytest.raises(ConnectionError):  # noqa: PT012
        while True:  # the first word may still find the end of the last connection
            link.send(MEET)
            assert link.receive(0.05) is None


@pytest.mark.parametrize("why", ["nobody", "refused", "no listener"])
def test_who_is_not_let_in_learns_of_it(node: ServedNode, why: str) -> None:
    if why == "refused":
        link = RankKeys(5).connect(node.listener())
    elif why == "no listener":  # with no other connection that nobody closes: its end may take an event of this one
        link = node.ranks[1].connect(node.listener("tcp://127.0.0.1:1"))
    else:
        node.replace_daemon()
        link = node.connection(1)
    with pytest.raises(ConnectionError):  # noqa: PT012 - either learns of it
        if why != "nobody":
            link.send(MEET)
        link.receive(PATIENCE)
    assert link.lost
    assert not link.connected
    link.close()


def test_another_thread_ends_a_wait(node: ServedNode) -> None:
    link, failed = node.connection(1), threading.Event()

    def wait() -> None:
        try:
            link.receive()
        except ConnectionError:
            failed.set()

    threading.Thread(target=wait, daemon=True).start()
    link.free()
    assert failed.wait(PATIENCE)
    with pytest.raises(ConnectionError, match="let go"):
        link.receive()
    link.close()
    link.free()


def test_an_answer_comes_before_the_news_of_an_end(node: ServedNode) -> None:
    link = node.connection(1)
    link.send(MEET)
    await_that(lambda: link._socket.poll(0), "no answer comes")
    link.free()
    assert link.receive(0.0)


def test_a_connection_that_cannot_be_made_leaves_nothing(node: ServedNode) -> None:
    with pytest.raises(zmq.ZMQError):
        node.ranks[1].connect(node.listener("nonsense"))
    assert isinstance(node.connection(1), Connection)
