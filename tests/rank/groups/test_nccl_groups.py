"""Groups of ours with NCCL inside: they connect while all meet, and end together, on a fake one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nbcomm.errors import HangError
from nbcomm.torch_internals import nccl, process_groups

from ... import fake_nccl
from ... import worlds as ranks
from ...worlds import World


@pytest.fixture(scope="module")
def world():
    """Two ranks whose groups may have the fake."""
    made = World(2)
    try:
        made.run(lambda _, folder: fake_nccl.put_in_place(folder), made.folder)
        yield made
    finally:
        made.close()


def _again(comm, folder):
    ranks.here.form(ranks.form_order(comm.rank, comm.world_size, folder, ranks.here.generation + 1))


def _of(group):
    (backend,) = group.on_devices
    return backend


def _aborted_in(seconds):
    """Abort this generation from another thread, as the link's does, and again until it has ended."""
    generation = ranks.here.generation

    def abort():
        time.sleep(seconds)
        ranks.here.abort(generation, HangError("stuck"))
        ranks.here.free_again()

    thread = threading.Thread(target=abort)
    thread.start()
    return thread


def _meet(folder, name, comm):
    Path(folder, f"{name}-{comm.rank}").touch()
    until = time.monotonic() + 30
    while len(list(Path(folder).glob(f"{name}-*"))) < comm.world_size:
        assert time.monotonic() < until
        time.sleep(0.002)


def test_each_inside_is_connected_for_its_gpu_before_any_call_and_the_next_one_too(world):
    def check(comm, folder):
        gpu, seen = torch.device("cuda", comm.local_rank), []
        group = dist.new_group(backend=fake_nccl.BACKEND, device_id=gpu)  # torch would connect it, too
        for _ in range(2):
            inner = group._inner
            seen.append((_of(group).gpu == gpu, group.bound_device_id == gpu, inner.bound_device_id == gpu))
            seen.append(process_groups.on_devices(inner, fake_nccl.BACKEND) == [_of(group)])
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            seen.append((value.item(), _of(group).connections))
            before = _of(group)
            _again(comm, folder)
            seen.append((before.aborted.is_set(), before is not _of(group)))
        return seen, before.aborts

    for seen, aborts in world.run(check, world.folder):
        assert seen == [(True,) * 3, True, (2.0, 1), (True, True)] * 2
        assert aborts == 1


def test_a_member_that_does_not_come_keeps_nobody(world):
    def check(comm, folder):
        began, told = time.monotonic(), "nothing"
        if comm.rank == 0:
            watcher = _aborted_in(0.3)
            try:
                dist.new_group(backend=fake_nccl.BACKEND)
            except HangError as error:
                told = str(error)
            watcher.join()
        took = time.monotonic() - began
        _meet(folder, "missed", comm)
        _again(comm, folder)
        return told, took, comm.all_reduce(1)

    (told, took, one), (_, _, two) = world.run(check, world.folder)
    assert (told, one, two) == ("stuck", 2, 2)
    assert took < 20


def test_who_is_alone_in_the_making_of_a_communicator_is_freed_and_it_is_ended_when_it_is_there(world):
    def check(comm, folder):
        late = fake_nccl.FakeNccl.late = threading.Event() if comm.rank == 1 else None
        watcher, told = _aborted_in(0.3), "nothing"
        try:
            dist.new_group(backend=fake_nccl.BACKEND)
        except HangError as error:
            told = str(error)
        watcher.join()
        if late is not None:
            late.set()
        fake_nccl.FakeNccl.late = None
        made = fake_nccl.FakeNccl.made[-1]
        ended = made.aborted.wait(30)
        _meet(folder, "freed", comm)
        _again(comm, folder)
        return told, ended, comm.all_reduce(1)

    assert world.run(check, world.folder) == [("stuck", True, 2)] * 2


def test_groups_whose_aborts_wait_for_each_other_end_together(world):
    def check(comm, folder):
        groups = [dist.new_group(backend=fake_nccl.BACKEND) for _ in range(2)]
        backends, told = [_of(group) for group in groups], "nothing"
        meeting = threading.Barrier(2)
        for backend in backends:  # as where an abort waits for the device, which the other one's call keeps
            backend.hold.wait = lambda: meeting.wait(10)
        watcher = _aborted_in(0.3)
        try:
            backends[0].hang()
        except dist.DistBackendError as error:
            told = str(error)
        watcher.join()
        _meet(folder, "together", comm)
        _again(comm, folder)
        return told, meeting.broken, [backend.aborted.is_set() for backend in backends], comm.all_reduce(1)

    assert world.run(check, world.folder) == [("NCCL communicator was aborted on rank 0.", False, [True, True], 2)] * 2


def test_an_abort_that_never_returns_costs_words_and_not_the_thread_that_asked(world):
    def check(comm, folder):
        backend = _of(dist.new_group(backend=fake_nccl.BACKEND))
        if comm.rank == 1:
            backend.hold.clear()
        began = time.monotonic()
        ranks.here.abort(ranks.here.generation, HangError("stuck"))
        took, told, patience = time.monotonic() - began, "nothing", nccl.PATIENCE
        nccl.PATIENCE = 0.5
        order = ranks.form_order(comm.rank, 2, folder, ranks.here.generation + 1)
        if comm.rank == 1:
            try:
                ranks.here.form(order)
            except RuntimeError as error:
                told = str(error)
            backend.hold.set()
        nccl.PATIENCE = patience
        ranks.here.form(order)
        return took, told, comm.all_reduce(1)

    (quick, _, one), (took, told, two) = world.run(check, world.folder)
    assert max(quick, took) < 20
    assert told == (
        "NCCL has not let go of cuda:1 within 0.5 s, so rank 1 cannot form its groups again. Type %distributed heal 1 "
        "in a cell of its own to put a new process in its place; the other ranks keep their variables."
    )
    assert (one, two) == (2, 2)
