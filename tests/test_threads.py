"""Threads of nbcomm's own go on, whatever their work raises."""

from __future__ import annotations

import threading

import pytest

from nbcomm import threads
from nbcomm.faults import Faults

WAIT = 20


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_REST", 0.001)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_work_that_raises_is_begun_again(error: type[BaseException]) -> None:
    done = []

    def work() -> None:
        done.append(None)
        if len(done) < 4:
            raise error

    thread = threads.keep("worker", work, Faults(lambda: None))
    thread.join(WAIT)
    assert not thread.is_alive()
    assert len(done) == 4
    assert thread.name == "worker"


def test_work_goes_on_also_where_its_fault_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(*_: object) -> None:
        raise TypeError("in telling it")

    monkeypatch.setattr(Faults, "log", untold)
    done = []

    def work() -> None:
        done.append(None)
        if len(done) < 3:
            raise ValueError

    threads.keep("worker", work).join(WAIT)
    assert len(done) == 3


def test_each_kind_of_failure_is_logged_once() -> None:
    errors, logged = [ValueError("one"), ValueError("one"), ValueError("two")], []

    def work() -> None:
        if errors:
            raise errors.pop()

    threads.keep("worker", work, Faults(lambda: logged.append(None))).join(WAIT)
    assert len(logged) == 2


@pytest.mark.parametrize("again", [0, 2])
def test_whoever_waits_is_told_when_it_is_not_begun_again(again: int) -> None:
    begun, lost = [], []

    def work() -> None:
        begun.append(threading.get_ident())
        raise ValueError(len(begun))

    threads.keep("worker", work, Faults(lambda: None), again=again, lost=lost.append).join(WAIT)
    assert len(begun) == again + 1
    assert [str(error) for error in lost] == [str(again + 1)]


def test_work_that_was_good_for_long_begins_to_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WELL", -1.0)
    begun, lost = [], []

    def work() -> None:
        begun.append(None)
        if len(begun) < 9:
            raise ValueError

    threads.keep("worker", work, Faults(lambda: None), again=1, lost=lost.append).join(WAIT)
    assert len(begun) == 9
    assert not lost


def test_a_log_that_fails_ends_no_thread() -> None:
    begun = []

    def fail() -> None:
        raise OSError("the disk is full")

    def work() -> None:
        begun.append(None)
        if len(begun) < 3:
            raise ValueError(len(begun))

    threads.keep("worker", work, Faults(fail)).join(WAIT)
    assert len(begun) == 3


def test_what_is_done_later_is_done_once_and_again_where_it_raises() -> None:
    done, errors, over = [], [SystemExit, ValueError], threading.Event()

    def work() -> None:
        done.append(threading.current_thread().name)
        if errors:
            raise errors.pop()
        over.set()

    threads.after(0.001, "later", work)
    assert over.wait(WAIT)
    assert done == ["later"] * 3


def test_what_is_called_off_is_not_done() -> None:
    done: list[None] = []
    threads.after(60, "later", lambda: done.append(None))()
    for thread in threading.enumerate():
        if thread.name == "later":
            thread.join(WAIT)
            assert not thread.is_alive()
    assert not done
