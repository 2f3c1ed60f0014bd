"""What goes on beside the cell: handles, their order, and what becomes of them when groups are formed anew."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nbcomm.comm.transport.async_lanes import AsyncLanes
from nbcomm.errors import CollectiveError

from ...worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`

BIG = 300_000


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_collective_may_be_begun_and_waited_for(worlds, size):
    def check(comm):
        w, r = comm.world_size, comm.rank
        x = torch.arange(float(w * 2)) + r
        begun = {
            "barrier": comm.barrier("b", async_op=True),
            "broadcast": comm.broadcast({"from": r}, w - 1, async_op=True),
            "scatter": comm.scatter(list(range(w)), async_op=True),
            "gather": comm.gather(r, async_op=True),
            "all_gather": comm.all_gather(x, async_op=True),
            "reduce": comm.reduce(x, async_op=True),
            "all_reduce": comm.all_reduce({"x": x, "n": 1}, async_op=True),
            "reduce_scatter": comm.reduce_scatter(x, async_op=True),
            "all_to_all": comm.all_to_all([(r, other) for other in range(w)], async_op=True),
            "scan": comm.scan(1, async_op=True),
        }
        got = {name: handle.result() for name, handle in begun.items()}
        assert all(handle.done() for handle in begun.values())
        now = {
            "barrier": comm.barrier("b"),
            "broadcast": comm.broadcast({"from": r}, w - 1),
            "scatter": comm.scatter(list(range(w))),
            "gather": comm.gather(r),
            "all_gather": comm.all_gather(x),
            "reduce": comm.reduce(x),
            "all_reduce": comm.all_reduce({"x": x, "n": 1}),
            "reduce_scatter": comm.reduce_scatter(x),
            "all_to_all": comm.all_to_all([(r, other) for other in range(w)]),
            "scan": comm.scan(1),
        }
        return str(got) == str(now), got["broadcast"], got["scan"]

    assert worlds[size].run(check) == [(True, {"from": size - 1}, rank + 1) for rank in range(size)]


def test_what_is_begun_goes_on_by_itself(worlds):
    def check(comm):
        begun = comm.all_gather({"rank": comm.rank, "x": torch.ones(BIG)}, async_op=True)  # several rounds
        until = time.monotonic() + 10
        while not begun.done() and time.monotonic() < until:  # nobody calls wait
            time.sleep(0.001)
        return begun.done(), begun.wait()["rank"], threading.active_count()

    results = worlds[3].run(check)
    assert [result[:2] for result in results] == [(True, [0, 1, 2])] * 3


def test_calls_of_one_group_keep_their_order_however_they_are_made(worlds):
    def check(comm, seed):
        plan, delay = random.Random(seed), random.Random(seed * 10 + comm.rank)  # noqa: S311  # no secrets
        handles, found = [], []
        for step in range(60):
            value = torch.full((plan.choice([1, 500, BIG]),), float(step * (comm.rank + 1)))
            way = plan.choice(["beside", "now", "raw", "nested"])
            if way == "beside":
                handles.append((step, comm.all_reduce(value, async_op=True)))
            elif way == "nested":
                handles.append(
                    (step, comm.broadcast({"x": value, "step": step}, step % comm.world_size, async_op=True))
                )
            elif way == "now":
                found.append((step, comm.all_reduce(value)[0].item()))
            else:
                dist.all_reduce(value)
                found.append((step, value[0].item()))
            if delay.random() < 0.2:
                time.sleep(0.002)
        for step, handle in handles:
            got = handle.wait()
            found.append((step, got["x"][0].item() if isinstance(got, dict) else got[0].item()))
        return sorted(found)

    for seed in range(3):
        results = worlds[3].run(check, seed)
        assert results[0] == results[1] == results[2]
        assert all(value in {step * 6.0, *(step * (src + 1.0) for src in range(3))} for step, value in results[0])


def test_groups_do_not_wait_for_each_other(worlds):
    def check(comm):
        a, b = comm.new_group([0, 1]), comm.new_group([0, 1])
        first, second = (a, b) if comm.rank else (b, a)
        one = comm.all_gather({"n": comm.rank}, async_op=True, group=first)  # in another order on each rank
        two = comm.all_gather({"n": comm.rank}, async_op=True, group=second)
        return one.wait(10), two.wait(10)

    assert worlds[2].run(check) == [({"n": [0, 1]}, {"n": [0, 1]})] * 2


def test_a_message_passes_what_its_receiver_begins_later(worlds):
    def check(comm):
        if comm.rank == 0:
            begun = comm.all_gather({"n": 0}, async_op=True)
            return comm.recv(1), begun.wait()
        comm.send("first", 0)
        return None, comm.all_gather({"n": 1})

    assert worlds[2].run(check) == [("first", {"n": [0, 1]}), (None, {"n": [0, 1]})]


@pytest.mark.parametrize("size", [2, 3])
def test_messages_may_be_begun_at_both_ends(worlds, size):
    def check(comm):
        w, r = comm.world_size, comm.rank
        right, left = (r + 1) % w, (r - 1) % w
        coming = [comm.irecv(left, tag=tag) for tag in (3, 1, 1)]
        going = [
            comm.isend({"n": 1, "x": torch.full((BIG,), float(r))}, right, tag=1),
            comm.isend("second", right, tag=1),
            comm.isend(np.arange(3) + r, right, tag=3),
        ]
        third, first, second = (handle.wait(15) for handle in coming)
        for handle in going:
            handle.wait(15)
        assert all(handle.done() for handle in (*coming, *going))
        return first["x"][-1].item(), second, third.tolist(), comm.sendrecv(r, right, left)

    left = [(rank - 1) % size for rank in range(size)]
    assert worlds[size].run(check) == [(float(n), "second", [n, n + 1, n + 2], n) for n in left]


def test_a_receive_waits_behind_those_that_were_begun(worlds):
    def check(comm):
        if comm.rank == 0:
            early = comm.irecv(1)
            later = comm.recv(1)
            return early.wait(), later
        comm.send("one", 0)
        comm.send("two", 0)
        return None

    assert worlds[2].run(check)[0] == ("one", "two")


def test_receives_from_one_rank_and_from_anyone_take_no_part_of_each_others_messages(worlds):
    def check(comm):
        if comm.rank:
            if comm.rank == 2:
                comm.recv(0, tag=5)  # so that rank 1 would come first to whoever takes anyone's
            for number in range(4):
                comm.isend({"from": comm.rank, "n": number, "x": torch.full((BIG,), 1.0 * comm.rank)}, 0).wait()
            return None
        named = [comm.irecv(1), comm.irecv(2)]
        anyone = comm.irecv()
        behind = comm.irecv(1)
        comm.send("go", 2, tag=5)
        got = [handle.wait(20) for handle in (*named, anyone, behind)]
        got += [comm.irecv(2).wait(20), comm.recv(2), comm.recv(), comm.recv()]
        assert all((each["x"] == each["from"]).all() for each in got)
        return [(each["from"], each["n"]) for each in got]

    pairs = worlds[3].run(check)[0]
    assert pairs[:2] == [(1, 0), (2, 0)]
    assert sorted(pairs) == [(rank, n) for rank in (1, 2) for n in range(4)]
    assert [n for rank, n in pairs if rank == 1] == [n for rank, n in pairs if rank == 2] == [0, 1, 2, 3]


def test_receives_of_two_senders_do_not_wait_for_each_other(worlds):
    def check(comm):
        if comm.rank == 0:
            first, second = comm.irecv(1), comm.irecv(2)
            told = second.wait(20)
            comm.send("go", 1)
            return told, first.wait(20)
        if comm.rank == 1:
            comm.recv(0)
        comm.send(comm.rank, 0)
        return None

    assert worlds[3].run(check)[0] == (2, 1)


def test_from_anyone(worlds):
    def check(comm):
        if comm.rank:
            comm.isend(comm.rank, 0).wait()
            return None
        return sorted(handle.wait(10) for handle in [comm.irecv(), comm.irecv()])

    assert worlds[3].run(check)[0] == [1, 2]


def test_waiting_has_an_end_and_the_work_goes_on(worlds):
    def check(comm):
        if comm.rank:
            comm.recv(0)
            return comm.all_gather({"n": 1})
        begun = comm.all_gather({"n": 0}, async_op=True)
        try:
            begun.wait(timeout=0.05)
        except TimeoutError as error:
            said = str(error)
        done = begun.done()
        comm.send("go", 1)
        return said, done, begun.wait(10)

    assert worlds[2].run(check)[0] == ("It did not complete within 0.05 s, and is still running.", False, {"n": [0, 1]})


def test_errors_come_out_of_the_handle_and_the_lane_goes_on(worlds):
    def check(comm):
        refused = comm.broadcast(threading.Lock() if comm.rank == 0 else None, async_op=True)
        fine = comm.all_reduce(1, async_op=True)
        try:
            refused.wait()
        except CollectiveError as error:
            return str(error), fine.wait()

    for text, total in worlds[2].run(check):
        assert "rank 0" in text
        assert total == 2


def test_what_cannot_begin_is_refused_at_once(worlds):
    def check(comm):
        found = []
        for attempt in (
            lambda: comm.all_reduce(torch.ones(1, requires_grad=True), sync_grads=True, async_op=True),
            lambda: comm.all_gather(1, async_op=True, group="no group"),
            lambda: comm.isend(1, comm.rank),
            lambda: comm.irecv(99),
        ):
            with pytest.raises(CollectiveError) as caught:
                attempt()
            found.append(str(caught.value))
        return found

    texts = worlds[2].run(check)[0]
    assert "has no gradients" in texts[0]
    assert "group=" in texts[1]
    assert "itself" in texts[2]
    assert "src=99" in texts[3]


def test_no_thread_stays_behind(worlds):
    def check(comm):
        before = threading.active_count()
        for _ in range(20):
            comm.all_gather({"n": 1}, async_op=True).wait()
            comm.barrier()
        until = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        return threading.active_count() - before

    assert all(more <= 0 for more in worlds[2].run(check))


class _Unwell:
    """Watches lanes, and fails over it."""

    @contextmanager
    def beside(self, *, issues: bool) -> Iterator[None]:
        raise TypeError("spoiled")
        yield

    def waiting_for(self, _: int | None, *, limited: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def said(self) -> None:
        pass

    def carrying(self, _: None) -> AbstractContextManager[None]:
        return nullcontext()

    def look_beside(self, *, busy: bool) -> None:
        pass


def test_a_thread_that_fails_is_told_to_who_waits():
    lanes = AsyncLanes(torch.device("cpu"))
    lanes.watch = _Unwell()
    handle = lanes.begin("key", lambda: 1)
    with pytest.raises(CollectiveError, match=r"nbcomm itself failed in an asynchronous call \(TypeError: sp"):
        handle.wait(20)
    until = time.monotonic() + 20
    while lanes.any and time.monotonic() < until:  # it tells first, and then goes
        time.sleep(0.001)
    assert not lanes.any
    lanes.watch = None
    assert lanes.begin("key", lambda: 2).wait(20) == 2


def test_where_no_thread_can_be_had_nothing_is_begun(monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lanes = AsyncLanes(torch.device("cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            lanes.begin("key", lambda: 1)
    assert not lanes.any
    assert lanes.begin("key", lambda: 2).wait(20) == 2
