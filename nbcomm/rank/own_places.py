"""What each rank writes in a place of its own, or in turn, because ranks of one machine do the same at the same time.

A plain kernel is alone with these places. Where several processes may meet by their makers' design (caches of torch,
matplotlib and Hugging Face, ``__pycache__``), they take turns by themselves, and nothing is done here.
"""

from __future__ import annotations

import fcntl
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython import paths
from IPython.core.magics.packaging import PackagingMagics

from ..world_dir import WorldDir

_INSTALLERS = "pip", "conda", "mamba", "micromamba", "uv"
"""IPython's magics that change the environment, which ranks of one machine share."""


def make_profile(home: WorldDir, rank: int) -> Path:
    """Make a rank's profile in the world's directory, where ``%store``, ``%bookmark`` and others keep their things."""
    profile = home.profile / f"rank{rank}"
    for folder in (profile, profile / "log", profile / "startup"):  # IPython would make them with the umask's mode
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return profile


def keep_caches_apart(rank: int) -> None:
    """Give the rank a cache of its own for what ``%%cython`` and its like compile, under a name that the code has."""
    shared = paths.get_ipython_cache_dir
    paths.get_ipython_cache_dir = lambda: str(Path(shared()) / f"rank{rank}")


def install_in_turn(shell: Any) -> None:
    """Let one rank of a machine at a time install packages."""
    packaging = PackagingMagics(shell)
    for name in _INSTALLERS:
        if hasattr(packaging, name):  # %uv is not in every version of IPython
            turn = Path(shell.profile_dir.location).parent / "installing"
            shell.register_magic_function(_in_turn(getattr(packaging, name), turn), "line", name)


def _in_turn(magic: Callable[[str], Any], turn: Path) -> Callable[[str], Any]:
    """Return a magic that waits until no other rank with a profile beside this one runs it; ■ ends the wait."""

    @functools.wraps(magic)
    def run(line: str) -> Any:
        with turn.open("w") as file:
            # Not flock: a child that another thread forks meanwhile would hold it, too.
            fcntl.lockf(file, fcntl.LOCK_EX)
            return magic(line)

    return run
