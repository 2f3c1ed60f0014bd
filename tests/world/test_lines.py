"""Whatever names a line of a cell counts as the page does, which numbers the line of the magic, too."""

from __future__ import annotations

import pytest

from .notebook import SESSION, Notebook

ERRORS = {
    "an error": ("%%distributed\nx = 1\n1 / 0", "Cell In[n], line 3"),
    "options": ("%%distributed -r 0\n\n\n1 / 0", "Cell In[n], line 4"),
    "empty lines above": ("\n\n%%distributed\n1 / 0", "Cell In[n], line 4"),
    "a magic above": ("%%time\n%%distributed\n1 / 0", "Cell In[n], line 3"),
    "indented": ("  %%distributed\n  x = 1\n  1 / 0", "Cell In[n], line 3"),
    "no syntax": ("%%distributed\nx = 1\nx = = 1", "Cell In[n], line 3\n    x = = 1"),
    "that awaits": ("%%distributed\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0", "Cell In[n], line 4"),
    "%%time": ("%%distributed\n%%time\nx = 1\n1 / 0", "<timed exec>:4"),
    "%time": ("%%distributed\nx = 1\n%time 1 / 0", "<timed eval>:3"),
    "%timeit": ("%%distributed\n\nx = 1\n%timeit -n1 -r1 1 / 0", "<magic-timeit>:4"),
    "magics in each other": ("%%distributed\n%%capture\n%%time\nx = 1\n1 / 0\nx", "<timed exec>:5"),
    "a cell in a cell": ("%%distributed\n\nget_ipython().run_cell('1 / 0').raise_error()", "Cell In[n], line 3"),
    "a hang": ("%%distributed\nx = 1\nif rank:\n    barrier()", "in line 4: barrier()\n"),
    "a hang that is timed": ("%%distributed\n%%time\nif rank: barrier()\nx = 1", "in line 3: if rank: barrier()\n"),
    "a hang in a timed line": ("%%distributed\n\n%time (rank and barrier())", "in line 3: (rank and barrier())\n"),
    "a mismatch": ("%%distributed\n\nall_reduce(torch.ones(2 + rank))", "(float32 (2,), sum), line 3"),
    "a program's": (f"{SESSION}\nsession.run('x = 1\\n1 / 0')", "Cell In[n], line 2"),
    "a script's": ("%%distributed --file fails.py", "fails.py:2"),
}


@pytest.mark.parametrize(("code", "words"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_pages_line(four: Notebook, code: str, words: str) -> None:
    four.run("from pathlib import Path\n_ = Path('fails.py').write_text('x = 1\\n1 / 0\\n')")
    cell = four.finish(four.submit(code))
    shown = cell.text + cell.error_text
    assert words in shown.replace(f"In[{cell.number}]", "In[n]").replace("In[1]", "In[n]"), shown


def test_each_cell_is_counted_alone(four: Notebook) -> None:
    four.run("%%distributed\n\n\ndef fails():\n    return 1 / 0")
    shown = four.run("%%distributed\nfails()", fails=True).error_text
    assert ", line 2\n----> 2 fails()" in shown
    assert ", line 5, in fails()" in shown


def test_with_auto_on_the_first_line_is_the_codes(four: Notebook) -> None:
    four.run("%distributed auto on")
    try:
        assert ", line 2\n" in four.run("x = 1\n1 / 0", fails=True).error_text
        assert ", line 3\n" in four.run("\nx = 1\n1 / 0", fails=True).error_text
        assert ", line 2\n" in four.run("%%distributed\n1 / 0", fails=True).error_text
    finally:
        four.run("%distributed auto off")


def test_what_a_cell_asks_of_its_source_is_the_pages_too(four: Notebook) -> None:
    code = (
        "%%distributed -r 0\nimport inspect, warnings\ndef f():\n    '''Doc.'''\n    return 1\n"
        "warnings.warn('careful')\ninspect.getsourcelines(f)"
    )
    cell = four.run(code)
    assert cell.lines[-1].endswith("'    return 1\\n'], 3)"), "it begins in line 3"
    assert ":6: UserWarning: careful" in cell.text
    assert four.run("%%distributed -r 0\nIn[-2]").text == f"[0] {code.partition(chr(10))[2]!r}\n", "no line is added"


def test_a_result_that_nobody_takes_is_told_with_its_line(four: Notebook) -> None:
    told = four.run("%%distributed\n\ny = rank\nbroadcast(y)\nNone").text
    assert "the result of broadcast(y) in line 4 is not used" in told


MISMATCHES = {
    "methods": ("gather(1)", "all_gather(1)", ("rank 0 called gather, line 3", "ranks 1-3 called all_gather, line 5")),
    "ops": ("all_reduce(1, 'max')", "all_reduce(1)", ("with max, line 3", "with sum, line 5")),
    "data": ("all_reduce([torch.ones(3)])", "all_reduce([torch.ones(2)])", ("(3,), line 3", "(2,), line 5")),
    "shapes": ("all_gather(torch.ones(3))", "all_gather(torch.ones(2))", ("(3,), line 3", "(2,), line 5")),
    "structures": ("all_gather({'a': 1})", "all_gather({'b': 1})", ("'a', line 3", "'b', line 5")),
    "leaves": (
        "gather({'a': 1}, mode='stack')",
        "gather({'a': torch.ones(2)}, mode='stack')",
        ("an int, line 3", "(2,), line 5"),
    ),
    "begun": ("all_gather(1, async_op=True).wait()", "scan(1)", ("all_gather, line 3", "scan, line 5")),
    "fabric": ("fabric.all_gather({})", "all_reduce(1)", ("called all_gather, line 3", "called all_reduce, line 5")),
    "turns": ("all_reduce(1)", "with rank_first(): pass", ("called all_reduce, line 3", "called rank_first, line 5")),
    "torch's": ("dist.barrier()", "all_reduce(torch.ones(1))", ("barrier(), line 3", "sum), line 5")),
    "messages": ("send(torch.ones(1), 1)", "dist.recv(torch.ones(2), 0) if rank == 1 else None", ("line 3", "line 5")),
}


@pytest.mark.parametrize(("one", "others", "words"), MISMATCHES.values(), ids=MISMATCHES)
def test_each_call_that_differs_is_told_with_its_line(
    four: Notebook, one: str, others: str, words: tuple[str, ...]
) -> None:
    shown = four.run(f"%%distributed\nif rank == 0:\n    {one}\nelse:\n    {others}", fails=True).error_text
    assert all(word in shown for word in words), shown
