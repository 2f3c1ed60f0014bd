"""A result that nobody takes is told of once, and only where it is one of nbcomm's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from nbcomm.rank.cells.unused_results import UnusedResults


def shell(**own: Any) -> Any:
    ours = dict.fromkeys(("broadcast", "all_reduce", "all_gather", "scatter", "rank"), print)
    return SimpleNamespace(user_ns={**ours, **own}, user_ns_hidden=ours, input_transformer_manager=TransformerManager())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "y = 1\nbroadcast(y)\ny",
            "broadcast(y) in line 2 is not used: broadcast returns it; write y = broadcast(y), or call",
        ),
        ("broadcast(y);", "write y = broadcast(y)"),
        ("for x in xs:\n    all_reduce(x)", "all_reduce(x) in line 2"),
        ("%time 1\nif rank == 0:\n    scatter(items)", "write result = scatter(items)."),
        ("for p in model:\n    all_reduce(p.grad, 'mean')\n1", "write p.grad = all_reduce(p.grad, 'mean')"),
        ("all_reduce(loss['a'])\n1", "write loss['a'] = all_reduce(loss['a'])"),
        ("def f():\n    all_gather(x)\nf()", "write result = all_gather(x)."),
        ("all_reduce(rank)\n1", "write result = all_reduce(rank)."),
    ],
)
def test_it_is_told_with_its_line(code: str, said: str) -> None:
    results = UnusedResults()
    (told,) = results.explain(shell(), code)
    assert said in told
    assert told.startswith("the result of ")
    assert results.explain(shell(), code) == [], "once"


@pytest.mark.parametrize(
    "code",
    [
        "broadcast(y)",
        "y = broadcast(y)",
        "print(all_reduce(1))\n1",
        "dist.broadcast(y, 0)\n1",
        "barrier()\n1",
        "all_gather(f(x))\n1",
        "scatter()\n1",
        "all_reduce(x, out=x)\n1",
        "broadcast(",
        "# broadcast(y)\n1",
        "'''\nbroadcast(y)\n'''\n1",
        "send(1, 0)\n1",
        "[all_reduce(1) for _ in range(3)]\n1",
    ],
)
def test_what_is_used_or_shown_is_not(code: str) -> None:
    assert UnusedResults().explain(shell(), code) == []


def test_a_function_of_the_users_own_is_none_of_nbcomms() -> None:
    assert UnusedResults().explain(shell(broadcast=len), "broadcast(y)\n1") == []
