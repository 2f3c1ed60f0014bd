"""What fails beside the work costs a sentence, once."""

from __future__ import annotations

import errno
import os

import pytest

from nbcomm import faults


def test_the_work_goes_on_and_says_what_is_missing() -> None:
    logged, said = [], []
    guard = faults.Faults(lambda: logged.append(1))
    for _ in range(3):
        with guard.beside("its picture could not be drawn", said.append):
            raise TypeError("None has no cells")
    assert said == ["its picture could not be drawn: TypeError: None has no cells."] * 3
    assert logged == [1]


class _WordlessError(Exception):
    def __str__(self) -> str:
        raise TypeError("in telling it")


def test_an_error_that_cannot_be_told_is_told_by_its_name() -> None:
    said: list[str] = []
    with faults.Faults(lambda: None).beside("it failed", said.append):
        raise _WordlessError
    assert said == ["it failed: _WordlessError."]


def test_what_ends_a_process_is_no_fault() -> None:
    guard = faults.Faults(lambda: None)
    with pytest.raises(KeyboardInterrupt), guard.beside("nothing"):
        raise KeyboardInterrupt


def test_a_fault_with_a_new_text_each_time_neither_fills_the_log_nor_silences_another_one() -> None:
    logged: list[int] = []
    guard = faults.Faults(lambda: logged.append(1))
    for number in range(1000):
        with guard.beside("it"):
            raise ValueError(number)
    assert len(logged) == 10
    for what, error in [("it", TypeError), ("another", ValueError), ("another", ValueError)]:
        with guard.beside(what):
            raise error
    assert len(logged) == 12


def test_a_log_has_an_end() -> None:
    logged: list[int] = []
    guard = faults.Faults(lambda: logged.append(1))
    for number in range(2000):
        with guard.beside("it"):
            raise type(f"Error{number}", (Exception,), {})
    assert len(logged) == 1000


def test_a_log_that_cannot_be_written_costs_nothing_more() -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[str] = []
    with faults.Faults(full).beside("it was not done", said.append):
        raise ValueError(1)
    assert said == ["it was not done: ValueError: 1."]


def test_an_answer_in_place_of_another_says_whose_fault_it_was() -> None:
    failure = faults.failure(2, OSError())
    assert failure.name == "InternalError"
    assert "nbcomm itself failed on rank 2 (OSError). This is a bug in nbcomm" in failure.message
    assert "%distributed log 2" in failure.message


def test_every_step_is_taken_in_order_and_the_fault_is_told() -> None:
    taken: list[int] = []

    def fail() -> None:
        taken.append(2)
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        faults.take_all(lambda: taken.append(1), fail, lambda: taken.append(3))
    assert taken == [1, 2, 3]
