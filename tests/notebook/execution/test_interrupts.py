"""■, pressed at any moment."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from nbcomm.notebook.execution.interrupts import InterruptCounter

from .waits import wait_for_ever


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_counts_and_raises_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with InterruptCounter() as interrupts:
        assert not interrupts.pressed
        press()
        assert interrupts.pressed
        assert not interrupts.again()
    assert signal.getsignal(signal.SIGINT) == before


def test_each_further_press_is_told_once() -> None:
    with InterruptCounter() as interrupts:
        press()
        press()
        press()
        assert interrupts.again()
        assert not interrupts.again()
        press()
        assert interrupts.again()
        assert interrupts.pressed


def test_after_its_limit_it_counts_as_pressed_and_says_so() -> None:
    with InterruptCounter(limit=0.0) as interrupts:
        while not interrupts.pressed:
            pass
        assert interrupts.timed_out
        assert not interrupts.again()
    with InterruptCounter(limit=60.0) as interrupts:
        assert not interrupts.pressed
        press()
        assert interrupts.pressed
        assert not interrupts.timed_out


def test_afterwards_a_press_is_pythons_again() -> None:
    with InterruptCounter():
        press()
    with pytest.raises(KeyboardInterrupt):
        press()


def test_blocks_within_blocks_each_give_back_what_they_found() -> None:
    with InterruptCounter() as outer:
        with InterruptCounter() as inner:
            press()
        press()
        assert (inner.pressed, outer.pressed) == (True, True)
        assert not outer.again()


def test_on_another_thread_nothing_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with InterruptCounter() as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.pressed))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_a_wait_in_other_hands_is_broken_by_a_press_which_counts() -> None:
    with InterruptCounter() as interrupts:
        pressing = threading.Timer(0.1, press)
        with pytest.raises(KeyboardInterrupt), interrupts.breakable():
            wait_for_ever(pressing.start)  # in the block: before it a press only counts
        pressing.join()
        assert interrupts.pressed
        press()
        assert interrupts.again(), "behind the wait a press only counts"


def test_and_by_another_thread_which_counts_not() -> None:
    with InterruptCounter() as interrupts:
        breaking = threading.Timer(0.1, interrupts.break_off)
        with pytest.raises(KeyboardInterrupt), interrupts.breakable():
            wait_for_ever(breaking.start)
        breaking.join()
        interrupts.settle()
        assert not interrupts.pressed


def test_a_wait_that_ended_as_it_was_broken_off_leaves_nothing_behind() -> None:
    with InterruptCounter() as interrupts:
        with interrupts.breakable():
            pass
        interrupts.break_off()
        interrupts.settle()
        assert not interrupts.pressed
        press()
        assert interrupts.pressed


@pytest.mark.parametrize("pressed", [True, False])
def test_what_comes_just_before_the_wait_breaks_it_too(*, pressed: bool) -> None:
    with InterruptCounter() as interrupts:
        if pressed:
            press()
        else:
            interrupts.break_off()
        with pytest.raises(KeyboardInterrupt), interrupts.breakable():
            pytest.fail("the wait begins")
        interrupts.settle()
        assert interrupts.pressed == pressed
        if not pressed:
            with interrupts.breakable():
                pass  # what broke off the last wait is forgotten
