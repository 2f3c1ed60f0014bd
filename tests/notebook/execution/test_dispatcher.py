"""Requests to ranks that are played here: what goes out, what comes in, and how long it is waited for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbcomm.errors import Interrupted, TransferError
from nbcomm.notebook.cluster.pending import UNSENT, PendingRequest
from nbcomm.notebook.execution import dispatcher as module
from nbcomm.notebook.execution.dispatcher import Dispatcher
from nbcomm.notebook.execution.interrupts import InterruptCounter
from nbcomm.notebook.execution.transfers import transferred, unpack_answer
from nbcomm.protocol import Call, Done, Failure, Interrupt, Pull
from nbcomm.protocol.payload import FILE_FROM, pack


class Link:
    """Notes what is sent, and lets a test play the ranks."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.sent: list[tuple[list[int], Any]] = []
        self.answer: Any = lambda _ranks, _message: None

    def send_each(self, messages: Mapping[int, Any], buffers: Sequence[Any] = ()) -> None:
        if messages:
            self.send([*messages], next(iter(messages.values())), buffers)

    def send(self, ranks: Sequence[int], message: Any, _buffers: Sequence[Any] = ()) -> None:
        self.sent.append((list(ranks), message))
        self.answer(ranks, message)


class RankTable:
    """Knows who is silent, and what was asked last."""

    question = 7

    def __init__(self) -> None:
        self.silent: list[int] = []
        self.halted: list[int] = []
        self.dead: dict[int, str] = {}
        self.imports: dict[int, str] = {}

    def dead_among(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank in self.dead]

    def without_heal(self, _rank: int) -> str:
        return ""

    def stopped(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank in self.halted]

    def importing(self, ranks: Sequence[int], _run: int) -> dict[int, str]:
        return {rank: self.imports[rank] for rank in ranks if rank in self.imports}

    def silent_for(self, ranks: Sequence[int], _seconds: float) -> list[int]:
        return [rank for rank in ranks if rank in self.silent]


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def rank_table() -> RankTable:
    return RankTable()


@pytest.fixture
def dispatcher(link: Link, rank_table: RankTable) -> Dispatcher:
    return Dispatcher(link, rank_table)  # type: ignore[arg-type]


def failed(identity: int, name: str = "KeyboardInterrupt") -> Done:
    return Done(identity, failure=Failure(name, "no", "no"), interrupted=name == "KeyboardInterrupt")


def asked(dispatcher: Dispatcher, ranks: Sequence[int]) -> PendingRequest:
    """A request that is under way; no test looks at its message."""
    request = dispatcher.prepare(ranks)
    dispatcher.ask(request, Pull(UNSENT, ["x"]))
    link: Any = dispatcher._link
    link.sent.clear()
    return request


def test_a_request_is_open_until_all_have_answered(dispatcher: Dispatcher, link: Link) -> None:
    request = asked(dispatcher, [0, 2])
    assert dispatcher.busy() == {0, 2}
    dispatcher.hear(0, Done(request.id))
    assert dispatcher.busy() == {2}
    assert link.acknowledged == 0
    dispatcher.hear(2, Done(request.id))
    assert not dispatcher.open()
    assert link.acknowledged == request.id


def test_an_answer_that_nobody_waits_for_is_no_error(dispatcher: Dispatcher, link: Link) -> None:
    dispatcher.hear(0, Done(77))
    assert link.acknowledged == 0


def test_what_has_been_heard_never_goes_back(dispatcher: Dispatcher, link: Link) -> None:
    first, second = asked(dispatcher, [0]), asked(dispatcher, [0])
    dispatcher.hear(0, Done(second.id))
    dispatcher.hear(0, Done(first.id))
    assert link.acknowledged == second.id


def test_ids_begin_far_from_those_of_the_notebook_before(dispatcher: Dispatcher) -> None:
    dispatcher.take_up(41)
    assert asked(dispatcher, [0]).id > 541


def test_a_request_of_another_notebook_keeps_its_id(dispatcher: Dispatcher) -> None:
    assert dispatcher.take_over([0, 1], 41).id == 41
    dispatcher.hear(0, Done(41))
    assert dispatcher.busy() == {1}


def test_a_dead_rank_answers_with_its_cause(dispatcher: Dispatcher) -> None:
    with_it, without = asked(dispatcher, [0, 1]), asked(dispatcher, [0])
    dispatcher.lose(1, "was killed by SIGKILL")
    assert "Rank 1 was killed by SIGKILL. Type %distributed heal" in with_it.failures()[1].message
    assert with_it.waiting_for() == without.waiting_for() == [0]


def test_a_rank_that_died_just_before_it_was_asked_answers_too(
    dispatcher: Dispatcher, rank_table: RankTable, link: Link
) -> None:
    dispatcher.lose(1, "was killed by SIGKILL")  # nothing is open
    rank_table.dead[1] = "was killed by SIGKILL"
    request = dispatcher.prepare([0, 1])
    dispatcher.ask(request, Pull(UNSENT, ["x"]))
    assert request.waiting_for() == [0]
    assert link.sent == [([0], Pull(1, ["x"]))], "the next process of rank 1 would do it"
    assert "Rank 1 was killed by SIGKILL" in request.failures()[1].message
    dispatcher.hear(0, Done(request.id))
    assert not dispatcher.open()


def test_what_a_dead_rank_had_answered_to_another_notebook_counts(
    dispatcher: Dispatcher, rank_table: RankTable
) -> None:
    rank_table.dead = {0: "was killed by SIGKILL", 1: "was killed by SIGKILL"}
    request = dispatcher.take_over([0, 1, 2], 41)
    dispatcher.hear(1, Done(41))
    dispatcher.lose_dead(request)
    assert list(request.failures()) == [0]
    assert request.waiting_for() == [2]


def test_a_world_that_is_left_answers_everything(dispatcher: Dispatcher) -> None:
    request = asked(dispatcher, [0, 1])
    dispatcher.close("was stopped")
    assert list(request.failures()) == [0, 1]
    assert list(asked(dispatcher, [0]).failures()) == [0], "another thread was about to ask"
    assert not dispatcher.busy()


def test_one_that_ends_well_is_waited_for(dispatcher: Dispatcher) -> None:
    request, ticks = asked(dispatcher, [0]), []

    def tick() -> None:
        ticks.append(1)
        dispatcher.hear(0, Done(request.id))

    with InterruptCounter() as interrupts:
        dispatcher.wait(request, interrupts, tick)
    assert ticks


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_goes_to_those_who_have_not_answered(dispatcher: Dispatcher, link: Link) -> None:
    request = asked(dispatcher, [0, 1])
    dispatcher.hear(0, Done(request.id))
    link.answer = lambda _, message: dispatcher.hear(1, failed(message.run))
    with InterruptCounter() as interrupts:
        press()
        dispatcher.wait(request, interrupts)
    assert link.sent == [([1], Interrupt(request.id))]
    assert request.interrupted


def test_a_press_at_the_very_end_still_stops_the_notebook(dispatcher: Dispatcher, link: Link) -> None:
    request = asked(dispatcher, [0])
    link.answer = lambda _, message: dispatcher.hear(0, Done(message.run))
    with InterruptCounter() as interrupts:
        press()
        with pytest.raises(Interrupted):
            dispatcher.wait(request, interrupts)


def test_a_second_press_is_sent_on(dispatcher: Dispatcher, link: Link) -> None:
    request = asked(dispatcher, [0])

    def answer(_ranks: Sequence[int], message: Any) -> None:
        if len(link.sent) == 1:
            press()
        else:
            dispatcher.hear(0, failed(message.run))

    link.answer = answer
    with InterruptCounter() as interrupts:
        press()
        dispatcher.wait(request, interrupts)
    assert len(link.sent) == 2


@pytest.mark.parametrize(
    ("silent", "stopped", "why"),
    [([1], [], "holds the GIL"), ([], [], "ignored the interrupt"), ([1], [1], "a signal has stopped the process")],
)
def test_one_that_does_not_react_is_given_up_and_named(
    dispatcher: Dispatcher,
    rank_table: RankTable,
    silent: list[int],
    stopped: list[int],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_INTERRUPT_PATIENCE", 0.3)
    monkeypatch.setattr(module, "_SILENCE", 0.1)
    rank_table.silent, rank_table.halted = silent, stopped
    request = asked(dispatcher, [0, 1])
    dispatcher.hear(0, failed(request.id))
    with InterruptCounter() as interrupts:
        press()
        with pytest.raises(Interrupted):
            dispatcher.wait(request, interrupts)
    said = capsys.readouterr().out
    assert said.startswith("Rank 1 does not react to the interrupt")
    assert why in said
    assert "%distributed heal 1" in said


@pytest.mark.parametrize("silent", [[], [1]])
def test_one_that_imports_a_library_has_longer(
    dispatcher: Dispatcher,
    rank_table: RankTable,
    silent: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_INTERRUPT_PATIENCE", 0.2)
    monkeypatch.setattr(module, "_SILENCE", 0.1)
    rank_table.imports, rank_table.silent = {1: "sympy"}, silent
    request = asked(dispatcher, [0, 1])
    dispatcher.hear(0, failed(request.id))
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 12:  # later than either limit
            rank_table.imports = {}
            dispatcher.hear(1, failed(request.id))

    with InterruptCounter() as interrupts:
        press()
        dispatcher.wait(request, interrupts, tick)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(module, "_IMPORT_PATIENCE", 0.3)
    rank_table.imports = {1: "sympy"}
    request = asked(dispatcher, [1])
    with InterruptCounter() as interrupts:
        press()
        with pytest.raises(Interrupted):
            dispatcher.wait(request, interrupts)
    assert "Rank 1 does not react" in capsys.readouterr().out


def test_an_interrupt_from_elsewhere_goes_to_all_that_run(dispatcher: Dispatcher, link: Link) -> None:
    first, second = asked(dispatcher, [0, 1]), asked(dispatcher, [2])
    dispatcher.hear(1, Done(first.id))
    dispatcher.interrupt()
    assert link.sent == [([0], Interrupt(first.id)), ([2], Interrupt(second.id))]


def test_a_request_is_sent_to_its_ranks_with_its_id(dispatcher: Dispatcher, link: Link) -> None:
    request = dispatcher.prepare([1, 3])
    assert not dispatcher.open(), "nobody waits for what was not sent"
    dispatcher.ask(request, Pull(UNSENT, ["x"]))
    assert link.sent == [([1, 3], Pull(request.id, ["x"]))]
    assert request.sent is not None
    assert request.sent[0] == RankTable.question, "what is asked later comes behind it"


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("at", ["send_each", "dead_among"])
def test_one_that_could_not_be_sent_is_not_waited_for(
    dispatcher: Dispatcher,
    link: Link,
    rank_table: RankTable,
    at: str,
    fault: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(link if at == "send_each" else rank_table, at, fail)
    with pytest.raises(fault):
        dispatcher.ask(dispatcher.prepare([0, 1]), Pull(UNSENT, ["x"]))
    with pytest.raises(fault):
        dispatcher.ask_each({0: Pull(UNSENT, ["x"])})
    assert not dispatcher.open()


def test_values_come_back_and_what_could_not_is_told_once(dispatcher: Dispatcher, link: Link, tmp_path: Path) -> None:
    blob, frames = pack({"x": 1}, tmp_path)

    def answer(ranks: Sequence[int], message: Any) -> None:
        for rank in ranks:
            failure = Failure("TransferError", "x is not defined.", "…") if rank != broken else None
            dispatcher.hear(rank, Done(message.id, blob=None if failure else blob, failure=failure), frames)

    broken, link.answer = 0, answer
    complaint = pytest.raises(TransferError, match=r"^x is not defined \(ranks 1-2\)\.$")
    with complaint, transferred(dispatcher, [0, 1, 2], Pull(UNSENT, ["x"])):
        pass
    with transferred(dispatcher, [0], Pull(UNSENT, ["x"])) as request:
        assert unpack_answer(request, 0) == {"x": 1}


@pytest.mark.parametrize("late", [False, True])
def test_what_came_of_an_interrupted_transfer_is_let_go(
    dispatcher: Dispatcher, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    monkeypatch.setattr(module, "_INTERRUPT_PATIENCE", 0.1)
    monkeypatch.setattr(InterruptCounter, "pressed", True)
    blob, frames = pack(np.zeros(FILE_FROM), tmp_path / "bulk")
    assert Path(blob.path).exists()
    asked: list[int] = []

    def answer(_: Sequence[int], message: Any) -> None:
        if isinstance(message, Pull):
            asked.append(message.id)
            if not late:
                dispatcher.hear(0, Done(message.id, blob=blob), frames)

    link.answer = answer
    with pytest.raises(Interrupted), transferred(dispatcher, [0, 1], Pull(UNSENT, ["x"])):
        pass
    if late:
        dispatcher.hear(0, Done(asked[0], blob=blob), frames)
    assert not Path(blob.path).exists()


def test_an_answer_on_another_thread_ends_the_wait(dispatcher: Dispatcher, link: Link) -> None:
    threads: list[threading.Timer] = []

    def answer(_: Sequence[int], message: Any) -> None:
        threads.append(threading.Timer(0.05, dispatcher.hear, (0, Done(message.id))))
        threads[0].start()

    link.answer = answer
    with transferred(dispatcher, [0], Pull(UNSENT, ["x"])):
        assert not dispatcher.open()
    threads[0].join()


def test_what_is_asked_is_what_ranks_know(dispatcher: Dispatcher, link: Link, tmp_path: Path) -> None:
    blob, _ = pack(1, tmp_path)
    dispatcher.ask(dispatcher.prepare([0]), Call(UNSENT, blob, "0"))
    assert isinstance(link.sent[0][1], Call)
