"""Whatever a cell leaves behind in torch, the next one works: its sums, and the groups and modules that were there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .notebook import Notebook, with_ranks

MAKE = """\
%%distributed
import datetime, os, signal, sys, threading, time
import torch.distributed._functional_collectives as funcol
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
short, last, kept = datetime.timedelta(seconds=0.4), world_size - 1, rank * 10
pair, mesh = dist.new_group([0, 1]), init_device_mesh("cpu", (world_size,))
ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
fsdp = fully_shard(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), mesh=mesh)

def summed(group=None):
    t = torch.ones(2)
    dist.all_reduce(t, group=group)
    return t.tolist()

def leave(call):
    try:
        call()
    except Exception as error:
        print("caught")

def cut(number):
    "Interrupt this rank at the so manieth line of torch's Python code for groups; 0 only counts them."
    global lines
    lines = 0
    def look(frame, event, _):
        global lines
        lines += event == "line"
        if event == "line" and lines == number:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGINT)
        return look
    sys.settrace(lambda frame, *_: look if frame.f_code.co_filename == c10d.__file__ else None)
"""

USE = """\
%%distributed
assert summed() == [world_size] * 2, summed()
if rank < 2: assert summed(pair) == [2, 2]
assert funcol.all_reduce(torch.ones(2), "sum", mesh).tolist() == [world_size] * 2
ddp.zero_grad(); fsdp.zero_grad()
ddp(torch.ones(1, 4) * (rank + 1)).sum().backward()
assert ddp.module.weight.grad.tolist() == [[(world_size + 1) / 2] * 4] * 4, ddp.module.weight.grad
fsdp(torch.ones(1, 4)).sum().backward()
fresh = dist.new_group([0, 1])
if rank < 2:
    assert summed(fresh) == [2, 2]
    dist.destroy_process_group(fresh)
if (own := globals().pop("own", None)) is not None:
    c10d._set_pg_timeout(datetime.timedelta(seconds=60), own)
    assert summed(own) == [world_size] * 2
(kept == rank * 10, all_reduce(1) == world_size)
"""

_BLOCK = "with dist._coalescing_manager():\n    dist.all_reduce(torch.ones(2))\n    1 / 0"
_ON_ONE = "if rank == 1:\n    " + _BLOCK.replace("\n", "\n    ")
_CLOSED = "the cell ended inside a block of dist._coalescing_manager(), whose calls were not carried out"

_ONE_GATHER = "dist.all_gather_into_tensor(torch.ones(2 * world_size), torch.ones(2))"

BLOCKS = {
    "on all ranks": (_BLOCK, "ZeroDivisionError"),
    "on one rank": (_ON_ONE, "[1] ZeroDivisionError"),
    "of a subgroup": (
        "if rank < 2:\n    with dist._coalescing_manager(pair, async_ops=True): summed(pair); raise SystemExit",
        "[0-1] SystemExit",
    ),
    "that cannot begin": ("with dist._coalescing_manager(device=torch.device('cpu')): pass", "RuntimeError"),
    "of others that gather": (
        f"with dist._coalescing_manager(): {_ONE_GATHER}; 1 / 0",
        "ZeroDivisionError",
    ),
    "caught": (f"def work():\n    {_BLOCK.replace(chr(10), chr(10) + '    ')}\nleave(work)", ""),
    "caught on one rank": (f"def work():\n    {_BLOCK.replace(chr(10), chr(10) + '    ')}\nif rank: leave(work)", ""),
    "never left": ("block = dist._coalescing_manager(); _ = block.__enter__()", ""),
    "of loss_parallel": (
        "from torch.distributed.tensor.parallel import loss_parallel\nwith loss_parallel(): 1 / 0",
        "ZeroDivisionError",
    ),
}

_LATE = "own = dist.new_group(timeout=short)\nif rank == last: time.sleep(1)\n"
_MANY = "[torch.ones(2) for _ in range(world_size)]"

TIMEOUTS = {
    "monitored_barrier": "if rank == last: time.sleep(1)\nleave(lambda: dist.monitored_barrier(timeout=short))",
    "a wait for a message": "if rank == 0: leave(lambda: dist.irecv(torch.ones(2), 1).wait(short))",
    "a message in a group": "own = dist.new_group(timeout=short)\n"
    "if rank == 0: leave(lambda: dist.recv(torch.ones(2), 1, group=own))",
    "the world's": (
        "c10d._set_pg_timeout(datetime.timedelta(milliseconds=1), dist.group.WORLD)\n"
        "if rank == last: time.sleep(1)\nleave(summed)\n"
        "c10d._set_pg_timeout(datetime.timedelta(seconds=60), dist.group.WORLD)"
    ),
    "in C++": _LATE + "leave(lambda: funcol.all_reduce(torch.ones(2), 'sum', own).sum().item())",
    "in C++, without a future": _LATE
    + "leave(lambda: funcol.reduce_scatter_tensor(torch.ones(2 * world_size), 'sum', 0, own).sum().item())",
    "nobody's": _LATE + "_ = dist.all_reduce(torch.ones(2), group=own, async_op=True); time.sleep(1)",
    "in a backward": "own = dist.new_group(timeout=short)\n"
    "other = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=own)\n"
    "if rank == last: time.sleep(1)\nleave(lambda: other(torch.ones(1, 4)).sum().backward())",
    "in a thread": _LATE
    + "work = threading.Thread(target=leave, args=(lambda: summed(own),)); work.start(); work.join()",
    "of objects": _LATE + "leave(lambda: dist.all_gather_object([None] * world_size, 1, group=own))",
    "of a sum": _LATE + "leave(lambda: summed(own))",
    "of ours": _LATE + "leave(lambda: all_reduce({'a': torch.ones(2)}, group=own))",
    "of a broadcast": _LATE + "leave(lambda: dist.broadcast(torch.ones(2), last, group=own))",
    "of a gather": _LATE + f"leave(lambda: dist.all_gather({_MANY}, torch.ones(2), group=own))",
    "of parts": _LATE + f"leave(lambda: dist.reduce_scatter(torch.ones(2), {_MANY}, group=own))",
    "of all to all": _LATE
    + "leave(lambda: dist.all_to_all_single(torch.ones(world_size), torch.ones(world_size), group=own))",
    "of a barrier": _LATE + "leave(lambda: dist.barrier(group=own))",
}

_OFTEN = {"monitored_barrier", "a wait for a message", "nobody's"}
"""Those that each run tries: each waits for seconds."""

PLACES = {
    "coalescing": "cut({0})\nwith dist._coalescing_manager():\n    dist.all_reduce(torch.ones(2)); dist.barrier()",
    "new_group": "cut({0})\nnew = dist.new_group()",
    "its end": "gone = dist.new_group()\ncut({0})\ndist.destroy_process_group(gone)",
}


def _nightly(cases: dict[str, str], often: set[str]) -> list[object]:
    return [
        pytest.param(case, marks=() if name in often else pytest.mark.nightly, id=name) for name, case in cases.items()
    ]


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.nightly), 4])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A world whose ranks hold groups, a mesh, and modules."""
    with with_ranks(tmp_path_factory.mktemp("fence"), request.param) as notebook:
        notebook.run(MAKE)
        yield notebook


def _all_works(world: Notebook) -> None:
    used = world.run(USE)
    assert used.text.endswith("] (True, True)\n"), used.text


@pytest.mark.parametrize(("code", "fails"), BLOCKS.values(), ids=BLOCKS)
def test_calls_of_a_block_that_an_error_has_left_are_not_those_of_the_next_cell(
    world: Notebook, code: str, fails: str
) -> None:
    cell = world.run(f"%%distributed\n{code}", fails=bool(fails))
    assert fails in cell.error_text
    assert (_CLOSED in cell.text) == (not fails), cell.text
    _all_works(world)


@pytest.mark.parametrize("code", _nightly(TIMEOUTS, _OFTEN))
def test_a_timeout_that_was_caught_breaks_no_later_cell(world: Notebook, code: str) -> None:
    world.finish(world.submit(f"%%distributed\n{code}"))  # a late rank may have got the verdict that nobody comes
    _all_works(world)


def test_a_timeout_that_was_not_caught_breaks_no_later_cell_either(world: Notebook) -> None:
    world.run("%%distributed\nif rank == 0: dist.irecv(torch.ones(2), 1, group=pair).wait(short)", fails=True)
    _all_works(world)


def test_a_wait_that_may_still_end_is_no_failure_of_its_group(world: Notebook) -> None:
    world.run("%%distributed\nbefore = dist.group.WORLD.get_group_store()")
    code = "%%distributed\nif rank == last: time.sleep(1)\nwork = dist.all_reduce(torch.ones(2), async_op=True)\n"
    world.run(code + "leave(lambda: work.wait(short))\n_ = work.wait()")
    world.run("%%distributed\nif rank == 0: before.set('still', 'the same')\ndist.barrier()")
    assert world.run("%%distributed\ndist.group.WORLD.get_group_store().check(['still'])").text.endswith("] True\n")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("ranks", "moments"),
    [(0, 6), pytest.param(0, 20, marks=pytest.mark.nightly), pytest.param(1, 20, marks=pytest.mark.nightly)],
)
def test_an_interrupt_at_any_line_of_torchs_leaves_nothing(
    world: Notebook, place: str, ranks: int, moments: int
) -> None:
    """On all ranks from ``ranks`` on."""
    code = f"%%distributed\n{PLACES[place]}\nsys.settrace(None)"
    world.run(code.format(0))
    lines = min(int(line.rpartition(" ")[2]) for line in world.run("%%distributed\nlines").lines)
    for number in range(lines, 0, -(lines // moments)):
        cell = world.finish(world.submit(code.replace("cut({0})", f"cut({number} if rank >= {ranks} else 0)")))
        assert "KeyboardInterrupt" in cell.error_text
        _all_works(world)


def test_heal_forms_the_groups_again_where_all_live(world: Notebook) -> None:
    world.run("%%distributed\nbefore = dist.group.WORLD.get_group_store(); before.set('old', '1')")
    assert "Their process groups were formed again" in world.run("%distributed heal").text
    assert world.run("%%distributed\ndist.group.WORLD.get_group_store().check(['old'])").text.endswith("] False\n")
    _all_works(world)
