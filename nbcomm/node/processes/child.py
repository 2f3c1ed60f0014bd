"""The processes that a node starts: forks of the zygote that become a rank, or programs of their own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from ...protocol import Start
from ...protocol.nodes import unwired
from ..start import THREADS
from . import fork_signals, oom, parenthood

MODULES = {"engine": "nbcomm.rank.engine", "controller": "nbcomm.node.processes.controller"}
"""The modules that can be started: their ``main`` is called, or they are run with ``-m``."""


def become(order: Start, log: Path, let_go: Callable[[], None]) -> NoReturn:
    """Turn this fork into the ordered process.

    Args:
        order: the process to become.
        log: where its output goes.
        let_go: closes what only the zygote uses.
    """
    with to_the_end():
        os.setsid()  # so that it does not get the notebook's Ctrl-C
        fork_signals.let_through()
        let_go()
        oom.offer()
        _take_log(log)
        environment = _environment(order)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(_folder(order))
        sys.argv = [order.what, *order.argv]
        main = importlib.import_module(MODULES[order.what]).main
        main(order.argv, own_key(order)) if order.secret else main(order.argv)
    raise AssertionError  # it has ended


@contextmanager
def to_the_end() -> Iterator[None]:
    """Do the block in a fork, and end that, as a program ends: nothing may return into the loop of what has forked."""
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def spawn(order: Start, log: Path) -> subprocess.Popen[bytes]:
    """Start the ordered process as a program of its own.

    Raises:
        OSError: it cannot be started, for example because its working directory was removed.
    """
    with os.fdopen(_open_log(log), "ab") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own modules, by name
            [sys.executable, "-m", MODULES[order.what], *order.argv],
            stdin=subprocess.PIPE if order.secret else subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={
                **_environment(order),
                **({parenthood.PARENT: str(os.getpid())} if order.what == "controller" else {}),
            },
            cwd=_folder(order),
            start_new_session=True,
            umask=0o077 if order.what == "controller" else -1,  # it writes files of its own; a rank's are the user's
        )
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(own_key(order).encode())
    return process


def own_key(order: Start) -> str:
    """Return, in one word each, the number of a rank's start, and the two halves of the key that is its own."""
    return f"{order.number} {order.public} {order.secret}"


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _take_log(path: Path) -> None:
    """Open a file as descriptors 1 and 2, and the null device as descriptor 0."""
    log = _open_log(path)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, descriptor)
    os.close(log)
    os.close(null)


def _environment(order: Start) -> dict[str, str]:
    asked = {unwired(name): unwired(value) for name, value in order.env.items()}
    if not order.adds:
        return asked
    return {**{name: value for name, value in os.environ.items() if name not in THREADS}, **asked}


def _folder(order: Start) -> str:
    folder = unwired(order.cwd)
    if order.adds and not Path(folder).is_dir():
        return os.path.expanduser("~")  # noqa: PTH111 - pathlib's raises where there is none
    return folder
