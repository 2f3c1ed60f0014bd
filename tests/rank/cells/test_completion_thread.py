"""The thread that answers: one question at a time, whatever a user's code does with it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import pytest

from nbcomm.protocol import IntrospectReply, IntrospectRequest
from nbcomm.rank.cells import completion_thread as module
from nbcomm.rank.cells.completion_thread import PATIENCE, CompletionThread
from nbcomm.rank.output.capture import Capture, unheard

DEADLINE = 20.0


class Knows:
    """Stands for an insight; what it does is the test's matter."""

    def __init__(self, act: Callable[[str], Any] = lambda code: code) -> None:
        self.act = act

    def complete(self, code: str, cursor: int) -> dict[str, Any]:
        return {"complete": self.act(code), "cursor": cursor}

    def inspect(self, code: str, cursor: int, detail: int) -> dict[str, Any]:
        return {"inspect": self.act(code), "cursor": cursor, "detail": detail}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made(act: Callable[[str], Any], **how: Any) -> tuple[CompletionThread, Queue[IntrospectReply], Clock]:
    """An assistant, what it tells, and its clock."""
    told: Queue[IntrospectReply] = Queue()
    clock = Clock()
    return CompletionThread(lambda: Knows(act), told.put, clock=clock, **how), told, clock  # type: ignore[arg-type, return-value]


def begun_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that have begun since then and go on; some of an earlier test may end only now."""
    return set(threading.enumerate()) - before


def test_each_question_has_its_answer() -> None:
    assistant, told, _ = made(lambda code: code.upper())
    assistant.ask(IntrospectRequest(1, "complete", "x", 1))
    assistant.ask(IntrospectRequest(2, "inspect", "y", 0, 1))
    assert told.get(timeout=DEADLINE) == IntrospectReply(1, {"complete": "X", "cursor": 1})
    assert told.get(timeout=DEADLINE) == IntrospectReply(2, {"inspect": "Y", "cursor": 0, "detail": 1})


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), RecursionError()])
def test_an_error_is_no_answer_and_ends_nothing(error: BaseException) -> None:
    def act(code: str) -> str:
        if code == "bad":
            raise error
        return code

    assistant, told, _ = made(act)
    assistant.ask(IntrospectRequest(1, "complete", "bad", 0))
    assistant.ask(IntrospectRequest(2, "complete", "good", 0))
    assert told.get(timeout=DEADLINE) == IntrospectReply(1, {})
    assert told.get(timeout=DEADLINE).content["complete"] == "good"


def test_while_one_is_stuck_the_others_are_told_nothing_at_once() -> None:
    begun, go = threading.Event(), threading.Event()

    def act(code: str) -> str:
        if code == "stuck":
            begun.set()
            assert go.wait(DEADLINE)
        return code

    before = set(threading.enumerate())
    assistant, told, clock = made(act)
    assistant.ask(IntrospectRequest(1, "complete", "stuck", 0))
    assert begun.wait(DEADLINE)
    assistant.ask(IntrospectRequest(2, "complete", "soon after", 0))  # it waits: the first one may still end
    clock.now += PATIENCE + 0.1
    for number in range(3, 30):
        assistant.ask(IntrospectRequest(number, "complete", "later", 0))
        assert told.get(timeout=DEADLINE) == IntrospectReply(number, {})
    assert len(begun_since(before)) == 1
    go.set()
    assert told.get(timeout=DEADLINE).content["complete"] == "stuck"
    assert told.get(timeout=DEADLINE) == IntrospectReply(2, {}), "nobody waits for this one any more"
    assistant.ask(IntrospectRequest(30, "complete", "again", 0))
    assert told.get(timeout=DEADLINE).content["complete"] == "again"


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_never_ends_is_ended(stubborn: bool) -> None:
    begun = threading.Event()

    def act(code: str) -> str:
        refused = 0
        while code == "for ever":
            try:
                begun.set()
                while True:
                    time.sleep(0.001)
            except BaseException:
                refused += 1
                if not stubborn or refused > 2:
                    raise
        return code

    assistant, told, clock = made(act)
    assistant.ask(IntrospectRequest(1, "complete", "for ever", 0))
    assert begun.wait(DEADLINE)
    assistant.look()
    assert told.empty()
    first = assistant._worker
    assert first is not None
    deadline = time.monotonic() + DEADLINE
    while told.empty() and first.alive:  # a second end may come before it tells, and end its thread
        assert time.monotonic() < deadline
        clock.now += 3
        assistant.look()
        time.sleep(0.01)  # the daemon looks a few times a second
    number, answer = 1, IntrospectReply(1, {})
    while not answer.content:  # the end may come a moment late, and cost an answer
        assert time.monotonic() < deadline
        number += 1
        assistant.ask(IntrospectRequest(number, "complete", "again", 0))
        with contextlib.suppress(Empty):
            answer = told.get(timeout=0.1)
            assert answer.content.get("complete") != "for ever"
    assert answer.content["complete"] == "again"


def test_an_end_that_comes_late_spoils_nothing() -> None:
    assistant, told, _ = made(lambda code: code)
    for number in range(300):
        assistant.ask(IntrospectRequest(number, "complete", "x", 0))
        assert assistant._worker is not None
        assistant._worker.end()  # before, within or after the answer
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        assistant.ask(IntrospectRequest(1000, "complete", "last", 0))
        with contextlib.suppress(Empty):
            if told.get(timeout=0.1) == IntrospectReply(1000, {"complete": "last", "cursor": 0}):
                return


def test_what_cannot_be_ended_is_left_to_itself_a_few_times() -> None:
    gates = [os.pipe() for _ in range(5)]
    begun: Queue[int] = Queue()

    def act(code: str) -> str:
        if code.isdigit():
            begun.put(int(code))
            os.read(gates[int(code)][0], 1)  # in C, until the test writes
        return code

    before = set(threading.enumerate())
    assistant, told, clock = made(act)
    for number in range(4):
        assistant.ask(IntrospectRequest(number, "complete", str(number), 0))
        assert begun.get(timeout=DEADLINE) == number
        clock.now += 5
        assistant.look()
        assistant.look()
    assistant.ask(IntrospectRequest(10, "complete", "x", 0))
    assert told.get(timeout=DEADLINE) == IntrospectReply(10, {}), "enough threads are lost"
    assert len(begun_since(before)) == 4
    os.write(gates[0][1], b"x")  # one comes back, so that the last one can be left to itself
    assert told.get(timeout=DEADLINE) == IntrospectReply(0, {})
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        assistant.look()
        assistant.ask(IntrospectRequest(11, "complete", "y", 0))
        if told.get(timeout=DEADLINE) == IntrospectReply(11, {"complete": "y", "cursor": 0}):
            break
    for _, writing in gates:
        os.write(writing, b"x")
    while len(begun_since(before)) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for gate in gates:
        for end in gate:
            os.close(end)


def test_it_is_set_apart_while_it_answers_and_only_then() -> None:
    seen: list[str] = []

    @contextmanager
    def apart() -> Any:
        seen.append("in")
        yield
        seen.append("out")

    assistant, told, _ = made(seen.append, apart=apart)
    assistant.ask(IntrospectRequest(1, "complete", "x", 0))
    told.get(timeout=DEADLINE)
    assert seen == ["in", "x", "out"]


def test_nobody_hears_what_it_prints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Capture({name: tmp_path / name for name in ("stdout", "stderr")})
    monkeypatch.setattr(sys, "stdout", capture.stream("stdout", sys.stdout))

    def act(code: str) -> str:
        print("printed")
        print("flushed", flush=True)
        thread = threading.Thread(target=print, args=("by a thread of its own",))
        thread._nbcomm_run = capture.attribution()  # type: ignore[attr-defined]  # as `follow_threads` does it
        thread.start()
        thread.join()
        return code

    assistant, told, _ = made(act)
    with capture.of_run(1):
        assistant.ask(IntrospectRequest(1, "complete", "x", 0))
        told.get(timeout=DEADLINE)
        print("of the cell")
        with unheard():
            print("of nobody")
    assert [[item.text for item in items] for _, items in capture.take(end=True)] == [["of the cell\n"]]  # type: ignore[union-attr]


def test_its_patience_is_the_notebooks() -> None:
    from nbcomm.notebook.execution import introspection

    assert module.PATIENCE == introspection.PATIENCE
