"""The fork server's children: forks that become a rank or a controller, or processes of their own."""

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


def become(order: Start, log: Path, let_go: Callable[[], None], parent: int) -> NoReturn:
    """Turn this fork into the ordered process.

    Args:
        order: the process to become.
        log: where its output goes.
        let_go: closes what only the server uses.
        parent: the process that has forked this one.
    """
    with to_the_end():
        os.setsid()  # so that it does not get the notebook's Ctrl-C
        fork_signals.let_through()
        let_go()
        if order.what == "controller":
            os.umask(0o077)  # it writes files of its own; a rank's files are the user's
            # Nothing else would end it, or its heart monitor, which is its fork; an engine ends itself.
            parenthood.die_with(parent)
            parenthood.die_with_forker()
        if order.what == "engine":
            oom.offer()
        _take_log(log)
        environment = _environment(order)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(_folder(order))
        sys.argv = [order.what, *order.argv]
        importlib.import_module(MODULES[order.what]).main(order.argv)
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
    """Start the ordered process without a fork of this one.

    Raises:
        OSError: it cannot be started, for example because its working directory was removed.
    """
    with os.fdopen(_open_log(log), "ab") as stream:
        return subprocess.Popen(  # noqa: S603 - our own modules, by name
            [sys.executable, "-m", MODULES[order.what], *order.argv],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=_environment(order),
            cwd=_folder(order),
            start_new_session=True,
            umask=0o077 if order.what == "controller" else -1,
        )


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
