"""Files that cannot be written, or cannot grow, cost a sentence at most: at a start, and later."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nbcomm.world_dir import WorldDir

from .notebook import SESSION, Notebook, transcript
from .processes import OLD_GLOO, pid_of

REFUSED = (
    "StartError: There is no room for the files of a world in {} (No space left on device); free some space, or set "
    "TMPDIR to a directory on another disk before you start Jupyter."
)

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
        assert cell.error_text.flat == (
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
        assert cell.error_text.flat == REFUSED.format(place)
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
        cell = four.run("%%distributed\nall_reduce(rank)")
        # That what gloo prints is lost may be said.
        assert (cell.stream("stdout") if OLD_GLOO else cell.text) == "[0-3] 6\n"
    finally:
        four.run(FREE)
        four.run("%%distributed\n" + FREE)


def test_a_notebook_that_has_used_up_its_descriptors_goes_on_with_its_ranks(four: Notebook) -> None:
    four.run(
        "import os, resource, torch\nlarge = torch.ones(3_000_000)\nbefore = resource.getrlimit(resource.RLIMIT_NOFILE)"
    )
    four.run("%%distributed\nalso_large = torch.ones(3_000_000)")
    four.run(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))\nheld = []\ntry:\n"
        "    while True: held.append(os.open(os.devnull, os.O_RDONLY))\nexcept OSError: pass"
    )
    try:  # IPython's thread for its history may say here that it can open no file
        assert four.run("%%distributed\nprint(rank)\nall_reduce(1)").lines[-1] == "[0-3] 4"
        assert "1 / 0" in four.run("%%distributed\n1 / 0", fails=True).error_text
        four.run("%distributed push large")
        assert four.run("%%distributed\nfloat(large.sum())").stream("stdout").endswith("[0-3] 3000000.0\n")
        four.run("%distributed pull also_large -r 1")
        assert "also_large" in four.run("%distributed who").text
        assert "rank 0 has finished the cell" in four.run("%%distributed\nif rank: barrier()", fails=True).error_text
        four.run("%%distributed -r 1\nimport os; os._exit(3)", fails=True)
        assert "Rank 1 is back" in four.run("%distributed heal").text
        assert four.run("%%distributed\nall_reduce(1)").stream("stdout").endswith("[0-3] 4\n")
    finally:
        four.run("for each in held: os.close(each)\nresource.setrlimit(resource.RLIMIT_NOFILE, before)")
    assert four.run("float(also_large[0].sum())").text == "3000000.0\n"


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
    assert re.search(r"ranks? [1-3,-]+ waits? in it, in line ", cell.error_text), "it can be told before all have come"
    assert "  rank 0 has finished the cell" in cell.error_text
    assert four.run("%%distributed\nlen(held) > 100").text == "[0-3] True\n", "groups have been formed since"
    assert four.run("%%distributed\nall_reduce(torch.ones(2))").text == "[0-3] tensor([4., 4.])\n", "a value is shown"
    shown = four.run("%%distributed\ndef f():\n    return 1 / 0  # here\nf()", fails=True)
    assert "return 1 / 0  # here" in shown.error_text
    assert "Unexpected exception formatting exception" not in transcript(shown)
    said = (
        "nbcomm: on ranks 0-3 all 256 files and connections that the process may have (RLIMIT_NOFILE) are open: close "
    )
    assert shown.stream("stdout").startswith(said)
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


class Disk:
    """A small disk, in memory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Leave what worlds need."""
        self._ballast.unlink()

    def use_up_names(self) -> None:
        """Let no further file be made."""
        with suppress(OSError):
            for number in itertools.count():
                (self.place / f"name{number}").touch()


@pytest.fixture
def disk(place: Path) -> Iterator[Disk]:
    """A disk of 4 MB, where the worlds of a test lie; name it before the notebooks, which end before it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=4m,nr_inodes=400"):
        pytest.skip(f"no disk can be mounted here, as root may: {os.strerror(ctypes.get_errno())}")
    yield Disk(place)
    libc.umount2(os.fsencode(place), 2)  # MNT_DETACH: a seed may still work there


def _home(notebook: Notebook) -> WorldDir:
    return WorldDir(notebook.run(f"{SESSION}\nprint(session.home.path)").text.strip())


def _pids(notebook: Notebook) -> list[str]:
    lines = notebook.run("%%distributed --no-fold\nimport os; os.getpid()").lines
    return [line.split()[1] for line in lines]


def _replace_rank(notebook: Notebook, disk: Disk) -> None:
    """Let a rank die and be healed on a disk on which nobody can write that down."""
    disk.fill()
    notebook.run("%%distributed -r 1\nimport os; os._exit(3)", fails=True)
    disk.fill()  # what its end has freed
    assert "Rank 1 is back" in notebook.run("%distributed heal").text
    disk.fill()


def test_a_rank_healed_on_a_full_disk_is_known_to_each_later_daemon(
    disk: Disk, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(TMPDIR=str(disk.place))
    _started(notebook)
    home = _home(notebook)
    _replace_rank(notebook, disk)
    healed = _pids(notebook)[1]
    assert healed not in home.read_children().decode(), "the disk is not full"
    for ended in (["zygote"], ["daemon"], ["zygote", "daemon"]):
        for pid in [pid_of(notebook, which) for which in ended]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        notebook.run("%distributed heal", timeout=60)
        disk.fill()
        assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
        assert _pids(notebook)[1] == healed
    assert re.search("[Rr]ank 1 (is|are) back", notebook.run("%distributed heal 1").text)
    disk.free()
    healed = _pids(notebook)[1]
    notebook.until(lambda: healed in home.read_children().decode(), 30, "it is not written down as soon as it can be")
    assert [str(hello.pid) for hello in home.read_world().hellos] == _pids(notebook), "nor for another notebook"


def test_a_world_is_taken_up_and_ended_on_a_full_disk(disk: Disk, open_notebook: Callable[..., Notebook]) -> None:
    first = open_notebook(TMPDIR=str(disk.place))
    _started(first)
    home = _home(first)
    _replace_rank(first, disk)
    pids = _pids(first)
    first.manager.shutdown_kernel(now=True)
    second = open_notebook(TMPDIR=str(disk.place))
    assert "Attached to 2 ranks" in second.run("%distributed attach").text
    assert second.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
    assert _pids(second) == pids
    assert pids[1] in second.run("%distributed status").text
    second.run(f"{SESSION}\nthere = bytes(4_000_000)\nsession.push(there=there)")
    assert second.run("print([len(each) for each in session.pull('there')])").text == "[4000000, 4000000]\n"
    assert second.run("session.client.ids", fails=True).error_text.endswith(REFUSED.format(disk.place))
    second.run("import tempfile; tempfile.tempdir = session.home.path.parents[1]")
    assert second.run("%distributed restart", fails=True).error_text.flat == REFUSED.format(disk.place)
    assert second.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n", "nothing was stopped"
    assert "Stopped 2 ranks" in second.run("%distributed stop").text
    assert not home.path.exists()


def test_text_of_c_code_and_child_processes_is_shown_on_a_full_disk_or_said_to_be_lost(
    disk: Disk, open_notebook: Callable[..., Notebook]
) -> None:
    notebook = open_notebook(TMPDIR=str(disk.place))
    _started(notebook)
    place = _home(notebook).path
    puts = "%%distributed -r 0\nimport ctypes\nfor _ in range({}): _ = ctypes.CDLL(None).puts(b'from C')"
    lost = (
        f"nbcomm: on rank 0 some of what C code wrote to stdout is lost: there is no room for it in {place} (No space "
        "left on device). Free some space there.\n"
    )
    perhaps = (
        f"nbcomm: on rank 0 what C code and child processes write may be lost: there is no room for it in {place} (No "
        "space left on device). Free some space there.\n"
    )
    disk.fill()
    assert notebook.run("%%distributed\nprint('x' * 100_000)").text == f"[0-1] {'x' * 100_000}\n"
    assert notebook.run(puts.format(1)).text == "[0] from C\n"
    assert "[0] child\n" in notebook.run("%%distributed -r 0\nimport os; os.system('echo child')").text
    flooded = notebook.run(puts.format(10_000)).text
    assert "some of what C code wrote to stdout is lost" in flooded
    assert perhaps in flooded
    assert notebook.run(puts.format(1)).text.flat == lost.strip()
    assert notebook.run("%%distributed\nprint('Python')").text == "[0-1] Python\n"
    disk.free()
    assert notebook.run("%%distributed\nprint('again')").text == "[0-1] again\n"
    assert notebook.run(puts.format(1)).text == "[0] from C\n"


def test_a_world_goes_on_where_no_further_file_can_be_made(disk: Disk, open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(TMPDIR=str(disk.place))
    _started(notebook)
    disk.use_up_names()
    os.kill(pid_of(notebook, "zygote"), signal.SIGKILL)
    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
    disk.use_up_names()
    os.kill(pid_of(notebook, "daemon"), signal.SIGKILL)
    assert re.search("[Rr]ank 1 (is|are) back", notebook.run("%distributed heal 1").text)
    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
    assert "Stopped 2 ranks" in notebook.run("%distributed stop").text
