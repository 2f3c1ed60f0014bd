"""One request, several answers."""

from __future__ import annotations

import threading

import pytest

from nbcomm.notebook.cluster.pending import PendingRequest
from nbcomm.protocol import Done, Failure, Payload


def test_it_is_complete_with_its_last_answer() -> None:
    request = PendingRequest(7, [0, 2])
    assert request.waiting_for() == [0, 2]
    assert not request.wait(0)
    assert not request.answer(2, Done(7))
    assert request.answer(0, Done(7))
    assert request.wait(0)


def test_the_first_answer_of_a_rank_counts_and_strangers_do_not() -> None:
    request = PendingRequest(7, [0, 1])
    request.answer(0, Done(7, 1.0))
    request.answer(0, Done(7, 2.0))
    request.answer(5, Done(7))
    assert request.answers() == {0: Done(7, 1.0)}
    assert request.waiting_for() == [1]


def test_failures_come_by_rank() -> None:
    request, failure = PendingRequest(7, [2, 0, 1]), Failure("E", "m", "t")
    for rank in (2, 1):
        request.answer(rank, Done(7, failure=failure))
    request.answer(0, Done(7))
    assert list(request.failures()) == [1, 2]


def test_a_value_is_the_blob_and_its_frames() -> None:
    request, blob = PendingRequest(7, [0, 1]), Payload(b"x", [1])
    request.answer(0, Done(7, blob=blob), [b"raw"])
    request.answer(1, Done(7))
    assert request.value(0) == (blob, [b"raw"])
    with pytest.raises(RuntimeError, match="Rank 1 sent no value"):
        request.value(1)


def test_who_waits_is_woken_by_an_answer() -> None:
    request = PendingRequest(7, [0])
    threading.Thread(target=request.answer, args=(0, Done(7))).start()
    assert request.wait(30) or request.wait(30)
