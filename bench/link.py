"""The round trip of the link alone: fake ranks with real sockets and keys, in one other thread."""

from __future__ import annotations

import queue
import threading
from typing import Any

import zmq

from nbcomm.notebook.cluster.link import Link
from nbcomm.protocol import Done, Hello, StatusRequest
from nbcomm.protocol.codec import encode
from nbcomm.world_dir import WorldDir

from .rows import Row, interleaved


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """One message to each rank and one back, at several sizes."""
    return [_round_trip(n, rounds) for n in (1, 4, 8, 32)]


def _round_trip(n: int, rounds: int) -> Row:
    home = WorldDir.create()
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    link = Link(home, 60.0, lambda rank, *_: received.put(rank))
    stopped = threading.Event()
    ranks = threading.Thread(target=_fake_ranks, args=(home, n, stopped), daemon=True)
    ranks.start()

    def trip() -> None:
        link.send(range(n), StatusRequest())
        _await(received, n)

    try:
        _await(received, n)  # their hellos
        (median,) = interleaved(rounds, trip)
    finally:
        stopped.set()
        ranks.join()
        link.close()
        home.remove()
    return Row(f"round trip of the link, {n} ranks", f"{median * 1e3:.2f} ms")


def _await(received: queue.SimpleQueue[int], n: int) -> None:
    for _ in range(n):
        received.get()


def _fake_ranks(home: WorldDir, n: int, stopped: threading.Event) -> None:
    info, context, poller = home.read_link(), zmq.Context(), zmq.Poller()
    sockets: list[zmq.Socket[Any]] = []
    for rank in range(n):
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, b"rank%d" % rank)
        dealer.setsockopt_string(zmq.CURVE_SERVERKEY, info.server_public)
        dealer.setsockopt_string(zmq.CURVE_PUBLICKEY, info.client_public)
        dealer.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
        dealer.connect(info.address)
        dealer.send(encode(Hello(rank, 0, "", 0, "")))
        poller.register(dealer, zmq.POLLIN)
        sockets.append(dealer)
    while not stopped.is_set():
        for dealer, _ in poller.poll(50):
            dealer.recv_multipart()
            dealer.send(encode(Done(1)))
    for dealer in sockets:
        dealer.close(linger=0)
    context.term()
