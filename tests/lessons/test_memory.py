"""How much a process holds in tensors."""

from __future__ import annotations

import torch

from nbcomm.lessons import held_bytes


def test_each_memory_counts_once_and_what_is_left_out_does_not() -> None:
    before = held_bytes()
    kept = torch.ones(1000)
    parts = [kept[:10], kept.reshape(10, 100), torch.nn.Parameter(kept)]
    other = torch.zeros(5, dtype=torch.float64)
    assert held_bytes() - before == 4040
    assert held_bytes(but=parts) - before == 40
    del other
    assert held_bytes() - before == 4000


def test_a_tensor_without_memory_of_its_own_is_none() -> None:
    class Wrapper(torch.Tensor):
        __torch_dispatch__ = classmethod(lambda *_: NotImplemented)  # type: ignore[assignment]

    inner = torch.ones(100)
    before = held_bytes()
    made = torch.Tensor._make_wrapper_subclass(Wrapper, inner.shape)
    assert isinstance(made, Wrapper)
    assert held_bytes() == before
