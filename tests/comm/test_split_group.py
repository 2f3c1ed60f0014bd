"""Groups that ranks form by what each of them says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from nbcomm.comm.split_group import KEEPS_ORDER
from nbcomm.errors import CollectiveError

from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`


def test_ranks_of_one_color_form_a_group(worlds):
    def check(comm):
        parity = comm.split_group(comm.rank % 2)
        return comm.all_gather(comm.rank, group=parity), comm.group_rank(parity), dist.get_world_size(parity)

    assert worlds[4].run(check) == [([0, 2], 0, 2), ([1, 3], 0, 2), ([0, 2], 1, 2), ([1, 3], 1, 2)]


@pytest.mark.skipif(not KEEPS_ORDER, reason="this torch numbers the ranks of each group ascending")
def test_the_key_orders_a_group(worlds):
    def check(comm):
        turned = comm.split_group("all", key=-comm.rank)
        x = torch.tensor([float(comm.rank)])
        return (
            comm.group_rank(turned),
            comm.all_gather(comm.rank, group=turned),
            comm.all_gather(x, group=turned).flatten().tolist(),
            comm.scan(comm.rank, group=turned),
            comm.broadcast(comm.rank, 1, group=turned),
            comm.scatter(list("abc") if comm.rank == 2 else None, 2, group=turned),
        )

    assert worlds[3].run(check) == [
        (2, [2, 1, 0], [2.0, 1.0, 0.0], 3, 1, "c"),
        (1, [2, 1, 0], [2.0, 1.0, 0.0], 3, 1, "b"),
        (0, [2, 1, 0], [2.0, 1.0, 0.0], 2, 1, "a"),
    ]


def test_a_torch_that_cannot_order_a_group_says_so_and_makes_none(worlds):
    def check(comm):
        from nbcomm.comm import split_group

        known, split_group.KEEPS_ORDER = split_group.KEEPS_ORDER, False
        try:
            comm.split_group(comm.rank == 0, key=-comm.rank)
        except CollectiveError as error:
            told = str(error)
        finally:
            split_group.KEEPS_ORDER = known
        return told, comm.all_gather(comm.rank, group=comm.split_group("all", key=comm.rank))

    for told, ranks in worlds[3].run(check):
        assert told.startswith(f"torch {torch.__version__} numbers the ranks of a group ascending, so key cannot")
        assert ranks == [0, 1, 2]


def test_who_has_no_color_is_in_no_group(worlds):
    def check(comm):
        made = comm.split_group(None if comm.rank == 1 else ("x", 1))
        try:
            return comm.all_reduce(1, group=made)
        except CollectiveError as error:
            return str(error)

    results = worlds[3].run(check)
    assert results[0] == results[2] == 2
    assert "not a member" in results[1]


def test_each_group_is_divided_by_itself(worlds):
    def check(comm):
        from torch.distributed.device_mesh import DeviceMesh

        def said(made):
            try:
                return comm.all_gather(comm.rank, group=made)
            except CollectiveError as error:
                return "none" if "not a member" in str(error) else str(error)

        low, high = comm.new_group([0, 1]), comm.new_group([2, 3])
        mine = low if comm.rank < 2 else high
        either = comm.new_group([0, 2, 3])
        foreign = dist.new_group([1, 3])  # torch's own, which is a number on the others
        mesh = DeviceMesh("cpu", [0, 2])
        return [
            said(comm.split_group("same", group=mine)),
            said(comm.split_group(0 if comm.rank < 2 else "x", group=mine)),  # compared within a group only
            said(comm.split_group(comm.rank % 2, group=either)),
            said(comm.split_group("same", group=foreign)),
            said(comm.split_group("same", group=mesh)),
            said(comm.split_group("same", group=None if comm.rank else dist.group.WORLD)),
        ]

    everyone = [0, 1, 2, 3]
    assert worlds[4].run(check) == [
        [[0, 1], [0, 1], [0, 2], "none", [0, 2], everyone],
        [[0, 1], [0, 1], "none", [1, 3], "none", everyone],
        [[2, 3], [2, 3], [0, 2], "none", [0, 2], everyone],
        [[2, 3], [2, 3], [3], [1, 3], "none", everyone],
    ]


@pytest.mark.parametrize("colors", [["a", 1], [[1], [2]]])
def test_colors_without_an_order_are_refused_everywhere(worlds, colors):
    def check(comm, colors):
        comm.split_group(colors[comm.rank])

    for result in worlds[2].run(check, colors, fails=True):
        assert result.kind is CollectiveError
        assert "colors that are hashable and can be put in order" in result.text


def test_groups_of_one_dimension_of_a_mesh(worlds):
    def check(comm):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return (
            comm.all_gather(comm.rank, group=mesh["dp"]),
            comm.all_gather(comm.rank, group=mesh["tp"]),
            comm.all_reduce(comm.rank, group=mesh.get_group("tp")),
            comm.group_rank(mesh["dp"]),
        )

    assert worlds[4].run(check) == [
        ([0, 2], [0, 1], 1, 0),
        ([1, 3], [0, 1], 1, 0),
        ([0, 2], [2, 3], 5, 1),
        ([1, 3], [2, 3], 5, 1),
    ]
