"""A refusal's traceback ends where the user has called."""

from __future__ import annotations

import inspect
import sys
import traceback
from contextlib import contextmanager
from typing import Any

import pytest

from nbcomm.comm import Communicator
from nbcomm.errors import CollectiveError, InternalError, OpError
from nbcomm.rank.cells.tracebacks import end_at_caller, modules_by_file
from nbcomm.rank.collectives.journal import Journal


def module(name: str, code: str, **names: Any) -> dict[str, Any]:
    """What a module of such a name would have."""
    names["__name__"] = name
    exec(code, names)  # noqa: S102 - frames tell their module by its name
    return names


def in_module(name: str, code: str, **names: Any) -> Any:
    """A function ``f`` of a module of such a name."""
    return module(name, code, **names)["f"]


USER = module("__main__", "def cell(call):\n    helper(call)\ndef helper(call):\n    call()")


def functions(error: BaseException, call: Any) -> list[str]:
    """The functions of the traceback of what a cell raises, this one left out."""
    with pytest.raises(type(error)) as caught:
        USER["cell"](call)
    end_at_caller(caught.value)
    return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:]


@pytest.mark.parametrize("error", [CollectiveError("no"), OpError("no")])
def test_frames_of_nbcomm_and_torch_are_left_out(error: Exception) -> None:
    refuse = in_module("nbcomm.comm.member", "def f():\n    raise error", error=error)
    torchs = in_module("torch.distributed", "def f():\n    refuse()", refuse=refuse)
    assert functions(error, torchs) == ["cell", "helper"]


def test_frames_of_the_user_behind_them_stay() -> None:
    error = CollectiveError("no")
    refuse = in_module("nbcomm.comm.member", "def f():\n    raise error", error=error)
    back = in_module("nbcomm.rank.order", "def f():\n    user['helper'](refuse)", user=USER, refuse=refuse)
    assert functions(error, back) == ["cell", "helper", "f", "helper"]


def test_a_context_of_ours_is_left_out_with_its_helper() -> None:
    refuse = in_module("nbcomm.rank.order", "def f():\n    raise error\n    yield", error=CollectiveError("no"))
    cell = in_module("__main__", "def f():\n    with turn(): pass", turn=contextmanager(refuse))
    assert functions(CollectiveError("no"), cell) == ["cell", "helper", "f"]


@pytest.mark.parametrize("error", [InternalError("oh"), ValueError("no"), KeyboardInterrupt()])
def test_other_errors_keep_their_frames(error: BaseException) -> None:
    theirs = in_module("nbcomm.comm.member", "def f():\n    raise error", error=error)
    assert functions(error, theirs) == ["cell", "helper", "f"]


def test_where_nobody_else_is_nothing_is_left_out() -> None:
    error = CollectiveError("no")
    in_module("nbcomm.rank.link", "def f():\n    try: raise error\n    except Exception: pass", error=error)()
    end_at_caller(error)
    assert len(traceback.extract_tb(error.__traceback__)) == 1
    end_at_caller(None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("broadcast(1, root=0)", "broadcast() got an unexpected keyword argument 'root'; did you mean src? It is"),
        ("gather(1, src=0)", "gather() got an unexpected keyword argument 'src'; did you mean dst?"),
        (
            "all_reduce(1, reduce_op='sum')",
            "did you mean op? It is called as all_reduce(data, op='sum', ",
        ),
        ("all_reduce(tensor=1)", "did you mean data?"),
        ("all_gather(1, mod='cat')", "did you mean mode?"),
        ("barrier(xyz=1)", "got an unexpected keyword argument 'xyz'. It is called as barrier(name=None, timeout=None"),
        ("send(1)", "send() missing 1 required positional argument: 'dst'. It is called as send(data, dst, tag=0"),
        (
            "isend(1)",
            "isend() missing 1 required positional argument: 'dst'. It is called as isend(data, dst, tag=0",
        ),
        ("barrier(1, 2, 3)", "barrier() got too many arguments by position. It is called as barrier(name=None, "),
    ],
)
def test_a_call_that_does_not_fit_ends_at_its_line_and_is_told_how_it_is_made(call: str, said: str) -> None:
    comm = Communicator(rank=0, world_size=1)
    comm.journal = Journal(lambda: None)
    cell = module("__main__", f"def cell(_):\n    comm.{call}", comm=comm)["cell"]
    with pytest.raises(TypeError) as caught:
        cell(None)
    end_at_caller(caught.value)
    assert said in str(caught.value)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == ["cell"]
    before = str(caught.value)
    end_at_caller(caught.value)
    assert str(caught.value) == before, "once"


@pytest.mark.parametrize(
    "code",
    [
        "class Mine:\n    def broadcast(self): pass\nMine().broadcast(root=0)",
        "class Member:\n    def rank_print(self, x): pass\nMember().rank_print()",
        "class Mine: pass\nMine(1)",
        "object.__init__(object(), 1)",
        "int.from_bytes()",
    ],
)
def test_a_call_of_the_users_own_that_does_not_fit_stays_as_it_is(code: str) -> None:
    with pytest.raises(TypeError) as caught:
        exec(code, {"__name__": "__main__"})  # noqa: S102
    before = str(caught.value)
    end_at_caller(caught.value)
    assert str(caught.value) == before


def test_which_module_a_file_is_of_is_looked_up_once_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    here, plain, asked = sys._getframe(), inspect.getmodule, []

    def count(thing: Any, filename: str | None = None) -> Any:
        asked.append(thing)
        return plain(thing, filename)

    monkeypatch.setattr(inspect, "getmodule", count)
    cell = compile("def f(): pass", "<a cell>", "exec")
    things = here, here.f_code, cell, cell, inspect, Any
    modules = [plain(thing) for thing in things]
    with modules_by_file():
        assert [inspect.getmodule(thing) for thing in things] == modules
        asked.clear()
        assert [inspect.getmodule(thing) for thing in things] == modules
    assert asked == [inspect, Any], "what is no code has no file to be known by"
    assert inspect.getmodule is count
