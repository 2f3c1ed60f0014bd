"""The cluster kernel as Jupyter finds it: installed by the command, in a place of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbcomm import cli
from tests.world.notebook import Notebook

RANKS = 3


@pytest.fixture(scope="package")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a kernel ``nbcomm`` of three ranks is installed, and all of Jupyter looks."""
    place = tmp_path_factory.mktemp("prefix")
    assert cli.main(["kernel", "install", "-n", str(RANKS), "--prefix", str(place)]) == 0
    with (
        pytest.MonkeyPatch.context() as patch,
        # Worlds of other tests are not to be offered here. Their sockets need a short path.
        tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as worlds,
    ):
        patch.setenv("TMPDIR", worlds)
        patch.setenv("JUPYTER_PATH", str(place / "share" / "jupyter"))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        yield place


@pytest.fixture(scope="module")
def cluster(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with the cluster kernel, for tests that leave it as it was."""
    notebook = Notebook(str(tmp_path_factory.mktemp("cluster")), kernel="nbcomm")
    yield notebook
    notebook.close()


@pytest.fixture
def open_cluster(prefix: Path, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Open cluster kernels; they are shut down at the end of the test."""
    opened: list[Notebook] = []

    def open_one(**environment: str) -> Notebook:
        opened.append(Notebook(str(tmp_path), kernel="nbcomm", **environment))
        return opened[-1]

    yield open_one
    for notebook in opened:
        notebook.close()
