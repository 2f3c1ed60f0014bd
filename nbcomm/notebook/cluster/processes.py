"""The processes of a world as the notebook sees them: which have ended, and how; and their replacement."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from ...errors import Interrupted, StartError, StateError
from ...launch.forkserver_client import ForkServerClient
from ...node.exit_status import how_it_ended
from ...rank_spec import capital, fold, named, together
from ...world_dir import WorldInfo
from .readiness import await_ranks
from .roster import Roster

if TYPE_CHECKING:
    from ...launch.local_cluster import LocalCluster
    from ...node.forkserver_protocol import Exited

_PATIENCE = 60.0
"""Seconds that a new process has to come up; from a warm fork server it takes tenths."""

_TICK = 0.05


_MOMENT = 2.0
"""Seconds within which a fork server has reported a death."""


class Processes:
    """Ranks, and what serves them: the fork server, and ipyparallel's controller.

    Args:
        forkserver: starts them, and reports their ends.
        roster: records which ranks are dead.
        rank_ended: called when a rank has ended: which, and how; on another thread, and here for those that have ended.
    """

    def __init__(self, forkserver: ForkServerClient, roster: Roster, rank_ended: Callable[[int, str], None]) -> None:
        self.troubles: list[str] = []
        self.forkserver = forkserver
        self._roster = roster
        self._rank_ended = rank_ended
        self._cluster: LocalCluster | None = None
        self._controller_ended = False
        self._unwatched: dict[int, str] = {}  # ranks whose end no fork server reports, and why
        self._unsettled = False  # the fork server is new, and does not watch over the ranks yet
        self._grace = 60.0
        self._listen()

    def _listen(self) -> None:
        self.forkserver.report_to(self._ended, self._forkserver_ended)

    def start(self, n: int, grace: float) -> None:
        """Start the controller and n engines; return before they are up."""
        # Imported here, for ipyparallel takes as long to import as all else that a notebook needs: while the fork
        # server imports torch it costs nothing, and a notebook that starts no world never pays for it.
        from ...launch import local_cluster

        self._grace = grace
        self.forkserver.set_lease(grace)
        self._cluster = local_cluster.LocalCluster(self.forkserver)
        self._cluster.start(n)

    def claim(self) -> None:
        """Check that this notebook may steer the processes; release them if not.

        Raises:
            StateError: another notebook steers them.
            StartError: their fork server is gone.
        """
        try:
            self.forkserver.wait_ready(_PATIENCE)
        except BaseException:
            self.release()
            raise

    def take_up(self, info: WorldInfo) -> None:
        """Take over processes that another notebook has started."""
        forkserver, roster = self.forkserver, self._roster
        self._grace = info.grace
        roster.places = info.places
        roster.hellos.update({hello.rank: hello for hello in info.hellos})
        for place in info.places:
            key = f"rank {place.rank}"
            if key not in forkserver.pids:
                ended = forkserver.exited.get(key)
                roster.note_death(place.rank, ended.status if ended else None, oom=bool(ended and ended.oom))

    @property
    def client(self) -> Any:
        """The `Client` of ipyparallel for the engines; engine id = rank."""
        return self._connected().client(self._roster.living)

    def _connected(self) -> LocalCluster:
        if self._cluster is None:
            from ...launch import local_cluster

            self._cluster = local_cluster.LocalCluster(self.forkserver, running=True)
        return self._cluster

    def heal(self, ranks: Sequence[int], given_up: Callable[[], bool]) -> list[str]:
        """Replace ranks, dead or alive, and what serves them if it is dead; return what was replaced, in words.

        Raises:
            StartError: a new process did not start; the ranks that were to be replaced are dead.
            Interrupted: it was given up; those ranks are then dead, or about to be.
        """
        roster = self._roster
        replaced: list[str] = []
        if not (ranks or self._controller_ended or self.forkserver.gone or self._unsettled):
            return replaced
        if self.forkserver.gone or self._unsettled:
            self._replace_forkserver(given_up)
            replaced.append("the fork server")
        cluster = self._connected()
        if self._controller_ended:
            self._replace_controller(cluster, given_up)
            replaced.append("the controller")
        self.troubles = _of_unwatched({rank: why for rank, why in self._unwatched.items() if rank not in ranks})
        self._end(ranks, given_up)
        started: list[int] = []
        try:
            for rank in ranks:
                self._replace(cluster, rank, given_up)
                started.append(rank)
                self._unwatched.pop(rank, None)
            await_ranks(roster, ranks, time.monotonic() + _PATIENCE, f"{_PATIENCE:g} s", given_up=given_up)
        except BaseException as error:
            self._end(started)  # half a rank is worse than none
            if isinstance(error, StartError):
                error.reword(self._with_remedy)
            raise
        return [*replaced, *(f"rank {rank}" for rank in ranks)]

    def _replace(self, cluster: LocalCluster, rank: int, given_up: Callable[[], bool]) -> None:
        """Start a process in the place of one that has ended; if that fails, the rank is as dead as before."""
        how = self._roster.dead[rank]
        self._roster.begin_again([rank])
        try:
            cluster.start_engine(rank, given_up)
        except BaseException:
            self._roster.dead[rank] = how
            raise

    def _with_remedy(self, text: str) -> str:
        if "%distributed heal" in text:
            return text
        others = "The other ranks kept their variables; type" if self._roster.living else "Type"
        between = "\n" if "\n" in text else " "  # text after a log must not look like a line of it
        return f"{text}{between}{others} %distributed heal to try again."

    def _replace_controller(self, cluster: LocalCluster, given_up: Callable[[], bool]) -> None:
        self._controller_ended = False  # before the start: it may end at once
        try:
            cluster.start_controller(given_up)
        except BaseException as error:
            self._controller_ended = True
            if isinstance(error, StartError):
                error.reword(self._with_remedy)
            raise

    def _replace_forkserver(self, given_up: Callable[[], bool]) -> None:
        roster = self._roster
        if self.forkserver.gone:
            self.forkserver, self._unsettled = ForkServerClient(self.forkserver.home), True
            self._listen()
        self.forkserver.wait_ready(_PATIENCE, given_up)
        self.forkserver.set_lease(self._grace)
        refused = self.forkserver.adopt(
            {f"rank {rank}": roster.hellos[rank].pid for rank in roster.living}, given_up=given_up
        )
        self._unwatched = {int(key.removeprefix("rank ")): why for key, why in refused.items()}
        self._connected().use(self.forkserver)
        self._unsettled = False
        self._controller_ended = True  # it ends with the fork server that started it

    def _end(self, ranks: Sequence[int], given_up: Callable[[], bool] = lambda: False) -> None:
        """Kill those of these ranks that live, and wait until they have ended."""
        forkserver = self.forkserver
        for rank in set(ranks) - set(self._roster.dead):
            key = f"rank {rank}"
            # Never a pid from elsewhere: the number of an earlier process may belong to a stranger by now.
            if key in forkserver.pids and key not in forkserver.exited:
                with suppress(ProcessLookupError):
                    os.kill(forkserver.pids[key], signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while late := sorted(set(ranks) - set(self._roster.dead)):
            if given_up():
                raise Interrupted
            if time.monotonic() > deadline:
                raise StateError(
                    f"{capital(named(late))} {'do' if len(late) > 1 else 'does'} not end; type %distributed restart."
                )
            self.look()
            self._roster.wait(_TICK)

    def look(self) -> None:
        """Check which ranks live, if no fork server reports deaths."""
        if not (self.forkserver.gone or self._unwatched):
            return
        for rank in self._gone():
            if self.forkserver.gone or rank in self._unwatched:
                self._rank_ended(rank, self._roster.note_death(rank, None))

    def dead(self) -> list[int]:
        """Return the dead ranks, also those that have died a moment ago."""
        deadline = time.monotonic() + _MOMENT
        while self._gone() and time.monotonic() < deadline:  # the fork server is about to report how
            self.look()
            self._roster.wait(_TICK)
        return sorted(self._roster.dead)

    def _gone(self) -> list[int]:
        return [rank for rank in self._roster.living if not _lives(self._roster.hellos[rank].pid)]

    def shutdown(self) -> None:
        """End all processes."""
        self._quiet()
        self.forkserver.shutdown()

    def release(self) -> None:
        """Release the processes."""
        self._quiet()
        self.forkserver.release()

    def _quiet(self) -> None:
        self.forkserver.report_to(lambda _: None, lambda _: None)
        if self._cluster is not None:
            self._cluster.close()

    # ── on the fork server's thread ─────────────────────────────────────────────────────────────────

    def _ended(self, ended: Exited) -> None:
        if ended.key.startswith("rank "):
            rank = int(ended.key.removeprefix("rank "))
            self._rank_ended(rank, self._roster.note_death(rank, ended.status, oom=ended.oom))
        else:
            self._controller_ended = True
            self.troubles.append(
                f"ipyparallel's controller {how_it_ended(ended.status, oom=ended.oom)}. Cells run without it; "
                "session.client does not work. Type %distributed heal to start another controller."
            )

    def _forkserver_ended(self, how: str) -> None:
        self.troubles.append(
            f"The fork server {how}, and ipyparallel's controller with it. The ranks keep running, and cells run on "
            "them; only dead ranks cannot be replaced. Type %distributed heal to start another fork server."
        )


def _of_unwatched(whys: Mapping[int, str]) -> list[str]:
    """Describe which ranks the fork server does not watch over."""
    alike = together(list(whys), list(whys.values()))
    return [
        f"The fork server does not monitor {named(ranks)} ({why.rstrip('.')}). Cells run there as before, but if such "
        f"a process dies, the cause remains unknown. Type %distributed heal {fold(ranks)} for new processes without "
        "variables."
        for why, ranks in alike.items()
    ]


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
