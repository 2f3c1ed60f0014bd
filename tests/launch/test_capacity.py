"""How many ranks this machine holds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nbcomm.errors import StartError
from nbcomm.launch import capacity
from nbcomm.launch.capacity import Machine, check, crowd

PLENTY = Machine(64, 1 << 42)


@pytest.mark.parametrize(
    ("machine", "most", "why"),
    [
        (PLENTY._replace(memory=960 << 20), 10, "its 0.9 GiB of free memory are enough for 10"),
        (PLENTY._replace(cores=2), 128, "its 2 cores, with 64 ranks each, are enough for 128"),
        (PLENTY._replace(cores=1), 64, "its 1 core, with 64 ranks each, are enough for 64"),
        (PLENTY._replace(tasks=100), 10, "the 100 processes and threads that may still begin (ulimit -u) are enough"),
        (PLENTY._replace(files=1024), 482, "the 1024 files that a process may open (ulimit -n) are enough for 482"),
    ],
)
def test_more_ranks_than_the_machine_holds_are_refused_with_the_figures(machine: Machine, most: int, why: str) -> None:
    check(most, machine)
    said = (
        rf"^{most + 1} ranks do not fit into this machine: {re.escape(why)}.*Nothing was started\. Write -n {most} or"
    )
    with pytest.raises(StartError, match=said) as refused:
        check(most + 1, machine)
    assert "--oversubscribe" in str(refused.value)


def test_all_reasons_are_said_and_the_least_is_advised() -> None:
    with pytest.raises(StartError) as refused:
        check(1000, Machine(2, 96 * 100 << 20, files=1024))
    assert str(refused.value).startswith(
        "1000 ranks do not fit into this machine: its 9.4 GiB of free memory are enough for 100, its 2 cores, with 64 "
        "ranks each, are enough for 128, and the 1024 files that a process may open (ulimit -n) are enough for 482. "
        "Nothing was started. Write -n 100 or less, or add --oversubscribe"
    )


def test_one_rank_is_always_tried() -> None:
    check(1, Machine(1, 0, tasks=0, files=0))


def test_what_tests_and_lessons_start_goes_on_without_a_word_or_with_one() -> None:
    for n in (16, 64):
        check(n, Machine(2, 22 << 30, files=1024))
    assert crowd(16, 2) == ""
    assert crowd(17, 2) == "17 ranks share 2 cores, so they take turns and cells take longer."


@pytest.mark.parametrize(("uid", "most", "tasks"), [(0, 10, None), (7, 10**6, None), (7, 10, 0)])
def test_processes_are_counted_only_where_there_is_a_limit_that_may_be_reached(
    monkeypatch: pytest.MonkeyPatch, uid: int, most: int, tasks: int | None
) -> None:
    limits: dict[int, Any] = {
        capacity.resource.RLIMIT_NOFILE: (4096, 4096),
        capacity.resource.RLIMIT_NPROC: (most, most),
    }
    monkeypatch.setattr(capacity.resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(capacity.os, "getuid", lambda: uid)
    monkeypatch.setattr(capacity, "free_tasks", lambda: None)
    monkeypatch.setattr(capacity, "_uid", lambda _: uid)
    monkeypatch.setattr(capacity, "_threads", lambda _: 1000)
    if tasks is None:
        monkeypatch.setattr(capacity.psutil, "process_iter", lambda: pytest.fail("they were"))
    machine = Machine.here(4)
    assert (machine.tasks, machine.files) == (tasks, 4096)
    assert machine.cores >= 1
    assert machine.memory > 0
