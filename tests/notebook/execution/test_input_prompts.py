"""Questions of ranks, put to a person who is played here; the ranks and the clock are, too."""

from __future__ import annotations

import builtins
import getpass
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import StdinNotImplementedError

from nbcomm.notebook.cluster.pending import PendingRequest
from nbcomm.notebook.execution.input_prompts import InputPrompts
from nbcomm.notebook.execution.interrupts import InterruptCounter
from nbcomm.protocol import (
    CollectiveState,
    Done,
    InputCancelled,
    InputReply,
    InputRequest,
    PendingCall,
    StatusReply,
)

from .waits import wait_for_ever

RUN = 5
STUCK = CollectiveState(waits=[PendingCall("collective", "barrier", "", "0,1", 1, "", "", 0.0)])


class Ranks:
    """The link, the rank table and the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.replies: list[tuple[int, InputReply]] = []
        self.waits: set[int] = set()
        self.question = 0
        self.fresh = True

    def send(self, ranks: list[int], message: InputReply) -> None:
        self.replies += [(rank, message) for rank in ranks]

    def snapshot(self, rank: int) -> StatusReply | None:
        doing = STUCK if rank in self.waits else CollectiveState()
        return StatusReply(rank, 1, "running", 0, RUN, 0, 0, 0, 1, doing, self.question + self.fresh)


class Output:
    """Notes what is done, and plays a rank's part while a box is open."""

    def __init__(self) -> None:
        self.exposed: list[int] = []
        self.rendered = 0
        self.meanwhile: Callable[[], Any] = lambda: None

    def expose(self, rank: int) -> None:
        self.exposed.append(rank)

    def cut(self) -> None:
        self.exposed.append(-1)

    def render(self) -> None:
        self.rendered += 1
        if threading.current_thread() is not threading.main_thread():
            self.meanwhile()


class Cell:
    """One cell on four ranks, and a person who answers each box with the next of these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks = Ranks()
        self.output = Output()
        self.request = PendingRequest(RUN, range(4))
        self.input_requests = InputPrompts(self.ranks, self.ranks, lambda: self.ranks.now)  # type: ignore[arg-type]
        self.input_requests.begin(RUN)
        self.boxes: list[str] = []
        self.answers: list[Any] = []
        monkeypatch.setattr(builtins, "input", self._type)
        monkeypatch.setattr(getpass, "getpass", lambda prompt: self._type(f"hidden {prompt}"))

    def _type(self, prompt: str) -> str:
        self.boxes.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else str(answer)

    def ask(self, rank: int, number: int = 1, prompt: str = "? ", **more: Any) -> None:
        self.input_requests.hear(rank, InputRequest(RUN, number, prompt, **more))

    def end(self, *ranks: int) -> None:
        for rank in ranks:
            self.request.answer(rank, Done(RUN))

    def tick(self, interrupts: InterruptCounter | None = None, seconds: float = 0.0) -> None:
        self.ranks.now += seconds
        if interrupts is not None:
            self.input_requests.tick(self.request, self.output, interrupts)  # type: ignore[arg-type]
            return
        with InterruptCounter() as own:
            self.input_requests.tick(self.request, self.output, own)  # type: ignore[arg-type]

    @property
    def replied(self) -> list[tuple[int, str]]:
        return [(rank, reply.error or reply.text) for rank, reply in self.ranks.replies]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    return Cell(monkeypatch)


def test_all_ranks_ask_and_are_answered_in_rank_order(cell: Cell) -> None:
    cell.answers = list("abcd")
    for rank in (3, 1, 0, 2):
        cell.ask(rank, prompt="Name? ")
    cell.tick(seconds=0.2)
    assert cell.boxes == ["[0] Name? ", "[1] Name? ", "[2] Name? ", "[3] Name? "]
    assert cell.replied == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert cell.output.exposed == [0, -1, 1, -1, 2, -1, 3, -1], "what a rank has shown is there before its box is"


def test_every_rank_is_asked_its_first_question_before_the_second(cell: Cell) -> None:
    cell.answers = list("abcdefgh")
    for rank in range(4):
        cell.ask(rank, 1, "Name? ")
    for rank in range(4):
        cell.ask(rank, 2, "Age? ")
    cell.tick(seconds=0.2)
    assert cell.boxes == [f"[{rank}] {what}? " for what in ("Name", "Age") for rank in range(4)]


def test_a_question_waits_a_moment_for_the_others(cell: Cell) -> None:
    cell.answers = list("ab")
    cell.ask(0)
    cell.tick()
    assert cell.boxes == []
    cell.tick(seconds=0.2)
    assert cell.boxes == ["[0] ? "]


def test_and_longer_for_ranks_before_its_own_that_may_ask_yet(cell: Cell) -> None:
    cell.answers = list("ab")
    cell.ask(2)
    cell.tick(seconds=0.5)
    assert cell.boxes == []
    cell.ask(0)
    cell.tick(seconds=0.4)
    assert cell.boxes == ["[0] ? "]
    cell.tick(seconds=0.2)
    assert cell.boxes == ["[0] ? ", "[2] ? "], "rank 1 has been waited for"


def test_but_not_for_those_that_wait_themselves_or_have_ended(cell: Cell) -> None:
    cell.answers = list("a")
    cell.end(0)
    cell.ranks.waits = {1, 3}
    cell.ask(2)
    cell.tick()
    assert cell.boxes == ["[2] ? "]


def test_that_a_rank_waited_before_a_question_came_says_nothing(cell: Cell) -> None:
    cell.answers = ["a", "b"]
    cell.ranks.waits, cell.ranks.fresh = {0}, False  # in the barrier that rank 1 has left
    cell.ask(1)
    cell.end(2, 3)
    cell.tick(seconds=0.5)
    assert cell.boxes == []
    cell.ranks.waits = set()
    cell.ask(0)
    cell.tick()
    assert cell.boxes == ["[0] ? ", "[1] ? "]


def test_a_debugger_is_held_to_its_end(cell: Cell) -> None:
    for rank in range(4):
        cell.ask(rank, 1, "ipdb> ", dialogue=True)

    def step(number: int) -> Callable[[], str]:
        def type_it() -> str:
            cell.ask(0, number, "ipdb> ", dialogue=True)  # it is quick
            return "n"

        return type_it

    cell.answers = [step(2), step(3), "c"]
    cell.tick()
    assert cell.boxes == ["[0] ipdb> "] * 3
    cell.answers = list("ccc")
    cell.tick(seconds=0.5)
    assert len(cell.boxes) == 3, "it may ask again"
    cell.tick(seconds=0.6)
    assert cell.boxes[3:4] == ["[1] ipdb> "]


def test_a_debugger_whose_rank_waits_for_another_lets_that_one_go_on(cell: Cell) -> None:
    for rank in range(2):
        cell.ask(rank, 1, "ipdb> ", dialogue=True)
    cell.end(2, 3)
    cell.answers = ["n", "n"]
    with InterruptCounter() as interrupts:
        cell.tick(interrupts)
        assert cell.boxes == ["[0] ipdb> "]
        cell.ranks.waits = {0}
        cell.tick(interrupts)
    assert cell.boxes == ["[0] ipdb> ", "[1] ipdb> "]


def test_that_its_rank_waited_before_it_was_answered_says_nothing(cell: Cell) -> None:
    for rank in range(2):
        cell.ask(rank, 1, "ipdb> ", dialogue=True)
    cell.end(2, 3)
    cell.answers = ["p rank", "c"]
    with InterruptCounter() as interrupts:
        cell.ranks.waits, cell.ranks.fresh = {0}, False
        cell.tick(interrupts)
        cell.tick(interrupts)
        assert cell.boxes == ["[0] ipdb> "]
        cell.ranks.fresh = True
        cell.tick(interrupts)
    assert cell.boxes == ["[0] ipdb> ", "[1] ipdb> "]


def test_a_password_is_hidden(cell: Cell) -> None:
    cell.answers = ["secret"]
    cell.end(1, 2, 3)
    cell.ask(0, prompt="Password: ", hidden=True)
    cell.tick()
    assert cell.boxes == ["hidden [0] Password: "]


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (EOFError(), "EOFError", ""),
        (StdinNotImplementedError("no"), "StdinNotImplementedError", r"Rank 0 asks for input \(Name\?\).*in Jupyter"),
        (OSError("broken"), "StdinNotImplementedError", "failed in the notebook: OSError: broken"),
    ],
)
def test_what_goes_wrong_at_the_box_is_the_ranks_to_raise(cell: Cell, raised: Exception, error: str, said: str) -> None:
    cell.answers = [raised]
    cell.end(1, 2, 3)
    cell.ask(0, prompt="Name? ")
    cell.tick()
    (reply,) = [reply for _, reply in cell.ranks.replies]
    assert reply.error == error
    assert re.search(said, reply.text)


def test_output_is_shown_while_a_box_is_open(cell: Cell) -> None:
    shown = threading.Event()
    cell.output.meanwhile = shown.set
    cell.answers = [lambda: str(shown.wait(10))]
    cell.end(1, 2, 3)
    cell.ask(0)
    cell.tick()
    assert cell.replied == [(0, "True")]


def test_output_that_cannot_be_shown_does_not_keep_the_box_open(cell: Cell, capsys: Any) -> None:
    def break_down() -> None:
        cell.input_requests.hear(0, InputCancelled(RUN, 1))
        raise OSError("no screen")

    cell.output.meanwhile = break_down
    cell.answers = [wait_for_ever]
    cell.end(1, 2, 3)
    cell.ask(0)
    cell.tick()
    assert cell.replied == []
    assert "no screen" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["withdrawn", "ended", "all ended", "aborted"])
def test_a_box_is_left_when_nobody_waits_for_the_answer(cell: Cell, what: str) -> None:
    def happen() -> None:
        if what == "withdrawn":
            cell.input_requests.hear(0, InputCancelled(RUN, 1))
        elif what == "aborted":
            cell.request.aborted = True
        else:
            cell.end(*([0] if what == "ended" else range(4)))

    before = signal.getsignal(signal.SIGINT)
    cell.output.meanwhile = happen
    cell.answers = [wait_for_ever]
    cell.ranks.waits = {1, 2, 3}
    cell.ask(0)
    with InterruptCounter() as interrupts:
        cell.tick(interrupts)
        assert not interrupts.pressed, "it was not ■ that broke it off"
        assert not interrupts.again()
    assert cell.replied == []
    assert signal.getsignal(signal.SIGINT) == before


def test_a_press_breaks_the_box_and_counts_and_no_other_box_opens(cell: Cell) -> None:
    cell.output.meanwhile = lambda: os.kill(os.getpid(), signal.SIGINT)
    cell.answers = [wait_for_ever]
    for rank in range(4):
        cell.ask(rank)
    with InterruptCounter() as interrupts:
        cell.tick(interrupts)
        assert interrupts.pressed
        cell.tick(interrupts)
    assert cell.boxes == ["[0] ? "]
    assert cell.replied == [], "the interrupt that follows ends the wait"


def test_questions_of_a_cell_that_nobody_waits_for_find_the_end_of_the_input(cell: Cell) -> None:
    cell.input_requests.hear(2, InputRequest(RUN - 1, 9, "Name? "))
    cell.input_requests.end()
    cell.ask(1)
    assert cell.replied == [(2, "EOFError"), (1, "EOFError")]
    assert "no longer waits for this cell" in cell.ranks.replies[0][1].text


def test_a_question_that_is_said_again_is_asked_once(cell: Cell) -> None:
    cell.answers = list("ab")
    cell.end(1, 2, 3)
    cell.ask(0)
    cell.ask(0)
    cell.tick()
    assert cell.boxes == ["[0] ? "]


def test_on_another_thread_nobody_can_be_asked(cell: Cell) -> None:
    cell.end(1, 2, 3)
    cell.ask(0)
    thread = threading.Thread(target=cell.tick)
    thread.start()
    thread.join(10)
    (reply,) = [reply for _, reply in cell.ranks.replies]
    assert reply.error == "StdinNotImplementedError"
    assert "main thread" in reply.text


def test_the_panel_says_who_asks(cell: Cell) -> None:
    assert cell.input_requests.waiting == ""
    cell.ask(3, prompt="Name? ")
    cell.ask(2, prompt="")
    assert cell.input_requests.waiting == "rank 2 asks in the cell"
    assert cell.input_requests.asking == {2: "asks in the cell", 3: "asks in the cell: Name?"}
    cell.input_requests.hear(2, InputCancelled(RUN, 1))
    assert cell.input_requests.waiting == "rank 3 asks in the cell: Name?"


def reported(cell: Cell, *asking: InputRequest) -> None:
    """Let rank 2 answer the next question, and report that it asks these."""
    cell.ranks.question += 1
    report = StatusReply(2, 1, "running", 0, RUN, 0, 0, 0, 1, question=cell.ranks.question, asking=asking)
    cell.input_requests.compare(2, report)


def test_an_answer_that_has_not_arrived_is_sent_again(cell: Cell) -> None:
    asking, cell.answers = InputRequest(RUN, 1, "? "), ["a"]
    cell.ask(2)
    cell.end(0, 1, 3)
    cell.tick()
    cell.input_requests.compare(2, StatusReply(2, 1, "running", 0, RUN, 0, 0, 0, 1, question=0, asking=[asking]))
    assert cell.replied == [(2, "a")], "this report may be from before the answer"
    reported(cell, asking)
    assert cell.replied == [(2, "a"), (2, "a")]
    reported(cell)
    cell.tick()
    assert cell.replied == [(2, "a"), (2, "a")]
    assert cell.boxes == ["[2] ? "], "nobody types it twice"


def test_a_question_that_was_missed_is_put_and_one_that_is_over_is_not(cell: Cell) -> None:
    cell.answers = ["a"]
    cell.end(0, 1, 3)
    for _ in range(2):
        reported(cell, InputRequest(RUN, 1, "? "))
    cell.tick()
    assert cell.boxes == ["[2] ? "]
    cell.ask(2, number=2)
    reported(cell)
    cell.tick()
    assert cell.boxes == ["[2] ? "]
