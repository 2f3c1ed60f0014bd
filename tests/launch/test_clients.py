"""ipyparallel's client is handed out when it knows every rank, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from nbcomm.errors import StateError
from nbcomm.launch import clients
from nbcomm.launch.clients import Clients
from nbcomm.launch.controller import Controller
from nbcomm.protocol import Registered


class Fakes:
    """The clients that were made, each with the ranks that it knows: those of ``known`` in turn, the last for ever."""

    def __init__(self, *known: list[int]) -> None:
        self.known = [*known]
        self.made: list[Client] = []

    def __call__(self, _: str) -> Client:
        self.made.append(Client(self.known.pop(0) if len(self.known) > 1 else self.known[0]))
        return self.made[-1]


class Client:
    """Knows these ranks."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.closed = False
        self.dead: set[int] = set()

    @property
    def _engines(self) -> dict[int, str]:
        return {rank: f"engine {rank}" if rank not in self.dead else "a dead one" for rank in self.ids}

    def close(self, linger: int | None = None) -> None:
        """Note it."""
        self.closed = True


class Running(Controller):
    """A controller that runs."""

    client_file = "client.json"  # type: ignore[assignment]

    pid = 1

    def __init__(self) -> None:
        pass

    def await_ready(self) -> str:
        return "how to connect"


class World:
    """Ranks that answer as the test says when they are asked to register."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.answers: dict[int, Registered] = {}
        self.answer: Callable[[int], str | None] = lambda _: ""
        self.asked: list[tuple[list[int], str]] = []
        self.controller = Running()
        self.clients = Clients(self.controller, self.register, self.answers)

    def register(self, ranks: Sequence[int], connection: str) -> None:
        self.asked.append((list(ranks), connection))
        for rank in ranks:
            self.answers.pop(rank, None)
            if (said := self.answer(rank)) is not None:
                self.answers[rank] = Registered("" if said else f"engine {rank}", said)

    def get(self, ranks: list[int]) -> object:
        return self.clients.get(lambda: ranks)


Make = Callable[..., World]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a world without processes, whose clients know what the test says."""
    made: list[World] = []
    monkeypatch.setattr(clients, "_hears", lambda *_: True)
    monkeypatch.setattr(clients, "_LOOK", 0.02)

    def world(*known: list[int]) -> World:
        fakes = Fakes(*known)
        monkeypatch.setattr(clients, "_Client", fakes)
        made.append(World(fakes))
        return made[-1]

    yield world
    for each in made:
        each.clients.close()
        assert all(client.closed for client in each.fakes.made)


def test_it_is_kept_while_it_knows_the_engines_of_all_that_live(make: Make) -> None:
    world = make([0, 1])
    assert world.get([0, 1]) is world.fakes.made[0]
    assert world.asked == [([0, 1], "how to connect")]
    assert world.get([0, 1]) is world.fakes.made[0]
    assert world.get([1]) is world.fakes.made[0], "rank 0 has died"
    assert len(world.asked) == 1


def test_it_is_not_kept_if_it_takes_a_dead_engine_for_the_one_that_a_rank_has_now(make: Make) -> None:
    world = make([0, 1])
    world.get([0, 1])
    world.fakes.made[0].dead = {1}  # it was replaced, and has said so
    assert world.get([0, 1]) is world.fakes.made[1]
    assert world.asked[1:] == [([1], "how to connect")]


def test_what_it_knows_of_the_last_controller_says_nothing_of_the_next_one(make: Make) -> None:
    world = make([0, 1])
    first = world.get([0, 1])
    world.controller.pid = 2
    world.fakes.known = [[], [0, 1]]  # the ranks are yet to register there
    assert world.get([0, 1]) is world.fakes.made[-1]
    assert world.fakes.made[-1].ids == [0, 1]
    assert isinstance(first, Client)
    assert not first.closed, "somebody may use it"
    assert world.asked[1:] == [([0, 1], "how to connect")]


def test_ranks_that_it_does_not_know_are_asked_to_register(make: Make) -> None:
    world = make([])

    def learn(rank: int) -> str:
        world.fakes.made[0].ids.append(rank)
        return ""

    world.answer = learn
    assert world.get([0, 1]) is world.fakes.made[0]
    assert world.asked == [([0, 1], "how to connect")]


def test_a_client_that_misses_ranks_which_have_registered_is_replaced(make: Make) -> None:
    world = make([0], [0], [0, 1])
    assert world.get([0, 1]) is world.fakes.made[2]
    assert [client.closed for client in world.fakes.made] == [True, True, False]


def test_a_client_that_misses_a_rank_later_is_replaced_then_and_stays_open(make: Make) -> None:
    world = make([0, 1])
    first = world.get([0, 1])
    assert isinstance(first, Client)
    first.ids = [0]  # rank 1 was replaced, and the client did not hear of it
    assert world.get([0, 1]) is world.fakes.made[1]
    assert not first.closed, "somebody may use it"
    assert world.asked[1:] == [([1], "how to connect")]


def test_a_client_that_hears_of_a_new_engine_in_time_is_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_LOOK", 60.0)
    world = make([0, 1])
    first = world.get([0, 1])
    assert isinstance(first, Client)
    first.ids = [0]
    timer = threading.Timer(0.05, lambda: setattr(first, "ids", [0, 1]))
    timer.start()
    assert world.get([0, 1]) is first
    assert len(world.fakes.made) == 1
    timer.join()


def test_ranks_that_do_not_answer_are_named_and_may_be_asked_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_TIMEOUT", 0.05)
    world = make([0])
    world.answer = lambda rank: None if rank else ""
    said = r"ha(ve|s) not registered with ipyparallel's controller within 0\.05 s, so .* Try again, or type"
    with pytest.raises(StateError, match=rf"^Ranks 1-2 {said}"):
        world.get([0, 1, 2])
    with pytest.raises(StateError, match=rf"^Rank 1 {said}"):
        world.get([0, 1])
    assert all(client.closed for client in world.fakes.made)
    world.answer = lambda _: ""
    world.fakes.known = [[0, 1, 2]]
    assert world.get([0, 1, 2]) is world.fakes.made[-1]


def test_a_rank_that_cannot_register_is_named_at_once_with_the_reason(make: Make) -> None:
    world = make([0])
    world.answer = lambda rank: "no ports left" if rank else ""
    with pytest.raises(StateError, match=r"^Rank 1 could not register with ipyparallel's controller: no ports left, "):
        world.get([0, 1])


def test_a_rank_that_dies_is_not_waited_for(make: Make) -> None:
    world = make([0])
    world.answer = lambda rank: None if rank else ""
    living = [[0, 1], [0, 1], [0, 1]]
    assert world.clients.get(lambda: living.pop() if living else [0]) is world.fakes.made[0]


def test_a_controller_that_does_not_answer_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make([0])

    def silent(_: str) -> Client:
        raise TimeoutError

    monkeypatch.setattr(clients, "_Client", silent)
    with pytest.raises(StateError, match=r"^ipyparallel's controller does not answer, .* Try again\.$"):
        world.get([0])


def test_a_client_that_is_interrupted_while_it_connects_is_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make([0, 1])

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(clients, "_hears", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.get([0, 1])
    assert world.fakes.made[0].closed
    monkeypatch.setattr(clients, "_hears", lambda *_: True)
    assert world.get([0, 1]) is world.fakes.made[1]
