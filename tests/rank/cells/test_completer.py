"""Completions and docs, of namespaces as odd as people make them."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.rank.cells import completer
from nbcomm.rank.cells.completer import TYPES, Enough, Insight

Make = Callable[..., Insight]


@pytest.fixture(scope="module")
def ipython() -> Iterator[InteractiveShell]:
    """A shell, which is gone afterwards: other tests are about a Python without one."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def make(ipython: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an insight into a namespace of these variables."""
    shell = ipython

    def made(**namespace: Any) -> Insight:
        given = {"all_reduce": all_reduce, "rank": 3, "comm": types.SimpleNamespace(size=4)}
        monkeypatch.setattr(shell, "user_ns", {"__builtins__": builtins, **given, **namespace})
        return Insight(shell)

    return made


def all_reduce(data: Any, op: str = "sum") -> Any:
    """Combine everybody's data."""
    return data, op


def found(knows: Insight, code: str, cursor: int | None = None) -> list[str]:
    """The completions, each as the whole text that the cell has then up to the cursor."""
    cursor = len(code) if cursor is None else cursor
    reply = knows.complete(code, cursor)
    assert reply["cursor_end"] == cursor
    assert [each["text"] for each in reply["metadata"][TYPES]] == reply["matches"]
    return [code[: reply["cursor_start"]] + match for match in reply["matches"]]


@pytest.mark.parametrize(
    ("code", "completed"),
    [
        ("some_n", "some_number"),
        ("x = some_n", "x = some_number"),
        ("all_re", "all_reduce"),
        ("comm.si", "comm.size"),
        ("all_reduce(1, o", "all_reduce(1, op="),
        ("text.upp", "text.upper"),
        ("table['k", "table['key one"),
        ("table['inner']['d", "table['inner']['deep"),
        ("'𝄞𝄞'; some_n", "'𝄞𝄞'; some_number"),
        ("ünïc", "ünïcode"),
        ("%timei", "%timeit"),
        ("%%tim", "%%time"),
        ("y = 1\ntext.upp", "y = 1\ntext.upper"),
        ("open('/usr/li", "open('/usr/lib/"),
        ("table['a.b", "table['a.b.c"),
        ("import os.pa", "import os.path"),
        ("print(\n  text.upp", "print(\n  text.upper"),
        ("%cd /us", "%cd /usr/"),
        ("for i in range(3):\n    text.upp", "for i in range(3):\n    text.upper"),
    ],
)
def test_how_code_goes_on(make: Make, code: str, completed: str) -> None:
    knows = make(some_number=1, text="x", table={"key one": 1, "a.b.c": 1, "inner": {"deep": 2}}, ünïcode=1)
    assert completed in found(knows, code)


def test_the_cursor_may_stand_anywhere(make: Make) -> None:
    knows = make(some_number=1)
    code = "first = 1\nsome_n + other\nlast = 2"
    assert "first = 1\nsome_number" in found(knows, code, code.index("_n") + 2)
    for cursor in range(len(code) + 1):
        found(knows, code, cursor)
    assert knows.complete(code, 1000)["cursor_end"] == len(code)
    assert knows.complete("", 0)["status"] == "ok"


def test_a_front_end_is_told_what_each_name_is(make: Make) -> None:
    knows = make(a_number=1, a_class=int, a_module=sys, a_function=all_reduce)
    kinds = {each["text"]: each["type"] for each in knows.complete("a", 1)["metadata"][TYPES]}
    assert kinds["a_number"] == "instance"
    assert kinds["a_class"] == "class"
    assert kinds["a_module"] == "module"
    assert kinds["a_function"] == kinds["all_reduce"] == kinds["abs"] == "function"
    assert kinds["await"] == "keyword"


class Odd:
    """Everything that an object can do wrong when it is looked at."""

    called: tuple[str, ...] = ()

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or ZeroDivisionError("no")

    def __dir__(self) -> list[str]:
        print("printed by __dir__")
        raise self.error

    def __getattr__(self, name: str) -> Any:
        raise self.error

    def __call__(self) -> None:
        Odd.called += ("called",)

    def __repr__(self) -> str:
        raise self.error

    @property
    def asked(self) -> Any:
        raise self.error


class OddKeys(dict[Any, Any]):
    def keys(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), RuntimeError("no"), AttributeError("no")])
def test_odd_objects_spoil_nothing(make: Make, error: BaseException) -> None:
    knows = make(odd=Odd(error), keys=OddKeys(), recursive=(loop := {}), od_fine=1)
    loop["itself"] = loop
    for code in ("odd.", "odd.asked.", "odd().", "odd['", "keys['", "odd(", "recursive['itself']['"):
        found(knows, code)
        knows.inspect(code, len(code) - 1)
    assert set(found(knows, "od")) == {"odd", "od_fine"}
    assert Odd.called == (), "nothing is called"


def test_what_is_to_end_ends_although_ipython_catches_everything(make: Make) -> None:
    knows = make(odd=Odd(Enough()))
    with pytest.raises(Enough):
        knows.complete("odd.", 4)
    assert "odd" in found(knows, "od")


def test_nothing_is_called_and_nothing_changes(make: Make) -> None:
    numbers, table = [1], {"a": 1}
    knows = make(numbers=numbers, table=table, odd=Odd())
    for code in (
        "numbers.append(2)\nnumbers.",
        "numbers += [2]\nnumbers.",
        "table['b'] = 2\ntable['",
        "table.clear()\ntable.",
        "del numbers\nnumbers.",
        "odd()\nodd().",
        "[odd() for _ in range(3)]\nnumbers.",
        "import this\nthis.",
    ):
        found(knows, code)
    assert (numbers, table, Odd.called) == ([1], {"a": 1}, ())
    assert "this" not in sys.modules


def test_a_long_cell_that_is_not_whole_takes_no_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    knows = make(text="x")
    parsed: list[str] = []
    parse = completer.ast.parse
    monkeypatch.setattr(
        completer.ast, "parse", lambda code, *args, **how: (parsed.append(code), parse(code, *args, **how))[1]
    )
    code = "y = 1\n" * 200 + "print(\n    text.upp"
    assert code + "er" in found(knows, code)
    assert len(parsed) < 40, "IPython would parse it once for each of its characters"


def test_a_namespace_and_a_dict_that_change_meanwhile(make: Make) -> None:
    keys: dict[str, int] = {"key": 1}
    knows = make(some_number=1, keys=keys)
    namespace, done = InteractiveShell.instance().user_ns, threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set():
            number += 1
            for changing in (namespace, keys):
                changing[f"other_{number % 1000}"] = number
                changing.pop(f"other_{(number * 7) % 1000}", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            assert "some_number" in found(knows, "some_n")
            assert "keys['key" in found(knows, "keys['k")
            assert knows.inspect("some_number", 3)["found"]
    finally:
        done.set()
        thread.join()


def test_what_is_deleted_is_gone(make: Make) -> None:
    class Big:
        """Stands for a tensor."""

    big = Big()
    knows, gone = make(big=big), weakref.ref(big)
    assert "big" in found(knows, "bi")
    assert "big.__doc__" in found(knows, "big.__d")
    assert knows.inspect("big", 2)["found"]
    del InteractiveShell.instance().user_ns["big"], big
    gc.collect()
    assert gone() is None


def test_warnings_filters_stay_as_they_are(make: Make) -> None:
    before = list(warnings.filters)
    knows = make(text="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "text.upper" in found(knows, "text.upp")
        assert knows.inspect("text", 2)["found"]
    assert list(warnings.filters) == before


@pytest.mark.parametrize("name", ["all_reduce", "own", "print", "%timeit", "text.upper"])
def test_what_a_name_is(make: Make, name: str) -> None:
    reply = make(own=all_reduce, text="x").inspect(f"{name}(1)", len(name))
    assert reply["found"]
    assert set(reply["data"]) == {"text/plain"}
    assert "Docstring" in reply["data"]["text/plain"]


def test_source_with_two_question_marks_and_nothing_for_what_is_not_there(make: Make) -> None:
    knows = make()
    assert "return" in knows.inspect("all_reduce", 5, 1)["data"]["text/plain"]
    assert "return" not in knows.inspect("all_reduce", 5, 0)["data"]["text/plain"]
    for code in ("", "not_there", "not.there", "((", "1 +"):
        assert knows.inspect(code, len(code)) == {"status": "ok", "found": False, "data": {}, "metadata": {}}


def test_ones_own_name_wins(make: Make) -> None:
    assert "int" in make(all_reduce=5).inspect("all_reduce", 3)["data"]["text/plain"]


def test_modules_of_torch_are_looked_through(make: Make) -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": nn.Linear(1, 1)}))
    knows = make(model=model)
    assert "model[0].weight" in found(knows, "model[0].wei")
    assert "model[1]['a'].weight.sum" in found(knows, "model[1]['a'].weight.su")
