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

from tests.world.notebook import Cell, Notebook
from tests.world.processes import of_notebook

from .conftest import RANKS

Open = Callable[..., Notebook]

pytestmark = pytest.mark.story  # its first cell starts the ranks

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
    assert "takes no arguments" in cluster.run("%%local -r 0\n1", fails=True).error_text


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


def kinds(cell: Cell) -> list[str]:
    return [output["kind"] for output in cell.outputs]


def assert_has_one_result_last(cell: Cell) -> None:
    """What stands above it is plain text, or a display where the cell took long and was shown meanwhile."""
    *above, last = kinds(cell)
    assert last == "execute_result"
    assert set(above) <= {"stdout", "display_data"}


def test_a_value_that_all_ranks_of_the_cell_gave_is_its_result(cluster: Notebook) -> None:
    cell = cluster.run("print('before')\nworld_size")
    assert_has_one_result_last(cell)
    assert cell.lines == [f"{ALL} before", f"{ALL} {RANKS}"]
    assert cell.outputs[-1]["data"] == {"text/plain": f"{ALL} {RANKS}"}
    assert cell.outputs[-1]["execution_count"] == cell.number
    alone = cluster.run("%%distributed -r 1\nrank")
    assert (kinds(alone), alone.text) == (["execute_result"], "[1] 1\n")
    slow = cluster.run("import time\ntime.sleep(rank)\ntorch.ones(2)", timeout=30)
    assert_has_one_result_last(slow)
    assert slow.outputs[-1]["data"] == {"text/plain": f"{ALL} tensor([1., 1.])"}
    rich = cluster.run("from IPython.display import HTML\nHTML('<b>x</b>')")
    assert_has_one_result_last(rich)
    assert rich.lines == [ALL, rich.outputs[-1]["data"]["text/plain"]]
    assert rich.outputs[-1]["data"]["text/html"] == "<b>x</b>"
    for code in ("rank", "rank or None", "None", "%%distributed --no-fold\n1", "1;"):
        assert "execute_result" not in kinds(cluster.run(code)), code


def test_displays_and_values_of_ranks_stand_in_the_order_of_the_ranks_whichever_comes_first(cluster: Notebook) -> None:
    late = f"import time\nfrom IPython.display import HTML, display\ntime.sleep(0.4 * ({RANKS - 1} - rank))\n"
    cell = cluster.run(late + "display(HTML(f'<i>{rank}</i>'))\nHTML(f'<b>{rank}</b>')")
    shown = [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
    assert shown == [f"<{tag}>{r}</{tag}>" for tag in "ib" for r in range(RANKS)]
    cell = cluster.run(late + "display(HTML(f'<i>{rank}</i>'))\nHTML('<b>all</b>')")
    assert_has_one_result_last(cell)
    assert cell.outputs[-1]["data"]["text/html"] == "<b>all</b>"
    assert [line for line in cell.lines if line.startswith("[")] == [*(f"[{r}]" for r in range(RANKS)), ALL]


def test_what_ranks_give_to_a_local_cell_is_not_its_result(cluster: Notebook) -> None:
    cell = cluster.run("%%local\nfrom nbcomm.notebook.session import registry\nregistry.current().run('1')\n'its own'")
    assert_has_one_result_last(cell)
    assert cell.text == f"{ALL} 1\n'its own'\n"


def page(cluster: Notebook, code: str) -> tuple[Cell, list[str]]:
    """A cell, and the texts that went to the pager."""
    cell = cluster.submit(code)
    payloads = answer(cluster, cell.message)["payload"]
    cluster.finish(cell)
    assert all(payload["source"] == "page" for payload in payloads)
    return cell, [payload["data"]["text/plain"] for payload in payloads]


def test_help_goes_to_the_pager(cluster: Notebook) -> None:
    for code, text in (("all_reduce?", "Combine every rank's data"), ("*all_red*?", f"{ALL} all_reduce\n")):
        cell, pages = page(cluster, code)
        # Where the cell takes long, what has come so far is shown meanwhile, and emptied at its end.
        assert [output for output in cell.outputs if output.get("data", True)] == []
        assert len(pages) == 1
        assert text in pages[0]
        assert pages[0].startswith(ALL)
    cluster.run("mine = rank * 10")
    cell, pages = page(cluster, "%%distributed -r 1,2\n# two\nmine?\nall_reduce?")
    assert "[1] " in pages[0]
    assert "10" in pages[0]
    assert "Combine every rank's data" in pages[0]


def test_help_among_other_things_is_shown_where_it_stands(cluster: Notebook) -> None:
    cell, pages = page(cluster, "print('above')\nall_reduce?")
    assert pages == []
    assert cell.lines[0] == f"{ALL} above"
    assert "Combine every rank's data" in cell.text
    cell, pages = page(cluster, "not_there?")
    assert (cell.text, pages) == (f"{ALL} Object `not_there` not found.\n", [])


def test_help_is_shown_in_the_cell_where_that_is_wanted(cluster: Notebook) -> None:
    cluster.run("%%local\nget_ipython().display_page = True")
    try:
        cell, pages = page(cluster, "all_reduce?")
    finally:
        cluster.run("%%local\nget_ipython().display_page = False")
    assert pages == []
    assert "Combine every rank's data" in cell.text


SLOW = (
    "import time\nclass Slow:\n    def __repr__(self):\n        time.sleep({})\n        return 'at last'\nslow = Slow()"
)


def test_help_for_which_a_rank_is_waited_leaves_nothing_in_the_cell(cluster: Notebook) -> None:
    cluster.run(SLOW.format("rank"))
    cell, pages = page(cluster, "slow?")
    assert "at last" in pages[0]
    assert cell.text == ""


def test_help_that_is_interrupted_is_the_cells_output(cluster: Notebook) -> None:
    cluster.run(SLOW.format("600 * (rank == 1)"))
    cell = cluster.interrupted("all_reduce?\nslow?", once="at last")
    assert "Combine every rank's data" in cell.stream("stdout")


def test_a_clear_is_told_to_the_front_end_where_nothing_was_shown(cluster: Notebook) -> None:
    told: list[dict[str, Any]] = []
    message = cluster.client.execute("from IPython.display import clear_output\nclear_output(wait=rank < 0)")
    while True:
        heard = cluster.client.get_iopub_msg(timeout=30)
        if heard["parent_header"].get("msg_id") == message:
            if heard["msg_type"] == "clear_output":
                told.append(heard["content"])
            elif heard["content"].get("execution_state") == "idle":
                break
    assert told == [{"wait": False}]


def test_what_steers_is_refused_in_the_midst_of_a_cell_with_what_to_do(cluster: Notebook) -> None:
    for code in ("x = 1\n%distributed status", "%%time\n%%local\n1", "%%distributed\n%%distributed\n1"):
        cell = cluster.run(code, fails=True)
        # IPython 8 shows what is raised below %%time as text, and goes on.
        assert "runs in the notebook, but this line runs on a rank" in cell.error_text + cell.text


def test_errors_carry_the_cells_own_number(cluster: Notebook) -> None:
    cell = cluster.run("y = 1\nassert rank != 1, 'odd'", fails=True)
    assert cell.error is not None
    assert cell.error["ename"] == "CellError"
    assert f"Cell In[{cell.number}], line 2" in cell.error_text
    assert "\nAssertionError: odd\n" in cell.error_text
    assert cell.error_text.endswith("failed: [1] AssertionError")
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
    assert "already running" in cluster.run("%distributed start -n 0", fails=True).error_text
    assert "ready since the first cell" in cluster.run(f"%distributed start -n {RANKS}").text
    refused = cluster.run("%distributed start -n 2", fails=True)
    assert f"A world of {RANKS} ranks on cpu is already running" in refused.error_text
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
    assert f"Every cell runs on {RANKS} ranks; a cell that begins with %%local" in info["banner"]


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
    assert "An earlier kernel of this notebook left" in other.run("%load_ext nbcomm").text
    assert f"Attached to {RANKS} ranks" in other.run("%distributed attach").text
    assert other.run("mine").text == f"{ALL} 'second'\n"

    processes = [psutil.Process(pid) for pid in theirs] + of_notebook(other.pid)
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
