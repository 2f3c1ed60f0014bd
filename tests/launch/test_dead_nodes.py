"""When a machine that does not answer may be declared dead."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from nbcomm.launch import dead_nodes
from nbcomm.launch.dead_nodes import await_end


class Server:
    """A daemon whose machine can be reached, or not."""

    def __init__(self, *, reached: bool) -> None:
        self.reached = reached
        self.fenced = 0

    def fence(self, timeout: float) -> None:
        assert timeout > 0
        self.fenced += 1
        if not self.reached:
            raise subprocess.CalledProcessError(255, "ssh")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_nodes, "_MARGIN", 0.1)
    monkeypatch.setattr(dead_nodes, "_LOOK", 0.01)


def test_what_is_ended_there_is_dead_at_once() -> None:
    server: Any = Server(reached=True)
    assert await_end(server, lambda: 0.0, 600.0)
    assert server.fenced == 1


def test_what_cannot_be_reached_is_dead_when_its_lease_has_surely_ended_it() -> None:
    server: Any = Server(reached=False)
    heard = time.monotonic()
    assert await_end(server, lambda: heard, 0.2)
    assert time.monotonic() - heard >= 0.3


def test_what_speaks_again_lives() -> None:
    server: Any = Server(reached=False)
    began = time.monotonic()

    def heard() -> float:
        return began if time.monotonic() - began < 0.1 else time.monotonic()

    assert not await_end(server, heard, 600.0)


def test_who_leaves_waits_no_more() -> None:
    server: Any = Server(reached=False)
    heard = time.monotonic()
    assert not await_end(server, lambda: heard, 600.0, lambda: True)
