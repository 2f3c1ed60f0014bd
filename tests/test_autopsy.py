"""A test that runs out of its time says what was there; each of these runs pytest on a test that does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import autopsy

pytestmark = [pytest.mark.world, pytest.mark.timeout(240)]  # a busy machine takes its time to look at every process

HANGING = """
import subprocess, sys, time
import pytest
from tests import autopsy
from tests.world.notebook import with_ranks

autopsy._SECONDS, autopsy._SECONDS_EACH = 40.0, 20.0  # all must be told, also by a busy machine
HANG = "%%distributed\\nif rank == 1:\\n    print('on my way')\\n    time.sleep(600)"

@pytest.fixture
def two(tmp_path):
    with with_ranks(tmp_path, 2) as notebook:
        notebook.run("from nbcomm.notebook.session import registry\\n"
                     "registry.current().home.add_to_log(1, 'a word in the log of rank 1\\\\n')")
        notebook.run("%%distributed\\nimport time")
        cell = notebook.submit(HANG)
        notebook.until(lambda: "on my way" in cell.text, 20, "it did not begin", cell)
        yield notebook, cell
        notebook.end_all()

def test_cell(two):
    two[0].finish(two[1], 3)

@pytest.mark.timeout(3, func_only=True)
def test_whole(two):
    time.sleep(600)

def test_assertion():
    assert not sys.argv, "a plain failure"

def test_ranks():
    from tests.worlds import World
    def hang(comm):
        time.sleep(600)
    world = World(2)
    world.run(lambda comm: None)  # they are there: only their function has a deadline
    world.run(hang, deadline=3)

def test_program():
    subprocess.run([sys.executable, "-c", "import time\\ntime.sleep(600)"], timeout=10)
"""


def _report(folder: Path, test: str, *options: str) -> str:
    """What pytest says of one of the tests above, which fails."""
    (folder / "test_hanging.py").write_text(HANGING)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 200\ntimeout_method = signal\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.autopsy", "-p", "no:cacheprovider", *options]
    ended = subprocess.run(
        [*command, "-c", str(folder / "pytest.ini"), f"{folder}/test_hanging.py::test_{test}"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed" in ended.stdout, ended.stdout
    return ended.stdout


@pytest.fixture(scope="module")
def _in_sight() -> None:
    """Some systems let a process look into its own children only; py-spy is a sibling of those it looks at."""
    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as other:
        assert other.stdout.readline()
        seen = subprocess.run(
            [Path(sys.executable).parent / "py-spy", "dump", "--pid", str(other.pid)],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        other.communicate(b"\n")
    if seen.returncode and "ermission" in seen.stderr:
        pytest.skip(f"no process may look into another here: {seen.stderr.strip()}")


@pytest.mark.usefixtures("_in_sight", "no_processes_left")
@pytest.mark.parametrize(
    ("test", "workers"),
    [
        pytest.param("cell", (), id="a cell's deadline"),
        pytest.param("whole", ("-n", "1"), id="the test's own, in a worker of pytest-xdist", marks=pytest.mark.nightly),
    ],
)
def test_the_page_the_stacks_and_the_logs_are_in_the_report(
    tmp_path: Path, test: str, workers: tuple[str, ...]
) -> None:
    report = _report(tmp_path, test, *workers)
    pages, stacks, logs = (
        re.search(rf"when the time was over: {title} -+\n(.*?)\n(?:-{{9}}|={{9}})", report, re.DOTALL)[1]
        for title in ("pages", "stacks", "logs")
    )
    assert re.search(r"cell \d, ended:\n  >>> %%distributed\n  >>> import time\n", pages)
    assert re.search(r"cell \d, NOT ENDED:\n  >>> %%distributed\n(.*\n)*      \[1\] on my way", pages)
    ranks = dict(re.findall(r"writes to (\S+): .*\n((?:.+\n?)*)", stacks))
    assert re.search(r'"MainThread"\n +<module> \(<ipython-input-\S+>:4\)', ranks["rank1.stdout"])
    assert "<ipython-input" not in ranks["rank0.stdout"]
    assert "Daemon.serve" in stacks
    assert re.search(r"Dispatcher\.wait .*\n(.*\n)+", stacks)  # the kernel
    assert re.search(r"rank1\.log:\n(.*\n)*a word in the log of rank 1", logs)
    assert "daemon.log:\n" in logs


@pytest.mark.usefixtures("no_processes_left")
def test_a_failure_that_is_no_time_out_is_reported_as_ever(tmp_path: Path) -> None:
    report = _report(tmp_path, "assertion")
    assert "a plain failure" in report
    assert "when the time was over" not in report


@pytest.mark.usefixtures("_in_sight", "no_processes_left")
@pytest.mark.parametrize(
    ("test", "frame"),
    # cloudpickle 3.1.3 no longer says in which file a function stands.
    [
        ("ranks", r"hang \((test_hanging\.py|<dynamic-code>):34\)"),
        pytest.param("program", r"<module> \(<string>:2\)", marks=pytest.mark.nightly),
    ],
)
def test_ranks_and_programs_are_looked_at_before_they_are_ended(tmp_path: Path, test: str, frame: str) -> None:
    assert re.search(frame, _report(tmp_path, test))


def test_without_py_spy_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopsy.shutil, "which", lambda *_, **__: None)
    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as other:
        assert other.stdout.readline()
        sections = dict(autopsy.perform())
        other.communicate(b"\n")
    (stacks,) = (text for title, text in sections.items() if title.endswith("stacks"))
    told = stacks.split(f"process {other.pid}, ")[1]
    assert "\nState:\t" in told
    assert "py-spy is not installed" in told


def test_what_cannot_be_found_out_costs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn:
        def shown(self) -> str:
            raise ValueError("torn")

    monkeypatch.setattr(autopsy, "_pages", [(Torn(), False), (Torn(), True)])
    monkeypatch.setattr(autopsy, "_stacks", lambda _: 1 / 0)
    texts = [text for _, text in autopsy.perform()]
    assert texts[0].count("(this could not be found out: ValueError: torn)") == 2
    assert "ZeroDivisionError" in texts[1]
    texts = [text for _, text in autopsy.perform(ringing=True)]
    assert texts[0].count("(this could not be found out: ValueError: torn)") == 1


def test_a_section_is_of_bounded_length() -> None:
    assert len(autopsy._shortened("x" * 1_000_000)) < autopsy._LETTERS + 50
