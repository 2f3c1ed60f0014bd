"""The process of a rank: IPython's shell in a kernel of ipykernel, on an asyncio loop, with nbcomm's link.

Started in a fork of the zygote (`main`), or as ``python -m nbcomm.rank.engine`` where
processes cannot be forked. It has no sockets of Jupyter's: it becomes an engine of ipyparallel when somebody asks for
that (`registration`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from ipykernel import ipkernel
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.profiledir import ProfileDir
from jupyter_client.session import Session
from traitlets.config import Config

from ..protocol import Text
from ..world_dir import HOME_VARIABLE, PROFILE_VARIABLE, WorldDir
from .cells.notebook_magics import refuse_steering
from .cells.shell import RankShell
from .link import RankLink
from .output import progress_bars
from .output.streams import stand_in
from .own_places import install_in_turn, keep_caches_apart, make_profile


def _leave_debugger_out() -> None:
    """Make ipykernel treat debugpy as missing, as no front end can debug a rank.

    Each rank would spend half a second on importing it. A cell may still import it by itself.
    """
    before = sys.modules.get("debugpy")
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # Python's own way to make an import fail
    try:
        importlib.import_module("ipykernel.debugger")
    finally:
        del sys.modules["debugpy"]
        if before is not None:
            sys.modules["debugpy"] = before


# In the zygote, before a rank is forked: to set a level clears what all loggers remember.
_leave_debugger_out()
logging.getLogger("nbcomm.rank").setLevel(logging.WARNING)
progress_bars.watch_imports()


class _NoModules:
    """What ipykernel sees as ``sys`` while it makes a kernel: no module is imported.

    It would list the files of all, for the debugger that no rank has. To touch thousands of modules would copy the
    pages that they are on, of which a rank then shares nine megabytes less.
    """

    modules: ClassVar[dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


@contextmanager
def _without_modules() -> Iterator[None]:
    seen = vars(ipkernel)
    before, seen["sys"] = seen["sys"], _NoModules()
    try:
        yield
    finally:
        seen["sys"] = before


class _NoSession(Session):
    """What the kernel says to Jupyter: nobody is connected, so it is dropped."""

    def send(self, *_: Any, **__: Any) -> None:
        """Send nothing."""


class _Application(IPKernelApp):
    """The application of a rank's kernel: with the user's configuration and startup files, and a profile of its own."""

    def read_configuration(self, own: ProfileDir, users: str) -> None:
        """Read the configuration as the notebook's kernel has.

        Args:
            own: the rank's profile, for what its shell writes.
            users: the directory of the notebook's; empty where that has none.
        """
        self.profile_dir = own
        if users:
            self.config_file_paths.append(users)
            if (startup := Path(users, "startup")).is_dir():  # a node may have none
                own.startup_dir = str(startup)
        self.init_config_files()  # type: ignore[no-untyped-call]
        self.cli_config = Config(self.config)  # it comes before what files say
        self.load_config_file()  # type: ignore[no-untyped-call]


def _make_shell(own: ProfileDir, rank: int, users: str) -> Any:
    """Make the shell in its kernel, as ipyparallel's engines do, with no file that another rank writes, too."""
    log = logging.getLogger("nbcomm.rank")
    log.addHandler(logging.StreamHandler(sys.stderr))
    log.propagate = False
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.update(logstart=False, logappend="", logfile="")
    app: Any = _Application.instance(config=config, log=log)
    app.read_configuration(own, users)
    with _without_modules():
        app.kernel = IPythonKernel.instance(
            parent=app, session=_NoSession(), profile_dir=app.profile_dir, user_ns=None, log=log, shell_class=RankShell
        )
    app.init_shell()
    keep_caches_apart(rank)
    install_in_turn(app.shell)
    refuse_steering(app.shell)
    app.init_gui_pylab()
    app.init_extensions()
    with suppress(SystemExit):
        app.init_code()
    for prompt in ("ps1", "ps2", "ps3"):
        # A rank is an ordinary program, as under torchrun, and no interactive prompt: libraries that look for one
        # (Lightning Fabric, to refuse strategies that would start processes) must not find one.
        vars(sys).pop(prompt, None)
    return app.shell


def _read_key() -> str:
    """Read the rank's key from the pipe that is standard input, which is the null device afterwards."""
    key = sys.stdin.readline()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return key


def main(argv: list[str], key: str | None = None) -> None:
    """Run a rank until it is stopped.

    Args:
        argv: its number.
        key: as `own_key` of `nbcomm.node.processes.child` has written it; by default it comes on standard input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the cell runner takes it when the link attaches
    rank, home = int(argv[0]), WorldDir(os.environ[HOME_VARIABLE])
    link = RankLink(rank, home, key or _read_key())  # it says hello while the shell is made
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")  # as every kernel
    # What belongs to no cell goes to the log, also when the capture has descriptors 1 and 2.
    log = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    for name in ("stdout", "stderr"):
        stand_in(name, link.capture.stream(name, log))
    # Not by `ProfileDir.location` in a configuration: IPython would expand variables and a `~` in the path.
    own, users = ProfileDir(location=str(make_profile(home, rank))), os.environ.pop(PROFILE_VARIABLE, "")
    with link.capture.of_run(0):
        shell = _make_shell(own, rank, users)
    printed = "".join(item.text for _, items in link.capture.take(end=True) for item in items if isinstance(item, Text))
    printed = printed.replace(own.location, users)  # where IPython says to look, on all ranks the same
    log.write(printed)
    link.attach(shell, loop, printed).run()


if __name__ == "__main__":
    main(sys.argv[1:])
