"""What a user must know of a scheduler's job that a world is in: that its time runs out, and that it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import StartError
from ...faults import Faults
from ...panel.words import remaining
from ...threads import keep

if TYPE_CHECKING:
    from ...launch.launchers.slurm import Job, JobState

PAUSE = 15.0
"""Seconds between two looks at the job: each is work for the scheduler, which serves everybody."""

_SOON = 2.0
"""Seconds between two looks at a job that is about to end."""

WARNINGS = (600.0, 120.0)
"""Seconds before the end of its time at which that is said."""


class JobWatch:
    """A look at the job now and then, on a thread of its own.

    Args:
        job: the job.
        tell: called with a sentence that the user must see.
        resting: returns for how many seconds nobody has wanted anything of the ranks.
        idle: after so many seconds of rest the job is given back, if it was submitted for this world; 0 for never.
        ended: called when the job has no nodes any more.
        last: called behind the last warning.
    """

    def __init__(  # noqa: PLR0913 - all but the first two by keyword
        self,
        job: Job,
        tell: Callable[[str], None],
        *,
        resting: Callable[[], float],
        idle: float,
        ended: Callable[[], None],
        last: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._tell = tell
        self._resting = resting
        self._idle = idle if job.info.ours else 0.0
        self._ended = ended
        self._last = last
        self._warned = 0  # how many of the warnings were given
        self._seen: JobState | None = None  # how it was when it had the nodes that are known
        self._is_ending = self._closed = False
        self._thread = keep("nbcomm-job", self._watch, Faults())

    def hurry(self) -> None:
        """Look now: a rank has died, perhaps with the job."""
        self._job.doubted.set()

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        self._job.doubted.set()

    def _watch(self) -> None:
        while not self._closed:
            self._job.doubted.clear()
            self.look()
            if self._job.over:
                return
            self._job.doubted.wait(self._pause())

    def _pause(self) -> float:
        """Return how long nothing is to be done."""
        known = [_SOON if self._is_ending else PAUSE]
        if self._idle:
            known.append(self._idle - self._resting())
        return max(0.5, min(known))

    def look(self) -> None:
        """Look at the job, and say what is new."""
        if self._idle and self._resting() >= self._idle and self._job.cancel():
            self._job.over = f"{self._job} was given back after {remaining(self._idle)} without a cell"
            self._tell(f"{self._job.over}. {self._job.in_place_of_it}")
            self._ended()
            return
        with suppress(StartError):  # the scheduler is busy, or is started again: the next look may succeed
            self._compare(self._job.look())
        if self._closed:
            return
        if self._job.over:
            self._tell(f"{self._job.over}, and the ranks have ended with it. {self._job.in_place_of_it}")
            self._ended()
        elif self._job.ends is not None and not self._is_ending:
            self._warn(self._job.ends - time.time())

    def _compare(self, seen: JobState) -> None:
        """Say which nodes the job does not have any more: that is final, also if they come back.

        Raises:
            StartError: Slurm does not tell their names; the next look asks again.
        """
        self._is_ending = seen.state == "COMPLETING"
        if not seen.nodes or not seen.has_nodes:
            return
        if self._seen is not None and seen.nodes != self._seen.nodes:
            left = self._job.hosts(seen)
            lost = [host for host in self._job.hosts(self._seen) if host not in left]
            self._job.lost.update(lost)
            if lost and not self._closed:
                self._tell(
                    f"{self._job} has lost {', '.join(lost)}, so that heal cannot replace the ranks there. The others "
                    f"keep their variables. Type %distributed restart to use what the job still has "
                    f"({', '.join(left)}), or %distributed stop and start to queue again."
                )
        self._seen = seen

    def _warn(self, left: float) -> None:
        due = sum(left <= limit for limit in WARNINGS)
        if due > self._warned:
            self._tell(f"{self._job} ends in {remaining(max(0.0, left))}; save what you need.")
        new, self._warned = due > self._warned, due  # it may be less: an administrator may have prolonged the job
        if new and due == len(WARNINGS):
            self._last()
