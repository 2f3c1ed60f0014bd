"""The heads of small tensors, which are made without a packet."""

from __future__ import annotations

import pytest
import torch

from nbcomm.comm.transport import packets


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_a_small_plain_tensor_has_the_head_that_it_would_have_as_a_packet(dtype: torch.dtype) -> None:
    for tensor in (
        torch.arange(6).to(dtype).view(2, 3),
        torch.arange(6).to(dtype).view(2, 3).t(),
        torch.ones((), dtype=dtype),
    ):
        head = packets.small_head(tensor)
        assert head is not None
        assert torch.equal(head, packets.pack(tensor, lambda _: True).head())
        back = packets.from_small_head(head)
        assert back is not None
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert torch.equal(back, tensor)


def test_what_is_more_than_a_small_plain_tensor_has_no_small_head() -> None:
    for tensor in (torch.zeros(0), torch.zeros(packets.ROOM), torch.zeros(2, dtype=torch.bfloat16)):
        assert packets.small_head(tensor) is None
    for value in ({"a": 1}, torch.zeros(packets.ROOM), torch.zeros(0)):
        assert packets.from_small_head(packets.pack(value, lambda _: True).head()) is None
    assert packets.from_small_head(packets.Packet.error("failed").head()) is None
