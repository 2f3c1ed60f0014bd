"""The processes of a world as the notebook sees them: which have ended, and how; and their replacement."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from ...errors import Interrupted, StartError, StateError
from ...faults import take_all
from ...launch.controller import Controller
from ...launch.node_client import BACK, start_all
from ...protocol import Register
from ...protocol.nodes import key_of, rank_of
from ...protocol.requests import NOT_ENDING
from ...rank_spec import capital, fold, named, plural
from ...world_dir import PROFILE_VARIABLE
from ...world_info import WorldInfo
from .rank_table import RankTable
from .readiness import await_ranks

if TYPE_CHECKING:
    from ...launch.clients import Clients
    from ...launch.node_client import NodeClient
    from ...launch.nodes import Nodes
    from ...protocol import Exited, Output

_TIMEOUT = 60.0
"""Seconds that a new process has to come up; from a warm daemon it takes tenths."""

_END, _SOON = 2.5, 0.005
"""Seconds that ranks have to end by themselves, as Python ends a program; and between two looks."""

_TICK = 0.05

_AND_CONTROLLER = ", and ipyparallel's controller with it."

_MOMENT = 2.0
"""Seconds within which a node has reported a death."""


class Processes:
    """Ranks, and what serves them: the node's daemon and daemon, and ipyparallel's controller if there is one.

    Args:
        nodes: start them, and report their ends.
        rank_table: records which ranks are dead.
        rank_ended: called when a rank has ended: which, how, and what it had not said; on another thread, and here for
            those that have ended.
        daemon_replaced: called when a node has another daemon; on another thread.
    """

    def __init__(
        self,
        nodes: Nodes,
        rank_table: RankTable,
        rank_ended: Callable[[int, str, Output | None], None],
        daemon_replaced: Callable[[], None],
    ) -> None:
        self.nodes = nodes
        self._rank_table = rank_table
        self._rank_ended = rank_ended
        self._controller = Controller(nodes)
        self._clients: Clients | None = None
        nodes.report_to(self._ended, daemon_replaced)

    def start(self, n: int, grace: float) -> None:
        """Start n ranks; return before they are up."""
        self.nodes.set_lease(grace)
        self._start(range(n))

    def _start(self, ranks: Iterable[int], given_up: Callable[[], bool] = lambda: False) -> None:
        """Start processes for ranks: all of them, or none is left."""
        nodes = [(self.nodes.of(key_of(rank)), rank) for rank in ranks]
        shell = get_ipython()
        own = {PROFILE_VARIABLE: shell.profile_dir.location} if shell and shell.profile_dir else {}
        start_all([(node, node.new_start(key_of(rank), "engine", [str(rank)], own)) for node, rank in nodes], given_up)

    def claim(self, info: WorldInfo) -> None:
        """Wait until it is known which processes live.

        Raises:
            StartError: a node does not answer.
            StateError: other nodes cannot reach this notebook.
        """
        self.nodes.take_up(info.nodes, len(info.places), info.job)
        self.nodes.wait_claimed(_TIMEOUT)
        self.nodes.learn()

    def take_up(self, info: WorldInfo) -> None:
        """Take over processes that another notebook has started."""
        rank_table = self._rank_table
        self.nodes.set_lease(info.grace)
        rank_table.places = info.places
        rank_table.hellos.update({hello.rank: hello for hello in info.hellos})
        for place in info.places:
            process = self.nodes.processes.get(key_of(place.rank))
            if process is None:
                rank_table.note_death(place.rank, None, at=0.0)
            elif process.exited is not None:
                ended = process.exited
                rank_table.note_death(place.rank, ended.status, oom=ended.oom, why=ended.why, at=0.0)

    @property
    def troubles(self) -> list[str]:
        """What has happened to the processes that serve the ranks, in sentences."""
        return list(self._troubles())

    def _troubles(self) -> Iterator[str]:
        gone = self.nodes.gone
        job = self.nodes.job
        for node in gone:
            if node.lost and job is not None and job.over:
                continue  # that is said of the job
            if node.lost:
                name = capital(node.name or "the daemon")
                yield f"{name} {node.lost}, and its ranks are dead. {node.without_heal or BACK}"
                continue
            is_head = node is self.nodes.head
            both = is_head and self._controller.exists
            remedy = "Another one is being started." if is_head else "Type %distributed heal to start another daemon."
            yield (
                f"The daemon{node.where} {node.how}{_AND_CONTROLLER if both else '.'} The ranks keep "
                "running, and cells run on them; only dead ranks cannot be replaced. "
                f"{node.without_heal or remedy}"
            )
        if self._controller.end and self.nodes.head not in gone:
            yield (
                f"ipyparallel's controller {self._controller.end}. Cells run without it; "
                "session.client does not work. Type %distributed heal to start another controller."
            )

    @property
    def without_heal(self) -> bool:
        """Whether `heal` can do nothing: each node that has ended is one that cannot be started again."""
        gone = self.nodes.gone
        replaceable = [rank for rank in self._rank_table.dead if not self._rank_table.without_heal(rank)]
        return bool(gone) and all(node.without_heal for node in gone) and not (replaceable or self._controller.end)

    @property
    def client(self) -> Any:
        """The `Client` of ipyparallel for the engines; engine id = rank.

        The first time, ipyparallel's controller is started, and the ranks register.

        Raises:
            StateError: they cannot reach the controller, or have not registered in time.
            StartError: it could not be started.
        """
        if self.nodes.are_reached_by_ssh_alone:
            raise StateError(
                "session.client does not work with --tunnel: ipyparallel's engines must reach its controller on the "
                "notebook's machine. Cells, push, pull and session.call do not need it."
            )
        if self._clients is None:
            self._controller.begin()  # it comes up meanwhile
            # Imported here: it takes as long to import as all else that a notebook needs.
            from ...launch.clients import Clients

            self._clients = Clients(self._controller, self._register, self._rank_table.registered)
        return self._clients.get(lambda: self._rank_table.living)

    def _register(self, ranks: Sequence[int], connection: str) -> None:
        """Ask ranks to register with the controller; what they answer is in the rank table."""
        for rank in ranks:
            self._rank_table.registered.pop(rank, None)
        self.nodes.link.send(ranks, Register(connection))

    def await_daemons(self, given_up: Callable[[], bool]) -> None:
        """Wait for daemons that were started just now: they tell which processes have ended.

        Raises:
            Interrupted: it was given up.
        """
        for node in self.nodes:
            if not (node.claimed or node.gone):
                with suppress(StartError):  # it has ended, too: the heal starts another one
                    node.wait_claimed(_TIMEOUT, given_up)

    def heal(self, ranks: Sequence[int], given_up: Callable[[], bool]) -> list[str]:
        """Replace ranks, dead or alive, and what serves them if it is dead; return what was replaced, in words.

        Raises:
            StateError: the node of a rank cannot be started again. Nothing was done.
            StartError: a new process did not start; the ranks that were to be replaced are dead.
            Interrupted: it was given up; those ranks are then dead, or about to be.
        """
        rank_table = self._rank_table
        replaced: list[str] = []
        self._refuse_final(ranks)
        gone = [node for node in self.nodes.gone if not node.without_heal]
        if not (ranks or self._controller.end or gone):
            return replaced
        for node in gone:
            self._replace_daemon(node, given_up)
            replaced.append(f"the daemon{node.where}")
        if self._controller.end:
            self._replace_controller(given_up)
            replaced.append("the controller")
        self._end(ranks, given_up)
        try:
            self._replace(ranks, given_up)
            until = time.monotonic() + _TIMEOUT
            await_ranks(rank_table, ranks, until, f"{_TIMEOUT:g} s", given_up=given_up, look=self.look)
        except BaseException as error:
            self._end(ranks)  # half a rank is worse than none
            if isinstance(error, StartError):
                error.reword(self._with_remedy)
            raise
        self._register_again(ranks if "the controller" not in replaced else rank_table.living)
        return [*replaced, *(f"rank {rank}" for rank in ranks)]

    def _refuse_final(self, ranks: Sequence[int]) -> None:
        """Refuse to replace what cannot be started again.

        Raises:
            StateError: it is some of these ranks, or there is nothing else.
        """
        final = [node for node in self.nodes.gone if node.without_heal]
        stay = sorted(rank for rank in ranks if self.nodes.of(key_of(rank)) in final)
        if not stay and (not final or ranks or not self.without_heal):
            return
        lost = {why: [node.name for node in final if node.lost == why] for why in dict.fromkeys(n.lost for n in final)}
        ended = [f"{' and '.join(who)} {plural(why) if len(who) > 1 else why}" for why, who in lost.items() if why]
        ended += [f"the daemon{node.where} {node.how}" for node in final if not node.lost]
        others = sorted(set(ranks) - set(stay))
        more = f" Type %distributed heal {fold(others)} to replace {named(others)}." if others else ""
        remedies = " ".join(dict.fromkeys(node.without_heal for node in final))
        raise StateError(f"Nothing was replaced: {' and '.join(ended)}. {remedies}{more}")

    def _replace(self, ranks: Sequence[int], given_up: Callable[[], bool]) -> None:
        """Start processes in the places of those that have ended; if that fails, the ranks are as dead as before."""
        hows = {rank: self._rank_table.dead[rank] for rank in ranks}
        for rank in ranks:
            self.nodes.link.lose(rank)  # what was sent while it died was not for its successor
        self._rank_table.begin_again(ranks)
        try:
            self._start(ranks, given_up)
        except BaseException:
            self._rank_table.dead.update(hows)
            raise

    def _with_remedy(self, text: str) -> str:
        if "%distributed heal" in text:
            return text
        others = "The other ranks kept their variables; type" if self._rank_table.living else "Type"
        between = "\n" if "\n" in text else " "  # text after a log must not look like a line of it
        return f"{text}{between}{others} %distributed heal to try again."

    def _replace_controller(self, given_up: Callable[[], bool]) -> None:
        try:
            self._controller.replace(given_up)
        except StartError as error:
            error.reword(self._with_remedy)
            raise

    def _register_again(self, ranks: Sequence[int]) -> None:
        """Let ranks register with a controller that somebody has asked for; nobody waits for that."""
        if ranks and self._controller.exists and (connection := self._controller.connection):
            self._register(ranks, connection)

    def _replace_daemon(self, node: NodeClient, given_up: Callable[[], bool]) -> None:
        """Start another daemon; it takes over the ranks, and reports those that have ended."""
        lost = node.lost
        try:
            node.replace_daemon(now=True)
            node.wait_claimed(_TIMEOUT, given_up)
        except BaseException:
            node.lost = lost  # nobody waits for it
            raise
        if node is self.nodes.head:
            self._await_controllers_end(given_up)

    def _await_controllers_end(self, given_up: Callable[[], bool]) -> None:
        """Wait until it is known that the controller has ended with the daemon that had started it."""
        deadline = time.monotonic() + _MOMENT
        while self._controller.exists and not self._controller.end and time.monotonic() < deadline and not given_up():
            self._rank_table.wait(_TICK)

    def _end(self, ranks: Sequence[int], given_up: Callable[[], bool] = lambda: False) -> None:
        """Kill those of these ranks that live, and wait until they have ended."""
        for rank in set(ranks) - set(self._rank_table.dead):
            self.nodes.of(key_of(rank)).signal(key_of(rank), signal.SIGKILL)
        deadline = time.monotonic() + _TIMEOUT
        while late := sorted(set(ranks) - set(self._rank_table.dead)):
            if given_up():
                raise Interrupted
            if time.monotonic() > deadline:
                raise StateError(
                    f"{capital(named(late))} {'do' if len(late) > 1 else 'does'} not end; type %distributed restart."
                )
            self._rank_table.wait(_TICK)

    def look(self) -> None:
        """Notice if nobody is there who would report a death, and start who does."""
        self.nodes.look()

    def dead(self) -> list[int]:
        """Return the dead ranks, also those that have died a moment ago."""
        self.nodes.wait_for_ends(_MOMENT)
        self.nodes.tell()  # again, where whoever was told of an end has failed
        return sorted(self._rank_table.dead)

    def shutdown(self, given_up: Callable[[], bool] = lambda: False) -> list[str]:
        """End all processes; those of ranks, which were told to end, have a moment to do it themselves.

        Args:
            given_up: whether they have had time enough.

        Returns:
            What did not end by itself, in sentences.
        """
        late: list[str] = []

        def wait() -> None:
            ranks = self._await_ends(given_up)
            late.extend(self._what_hangs(rank) for rank in ranks if not given_up())

        take_all(self._quiet, wait, self.nodes.shutdown)
        return late

    def _await_ends(self, given_up: Callable[[], bool]) -> list[int]:
        """Wait for the ends of the ranks' processes; return those that do not come."""
        until = time.monotonic() + _END
        while True:
            there = [(rank_of(key), process.exited) for key, process in self.nodes.processes.items()]
            living = [rank for rank, exited in there if rank is not None and exited is None]
            if not living or given_up() or time.monotonic() > until or self.nodes.gone:
                return sorted(living)
            time.sleep(_SOON)

    def _what_hangs(self, rank: int) -> str:
        told = self.nodes.log_tail(key_of(rank), 1)
        where = f": it was in {told.partition(NOT_ENDING)[2].strip()}" if NOT_ENDING in told else ""
        return f"Rank {rank} did not end by itself, and was ended{where}."

    def release(self) -> None:
        """Release the processes."""
        take_all(self._quiet, self.nodes.release)

    def _quiet(self) -> None:
        self.nodes.report_to(lambda _: None)
        if self._clients is not None:
            self._clients.close()

    def _ended(self, ended: Exited) -> None:
        """Note an end; mostly on the link's thread."""
        rank = rank_of(ended.key)
        if rank is not None:
            how = self._rank_table.note_death(rank, ended.status, oom=ended.oom, why=ended.why)
            unsaid = self.nodes.link.unheard(rank, ended.unsaid) if ended.unsaid is not None else None
            self._rank_ended(rank, how, unsaid)
