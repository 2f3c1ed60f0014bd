"""A whole script from what has happened."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from nbcomm.cell_names import ALL
from nbcomm.rank.cells.namespace import cell_names
from nbcomm.scripts import Called, Entry, Pushed, Ran, RanFile, Replaced
from nbcomm.scripts.history import literal, pushed
from nbcomm.scripts.source import compiles
from nbcomm.scripts.writer import write


def script(*entries: Entry | str, **options: Any) -> str:
    """The script of entries, or of cells that ran well; it compiles."""
    made = [Ran(n, entry, None) if isinstance(entry, str) else entry for n, entry in enumerate(entries, 1)]
    text = write(made, **{"name": "train.py", "world_size": 4, **options}).text
    assert compiles(text), text
    return text


END = "\n\n\ndist.barrier()\ndist.destroy_process_group()\n"


def body(*entries: Entry | str, **options: Any) -> str:
    """What comes behind the script's head, without its last line."""
    text = (
        script(*entries, **options)
        .split("\n\n\n", 1)[1]
        .removesuffix("\n\n\ndist.barrier()\ndist.destroy_process_group()\n")
    )
    return re.sub("# .*: nothing in this script defines it.\n", "", text)


def head(*entries: Entry | str) -> str:
    """What comes between the script's docstring and its first cell."""
    return script(*entries).split('"""\n\n', 1)[1].split("\n\n\n")[0]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("x = 1", "x = 1"),
        ("x", "comm.show(x)"),
        ("x;", "x"),
        ("x; # nothing", "x # nothing"),
        ("x  # a comment; with a semicolon", "comm.show(x)  # a comment; with a semicolon"),
        ("1, 2", "comm.show((1, 2))"),
        ("(1, 2)", "comm.show((1, 2))"),
        ("(1), 2", "comm.show(((1), 2))"),
        ("*x,", "comm.show((*x,))"),
        ("(y for y in x)", "comm.show((y for y in x))"),
        ("(x\n+ 1)  # one", "comm.show((x\n+ 1))  # one"),
        ("x \\\n + 1", "comm.show(x \\\n + 1)"),
        ("'ü', x", "comm.show(('ü', x))"),
        ("s = 'ü'; x", "s = 'ü'; comm.show(x)"),
        ("'''a\n b'''", "comm.show('''a\n b''')"),
        ("lambda: x", "comm.show(lambda: x)"),
        ("(z := 3)", "comm.show((z := 3))"),
        ("if x:\n    x", "if x:\n    x"),
        ("print(x)", "print(x)"),
        ("barrier()", "barrier()"),
        ("barrier(async_op=True)", "comm.show(barrier(async_op=True))"),
        ("None", "None"),
        ("!ls", 'subprocess.run("ls", shell=True)'),
        ("%time f(x)", "comm.show(f(x))"),
        ("%%time\nf(x)", "# %%time\ncomm.show(f(x))"),
        ("# nothing", "# nothing"),
        ("x = 1  \n\n\n", "x = 1  "),
    ],
)
def test_the_last_value_is_shown_as_a_cell_shows_it(cell: str, text: str) -> None:
    assert body(cell) == f"# In [1]\n{text}"


@pytest.mark.parametrize(
    ("ranks", "condition", "title"),
    [
        ((0,), "rank == 0", "rank 0"),
        ((0, 2), "rank in (0, 2)", "ranks 0,2"),
        ((1, 2, 3, 4), "rank in range(1, 5)", "ranks 1-4"),
    ],
)
def test_a_cell_on_some_ranks_is_a_block(ranks: tuple[int, ...], condition: str, title: str) -> None:
    text = body(Ran(5, "x = '''a\nb'''\n\nx", ranks), world_size=8)
    assert text == f"# In [5] on {title}\nif {condition}:\n    x = '''a\nb'''\n\n    comm.show(x)"


def test_a_block_of_comments_alone_is_none() -> None:
    assert body(Ran(1, "%matplotlib", (0,)), "x = 1") == "# In [1] on rank 0\n# %matplotlib\n\n\n# In [2]\nx = 1"


AWAITS = """
x: int = await f()
y: str
for k in x:
    z: 'T' = 1
def g():
    inner: int = 1
    return '''
'''
del k
x"""

WRITTEN = """# In [1]
async def cell_1():
    global g, k, x, z
    x = await f()
    pass
    for k in x:
        z = 1
    def g():
        inner: int = 1
        return '''
'''
    del k
    comm.show(x)


loop.run_until_complete(cell_1())"""


def test_a_cell_that_awaits_keeps_its_variables_global() -> None:
    assert body(AWAITS) == WRITTEN


def test_awaiting_cells_share_a_loop_and_have_names_that_nobody_has() -> None:
    text = script("loop = 1\ncell_2 = 2", "await f()", Ran(2, "await f()", (1,)))
    assert "event_loop = asyncio.new_event_loop()" in text
    assert "event_loop.run_until_complete(cell_2_2())" in text
    assert "    event_loop.run_until_complete(cell_2_3())" in text


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (("x = 1",), ""),
        (("x = rank, device",), "rank, device = comm.rank, comm.device"),
        (("import torch\ntorch.ones(1)",), ""),
        (("torch.ones(1)", "import torch"), "torch"),
        (("if x: rank = 1\nrank",), "rank = comm.rank"),
        (("rank = 1", "rank"), ""),
        (("def f():\n    return rank", "rank = 1"), "rank = comm.rank"),
        (("def f(rank):\n    return rank",), ""),
        (("fabric.print(1)",), "fabric = Fabric(comm)"),
        (("display(1)",), "display = comm.show"),
        (("from IPython.display import display", "display(1)"), ""),
        (("all_reduce(1); scan(1);",), "all_reduce = comm.all_reduce\nscan = comm.scan"),
        (("comm.rank;",), ""),
    ],
)
def test_only_the_names_that_cells_use_are_bound(cells: tuple[str, ...], wanted: str) -> None:
    imports = "import nbcomm\nimport torch.distributed as dist"
    text = head(*cells)
    if wanted == "torch":
        assert text == "import nbcomm\nimport torch\nimport torch.distributed as dist\n\ncomm = nbcomm.init()"
        return
    if "Fabric" in wanted:
        imports += "\nfrom nbcomm import Fabric"
    assert text == "\n".join([imports, "", "comm = nbcomm.init()", *([wanted] if wanted else [])])


def test_a_variable_of_ones_own_wins_until_it_is_deleted() -> None:
    text = script("rank\nrank = 7\ncomm = 8", Ran(2, "x = rank", (0,)), "if x:\n    del rank, comm\nrank, comm")
    assert "communicator = nbcomm.init()\nrank = communicator.rank\ncomm = communicator" in text
    assert "if communicator.rank == 0:" in text
    assert "del rank, comm; rank = communicator.rank; comm = communicator" in text
    assert "communicator.show((rank, comm))" in text


def test_groups_are_destroyed_once() -> None:
    assert script("x = 1").endswith(END)
    ending = "if {0}.is_initialized():\n    {0}.barrier()\n    {0}.destroy_process_group()\n"
    assert script("dist.destroy_process_group()").endswith(ending.format("dist"))
    assert script("dist = 1").endswith("torch.distributed.destroy_process_group()\n")


def test_the_names_are_those_of_a_cell() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return name

    assert set(cell_names(Anything())) == ALL  # type: ignore[arg-type]


# ── what is in it ───────────────────────────────────────────────────────────────────────────────────


def test_what_failed_is_left_out_and_said() -> None:
    entries = ["x = 1", Ran(2, "y = (", None, "failed"), Ran(3, "z()\n\nw", (0,), "interrupted")]
    text = script(*entries)
    assert "# In [2] failed, so it is left out.\n\n\n# In [3] on rank 0 was interrupted, so it is left out.\n" in text
    notes = write([Ran(1, "x = 1", None), *entries[1:]], name="t.py", world_size=2).notes  # type: ignore[list-item]
    assert notes == ["Left out: In [2] (failed), In [3] (was interrupted)."]
    assert all(note in text for note in notes)
    assert "so it is left out.\n# z()\n#\n# w\n" in script(*entries, everything=True)


def test_what_cannot_be_written_is_left_out() -> None:
    assert "# In [1] cannot be written as a part of a script, so it is left out." in script("from a import *\nawait b")


def test_a_cell_is_there_as_often_as_it_ran() -> None:
    assert script("x = 0", "x += 1", "x += 1", "x").count("x += 1") == 2


@pytest.mark.parametrize(
    ("between", "times"),
    [
        ("x = 1", 1),
        ("f = 2", 2),
        ("del f", 2),
        ("from a import *", 2),
        ("from math import *", 1),
        ("def f(): return 2", 2),
    ],
)
def test_what_only_defines_is_there_once(between: str, times: int) -> None:
    cell = "import os\ndef f(): return 1"
    assert script(cell, between, cell).count("return 1") == times
    assert script(cell, between, cell, everything=True).count("return 1") == 2
    assert script(cell, between, Ran(3, cell, (0,))).count("return 1") == 2


def test_future_imports_stand_at_the_top() -> None:
    text = script("x = 1", "from __future__ import annotations\ndef f(a: B): pass")
    assert text.split('"""\n\n')[1].startswith("from __future__ import annotations\n")
    assert text.count("import annotations") == 1


def test_pushed_values_are_literals_where_they_can_be() -> None:
    push = pushed({"a": {"b": (1, -0.5, None, b"x")}, "nan": float("nan"), "c": object(), "unused": object()}, None)
    text = body(push, Ran(1, "a, c", None), Ran(2, "nan", None), name='a"b\\.py')
    assert text.startswith("# Pushed from the notebook\na = {'b': (1, -0.5, None, b'x')}\n")
    assert 'raise SystemExit("c was pushed from the notebook, and a value of type object cannot be written' in text
    assert "# unused, of type object, has no text, and nothing in this script needs it." in text
    some = body(pushed({"a": 1, "c": object()}, (0,)), "a")
    assert some.startswith("# Pushed from the notebook on rank 0\nif rank == 0:\n    a = 1\n    # c, of type object")


NO_LITERALS = [
    float("inf"),
    [float("nan")],
    list(range(3000)),
    "x" * 30_000,
    type("S", (str,), {})("a"),
    {1: {2: len}},
    10**20_000,
]


@pytest.mark.parametrize("which", range(len(NO_LITERALS)))
def test_what_has_no_literal(which: int) -> None:
    assert literal(NO_LITERALS[which]) is None


@pytest.mark.parametrize("value", [1, "a'\n\"", {"x", 2}, set(), [[]], True, 1j, -0.0, "\ud800", (1,), {None: b""}])
def test_what_has_one(value: Any) -> None:
    text = literal(value)
    assert text is not None
    assert ast.literal_eval(text) == value


def test_a_value_that_contains_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert literal(value) is None


def test_what_nothing_makes_is_named() -> None:
    entries = [Ran(1, "x = made_by_call + _", None), Called("f", None), RanFile(3, "a b.py\n1", (0,), "failed")]
    saved = write(entries, name="t.py", world_size=4)
    assert saved.notes == [
        "Ran besides the cells, and is not in this script: f(), a b.py 1.",
        "_ is needed by In [1], but nothing in this script defines it.",
        "made_by_call is needed by In [1], but nothing in this script defines it.",
    ]
    assert "# made_by_call: nothing in this script defines it.\nx = made" in saved.text
    assert "# f() was called from the notebook; that is not in this script." in saved.text
    assert "# In [3] on rank 0 ran the script a b.py 1, and failed; that is not in this one." in saved.text


def notes(*cells: str) -> list[str]:
    """What is said of a script of cells that ran well."""
    return write([Ran(n, cell, None) for n, cell in enumerate(cells, 1)], name="t.py", world_size=4).notes


@pytest.mark.parametrize("star", ["from math import *", "try:\n    from math import *\nexcept ImportError:\n    pass"])
def test_a_star_import_brings_its_names_and_no_others(star: str) -> None:
    assert notes(star, "x = sqrt(pi) + nobody_made") == [
        "nobody_made is needed by In [2], but nothing in this script defines it."
    ]
    assert 'subprocess.run(f"echo {pi}", shell=True)' in script(star, "!echo {pi}")


def test_a_star_import_that_is_not_known_is_named_in_one_sentence() -> None:
    cells = ["from no_such import *", "from .a import *", "a + b", "b + _"]
    doubtful, sure = notes(*cells)
    assert doubtful == (
        "Nothing in this script defines a (needed by In [3]), b (needed by In [3], In [4]), unless `from no_such "
        "import *` in In [1] or `from .a import *` in In [2] does: these imports fail in a fresh process, "
        "so the names that they define are unknown."
    )
    assert sure == "_ is needed by In [4], but nothing in this script defines it."
    text = script(*cells)
    assert (
        "# a: nothing in this script defines it, unless `from no_such import *` or `from .a import *` does.\n" in text
    )
    assert "# _: nothing in this script defines it.\n" in text
    assert (
        "this import fails in a fresh process, so the names that it defines are unknown."
        in notes("from no_such import *\na")[0]
    )
    assert not notes("from no_such import *", "rank, len([])"), "nothing is missing, so nothing is said"


def test_what_a_star_import_binds_is_no_more_nbcomms() -> None:
    """`math` has a `dist` of its own, and what is not known may have anything."""
    assert script("from math import *").endswith("torch.distributed.destroy_process_group()\n")
    text = script("from no_such import *", Ran(2, "await f()", (0,)))
    assert "communicator = nbcomm.init()\nevent_loop = " in text
    assert "if communicator.rank == 0:" in text
    assert text.endswith("torch.distributed.destroy_process_group()\n")


def test_a_star_import_is_there_again_if_its_names_were_bound_meanwhile_or_may_have_been() -> None:
    assert script("from math import *", "pi = 3", "from math import *").count("import *") == 2
    assert script("from math import *", "y = 3", "from math import *").count("import *") == 1
    assert script("from no_such import *", "y = 3", "from no_such import *").count("import *") == 2


def test_fresh_processes_are_named_where_something_was_lost() -> None:
    cells = Ran(1, "x = 1", None), Replaced((1, 2)), RanFile(2, "a.py", (1, 2)), Ran(3, "x", None)
    saved = write(cells, name="t.py", world_size=4)
    assert "\n\n\n# Here new processes took the places of ranks 1-2, without variables.\n\n\n" in saved.text
    assert saved.notes == [
        (
            "New processes replaced ranks in between (--fresh): later cells did not find what earlier cells had "
            "defined, but in this script they do."
        ),
        "Ran besides the cells, and is not in this script: a.py.",
    ]
    assert not any("--fresh" in note for note in write(cells[1:], name="t.py", world_size=4).notes)


@pytest.mark.parametrize("name", ["it's.py", 'a"""b.py', "back\\slash.py", "two words.py", "ü.py"])
def test_a_docstring_stands_any_name(name: str) -> None:
    text = script("x = 1", name=name, attached=True)
    doc = ast.get_docstring(ast.parse(text))
    assert doc is not None
    assert "torchrun --nproc-per-node 4 " in doc
    assert "its earlier cells are not in this script" in doc


def test_every_kind_of_entry_compiles_together() -> None:
    cell = "import asyncio\nfor i in range(3):\n\tif i:\n\t\tt = f'''{i}\n'''\nawait asyncio.sleep(0); t"
    text = script(Ran(1, cell, (0, 3)), Pushed({"a": "1"}, {}, (1,)), Ran(2, cell, None), Called("<lambda>", (0,)))
    assert text.count("async def") == 2
