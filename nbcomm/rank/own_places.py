"""What each rank writes in a place of its own, or in turn, because ranks of one machine do the same at the same time.

A plain kernel is alone with these places. Where several processes may meet by their makers' design (caches of torch,
matplotlib and Hugging Face, ``__pycache__``), they take turns by themselves, and nothing is done here.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from IPython import paths

from ..world_dir import WorldDir

INSTALLERS = frozenset({"pip", "conda", "mamba", "micromamba", "uv"})
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


@contextmanager
def turn_to_install(profile: Any) -> Iterator[None]:
    """Wait until no other rank of this machine, with a profile beside this one, is in the block; ■ ends the wait."""
    with (Path(profile.location).parent / "installing").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # not flock: a child that another thread forks meanwhile would hold it, too
        yield
