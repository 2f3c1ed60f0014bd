"""What a cell called, found from within a call, and the sentence that is made of it."""

from __future__ import annotations

import re
import sys
import threading
import types
from typing import Any

import pytest
import torch

from nbcomm.comm.collective import collective
from nbcomm.comm.transport.packets import HEAD_BYTES
from nbcomm.rank.collectives import call_site
from nbcomm.rank.collectives.fingerprints import place, words_of


class Journal:
    """Carries out what it is given, as the real one does."""

    def carry_out(self, _: str, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return method(*args, **kwargs)


def _named(name: str, function: Any) -> Any:
    return types.FunctionType(function.__code__, function.__globals__, name)


class Caller:
    """Has methods like a Communicator's, which return what a process group below them would put on the board."""

    journal = Journal()

    def __init__(self, scope: dict[str, Any] | None) -> None:
        self.scope = scope

    def _group(self) -> bytes:
        return call_site.here(self.scope).block

    def call(self, *_: Any, **__: Any) -> str:
        def passed_on() -> bytes:
            return self._group()

        return words_of(passed_on()) or ""

    all_gather = collective(_named("all_gather", call))
    all_reduce = collective(_named("all_reduce", call))
    barrier = collective(_named("barrier", call))
    recv = collective(_named("recv", call))
    scatter = collective(_named("scatter", call))
    split_group = collective(_named("split_group", call))

    def all_gather_object(self) -> str:
        return self.call()


def of_cell(code: str, name: str = "<cell>") -> str:
    """Run a cell and return what its ``found`` is."""
    scope: dict[str, Any] = {"torch": torch}
    scope["comm"] = Caller(scope)
    exec(compile(code, name, "exec"), scope)  # noqa: S102 - it is written below
    return str(scope["found"])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("comm.call(1)", "|2"),
        ("comm.all_gather({'a': 1})", "all_gather of a dict|2"),
        ("comm.all_gather(data=[1])", "all_gather of a list|2"),
        ("comm.all_gather(1)", "all_gather of an int|2"),
        ("comm.all_gather(None)", "all_gather of None|2"),
        ("comm.all_gather(torch.ones(2, 3))", "all_gather of float32 (2, 3)|2"),
        ("comm.all_reduce(torch.ones(2))", "|2"),
        ("comm.scatter(items=('a', 'b'))", "scatter of a tuple|2"),
        ("comm.barrier()", "barrier|2"),
        ("comm.recv(3)", "recv|2"),
        ("comm.split_group('a color')", "split_group|2"),
        ("comm.all_gather()", "all_gather|2"),
        ("comm.all_gather_object()", "all_gather_object|2"),
        ("(lambda: comm.all_gather('a'))()", "all_gather of a str|2"),
        ("eval('comm.all_gather(1)')", "all_gather of an int|2"),
    ],
)
def test_a_cells_call_is_told_with_its_type_and_line(call: str, told: str) -> None:
    for _ in range(2):  # the second time from the cache
        assert of_cell(f"\nfound = {call}") == told


def test_one_place_may_call_different_things() -> None:
    code = "told = []\nfor x in (1, 'a', torch.ones(2)):\n  told.append(comm.all_gather(x))\nfound = told"
    assert of_cell(code) == str([f"all_gather of {what}|3" for what in ("an int", "a str", "float32 (2,)")])
    assert of_cell("found = comm.all_gather(1), comm.all_gather(1)\n") == str(("all_gather of an int|1",) * 2)


def test_what_no_cell_called_has_no_place() -> None:
    assert Caller(None).all_gather(1) == Caller({}).all_gather(1) == ""


def test_the_cache_does_not_grow_for_ever() -> None:
    for length in range(call_site._CACHED + 10):
        of_cell(f"found = comm.all_gather(torch.empty({length}, device='meta'))")
    assert len(call_site._cache) <= call_site._CACHED


def test_words_that_would_hide_the_difference_are_not_alone() -> None:
    head = f"uint8 ({HEAD_BYTES},)"
    told = call_site.in_words(
        {
            0: (f"broadcast({head}, src 0)", "broadcast of an int|1"),
            1: (f"broadcast({head}, src 1)", "broadcast of an int|1"),
            2: ("all_reduce(int64 (1,), max)", "reduce of an int|2"),
            3: ("", "|"),
        }
    )
    assert told == {
        0: "broadcast of an int (src 0), line 1",
        1: "broadcast of an int (src 1), line 1",
        2: "reduce of an int, line 2",
        3: "something else",
    }
    told = call_site.in_words(
        {0: ("all_reduce(int64 (1,), max)", "scan of an int|1"), 1: ("barrier()", "scan of an int|1")}
    )
    assert told == {
        0: "scan of an int (all_reduce(int64 (1,), max)), line 1",
        1: "scan of an int (barrier()), line 1",
    }


def test_the_name_is_the_cells() -> None:
    assert call_site.name_of("all_gather_into_tensor(uint8 (512,))", "all_gather of a dict|4") == "all_gather"
    assert call_site.name_of("all_reduce(float32 (2,), sum)", "|4") == "all_reduce"
    assert call_site.name_of("send of float32 (2,)", "") == "send"
    assert call_site.name_of("", "") == ""


def test_torchs_names_for_objects_are_torchs() -> None:
    import torch.distributed as dist

    assert all(hasattr(dist, name) for name in call_site._OBJECTS)
    assert set(call_site._OBJECTS) >= {name for name in dir(dist) if re.search("_object(_list)?$", name)}


def test_long_names_are_cut_and_still_read() -> None:
    assert (words_of(place("x" * 1000)) or "").startswith("xxx")


def test_a_thread_that_carries_out_what_a_cell_called_says_so() -> None:
    said = call_site.Said(b"", "all_gather of a dict", ("<cell>", 4))
    scope: dict[str, Any] = {}
    with call_site.carrying(said):
        assert call_site.here(scope) is call_site.carried() is call_site.carried(threading.get_ident()) is said
        with call_site.carrying(call_site.Said(b"", "barrier")):
            assert call_site.carried().what == "barrier"
        assert call_site.carried() is said
    assert not call_site._carried
    assert not call_site.carried().what


def test_what_a_frame_of_another_thread_is_in() -> None:
    frames: list[Any] = []
    scope: dict[str, Any] = {"look": lambda: frames.append(call_site.of_frame(sys._getframe(), scope))}
    exec(compile("\n\nlook()", "<cell>", "exec"), scope)  # noqa: S102 - it is written here
    assert call_site.of_frame(None, scope).place is None
    assert frames[-1].place == ("<cell>", 3)


def test_a_cells_code_is_kept_while_it_runs_and_not_by_whoever_looks() -> None:
    scope: dict[str, Any] = {}
    scope.update(here=lambda: call_site.here(scope), look=lambda: call_site.of_frame(sys._getframe(), scope))
    cell = compile("look()\nhere()", "<cell>", "exec")
    exec(cell, scope)  # noqa: S102 - it is written here
    assert [code for _, code, *_ in call_site._cache.values() if code is cell] == [cell]
    call_site.forget()
    assert not call_site._cache


def test_a_name_that_is_built_of_others_is_the_cells() -> None:
    exec(  # noqa: S102 - a module that counts as ours
        "def any_rank(comm): return comm.all_reduce(True)\ndef inside(comm): return comm.all_gather(True)\n"
        "def all_reduce(comm): return comm.all_reduce(torch.ones(2))\ndef call(comm): return comm.call()",
        ours := {"__name__": "nbcomm.comm.reductions", "torch": torch},
    )
    scope: dict[str, Any] = {"ours": ours}
    scope["comm"] = Caller(scope)
    for name, told in {
        "any_rank": "any_rank|1",
        "inside": "all_gather of a bool|1",
        "all_reduce": "|1",
        "call": "one_rank_only|1",
    }.items():
        exec(compile(f"found = ours[{name!r}](comm)", "<cell>", "exec"), scope)  # noqa: S102
        assert scope["found"] == told
