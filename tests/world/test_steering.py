"""%distributed and its refusals: one sentence each, and the world as it was."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from .notebook import Notebook, with_ranks


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with three ranks."""
    with with_ranks(tmp_path_factory.mktemp("three"), 3) as notebook:
        yield notebook


IN_BULK = (
    "from nbcomm.notebook.session import registry\n[p for p in registry.current().home.bulk.iterdir() if p.is_file()]"
)
"""A cell that shows the files in which values travel."""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%distributed stat", "start"),
        ("%distributed start", "already running"),
        ("%distributed start -n 0", "already running"),
        ("%distributed push nowhere", "nowhere is not defined in the notebook"),
        ("%distributed pull nowhere", "nowhere is not defined (ranks 0-3)"),
        ("%distributed pull rank -r 7", "valid ranks are 0-3"),
        ("%distributed push", "required"),
        ("%distributed log 9", "Rank 9 does not exist; valid ranks are 0-3."),
        ("%distributed pull 'x", "not understood"),
        ("%%distributed -r 4\nrank", "valid ranks are 0-3"),
        ("%%distributed -r 0-\nrank", "are invalid at"),
        ("%%distributed -r __import__('os')\nrank", "are invalid at"),
        ("%%distributed --bogus\nrank", "--bogus"),
        ("%%distributed\n   ", "empty"),
        ("%%distributed", "empty"),
        ("%%distributed\n# only a comment\n", ""),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(four: Notebook, line: str, said: str) -> None:
    four.run("%%distributed\nkept = rank + 1")
    cell = four.run(line, fails=bool(said))
    shown = cell.error_text + cell.stream("stderr")
    assert said in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) <= 3, shown
    assert four.run("%%distributed\nkept").lines == ["[0] 1", "[1] 2", "[2] 3", "[3] 4"]


def test_an_unpicklable_value_is_refused_both_ways(four: Notebook) -> None:
    four.run("import threading\nlock = threading.Lock()")
    assert "lock" in four.run("%distributed push lock", fails=True).error_text
    four.run("%%distributed\nimport threading\nlock = threading.Lock()")
    assert "lock (lock) cannot travel" in four.run("%distributed pull lock", fails=True).error_text
    assert four.run("lock").text.startswith("<unlocked"), "a failed pull binds nothing"


def test_push_and_pull(four: Notebook) -> None:
    four.run("config = {'lr': 0.1, 'layers': [1, 2]}\nname = 'über'")
    four.run("%distributed push config name")
    assert four.run("%%distributed\nconfig['lr'], config['layers'], name").text == "[0-3] (0.1, [1, 2], 'über')\n"
    four.run("%%distributed\nmine = torch.full((2,), float(rank))\nlist_of = [rank]")
    assert four.run("%distributed pull mine list_of -r 1-2\nmine, list_of").text.rstrip() == (
        "([tensor([1., 1.]), tensor([2., 2.])], [[1], [2]])"
    )
    typed = "import dataclasses, enum\n@dataclasses.dataclass\nclass R:\n    v: int\nclass C(enum.Enum):\n    A = 1"
    four.run(f"%%distributed\n{typed}\nrecords, colours = R(5), C.A")
    four.run("%distributed pull records colours")
    assert (
        four.run("[each == records[0] for each in records], len(set(colours))").text
        == "([True, True, True, True], 1)\n"
    )
    four.run("%distributed push records colours")
    assert four.run("%%distributed\nrecords == [R(5)] * 4, set(colours) == {C.A}").text == "[0-3] (True, True)\n"
    # What nbcomm's own functions call their arguments is no special name.
    four.run("ranks, self = [7], 'I'\n%distributed push ranks self")
    assert four.run("%%distributed\nranks, self").text == "[0-3] ([7], 'I')\n"


def test_large_tensors_travel_both_ways_and_are_the_receivers_own(four: Notebook) -> None:
    four.run("import numpy\nbig = numpy.arange(2**20, dtype='float64')")
    four.run("%distributed push big")
    assert four.run("%%distributed\nbig[0] = rank\nfloat(big.sum())").lines[0] == "[0] 549755289600.0"
    four.run("%distributed pull big")
    assert four.run("[float(b[0]) for b in big], big[3].shape, big[1].flags.writeable").text.rstrip() == (
        "([0.0, 1.0, 2.0, 3.0], (1048576,), True)"
    )
    assert four.run(IN_BULK).text.rstrip() == "[]", "the files they travelled in are gone"


def test_of_large_values_that_nobody_takes_no_file_is_left(four: Notebook) -> None:
    four.run("""\
%%distributed
class Odd:
    def __reduce__(self): return eval, ("1 / 0",)
large = torch.zeros(1 << 20), Odd() if rank == 1 else None""")
    assert "cannot be rebuilt here" in four.run("%distributed pull large", fails=True).error_text
    assert four.run(IN_BULK).text.rstrip() == "[]"
    fails = "lambda: torch.zeros(1 << 20) if rank != 1 else 1 / 0"
    assert "ZeroDivisionError" in four.run(f"registry.current().call({fails})", fails=True).error_text
    assert four.run(IN_BULK).text.rstrip() == "[]"


def test_a_subset_runs_alone_and_a_world_collective_in_it_is_refused(four: Notebook) -> None:
    assert four.run("%%distributed -r 1,3\nrank").lines == ["[1] 1", "[3] 3"]
    for call in ("all_reduce(torch.ones(2))", "barrier()", "dist.all_reduce(torch.ones(2))", "broadcast('x')"):
        cell = four.run(f"%%distributed -r 1,3\n{call}", fails=True)
        assert "SubsetError" in cell.error_text
        assert "group=" in cell.error_text
        assert "1,3" in cell.error_text
    assert four.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_group_works_in_a_subset(four: Notebook) -> None:
    four.run("%%distributed\npair = new_group([1, 3])")
    assert four.run("%%distributed -r 1,3\nall_reduce(rank, group=pair)").text == "[1,3] 4\n"


def test_status_is_a_table(four: Notebook) -> None:
    lines = four.run("%distributed").lines
    begin = next(number for number, line in enumerate(lines) if line.startswith("0 "))
    ranks, start = lines[begin : begin + 4], lines[begin + 4]  # of which the reason may need another line
    assert [line.split()[0] for line in ranks] == ["0", "1", "2", "3"]
    assert all(" cpu " in line and "idle" in line for line in ranks)
    assert start.startswith(("Warm start: ", "Cold start: "))
    assert four.run("%distributed status").lines[begin].split()[:6] == ranks[0].split()[:6]


def test_help_and_log(four: Notebook) -> None:
    assert "push" in four.run("%distributed help").text
    assert "%%distributed" in four.run("%%distributed --help\n1").text
    assert four.run("%distributed log 0").text


def test_interrupt_ends_a_cell_and_keeps_variables(four: Notebook) -> None:
    for code in (
        "import time\nprint('on')\ntime.sleep(60)",
        "print('on')\nwhile True: pass",
        "import asyncio\nprint('on')\nawait asyncio.sleep(60)",
    ):
        four.run("%%distributed\nkept = 5")
        four.interrupted(f"%%distributed\n{code}")
        assert four.run("%%distributed\nkept").text == "[0-3] 5\n"


def test_a_called_function_is_interrupted_and_guarded_as_a_cell_is(four: Notebook) -> None:
    four.run("import time\nfrom nbcomm.notebook.session import registry\nsession = registry.current()")
    four.run("def long():\n    print('on')\n    time.sleep(60)")
    four.interrupted("session.call(long)")
    assert "SubsetError" in four.run("session.call(lambda: barrier(), ranks='0-1')", fails=True).error_text
    four.run("%%distributed\nkept = rank")
    assert four.run("session.call(lambda: all_reduce(kept))").text == "[6, 6, 6, 6]\n"


def test_a_function_is_spawned_on_the_ranks_that_are_there_or_on_others(four: Notebook) -> None:
    four.run(
        "import nbcomm\ndef work(local_rank, x, *, y=0):\n    return local_rank * x + y, all_reduce(1), world_size"
    )
    four.run("%%distributed\nkept = rank")
    assert four.run("nbcomm.spawn(work, (10,), {'y': 1})").text == "[(1, 4, 4), (11, 4, 4), (21, 4, 4), (31, 4, 4)]\n"
    assert four.run("nbcomm.spawn(lambda local_rank: kept, nproc_per_node=4)").text == "[0, 1, 2, 3]\n"
    other = "nbcomm.spawn(work, args=(10,), nproc_per_node=2)"
    assert four.run(other, timeout=120).text.splitlines()[-1] == "[(0, 2, 2), (10, 2, 2)]"
    failed = four.run("def fail(local_rank):\n    1 / local_rank\nnbcomm.spawn(fail)", fails=True)
    assert "1 of 4 ranks failed: [0] ZeroDivisionError" in failed.error_text
    assert four.run("%%distributed\nkept").lines == ["[0] 0", "[1] 1", "[2] 2", "[3] 3"]


def test_interrupting_an_idle_world_does_nothing(four: Notebook) -> None:
    four.run("%distributed interrupt")
    assert four.run("%%distributed\n1").text == "[0-3] 1\n"


def test_what_cannot_work_is_refused_before_a_process_starts_and_changes_nothing(
    open_notebook,  # type: ignore[no-untyped-def]
) -> None:
    notebook = open_notebook()
    notebook.run("import psutil, sys; ours = lambda: {(p.pid, p.create_time()) for p in psutil.Process().children()}")
    notebook.run("before = ours()")
    for options, said in (
        ("-n 100000", "100000 ranks do not fit into this machine: "),
        ("-n 2 --backend nccl", "--backend nccl needs GPUs, but "),
        ("-n 2 --backend xyz", "has no backend 'xyz'"),
        ("--device cuda", "--device cuda needs a GPU, but "),
        ("-n 2 --backend cpu:gloo,", "is malformed"),
    ):
        shown = notebook.run(f"%distributed start {options}", fails=True).error_text
        assert said in shown, options
        assert "Traceback" not in shown
        notebook.run("assert ours() <= before and 'torch' not in sys.modules")
    notebook.run("%distributed start -n 2")
    notebook.run("%%distributed\nkept = rank")
    for options in ("--backend nccl", "-n 100000", "-n 2 --world b --backend nccl"):
        assert notebook.run(f"%distributed start {options}", fails=True).error_text
    assert notebook.run("%%distributed\nall_reduce(kept)").text == "[0-1] 1\n"
    assert "Other worlds" not in notebook.run("%distributed").text


def test_a_large_start_is_refused(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook()
    for line, said in (
        # No process is started for these; test_capacity and test_backends have more of them.
        ("%distributed start -n 100000", "do not fit"),
        ("%distributed start --device cuda", "needs a GPU"),
        ("%distributed start --device tpu", "invalid choice"),
        ("%distributed stop", "No world is running"),
        ("%distributed push a", "not defined"),
        ("%distributed restart", "No world is running"),
        ("%%distributed -r bad\n1", "are invalid at"),
    ):
        shown = notebook.run(line, fails=True).error_text
        assert said in shown, line
        assert "Traceback" not in shown, shown
    assert "No world is running" in notebook.run("%distributed").text


def test_two_notebooks_have_two_worlds(open_notebook, four: Notebook) -> None:  # type: ignore[no-untyped-def]
    other = open_notebook()
    assert "[0-3] 4" in other.run("%%distributed\nworld_size").lines, "the first cell starts a world"
    other.run("%%distributed\nmine = 'other'")
    four.run("%%distributed\nmine = 'four'")
    assert other.run("%%distributed\nmine").text == "[0-3] 'other'\n"
    assert four.run("%%distributed\nmine").text == "[0-3] 'four'\n"


def test_restart_gives_an_empty_world_of_the_same_size(three: Notebook) -> None:
    three.run("%%distributed\nx = 1")
    three.run("%distributed restart")
    assert three.run("%%distributed\n'x' in globals(), world_size").text == "[0-2] (False, 3)\n"


def test_the_python_api_in_a_notebook(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook()
    code = """\
        import nbcomm
        with nbcomm.start(2) as session:
            session.run("x = rank + 1\\nall_reduce(x)")
            session.push(y=10)
            print(session.pull("x"), session.call(lambda z: x * y * z, 2), session.ranks)
        print(session.running)"""
    assert notebook.run(textwrap.dedent(code)).lines == ["[0-1] 3", "[1, 2] [20, 40] [0, 1]", "False"]


ANSWERS_ON_FOUR = {
    "all_gather(torch.tensor(10 * rank))": "tensor([ 0, 10, 20, 30])",
    "all_reduce(torch.tensor(10 * rank))": "tensor(60)",
    'broadcast(f"hello from rank {rank}", src=0)': "'hello from rank 0'",
    "x = torch.ones(1, requires_grad=True)\nall_gather(x, sync_grads=True).sum().backward()\nx.grad": "tensor([4.])",
    "import time\ntime.sleep(0.2 * rank)\ncame = time.time()\nbarrier()\ntime.time() >= max(all_gather(came))": "True",
}
ANSWERS_ON_THREE = {
    "all_reduce(torch.arange(2) + 1 + 2 * rank)": "tensor([ 9, 12])",
    "all_gather(2.0 * rank)": "[0.0, 2.0, 4.0]",
}


def test_the_references_answers_in_cells(four: Notebook, three: Notebook) -> None:
    for notebook, ranks, answers in ((four, "0-3", ANSWERS_ON_FOUR), (three, "0-2", ANSWERS_ON_THREE)):
        for code, answer in answers.items():
            assert notebook.run(f"%%distributed\n{code}").text == f"[{ranks}] {answer}\n"
