"""Whatever the ranks do, ■ ends the cell on all of them, in time, and the next cell works."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nbcomm.protocol.payload import FILE_FROM

from .notebook import SESSION, Notebook

CASES = {
    "sleep": "time.sleep(60)",
    "loop": "while True: pass",
    "await": "import asyncio\nawait asyncio.sleep(60)",
    "collective": "barrier() if rank else time.sleep(60)",
    "all in collectives of their own": "recv(src=(rank + 1) % 4) if rank else time.sleep(60)",
    "anyone": "recv(None) if rank else time.sleep(60)",
    "async handle": "h = dist.all_reduce(torch.ones(3), async_op=True) if rank else time.sleep(60)\nh.wait()",
    "future": "h = dist.all_reduce(torch.ones(3), async_op=True) if rank else time.sleep(60)\nh.get_future().wait()",
    "new_group": "new_group([0, 1, 2, 3]) if rank else time.sleep(60)",
    "ddp made": "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)) if rank else time.sleep(60)",
    "backward": "loss = model(torch.ones(1, 4)).sum()\nloss.backward() if rank else time.sleep(60)",
    "child": "!sleep 60",
    "subprocess": "import subprocess\nsubprocess.run(['sleep', '60'])",
    "os.system": "import os\nos.system('sleep 60')\ntime.sleep(60)",
    "some ranks have finished": "if rank > 1: time.sleep(60)",
}


@pytest.fixture(scope="module")
def prepared(four: Notebook) -> Notebook:
    """A world whose ranks hold a DDP model."""
    _prepare(four)
    return four


def _prepare(notebook: Notebook) -> None:
    notebook.run("%%distributed\nimport time\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))")
    notebook.run("%%distributed\nkept = rank\nmodel(torch.ones(1, 4)).sum().backward()")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_an_interrupt_ends_the_cell_everywhere_and_the_next_one_works(
    prepared: Notebook, code: str, times: int
) -> None:
    cell = prepared.submit(f"%%distributed\nprint('on', flush=True)\n{code}")
    prepared.until(lambda: "[0-3] on" in cell.text, 60, "the cell did not begin", cell)
    for _ in range(times):
        prepared.interrupt()
    prepared.finish(cell, 50)  # 0.1 to 0.5 s where the machine is not busy
    assert cell.error is not None, cell.text
    assert cell.error["ename"] == "KeyboardInterrupt", cell.error_text
    assert prepared.run("%%distributed\nmodel(torch.ones(1, 4)).sum().backward()\nall_reduce(kept)").text == "[0-3] 6\n"


def test_an_interrupt_between_a_requests_arrival_and_its_beginning_is_not_forgotten(prepared: Notebook) -> None:
    slow = """
        import time
        from nbcomm.rank.groups.world import World
        def slow(self, *args, begin=World.begin):
            World.begin = begin
            time.sleep(2)
            return begin(self, *args)
        World.begin = slow
    """
    prepared.run("%%distributed -r 1\n" + textwrap.dedent(slow))
    cell = prepared.interrupted("%%distributed\nprint('on', flush=True)\ntime.sleep(60)", once="on")
    assert "does not react" not in cell.text
    assert prepared.run("%%distributed\nall_reduce(kept)").text == "[0-3] 6\n"


def test_an_interrupt_that_the_cell_has_caught_is_followed_by_the_next(prepared: Notebook) -> None:
    caught = "try: time.sleep(60)\nexcept KeyboardInterrupt: print('caught', flush=True)\n"
    cell = prepared.submit(f"%%distributed\nprint('on', flush=True)\n{caught}time.sleep(60)")
    prepared.until(lambda: "[0-3] on" in cell.text, 60, "the cell did not begin", cell)
    prepared.interrupt()
    prepared.until(lambda: "[0-3] caught" in cell.text, 60, "nothing was caught", cell)
    prepared.interrupt()
    prepared.finish(cell, 50)
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt", cell.error_text


def test_a_second_interrupt_in_the_moment_in_which_a_child_was_waited_for_is_one(prepared: Notebook) -> None:
    # pexpect, which runs IPython's "!", believes then that somebody else has waited for its child.
    met = """
    import os, signal
    def met(pid, options, wait=os.waitpid):
        ended = wait(pid, options)
        if ended[0]:
            os.waitpid = wait
            signal.raise_signal(signal.SIGINT)
        return ended
    os.waitpid = met
    """
    prepared.run("%%distributed\n" + textwrap.dedent(met))
    cell = prepared.interrupted("%%distributed\nprint('on', flush=True)\n!sleep 60", once="[0-3] on")
    assert "ExceptionPexpect" not in cell.error_text
    assert prepared.run("%%distributed\nos.waitpid is met, all_reduce(kept)").text == "[0-3] (False, 6)\n"


WAIT = "try:\n    print('on', flush=True)\n    time.sleep(60)\n"
TURNED = {
    "exit": f"import sys\n{WAIT}except KeyboardInterrupt:\n    sys.exit(1)",
    "exit in an awaiting cell": (
        "import asyncio, sys\ntry:\n    print('on', flush=True)\n    await asyncio.sleep(60)\n"
        "except asyncio.CancelledError:\n    sys.exit(1)"
    ),
    "exit from a collective": f"import sys\n{WAIT.replace('time', 'barrier() if rank else time')}except: sys.exit(1)",
    "error": f"{WAIT}except KeyboardInterrupt as error:\n    raise ValueError('it stopped') from error",
    "error that hides it": f"{WAIT}except KeyboardInterrupt:\n    raise ValueError('it stopped') from None",
    "failing end": f"{WAIT}finally:\n    raise ValueError('it stopped')",
    "error that is shown": (
        "class Slow(Exception):\n    def __str__(self):\n        print('on', flush=True); time.sleep(60)\nraise Slow"
    ),
    "recursion without end": (
        "import sys; sys.setrecursionlimit(30_000)\n"
        "def f(n):\n    if n == 2000: print('on', flush=True)\n    f(n + 1)\nf(0)"
    ),
}
"""What a cell may make of ■: Lightning tidies up and calls `sys.exit`."""


@pytest.mark.parametrize("code", TURNED.values(), ids=TURNED)
def test_what_a_cell_raises_because_of_an_interrupt_is_one(prepared: Notebook, code: str) -> None:
    cell = prepared.interrupted(f"%%distributed\n{code}", once="[0-3] on")
    assert ("[0-3] ValueError: it stopped" in cell.text) == ("ValueError" in code)
    assert prepared.run("%%distributed\nall_reduce(kept)").text == "[0-3] 6\n"


def test_an_error_behind_an_interrupt_that_the_cell_has_caught_is_its_own(prepared: Notebook) -> None:
    cell = prepared.submit(f"%%distributed\n{WAIT}except KeyboardInterrupt:\n    pass\nraise ValueError('later')")
    prepared.until(lambda: "[0-3] on" in cell.text, 60, "the cell did not begin", cell)
    prepared.interrupt()
    prepared.finish(cell, 50)
    assert cell.error is not None
    assert cell.error["evalue"] == "4 of 4 ranks failed: [0-3] ValueError: later"


def test_a_called_function_that_exits_because_of_an_interrupt_was_interrupted(prepared: Notebook) -> None:
    prepared.run("import sys, time\nfrom nbcomm.notebook.session import registry")
    prepared.run(f"def work():\n{textwrap.indent(WAIT, '    ')}    except KeyboardInterrupt: sys.exit(1)")
    prepared.interrupted("registry.current().call(work)")


def test_an_interrupt_that_python_swallows_comes_again(prepared: Notebook) -> None:
    last = "class Last:\n    def __del__(self):\n        print('on', flush=True)\n        time.sleep(60)\n"
    cell = prepared.interrupted(f"%%distributed\n{last}Last()\ntime.sleep(60)", once="[0-3] on")
    assert "Exception ignored" not in cell.text


def test_an_interrupt_that_comes_while_a_swallowed_one_is_repeated(prepared: Notebook) -> None:
    # The first is discarded in `__del__`; what repeats it meets the second.
    met_by_another = """
    %%distributed
    import signal, threading
    class Last:
        def __del__(self): signal.raise_signal(signal.SIGINT)
    class Met(threading.Timer):
        def __init__(self, *args):
            threading.Timer = Met.__base__
            signal.raise_signal(signal.SIGINT)
            super().__init__(*args)
    threading.Timer = Met
    Last()
    time.sleep(60)
    """
    cell = prepared.run(textwrap.dedent(met_by_another).strip(), 50, fails=True)
    assert "KeyboardInterrupt" in cell.error_text
    assert "Exception ignored" not in cell.text


def test_a_child_of_a_cell_ends_with_it_whenever_the_interrupt_comes(prepared: Notebook) -> None:
    count = "import psutil\nlen([p for p in psutil.Process().children() if p.status() != 'zombie'])"
    before = prepared.run(f"%%distributed\n{count}").text
    # Between the fork of a child and its name in IPython: there it would be an error of IPython's, and the child go on.
    meddle = """\
%%distributed
import pexpect, signal
def later(*args, _make=pexpect.spawn._spawn, **kwargs):
    _make(*args, **kwargs)
    signal.raise_signal(signal.SIGINT)
patch = lambda new: setattr(pexpect.spawn, '_spawn', new)
usual = pexpect.spawn._spawn
patch(later)"""
    prepared.run(meddle)
    # IPython has the child end, and takes that for the end of the line. It shows what the child's terminal says to that
    # within 0.2 s, on a busy machine perhaps nothing.
    assert re.fullmatch(r"(\[[\d,-]+\] \^C\n)?", prepared.run("%%distributed\n!sleep 60", timeout=50).text)
    prepared.run("%%distributed\npatch(usual)")
    assert prepared.run(f"%%distributed\n{count}").text == before


def test_the_magic_interrupts_too_and_is_harmless_between_cells(prepared: Notebook, tmp_path: Path) -> None:
    prepared.run("%distributed interrupt")
    on = str(tmp_path / "on")  # between two cells it would end nothing
    code = f"""\
        import os, threading, time
        from nbcomm.notebook.session import registry
        def press():
            while not os.path.exists({on!r}): time.sleep(0.01)
            registry.current().interrupt()
        threading.Thread(target=press).start()"""
    prepared.run(textwrap.dedent(code))
    wait = f"if rank: barrier()\nelse:\n    open({on!r}, 'w').close()\n    time.sleep(60)"
    cell = prepared.run(f"%%distributed\n{wait}", timeout=50, fails=True)
    assert "KeyboardInterrupt" in cell.error_text
    assert prepared.run("%%distributed\nall_reduce(kept)").text == "[0-3] 6\n"


def test_tracebacks_are_made_once_and_for_interrupts_not_at_all(prepared: Notebook) -> None:
    # One takes half a second where it is the first that leads through torch's sources.
    prepared.run("""\
%%distributed
made, shell = [], get_ipython()
def counting(*args, _make=shell.InteractiveTB.structured_traceback, **kwargs):
    made.append(args[0].__name__)
    return _make(*args, **kwargs)
shell.InteractiveTB.structured_traceback = counting
""")
    prepared.interrupted("%%distributed\nprint('on')\nif rank: barrier()\nelse: time.sleep(60)")
    failed = prepared.run("%%distributed\n1 / 0", fails=True)
    assert "ZeroDivisionError: division by zero" in failed.error_text
    seen = prepared.run("%%distributed\ndel shell.InteractiveTB.structured_traceback\nprint(made)")
    assert seen.text == "[0-3] ['ZeroDivisionError']\n"


def test_a_handler_that_a_cell_has_set_is_gone_with_it(prepared: Notebook) -> None:
    own = "import signal\nheard = []\nsignal.signal(signal.SIGINT, lambda *_: heard.append(1))\n"
    prepared.run(f"%%distributed\n{own}signal.raise_signal(signal.SIGINT)\nassert heard")
    cell = prepared.interrupted("%%distributed\nprint('on')\nwhile True: time.sleep(0.01)", once="[0-3] on")
    assert "KeyboardInterrupt" in cell.error_text
    assert prepared.run("%%distributed\n(len(heard), all_reduce(kept))").text == "[0-3] (1, 6)\n"


def test_a_loop_in_a_task_beside_an_awaiting_cell_is_ended_by_the_second_interrupt(prepared: Notebook) -> None:
    code = """\
%%distributed
import asyncio, gc
from nbcomm.rank.cells.runner import CellRunner
(runner,) = [each for each in gc.get_objects() if isinstance(each, CellRunner)]
async def spin():
    print("on", flush=True)
    while not runner.interrupted: pass
    print("still", flush=True)
    while True: pass
task = asyncio.create_task(spin())
await asyncio.sleep(60)
"""
    cell = prepared.submit(code)
    for heard in ("on", "still"):
        prepared.until(lambda heard=heard: f"[0-3] {heard}" in cell.text, 60, f"it did not get to {heard!r}", cell)
        prepared.interrupt()
    prepared.finish(cell, 50)
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt", cell.error_text
    assert prepared.run("%%distributed\n(task.cancelled(), all_reduce(kept))").text == "[0-3] (True, 6)\n"


def test_nobody_makes_a_traceback_of_an_interrupt(prepared: Notebook) -> None:
    # To read torch's and asyncio's sources for it takes each rank so long that on a busy machine it seems not to react.
    prepared.run("""\
%%distributed
import asyncio
made, maker = [], get_ipython().InteractiveTB
def counted(*args, usual=maker.structured_traceback, **options):
    made.append(args[0].__name__)
    return usual(*args, **options)
maker.structured_traceback = counted""")
    for code in ("time.sleep(60)", "await asyncio.sleep(60)"):
        cell = prepared.interrupted(f"%%distributed\nprint('on', flush=True)\n{code}", once="[0-3] on")
        assert "KeyboardInterrupt" in cell.error_text
    prepared.run("%%distributed\n1 / 0", fails=True)
    assert prepared.run("%%distributed\ndel maker.structured_traceback\nmade").text == "[0-3] ['ZeroDivisionError']\n"


def test_an_interrupt_between_cells_spoils_nothing(prepared: Notebook) -> None:
    for _ in range(3):
        prepared.interrupt()
    assert prepared.run("%%distributed\nall_reduce(kept)").text == "[0-3] 6\n"


def test_the_forming_of_groups_can_be_interrupted_and_waits_for_nobody_who_is_busy(prepared: Notebook) -> None:
    # Rank 1 is frozen, so that the forming would wait for it for long; ■ comes as soon as all have been told.
    prepared.run("""\
import os, signal
from nbcomm.notebook.session import registry
session = registry.current()
generations, frozen = session._generations, session.status()[1].pid
def pressed(_order=generations.order):
    request = _order()
    signal.raise_signal(signal.SIGINT)
    return request
generations.order, generations.stale = pressed, True
os.kill(frozen, signal.SIGSTOP)""")
    try:
        cell = prepared.run("%%distributed\nall_reduce(kept)", fails=True)
        assert "KeyboardInterrupt: the process groups were not re-formed" in cell.error_text
        refused = prepared.run("%%distributed -r 0,2-3\nkept", fails=True).error_text
        assert "Rank 1 still runs an earlier cell, and all ranks must re-form their process groups" in refused
    finally:
        prepared.run("del generations.order\nos.kill(frozen, signal.SIGCONT)")
    prepared.run("import time\nwhile session.busy: time.sleep(0.01)")
    assert prepared.run("%%distributed\nall_reduce(kept)").text == "[0-3] 6\n"


def test_the_forming_of_groups_ends_on_a_rank_that_still_waits_there_for_an_earlier_call(
    prepared: Notebook, tmp_path: Path
) -> None:
    # Rank 1 would wait for a minute, and no other rank with it. ■ comes when all of them are at it.
    prepared.run(f"""\
%%distributed
import pathlib
from nbcomm.rank.groups import world as ours
usual, ours.PATIENCE = ours.PATIENCE, 60
go = pathlib.Path({str(tmp_path / "go")!r})
begun = rank != 1
def slow():
    global begun
    begun = True
    while not go.exists(): time.sleep(0.01)
if rank == 1: _ = barrier.__self__.lanes.begin("slow", slow, issues=False)
while not begun: time.sleep(0.01)  # what has not begun is refused, and not waited for""")
    prepared.run("""\
import signal, time
from nbcomm.notebook.session import registry
session = registry.current()
generations = session._generations
def pressed(_order=generations.order):
    request, deadline = _order(), time.monotonic() + 50
    while time.monotonic() < deadline:
        if session._rank_table.snapshot(1).run == request.id: break
        time.sleep(0.01)
    else: raise TimeoutError("rank 1 did not begin")
    signal.raise_signal(signal.SIGINT)
    return request
generations.order, generations.stale = pressed, True""")
    try:
        cell = prepared.run("%%distributed\nall_reduce(kept)", timeout=60, fails=True)
        assert "KeyboardInterrupt: the process groups were not re-formed" in cell.error_text
        wait = (
            "deadline = time.monotonic() + 50\nwhile session.busy and time.monotonic() < deadline: time.sleep(0.01)\n"
        )
        assert prepared.run(f"{wait}session.busy").text == "False\n"
    finally:
        prepared.run("del generations.order")
        (tmp_path / "go").touch()
    assert prepared.run("%%distributed\nours.PATIENCE = usual\nall_reduce(kept)", timeout=90).text == "[0-3] 6\n"


def test_a_rank_that_gives_up_while_gloo_connects_holds_no_other(prepared: Notebook, tmp_path: Path) -> None:
    connecting = tmp_path / "connecting"
    code = f"""\
        import pathlib, time
        from nbcomm.torch_internals import process_groups
        connect = process_groups._unless
        class TellsItsAddress(dist.Store):
            def __init__(self, store):
                super().__init__()
                self.store = store
            def set(self, key, value):
                self.store.set(key, value)
            def wait(self, *_):  # for the others' addresses
                pathlib.Path({str(connecting)!r}).touch()
                time.sleep(60)
            get = wait
        def connect_to_nobody(ended, backend, seconds):
            process_groups._unless = connect
            backend.func(TellsItsAddress(backend.args[0]), *backend.args[1:])
        process_groups._unless = connect_to_nobody"""
    prepared.run("%%distributed -r 2\n" + textwrap.dedent(code))
    cell = prepared.submit("%%distributed\nif rank == 1: raise ValueError('the groups are broken')\nbarrier()")
    prepared.until(connecting.exists, 60, "the groups were not formed again", cell)
    prepared.interrupt()
    prepared.finish(cell, 50)
    assert prepared.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_c_code_that_holds_the_gil_is_told_of_and_can_be_replaced(prepared: Notebook) -> None:
    prepared.run("%%distributed\nimport ctypes")
    cell = prepared.submit("%%distributed\nprint('on', flush=True)\nif rank == 1: ctypes.PyDLL(None).sleep(60)")
    prepared.until(lambda: "on" in cell.text, 60, "the cell did not begin", cell)  # rank 1 cannot even say it
    prepared.interrupt()
    prepared.finish(cell, 50)  # 1.8 s where the machine is not busy, of 60
    assert "Rank 1 does not react to the interrupt: C code there holds the GIL" in cell.text
    assert cell.error is not None
    refused = prepared.run("%%distributed\n1", fails=True)
    assert "Rank 1 still runs an earlier cell" in refused.error_text
    assert prepared.run("%%distributed -r 0,2-3\nkept").lines == ["[0] 0", "[2] 2", "[3] 3"]
    assert "Rank 1 is back" in prepared.run("%distributed heal 1").text
    assert prepared.run("%%distributed\n(all_reduce(1), 'kept' in globals())").lines == [
        "[0,2-3] (4, True)",
        "[1] (4, False)",
    ]
    _prepare(prepared)


IMPORTED = """\
%%distributed
import sys, time
body = "import time\\nbegun.append(1)\\nfor _ in range(100): time.sleep(0.02)\\nwhole.append(1)"
begun, whole, caught = [], [], []
folder = sys.prefix if {installed} else "/home/somebody"
code = compile(body, f"{{folder}}/slow.py", "exec")
print("ready", flush=True)
exec(code, {{"__name__": "slow", "begun": begun, "whole": whole}})
time.sleep(1000)
"""
"""What the import of a slow module does: its body runs."""


@pytest.mark.parametrize("installed", [True, False])
def test_an_interrupt_waits_until_a_library_has_been_imported(four: Notebook, installed: bool) -> None:
    # Half of a library would be taken for the whole from then on: each later DDP failed after ■ in the first one.
    cell = four.submit(IMPORTED.format(installed=installed))
    four.until(lambda: "[0-3] ready" in cell.text, 30, "it did not begin", cell)
    four.interrupt()
    four.finish(cell)
    assert "KeyboardInterrupt" in cell.error_text
    assert four.run("%%distributed\nlen(whole)").text == f"[0-3] {int(installed)}\n"
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_an_interrupt_that_is_repeated_before_its_handler_has_ended_is_not_lost(four: Notebook) -> None:
    # On a busy machine the thread that repeats it did so while the handler still waited for that thread to start.
    code = """
    %%distributed
    import signal, sys, threading, time
    class Slow(threading.Timer):
        def start(self):
            threading.Timer = Slow.__base__
            super().start()
            self.join(0.5)
    threading.Timer = Slow
    body = "import signal\\nsignal.raise_signal(signal.SIGINT)\\nwhole.append(1)"
    whole = []
    exec(compile(body, f"{sys.prefix}/slow.py", "exec"), {"__name__": "slow", "whole": whole})
    for _ in range(2000): time.sleep(0.01)
    """
    cell = four.run(textwrap.dedent(code).strip(), fails=True)
    assert "KeyboardInterrupt" in cell.error_text
    assert four.run("%%distributed\nlen(whole), all_reduce(1)").text == "[0-3] (1, 4)\n"


def test_an_interrupt_that_hits_the_handler_of_another_does_not_break_an_import(four: Notebook) -> None:
    # The handler of the first begins the thread that repeats it; there the second was taken for one outside the import.
    code = """
    %%distributed
    import signal, sys, threading, time
    class Met(threading.Timer):
        def __init__(self, *args):
            threading.Timer = Met.__base__
            signal.raise_signal(signal.SIGINT)
            super().__init__(*args)
    threading.Timer = Met
    body = "import time, signal\\nsignal.raise_signal(signal.SIGINT)\\ntime.sleep(0.3)\\nwhole.append(1)"
    whole = []
    exec(compile(body, f"{sys.prefix}/met.py", "exec"), {"__name__": "met", "whole": whole})
    time.sleep(60)
    """
    cell = four.run(textwrap.dedent(code).strip(), fails=True)
    assert "KeyboardInterrupt" in cell.error_text
    assert four.run("%%distributed\nlen(whole)").text == "[0-3] 1\n"


SLOW_LIBRARY = """\
%%distributed
import importlib.util, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == {name!r} else None
    def create_module(self, spec): return None
    def exec_module(self, module):
        body = "import os, time\\nwhile not os.path.exists({go!r}): time.sleep(0.02)"
        exec(compile(body, f"{{sys.prefix}}/{name}.py", "exec"), vars(module))
sys.meta_path.insert(0, Slow())
"""
"""Provides an installed module, the import of which lasts until a file is there."""


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_an_interrupt_in_a_long_import_says_what_it_waits_for(four: Notebook, times: int, tmp_path: Path) -> None:
    name, go = f"interrupted_{times}", tmp_path / "go"
    four.run(SLOW_LIBRARY.format(name=name, go=str(go)))
    cell = four.submit(f"%%distributed\nprint('on', flush=True)\nif rank > 1: import {name}\ntime.sleep(60)")
    four.until(lambda: "[0-3] on" in cell.text, 60, "the cell did not begin", cell)
    four.interrupt()
    words = f"ranks 2-3 are importing {name}: the interrupt takes effect after that, in 20 s at most"
    four.until(lambda: words in cell.text, 60, "it was not said what the interrupt waits for", cell)
    said = time.monotonic()
    for _ in range(times - 1):
        four.interrupt()
    # Who has not reacted after five seconds was to be replaced.
    four.until(lambda: cell.idle or time.monotonic() - said > 6, 60, "", cell)
    assert not cell.idle, cell.text
    go.touch()
    four.finish(cell)
    assert "KeyboardInterrupt" in cell.error_text
    assert "not react" not in cell.text
    assert four.run(f"%%distributed\n{name!r} in sys.modules").lines == ["[0-1] False", "[2-3] True"]
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_the_end_of_a_cell_by_a_verdict_waits_for_a_long_import_too(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    four.run(SLOW_LIBRARY.format(name="judged", go=str(go)))
    differ = "elif rank == 2: time.sleep(0.5); barrier()\nelse: all_reduce(1)"
    cell = four.submit(f"%%distributed\nif rank == 3: import judged\n{differ}")
    words = "rank 3 is importing judged: the cell ends there after that, in 20 s at most"
    four.until(lambda: words in cell.text, 60, "it was not said what the end waits for", cell)
    go.touch()
    four.finish(cell)
    assert "MismatchError" in cell.error_text
    assert "not react" not in cell.text
    assert four.run("%%distributed -r 3\n'judged' in sys.modules").text == "[3] True\n"
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_values_that_nobody_waits_for_are_not_left_behind(four: Notebook) -> None:
    """A pull is given up, since a rank is stopped; then that one answers with ten megabytes, as the others have."""
    four.run(SESSION)
    four.run("%%distributed\nkept = torch.ones(10 << 20, dtype=torch.uint8)")
    bulk, pid = four.run("print(session.home.bulk, session.status()[1].pid)").text.split()

    def values() -> int:
        with suppress(FileNotFoundError):  # one that goes meanwhile
            return sum(path.stat().st_size > FILE_FROM for path in Path(bulk).glob("*"))
        return -1

    os.kill(int(pid), signal.SIGSTOP)
    try:
        cell = four.submit("value = session.pull('kept')")
        four.until(lambda: values() == 3, 60, "the others did not answer", cell)
        four.interrupt()
        assert "KeyboardInterrupt" in four.finish(cell).error_text
    finally:
        os.kill(int(pid), signal.SIGCONT)
    four.until(lambda: four.run("print(session.busy)").text == "False\n", 60, "rank 1 never answered")
    four.until(lambda: values() == 0, 60, "values are left")
    assert four.run("print(sum(map(len, session.pull('kept'))) >> 20)").text == "40\n"
    assert values() == 0


def test_a_rank_that_a_signal_has_stopped_is_told_of(four: Notebook) -> None:
    pid = int(four.run("%%distributed -r 1\nimport os\nos.getpid()").text.removeprefix("[1] "))
    cell = four.submit("%%distributed\nimport time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
    four.until(lambda: "[0-3] on" in cell.text, 60, "the cell did not begin", cell)
    os.kill(pid, signal.SIGSTOP)
    try:
        four.interrupt()
        four.finish(cell, 50)
        assert "Rank 1 does not react to the interrupt: a signal has stopped the process" in cell.text
    finally:
        os.kill(pid, signal.SIGCONT)
    four.until(lambda: four.finish(four.submit("%%distributed\nall_reduce(1)")).text == "[0-3] 4\n", 60, "it is lost")
