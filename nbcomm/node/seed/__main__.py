"""The process of a seed: ``python -m nbcomm.node.seed LISTENER ROOM`` imports torch once, and then only forks.

It has one thread, for after a fork the child has only the thread that called it. So it opens no ZMQ context, runs no
tensor operation, never uses CUDA, and refuses to fork if what it was told to import has done such a thing. It serves
one user, and one environment (`inheritance.identity`). What it reads is one message of a fixed size; all else is read,
and compared, by the fork, whose faults cost the seed nothing.

It stays while a notebook is connected that has started no world yet, while a world of its lives, and for a while after
that. Its end, whatever ends it, is the end of no world: a daemon is a process of its own, and who asks a seed that
does not answer starts one.
"""

from __future__ import annotations

import array
import importlib
import math
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ...faults import Faults
from ...protocol import Ready
from ...world_dir import WorldDir
from .. import daemon
from ..processes import fork_signals
from ..processes.child import to_the_end
from ..processes.warmup import count_threads, freeze, prepare
from . import messages
from .imports import Imports
from .inheritance import rename
from .messages import Began, Ended, Refused, Warm

_SPARE_TIME = (
    "sympy.core",
    "sympy.polys",
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor",
    "torch._dynamo",
    "stack_data",  # IPython's tracebacks
)
"""Modules that every rank would import at its first optimizer, in steps, so that no question waits for all."""

_IDLE, _TICK = 5.0, 0.01
"""Seconds without a question after which these are imported, for a world that has just started needs the processors
itself; and seconds between two of them."""

_LONGEST_SLEEP = 3600.0

_LOOK = 0.5
"""Seconds between two looks, during the imports, whether anybody waits for them."""

_BACKOFF = 0.1
"""Seconds of pause after a failed step."""

_CUT = socket.MSG_TRUNC | socket.MSG_CTRUNC

_STALE = 75
"""The exit status of a fork that has found the seed to be stale."""


class _Caller:
    """A connection of a process that may ask, or has asked.

    Attributes:
        connection: to it.
        fork: the process that it got; 0 before.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.fork = 0

    @property
    def has_gone(self) -> bool:
        """Whether it has closed the connection, whatever it has said before."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def say(self, answer: messages.Answer) -> None:
        """Answer; who does not read will not know."""
        with suppress(OSError):
            self.connection.send(messages.encode(answer), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Seed:
    """The loop that waits for questions, and for the ends of the forks.

    Args:
        listener: where callers connect.
        folder: the seed's directory.
        stay: seconds that it stays when nobody needs it, until a caller says otherwise.
    """

    def __init__(self, listener: socket.socket, folder: Path, stay: float) -> None:
        self._listener: socket.socket | None = listener
        self._folder = folder
        self._stay = stay
        self._ready: Ready | None = None
        self._since = 0.0
        self._imports = Imports()
        self._callers: set[_Caller] = set()
        self._forks: dict[int, _Caller] = {}
        self._spare_time = list(_SPARE_TIME)
        self._rest = _IDLE
        self._needed = time.monotonic()
        self._faults = Faults()
        self._stumbled = False
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake, listener):
            end.setblocking(False)  # noqa: FBT003 - positional only
        for number in fork_signals.ENDING:
            signal.signal(number, _end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    def begin(self) -> None:
        """Import all; give up if nobody waits for that any more.

        Raises:
            SystemExit: nobody does, or this process could not be forked.
        """
        signal.signal(signal.SIGALRM, lambda *_: self._look_who_waits())
        signal.siginterrupt(signal.SIGALRM, False)  # noqa: FBT003 - positional only; C code may not expect it
        signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
        self._ready = prepare()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._imports.take_stock()
        if not self._ready.forks:
            sys.exit(self._ready.why)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake `select`
        self._since = self._needed = time.monotonic()
        for caller in self._callers:
            caller.say(Warm(os.getpid(), self._since))

    def _look_who_waits(self) -> None:
        """End in the midst of imports that may never end, when all callers have gone, and the time is over."""
        self._accept()
        for caller in [caller for caller in self._callers if caller.has_gone]:
            self._forget(caller)
        if not self._timeout():
            _end()

    def serve(self) -> None:
        """Serve until nobody needs it any more."""
        try:
            while self._goes_on():
                pass
        finally:
            fork_signals.ignore()
            if self._listener is not None:
                clear(self._folder, self._listener)

    def _goes_on(self) -> bool:
        """Take a turn; return whether there is to be another one."""
        timeout, stumbled, self._stumbled = self._timeout(), self._stumbled, False
        happened = False
        with self._faults.beside("the seed stumbled", self._stumble):
            # The failed step may have consumed the only notice of work that remains to be done.
            happened = self._turn(0.0 if stumbled else timeout)
        return timeout > 0 or happened or self._stumbled  # somebody may have connected just now

    def _stumble(self, _: str) -> None:
        self._stumbled = True
        time.sleep(_BACKOFF)

    def _turn(self, timeout: float) -> bool:
        """Wait until something happens, and handle it; return whether something has."""
        events = self._selector.select(timeout)
        for key, _ in events:
            if key.fileobj is self._woken:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._hear(key.data)
        self._reap()
        if events:
            self._rest = _IDLE
        elif timeout and self._may_import():
            self._import_more()
            self._rest = _TICK
        return bool(events)

    # ── how long it stays ───────────────────────────────────────────────────────────────────────────

    @property
    def _waiting(self) -> bool:
        """Whether a notebook is connected that has not asked yet."""
        return any(not caller.fork for caller in self._callers)

    def _timeout(self) -> float:
        """Return how long to wait for the next event, in seconds; 0 at the end."""
        if self._waiting or self._forks:
            self._needed = time.monotonic()
            return self._rest if self._may_import() else _LONGEST_SLEEP
        if self._listener is None:
            return 0.0
        return min(_LONGEST_SLEEP, max(0.0, self._needed + self._stay - time.monotonic()))

    def _may_import(self) -> bool:
        return bool(self._spare_time) and bool(self._waiting or self._forks)

    def _import_more(self) -> None:
        """Import, while a person types or a world lives, one more module that ranks of a later start will need."""
        with suppress(Exception):  # it may be moved or broken in another version of torch
            importlib.import_module(self._spare_time.pop(0))
        self._imports.take_stock()
        if not self._spare_time:
            freeze()

    # ── those who ask ───────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        """Take the connections that have come; those of other users are closed."""
        assert self._listener is not None  # noqa: S101 - for mypy
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            try:
                messages.check_same_user(connection)
            except OSError:
                connection.close()
                continue
            connection.setblocking(False)  # noqa: FBT003 - positional only
            caller = _Caller(connection)
            self._callers.add(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            if self._since:
                caller.say(Warm(os.getpid(), self._since))

    def _hear(self, caller: _Caller) -> None:
        """Do what a caller asks; close the connection of one that has left, or says something else."""
        size, space = messages.QUESTION.size, socket.CMSG_SPACE(messages.DESCRIPTORS * array.array("i").itemsize)
        try:
            said, ancillary, flags, _ = caller.connection.recvmsg(size + 1, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            said, ancillary, flags = b"", [], 0
        received = array.array("i")
        for _, _, data in ancillary:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
        try:
            magic, token, stay = messages.QUESTION.unpack(said) if len(said) == size else (b"", b"", math.nan)
            is_sound = magic == messages.MAGIC and len(received) == messages.DESCRIPTORS and not flags & _CUT
            if is_sound and not math.isnan(stay) and not caller.fork:
                self._stay = stay
                self._fork(caller, token, received)
            else:
                self._forget(caller)
        finally:
            for descriptor in received:
                os.close(descriptor)

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        caller.connection.close()
        self._callers.discard(caller)

    # ── forks ───────────────────────────────────────────────────────────────────────────────────────

    def _fork(self, caller: _Caller, token: bytes, descriptors: Sequence[int]) -> None:
        why = _why_no_fork()
        if why:
            caller.say(Refused(why))
            self._forget(caller)
            return
        try:
            with fork_signals.held_back():
                pid = os.fork()
                if not pid:
                    self._become(caller, token, descriptors)
                caller.fork = pid
                self._forks[pid] = caller
        except OSError as error:  # too many processes, no memory
            caller.say(Refused(f"The seed cannot fork: {error.strerror}."))
            self._forget(caller)

    def _become(self, caller: _Caller, token: bytes, descriptors: Sequence[int]) -> NoReturn:
        """Turn this fork into the daemon of a world."""
        with to_the_end():
            os.setsid()
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
            fork_signals.let_through()
            self._let_go(caller)
            home = _prepared(caller, self._imports, messages.Request(descriptors[3], token))
            caller.connection.close()
            for descriptor in descriptors:
                os.close(descriptor)
            ready = self._ready
            assert ready is not None  # noqa: S101 - for mypy
            daemon.run(home, lambda: ready)
        raise AssertionError  # it has ended

    def _let_go(self, caller: _Caller) -> None:
        """Close what only the seed uses; in a fork."""
        self._selector.close()
        for end in (self._woken, self._wake, self._listener):
            if end is not None:
                end.close()
        for other in self._callers - {caller}:
            other.connection.close()

    def _reap(self) -> None:
        """Tell the callers of forks that have ended."""
        for pid in list(self._forks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                caller = self._forks.pop(pid)
                if code == _STALE:
                    self._retire()  # before the caller looks for another seed
                caller.say(Ended(code))
                if caller in self._callers:
                    self._forget(caller)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────

    def _retire(self) -> None:
        """Fork no more: another seed takes this one's place, and who has not asked is to find that one."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        for caller in [caller for caller in self._callers if not caller.fork]:
            self._forget(caller)


def clear(folder: Path, listener: socket.socket) -> None:
    """Close the socket, and remove the directory of a seed, unless somebody begins another one there just now."""
    with suppress(OSError), messages.alone_in(folder, timeout=0.0):
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        for above in list(folder.parents)[:2]:
            above.rmdir()  # if it is empty


def _end(*_: Any) -> NoReturn:
    fork_signals.ignore()
    raise SystemExit


def _why_no_fork() -> str:
    """Return why a fork of this process would be no sound process; nothing if it would be."""
    threads = count_threads()
    if threads > 1:
        return f"The seed has {threads} threads."
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "The seed has used CUDA."
    return ""


def _prepared(caller: _Caller, imports: Imports, request: messages.Request) -> WorldDir:
    """Take what the caller gives to a process that it starts, and return the directory of the world to serve.

    Raises:
        SystemExit: another process serves it.
    """
    try:
        wanted = request.read()
    except FileNotFoundError:
        raise SystemExit from None  # the caller has given up
    except (OSError, msgspec.DecodeError) as error:
        caller.say(Refused(f"The seed's fork cannot read what it is to do: {error}."))
        raise SystemExit(1) from None
    try:
        home = WorldDir(os.fsdecode(wanted.home))
        wanted.inherited.assume()
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.fsdecode(wanted.inherited.folder)  # as for `python -m` in that folder
        tempfile.tempdir = None
        rename([sys.executable, "-m", daemon.__name__, os.fspath(home.path)], wanted.home)
    except (OSError, ValueError) as error:
        caller.say(Refused(f"The seed's fork cannot take over what the caller has (folder, limits, signals): {error}."))
        raise SystemExit(1) from None
    change = imports.change()
    if why := change or imports.hidden():
        caller.say(Refused(why, stale=bool(change)))
        raise SystemExit(_STALE if change else 1)
    if not request.remove():
        raise SystemExit  # the caller has given up
    caller.say(Began(os.getpid()))
    return home


def main() -> None:
    """Serve callers that connect to the socket whose descriptor is the first argument."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    if os.fork():  # so that it is no child of who has started it
        os._exit(0)
    os.setsid()
    listener.listen(messages.BACKLOG)  # again: from now on the system names this process as the listener
    folder = Path.cwd()
    try:
        seed = Seed(listener, folder, messages.stay_of(os.environ))
        seed.begin()
    except BaseException:
        clear(folder, listener)
        raise
    seed.serve()


if __name__ == "__main__":
    main()
