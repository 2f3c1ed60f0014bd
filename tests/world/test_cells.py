"""What a notebook cell can do, it can do on ranks."""

from __future__ import annotations

import re
import textwrap
from importlib.metadata import version

import pytest

from nbcomm.torch_versions import limits

from .notebook import Notebook


def test_the_first_cell_of_the_documentation(four: Notebook) -> None:
    cell = four.run('%%distributed\nx = torch.full((2,), float(rank), device=device)\nall_reduce(x, "sum")')
    assert cell.text == "[0-3] tensor([6., 6.])\n"


def test_variables_stay_and_differ_between_ranks(four: Notebook) -> None:
    four.run("%%distributed\nmine = rank * 10")
    assert four.run("%%distributed\nmine").lines == ["[0] 0", "[1] 10", "[2] 20", "[3] 30"]


def test_the_notebooks_own_namespace_is_untouched(four: Notebook) -> None:
    four.run("%%distributed\nonly_there = 1")
    cell = four.run("[name in globals() for name in ('only_there', 'rank', 'all_reduce', 'torch', 'comm')]")
    assert cell.lines == ["[False, False, False, False, False]"]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", "[0-3] 'awaited'"),
        ("!echo from a child", "[0-3] from a child"),
        ("files = !echo one two\nfiles", "[0-3] ['one two']"),
        ("1 + 1;", ""),
        ("print('a', end='')", "[0-3] a"),
        (
            "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))",
            "[0-3]\n<IPython.core.display.HTML object>",
        ),
        ("torch.eye(2)", "[0-3] tensor([[1., 0.],\n              [0., 1.]])"),
    ],
)
def test_what_a_cell_can_hold(four: Notebook, code: str, shown: str) -> None:
    assert four.run(f"%%distributed\n{code}").text.rstrip("\n") == shown


def test_time_magics_say_something_on_every_rank(four: Notebook) -> None:
    timed = four.run("%%distributed\n%%time\nsum(range(10))").text
    assert "[0-3] 45" in timed
    assert timed.count("Wall time") >= 1
    assert "per loop" in four.run("%%distributed\n%timeit -n1 -r1 1").text


def test_history_and_last_results(four: Notebook) -> None:
    four.run("%%distributed\n20 + 2")
    assert four.run("%%distributed\n_ + 1").text == "[0-3] 23\n"
    assert four.run("%%distributed\nIn[-2].strip()").text == "[0-3] '_ + 1'\n"


def test_a_cell_is_transformed_once_and_so_is_what_it_runs(four: Notebook) -> None:
    four.run(
        "%%distributed\nseen = []\ndef note(lines):\n    seen.append(''.join(lines))\n    return lines\n"
        "get_ipython().input_transformers_cleanup.append(note)"
    )
    try:
        cell = four.run("%%distributed\nget_ipython().run_cell('inner = 5')\nprint(seen[1:], len(seen), inner)")
        assert cell.text == "[0-3] ['inner = 5\\n'] 2 5\n"
        waiting = four.run("%%distributed\nimport asyncio\nawait asyncio.sleep(0)\nprint(len(seen))")
        assert waiting.text == "[0-3] 3\n"
    finally:
        four.run("%%distributed\nget_ipython().input_transformers_cleanup.remove(note)")


def test_hooks_of_ipythons_run_behind_every_cell_once(four: Notebook) -> None:
    hooks = "called = []\nfor event in ('post_execute', 'post_run_cell'):\n"
    hooks += (
        "    get_ipython().events.register(event, lambda *result, event=event: called.append((event, len(result))))"
    )
    four.run(f"%%distributed\n{hooks}")
    for code in ("1;", "import asyncio; await asyncio.sleep(0)"):
        four.run("%%distributed\ncalled.clear()")  # and is called itself
        four.run(f"%%distributed\n{code}")
        seen = four.run("%%distributed\nprint(called)").lines
        hook = "('post_execute', 0), ('post_run_cell', 1)"
        assert seen == [f"[0-3] [{hook}, {hook}]"]
    remove = "for event in ('post_execute', 'post_run_cell'): get_ipython().events.callbacks[event].pop()"
    four.run(f"%%distributed\n{remove}")


def test_a_tracebacks_cell_number_is_the_notebooks(four: Notebook) -> None:
    cell = four.run("%%distributed\nraise OSError('no')", fails=True)
    assert f"In[{cell.number}]" in cell.error_text


def test_a_rank_fails_and_the_notebook_with_it(four: Notebook) -> None:
    cell = four.run("%%distributed\nif rank in (1, 3):\n    1 / 0\nrank", fails=True)
    assert cell.error is not None
    assert cell.error["ename"] == "CellError"
    assert "[1,3]" in cell.error["evalue"]
    assert cell.error_text.count("1 / 0") == 1, "identical tracebacks are shown once"
    assert "[0] 0" in cell.lines
    assert "[2] 2" in cell.lines


def test_the_odd_traceback_comes_first(four: Notebook) -> None:
    shown = four.run(
        "%%distributed\nif rank == 2:\n    raise KeyError('odd')\nraise OSError('many')", fails=True
    ).error_text
    assert shown.index("odd") < shown.index("many")


def test_a_syntax_error_is_said_once_and_reaches_no_rank(four: Notebook) -> None:
    four.run("%%distributed\nkept = 7")
    cell = four.run("%%distributed\nkept = = 3", fails=True)
    assert cell.error_text.count("invalid syntax") == 1
    assert "magics.py" not in cell.error_text
    assert four.run("%%distributed\nkept").text == "[0-3] 7\n"


def test_a_users_own_name_wins_until_it_is_deleted(four: Notebook) -> None:
    four.run("%%distributed\nreduce = 'mine'")
    assert four.run("%%distributed\nreduce").text == "[0-3] 'mine'\n"
    four.run("%%distributed\ndel reduce")
    assert four.run("%%distributed\nreduce is comm.reduce or reduce == comm.reduce").text == "[0-3] True\n"


def test_the_names_do_not_leak_into_modules(four: Notebook) -> None:
    cell = four.run("%%distributed\nimport builtins\nhasattr(builtins, 'all_reduce'), hasattr(builtins, 'rank')")
    assert cell.text == "[0-3] (False, False)\n"


def test_torchruns_environment_is_set_in_children_too(four: Notebook) -> None:
    cell = four.run("%%distributed -r 2\n!echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR")
    assert cell.text == "[2] 2 4 2 4 127.0.0.1\n"


def test_ranks_draw_different_numbers(four: Notebook) -> None:
    code = """\
        import random, numpy
        draws = all_gather((torch.rand(()).item(), random.random(), float(numpy.random.rand())), mode="list")
        [len(set(kind)) for kind in draws]"""
    assert four.run("%%distributed\n" + textwrap.dedent(code)).text == "[0-3] [4, 4, 4]\n"


def test_threads_are_shared_out(four: Notebook) -> None:
    cell = four.run("%%distributed\nimport os\ntorch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 4)")
    assert cell.text == "[0-3] True\n"


def test_a_figure_and_a_table_arrive_whole(four: Notebook) -> None:
    four.run("%%distributed\nimport matplotlib.pyplot as plt", timeout=120)
    cell = four.run("%%distributed -r 1\nplt.plot([1, 2]); None", timeout=120)
    images = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(images) == 1
    assert "[1]" in cell.text


def test_a_display_is_updated_in_place(four: Notebook) -> None:
    code = """\
        from IPython.display import display
        handle = display("first", display_id=True)
        handle.update("second")"""
    shown = four.run("%%distributed\n" + textwrap.dedent(code)).text
    assert "second" in shown
    assert "first" not in shown


def test_exit_ends_no_rank(four: Notebook) -> None:
    assert "%distributed stop" in four.run("%%distributed\nexit").text
    assert four.run("%%distributed\n1").text == "[0-3] 1\n"


def test_ipyparallels_own_client_works_beside(four: Notebook) -> None:
    code = """\
        import nbcomm
        client = nbcomm.current().client
        client.wait_for_engines(4, timeout=30)
        client[:].apply_sync(lambda: __import__("os").environ["RANK"]), client.ids"""
    assert four.run(textwrap.dedent(code)).lines == ["(['0', '1', '2', '3'], [0, 1, 2, 3])"]
    assert "the ranks of a world work together" in four.run("client.load_balanced_view()", fails=True).error_text
    assert "No world 'b' is running" in four.run("nbcomm.current('b')", fails=True).error_text


def test_ipyparallels_own_cells_keep_their_output(four: Notebook) -> None:
    code = """\
        import nbcomm
        view = nbcomm.current().client[:]
        view.activate()
        _ = view.push({"pushed": 7})"""
    four.run(textwrap.dedent(code))
    four.run("%px pushed += rank")
    assert four.run("%%distributed\npushed").lines == ["[0] 7", "[1] 8", "[2] 9", "[3] 10"]
    four.run("%%distributed\nprint('ours')")
    four.run("%%px --noblock --out result\nprint('theirs')")
    # A plain %%px does the same, but waits a second at most for what engines have printed.
    shown = four.run("assert result.wait_for_output(20)\nresult.display_outputs()")
    assert shown.text.count("theirs") == 4
    assert four.run("%%distributed\nprint('ours')").text == "[0-3] ours\n"


def test_a_cell_longer_than_half_a_minute(four: Notebook) -> None:
    cell = four.run("%%distributed\nimport time\nprint('begun')\ntime.sleep(31)\nrank", timeout=90)
    assert cell.lines == ["[0-3] begun", "[0] 0", "[1] 1", "[2] 2", "[3] 3"]


def test_a_forked_child_that_leaves_the_cell_ends_there(four: Notebook) -> None:
    # Python 3.12 and newer warn of a fork beside threads.
    four.run("%%distributed\nimport warnings; warnings.simplefilter('ignore', DeprecationWarning)")
    fork = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid == 0, flush=True)"
    assert sorted(four.run(f"%%distributed\n{fork}").lines) == ["[0-3] False", "[0-3] True"]
    cell = four.run("%%distributed -r 1\nif os.fork() == 0: raise ValueError('in the child')\nos.wait()[1] >> 8")
    assert re.search(r"ValueError\S*: in the child", cell.text)
    assert cell.lines[-1] == "[1] 1"
    four.run("from nbcomm.notebook.session import registry\nimport os")
    four.run("def fork():\n    return os.fork() and os.wait()[1] >> 8")
    assert four.run("registry.current().call(fork)").text == "[1, 1, 1, 1]\n"
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_noting_a_call_does_not_ask_a_sparse_tensor_what_it_cannot_say(four: Notebook) -> None:
    cell = four.run("%%distributed\nbroadcast(torch.full((2,), rank + 3.0).to_sparse(), 1).to_dense().tolist()")
    # torch up to 2.11 warns of sparse tensors before.
    assert (cell.lines[-1:] if limits(version("torch")) else cell.lines) == ["[0-3] [4.0, 4.0]"]
