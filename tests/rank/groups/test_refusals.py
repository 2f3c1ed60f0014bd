"""What torch refuses has no place in the order of calls: the next collective is the next one on all ranks."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ...worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`

BAD = {
    "all_gather": lambda: dist.all_gather([torch.empty(3), torch.empty(1)], torch.ones(2)),
    "all_to_all": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 1]),
    "shares that differ": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(6)),
    "its own part": lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [1, 2, 3], [2, 3, 1]),
    "lists": lambda: dist.all_to_all([torch.ones(n) for n in (1, 1, 2)], [torch.ones(n) for n in (1, 1, 2)]),
    "reduce_scatter": lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(2), torch.ones(3)]),
    "broadcast": lambda: dist.broadcast(torch.ones(2, 2).to_sparse(), 0),
    "scatter": lambda: dist.scatter(torch.ones(2), [torch.ones(2), torch.ones(3)] if dist.get_rank() == 0 else None),
}


def _refused(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - its kind is looked at
        return type(error).__name__, str(error).partition("\n")[0]
    return None


def _await(path):
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.001)


def _begun(comm):
    """Begin an all_reduce beside; return its handle when the other ranks can see it."""
    before = dist.group.WORLD._get_sequence_number_for_group()
    handle, until = comm.all_reduce(1, async_op=True), time.monotonic() + 30
    while dist.group.WORLD._get_sequence_number_for_group() == before:
        assert time.monotonic() < until
        time.sleep(0.001)
    return handle


@pytest.mark.parametrize("what", [what for what in BAD if what != "scatter"])
def test_the_next_call_is_the_same_on_all_ranks_whoever_comes_first(worlds, what):
    call = BAD[what]

    def check(comm, call):
        jitter, told = random.Random(comm.rank), []  # noqa: S311
        for turn in range(20):
            time.sleep(jitter.random() * 0.003)
            told.append(_refused(call))
            time.sleep(jitter.random() * 0.003)
            assert comm.all_reduce(turn) == 3 * turn
        return told

    for told in worlds[3].run(check, call):
        assert all(told)
        assert not any("Mismatch" in kind for kind, _ in told), told


def test_who_comes_late_is_told_what_torch_has_said_where_others_have_gone_on(worlds):
    def check(comm, folder, call):
        path = Path(folder, "gone on")
        if comm.rank == 0:
            told = _refused(call)
            going_on = _begun(comm)
            path.touch()
            return told, going_on.wait(30)
        _await(path)
        return _refused(call), comm.all_reduce(1)

    world = worlds[2]
    (first, one), (second, two) = world.run(check, world.folder, BAD["all_gather"])
    assert one == two == 2
    assert first[0] == second[0] != "MismatchError"
    assert second[1].startswith(first[1])
    assert second[1].endswith("(Rank 0 was refused the same call, and has gone on.)")


def test_a_call_that_is_refused_on_one_rank_alone_is_no_difference_for_who_comes_later(worlds):
    def check(comm, folder):
        path = Path(folder, "gone on alone")
        lists = [torch.empty(2), torch.empty(2 if comm.rank else 3)]
        if comm.rank == 0:
            told = _refused(lambda: dist.all_gather(lists, torch.ones(2)))
            going_on = _begun(comm)
            path.touch()
            return told, going_on.wait(30)
        _await(path)
        return _refused(lambda: dist.all_gather(lists, torch.ones(2))), comm.all_reduce(1)

    world = worlds[2]
    (first, one), (second, two) = world.run(check, world.folder)
    assert one == two == 2
    assert first[0] == second[0] == "ValueError" or first[0] == second[0] == "RuntimeError"
    assert "Rank 0 was refused" in second[1]


def test_a_message_that_is_refused_is_none(worlds):
    def check(comm):
        other = 1 - comm.rank
        got = torch.zeros(3)
        if comm.rank == 0:
            told = _refused(lambda: dist.send(torch.ones(2, 4)[:, ::2], other))
            dist.send(torch.ones(3), other)
        else:
            told = _refused(lambda: dist.recv(torch.ones(2, 4)[:, ::2], other))
            time.sleep(0.05)
            dist.recv(got, other)
        return told, got.sum().item()

    (first, _), (second, got) = worlds[2].run(check)
    assert first
    assert second
    assert got == 3


def test_a_message_that_one_rank_was_refused_first_is_refused_the_other_too(worlds):
    def check(comm, folder):
        path, other = Path(folder, "sent"), 1 - comm.rank
        bad = torch.ones(2, 4)[:, ::2]
        if comm.rank == 0:
            told = _refused(lambda: dist.send(bad, other))
            work = dist.isend(torch.ones(3), other)
            path.touch()
            work.wait()
            return told, 3
        _await(path)
        told, got = _refused(lambda: dist.recv(bad, other)), torch.zeros(3)
        dist.recv(got, other)
        return told, got.sum().item()

    world = worlds[2]
    (first, _), (second, got) = world.run(check, world.folder)
    assert got == 3
    assert first[0] == second[0] == "RuntimeError"
    assert second[1].endswith("(Rank 0 was refused the same call, and has gone on.)")


def test_who_receives_from_anyone_does_not_hear_of_a_message_that_was_refused(worlds):
    def check(comm):
        got = torch.zeros(3)
        if comm.rank == 0:
            dist.recv(got)
            return got.sum().item()
        told = _refused(lambda: dist.send(torch.ones(2, 4)[:, ::2], 0))
        time.sleep(0.05)
        dist.send(torch.ones(3), 0)
        return told

    got, told = worlds[2].run(check)
    assert (got, told[0]) == (3, "RuntimeError")


def test_a_root_that_was_refused_tries_again_while_the_others_wait(worlds):
    def check(comm):
        got = torch.zeros(2)
        told = None
        if comm.rank == 0:
            told = _refused(lambda: dist.scatter(got, [torch.ones(2), torch.ones(3), torch.ones(2)]))
            time.sleep(0.05)
            dist.scatter(got, [torch.full((2,), float(to)) for to in range(3)])
        else:
            dist.scatter(got)
        return told, got.tolist(), comm.all_reduce(1)

    results = worlds[3].run(check)
    assert [result[1:] for result in results] == [([float(to)] * 2, 3) for to in range(3)]
    assert results[0][0] is not None


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_gather(None, torch.ones(1))",
        "comm.group.allreduce('x')",
        "comm.group.broadcast([])",
        "comm.group.alltoall_base(1, 2, 3, 4)",
        "comm.group.allgather(1, 2, 3, 4, 5)",
    ],
)
def test_arguments_that_are_none_leave_no_gap(worlds, call):
    def check(comm, call):
        told = _refused(lambda: eval(call, {"dist": dist, "torch": torch, "comm": comm}))  # noqa: S307
        return told, comm.all_reduce(1)

    assert [result[1] for result in worlds[2].run(check, call) if result[0]] == [2, 2]


def test_where_gloo_only_adds_another_op_is_refused_and_the_names_still_have_it(worlds):
    def check(comm):
        from nbcomm.comm.algorithms import reduce
        from nbcomm.rank.groups import process_group
        from nbcomm.torch_internals.c10d import ONLY_ADDS

        given, out, op = torch.arange(4.0) + comm.rank, torch.empty(2), dist.ReduceOp.MAX
        flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        process_group.ONLY_ADDS = reduce.ONLY_ADDS = True
        try:
            told = [
                _refused(lambda: dist.reduce_scatter(out, list(given.split(2)), op=op)),
                _refused(lambda: flat(out, given, op=op)),
            ]
            flat(out, given)
            added = out.tolist()
            flat(out, given, op=dist.ReduceOp.AVG)
            dist.reduce_scatter(other := torch.empty(2), list(given.split(2)), op=dist.ReduceOp.AVG)
            return (
                told,
                [added, out.tolist(), other.tolist()],
                comm.reduce_scatter(given, "max").tolist(),
                comm.all_reduce(1),
            )
        finally:
            process_group.ONLY_ADDS = reduce.ONLY_ADDS = ONLY_ADDS

    for rank, (told, added, most, next_one) in enumerate(worlds[2].run(check)):
        assert [kind for kind, _ in told] == ["CollectiveError"] * 2, told
        names = ("reduce_scatter", "reduce_scatter_tensor")
        assert all(f"adds in {name}, and" in text for name, (_, text) in zip(names, told, strict=True)), told
        start = 2 * rank
        mean = [start + 0.5, start + 1.5]
        assert added == [[2 * each for each in mean], mean, mean]
        assert (most, next_one) == ([start + 1, start + 2], 2)
