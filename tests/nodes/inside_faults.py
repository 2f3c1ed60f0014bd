"""Each fault of docs/reliability.md, on another node: run by test_faults.py, inside what enter.sh has made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..world.faults import ELSEWHERE, FAULTS, prepare, run
from ..world.notebook import Notebook
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A prepared world on two hosts."""
    notebook = Notebook(str(tmp_path_factory.mktemp("faults")))
    try:
        prepare(notebook, ELSEWHERE)
        yield notebook
    finally:
        notebook.close()


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_on_another_node_is_told_mended_and_survived(world: Notebook, number: int) -> None:
    outcome = run(world, FAULTS[number])
    assert outcome.until_told < 60
    assert outcome.until_good < 60


def test_nothing_is_left_on_any_host(world: Notebook) -> None:
    """The last test: it ends the world."""
    world.run("%distributed stop")
    assert node_homes() == set()
