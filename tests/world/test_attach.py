"""The notebook may die: its world waits for the next kernel, with its variables and the cell that runs on it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .notebook import Notebook
from .processes import FIND

Open = Callable[..., Notebook]

MAKE = "%%distributed\nkept, pair = rank * 10, new_group([0, 1])\nprint('made')"
KEPT = "%%distributed\n(kept == rank * 10, all_reduce(1), all_reduce(1, group=pair) if rank < 2 else 2)"
WHOLE = "[0-2] (True, 3, 2)\n"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A place for this test's worlds alone, with a short path as sockets need it."""
    with _place() as directory:
        yield directory


def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True)


class _Lasting:
    """A world that outlives the kernels of many tests, the only one in its place: each hands on its notebook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = _place()
        self.notebook = Notebook(str(folder), TMPDIR=self.elsewhere.name)
        self.notebook.run("%load_ext nbcomm")

    def begin(self) -> None:
        """Start the world, if there is none, and let it show something."""
        if not self._runs():
            self.notebook.run("%distributed start -n 3 --grace 60")
        self.notebook.run(MAKE)

    def is_good(self) -> bool:
        """Whether the next test can begin: the notebook runs nothing, and its world, if there is one, works."""
        if not self.notebook.manager.is_alive() or any(not cell.idle for cell in self.notebook.cells.values()):
            return False
        if not self._runs():
            return True
        self.notebook.finish(self.notebook.submit(MAKE))
        return self.notebook.finish(self.notebook.submit(KEPT)).text == WHOLE

    def _runs(self) -> bool:
        return "No world is running" not in self.notebook.finish(self.notebook.submit("%distributed")).text

    def close(self) -> None:
        self.notebook.close()
        self.elsewhere.cleanup()


@pytest.fixture(scope="module")
def given() -> Iterator[list[_Lasting]]:
    """What a test has handed on, if it could."""
    handed: list[_Lasting] = []
    yield handed
    for one in handed:
        one.close()


@pytest.fixture
def lasting(given: list[_Lasting], tmp_path: Path) -> Iterator[_Lasting]:
    """The world of most tests here, and its notebook; where a test has failed, the next one has others."""
    one = given.pop() if given else _Lasting(tmp_path)
    try:
        one.begin()
        yield one
        if one.is_good():
            given.append(one)
    finally:
        if one not in given:
            one.close()


@pytest.fixture
def notebook(lasting: _Lasting) -> Notebook:
    return lasting.notebook


def _begin_again(notebook: Notebook) -> None:
    """What a person does after the kernel is back."""
    assert "An earlier kernel of this notebook left" in notebook.run("%load_ext nbcomm").text


def _kill(notebook: Notebook) -> None:
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.begin_again()


def test_a_restarted_kernel_finds_its_world(notebook: Notebook) -> None:
    notebook.restart()
    _begin_again(notebook)
    cell = notebook.run("%distributed attach")
    assert "Attached to 3 ranks on cpu, gloo." in cell.text
    assert "[0-2] made" not in cell.text, "the cell had ended, and been seen"
    assert notebook.run(KEPT).text == WHOLE


def test_what_ranks_have_answered_the_kernels_before_is_no_answer_to_the_next_ones(notebook: Notebook) -> None:
    for _ in range(2):
        notebook.restart()
        _begin_again(notebook)
        notebook.run("%distributed attach")
        for _ in range(5):
            notebook.run(KEPT)
    notebook.restart()
    _begin_again(notebook)
    notebook.run("%distributed attach")
    assert notebook.run("%%distributed\nimport time\ntime.sleep(1)\nrank").text == "[0] 0\n[1] 1\n[2] 2\n"


def test_a_killed_kernel_finds_its_world_and_the_cell_that_runs_with_all_its_output(notebook: Notebook) -> None:
    cell = notebook.submit(
        "%%distributed\nimport time\nfor i in range(60):\n  print(i, flush=True); time.sleep(0.1)\nall_reduce(1)"
    )
    notebook.until(lambda: "\n5\n" in cell.text.replace("[0-2] ", "\n"), 20, "it does not run", cell)
    _kill(notebook)
    _begin_again(notebook)
    shown = notebook.run("%distributed attach")
    lines = shown.text[shown.text.index("[0-2] 0\n") :].splitlines()
    assert lines == [f"[0-2] {i}" for i in range(60)] + ["[0-2] 3"]
    assert notebook.run(KEPT).text == WHOLE


def test_a_cell_that_ended_unseen_is_shown_with_its_error(notebook: Notebook, lasting: _Lasting) -> None:
    code = """\
%%distributed
import os, psutil, time
from pathlib import Path
from nbcomm.world_dir import HOME_VARIABLE, WorldDir
print('on', flush=True)
while psutil.pid_exists(WorldDir(os.environ[HOME_VARIABLE]).holder()): time.sleep(0.05)
for i in range(20): print(i, flush=True); time.sleep(0.1)
all_gather(0)
if rank == 0: Path("over").touch()
if rank == 1: 1 / 0
"""
    cell = notebook.submit(code)
    notebook.until(lambda: "[0-2] on" in cell.text, 60, "it does not run", cell)
    _kill(notebook)
    deadline = time.monotonic() + 30
    # The cell ends while there is no notebook.
    while not (lasting.folder / "over").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    notebook.run("%load_ext nbcomm")
    shown = notebook.run("%distributed attach", fails=True)
    lines = [f"[0-2] {line}" for line in ("on", *range(20))]  # all of it, once
    assert [line for line in shown.lines if line.startswith("[0-2]")] == lines
    assert "[1] ZeroDivisionError" in shown.error_text
    assert notebook.run(KEPT).text == WHOLE


def test_what_hangs_or_runs_on_is_ended_by_the_next_notebook(notebook: Notebook, lasting: _Lasting) -> None:
    # It hangs once this notebook is gone, which would end it otherwise.
    code = "import time\nfrom pathlib import Path\nprint('on', flush=True)\nif rank: barrier()"
    cell = notebook.submit(f"%%distributed\n{code}\nwhile not Path('gone').exists(): time.sleep(0.05)")
    notebook.until(lambda: "[0-2] on" in cell.text, 60, "it does not run", cell)
    _kill(notebook)
    (lasting.folder / "gone").touch()
    notebook.run("%load_ext nbcomm")
    assert "Error" in notebook.run("%distributed attach", fails=True).error_text
    assert notebook.run(KEPT).text == WHOLE
    cell = notebook.submit("%%distributed\nimport time\nprint('on', flush=True); time.sleep(60)")
    notebook.until(lambda: "[0-2] on" in cell.text, 60, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm")
    notebook.interrupted("%distributed attach", once="[0-2] on")
    assert notebook.run(KEPT).text == WHOLE


def test_a_rank_that_died_meanwhile_is_named_and_healed(notebook: Notebook) -> None:
    pid = int(notebook.run("%%distributed -r 1\nimport os\nos.getpid()").text.removeprefix("[1] "))
    _kill(notebook)
    os.kill(pid, signal.SIGKILL)
    notebook.run("%load_ext nbcomm")
    notebook.run("%distributed attach")
    assert "Rank 1 was killed by SIGKILL" in notebook.run("%%distributed\n1", fails=True).error_text
    assert "Rank 1 is back" in notebook.run("%distributed heal").text
    assert notebook.run("%%distributed\n(all_reduce(1), globals().get('kept'))").lines == [
        "[0] (3, 0)",
        "[1] (3, None)",
        "[2] (3, 20)",
    ]


def test_two_notebooks_never_share_a_world(notebook: Notebook, lasting: _Lasting, open_notebook: Open) -> None:
    where = notebook.run("from nbcomm.notebook.session import registry\nprint(registry.current().home.id)").text.strip()
    other = open_notebook(TMPDIR=lasting.elsewhere.name)
    assert "No world without a notebook is running" in other.run("%distributed attach", fails=True).error_text
    refused = other.run(f"%distributed attach {where}", fails=True).error_text
    assert f"in use by the notebook of process {notebook.pid}" in refused
    other.run("%distributed start -n 2")
    assert "already controls a world of 2 ranks" in other.run("%distributed attach", fails=True).error_text
    assert other.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    assert notebook.run(KEPT).text == WHOLE
    other.run("%distributed stop")


def test_of_two_that_attach_at_once_the_loser_touches_nothing(
    notebook: Notebook, lasting: _Lasting, open_notebook: Open
) -> None:
    other = open_notebook(TMPDIR=lasting.elsewhere.name)
    # Both have found it free; then the first one claims it.
    other.run("from nbcomm.launch.discovery import find_worlds\nfrom nbcomm.notebook.session import registry")
    other.run("w, = find_worlds()")
    refused = other.run("registry._take_up(w, '')", fails=True)
    assert refused.error_text == f"StateError: This world is in use by the notebook of process {notebook.pid}."
    began = time.monotonic()
    assert notebook.run(KEPT).text == WHOLE
    notebook.run("%%distributed -r 2\nimport os\nos.kill(os.getpid(), 9)", fails=True)
    assert "Rank 2 is back" in notebook.run("%distributed heal").text
    notebook.run(MAKE)
    assert notebook.run(KEPT).text == WHOLE
    # Such a rank would never be found, which takes a minute.
    assert time.monotonic() - began < 60, "the new rank has looked for the notebook where it is not"
    notebook.run("%distributed stop")
    assert "No world" in other.run("%distributed attach", fails=True).error_text


def _lost(*notebooks: Notebook) -> None:
    """Kill kernels, and have others in their places that have loaded nbcomm."""
    for one in notebooks:
        _kill(one)
    for one in notebooks:
        _begin_again(one)


def _id(notebook: Notebook) -> str:
    return notebook.run("from nbcomm.notebook.session import registry\nprint(registry.current().home.id)").text.strip()


START = "%distributed start -n 1 --grace 60"


@pytest.mark.parametrize(
    "named", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["Jupyter names it", "a kernel alone"]
)
def test_of_several_worlds_a_notebook_finds_its_own(open_notebook: Open, elsewhere: str, *, named: bool) -> None:
    jupyter = [{"JPY_SESSION_NAME": f"/books/{name}.ipynb" if named else ""} for name in "ab"]
    first, second = (open_notebook(START, "%%distributed\nkept = 1", TMPDIR=elsewhere, **these) for these in jupyter)
    first.run("%%distributed\nkept = 'first'")
    own, other = _id(first), _id(second)
    # A heal writes the world's file anew, and what is known of its notebook stays in it.
    first.run("%distributed heal 0")
    first.run("%%distributed\nkept = 'first'")
    _lost(first, second)
    shown = first.run("%distributed attach").text
    said = f"It is the world of this notebook, {own}, of 2 without a notebook. The\nothers:\n  {other}: 1 rank on cpu"
    assert said in shown
    assert first.run("%%distributed\nkept").text == "[0] 'first'\n"
    first.run("%distributed stop")
    second.run("%distributed attach")
    second.run("%distributed stop")


def test_who_takes_up_the_world_of_another_has_it_for_his_own(open_notebook: Open, elsewhere: str) -> None:
    one = open_notebook(START, "%%distributed\nkept = 1", TMPDIR=elsewhere, JPY_SESSION_NAME="/books/a.ipynb")
    other = _id(one)
    _kill(one)
    third = open_notebook(f"%distributed attach {other}", TMPDIR=elsewhere, JPY_SESSION_NAME="/books/c.ipynb")
    beside = open_notebook(START, TMPDIR=elsewhere)
    _lost(third, beside)
    assert f"It is the world of this notebook, {other}, of 2 " in third.run("%distributed attach").text
    assert third.run("%%distributed\nkept").text == "[0] 1\n"
    third.run("%distributed stop")
    beside.run("%distributed attach")
    beside.run("%distributed stop")


def test_of_kernels_that_know_no_notebook_the_folder_decides_or_one_must_be_named(
    open_notebook: Open, elsewhere: str, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    one = open_notebook(START, "%%distributed\nkept = 'one'", TMPDIR=elsewhere)
    two = open_notebook("%cd -q sub", START, "%%distributed\nkept = 'two'", TMPDIR=elsewhere)
    ids = {_id(one), _id(two)}
    last = _id(one)
    _lost(one, two)
    other = open_notebook("%cd -q /", TMPDIR=elsewhere)
    refused = other.run("%distributed attach", fails=True).error_text
    assert (
        "None of the 2 worlds without a notebook is known to be this\nnotebook's; to take one all the same, " in refused
    )
    assert "type %distributed attach ID:" in refused
    assert {line.split(":")[0].strip() for line in refused.splitlines() if "1 rank on cpu" in line} == ids
    assert "of this notebook" not in refused
    unknown = other.run("%distributed attach nonsense", fails=True).error_text
    assert "No world 'nonsense' is running on this machine." in unknown
    other.run(f"%cd -q {tmp_path / 'sub'}")
    assert "It is the world that was started in this folder, " in other.run("%distributed attach").text
    assert other.run("%%distributed\nkept").text == "[0] 'two'\n"
    other.run("%distributed stop")
    refused = other.run("%distributed attach", fails=True).error_text
    assert "The only world without a notebook is not known to be this\nnotebook's; to take it all the same," in refused
    assert f"%distributed attach {last}:" in refused
    other.run(f"%cd -q {tmp_path}")
    assert "It is the world" not in other.run("%distributed attach").text, "there is no other"
    assert other.run("%%distributed\nkept").text == "[0] 'one'\n"
    other.run("%distributed stop")


def test_the_world_of_another_notebook_is_taken_only_by_its_name(open_notebook: Open, elsewhere: str) -> None:
    one = open_notebook(START, "%%distributed\nkept = 'one'", TMPDIR=elsewhere, JPY_SESSION_NAME="/books/a.ipynb")
    which = _id(one)
    os.kill(one.pid, signal.SIGKILL)
    for whose in ("/books/b.ipynb", ""):  # another one, and a kernel that does not know its notebook
        other = open_notebook(TMPDIR=elsewhere, JPY_SESSION_NAME=whose)
        refused = other.run("%distributed attach", fails=True).error_text
        assert f"to take it all the same, type %distributed attach {which}:\n  {which}: 1 rank on cpu" in refused
        assert refused.endswith(", of /books/a.ipynb")
        assert other.run("%%distributed -r 0\n'kept' in globals()").lines[-1] == "[0] False", "it has its own"
        other.run("%distributed stop")
    other.run(f"%distributed attach {which}")
    assert other.run("%%distributed\nkept").text == "[0] 'one'\n"
    other.run("%distributed stop")


LEFT = "An earlier kernel of this notebook left 1 rank on cpu, with their variables."


def test_restart_and_run_all_runs_on_new_ranks_and_tells_the_way_back(open_notebook: Open, elsewhere: str) -> None:
    notebook = open_notebook(START, "%%distributed\nkept = 1", TMPDIR=elsewhere)
    notebook.restart()
    told = notebook.run("%load_ext nbcomm").text
    assert told.count(LEFT) == 1
    assert "type %distributed attach to go on with them." in told
    for line in ("%distributed who", "%distributed pull kept"):
        refused = notebook.run(line, fails=True).error_text
        assert refused.count(LEFT) == 1
        assert "For new ranks, " in refused
    assert LEFT in notebook.run("%distributed").text
    notebook.run("%distributed attach")
    assert notebook.run("%%distributed\nkept").text == "[0] 1\n"
    # Run All: whatever comes first starts new ranks, and tells of the others.
    for first in ("%%distributed\n1", "%distributed run x.py", START):
        notebook.restart()
        notebook.run("%load_ext nbcomm\n_ = open('x.py', 'w').write('print(1)')")
        told = notebook.run(first).text
        assert told.count(LEFT) == 1
        assert "type %distributed attach --world before to go on with" in told
        assert "Nothing was run" not in told
        if first is not START:
            notebook.run("%distributed stop\n%distributed attach")
    unknown = notebook.run("%%distributed\nkept", fails=True).error_text
    assert "NameError" in unknown
    assert unknown.count(LEFT) == 1
    assert "type %distributed attach --world before to go on with" in unknown
    notebook.run("%distributed attach --world before")
    assert notebook.run("%%distributed --world before\nkept").text == "[0] 1\n"
    assert LEFT not in notebook.run("%%distributed\nkept", fails=True).error_text
    notebook.run("%distributed stop --world before")
    notebook.run("%distributed stop")
    assert notebook.run("%%distributed -r 0\n1").lines[-1] == "[0] 1", "there is none any more"
    notebook.run("%distributed stop")


def test_a_killed_controller_is_named_and_replaced_and_so_is_a_killed_daemon(notebook: Notebook) -> None:
    notebook.run(f"import os, time\n{FIND}s = registry.current()")
    assert notebook.run("s.client.ids").text == "[0, 1, 2]\n"
    for which, said in (("controller", "was killed by SIGKILL"), ("daemon", "controller has ended")):  # with it
        notebook.run(f"os.kill(helpers()[{which!r}], 9)\nwhile {said!r} not in str(s.troubles): time.sleep(0.01)")
        assert said in notebook.run("%distributed").text
        assert notebook.run(KEPT).text == WHOLE, "cells run on"
        assert "back after" in notebook.run("%distributed heal").text
        notebook.run("%%distributed -r 2\nimport os\nos.kill(os.getpid(), 9)", fails=True)
        assert "Rank 2 is back" in notebook.run("%distributed heal").text
        notebook.run(MAKE)
        assert notebook.run(KEPT).text == WHOLE
        assert notebook.run("s.client[:]['kept']").text == "[0, 10, 20]\n"
    notebook.run("%distributed stop")


def test_an_attach_that_is_interrupted_before_the_cell_is_shown_leaves_it_running(notebook: Notebook) -> None:
    cell = notebook.submit("%%distributed\nimport time\nprint('on', flush=True); time.sleep(60)")
    notebook.until(lambda: "[0-2] on" in cell.text, 60, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm\nfrom nbcomm.notebook.session import registry\nregistry.use(registry.attach())")
    assert "Ranks 0-2 still run an earlier cell" in notebook.run("%%distributed\n1", fails=True).error_text
    notebook.run("%distributed interrupt\ns = registry.current()\nwhile s.busy: s._rank_table.wait(0.01)")
    assert notebook.run(KEPT).text == WHOLE


def test_no_process_is_replaced_for_a_script_while_any_rank_runs_a_cell(notebook: Notebook) -> None:
    cell = notebook.submit("%%distributed -r 2\nimport time\nprint('on', flush=True); time.sleep(60)")
    notebook.until(lambda: "on" in cell.text, 60, "it does not run", cell)
    _kill(notebook)
    notebook.run("%load_ext nbcomm\nfrom nbcomm.notebook.session import registry\nregistry.use(registry.attach())")
    notebook.run("open('x.py', 'w').write('kept')")
    refused = notebook.run("%distributed run --fresh -r 0 x.py", fails=True)
    assert "Rank 2 still runs an earlier cell; nothing was run." in refused.error_text
    notebook.run("%distributed interrupt\ns = registry.current()\nwhile s.busy: s._rank_table.wait(0.01)")
    assert notebook.run(KEPT).text == WHOLE


BREAK = """
from nbcomm.notebook.session import registry, session as sessions
plain = sessions.{what}
def broken(*args, **kwargs):
    sessions.{what} = plain
    raise OSError("on purpose")
sessions.{what} = broken
registry.current().release()
"""


@pytest.mark.parametrize("what", ["Generations", "Reattachment", "MessageRouter"])
def test_an_attach_that_fails_early_lets_go_of_the_world(notebook: Notebook, what: str) -> None:
    notebook.run(BREAK.format(what=what))
    assert "on purpose" in notebook.run("%distributed attach", fails=True).error_text
    notebook.run("%distributed attach")
    assert notebook.run(KEPT).text == WHOLE


FAILS_ONCE = """
from nbcomm.launch import nodes
from nbcomm.notebook.cluster import processes
from nbcomm.notebook.session import registry, session as sessions
from nbcomm import world_dir
owner, name = {owner}, {name!r}
plain = getattr(owner, name)
def broken(*args, **kwargs):
    setattr(owner, name, plain)
    raise TypeError("on purpose")
setattr(owner, name, broken)
"""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("processes.Processes", "claim"),
        ("sessions.Session", "_take_up"),
        ("world_dir.WorldDir", "write_world"),
        ("registry", "use"),
    ],
)
def test_an_attach_that_fails_late_lets_go_of_the_world_too(notebook: Notebook, owner: str, name: str) -> None:
    notebook.run("from nbcomm.notebook.session import registry\nregistry.current().release()")
    notebook.run(FAILS_ONCE.format(owner=owner, name=name))
    assert "on purpose" in notebook.run("%distributed attach", fails=True).error_text
    notebook.run("%distributed attach")
    assert notebook.run(KEPT).text == WHOLE


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("sessions", "_for_sure"),
        ("sessions.Session", "_hang_up"),
        ("nodes.Nodes", "release"),
        ("world_dir.WorldDir", "let_go"),
    ],
)
def test_a_world_is_released_though_a_step_of_it_has_failed_once(notebook: Notebook, owner: str, name: str) -> None:
    code = FAILS_ONCE.format(owner=owner, name=name) + "registry.current().release()"
    notebook.finish(notebook.submit(code))  # it may raise what has failed
    notebook.run("%distributed attach")
    assert notebook.run(KEPT).text == WHOLE
