"""A daemon from the seed of this environment, as the process that asks for it sees it.

Whatever is wrong with the seed costs a fresh import of torch, and no error: there is none, it has ended or is stopped,
it refuses, or does not answer. So whoever asks also has what starts a daemon without a seed.
"""

from __future__ import annotations

import array
import math
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
import psutil

from ...errors import StartError
from ...profile_file import set_preload
from ...world_dir import HOME_VARIABLE, WorldDir
from ..peers import listener_at
from ..start import THREADS, environment
from . import messages
from .inheritance import PLAYED_VARIABLE, ROOM, WARM_VARIABLE, Inherited, identity
from .messages import Began, Refused, Warm

_TIMEOUT = 5.0
"""Seconds in which a seed that has imported all must have forked: a class that begins may keep it busy for some."""

_LOOK = 0.5
"""Seconds between two looks whether a seed that does not answer was stopped."""

_LOCKED = 1.0
"""Seconds for which another process may begin a seed."""

_TICK = 0.005


class _Seed:
    """A connection to a seed.

    Attributes:
        name: `identity`, of when it was made.
        connection: to it.
        since: when it had imported all, by `time.monotonic`; infinite as long as it has not said so.
    """

    # The starter is a process that has begun it, and ends at once.
    def __init__(self, name: str, connection: socket.socket, starter: subprocess.Popen[bytes] | None) -> None:
        self.name = name
        self.connection = connection
        self.since = math.inf
        self._starter = starter
        self._pid = 0

    def hear(self) -> messages.Answer | None:
        """Return what it says, if it says something.

        Raises:
            EOFError: it has closed the connection.
        """
        if self._starter is not None and self._starter.poll() is not None:
            self._starter = None
        try:
            said = self.connection.recv(messages.LARGEST_ANSWER, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not said:
            raise EOFError
        try:
            answer = messages.decode(said)
        except msgspec.DecodeError as error:
            raise EOFError from error
        if isinstance(answer, Warm):
            self.since, self._pid = answer.since, answer.pid
        return answer

    @property
    def is_stopped(self) -> bool:
        """Whether its process was stopped, so that it answers nobody."""
        with suppress(psutil.Error, OSError):
            pid = self._pid or listener_at(messages.folder_of(self.name) / messages.SOCKET, socket.SOCK_SEQPACKET)
            return bool(psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
        return False

    def close(self) -> None:
        self.connection.close()


def why_none() -> str:
    """Return why this process uses no seed, in words; nothing if it may use one."""
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}"
    if os.environ.get("NBCOMM_START") == "spawn":
        return "NBCOMM_START=spawn"
    return "" if messages.stay_of(os.environ) else f"{WARM_VARIABLE}=0"


def _reach(name: str) -> _Seed:
    """Connect to the seed of this name; begin one if there is none.

    Raises:
        OSError: none can be reached, or begun.
        StartError: the user's directory belongs to somebody else.
    """
    folder = messages.folder_of(name)
    try:
        return _Seed(name, _connected(folder), None)
    except (FileNotFoundError, ConnectionRefusedError):
        pass
    with messages.alone_in(folder, _LOCKED):
        with suppress(FileNotFoundError, ConnectionRefusedError):  # another process was first
            return _Seed(name, _connected(folder), None)
        starter = _begin(folder)
        return _Seed(name, _connected(folder), starter)


def _connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)  # noqa: FBT003 - positional only; a full queue is as good as no seed
        connection.connect(os.fspath(folder / messages.SOCKET))
        messages.check_same_user(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(folder: Path) -> subprocess.Popen[bytes]:
    """Begin a seed; who connects from now on is answered when it has imported all."""
    path = folder / messages.SOCKET
    path.unlink(missing_ok=True)
    variables = environment({**dict.fromkeys(THREADS, "1"), HOME_VARIABLE: ROOM})
    variables.pop(PLAYED_VARIABLE, None)  # or the seed, and the forks of others, would end with that notebook
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, (folder / "log").open("wb") as log:
        listener.bind(os.fspath(path))
        listener.listen(messages.BACKLOG)
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "nbcomm.node.seed", str(listener.fileno()), ROOM],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            cwd=folder,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # ipykernel ends only when no child of its process group is left, not even a zombie
        )


# ── before a start ──────────────────────────────────────────────────────────────────────────────────

_held: _Seed | None = None
"""That of this process, which has started no world yet."""


def hold() -> None:
    """Let a seed import torch while a person still types, if there is none; it stays until `let_go`, or a start."""
    global _held  # noqa: PLW0603 - one process holds one seed
    if _held is not None:
        return
    try:
        set_preload()
    except StartError as error:  # torch is imported all the same
        sys.stderr.write(f"{error}\n")
    if why_none():
        return
    with suppress(Exception):  # the start imports by itself, and says why it cannot
        _held = _reach(identity())


def let_go() -> None:
    """Need the seed no more."""
    global _held  # noqa: PLW0603
    if _held is not None:
        _held.close()
        _held = None


def _take() -> _Seed:
    """Return the seed that this process holds, if it is still the right one, or another one.

    Raises:
        OSError, StartError: there is none.
    """
    global _held
    name, held, _held = identity(), _held, None
    if held is not None:
        with suppress(EOFError):
            if held.name == name:
                while held.hear() is not None:
                    pass
                return held
        held.close()
    return _reach(name)


# ── a start ─────────────────────────────────────────────────────────────────────────────────────────


class SeededProcess:
    """A daemon that the seed has forked, or that was started without one.

    Args:
        home: the world's directory.
        log: where its output goes.
        folder: where it works.
        fresh: starts one without a seed.

    Attributes:
        cold: why torch is imported for this start, in words; nothing if that was done before.
    """

    def __init__(
        self, home: WorldDir, log: IO[bytes], folder: str, fresh: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self.cold = why_none()
        self._home = home
        self._log = log
        self._folder = folder
        self._fresh = fresh
        self._own: subprocess.Popen[bytes] | None = None  # without a seed
        self._seed: _Seed | None = None  # as long as it has something to say
        self._fork: psutil.Process | None = None
        self._request: messages.Request | None = None
        self._refusal: Refused | None = None
        self._asked_again = False
        self._has_ended = False
        self._status: int | None = None
        self._began = time.monotonic()
        self._asked = self._looked = self._began
        if self.cold:
            self._start_fresh(self.cold)
        else:
            self._ask()

    def _ask(self) -> None:
        try:
            request = self._request = messages.Request(self._home.path, secrets.token_bytes(16))
            request.write(messages.Wanted(os.fsencode(self._home.path), self._inherited()))
            seed = _take()
        except Exception as error:  # noqa: BLE001 - what a process inherits is told by each system in its own way
            self._start_fresh(f"no seed could be asked ({str(error) or type(error).__name__})")
            return
        self._asked = self._looked = time.monotonic()
        self._seed = seed
        with suppress(OSError):  # it has ended, which is seen at the next look
            self._send(seed, request)

    def _inherited(self) -> Inherited:
        added = {**dict.fromkeys(THREADS, "1"), HOME_VARIABLE: os.fspath(self._home.path)}
        return Inherited.of_this(self._folder, added)

    def _send(self, seed: _Seed, request: messages.Request) -> None:
        question = messages.QUESTION.pack(messages.MAGIC, request.token, messages.stay_of(os.environ))
        null, home = os.open(os.devnull, os.O_RDONLY), os.open(self._home.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            descriptors = array.array("i", [null, self._log.fileno(), self._log.fileno(), home])
            seed.connection.sendmsg([question], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        finally:
            os.close(null)
            os.close(home)

    def _start_fresh(self, why: str) -> None:
        if self._request is not None:
            self._request.remove()
        self._close()
        self.cold = why.removesuffix(".")  # what the seed refuses with is a sentence, and this becomes a part of one
        self._own = self._fresh()

    def _give_up(self, why: str) -> None:
        """Start a daemon without the seed, unless a fork has begun just now, and will say so."""
        if self._request is None or self._request.remove():
            self._start_fresh(why)

    def _close(self) -> None:
        if self._seed is not None:
            self._seed.close()
            self._seed = None

    # ── what the seed says ──────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Take what the seed says, or go on without it."""
        try:
            while self._seed is not None and (answer := self._seed.hear()) is not None:
                self._hear(answer)
        except EOFError:
            self._close()
            if self._fork is None:  # a fork that serves says so before its end of the connection is closed
                self._start_fresh("the seed has ended")
        if self._seed is not None and self._fork is None:
            self._check_timeout(self._seed)

    def _hear(self, answer: messages.Answer) -> None:
        if isinstance(answer, Warm):
            self._asked = max(self._asked, answer.since)
        elif isinstance(answer, Began):
            if self._seed is not None and self._seed.since > self._began:
                self.cold = "the seed was still importing it"
            try:
                self._fork = psutil.Process(answer.pid)
            except psutil.NoSuchProcess:
                self._has_ended = True
        elif isinstance(answer, Refused):
            again, self._refusal = self._refusal is None, answer
            if not (answer.stale and again):
                self._give_up(answer.why)
        elif self._fork is not None or self._has_ended:
            self._has_ended, self._status = True, answer.status
            self._close()
        elif self._refusal is not None and not self._asked_again:  # a stale seed has retired: there is room for another
            self._asked_again = True
            self._close()
            self._ask()
        else:
            self._start_fresh(f"the seed's fork has ended with status {answer.status}")

    def _check_timeout(self, seed: _Seed) -> None:
        now = time.monotonic()
        if seed.since <= now and now - self._asked > _TIMEOUT:
            self._give_up(f"the seed has not answered within {_TIMEOUT:g} s")
        elif now - self._looked > _LOOK:
            self._looked = now
            if seed.is_stopped:
                self._give_up("the seed was stopped")

    # ── the process ─────────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        """Its process; 0 as long as there is none."""
        self._look()
        process = self._own or self._fork
        return 0 if process is None else process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; this must be asked again and again, because it goes on with the start, too."""
        self._look()
        if self._own is not None:
            return self._own.poll() is not None
        return self._has_ended or (self._fork is not None and not _lives(self._fork))

    def status(self, timeout: float) -> int | None:
        """Return its exit status, negative for a signal; None if it is not known within so many seconds."""
        deadline = time.monotonic() + timeout
        while not self.has_ended or (self._own is None and self._status is None and self._seed is not None):
            if time.monotonic() > deadline:
                return None
            time.sleep(_TICK)
        return self._own.returncode if self._own is not None else self._status

    def kill(self) -> None:
        """End it, and wait for that."""
        deadline = time.monotonic() + _TIMEOUT
        while self._own is None and self._fork is None and not self._has_ended and time.monotonic() < deadline:
            if self._request is not None and self._request.remove():
                self._has_ended = True  # before it has begun
                self._close()
                return
            self._look()
            time.sleep(_TICK)
        with suppress(ProcessLookupError, psutil.Error):
            process = self._own or self._fork
            if process is not None:
                process.kill()
        self.status(_TIMEOUT)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except OSError:  # this process has too many files open to read more
        with suppress(ProcessLookupError):
            os.kill(process.pid, 0)
            return True
        return False
