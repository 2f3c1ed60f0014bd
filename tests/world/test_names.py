"""The names of a cell: what a plain kernel does with its own, ranks do."""

from __future__ import annotations

import pytest

from .notebook import Notebook

SAME = {
    "a builtin is replaced": (
        "import builtins\nplain = builtins.print\ndef typed_before(): print('from a function')",
        "builtins.print = lambda *words: plain('replaced', *words)\nprint(1)\ntyped_before()",
        "builtins.print = plain",
    ),
    "a builtin is added": ("import builtins", "builtins.added = 1; added", "del builtins.added"),
    "a builtin is patched": (
        "from unittest import mock\ndef asks(): return input('?')",
        "with mock.patch('builtins.input', return_value='patched'): seen = input(), asks()\nseen",
        "",
    ),
    "a name is deleted": ("", "print = 5\ndel print\nprint(1)", ""),
    "eval and exec": ("x = 3", "exec('y = x + 1')\neval('x + y'), globals()['y'], __builtins__ is builtins", ""),
}
"""What comes before, a cell, and what puts it right."""


@pytest.mark.parametrize("what", SAME)
def test_it_is_as_in_the_notebooks_own_kernel(four: Notebook, what: str) -> None:
    before, cell, after = SAME[what]
    texts = []
    for magic in ("", "%%distributed -r 2\n"):
        four.run(f"{magic}import builtins\n{before}")
        ran = four.run(f"{magic}{cell}")
        texts.append([line.removeprefix("[2] ") for line in ran.lines])
        four.run(f"{magic}{after or 'pass'}")
    assert texts[0] == texts[1] != []


def test_all_sees_them_that_reads_globals(four: Notebook) -> None:
    # As pandas' queries and numexpr do: they look into the frame that calls them.
    code = """\
%%distributed
import cloudpickle, sys
def asks(): return rank, world_size
sys._getframe().f_globals["rank"], eval("rank"), globals()["rank"], cloudpickle.loads(cloudpickle.dumps(asks))()"""
    assert four.run(code).lines == [f"[{rank}] ({rank}, {rank}, {rank}, ({rank}, 4))" for rank in range(4)]


def test_they_are_no_variables_of_the_users(four: Notebook) -> None:
    four.run("%%distributed\n%reset -f")
    assert four.run("%%distributed\nmine = 1\n%who").text.split() == ["[0-3]", "mine"]
    four.run("%%distributed\nreduce = 2\n")
    assert "reduce" in four.run("%distributed who").text
    four.run("%%distributed\ndel reduce")
    assert "reduce" not in four.run("%distributed who").text
    assert four.run("%%distributed\n%reset -f\n").text == ""
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


PUSHED = """\
rank, x = 77, "the notebook's"
scale = 10
def f(): return rank, world_size, x, scale
def sums(): return all_reduce(torch.ones(1)).item()
class Scaled(dict):
    def times(self): return self["n"] * rank * scale
import functools
part, scaled = functools.partial(f), Scaled(n=1)
"""


def test_a_pushed_function_lives_on_the_rank(four: Notebook) -> None:
    four.run(PUSHED)
    four.run("%%distributed\nx = f'{rank}s'")
    four.run("%distributed push f sums part scaled")
    shown = four.run("%%distributed\nf() == part() == (rank, 4, f'{rank}s', 10), sums(), scaled.times() == 10 * rank")
    assert shown.text == "[0-3] (True, 4.0, True)\n"
    assert four.run("%%distributed\nx = 'later'\nf()[2], rank == comm.rank").text == "[0-3] ('later', True)\n"
    assert four.run("rank, x").text.rstrip() == '(77, "the notebook\'s")'


def test_a_pushed_module_trains_with_the_ranks_names(four: Notebook) -> None:
    four.run("""\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x): return all_reduce(self.layer(x).detach()) * 0 + rank
net = Net()""")
    four.run("%distributed push net Net")
    assert four.run("%%distributed\nnet(torch.ones(1, 2)).item(), Net()(torch.ones(1, 2)).item()").lines == [
        f"[{rank}] ({rank}.0, {rank}.0)" for rank in range(4)
    ]
