"""Faults of nbcomm's own, put into a real world's ranks and its notebook: each is told, and the next cell is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .notebook import Notebook

SPOIL = """
def spoil(owner, name, *, times=1):
    plain, left = getattr(owner, name), [times]
    def spoiled(*args, **kwargs):
        if left[0] > 0:
            left[0] -= 1
            raise TypeError("spoiled")
        return plain(*args, **kwargs)
    setattr(owner, name, spoiled)
"""
"""A function that makes another one fail a few times."""


@pytest.fixture(autouse=True)
def _all_is_well_again(four: Notebook) -> Iterator[None]:
    yield
    four.end_all()
    assert "[0-3] 6\n" in four.run("%%distributed\nall_reduce(rank)", timeout=30).text
    assert four.run("%%distributed\nall_reduce(rank)", timeout=30).text == "[0-3] 6\n"


def spoil(four: Notebook, owner: str, name: str, ranks: str = "all", times: int = 1) -> None:
    """Make a function of nbcomm's fail on ranks, the next few times that it is called after this cell."""
    module, _, attribute = owner.partition(":")
    code = f"import threading, {module}\n{SPOIL}\nowner = {module}{'.' + attribute if attribute else ''}\n"
    # Behind the cell that spoils it: what it spoils may be needed for its own end.
    four.run(f"%%distributed -r {ranks}\n{code}")
    four.run(f"session.call(lambda: spoil(owner, {name!r}, times={times}), ranks={ranks!r})")


@pytest.fixture(scope="module")
def _session(four: Notebook) -> None:
    four.run("from nbcomm.notebook import worlds\nsession = worlds.current()")


pytestmark = pytest.mark.usefixtures("_session")

BESIDE = [
    ("nbcomm.rank.record:Record", "close_journal", "its collectives could not be told: TypeError: spoiled."),
    ("nbcomm.rank.journal:Journal", "steps", "its collectives could not be told: TypeError: spoiled."),
    ("nbcomm.rank.record:Record", "tidy", "its collectives could not be told: TypeError: spoiled."),
    ("nbcomm.rank.world:World", "end", "its end could not be noted: TypeError: spoiled."),
    ("nbcomm.rank.streams:Capture", "take", "some of what it showed is lost: TypeError: spoiled."),
]


@pytest.mark.parametrize(("owner", "name", "note"), BESIDE, ids=[f"{owner}.{name}" for owner, name, _ in BESIDE])
def test_what_accompanies_a_cell_costs_a_sentence(four: Notebook, owner: str, name: str, note: str) -> None:
    spoil(four, owner, name, ranks="2", times=2)
    cell = four.run("%%distributed\nx = all_reduce(rank)\nassert x == 6", timeout=20)
    if name != "take":  # two threads take what there is to show: it may be the other one that fails
        assert f"on rank 2 {note}" in cell.text
        assert 'raise TypeError("spoiled")' in four.run("%distributed log 2").text
    while "spoiled" in cell.text:
        cell = four.run("%%distributed\n1", timeout=20)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("nbcomm.rank.world:World", "begin"),
        ("nbcomm.rank.journal:Journal", "begin"),
        ("nbcomm.rank.history:History", "begin"),
        ("nbcomm.rank.cells:CellRunner", "run"),
    ],
)
def test_what_a_cell_needs_costs_the_cell(four: Notebook, owner: str, name: str) -> None:
    spoil(four, owner, name, ranks="1")
    cell = four.run("%%distributed\nrank", fails=True, timeout=20)
    assert "spoiled" in cell.error_text


def test_a_message_that_fails_in_the_agent_ends_no_rank(four: Notebook) -> None:
    pids = four.run("%%distributed\nimport os; os.getpid()").text
    for owner, name in (
        ("nbcomm.rank.assistant:Assistant", "ask"),
        ("nbcomm.rank.assistant:Assistant", "look"),
        ("nbcomm.rank.history:History", "seen"),
        ("nbcomm.rank.agent:Agent", "_snapshot"),
        ("nbcomm.rank.agent:Agent", "_press"),
        ("nbcomm.rank.record:Record", "doing"),
    ):
        spoil(four, owner, name)
    assert four.run("%%distributed\nos.getpid()").text == pids


def test_a_cell_that_cancels_every_task_mutes_no_rank(four: Notebook) -> None:
    four.run("%%distributed\nimport asyncio\n[task.cancel() for task in asyncio.all_tasks(asyncio.get_event_loop())];")
    assert four.run("%%distributed\n1", timeout=20).text == "[0-3] 1\n"


def test_a_function_that_exits_is_answered(four: Notebook) -> None:
    cell = four.run("import sys\nsession.call(sys.exit)", fails=True, timeout=20)
    assert "SystemExit" in cell.error_text


def test_the_watch_goes_on_after_a_fault(four: Notebook) -> None:
    four.run(f"{SPOIL}\nimport nbcomm.notebook.watch as watch\nspoil(watch.Watch, '_judge', times=3)")
    four.run("spoil(watch.Watch, '_tell_panel', times=3) if hasattr(watch.Watch, '_tell_panel') else None")
    hang = four.run("%%distributed\nif rank != 1: barrier()", fails=True, timeout=20)
    assert "HangError" in hang.error_text


def test_an_answer_that_is_lost_is_noticed(four: Notebook) -> None:
    four.run(
        f"{SPOIL}\nimport nbcomm.notebook.desk as desk\nplain = desk.Desk.hear\n"
        "def deaf(self, rank, done, frames=()):\n"
        "    if rank == 2 and done.failure is None:\n        desk.Desk.hear = plain\n        return\n"
        "    plain(self, rank, done, frames)\n"
        "desk.Desk.hear = deaf"
    )
    cell = four.run("%%distributed\nrank", fails=True, timeout=20)
    assert "nbcomm itself failed on rank 2 (RuntimeError: its answer was lost on the way)" in cell.error_text


def test_a_request_that_is_lost_is_noticed(four: Notebook) -> None:
    four.run(
        "from nbcomm.messages import Run\nplain = session.link.send\n"
        "def dropping(ranks, message, buffers=()):\n"
        "    if isinstance(message, Run):\n"
        "        session.link.send, ranks = plain, [rank for rank in ranks if rank != 2]\n"
        "    plain(ranks, message, buffers)\n"
        "session.link.send = dropping"
    )
    cell = four.run("%%distributed\nall_reduce(rank)", fails=True, timeout=20)
    assert "nbcomm itself failed on rank 2 (RuntimeError: what it was asked was lost on the way)" in cell.error_text


def test_a_rank_whose_event_loop_is_kept_is_named(four: Notebook) -> None:
    four.run("%%distributed -r 1\nimport asyncio, time\nasyncio.get_event_loop().call_soon(time.sleep, 9);")
    cell = four.submit("%%distributed\nrank")
    told = "rank 1 cannot begin: a task or a callback of an earlier cell runs on"
    four.until(lambda: told in cell.text, 9, "nothing was said", cell)
    assert four.finish(cell, 20).error is None
    assert told not in cell.text


def test_the_end_of_a_cell_does_not_hang_on_what_accompanies_it(four: Notebook) -> None:
    for name, note in (
        ("chronicle.Chronicle", "its collectives could not be kept: TypeError: spoiled."),
        ("aftermath.Aftermath", "its pictures or its trace could not be made: TypeError: spoiled."),
    ):
        module, _, owner = name.partition(".")
        method = "end" if owner == "Chronicle" else "__call__"
        four.run(f"{SPOIL}\nimport nbcomm.notebook.{module} as it\nspoil(it.{owner}, {method!r})")
        assert f"nbcomm: {note}" in four.run("%%distributed\nall_reduce(rank)", timeout=20).text
