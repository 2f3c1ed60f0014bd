"""The address of gloo's connections, and what is shut on it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from nbcomm.torch_internals import process_groups
from nbcomm.torch_internals.gloo_sockets import GlooDevice


def test_a_world_has_one_address_and_another_world_another() -> None:
    addresses = {GlooDevice(f"world{number}").address for number in range(200)}
    assert GlooDevice("world7").address == GlooDevice("world7").address
    assert len(addresses) > 190
    for address in addresses:
        first, second, _, last = map(int, address.split("."))
        assert (first, 64 <= second < 192, 1 <= last <= 254) == (127, True, True)
    assert GlooDevice("world7", reserve=False).address == "127.0.0.1"


@contextlib.contextmanager
def connected(address: str) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """A listening socket on an address, and both ends of a connection to it."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
            for end in (client, server):
                end.settimeout(30)
            yield listener, client, server


def works(one: socket.socket, other: socket.socket) -> bool:
    try:
        one.sendall(b"x")
        return other.recv(1) == b"x"
    except OSError:
        return False


def test_only_connections_on_the_reserved_address_are_shut() -> None:
    device = GlooDevice("test")
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their names
    with (
        connected(device.address) as (listener, client, server),
        connected("127.0.0.1") as (_, other, end),
        socket.socket(socket.AF_UNIX) as unix,
    ):
        assert device.shut_connections() == 2
        assert client.recv(1) == server.recv(1) == b""  # whoever waits is told
        assert works(other, end)
        assert unix.fileno() > 0
        with socket.create_connection(listener.getsockname()) as again, listener.accept()[0] as accepted:
            assert works(again, accepted)  # the listening socket is not touched
    assert set(os.listdir("/proc/self/fd")) <= before | {str(max(map(int, before)) + 1)}  # noqa: PTH208 - their names


def test_without_an_address_those_that_appeared_are_shut() -> None:
    device = GlooDevice("test", reserve=False)
    with connected("127.0.0.1") as (_, other, end):
        with device.noting():
            pair = contextlib.ExitStack()
            _, client, server = pair.enter_context(connected("127.0.0.1"))
        assert device.shut_connections() == 2
        assert client.recv(1) == server.recv(1) == b""
        assert works(other, end)
        assert device.shut_connections() == 0
        pair.close()


def test_a_collective_is_freed_by_shutting_its_connections() -> None:
    """Two gloo groups in one process meet; one waits on a thread for what the other will never do."""
    import threading

    device, store, groups, failed = GlooDevice("freed"), dist.HashStore(), [None, None], []

    def join(rank: int) -> None:
        groups[rank] = process_groups.new_inner("gloo", store, rank, 2, timedelta(seconds=60), device, "g", [0, 1])

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    def wait() -> None:
        try:
            groups[0].allreduce([torch.ones(2)]).wait()
        except RuntimeError as error:
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not failed:  # the connections are there from the start, but a call may begin after they were shut
        device.shut_connections()
        waiting.join(0.05)
    assert "onnection" in failed[0] or "eset" in failed[0]
    groups.clear()
    gc.collect()
