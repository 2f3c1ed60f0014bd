"""The table of a node's processes, without a node; with one: test_node_client.py."""

from __future__ import annotations

import threading

import pytest

from nbcomm.faults import Faults
from nbcomm.launch.process_table import Process, ProcessTable
from nbcomm.protocol import Exited, Started, Unwatched


@pytest.fixture
def table() -> ProcessTable:
    return ProcessTable(threading.Condition(), Faults())


def test_the_last_start_of_a_key_counts(table: ProcessTable) -> None:
    for report in (Started(5, "rank 0", 50), Started(7, "rank 0", 70), Started(5, "rank 0", 50)):
        table.note_start(report)
    table.note_end(Exited(5, "rank 0", 50, 0))
    assert table.last == {"rank 0": Process(7, 70)}
    assert (table.started(7, "rank 0"), table.started(5, "rank 0")) == (Process(7, 70), None)
    assert [table.is_present(0, pid) for pid in (50, 70)] == [False, True]
    assert not table.is_present(1, 70)


def test_nothing_is_known_of_an_abandoned_start(table: ProcessTable) -> None:
    heard: list[Exited] = []
    table.report_to(heard.append)
    table.note_start(Started(5, "rank 0", 50))
    table.abandon(5, "rank 0")
    table.note_start(Started(5, "rank 0", 50))
    table.note_end(Exited(5, "rank 0", 50, 0))
    assert (table.last, heard) == ({}, [])


def test_who_abandons_an_earlier_start_keeps_the_present_process(table: ProcessTable) -> None:
    table.note_start(Started(7, "rank 0", 70))
    table.abandon(5, "rank 0")
    assert table.last == {"rank 0": Process(7, 70)}


def test_ends_wait_for_who_wants_to_know_and_are_told_once(table: ProcessTable) -> None:
    ended = Exited(5, "rank 0", 50, 3)
    table.note_start(Started(5, "rank 0", 50))
    process = table.last["rank 0"]
    table.note_end(ended)
    table.note_end(ended)
    heard: list[Exited] = []
    table.report_to(heard.append)
    assert heard == [ended]
    assert (process.exited, table.is_present(0, 50)) == (ended, False)


def test_an_end_that_nobody_would_notice_is_known_until_it_comes(table: ProcessTable) -> None:
    table.note_start(Started(5, "rank 0", 50))
    table.note_start(Started(6, "rank 1", 60))
    for start, key in ((5, "rank 0"), (6, "rank 1")):
        table.note_unwatched(Unwatched(start, key, "why"))
    table.note_end(Exited(5, "rank 0", 50, 0))
    assert table.unwatched == {"rank 1": "why"}
    table.note_start(Started(8, "rank 1", 80))
    assert table.unwatched == {}


def test_those_live_whose_end_is_not_known(table: ProcessTable) -> None:
    for report in (Started(5, "rank 0", 50), Started(6, "rank 1", 60), Started(7, "controller", 70)):
        table.note_start(report)
    table.note_end(Exited(6, "rank 1", 60, 0))
    table.abandon(7, "controller")
    assert table.living() == [Started(5, "rank 0", 50)]
