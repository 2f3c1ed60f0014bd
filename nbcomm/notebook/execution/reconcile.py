"""What the notebook wants, compared with what the ranks report that they do; what is missing is sent again.

An event that is told once may be missed: the function that takes it fails, or the one that tells it. So nothing that a
cell waits for rests on one message. Each report of a rank has the whole table of what it knows of the notebook's
requests, four times a second while a cell runs, and this is the one place where the two tables are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...protocol import Interrupt

if TYPE_CHECKING:
    from ...launch.link import Link
    from ...protocol import StatusReply
    from ..cluster.pending import PendingRequest
    from ..cluster.rank_table import RankTable
    from .dispatcher import Dispatcher


class Reconciler:
    """The comparison of one world.

    Args:
        link: to send by.
        rank_table: has the ranks' reports.
        dispatcher: has the requests.
        look: sees whether the processes of ranks live.
        held_back: whether messages of the ranks are kept for a cell that another notebook has begun.
    """

    def __init__(
        self,
        link: Link,
        rank_table: RankTable,
        dispatcher: Dispatcher,
        look: Callable[[], None],
        held_back: Callable[[], bool],
    ) -> None:
        self._link = link
        self._rank_table = rank_table
        self._dispatcher = dispatcher
        self._look = look
        self._held_back = held_back
        self._strays: dict[int, tuple[int | None, int]] = {}  # what ranks ran in vain, and the question of that report

    def compare(self) -> None:
        """Compare, and make good what differs.

        What a rank says comes behind its answers on one way, and what it is asked behind what was sent to it before. So
        in a report that answers a later question than the last one before an order, that order has arrived::

            the notebook wants                 the rank reports               what is done
            the answer to a request            it has answered it             the answer is lost: that fails
                                               it has never heard of it       the request is lost: that fails
            a request to end                   it runs, and is not ending     the order is sent again
            no such request                    it runs it                     it is interrupted
            an answer to a question            it asks                        the question is put
            nothing more: it has answered      it asks still                  the answer is sent again
            nothing: the rank is dead          –                              its part fails
        """
        self._look()
        if self._held_back():
            return  # what is lacking has come, and is not lost
        requests = self._dispatcher.open()
        for request in requests:
            self._dispatcher.lose_dead(request)
        for rank, report in self._reports():
            for request in requests:
                if request.awaits(rank):
                    self._compare(request, rank, report)
            self._end_stray(rank, report)
            self._dispatcher.input_requests.compare(rank, report)

    def _reports(self) -> Iterator[tuple[int, StatusReply]]:
        for rank in self._rank_table.living:
            report = self._rank_table.snapshot(rank)
            if report is not None:
                yield rank, report

    def _end_stray(self, rank: int, report: StatusReply) -> None:
        """Interrupt what a rank runs in vain; not at its first report, which may be from before the end."""
        if not self._dispatcher.is_stray(report.run):
            self._strays.pop(rank, None)
            return
        run, question = self._strays.setdefault(rank, (report.run, report.question))
        if run != report.run:
            self._strays[rank] = report.run, report.question
        elif question < report.question:
            self._link.send([rank], Interrupt(run or 0))

    def _compare(self, request: PendingRequest, rank: int, report: StatusReply) -> None:
        if report.answered >= request.id:
            self._dispatcher.miss(rank, request.id, "its answer")
        elif request.sent and request.sent[0] < report.question and report.heard < request.id:
            self._dispatcher.miss(rank, request.id, "its request")
        elif request.ending is not None and report.question > request.ending[0] and report.ending != request.id:
            self._link.send([rank], request.ending[1])
