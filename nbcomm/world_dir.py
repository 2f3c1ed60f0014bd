"""The private directory of one world: where its sockets, logs and files lie, and who may read them.

Both sides know a world by this directory. It is made with mode 0700 below a parent that belongs to this
user alone, so that whoever can open a socket in it could read this user's files anyway. The path is kept
short, because a Unix socket's address holds about 100 bytes.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from .errors import StartError
from .protocol import Hello, RankPlacement
from .short_repr import shortened

HOME_VARIABLE = "NBCOMM_HOME"
"""Environment variable by which a process of the world finds the world's directory."""

_TAIL, _LINE = 1 << 18, 4096
"""Bytes of a log that are looked at for its last lines, and characters of a line that are shown."""

_LONGEST_SOCKET_NAME = len("/forkserver.sock")
_LONGEST_SOCKET_PATH = 100

_ROOM = 1 << 16
"""Bytes that must be free for what a world writes while it starts; the rest comes with what cells do."""

LARGEST_FILE = 2 << 20
"""Bytes that a file of a world's may need: a rank's page of the board is the largest that there always is."""

_FULL = {errno.EFBIG, errno.ENOSPC, errno.EDQUOT}


class LinkInfo(msgspec.Struct, frozen=True):
    """What an engine needs to reach the notebook, and to be sure that it is the notebook.

    Keys are CURVE keys in Z85 text. ``lease``: seconds without a word from the notebook after which the
    world ends by itself.
    """

    address: str
    server_public: str
    client_public: str
    client_secret: str
    lease: float


class WorldInfo(msgspec.Struct, frozen=True):
    """What another notebook needs to know of a world to steer it.

    Attributes:
        title: how many ranks, on what.
        places: where each rank sits.
        hellos: what each rank's process said of itself at last.
        port: what the ranks know as MASTER_PORT.
        grace: seconds that the world lives on without a notebook.
        started: when, in seconds of `time.time`.
        cwd: in which directory.
        name: what that notebook called it; often empty.
        plain: why its process groups are torch's own; empty if they are ours.
        notebook: what Jupyter calls the notebook that has steered it last; empty if that is not known.
    """

    title: str
    places: list[RankPlacement]
    hellos: list[Hello]
    port: int
    grace: float
    started: float
    cwd: str
    name: str = ""
    plain: str = ""
    notebook: str = ""


class WorldDir:
    """Paths inside one world's private directory.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls) -> WorldDir:
        """Make a fresh directory that only this user can enter.

        Raises:
            StartError: the parent directory belongs to somebody else, or its path is too long for sockets.
        """
        if not hasattr(os, "getuid"):
            raise StartError("nbcomm needs Unix sockets and signals: on Windows, run Jupyter in WSL 2.")
        while True:
            home = cls(_own_parent() / secrets.token_hex(4))
            if len(os.fsencode(home.path)) + _LONGEST_SOCKET_NAME > _LONGEST_SOCKET_PATH:
                raise StartError(
                    f"{home.path} is too long for Unix sockets; set TMPDIR to a shorter path, such as /tmp."
                )
            # Another world that ends takes the parent away if it looks empty, perhaps at this very moment.
            with suppress(FileNotFoundError):
                home.path.mkdir(mode=0o700)
                break
        home.bulk.mkdir(mode=0o700)  # now, while nobody knows its name: /dev/shm is everybody's
        home.profile.mkdir(mode=0o700)
        for name in ("log", "startup"):  # IPython would make them as the umask says
            (home.profile / name).mkdir(mode=0o700)
        return home

    @classmethod
    def all(cls) -> list[WorldDir]:
        """Every world's directory that this user has on this machine; some may be about to end."""
        parent = Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}"
        try:
            if parent.lstat().st_uid != os.getuid():
                return []
            return [cls(path) for path in sorted(parent.iterdir()) if path.is_dir()]
        except OSError:
            return []

    def check_room(self) -> None:
        """Make sure that a world's files can be written; a world that could not would fail here and there, or half.

        Raises:
            StartError: no process that this one starts may write one of them.
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
        """Where the engines read how to reach the notebook."""
        return self.path / "link.json"

    @property
    def link_socket(self) -> Path:
        """The notebook's end of the links."""
        return self.path / "link.sock"

    @property
    def forkserver_socket(self) -> Path:
        """Where the fork server takes orders."""
        return self.path / "forkserver.sock"

    @property
    def forkserver_log(self) -> Path:
        """What the fork server printed."""
        return self.path / "forkserver.log"

    def store_socket(self, generation: int) -> Path:
        """The rendezvous of one generation of the process group."""
        return self.path / f"store{generation}.sock"

    def log(self, rank: int) -> Path:
        """What the engine of a rank logged, and what it printed before it could run cells."""
        return self.path / f"rank{rank}.log"

    def add_to_log(self, rank: int, text: str) -> None:
        """Write into a rank's log; its stderr is ipyparallel's, and leads elsewhere. A log that is gone is no error."""
        with suppress(OSError), self.log(rank).open("a") as log:
            log.write(text)

    def captured(self, rank: int, stream: str) -> Path:
        """Where descriptor 1 or 2 of a rank writes to while it runs cells; stream is stdout or stderr."""
        return self.path / f"rank{rank}.{stream}"

    @property
    def bulk(self) -> Path:
        """Where large buffers pass from process to process: in memory where the system has such a place."""
        shared = Path("/dev/shm")  # noqa: S108 - a mount point, and the directory below it is made 0700
        if os.access(shared, os.W_OK):
            return shared / f"nbcomm-{os.getuid()}-{self.id}"
        return self.path / "bulk"

    @property
    def board(self) -> Path:
        """Where the ranks compare what they are about to do."""
        return self.bulk / "board"

    @property
    def spare_board(self) -> Path:
        """Where the page of a rank goes for which `board` has no room: /dev/shm is small in many containers."""
        return self.path / "board"

    def write_link(self, info: LinkInfo) -> None:
        """Write the link file, readable by this user alone from its first byte on."""
        with private_file(self.link_file) as file:
            file.write(msgspec.json.encode(info))

    def read_link(self) -> LinkInfo:
        """Read what `write_link` wrote."""
        return msgspec.json.decode(self.link_file.read_bytes(), type=LinkInfo)

    def write_secret(self, secret: bytes) -> None:
        """Keep the notebook's own key, with which a later notebook shows the ranks that it is theirs."""
        with private_file(self.path / "link.secret") as file:
            file.write(secret)

    def read_secret(self) -> bytes:
        """Read what `write_secret` wrote."""
        return (self.path / "link.secret").read_bytes()

    def write_world(self, info: WorldInfo) -> None:
        """Leave word for a later notebook."""
        with private_file(self.path / "world.json") as file:
            file.write(msgspec.json.encode(info))

    def read_world(self) -> WorldInfo:
        """Read what `write_world` wrote."""
        return msgspec.json.decode((self.path / "world.json").read_bytes(), type=WorldInfo)

    def remove(self) -> None:
        """Remove all of it; the shared parent too, if this was the last world of this user."""
        shutil.rmtree(self.bulk, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()


def _own_parent() -> Path:
    """The directory of all worlds of this user; made if it is not there."""
    parent = Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}"
    # 0700 whatever the umask, and never through a link that another user planted in a shared directory.
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        status = parent.lstat()
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise StartError(f"{parent} belongs to another user; remove it, or set TMPDIR to a directory of your own.")
        parent.chmod(0o700)
    return parent


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing with mode 0600, and put it in place only when it is whole."""
    partial = path.with_name(path.name + ".part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
    partial.replace(path)


_TOO_LARGE = (
    "No process of this notebook may write a file of more than {:,} bytes (RLIMIT_FSIZE), and a world needs "
    f"{LARGEST_FILE:,}; type `ulimit -f unlimited` in the shell from which you start Jupyter, before you do."
)


def _largest_file() -> int | None:
    """How many bytes a file may have that this process writes; None where there is no limit."""
    import resource  # Windows has none

    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if most == resource.RLIM_INFINITY else most


@contextmanager
def telling_of_room() -> Iterator[None]:
    """Say it in a sentence where a world cannot be started for want of room.

    Raises:
        StartError: a file could not be written, or could not grow.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        most = _largest_file() if error.errno == errno.EFBIG else None
        if most is not None:
            raise StartError(_TOO_LARGE.format(most)) from error
        raise StartError(
            f"There is no room for the files of a world in {tempfile.gettempdir()} ({error.strerror}); free some "
            "space, or set TMPDIR to a directory on another disk before you start Jupyter."
        ) from error


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
