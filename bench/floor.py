"""The least that a cell can cost here: a socket with CURVE to each rank, a thread that owns it, IPython, an answer.

Nothing of nbcomm is in it. What nbcomm's cells cost is held against this, and the plain kernel's cell.

It costs more in a real kernel than one time after the other: what kernel and client do in between takes the ranks' code
and data out of the processors' caches, so a rank needs twice the time for the same `run_cell`. `bench.breakdown`
therefore measures it both ways.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

_END = b""


@contextmanager
def floor(n: int) -> Iterator[Floor]:
    """Such a world with n ranks, which are forked: call it before this process has threads."""
    with tempfile.TemporaryDirectory() as folder:
        world = Floor(n, f"ipc://{folder}/floor")
        try:
            yield world
        finally:
            world.close()


class Floor:
    """A notebook's end, and its ranks, whose processes are ``pids``."""

    def __init__(self, n: int, address: str) -> None:
        public, secret = zmq.curve_keypair()
        self.pids = [_forked(rank, address, public) for rank in range(n)]
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.curve_publickey, self._router.curve_secretkey = public, secret
        self._router.bind(address)
        self._names = [self._router.recv_multipart()[0] for _ in range(n)]

    def cell(self, code: bytes = b"x = 1") -> float:
        """Run a cell on all ranks; return the seconds until all have answered."""
        began = time.perf_counter()
        for name in self._names:
            self._router.send_multipart([name, code])
        for _ in self._names:
            self._router.recv_multipart()
        return time.perf_counter() - began

    def close(self) -> None:
        """End the ranks."""
        for name in self._names:
            self._router.send_multipart([name, _END])
        for pid in self.pids:
            os.waitpid(pid, 0)
        self._context.destroy(linger=0)


def _forked(rank: int, address: str, server: bytes) -> int:
    pid = os.fork()
    if not pid:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the deadline is the parent's
            _serve(rank, address, server)
        finally:
            os._exit(0)
    return pid


def _serve(rank: int, address: str, server: bytes) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    cells: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    context = zmq.Context()
    answers = context.socket(zmq.PAIR)
    answers.bind("inproc://answers")
    arguments = (context, f"{rank}".encode(), address, server, cells)
    threading.Thread(target=_own, args=arguments, daemon=True).start()
    while (code := cells.get()) != _END:
        shell.run_cell(code.decode(), store_history=False)
        answers.send(b"done")


def _own(
    context: zmq.Context[zmq.Socket[bytes]], name: bytes, address: str, server: bytes, cells: queue.SimpleQueue[bytes]
) -> None:
    """Serve the two sockets of a rank, on the thread that owns them, as long as its parent lives."""
    parent = os.getppid()
    link, answers = context.socket(zmq.DEALER), context.socket(zmq.PAIR)
    answers.connect("inproc://answers")
    link.identity, link.curve_serverkey = name, server
    link.curve_publickey, link.curve_secretkey = zmq.curve_keypair()
    link.connect(address)
    link.send(b"here")
    poller = zmq.Poller()
    poller.register(link, zmq.POLLIN)
    poller.register(answers, zmq.POLLIN)
    while os.getppid() == parent:
        for ready, _ in poller.poll(1000):
            if ready is link:
                cells.put(link.recv())
            else:
                link.send(answers.recv())
    os._exit(0)
