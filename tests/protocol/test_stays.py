"""What cannot travel is named, with what to do about it."""

from __future__ import annotations

import functools
import queue
import threading
import types
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from nbcomm.errors import TransferError
from nbcomm.protocol import stays
from nbcomm.protocol.payload import pack

LOCK = threading.Lock()
KIND = type("Kind", (), {"lock": LOCK, "__module__": "__main__"})  # as one that is typed in a notebook
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
        ({"config": {"a": [1, {"b": LOCK}]}}, "config (dict) holds config['a'][1]['b'] (lock), and"),
        ({"one": Holder(Holder(LOCK))}, "one (Holder) holds one.held.held (lock), and"),
        ({"one": Holder(LOCK).method}, "one (method) holds one.held (lock), and"),
        ({"f": uses(LOCK)}, "f (function) uses lock (lock), and"),
        ({"f": uses(Holder(LOCK))}, "f (function) uses lock.held (lock), and"),
        ({"f": uses(uses(LOCK))}, "f (function) uses lock (lock), and"),
        ({"part": functools.partial(print, LOCK)}, "part (partial) holds part.args[0] (lock), and"),
        (
            {"kind": type("Kind", (), {"lock": LOCK, "__module__": "__main__"})},
            "kind (class) holds kind.lock (lock), and",
        ),
        ({"several": deque([LOCK])}, "several (deque) holds several[0] (lock), and"),
        ((len, (1, LOCK), {}), "argument 2 (lock)"),
        ((len, (), {"key": LOCK}), "argument key (lock)"),
        ((uses(LOCK), (), {}), "the function uses lock (lock), and"),
        (LOCK, "A value of type lock"),
        ([1, [LOCK]], "[1] (list) holds [1][0] (lock), and"),
        ({"x" * 50: {"y" * 50: LOCK}}, f"{'x' * 50} (dict) holds {'x' * 50}['{'y' * 38}…] (lock), and"),
    ],
)
def test_what_holds_it_is_looked_through(value: Any, who: str) -> None:
    with pytest.raises(TransferError) as caught:
        pack(value)
    why = "cannot travel between the notebook and the ranks: TypeError: cannot pickle '_thread.lock' object"
    assert str(caught.value) == f"{who} {why}. {ELSE}"


@pytest.mark.parametrize(("value", "who"), [(threading.Thread(), "thread (Thread)"), (queue.Queue(), "queue (Queue)")])
def test_what_the_objects_of_a_library_hold_is_left_out(value: Any, who: str) -> None:
    name = who.partition(" ")[0]
    with pytest.raises(TransferError) as caught:
        pack({name: value})
    assert str(caught.value).startswith(who)
    assert "holds" not in str(caught.value)
    with pytest.raises(TransferError, match=rf"^mine \(Holder\) holds mine\.held \({type(value).__name__}\), and "):
        pack({"mine": Holder(value)})


def test_functions_that_call_each_other_are_looked_through() -> None:
    scope: dict[str, Any] = {"lock": LOCK, "__name__": "__main__"}
    exec("def one(): return two()\ndef two(): return one(), lock\ndef out(*, x=lock): pass", scope)  # noqa: S102
    for name, uses in (("one", "lock"), ("two", "lock"), ("out", "x")):
        with pytest.raises(TransferError, match=rf"^{name} \(function\) uses {uses} \(lock\), and cannot"):
            pack({name: scope[name]})


class Widget:
    def __reduce__(self) -> Any:
        raise TypeError("no")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (uses(LOCK), "Define it in a %%distributed cell, with everything that it uses."),
        (Holder, ""),
        (LOCK, "Make it in a %%distributed cell, or push what it is made of."),
        (Widget(), "It belongs to the page: make one in a %%distributed cell, or push its value, it.value."),
        ((one for one in [1]), "Send what it yields, as a list."),
    ],
)
def test_what_was_to_go_to_the_ranks_can_be_made_there(value: Any, said: str) -> None:
    if not said:
        pack({"it": value}, to_ranks=True)
        return
    with pytest.raises(TransferError) as caught:
        pack({"it": value}, to_ranks=True)
    assert str(caught.value).endswith(f". {said}")


class MadeOnTheFly:
    def __getstate__(self) -> Any:
        return {"lock": threading.Lock()}


def test_what_is_made_while_it_is_pickled_has_no_way_to_it() -> None:
    with pytest.raises(TransferError, match=r"^fine and made cannot travel .*TypeError: cannot pickle '_thread.lock'"):
        pack({"fine": 1, "made": MadeOnTheFly()})


def test_what_is_nested_too_deep_is_named_as_a_whole() -> None:
    deep: Any = LOCK
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TransferError, match=r"^deep cannot travel .*recursion"):
        pack({"deep": deep})


def test_of_an_open_file_its_content_is_to_be_sent(tmp_path: Path) -> None:
    with (tmp_path / "notes").open("w") as notes, pytest.raises(TransferError, match=r"^notes \(open file\)") as caught:
        pack({"notes": notes})
    assert str(caught.value).endswith("Open it where it is needed, or send what is in it.")


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
        "only a part of a sharded tensor was sent; call full_tensor() on all ranks in a cell to get the whole."
    ]
    assert not pack({"a": torch.ones(4)}, notes=(none := []))[0].path
    assert none == []
