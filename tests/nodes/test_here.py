"""A world of two nodes on this machine: what holds within one node holds between them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from nbcomm.board_pages import page_of
from nbcomm.node.peers import listener_at
from nbcomm.world_dir import WorldDir

from ..node.served import await_that, zygote_of
from ..world.notebook import SESSION, Notebook, opened
from . import next_kernel

pytestmark = pytest.mark.story

WORKS = "%%distributed\nall_reduce(rank)"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with two ranks on each of two nodes."""
    with opened(
        tmp_path_factory.mktemp("two"),
        "%distributed start -n 4 --nodes 2",
        SESSION,
        "%%distributed\nkept = [rank]",
    ) as notebook:
        yield notebook


@pytest.fixture
def homes(two: Notebook) -> list[WorldDir]:
    """The directories of the nodes."""
    said = two.run("for node in session._processes.nodes: print(node.told.home)").lines
    return [WorldDir(path) for path in said]


def test_each_rank_knows_its_place(two: Notebook) -> None:
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
    code = f"import os\nprint(*[os.environ[name] for name in {names}], node_rank, local_rank)"
    assert two.run(f"%%distributed\n{code}").lines == [
        "[0] 0 0 2 0 2 0 0",
        "[1] 1 1 2 0 2 0 1",
        "[2] 2 0 2 1 2 1 0",
        "[3] 3 1 2 1 2 1 1",
    ]
    table = two.run("%distributed status").text
    assert "2 nodes" in table


def test_collectives_and_groups_go_across(two: Notebook) -> None:
    assert two.run("%%distributed\nall_reduce(torch.ones(2) * rank).tolist()").text == "[0-3] [6.0, 6.0]\n"
    across = "%%distributed\ngroup = new_group([1, 2])\nall_reduce(rank, group=group) if rank in (1, 2) else None"
    assert two.run(across).text == "[1-2] 3\n"
    assert two.run("%%distributed -r 0,2\nsendrecv(rank, 2 - rank, 2 - rank)").lines == ["[0] 2", "[2] 0"]


def test_the_first_rank_of_each_node_goes_first(two: Notebook) -> None:
    code = "order = []\nwith rank_zero_first(local=True):\n    order.append(local_rank)\nall_gather(local_rank)"
    assert two.run(f"%%distributed\n{code}").text == "[0-3] [0, 1, 0, 1]\n"


def test_values_go_to_all_and_back(two: Notebook) -> None:
    two.run("import numpy as np\nbig = np.arange(1 << 20)\n%distributed push big")
    assert two.run("%%distributed\nint(big.sum())").text == "[0-3] 549755289600\n"
    two.run("%distributed pull big")
    assert two.run("[int(one.sum()) for one in big] == [549755289600] * 4").text == "True\n"


def test_a_hopeless_wait_between_nodes_is_told(two: Notebook) -> None:
    error = two.run("%%distributed\nif rank != 3: barrier()", fails=True).error_text
    assert "HangError: barrier #" in error
    assert "  rank 3 has finished the cell" in error
    assert two.run(WORKS).text == "[0-3] 6\n"


def test_calls_that_differ_between_nodes_move_no_data_and_end_no_process(two: Notebook) -> None:
    error = two.run("%%distributed\nall_reduce(torch.ones(2 + node_rank))", fails=True).error_text
    assert "MismatchError: all_reduce #" in error
    assert "ranks 0-1 called all_reduce(float32 (2,), sum), line 2\n  ranks 2-3 called all_reduce(float32 (3,)" in error
    error = two.run("%%distributed\nall_reduce(1) if node_rank else all_gather(1)", fails=True).error_text
    assert "ranks 0-1 called all_gather, line 2\n  ranks 2-3 called all_reduce, line 2" in error
    error = two.run("%%distributed\ngroup = new_group([0, 1 + node_rank])", fails=True).error_text
    assert "MismatchError" in error
    assert two.run(WORKS).text == "[0-3] 6\n"


def test_a_message_from_anyone_comes_from_another_node(two: Notebook) -> None:
    code = "recv() if rank == 1 else send([rank], 1) if rank == 2 else None"
    assert two.run(f"%%distributed\n{code}").text == "[1] [2]\n"


def test_an_interrupt_ends_a_wait_between_nodes(two: Notebook) -> None:
    two.interrupted("%%distributed\nimport time\nprint('on')\nif rank == 3: time.sleep(60)\nbarrier()")
    assert two.run(WORKS).text == "[0-3] 6\n"


def test_a_dead_rank_of_another_node_is_named_and_replaced(two: Notebook) -> None:
    error = two.run("%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)\nbarrier()", fails=True).error_text
    assert "Rank 3 was killed by SIGKILL" in error
    assert "Rank 3" in two.run("%distributed heal").text
    two.run("%%distributed -r 3\nkept = [3]")
    assert two.run(WORKS).text == "[0-3] 6\n"
    assert two.run("%%distributed\nkept == [rank]").text == "[0-3] True\n"


def test_how_fast_data_moves_between_nodes_is_told_beside_that_within_one(two: Notebook) -> None:
    two.run("%%distributed\nhalves = [new_group([0, 1]), new_group([2, 3])]")
    two.run("%%distributed\nx = torch.ones(1 << 20)\n_ = all_reduce(x), all_reduce(x, group=halves[node_rank])")
    assert re.search(
        r"^[\d.]+ [MG]B/s between nodes, [\d.]+ [MG]B/s within one$", two.run("%distributed status").text, re.MULTILINE
    )


def test_a_log_is_read_where_it_is(two: Notebook, homes: list[WorldDir]) -> None:
    homes[1].add_to_log(2, "a line of rank 2\n")
    assert "a line of rank 2" in two.run("%distributed log 2").text


@pytest.mark.parametrize("node", [0, 1])
def test_a_daemon_that_dies_costs_nothing(two: Notebook, homes: list[WorldDir], node: int) -> None:
    known = f"print([node.daemons for node in session._processes.nodes][{node}])"
    before = int(two.run(known).text)
    cell = two.submit("%%distributed\nimport time\nfor n in range(100): print(n); time.sleep(0.02)\nn")
    two.until(lambda: "[0-3] 5\n" in cell.text, 60, "it does not print", cell)
    os.kill(listener_at(homes[node].daemon_socket), signal.SIGKILL)
    shown = [line for line in two.finish(cell).lines if not line.startswith("waiting")]
    assert shown == [f"[0-3] {n}" for n in (*range(100), 99)]
    assert two.run(WORKS).text == "[0-3] 6\n"
    two.until(lambda: int(two.run(known).text) > before, 60, "no other daemon comes")
    assert two.run("%%distributed\ngroup = new_group([0, 3])\nkept == [rank]").text == "[0-3] True\n"


def test_a_zygote_that_dies_is_replaced_and_its_ranks_go_on(two: Notebook, homes: list[WorldDir]) -> None:
    zygote = zygote_of(psutil.Process(listener_at(homes[1].daemon_socket)))
    assert zygote is not None
    zygote.kill()
    assert two.run(WORKS).text == "[0-3] 6\n"
    assert two.run("print(session.troubles)").text == "[]\n"
    two.run("%distributed heal 2")
    two.run("%%distributed -r 2\nkept = [2]")
    assert two.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


def test_the_next_kernel_attaches_to_all_nodes_and_to_the_cell_that_runs(two: Notebook) -> None:
    next_kernel.attaches(two)
    two.run(SESSION)
    error = two.run("%%distributed\nall_reduce(torch.ones(2 + node_rank))", fails=True).error_text
    assert "MismatchError" in error
    two.run("%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)\nbarrier()", fails=True)
    two.run("%distributed heal")
    assert two.run(WORKS).text == "[0-3] 6\n"


def test_nothing_is_left_on_any_node(two: Notebook, homes: list[WorldDir]) -> None:
    """The last test: it ends the world."""
    pids = {rank: int(pid) for rank, pid in enumerate(two.run("print(*[v.pid for v in session.views()])").text.split())}
    two.run("%distributed stop")
    for pid in pids.values():
        await_that(lambda pid=pid: not psutil.pid_exists(pid), "a rank lives on")
    assert [home.path.exists() for home in homes] == [False, False]
    assert [home.bulk.exists() for home in homes] == [False, False]


def test_calls_may_be_compared_within_each_node_only(two: Notebook) -> None:
    start = "%distributed start --world fast -n 4 --nodes 2 --guard node"
    two.run(start, 120)
    try:
        said = two.run(
            "fast = registry.current('fast')\nfor node in fast._processes.nodes: print(node.told.home)"
        ).lines
        pages = [[page_of(WorldDir(path).board, rank).exists() for rank in range(4)] for path in said]
        assert pages == [[True, True, False, False], [False, False, True, True]], "no copies"
        code = "%%distributed --world fast\nall_reduce(rank), all_reduce(torch.ones(2)).sum().item()"
        assert two.run(code).text == "[0-3] (6, 8.0)\n"
        error = two.run(
            "%%distributed --world fast\nhalves = [new_group([0, 1]), new_group([2, 3])]\n"
            "all_reduce(torch.ones(1 + local_rank), group=halves[node_rank])",
            fails=True,
        ).error_text
        assert "MismatchError" in error
        error = two.run("%%distributed --world fast\nif rank != 3: barrier()", fails=True).error_text
        assert "  rank 3 has finished the cell" in error
        assert two.run(code).text == "[0-3] (6, 8.0)\n"
    finally:
        two.run("%distributed stop --world fast")
