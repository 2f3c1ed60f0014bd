"""The cluster kernel, from its installed spec: every cell runs on the ranks, and else it is a kernel as any other."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.world.notebook import Notebook

from .conftest import RANKS

Open = Callable[..., Notebook]

ALL = f"[0-{RANKS - 1}]"
PIDS = "import os\nprint(all_gather(os.getpid())) if rank == 0 else all_gather(os.getpid()) and None"


def pids(notebook: Notebook) -> list[int]:
    """The ranks' processes."""
    found: list[int] = ast.literal_eval(notebook.run(PIDS).lines[-1].removeprefix("[0] "))
    return found


def answer(notebook: Notebook, message: str) -> dict[str, Any]:
    """What the kernel answers to a request."""
    while True:
        heard = notebook.client.get_shell_msg(timeout=60)
        if heard["parent_header"].get("msg_id") == message:
            content: dict[str, Any] = heard["content"]
            return content


def test_the_first_cell_starts_the_ranks_that_the_spec_names(cluster: Notebook) -> None:
    cell = cluster.run("x = torch.full((2,), float(rank))\nall_reduce(x)", timeout=120)
    assert cell.lines[-1] == f"{ALL} tensor([3., 3.])"
    assert cell.lines[0].startswith(f"{RANKS} ranks on cpu, gloo, ready in ")
    assert cluster.run("world_size, x[0].item() == rank").text == f"{ALL} ({RANKS}, True)\n"


def test_local_cells_run_in_the_kernel_as_in_any_other(cluster: Notebook) -> None:
    assert cluster.run("%%local\nimport os\nos.getpid()").text == f"{cluster.pid}\n"
    assert cluster.run("%%local\nimport asyncio\nawait asyncio.sleep(0.01, 'waited')").text == "'waited'\n"
    assert cluster.run("# why\n%%local\n\n%%capture text\nprint('in')").text == ""
    assert cluster.run("%%local\ntext.stdout").text == "'in\\n'\n"
    failed = cluster.run("%%local\n\n1 / 0", fails=True)
    assert failed.error is not None
    assert failed.error["ename"] == "ZeroDivisionError"
    assert "----> 3 1 / 0" in failed.error_text
    assert "takes nothing behind it" in cluster.run("%%local -r 0\n1", fails=True).error_text


def test_ranks_and_options_can_be_chosen(cluster: Notebook) -> None:
    assert cluster.run("%%distributed -r 0,2\nrank").lines == ["[0] 0", "[2] 2"]
    assert cluster.run("%%distributed --no-fold\n1").lines == [f"[{r}] 1" for r in range(RANKS)]
    assert "%%distributed" in cluster.run("%%distributed?").text + str(cluster.run("%distributed help").text)


def test_cells_are_what_they_are_with_the_magic_above_them(cluster: Notebook) -> None:
    assert cluster.run("import asyncio\nawait asyncio.sleep(0.01, 'waited')").text == f"{ALL} 'waited'\n"
    assert cluster.run("%%capture text\nprint('in')").text == ""
    assert cluster.run("text.stdout").text == f"{ALL} 'in\\n'\n"
    assert cluster.run("!echo $RANK").lines == [f"[{r}] {r}" for r in range(RANKS)]
    assert cluster.run("%%bash\necho $WORLD_SIZE").text == f"{ALL} {RANKS}\n"
    assert cluster.run("%%time\nsum(range(10))").lines[-1] == f"{ALL} 45"
    assert f"{ALL} 45" in cluster.run("\n\n    # indented\n    sum(range(10))").lines
    assert cluster.run("# nothing").text == ""


def test_what_steers_is_refused_in_the_midst_of_a_cell_with_what_to_do(cluster: Notebook) -> None:
    for code in ("x = 1\n%distributed status", "%%time\n%%local\n1", "%%distributed\n%%distributed\n1"):
        cell = cluster.run(code, fails=True)
        # IPython 8 shows what is raised below %%time as text, and goes on.
        assert "is the notebook's, and this line runs on a rank" in cell.error_text + cell.text


def test_errors_carry_the_cells_own_number(cluster: Notebook) -> None:
    cell = cluster.run("y = 1\nassert rank != 1, 'odd'", fails=True)
    assert cell.error is not None
    assert cell.error["ename"] == "CellError"
    assert f"Cell In[{cell.number}], line 2" in cell.error_text
    assert "[1] AssertionError: odd" in cell.error_text
    assert "invalid syntax" in cluster.run("x = = 1", fails=True).error_text


@pytest.mark.parametrize(
    ("code", "status", "indent"),
    [
        ("for i in range(3):", "incomplete", "    "),
        ("def f():\n    if True:", "incomplete", "        "),
        ("x = (1,", "incomplete", ""),
        ("x = 1", "complete", None),
        ("x = = 1", "invalid", None),
        ("%%local\nx = 1", "incomplete", ""),
        ("%%distributed", "incomplete", ""),
        ("%%distributed -r 0\nx = 1\n\n", "complete", None),
        ("%%local\nx = 1\n\n", "complete", None),
        ("%distributed status", "complete", None),
    ],
)
def test_completeness_is_told_as_ever(cluster: Notebook, code: str, status: str, indent: str | None) -> None:
    content = answer(cluster, cluster.client.is_complete(code))
    assert (content["status"], content.get("indent")) == (status, indent)


def test_history_holds_what_was_typed(cluster: Notebook) -> None:
    cluster.run("kept = 1")
    cluster.run("%%local\nkept = 2")
    history = cluster.client.history(raw=True, hist_access_type="tail", n=2, reply=True, timeout=30)
    assert [line[2] for line in history["content"]["history"]] == ["kept = 1", "%%local\nkept = 2"]
    assert "kept = 1" in cluster.run("%%local\n%history -l 3").text


def test_what_front_ends_ask_on_their_own_account_stays_in_the_kernel(cluster: Notebook) -> None:
    cluster.run("%%local\nmark = 'here'")
    for options in ({"silent": True}, {"store_history": False}, {"silent": True, "store_history": False}):
        content = answer(cluster, cluster.client.execute("mark += '+'", **options))
        assert content["status"] == "ok", content
    assert cluster.run("%%local\nmark").text == "'here+++'\n"
    content = answer(cluster, cluster.client.execute("'on the ranks'", user_expressions={"it": "mark"}))
    assert content["user_expressions"]["it"]["data"]["text/plain"] == "'here+++'"
    assert cluster.run("'mark' in globals()").text == f"{ALL} False\n"


def test_what_local_code_runs_stays_in_the_kernel(cluster: Notebook, tmp_path: Path) -> None:
    file = tmp_path / "file.ipy"
    file.write_text("from_file = %sx echo 1\n")
    cluster.run(f"%%local\n%run {file}\nget_ipython().run_cell('inner = 2', store_history=True)")
    # Some IPythons complain of two cells of one number.
    assert cluster.run("%%local\nfrom_file[0], inner").lines[-1] == "('1', 2)"
    cluster.run(
        "%%local\nimport asyncio\nawait asyncio.sleep(0)\nget_ipython().run_cell('late = 3', store_history=True)"
    )
    assert cluster.run("%%local\nlate").lines[-1] == "3"
    assert cluster.run("[name for name in ('from_file', 'inner', 'late') if name in globals()]").text == f"{ALL} []\n"


def test_a_notebook_that_loads_and_starts_by_itself_finds_all_done(cluster: Notebook) -> None:
    cluster.run("1", timeout=120)
    assert cluster.run("%load_ext nbcomm").text == ""
    assert "ready since the first cell" in cluster.run(f"%distributed start -n {RANKS}").text
    refused = cluster.run("%distributed start -n 2", fails=True)
    assert f"A world of {RANKS} ranks on cpu is running already" in refused.error_text
    cluster.run("%%local\nconfig = [1]")
    cluster.run("%distributed push config")
    assert cluster.run("config").text == f"{ALL} [1]\n"


def test_auto_can_be_turned_off_and_on(cluster: Notebook) -> None:
    assert "Cells run here" in cluster.run("%distributed auto off").text
    assert cluster.run("'rank' in globals()").text == "False\n"
    assert cluster.run("%distributed auto").text.startswith("Cells run here")
    assert "Every cell runs on all ranks" in cluster.run("%distributed auto on").text
    assert cluster.run("world_size").text == f"{ALL} {RANKS}\n"
    assert "invalid choice" in cluster.run("%distributed auto maybe", fails=True).error_text


@pytest.mark.parametrize(
    "code",
    [
        "print('on', flush=True)\nbarrier() if rank else __import__('time').sleep(600)",
        "import asyncio\nprint('on', flush=True)\nawait asyncio.sleep(600)",
        "%%local\nimport time\nprint('on', flush=True)\ntime.sleep(600)",
    ],
)
def test_interrupts_end_a_cell_and_keep_variables(cluster: Notebook, code: str) -> None:
    cluster.run("kept = rank * 2")
    cluster.interrupted(code)
    assert cluster.run("all_reduce(kept)").text == f"{ALL} 6\n"


def test_an_interrupt_while_the_kernel_is_idle_does_nothing(cluster: Notebook) -> None:
    before = pids(cluster)
    cluster.interrupt()
    assert pids(cluster) == before


def test_the_kernel_says_how_many_ranks_it_has(cluster: Notebook) -> None:
    info = cluster.client.kernel_info(reply=True, timeout=30)["content"]
    assert (info["implementation"], info["language_info"]["name"]) == ("nbcomm", "python")
    assert f"Every cell runs on {RANKS} ranks; one that begins with %%local" in info["banner"]


def test_two_at_once_have_two_worlds_and_one_outlives_a_kill(cluster: Notebook, open_cluster: Open) -> None:
    other = open_cluster()
    cluster.run("mine = 'first'")
    other.run("mine = 'second'", timeout=120)
    assert cluster.run("mine").text == f"{ALL} 'first'\n"
    assert other.run("mine").text == f"{ALL} 'second'\n"
    theirs = pids(other)
    assert not set(theirs) & set(pids(cluster))

    os.kill(other.pid, signal.SIGKILL)
    other.begin_again()
    assert "of an earlier kernel live on" in other.run("%load_ext nbcomm").text
    assert f"Attached to {RANKS} ranks" in other.run("%distributed attach").text
    assert other.run("mine").text == f"{ALL} 'second'\n"

    processes = [psutil.Process(pid) for pid in theirs] + psutil.Process(other.pid).children(recursive=True)
    other.close()
    assert not psutil.wait_procs(processes, timeout=15)[1], "a shutdown leaves nothing"


def test_stop_then_a_cell_is_a_new_world_of_the_same_size(cluster: Notebook) -> None:
    before = pids(cluster)
    cluster.run("gone = 1")
    assert f"Stopped {RANKS} ranks" in cluster.run("%distributed stop").text
    assert cluster.interrupted("1", once="Starting").error_text == "KeyboardInterrupt: the world was not started."
    assert cluster.run("'gone' in globals(), world_size", timeout=120).lines[-1] == f"{ALL} (False, {RANKS})"
    assert not set(before) & set(pids(cluster))


def test_a_restart_is_a_fresh_start(cluster: Notebook) -> None:
    cluster.run("gone = 1")
    processes = [psutil.Process(pid) for pid in pids(cluster)]
    cluster.restart()
    assert not psutil.wait_procs(processes, timeout=15)[1], "the old world is not left for attach"
    cell = cluster.run("'gone' in globals(), world_size", timeout=120)
    assert cell.lines[-1] == f"{ALL} (False, {RANKS})"
    assert "attach" not in cell.text
