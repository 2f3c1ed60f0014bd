"""A node on another machine: ``python -m nbcomm.node [TICKET]`` joins the world of a ticket, and stays until it ends.

The ticket is read from a file, or from standard input. ssh, srun and mpiexec start this program, and see its end. The
work is done by the node's fork server, a process of its own, which lives on if whoever has started this program is cut
off: the notebook may come back within the lease.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from ..errors import StartError
from ..world_dir import WorldDir
from . import ticket
from .processes.children import written_down
from .start import last_words, start_forkserver


def serve(home: WorldDir) -> int:
    """Start the fork server of this directory, and wait until it has ended; return its exit status.

    What it said is shown if it has failed.
    """
    with home.forkserver_log.open("a+b") as log:
        server = start_forkserver(home, log, os.path.expanduser("~"))  # noqa: PTH111 - pathlib's raises where there is none
        _pass_on_signals(server)
        status = server.wait()
        if not written_down(home):
            home.remove()  # it was ended before it could do that
        if status:
            with suppress(OSError):  # whoever listened is cut off
                print(last_words(log), file=sys.stderr, flush=True)  # noqa: T201 - the program's output
    return status if status >= 0 else 128 - status


def _pass_on_signals(server: subprocess.Popen[bytes]) -> None:
    """Let the fork server end the world on this node if this program is told to end, and not if it is only cut off."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end(*_: Any) -> None:
        server.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main() -> int:
    """Join the world of a ticket; return the exit status."""
    try:
        return serve(ticket.read(sys.argv[1] if len(sys.argv) > 1 else None).redeem())
    except StartError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the program's output
        return 1


if __name__ == "__main__":
    sys.exit(main())
