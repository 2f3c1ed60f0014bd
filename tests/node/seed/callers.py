"""Processes that ask a seed, and what the daemons that they get have seen of themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from nbcomm.node.peers import listener_at
from nbcomm.node.seed.messages import SOCKET

from ...world import lies
from ..served import await_that

_STUBS = {
    "torch": "class cuda:\n  device_count = staticmethod(lambda: 0)\n  is_initialized = staticmethod(lambda: False)\n"
    "class backends:\n  class cuda:\n    is_built = staticmethod(lambda: False)\n"
    "class distributed:\n  is_available = staticmethod(lambda: True)",
    "sympy": "raise ImportError('left out to save time')",
    "quick_engine": "",
    "asked_for": "",
}

_LIE = (
    "nbcomm.node.processes.child",
    """
import json, os, resource, signal, sys, time

def see(self):
    # In the place of a daemon that begins: all that it has from whoever has started it.
    import threading, tempfile, random
    kinds = sorted(name for name in dir(resource) if name.startswith('RLIMIT_'))
    def read(path):
        with open(path, errors='surrogateescape') as file:
            return file.read()
    status = dict(line.split(':\\t', 1) for line in read('/proc/self/status').splitlines())
    opened = {}
    for number in os.listdir('/proc/self/fd'):
        try:
            opened[number] = os.readlink('/proc/self/fd/' + number)
        except OSError:
            pass  # it was the folder's own
    seen = {
        'environment': dict(os.environ), 'folder': os.getcwd(), 'umask': status['Umask'], 'path': sys.path,
        'limits': {kind: resource.getrlimit(getattr(resource, kind)) for kind in kinds},
        'ignored': status['SigIgn'], 'blocked': status['SigBlk'], 'interrupt': repr(signal.getsignal(signal.SIGINT)),
        'nice': os.getpriority(os.PRIO_PROCESS, 0), 'cores': sorted(os.sched_getaffinity(0)),
        'policy': os.sched_getscheduler(0), 'groups': [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()],
        'capabilities': [status[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')],
        'control groups': read('/proc/self/cgroup'), 'oom': read('/proc/self/oom_score_adj'),
        'namespaces': {kind: os.readlink('/proc/self/ns/' + kind) for kind in os.listdir('/proc/self/ns')},
        'personality': read('/proc/self/personality'), 'leads': os.getsid(0) == os.getpid() == os.getpgid(0),
        'opened': opened, 'temporary': tempfile.gettempdir(), 'modules': 'asked_for' in sys.modules,
        'command': read('/proc/self/cmdline').strip('\\0').split('\\0'), 'threads': threading.active_count(),
        'home': [one for one in read('/proc/self/environ').split('\\0') if one.startswith('NBCOMM_HOME=')],
        'random': random.random(), 'parent': os.getppid(),
    }
    with open(self._path.with_name('seen'), 'w') as file:
        json.dump(seen, file)
    os._exit(7)

def lie(module):
    import nbcomm.node.processes.warmup as warmup
    import nbcomm.node.processes.daemon_lock as lock
    warmup._ALSO = ()
    module.MODULES = {'engine': 'quick_engine'}
    lock.DaemonLock.take_over = see
""",
)

CALLER = """
import json, os, sys, time
from nbcomm.node.seed import client
from nbcomm.node.start import start_daemon
from nbcomm.world_dir import WorldDir

def wait(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, 'it took too long'
        time.sleep(0.005)

def seen(home):
    said = json.loads((home.path / 'seen').read_text())
    for place in ('command', 'home'):
        said[place] = [word.replace(str(home.path), 'HOME') for word in said[place]]
    said['opened'] = {number: where.replace(str(home.path), 'HOME') for number, where in said['opened'].items()}
    said['environment'] = {name: value.replace(str(home.path), 'HOME') for name, value in said['environment'].items()}
    home.remove()
    return said

def without_a_seed():
    home = WorldDir.create()
    with home.daemon_log.open('w+b') as log:
        status = start_daemon(home, log, os.getcwd()).wait(60)
        said = log.seek(0), log.read()
    assert status == 7, said
    return seen(home)

def ask(home, log):
    return client.SeededProcess(home, log, os.getcwd(), lambda: start_daemon(home, log, os.getcwd()))

def by_the_seed():
    home = WorldDir.create()
    with home.daemon_log.open('w+b') as log:
        made = ask(home, log)
        wait(lambda: made.has_ended)
        assert made.status(60) == 7, (made.cold, log.seek(0), log.read())
    return {**seen(home), 'cold': made.cold}

def held():
    # Hold a seed that has imported all.
    client.hold()
    wait(lambda: client._held.hear() is not None)
"""
"""What a process that asks begins with."""


def tell(*values: str) -> str:
    return f"print(json.dumps([{', '.join(values)}]))"


class Callers:
    """Processes of one environment, which only these tests have, so that their seeds are theirs.

    Args:
        folder: where its files are.
    """

    def __init__(self, folder: Path) -> None:
        self.stubs = folder / "stubs"
        self.stubs.mkdir()
        for name, text in _STUBS.items():
            (self.stubs / f"{name}.py").write_text(text)
        told = lies.told(folder / "lies", _LIE)["PYTHONPATH"]
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{self.stubs}{os.pathsep}{told}",
            "TMPDIR": os.fspath(folder / "t"),
            "NBCOMM_WARM": "60",
        }
        self.folder = folder / "work"
        for made in (self.folder, folder / "t"):
            made.mkdir()
        self._met: set[psutil.Process] = set()

    def ask(self, code: str, cwd: Path | None = None, **environment: str) -> Any:
        """Run the code of a caller, and return what it tells."""
        ran = subprocess.run(
            [sys.executable, "-c", CALLER + code],
            env={**self.environment, **environment},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        self.seeds()
        assert ran.returncode == 0, f"{ran.stderr}\n{self.logs()}"
        return json.loads(ran.stdout.splitlines()[-1])

    def logs(self) -> str:
        """What the seeds have logged."""
        return "\n".join(log.read_text() for log in Path(self.environment["TMPDIR"]).glob("nbcomm-*/seeds/*/log"))

    def seeds(self) -> list[psutil.Process]:
        """The seeds that live."""
        parent = Path(self.environment["TMPDIR"]) / f"nbcomm-{os.getuid()}" / "seeds"
        for folder in parent.iterdir() if parent.is_dir() else ():
            pid = listener_at(folder / SOCKET, socket.SOCK_SEQPACKET)
            with suppress(psutil.Error):
                if pid and _is_seed(process := psutil.Process(pid)):  # else it is only about to be one
                    self._met.add(process)
        return [process for process in self._met if process.is_running() and _is_seed(process)]

    def seed(self) -> psutil.Process:
        """The only one."""
        (one,) = self.seeds()
        return one

    def end(self) -> None:
        """End what is left."""
        for process in self.seeds():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(self._met, timeout=10)
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def _is_seed(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and "nbcomm.node.seed" in process.cmdline()
    return False


@contextmanager
def callers_in(folder: Path) -> Iterator[Callers]:
    """Make callers; end their seeds behind the block."""
    made = Callers(folder)
    try:
        yield made
    finally:
        made.end()


def await_end(process: psutil.Process, what: str) -> None:
    """Wait until a process has ended."""
    await_that(lambda: not _is_seed(process), what)
