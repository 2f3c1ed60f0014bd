"""Asks the ranks what they do, judges it, and tells the panel: a thread, so that it goes on while a cell blocks.

Every quarter of a second while something runs: probe, judge, and if a wait is hopeless, also when probed once more, end
it. A death is judged at once. What is waited for, but may still come, is shown: in the panel at once, in the cell after
five seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ... import rank_spec as rank_specs
from ...analysis.verdict import Verdict, judge, of_threads
from ...analysis.wait_graph import RankReport
from ...faults import Faults
from ...protocol import CollectiveState, Done, PendingCall
from ...protocol.requests import LONGEST_IMPORT
from ...threads import keep
from ..cluster.rank_table import imports_of
from ..output.failures import first_line

if TYPE_CHECKING:
    from ...analysis.collective_log import CollectiveLog
    from ...launch.link import Link
    from ..cluster.generations import Generations
    from ..cluster.pending import PendingRequest
    from ..cluster.rank_table import RankTable
    from ..output.cell_output import CellOutput

_BUSY, _IDLE = 0.25, 1.0
"""Seconds between two questions, while something runs and otherwise."""

_ANSWER = 0.1
"""Seconds to wait for the answers; a rank that is silent for longer is judged by what it said before."""

_SHOW_AFTER = 5.0
"""Seconds that ranks wait before the cell says for whom."""


class HangWatch:
    """Polls the ranks of a world until closed.

    Args:
        link: to ask by.
        rank_table: takes the answers.
        generations: ends what is hopeless.
        cell: the cell that runs, and its output; None between cells.
        tell_panel: tells the panel how things stand.
        collective_log: told what the ranks of the running cell do together.
        compare: compares what the notebook wants with what the ranks report; see `Reconciler`.
        look: sees whether the ranks' processes live, where nobody else tells.
        addressed: lets the remedies in a text name this world.

    Attributes:
        waiting: for whom ranks wait now, in words; often empty.
    """

    def __init__(  # noqa: PLR0913 - all but the first three by keyword
        self,
        link: Link,
        rank_table: RankTable,
        generations: Generations,
        *,
        cell: Callable[[], tuple[PendingRequest, CellOutput | None] | None],
        tell_panel: Callable[[], None],
        collective_log: CollectiveLog,
        look: Callable[[], None],
        compare: Callable[[], None],
        addressed: Callable[[str], str],
    ) -> None:
        self._addressed = addressed
        self.waiting = ""
        self._compare = compare
        self._faults = Faults()
        self._look = look
        self._link = link
        self._rank_table = rank_table
        self._generations = generations
        self._cell = cell
        self._tell_panel = tell_panel
        self._collective_log = collective_log
        self._closed = threading.Event()
        self._hurry = threading.Event()
        self._thread = keep("nbcomm-watch", self._poll, self._faults)

    def hurry(self) -> None:
        """Something begins to run: look soon, and often."""
        self._hurry.set()

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()
        self._hurry.set()
        self._thread.join(5)

    def _poll(self) -> None:
        steps = {
            "the ranks could not be asked what they do": self._ask,
            "the ranks' processes could not be looked at": self._look,
            "what is lost could not be looked for": self._compare,
            "a hang could not be judged": self._judge,
            "collectives could not be kept": self._hear_steps,
            "the panel could not be told": self._tell_panel,
        }
        while not self._closed.is_set():
            for what, step in steps.items():
                if not self._closed.is_set():
                    with self._faults.beside(what, self._say):  # none of them ends the others, or this thread
                        step()
            if self._hurry.wait(_BUSY if self._cell() else _IDLE) and not self._closed.is_set():
                self._hurry.clear()
                # A short cell is over before anybody could see its state: spend no time on it.
                self._closed.wait(_BUSY)

    def _ask(self) -> int:
        """Ask all ranks, wait for a moment, and return the question's number."""
        with self._rank_table.asking() as question:
            self._link.poll(question.number)
            question.wait(_ANSWER)
        return question.number

    def _say(self, note: str) -> None:
        """Say in the running cell that the watch itself has failed."""
        cell = self._cell()
        if cell is not None and cell[1] is not None:
            cell[1].notice(f"nbcomm: {note}")

    def _hear_steps(self) -> None:
        cell = self._cell()
        if cell is None:
            return
        for rank in cell[0].ranks:
            snapshot = self._rank_table.snapshot(rank)
            if snapshot is not None and snapshot.run == cell[0].id:
                self._collective_log.hear(rank, snapshot.steps)

    def _judge(self) -> None:
        """See how the running cell stands; tell it, or end it.

        The first of these that is true counts::

            ■ was pressed, and some ranks import           → the cell says so
            it was ended 5 s ago, and some ranks go on     → the cell says so, or how to replace them
            a death cut off a call that was under way      → the cell is ended, and its error names the death
            a wait can never complete                      → the cell is ended, and its error is the verdict
            a wait may still complete                      → the panel says so at once, the cell after 5 s
        """
        cell, self.waiting = self._cell(), ""
        if cell is None:
            return
        request, output = cell
        answers = request.answers()
        if not request.waiting_for():
            return
        late = self._late(request)
        if late is not None:
            if output is not None:
                output.notice(late)
            return
        reports = self._reports(request, answers)
        cut, dead = _cut_off(reports)
        if cut:
            self._generations.abort(request, "HangError", cut, dead)
            return
        verdict = judge(reports)
        if verdict.hopeless:
            certain = self._certain(verdict, request)
            if certain is not None:
                self._generations.abort(request, "HangError", certain.text, certain.culprits)
                if output is not None:
                    output.notice("")  # its error says it all
            return
        threads = of_threads(reports)
        self.waiting = (verdict.text if verdict.waits else "") or threads
        if output is not None:
            output.notice("; ".join(self._lasting(request, reports, verdict, threads)))

    def _certain(self, verdict: Verdict, request: PendingRequest) -> Verdict | None:
        """Ask once more; return the verdict of now if the same ranks still wait for ever in the same calls.

        The proof in `wait_graph` leaves out what is rare, and over when it is asked for again: a rank that is inside
        torch's method just now, which does not wait; a death behind a report that was made before it; a rooted call,
        from which gloo lets a rank go before all have come; a group that was made anew under its old name; a wait for a
        handle that has just ended, whose lane waits in its next call already; a lane whose thread just begins.
        """
        question = self._ask()
        answers = request.answers()
        if not request.waiting_for() or request.interrupted:
            return None
        said = [self._rank_table.snapshot(rank) for rank in verdict.stuck]
        if any(snapshot is None or snapshot.question < question for snapshot in said):
            return None  # it is busy: the next round asks again
        now = judge(self._reports(request, answers))
        return now if _in_vain(verdict) <= _in_vain(now) else None

    def _late(self, request: PendingRequest) -> str | None:
        """Return the notice for a cell that was told to end; None if it was not, or only just by a verdict."""
        if request.interrupted:
            return self._importing(request, "the interrupt takes effect")
        return self._deaf_to_the_end(request) if self._generations.ending_for(request) > _SHOW_AFTER else None

    def _importing(self, request: PendingRequest, what: str) -> str:
        """Return that what is to happen waits until ranks have imported a library; empty if none does that."""
        importing = self._rank_table.importing(request.waiting_for(), request.id)
        return f"{imports_of(importing)}: {what} after that, in {LONGEST_IMPORT:.0f} s at most" if importing else ""

    def _deaf_to_the_end(self, request: PendingRequest) -> str:
        importing = self._importing(request, "the cell ends there")
        if importing and self._generations.ending_for(request) < LONGEST_IMPORT + _SHOW_AFTER:
            return importing
        ranks = request.waiting_for()
        remedy = self._addressed(f"%distributed heal {rank_specs.fold(ranks)}")
        do = "do" if len(ranks) > 1 else "does"
        return f"{rank_specs.named(ranks)} {do} not react to the end of this cell; press ■, then type {remedy}"

    def _lasting(
        self, request: PendingRequest, reports: dict[int, RankReport], verdict: Verdict, threads: str
    ) -> Iterator[str]:
        """Return the notice for a cell whose waits may still end: which ranks died, and which wait is long."""
        died = self._rank_table.dead_among(request.ranks)
        if died:
            yield f"{rank_specs.ends_of(died, self._rank_table.dead)}; the other ranks keep running"
        if _old([op for wait in verdict.waits for op in wait.ops]):
            yield verdict.text
        if threads and any(_old(report.doing.beside) for report in reports.values()):
            yield threads
        if kept := self._kept_from(request):
            yield f"{rank_specs.named(kept)} cannot begin: a task or a callback of an earlier cell is still running"

    def _kept_from(self, request: PendingRequest) -> list[int]:
        """Return the ranks that got a request long ago, and do something else that is not known."""
        if request.sent is None or time.monotonic() - request.sent[1] < _SHOW_AFTER:
            return []
        said = {rank: self._rank_table.snapshot(rank) for rank in request.waiting_for()}
        return [rank for rank, it in said.items() if it and it.run is None and it.begun < request.id <= it.heard]

    def _reports(self, request: PendingRequest, answers: dict[int, Done]) -> dict[int, RankReport]:
        return {rank: self._report(rank, request, answers) for rank in self._rank_table.ranks}

    def _report(self, rank: int, request: PendingRequest, answers: dict[int, Done]) -> RankReport:
        rank_table, number = self._rank_table, self._generations.number
        if rank in rank_table.dead:  # how, says its own error, if the cell ran there
            return RankReport(rank, "dead", "has died" if request.concerns(rank) else rank_table.dead[rank])
        if not request.concerns(rank):
            return RankReport(rank, "idle", doing=rank_table.doing(rank, number))
        done = answers.get(rank)
        if done is None:
            snapshot = rank_table.snapshot(rank)
            known = snapshot is not None and snapshot.run == request.id and snapshot.generation == number
            return RankReport(
                rank, "running", doing=snapshot.doing if snapshot is not None and known else CollectiveState()
            )
        doing = rank_table.doing(rank, number)  # of now: a thread of its may have ended since
        if done.failure is None:
            return RankReport(rank, "finished", doing=doing)
        return RankReport(rank, "interrupted" if done.interrupted else "failed", first_line(done.failure), doing)


def _in_vain(verdict: Verdict) -> set[tuple[object, ...]]:
    """Return which ranks wait for ever, each with the calls that it waits in."""
    stuck = set(verdict.stuck)
    return {
        (wait.rank, *((op.group, op.kind, op.seq, op.peer) for op in wait.ops))
        for wait in verdict.waits
        if wait.rank in stuck
    }


def _old(ops: Sequence[PendingCall]) -> bool:
    return bool(ops) and time.time() - min(op.since for op in ops) > _SHOW_AFTER


def _cut_off(reports: dict[int, RankReport]) -> tuple[str, list[int]]:
    """Say whose death cut off a call that was under way, and return those; an empty text if none was.

    How they have ended, the error of those themselves says, which stands above this one.
    """
    gone = {rank for rank, report in reports.items() if report.state == "dead"}
    for report in reports.values() if gone else ():
        for op in report.doing.waits if report.state == "running" else ():
            if op.lost and (dead := [rank for rank in op.members if rank in gone]):
                where = f" ({op.line})" if op.line else ""
                return f"{op.called(op.name)}{where} was cut off by the death of {rank_specs.named(dead)}.", dead
    return "", []
