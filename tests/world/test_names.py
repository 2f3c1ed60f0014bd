"""The names of a cell: what a plain kernel does with its own, ranks do."""

from __future__ import annotations

import time

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


def test_a_variable_that_hides_a_name_is_marked_and_told_of_once(four: Notebook) -> None:
    told = "nbcomm: on ranks 0-3 your variable rank hides nbcomm's rank; type del rank to undo this."
    assert four.run("%%distributed\nrank = 5").text.flat == told
    assert (
        "\nrank hides that of nbcomm, which the next cell has again after: del rank\n"
        in four.run("%distributed who").text
    )
    assert four.run("%%distributed\nrank + all_ranks(True)").text == "[0-3] 6\n", "told once"
    four.run("%%distributed\ndel rank")
    assert four.run("%%distributed\nall_reduce(rank)").text == "[0-3] 6\n"
    four.run("rank, world_size = 5, 4")
    assert four.run("%distributed push rank world_size").text.flat == told, "the number of ranks is the same"
    failed = four.run("%%distributed\ndef third(): return [1, 2][rank]\nthird()", fails=True)
    assert failed.text == "", "told once"
    four.run("%%distributed\ndel rank, world_size, third")
    assert four.run("%%distributed\nfor rank in range(world_size): pass").text.flat == told.replace(
        "ranks 0-3", "ranks 0-2"
    )
    assert four.run("%%distributed\nfor rank in range(world_size): pass").text == "", "told once"
    four.run("%%distributed\ndel rank")


@pytest.mark.parametrize(
    "code", ["world_size = 4", "rank = dist.get_rank()", "import torch", "device = torch.device('cpu')"]
)
def test_a_variable_of_the_same_value_hides_nothing(four: Notebook, code: str) -> None:
    four.run(f"%%distributed\n{code}")
    shown = four.run("%%distributed\nall_ranks(bool(torch) and rank < world_size, device is device)", fails=True).text
    assert "hides" not in shown
    four.run("%reset -f")


def test_a_function_of_the_users_own_that_hides_a_collective_is_told_of_once(four: Notebook) -> None:
    told = "nbcomm: on ranks 0-3 your function gather hides nbcomm's gather; type del gather to undo this."
    assert four.run("%%distributed\ndef gather(x, y): return x + y").text.flat == told
    assert four.run("%%distributed\ngather(1, 2), all_reduce(1)").text == "[0-3] (3, 4)\n"
    assert four.run("%%distributed\ngather(1)", fails=True).text == ""
    four.run("%%distributed\ndel gather")


def test_what_a_name_that_may_be_a_good_one_hides_is_told_of_where_it_fails(four: Notebook) -> None:
    assert four.run("%%distributed\nsplit = 0.8\nall_reduce(1) * split").text == "[0-3] 3.2\n"
    shown = four.run("%%distributed\nsplit([1, 2])", fails=True).text.flat
    assert shown == "nbcomm: on ranks 0-3 your variable split hides nbcomm's split; type del split to undo this."
    four.run("%%distributed\ndel split")


def test_a_name_that_other_ranks_have_is_told_of_and_completed(four: Notebook) -> None:
    four.run("%%distributed -r 1,3\nonly_there = 1")
    error = four.run("%%distributed -r 0\nonly_there", fails=True).error_text
    assert error.endswith("Only ranks 1,3 have a variable only_there: set it on the other ranks, too.")
    deadline = time.monotonic() + 30
    while "only_there" not in _matches(four, "%%distributed\nonly_th"):
        assert time.monotonic() < deadline
    assert "only_there" not in _matches(four, "%%distributed -r 0,2\nonly_th")


def _matches(notebook: Notebook, code: str) -> list[str]:
    reply = notebook.client.complete(code, len(code), reply=True, timeout=30)["content"]
    return [str(match) for match in reply["matches"]]


def test_what_belongs_to_its_ranks_is_told_with_a_remedy_and_a_sharded_tensor_gives_its_part(four: Notebook) -> None:
    four.run("""\
%%distributed
from torch.distributed.fsdp import fully_shard
net = torch.nn.Linear(4, 4)
ddp = torch.nn.parallel.DistributedDataParallel(net)
sharded = torch.nn.Linear(4, 4)
fully_shard(sharded)
weight, state = sharded.weight, sharded.state_dict()""")
    assert "send the module in it, ddp.module" in four.run("%distributed pull ddp", fails=True).error_text
    assert "which sharded.state_dict() returns there" in four.run("%distributed pull sharded", fails=True).error_text
    pulled = four.run("%distributed pull weight state").text
    assert pulled.startswith("nbcomm: on ranks 0-3 only a part of 3 sharded tensors was sent; call full_tensor() on")
    shown = four.run("{(type(one).__name__, tuple(one.shape), one.requires_grad) for one in weight}").text
    assert shown.rstrip() == "{('Tensor', (1, 4), True)}"
    assert four.run("state[2]['bias'].shape").text.rstrip() == "torch.Size([1])"
