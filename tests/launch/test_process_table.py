"""The table of a node's processes, without a node; with one: test_node_client.py."""

from __future__ import annotations

import threading

import pytest

from nbcomm.faults import Faults
from nbcomm.launch.process_table import Process, ProcessTable
from nbcomm.protocol import Exited, Started


@pytest.fixture
def table() -> ProcessTable:
    return ProcessTable(threading.Condition(), Faults())


def test_the_last_start_of_a_key_counts(table: ProcessTable) -> None:
    table.compare([Started(5, "rank 0", 50), Started(7, "rank 0", 70), Started(5, "rank 0", 50)])
    table.note_end(Exited(5, "rank 0", 50, 0))
    assert table.last == {"rank 0": Process(7, 70)}
    assert (table.started(7, "rank 0"), table.started(5, "rank 0")) == (Process(7, 70), None)


def test_nothing_is_known_of_an_abandoned_start(table: ProcessTable) -> None:
    heard: list[Exited] = []
    table.report_to(heard.append)
    table.compare([Started(5, "rank 0", 50)])
    table.abandon(5, "rank 0")
    table.compare([Started(5, "rank 0", 50)])
    table.note_end(Exited(5, "rank 0", 50, 0))
    assert (table.last, heard) == ({}, [])


def test_who_abandons_an_earlier_start_keeps_the_present_process(table: ProcessTable) -> None:
    table.compare([Started(7, "rank 0", 70)])
    table.abandon(5, "rank 0")
    assert table.last == {"rank 0": Process(7, 70)}


def test_ends_wait_for_who_wants_to_know_and_are_told_once(table: ProcessTable) -> None:
    ended = Exited(5, "rank 0", 50, 3)
    table.compare([Started(5, "rank 0", 50)])
    process = table.last["rank 0"]
    table.note_end(ended)
    table.note_end(ended)
    heard: list[Exited] = []
    table.report_to(heard.append)
    assert heard == [ended]
    assert process.exited == ended


def test_those_live_whose_end_is_not_known(table: ProcessTable) -> None:
    table.compare([Started(5, "rank 0", 50), Started(6, "rank 1", 60), Started(7, "controller", 70)])
    table.note_end(Exited(6, "rank 1", 60, 0))
    table.abandon(7, "controller")
    assert table.living() == [Started(5, "rank 0", 50)]
