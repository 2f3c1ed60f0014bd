"""A pipeline's schedule from its messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from nbcomm.analysis.schedule import Stretch, expected, idle, schedule
from nbcomm.protocol import CallRecord

F, B = 1.0, 2.0
"""Seconds of a forward, and of a backward."""


class Stages:
    """A pipeline in which messages take no time: each stage works when what it needs is there."""

    def __init__(self, count: int) -> None:
        self.now = [0.0] * count
        self.sent: dict[tuple[int, int, int], float] = {}
        self.steps: dict[int, list[CallRecord]] = {rank: [] for rank in range(count)}

    def work(self, rank: int, seconds: float) -> None:
        self.now[rank] += seconds

    def send(self, rank: int, peer: int) -> None:
        at = self.now[rank]
        self._note("send", rank, peer, at, at)
        self.sent[rank, peer, self._count("send", rank, peer)] = at

    def recv(self, rank: int, peer: int) -> None:
        began = self.now[rank]
        self._note("recv", rank, peer, began, 0.0)
        ended = max(began, self.sent[peer, rank, self._count("recv", rank, peer)])
        self.steps[rank][-1] = self._record("recv", rank, peer, began, ended)
        self.now[rank] = ended

    def _count(self, kind: str, rank: int, peer: int) -> int:
        return sum(step.kind == kind and step.peer == peer for step in self.steps[rank])

    def _note(self, kind: str, rank: int, peer: int, began: float, ended: float) -> None:
        self.steps[rank].append(self._record(kind, rank, peer, began, ended))

    @staticmethod
    def _record(kind: str, _rank: int, peer: int, began: float, ended: float, **more: Any) -> CallRecord:
        return CallRecord(kind, kind, "0", "0-3", 1, 1, began, ended, peer=peer, **more)

    def forward(self, rank: int) -> None:
        if rank:
            self.recv(rank, rank - 1)
        self.work(rank, F)
        if rank < len(self.now) - 1:
            self.send(rank, rank + 1)

    def backward(self, rank: int) -> None:
        if rank < len(self.now) - 1:
            self.recv(rank, rank + 1)
        self.work(rank, B)
        if rank:
            self.send(rank, rank - 1)

    def drawn(self) -> dict[int, list[Stretch]]:
        return schedule(self.steps, {rank: (0.0, now) for rank, now in enumerate(self.now)})


def gpipe(stages: int, micro: int) -> Stages:
    made = Stages(stages)
    for _ in range(micro):
        for rank in range(stages):
            made.forward(rank)
    for _ in range(micro):
        for rank in reversed(range(stages)):
            made.backward(rank)
    return made


def one_forward_one_backward(stages: int, micro: int) -> Stages:
    made = Stages(stages)
    todo: dict[int, list[Callable[[int], None]]] = {}
    for rank in range(stages):
        warm = min(micro, stages - rank - 1)
        steady = [made.forward, made.backward] * (micro - warm)
        todo[rank] = [made.forward] * warm + steady + [made.backward] * warm
    while any(todo.values()):
        for rank in range(stages):
            while todo[rank]:
                try:
                    todo[rank][0](rank)
                except KeyError:  # its message is not sent yet
                    made.steps[rank].pop()
                    break
                todo[rank].pop(0)
    return made


@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (4, 4), (3, 8)])
def test_gpipe_is_idle_as_its_law_says(stages: int, micro: int) -> None:
    works = gpipe(stages, micro).drawn()
    assert idle(works) == pytest.approx(expected(stages, micro))
    for rank in range(stages - 1):
        texts = [work.text for work in works[rank]]
        assert texts == [f"F{each}" for each in range(micro)] + [f"B{each}" for each in range(micro)]
        assert [work.kind for work in works[rank]] == ["forward"] * micro + ["backward"] * micro
    # Nothing comes between the last forward of the last stage and its first backward.
    assert f"F{micro - 1} B0" in [work.text for work in works[stages - 1]]


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (4, 8)])
def test_1f1b_is_idle_as_long_and_goes_back_earlier(stages: int, micro: int) -> None:
    works = one_forward_one_backward(stages, micro).drawn()
    assert idle(works) == pytest.approx(expected(stages, micro))
    assert all(work.text == f"F{number} B{number}" for number, work in enumerate(works[stages - 1]))


def test_who_sends_and_goes_on_works() -> None:
    """A send whose end comes after another call has begun did not keep its rank."""
    record = Stages._record
    steps = {0: [record("send", 0, 1, 1.0, 9.0, asked=8.0), record("send", 0, 1, 2.0, 9.0, asked=8.5)], 1: []}
    works = schedule(steps, {0: (0.0, 10.0), 1: (0.0, 10.0)})
    assert [(work.text, work.start, work.end) for work in works[0]] == [("F0", 0.0, 1.0), ("F1", 1.0, 2.0)]


def test_a_send_that_waits_keeps_its_rank() -> None:
    record = Stages._record
    steps = {0: [record("send", 0, 1, 1.0, 4.0), record("send", 0, 1, 5.0, 6.0)]}
    works = schedule(steps, {0: (0.0, 10.0)})
    assert [(work.text, work.start, work.end) for work in works[0]] == [("F0", 0.0, 1.0), ("F1", 4.0, 5.0)]


def test_a_receive_counts_from_the_wait_for_it_and_what_nobody_waits_for_does_not() -> None:
    record = Stages._record
    steps = {1: [record("recv", 1, 0, 0.0, 3.0, asked=2.0), record("recv", 1, 0, 2.5, 6.0, asked=math.inf)]}
    works = schedule(steps, {1: (0.0, 5.0)})
    assert [(work.text, work.start, work.end) for work in works[1]] == [("F0", 3.0, 5.0)]


def test_a_collective_ends_work_and_begins_none() -> None:
    record = Stages._record
    barrier = CallRecord("barrier", "collective", "0", "0-3", 1, 1, 4.0, 5.0)
    works = schedule({1: [record("recv", 1, 0, 0.0, 3.0), barrier]}, {1: (0.0, 9.0)})
    assert [(work.text, work.start, work.end) for work in works[1]] == [("F0", 3.0, 4.0)]


def test_moments_between_two_messages_are_no_work() -> None:
    record = Stages._record
    steps = {1: [record("recv", 1, 0, 0.0, 1.0), record("recv", 1, 0, 1.001, 1.002), record("send", 1, 2, 2.0, 2.0)]}
    works = schedule(steps, {1: (0.0, 2.0)})
    assert [work.text for work in works[1]] == ["F0"]


def test_no_work_is_not_idle() -> None:
    assert idle(schedule({}, {})) == 0
