"""Scripts end by `destroy_process_group`, and people paste them into cells: the next cell has a world all the same."""

from __future__ import annotations

import pytest

from .notebook import Notebook

pytestmark = pytest.mark.story  # a world that a cell has made by itself may leave a port open, and comes late

WORKS = ("%%distributed --no-fold\n(kept, all_reduce(1))", ["[0] (0, 4)", "[1] (1, 4)", "[2] (2, 4)", "[3] (3, 4)"])
DESTROY = "dist.destroy_process_group()"
SCRIPT = f"{DESTROY}\ndist.init_process_group('gloo')\nx = torch.ones(1)\ndist.all_reduce(x)\nassert x == 4"


@pytest.fixture(scope="module")
def prepared(four: Notebook) -> Notebook:
    """A world whose ranks hold a variable."""
    four.run("%%distributed\nimport os\nkept = rank")
    return four


@pytest.mark.parametrize(
    "code",
    [
        DESTROY,
        f"if rank == 0: {DESTROY}",
        f"if rank != 0: {DESTROY}",
        SCRIPT,
        f"{SCRIPT}\n{DESTROY}",
        f"pair = new_group([0, 1])\n{DESTROY}",
    ],
)
def test_the_next_cell_has_a_world(prepared: Notebook, code: str) -> None:
    prepared.run(f"%%distributed\n{code}")
    cell, shown = WORKS
    assert prepared.run(cell).lines == shown
    fresh = "g = new_group([1, 3])\nif rank in (1, 3): assert all_reduce(1, group=g) == 2"
    prepared.run(f"%%distributed\n{fresh}")
    hang = prepared.run("%%distributed\nif rank != 1: barrier()", fails=True)  # and still nothing hangs
    assert "rank 1 has finished the cell" in hang.error_text
    assert prepared.run(cell).lines == shown


def test_a_cell_opens_no_port_and_may_do_so_as_often_as_it_likes(prepared: Notebook) -> None:
    listening = "[c.laddr.ip for c in connections('inet') if c.status == 'LISTEN']"
    cell = prepared.run(
        "%%distributed\nimport psutil, time\nthis = psutil.Process()\n"
        "connections = getattr(this, 'net_connections', this.connections)  # its name from psutil 6 on\n"
        f"before = {listening}\n"
        f"for round in range(5):\n    if round % 4 == rank: time.sleep(0.05)\n    dist.destroy_process_group()\n"
        f"    dist.init_process_group('gloo')\n    assert all_reduce(1) == 4\n"
        f"[ip for ip in {listening} if not ip.startswith('127.')], len({listening}) <= len(before) + 5"
    )
    assert cell.text == "[0-3] ([], True)\n"
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_a_world_that_a_cell_has_made_can_be_healed(prepared: Notebook) -> None:
    prepared.run(f"%%distributed\n{SCRIPT}")
    prepared.run("%%distributed\nif rank == 1: os._exit(1)", fails=True)
    assert "Rank 1 is back" in prepared.run("%distributed heal").text
    prepared.run("%%distributed -r 1\nimport os\nkept = rank")
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_what_was_destroyed_says_so(prepared: Notebook) -> None:
    prepared.run("%%distributed\npair, all_ = new_group([0, 1]), new_group([0, 1, 2, 3])")
    text = prepared.run(f"%%distributed\nif rank == 0: {DESTROY}\nall_reduce(1)", fails=True).error_text
    assert "This cell has destroyed the world's process groups" in text
    assert prepared.run(WORKS[0]).lines == WORKS[1]
    text = prepared.run("%%distributed\nif rank < 2: all_reduce(1, group=pair)", fails=True).error_text
    assert "[0]" in text
    assert "This group does not exist any more: dist.destroy_process_group was called" in text
    assert "This group was destroyed on rank 0 (dist.destroy_process_group): create it again." in text
    prepared.run("%%distributed\nif rank == 2: dist.destroy_process_group(all_)")
    prepared.run("%%distributed\nif rank != 3: barrier()", fails=True)  # what is left of it must not hang the others
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_groups_that_were_destroyed_leave_no_descriptor_and_no_thread(prepared: Notebook) -> None:
    code = """\
%%distributed
import gc, psutil
def rounds(count):
    for _ in range(count):
        group = new_group([0, 1, 2, 3])
        assert all_reduce(1, group=group) == 4
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    del group
    gc.collect()
    barrier()
    process = psutil.Process()
    return process.num_fds(), process.num_threads()
before, after = rounds(2), rounds(10)
[now - then < 10 for now, then in zip(after, before)]
"""
    assert prepared.run(code).text == "[0-3] [True, True]\n"
    # The end of one whose call goes on would wait for that call.
    begun = "if rank < 3:\n    begun = dist.all_reduce(x, group=group, async_op=True)\n"
    begun += "    dist.destroy_process_group(group); del group\n"
    prepared.run(f"%%distributed\nx, group = torch.ones(1), new_group([0, 1, 2, 3])\nbarrier(group=group)\n{begun}")
    prepared.run("%%distributed\nnew_group([0, 1, 2, 3])", timeout=20)
    ended = prepared.run("%%distributed\nbegun.wait() if rank < 3 else dist.all_reduce(x, group=group)\nint(x)")
    assert ended.text == "[0-3] 4\n"
    assert prepared.run(WORKS[0]).lines == WORKS[1]


# ── a world of the cell's own ───────────────────────────────────────────────────────────────────────

ALONE = f"{DESTROY}\ndist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
PAIRS = (
    f"import os, socket\nwith socket.socket() as probe:\n    probe.bind(('127.0.0.1', 0))\n"
    f"    ports = all_gather(probe.getsockname()[1], mode='list')\n{DESTROY}\n"
    "where = f'tcp://127.0.0.1:{ports[rank // 2 * 2]}'\n"
    "dist.init_process_group('gloo', init_method=where, rank=rank % 2, world_size=2)"
)
HALF = "half = dist.new_group([0])\nif rank % 2 == 0: dist.all_reduce(x, group=half)"
REPLACED = "the cell replaced the world's process group with its own"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (f"{ALONE}\nx = torch.ones(1)\ndist.all_reduce(x)\n(int(x), dist.get_world_size())", "[0-3] (1, 1)\n"),
        (
            f"{PAIRS}\nx = torch.ones(1) * rank\ndist.all_reduce(x)\n{HALF}\nint(x)",
            "[0-1] 1\n[2-3] 5\n",
        ),
        (f"if rank == 2:\n    {ALONE.replace(chr(10), '; ')}", ""),
    ],
    ids=["each alone", "two pairs", "one rank"],
)
def test_the_next_cell_has_the_world_again_where_a_cell_has_made_another(
    prepared: Notebook, code: str, shown: str
) -> None:
    cell = prepared.run(f"%%distributed\n{code}")
    mine, _, told = cell.text.partition("nbcomm: ")
    assert mine == shown
    assert told.count(REPLACED) == 1
    assert ("on rank 2 " if shown == "" else "on ranks 0-3 ") in told
    again = prepared.run(WORKS[0])
    assert again.lines == WORKS[1]
    hang = prepared.run("%%distributed\nif rank != 1: barrier()", fails=True)
    assert "rank 1 has finished the cell" in hang.error_text
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_in_a_world_of_its_own_a_cell_is_told_whose_names_to_use(prepared: Notebook) -> None:
    text = prepared.run(f"%%distributed\n{ALONE}\nall_reduce(1)", fails=True).error_text
    assert "replaced the world's process group with its own (dist.init_process_group), which nbcomm's functions" in text
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_a_wait_in_a_world_of_a_cells_own_can_be_interrupted(prepared: Notebook) -> None:
    code = f"%%distributed\n{PAIRS}\nprint('on')\nif rank == 0: dist.all_reduce(torch.ones(1))"
    prepared.interrupted(code, once="[0-3] on")
    assert prepared.run(WORKS[0]).lines == WORKS[1]


def test_a_dead_rank_is_healed_behind_a_world_of_a_cells_own(prepared: Notebook) -> None:
    prepared.run(f"%%distributed\n{ALONE}\nif rank == 1: os._exit(1)", fails=True)
    assert "Rank 1 is back" in prepared.run("%distributed heal").text
    prepared.run("%%distributed -r 1\nimport os\nkept = rank")
    assert prepared.run(WORKS[0]).lines == WORKS[1]
