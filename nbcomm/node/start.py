"""The start of a node's daemon, which is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

from ..world_dir import HOME_VARIABLE, WorldDir

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One thread per pool: a fork must not inherit a thread pool, and each rank sets its own size."""


def environment(added: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return this process's environment variables, and others, for a process that may start in another folder.

    The folders of PYTHONPATH are absolute: a relative one is meant from here, where Python has resolved it as well.
    """
    variables = {**os.environ, **added}
    if folders := variables.get("PYTHONPATH"):
        with suppress(OSError):  # this folder was removed
            variables["PYTHONPATH"] = os.pathsep.join(
                each and os.fspath(Path(each).absolute()) for each in folders.split(os.pathsep)
            )
    return variables


def start_daemon(home: WorldDir, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
    """Start the daemon of a directory.

    Args:
        home: the directory.
        log: where its output goes.
        folder: where it works.
    """
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "nbcomm.node.daemon", str(home.path)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment({**dict.fromkeys(THREADS, "1"), HOME_VARIABLE: str(home.path)}),
        cwd=folder,
        start_new_session=True,  # so that it does not get the Ctrl-C of whoever starts it
    )


def last_words(log: IO[bytes], lines: int = 20, first: int = 0) -> str:
    """Return the end of a log, also if its file was removed, and so many of its first lines."""
    # pread: the daemon writes through the same open file, and a changed position would overwrite its log.
    said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
    all_lines = said.rstrip().splitlines()
    if len(all_lines) <= first + lines:
        return "\n".join(all_lines)
    return "\n".join([*all_lines[:first], *["…"] * bool(first), *all_lines[-lines:]])
