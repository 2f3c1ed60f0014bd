"""After a world's end, however it came, no process, socket or file of it is there."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ..autopsy import of_worlds
from .notebook import SESSION, Notebook
from .processes import FIND, of_notebook

_WHERE = (
    f"{FIND}s = registry.current()\ns.client\n"
    "print(s.home.path, s.home.bulk, helpers()['daemon'], *[v.pid for v in s.status()])"
)


class _Traces:
    """What there is of a world while it lives."""

    def __init__(self, notebook: Notebook) -> None:
        notebook.run("%%distributed\nimport subprocess\nchild = subprocess.Popen(['sleep', '600'])")
        home, bulk, *pids = notebook.run(_WHERE).text.split()
        self.paths = [Path(home), Path(bulk)]
        server = psutil.Process(int(pids[0]))
        self.processes = [server, *server.children(recursive=True)]
        assert {int(pid) for pid in pids} <= {process.pid for process in self.processes}
        assert len(self.processes) >= 9, "daemon, controller, its heart monitor, 3 ranks, 3 children; mostly a zygote"
        assert self.paths[0].exists()

    def left(self) -> list[str]:
        processes = [f"{process.pid} {process.status()}" for process in self.processes if _lives(process)]
        return processes + [str(path) for path in self.paths if path.exists()]

    def wait_gone(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            psutil.wait_procs(self.processes, timeout=0.2)
        assert not self.left()


def _lives(process: psutil.Process) -> bool:
    try:
        # An orphan whose new parent does not reap it has ended all the same.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def notebook(open_notebook) -> Notebook:  # type: ignore[no-untyped-def]
    opened: Notebook = open_notebook("%distributed start -n 3 --grace 3")
    return opened


def test_stop(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    assert "Stopped" in notebook.run("%distributed stop").text
    assert traces.left() == []


def test_two_threads_that_stop_in_mid_cell_both_return_when_all_has_ended(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    notebook.run(SESSION)
    cell = notebook.run(
        """\
import threading, psutil
pids, lives = [view.pid for view in session.status()], []
runs = threading.Event()
def watch():
    while not session._executor.cell: pass
    runs.set()
def stop():
    runs.wait()
    session.stop()
    lives.append(sum(map(psutil.pid_exists, pids)))
threads = [threading.Thread(target=each) for each in (stop, stop, watch)]
for thread in threads: thread.start()
session.run("import time\\ntime.sleep(60)")""",
        fails=True,
    )
    assert "The world was stopped" in cell.error_text
    assert notebook.run("for thread in threads: thread.join()\nprint(lives, session.busy)").text == "[0, 0] False\n"
    assert traces.left() == []


def test_an_interrupt_in_mid_stop_or_in_the_last_step_of_a_start_leaves_nothing(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    notebook.run("""\
import signal
from nbcomm.notebook.session import session
def pressed(step):
    def press(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return step(*args, **options)
    return press
usual = session.Panel
from nbcomm.launch.link import Link
Link.close = pressed(Link.close)
session.Panel = pressed(usual)""")
    stopped = notebook.run("%distributed stop", fails=True)
    assert "KeyboardInterrupt" in stopped.error_text
    assert traces.left() == []
    others = of_worlds().keys()  # an earlier test may have killed a kernel whose world still waits
    started = notebook.run("%distributed start -n 1", timeout=120, fails=True)
    assert "the world was not started" in started.error_text
    left = (*of_notebook(notebook.pid), *(of_worlds().keys() - others))
    assert [process.name() for process in left if _lives(process)] == []
    notebook.run("session.Panel = usual")
    notebook.run("%distributed start -n 1", timeout=120)


def test_worlds_one_after_the_other_leave_the_kernel_as_it_was(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook("%distributed start -n 1", "%distributed stop")
    threads_end = (
        "import gc, threading, time\nwhile any('nbcomm' in t.name for t in threading.enumerate()): time.sleep(0.01)"
    )
    notebook.run(f"{threads_end}\n_ = gc.collect()")  # ZMQ's sockets go with the objects that had them
    before = _held(notebook.pid)
    for _ in range(3):
        notebook.run("%distributed start -n 1", timeout=120)
        notebook.run("%distributed stop")
        notebook.run(f"{threads_end}\n_ = gc.collect()")
    deadline = time.monotonic() + 20
    # ZMQ closes what a socket had on a thread of its own, a moment later. A world that leaves one leaves three.
    while (grown := _held(notebook.pid) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sum(grown.values()) < 3, grown


def _held(pid: int) -> Counter[str]:
    """A process's threads, and descriptors by what they lead to; IPython's history has some that come and go."""
    leads = Counter({"threads": psutil.Process(pid).num_threads()})
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            leads[re.sub(r"\d+", "N", str(descriptor.readlink()))] += 1
    return Counter({where: count for where, count in leads.items() if "profile_default" not in where})


def test_shutdown_of_the_kernel(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    notebook.close()
    traces.wait_gone(60)


def test_restart_of_the_kernel_and_no_attach(open_notebook) -> None:  # type: ignore[no-untyped-def]
    grace = 10  # a busy machine may need more than three seconds for another kernel
    notebook = open_notebook(f"%distributed start -n 3 --grace {grace}")
    traces = _Traces(notebook)
    until = time.monotonic() + grace
    notebook.restart()
    assert traces.left() or time.monotonic() > until, "it waits for whoever comes back"
    traces.wait_gone(grace + 50)
    notebook.run("%load_ext nbcomm")
    notebook.run("%distributed start -n 2")
    assert notebook.run("%%distributed\n1").text == "[0-1] 1\n"


def test_kill_of_the_kernel(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    os.kill(notebook.pid, signal.SIGKILL)
    traces.wait_gone(3 + 50)


def test_kill_of_the_zygote_then_stop(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    traces.processes[0].kill()
    assert notebook.run("%%distributed\n1").text == "[0-2] 1\n", "the ranks live on"
    notebook.run("%distributed stop")
    for process in traces.processes:  # children of killed ranks have no parent left that could end them
        if _lives(process) and process.name() == "sleep":
            process.kill()
    traces.wait_gone(60)


def test_kill_of_the_zygote_and_the_kernel(notebook: Notebook) -> None:
    traces = _Traces(notebook)
    traces.processes[0].kill()
    os.kill(notebook.pid, signal.SIGKILL)
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline and any(_lives(p) and p.name() != "sleep" for p in traces.processes):
        psutil.wait_procs(traces.processes, timeout=0.2)
    for process in traces.processes:
        if _lives(process) and process.name() == "sleep":
            process.kill()
    traces.wait_gone(40)


def test_an_extension_that_was_never_used(open_notebook) -> None:  # type: ignore[no-untyped-def]
    others = of_worlds().keys()
    notebook = open_notebook(NBCOMM_WARM="1s", OF_THIS_TEST="1")  # no other notebook has its seed
    pid = notebook.run(
        "import time\nfrom nbcomm.node.seed import client\n"
        "while client._held.hear() is None: time.sleep(0.01)\nprint(client._held._pid)"
    )
    seed = psutil.Process(int(pid.text))
    folder = Path(seed.cwd())
    assert of_worlds().keys() <= others, "no world is prepared for nobody"
    os.kill(notebook.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (_lives(seed) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(seed)
    assert not folder.exists()


def test_a_kernel_that_only_loads_the_extension_ends_at_once(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook(OF_THIS_TEST="2")  # so that it begins the seed itself
    kernel = psutil.Process(notebook.pid)
    notebook.client.shutdown()
    kernel.wait(15)  # ipykernel waits twice as long for children of its process group


def test_a_start_that_fails_says_why_and_leaves_nothing(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook()
    before = _worlds()
    cell = notebook.run("%distributed start -n 2 --backend cuda:gloo", fails=True)
    assert "No backend type associated with device type cpu" in cell.error_text, "it says what torch said"
    assert _worlds() <= before
    assert "No world is running" in notebook.run("%distributed").text
    notebook.run("%distributed start -n 2")


def test_ranks_are_started_plainly_where_they_cannot_be_forked(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook(NBCOMM_START="spawn")
    started = notebook.run("%distributed start -n 3 --grace 3", timeout=180)
    assert "started as a separate process, which takes longer: NBCOMM_START=spawn." in started.text
    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-2] 3\n"
    traces = _Traces(notebook)
    notebook.run("%distributed stop")
    assert traces.left() == []


def _worlds() -> set[str]:
    parent = Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}"
    return {path.name for path in parent.iterdir()} if parent.exists() else set()
