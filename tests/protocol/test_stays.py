"""What cannot travel is named, with what to do about it."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch

from nbcomm.errors import TransferError
from nbcomm.protocol import stays
from nbcomm.protocol.payload import pack

LOCK = threading.Lock()
ELSE = "Make it where it is needed, or send what it is made of."


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> Any:
        return self.held


def uses(lock: Any) -> Any:
    """A function as it is typed in a notebook, which is pickled with what it uses."""
    scope: dict[str, Any] = {"lock": lock, "__name__": "__main__"}
    exec("def typed(): return lock", scope)  # noqa: S102
    return scope["typed"]


@pytest.mark.parametrize(
    ("value", "who"),
    [
        ({"fine": 1, "lock": LOCK}, "lock (lock)"),
        ({"config": {"a": [1, {"b": LOCK}]}}, "config['a'][1]['b'] (lock)"),
        ({"one": Holder(Holder(LOCK))}, "one.held.held (lock)"),
        ({"one": Holder(LOCK).method}, "one.held (lock)"),
        ({"f": uses(LOCK)}, "lock (lock; typed uses it)"),
        ({"f": uses(Holder(LOCK))}, "lock.held (lock; typed uses it)"),
        ((len, (1, LOCK), {}), "argument 2 (lock)"),
        ((len, (), {"key": LOCK}), "argument key (lock)"),
        ((uses(LOCK), (), {}), "lock (lock; typed uses it)"),
        (LOCK, "A value of type lock"),
        ([1, [LOCK]], "[1][0] (lock)"),
        ({"x" * 50: {"y" * 50: LOCK}}, f"{'x' * 50}['{'y' * 38}… (lock)".replace("…", "…]")),
    ],
)
def test_what_holds_it_is_looked_through(value: Any, who: str) -> None:
    with pytest.raises(TransferError) as caught:
        pack(value)
    why = "cannot travel between the notebook and the ranks: TypeError: cannot pickle '_thread.lock' object"
    assert str(caught.value) == f"{who} {why}. {ELSE}"


def test_what_refers_to_itself_ends() -> None:
    one = Holder(LOCK)
    one.again = [one]  # type: ignore[attr-defined]
    many: dict[str, Any] = {str(number): number for number in range(5000)} | {"last": LOCK}
    for value in ({"one": one}, {"many": many}):
        with pytest.raises(TransferError, match="cannot travel"):
            pack(value)


def test_known_kinds_have_their_remedy() -> None:
    found = {}
    for name, module in (
        ("DistributedDataParallel", "torch.nn"),
        ("FSDPModule", "torch.distributed"),
        ("Work", "torch"),
    ):
        kind = types.new_class(name, (torch.nn.Module,))
        kind.__module__ = module
        found[name] = stays.remedy(types.new_class("Wrapped", (kind,))(), "net")
    assert found["DistributedDataParallel"] == "It belongs to its ranks: send the module in it, net.module."
    assert "net.state_dict()" in str(found["FSDPModule"])
    assert stays.remedy((one for one in [1]), "it") == "Send what it yields, as a list."
    assert stays.remedy(types.new_class("Work")(), "mine") is None, "a user's own class may have such a name"
    ddp = types.new_class("DistributedDataParallel", (torch.nn.Module,))
    ddp.__module__ = "torch.nn.parallel"
    with pytest.raises(TransferError, match=r"^net \(Wrapped\) cannot travel .* net\.module\.$"):
        pack({"net": types.new_class("Wrapped", (ddp,))()})


def test_of_a_sharded_tensor_its_own_part_travels() -> None:
    class Sharded(torch.Tensor):
        placements = ("Shard(0)",)

        def to_local(self) -> torch.Tensor:
            return torch.Tensor(self)[:1]

    notes: list[str] = []
    from nbcomm.protocol.payload import unpack

    blob, frames = pack({"a": torch.ones(4).as_subclass(Sharded), "b": 2}, notes=notes)
    arrived = unpack(blob, frames)
    assert type(arrived["a"]) is torch.Tensor
    assert arrived["a"].tolist() == [1.0]
    assert notes == [
        "the own part of a sharded tensor was sent; full_tensor(), called by all in a cell, gathers a whole one."
    ]
    assert not pack({"a": torch.ones(4)}, notes=(none := []))[0].path
    assert none == []
