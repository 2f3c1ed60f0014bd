"""Faults on purpose, through a real kernel: what the user sees, how soon, and what is kept.

``python -m tests.world.faults`` runs all of them and writes docs/reliability.md; `test_faults` runs each as a test.
Every fault hits a world of four ranks that hold a variable, a subgroup and a DDP model, in one of four situations:
idle, in Python, in a collective, in a backward. Afterwards the world is healed or attached to if that is what a
person has to do, and must work with all that was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from nbcomm.rank_spec import named
from nbcomm.sentences import WIDTH, in_one_line
from nbcomm.world_dir import WorldDir

from .notebook import Cell, Notebook
from .processes import FIND, await_daemon

RANKS = 4

HERE, ELSEWHERE = f"-n {RANKS}", "--engines ssh --hosts a:1,b:3 --timeout 120"
"""How a world starts: on this machine, or on two of tests/nodes/fake_hosts, of which the second is struck."""

CUT = 5
"""Seconds for which the network to the struck node is cut: longer than the link's heartbeats wait."""

PREPARE = """\
%%distributed
import ctypes, os, time, torch.nn.parallel
torch.manual_seed(0)
kept, pair = rank * 10, new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
def backward(): model(torch.ones(2, 4)).sum().backward()
backward()
"""

GOOD = "%%distributed\nbackward()\n(kept == rank * 10, all_reduce(1), all_reduce(1, group=pair) if rank < 2 else 2)"
FINE = "[0-3] (True, 4, 2)\n"
ALIVE = "%%distributed\n(globals().get('kept'), all_reduce(1))"

PLACES = {
    "Python": "time.sleep(90)",
    "collective": "time.sleep(90) if rank == 2 else barrier()",
    "backward": "time.sleep(90) if rank == 2 else backward()",
}
"""What the ranks do when a fault from outside hits them; rank 2 keeps the others waiting."""


@dataclass(frozen=True)
class World:
    """The processes of a world: those of the ranks, and those that serve the struck node, by name.

    Attributes:
        home: the directory of the struck node.
        number: of the struck node; 0 is the head.
    """

    ranks: list[int]
    helpers: dict[str, int]
    home: WorldDir
    number: int


Strike = Callable[[Notebook, World], None]


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        what: what happens.
        where: the situation.
        code: the cell that runs, or "" if the world is idle.
        strike: does it, where the cell does not do so by itself.
        sees: what the error or the status says.
        then: what the user types: "", "heal" or "attach".
        lost: ranks whose variables are gone.
        quiet: a cell sees nothing of it: it goes on, and ■ ends it.
        far: it can happen to another node only.
    """

    what: str
    where: str
    code: str
    sees: str
    strike: Strike | None = None
    then: str = ""
    lost: tuple[int, ...] = ()
    quiet: bool = False
    far: bool = False

    def __str__(self) -> str:
        return f"{self.what}, {self.where}"


@dataclass
class Outcome:
    """What was measured, in seconds."""

    shown: str
    until_told: float
    until_good: float


def _press(notebook: Notebook, _: World) -> None:
    notebook.interrupt()


def _kill(*ranks: int) -> Strike:
    def strike(_: Notebook, world: World) -> None:
        for rank in ranks:
            os.kill(world.ranks[rank], signal.SIGKILL)

    return strike


def _signal_helper(which: str, number: int = signal.SIGKILL) -> Strike:
    def strike(_: Notebook, world: World) -> None:
        struck = psutil.Process(world.helpers[which])
        os.kill(struck.pid, number)
        if which != "daemon":  # that one's successor is waited for; see `run`
            struck.wait(30)  # else the next fault may strike it again: how long its end takes is the system's affair

    return strike


def _kill_node(_: Notebook, world: World) -> None:
    os.kill(world.helpers["zygote"], signal.SIGSTOP)
    os.kill(world.helpers["daemon"], signal.SIGKILL)


def _cut_network(_: Notebook, __: World) -> None:
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", "vb", state], check=True, timeout=10)
        if state == "down":
            time.sleep(CUT)


def _restart(notebook: Notebook, _: World) -> None:
    notebook.restart()


def _kill_kernel(notebook: Notebook, _: World) -> None:
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()


def _everywhere(what: str, sees: str, strike: Strike, **more: object) -> list[Fault]:
    rows = [Fault(what, "idle", "", sees, strike, **more)]  # type: ignore[arg-type]
    return rows + [Fault(what, place, code, sees, strike, **more) for place, code in PLACES.items()]  # type: ignore[arg-type]


FAULTS = [
    *_everywhere("■, the notebook's interrupt", "KeyboardInterrupt", _press),
    Fault("a rank skips it", "collective", "if rank != 1: barrier()", "rank 1 has finished the cell"),
    Fault("a rank skips it", "backward", "if rank != 1: backward()", "rank 1 has finished the cell"),
    Fault("a rank raises", "Python", "if rank == 1: 1 / 0", "ZeroDivisionError: division by zero"),
    Fault("a rank raises", "collective", "if rank == 1: 1 / 0\nbarrier()", "rank 1 failed (ZeroDivisionError"),
    Fault("a rank raises", "backward", "if rank == 1: 1 / 0\nbackward()", "rank 1 failed (ZeroDivisionError"),
    Fault("ranks wait for each other", "collective", "recv(src=(rank + 1) % 4)", "can never complete"),
    Fault("shapes differ", "collective", "dist.all_reduce(torch.ones(2 + (rank == 1)))", "MismatchError"),
    Fault("ops differ", "collective", "all_reduce(torch.ones(2), 'max' if rank else 'min')", "MismatchError"),
    Fault("one calls something else", "backward", "backward() if rank else broadcast(1)", "MismatchError"),
    *_everywhere("kill -9 of a rank", "was killed by SIGKILL", _kill(1), then="heal", lost=(1,)),
    *_everywhere("kill -9 of rank 0", "was killed by SIGKILL", _kill(0), then="heal", lost=(0,)),
    Fault("kill -9 of two ranks", "collective", PLACES["collective"], "SIGKILL", _kill(1, 3), "heal", (1, 3)),
    Fault("a rank ends itself (os._exit)", "Python", "if rank == 1: os._exit(3)", "exit code 3", None, "heal", (1,)),
    Fault("a crash in C (SIGSEGV)", "Python", "if rank == 1: ctypes.string_at(0)", "SIGSEGV", None, "heal", (1,)),
    Fault("memory is refused", "Python", "if rank == 1: torch.empty(1 << 50)", "can't allocate memory"),
    Fault("C code holds Python's lock, then ■", "Python", "if rank == 1: ctypes.PyDLL(None).sleep(60)\ntime.sleep(60)",
          "does not react", _press, "heal 1", (1,)),
    *_everywhere("the kernel is restarted", "Attached to 4 ranks", _restart, then="attach"),
    *_everywhere("kill -9 of the kernel", "Attached to 4 ranks", _kill_kernel, then="attach"),
    Fault("kill -9 of ipyparallel's controller", "idle", "", "controller was killed",
          _signal_helper("controller"), "heal"),
    *_everywhere("kill -9 of the node's zygote", "", _signal_helper("zygote"), quiet=True),
    *_everywhere("the node's zygote is stopped (SIGSTOP)", "", _signal_helper("zygote", signal.SIGSTOP), quiet=True),
    *_everywhere("kill -9 of the node's daemon", "", _signal_helper("daemon"), quiet=True),
    *_everywhere("the node's daemon is stopped (SIGSTOP)", "", _signal_helper("daemon", signal.SIGSTOP), quiet=True),
    *_everywhere("the zygote is stopped, and kill -9 of the daemon", "", _kill_node, quiet=True),
    *_everywhere(f"the network is cut for {CUT} s", "", _cut_network, quiet=True, far=True),
]  # fmt: skip


def prepare(notebook: Notebook, options: str = HERE) -> None:
    """Start a world and give its ranks something to lose."""
    notebook.run("%load_ext nbcomm")
    notebook.run(f"%distributed start {options}", 150)
    notebook.run("from nbcomm.notebook.session import registry\nregistry.current().client;")  # so there is a controller
    notebook.run(PREPARE)


def run(notebook: Notebook, fault: Fault) -> Outcome:
    """Let one fault happen and see that it is told, mended and survived; the world is as before then."""
    try:
        return _run(notebook, fault)
    except BaseException:
        notebook.interrupt()  # its cell may never end, and the next faults have other reasons to fail
        raise


def _run(notebook: Notebook, fault: Fault) -> Outcome:
    ranks, helpers, path, number = json.loads(notebook.run(_PIDS).text)
    world = World(ranks, helpers, WorldDir(path), number)
    began = time.monotonic()
    cell = None
    if fault.code:
        before = _BEATS if fault.quiet else "print('on', flush=True)"
        cell = notebook.submit(f"%%distributed\n{before}\n{textwrap.dedent(fault.code)}")
        if fault.strike is not None:
            notebook.until(lambda: "on" in cell.text, 60, "it did not begin", cell)
            began = time.monotonic()
    if fault.strike is not None:
        fault.strike(notebook, world)
    struck = time.time()
    if fault.quiet:
        if "daemon" in fault.what:
            await_daemon(notebook, world.home, world.helpers["daemon"])
        _await_beats(notebook, cell, struck)
        told = time.monotonic() - began
        shown = _told(notebook, fault, cell)
    else:
        shown = _told(notebook, fault, cell)
        told = time.monotonic() - began
    assert fault.sees in shown, shown
    _mend(notebook, fault, world)
    again = time.monotonic()
    if fault.lost:
        values = [None if rank in fault.lost else rank * 10 for rank in range(RANKS)]
        assert notebook.run(ALIVE.replace("distributed", "distributed --no-fold")).lines == [
            f"[{rank}] ({value}, {RANKS})" for rank, value in enumerate(values)
        ]
        good = time.monotonic() - again
        notebook.run(PREPARE)
    else:
        assert notebook.run(GOOD).text == FINE
        good = time.monotonic() - again
    return Outcome(_sentence(shown, fault), told, _mended + good)


_PIDS = f"""\
{FIND}import json
session = registry.current()
*_, struck = session._processes.nodes
serving = helpers(struck) | dict(controller=helpers()['controller'])
ranks = [view.pid for view in session.status()]
print(json.dumps([ranks, serving, str(home_of(struck).path), struck.number]))"""

_BEATS = """\
import threading
def beat():
    while not over.wait(0.05): print("on", time.time(), flush=True)
over = threading.Event()
threading.Thread(target=beat, daemon=True).start()"""
"""Prints the time from a thread while the main thread is where the fault hits it; the next cell ends that."""

_mended = 0.0


def _await_beats(notebook: Notebook, cell: Cell | None, struck: float) -> None:
    """Wait until what each rank has printed after the fault is shown."""
    if cell is not None:

        def shown() -> bool:
            beats = re.findall(r"^\[(\d)\] on ([\d.]+)$", cell.text, re.MULTILINE)
            return len({rank for rank, when in beats if float(when) > struck}) == RANKS

        notebook.until(shown, 60, "what is printed after the fault is not shown", cell)


def _told(notebook: Notebook, fault: Fault, cell: Cell | None) -> str:
    """What the notebook shows of it."""
    if fault.then == "attach":
        return "Attached to 4 ranks"  # said by the mending, and checked there
    if fault.quiet:
        return _unseen(notebook, cell)
    if cell is not None and "SIGKILL" in fault.sees and fault.where == "Python":
        # The others go on with what they do: it is told while the cell runs, and a person decides.
        notebook.until(lambda: fault.sees in cell.text, 60, "nothing was said", cell)
        shown = cell.text
        notebook.interrupt()
        notebook.finish(cell)
        return shown
    if cell is not None:
        notebook.finish(cell)
        assert cell.error is not None, cell.text
        return cell.text + cell.error_text
    if fault.strike is _press:
        return "KeyboardInterrupt"  # idle ranks show nothing
    deadline = time.monotonic() + 60
    while fault.sees not in (text := notebook.run("%distributed").text):
        assert time.monotonic() < deadline, text
    return text


def _unseen(notebook: Notebook, cell: Cell | None) -> str:
    """See that the ranks can be reached, and that a cell that runs goes on until it is ended."""
    if cell is not None:
        assert not cell.idle
        notebook.interrupt()
        notebook.finish(cell)
        assert "KeyboardInterrupt" in cell.error_text
        notebook.run("%%distributed\nover.set()")
    assert " dead " not in notebook.run("%distributed").text
    return "nothing"


def _mend(notebook: Notebook, fault: Fault, world: World) -> None:
    global _mended  # noqa: PLW0603 - the time that it took belongs to the row
    began = time.monotonic()
    if fault.strike is _kill_node and world.number:
        pass  # only on the head ipyparallel's controller has ended with it
    elif fault.then.startswith("heal"):
        healed = notebook.run(f"%distributed {fault.then}").text
        assert "back after" in healed, healed
    elif fault.then == "attach":
        notebook.run("%load_ext nbcomm")
        began = time.monotonic()
        cell = notebook.submit("%distributed attach")
        notebook.until(lambda: "Attached to 4 ranks" in cell.text, 60, "not attached", cell)
        if fault.code and fault.strike is _kill_kernel:  # a restart interrupts the cell first: Jupyter sees to that
            notebook.until(lambda: "[0-3] on" in cell.text, 60, "its output did not come", cell)
            _mended = time.monotonic() - began
            notebook.interrupt()
            notebook.finish(cell)
            return
        notebook.finish(cell)
    _mended = time.monotonic() - began


def _unbroken(shown: str) -> list[str]:
    """The lines of a text, each with those that it goes on in: the next word had no room in it."""
    lines: list[str] = []
    last = ""
    for line in shown.splitlines():
        if last and line.strip() and len(f"{last} {line.split()[0]}") > WIDTH:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        last = line
    return lines


def _sentence(shown: str, fault: Fault) -> str:
    """The error or the line that tells it, in one line of limited length."""
    errors = [error[0] for block in re.split(r"\n\s*\n", shown) if (error := re.search(r"(?ms)^\w+Error: .*", block))]
    said = [in_one_line(error) if "\n  " in error else " ".join(error.split()) for error in errors]
    lines = [line for line in [*said, *_unbroken(shown)] if fault.sees in line]
    line = next((line for line in lines if not line.startswith("CellError")), lines[0] if lines else shown)
    line = re.sub(r"\s+", " ", line.strip())
    return line if len(line) < 240 else line[:239] + "…"


# ── the page ────────────────────────────────────────────────────────────────────────────────────────

_TABLE = "| fault | while the ranks are in |"
"""How the table begins; it ends with an empty line."""


def written(page: str, rows: list[str], cores: int) -> str:
    """Return a page with these rows in its table, and the number of cores on which they were made; all else stays."""
    before, _, rest = page.partition(_TABLE)
    head, rule, *_ = rest.split("\n", 2)
    behind = rest.partition("\n\n")[2]
    told = re.sub(r"\d+(?=\s+cores)", str(cores), before)
    return "\n".join([f"{told}{_TABLE}{head}", rule, *rows, "", behind])


def measure(options: str, faults: Iterable[Fault]) -> dict[str, Outcome]:
    """Let each fault happen in one world; by its name, what was measured."""
    directory, place = tempfile.mkdtemp(), tempfile.mkdtemp(prefix="nb", dir="/tmp")
    notebook = Notebook(directory, TMPDIR=place)
    outcomes = {}
    try:
        prepare(notebook, options)
        for fault in faults:
            outcomes[str(fault)] = run(notebook, fault)
            print(fault, outcomes[str(fault)], flush=True)
    finally:
        notebook.close()
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    return outcomes


def elsewhere() -> dict[str, Outcome]:
    """Let each fault happen to another node, on the fake hosts, which need root."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        times = Path(folder) / "times.json"
        enter = Path(__file__).parents[1] / "nodes" / "fake_hosts" / "enter.sh"
        command = [enter, folder, sys.executable, "-m", __spec__.name, "--times", times]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return {name: Outcome(*outcome) for name, outcome in json.loads(times.read_text()).items()}


def row(fault: Fault, here: Outcome | None, there: Outcome) -> str:
    """Return a line of the table."""
    shown = "nothing" if fault.strike is _press and not fault.code else (here or there).shown.replace("|", "\\|")
    told, good = (f"{here.until_told:.2f} s", f"{here.until_good:.2f} s") if here else ("–", "–")
    typed = f"`%distributed {fault.then}`" if fault.then else ""
    lost = f"variables of {named(fault.lost)}" if fault.lost else "nothing"
    on_another = f"{there.until_told:.2f} s, {there.until_good:.2f} s"
    return f"| {fault.what} | {fault.where} | {shown} | {told} | {typed} | {good} | {lost} | {on_another} |"


def main() -> None:
    """Run every fault and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, default=None, help="write the page there; by default print it")
    parser.add_argument("--times", type=Path, default=None, help="among fake hosts: write what was measured there")
    options = parser.parse_args()
    if options.times is not None:
        outcomes = measure(ELSEWHERE, FAULTS)
        options.times.write_text(json.dumps({name: astuple(outcome) for name, outcome in outcomes.items()}))
        return
    here, there = measure(HERE, [fault for fault in FAULTS if not fault.far]), elsewhere()
    rows = [row(fault, here.get(str(fault)), there[str(fault)]) for fault in FAULTS]
    print("\n".join(rows))
    if options.write is not None:
        options.write.write_text(written(options.write.read_text(), rows, os.cpu_count() or 1))


if __name__ == "__main__":
    main()
