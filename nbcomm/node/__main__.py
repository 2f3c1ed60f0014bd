"""A node on another machine: ``python -m nbcomm.node [TICKET]`` joins the world of a ticket, and stays until it ends.

The ticket is read from a file, or from standard input. ssh, srun, mpiexec or HTCondor start this program, and see its
end. The work is done by the node's fork server, a process of its own, which lives on if whoever has started this
program is cut off: the notebook may come back within the lease.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from ..errors import StartError
from ..world_dir import WorldDir
from . import ticket
from .fence import fence
from .processes.children import written_down
from .processes.liveness import has_ended
from .processes.seat import Seat
from .start import last_words, start_forkserver

_TICK = 0.25


def serve(home: WorldDir) -> int:
    """Start the fork server of this directory, and wait until it and all that it has started have ended.

    What it said is shown if it has failed.

    Returns:
        Its exit status.
    """
    with home.forkserver_log.open("a+b") as log:
        server = start_forkserver(home, log, os.path.expanduser("~"))  # noqa: PTH111 - pathlib's raises where there is none
        told_to_end = _pass_on_signals(server)
        status = server.wait()
        if status:
            with suppress(OSError):  # whoever listened is cut off
                print(last_words(log), file=sys.stderr, flush=True)  # noqa: T201 - the program's output
        _await_others(home, told_to_end)
        if not written_down(home):
            home.remove()  # it was ended before it could do that
    return status if status >= 0 else 128 - status


def _await_others(home: WorldDir, told_to_end: threading.Event) -> None:
    """Wait for agent and ranks where only the fork server was killed: another one may take them over.

    A scheduler ends all that this program has started when it ends itself.
    """
    others = [started.pid for started in written_down(home)]
    seat = Seat(home.agent_seat)
    with suppress(FileNotFoundError):  # the directory is removed just now
        while home.path.exists() and (seat.holder() or not all(has_ended(home, pid) for pid in others)):
            if told_to_end.wait(_TICK):
                fence(home)
                return


def _pass_on_signals(server: subprocess.Popen[bytes]) -> threading.Event:
    """Let the fork server end the world on this node if this program is told to end, and not if it is only cut off.

    Returns:
        Whether it was told so.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end(*_: Any) -> None:
        told_to_end.set()
        server.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return told_to_end


def main() -> int:
    """Join the world of a ticket; return the exit status."""
    try:
        return serve(ticket.read(sys.argv[1] if len(sys.argv) > 1 else None).redeem())
    except StartError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the program's output
        return 1


if __name__ == "__main__":
    sys.exit(main())
