"""The groups of a rank are aborted and formed anew, over and over, under whatever holds them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from nbcomm.errors import HangError
from nbcomm.node.store import Store
from nbcomm.protocol import FormGroups
from nbcomm.rank.groups import selftest

from ... import worlds as ranks
from ...worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`
from ..descriptors import descriptors

KINDS = ("all_reduce", "object", "backward", "forward", "recv", "anyone", "async", "new_group", "made", "dtensor")


def _no_more(found, before):
    """Whether these are no more threads, and no more descriptors."""
    return found[0] <= before[0] and sum(found[1].values()) <= sum(before[1].values())


def _rounds(comm, folder, kinds, rounds):  # noqa: C901, PLR0915 - one story, told in order
    """Hang in every kind in turn, abort, form again, use everything; return what the process held at the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    here, size, last = ranks.here, comm.world_size, comm.world_size - 1
    some, mesh = comm.new_group([0, 1]), init_device_mesh("cpu", (size,))
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    fsdp = fully_shard(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), mesh=mesh)
    spread = distribute_tensor(torch.arange(2.0 * size).reshape(size, 2), mesh, [Shard(0)])

    def train():
        ddp.zero_grad()  # an aborted backward may have left its own
        fsdp.zero_grad()
        ddp(torch.ones(1, 4) * (comm.rank + 1)).sum().backward()
        fsdp(torch.ones(1, 4)).sum().backward()

    hangs = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "object": lambda: dist.all_gather_object([None] * size, 1),
        "backward": lambda: ddp(torch.ones(1, 4)).sum().backward(),
        "forward": lambda: fsdp(torch.ones(1, 4)),
        "recv": lambda: dist.recv(torch.ones(1), last),
        "anyone": lambda: dist.recv(torch.ones(1)),
        "async": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        "new_group": lambda: dist.new_group(list(range(size))),
        "made": lambda: DistributedDataParallel(torch.nn.Linear(2, 2)),
        "dtensor": lambda: spread.redistribute(placements=[Replicate()]).to_local().sum(),
    }

    def everything_works():
        assert comm.all_reduce(1) == size
        if comm.rank < 2:
            assert comm.all_reduce(1, group=some) == 2
        train()
        grads = comm.all_gather(ddp.module.weight.grad)
        assert all(torch.equal(grad, grads[0]) for grad in grads)
        assert spread.redistribute(placements=[Replicate()]).to_local().sum() == sum(range(2 * size))

    def abort_when_stuck(generation):
        deadline = time.monotonic() + 20
        while not (over or here.stuck.state().waits) and time.monotonic() < deadline:
            time.sleep(0.01)
        here.abort(generation, HangError("stuck"))
        here.free_again()

    def meet(where):
        Path(folder, f"{where}-{comm.rank}").touch()
        while len(list(Path(folder).glob(f"{where}-*"))) < size:
            time.sleep(0.005)

    def holds():
        """Threads and descriptors, once all has ended that ends: one that was joined is the system's for a while."""
        deadline = time.monotonic() + 5
        while True:
            found = len(list(Path("/proc/self/task").iterdir())), dict(Counter(descriptors()))
            if not held or _no_more(found, held[0]) or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    over: list[bool] = []
    everything_works()
    held, seen = [], set()
    for number in range(rounds):
        kind = kinds[number % len(kinds)]
        here.begin(number, None)
        generation = here.generation
        over.clear()
        watcher = threading.Thread(target=abort_when_stuck, args=(generation,))
        if comm.rank != last:
            watcher.start()
            try:
                hangs[kind]()
            except RuntimeError as error:
                seen.add(type(error).__name__)
                over.append(True)  # another rank's abort has cut it off already
            else:
                raise AssertionError(f"{kind} did not fail")
            watcher.join()
        meet(f"aborted{number}")  # who skips must not free the others first
        here.form(ranks.form_order(comm.rank, size, folder, generation + 1))
        assert comm.all_reduce(1) == size
        if kind in ("backward", "forward") or number < len(kinds):
            everything_works()
        if (number + 1) % len(kinds) == 0:
            held.append(holds())
            meet(f"counted{number}")  # the next round's abort takes connections from ranks that still count
    shared = sorted(page.name for page in Path(folder, "board").iterdir())
    return held, seen, shared


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("size", "rounds"), [(2, 50), *(pytest.param(size, 50, marks=pytest.mark.nightly) for size in (4, 8))]
)
def test_fifty_rounds_of_hang_abort_and_forming_again_leak_nothing(worlds, size, rounds):
    world = worlds[size]
    kinds = KINDS if size < 8 else ("all_reduce", "recv", "async", "anyone", "new_group")
    for held, seen, shared in world.run(_rounds, world.folder, kinds, rounds, deadline=360.0):
        assert seen <= {"HangError", "RuntimeError"}  # nobody is there to tell the reason to a rank that was cut off
        (threads, descriptors), *_, (threads_then, descriptors_then) = held
        assert threads_then <= threads, f"threads: {held}"
        assert sum(descriptors_then.values()) <= sum(descriptors.values()), f"descriptors: {held}"
        assert shared == sorted(f"board{rank}" for rank in range(size))
    world.close()


def test_a_thread_that_is_ended_while_it_leaves_an_answer_is_apart_no_more(worlds):
    def check(comm):
        here, left = ranks.here, []

        def ended_too_soon():
            left.append(here.apart())  # kept, or its end would leave
            left[0].__enter__()

        def reduce_with(ident):
            if threading.get_ident() == ident:
                found.append(comm.all_reduce(1))

        thread = threading.Thread(target=ended_too_soon)
        thread.start()
        thread.join()
        found: list[int] = []
        deadline = time.monotonic() + 20
        while not found and time.monotonic() < deadline:  # until a thread is given its ident
            other = threading.Thread(target=reduce_with, args=(thread.ident,))
            other.start()
            other.join()
        here.begin(0, None)
        return found, here.alert

    assert worlds[2].run(check) == [([2], False)] * 2


def test_a_forming_that_waits_for_what_is_under_way_holds_nobody_who_aborts(worlds):
    def check(comm, folder):
        from nbcomm.rank.groups import world as module

        here, noted, begun, go = ranks.here, [], threading.Event(), threading.Event()
        generation = here.generation

        def slow():
            begun.set()
            go.wait(40)

        def abort():
            deadline = time.monotonic() + 30
            while here.broken is None and time.monotonic() < deadline:
                time.sleep(0.005)
            here.abort(generation, HangError("late"))
            here.abort(generation + 1, HangError("early"))
            here.free_again()
            noted.append((handle.done(), here.generation == generation))
            go.set()

        usual, module.PATIENCE = module.PATIENCE, 20.0
        handle = comm.lanes.begin("slow", slow, issues=False)
        assert begun.wait(30)  # what has not begun is refused, and not waited for
        daemon = threading.Thread(target=abort)
        daemon.start()
        try:
            here.form(ranks.form_order(comm.rank, 2, folder, generation + 1))
        finally:
            module.PATIENCE = usual
        daemon.join()
        return noted, comm.all_reduce(1)

    world = worlds[2]
    assert world.run(check, world.folder) == [([(False, True)], 2)] * 2


def test_an_abort_of_an_older_generation_does_nothing(worlds):
    def check(comm):
        ranks.here.abort(ranks.here.generation - 1, HangError("late"))
        return ranks.here.broken, comm.all_reduce(1)

    assert worlds[2].run(check) == [(None, 2)] * 2


def test_a_group_with_a_dead_member_says_so_and_others_work(worlds):
    world = worlds[3]

    def make(comm):
        comm.pair = comm.new_group([0, 1])

    # As between cells: nobody forms groups anew while another rank still makes one.
    world.run(make)

    def check(comm, folder):
        if comm.rank == 2:
            return None
        here = ranks.here
        here.form(ranks.form_order(comm.rank, 3, folder, here.generation + 1, absent=(2,)))
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return str(error), comm.all_reduce(1, group=comm.pair)

    text, total = world.run(check, world.folder)[0]
    assert "rank 2" in text
    assert "%distributed heal" in text
    assert total == 2
    world.close()


def test_an_abort_touches_no_socket_of_the_users(worlds):
    """Each rank has a server on 127.0.0.1, as its gloo has, and is a client of its own and of the others'."""

    def check(comm, folder):
        here, ends = ranks.here, []
        server = socket.create_server(("127.0.0.1", 0))
        ports = comm.all_gather(server.getsockname()[1], mode="list")
        clients = [socket.create_connection(("127.0.0.1", port), 30) for port in ports]
        ends = [server.accept()[0] for _ in ports]
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        own = dist.ProcessGroupGloo(dist.TCPStore("127.0.0.1", store.port), 0, 1)
        generation = here.generation
        timer = threading.Timer(0.2, here.abort, (generation, HangError("stuck")))
        timer.start()
        if comm.rank:
            with pytest.raises(RuntimeError, match=r"stuck|onnection"):
                dist.all_reduce(torch.ones(1))
        timer.join()
        here.form(ranks.form_order(comm.rank, comm.world_size, folder, generation + 1))
        for client in clients:
            client.sendall(b"x")
        heard = b"".join(end.recv(1) for end in ends)
        for end in ends:
            end.sendall(b"y")
        heard += b"".join(client.recv(1) for client in clients)
        store.set("key", "value")
        own.barrier().wait()
        for end in (*clients, *ends, server):
            end.close()
        return heard, store.get("key"), comm.all_reduce(1)

    world = worlds[3]
    assert world.run(check, world.folder) == [(b"xxxyyy", b"value", 3)] * 3


def test_a_message_and_a_group_may_come_later_than_connections(worlds):
    """What gloo is given to connect is also its limit for messages, unless we say otherwise."""

    def check(comm):
        from nbcomm.torch_internals import process_groups

        process_groups._CONNECT = 5.0  # of which a busy machine needs some
        longer = process_groups._CONNECT + comm.world_size / 8 + 0.25
        if comm.rank:
            time.sleep(longer)
        pair = dist.new_group([0, 1])
        got = torch.zeros(1)
        if comm.rank:
            time.sleep(longer)
            dist.send(torch.ones(1), 0, group=pair)
            dist.send(torch.ones(1), 0, group=pair)
        else:
            dist.recv(got, 1, group=pair)
            work = dist.irecv(got, 1, group=pair)
            thread = threading.Thread(target=work.wait)
            thread.start()
            thread.join()
        if comm.rank:
            time.sleep(longer)
        dist.all_reduce(got, group=pair)
        return got.item()

    world = worlds[2]
    assert world.run(check) == [1.0, 1.0]
    world.close()


def test_a_rank_that_is_slow_to_look_at_its_new_groups_is_not_misled_by_others_that_form_anew(worlds):
    def check(comm):
        here, reduce_world = ranks.here, selftest.reduce_world

        def and_all_others_form_anew(*args):
            reduce_world(*args)
            here.gloo.shut_connections()
            while here.gloo.connections():  # gloo closes them
                time.sleep(0.001)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selftest, "reduce_world", and_all_others_form_anew)
            here._test(FormGroups(0, here.place, here.generation, "127.0.0.1", 1, 60.0))
        return "good"

    world = worlds[2]
    assert world.run(check) == ["good", "good"]
    world.close()


@pytest.mark.parametrize("size", [2, 8])
def test_what_forming_again_asks_of_the_store_grows_with_the_ranks_and_not_with_their_square(worlds, size):
    def check(comm, folder):
        asked = []

        class Counting(Store):
            def ask(self, request, *args):
                asked.append(request[0])
                super().ask(request, *args)

        served = ranks.ServedStore
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranks, "ServedStore", lambda path: served(path, Counting()))
            here = ranks.here
            here.form(ranks.form_order(comm.rank, size, folder, here.generation + 1))
        return comm.all_reduce(1), len(asked)

    world = worlds[size]
    found = world.run(check, world.folder)
    assert [total for total, _ in found] == [size] * size
    # Twice each, to say and to hear: which groups there are, who is here, and where gloo listens.
    assert [count for _, count in found] == [6 * size, *[0] * (size - 1)]


def test_a_call_that_gloo_has_forgotten_is_left_behind(worlds):
    """As happens once in thousands of aborts; here gloo is not told of any."""

    def check(comm, folder):
        here, told = ranks.here, "nothing"
        shut, here.gloo.shut_connections = here.gloo.shut_connections, lambda: 0
        generation, began = here.generation, time.monotonic()
        if comm.rank == 0:
            here.begin(1, None)
            timer = threading.Timer(0.2, here.abort, (generation, HangError("stuck")))
            timer.start()
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError as error:
                told = f"{type(error).__name__}: {error}"
            timer.join()
            Path(folder, "left").touch()
        while not Path(folder, "left").exists():
            time.sleep(0.005)
        here.form(ranks.form_order(comm.rank, 2, folder, generation + 1))
        here.gloo.shut_connections = shut
        return told, time.monotonic() - began, comm.all_reduce(1)

    world = worlds[2]
    (told, seconds, total), (_, _, other) = world.run(check, world.folder)
    assert told == "HangError: stuck"
    assert seconds < 30
    assert total == other == 2
    world.close()


def test_groups_of_torchs_own_are_aborted_and_made_again():
    world = ranks.World(2, plain="they are to be")

    def check(comm, folder, some):
        here, told, aborted = ranks.here, "HangError", Path(folder, f"aborted{some}")
        assert here.plain == "they are to be"
        generation, group = here.generation, dist.new_group([0, 1]) if some else None
        if comm.rank == 0:
            threading.Timer(0.3, here.abort, (generation, HangError("stuck"))).start()
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError as error:
                told = type(here.explain(error)).__name__
            aborted.touch()
        while not aborted.exists():
            time.sleep(0.005)
        here.form(ranks.form_order(comm.rank, 2, folder, generation + 1))
        return told, comm.all_reduce(1)

    def check_another(comm, folder, anew):
        here = ranks.here
        dist.destroy_process_group()
        if anew:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        told = here.stale, here.replaced
        here.form(ranks.form_order(comm.rank, 2, folder, here.generation + 1))
        return told, comm.all_reduce(1), here.stale

    try:
        for some in (False, True):
            assert world.run(check, world.folder, some) == [("HangError", 2)] * 2
        for anew in (False, True):
            assert world.run(check_another, world.folder, anew) == [((True, anew), 2, False)] * 2
    finally:
        world.close()


def _in_child(calls):
    """Say what each call raises in the child of a fork, in which none may wait for ever."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of each fork beside threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(15)
            for name, call in calls.items():
                try:
                    told = call()
                except Exception as error:  # noqa: BLE001 - the parent judges it
                    told = f"{type(error).__name__}: {error}"
                os.write(write, f"{name}: {told}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read().splitlines()
    os.waitpid(child, 0)
    return told


FORKED = "CollectiveError: This process was forked from rank {} and is not a rank itself, so no other rank takes part"


def test_a_child_that_is_forked_while_another_thread_has_the_lanes_lock_is_refused_and_does_not_hang(worlds):
    def check(comm):
        taken, let_go = threading.Lock(), threading.Lock()
        taken.acquire()
        let_go.acquire()

        def hold():
            with comm.lanes.lock:
                taken.release()
                let_go.acquire(timeout=30)

        holder = threading.Thread(target=hold)
        holder.start()
        assert taken.acquire(timeout=30)
        told = _in_child({"async": lambda: comm.all_reduce(1, async_op=True).wait(10)})
        let_go.release()
        holder.join()
        return told, comm.all_reduce(1, async_op=True).wait(30)

    for rank, ((told,), total) in enumerate(worlds[2].run(check)):
        assert told.startswith(f"async: {FORKED.format(rank)}")
        assert total == 2


def test_a_child_is_refused_before_torch_makes_a_tensor_for_it_whose_locks_nobody_may_let_go(worlds):
    def check(comm):
        class Dispatched(TorchDispatchMode):
            def __torch_dispatch__(self, *_):
                os._exit(1)  # as good as a hang: nothing more is said

        def watched(call):
            def do():
                with Dispatched():
                    return call()

            return do

        group = dist.new_group([0, 1])
        comm.all_reduce(1), comm.all_reduce(1, group=group)
        calls = {
            "world": lambda: comm.all_reduce([1]),
            "group": lambda: comm.all_reduce([1], group=group),
            "async": lambda: comm.broadcast("x", async_op=True),
            "send": lambda: comm.send("x", 1 - comm.rank),
            "barrier": comm.barrier,
        }
        return _in_child({name: watched(call) for name, call in calls.items()})

    for rank, told in enumerate(worlds[2].run(check)):
        assert [line.partition(": ")[0] for line in told] == ["world", "group", "async", "send", "barrier"]
        assert all(line.partition(": ")[2].startswith(FORKED.format(rank)) for line in told), told


def test_a_child_may_make_its_own_world_where_that_of_its_rank_is_of_torchs_own_groups():
    world = ranks.World(2, plain="they are to be")

    def check(comm):
        def form():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            total = torch.ones(1)
            dist.all_reduce(total, group=dist.new_group([0]))
            return total.item()

        calls = {"before": dist.get_world_size, "own": form, "twice": form, "end": dist.destroy_process_group}
        return _in_child(calls), comm.all_reduce(1)

    try:
        for told, total in world.run(check):
            assert told[:2] == ["before: 2", "own: 1.0"]
            assert "twice" in told[2].partition(": ")[2]
            assert told[3:] == ["end: None"]
            assert total == 2
    finally:
        world.close()


def test_what_was_under_way_at_a_fork_is_the_parents_and_the_child_waits_for_none_of_it(worlds):
    def check(comm, folder):
        here, there = (Path(folder, f"forked-{rank}") for rank in (comm.rank, 1 - comm.rank))
        told: list[str] = []
        if comm.rank == 0:
            under_way, queued = (comm.all_reduce(number, async_op=True) for number in (1, 2))
            told = _in_child(
                {
                    "under way": lambda: under_way.wait(5),
                    "queued": lambda: queued.wait(5),
                    "ended": lambda: (under_way.done(), queued.done()),
                    "now": lambda: comm.all_reduce(1),
                    "anew": lambda: comm.all_reduce(1, async_op=True).wait(5),
                }
            )
            here.touch()
            return told, (under_way.wait(30), queued.wait(30))
        while not there.exists():  # until then the other one's cannot end
            time.sleep(0.005)
        return told, (comm.all_reduce(1), comm.all_reduce(2))

    world = worlds[2]
    (told, sums), (_, others) = world.run(check, world.folder)
    assert sums == others == (2, 4)
    assert [line.partition(": ")[0] for line in told] == ["under way", "queued", "ended", "now", "anew"]
    assert told.pop(2) == "ended: (True, True)"
    assert all(line.partition(": ")[2].startswith(FORKED.format(0)) for line in told), told
