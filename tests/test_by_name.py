"""Functions that are called by their names, and classes that are found by theirs."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import pytest
import torch

from nbcomm.by_name import ByName, values
from nbcomm.comm.transport import packets
from nbcomm.errors import TransferError
from nbcomm.protocol.payload import pack, unpack


def refusing(number: int) -> int:
    if number > 1:
        raise TransferError("No number above 1 travels.")
    return number


def on_a_rank(number: int) -> object:
    return pickle.loads(pickle.dumps(ByName(f"{__name__}.refusing")))(number)


def test_what_it_returns_comes_back() -> None:
    assert values([on_a_rank(0), on_a_rank(1)]) == [0, 1]  # type: ignore[list-item]


def test_what_it_refuses_is_raised_as_there() -> None:
    with pytest.raises(TransferError, match="No number above 1"):
        values([on_a_rank(0), on_a_rank(2)])  # type: ignore[list-item]


def test_it_is_not_called_here() -> None:
    with pytest.raises(NotImplementedError, match="on ranks only"):
        ByName("nbcomm.measures.times.of_copy")(8)


# ── classes that are typed in cells ─────────────────────────────────────────────────────────────────


class Process:
    """One of several processes: a module that stands for the __main__ of one, with cells that it has run."""

    def __init__(self, *cells: str) -> None:
        self.main = types.ModuleType("__main__")
        for cell in cells:
            exec(cell, vars(self.main))  # noqa: S102 - as a kernel runs it

    def sends(self, code: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "__main__", self.main)
            return pack(eval(code, vars(self.main)))  # noqa: S307

    def gets(self, sent: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "__main__", self.main)
            return unpack(*sent)

    def has(self, name: str, value: Any) -> None:
        setattr(self.main, name, value)


RECORD = "import dataclasses\n@dataclasses.dataclass\nclass R:\n    v: int"
CELLS = [
    (RECORD, "R(5)"),
    ("import enum\nclass R(enum.Enum):\n    A = 1", "R.A"),
    ("class R(dict):\n    @property\n    def one(self): return 1", "R(a=1)"),
    ("class Base: pass\nclass R(Base):\n    def __eq__(self, other): return type(self) is type(other)", "R()"),
]


@pytest.mark.parametrize(("cell", "value"), CELLS)
def test_an_instance_is_one_of_the_receivers_class(cell: str, value: str) -> None:
    ranks = [Process(cell), Process(cell)]
    for receiver in (Process(cell), Process()):
        one, other = (receiver.gets(rank.sends(value)) for rank in ranks)
        assert one == other
        assert type(one) is type(other)
        assert type(one) is getattr(receiver.main, "R", type(one))
        receiver.has("both", [one, other])
        for rank in ranks:
            back = rank.gets(receiver.sends("both"))
            assert [type(each) for each in back] == [rank.main.R] * 2


def test_one_class_with_other_words_is_another_one() -> None:
    notebook = Process()
    old, new = (notebook.gets(Process(cell).sends("R(5)")) for cell in (RECORD, f"{RECORD}\n    w: int = 0"))
    assert type(old) is not type(new)
    assert (repr(old), repr(new)) == ("R(v=5)", "R(v=5, w=0)")
    marked = [notebook.gets(Process(f"class R:\n    rank = {rank}").sends("R()")) for rank in (0, 1)]
    assert [each.rank for each in marked] == [0, 1]


def test_an_instance_of_an_earlier_class_of_that_name_is_none_of_the_later_one() -> None:
    rank = Process(RECORD, "old = R(5)", RECORD)
    arrived = Process(RECORD).gets(rank.sends("[old, R(5)]"))
    assert type(arrived[0]) is not type(arrived[1])


def test_a_class_that_is_sent_itself_or_used_by_a_function_is_the_senders() -> None:
    rank = Process("class R:\n    new = False")
    notebook = Process("class R:\n    new = True\ndef use(): return R.new")
    assert rank.gets(notebook.sends("{'one': R(), 'R': R}"))["R"].new
    assert rank.gets(notebook.sends("use"))()
    assert rank.gets(notebook.sends("R"))  # a value, too
    assert rank.gets(notebook.sends("R()")).new is False


def test_classes_of_a_factory_stay_apart() -> None:
    rank = Process("def make(n):\n    class R:\n        def f(self): return n\n    return R")
    one, two = Process().gets(rank.sends("[make(1)(), make(2)()]"))
    assert (one.f(), two.f()) == (1, 2)


def test_beside_what_pickle_alone_cannot_send_it_is_the_receivers_too() -> None:
    rank = Process(RECORD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", rank.main)
        sent = packets.pack([eval("lambda: 1", vars(rank.main)), rank.main.R(5)], lambda _: True)  # noqa: S307
        other = Process(RECORD)
        patch.setitem(sys.modules, "__main__", other.main)
        assert type(sent.open(torch.device("cpu"))[1]) is other.main.R
