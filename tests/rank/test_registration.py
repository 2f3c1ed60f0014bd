"""A rank registers on its main thread, answers each time, and lets nothing that fails out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.faults import Faults
from nbcomm.protocol import Registered
from nbcomm.rank.registration import Registration


class Engines:
    """What engines were made, and what becomes of the next ones."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.again = 0
        self.fails: list[BaseException] = []

    async def begin(self, rank: int, connection: str, _shell: Any, _capture: Any) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails.pop(0)
        self.made.append(f"{rank} {connection}")
        return SimpleNamespace(say_again=self.say_again, ident=f"engine {len(self.made)}")

    def say_again(self) -> None:
        self.again += 1


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    module = SimpleNamespace(Engine=made)
    monkeypatch.setitem(__import__("sys").modules, "nbcomm.rank.ipyparallel_engine", module)
    return made


def _asked(*connections: str, log: Callable[[], object] = lambda: None) -> list[tuple[str, str]]:
    """Ask a rank to register with each of these; return its answers."""
    answers: list[tuple[str, str]] = []

    async def run() -> None:
        heard = asyncio.Queue[Registered]()
        ends: Any = {"loop": asyncio.get_running_loop(), "answer": heard.put_nowait, "faults": Faults(log)}
        registration = Registration(3, None, None, **ends)
        for connection in connections:
            registration.ask(connection)
        for _ in connections:
            answer = await asyncio.wait_for(heard.get(), 60)
            answers.append((answer.engine, answer.failure))

    asyncio.run(run())
    return answers


def test_it_registers_once_with_a_controller_and_says_so_each_time(engines: Engines) -> None:
    assert _asked("a", "a", "b") == [("engine 1", ""), ("engine 1", ""), ("engine 2", "")]
    assert (engines.made, engines.again) == (["3 a", "3 b"], 1)


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit("no"), asyncio.CancelledError("no")], ids=repr)
def test_what_fails_is_answered_and_logged_and_can_be_tried_again(engines: Engines, error: BaseException) -> None:
    logged: list[int] = []
    engines.fails.append(error)
    assert _asked("a", "a", log=lambda: logged.append(1)) == [("", "no"), ("engine 1", "")]
    assert (engines.made, logged) == (["3 a"], [1])
