"""The end of a process in words."""

from __future__ import annotations

import signal


def how_it_ended(status: int | None, *, oom: bool = False) -> str:
    """Say in words how a process ended.

    Args:
        status: minus the signal, or the exit code; None if it is not known.
        oom: whether the system has killed processes for lack of memory while it ran.

    >>> how_it_ended(3), how_it_ended(-15)
    ('ended with exit code 3', 'was killed by SIGTERM')
    >>> how_it_ended(-9, oom=True)
    'was killed by SIGKILL because memory ran out'
    """
    if status is None:
        return "has ended (the cause is unknown, because its daemon was gone)"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}" + (" because memory ran out" if oom and -status == signal.SIGKILL else "")
