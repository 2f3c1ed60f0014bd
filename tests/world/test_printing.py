"""Whatever a cell writes, however it writes it, is shown: attributed, in order, and whole."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcomm.rank_spec import parse

from .notebook import Notebook


def _run(notebook: Notebook, code: str, options: str = "", timeout: float = 60.0) -> list[str]:
    return notebook.run(f"%%distributed {options}\n{textwrap.dedent(code)}", timeout=timeout).lines


def test_python_c_code_and_children_keep_their_order(four: Notebook) -> None:
    code = """\
        import os, subprocess
        print("python")
        os.write(1, b"descriptor\\n")
        print("python again")
        _ = subprocess.run(["echo", "child"])
        print("end")"""
    expected = ["python", "descriptor", "python again", "child", "end"]
    assert _run(four, code) == [f"[0-3] {line}" for line in expected]


def test_c_buffers_are_flushed_when_the_cell_ends(four: Notebook) -> None:
    code = """\
        import ctypes
        _ = ctypes.CDLL(None).printf(b"from printf\\n")"""
    assert _run(four, code) == ["[0-3] from printf"]


def test_a_thread_in_c_that_reads_does_not_keep_the_cell_that_started_it(four: Notebook) -> None:
    code = """\
        import ctypes, os, threading
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        reading, writing = os.pipe()
        stream, got = ctypes.c_void_p(libc.fdopen(reading, b"r")), ctypes.create_string_buffer(9)
        reader = threading.Thread(target=libc.fread, args=(got, 1, 3, stream), daemon=True)
        reader.start()
        while not libc.ftrylockfile(stream): libc.funlockfile(stream)
        libc.printf(b"from printf\\n");"""
    assert _run(four, code) == ["[0-3] from printf"]
    assert _run(four, "os.write(writing, b'abc')\nreader.join()\ngot.value") == ["[0-3] b'abc'"]


ENDS = {
    "flushed": "print('last', flush=True)\nos._exit(3)",
    "a descriptor": "os.write(1, b'last\\n')\nos.abort()",
    "bytes": "sys.stdout.buffer.write(b'last\\n')\nos.kill(os.getpid(), signal.SIGKILL)",
    "stderr": "print('last', file=sys.stderr)\nctypes.string_at(0)",
    "logging": "logging.getLogger('of a test').error('last')\nos._exit(0)",
    "C code": "libc = ctypes.CDLL(None)\nlibc.printf(b'last\\n')\nlibc.fflush(None)\nlibc._exit(3)",
    "a child": "subprocess.run(['echo', 'last'], check=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    "a thread": "t = threading.Thread(target=print, args=['last'], kwargs={'flush': True})\n"
    "t.start(); t.join()\nos._exit(3)",
    "much": "for i in range(3000): print(i, flush=True)\nprint('last', flush=True)\nos._exit(3)",
    "for a while": "for i in range(200): print(i, flush=True); time.sleep(0.001)\n"
    "print('last', flush=True)\nos._exit(3)",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_flushed_is_shown_once_whatever_ends_the_process(four: Notebook, end: str) -> None:
    names = "import ctypes, logging, os, signal, subprocess, sys, threading, time"
    cell = four.run(f"%%distributed -r 2\n{names}\nprint('first')\nsys.stdout.flush()\n{ENDS[end]}", fails=True)
    try:
        assert "RankDiedError" in cell.error_text
        numbers = range({"much": 3000, "for a while": 200}.get(end, 0))
        assert cell.lines == [f"[2] {line}" for line in ("first", *numbers, "last")]
    finally:
        four.run("%distributed heal")


def test_what_faulthandler_writes_of_a_crash_is_shown(four: Notebook) -> None:
    code = "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)"
    try:
        cell = four.run(f"%%distributed -r 2\n{code}", fails=True)
        assert "[2] Fatal Python error: Segmentation fault" in cell.lines
        assert "in string_at" in cell.text
    finally:
        four.run("%distributed heal")


def test_a_cell_may_do_what_it_likes_with_its_streams_and_the_next_ones_print(four: Notebook) -> None:
    for code, shown in (
        ("sys.stdout.buffer.write(b'bytes\\n');", "[0-3] bytes\n"),
        *2 * [("sys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint('wrapped')", "[0-3] wrapped\n")],  # run twice
        ("sys.stdout = sys.__stdout__\nprint('put back')", "[0-3] put back\n"),
        ("sys.stdout = os.fdopen(1, 'w')\nprint('of its own')", "[0-3] of its own\n"),
        ("sys.stdout = sys.__stdout__  # the file is collected, and closes descriptor 1", ""),
        ("os.write(1, b'descriptor\\n');", "[0-3] descriptor\n"),
        ("sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)", ""),
        ("print('open', sys.stdout.closed)\nos.write(2, b'descriptor\\n');", "[0-3] open False\n[0-3] descriptor\n"),
    ):
        assert four.run(f"%%distributed\nimport io, os, sys\n{code}").text == shown, code
    # IPython itself looks at them behind the code: a kernel hangs from here on.
    four.finish(four.submit("%%distributed\ndel sys.stdout, sys.stderr, sys.stdin"))
    assert _run(four, "print('out')\nprint('err', file=sys.stderr)\nsys.stdin.closed") == [
        "[0-3] out",
        "[0-3] err",
        "[0-3] False",
    ]


def test_stderr_stays_stderr_and_200_kb_of_it_arrive(four: Notebook) -> None:
    cell = four.run("%%distributed -r 1\nimport sys\nfor i in range(2000): print('e' * 95, i, file=sys.stderr)")
    lines = cell.stream("stderr").splitlines()
    assert lines == [f"[1] {'e' * 95} {i}" for i in range(2000)]
    assert cell.stream("stdout") == ""


def test_a_grandchild_that_outlives_its_cell_is_shown_as_late(four: Notebook) -> None:
    code = """\
        import subprocess
        child = subprocess.Popen(["sh", "-c", "sleep 0.5; echo after"])
        print("end")"""
    cell = four.run("%%distributed -r 0\n" + textwrap.dedent(code))
    four.until(lambda: "after" in cell.text, 60, "the child's line did not come", cell)
    assert cell.lines[0] == "[0] end"
    assert re.search(r"^\[0\].*late.*after$", cell.text, re.MULTILINE)


def test_a_background_thread_is_attributed_to_its_own_cell(four: Notebook) -> None:
    code = """\
        import threading
        gate = threading.Event()
        def later():
            gate.wait(30)
            print("from the thread of", rank)
        threading.Thread(target=later).start()
        print("end")"""
    cell = four.run("%%distributed -r 2\n" + textwrap.dedent(code))
    assert cell.lines == ["[2] end"]
    other = four.run("%%distributed -r 2\nprint('another cell'); gate.set(); import time; time.sleep(1)")
    late = re.compile(r"^\[2\].*late.*from the thread of 2$", re.MULTILINE)  # it is written in several pieces
    four.until(lambda: late.search(cell.text), 60, "the thread's line did not come", cell)
    assert other.lines == ["[2] another cell"]


def test_a_bar_is_one_line(four: Notebook) -> None:
    code = """\
        import sys, time
        for i in range(101):
            sys.stderr.write(f"\\r{i}%")
            sys.stderr.flush()
        sys.stderr.write("\\n");"""
    assert _run(four, code) == ["[0-3] 100%"]


def test_tqdm_on_every_rank(four: Notebook) -> None:
    lines = _run(four, "from tqdm import tqdm\nfor _ in tqdm(range(300), ncols=60): pass")
    assert lines
    assert all("100%" in line and "300/300" in line for line in lines if "%" in line)
    assert len(lines) <= 4


def test_output_is_live(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    cell = four.submit(f"%%distributed\nimport pathlib, time\nprint('soon')\n{wait}\nprint('later')")
    try:
        four.until(lambda: "soon" in cell.text, 60, "nothing was shown while the cell ran", cell)
        assert not cell.idle
    finally:
        go.touch()
    four.finish(cell)
    assert cell.lines == ["[0-3] soon", "[0-3] later"]


def test_a_rank_that_is_slow_still_folds(four: Notebook) -> None:
    assert _run(four, "import time\ntime.sleep(0.6 * (rank == 1))\nprint('same')\nrank == 9") == [
        "[0-3] same",
        "[0-3] False",
    ]


def test_objects_fold_wherever_they_lie(four: Notebook) -> None:
    code = "class A: pass\nkept = [A() for _ in range(100 + 1000 * rank)]\nprint(kept[-1])\nkept[-2:]"
    assert _run(four, code) == ["[0-3] <__main__.A object at 0x…>", "[0-3] [<__main__.A at 0x…>, <__main__.A at 0x…>]"]
    assert not any("…" in line for line in _run(four, "kept[-1]", "--no-fold"))


def test_options_choose_how_it_is_shown(four: Notebook) -> None:
    code = "print('a'); print('b')"
    assert _run(four, code) == ["[0-3] a", "[0-3] b"]
    assert sorted(_run(four, code, "--no-fold")) == sorted(f"[{rank}] {line}" for rank in range(4) for line in "ab")
    assert _run(four, code, "--by-rank") == [f"[{rank}] {line}" for rank in range(4) for line in "ab"]
    assert _run(four, code, "--quiet") == []


def test_a_forked_child_of_a_rank_prints_through_it(four: Notebook) -> None:
    code = """\
        import multiprocessing
        worker = multiprocessing.get_context("fork").Process(target=print, args=("worker",))
        worker.start(); worker.join()"""
    assert _run(four, code, "-r 0") == ["[0] worker"]


@pytest.mark.nightly
def test_eight_ranks_of_20000_lines_lose_none(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook("%distributed start -n 8")
    for tag in ("'all'", "rank"):
        cell = notebook.run(f"%%distributed\nfor i in range(20_000): print({tag}, i)", timeout=120)
        per_rank: dict[int, list[str]] = {rank: [] for rank in range(8)}
        for line in cell.lines:
            label, text = re.fullmatch(r"\[([\d,-]+)\] (.*)", line).groups()  # type: ignore[union-attr]
            for rank in parse(label, 8):
                per_rank[rank].append(text)
        for rank, lines in per_rank.items():
            name = rank if tag == "rank" else "all"
            assert lines == [f"{name} {i}" for i in range(20_000)], f"rank {rank}"


def test_half_a_character_neither_ends_a_rank_nor_hangs_a_cell(four: Notebook) -> None:
    assert _run(four, "print('a file called \\udcff')") == ["[0-3] a file called ?"]
    failed = four.run("%%distributed\nraise OSError('no file \\udcff')", fails=True)
    assert "OSError: no file ?" in failed.error_text
    assert _run(four, "all_reduce(1)") == ["[0-3] 4"]


def test_a_display_whose_keys_are_no_texts_is_shown_and_so_is_all_behind_it(four: Notebook) -> None:
    code = """\
        from IPython.display import JSON
        display(JSON({1: 2, (3, 4): {None: True}}))
        print("behind")"""
    cell = four.run("%%distributed\n" + textwrap.dedent(code))
    assert "[0-3] behind" in cell.lines
    shown = [output["data"]["application/json"] for output in cell.outputs if "data" in output]
    assert shown == [{"1": 2, "(3, 4)": {"null": True}}]
    assert _run(four, "all_reduce(1)") == ["[0-3] 4"]


SCAN = """
import gc, sys

def kept(mark):
    # The letters of all texts that begin with the mark, whoever has them.
    found = {}
    def look(value):
        if isinstance(value, (str, bytes)) and len(value) > 500 and mark in str(value[:1000]):
            found[id(value)] = len(value)
    for holder in gc.get_objects():
        for value in gc.get_referents(holder):
            look(value)
    for frame in sys._current_frames().values():
        while frame is not None:
            for value in list(frame.f_locals.values()):
                look(value)
            frame = frame.f_back
    return sum(found.values())
"""
"""Runs in names of its own: in those of the cells its frames would count as the user's."""

MUCH = {
    "a line": "print('xyzzy' * (3 << 20))",
    "many lines": "for _ in range(20_000): print('xyzzy' * 200)",
    "stderr": "import sys\nsys.stderr.write('xyzzy' * (3 << 20));",
    "C code": "import os\nos.write(1, b'xyzzy' * (3 << 20));",
    "a thread": "from threading import Thread\n"
    "t = Thread(target=print, args=['xyzzy' * (3 << 20)])\nt.start(); t.join(); del t",
    "a display": "from IPython.display import HTML, display\ndisplay(HTML('xyzzy' * (3 << 20)))",
    "a task": "async def go(): print('xyzzy' * (3 << 20))\nawait go()",
    "an error": "raise ValueError('xyzzy' * (3 << 20))",
}


@pytest.fixture(scope="module")
def uncollected(four: Notebook) -> Iterator[Notebook]:
    """Its rank 2 collects no garbage: what is not freed at once stays."""
    four.run(f"%%distributed -r 2\napart = {{}}\nexec({SCAN!r}, apart)\nimport gc\ngc.collect(); gc.disable()")
    yield four
    four.run("%%distributed -r 2\ngc.enable()")


@pytest.mark.parametrize("code", MUCH.values(), ids=MUCH)
def test_what_past_cells_have_shown_does_not_stay_on_the_ranks(uncollected: Notebook, code: str) -> None:
    uncollected.finish(uncollected.submit(f"%%distributed -r 2\n{code}"))
    uncollected.run("%%distributed -r 2\n1 / 0", fails=True)  # the last error stays, for %debug
    deadline = time.monotonic() + 60
    while (left := uncollected.run("%%distributed -r 2\napart['kept']('xy' + 'zzy')").text) != "[2] 0\n":
        # What it has said is kept for another notebook until this one has told that it has heard it.
        assert time.monotonic() < deadline, left


LATER = """\
import time
from IPython.display import HTML, display
time.sleep(0.4 * (3 - rank))
"""
"""The highest rank is first."""


def _displays(notebook: Notebook, code: str, options: str = "") -> list[str]:
    """What a cell leaves: its lines, and the HTML of its displays."""
    cell = notebook.run(f"%%distributed {options}\n{LATER}{code}")
    shown: list[str] = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown += (
            [data["text/html"]] if "text/html" in data else output.get("text", data.get("text/plain", "")).split("\n")
        )
    return [line for line in shown if line]


@pytest.mark.parametrize("show", ["display(HTML(f'<b>{rank}</b>'))", "HTML(f'<b>{rank}</b>')"])
@pytest.mark.parametrize("options", ["", "--no-fold", "--by-rank"])
def test_displays_are_in_the_order_of_the_ranks_whichever_comes_first(four: Notebook, show: str, options: str) -> None:
    assert _displays(four, show, options) == [
        "[0]",
        "<b>0</b>",
        "[1]",
        "<b>1</b>",
        "[2]",
        "<b>2</b>",
        "[3]",
        "<b>3</b>",
    ]


def test_equal_displays_fold_at_the_place_of_their_lowest_rank(four: Notebook) -> None:
    assert _displays(four, "HTML(f'<b>{rank % 2}</b>')") == ["[0,2]", "<b>0</b>", "[1,3]", "<b>1</b>"]
    assert _displays(four, "HTML('<b>all</b>')") == ["[0-3]", "<b>all</b>"]


def test_a_display_is_seen_while_lower_ranks_show_nothing_yet(four: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""\
        import pathlib, time
        from IPython.display import HTML, display
        while rank < 3 and not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)
        display(HTML(f"<b>{{rank}}</b>"))"""

    def seen() -> list[str]:
        return [data["text/html"] for output in cell.outputs if "text/html" in (data := output.get("data", {}))]

    cell = four.submit("%%distributed\n" + textwrap.dedent(code))
    try:
        four.until(lambda: seen() == ["<b>3</b>"], 60, "nothing was shown while the cell ran", cell)
        assert not cell.idle
    finally:
        go.touch()
    four.finish(cell)
    assert seen() == [f"<b>{rank}</b>" for rank in range(4)]


def test_of_a_flood_the_page_has_the_ends_and_a_file_all_of_it(four: Notebook) -> None:
    four.run("%env NBCOMM_LINES=50")
    try:
        shown = _run(four, "for i in range(3_000): print(rank, i)")
    finally:
        four.run("import os; _ = os.environ.pop('NBCOMM_LINES')")
    lines = [line for line in shown if not line.startswith("nbcomm:")]
    left_out, where, setting = (line for line in shown if line.startswith("nbcomm:"))
    path = re.fullmatch(
        r"nbcomm: all lines of this cell are in (\S+) until the world stops or ten more cells are as long; copy .*",
        where,
    )
    assert path is not None
    assert left_out.startswith("nbcomm: 11,900 lines are left out here")
    assert setting.endswith("(now 50).")
    whole = Path(path[1]).read_text(encoding="utf-8").splitlines()
    assert lines == [*whole[:50], *whole[-50:]]
    assert sorted(whole) == sorted(f"[{rank}] {rank} {i}" for rank in range(4) for i in range(3_000))
    for rank in range(4):
        assert [line for line in whole if line.startswith(f"[{rank}]")] == [
            f"[{rank}] {rank} {i}" for i in range(3_000)
        ]
    assert "left out" not in "".join(_run(four, "print(rank)"))
