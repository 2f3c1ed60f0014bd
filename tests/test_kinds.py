"""Each test belongs to one part, and a unit test starts no process."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from . import kinds, laws, order
from .kinds import KINDS, ProcessInUnitTestError, no_process

HERE = Path(__file__).parent


def test_each_test_of_this_run_belongs_to_one_part(request: pytest.FixtureRequest) -> None:
    of_none_or_many = {
        item.nodeid for item in request.session.items if len({m.name for m in item.iter_markers()} & KINDS.keys()) != 1
    }
    assert of_none_or_many == set()


def test_a_folder_says_what_its_tests_are() -> None:
    assert kinds.of_folder(PurePath("tests/browser/test_panel.py")) == "outside"
    assert kinds.of_folder(PurePath("tests/rank/groups/test_world.py")) == "ranks"
    assert kinds.of_folder(PurePath("tests/rank/test_messages.py")) == "unit"
    assert kinds.of_folder(PurePath("nbcomm/rank_spec.py")) == "unit"
    assert [folder for folder in kinds.FOLDERS if not (kinds.ROOT / folder).is_dir()] == []


def test_the_parts_of_a_file_are_known_without_importing_it() -> None:
    assert kinds.in_file(HERE / "test_wheel.py") >= {"unit", "outside"}
    assert kinds.in_file(HERE / "browser" / "test_panel.py") == {"outside"}


def test_a_mark_of_its_own_counts_and_there_is_one() -> None:
    def marked(*names: str) -> Any:
        own = [SimpleNamespace(name=name) for name in names]
        return SimpleNamespace(nodeid="it", path=HERE / "test_x.py", iter_markers=lambda: own, add_marker=added.append)

    added: list[str] = []
    kinds.pytest_itemcollected(marked("timeout"))
    kinds.pytest_itemcollected(marked("world"))
    assert added == ["unit"]
    with pytest.raises(pytest.UsageError, match="it is marked as ranks and as world; it can be one of them"):
        kinds.pytest_itemcollected(marked("ranks", "world"))


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run([sys.executable, "-V"], check=True),
        lambda: os.fork() or os._exit(0),
        lambda: os.posix_spawn(sys.executable, ["python", "-V"], {}),
        lambda: os.system("true"),  # noqa: S605 - it is not run
        lambda: multiprocessing.get_context("fork").Process(target=print).start(),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: multiprocessing.util.spawnv_passfds(sys.executable.encode(), [b"python", b"-V"], []),
    ],
    ids=["subprocess", "fork", "posix_spawn", "system", "multiprocessing-fork", "multiprocessing-spawn", "spawnv"],
)
def test_a_unit_test_that_would_start_a_process_is_told(start: Callable[[], object]) -> None:
    said = "it is a unit test, and would start a process .* mark it with pytest.mark.ranks, world or outside"
    with pytest.raises(ProcessInUnitTestError, match=said), no_process("it"):
        start()
    with pytest.raises(ProcessInUnitTestError, match=said), no_process("it"), suppress(Exception):
        start()  # somebody hides the refusal


def test_laws_are_tried_with_fewer_examples_in_a_hurry() -> None:
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("nbcomm")
        assert laws.examples(200).max_examples == 200
        settings.load_profile("day")
        assert laws.examples(200).max_examples == 80
        settings.load_profile("quick")
        assert laws.examples(200).max_examples == 10
        assert laws.examples(1).max_examples == 1
    finally:
        settings.load_profile(before)


def test_a_shuffle_keeps_files_and_stories_whole() -> None:
    def file(name: str, *marks: str) -> list[Any]:
        return [
            SimpleNamespace(name=f"{name}{n}", get_closest_marker=lambda mark: mark if mark in marks else None)
            for n in range(9)
        ]

    def shuffled(seed: int) -> list[list[str]]:
        files = [file("a"), file("b", "story"), file("c")]
        order.shuffle(files, random.Random(seed))  # noqa: S311 - an order, no secret
        return [[test.name for test in tests] for tests in files]

    assert shuffled(3) == shuffled(3)
    assert len({str(shuffled(seed)) for seed in range(5)}) == 5
    for files in map(shuffled, range(5)):
        assert {"".join(sorted(name[0] for name in tests)) for tests in files} == {"a" * 9, "b" * 9, "c" * 9}
        assert [f"b{n}" for n in range(9)] in files
