"""A dead rank is named with its cause; heal puts a new process in its place, and the others keep what they have."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nbcomm.rank_spec import capital, named

from . import lies
from .notebook import Notebook
from .processes import of_notebook, pid_of

MAKE = """\
%%distributed
import os, time
kept, pair, rest = rank * 10, new_group([0, 1]), new_group([2, 3])
"""


@pytest.fixture(scope="module")
def prepared(four: Notebook) -> Notebook:
    """A world whose ranks hold a variable and two groups."""
    four.run(MAKE)
    return four


def _pids(notebook: Notebook) -> list[int]:
    code = "from nbcomm.notebook.session import registry\n[view.pid for view in registry.current().status()]"
    return [int(word) for word in notebook.run(code).text.strip(" []\n").split(",")]


def _healed(notebook: Notebook, dead: list[int]) -> None:
    """Heal, and see that the survivors have their variables, the newcomers none, and everything works."""
    assert "without variables" in notebook.run("%distributed heal").text  # 0.1 to 0.2 s, usually
    found = notebook.run("%%distributed --no-fold\n(globals().get('kept'), all_reduce(1))").lines
    assert found == [f"[{r}] ({None if r in dead else r * 10}, 4)" for r in range(4)]
    notebook.run("%%distributed\nfresh = new_group([0, 1])\nif rank < 2: assert all_reduce(1, group=fresh) == 2")
    notebook.run(MAKE)
    assert notebook.run("%%distributed\nall_reduce(1, group=pair if rank < 2 else rest)").text == "[0-3] 2\n"


def test_what_was_sent_while_a_rank_died_is_not_done_by_its_successor(prepared: Notebook) -> None:
    prepared.run("%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)", fails=True)
    prepared.run(
        "from nbcomm.notebook.session import registry\n"
        "from nbcomm.protocol import Push, payload\n"
        "session = registry.current()\n"
        "blob, buffers = payload.pack({'stale': 1}, session.home.bulk)\n"
        "session.link.send([3], Push(1, blob), buffers)"
    )
    _healed(prepared, [3])
    assert prepared.run("%%distributed\n'stale' in globals()").text == "[0-3] False\n"


WAYS = {
    "in Python": ("if rank == 1: os.kill(os.getpid(), 9)", [1], "killed by SIGKILL"),
    "two at once": ("if rank in (1, 2): os.kill(os.getpid(), 9)", [1, 2], "killed by SIGKILL"),
    "rank 0": ("if rank == 0: os.kill(os.getpid(), 9)", [0], "killed by SIGKILL"),
    "in a collective": ("if rank == 2: time.sleep(0.3); os.kill(os.getpid(), 9)\nbarrier()", [2], "killed by SIGKILL"),
    "rank 0 in a collective": (
        "if rank == 0: time.sleep(0.3); os.kill(os.getpid(), 9)\nbarrier()",
        [0],
        "killed by SIGKILL",
    ),
    "exit": ("if rank == 3: os._exit(7)", [3], "ended with exit code 7"),
    "segmentation fault": ("import ctypes\nif rank == 3: ctypes.string_at(0)", [3], "killed by SIGSEGV"),
    "all": ("os.kill(os.getpid(), 9)", [0, 1, 2, 3], "killed by SIGKILL"),
}


@pytest.mark.parametrize(("code", "dead", "cause"), WAYS.values(), ids=WAYS)
def test_a_death_in_a_cell_is_named_and_healed(prepared: Notebook, code: str, dead: list[int], cause: str) -> None:
    cell = prepared.run(f"%%distributed\n{code}", fails=True)
    assert f"RankDiedError: {capital(named(dead))} " in cell.error_text
    assert cause in cell.error_text
    refused = prepared.run("%%distributed\n1", fails=True)
    assert "nothing was run. Type %distributed heal" in refused.error_text
    _healed(prepared, dead)


def test_a_death_between_cells_is_named_by_the_next_cell_and_in_the_status(prepared: Notebook) -> None:
    os.kill(_pids(prepared)[1], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "was killed by SIGKILL" not in prepared.run("%distributed").text:
        assert time.monotonic() < deadline
    assert "Rank 1 was killed by SIGKILL" in prepared.run("%%distributed\n1", fails=True).error_text
    _healed(prepared, [1])


def test_a_long_cell_behind_a_death_between_cells_keeps_its_answer(prepared: Notebook) -> None:
    os.kill(_pids(prepared)[1], signal.SIGKILL)
    until = time.monotonic() + 60
    while "rank 1 was killed" not in prepared.run("%distributed status").text:
        assert time.monotonic() < until
    # The groups are formed before it, and the ranks' answers to that are no answer to the cell.
    assert prepared.run("%%distributed -r 0,2\ntime.sleep(2)\nkept + 1").text == "[0] 1\n[2] 21\n"
    _healed(prepared, [1])


def test_survivors_work_on_in_groups_without_the_dead(prepared: Notebook) -> None:
    prepared.run("%%distributed -r 1\nos.kill(os.getpid(), 9)", fails=True)
    assert prepared.run("%%distributed -r 2-3\nall_reduce(kept, group=rest)").text == "[2-3] 50\n"
    cell = prepared.run("%%distributed -r 0,2-3\ndist.barrier()", fails=True)
    assert "rank 1" in cell.error_text
    _healed(prepared, [1])


def test_a_death_in_a_backward_cuts_off_the_others_with_its_cause(prepared: Notebook) -> None:
    prepared.run("%%distributed\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))")
    code = "loss = model(torch.ones(1, 4)).sum()\nif rank == 2: os.kill(os.getpid(), 9)\nloss.backward()"
    cell = prepared.run(f"%%distributed\n{code}", fails=True)
    assert cell.error_text.count("killed by SIGKILL") == 1, "the cause is told by the dead rank's own error"
    assert re.search(r"was cut off by the death of rank 2\.|\n  rank 2 has died\n", cell.error_text)
    assert cell.error_text.endswith("1 of 4 ranks failed: [2] RankDiedError; 3 others were stopped because of it")
    assert "GLHF" not in cell.error_text, "gloo's own words say nothing of the cause"
    _healed(prepared, [2])


def test_heal_forms_the_groups_again_where_all_live_and_refuses_ranks_that_are_not(prepared: Notebook) -> None:
    assert "All processes are alive. Their process groups were formed again" in prepared.run("%distributed heal").text
    assert "Rank 9 (in '9') does not exist" in prepared.run("%distributed heal 9", fails=True).error_text
    assert prepared.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_of_two_dead_ranks_one_may_be_healed_first(prepared: Notebook) -> None:
    prepared.run("%%distributed\nif rank in (0, 3): os.kill(os.getpid(), 9)", fails=True)
    assert "Rank 3 is back" in prepared.run("%distributed heal 3").text
    assert "SubsetError" in prepared.run("%%distributed -r 1-3\nall_reduce(1)", fails=True).error_text
    assert prepared.run("%%distributed -r 1-2\nkept").lines == ["[1] 10", "[2] 20"]
    _healed(prepared, [0, 3])


def test_heal_knows_of_a_death_as_soon_as_it_is_typed(prepared: Notebook) -> None:
    pid = _pids(prepared)[2]
    os.kill(pid, signal.SIGKILL)
    _healed(prepared, [2])


@pytest.mark.parametrize("pause", [0.0, 0.03, 0.06, 0.12])
def test_a_heal_that_is_interrupted_can_be_repeated(prepared: Notebook, pause: float) -> None:
    prepared.run("%%distributed -r 1\nos.kill(os.getpid(), 9)", fails=True)
    cell = prepared.submit("%distributed heal")
    time.sleep(pause)  # anywhere in it, or just after it
    prepared.interrupt()
    prepared.finish(cell)
    prepared.run("%distributed heal")
    assert prepared.run("%%distributed --no-fold\nall_reduce(1)").lines == [f"[{rank}] 4" for rank in range(4)]
    prepared.run(MAKE)
    prepared.run("%%distributed\nall_reduce(1, group=pair if rank < 2 else rest)")


def test_a_heal_whose_daemon_does_not_answer_can_be_interrupted_and_repeated(prepared: Notebook) -> None:
    prepared.run("%%distributed -r 1\nos.kill(os.getpid(), 9)", fails=True)
    daemon = psutil.Process(pid_of(prepared, "daemon"))
    daemon.suspend()
    cell = prepared.submit("print('on', flush=True)\n%distributed heal")
    prepared.until(lambda: "on" in cell.text, 20, "the cell did not begin", cell)
    time.sleep(0.5)  # in the wait for its answer, or on the way there: that wait must end as well
    assert not cell.idle
    prepared.interrupt()
    prepared.finish(cell, 20)  # the daemon would have half a minute to answer
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"
    with suppress(psutil.NoSuchProcess):  # another one has taken over
        daemon.resume()
    _healed(prepared, [1])
    # The process that was given up ends, and so do those that earlier tests have given up.
    gone_by = time.monotonic() + 60
    while (left := _ranks_of(prepared)) != set(_pids(prepared)):
        assert time.monotonic() < gone_by, left
        time.sleep(0.05)


def _ranks_of(notebook: Notebook) -> set[int]:
    """The processes that write what a rank has to say."""
    found = set()
    for process in of_notebook(notebook.pid):
        with suppress(OSError):
            if Path(f"/proc/{process.pid}/fd/1").readlink().name.startswith("rank"):
                found.add(process.pid)
    return found


_SUSPEND = """
from nbcomm.launch.launchers.daemon_process import DaemonProcess
plain = DaemonProcess.start
def start(self):
    DaemonProcess.start = plain
    plain(self)
    while self._process._fork is None:
        assert not self._process.has_ended
    self._process._fork.suspend()
    print('suspended', self._process._fork.pid, self._home.path, flush=True)
DaemonProcess.start = start
"""
"""Stops the next daemon as soon as it is there."""


def test_a_start_whose_daemon_does_not_answer_can_be_interrupted_and_repeated(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook(_SUSPEND)
    cell = notebook.submit("%distributed start -n 2")
    notebook.until(lambda: "suspended" in cell.text, 60, "the daemon was not started", cell)
    _, pid, home = next(line for line in cell.lines if "suspended" in line).split()
    server = psutil.Process(int(pid))
    time.sleep(1.0)  # in the wait for its answer, or on the way there
    assert not cell.idle
    notebook.interrupt()
    notebook.finish(cell)
    assert "the world was not started" in cell.error_text
    psutil.wait_procs([server], 60)
    assert not server.is_running()
    assert not Path(home).exists()
    notebook.run("%distributed start -n 2")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"


CONNECT = """
import threading, gc, zmq
from ipyparallel import Client
from nbcomm.notebook.session import registry
def made():
    gc.collect()
    return [it for it in gc.get_objects() if isinstance(it, Client) and not it._closed]
def sockets():
    # ipykernel pushes what a thread shows: each gets a socket of its own with the first thing that it shows.
    open_ = [it for it in gc.get_objects() if type(it) is zmq.Socket and not it.closed]
    return len([it for it in open_ if it.socket_type != zmq.PUSH])
before = sockets(), threading.active_count()
"""


LEAVE = "registry.current().client.close(); registry.current()._processes._clients._handed_out.clear()"


@pytest.mark.parametrize("busy", ["engines", "controller"])
def test_a_client_that_is_interrupted_while_it_connects_is_closed(prepared: Notebook, busy: str) -> None:
    prepared.run(f"from nbcomm.notebook.session import registry\n{LEAVE}")
    prepared.run(CONNECT)
    controller = psutil.Process(pid_of(prepared, "controller"))
    if busy == "controller":
        controller.suspend()
    else:
        prepared.run("%%distributed\nimport asyncio, time\nasyncio.get_running_loop().call_later(0.1, time.sleep, 25);")
        time.sleep(0.5)
    cell = prepared.submit("print('on', flush=True)\nregistry.current().client;")
    prepared.until(lambda: "on" in cell.text, 20, "the cell did not begin", cell)
    time.sleep(2.0)  # in one of its waits
    assert not cell.idle
    prepared.interrupt()
    prepared.finish(cell, 50)
    controller.resume()
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"
    deadline = time.monotonic() + 40
    while prepared.run("print(made(), (sockets(), threading.active_count()) == before)").text != "[] True\n":
        assert time.monotonic() < deadline, prepared.run("print(made(), sockets(), threading.enumerate(), before)").text
    assert prepared.run("registry.current().client[0].apply_sync(lambda: 7)", timeout=90).text == "7\n"
    prepared.run(LEAVE)


def test_ipyparallels_client_reaches_a_rank_that_was_replaced(prepared: Notebook) -> None:
    ask = "registry.current().client[:].apply_sync(lambda: int(os.environ['RANK']))"
    prepared.run("from nbcomm.notebook.session import registry\nimport os")
    assert prepared.run(ask).text == "[0, 1, 2, 3]\n"
    prepared.run("%%distributed -r 1\nos.kill(os.getpid(), 9)", fails=True)
    _healed(prepared, [1])
    assert prepared.run(ask).text == "[0, 1, 2, 3]\n"
    prepared.run(LEAVE)


# ── replacements that fail ──────────────────────────────────────────────────────────────────────────

FORKS = (
    "nbcomm.node.processes.child",
    """
import errno, os, sys

def lie(module):
    fork, plan = os.fork, os.environ["FORKS"]

    def by_plan():
        letters = {"_obey": "m", "_fork": "xe."}.get(sys._getframe(1).f_code.co_name, "")
        first = ""
        if letters and os.path.exists(plan):
            with open(plan, "r+") as file:
                planned = file.read()
                if planned[:1] and planned[0] in letters:
                    first = planned[0]
                    file.seek(0)
                    file.truncate()
                    file.write(planned[1:])
        if first == "x":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        pid = fork()
        if pid == 0 and first in ("e", "m"):
            os._exit(3)
        return pid

    os.fork = by_plan
""",
)
"""A node whose forks of ranks a file plans, a letter a fork: x, it fails; e, what it makes ends; else it is well.

m is the fork in between, which forks what was ordered and ends: it ends at once. How many ranks one has to fork depends
on how many orders have come by then, so one that is well has no letter.
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The file for `FORKS`."""
    return tmp_path / "plan"


@pytest.fixture
def three(plan: Path, open_notebook: Callable[..., Notebook]) -> Notebook:
    """A world of three on such a node, whose ranks hold a variable."""
    lie = lies.told(plan.with_name("lies"), FORKS)
    return open_notebook(
        "%distributed start -n 3", "%%distributed\nkept = rank * 10", **lie, FORKS=str(plan), NBCOMM_WARM="0"
    )


@pytest.mark.parametrize(
    ("forks", "dead", "sentence"),
    [
        ("x", [1], r"Rank 1 could not be started: [Errno 11] Resource temporarily unavailable. The other ranks kept"),
        pytest.param(
            ".x",
            [1, 2],
            r"Rank 2 could not be started: [Errno 11] Resource temporarily unavailable. The other ranks",
            marks=pytest.mark.nightly,
        ),
        pytest.param("e", [1], "Rank 1 ended with exit code 3 while it started.", marks=pytest.mark.nightly),
        ("m", [1], "Rank 1 could not be started: what was to fork it ended with exit code 3. The other ranks kept"),
    ],
    ids=["fork", "second-fork", "start", "forker"],
)
def test_a_heal_that_fails_harms_nobody_and_can_be_repeated(
    three: Notebook, plan: Path, forks: str, dead: list[int], sentence: str
) -> None:
    three.run(f"%%distributed\nimport os\nif rank in {dead}: os.kill(os.getpid(), 9)", fails=True)
    plan.write_text(forks)
    began = time.monotonic()
    failed = three.run("%distributed heal", fails=True).error_text
    assert sentence in failed
    assert failed.endswith("The other ranks kept their variables; type %distributed heal to try again.")
    # A process that starts has a minute.
    assert time.monotonic() - began < 50, "it has waited for what is not there"
    living = sorted({0, 1, 2} - set(dead))
    spec = ",".join(map(str, living))
    assert three.run(f"%%distributed -r {spec} --no-fold\nkept").lines == [f"[{r}] {r * 10}" for r in living]
    assert "nothing was run. Type %distributed heal" in three.run("%%distributed\n1", fails=True).error_text
    assert "without variables" in three.run("%distributed heal").text
    found = three.run("%%distributed --no-fold\n(globals().get('kept'), all_reduce(1))").lines
    assert found == [f"[{r}] ({None if r in dead else r * 10}, 3)" for r in range(3)]


def test_a_start_whose_fork_fails_says_so_and_can_be_repeated(
    plan: Path, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(**lies.told(plan.with_name("lies"), FORKS), FORKS=str(plan), NBCOMM_WARM="0")
    plan.write_text("x")
    failed = notebook.run("%distributed start -n 2", fails=True).error_text
    assert re.search(r"Rank [01] could not be started: \[Errno 11\] Resource temporarily unavailable\.$", failed.flat)
    notebook.run("%distributed start -n 2")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"


def test_a_start_names_all_ranks_that_died_and_can_be_repeated(
    plan: Path, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(**lies.told(plan.with_name("lies"), FORKS), FORKS=str(plan), NBCOMM_WARM="0")
    notebook.run("from nbcomm.notebook.cluster import readiness\nreadiness._MOMENT = 5.0")
    plan.write_text("ee")
    failed = notebook.run("%distributed start -n 3", fails=True).error_text
    assert re.search(
        r"Ranks [0-9,-]+ ended with exit code 3 while they started. The log of rank [01] ends:", failed.flat
    )
    notebook.run("%distributed start -n 3")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-2] 3\n"
