from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nbcomm import __version__, cli, doctor
from nbcomm.world_dir import WorldDir


def written(path: Path, *cells: str, may_fail: bool = False) -> Path:
    """A notebook of these code cells, behind one of prose."""
    metadata = {"tags": ["raises-exception"]} if may_fail else {}
    notebook = new_notebook(cells=[new_markdown_cell("# Prose"), *(new_code_cell(c, metadata=metadata) for c in cells)])
    nbformat.write(notebook, path)
    return path


def test_bare_nbcomm_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: nbcomm")
    assert "demo" in out
    assert "doctor" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"nbcomm {__version__}\n"


@pytest.mark.ranks
def test_help_loads_neither_torch_nor_jupyter() -> None:
    code = "import sys, nbcomm.cli; nbcomm.cli.main([]); sys.exit(any(m in sys.modules for m in ['torch', 'nbclient']))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.ranks
def test_python_m_nbcomm_is_the_same_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cli.main([])
    run = subprocess.run([sys.executable, "-m", "nbcomm"], capture_output=True, text=True, check=True)
    assert run.stdout == capsys.readouterr().out


def test_ctrl_c_is_a_word_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "examine", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "\nInterrupted.\n")


@pytest.mark.ranks
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_reader_that_has_had_enough_ends_the_command_quietly(unbuffered: str) -> None:
    code = "from nbcomm import cli; cli.examine = lambda: print('ok') or 0; raise SystemExit(cli.main(['doctor']))"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        run = subprocess.run(
            [sys.executable, "-c", code],
            stdout=nobody,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (run.returncode, run.stderr) == (141, b"")


# ── demo ────────────────────────────────────────────────────────────────────────────────────────────


def test_demo_plays_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Path] = []

    def play(path: Path) -> int:
        played.append(path)
        return 0

    monkeypatch.setattr(cli, "play", play)
    assert cli.main(["demo"]) == 0
    assert played == [cli.tour()]


@pytest.mark.parametrize("place", ["package/notebooks", "notebooks"])
def test_the_tour_is_found_in_a_wheel_and_in_a_checkout(tmp_path: Path, place: str) -> None:
    tour = tmp_path / place / "01_first_steps.ipynb"
    tour.parent.mkdir(parents=True)
    tour.touch()
    assert cli.tour(tmp_path / "package") == tour


def test_a_missing_tour_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"install nbcomm again\.$"):
        cli.tour(tmp_path)


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────

NAMES = ["01_first_steps.ipynb", "02_collectives.ipynb", "03_deadlocks.ipynb", "04_pictures.ipynb"]


def in_it(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_notebooks_are_copied_and_the_next_thing_to_type_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "my notebooks"
    monkeypatch.setattr(cli.shutil, "which", {"jupyter-lab": "/bin/jupyter-lab"}.get)
    assert cli.main(["notebooks", str(folder)]) == 0
    assert in_it(folder) == {name: (cli.tour().parent / name).read_bytes() for name in NAMES}
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"Copied to {folder}: {', '.join(NAMES)}."
    assert second == f"To open them, type: jupyter lab '{folder}'"

    monkeypatch.setattr(cli.shutil, "which", {}.get)
    assert cli.main(["notebooks", str(folder)]) == 0, "what is the same is no obstacle"
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"All 4 notebooks are in {folder} already."
    assert second == f"To open them, install JupyterLab (pip install jupyterlab), then type: jupyter lab '{folder}'"


def test_only_what_is_missing_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["notebooks", str(tmp_path)]) == 0
    (tmp_path / NAMES[2]).unlink()
    (tmp_path / "mine.ipynb").write_text("mine")
    before = (tmp_path / NAMES[0]).stat().st_mtime_ns
    capsys.readouterr()
    assert cli.main(["notebooks", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"Copied to {tmp_path}: {NAMES[2]}.\n")
    assert (tmp_path / NAMES[0]).stat().st_mtime_ns == before
    assert in_it(tmp_path)["mine.ipynb"] == b"mine"


def test_a_notebook_that_was_changed_is_kept_unless_one_insists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAMES[1]).write_text("my answers")
    assert cli.main(["notebooks", str(tmp_path)]) == 1
    assert in_it(tmp_path) == {NAMES[1]: b"my answers"}, "nothing else was copied either"
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"In {tmp_path}, {NAMES[1]} differs from nbcomm's version, so nothing was copied. Name "
        "another folder, or add --force to overwrite what is there.\n"
    )
    assert cli.main(["notebooks", str(tmp_path), "--force"]) == 0
    assert in_it(tmp_path) == in_it(cli.tour().parent)


def test_a_place_that_is_no_folder_is_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "file"
    place.write_text("kept")
    assert cli.main(["notebooks", str(place)]) == 1
    assert capsys.readouterr().err.startswith(f"The notebooks cannot be copied to {place}: ")
    assert place.read_text() == "kept"


def test_lessons_are_copied_likewise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lessons", str(tmp_path)]) == 0
    assert in_it(tmp_path) == in_it(cli.tour().parent / "lessons")
    assert capsys.readouterr().out.startswith(f"Copied to {tmp_path}: 01_four_processes.ipynb, ")
    assert cli.main(["lessons", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"All {len(in_it(tmp_path))} lessons are in {tmp_path} already.")


# ── a class ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_class_is_shown_once_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ada.jsonl").write_text('{"at": 1, "puzzle": "sum_all", "right": true}\n')
    assert cli.main(["class", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["learner  sum_all", "ada      ✓ 1", "right    1 of 1"]
    assert cli.main(["class", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read: No such file or directory." in capsys.readouterr().err


def test_a_teacher_who_watches_sees_it_again_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([None, KeyboardInterrupt])

    def sleep(_: float) -> None:
        if (ends := next(looks)) is not None:
            raise ends

    monkeypatch.setattr(cli.time, "sleep", sleep)
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["class", str(tmp_path)]) == 130
    assert capsys.readouterr().out.count("No learner has checked anything yet.") == 2


# ── playing one ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.world
@pytest.mark.usefixtures("no_processes_left")
def test_play_prints_what_a_reader_sees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(
        tmp_path / "good.ipynb",
        "x = 1\nprint('printed')\nx + 1",
        "",
        "handle = display('first', display_id=True)\nhandle.update('last')",
        "for text in ('10%\\r5', '0%', '\\r100%', '\\n', 'do', 'ne'): print(text, end='', flush=True)",
        "1 / 0",
        "import sys\nsys.executable",
        may_fail=True,
    )
    before = path.read_bytes()
    page = io.StringIO()
    assert cli.play(path, page) == 0
    text = page.getvalue()
    assert text.startswith(
        "\n# Prose\n"
        "\nIn [1]: x = 1\n"
        "   ...: print('printed')\n"
        "   ...: x + 1\n"
        "printed\n"
        "2\n"
        "\nIn [2]: handle = display('first', display_id=True)\n"
        "   ...: handle.update('last')\n"
        "'last'\n"
        "\nIn [3]: for text in ('10%\\r5', '0%', '\\r100%', '\\n', 'do', 'ne'): print(text, end='', flush=True)\n"
        "100%\ndone\n"
        "\nIn [4]: 1 / 0\n"
    )
    assert "Traceback (most recent call last)" in text
    assert "ZeroDivisionError: division by zero\n" in text
    assert text.endswith(f"{sys.executable!r}\n"), "the kernel must be this very Python"
    assert "\x1b" not in text, "no colours where there is no terminal"
    assert path.read_bytes() == before
    assert capfd.readouterr().err == ""


@pytest.mark.world
@pytest.mark.usefixtures("no_processes_left")
def test_a_failing_notebook_is_exit_code_1_and_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "bad.ipynb", "raise ValueError('no')", "print('never')")
    assert cli.play(path) == 1
    out, err = capsys.readouterr()
    assert "ValueError: no" in out
    assert "never" not in out
    assert err == "bad.ipynb stopped: its last cell failed, as shown above. `nbcomm doctor` checks this machine.\n"


@pytest.mark.world
def test_a_dead_kernel_takes_its_processes_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pid = tmp_path / "pid"
    code = (
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "os._exit(3)"
    )
    assert cli.play(written(tmp_path / "dead.ipynb", code)) == 1
    assert capsys.readouterr().err.startswith("dead.ipynb stopped: its kernel died.")
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.world
@pytest.mark.usefixtures("no_processes_left")
def test_a_dead_kernel_takes_its_world_along_and_leaves_the_seed_and_older_worlds_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = WorldDir.create()
    on_ranks = (
        "%%distributed\nimport os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path)!r}, f'pids{{rank}}').write_text(f'{{os.getpid()}} {{child.pid}}')"
    )
    same_pid = f"import os, pathlib\n_ = pathlib.Path({str(older.path)!r}, 'holder').write_text(str(os.getpid()))"
    kill = "import signal\nos.kill(os.getpid(), signal.SIGKILL)"
    cells = ["%load_ext nbcomm", "%distributed start -n 2", on_ranks, same_pid, kill]
    assert cli.play(written(tmp_path / "dead.ipynb", *cells)) == 1
    assert capsys.readouterr().err.startswith("dead.ipynb stopped: its kernel died.")
    pids = [int(pid) for file in tmp_path.glob("pids?") for pid in file.read_text().split()]
    assert len(pids) == 4
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert older.path.exists()
    older.remove()
    again = "%load_ext nbcomm\n%distributed start -n 2\n%distributed"
    page = io.StringIO()
    assert cli.play(written(tmp_path / "next.ipynb", again), page) == 0
    assert "Warm start: torch was imported before." in page.getvalue()


@pytest.mark.world
@pytest.mark.usefixtures("no_processes_left")
def test_a_cell_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_CELL_SECONDS", 1)
    assert cli.play(written(tmp_path / "slow.ipynb", "import time\ntime.sleep(600)")) == 1
    assert "slow.ipynb stopped: its last cell did not end within 1 s." in capfd.readouterr().err


@pytest.mark.world
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "with open('pids', 'w') as fifo:\n"
        "    print(os.getpid(), child.pid, file=fifo)\n"
        "time.sleep(600)"
    )
    path = written(tmp_path / "long.ipynb", code)
    pids = tmp_path / "pids"
    os.mkfifo(pids)  # to open it waits for the cell
    player = subprocess.Popen(
        [sys.executable, "-c", f"import sys; from nbcomm.cli import *; sys.exit(play(Path({str(path)!r})))"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with pids.open() as fifo:
            processes = [psutil.Process(int(pid)) for pid in fifo.read().split()]
        player.send_signal(signal.SIGINT)
        out, err = player.communicate(timeout=60)
    finally:
        player.kill()
        player.wait()
    assert player.returncode == 130
    assert out.endswith("\nInterrupted; the kernel and its ranks have ended.\n")
    assert err == ""
    assert len(processes) == 2
    assert not [process for process in processes if process.is_running()]


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_prints_a_line_a_check_and_fails_if_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, code: int
) -> None:
    verdicts = [("fork", doctor.CheckResult("ok", "It forks.")), ("gloo", doctor.CheckResult(level, "So it is."))]
    monkeypatch.setattr(doctor, "findings", lambda: iter(verdicts))
    assert cli.main(["doctor"]) == code
    first, second, _, summary = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "fork", "It", "forks."]
    assert second.split() == [level, "gloo", "So", "it", "is."]
    assert ("fail" in summary) == bool(code)


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in cli._Page(Terminal()).coloured("ok", "green")
    assert cli._Page(io.StringIO()).coloured("ok", "green") == "ok"
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli._Page(Terminal()).coloured("ok", "green") == "ok"
