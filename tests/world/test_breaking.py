"""What goes wrong in practice: a rank dies, a cell hangs, somebody presses ■ at a bad moment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from . import lies
from .notebook import Notebook, with_ranks
from .processes import FIND, of_notebook, pid_of

Open = Callable[..., Notebook]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with two ranks, which every test leaves alive and free."""
    with with_ranks(tmp_path_factory.mktemp("two"), 2) as notebook:
        yield notebook


def test_a_killed_rank_is_named_and_the_others_go_on(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start -n 3", "%%distributed\nkept = rank")
    cell = notebook.run("%%distributed\nimport os\nif rank == 1: os.kill(os.getpid(), 9)\nrank", fails=True)
    assert cell.error_text.startswith("[1]\nRankDiedError: Rank 1 was killed by SIGKILL")
    assert cell.lines == ["[0] 0", "[2] 2"]
    assert "Rank 1 was killed" in notebook.run("%%distributed\n1", fails=True).error_text
    assert notebook.run("%%distributed -r 0,2\nkept").lines == ["[0] 0", "[2] 2"]
    assert "dead" in notebook.run("%distributed").text
    notebook.run("%distributed restart")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-2] 3\n"


def test_a_rank_that_exits_says_how(two: Notebook) -> None:
    cell = two.run("%%distributed\nimport os\nif rank == 0: os._exit(5)", fails=True)
    assert "Rank 0 ended with exit code 5" in cell.error_text
    assert "Rank 0 is back" in two.run("%distributed heal").text


def test_an_interrupted_start_leaves_nothing_and_can_be_repeated(open_notebook: Open) -> None:
    notebook = open_notebook()
    notebook.interrupted("%distributed start -n 4", once="Starting")
    assert "No world is running" in notebook.run("%distributed").text
    notebook.run("%distributed start -n 2")
    assert notebook.run("%%distributed\nrank").lines == ["[0] 0", "[1] 1"]


def test_a_controller_that_ends_while_it_starts_is_named_and_harms_nobody(open_notebook: Open, tmp_path: Path) -> None:
    lie = """
import os, sys
def lie(module):
    plain = module.die_with_starter
    module.die_with_starter = lambda: plain() if os.path.exists("well") else print("no ports left") or sys.exit(3)
"""
    notebook = open_notebook(
        f"%cd -q {tmp_path}", **lies.told(tmp_path / "lies", ("nbcomm.node.processes.parenthood", lie))
    )
    notebook.run("%distributed start -n 2\nfrom nbcomm.notebook.session import registry")
    notebook.run("%%distributed\nkept = rank")
    cell = notebook.run("registry.current().client", fails=True)
    ends = "StartError: ipyparallel's controller ended with exit code 3. Its log ends:\nno ports left"
    assert cell.error_text.rstrip().endswith(ends)
    assert "controller" not in notebook.run("%distributed").text
    assert notebook.run("%%distributed\nall_reduce(kept)").text == "[0-1] 1\n"
    (tmp_path / "well").touch()
    assert notebook.run("registry.current().client[:]['kept']").text == "[0, 1]\n"


def test_a_rank_that_is_busy_cannot_register_and_registers_when_it_is_asked_again(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start -n 2", "from nbcomm.notebook.session import registry")
    notebook.run("from nbcomm.launch import clients\nclients._TIMEOUT = 3.0")
    busy = "import asyncio, os, time\ndef wait():\n    while not os.path.exists('go'): time.sleep(0.01)\n"
    notebook.run(f"%%distributed -r 1\n{busy}asyncio.get_running_loop().call_later(0.1, wait);")
    refused = notebook.run("registry.current().client", fails=True).error_text
    assert "StateError: Rank 1 has not registered with ipyparallel's controller within 3 s, so " in refused
    notebook.run("open('go', 'w').close()\nclients._TIMEOUT = 60.0")
    assert notebook.run("registry.current().client.ids").text == "[0, 1]\n"
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"


def test_nothing_of_ipyparallels_is_there_before_somebody_asks_for_it(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start -n 2", "%%distributed\nx = rank")
    assert notebook.run("import sys; 'ipyparallel' in sys.modules").text == "False\n"
    assert notebook.run("%%distributed\nimport sys; 'ipyparallel' in sys.modules").text == "[0-1] False\n"
    assert pid_of(notebook, "controller") == 0
    notebook.run("from nbcomm.notebook.session import registry")
    assert notebook.run("registry.current().client[:]['x']").text == "[0, 1]\n"
    assert pid_of(notebook, "controller") > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_it_starts_is_named_and_the_next_start_works(
    open_notebook: Open, rank: int
) -> None:
    notebook = open_notebook()
    cell = notebook.submit("%distributed start -n 2")
    os.kill(_engine(notebook, rank), signal.SIGKILL)
    notebook.finish(cell)
    if cell.error is None:  # it was up already
        assert f"Rank {rank} was killed" in notebook.run("%%distributed\n1", fails=True).error_text
        notebook.run("%distributed restart")
    else:
        assert f"Rank {rank} was killed by SIGKILL" in cell.error_text
        assert "No world is running" in notebook.run("%distributed").text
        notebook.run("%distributed start -n 2")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"


MEETS = (
    "nbcomm.rank.groups.world",
    """
import os, signal
from pathlib import Path

def lie(module):
    from nbcomm.node.peers import listener_at
    from nbcomm.world_dir import WorldDir
    join, meet = module.World._join, module.World._meet_board

    def strike():
        try:
            os.unlink(os.environ["STRIKES"])
        except FileNotFoundError:
            return
        while not (daemon := listener_at(WorldDir(os.environ["NBCOMM_HOME"]).daemon_socket)):
            pass  # 0 would be this process's whole group
        os.kill(daemon, signal.SIGKILL)

    def joining(self, order):
        if self.rank == 1 and os.environ["MOMENT"] == "before":
            strike()
        join(self, order)

    def meeting(self, order):
        if self.rank == 1 and os.environ["MOMENT"] == "behind":
            strike()
        meet(self, order)

    module.World._join, module.World._meet_board = joining, meeting
""",
)
"""The daemon is killed once, when rank 1 is about to meet the others, or has just met them."""


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_world_whose_daemon_is_killed_while_it_forms_its_first_groups_has_nbcomms_own(
    open_notebook: Open, tmp_path: Path, moment: str
) -> None:
    strikes = tmp_path / "strikes"
    strikes.touch()
    lie = lies.told(tmp_path / "lies", MEETS)
    notebook = open_notebook(**lie, STRIKES=os.fspath(strikes), MOMENT=moment)
    start = notebook.run("%distributed start -n 3")
    assert not strikes.exists()
    assert "torch's own" not in start.text + notebook.run("%distributed").text
    notebook.run("%%distributed\npair = new_group([0, 1])")
    assert notebook.run("%%distributed\n(all_reduce(1), all_reduce(1, group=pair) if rank < 2 else 2)").text == (
        "[0-2] (3, 2)\n"
    )
    notebook.interrupted("%%distributed\nimport time\nprint('on')\nbarrier() if rank else time.sleep(60)")
    assert notebook.run("%%distributed\nall_reduce(1, group=pair) if rank < 2 else 2").text == "[0-2] 2\n"


def _engine(notebook: Notebook, rank: int) -> int:
    """The process of a rank, as soon as it is there: the one that writes its log, and what it captures after that."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in of_notebook(notebook.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process.pid}/fd/1").readlink().name.startswith(f"rank{rank}."):
                    return process.pid
        time.sleep(0.03)  # or the start would have half of the machine
    raise AssertionError(f"rank {rank} did not appear")


def test_a_child_process_is_interrupted_too(two: Notebook) -> None:
    for code in ("!echo on; sleep 60", "import subprocess\n_ = subprocess.run(['sh', '-c', 'echo on; sleep 60'])"):
        two.interrupted(f"%%distributed\n{code}")
        assert two.run("%%distributed\nrank").lines == ["[0] 0", "[1] 1"]


def test_pressing_interrupt_again_and_again_is_harmless(two: Notebook) -> None:
    two.interrupted("%%distributed\nimport time\nprint('on')\ntime.sleep(60)", times=5)
    assert two.run("1 + 1").text == "2\n"
    _until_free(two)
    assert two.run("%%distributed\nrank").lines == ["[0] 0", "[1] 1"]


def _until_free(notebook: Notebook) -> None:
    code = """\
        import time
        from nbcomm.notebook.session import registry
        end = time.monotonic() + 50
        while registry.current().busy and time.monotonic() < end: time.sleep(0.01)
        registry.current().busy"""
    assert notebook.run(textwrap.dedent(code)).text == "False\n"


_SLOW = (
    "nbcomm.node.processes.warmup",
    """
def lie(module):
    import os, time
    plain = module.prepare
    def slow():
        time.sleep(4.0 if os.path.exists(os.environ["SLOW"]) else 0.0)
        return plain()
    module.prepare = slow
""",
)
"""A zygote that takes long to start, if a file is there."""


def test_a_heal_waits_for_a_daemon_that_has_just_been_started(open_notebook: Open, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    notebook = open_notebook(
        "%distributed start -n 2", SLOW=str(slow), NBCOMM_WARM="0", **lies.told(tmp_path / "lies", _SLOW)
    )
    slow.touch()
    notebook.run(f"{FIND}import os, signal\nfound = helpers()\nnode = registry.current()._processes.nodes.head")
    notebook.run(
        "os.kill(found['daemon'], signal.SIGKILL)\nos.kill(registry.current().status()[1].pid, signal.SIGKILL)"
    )
    healed = notebook.run("%distributed heal").text
    assert "Rank 1 is back" in healed, healed
    assert "has ended" not in notebook.run("%distributed").text
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"


def test_a_world_of_one_rank(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start -n 1")
    code = "all_reduce(3), all_gather(torch.tensor(2.0)), broadcast('x'), gather(1), scatter([5])"
    assert notebook.run(f"%%distributed\n{code}").text == "[0] (3, tensor([2.]), 'x', [1], 5)\n"


def test_a_warning_folds(two: Notebook) -> None:
    cell = two.run("%%distributed\nimport warnings\nwarnings.warn('careful')")
    assert re.search(r"^\[0-1\] .*UserWarning: careful$", cell.stream("stderr"), re.MULTILINE)


@pytest.mark.parametrize("headless", ["fails", "passes"])
def test_a_headless_run_of_a_notebook_fails_with_its_cell(headless: str, tmp_path: Path) -> None:
    code = [
        "%load_ext nbcomm",
        "%distributed start -n 2",
        "%%distributed\nassert rank < 1" + " or True" * (headless == "passes"),
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in code])
    client = NotebookClient(book, timeout=90, resources={"metadata": {"path": str(tmp_path)}})
    if headless == "passes":
        client.execute()
        stored = nbformat.writes(book)
        assert "application/vnd.jupyter.widget-view" not in stored, (
            "a saved notebook shows a table, never a lost widget"
        )
        assert "<table>" in stored
    else:
        with pytest.raises(CellExecutionError, match="CellError: 1 of 2 ranks failed"):
            client.execute()
