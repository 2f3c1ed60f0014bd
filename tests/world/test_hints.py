"""The first mistakes of a newcomer, in a real kernel: each gets its hint, once, below its error."""

from __future__ import annotations

import pytest

from nbcomm.torch_versions import without_gloos_lines

from .notebook import Notebook
from .processes import OLD_GLOO

pytestmark = pytest.mark.story  # a hint speaks of what the notebook has, and comes once

OWN_CELL = "What is above it has run: put %%distributed, with what is below it, into a cell of its own."
ON_0 = 'gives its result on rank 0 (dst) only. Use it below "if rank == 0:", or call all_'
FIRST_LINE = "put %%distributed on the first line of this cell."


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rank", f"rank exists only on the ranks: {FIRST_LINE}"),
        ("all_reduce(1)", f"all_reduce exists only on the ranks: {FIRST_LINE}"),
        ("# look\n%%distributed\nrank", '%%distributed must be on the first line of a cell: move it above "# look".'),
        ("import os\n%%distributed\nrank", '%%distributed must be on the first line of a cell: move it above "import'),
        ("%load_ext nbcomm\n%%distributed\nrank", OWN_CELL),
        ("import os\n%distributed who\n%%distributed\nrank", OWN_CELL),
        ("\n\n%%distributed\nrank * 0", "[0-3] 0"),
        ("%%distribute\nrank", "Did you mean %%distributed?"),
        ("%%nbcomm\nrank", "Did you mean %%distributed?"),
        ("%% distributed\nrank", "Write %%distributed, without a blank."),
        ("% distributed", "Write %distributed, without a blank."),
        ("%distributed\nshown = 1", "begin it with %%distributed, with two percent signs."),
        ("%%distributed print(rank)", "write print(rank) on the line below it. Nothing was run"),
        ("%%distributed print(rank)\n1", "write print(rank) on the line below it. Nothing was run"),
        ("%%distributed start -n 2", "with one percent sign: type %distributed start -n 2 in a cell of its own."),
        ("%%distributed start\nrank", "with one percent sign: type %distributed start in a cell of its own."),
        ("%%distributed 0\nrank", "did you mean %%distributed -r 0?"),
        ("%distributed frobnicate", "The most used are start, status, push, pull, who, diff and stop;"),
        ("%distributed x = rank", "code for the ranks goes below a line %%distributed"),
        ("%distributed -r 0", "did you mean %%distributed -r 0, with two percent signs?"),
        ("%distribute status", "Did you mean %distributed?"),
        ("%%distributed --drw\nrank", "did you mean --draw?"),
        ("%%distributed -n 4\nrank", "%distributed start -n sets the number of ranks."),
        ("%distributed statsu", "did you mean status"),
        ("import math\nlr = 3", ""),
        ("%%distributed\nlr", "copy it to them with %distributed push lr."),
        ("%%distributed\nmath.pi", "import it in a %%distributed cell."),
        ("torch.ones(2)", "The ranks have imported torch, but the notebook has not: put %%distributed on the first"),
        ("allreduce(1)", "Did you mean all_reduce? It exists only on the ranks:"),
        ("%%distributed\nthere = x = torch.ones(2)", ""),
        ("there", "Ranks 0-3 have a variable there, but the notebook does not:"),
        (
            "%distributed push there",
            "there is not defined in the notebook, but on ranks 0-3: %distributed pull there copies",
        ),
        ("%distributed push lrr", "lrr is not defined in the notebook; did you mean lr? Nothing was pushed."),
        ("%distributed push lr y=3", "push copies variables, and y=3 is none: set it in the notebook first."),
        ("%distributed pull lr", "lr is not defined (ranks 0-3). The notebook has a variable lr: %distributed push lr"),
        (
            "%distributed pull ther",
            "ther is not defined, but there is (ranks 0-3). %distributed who lists",
        ),
        ("import nbcomm\nnbcomm.rank", "write rank in a %%distributed cell, and nbcomm.init().rank in a script"),
        ("from nbcomm import recv", "nbcomm: recv is not imported: %%distributed cells have it by its name."),
        ("f = open(__import__('os').devnull, 'w')\ndef uses(): return f", ""),
        ("%distributed push f", "f (open file) cannot travel between the notebook and the ranks"),
        ("%distributed push uses", "uses (function) uses f (open file), and cannot travel between"),
        (
            "%%distributed\ngather(rank)[0]",
            f"nbcomm: on ranks 1-3 gather(rank) is None: gather {ON_0}gather,",
        ),
        ("%%distributed\ntotal = reduce(rank)\ntotal / 4", f"on ranks 1-3 reduce(rank) is None: reduce {ON_0}reduce,"),
        ("%%distributed\nnothing = None\nnothing[0]", ""),
        ("%%distributed\ny = dist.all_reduce(x)\ny + 1", "Use the arguments, or call all_reduce, without dist."),
        ("%%distributed\nallreduce(x)", "Did you mean all_reduce?"),
        ("%%distributed\nworldsize", "Did you mean world_size?"),
        ("%%distributed\ndist.allreduce(x)", "on ranks 0-3 dist has no allreduce; did you mean dist.all_reduce?"),
        ("%%distributed\ncomm.Get_rank()", "on ranks 0-3 comm has no Get_rank; did you mean comm.rank?"),
        (
            "%%distributed\nall_reduce(x, op=max)",
            'no reduction <built-in function max>; write "max", in quotes.',
        ),
        ("%%distributed\nall_reduce(x, 'add')", "There is no reduction 'add' (did you mean sum?); write"),
        (
            "%%distributed\nbroadcast(x, root=0)",
            "got an unexpected keyword argument 'root'; did you mean src? It is",
        ),
        ("%%distributed\nsend(x)", "'dst'. It is called as send(data, dst, tag=0, *, group=None)."),
        (
            "%%distributed\nrecv(rank)",
            "A rank cannot send to itself, or receive from itself; src must be another",
        ),
        ("%%distributed\nprint rank", "Missing parentheses in call to 'print'"),
        ("%%distributed -r 9\nrank", "Rank 9 (in '9') does not exist; valid ranks are 0-3."),
        ("%%distributed --rank 0\nrank", "[0] 0"),
        ("%%distributed -r 0\nall_reduce(x)", "Run the cell on ranks 0-3, or pass group=g"),
        ("%%distributed\nrank()", "on ranks 0-3 rank is a value, and no function: write rank, without parentheses."),
        ("%%distributed\nfor i in world_size: pass", "world_size is a number; range(world_size) counts all ranks."),
        ("%%distributed\nawait all_reduce(x)", "all_reduce returns its result once it is there: leave await out."),
        ("%%distributed\ndist.init_process_group('gloo')\nall_reduce(1)", "[0-3] 4"),
        ("%%distributed\nx.to('cuda')", "there is no GPU: write device, which is cpu here, in place of"),
        ("%%distributed\ntorch.cuda.set_device(rank)", "there is no GPU: write device, which is cpu here, in place of"),
        (
            "%%distributed\ndist.all_reduce(5)",
            "dist.all_reduce takes tensors only; all_reduce, without dist., takes",
        ),
        (
            "%%distributed\nfrom nbcomm import all_reduce",
            "on ranks 0-3 all_reduce needs no import: cells have it",
        ),
        ("lr_of_nobody", ""),
        ("%%distributed\nlr_of_nobody", ""),
    ],
)
def test_a_mistake_gets_its_hint(four: Notebook, code: str, said: str) -> None:
    cell = four.finish(four.submit(code))
    shown = cell.text + cell.error_text
    if said:
        assert shown.count(said) == 1, shown
    else:
        assert "nbcomm: " not in shown
        assert "The notebook has" not in shown
        assert "Did you mean" not in shown


def test_a_magic_behind_a_blank_runs_or_gets_its_hint(four: Notebook) -> None:
    cell = four.finish(four.submit(" %%distributed\nrank * 0"))
    # IPython took such a cell up to 8.
    assert cell.text == "[0-3] 0\n" or "%%distributed must be at the start of its line" in cell.text, cell.text


def test_where_every_cell_is_distributed_a_magic_below_the_first_line_gets_its_hint(four: Notebook) -> None:
    four.run("%distributed auto on")
    cell = four.run("import os\n%%distributed\nrank", fails=True)
    said = "%%distributed runs in the notebook, but this line runs on a rank: write it as the first line of a"
    assert (cell.error_text + cell.text).count(said) == 1
    four.run("%distributed auto off")


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("%%distributed?", ["Run this cell on every rank.", "%%distributed -r 0,2 --by-rank", "--draw "]),
        ("%distributed?", ["%distributed start -n 4 ", "%distributed push lr ", "    diff "]),
        ("?%distributed", ["%distributed start -n 4 ", "%distributed push lr ", "    diff "]),
    ],
)
def test_a_question_mark_shows_examples_and_options_in_the_pager(four: Notebook, code: str, parts: list[str]) -> None:
    cell = four.submit(code)
    reply = four.client.get_shell_msg(timeout=30)
    while reply["parent_header"].get("msg_id") != cell.message:
        reply = four.client.get_shell_msg(timeout=30)
    four.finish(cell)
    (page,) = reply["content"]["payload"]
    shown = page["data"]["text/plain"]
    assert [part for part in parts if part not in shown] == []


@pytest.mark.parametrize("code", ["%distributed help push", "%distributed push --help", "%distributed push -h"])
def test_help_of_a_subcommand_is_shown_in_the_cell(four: Notebook, code: str) -> None:
    shown = four.run(code).text
    assert shown.startswith("Copy variables of the notebook to every rank.\n\n  %distributed push lr ")
    assert "usage: %distributed push [--world NAME] NAME [NAME ...]" in shown
    assert four.run("%%distributed help\nrank").text.startswith("Run this cell on every rank.\n")


def test_of_several_names_each_is_compared(four: Notebook) -> None:
    four.run("%%distributed\na, b = 1, rank // 3")
    first, second, *_, last = four.run("%distributed diff a b").lines
    assert (first, second) == ("a (int) is equal on ranks 0-3.", "b (int), compared with rank 0:")
    assert last == "rank 3: 1 here, 0 on rank 0; difference 1."
    assert four.run("%distributed diff b, a").lines[-1] == first
    assert four.run("%distributed diff b - b").text == "b - b (int) is equal on ranks 0-3.\n"
    assert four.run("%distributed who a + 1").text.startswith("1 variable on ranks 0-3; all equal")


def test_the_log_of_a_rank_has_nothing_in_it_that_is_no_news(four: Notebook) -> None:
    text = without_gloos_lines(four.run("%distributed log 1").text).strip()
    assert text == ("" if OLD_GLOO else "(nothing)")


def test_behind_the_extension_there_are_no_hints(open_notebook) -> None:  # type: ignore[no-untyped-def]
    notebook = open_notebook()
    assert FIRST_LINE in notebook.finish(notebook.submit("rank")).text
    notebook.run("%unload_ext nbcomm")
    assert FIRST_LINE not in notebook.finish(notebook.submit("rank")).text
