"""The join token, with which a node on another machine joins a world.

It has the node's key, so it travels by ssh's standard input, or in a file that only its user can read.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec

from ..errors import StartError
from ..world_dir import WorldDir
from ..world_info import LinkInfo


class JoinToken(msgspec.Struct, frozen=True):
    """What a node needs.

    Attributes:
        world: the world's id.
        link: where the notebook listens, the node's name and its keys.
        lease: seconds that the node lives without a notebook.
    """

    world: str
    link: LinkInfo
    lease: float

    @property
    def name(self) -> str:
        """The name of the node's directory."""
        return f"{self.world}-{self.link.name}"

    def written(self) -> bytes:
        """Return it as one line."""
        return msgspec.json.encode(self) + b"\n"

    def redeem(self) -> WorldDir:
        """Make the node's directory, with all that its daemon and its daemon need.

        If the node has joined its world before, this is the directory that it has made then.

        Raises:
            StartError: it cannot be made.
        """
        home = WorldDir.create(self.name)
        home.write_link(self.link)
        home.write_lease(self.lease)
        return home


_NUMBERS = ("NBCOMM_NUMBER", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables in which programs that were started together have their numbers."""


def _own(path: Path) -> Path:
    """Return this program's token: a directory has one for each, by its number.

    Raises:
        StartError: it has no number.
    """
    if not path.is_dir():
        return path
    number = next((os.environ[name] for name in _NUMBERS if name in os.environ), "")
    if not number:
        raise StartError(
            f"Which join token of {path} is this program's? mpiexec and srun say that by one of {_NUMBERS}."
        )
    return path / number


def read(path: str | None) -> JoinToken:
    """Read a token from a file, from a directory of tokens, or from standard input.

    Raises:
        StartError: there is none, or others can read the file.
    """
    if path is None:
        line = sys.stdin.buffer.readline()
    else:
        try:
            with _own(Path(path)).open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise StartError(
                        f"The join token {path} can be read by others (mode {mode:o}); its mode must be 600."
                    )
                line = file.readline()
        except OSError as error:
            raise StartError(f"The join token {path} cannot be read: {error.strerror}.") from error
    try:
        return msgspec.json.decode(line, type=JoinToken)
    except msgspec.DecodeError as error:
        raise StartError(f"This is no join token of a world: {error}.") from error
