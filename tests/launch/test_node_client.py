"""The notebook's client of a node: with a real node, and with a fake daemon that says what the test wants."""

from __future__ import annotations

import errno
import os
import queue
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from nbcomm.errors import Interrupted, StartError, StateError
from nbcomm.launch import node_client, orders
from nbcomm.launch.launchers import daemon_process
from nbcomm.launch.node_client import start_all
from nbcomm.launch.process_table import Process
from nbcomm.node.processes.resources import usable_cores
from nbcomm.protocol import (
    Claim,
    Cleared,
    Exited,
    Failed,
    LogTail,
    Look,
    NodeHello,
    Obeyed,
    Processes,
    ReadFacts,
    ReadLog,
    ServeGroups,
    Signal,
    Start,
    Started,
)
from nbcomm.protocol.nodes import HEAD
from nbcomm.world_dir import HOME_VARIABLE

from ..node.served import PATIENCE, Served, await_that
from .scripted import READY, Scripted

# ── claims ──────────────────────────────────────────────────────────────────────────────────────────


def test_each_daemon_that_greets_is_claimed_with_the_lease(scripted: Scripted) -> None:
    scripted.client.set_lease(77.0)
    first = scripted.greet()
    assert (first.pid, first.lease) == (os.getpid(), 77.0)
    scripted.client.wait_claimed(PATIENCE)
    scripted.client.set_lease(88.0)
    second = scripted.take(Claim)
    assert isinstance(second, Claim)
    assert second.lease == 88.0
    assert scripted.home.read_lease() == 88.0
    scripted.replace()
    third = scripted.greet(2)
    assert third.lease == 88.0
    assert first.number < second.number < third.number
    assert scripted.client.daemons == 2


def test_a_daemon_that_greets_anew_is_no_other(scripted: Scripted) -> None:
    for _ in range(2):
        scripted.greet(5)
    assert scripted.client.daemons == 1
    assert not scripted.client.replaced.is_set()
    scripted.greet(6)
    assert scripted.client.daemons == 2
    assert scripted.client.replaced.wait(PATIENCE)


def test_who_fails_over_another_daemon_does_not_keep_the_client_from_it(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    scripted.client.report_to(scripted.client.exits.put, fail)
    scripted.greet(1)
    scripted.greet(2)
    scripted.greet(3)
    assert "on purpose" in capsys.readouterr().err


def test_a_claim_that_is_answered_late_is_not_taken_for_the_present_one(scripted: Scripted) -> None:
    scripted.daemon.report(NodeHello(1, 0))
    first = scripted.take(Claim)
    scripted.daemon.report(NodeHello(2, 0))
    second = scripted.take(Claim)
    scripted.tell(Obeyed(first.number))
    with pytest.raises(StartError, match=r"The node of this world did not answer within 0\.1 s\."):
        scripted.client.wait_claimed(0.1)
    scripted.tell(Processes(0, []), Obeyed(second.number))
    scripted.client.wait_claimed(PATIENCE)


def test_a_world_is_claimed_when_its_processes_are_known_also_if_they_have_to_be_told_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(5, "rank 0", 50)

    def failing(_: object) -> None:
        monkeypatch.undo()
        raise TypeError("once")

    scripted.greet(1, READY, started)  # the daemon of the notebook before
    monkeypatch.setattr(scripted.client._table, "compare", failing)
    scripted.greet(2, READY, started)
    assert not scripted.client.claimed
    result = scripted.later(lambda: scripted.client.wait_claimed(PATIENCE))
    look = scripted.take(Look)
    assert isinstance(look, Look)
    assert look.version < 0, "it wants the whole table"
    scripted.tell(started, Obeyed(look.number))
    assert result.get(timeout=PATIENCE) is None


def test_it_is_ready_when_the_zygote_is_and_the_world_is_claimed(scripted: Scripted) -> None:
    with pytest.raises(StartError, match=r"did not start within 0\.1 s\. Its log ends:\nwhat the daemon said"):
        scripted.client.wait_ready(0.1)
    scripted.daemon.report(NodeHello(1, 0))
    claim = scripted.take(Claim)
    scripted.tell(READY)
    with pytest.raises(StartError, match=r"did not start within 0\.1 s"):
        scripted.client.wait_ready(0.1)
    scripted.tell(Obeyed(claim.number))
    assert scripted.client.wait_ready(PATIENCE) == READY


def test_who_waits_may_give_up(scripted: Scripted) -> None:
    with pytest.raises(Interrupted):
        scripted.client.wait_ready(PATIENCE, lambda: True)


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_process_is_started_and_known(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    order = scripted.take(Start)
    assert isinstance(order, Start)
    assert (order.key, order.what, order.argv, order.adds) == ("rank 0", "engine", ["--x"], False)
    assert order.env == {**os.environ, "A": "b", HOME_VARIABLE: os.fspath(scripted.home.path)}
    assert order.cwd == os.fspath(Path.cwd())
    scripted.tell(Started(order.number, "rank 0", 4242))
    assert result.empty(), "the order is not answered"
    scripted.tell(Obeyed(order.number))
    assert result.get(timeout=PATIENCE) == Process(order.number, 4242)
    assert scripted.client.processes == {"rank 0": Process(order.number, 4242)}


def test_a_start_that_fails_is_told_in_words(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    scripted.tell(Failed(scripted.take(Start).number, "no memory."))
    error = result.get(timeout=PATIENCE)
    assert isinstance(error, StartError)
    assert str(error) == "Rank 0 could not be started: no memory."
    assert scripted.client.processes == {}


def test_orders_that_are_not_answered_are_given_to_the_next_daemon_and_no_others(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    started, tail = scripted.start(), scripted.later(lambda: scripted.client.log_tail("rank 3", 7))
    orders = {type(order): order for order in (scripted.daemon.order(), scripted.daemon.order())}
    scripted.tell(LogTail(orders[ReadLog].number, "the end"))  # type: ignore[union-attr]
    assert tail.get(timeout=PATIENCE) == "the end"
    scripted.replace()
    scripted.greet(2, READY)
    again = scripted.take(Start)
    assert again == orders[Start]
    scripted.tell(Started(again.number, "rank 0", 7), Obeyed(again.number))
    assert started.get(timeout=PATIENCE) == Process(again.number, 7)
    scripted.replace()
    scripted.greet(3, READY)
    scripted.client.signal("rank 0", signal.SIGTERM)
    assert isinstance(scripted.daemon.order(), Signal), "all others are answered"


def test_a_start_is_given_up_at_once_and_killed_if_it_comes_nevertheless(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    order = scripted.take(Start)
    scripted.given_up.set()
    assert isinstance(result.get(timeout=PATIENCE), Interrupted)
    kill = scripted.take(Signal)
    assert isinstance(kill, Signal)
    assert (kill.start, kill.signal) == (order.number, signal.SIGKILL)
    scripted.tell(Started(order.number, "rank 0", 4242), Obeyed(order.number))
    assert "rank 0" not in scripted.client.processes
    scripted.tell(Exited(order.number, "rank 0", 4242, -9))
    assert scripted.client.exits.empty()
    scripted.replace()
    scripted.greet(2, READY)
    assert scripted.take(Signal) == kill, "it was not answered"


def test_a_start_that_is_given_up_when_it_has_come_is_killed(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    order = scripted.take(Start)
    scripted.tell(Started(order.number, "rank 0", 4242))
    scripted.given_up.set()
    assert isinstance(result.get(timeout=PATIENCE), Interrupted)
    kill = scripted.take(Signal)
    assert isinstance(kill, Signal)
    assert (kill.start, kill.signal) == (order.number, signal.SIGKILL)
    assert "rank 0" not in scripted.client.processes


def test_a_process_that_is_not_wanted_any_more_is_killed_and_forgotten(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    order = scripted.take(Start)
    scripted.tell(Started(order.number, "rank 0", 4242), Obeyed(order.number))
    process = result.get(timeout=PATIENCE)
    assert process == Process(order.number, 4242)
    scripted.client.abandon("rank 0")
    kill = scripted.take(Signal)
    assert isinstance(kill, Signal)
    assert (kill.start, kill.signal) == (order.number, signal.SIGKILL)
    assert "rank 0" not in scripted.client.processes
    scripted.tell(Exited(order.number, "rank 0", 4242, -9), Obeyed(kill.number))
    assert scripted.client.exits.empty()


def test_a_process_that_has_ended_is_forgotten_when_it_is_not_wanted_any_more(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    scripted.client.abandon("rank 0")
    scripted.tell(Started(5, "rank 0", 4242), Exited(5, "rank 0", 4242, -9))
    scripted.client.signal("rank 0", signal.SIGTERM)
    scripted.client.abandon("rank 0")
    assert "rank 0" not in scripted.client.processes
    kill = scripted.take(Signal)
    assert isinstance(kill, Signal)
    assert kill.start == 5, "the node knows that this one has ended"
    scripted.client.link.order(Look(77))
    assert scripted.daemon.order() == Look(77), "no order before it"


def test_a_start_that_takes_too_long_is_given_up(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "_START", 0.1)
    scripted.greet(1, READY)
    assert isinstance(scripted.start().get(timeout=PATIENCE), StartError)
    assert isinstance(scripted.take(Start), Start)
    assert isinstance(scripted.take(Signal), Signal)


def test_a_start_ends_when_the_daemon_does(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.greet(1, READY)
    result = scripted.start()
    scripted.take(Start)
    with monkeypatch.context() as patch:
        patch.setattr(type(scripted.client), "gone", True)
        assert isinstance(result.get(timeout=PATIENCE), StartError)
        with pytest.raises(StartError, match="The daemon of this world has ended"):
            scripted.client.start("rank 0", "engine", [], environment={})
    result = scripted.start()
    assert isinstance(scripted.take(Signal), Signal), "for the first one"
    order = scripted.take(Start)
    scripted.tell(Started(order.number, "rank 0", 1), Obeyed(order.number))
    assert isinstance(result.get(timeout=PATIENCE), Process)


def start_two(scripted: Scripted) -> queue.Queue[object]:
    """Start two ranks at once."""
    client = scripted.client

    def start() -> object:
        wanted = [(client, client.new_start(f"rank {rank}", "engine", [])) for rank in range(2)]
        return start_all(wanted, scripted.given_up.is_set)

    return scripted.later(start)


def test_all_starts_are_ordered_before_the_first_is_answered_and_again_to_another_daemon(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    result = start_two(scripted)
    orders = [scripted.take(Start), scripted.take(Start)]
    scripted.replace()
    scripted.greet(2, READY)
    assert [scripted.take(Start), scripted.take(Start)] == orders
    first, second = (order.number for order in orders)
    scripted.tell(Started(second, "rank 1", 42), Obeyed(second))
    assert result.empty()
    scripted.tell(Started(first, "rank 0", 41), Obeyed(first))
    assert result.get(timeout=PATIENCE) == [Process(first, 41), Process(second, 42)]
    assert not scripted.client._orders._open
    assert not scripted.client._orders._answers


@pytest.mark.parametrize("how", ["fails", "is given up", "is interrupted"])
def test_if_one_of_several_starts_does_not_come_about_none_is_left(
    scripted: Scripted, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    scripted.greet(1, READY)
    if how == "is interrupted":
        monkeypatch.setattr(scripted.client._orders, "wait", interrupted)
    result = start_two(scripted)
    first, second = scripted.take(Start).number, scripted.take(Start).number
    if how == "fails":
        scripted.tell(Failed(second, "no memory"), Started(first, "rank 0", 41), Obeyed(first))
    elif how == "is given up":
        scripted.given_up.set()
    error = result.get(timeout=PATIENCE)
    assert isinstance(error, {"fails": StartError, "is given up": Interrupted}.get(how, KeyboardInterrupt))
    assert how != "fails" or str(error) == "Rank 1 could not be started: no memory."
    kills = [scripted.take(Signal), scripted.take(Signal)]
    assert [(kill.start, kill.signal) for kill in kills if isinstance(kill, Signal)] == [
        (first, signal.SIGKILL),
        (second, signal.SIGKILL),
    ]
    scripted.tell(Started(second, "rank 1", 42), Obeyed(second))
    assert scripted.client.processes == {}
    assert scripted.client._orders._open.keys() == {kill.number for kill in kills}
    assert not scripted.client._orders._answers


def test_names_and_values_that_are_no_text_reach_the_process(served: Served) -> None:
    odd = {os.fsdecode(b"ODD\xff"): os.fsdecode(b"\xfe=\n\xc3")}
    process = served.client.start("rank 0", "engine", ["--tell"], environment={**os.environ, **odd})
    assert served.exits.get(timeout=PATIENCE) == Exited(process.start, "rank 0", process.pid, 0)
    assert repr({b"ODD\xff": b"\xfe=\n\xc3"}) in served.home.log(0).read_text()


def test_signals_go_to_the_present_process_while_it_lives(scripted: Scripted) -> None:
    scripted.greet(1, READY, Started(5, "rank 0", 50), Started(6, "rank 0", 60))
    scripted.client.signal("rank 0", signal.SIGINT)
    order = scripted.take(Signal)
    assert isinstance(order, Signal)
    assert (order.start, order.signal) == (6, signal.SIGINT)
    scripted.tell(Obeyed(order.number), Exited(6, "rank 0", 60, 0))
    assert not scripted.client._orders._answers, "nobody waits for this one"
    scripted.client.signal("rank 0", signal.SIGINT)
    scripted.client.signal("rank 1", signal.SIGINT)
    scripted.later(lambda: scripted.client.wait_for_ends(0.1))
    assert isinstance(scripted.daemon.order(), Look), "there was none to signal"


def test_who_waits_for_ends_is_told_those_that_come_before_the_answer(scripted: Scripted) -> None:
    scripted.greet(1, READY, Started(5, "rank 0", 50))
    waiting = scripted.later(lambda: scripted.client.wait_for_ends(PATIENCE))
    look = scripted.take(Look)
    assert waiting.empty()
    scripted.tell(Exited(5, "rank 0", 50, 3), Obeyed(look.number))
    waiting.get(timeout=PATIENCE)
    assert scripted.client.exits.get_nowait() == Exited(5, "rank 0", 50, 3)


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "ANSWER", 0.1)
    scripted.client.wait_for_ends(0.1)
    assert scripted.client.log_tail("rank 0") == "(the node does not answer)"
    with pytest.raises(StateError, match=r"could not serve the ranks' store: no answer within 0\.1 s\."):
        serve(scripted.client, 1)
    scripted.greet(1, READY)
    scripted.tell(Obeyed(1), Failed(2, "late"), LogTail(3, "late"))
    assert not scripted.client._orders._open, "nobody waits for them any more"
    assert not scripted.client._orders._answers


def test_the_node_tells_its_cores_and_memory(served: Served) -> None:
    told = served.client.facts()
    assert told.cores == usable_cores()
    assert 0 < told.memory < psutil.virtual_memory().total


def test_facts_that_nobody_tells_are_a_sentence(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "ANSWER", 0.1)
    with pytest.raises(StartError, match=r"^The node could not tell its cores and memory: no answer within 0\.1 s\. "):
        scripted.client.facts()
    monkeypatch.setattr(orders, "ANSWER", PATIENCE)  # now it answers, but a busy machine may not do so at once
    scripted.greet(1, READY)
    result = scripted.later(scripted.client.facts)
    scripted.tell(Failed(scripted.take(ReadFacts).number, "on purpose"))
    assert "memory: on purpose. Type %distributed restart." in str(result.get(timeout=PATIENCE))


def test_an_order_whose_answer_is_not_waited_for_is_not_given_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.greet(1, READY)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scripted.client._orders, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scripted.client.log_tail("rank 3")
    assert not scripted.client._orders._open
    assert not scripted.client._orders._answers


def test_the_end_of_a_log_is_read_by_the_node(served: Served) -> None:
    served.home.log(3).write_text("one\ntwo\nthree\n")
    assert served.client.log_tail("rank 3", 2) == "two\nthree"
    assert served.client.log_tail("rank 4") == "(nothing)"


def serve(client: node_client.NodeClient, generation: int) -> None:
    client.served.serve(client.served.order(generation))


def test_the_node_serves_the_store(served: Served) -> None:
    path = served.home.store_socket(1)
    assert served.client.served.generation == 0
    serve(served.client, 1)
    assert path.is_socket()
    assert served.client.served.generation == 1
    served.engine()
    served.kill_daemon()
    served.client.launch()
    served.await_daemons(2)
    assert served.client.served.generation == 0, "it went with the daemon"
    serve(served.client, 1)
    served.home.store_socket(2).mkdir()
    with pytest.raises(StateError, match=r"could not serve the ranks' store: .*Is a directory.*%distributed heal"):
        serve(served.client, 2)
    assert served.client.served.generation == 0


def test_who_asks_a_daemon_that_was_killed_is_answered_by_the_next(served: Served) -> None:
    served.engine()
    served.kill_daemon()
    serve(served.client, 1)
    assert served.home.store_socket(1).is_socket()


def test_who_asks_is_answered_whatever_keeps_the_next_daemon_from_coming(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise OSError(errno.EMFILE, "on purpose")

    served.kill_daemon()
    monkeypatch.setattr(orders, "ANSWER", 0.3)
    monkeypatch.setattr(served.client, "launch", failing)
    assert served.client.log_tail("rank 0") == "(the node does not answer)"
    assert capsys.readouterr().err.count("OSError: [Errno 24] on purpose") == 1


def test_a_refused_store_is_not_taken_for_served(scripted: Scripted) -> None:
    scripted.greet(1, READY, store=1)
    assert scripted.client.served.generation == 1
    result = scripted.later(lambda: serve(scripted.client, 2))
    order = scripted.take(ServeGroups)
    scripted.tell(Failed(order.number, "no room"))
    error = result.get(timeout=PATIENCE)
    assert isinstance(error, StateError)
    assert "no room" in str(error)
    assert scripted.client.served.generation == 0, "the first one was ended before"


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────


def test_ends_wait_for_who_wants_to_know(scripted: Scripted) -> None:
    scripted.client._table._on_exit = None
    first, second = Exited(5, "rank 0", 50, 0), Exited(6, "rank 1", 60, 0)
    scripted.greet(1, READY, Started(5, "rank 0", 50), Started(6, "rank 1", 60), first)
    heard: list[Exited] = []
    scripted.client.report_to(heard.append)
    assert heard == [first]
    scripted.tell(second)
    assert heard == [first, second]


def test_an_end_is_told_once(scripted: Scripted) -> None:
    started, ended = Started(5, "rank 0", 50), Exited(5, "rank 0", 50, 0)
    scripted.greet(1, READY, started, ended)
    scripted.greet(2, READY, started, ended)
    assert scripted.client.exits.get_nowait() == ended
    assert scripted.client.exits.empty()


def test_the_end_of_an_earlier_process_is_none_of_the_present_one(scripted: Scripted) -> None:
    scripted.greet(1, READY, Started(5, "rank 0", 50), Started(6, "rank 0", 60), Started(5, "rank 0", 50))
    scripted.tell(Exited(5, "rank 0", 50, 0))
    assert scripted.client.exits.empty()
    assert scripted.client.processes["rank 0"] == Process(6, 60)


def test_who_fails_over_an_end_is_told_of_the_next(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    heard: queue.Queue[object] = queue.Queue()

    def failing(ended: object) -> None:
        heard.put(ended)
        raise RuntimeError("on purpose")

    scripted.client.report_to(failing)
    scripted.greet(1, READY, Started(5, "rank 0", 50), Started(6, "rank 1", 60))
    first, second = Exited(5, "rank 0", 50, 3), Exited(6, "rank 1", 60, 4)
    scripted.tell(first, second)
    assert [heard.get(timeout=PATIENCE) for _ in range(2)] == [first, second]
    assert "on purpose" in capsys.readouterr().err


def test_a_node_that_has_ended_is_lost_for_what_a_scheduler_says_of_it(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.greet(1, READY, Started(5, "rank 0", 50), Started(6, "rank 1", 60))
    asked: list[float] = []

    def doubt() -> float:
        asked.append(PATIENCE)
        return PATIENCE

    monkeypatch.setattr(scripted.client, "doubt", doubt)
    scripted.tell(Cleared())
    assert asked == [PATIENCE]
    assert scripted.client.lost == ""
    scripted.client.lose("was taken back: Slurm job 1 was cancelled")
    whys = {scripted.client.exits.get(timeout=PATIENCE).why for _ in range(2)}
    assert whys == {"was lost with the daemon, which was taken back: Slurm job 1 was cancelled"}


def test_a_node_that_has_ended_is_lost_also_if_no_scheduler_says_why(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.greet(1, READY, Started(5, "rank 0", 50))
    monkeypatch.setattr(scripted.client, "doubt", lambda: 0.1)
    scripted.tell(Cleared())
    assert scripted.client.exits.get(timeout=PATIENCE).why == "was lost with the daemon, which was told to end"


def test_an_end_whose_report_failed_is_reported_again(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[object] = []

    def failing(ended: object) -> None:
        heard.append(ended)
        if len(heard) < 3:
            raise RuntimeError("on purpose")

    scripted.client.report_to(failing)
    ended = Exited(5, "rank 0", 50, 3)
    scripted.greet(1, READY, Started(5, "rank 0", 50), ended)
    for _ in range(4):
        scripted.client.tell()
    assert heard == [ended] * 3
    assert "on purpose" in capsys.readouterr().err


def test_what_was_lost_on_its_way_is_asked_for_by_the_next_look(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "_MOMENT", 0.0)
    scripted.greet(1, READY, Started(5, "rank 0", 50))
    scripted.version += 1  # the table has changed, and nobody has heard of it
    scripted.client.look()
    look = scripted.take(Look)
    assert isinstance(look, Look)
    assert look.version == scripted.version - 1


def test_a_table_that_could_not_be_taken_over_is_asked_for_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(node_client, "_MOMENT", 0.0)
    scripted.greet(1, READY, Started(5, "rank 0", 50))
    with monkeypatch.context() as patch:
        patch.setattr(scripted.client._table, "compare", failing)
        scripted.tell(Exited(5, "rank 0", 50, 3))
    scripted.client.look()
    look = scripted.take(Look)
    assert isinstance(look, Look)
    assert look.version == scripted.version - 1
    assert "on purpose" in capsys.readouterr().err


def test_only_the_present_process_of_a_rank_may_speak(scripted: Scripted) -> None:
    """Each is known by its key, which the node tells a notebook that takes the world up."""
    link = scripted.client.link
    starts = [Started(5, "rank 0", 50, "a"), Started(6, "rank 1", 60, "b"), Started(7, "rank 1", 70, "c")]
    scripted.greet(1, READY, *starts, Started(6, "rank 1", 60, "b"), Started(8, "controller", 80))
    scripted.tell(Exited(5, "rank 0", 50, 0))
    assert link._present.keys() == {"rank1-7"}
    assert {name for name in link._keys.names.values() if name.startswith("rank")} == {"rank1-7"}
    assert scripted.client._table.living()[0] == Started(7, "rank 1", 70, "c")


def test_each_start_of_a_rank_has_a_key_of_its_own_which_is_let_in_until_it_is_not_wanted(scripted: Scripted) -> None:
    scripted.greet(1, READY)
    first, second = (scripted.client.new_start("rank 2", "engine", []) for _ in range(2))
    controller = scripted.client.new_start("controller", "controller", [])
    assert len({first.public, first.secret, second.public, second.secret}) == 4
    assert (controller.public, controller.secret) == ("", "")
    assert not {first.secret, first.public} & {*first.env.values(), *first.argv}
    names = scripted.client.link._keys.names
    assert (first.public.encode() in names, second.public.encode() in names) == (False, True)
    scripted.client.end_start(second, wanted=False)
    assert second.public.encode() not in names


# ── a daemon that has ended ─────────────────────────────────────────────────────────────────────────


def test_a_notebook_that_was_stopped_does_not_take_the_node_for_gone(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("_SILENCE", "_MOMENT"):  # the test may be held up itself: it says when they are over
        monkeypatch.setattr(node_client, seconds, PATIENCE)
    scripted.greet(1, READY)
    scripted.client.link._nodes[HEAD].heard -= 2 * PATIENCE  # so long was it stopped
    assert not scripted.client.gone, "nobody has asked it"
    scripted.client.look()
    look = scripted.take(Look)
    assert not scripted.client.gone
    monkeypatch.setattr(node_client, "_SILENCE", 0.0)
    await_that(lambda: scripted.client.gone, "it is silent")
    scripted.client.look()
    scripted.tell(Obeyed(look.number))
    assert not scripted.client.gone, "it has spoken"


def test_who_hears_the_node_asks_nothing(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "_MOMENT", PATIENCE)  # so long may the test be held up itself
    scripted.greet(1, READY)
    for _ in range(10):
        scripted.client.look()
    scripted.later(lambda: scripted.client.log_tail("rank 0"))
    order = scripted.take(ReadLog)
    scripted.tell(LogTail(order.number, ""))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("attached", [False, True])
def test_another_one_is_started_that_takes_over(served: Served, end: signal.Signals, attached: bool) -> None:
    child = served.engine()
    client = served.attach() if attached else served.client
    served.daemon.send_signal(end)

    def looks_until_it_is_back() -> bool:
        client.look()
        return client.daemons == 2 and client.claimed and not client.gone

    await_that(looks_until_it_is_back, "nobody takes over")
    assert child.is_running()
    assert client.wait_ready(PATIENCE).forks
    assert client.processes["rank 0"].pid == child.pid
    assert served.engine("rank 1").is_running()
    child.kill()
    assert client.exits.get(timeout=PATIENCE).pid == child.pid


def test_one_is_started_whoever_asks(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch = served.client.launch
    monkeypatch.setattr(served.client, "launch", lambda: (launched.append(1), launch()))
    served.kill_daemon()
    threads = [threading.Thread(target=served.client.replace_daemon) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert launched == [1]
    served.client.wait_claimed(PATIENCE)


def test_one_that_ends_at_once_is_not_started_without_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    served.kill_daemon()

    def launch() -> None:
        launched.append(time.monotonic())
        served.client._launched = time.monotonic()

    with monkeypatch.context() as patch:
        patch.setattr(served.client, "launch", launch)
        began = time.monotonic()
        while time.monotonic() - began < 4.0:
            served.client.look()
    assert 1 <= len(launched) <= 3
    served.client.replace_daemon(now=True)
    served.client.wait_claimed(PATIENCE)


def test_who_leaves_starts_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.client, "launch", lambda: pytest.fail("it was started"))
    served.kill_daemon()
    served.client.shutdown(timeout=1.0)
    assert served.client.gone
    served.client.replace_daemon()


def test_how_it_has_ended_is_told(served: Served, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_process, "_MOMENT", PATIENCE)
    served.daemon.kill()
    assert served.client.how == "was killed by SIGKILL"
    assert scripted.client.how == "has ended"
