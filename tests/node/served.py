"""A client with its node: a daemon, its zygote, and processes that take part in nothing."""

from __future__ import annotations

import itertools
import os
import queue
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbcomm.errors import StartError, StateError
from nbcomm.launch.head import Head
from nbcomm.launch.node_client import Process
from nbcomm.node.peers import listener_at
from nbcomm.protocol import Exited, Report
from nbcomm.protocol.nodes import rank_of
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from ..autopsy import OutOfTimeError
from ..world import lies

PATIENCE = 60.0

_ENGINE = """
import os, subprocess, sys, time

def main(argv, key=None):
    if "--tell" in argv:
        print({name: value for name, value in os.environb.items() if name.startswith(b"ODD")})
        sys.exit(0)
    if "--fail" in argv:
        sys.exit("failed on purpose")
    if "--with-a-child" in argv:
        subprocess.Popen(["sleep", "600"])
    time.sleep(600)

if __name__ == "__main__":
    main(sys.argv[1:])
"""

_LIE = (
    "nbcomm.node.processes.child",
    """
import errno, os, signal

def stumbles(step, error):
    # Fails once for each time that a file with its name was put where this looks.
    def stumbling(*args):
        try:
            os.unlink(os.path.join(os.environ["STUMBLES"], step.__name__))
        except FileNotFoundError:
            return step(*args)
        raise error
    return stumbling

def hit(step):
    # Gets a signal to end each time, as long as a file with its name is where this looks.
    def hitting(*args):
        if os.path.exists(os.path.join(os.environ["STUMBLES"], step.__name__)):
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*args)
    return hitting

def lie(module):
    import nbcomm.node.processes.warmup as warmup
    from nbcomm.world_dir import WorldDir
    WorldDir.remove = hit(WorldDir.remove)
    warmup._ALSO = ()
    module.MODULES = {"engine": "quick_engine"}
    os.fork = stumbles(os.fork, OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    os.pidfd_open = stumbles(os.pidfd_open, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    os.waitpid = stumbles(os.waitpid, RuntimeError("on purpose"))
    module.oom.kills = stumbles(module.oom.kills, RuntimeError("on purpose"))
    import sys
    from nbcomm.node.processes.daemon_lock import DaemonLock
    plain = DaemonLock.take_over
    def taking(self):
        spoil(sys.modules["__main__"])
        plain(self)
    DaemonLock.take_over = taking

def spoil(module):
    pass
""",
)
"""A daemon whose engines only wait, and whose steps fail when the test wants it."""


def quickly(patch: pytest.MonkeyPatch, folder: Path, more: str = "") -> None:
    """Let daemons be there soon: their zygotes import no torch, and no engine.

    ``more`` is code for the module that lies; its function ``spoil`` gets the daemon's module as it begins.
    """
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("torch", "sympy", "stack_data"):
        (stubs / f"{name}.py").write_text("raise ImportError('left out to save time')")
    (stubs / "torch.py").write_text(
        "class backends:\n  class cuda:\n    is_built = staticmethod(lambda: False)\n"
        "class cuda:\n  device_count = staticmethod(lambda: 0)\n  is_initialized = staticmethod(lambda: False)\n"
        "class distributed:\n  is_available = staticmethod(lambda: True)"
    )
    (stubs / "quick_engine.py").write_text(_ENGINE)
    patch.setenv("PYTHONPATH", os.fspath(stubs), prepend=os.pathsep)
    patch.setenv("NBCOMM_WARM", "0")  # nobody else has an environment like this
    for name, value in lies.told(folder / "lies", (_LIE[0], _LIE[1] + more)).items():
        patch.setenv(name, value)
    (folder / "stumbles").mkdir()
    patch.setenv("STUMBLES", os.fspath(folder / "stumbles"))


def await_that(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise OutOfTimeError(what)
        time.sleep(0.005)


def has_ended(process: psutil.Process) -> bool:
    """Whether nothing of a process is left but what its parent may want to know."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextmanager
def no_file_more(pid: int = 0) -> Iterator[None]:
    """Let a process, by default this one, open no file more in the block."""
    if pid:
        held = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
        free = next(n for n in itertools.count() if n not in held)
    else:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def daemon_of(home: WorldDir) -> psutil.Process | None:
    """The node's present daemon; None while there is none."""
    pid = listener_at(home.daemon_socket)
    try:
        daemon = psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None
    return None if daemon is None or has_ended(daemon) else daemon


def zygote_of(daemon: psutil.Process) -> psutil.Process | None:
    """Its zygote, which leads no group; None while there is none."""
    with suppress(psutil.NoSuchProcess):
        for child in daemon.children():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(child.pid) == os.getpgid(daemon.pid) and not has_ended(child):
                    return child
    return None


class Client(Head):
    """A client that remembers what it heard."""

    def __init__(self, home: WorldDir, *, running: bool = False) -> None:
        self.heard: list[Report] = []
        self.left = False
        self.exits: queue.Queue[Exited] = queue.Queue()
        self.replaced = threading.Event()
        super().__init__(home, running=running)
        self.report_to(self.exits.put, self.replaced.set)

    def hear(self, report: Report) -> None:
        self.heard.append(report)
        super().hear(report)

    def release(self) -> None:
        self.left = True
        super().release()


class Served:
    """A client with its node."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.client = Client(self.home)
        self.clients = [self.client]
        self.ready = self.client.wait_ready(PATIENCE)

    @property
    def exits(self) -> queue.Queue[Exited]:
        return self.client.exits

    @property
    def launched(self) -> psutil.Process:
        """The daemon that the first client has started last."""
        started = self.clients[0]._process._process
        assert started is not None
        return psutil.Process(started.pid)

    @property
    def daemon(self) -> psutil.Process:
        """The present daemon; waits until there is one."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            daemon = daemon_of(self.home)
            found.extend([daemon] if daemon is not None else [])
            return bool(found)

        await_that(is_there, "there is no daemon")
        return found[-1]

    @property
    def zygote(self) -> psutil.Process:
        """Its zygote; waits until there is one."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            zygote = zygote_of(self.daemon)
            found.extend([zygote] if zygote is not None else [])
            return bool(found)

        await_that(is_there, "there is no zygote")
        return found[-1]

    def ranks(self) -> set[psutil.Process]:
        """The daemon's children but its zygote."""
        daemon = self.daemon
        return {child for child in daemon.children() if not has_ended(child)} - {zygote_of(daemon)}

    def await_daemons(self, number: int, patience: float = PATIENCE) -> None:
        """Wait until the client has claimed the world from the daemon with this number."""

        def is_claimed() -> bool:
            with self.client._changed:  # the client counts a daemon, and then notes that it has yet to claim
                return self.client.daemons == number and self.client._claimed

        await_that(is_claimed, "no other daemon comes", patience)

    def begin(self, key: str, *argv: str, what: str = "engine", pythonpath: str | None = None) -> Process:
        """Start a process that may have ended before anybody looks at it."""
        environment = {**os.environ, HOME_VARIABLE: str(self.home.path)}
        if pythonpath is not None:
            environment["PYTHONPATH"] = pythonpath
        return self.client.start(key, what, list(argv), environment=environment)

    def engine(self, key: str = "rank 0", **options: Any) -> psutil.Process:
        """Start a rank, which waits for a notebook to ask it for something."""
        return psutil.Process(self.begin(key, str(rank_of(key) or 0), **options).pid)

    def attach(self, *, claims: bool = True) -> Client:
        """Let the present client go, and another one take the world; ``claims``: wait until it knows all."""
        if not self.client.left:
            self.client.release()
        self.client = Client(WorldDir(self.home.path), running=True)
        self.clients.append(self.client)
        if claims:
            self.client.wait_claimed(PATIENCE)
        return self.client

    def kill_daemon(self) -> None:
        """Kill it; nobody has started another one then."""
        self.launched.kill()
        self.await_end()

    def await_end(self) -> None:
        """Wait for the end of the daemon that was launched last."""
        started = self.clients[0]._process._process
        assert started is not None
        await_that(lambda: started.has_ended, "the daemon lives on")

    def close(self) -> None:
        if self.client.left:
            with suppress(StateError, StartError):  # it has ended already, or does so now
                self.attach()
        self.client.shutdown()
