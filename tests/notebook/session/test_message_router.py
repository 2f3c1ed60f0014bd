"""Who is told what a rank says; those who are told are played here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.faults import failure
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.notebook.execution.cell_run import CellExecutor
from nbcomm.notebook.execution.dispatcher import Dispatcher
from nbcomm.notebook.execution.reattach import Reattachment
from nbcomm.notebook.session.message_router import MessageRouter
from nbcomm.notebook.session.session import Session
from nbcomm.protocol import (
    CallRecord,
    CollectiveState,
    Done,
    Failure,
    Hello,
    InputCancelled,
    IntrospectReply,
    Mismatch,
    Output,
    PendingCall,
    StatusReply,
    Text,
    rank_lists,
)
from nbcomm.protocol.codec import decode_from_rank, from_frames, to_frames

from ...growth import lines_run
from ..cells import Cell

RUN = 5


class Told:
    """Notes each call of it, and of its parts, by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.number = 1
        self.stale = False
        self.cell: Any = (SimpleNamespace(id=RUN), None)
        self.input_requests = self
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))

    def culprits(self, rank: int, done: Done) -> list[int]:
        return [0] if done.failure is not None and done.failure.name == "HangError" else []

    def ended(self, rank: int, done: Done) -> bool:
        self.calls.append(("ended", rank))
        if self.fails:
            raise OSError("no screen")
        return done.id == RUN

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


@pytest.fixture
def told() -> Told:
    return Told()


def router(told: Any, resumption: Any = None) -> MessageRouter:
    return MessageRouter(told, told, told, told, told, link=told, resumption=resumption, hurry=told.hurry)


def test_what_comes_while_kept_output_is_shown_is_shown_behind_it(told: Told) -> None:
    resumption = Reattachment()
    one = router(told, resumption)
    resumption.take(0, Hello(0, 100, "host", 0, "2.13.0", attached=True, run=RUN, ranks="0"), ())
    texts = [Output(RUN, [Text("stdout", text)]) for text in ("one", "two", "now")]
    for text in texts[:2]:
        one.receive(0, text, ())
    shown: list[Output] = []
    links = threading.Thread(target=one.receive, args=(0, texts[2], ()))

    def show(_: int, output: Output) -> None:
        shown.append(output)
        if output is texts[0]:
            links.start()
            links.join(0.2)  # it must wait, or it would show now

    told.show = show
    Session._hand_over(SimpleNamespace(_router=one))  # type: ignore[arg-type]
    links.join(30)
    assert shown == texts
    assert one.resumption is None


def test_output_that_could_not_be_taken_is_told(told: Told) -> None:
    def show(*_: object) -> None:
        raise OSError("no screen")

    told.show = show
    router(told).receive(1, Output(RUN, []), ())
    assert told.calls == [("tell", "a piece of output could not be taken: OSError: no screen.")]


def test_a_part_of_a_cell_that_ends_is_noted_and_answered(told: Told) -> None:
    done = Done(RUN, failure=failure(1, ValueError("no")), doing=CollectiveState(), broken=True)
    router(told).receive(1, done, ["frame"])
    assert told.names == ["note_doing", "ended", "note_part", "hear"]
    assert told.calls[-2:] == [("note_part", 1, done, []), ("hear", 1, done, ["frame"])]
    assert told.stale


def test_because_of_whom_a_rank_was_stopped_is_noted(told: Told) -> None:
    done = Done(RUN, failure=Failure("HangError", "was cut off", ""))
    router(told).receive(1, done, [])
    assert ("note_part", 1, done, [0]) in told.calls


def test_an_answer_that_is_no_cells_is_only_given(told: Told) -> None:
    router(told).receive(1, Done(RUN + 1), [])
    assert told.names == ["note_doing", "ended", "hear"]
    assert not told.stale


def test_an_answer_is_given_also_if_the_end_cannot_be_shown(told: Told) -> None:
    told.fails = True
    with pytest.raises(OSError, match="no screen"):
        router(told).receive(1, Done(RUN), [])
    assert told.names == ["note_doing", "ended", "hear"]


@pytest.mark.parametrize(("run", "generation", "ends"), [(RUN, 1, True), (RUN - 1, 1, False), (RUN, 0, False)])
def test_a_mismatch_ends_the_cell_that_it_is_of(told: Told, run: int, generation: int, *, ends: bool) -> None:
    router(told).receive(1, Mismatch(run=run, generation=generation, text="differs"), [])
    assert told.calls == ([("abort", told.cell[0], "MismatchError", "differs")] if ends else [])


def test_between_cells_a_mismatch_ends_nothing(told: Told) -> None:
    told.cell = None
    router(told).receive(1, Mismatch(run=RUN, generation=1, text="differs"), [])
    assert told.calls == []


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_of_another_notebooks_cell_is_kept(told: Told, *, kept: bool) -> None:
    message = Output(RUN, [])
    router(told, SimpleNamespace(take=lambda *_: kept)).receive(1, message, [])
    assert told.calls == ([] if kept else [("show", 1, message)])


def test_a_process_that_ends_leaves_nobody_waiting(told: Told) -> None:
    router(told).process_ended(1, "was killed by SIGKILL")
    assert told.calls == [("lose", 1), ("lose", 1, "was killed by SIGKILL"), ("lose", 1), ("hurry",)]
    assert told.stale


def test_the_rest_is_told_to_whom_it_concerns(told: Told) -> None:
    one = router(told)
    for message in (InputCancelled(RUN, 1), IntrospectReply(RUN, {})):
        one.receive(1, message, [])
        assert told.calls.pop() == ("hear", 1, message)


# ── growth ──────────────────────────────────────────────────────────────────────────────────────────


class Notebook:
    """All that takes a rank's answers in a notebook, without a link: who sends is played here."""

    def __init__(self, size: int) -> None:
        told: Any = Told()
        told.acknowledged = 0
        self.size = size
        self.rank_table = RankTable(lambda rank, lines: "")
        for rank in range(size):
            self.rank_table.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0", attached=True))
        self.rank_table.places = assign_places([NodeShare(size, cores=4)], "cpu", "gloo")
        self.dispatcher = Dispatcher(told, self.rank_table)
        executor = CellExecutor(self.dispatcher, told, lambda: size, told, told.settle, told.hurry)
        self.request = self.dispatcher.take_over(range(size), 1)
        executor.begin(self.request, Cell(range(size)).output)
        self.router = MessageRouter(
            self.rank_table, self.dispatcher, executor, told, told, link=told, resumption=None, hurry=told.hurry
        )

    def take(self, sent: Iterable[list[Any]]) -> None:
        """Take the messages of all ranks, as the link does."""
        for rank, (frame, *rest) in enumerate(sent):
            self.router.receive(rank, *from_frames(decode_from_rank(frame), rest))

    def answer(self, *, fails: bool) -> None:
        """Every rank ends its part of the cell."""
        error = failure(0, ValueError("no")) if fails else None
        doing = CollectiveState({"0": 16}, waits=[_waiting(self.size)] * fails)
        steps = [_call(seq, self.size) for seq in range(16)]
        answers = (Done(self.request.id, 0.5, error, doing=doing, began=1e9 + rank, steps=steps) for rank in self.ranks)
        self.take(map(to_frames, answers))
        assert self.request.wait(0)
        assert len(self.request.failures()) == self.size * fails

    def report(self) -> None:
        """Every rank is asked what it does, and answers."""
        doing, steps = CollectiveState(waits=[_waiting(self.size)]), [_call(seq, self.size) for seq in range(16)]
        with self.rank_table.asking() as question:
            self.take(
                to_frames(
                    StatusReply(rank, 100 + rank, "running", 1e9, 1, 1000, 0, 0, 1, doing, question.number, steps)
                )
                for rank in self.ranks
            )
            question.wait(60)
            assert not question.silent
        assert len(self.rank_table.views()) == len(self.rank_table.doings(1)) == self.size

    def die(self) -> None:
        """Every rank dies, one after the other."""
        with self.rank_table.asking() as question:
            for rank in self.ranks:
                self.router.process_ended(rank, self.rank_table.note_death(rank, -9))
            assert not question.silent
        assert self.request.wait(0)

    @property
    def ranks(self) -> range:
        return range(self.size)


def _call(seq: int, size: int) -> CallRecord:
    ranks = rank_lists.written(range(size))
    return CallRecord("all_reduce", "collective", "0", ranks, seq, seq, 1e9 + seq, 1e9 + seq + 0.5)


def _waiting(size: int) -> PendingCall:
    return PendingCall("collective", "barrier", "0", rank_lists.written(range(size)), 17, "", "line 3: barrier()", 1e9)


WORK: dict[str, Callable[[Notebook], None]] = {
    "answers": lambda notebook: notebook.answer(fails=False),
    "failures": lambda notebook: notebook.answer(fails=True),
    "reports": Notebook.report,
    "deaths": Notebook.die,
}


@pytest.mark.parametrize("kind", WORK)
def test_the_work_grows_as_the_ranks_do(kind: str) -> None:
    def work(size: int) -> int:
        notebook = Notebook(size)
        return lines_run(lambda: WORK[kind](notebook))

    assert work(256) < 6 * work(64), "4 times the ranks; a square law would be 16"
