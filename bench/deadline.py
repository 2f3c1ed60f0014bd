"""The one deadline of a measurement: whatever it waits for, here, in a kernel or on ranks, it waits no longer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 900.0
"""What each subject may take; with ``--full`` some take minutes."""

_TO_END = 60.0
"""Seconds that what was started has to end then, before that is given up too."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """End the program, with a sentence, if this takes longer; what is open in a ``with`` is closed first.

    SystemExit, for nothing that guards against errors takes it for one of its own.
    """

    def ring(_: int, frame: FrameType | None) -> None:
        raise SystemExit(
            f"The measurement of {what} did not end within {seconds:g} s: it waited {_place(frame)}. "
            "On a machine that is only slow, --deadline SECONDS gives it more."
        )

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _TO_END)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> str:
    """Which line of ours it is that waits."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.parent == Path(__file__).parent and file != Path(__file__):
            return f"in {frame.f_code.co_name} (bench/{file.name}, line {frame.f_lineno})"
        frame = frame.f_back
    return "elsewhere"
