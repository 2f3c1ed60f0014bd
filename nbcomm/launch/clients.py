"""ipyparallel's clients of a world: each is handed out when it knows every rank, and hears its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import ipyparallel

from .. import rank_spec as rank_specs
from ..errors import StateError

if TYPE_CHECKING:
    from ..protocol import Registered
    from .controller import Controller

_TIMEOUT, _LOOK, _TICK = 10.0, 0.5, 0.01
"""Seconds without a step forward after which ranks are missing, or a client is accepted as it is; seconds for messages
on their way to arrive; seconds between checks."""


class _Client(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """A client that cleans up if its creation fails or is interrupted."""

    def __init__(self, connection_info: str) -> None:
        try:
            super().__init__(connection_info=connection_info)
        except BaseException:
            while self._io_thread is not None and self._io_thread.is_alive() and self._io_loop is None:
                time.sleep(_TICK)  # its thread cannot be stopped yet
            self.close(linger=0)
            raise

    def load_balanced_view(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: nbcomm's controller runs no scheduler of tasks, and the view would wait for it for ever."""
        raise StateError(
            "A load-balanced view gives a task to any rank that is free, and the ranks of a world work together. Use "
            "client[:] for all ranks, client[rank] for one of them, or session.call to call a function on every rank."
        )


class Clients:
    """The clients of one world that a notebook has made.

    Args:
        controller: of the world.
        register: asks ranks to register, with what the controller has written for engines.
        answers: what ranks have answered to that, since their processes began.
    """

    def __init__(
        self,
        controller: Controller,
        register: Callable[[Sequence[int], str], None],
        answers: Mapping[int, Registered],
    ) -> None:
        self._controller = controller
        self._register = register
        self._answers = answers
        self._handed_out: list[Any] = []
        self._of = 0  # the controller, by its pid, of the client that was handed out last

    def get(self, living: Callable[[], Sequence[int]]) -> Any:
        """Return a client that knows the engines of the ranks that live; where it does not, they register.

        A client that connects while an engine registers may never learn of that engine, or take a dead one for it, and
        output that an engine sends before the client's subscription reaches it is lost. So the first is checked at each
        call, for an engine may have been replaced, and the second for a while after each connection: an engine may run
        a cell meanwhile. Another controller has another client. One that was handed out before stays open, for somebody
        may use it.

        Args:
            living: returns the ranks whose processes live now.

        Raises:
            StateError: ranks have not registered, or the controller has ended.
            StartError: the controller could not be started.
        """
        connection = self._controller.await_ready()
        # What a client knows of a controller's engines the next controller does not know, and does not say.
        known = self._handed_out[-1] if self._of == self._controller.pid and self._handed_out else None
        if known is not None and not self._missing(known, living()):
            return known
        made: list[Any] = []
        try:
            client = self._complete(known, made, connection, living)
            if client is not known:
                _await_words(client, living())
                self._handed_out.append(made.pop())
                self._of = self._controller.pid
        finally:  # mostly, nothing is left here; else a client that missed a rank, or ■ came
            for each in made:
                each.close(linger=0)
        return client

    def _complete(self, known: Any, made: list[Any], connection: str, living: Callable[[], Sequence[int]]) -> Any:
        """Return the client that is known, or one that is made, as soon as it knows the ranks that live."""
        client = known if known is not None else self._make(made)
        if missing := self._missing(client, living()):
            self._register(missing, connection)
        steps, since = 0, time.monotonic()
        while missing := self._missing(client, living()):
            answers = {rank: self._answers[rank] for rank in missing if rank in self._answers}
            if failed := [rank for rank, answer in answers.items() if answer.failure]:
                _refuse(failed, f"could not register with ipyparallel's controller: {answers[failed[0]].failure}")
            late = time.monotonic() - since
            if late > _TIMEOUT:
                have = "have" if len(missing) > 1 else "has"
                _refuse(missing, f"{have} not registered with ipyparallel's controller within {_TIMEOUT:g} s")
            if late > _LOOK and len(answers) == len(missing):  # it connected as they registered
                client = self._make(made)
            done = len(self._answers) + len(client.ids)
            if done != steps:
                steps, since = done, time.monotonic()
            time.sleep(_TICK)
        return client

    def _missing(self, client: Any, ranks: Sequence[int]) -> list[int]:
        """Return the ranks whose engines a client does not know."""
        known = client._engines  # noqa: SLF001 - its ids alone do not tell a new engine from a dead one
        answers = {rank: self._answers.get(rank) for rank in ranks}
        return [
            rank for rank, said in answers.items() if said is None or not said.engine or known.get(rank) != said.engine
        ]

    def _make(self, made: list[Any]) -> Any:
        """Make a client in the place of the one that was made last."""
        while made:
            made.pop().close(linger=0)
        try:
            made.append(_Client(self._controller.client_file))
        except TimeoutError:
            raise StateError(
                "ipyparallel's controller does not answer, so session.client does not work now. Cells run without it. "
                "Try again."
            ) from None
        return made[-1]

    def close(self) -> None:
        """Close the clients."""
        for client in self._handed_out:
            client.close()


def _refuse(ranks: Sequence[int], why: str) -> NoReturn:
    """Raise an error that names the ranks that no client knows."""
    raise StateError(
        f"{rank_specs.capital(rank_specs.named(ranks))} {why}, so session.client would not know all ranks. A rank "
        "registers when it runs no cell, and cells run without it. Try again, or type %distributed heal."
    )


def _await_words(client: Any, ranks: Sequence[int]) -> None:
    """Wait until a client hears what engines say while they run cells, or for a while if one of them is busy."""
    deadline = time.monotonic() + _TIMEOUT
    while not _hears(client, ranks) and time.monotonic() < deadline:
        pass


def _hears(client: Any, ranks: Sequence[int]) -> bool:
    """Let engines run an empty cell, and tell whether their messages about it arrive."""
    known = [rank for rank in ranks if rank in client.ids]
    if not known:
        return True
    asked = client[known].execute("", silent=False, block=False)
    if not _within(_TIMEOUT, asked.ready):
        return False
    return _within(_LOOK, lambda: all(word["execute_input"] is not None for word in asked.metadata))


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True
