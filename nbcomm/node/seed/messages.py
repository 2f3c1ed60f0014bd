"""What a seed and those who ask it say to each other, and where they meet.

A question is one message of a fixed size with four descriptors; whoever can send it has the user's own rights. All else
that the fork needs is in a file of the world's directory, the *request*, which only the fork reads. Its removal begins
the start: either the fork removes it, or the caller does, who has waited long enough and starts a daemon by
itself. So there is one, whatever is slow.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...durations import seconds
from ...world_dir import SEEDS, own_parent, private_file
from ..peers import credentials_of
from .inheritance import WARM_VARIABLE, Inherited

QUESTION = struct.Struct("=16s16sd")
"""`MAGIC`, the name of the request, and how many seconds the seed is to stay when nobody needs it any more."""

MAGIC = b"nbcomm seed 1".ljust(16, b"\0")

DESCRIPTORS = 4
"""Standard input, output and error output of the fork, and the directory of its world."""

LARGEST_ANSWER = 1 << 16
"""Bytes."""

SOCKET = "seed.sock"
"""The name of the socket in the directory of a seed."""

BACKLOG = 1024
"""How many may connect while the seed still imports: a class that begins."""

_STAY = 60.0
"""Seconds that a seed stays when nobody needs it, where `WARM_VARIABLE` says nothing."""

_TICK = 0.01


class Wanted(msgspec.Struct, frozen=True):
    """What the fork needs.

    Attributes:
        home: the world's directory.
        inherited: from the caller.
    """

    home: bytes
    inherited: Inherited


class Warm(msgspec.Struct, tag=True, frozen=True):
    """The seed has imported all: it forks at once when it is asked.

    Attributes:
        pid: its process.
        since: when it had, by `time.monotonic`.
    """

    pid: int
    since: float


class Began(msgspec.Struct, tag=True, frozen=True):
    """A fork has become the daemon. ``pid`` is its process."""

    pid: int


class Refused(msgspec.Struct, tag=True, frozen=True):
    """There is no fork.

    Attributes:
        why: a sentence.
        stale: another seed could do it: this one has imported what has changed since.
    """

    why: str
    stale: bool = False


class Ended(msgspec.Struct, tag=True, frozen=True):
    """The fork has ended, with this exit status; negative for a signal."""

    status: int


Answer = Warm | Began | Refused | Ended

_DECODER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(answer: Answer) -> bytes:
    """Encode an answer."""
    return msgspec.msgpack.encode(answer)


def decode(answer: bytes) -> Answer:
    """Decode an answer.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _DECODER.decode(answer)


class Request:
    """The file of one question in the directory of a world.

    Args:
        directory: its path, or a descriptor with which it is open.
        token: 16 bytes that no other question has.
    """

    def __init__(self, directory: Path | int, token: bytes) -> None:
        self.directory = directory
        self.token = token
        self.name = f"request-{token.hex()}"

    def write(self, wanted: Wanted) -> None:
        """Write down what the fork needs; the directory is a path.

        Raises:
            OSError: it cannot be written.
        """
        with private_file(Path(self.directory) / self.name) as file:  # type: ignore[arg-type]  # see above
            file.write(msgspec.msgpack.encode(wanted))

    def read(self) -> Wanted:
        """Read it; the directory is a descriptor.

        Raises:
            FileNotFoundError: the caller has given up.
            OSError: it cannot be read, or belongs to another user.
            msgspec.DecodeError: it is no request.
        """
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory)  # type: ignore[arg-type]
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != os.getuid():
                raise PermissionError("The request belongs to another user.")
            return msgspec.msgpack.decode(file.read(), type=Wanted)

    def remove(self) -> bool:
        """Remove it, and return whether it was there: whoever removes it decides who starts the daemon."""
        try:
            if isinstance(self.directory, int):
                os.unlink(self.name, dir_fd=self.directory)
            else:
                (self.directory / self.name).unlink()
        except FileNotFoundError:
            return False
        return True


def check_same_user(connection: socket.socket) -> None:
    """Check that the process at the other end of a connection is this user's.

    Raises:
        PermissionError: it is not.
    """
    _, user, _ = credentials_of(connection)
    if user != os.getuid():
        raise PermissionError(f"A process of user {user} is at the other end.")


def folder_of(name: str) -> Path:
    """Return the private directory of a seed; make it if it does not exist.

    Raises:
        StartError: its parent belongs to another user.
        OSError: it cannot be made.
    """
    seeds = own_parent() / SEEDS
    for folder in (seeds, seeds / name):
        folder.mkdir(mode=0o700, exist_ok=True)
    return seeds / name


def stay_of(environment: Mapping[str, str]) -> float:
    """Return how many seconds a seed is to stay when nobody needs it; what is no time counts as nothing said."""
    try:
        return seconds(environment.get(WARM_VARIABLE) or str(_STAY))
    except ValueError:
        return _STAY


@contextmanager
def alone_in(folder: Path, timeout: float) -> Iterator[None]:
    """Let nobody else begin or end a seed in its directory while the block runs.

    Raises:
        OSError: the directory is not there, or somebody else was at it for longer than ``timeout`` seconds.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_TICK)
        if not os.fstat(lock).st_nlink:
            raise FileNotFoundError("The directory was removed meanwhile.")
        yield
    finally:
        os.close(lock)
