"""Shares of data, even and uneven, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.comm.sharding import shares_of_places
from nbcomm.errors import CollectiveError

from ..laws import examples
from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`


@given(st.integers(0, 60), st.integers(1, 9), st.booleans())
def test_every_item_is_in_one_share_and_shares_differ_by_one_at_most(total, size, strided):
    shares = shares_of_places(total, size, strided=strided)
    assert sorted(place for share in shares for place in share) == list(range(total))
    assert len(shares) == size
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if not strided:
        assert [place for share in shares for place in share] == list(range(total))


def test_strided_shares_are_those_of_a_distributed_sampler():
    for total, size in [(10, 4), (8, 4), (3, 2)]:
        for rank, share in enumerate(shares_of_places(total, size, strided=True)):
            sampler = torch.utils.data.DistributedSampler(range(total), size, rank, shuffle=False)
            assert list(share) == list(sampler)[: len(share)]


def test_blocks_are_those_of_accelerate(worlds):
    def check(comm):
        data = {"x": torch.arange(10), "name": list("abcdefghij")}
        share = comm.split(data)
        return share["x"].tolist(), "".join(share["name"]), comm.split(range(10), pad=True), comm.split("abc")

    assert worlds[4].run(check) == [
        ([0, 1, 2], "abc", range(3), "a"),
        ([3, 4, 5], "def", range(3, 6), "b"),
        ([6, 7], "gh", [6, 7, 7], "c"),
        ([8, 9], "ij", [8, 9, 9], ""),
    ]


def test_mappings_that_are_no_dicts_are_shared_key_by_key(worlds):
    def check(comm):
        from collections import UserDict
        from types import MappingProxyType

        class Encoding(UserDict):  # like transformers' BatchEncoding
            pass

        data = Encoding(ids=torch.arange(4), mask=[1, 2, 3, 4])
        share, view = comm.split(data), comm.split(MappingProxyType({"x": range(4)}))
        return type(share).__name__, share["ids"].tolist(), share["mask"], view, len(data["mask"])

    assert worlds[2].run(check) == [
        ("Encoding", [0, 1], [1, 2], {"x": range(2)}, 4),
        ("Encoding", [2, 3], [3, 4], {"x": range(2, 4)}, 4),
    ]


def test_kinds_of_data_stay_what_they_are(worlds):
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, place):
            return place**2

    def check(comm):
        x = torch.arange(6.0).reshape(3, 2)
        view = comm.split(x)
        x.zero_()
        subset = comm.split(Squares())
        return (
            type(comm.split((1, 2, 3))),
            comm.split(np.arange(3)).tolist(),
            view.sum().item(),
            type(subset).__name__,
            list(subset),
            comm.split(b"xyz"),
            comm.split([9], pad=True),
            comm.split(torch.arange(4), strided=True).tolist(),
            comm.split([1, 2, 3], group=None),
        )

    assert worlds[2].run(check) == [
        (tuple, [0, 1], 0.0, "Subset", [0, 1, 4], b"xy", [9], [0, 2], [1, 2]),
        (tuple, [2], 0.0, "Subset", [9, 16], b"z", [9], [1, 3], [3]),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "needs data with a length"),
        ({1, 2}, "needs data with a length"),
        (torch.tensor(1.0), "needs data with a length"),
        ({"a": [1], "b": [1, 2]}, "'a' 1, 'b' 2 long"),
    ],
)
def test_what_cannot_be_shared_is_refused(worlds, data, message):
    def check(comm, data):
        comm.split(data)

    for result in worlds[2].run(check, data, fails=True):
        assert result.kind is CollectiveError
        assert message in result.text


def test_padding_makes_tensors_as_long_as_the_longest(worlds):
    def check(comm):
        data = {"x": torch.full((comm.rank + 1, 2), 1.0), "n": 3, "a": np.ones((2, comm.rank)), "s": torch.tensor(5)}
        wide = comm.pad_across_ranks(data, dim=1, pad_index=-1, pad_first=True)
        long = comm.pad_across_ranks(data)
        return long["x"].sum(1).tolist(), long["n"], wide["a"].tolist(), long["s"].item(), tuple(wide["x"].shape)

    assert worlds[3].run(check) == [
        ([2.0, 0.0, 0.0], 3, [[-1.0, -1.0]] * 2, 5, (1, 2)),
        ([2.0, 2.0, 0.0], 3, [[-1.0, 1.0]] * 2, 5, (2, 2)),
        ([2.0, 2.0, 2.0], 3, [[1.0, 1.0]] * 2, 5, (3, 2)),
    ]


@dataclass
class Out:
    loss: Any
    label: Any


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("strided", [False, True])
def test_shares_come_back_in_order_without_what_was_padded(worlds, size, strided):
    def check(comm, strided):
        found = []
        for total in range(1, 14):
            x = comm.split(torch.arange(total), pad=True, strided=strided)
            whole = comm.gather_for_metrics(Out(x * 2.0, np.asarray(x)), total, strided)
            texts = comm.gather_for_metrics([f"#{n}" for n in x.tolist()], total, strided)
            found.append(
                whole.loss.tolist() == [2.0 * n for n in range(total)]
                and whole.label.tolist() == list(range(total))
                and texts == [f"#{n}" for n in range(total)]
            )
        return found

    assert worlds[size].run(check, strided) == [[True] * 13] * size


def test_a_rank_with_too_few_samples_is_told_of_on_all(worlds):
    def check(comm):
        comm.gather_for_metrics(torch.ones(1) if comm.rank else torch.tensor(1.0), 4)

    for result in worlds[2].run(check, fails=True):
        assert result.kind is CollectiveError
        assert "rank 0 passed a float32 tensor of shape (), which has no samples" in result.text
        assert "rank 1 passed 1 samples, but its share of 4 is 2" in result.text


def test_ranks_that_disagree_about_the_total_are_told(worlds):
    def check(comm):
        comm.gather_for_metrics(torch.ones(5), 8 + comm.rank)

    for result in worlds[2].run(check, fails=True):
        assert result.kind is CollectiveError
        assert "rank 1 passed total=9, strided=False" in result.text


@examples(20)
@given(total=st.integers(0, 30), strided=st.booleans())
def test_a_sampler_and_back(total, strided):
    places = shares_of_places(total, 3, strided=strided)
    longest = max(map(len, places))
    padded = [[*share, *[total - 1] * (longest - len(share))] for share in places]
    assert {len(share) for share in padded} == {longest}
