"""What is tried on a GPU, each step in a world of its kind: see `__main__`.

A step returns what it saw, in a few words, and raises where that is wrong. In its cells ``device`` is the rank's own,
so most steps run on the CPU as well, with gloo; those marked with ``gpu`` do not.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbcomm
from nbcomm import CellError
from nbcomm.launch.placement import can_share


@dataclass
class Place:
    """Where the steps run.

    Attributes:
        gpu: whether there is one.
        nccl: the version of NCCL, or "".
        kept: worlds that several steps use, by their kind.
    """

    gpu: bool
    nccl: str = ""
    kept: dict[str, Any] = field(default_factory=dict)

    def world(self, kind: str) -> Any:
        """Return a world: "one" rank with its own GPU, "two" that share one over gloo, or "shared", over NCCL."""
        session = self.kept.get(kind)
        if session is None or not session.running:
            self.end(kind)
            options = {"two": {"device": "cuda"}, "shared": {"share": True}}.get(kind, {}) if self.gpu else {}
            session = self.kept[kind] = nbcomm.start(1 if kind == "one" else 2, **options)
            session.run("import torch, os, time, threading, torch.distributed as dist", quiet=True)
        return session

    def end(self, *kinds: str) -> None:
        """End worlds, by default all."""
        for kind in kinds or tuple(self.kept):
            session = self.kept.pop(kind, None)
            if session is not None:
                session.stop()


class WrongError(AssertionError):
    """A step saw something else than it should."""


def expect(condition: object, what: object) -> None:
    """Raise if a condition does not hold, with what was seen."""
    if not condition:
        raise WrongError(str(what))


SUM = "all_reduce(torch.ones(1, device=device)).item()"


def value(session: Any, expression: str) -> list[Any]:
    """Return an expression's value on each rank."""
    session.run(f"seen_here = {expression}", quiet=True)
    return session.pull("seen_here")


def failure(session: Any, code: str, ranks: str | None = None) -> tuple[str, float]:
    """Run a cell that must fail; return its error's text, and the seconds that it took."""
    began = time.monotonic()
    try:
        session.run(code, ranks, quiet=True)
    except CellError as error:
        return str(error), time.monotonic() - began
    raise WrongError(f"{code!r} did not fail")


@contextmanager
def interrupted(session: Any, after: float) -> Iterator[None]:
    """Interrupt the cell of the block."""
    timer = threading.Timer(after, session.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.join()


# ── one rank ────────────────────────────────────────────────────────────────────────────────────────


def facts(place: Place) -> str:
    """Versions, driver, NCCL, /dev/shm, MPS; the doctor names them."""
    import torch

    told = [f"torch {torch.__version__}"]
    if place.gpu:
        told.append(f"NCCL {place.nccl}")
        told.append(run("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"))
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnccl" in line}
        told.append(f"NCCL from {', '.join(sorted(mapped)) or 'no file that is mapped yet'}")
        told.append("MPS runs" if "mps" in run("ps", "-e", "-o", "comm") else "no MPS")
    shared = Path("/dev", "shm")
    told.append(f"{shared} {shutil.disk_usage(shared).free >> 20} MiB free")
    doctor = run(sys.executable, "-m", "nbcomm", "doctor", check=False)
    lines = [line for line in doctor.splitlines() if re.match(r"\w+ +(GPUs|NCCL)\b", line)]
    expect(len(lines) == 2, doctor)
    return "; ".join([*told, *lines])


def run(*command: str, check: bool = True) -> str:
    """Return what a program writes."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=check)
    return done.stdout.strip()


def start_one(place: Place) -> str:
    """A rank of its own: cuda:0 with NCCL, and nobody else uses the GPU."""
    session = place.world("one")
    (device,), (backend,) = value(session, "str(device)"), value(session, "dist.get_backend_config()")
    expect(device == ("cuda:0" if place.gpu else "cpu"), device)
    expect(("cuda:nccl" in backend) == place.gpu, backend)
    if place.gpu:
        session.run("x = torch.ones(1, device=device)", quiet=True)
        holders = users_of_gpu()
        expect(holders == set(value(session, "os.getpid()")), f"these use the GPU: {holders}")
    return f"{device}, {backend}"


def users_of_gpu() -> set[int]:
    """Return the processes that have CUDA's memory open: what only counts GPUs (NVML) does not."""
    found = set()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit():
                opened = [str(one.readlink()) for one in (process / "fd").iterdir()]
                found.update({int(process.name)} if "/dev/nvidia-uvm" in opened else ())
    return found


def bound(place: Place) -> str:
    """The world's group knows its GPU, and can be split."""
    session = place.world("one")
    (found,) = value(session, "str(dist.group.WORLD.bound_device_id)")
    expect(found == ("cuda:0" if place.gpu else "None"), found)
    if place.gpu:
        session.run("half = dist.split_group(split_ranks=[[0]])\nassert all_reduce(1, group=half) == 1", quiet=True)
    return found


NAMES = """
def tried(x):
    n = world_size
    out = {"all_reduce": all_reduce(x), "broadcast": broadcast(x), "all_gather": all_gather(x), "gather": gather(x),
           "reduce": reduce(x), "scatter": scatter([x] * n if rank == 0 else None),
           "reduce_scatter": reduce_scatter(torch.cat([x] * n)), "all_to_all": all_to_all([x] * n), "scan": scan(x)}
    return out
def plain(value):
    if isinstance(value, torch.Tensor): return value.cpu().tolist()
    if isinstance(value, (list, tuple)): return [plain(one) for one in value]
    return value
"""


def names(kind: str) -> Callable[[Place], str]:
    """Make the step that tries every name."""

    def step(place: Place) -> str:
        """Every name on tensors of the device and of the CPU, and on objects: equal, without a warning."""
        session = place.world(kind)
        session.run(NAMES, quiet=True)
        session.run(
            "import warnings\n"
            "with warnings.catch_warnings():\n"
            "    warnings.simplefilter('error')\n"
            "    here, there = tried(torch.arange(4.) + rank), tried((torch.arange(4.) + rank).to(device))\n"
            "    objects = all_gather({'rank': rank}, mode='object')\n"
            "    barrier()\n"
            "differ = [name for name in here if plain(here[name]) != plain(there[name])]\n"
            "away = [name for name, got in there.items() if isinstance(got, torch.Tensor) and got.device != device]",
            quiet=True,
        )
        differ, away = session.pull("differ"), session.pull("away")
        expect(not any(differ) and not any(away), f"differ {differ}, on another device {away}")
        return f"{len(session.ranks)} ranks, 9 names, objects"

    return step


def cuda_before(place: Place) -> str:
    """A notebook that has used CUDA itself starts a world all the same."""
    if place.gpu:
        import torch

        torch.ones(1, device="cuda").sum().item()
    place.end("one")
    session = place.world("one")
    expect(value(session, "all_reduce(torch.ones(1, device=device)).item()") == [1.0], "a wrong sum")
    return "a world after it"


def interrupts(place: Place) -> str:
    """An interrupt ends a loop of Python's; a kernel that runs on the device is waited for."""
    session, took = place.world("one"), []
    codes = ["while True: time.sleep(0.01)"]
    if place.gpu:
        codes.append("torch.cuda._sleep(int(6e9)); torch.cuda.synchronize()")
    for code in codes:
        with interrupted(session, 1.0):
            text, seconds = failure(session, code)
        expect("KeyboardInterrupt" in text, text)
        took.append(seconds)
    expect(value(session, "all_reduce(rank)") == [0], "the next cell")
    return f"ended after {', '.join(f'{one:.1f} s' for one in took)}"


TRAINED = """
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
def losses(model, where, steps=3):
    torch.manual_seed(1)
    data = torch.randn(world_size * 4, 8)[rank * 4:rank * 4 + 4].to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad(); loss = model(data).square().mean(); loss.backward(); optimizer.step()
        seen.append(loss.item())
    return seen
def alone(steps=3):
    model = net(); torch.manual_seed(1); data = torch.randn(world_size * 4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1); seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        parts = [model(data[r * 4:r * 4 + 4]).square().mean() for r in range(world_size)]
        (sum(parts) / world_size).backward(); optimizer.step(); seen.append(parts[rank].item())
    return seen
def near(a, b): return max(abs(x - y) for x, y in zip(a, b)) < 1e-4
"""


def trains(kind: str) -> Callable[[Place], str]:
    """Make the step that trains."""

    def step(place: Place) -> str:
        """DDP and FSDP2 have the losses of one process; again after an abort."""
        session = place.world(kind)
        session.run(TRAINED, quiet=True)
        code = (
            "ddp = DDP(net().to(device), device_ids=[device] if device.type == 'cuda' else None)\n"
            "mesh = init_device_mesh(device.type, (world_size,))\n"
            "sharded = net().to(device)\n"
            "for layer in sharded: fully_shard(layer, mesh=mesh) if list(layer.parameters()) else None\n"
            "_ = fully_shard(sharded, mesh=mesh)\n"
            "told = [near(losses(model, device), alone()) for model in (ddp, sharded)]"
        )
        session.run(code, quiet=True)
        expect(all(map(all, session.pull("told"))), session.pull("told"))
        if len(session.ranks) > 1:
            failure(session, "if rank == 0: all_reduce(torch.ones(1, device=device))")
            session.run("told = [losses(model, device, 1)[0] < 10 for model in (ddp, sharded)]", quiet=True)
            expect(all(map(all, session.pull("told"))), "after an abort")
        return "DDP and FSDP2 to 1e-4"

    return step


def graphs(place: Place) -> str:
    """A CUDA graph with an all_reduce is captured, or refused in words; the rank lives."""
    session = place.world("one")
    try:
        session.run(
            "x, graph = torch.ones(4, device=device), torch.cuda.CUDAGraph()\n"
            "dist.all_reduce(x); torch.cuda.synchronize()\n"
            "with torch.cuda.graph(graph): dist.all_reduce(x)\n"
            "graph.replay(); torch.cuda.synchronize()",
            quiet=True,
        )
        told = "captured and replayed"
    except CellError as error:
        told = f"refused: {str(error).splitlines()[-1][:100]}"
    expect(value(session, "all_reduce(torch.ones(1, device=device)).item()") == [1.0], "the rank afterwards")
    return told


def values(place: Place) -> str:
    """A tensor of the device is pushed and pulled, also inside an object."""
    session = place.world("one")
    session.run("x = torch.arange(4., device=device); y = {'x': x}", quiet=True)
    (x,), (y,) = session.pull("x"), session.pull("y")
    expect(x.tolist() == y["x"].tolist() == [0, 1, 2, 3], (x, y))
    session.push(z=x)
    expect(value(session, "z.tolist()") == [[0, 1, 2, 3]], "what was pushed")
    if place.gpu:
        expect(os.getpid() not in users_of_gpu(), "this process has a context now")
    return f"pulled to {x.device}"


def restarts(place: Place) -> str:
    """Restarts: memory of the GPU, descriptors and threads are as at first."""
    place.end()

    def held() -> tuple[int, int, int]:
        gc.collect()
        free = 0
        if place.gpu:
            free = int(run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()[0])
        return len([*Path("/proc/self/fd").iterdir()]), threading.active_count(), free

    seen = []
    for _ in range(12 if place.gpu else 4):
        with nbcomm.start(1) as session:
            expect(value(session, "all_reduce(torch.ones(1, device=device)).item()") == [1.0], "a sum")
        seen.append(held())
    expect(seen[-1][0] <= seen[1][0] + 2 and seen[-1][1] <= seen[1][1], seen)
    expect(seen[-1][2] <= seen[1][2] + 64, seen)
    return f"descriptors, threads, MiB: {seen[1]} → {seen[-1]}"


def memory_ends(place: Place) -> str:
    """Out of memory: an error, and the rank lives."""
    session = place.world("one")
    text, _ = failure(session, "torch.empty(1 << 42, device=device)")
    expect("memory" in text.lower(), text)
    expect(value(session, "rank") == [0], "the rank afterwards")
    return text.splitlines()[-1][:120]


def asserts(place: Place) -> str:
    """A device-side assert: an error that names heal, and heal mends it."""
    session = place.world("one")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), suppress(CellError):
        session.run("torch.zeros(4, device=device)[torch.tensor([9], device=device)]; torch.cuda.synchronize()")
    text = shown.getvalue()
    named = "%distributed heal 0" in text
    session.heal([0])
    expect(value(session, "torch.ones(1, device=device).item()") == [1.0], "after heal")
    expect(named, f"heal mended it, but nobody said that it would: {text[-200:]}")
    return "named and mended"


def killed(place: Place) -> str:
    """Kill -9 in a kernel: heal, and the memory of the GPU is free again."""
    session = place.world("one")
    busy = "torch.cuda._sleep(int(4e10)); torch.cuda.synchronize()" if place.gpu else "while True: pass"
    text, _ = failure(session, f"threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\n{busy}")
    expect("killed by SIGKILL" in text, text)
    session.heal()
    expect(value(session, "all_reduce(torch.ones(1, device=device)).item()") == [1.0], "after heal")
    return "healed"


# ── two ranks, which share a GPU over gloo ──────────────────────────────────────────────────────────


def hangs(kind: str) -> Callable[[Place], str]:
    """Make the step in which calls end."""

    def step(place: Place) -> str:
        """A missing rank, a mismatch and an interrupt end within seconds, and both ranks go on."""
        session, took = place.world(kind), []
        for code, word in (
            ("if rank == 0: all_reduce(torch.ones(1, device=device))", "Hang"),
            ("if rank == 0: x = torch.ones(1, device=device); dist.all_reduce(x); x.item()", "Hang"),
            ("dist.all_reduce(torch.ones(2 + rank, device=device))", "Mismatch"),
        ):
            text, seconds = failure(session, code)
            expect(word in text, text)
            took.append(seconds)
        with interrupted(session, 1.0):
            text, seconds = failure(session, "all_reduce(1) if rank == 0 else time.sleep(60)")
        expect("KeyboardInterrupt" in text, text)
        took.append(seconds)
        expect(max(took) < 10, took)
        expect(value(session, SUM) == [2.0, 2.0], "afterwards")
        return ", ".join(f"{one:.1f} s" for one in took)

    return step


def nccl_alone(place: Place) -> str:
    """A group with NCCL that only one of two ranks makes: a verdict, and it is freed."""
    session = place.world("two")
    text, seconds = failure(session, "if rank == 0: made = dist.new_group(backend='nccl')")
    expect(value(session, "all_reduce(1)") == [2, 2], "afterwards")
    return f"{seconds:.1f} s: {text.splitlines()[0][:100]}"


def nccl_twice(place: Place) -> str:
    """Both make it, on one GPU: refused in words, and the world goes on."""
    session = place.world("two")
    text, seconds = failure(
        session, "made = dist.new_group(backend='nccl')\nall_reduce(torch.ones(1, device=device), group=made)"
    )
    expect(value(session, "all_reduce(1)") == [2, 2], "afterwards")
    return f"{seconds:.1f} s: {text.splitlines()[0][:100]}"


# ── two ranks, which share a GPU over NCCL ──────────────────────────────────────────────────────────


def shares(place: Place) -> str:
    """Two ranks share it by NCCL; a subgroup, send and recv."""
    session = place.world("shared")
    backends = value(session, "dist.get_backend_config()")
    expect(all(("cuda:nccl" in one) == place.gpu for one in backends), (backends, session.how_started))
    session.run(
        "half = new_group([0, 1])\n"
        "x = torch.full((1 << 20,), float(rank), device=device)\n"
        "dist.all_reduce(x, group=half)\n"
        "y = send(x * 2, 1) if rank == 0 else recv(0)\n"
        "told = x[-1].item(), y[-1].item() if rank else 2.0",
        quiet=True,
    )
    expect(session.pull("told") == [(1.0, 2.0)] * 2, session.pull("told"))
    return backends[0]


def late(place: Place) -> str:
    """A rank comes 12 s late in a world with --timeout 10: a right sum, and no dead rank."""
    place.end("shared")
    options = {"share": True} if place.gpu else {}
    with nbcomm.start(2, timeout=10.0, **options) as session:
        session.run(f"import torch, time\nif rank: time.sleep(12)\nfound = {SUM}", quiet=True)
        found = session.pull("found")
        expect(found == [2.0, 2.0], found)
    return "12 s after the other one"


def after_heal(place: Place) -> str:
    """After heal, a subgroup's first call with a rank missing is freed, and kill -9 in an all_reduce healed."""
    session = place.world("shared")
    session.run("kept, half = rank + 1, new_group([0, 1])\nx = torch.ones(1 << 20, device=device)", quiet=True)
    text, _ = failure(
        session, "if rank: threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\nwhile True: dist.all_reduce(x)"
    )
    expect("killed by SIGKILL" in text, text)
    session.heal()
    expect(session.pull("kept", ranks=[0]) == [1], "rank 0 has lost its variables")
    session.run("import torch, os, time, threading, torch.distributed as dist", [1], quiet=True)
    expect(value(session, SUM) == [2.0, 2.0], "after heal")
    session.run("other = new_group([0, 1])", quiet=True)
    text, seconds = failure(session, "if rank == 0: dist.all_reduce(torch.ones(1, device=device), group=other)")
    expect("Hang" in text, text)
    expect(value(session, SUM) == [2.0, 2.0], "after the verdict")
    return f"told after {seconds:.1f} s"


def two_worlds(place: Place) -> str:
    """Two worlds at once; no port of NCCL's answers."""
    session = place.world("shared")
    options = {"share": True} if place.gpu else {}
    with nbcomm.start(2, **options) as other:
        other.run("import torch", quiet=True)
        for one in (session, other, session):
            expect(value(one, SUM) == [2.0, 2.0], "a sum")
        with socket.socket() as probe:
            answers = probe.connect_ex(("127.0.0.1", 28028)) == 0
        expect(not answers, "something answers at port 28028, which is NCCL's RAS")
    return "nobody answers at port 28028"


TIMED = """
def timed(call, times):
    for _ in range(5): call()
    if device.type == "cuda": torch.cuda.synchronize()
    best = 1e9
    for _ in range(5):
        barrier()
        began = time.perf_counter()
        for _ in range(times): call()
        if device.type == "cuda": torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6
inner = dist.group.WORLD._inner
told = {}
for size, times in ((1, 50), (16 << 20, 2)):
    x = torch.ones(size, device=device)
    told[size * 4] = [round(timed(call, times), 1) for call in (
        lambda: inner.allreduce([x]).wait(), lambda: dist.all_reduce(x), lambda: all_reduce(x, out=x))]
"""


def times(place: Place) -> str:
    """The time of all_reduce, 4 B and 64 MB: torch's own group, dist in ours, and the name (microseconds)."""
    session = place.world("shared")
    session.run(TIMED, quiet=True)
    told = session.pull("told")[0]
    for took in told.values():
        expect(took[1] < 5 * took[0] and took[2] < 10 * took[0], told)
    return "; ".join(f"{size} B: {', '.join(map(str, took))}" for size, took in told.items())


def ends(place: Place) -> str:
    """The end of a cell: no note for an unread call, a rank that skips it is told, one that is late is awaited."""
    session = place.world("shared")
    session.run("x = torch.ones(4, device=device)", quiet=True)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        session.run("dist.all_reduce(x)")
    expect(not shown.getvalue().strip(), shown.getvalue())
    text, seconds = failure(session, "if rank == 0: dist.all_reduce(x)")
    expect("Hang" in text, text)
    slow = "torch.cuda._sleep(int(1e10))" if place.gpu else "time.sleep(6)"
    session.run(f"if rank: {slow}\ndist.all_reduce(x)", quiet=True)
    expect(value(session, SUM) == [2.0, 2.0], "afterwards")
    return f"told after {seconds:.1f} s"


@dataclass(frozen=True)
class Step:
    """One of them.

    Attributes:
        number: by which it is told; several may have one.
        run: returns what it saw.
        gpu: it needs a GPU.
        share: on a GPU, it needs an NCCL in which ranks can share it.
    """

    number: int
    run: Callable[[Place], str]
    gpu: bool = False
    share: bool = False

    def why_not(self, place: Place) -> str:
        """Return why it cannot be tried; empty if it can."""
        if self.gpu and not place.gpu:
            return "there is no GPU"
        if self.share and place.gpu and not can_share(place.nccl):
            return f"NCCL {place.nccl} cannot share a GPU"
        return ""


STEPS = (
    Step(1, facts),
    Step(2, start_one),
    Step(3, bound),
    Step(4, names("one")),
    Step(9, values),  # before this process itself uses CUDA
    Step(5, cuda_before),
    Step(6, interrupts),
    Step(7, trains("one")),
    Step(8, graphs, gpu=True),
    Step(11, memory_ends, gpu=True),
    Step(12, asserts, gpu=True),
    Step(13, killed),
    Step(10, restarts),
    Step(14, names("two")),
    Step(14, trains("two")),
    Step(15, hangs("two")),
    Step(16, nccl_alone, gpu=True),
    Step(17, nccl_twice, gpu=True),
    Step(18, shares, share=True),
    Step(18, names("shared"), share=True),
    Step(19, hangs("shared"), share=True),
    Step(21, after_heal, share=True),
    Step(22, trains("shared"), share=True),
    Step(23, two_worlds, share=True),
    Step(24, times, share=True),
    Step(25, ends, share=True),
    Step(20, late, share=True),
)
