"""Files that cannot be written, or cannot grow, cost a sentence at most: at a start, and later."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .notebook import Notebook, transcript

LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
FREE = LIMIT.format("resource.RLIM_INFINITY")

FULL = """
exec('''
import errno, os
def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
''', lie := {})
from nbcomm.world_dir import WorldDir
"""
"""What fails as on a full disk, in names of its own."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Where worlds lie: short enough for sockets, and empty."""
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _started(notebook: Notebook) -> None:
    notebook.run("%distributed start -n 2", timeout=120)
    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"


@pytest.mark.usefixtures("no_processes_left")
def test_a_limit_on_files_is_told_at_a_start_which_leaves_nothing(
    place: Path, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(TMPDIR=str(place))
    for size in (0, 4096, 65536, 1 << 20):
        notebook.run(LIMIT.format(size))
        cell = notebook.run("%distributed start -n 2", fails=True)
        assert cell.error_text.strip() == (
            f"StartError: No process of this notebook may write a file of more than {size:,} bytes (RLIMIT_FSIZE), and "
            "a world needs 2,097,152; type `ulimit -f unlimited` in the shell from which you start Jupyter, before "
            "you do."
        )
        assert {path.name for path in place.glob("nbcomm-*/*")} <= {"seeds"}
    notebook.run(FREE)
    _started(notebook)


@pytest.mark.usefixtures("no_processes_left")
def test_a_full_disk_is_told_at_a_start_which_leaves_nothing(
    place: Path, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(FULL, TMPDIR=str(place))
    for step in ("create", "check_room", "write_secret", "write_link", "write_world"):
        if step == "create":
            notebook.run("from nbcomm.node.seed import client\nclient.let_go()")
        notebook.run(f"plain = WorldDir.__dict__[{step!r}]\nWorldDir.{step} = staticmethod(lie['full'])")
        cell = notebook.run("%distributed start -n 2", fails=True, timeout=120)
        assert cell.error_text.strip() == (
            f"StartError: There is no room for the files of a world in {place} (No space left on device); free some "
            "space, or set TMPDIR to a directory on another disk before you start Jupyter."
        )
        assert {path.name for path in place.glob("nbcomm-*/*")} <= {"seeds"}
        notebook.run(f"WorldDir.{step} = plain")
    _started(notebook)


def test_the_extension_loads_on_a_full_disk(place: Path) -> None:
    notebook = Notebook(str(place), TMPDIR=str(place))
    try:
        notebook.run(f"{FULL}\nplain = WorldDir.__dict__['create']\nWorldDir.create = staticmethod(lie['full'])")
        notebook.run("%load_ext nbcomm")
        notebook.run("WorldDir.create = plain")
        _started(notebook)
    finally:
        notebook.close()


def test_a_world_goes_on_where_no_file_can_grow_any_more(four: Notebook) -> None:
    four.run("import numpy as np\nfrom nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run("%%distributed\nbig = torch.full((300_000,), float(rank))")
    before = four.run("print(sorted(path.name for path in session.home.bulk.iterdir()))").text
    four.run(LIMIT.format(4096))
    four.run("%%distributed\n" + LIMIT.format(4096))
    try:
        assert four.run("%%distributed\nprint('x' * 100_000)").text == f"[0-3] {'x' * 100_000}\n"
        four.run("%distributed pull big -r 1")
        assert four.run("print(float(big[0].sum()))").text == "300000.0\n"
        four.run("there = np.full(300_000, 2.0)")
        four.run("%distributed push there")
        assert four.run("%%distributed\nfloat(there.sum())").text == "[0-3] 600000.0\n"
        assert four.run("print(sorted(path.name for path in session.home.bulk.iterdir()))").text == before
        cell = four.run("%%distributed\nall_reduce(torch.zeros(2 + rank % 2))", fails=True)
        assert "MismatchError" in cell.error_text
        four.run("%%distributed -r 1\nimport os; os._exit(3)", fails=True)
        assert "Rank 1 is back" in four.run("%distributed heal").text
        assert four.run("%%distributed\nall_reduce(rank)").text == "[0-3] 6\n"
    finally:
        four.run(FREE)
        four.run("%%distributed\n" + FREE)


DESCRIPTORS = """\
%%distributed
import os, resource
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
held = []
try:
    while True: held.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error: print(error.strerror)
if rank: barrier()"""


def test_where_a_cell_has_used_up_all_descriptors_a_hang_is_told_and_no_rank_is_lost(four: Notebook) -> None:
    cell = four.run(DESCRIPTORS, fails=True)
    assert "Too many open files" in cell.text
    assert "ranks 1-3 wait in it, but rank 0 has finished the cell" in cell.error_text
    assert four.run("%%distributed\nlen(held) > 100").text == "[0-3] True\n", "groups have been formed since"
    assert four.run("%%distributed\nall_reduce(torch.ones(2))").text == "[0-3] tensor([4., 4.])\n", "a value is shown"
    shown = four.run("%%distributed\ndef f():\n    return 1 / 0  # here\nf()", fails=True)
    assert "return 1 / 0  # here" in shown.error_text
    assert "Unexpected exception formatting exception" not in transcript(shown)
    said = (
        "nbcomm: on ranks 0-3 all 256 files and connections that the process may have (RLIMIT_NOFILE) are open: close "
    )
    assert shown.stream("stderr").startswith(said)
    four.run("import torch\nlarge = torch.ones(3_000_000)")
    four.run("%distributed push large")
    four.run("del large")
    four.run("%distributed pull large -r 2")
    assert four.run("print(float(large[0].sum()))").text == "3000000.0\n"
    assert "large" in four.run("%distributed who").text
    refused = four.run("%%distributed\nnew_group([0, 1])", fails=True)
    assert "Too many open files" in refused.error_text
    freeing = "for each in held: os.close(each)\nresource.setrlimit(resource.RLIMIT_NOFILE, before)"
    four.run(f"%%distributed\n{freeing}")
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
