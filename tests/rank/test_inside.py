"""What is used of torch's private interfaces: present here, and missed in words elsewhere."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.rank import inside


def test_this_torch_has_all_of_it() -> None:
    assert inside.self_check() == ""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (inside.c10d, "_new_process_group_helper"),
        (inside.c10d, "_new_group_with_tag"),
        (dist.ProcessGroupGloo, "create_device"),
        (dist.ProcessGroup, "allreduce"),
        (inside._C, "FakeProcessGroup"),
    ],
)
def test_a_torch_without_it_is_told_by_what_it_lacks(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, name)
    assert inside.self_check() == f"torch {torch.__version__} has no {name}"


def test_a_torch_that_does_not_call_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no trampolines here")

    monkeypatch.setattr(inside._C, "_register_process_group", refuse)
    monkeypatch.setattr(inside._C, "_unregister_process_group", lambda _: None)
    assert "does not call process groups written in Python: no trampolines here" in inside.self_check()


def test_without_gloo_there_is_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside.dist, "is_gloo_available", lambda: False)
    assert inside.self_check() == "this torch has no gloo"


@pytest.mark.parametrize(
    ("backend", "devices"),
    [("nccl", {"cuda": "nccl"}), ("cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"})],
)
def test_which_backend_serves_which_device(backend: str, devices: dict[str, str]) -> None:
    assert inside.devices_of(backend) == devices


def test_gloo_alone_serves_the_gpu_too_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, devices in ((True, {"cpu", "cuda"}), (False, {"cpu"})):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert set(inside.devices_of("gloo")) == devices


# ── the address, and what is shut on it ─────────────────────────────────────────────────────────────


def test_a_world_has_one_address_and_another_world_another() -> None:
    addresses = {inside.GlooDevice(f"world{number}").address for number in range(200)}
    assert inside.GlooDevice("world7").address == inside.GlooDevice("world7").address
    assert len(addresses) > 190
    for address in addresses:
        first, second, _, last = map(int, address.split("."))
        assert (first, 64 <= second < 192, 1 <= last <= 254) == (127, True, True)
    assert inside.GlooDevice("world7", reserve=False).address == "127.0.0.1"


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
    device = inside.GlooDevice("test")
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
    device = inside.GlooDevice("test", reserve=False)
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

    device, store, groups, failed = inside.GlooDevice("freed"), dist.HashStore(), [None, None], []

    def join(rank: int) -> None:
        groups[rank] = inside.new_inner("gloo", store, rank, 2, timedelta(seconds=60), device, "g", [0, 1])

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


def test_a_member_that_dies_while_gloo_connects_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_CONNECT", 0.2)
    store = dist.HashStore()
    store.set("here/1", b"")  # it had come, and connects no more
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"[Tt]ime"):
        inside.new_inner("gloo", store, 0, 2, timedelta(seconds=60), inside.GlooDevice("dies"), "g", [0, 1])
    assert time.monotonic() - began < 30
