"""What torch says of a group is compared with what is true: where it lies, no cell runs on it."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from nbcomm.errors import SelfTestError
from nbcomm.rank.groups import selftest

from ... import worlds as ranks
from ...worlds import worlds_of_a_module  # noqa: F401 - a fixture


def _form_again(comm, folder):
    here = ranks.here
    here.form(ranks.form_order(comm.rank, comm.world_size, folder, here.generation + 1))


def _lied_to(world, lie):
    """Form a generation while something lies, and one in truth; return what each rank raised, and a sum."""

    def in_lies(comm, folder):
        owner, name, value = lie(comm)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, value)
            try:
                _form_again(comm, folder)
            except SelfTestError as error:
                return str(error)
        return "nothing was said"

    def in_truth(comm, folder):
        _form_again(comm, folder)
        return comm.all_reduce(1)

    return world.run(in_lies, world.folder), world.run(in_truth, world.folder)


def test_a_size_that_lies_is_found(worlds):
    def lie(_):
        from nbcomm.rank.groups.process_group import RankGroup

        return RankGroup, "size", lambda _: 1

    told, totals = _lied_to(worlds[2], lie)
    for rank, text in enumerate(told):
        assert f"is rank {rank} of 1, but it was created as rank {rank} of 2." in text
    assert totals == [2, 2]


def test_a_sum_that_lies_is_found_on_the_rank_that_has_it(worlds):
    def lie(comm):
        return dist, "all_reduce", lambda tensor: tensor.mul_(2) if comm.rank else None

    (first, second), totals = _lied_to(worlds[2], lie)
    assert "gives [1, 0] where all_reduce must give [2, 1]." in first
    assert "gives [2, 2] where all_reduce must give [2, 1]." in second
    assert totals == [2, 2]


def test_the_test_is_no_call_of_a_cell(worlds):
    def check(comm, folder):
        _form_again(comm, folder)
        here = ranks.here
        return here.stuck.state().issued, here.record.journal.steps(), comm.all_reduce(1), here.stuck.state().issued

    world = worlds[2]
    for issued, steps, total, then in world.run(check, world.folder):
        assert (issued, steps, total, then) == ({"0": 0}, [], 2, {"0": 1})


def test_connections_that_could_not_be_shut_are_found_out(worlds):
    def lie(_):
        from nbcomm.torch_internals.gloo_sockets import GlooSockets

        return GlooSockets, "connections", lambda _: 0

    told, totals = _lied_to(worlds[2], lie)
    assert [text.partition(" connects ")[2] for text in told] == ["gloo by sockets that nbcomm does not find."] * 2
    assert totals == [2, 2]


def test_a_group_inside_a_group_is_compared_too():
    with pytest.raises(SelfTestError, match=r"the inside is rank 0 of 1, but it was created as rank 2 of 4\.$"):
        selftest.compare("the inside", (0, 1), (2, 4))
    selftest.compare("the inside", (2, 4), (2, 4))
