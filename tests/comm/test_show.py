"""What a saved cell shows in a script."""

from __future__ import annotations

import pytest
import torch

from nbcomm.comm import Communicator


def test_values_stand_behind_their_rank(capsys: pytest.CaptureFixture[str]) -> None:
    comm = Communicator(rank=12, world_size=16)
    comm.show(None, "a", torch.eye(2))
    comm.show()
    assert capsys.readouterr().out == "[12] 'a'\n[12] tensor([[1., 0.],\n             [0., 1.]])\n"
