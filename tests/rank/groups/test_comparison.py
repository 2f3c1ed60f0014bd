"""What a group of ours compares before a call is passed on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ...worlds import Worlds, worlds_of_a_module  # noqa: F401  # the fixture `worlds`


def test_numbers_of_an_all_to_all_that_are_cut_off_are_not_compared(worlds: Worlds) -> None:
    # Those of 64 ranks do not fit on the board. Here it holds less, so that those of two ranks do not.
    def call(comm, spared):
        from nbcomm.rank.collectives import fingerprints, signatures
        from nbcomm.rank.groups import comparison

        given, out = torch.arange(20.0), torch.empty(20)
        words = signatures.describe("alltoall_base", (out, given, [], []), {}).words
        before = fingerprints.LONGEST
        fingerprints.LONGEST = comparison.LONGEST = len(words) + spared
        try:
            dist.all_to_all_single(out, given + 100 * comm.rank)
        finally:
            fingerprints.LONGEST = comparison.LONGEST = before
        return out[::10].tolist()

    for spared in range(len("|10,10|10,10") + 2):
        assert worlds[2].run(call, spared) == [[0.0, 100.0], [10.0, 110.0]]
