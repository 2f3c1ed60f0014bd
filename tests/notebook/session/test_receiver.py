"""Who is told what a rank says; those who are told are played here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.faults import failure
from nbcomm.notebook.session.receiver import Receiver
from nbcomm.protocol import CollectiveState, Done, InputCancelled, IntrospectReply, Mismatch, Output

RUN = 5


class Told:
    """Notes each call of it, and of its parts, by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.number = 1
        self.stale = False
        self.cell: Any = (SimpleNamespace(id=RUN), None)
        self.questions = self
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))

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


def receiver(told: Any, resumption: Any = None) -> Receiver:
    return Receiver(told, told, told, told, told, link=told, resumption=resumption, hurry=told.hurry)


def test_a_part_of_a_cell_that_ends_is_noted_and_answered(told: Told) -> None:
    done = Done(RUN, failure=failure(1, ValueError("no")), doing=CollectiveState(), broken=True)
    receiver(told).receive(1, done, ["frame"])
    assert told.names == ["note_doing", "ended", "note_error", "note_end", "hear"]
    assert told.calls[-2:] == [("note_end", 1, "failed"), ("hear", 1, done, ["frame"])]
    assert told.stale


def test_an_answer_that_is_no_cells_is_only_given(told: Told) -> None:
    receiver(told).receive(1, Done(RUN + 1), [])
    assert told.names == ["ended", "hear"]
    assert not told.stale


def test_an_answer_is_given_also_if_the_end_cannot_be_shown(told: Told) -> None:
    told.fails = True
    with pytest.raises(OSError, match="no screen"):
        receiver(told).receive(1, Done(RUN), [])
    assert told.names == ["ended", "hear"]


@pytest.mark.parametrize(("run", "generation", "ends"), [(RUN, 1, True), (RUN - 1, 1, False), (RUN, 0, False)])
def test_a_mismatch_ends_the_cell_that_it_is_of(told: Told, run: int, generation: int, *, ends: bool) -> None:
    receiver(told).receive(1, Mismatch(run=run, generation=generation, text="differs"), [])
    assert told.calls == ([("abort", told.cell[0], "MismatchError", "differs")] if ends else [])


def test_between_cells_a_mismatch_ends_nothing(told: Told) -> None:
    told.cell = None
    receiver(told).receive(1, Mismatch(run=RUN, generation=1, text="differs"), [])
    assert told.calls == []


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_of_another_notebooks_cell_is_kept(told: Told, *, kept: bool) -> None:
    message = Output(RUN, [])
    receiver(told, SimpleNamespace(take=lambda *_: kept)).receive(1, message, [])
    assert told.calls == ([] if kept else [("show", 1, message)])


def test_a_process_that_ends_leaves_nobody_waiting(told: Told) -> None:
    receiver(told).process_ended(1, "was killed by SIGKILL")
    assert told.calls == [("lose", 1), ("lose", 1, "was killed by SIGKILL"), ("lose", 1), ("hurry",)]
    assert told.stale


def test_the_rest_is_told_to_whom_it_concerns(told: Told) -> None:
    one = receiver(told)
    for message in (InputCancelled(RUN, 1), IntrospectReply(RUN, {})):
        one.receive(1, message, [])
        assert told.calls.pop() == ("hear", 1, message)
