"""The client of the store: torch's laws, at a Unix socket and at the listener of another node."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from nbcomm.node import store as server_module
from nbcomm.node.store import Store
from nbcomm.rank.groups.rendezvous import StoreClient, stand_in
from nbcomm.rank.groups.store_ways import UnixWay
from nbcomm.torch_internals import process_groups
from nbcomm.torch_internals.gloo_sockets import GlooSockets

from ...laws import examples
from ...node.loops import ServedStore
from ...node.nodes import ServedNode
from ..descriptors import descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sock"


def client_of(path: Path, timeout: float = 30.0) -> StoreClient:
    return StoreClient(UnixWay(path), timeout)


@pytest.fixture(params=["here", "on another node"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[StoreClient]:
    """A client on the store's node, or on another one."""
    if request.param == "here":
        server = ServedStore(path)
        client = client_of(path)
    else:
        server = ServedNode()
        server.serve(1, ranks=[1])
        client = StoreClient(server.way(1, 1), 30.0)
    yield client
    client.close()
    server.close()


def test_it_does_what_torchs_own_store_does(store: StoreClient) -> None:
    model = dist.HashStore()
    for one in (store, model):
        one.set("key", "value")
        one.set("bytes", "\x00")
        one.append("log", "a")
        one.append("log", "b")
        one.compare_set("fresh", "", "first")
        one.compare_set("fresh", "wrong", "second")
        one.compare_set("fresh", "first", "third")
    assert [store.add("count", step) for step in (1, 5, -2)] == [model.add("count", step) for step in (1, 5, -2)]
    for key in ("key", "bytes", "log", "fresh", "count"):
        assert bytes(store.get(key)) == bytes(model.get(key)), key
    assert store.compare_set("absent", "expected", "desired") == b"expected"
    assert store.check(["key", "log"])
    assert not store.check(["key", "absent"])
    assert store.num_keys() == 5
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert store.multi_get(["log", "count"]) == [b"ab", b"4"]
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.get("b") == b"2"


_KEYS = st.sampled_from(["a", "b", "c"])
_VALUES = st.sampled_from(["", "1", "22", "\x00ü"])
_STEPS = st.one_of(
    st.tuples(st.just("set"), _KEYS, _VALUES),
    st.tuples(st.just("append"), _KEYS, _VALUES),
    st.tuples(st.just("add"), st.sampled_from(["n", "m"]), st.integers(-5, 5)),
    st.tuples(st.just("compare_set"), _KEYS, _VALUES, _VALUES),
    st.tuples(st.just("check"), st.lists(_KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("delete_key"), _KEYS),
    st.tuples(st.just("num_keys")),
)


@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_STEPS, max_size=20))
def test_every_answer_is_torchs_own(store: StoreClient, steps: list[tuple[Any, ...]]) -> None:
    model = dist.HashStore()
    for key in ("a", "b", "c", "n", "m"):
        store.delete_key(key)
    for verb, *arguments in steps:
        ours, theirs = (getattr(one, verb)(*arguments) for one in (store, model))
        assert ours == theirs, (verb, arguments)
    there = [key for key in ("a", "b", "c", "n", "m") if model.check([key])]
    assert store.multi_get(there) == [bytes(value) for value in model.multi_get(there)]


def test_waiting_ends_when_the_key_is_there(store: StoreClient) -> None:
    got: list[bytes] = []
    waiter = threading.Thread(target=lambda: got.append(store.get("late")))
    waiter.start()
    store.set("late", "now")
    waiter.join(30)
    assert got == [b"now"]


def test_waiting_for_what_does_not_come_names_it(store: StoreClient) -> None:
    with pytest.raises(dist.DistStoreError, match="never"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match="never"):
        store.get("never")


class LooksAt(set[str]):
    """The keys that a client lacks, which count how often one of them is looked at."""

    looks: ClassVar[list[str]] = []

    def discard(self, key: str) -> None:
        self.looks.append(key)
        super().discard(key)


def test_a_change_of_a_key_costs_those_who_wait_for_it_one_look_and_the_others_none(
    store: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, clients, looks = server_module._Waiting, 8, list[str]()
    came = threading.Semaphore(0)

    def waiting(lacks: set[str]) -> Any:
        made = plain(LooksAt(lacks))
        came.release()
        return made

    monkeypatch.setattr(server_module, "_Waiting", waiting)
    monkeypatch.setattr(LooksAt, "looks", looks)
    keys, got = [f"key {number}" for number in range(32)], list[list[bytes]]()
    store.set(keys[0], b"0")
    threads = [threading.Thread(target=lambda: got.append(store.multi_get(keys))) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert came.acquire(timeout=30)
    store.set(keys[0], b"again")
    for number in range(100):
        store.set(f"other {number}", b"")
        store.add("count", 1)
    assert looks == []
    for key in keys[1:]:
        store.append(key, key)
        store.set(key, key)
    for thread in threads:
        thread.join(30)
    assert got == [[b"again", *(key.encode() for key in keys[1:])]] * clients
    assert Counter(looks) == dict.fromkeys(keys[1:], clients)


def test_a_wait_is_over_when_all_keys_are_there_at_once(path: Path) -> None:
    server, client, got = ServedStore(path), client_of(path, 30.0), list[list[bytes]]()

    def lacking() -> set[str]:
        return set(server.call(lambda: set(server.store._waiting)))

    thread = threading.Thread(target=lambda: got.append(client.multi_get(["a", "b", "c"])))
    thread.start()
    deadline = time.monotonic() + 30
    for key, value, then in (("a", b"1", {"b", "c"}), ("b", b"2", {"c"})):
        while key not in lacking() and time.monotonic() < deadline:
            time.sleep(0.001)
        client.set(key, value)
        assert lacking() == then
    client.delete_key("a")
    client.compare_set("c", "", "3")
    while lacking() != {"a"} and time.monotonic() < deadline:  # it has looked again
        time.sleep(0.001)
    assert not got
    client.multi_set(["b", "a"], ["4", "5"])
    thread.join(30)
    assert got == [[b"5", b"4", b"3"]]
    assert lacking() == set()
    client.close()
    server.close()


def test_who_has_waited_in_vain_is_forgotten(path: Path) -> None:
    server, client = ServedStore(path), client_of(path, 30.0)
    client.set("there", b"")
    for _ in range(3):
        with pytest.raises(dist.DistStoreError, match="never"):
            client.wait(["there", "never", "nor this"], timedelta(seconds=0.01))
    assert not server.call(lambda: server.store._waiting)
    client.close()
    server.close()


def test_many_threads_count_together(store: StoreClient) -> None:
    threads = [threading.Thread(target=lambda: [store.add("n", 1) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.add("n", 0) == 400


class StoreThatSaysWhenItWaits(Store):
    """A server that tells when a client has come to wait for a key."""

    def __init__(self) -> None:
        self.waited_for = threading.Event()
        super().__init__()

    def _settle(self, *args: Any) -> None:
        super()._settle(*args)
        self.waited_for.set()


class StoreThatCounts(Store):
    """A store that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__()

    def ask(self, request: Any, *args: Any) -> None:
        self.asked.append(request[0])
        super().ask(request, *args)


@pytest.mark.parametrize("size", [2, 16])
def test_each_rank_asks_for_few_things_while_a_group_forms(
    path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_ENABLE_STORE_V2_API", "1")  # as on a rank, see `World._become`
    server, limit, made = ServedStore(path, StoreThatCounts()), timedelta(seconds=60), dict[int, Any]()
    stores = [client_of(path, limit.total_seconds()) for _ in range(size)]

    def form(rank: int) -> None:
        part = process_groups.part_of(stores[rank], "life")
        ranks = list(range(size))
        made[rank] = process_groups.new_inner("gloo", part, rank, size, limit, GlooSockets(), "g", ranks)

    threads = [threading.Thread(target=form, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made.keys() == set(range(size))
    # Each says that it is here and where it listens, and hears all others, once to meet, once for gloo.
    assert Counter(server.store.asked) == {"set": 2 * size, "wait": 2 * size}
    server.close()


def test_a_group_with_a_limit_of_its_own_keeps_to_it_while_it_forms(store: StoreClient) -> None:
    with pytest.raises(dist.DistStoreError, match=r"here/1.* 0\.05 s"):
        process_groups.new_inner("gloo", store, 0, 2, timedelta(seconds=0.05), GlooSockets(), "g", [0, 1])


def test_who_waits_is_told_when_the_server_closes(path: Path) -> None:
    server, failed = ServedStore(path, StoreThatSaysWhenItWaits()), threading.Event()
    client = client_of(path, 600.0)

    def wait() -> None:
        try:
            client.get("never")
        except dist.DistNetworkError:
            failed.set()

    threading.Thread(target=wait).start()
    assert server.store.waited_for.wait(30)
    server.close()
    assert failed.wait(30)


def test_a_server_may_come_after_its_clients(path: Path) -> None:
    set_there = threading.Thread(target=lambda: client_of(path, 30.0).set("early", "bird"))
    set_there.start()
    server = ServedStore(path)
    set_there.join(30)
    assert client_of(path, 30.0).get("early") == b"bird"
    server.close()


def test_a_server_that_never_comes_is_not_awaited_for_ever(path: Path) -> None:
    with pytest.raises(dist.DistStoreError, match="No store started"):
        client_of(path, 0.05).set("key", "value")


def _sockets() -> int:
    return sum(one.startswith("socket") for one in descriptors())


def test_a_server_that_has_ended_refuses_and_leaves_no_descriptor(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # its file outlives it
    client, before = client_of(path, 30.0), _sockets()
    for _ in range(3):
        with pytest.raises(dist.DistNetworkError, match=r"is gone: .*refused"):
            client.set("key", "value")
    assert _sockets() <= before  # of another test some may end meanwhile


_SERVES = """
import sys
from pathlib import Path
import select
from nbcomm.node.store import Store, StoreServer

store = Store()
server = StoreServer(Path(sys.argv[1]), store)
print(flush=True)
while True:
    select.select([server], [], [])
    server.serve()
"""


@pytest.fixture
def serving(path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Let a process serve the store, as a node's daemon does, which may be killed."""
    with ExitStack() as ends:

        def serve() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", _SERVES, str(path)]
            made = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            ends.callback(made.kill)
            assert made.stdout is not None
            assert made.stdout.readline() == b"\n"
            return made

        yield serve


def test_what_begins_after_the_servers_end_meets_at_the_next_one(
    path: Path, serving: Callable[[], subprocess.Popen[bytes]]
) -> None:
    first = serving()
    client, before = client_of(path, 30.0), _sockets()
    client.set("key", "value")
    client.settle(meets=True)
    assert client.check(["key"])
    first.kill()
    first.wait(30)
    with pytest.raises(dist.DistNetworkError, match="is gone"):
        client.set("key", "value")
    with pytest.raises(dist.DistNetworkError, match="is gone"):
        client.set("key", "value")
    client.settle(meets=True)
    waiting = threading.Thread(target=lambda: client.set("new", "value"))
    waiting.start()  # none serves there yet
    serving()
    waiting.join(30)
    assert client.check(["new"])
    assert not client.check(["key"])
    client.close()
    assert _sockets() <= before


def test_what_has_begun_does_not_go_on_in_another_store(
    path: Path, serving: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """It would wait there for what others have said elsewhere."""
    first = serving()
    client, late = client_of(path, 30.0), client_of(path, 30.0)
    late.settle(meets=True)
    client.set("here/0", "")
    client.close()  # no connection is left that could tell
    first.kill()
    first.wait(30)
    serving()
    with pytest.raises(dist.DistNetworkError, match="is gone: another store is there now"):
        client.get("here/1")
    late.set("here/1", "")
    client.settle(meets=True)
    assert client.get("here/1") == b""
    for one in (client, late):
        one.close()


@pytest.mark.parametrize("meets", [True, False])
def test_only_what_meets_says_its_first_word_again_to_the_next_server(
    path: Path, serving: Callable[[], subprocess.Popen[bytes]], meets: bool
) -> None:
    """What one rank says and another waits for may have been said to the last server: nobody would say it again."""
    first = serving()
    client = client_of(path, 30.0)
    client.set("key", "value")
    client.settle(meets=meets)
    first.kill()
    first.wait(30)
    serving()
    if meets:
        client.set("here/0", "")
        assert client.check(["here/0"])
    else:
        with pytest.raises(dist.DistNetworkError, match="is gone"):
            client.get("id")
    client.close()


def test_a_server_that_nobody_replaces_is_not_awaited_for_ever(
    path: Path, serving: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serving()
    client = client_of(path, 600.0)
    client.set("key", "value")
    first.kill()
    first.wait(30)
    client.settle(meets=True)
    monkeypatch.setattr("nbcomm.rank.groups.rendezvous._REPLACED", 0.05)
    with pytest.raises(dist.DistNetworkError, match=r"is gone: .*refused"):
        client.set("key", "value")


def test_what_asks_a_server_that_is_let_go_never_asks_the_next_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServedStore(path.with_name("next.sock"))
    client, before, looked, failed = client_of(path, 30.0), _sockets(), threading.Event(), threading.Event()
    retargeted = threading.Event()

    def sleep(_: float) -> None:
        looked.set()
        assert retargeted.wait(30)

    def ask() -> None:
        try:
            client.set("late", "bird")
        except dist.DistNetworkError:
            failed.set()

    monkeypatch.setattr("nbcomm.rank.groups.rendezvous.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    thread = threading.Thread(target=ask)
    thread.start()
    assert looked.wait(30)
    client.retarget(UnixWay(path.with_name("next.sock")))
    retargeted.set()
    thread.join(30)
    assert failed.is_set()
    assert _sockets() <= before  # of another test some may end meanwhile
    assert not client.check(["late"])
    client.close()
    server.close()


def test_a_tcp_store_at_torchruns_place_is_ours_and_any_other_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "4711")
    ours = dist.HashStore()
    found: list[dist.Store | None] = [ours, ours, None]
    undo = stand_in(lambda: found.pop(0))
    try:
        assert dist.TCPStore("127.0.0.1", 4711, 2, is_master=False) is ours
        assert dist.TCPStore(host_name="localhost", port=4711) is ours
        for there in (4711, 0):  # there is no world; and another place
            own = dist.TCPStore("127.0.0.1", there or 0, is_master=True, wait_for_workers=False)
            assert isinstance(own, dist.TCPStore)
            assert not isinstance(ours, dist.TCPStore)
        assert not found

        class Users(dist.TCPStore):  # type: ignore[misc,valid-type]
            pass

        assert issubclass(Users, dist.TCPStore)
    finally:
        undo()
    assert isinstance(dist.TCPStore, type)
