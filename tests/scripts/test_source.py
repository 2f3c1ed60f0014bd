"""Laws of Python text that is moved and asked."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.scripts.source import bound_for_sure, compiles, indent, names_of, needs_loop, only_defines, parse, quoted

LINES = [
    "x = 1",
    "",
    "   ",
    "# a comment",
    "if x:\n    y = 2\n    # inside\n\n    z = [\n  1,\n 2]\nelse:\n\tq = 3",
    "text = '''one\n  two\n\n\\\nthree'''",
    'text = f"""a {x}\n b"""',
    "def f(a,\n  b=2):\n    '''doc\n  string'''\n    return (a\n+ b)",
    "long = 1 + \\\n2",
    "s = 'a\\\n b'",
    "r = r'''\\\n'''; t = '''\n'''",
    "class C:\n  '''\n  '''\n  def m(self): return '''\n'''",
    "b = (b'''\n ''' b'x',)",
    'u = f"{x}" """\n"""',
    "v = 'ü\\N{BULLET}' # ü",
    "for i in range(3): x = i",
    "with open('a') as f, \\\n   open('b'): pass",
    "try:\n    pass\nexcept ValueError as e:\n    pass",
    "\x0c\nw = 1",
]


@given(st.lists(st.sampled_from(LINES), max_size=8))
def test_what_is_moved_into_a_block_is_the_same_program(lines: list[str]) -> None:
    text = "\n".join(["x = 0", *lines])
    moved = ast.parse(f"if rank in (0, 2):\n{indent(text)}").body[0]
    assert isinstance(moved, ast.If)
    assert [ast.dump(node) for node in moved.body] == [ast.dump(node) for node in ast.parse(text).body]


def test_strings_of_several_lines_keep_their_value_also_with_code_in_them() -> None:
    text = 'x = 3\nt = f"""\n  {x}\n {\nx!r:>{\nx}}\n"""\n'
    assert compiles(text)
    moved, plain = {}, {}
    exec(f"if True:\n{indent(text)}", moved)  # noqa: S102 - the law is about what it does
    exec(text, plain)  # noqa: S102
    assert moved["t"] == plain["t"]


@given(st.text())
def test_a_quoted_text_has_its_value(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text


def test_which_names_code_reads_binds_and_deletes() -> None:
    code = """
import a.b, c as d
def f(local, g=default):
    global made
    made = read + local
    return [inner for inner in (lambda y: y + within)(1)]
class K(Base):
    attribute = 1
    def m(self): return in_method
if (walrus := 1): maybe = 2
for i in items: pass
del gone
await task
[w for w in awaited_items if (up := w)]
x: int = 1
"""
    found = names_of(*parse(code).body)
    assert found.loads == {
        "default",
        "read",
        "within",
        "Base",
        "in_method",
        "items",
        "task",
        "awaited_items",
        "int",
    } | (found.loads & {"__name__"})
    assert found.binds == {"a", "d", "f", "made", "K", "walrus", "maybe", "i", "up", "x"}
    assert found.deletes == {"gone"}
    assert not found.stars
    starred = "from math import *\ntry:\n    from .a.b import *\nexcept ImportError:\n    from c import d"
    assert names_of(*parse(starred).body).stars == {"math", ".a.b"}


@pytest.mark.parametrize(
    ("statement", "bound"),
    [
        ("a, (b, *c) = 1, 2", {"a", "b", "c"}),
        ("import torch.nn as nn", {"nn"}),
        ("import torch.nn", {"torch"}),
        ("def f(): x = 1", {"f"}),
        ("if y: x = 1", set()),
        ("for x in y: pass", set()),
        ("x.y = 1", set()),
    ],
)
def test_what_is_bound_in_any_case(statement: str, bound: set[str]) -> None:
    assert bound_for_sure(parse(statement).body[0]) == bound


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("await x", True),
        ("async with a: pass", True),
        ("[x async for x in y]", True),
        ("t = asyncio.create_task(f())", True),
        ("async def f():\n    await x", False),
        ("def f():\n    return asyncio.create_task(x)", False),
        ("x = 1", False),
    ],
)
def test_what_needs_an_event_loop(code: str, *, needs: bool) -> None:
    assert needs_loop(parse(code)) is needs


@pytest.mark.parametrize(
    ("code", "only"),
    [
        ("import a\nfrom b import c", True),
        ("def f(a, b=1, *, c='x'): return g()", True),
        ("class A(B):\n    '''doc'''\n    x = 1\n    def f(self): ...", True),
        ("", False),
        ("x = 1", False),
        ("def f(a=[]): pass", False),
        ("@register\ndef f(): pass", False),
        ("class A:\n    x = count()", False),
        ("import a\na.seed(0)", False),
    ],
)
def test_what_does_nothing_the_second_time(code: str, *, only: bool) -> None:
    assert only_defines(parse(code)) is only
