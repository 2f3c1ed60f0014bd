"""Which sockets are gloo's is told by where its devices listen; those are shut, and no others."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.torch_internals import gloo_sockets, process_groups
from nbcomm.torch_internals.c10d import c10d
from nbcomm.torch_internals.gloo_sockets import GlooSockets

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""


@contextlib.contextmanager
def connected(listener: socket.socket | None = None) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """A listening socket of the user's own on 127.0.0.1, and both ends of a connection to it."""
    with contextlib.ExitStack() as stack:
        if listener is None:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        server = stack.enter_context(listener.accept()[0])
        for end in (client, server):
            end.settimeout(PATIENCE)
        yield listener, client, server


def works(one: socket.socket, other: socket.socket) -> bool:
    """Whether a byte goes through, both ways."""
    try:
        for sender, receiver in ((one, other), (other, one)):
            sender.sendall(b"x")
            if receiver.recv(1) != b"x":
                return False
    except OSError:
        return False
    return True


def where(one: socket.socket) -> str:
    """What another rank would tell that listens there."""
    host, port = one.getsockname()
    return f"{host} {port}"


def on_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do something on several threads at once, and return what each returned, or raised."""
    done: list[Any] = [None] * count

    def one(number: int) -> None:
        try:
            done[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - the test judges it
            done[number] = error

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return done


def made(sockets: list[GlooSockets], name: str = "g") -> list[Any]:
    """A gloo group whose members are threads of this process, each with the sockets of a process of its own."""
    store, size = dist.PrefixStore(name, dist.HashStore()), len(sockets)

    def join(rank: int) -> Any:
        return process_groups.new_inner(
            "gloo", store, rank, size, timedelta(seconds=PATIENCE), sockets[rank], name, list(range(size))
        )

    return on_threads(size, join)


def sums(groups: list[Any]) -> list[float]:
    """What an all_reduce of ones gives to each member."""

    def reduce(rank: int) -> float:
        ones = torch.ones(1)
        groups[rank].allreduce([ones]).wait()
        return ones.item()

    return on_threads(len(groups), reduce)


@contextlib.contextmanager
def waiting(group: Any) -> Iterator[Callable[[float], str]]:
    """A thread that waits for what nobody else does; yield a function that returns its error, if it comes in time."""
    failed: list[str] = []

    def wait() -> None:
        try:
            group.allreduce([torch.ones(2)]).wait()
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)

    def error(seconds: float) -> str:
        thread.join(seconds)
        return failed[0] if failed else ""

    thread.start()
    yield error
    thread.join(PATIENCE)
    assert failed


def freed(error: Callable[[float], str], sockets: GlooSockets) -> str:
    """Shut connections until a wait fails: it may begin after they were shut for the first time."""
    for _ in range(int(PATIENCE / 0.05)):
        sockets.shut_connections()
        if error(0.05):
            break
    return error(0.0)


# ── where a device listens ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("folder", ["/proc/self/fd", "/dev/fd"])
def test_a_device_is_found_where_one_can_connect_to_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on macOS: it has the second folder only, and no other address of its own than 127.0.0.1."""
    monkeypatch.setattr(gloo_sockets, "_FOLDERS", (Path("/nowhere"), Path(folder)))
    sockets = GlooSockets()
    host, port = sockets.address().split()
    assert host == "127.0.0.1"
    assert sockets.address() == f"{host} {port}", "there is one for all groups"
    assert not sockets.connections()
    deadline = time.monotonic() + PATIENCE
    with socket.create_connection((host, int(port))):
        while not sockets.connections() and time.monotonic() < deadline:  # until gloo has accepted it
            time.sleep(0.005)
        assert sockets.shut_connections() == 1


def test_the_backend_without_members_adds_no_thread_that_wakes_up() -> None:
    def loops() -> int:
        return sum("gloo_tcp_loop" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))

    before, sockets = loops(), [GlooSockets(), GlooSockets()]
    groups = made(sockets)
    assert loops() == before + 2
    assert [one.alone.size() for one in sockets] == [1, 1]
    assert loops() == before + 2
    assert sums(groups) == [2.0] * 2
    assert sockets[0].alone is sockets[0].alone


def test_devices_that_are_made_at_the_same_time_are_not_mistaken_for_each_other() -> None:
    together = threading.Barrier(8)
    several = [GlooSockets() for _ in range(4)]

    def make(number: int) -> str:
        together.wait(PATIENCE)
        return several[number // 2].address()

    told = on_threads(8, make)
    assert told[::2] == told[1::2]
    assert len(set(told)) == 4
    groups = made(several)
    assert sums(groups) == [4.0] * 4
    assert all(sockets.connections() for sockets in several)


def test_a_socket_that_another_thread_opens_meanwhile_is_not_taken_for_gloos(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, opened = dist.ProcessGroupGloo.create_device, contextlib.ExitStack()
    tried: list[str] = []

    def create(**where: Any) -> Any:
        tried.append(where["hostname"])
        if len(tried) < 4:
            opened.enter_context(connected())
        return plain(**where)

    monkeypatch.setattr(dist.ProcessGroupGloo, "create_device", create)
    with opened:
        sockets = GlooSockets()
        groups = made([sockets, GlooSockets()])
        assert tried == ["127.0.0.1"] * 5
        assert sums(groups) == [2.0, 2.0]
        assert sockets.connections()


def test_where_it_cannot_be_told_nothing_is_touched_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as opened:

        def create(**_: Any) -> None:
            for _ in range(2):
                opened.enter_context(connected())

        monkeypatch.setattr(dist.ProcessGroupGloo, "create_device", create)
        sockets = GlooSockets()
        assert sockets.address() == ""
        sockets.meet([where(opened.enter_context(connected())[0])])
        assert not sockets.connections()


@pytest.mark.parametrize("told", ["", b"", "?", "127.0.0.1", " 80", "a b", b"\xff 8\xff", "127.0.0.1 -1"])
def test_what_is_no_address_is_passed_over(told: str | bytes) -> None:
    sockets = GlooSockets()
    with connected() as (listener, _, __):
        sockets.meet([told, where(listener)])
        assert sockets._peers == {listener.getsockname()}


# ── which sockets are shut ──────────────────────────────────────────────────────────────────────────


def test_the_end_that_leads_to_a_rank_is_shut_and_nothing_else() -> None:
    sockets, before = GlooSockets(), set(os.listdir("/dev/fd"))  # noqa: PTH208 - their names
    with (
        connected() as (listener, client, server),
        connected() as (_, other, end),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.connect(listener.getsockname())
        sockets.meet([where(listener)])
        assert sockets.connections()
        assert sockets.shut_connections() == 1, "the other end is another process's"
        assert client.recv(1) == b"", "whoever waits is told"
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.recv(1)
        assert works(other, end)
        with connected(listener) as (_, again, accepted):
            assert works(again, accepted), "the listening socket is not touched"
    left = set(os.listdir("/dev/fd")) - before  # noqa: PTH208 - their names
    assert not left  # while a thread of an earlier test may close some


def test_whatever_else_the_process_has_open_is_not_touched() -> None:
    """A server and its clients, a user's own group and its store, and nbcomm's store are none of these groups'."""
    sockets = [GlooSockets(), GlooSockets()]
    tcp_store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), wait_for_workers=False)
    limit = timedelta(seconds=PATIENCE)
    clients = [dist.TCPStore("127.0.0.1", tcp_store.port, None, False, limit) for _ in range(2)]
    left, right = socket.socketpair()
    with connected() as (listener, one, other), left, right:
        users = on_threads(2, lambda rank: dist.ProcessGroupGloo(clients[rank], rank, 2, limit))
        groups = made(sockets)
        assert sums(groups) == [2.0, 2.0]
        with waiting(groups[0]) as error:
            assert "onnection" in freed(error, sockets[0])
        for each in sockets:
            each.shut_connections()
        assert works(one, other)
        assert works(left, right)
        with connected(listener) as (_, again, accepted):
            assert works(again, accepted)
        clients[1].set("key", "value")
        assert tcp_store.get("key") == b"value"
        assert sums(users) == [2.0, 2.0]


def test_a_default_timeout_of_the_users_makes_no_socket_return_at_once() -> None:
    with connected() as (_, one, other), connected() as (__, timed, ___):
        for end in (one, other):
            end.setblocking(True)
        socket.setdefaulttimeout(PATIENCE)
        try:
            sockets = GlooSockets()
            assert sockets.address()
            assert sockets.shut_connections() == 0
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(one.fileno())
        assert os.get_blocking(other.fileno())
        assert not os.get_blocking(timed.fileno())


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known", ["where it listens", "where its peer listens"])
def test_a_rank_that_waits_is_freed_whichever_end_of_the_connection_it_has(known: str) -> None:
    sockets = [GlooSockets(), GlooSockets()]
    groups = made(sockets)
    for each in sockets:
        assert each.connections()
        each.forget()
    (accepted,) = [each for each in sockets if each.connections()]
    if known == "where its peer listens":
        address, accepted = accepted.address(), GlooSockets()
        accepted.meet([address])
    with waiting(groups[0]) as error:
        assert "onnection" in freed(error, accepted)


def test_of_two_worlds_in_one_process_one_is_aborted() -> None:
    here, there = [GlooSockets(), GlooSockets()], [GlooSockets(), GlooSockets()]
    ours, theirs = made(here), made(there)
    with waiting(ours[1]) as error:
        assert "onnection" in freed(error, here[1])
    assert sums(theirs) == [2.0, 2.0]


def test_a_group_that_is_made_later_is_shut_with_the_others() -> None:
    sockets = [GlooSockets() for _ in range(3)]
    world = made(sockets)
    assert sums(world) == [3.0] * 3
    pair = made([sockets[0], sockets[2]], "pair")
    assert sums(pair) == [2.0, 2.0]
    with waiting(pair[1]) as error:
        assert "onnection" in freed(error, sockets[2])
    assert "onnection" in str(sums(world)[0])


def test_the_next_generation_knows_nothing_of_the_last_ones_ranks() -> None:
    """The port of a rank that is gone may be anybody's: a server, to which a cell of the next generation connects."""
    sockets = GlooSockets()
    with connected() as (listener, one, other):
        sockets.meet([where(listener)])
        sockets.forget()
        assert sockets.shut_connections() == 0
        assert works(one, other)


def test_groups_are_made_again_with_a_new_process_in_the_place_of_one_that_vanished() -> None:
    sockets = [GlooSockets(), GlooSockets()]
    world = made(sockets)
    gone = sockets[1].address()
    with waiting(world[0]) as error:  # as its process ends, so does its end of the connection
        del world[1]
        gc.collect()
        assert "onnection" in freed(error, sockets[0])
    sockets[0].forget()
    sockets[1] = GlooSockets()
    assert sockets[1].address() != gone
    again = made(sockets, "again")
    assert sums(again) == [2.0, 2.0]
    assert sockets[0]._peers == {(host, int(port)) for host, port in (each.address().split() for each in sockets)}
    with waiting(again[0]) as error:
        assert "onnection" in freed(error, sockets[0])


# ── torch's own groups ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("interface", ["lo", ""])
def test_a_wait_in_a_group_of_torchs_own_is_freed_too(interface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    store, sockets = dist.HashStore(), GlooSockets()

    def make(rank: int) -> Any:
        return c10d.ProcessGroupGloo(store, rank, 2, timeout=timedelta(seconds=PATIENCE))

    with sockets.following_torch():
        groups = on_threads(2, make)
    assert [type(group) for group in groups] == [dist.ProcessGroupGloo] * 2
    assert sums(groups) == [2.0, 2.0]
    assert sockets.connections()
    sockets.forget()
    assert sockets.connections(), "it listens for one of them"
    with waiting(groups[0]) as error:
        assert "onnection" in freed(error, sockets)


def test_a_process_that_tells_no_address_is_not_waited_for() -> None:
    """As one that is not nbcomm's, which a cell meets in a group of its own."""
    store, sockets = dist.HashStore(), GlooSockets()
    limit = timedelta(seconds=PATIENCE)
    with sockets.following_torch():
        kinds = [c10d.ProcessGroupGloo, dist.ProcessGroupGloo]
        groups = on_threads(2, lambda rank: kinds[rank](store, rank, 2, timeout=limit))
    assert sums(groups) == [2.0, 2.0]
    assert len(sockets._peers) == 1


def test_what_names_its_own_device_is_made_as_it_is_and_not_touched() -> None:
    sockets, store = GlooSockets(), dist.HashStore()
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    with sockets.following_torch():
        groups = on_threads(2, lambda rank: c10d.ProcessGroupGloo(store, rank, 2, options))
    assert sums(groups) == [2.0, 2.0]
    assert sockets.shut_connections() == 0
    assert sums(groups) == [2.0, 2.0]


def test_the_class_is_what_it_was_for_all_who_ask() -> None:
    plain = c10d.ProcessGroupGloo
    with GlooSockets().following_torch():
        stand_in = c10d.ProcessGroupGloo
        alone = stand_in(dist.HashStore(), 0, 1, timeout=timedelta(seconds=PATIENCE))
        assert isinstance(alone, stand_in)
        assert not isinstance(dist.HashStore(), stand_in)
        assert issubclass(plain, stand_in)
        assert stand_in.create_device is plain.create_device

        class Own(stand_in):  # type: ignore[misc, valid-type]
            """Somebody's own."""

        assert Own.__mro__[1] is plain
    assert c10d.ProcessGroupGloo is plain


@pytest.mark.parametrize("name", ["create_device", "_Options"])
def test_a_torch_that_makes_no_devices_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = c10d.ProcessGroupGloo
    monkeypatch.delattr(plain, name)
    with GlooSockets().following_torch():
        assert c10d.ProcessGroupGloo is plain
