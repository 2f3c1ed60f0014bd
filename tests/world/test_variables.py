"""%distributed who and diff, in a real notebook: what the ranks have, where it differs, and nothing comes to harm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from .notebook import Cell, Notebook

pytestmark = pytest.mark.story  # of variables that come and go

VALUES = """\
%%distributed
import threading, numpy as np
torch.manual_seed(0)
x = torch.arange(12.0).reshape(3, 4)
if rank == 2:
    x[0, 2], x[1, 1] = 2.5, 9.0
same = torch.ones(2, requires_grad=True)
number, zero, empty = torch.tensor(1.5), 0.0 if rank else -0.0, torch.empty(0, 3)
truth = torch.tensor([True, rank == 1])
brain, wave = torch.ones(2, dtype=torch.bfloat16) * (1 + rank), torch.ones(2, dtype=torch.complex64).conj()
turned = torch.arange(6).reshape(2, 3).t()
sparse = torch.eye(3).to_sparse() * (1 + (rank == 3))
array, text = np.arange(3), "the quick brown fox " + ("leaps" if rank == 3 else "jumps")
config = {"lr": 0.1, "layers": [1, 2 + (rank == 1)], "who": {"a", "b"}}
lock, shapes = threading.Lock(), torch.zeros(2 + (rank == 1))
if rank == 3:
    only = "here"
def double(x): return 2 * x
globals()["odd name!"] = globals()["<b>"] = 1
"""

MODEL = """\
%%distributed
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


@pytest.fixture(scope="module")
def filled(four: Notebook) -> Notebook:
    """A world whose ranks have variables, most of them equal."""
    assert four.run("%distributed who").text == "the ranks have no variables yet\n"
    four.run(VALUES)
    four.run(MODEL)
    return four


def presences(cell: Cell) -> dict[str, str]:
    """What the second column says of each name."""
    header, *rows = cell.lines[1:]
    start, end = header.index("on the ranks"), header.index("type")
    # A row goes on in lines without a name.
    return {row.split("  ")[0]: row[start:end].rstrip() for row in rows if row[0] != " "}


def test_who_says_which_variables_are_equal_and_which_are_not(filled: Notebook) -> None:
    cell = filled.run("%distributed who")
    assert cell.lines[0] == (
        "21 variables on ranks 0-3; 11 equal; different: brain, config, shapes, sparse, text, truth, x, zero; "
        "missing somewhere: only; cannot be compared: lock; 2 imports left out (--imports)"
    )
    found = presences(cell)
    assert found.pop("lock") == "cannot be compared: cannot pickle '_thread.lock' object"
    assert {name: said for name, said in found.items() if said != "equal"} == {
        "x": "different: 0-1,3 | 2",
        "zero": "different: 0 | 1-3",
        "truth": "different: 0,2-3 | 1",
        "brain": "different on each rank",
        "sparse": "different: 0-2 | 3",
        "text": "different: 0-2 | 3",
        "config": "different: 0,2-3 | 1",
        "shapes": "different: 0,2-3 | 1",
        "only": "missing on 0-2",
    }
    assert {
        "same",
        "number",
        "empty",
        "wave",
        "turned",
        "array",
        "model",
        "optimizer",
        "double",
        "odd name!",
        "<b>",
    } <= set(found)
    assert not {"rank", "torch", "all_reduce", "In", "Out", "exit", "get_ipython"} & set(found)
    page = cell.outputs[0]["data"]["text/html"]
    assert "<table>" in page
    assert ">different: 0-1,3 | 2</td>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_who_lists_imports_where_they_are_asked_for(filled: Notebook) -> None:
    found = presences(filled.run("%distributed who --imports"))
    assert found["np"] == found["threading"] == "equal"
    assert filled.run("%distributed who np").lines[0] == "1 variable on ranks 0-3; all equal"


def test_who_takes_names_expressions_and_ranks(filled: Notebook) -> None:
    cell = filled.run("%distributed who x nothere config['layers'][1] rank -r 0,2")
    assert cell.lines[:2] == [
        "3 variables on ranks 0,2; 1 equal; different: x, rank",
        "nothere is not defined (ranks 0,2).",
    ]
    assert [line.split("  ")[0] for line in cell.lines[3:] if line[0] != " "] == ["x", "config['layers'][1]", "rank"]
    assert filled.run("%distributed who nothere").text == "nothere is not defined (ranks 0-3).\n"
    alone = filled.run("%distributed who x -r 2")
    assert alone.lines[0] == "1 variable on rank 2"
    assert "on the ranks" not in alone.text


DIFFS = """\
x
x (Tensor float32 (3, 4)), compared with rank 0:
ranks 1,3: equal to rank 0.
rank 2: 2 of 12 elements differ, first at [0, 2]: 2.5 here, 2.0 on rank 0; largest difference 4 (relative 0.8) at [1, 1].

x -r 0-1
x (Tensor float32 (3, 4)) is equal on ranks 0-1.

x -r 3
x (Tensor float32 (3, 4)) was read on rank 3 only, so there is nothing to compare it with.

x --atol 4 -r 0,2
x (Tensor float32 (3, 4)), compared with rank 0:
rank 2: equal to rank 0 within 4; largest difference 4 (relative 0.8) at [1, 1].

-r 0,1 x.sum() - 66
x.sum() - 66 (Tensor float32 ()) is equal on ranks 0-1.

zero
zero (float), compared with rank 0:
ranks 1-3: 0.0 here, -0.0 on rank 0.

brain -r 0,3
brain (Tensor bfloat16 (2,)), compared with rank 0:
rank 3: 2 of 2 elements differ, first at [0]: 4.0 here, 1.0 on rank 0; largest difference 3 (relative 3) at [0].

sparse -r 0,3
sparse (Tensor float32 (3, 3)), compared with rank 0:
rank 3: 1 of 3 parts differs; first .values()[0]: 2.0 here, 1.0 on rank 0 (3 of 3 elements differ there); largest difference 1 (relative 1) at .values()[0].

text
text (str), compared with rank 0:
ranks 1-2: equal to rank 0.
rank 3: the texts differ from position 20: …'k brown fox leaps' here, …'k brown fox jumps' on rank 0.

config
config (dict), compared with rank 0:
rank 1: 1 of 4 parts differs; first ['layers'][1]: 3 here, 2 on rank 0 (1 of 2 elements differs there); largest difference 1 (relative 0.5) at ['layers'][1].
ranks 2-3: equal to rank 0.

config["layers"] -r 0,2
config["layers"] (list) is equal on ranks 0,2.

shapes
shapes (Tensor float32 (2,)), compared with rank 0:
rank 1: Tensor float32 (3,) here, Tensor float32 (2,) on rank 0.
ranks 2-3: equal to rank 0.

only
only (str), compared with rank 3:
ranks 0-2: only is not defined.

model
model (DistributedDataParallel) is equal on ranks 0-3.
"""  # noqa: E501 - what is shown is a line


@pytest.mark.parametrize("shown", DIFFS.split("\n\n"), ids=lambda shown: shown.partition("\n")[0])
def test_diff(filled: Notebook, shown: str) -> None:
    line, _, said = shown.strip().partition("\n")
    assert filled.run(f"%distributed diff {line}").text.strip() == said


def test_a_model_of_which_one_rank_went_astray(filled: Notebook) -> None:
    filled.run("%%distributed\nif rank == 1:\n    with torch.no_grad(): model.module[1].weight[1, 0] = 0.5")
    assert presences(filled.run("%distributed who model optimizer")) == {
        "model": "different: 0,2-3 | 1",
        "optimizer": "different: 0,2-3 | 1",
    }
    said = filled.run("%distributed diff model").lines
    assert said[1].startswith("rank 1: 1 of 4 parts differs; first ['module.1.weight'][1, 0]: 0.5 here, ")
    assert "(1 of 4 elements differs there)" in said[1]
    assert said[2] == "ranks 2-3: equal to rank 0."
    part = filled.run("%distributed diff model.module[1].weight").lines
    assert part[1].startswith("rank 1: 1 of 4 elements differs, first at [1, 0]: 0.5 here, ")
    assert "first .param_groups[0]['params'][2][1, 0]" in filled.run("%distributed diff optimizer").text
    assert (
        filled.run("%%distributed\nbool(all_reduce(model(torch.ones(1, 2)).detach()).isfinite().all())").text
        == "[0-3] True\n"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%distributed diff nothere", "nothere is not defined (ranks 0-3)."),
        ("%distributed diff x[7]", "raises IndexError"),
        ("%distributed diff lock", "lock cannot be compared: cannot pickle '_thread.lock' object"),
        ("%distributed diff {'a': [lock]}", "cannot pickle '_thread.lock' object"),
        ("%distributed diff x = 1", "x = 1 is neither a name nor an expression (ranks 0-3)."),
        ("%distributed diff (x := 1)", "would assign a name"),
        (
            "%distributed diff all_reduce(x)",
            "all_reduce(x) needs other ranks; run it in a cell, and inspect the result (ranks 0-3).",
        ),
        ("%distributed diff barrier()", "barrier() needs other ranks"),
        ("%distributed diff 1 / 0", "ZeroDivisionError"),
        ("%distributed diff x --atol -1", "a number of at least 0"),
        ("%distributed diff x --atol nan", "a number of at least 0"),
        ("%distributed diff x --atol much", "invalid float"),
        ("%distributed diff x -r 7", "valid ranks are 0-3"),
        ("%distributed diff", "required"),
        ("%distributed who x -r", "expected one argument"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(filled: Notebook, line: str, said: str) -> None:
    shown = filled.run(line, fails=True)
    text = shown.error_text + shown.stream("stderr")
    assert said in text
    assert "Traceback" not in text
    assert filled.run("%%distributed\nx.shape[0], all_reduce(1)").text == "[0-3] (3, 4)\n"


SHARDS = """\
%%distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
mesh, grid = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
shards = distribute_tensor(torch.arange(16.0).reshape(8, 2), mesh, [Shard(0)])
hybrid, strayed = (distribute_tensor(torch.arange(8.0), grid, [Replicate(), Shard(0)]) for _ in range(2))
columns = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
if rank == 2:
    columns = type(columns).from_local(torch.ones(4, 1), mesh, [Shard(1)])
if rank == 3:
    strayed.to_local()[1] = 9
net = fully_shard(torch.nn.Linear(4, 6), mesh=mesh)
steps = torch.optim.Adam(net.parameters())
net(torch.ones(1, 4)).sum().backward()
steps.step()
"""


def test_shards_are_a_verdict_of_their_own_and_their_replicas_are_compared(filled: Notebook) -> None:
    filled.run(SHARDS)
    cell = filled.run("%distributed who shards net steps hybrid strayed columns mesh grid")
    assert (
        cell.lines[0]
        == "8 variables on ranks 0-3; 2 equal; sharded: shards, net, steps, hybrid; different: strayed, columns"
    )
    assert presences(cell) == {
        **dict.fromkeys(("shards", "net", "steps"), "sharded"),
        "hybrid": "sharded; replicas equal",
        "strayed": "sharded; different: 0-2 | 3",
        "columns": "sharded; different: 0-1,3 | 2",
        **dict.fromkeys(("mesh", "grid"), "equal"),
    }
    assert "this rank's part of (8, 2), S(0)" in cell.text
    one = ": each has its part of one layout"
    assert filled.run("%distributed diff net").text == f"net (FSDPLinear) is sharded on ranks 0-3{one}.\n"
    assert filled.run("%distributed diff hybrid").lines[0].endswith(f"{one}, and replicas of a part are equal.")
    assert filled.run("%distributed diff strayed").lines[1:] == [
        "ranks 1-2: sharded as on rank 0.",
        (
            "rank 3: 1 of 4 elements differs, first at [1]: 9.0 here, 5.0 on rank 1; "
            "largest difference 4 (relative 0.8) at [1]."
        ),
    ]
    assert filled.run("%distributed diff columns").lines[2] == (
        "rank 2: DTensor (4, 4) S(1) over (4,) ranks here, DTensor (4, 4) S(0) over (4,) ranks on rank 0."
    )
    refused = filled.run("%distributed diff shards.full_tensor()", fails=True).error_text
    assert "shards.full_tensor() needs other ranks" in refused
    filled.run("%%distributed\ndel shards, net, steps, hybrid, strayed, columns, mesh, grid")


def test_from_python(filled: Notebook) -> None:
    code = """\
from nbcomm.notebook.session import registry
session = registry.current()
rows = {row.name: row for row in session.who(["x", "only"])}
found = session.diff("x", ranks=[0, 1, 2])
print(rows["x"].verdict, rows["x"].groups, rows["x"].seen[0].shape, rows["only"].absent[1], len(session.who()) > 15)
print(found.equal, found.reference, found.outcomes[0].ranks, found.outcomes[0].found["first"]["index"])
print(session.diff("config['lr']").equal, session.who("x", "2")[0].verdict)
import sys
print("torch" in sys.modules)
"""
    assert filled.run(code).lines == [
        "different ((0, 1, 3), (2,)) (3, 4) only is not defined True",
        "False 0 (2,) [0, 2]",
        "True alone",
        "False",
    ]


def test_a_thousand_variables_are_no_matter(filled: Notebook) -> None:
    filled.run("%%distributed\nfor i in range(1000): globals()[f'v{i:04}'] = [i, torch.ones(3) * i, 'x' * i]")
    began = time.monotonic()
    cell = filled.run("%distributed who")
    assert time.monotonic() - began < 50  # 0.5 s where the machine is not busy
    assert presences(cell)["v0999"] == "equal"
    filled.run("%%distributed\nfor i in range(1000): del globals()[f'v{i:04}']")


def test_a_large_tensor_is_hashed_where_it_lies_and_nothing_of_it_stays(filled: Notebook) -> None:
    """256 MB, once with rows that follow each other and once turned."""
    filled.run("%%distributed -r 0,1\nbig = torch.zeros(8192, 8192)\nbig[7, 5] = rank\nturned_big = big.t()")
    peak = "int(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]) // 1024"
    filled.run(f"%%distributed -r 0,1\nopen('/proc/self/clear_refs', 'w').write('5')\npeak = {peak}")
    cell = filled.run("%distributed who big turned_big -r 0,1")
    assert set(presences(cell).values()) == {"different: 0 | 1"}
    grown = filled.run(f"%%distributed -r 0,1\nprint({peak} - peak < 128)")
    assert grown.text == "[0-1] True\n"
    assert "first at [5, 7]: 1.0 here, 0.0 on rank 0" in filled.run("%distributed diff turned_big -r 0,1").text
    code = (
        "from nbcomm.notebook.session import registry\n"
        "[file for file in registry.current().home.bulk.iterdir() if file.is_file()]"
    )
    assert filled.run(code).text == "[]\n"
    filled.run("%%distributed -r 0,1\ndel big, turned_big, peak")


def begin(notebook: Notebook, line: str) -> Cell:
    """Run a line that takes long, and shows nothing."""
    cell = notebook.submit(line)
    notebook.until(lambda: cell.number > 0, 60, "the cell did not begin", cell)
    time.sleep(0.5)  # until the ranks are at it; what comes earlier must end it all the same
    return cell


@pytest.mark.parametrize("word", ["who", "diff"])
def test_a_long_look_can_be_interrupted(filled: Notebook, word: str) -> None:
    filled.run("%%distributed\nlong = torch.zeros(1).expand(1 << 44)")
    cell = begin(filled, f"%distributed {word} long")
    filled.interrupt()
    filled.finish(cell)
    assert "KeyboardInterrupt" in cell.error_text
    assert filled.run("%distributed status").text.count("idle") >= 4
    assert filled.run("%%distributed\ndel long\nall_reduce(rank)").text == "[0-3] 6\n"


def test_broken_groups_a_lost_rank_a_lost_notebook_and_a_world_of_one(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook("%distributed start -n 2")
    notebook.run("%%distributed\nx = rank\nbarrier() if rank else 1 / 0", fails=True)
    assert "different: 0 | 1" in notebook.run("%distributed who x").text
    pid = int(notebook.run("%%distributed -r 1\nimport os\nprint(os.getpid())").lines[0].split()[1])
    notebook.run("%%distributed\nlong = torch.zeros(1).expand(1 << 44)")
    cell = begin(notebook, "%distributed diff long")
    os.kill(pid, signal.SIGKILL)
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error is not None
    refused = notebook.run("%distributed who x", fails=True)
    assert "Rank 1 was killed by SIGKILL; nothing was run. Type %distributed heal" in refused.error_text
    assert notebook.run("%distributed who x -r 0").lines[0] == "1 variable on rank 0"
    notebook.run("%distributed heal")
    assert notebook.run("%distributed diff x").text == "x (int), compared with rank 0:\nrank 1: x is not defined.\n"
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    notebook.run("%%distributed\nlong = torch.zeros(1).expand(1 << 44)")
    notebook.run("from nbcomm.notebook.session import registry")
    identity = notebook.run("print(registry.current().home.id)").text.strip()
    begin(notebook, "%distributed who long")
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()
    notebook.run(f"%load_ext nbcomm\n%distributed attach {identity}")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n", "nobody waits for the look any more"
    notebook.run("%distributed stop")
    notebook.run("%distributed start -n 1")
    notebook.run("%%distributed\nx = 1.5")
    alone = notebook.run("%distributed who").lines
    assert alone == ["1 variable on rank 0", "name  type   size  value", "x     float  8 B   1.5"]
    assert "nothing to compare it with" in notebook.run("%distributed diff x").text


SCARCE = """\
%%distributed -r 1
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
kept = 5
"""


def test_what_a_rank_has_no_memory_for_is_refused_and_its_variables_are_kept(four: Notebook) -> None:
    """The bytes travel within the message, not in a file."""
    before = four.run("%%distributed\nimport os\nos.getpid()").text
    four.run(SCARCE)
    four.run("large = b'x' * (96 << 20)")
    cell = four.run("%distributed push large", fails=True)
    assert "Rank 1 had not enough memory for the 100,663," in cell.error_text
    assert "not done. The variables of the rank are kept." in cell.error_text
    assert "bug" not in cell.error_text
    assert four.run("%%distributed\nos.getpid()").text == before
    assert four.run("%%distributed -r 1\nkept, 'large' in globals()").text == "[1] (5, False)\n"
    assert four.run("%%distributed -r !1\nlen(large)").text == f"[0,2-3] {96 << 20}\n"
    four.run("large = b'x' * 300")
    four.run("%distributed push large")
    assert four.run("%%distributed\nlen(large)").text == "[0-3] 300\n"
    four.run("%%distributed -r 1\nresource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)")
