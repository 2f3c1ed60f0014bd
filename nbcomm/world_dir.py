"""The private directory of one world, with its sockets, logs and files.

Both sides identify a world by this directory. It has mode 0700 and its parent belongs to this user alone,
so a process that can open a socket in it could read this user's files anyway. The path is short, because a
Unix socket's address holds about 100 bytes.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from .errors import StartError
from .protocol.nodes import rank_of
from .short_repr import shortened
from .world_info import LinkInfo, WorldInfo

HOME_VARIABLE = "NBCOMM_HOME"
"""The environment variable that gives a process of the world the world's directory."""

PROFILE_VARIABLE = "NBCOMM_IPYTHON_PROFILE"
"""The one that gives a rank the directory of the notebook's IPython profile, until the rank has read it."""

SEEDS = "seeds"
"""The directory of all seeds of a user (`node.seed`), beside those of worlds."""

_TAIL, _LINE = 1 << 18, 4096
"""Bytes of a log that are read for its last lines, and characters of a line that are shown."""

_LONGEST_SOCKET_NAME = len("/store9999.sock")
_LONGEST_SOCKET_PATH = 100

_ROOM = 1 << 16
"""Bytes that must be free for what a world writes while it starts; cells may need more later."""

LARGEST_FILE = 2 << 20
"""Bytes that a file of a world may need: the largest that every world has is a rank's page of the board."""

_LEASE = 60.0
"""Seconds that a world lives without a notebook, unless something else was written down."""

NUMBERS = 1 << 40
"""How many numbers a notebook has to itself: no orders of 34 years, a thousand a second, are more.

As nanoseconds they are 18 minutes. If notebooks come faster, their numbers run ahead of the clock, which harms nobody.
There is room for 6 million notebooks before a number is too large for a message (63 bits).
"""

FULL = {errno.EFBIG, errno.ENOSPC, errno.EDQUOT}
"""Numbers of errors that say that there is no room on the disk."""


class WorldDir:
    """Paths inside one world's private directory.

    Args:
        path: the directory, which may not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._held: list[int] = []

    @classmethod
    def create(cls, name: str = "") -> WorldDir:
        """Create a new directory that only this user can enter.

        Args:
            name: what it is called; by default something that no other is. One that is there is used again.

        Raises:
            StartError: there can be no parent directory (`own_parent`), or its path is too long for sockets.
        """
        if not hasattr(os, "getuid"):
            raise StartError("nbcomm needs Unix sockets and signals: on Windows, run Jupyter in WSL 2.")
        while True:
            home = cls(own_parent() / (name or secrets.token_hex(4)))
            if len(os.fsencode(home.path)) + _LONGEST_SOCKET_NAME > _LONGEST_SOCKET_PATH:
                raise StartError(
                    f"{home.path} is too long for Unix sockets; set TMPDIR to a shorter path, such as /tmp, before you "
                    "start Jupyter: a kernel that runs keeps its own."
                )
            # Another world that ends removes the parent if it is empty, perhaps at this moment.
            with suppress(FileNotFoundError):
                home.path.mkdir(mode=0o700, exist_ok=bool(name))
                break
        # The first now, while no other user knows its name: all users can write to /dev/shm. IPython would create the
        # others with the modes of the umask.
        for folder in (home.bulk, home.profile, home.profile / "log", home.profile / "startup"):
            folder.mkdir(mode=0o700, exist_ok=bool(name))
        return home

    @classmethod
    def named(cls, name: str) -> WorldDir:
        """Return the directory of one of this user's worlds on this machine, by its name or its path."""
        paths = [parent / name for parent in _parents()]
        return cls(next((path for path in paths if path.exists()), paths[-1]))

    @classmethod
    def all(cls) -> list[WorldDir]:
        """Return the directories of all of this user's worlds on this machine; some may be about to end."""
        found: list[WorldDir] = []
        for parent in _parents():
            with suppress(OSError):
                if parent.lstat().st_uid == os.getuid():
                    found += [cls(path) for path in sorted(parent.iterdir()) if path.is_dir() and path.name != SEEDS]
        return found

    def check_room(self) -> None:
        """Check that a world's files can be written; otherwise a world would fail later, or in part.

        Raises:
            StartError: the limit on file sizes, which child processes inherit, is too small for one of them.
            OSError: there is no room on the disk.
        """
        most = _largest_file()
        if most is not None and most < LARGEST_FILE:
            raise StartError(_TOO_LARGE.format(most))
        probe = self.path / "room"
        try:
            with private_file(probe) as file:
                file.write(bytes(_ROOM))
        finally:
            probe.unlink(missing_ok=True)

    @property
    def id(self) -> str:
        """The world's short name."""
        return self.path.name

    @property
    def profile(self) -> Path:
        """The IPython profile that ipyparallel keeps its connection files and logs in."""
        return self.path / "ipython"

    @property
    def link_file(self) -> Path:
        """The file in which the node's daemon reads how to reach the notebook."""
        return self.path / "link.json"

    @property
    def world_file(self) -> Path:
        """The file with what a later notebook needs; it is there once the world has started."""
        return self.path / "world.json"

    @property
    def link_socket(self) -> Path:
        """The socket of the notebook's end of the link."""
        return self.path / "link.sock"

    @property
    def daemon_socket(self) -> Path:
        """The socket on which the node's daemon takes the connections of its ranks."""
        return self.path / "daemon.sock"

    @property
    def daemon_lock(self) -> Path:
        """The file whose lock only the present daemon has."""
        return self.path / "daemon"

    @property
    def daemon_log(self) -> Path:
        """The file with what the node's daemon and its zygote printed."""
        return self.path / "daemon.log"

    def store_socket(self, generation: int) -> Path:
        """Return the path of the rendezvous socket of one generation of the process group."""
        return self.path / f"store{generation}.sock"

    def forget_stores(self, but: int) -> None:
        """Remove the sockets of all generations but one: a daemon that was killed leaves its own."""
        for path in self.path.glob("store*.sock"):
            if path != self.store_socket(but):
                with suppress(OSError):
                    path.unlink()

    def log(self, rank: int) -> Path:
        """Return the path of a rank's log: what its engine logged, and what it printed before it could run cells."""
        return self.path / f"rank{rank}.log"

    def log_of(self, key: str) -> Path:
        """Return the path of the log of a process, by its key: "rank 3", "controller"."""
        rank = rank_of(key)
        return self.path / f"{key}.log" if rank is None else self.log(rank)

    def add_to_log(self, rank: int, text: str) -> None:
        """Append to a rank's log, because its descriptors lead to what cells show. Ignore a missing log."""
        with suppress(OSError), self.log(rank).open("a") as log:
            log.write(text)

    def captured(self, rank: int, stream: str) -> Path:
        """Return the file that a rank's descriptor 1 or 2 writes to while it runs cells; stream is stdout or stderr."""
        return self.path / f"rank{rank}.{stream}"

    @property
    def bulk(self) -> Path:
        """The directory through which large buffers pass between processes: in memory if the system has /dev/shm."""
        shared = Path("/dev/shm")  # noqa: S108 - a mount point, and the directory below it is made 0700
        if os.access(shared, os.W_OK):
            return shared / f"nbcomm-{os.getuid()}-{self.id}"
        return self.path / "bulk"

    @property
    def shared(self) -> Path | None:
        """`bulk`, if the notebook is on this machine, too: it can read a file there."""
        return self.bulk if self.read_link().is_here else None

    @property
    def board(self) -> Path:
        """The file on which the ranks compare the calls that they are about to make."""
        return self.bulk / "board"

    @property
    def spare_board(self) -> Path:
        """The file for a rank's page for which `board` has no room: /dev/shm is small in many containers."""
        return self.path / "board"

    def write_link(self, info: LinkInfo) -> None:
        """Write the link file, which is private to this user from its creation on."""
        with private_file(self.link_file) as file:
            file.write(msgspec.json.encode(info))

    def read_link(self) -> LinkInfo:
        """Read what `write_link` wrote."""
        return msgspec.json.decode(self.link_file.read_bytes(), type=LinkInfo)

    def write_secret(self, secret: bytes) -> None:
        """Save the notebook's own key, with which a later notebook authenticates itself to the ranks."""
        with private_file(self.path / "link.secret") as file:
            file.write(secret)

    def read_secret(self) -> bytes:
        """Read what `write_secret` wrote."""
        return (self.path / "link.secret").read_bytes()

    def hold(self) -> bool:
        """Claim the world for this process; return False if another one holds it. It ends with the process."""
        import fcntl  # Windows has none

        descriptor = os.open(self.path / "holder", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        with suppress(OSError):  # the disk is full; it only says who holds it
            os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)  # in the place of the last one, which needs no room
        if not self._held:
            os.register_at_fork(after_in_child=self.let_go)  # a child that outlives this process is no notebook
        self._held.append(descriptor)
        return True

    def let_go(self) -> None:
        """Give the claim of `hold` back."""
        while self._held:
            os.close(self._held.pop())

    def holder(self) -> int:
        """Return the process that held the world last; 0 if that is not known."""
        try:
            return int((self.path / "holder").read_text() or 0)
        except (OSError, ValueError):
            return 0

    def next_session_id(self) -> int:
        """Return a number for a new notebook, larger than those of all before it.

        It may count on from there, as for its orders: `NUMBERS` are its own, whatever the clock says.
        """
        file = self.path / "session_id"
        session_id = time.time_ns()
        with suppress(OSError, ValueError):
            session_id = max(session_id, int(file.read_text()) + NUMBERS)  # the clock may have been set back
        with suppress(OSError), private_file(file) as written:  # the disk is full: the clock alone must do
            written.write(str(session_id).encode())
        return session_id

    def write_lease(self, seconds: float) -> None:
        """Save how long the world lives without a notebook, for those who keep that when the daemon has ended."""
        with private_file(self.path / "lease") as file:
            file.write(str(seconds).encode())

    def read_lease(self) -> float:
        """Read what `write_lease` wrote; a minute if it is not there yet."""
        try:
            return float((self.path / "lease").read_text())
        except (OSError, ValueError):
            return _LEASE

    def write_children(self, known: bytes) -> None:
        """Save which processes the daemon has started, for another one."""
        with private_file(self.path / "children.json") as file:
            file.write(known)

    def read_children(self) -> bytes:
        """Read what `write_children` wrote."""
        return (self.path / "children.json").read_bytes()

    def note_start(self, start: int, told: bytes) -> None:
        """Note the report of a start: the daemon that is to write it down may end before it hears of it."""
        with private_file(self.path / f"start{start}") as file:
            file.write(told)

    def forget_start(self, start: int) -> None:
        """Undo `note_start`."""
        (self.path / f"start{start}").unlink(missing_ok=True)

    def noted_starts(self) -> Iterator[bytes]:
        """Yield what `note_start` has noted."""
        for place in self.path.glob("start[0-9]*"):
            with suppress(OSError):
                yield place.read_bytes()

    def log_tail(self, key: str, lines: int = 40) -> str:
        """Return the end of a process's log; for a rank, also what it last wrote to descriptor 2."""
        rank = rank_of(key)
        parts = [tail(self.log_of(key), lines)]
        if rank is not None:
            parts.append(tail(self.captured(rank, "stderr"), lines))
        return "\n".join(part for part in parts if part.strip("\0\n ")) or "(nothing)"

    def write_world(self, info: WorldInfo) -> None:
        """Save what a later notebook needs to steer this world."""
        with private_file(self.world_file) as file:
            file.write(msgspec.json.encode(info))

    def read_world(self) -> WorldInfo:
        """Read what `write_world` wrote."""
        return msgspec.json.decode(self.world_file.read_bytes(), type=WorldInfo)

    def remove(self) -> None:
        """Remove the directory, and the parent if this was the user's last world."""
        shutil.rmtree(self.bulk, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()


def _parents() -> list[Path]:
    """Return where this user's worlds are on this machine.

    Python takes another directory for temporary files where the usual one is full: worlds are in that all the same.
    """
    places = [next((place for name in ("TMPDIR", "TEMP", "TMP") if (place := os.environ.get(name))), "/tmp")]  # noqa: S108
    with suppress(FileNotFoundError):  # all of them are full
        places.append(tempfile.gettempdir())
    return [Path(place) / f"nbcomm-{os.getuid()}" for place in dict.fromkeys(places)]


def own_parent() -> Path:
    """Return the parent directory of all of this user's worlds; create it if it does not exist.

    Raises:
        StartError: it belongs to another user, or no directory for temporary files can be used.
    """
    try:
        parent = Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}"
    except FileNotFoundError as error:
        raise StartError(
            f"{error.strerror}: each is full, or cannot be written to. Free some space, or set TMPDIR to a directory "
            "on another disk before you start Jupyter."
        ) from error
    # 0700 for any umask, and never through a link that another user put into a shared directory.
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        status = parent.lstat()
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise StartError(
                f"{parent} belongs to another user; remove it, or set TMPDIR to a directory of your own before you "
                "start Jupyter."
            )
        parent.chmod(0o700)
    return parent


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing with mode 0600, and move it to its path only when it is complete.

    Raises:
        OSError: it could not be written, and the earlier one is unchanged.
    """
    partial = path.with_name(path.name + ".part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or os.fspath(path)
        with suppress(OSError):  # half a file takes room that is lacking
            partial.unlink()
        raise


_TOO_LARGE = (
    "No process of this notebook may write a file of more than {:,} bytes (RLIMIT_FSIZE), and a world needs "
    f"{LARGEST_FILE:,}; type `ulimit -f unlimited` in the shell from which you start Jupyter, before you do."
)


def _largest_file() -> int | None:
    """Return the largest size in bytes of a file that this process may write; None if there is no limit."""
    import resource  # Windows has none

    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if most == resource.RLIM_INFINITY else most


@contextmanager
def telling_of_room() -> Iterator[None]:
    """Turn an error for lack of disk space in the block into a `StartError` that says so.

    Raises:
        StartError: a file could not be written, or could not grow.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        most = _largest_file() if error.errno == errno.EFBIG else None
        if most is not None:
            raise StartError(_TOO_LARGE.format(most)) from error
        raise StartError(
            f"There is no room for the files of a world in {_place_of(error.filename)} ({error.strerror}); free some "
            "space, or set TMPDIR to a directory on another disk before you start Jupyter."
        ) from error


def _place_of(file: str | None) -> Path:
    """Return the directory for temporary files that a world's file is in; for another file, the one that it is in."""
    if not file:
        return Path(tempfile.gettempdir())
    folders = list(Path(file).parents)
    return next((folder.parent for folder in folders if folder.name == f"nbcomm-{os.getuid()}"), folders[0])


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, or an empty text if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read(_TAIL).decode(errors="replace")
    except OSError:
        return ""
    last = text.rstrip().splitlines()[-lines:]
    return "\n".join(shortened(line, _LINE) for line in last)
