"""What is sent again, and what is given up, when ranks report something else than the notebook wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nbcomm.notebook.cluster.pending import PendingRequest
from nbcomm.notebook.execution.dispatcher import Dispatcher
from nbcomm.notebook.execution.reconcile import Reconciler
from nbcomm.protocol import Abort, Call, Done, InputRequest, Interrupt, Payload, StatusReply

Sent = list[tuple[list[int], Any]]


class World:
    """Two ranks that are played here, and the notebook's tables of them."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.question = 0
        self.dead: dict[int, str] = {}
        self.sent: Sent = []
        self.fails = False
        self.held_back = False
        self.reports: dict[int, StatusReply] = {}
        anything: Any = self
        self.dispatcher = Dispatcher(anything, anything)
        self.reconciler = Reconciler(
            anything, anything, self.dispatcher, lambda: None, held_back=lambda: self.held_back
        )

    # The link.

    def send(self, ranks: Sequence[int], message: Any) -> None:
        if self.fails:
            self.fails = False
            raise TypeError("spoiled")
        self.sent.append((list(ranks), message))

    def send_each(self, messages: dict[int, Any], _buffers: Sequence[Any] = ()) -> None:
        self.send([*messages], next(iter(messages.values())))

    # The rank table.

    @property
    def living(self) -> list[int]:
        return [rank for rank in (0, 1) if rank not in self.dead]

    def snapshot(self, rank: int) -> StatusReply | None:
        return self.reports.get(rank)

    def dead_among(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank in self.dead]

    def without_heal(self, _rank: int) -> str:
        return ""

    # What a test does.

    def ask(self) -> PendingRequest:
        request = self.dispatcher.prepare([0, 1])
        self.dispatcher.ask(request, Call(0, Payload(b""), ""))
        self.sent.clear()
        return request

    def look(self, rank: int, **report: Any) -> Sent:
        """Let a rank answer another question; return what it is told for that."""
        self.question += 1
        fields = {"heard": 1, "begun": 1, **report}
        run = fields.pop("run", 1)
        self.reports[rank] = StatusReply(rank, 1, "running", 0, run, 0, 0, 0, 1, question=self.question, **fields)
        self.sent.clear()
        self.reconciler.compare()
        return [*self.sent]


@pytest.fixture
def world() -> World:
    return World()


def test_an_interrupt_is_sent_again_until_the_rank_reports_that_it_obeys(world: World) -> None:
    request = world.ask()
    world.fails = True
    with pytest.raises(TypeError):
        world.dispatcher.interrupt()
    assert world.look(1) == [([1], Interrupt(request.id))]
    assert world.look(1) == [([1], Interrupt(request.id))], "it does not obey yet"
    assert world.look(1, ending=request.id) == []


def test_a_report_from_before_the_order_says_nothing_of_it(world: World) -> None:
    world.ask()
    world.look(1)
    world.dispatcher.interrupt()
    world.sent.clear()
    world.reconciler.compare()
    assert world.sent == []


def test_an_abort_is_sent_again_as_it_was(world: World) -> None:
    request = world.ask()
    abort = Abort(request.id, 1, "HangError", "for ever")
    request.ending = world.question, abort
    assert world.look(0) == [([0], abort)]
    assert world.look(0, ending=request.id) == []
    world.dispatcher.hear(0, Done(request.id))
    assert world.look(0) == [], "it has answered"


@pytest.mark.parametrize(
    ("report", "what"), [({"answered": 1}, "its answer"), ({"heard": 0, "begun": 0, "run": None}, "its request")]
)
def test_what_is_lost_on_the_way_is_answered_here(world: World, report: dict[str, Any], what: str) -> None:
    request = world.ask()
    world.look(0, **report)
    failure = request.failures()[0]
    assert f"{what} was lost in transit" in failure.message


def test_nothing_is_lost_that_is_held_back_for_the_cell_of_another_notebook(world: World) -> None:
    request, world.held_back = world.ask(), True
    world.look(0, answered=1)
    assert request.waiting_for() == [0, 1]


def test_a_request_to_a_dead_rank_fails_whoever_was_told_of_its_death(world: World) -> None:
    request = world.ask()
    world.dead[1] = "was killed by SIGKILL"
    world.reconciler.compare()
    assert "was killed by SIGKILL" in request.failures()[1].message
    assert request.waiting_for() == [0]


def test_what_runs_in_vain_is_interrupted(world: World) -> None:
    request = world.ask()
    for rank in (0, 1):
        world.dispatcher.hear(rank, Done(request.id))
    assert world.look(0) == [], "its report may be from before its end"
    assert world.look(0) == [([0], Interrupt(request.id))]
    assert world.look(0, run=None) == []
    assert world.look(0) == []


@pytest.mark.parametrize("run", [None, -1])
def test_what_is_no_request_is_let_alone(world: World, run: int | None) -> None:
    assert world.look(0, run=run) == world.look(0, run=run) == []


def test_what_another_notebook_has_begun_is_let_alone(world: World) -> None:
    world.dispatcher.take_up(7)
    assert world.look(0, run=7) == world.look(0, run=7) == []


def test_a_question_that_only_the_report_has_is_put(world: World) -> None:
    request = world.ask()
    world.dispatcher.input_requests.begin(request.id)
    asking = InputRequest(request.id, 3, "what? ")
    world.look(1, asking=[asking])
    assert world.dispatcher.input_requests.waiting == "", "it is on its way, behind what was shown before"
    world.look(1, asking=[asking])
    assert world.dispatcher.input_requests.waiting == "rank 1 asks in the cell: what?"
    world.look(1, asking=[])
    assert world.dispatcher.input_requests.waiting == "", "the rank asks no longer"


def test_a_request_that_could_not_be_sent_ends_where_it_has_arrived(world: World) -> None:
    request = world.dispatcher.prepare([0, 1])
    world.fails = True
    with pytest.raises(TypeError):
        world.dispatcher.ask(request, Call(0, Payload(b""), ""))
    assert world.sent == [([0, 1], Interrupt(request.id))]
    assert world.dispatcher.open() == []


def test_a_request_that_nobody_waits_for_any_more_is_ended(world: World) -> None:
    request = world.ask()
    world.send = lambda ranks, message: [world.dispatcher.hear(rank, Done(request.id)) for rank in ranks]  # type: ignore[method-assign]
    world.dispatcher.abandon(request)
    assert request.ending == (0, Interrupt(request.id))
    assert world.dispatcher.open() == []
    world.dispatcher.abandon(request)
