"""The children of a cell are ordinary processes: they hear, end and print as those of a plain Python do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .notebook import Notebook, with_ranks
from .processes import OLD_GLOO


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with two ranks on the CPU."""
    with with_ranks(tmp_path_factory.mktemp("two"), 2) as notebook:
        yield notebook


BEGIN = """\
import multiprocessing, os, signal, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of each fork beside threads
fork = multiprocessing.get_context("fork")
status = lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def signalled(number):
    read, write = os.pipe()
    process = fork.Process(target=lambda: (os.write(write, b"."), time.sleep(20)))
    process.start()
    os.read(read, 1)  # it has begun
    os.kill(process.pid, number)
    process.join()
    return process.exitcode
"""

CHILDREN = {
    "what it inherits": """
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            catching = {number.name: signal.getsignal(number) for number in signal.Signals}
            mine = {name: str(one) for name, one in catching.items() if one not in (signal.SIG_DFL, None)}
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os.write(write, repr((mine, blocked, signal.set_wakeup_fd(-1))).encode())
            os._exit(0)
        print(status(pid), os.read(read, 4096).decode())""",
    "signals": "print([*map(signalled, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1))])",
    "signals, forked by a thread": """
        import threading
        told = []
        thread = threading.Thread(target=lambda: told.extend(map(signalled, (signal.SIGTERM, signal.SIGINT))))
        thread.start()
        thread.join()
        print(told)""",
    "a handler of the cell's own": """
        before = signal.signal(signal.SIGINT, lambda *_: os._exit(9))
        print(signalled(signal.SIGINT))
        _ = signal.signal(signal.SIGINT, before)""",
    "a mask of the cell's own": """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
        if (pid := os.fork()) == 0:
            os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        print(status(pid), signal.pthread_sigmask(signal.SIG_SETMASK, before))""",
    "how it exits": """
        for asked in (None, 0, 3, True, 260, "words"):
            if (pid := os.fork()) == 0:
                print("last words")
                sys.exit(asked)
            print(status(pid), flush=True)""",
    "lines of several at once": """
        first, then = os.pipe(), os.pipe()
        def slow():
            sys.stdout.write("one")
            os.write(first[1], b".")
            os.read(then[0], 1)
            print(" line", "of", "öne child")
            print("what", "no newline ends", end="")
        def quick():
            os.read(first[0], 1)
            print("another's", "line", flush=True)
            os.write(then[1], b".")
        def much(number):
            for at in range(60): print(number, "says", at)
        def run(processes):
            for one in processes: one.start()
            for one in processes: one.join()
        run([fork.Process(target=work) for work in (slow, quick)])
        print(flush=True)
        run([fork.Process(target=much, args=(number,)) for number in range(4)])""",
    "bytes and text": """
        if (pid := os.fork()) == 0:
            print("text", "of one line", flush=True)
            sys.stdout.buffer.write(b"bytes\\n")
            sys.stdout.flush()
            print(sys.stdout.write("ö"), flush=True)
            sys.exit(0)
        print(status(pid))""",
    "a pool, many times": """
        for number in range(12):
            with fork.Pool(2) as pool:
                print(pool.map(abs, [-number, 2]))""",
    "spawn and forkserver": """
        for method in ("spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.map(abs, [-1, 2]))""",
    "an executor whose process is killed": """
        import concurrent.futures
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=fork) as executor:
            print(executor.submit(abs, -1).result())
            future = executor.submit(time.sleep, 60)
            for pid in list(executor._processes):
                os.kill(pid, signal.SIGKILL)
            print(type(future.exception()).__name__)""",
    "a manager": """
        with fork.Manager() as manager:
            print(manager.dict(a=1))
        print(multiprocessing.active_children())""",
    "a program": """
        import subprocess
        for number in (signal.SIGTERM, signal.SIGINT):
            program = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)
            program.send_signal(number)
            print(program.wait())
        ask = "import signal; print(signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
        print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())""",
    "workers of a loader": """
        from torch.utils.data import DataLoader
        class Data(list):
            def __getitem__(self, at):
                return super().__getitem__(at)()
        def load(*third, **keywords):
            data = Data([int, int, *third])
            try:
                return [int(one) for one in DataLoader(data, num_workers=2, multiprocessing_context=fork, **keywords)]
            except RuntimeError as error:
                return str(error).partition("(")[0]
        print(load(int))
        print(load(lambda: os.kill(os.getpid(), signal.SIGKILL)))
        print(load(lambda: time.sleep(60), timeout=1))""",
    "torch ends what has not failed": """
        import torch.multiprocessing
        def work(number):
            if number: raise ValueError("so it is")
            time.sleep(60)
        try:
            torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
        except torch.multiprocessing.ProcessRaisedException as error:
            print("so it is" in str(error), multiprocessing.active_children())""",
    "a world of their own": """
        import torch, torch.distributed as dist, torch.multiprocessing
        from torch.nn.parallel import DistributedDataParallel
        def work(number, size, address, seen=True):
            seen = seen or dist.is_initialized()
            dist.init_process_group("gloo", init_method=address, rank=number, world_size=size)
            sums = [torch.tensor(number + 1.0) for _ in range(2)]
            dist.all_reduce(sums[0])
            dist.all_reduce(sums[1], group=dist.new_group([0, 1]))
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
            names = sorted(dist.distributed_c10d._world.pg_names.values())
            told = [number, sums, mesh.size(), names, torch.isfinite(model.module.weight.grad).all()]
            everyone = [None] * size
            dist.all_gather_object(everyone, told)
            if number == 0: print(everyone, seen, flush=True)
            dist.barrier()
            dist.destroy_process_group()
            assert not dist.is_initialized()
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            tutorial = [fork.Process(target=work, args=(number, 2, f"file://{folder}/a")) for number in range(2)]
            for one in tutorial: one.start()
            for one in tutorial: one.join()
            print([one.exitcode for one in tutorial])
            arguments = (2, f"file://{folder}/b", False)
            torch.multiprocessing.start_processes(work, arguments, nprocs=2, start_method="fork")""",
    "a world in a world's child": """
        import torch.distributed as dist, torch.multiprocessing
        def alone(number=0):
            try:
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            except ValueError as error:
                print(error, flush=True)
            if number == 0:
                child = fork.Process(target=alone, args=(1,))
                child.start()
                child.join()
        torch.multiprocessing.start_processes(alone, nprocs=1, start_method="fork")""",
}


def _without_gloos_parts(lines: list[str]) -> list[str]:
    """Leave out what old gloos of two children write, of whose lines parts stand between each other's."""
    return [line for line in lines if not re.search(r"Gloo|peer ranks|^(\[0\] ?)?\d?$", line)] if OLD_GLOO else lines


@pytest.mark.parametrize("code", CHILDREN.values(), ids=CHILDREN)
def test_a_child_is_as_one_of_a_plain_python(two: Notebook, code: str) -> None:
    code = BEGIN + textwrap.dedent(code)
    command = [sys.executable, "-c", code]
    # With it, Python writes each part of a line by itself.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    plain = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True, env=usual
    )
    cell = two.run(f"%%distributed -r 0\n{code}", timeout=60)
    # If it takes long, what comes last is shown in an area of its own.
    text = cell.text if "says" in code else cell.stream("stdout")
    shown = [line.removeprefix("[0] ").rstrip() for line in text.splitlines()]
    said = [line.rstrip() for line in plain.stdout.splitlines()]
    shown, said = _without_gloos_parts(shown), _without_gloos_parts(said)
    if "says" in code:  # by several children at once, in any order
        shown, said = sorted(shown), sorted(said)
        assert cell.text.index("another's line") < cell.text.index("one line of öne child")
    assert shown == said, cell.text
    assert "nbcomm" not in cell.stream("stderr")


def test_a_child_of_an_awaiting_cell_is_interrupted_itself_and_not_the_cell_in_its_place(two: Notebook) -> None:
    awaiting = """
import asyncio
async def beside():
    return signalled(signal.SIGINT)
print(await asyncio.to_thread(signalled, signal.SIGINT), await asyncio.create_task(beside()))"""
    assert two.run(f"%%distributed -r 0\n{BEGIN}{awaiting}").stream("stdout") == "[0] 1 1\n"


def test_a_child_of_a_called_function_exits_with_its_status(two: Notebook) -> None:
    two.run("import os, sys\nfrom nbcomm.notebook.session import registry")
    two.run("def work():\n    return os.waitstatus_to_exitcode(os.wait()[1]) if os.fork() else sys.exit(3)")
    assert two.run("registry.current().call(work)").text == "[3, 3]\n"


def test_a_child_that_a_thread_forks_between_two_cells_is_interrupted(two: Notebook) -> None:
    later = """
import threading
ended, told = threading.Event(), []
def work():
    ended.wait()
    told.append(signalled(signal.SIGINT))
thread = threading.Thread(target=work)
thread.start()
get_ipython().events.register("post_run_cell", lambda _: ended.set())"""
    two.run(f"%%distributed -r 0\n{BEGIN}{later}")
    time.sleep(0.5)  # no cell runs meanwhile; if the child was slower than that, it is as good
    assert two.run("%%distributed -r 0\nthread.join()\nprint(told)").stream("stdout") == "[0] [1]\n"


HUNTER = """
import os, signal, sys
children, known = f"/proc/{sys.argv[1]}/task/{sys.argv[1]}/children", {str(os.getpid())}
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    with open(children) as file:
        for child in set(file.read().split()) - known:
            known.add(child)
            try: os.kill(int(child), signal.SIGINT)
            except ProcessLookupError: pass
"""
"""Interrupts each child of a process as soon as there is one."""


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_no_interrupt_is_lost_because_a_child_is_just_being_forked(two: Notebook) -> None:
    """Python forgets in a child what comes before it has cleaned up there: most of these."""
    hunted = f"""
import subprocess, threading
hunter = subprocess.Popen([sys.executable, "-c", {HUNTER!r}, str(os.getpid())], stdout=subprocess.PIPE)
hunter.stdout.readline()
told = []
for _ in range(30):
    try:
        if (pid := os.fork()) == 0:
            time.sleep(30)
            os._exit(7)
    except KeyboardInterrupt:
        os._exit(1)
    told.append(status(pid))
    if told[-1] != 1: break
hunter.kill()
_ = hunter.wait()
print(set(told), signal.pthread_sigmask(signal.SIG_BLOCK, ()))"""
    assert two.run(f"%%distributed -r 0\n{BEGIN}{hunted}", timeout=90).stream("stdout") == "[0] {1} set()\n"


def test_a_rank_that_is_an_engine_of_ipyparallels_has_ordinary_children_too(two: Notebook) -> None:
    two.run("from nbcomm.notebook.session import registry\nlen(registry.current().client)")
    cell = two.run(f"%%distributed -r 0\n{BEGIN}\nprint([signalled(n) for n in (signal.SIGTERM, signal.SIGINT)])")
    assert cell.stream("stdout") == "[0] [-15, 1]\n"
    assert "received signal" not in cell.text
    pools = f"{BEGIN}\nfor _ in range(8):\n    with fork.Pool(2) as pool: print(pool.map(abs, [-1, 2]))"
    assert two.run(f"%%distributed -r 0\n{pools}").stream("stdout") == "[0] [1, 2]\n" * 8


def test_ignite_starts_its_processes_in_a_cell(two: Notebook) -> None:
    pytest.importorskip("ignite.distributed")
    code = """
import ignite.distributed as idist
def work(number):
    total = idist.all_reduce(1.0)
    if rank == 0: print(number, idist.get_rank(), idist.get_world_size(), total)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
with idist.Parallel(backend="gloo", nproc_per_node=2, start_method="fork", master_port=port) as parallel:
    parallel.run(work)"""
    cell = two.run(f"%%distributed\nimport socket, sys, warnings\nwarnings.simplefilter('ignore'){code}")
    shown = _without_gloos_parts(cell.stream("stdout").splitlines())
    assert sorted(shown) == ["[0] 0 0 2 2.0", "[0] 1 1 2 2.0"]


def test_a_child_sees_the_world_of_its_rank_until_it_makes_its_own(two: Notebook) -> None:
    """As under torchrun: a loader's worker that saw no world would have the data of rank 0, on each rank."""
    data = """
from torch.utils.data import DataLoader, IterableDataset
class Shard(IterableDataset):
    def __iter__(self):
        yield (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
print(list(DataLoader(Shard(), num_workers=1, batch_size=None, multiprocessing_context="fork")))"""
    assert two.run(f"%%distributed{data}").text == "[0] [[0, 2]]\n[1] [[1, 2]]\n"
    refused = """
pair, held = dist.new_group([0, 1]), torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
def work():
    def refuse(call):
        try: call()
        except Exception as error: print(type(error).__name__, str(error)[:35], flush=True)
        else: print("done", flush=True)
    refuse(lambda: dist.all_reduce(torch.ones(1)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    refuse(lambda: dist.all_reduce(torch.ones(1)))
    for call in (lambda: held(torch.ones(1, 2)).sum().backward(), lambda: all_reduce(1), lambda: pair.barrier()):
        refuse(call)
if rank == 0:
    child = fork.Process(target=work)
    child.start()
    child.join()
held(torch.ones(1, 2)).sum().backward()
all_reduce(1), all_reduce(1, group=pair)"""
    left = "[0] CollectiveError This process was forked from rank 0"
    shown = [left, "[0] done", left, left, left, "[0-1] (2, 2)"]
    assert two.run(f"%%distributed\n{BEGIN}{refused}").text.splitlines() == shown
