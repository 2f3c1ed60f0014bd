"""When groups are formed anew, and what the ranks are told; the ranks are played here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nbcomm.errors import Interrupted, StateError
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.notebook.cluster.generations import Generations, left_over
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.notebook.execution.dispatcher import Dispatcher
from nbcomm.protocol import (
    Abort,
    CollectiveState,
    Done,
    Failure,
    FormGroups,
    Hello,
    Interrupt,
    Listener,
    MessageCount,
    StatusReply,
)
from nbcomm.world_dir import WorldDir


class Link:
    """Notes what is sent, and lets a test play the ranks."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.sent: list[tuple[list[int], Any]] = []
        self.answer: Any = lambda _rank, _message: None

    def send(self, ranks: Sequence[int], message: Any) -> None:
        self.sent.append((list(ranks), message))

    def send_each(self, messages: Mapping[int, Any], _buffers: Sequence[Any] = ()) -> None:
        self.sent += (([rank], message) for rank, message in messages.items())
        for rank, message in messages.items():
            self.answer(rank, message)


class Node:
    """Notes which stores it was to serve; it is the rendezvous, too."""

    def __init__(self) -> None:
        self.stores: list[int] = []
        self.again: list[int] = []
        self.fails = False
        self.generation = self.store = 0
        self.replaced = False
        self.rendezvous = self

    def serve(self, generation: int) -> None:
        if self.fails:
            raise StateError("no store")
        self.stores.append(generation)
        self.generation = generation

    def is_whole(self, generation: int) -> bool:
        return self.generation == generation

    def serve_again(self, generation: int) -> bool:
        if self.generation != generation:
            self.again.append(generation)
            self.generation = generation
        return True

    def listeners(self) -> list[Listener]:
        return []

    def numbers(self, _ranks: list[int]) -> list[int]:
        return []

    def compare_clocks(self) -> dict[int, float]:
        return {2: 7.0}

    def wait_for_ends(self, _timeout: float) -> None:
        if self.replaced:
            self.generation, self.replaced = 0, False


class Played:
    """Three ranks that form groups whenever they are told to."""

    def __init__(self, home: WorldDir) -> None:
        self.home = home
        self.rank_table = RankTable(home.log_tail)
        self.node = Node()
        for rank in range(3):
            self.rank_table.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0"))
        self.rank_table.places = assign_places([NodeShare(3, cores=4)], "cpu", "gloo")
        self.link = Link()
        self.dispatcher = Dispatcher(self.link, self.rank_table)  # type: ignore[arg-type]
        self.generations = Generations(self.rank_table, self.node, self.link, self.dispatcher.ask_each)  # type: ignore[arg-type]
        self.link.answer = lambda rank, form: self.dispatcher.hear(rank, Done(form.id))

    def serve(self, number: int) -> None:
        """Let the node serve the store of a generation."""
        self.node.generation = number

    def forms(self) -> list[FormGroups]:
        return [message for _, message in self.link.sent if isinstance(message, FormGroups)]


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(WorldDir(tmp_path))


def test_groups_that_are_sound_are_left_alone(played: Played) -> None:
    played.generations.renew()
    assert played.link.sent == []


def test_stale_groups_are_formed_anew_by_all_living(played: Played) -> None:
    played.rank_table.note_death(0, -9)
    played.generations.stale = True
    played.generations.renew()
    forms = played.forms()
    assert [form.place.rank for form in forms] == [1, 2]
    assert played.node.stores == [1]
    assert {(form.generation, form.absent) for form in forms} == {(1, "0")}
    assert [form.ahead for form in forms] == [0.0, 7.0], "each learns by how much its machine's clock differs"
    assert not played.generations.stale


def test_a_store_that_is_not_served_leaves_the_groups_stale(played: Played) -> None:
    played.generations.stale = True
    played.node.fails = True
    with pytest.raises(StateError, match="no store"):
        played.generations.renew()
    assert played.link.sent == []
    assert played.generations.stale
    played.node.fails = False
    played.generations.renew()
    assert not played.generations.stale


def test_groups_whose_store_is_lost_while_they_form_are_formed_once_more(played: Played) -> None:
    played.generations.stale = True
    played.node.replaced = True

    def lost(rank: int, form: FormGroups) -> None:
        failure = Failure("DistNetworkError", "the store is gone", "") if form.generation == 1 else None
        played.dispatcher.hear(rank, Done(form.id, failure=failure))

    played.link.answer = lost
    played.generations.renew()
    assert [form.generation for form in played.forms()] == [1] * 3 + [2] * 3
    assert not played.generations.stale


def test_the_groups_stay_where_the_store_is_lost_with_the_daemon_and_the_next_one_serves_another(
    played: Played,
) -> None:
    played.generations.look_for_store()
    assert played.node.again == [], "there was none yet"
    played.generations.stale = True
    played.generations.renew()
    played.generations.look_for_store()
    assert played.node.again == []
    played.node.generation = 0
    played.generations.look_for_store()
    assert played.node.again == [1]
    assert not played.generations.due
    played.node.generation = 0  # that was not done
    played.generations.renew()
    assert len(played.node.again) == 2
    assert len(played.forms()) == 3


def test_nccls_groups_are_formed_again_where_the_store_is_lost(played: Played) -> None:
    """They exchange ids there at their first call: one rank says it, and the others wait for it."""
    played.generations.stale = True
    played.generations.renew()
    played.rank_table.places = [
        msgspec.structs.replace(place, backend="cpu:gloo,cuda:nccl") for place in played.rank_table.places
    ]
    played.node.generation = 0
    played.generations.look_for_store()
    assert played.node.again == []
    assert played.generations.due


def test_where_all_ranks_die_before_they_are_told_that_is_said(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played.node, "serve", lambda _: [played.rank_table.note_death(rank, -9) for rank in range(3)])
    played.generations.stale = True
    with pytest.raises(StateError, match="All ranks have died"):
        played.generations.renew()
    assert played.generations.stale


def test_a_death_while_the_end_of_a_cell_is_looked_at_is_not_forgotten(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(_: int) -> dict[int, CollectiveState]:
        played.generations.stale = True  # as the link's thread does
        return {}

    monkeypatch.setattr(played.rank_table, "doings", looked_at)
    played.generations.look_back({0: Done(1, failure=Failure("ValueError", "", ""))})
    assert played.generations.stale


def test_a_forming_in_which_all_ranks_die_is_not_tried_again(played: Played) -> None:
    def die(rank: int, form: FormGroups) -> None:
        played.node.store = 0
        played.rank_table.note_death(rank, -9)
        played.dispatcher.hear(rank, Done(form.id, failure=Failure("E", "it died", "")))

    played.link.answer = die
    played.generations.stale = True
    with pytest.raises(StateError, match="it died"):
        played.generations.renew()
    assert not played.dispatcher.busy()
    assert played.generations.stale


def test_no_store_takes_the_place_of_one_in_which_ranks_meet(played: Played) -> None:
    """Some have met in the last one, and would wait for ever for those that come later."""

    def lose(rank: int, form: FormGroups) -> None:
        if form.generation == 1:
            played.node.generation = 0
            played.generations.look_for_store()  # on the link's thread
            assert played.node.again == []
            if rank == 0:  # it is ready, and the others wait
                played.dispatcher.hear(0, Done(form.id))
        else:
            played.dispatcher.hear(rank, Done(form.id))

    free = played.link.send

    def send(ranks: Sequence[int], message: Any) -> None:
        free(ranks, message)
        if isinstance(message, Abort):
            for rank in ranks:
                played.dispatcher.hear(rank, Done(message.run, failure=Failure("HangError", message.text, "")))

    played.link.send = send  # type: ignore[method-assign]
    played.link.answer = lose
    played.generations.stale = True
    played.generations.renew()
    assert [form.generation for form in played.forms()] == [1] * 3 + [2] * 3
    assert not played.generations.stale
    assert played.node.again == []


def test_a_store_that_is_lost_when_all_have_just_met_is_served_again(played: Played) -> None:
    def lose(rank: int, form: FormGroups) -> None:
        played.dispatcher.hear(rank, Done(form.id))
        played.node.generation = 0

    played.link.answer = lose
    played.generations.stale = True
    played.generations.renew()
    assert played.node.again == [1]
    assert len(played.forms()) == 3


@pytest.mark.parametrize(("failure", "stale"), [(Failure("DistNetworkError", "", ""), True), (None, False)])
def test_a_cell_that_failed_while_the_store_was_lost_may_have_made_a_group_in_part(
    played: Played, failure: Failure | None, stale: bool
) -> None:
    played.generations.stale = True
    played.generations.renew()
    played.node.generation = 0
    played.generations.look_for_store()
    played.generations.look_back({0: Done(1), 1: Done(1, failure=failure)})
    assert played.generations.stale is stale


def test_a_newcomer_is_announced(played: Played) -> None:
    played.generations.newcomers.add(1)
    played.generations.renew()
    assert {form.newcomers for form in played.forms()} == {"1"}
    played.generations.stale = True
    played.generations.renew()
    assert played.forms()[-1].newcomers == ""  # by now it is one of them


def test_a_newcomer_stays_one_until_it_has_joined(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played.generations.newcomers.add(1)
    played.link.answer = lambda rank, form: played.dispatcher.hear(rank, Done(form.id, failure=Failure("E", "no", "")))
    with pytest.raises(StateError):
        played.generations.renew()
    assert played.generations.newcomers == {1}


def test_each_life_has_a_store_of_its_own(played: Played) -> None:
    for _ in range(2):
        played.generations.stale = True
        played.generations.renew()
    assert [form.generation for form in played.forms()][::3] == played.node.stores == [1, 2]


def test_where_one_cannot_the_others_are_freed_and_it_is_named(played: Played) -> None:
    def answer(rank: int, form: FormGroups) -> None:
        if rank == 1:
            played.dispatcher.hear(1, Done(form.id, failure=Failure("RuntimeError", "no sockets left", "…")))

    played.link.answer = answer
    played.generations.stale = True
    with pytest.raises(StateError, match="rank 1: no sockets left"):
        played.generations.renew()
    (ranks, abort), late = played.link.sent[-2:]
    assert (ranks, abort.generation, abort.error) == ([0, 2], 1, "HangError")
    assert late == ([0, 2], Interrupt(abort.run)), "they may have heard of it before they have begun"
    assert played.generations.stale  # the next cell tries again


def test_who_gives_the_forming_up_is_not_held_and_no_rank_is_left_in_it(played: Played) -> None:
    played.link.answer = lambda rank, form: rank and played.dispatcher.hear(rank, Done(form.id))
    free = played.link.send

    def send(ranks: Sequence[int], message: Any) -> None:
        free(ranks, message)
        if isinstance(message, Abort):
            played.dispatcher.hear(0, Done(message.run, failure=Failure("HangError", message.text, "")))

    played.link.send = send  # type: ignore[method-assign]
    played.generations.stale = True
    with pytest.raises(Interrupted, match="the next cell tries again"):
        played.generations.renew(lambda: True)
    ranks, abort = played.link.sent[-1]
    assert (ranks, abort.error) == ([0], "HangError")
    assert not played.dispatcher.busy()
    assert played.generations.due


def test_nobody_forms_the_groups_of_a_world_that_is_left(played: Played) -> None:
    played.generations.stale = played.generations.over = True
    played.generations.renew()
    assert played.link.sent == []


def test_the_first_reason_is_the_one_that_all_are_told(played: Played) -> None:
    request = played.dispatcher.prepare([0, 1])
    played.generations.abort(request, "HangError", "first")
    played.generations.abort(request, "HangError", "second")
    assert played.link.sent == [([0, 1], Abort(request.id, 0, "HangError", "first"))]
    assert played.generations.stale


def test_an_abort_that_fails_on_its_way_is_made_by_the_next_one(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        monkeypatch.undo()
        raise TypeError("once")

    request = played.dispatcher.prepare([0, 1])
    monkeypatch.setattr(request, "blame", failing)
    with pytest.raises(TypeError):
        played.generations.abort(request, "HangError", "it hangs")
    played.generations.abort(request, "HangError", "it hangs")
    assert played.link.sent == [([0, 1], Abort(request.id, 0, "HangError", "it hangs"))]


def test_a_cell_that_broke_its_groups_makes_them_stale(played: Played) -> None:
    played.generations.look_back({0: Done(1), 1: Done(1, broken=True)})
    assert played.generations.stale


@pytest.mark.parametrize(("failure", "stale"), [(Failure("E", "", ""), True), (None, False)])
def test_what_is_left_over_counts_where_a_cell_failed(played: Played, failure: Failure | None, stale: bool) -> None:
    ahead, behind = CollectiveState({"": 2}), CollectiveState({"": 1})
    played.generations.look_back(
        {0: Done(1, doing=ahead), 1: Done(1, failure=failure, doing=behind), 2: Done(1, doing=ahead)}
    )
    assert played.generations.stale is stale


@pytest.mark.parametrize(
    ("lives", "dead", "stale"), [((3, 3, 3), False, False), ((3, 4, 3), False, True), ((3, 3, 3), True, True)]
)
def test_another_notebook_goes_on_where_the_ranks_are(
    played: Played, lives: tuple[int, ...], dead: bool, stale: bool
) -> None:
    if dead:
        played.rank_table.note_death(2, None)
    snapshots = [StatusReply(rank, 1, "idle", 0.0, None, 0, 0, 0, life) for rank, life in enumerate(lives)]
    played.serve(max(lives))
    played.generations.take_up(snapshots, 29500)
    assert (played.generations.number, played.generations.port) == (max(lives), 29500)
    assert played.generations.stale is stale


@pytest.mark.parametrize(
    ("state", "plain", "stale"), [("failed", "", True), ("interrupted", "", True), ("failed", "torch's own", False)]
)
def test_another_notebook_takes_nothing_over_that_a_failed_cell_has_left(
    played: Played, state: str, plain: str, stale: bool
) -> None:
    snapshots = [StatusReply(rank, 1, "idle" if rank else state, 0.0, None, 0, 0, 0, 3) for rank in range(3)]
    played.serve(3)
    played.generations.take_up(snapshots, 29500, plain)
    assert played.generations.stale is stale


def test_another_notebook_lets_the_store_be_served_again_if_it_is_gone(played: Played) -> None:
    played.serve(2)
    played.generations.take_up([StatusReply(rank, 1, "idle", 0.0, None, 0, 0, 0, 3) for rank in range(3)], 29500)
    assert not played.generations.stale
    assert played.node.again == [3]


def sent(to: int, number: int = 1, tag: int = 0) -> CollectiveState:
    return CollectiveState(sent=[MessageCount("", to, tag, number)])


def received(source: int, number: int = 1, tag: int = 0) -> CollectiveState:
    return CollectiveState(received=[MessageCount("", source, tag, number)])


@pytest.mark.parametrize(
    ("doings", "left"),
    [
        ([], False),
        ([CollectiveState(), CollectiveState()], False),
        ([CollectiveState({"": 3}), CollectiveState({"": 3})], False),
        ([CollectiveState({"": 3}), CollectiveState({"": 2})], True),
        ([CollectiveState({"": 3, "a": 1}), CollectiveState({"": 3})], False),
        ([CollectiveState({"a": 1}), CollectiveState({"b": 1})], False),
        ([sent(1), received(0)], False),
        ([sent(1), CollectiveState()], True),
        ([sent(1, 2), received(0)], True),
        ([sent(1), received(0, tag=7)], True),
        ([CollectiveState(), received(0)], True),
    ],
)
def test_what_is_left_over_could_meet_a_later_cell(doings: list[CollectiveState], left: bool) -> None:
    assert left_over(dict(enumerate(doings))) is left
