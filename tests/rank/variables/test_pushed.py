"""What was typed in the notebook lives on a rank as if it was typed there."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest

from nbcomm.errors import TransferError
from nbcomm.protocol.payload import pack, unpack
from nbcomm.rank.variables import pushed


def arrives(code: str, rank: dict[str, Any], *names: str) -> Any:
    """Push what code in the notebook has made, and return the rank's namespace then."""
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(code, notebook)  # noqa: S102 - as a cell
    blob, frames = pack({name: notebook[name] for name in names})
    rank.setdefault("__builtins__", {})
    rank.update(unpack(blob, frames, functools.partial(pushed.load, namespace=rank)))
    return types.SimpleNamespace(**rank)


def test_a_function_sees_the_ranks_names_and_not_the_notebooks() -> None:
    rank = {"rank": 3, "x": "the rank's"}
    f = arrives("rank = 77; x = 'the notebook\\'s'\ndef f(): return rank, x, world_size", rank, "f").f
    rank["world_size"] = 4  # what comes later is seen, too
    assert f() == (3, "the rank's", 4)
    rank["x"] = "changed"
    assert f() == (3, "changed", 4)
    assert set(rank) == {"__builtins__", "rank", "x", "world_size", "f"}


def test_what_it_uses_and_the_rank_lacks_comes_along() -> None:
    rank: dict[str, Any] = {}
    code = "import math\nunused = 1\nhalf = 2\ndef g(x): return math.floor(x / half)\ndef f(x): return g(x) + 1"
    assert arrives(code, rank, "f").f(5) == 3
    assert set(rank) == {"__builtins__", "math", "half", "g", "f"}
    assert rank["__builtins__"] == {}, "cloudpickle would put its own there"


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("import functools\ndef g(y): return rank + y\nf = functools.partial(g, 1)", "f()"),
        ("class A:\n  def m(self): return rank + 1\nf = A().m", "f()"),
        ("class A:\n  def m(self): return rank + 1\nf = A", "f().m()"),
        (
            "class A:\n  def m(self): return rank + 1\nclass B(A):\n  def m(self): return super().m()\nf = B()",
            "f.m()",
        ),
        ("async def f(): return rank + 1\n", "__import__('asyncio').run(f())"),
        ("def made(n):\n  def f(): return rank + n\n  return f\nf = made(1)", "f()"),
        ("f = [lambda: rank + 1]", "f[0]()"),
        ("def f(n=1): return sum([rank for _ in range(1)]) + n", "f()"),
    ],
    ids=["partial", "method", "class", "object", "coroutine", "closure", "nested", "comprehension"],
)
def test_all_kinds_of_code_do(code: str, made: str) -> None:
    rank: dict[str, Any] = {"rank": 3, "__builtins__": __builtins__}
    arrives(code, rank, "f")
    assert eval(made, rank) == 4  # noqa: S307


def test_its_global_statement_is_about_the_ranks_variable() -> None:
    rank: dict[str, Any] = {"count": 5}
    arrives("count = 0\ndef f():\n  global count\n  count += 1", rank, "f").f()
    assert rank["count"] == 6


class Broken:
    """Cannot be rebuilt."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_cannot_be_rebuilt_leaves_nothing() -> None:
    rank: dict[str, Any] = {"__builtins__": {}}
    notebook: dict[str, Any] = {"__name__": "__main__", "Broken": Broken}
    exec("helper = 1\ndef f(): return helper\nboth = [f, Broken()]", notebook)  # noqa: S102
    blob, frames = pack(notebook["both"])
    with pytest.raises(TransferError, match="no number"):
        unpack(blob, frames, functools.partial(pushed.load, namespace=rank))
    assert set(rank) == {"__builtins__"}


def test_arrays_travel_as_ever() -> None:
    np = pytest.importorskip("numpy")
    blob, frames = pack({"a": np.arange(5)})
    got = unpack(blob, frames, functools.partial(pushed.load, namespace={}))
    got["a"][0] = 9
    assert got["a"].tolist() == [9, 1, 2, 3, 4]
