"""Completion and help from the ranks' live namespaces, through a real kernel's own requests."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .notebook import Notebook

pytestmark = pytest.mark.story  # it ends with a world that is gone

DEADLINE = 30.0
BESIDE = """
import threading
from nbcomm.notebook.session import registry
beside = threading.Thread(target=lambda: registry.current().run({code!r}, quiet=True))
beside.start()
"""


def complete(notebook: Notebook, code: str, cursor: int | None = None) -> dict[str, Any]:
    """What a front end is told when somebody presses Tab."""
    cursor = len(code) if cursor is None else cursor
    reply = notebook.client.complete(code, cursor, reply=True, timeout=DEADLINE)["content"]
    assert reply["status"] == "ok"
    return reply  # type: ignore[no-any-return]


def whole(notebook: Notebook, code: str) -> list[str]:
    """The completions, each as the cell that it makes."""
    reply = complete(notebook, code)
    assert reply["cursor_end"] == len(code)
    return [code[: reply["cursor_start"]] + match for match in reply["matches"]]


def look(notebook: Notebook, code: str, detail: int = 0) -> str:
    """What a front end is told when somebody presses Shift-Tab."""
    reply = notebook.client.inspect(code, len(code), detail, reply=True, timeout=DEADLINE)["content"]
    assert reply["status"] == "ok"
    return str(reply["data"].get("text/plain", "")) if reply["found"] else ""


def await_told(ask: Callable[[], str | list[str]], wanted: str) -> None:
    """Ask until a rank has answered in time: what is typed waits half a second for it, and a busy machine is slower."""
    deadline = time.monotonic() + DEADLINE
    while wanted not in (told := ask()):
        assert time.monotonic() < deadline, f"{wanted!r} is not in {told!r}"


def await_completion(notebook: Notebook, code: str, completed: str) -> None:
    """See `await_told`."""
    await_told(lambda: whole(notebook, code), completed)


def await_help(notebook: Notebook, code: str, shown: str, detail: int = 0) -> None:
    """See `await_told`."""
    await_told(lambda: look(notebook, code, detail), shown)


@contextmanager
def running(notebook: Notebook, code: str) -> Iterator[None]:
    """Another thread of the kernel runs a cell meanwhile, so that the kernel hears what is asked."""
    notebook.run(BESIDE.format(code=code))
    try:
        yield
    finally:
        notebook.run("registry.current().interrupt(); beside.join(30); assert not beside.is_alive()")


def test_names_of_ranks(four: Notebook, tmp_path: Path) -> None:
    (tmp_path / "file_of_rank_2.txt").touch()
    four.run("local_one = 1")
    names = "sorted(name for name in globals() if name[0] != '_')"  # IPython's own numbers its outputs
    before = four.run(names).text
    four.run(
        "%%distributed\n"
        "there_are = {'kéy one': [1]}\n"
        "there_is = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
        "if rank == 2:\n"
        "    there_only_on_two = 1\n"
        f"    import os; os.chdir({str(tmp_path)!r})"
    )
    for code, completed in (
        ("%%distributed\nthere_a", "%%distributed\nthere_are"),
        ("%%distributed\n'𝄞𝄞'; there_a", "%%distributed\n'𝄞𝄞'; there_are"),
        ("%%distributed\nthere_is[0].wei", "%%distributed\nthere_is[0].weight"),
        ("%%distributed\nthere_are['k", "%%distributed\nthere_are['kéy one"),
        ("%%distributed\nall_red", "%%distributed\nall_reduce"),
        ("%%distributed\ncomm.all_red", "%%distributed\ncomm.all_reduce"),
        ("%%distributed\nall_reduce(1, o", "%%distributed\nall_reduce(1, op="),
        ("%%distributed\n%timei", "%%distributed\n%timeit"),
        ("%%distributed -r 2\nthere_only", "%%distributed -r 2\nthere_only_on_two"),
        ("%%distributed -r 2,3\nopen('file_of", "%%distributed -r 2,3\nopen('file_of_rank_2.txt"),
        ("%distributed pull there_ar", "%distributed pull there_are"),
        ("%distributed who there_ar", "%distributed who there_are"),
        ("%distributed diff there_is[0].wei", "%distributed diff there_is[0].weight"),
    ):
        await_completion(four, code, completed)
    await_completion(four, "%%distributed\nthere_only", "%%distributed\nthere_only_on_two")
    assert whole(four, "%%distributed -r 0-1\nthere_only") == []
    assert whole(four, "%%distributed -r 2 --by") == ["%%distributed -r 2 --by-rank"]
    four.run("open('local_script.py', 'w').close()")
    for line in ("%distributed run ", "%distributed save ", "%%distributed --file "):
        assert whole(four, f"{line}local_s") == [f"{line}local_script.py"]
    assert whole(four, "%distributed push local") == ["%distributed push local_one"]
    assert "local_one" in whole(four, "local_o"), "other cells are the notebook's, as always"
    assert not any("there" in each for each in whole(four, "there_"))
    code = "%%distributed\nthere_a = 1"
    reply = complete(four, code, code.index(" ="))
    assert code[reply["cursor_start"] : reply["cursor_end"]] == "there_a"
    kinds = [(each["text"], each["type"]) for each in reply["metadata"]["_jupyter_types_experimental"]]
    assert kinds == [("there_are", "instance")]
    four.run("%distributed auto on")
    await_completion(four, "there_a", "there_are")
    assert whole(four, "%%local\nlocal_o") == ["%%local\nlocal_one"]
    four.run("%distributed auto off")
    assert four.run(names).text == before, "nothing is put into the notebook's namespace"


def test_help_while_typing(four: Notebook) -> None:
    four.run("%%distributed\ndef documented(alpha):\n    'What it does.'\n    return alpha\nnumber = rank + 10")
    await_help(four, "%%distributed\ndocumented", "What it does.")
    await_help(four, "%%distributed\ndocumented(1, 'x'", "What it does.")
    await_help(four, "%%distributed\ndocumented", "return", 1)
    await_help(four, "%%distributed\nall_reduce", "every rank")
    shown = re.sub(r"\x1b\[[0-9;]*m|\s", "", look(four, "%%distributed\nall_reduce"))
    assert "(data:Any,op:Any='sum'," in shown, "no annotation stands in quotes"
    await_help(four, "%%distributed -r 2\nnumber", "12")
    assert look(four, "%%distributed\nnot_there") == ""
    assert look(four, "documented") == "", "it is not the notebook's"


def test_help_in_a_cell_is_its_output_and_there_once(four: Notebook) -> None:
    four.run("%%distributed\ndef documented(alpha):\n    'What it does.'\n    return alpha\nnumber = rank + 10")
    text = four.run("%%distributed\ndocumented?").text
    assert text.count("What it does.") == 1
    assert text.startswith("[0-3] ")
    assert four.run("%%distributed\ndocumented??").text.count("return") == 1
    assert four.run("%%distributed\n%psource documented").text.count("return") == 1
    assert four.run("%%distributed -r 1,2\ndocumented?").text.startswith("[1-2] ")
    assert "Combine every rank's data" in four.run("%%distributed\nall_reduce?").text
    assert "[0-3] all_reduce\n" in four.run("%%distributed\n*all_red*?").text
    values = four.run("%%distributed\nnumber?").text
    assert all(f"[{rank}]" in values for rank in range(4)), "where ranks differ one sees how"
    assert values.count("integer") < 20
    assert four.run("%%distributed\n%page number").lines == ["[0] 10", "[1] 11", "[2] 12", "[3] 13"]
    assert "Object `not_there` not found." in four.run("%%distributed\nnot_there?").text
    assert "A rank cannot put code into a cell" in four.run("%%distributed\n%recall 1").stream("stderr")


def test_busy_ranks_answer(four: Notebook) -> None:
    four.run("%%distributed\nthere_are = 1")
    with running(four, "if rank == 0:\n    while True: pass\nall_reduce(1)"):
        await_completion(four, "%%distributed\nthere_a", "%%distributed\nthere_are")
        await_completion(four, "%%distributed -r 3\nthere_a", "%%distributed -r 3\nthere_are")
        four.run("assert beside.is_alive()")
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_rank_that_cannot_answer_leaves_it_to_the_notebook(four: Notebook, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    four.run("there_here = 1")
    four.run("%%distributed\nthere_are = 1")
    holding = (
        f"import ctypes, os\nif rank == 0:\n    file = os.open({str(gate)!r}, os.O_RDONLY)\n"
        "    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)"
    )
    whole(four, "there_h")  # the notebook's own completer warms up
    four.run(BESIDE.format(code=holding))
    with gate.open("wb") as freeing:  # it opens when rank 0 has come so far, and holds Python's lock in a moment
        deadline = time.monotonic() + DEADLINE
        while (here := whole(four, "%%distributed -r 0\nthere_")) != ["%%distributed -r 0\nthere_here"]:
            assert time.monotonic() < deadline, here
        await_completion(four, "%%distributed\nthere_a", "%%distributed\nthere_are")  # the others know it
        assert whole(four, "%%distributed -r 1\nthere_a") == ["%%distributed -r 1\nthere_are"]
        freeing.write(b"x")
    four.run("beside.join(30); assert not beside.is_alive()")
    await_completion(four, "%%distributed\nthere_a", "%%distributed\nthere_are")


def test_what_a_users_code_does_when_it_is_asked(four: Notebook) -> None:
    four.run(
        "%%distributed\n"
        "class Odd:\n"
        "    def __dir__(self):\n"
        "        print('printed by __dir__')\n"
        "        while True: pass\n"
        "    def __repr__(self):\n"
        "        return f'all have {all_reduce(1)}'\n"
        "odd, there_are = Odd(), 1"
    )
    # A collective for one rank's help would leave the others behind, or wait for ever.
    assert "Odd" in look(four, "%%distributed\nodd")
    with running(four, "import time\nwhile True: time.sleep(0.01)"):
        complete(four, "%%distributed\nodd.")  # it never ends: the notebook answers
        await_completion(four, "%%distributed\nthere_a", "%%distributed\nthere_are")
        # A hang is a hang all the same: whoever answers questions counts for nothing.
    cell = four.run("%%distributed\nif rank: all_reduce(1)", fails=True)
    assert "HangError" in cell.error_text
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"
    assert four.run("%%distributed\nrepr(odd)").text == "[0-3] 'all have 4'\n"


def test_a_dead_rank_and_a_world_that_is_gone(four: Notebook) -> None:
    four.run("there_here = 1")
    four.run("%%distributed\nthere_are = 1")
    cell = four.run("%%distributed -r 0\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)", fails=True)
    assert "RankDiedError" in cell.error_text
    assert whole(four, "%%distributed -r 0\nthere_") == ["%%distributed -r 0\nthere_here"]
    await_completion(four, "%%distributed\nthere_a", "%%distributed\nthere_are")  # by rank 1
    assert "int" in look(four, "%%distributed -r 0,3\nthere_are")
    assert whole(four, "%%distributed -r 9\nthere_") == ["%%distributed -r 9\nthere_here"]
    four.run("%distributed heal")
    await_completion(four, "%%distributed -r 0\nrank_pr", "%%distributed -r 0\nrank_print")
    assert "there_are" not in str(whole(four, "%%distributed -r 0\nthere_")), "its variables are lost"
    four.run("%distributed stop")
    assert whole(four, "%%distributed\nthere_") == ["%%distributed\nthere_here"]
    four.run("%unload_ext nbcomm")
    assert whole(four, "%%distributed\nthere_") == ["%%distributed\nthere_here"]
    assert four.run("'do_complete' in vars(get_ipython().kernel)").text == "False\n"
