"""Real ranks behind a real kernel, shared by the tests of one file where they only look at cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .notebook import Notebook, with_ranks


@pytest.fixture
def open_notebook(tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Open kernels with nbcomm loaded; they are shut down at the end of the test."""
    opened: list[Notebook] = []

    def open_one(*cells: str, **environment: str) -> Notebook:
        notebook = Notebook(str(tmp_path), **environment)
        opened.append(notebook)
        for cell in ("%load_ext nbcomm", *cells):
            notebook.run(cell)
        return notebook

    yield open_one
    for notebook in opened:
        notebook.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with four ranks on the CPU."""
    with with_ranks(tmp_path_factory.mktemp("four")) as notebook:
        yield notebook
