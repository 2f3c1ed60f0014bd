"""One request, several answers."""

from __future__ import annotations

import threading

import pytest

from nbcomm.notebook.cluster.pending import PendingRequest
from nbcomm.protocol import Done, Failure, Payload


def test_it_is_complete_with_its_last_answer() -> None:
    request = PendingRequest(7, [0, 2])
    assert request.waiting_for() == [0, 2]
    assert [rank for rank in range(4) if request.concerns(rank)] == [0, 2]
    assert not request.wait(0)
    assert not request.answer(2, Done(7))
    assert [rank for rank in range(4) if request.awaits(rank)] == [0]
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


def test_who_waits_is_woken_by_the_last_answer() -> None:
    request = PendingRequest(7, [0, 1])

    def answer() -> None:
        request.answer(1, Done(7))
        request.answer(0, Done(7))

    threading.Thread(target=answer).start()
    assert request.wait(30)


def test_who_waits_is_woken_by_the_first_failure_too() -> None:
    request = PendingRequest(7, range(4))

    def answer() -> None:
        for rank in range(3):
            request.answer(rank, Done(7, failure=Failure("E", "m", "t") if rank else None))

    thread = threading.Thread(target=answer)
    with request._changed:  # so that nobody answers before it is waited for
        thread.start()
        assert not request.wait(60)
    thread.join()
    assert list(request.failures()) == [1, 2]


def test_who_only_says_that_it_was_ended_because_of_others_was_stopped() -> None:
    request, hang = PendingRequest(7, [0, 1, 2]), Failure("HangError", "was cut off", "t")
    assert not request.stopped(0, hang), "it was ended, but nobody has failed"
    request.blame([5])
    assert not request.stopped(0, hang), "nobody of those that were asked has failed"
    request.blame([1, 5])
    assert request.culprits == [1]
    assert request.stopped(0, hang)
    assert not request.stopped(0, Failure("ValueError", "at the same time", "t"))
    assert not request.stopped(1, hang)
