"""In a cell that runs on some ranks only, a collective that needs the others is refused before data moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nbcomm.comm import subset
from nbcomm.errors import SubsetError

from .. import worlds as ranks
from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`


def _refused(call):
    try:
        call()
    except SubsetError as error:
        return str(error)
    return None


def _everything(comm):
    one = torch.ones(2)
    return {
        "barrier": comm.barrier,
        "broadcast": lambda: comm.broadcast(1),
        "scatter": lambda: comm.scatter([1, 2, 3]),
        "gather": lambda: comm.gather(1),
        "all_gather": lambda: comm.all_gather(one),
        "reduce": lambda: comm.reduce(one),
        "all_reduce": lambda: comm.all_reduce(one),
        "reduce_scatter": lambda: comm.reduce_scatter(torch.ones(3)),
        "all_to_all": lambda: comm.all_to_all([1, 2, 3]),
        "rank_zero_first": lambda: comm.rank_zero_first().__enter__(),
        "new_group": lambda: comm.new_group([0, 1]),
    }


def test_the_communicator_refuses_and_says_who_runs_and_what_helps(worlds):
    def check(comm):
        group = comm.new_group([0, 1])
        if comm.rank == 2:
            return None
        comm.cell_ranks = [0, 1]
        texts = {name: _refused(call) for name, call in _everything(comm).items()}
        within = comm.all_reduce(1, group=group), comm.all_gather(comm.rank, group=group)
        peer = [
            _refused(lambda: comm.send(1, 2)),
            _refused(lambda: comm.recv(2)),
            _refused(lambda: comm.sendrecv(1, 2, 2)),
        ]
        talk = comm.sendrecv(comm.rank, 1 - comm.rank, 1 - comm.rank)
        return texts, within, peer, talk

    texts, within, peer, talk = worlds[3].run(check)[0]
    for name, text in texts.items():
        assert text is not None, name
        assert "this cell runs on ranks 0-1 only" in text
        assert "rank 2" in text
        assert "new_group([0, 1])" in text
    assert within == (2, [0, 1])
    assert all("rank 2" in text for text in peer)
    assert talk == 1


def test_raw_torch_is_refused_too_and_restored_afterwards(worlds):
    def check(comm):
        import torch.distributed._functional_collectives as functional
        from torch.nn.parallel import DistributedDataParallel

        group = dist.new_group([0, 1])
        one = torch.ones(2)
        calls = {
            "all_reduce": lambda: dist.all_reduce(one),
            "broadcast": lambda: dist.broadcast(one, 0),
            "all_gather": lambda: dist.all_gather([one, one, one], one),
            "all_gather_object": lambda: dist.all_gather_object([None] * 3, 1),
            "barrier": dist.barrier,
            "new_group": lambda: dist.new_group([0, 1]),
            "functional": lambda: functional.all_reduce(one, "sum", dist.group.WORLD),
            "ddp": lambda: DistributedDataParallel(torch.nn.Linear(1, 1)),
            "send": lambda: dist.send(one, 2),
            "recv": lambda: dist.recv(one, 2),
        }
        texts, inside = {}, None
        if comm.rank < 2:
            ranks.here.begin(0, [0, 1])
            texts = {name: _refused(call) for name, call in calls.items()}
            inside = one.clone()
            dist.all_reduce(inside, group=group)
            ranks.here.begin(0, None)
        return texts, inside, comm.all_reduce(1)

    results = worlds[3].run(check)
    texts, inside, _ = results[0]
    assert [name for name, text in texts.items() if text is None] == []
    assert inside.tolist() == [2, 2]
    assert [total for *_, total in results] == [3] * 3


LISTS = [[], [0], [1], [2], [0, 1], [1, 2], [2, 3], [0, 1, 2]]


@pytest.mark.parametrize("first", LISTS)
@pytest.mark.parametrize("second", [members for members in LISTS if members])
def test_two_ranks_agree_if_nobody_waits_in_vain_or_meets_another(first: list[int], second: list[int]) -> None:
    """Of rank 0 and rank 1, who make them at the same place."""
    agree = subset.agree((0, first), (1, second))
    assert agree == subset.agree((1, second), (0, first))
    waits = {0, 1} <= set(first) or {0, 1} <= set(second)
    meet = 0 in first and 1 in second  # under one name in torch's store
    assert agree == (first == second or not (waits or (meet and max(len(first), len(second)) > 1)))
    assert subset.members_in(subset.new_group(first)) == first


def test_what_is_said_of_a_group_is_the_same_for_all_kinds_of_numbers_and_fails_for_none() -> None:
    said = subset.new_group([0, 5])
    assert said == subset.new_group([np.int64(0), np.int64(5)]) == "21|new_group([0, 5])"  # type: ignore[list-item]
    assert subset.members_in(said) == [0, 5]
    many = subset.new_group(range(600))
    assert subset.members_in(many[:200]) == list(range(600))  # though the words are cut off
    for odd in ([-1, 1], [1, 1], [1, 10**9]):  # torch will refuse them
        assert subset.members_in(subset.new_group(odd)) == [1]
    assert subset.members_in(subset.new_group(["a"])) == []  # type: ignore[list-item]
    assert subset.members_in("") == []
