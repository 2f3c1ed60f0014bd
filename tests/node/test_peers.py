"""Who is at the other end of a Unix socket, and whether it answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcomm.node.peers import Probe, listener_at, listening_at

from .served import await_that


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    made = Probe(tmp_path / "socket", 0.2, 0.05)
    yield made
    made.close()


def _is_never_stuck(probe: Probe, seconds: float = 0.5) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if probe.is_stuck():
            return False
        time.sleep(0.01)
    return True


def test_who_does_not_listen_is_not_stuck(probe: Probe) -> None:
    assert _is_never_stuck(probe)


def test_who_answers_is_not_stuck_and_is_asked_again(probe: Probe, tmp_path: Path) -> None:
    answered = 0
    with listening_at(tmp_path / "socket") as listener:
        listener.setblocking(False)
        deadline = time.monotonic() + 0.6
        while time.monotonic() < deadline:
            assert not probe.is_stuck()
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            with connection:
                connection.send(b"here I am")
            answered += 1
    assert 1 < answered < 14, "there is a pause between two questions"


def test_who_was_stopped_is_stuck_until_it_answers_or_has_gone(probe: Probe, tmp_path: Path) -> None:
    with listening_at(tmp_path / "socket") as listener:
        assert listener_at(tmp_path / "socket") == os.getpid()
        listener.accept()[0].close()
        await_that(probe.is_stuck, "it takes no connection, and nobody notices")
        connection, _ = listener.accept()
        connection.close()
        assert not probe.is_stuck()
        await_that(probe.is_stuck, "it is asked once only")
    await_that(lambda: not probe.is_stuck(), "who has gone counts as stuck")
    probe.close()
    assert _is_never_stuck(probe)


def test_where_as_many_wait_as_can_it_is_stuck(probe: Probe, tmp_path: Path) -> None:
    with listening_at(tmp_path / "socket") as listener:
        listener.listen(0)
        others = [Probe(tmp_path / "socket", 60.0, 0.0) for _ in range(3)]
        assert not any(other.is_stuck() for other in others)
        await_that(probe.is_stuck, "its queue is full, and nobody notices")
        for other in others:
            other.close()
