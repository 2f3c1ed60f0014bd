"""What the ranks have said of their variables, side by side in one table."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from nbcomm.notebook.variables.table import Seen, Variable, absence, merge, presence, table_html, table_text
from nbcomm.short_repr import amount


def seen(value: str = "1", **fields: Any) -> Seen:
    return Seen("int", value=value, **{"digest": value.encode(), **fields})


def variable(*values: str | None, name: str = "x") -> Variable:
    """None: the rank does not have it; "?": it cannot be compared."""
    return Variable(
        name,
        {
            rank: seen(value) if value != "?" else seen(value, digest=None, note="cannot be compared: a lock")
            for rank, value in enumerate(values)
            if value is not None
        },
        {rank: f"{name} is not defined" for rank, value in enumerate(values) if value is None},
    )


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        ("aaaa", "equal", "equal"),
        ("aaab", "different", "different: 0-2 | 3"),
        ("abab", "different", "different: 0,2 | 1,3"),
        ("ab", "different", "different: 0 | 1"),
        ("abcd", "different", "different on each rank"),
        ("aabcdefg", "different", "different: 0-1 | 2 | 3 | 4 | 5 | 6 | 7"),
        ("a", "alone", ""),
        (["a", None, "a", None], "missing", "missing on 1,3; equal on 0,2"),
        (["a", None], "missing", "missing on 1"),
        (["a", None, "b"], "missing", "missing on 1; different: 0 | 2"),
        ("??", "incomparable", "cannot be compared: a lock"),
        ("a?a", "incomparable", "cannot be compared: a lock (on 1); equal on 0,2"),
    ],
)
def test_how_a_variable_stands(values: Any, verdict: str, words: str) -> None:
    found = variable(*values)
    assert (found.verdict, presence(found)) == (verdict, words)


def test_answers_are_merged_by_name() -> None:
    one, two = {"type": "int", "digest": b"1"}, {"type": "int", "digest": b"2"}
    found = merge({1: {"b": two, "a": one}, 0: {"b": one}})
    assert [(v.name, sorted(v.seen), v.absent) for v in found] == [
        ("a", [1], {0: "a is not defined"}),
        ("b", [0, 1], {}),
    ]
    assert found[1].groups == ((0,), (1,))
    asked = merge({0: {"b": one, "x[9]": {"absent": "x[9] raises IndexError"}}}, ["x[9]", "b", "b"])
    assert [v.name for v in asked] == ["x[9]", "b"]
    assert asked[0].absent == {0: "x[9] raises IndexError"}
    assert merge({0: {}, 1: {}}) == []


ROWS = [
    Variable(
        "x",
        {
            0: Seen("Tensor", (2, 3), "float32", "cuda:0", 24, value="[1 2 3]", digest=b"1"),
            1: Seen("Tensor", (2, 3), "float64", "cuda:1", 48, value="[1 2 4]", digest=b"2"),
        },
    ),
    Variable("model", {rank: Seen("Net", device="cpu", parameters=1234, digest=b"1") for rank in (0, 1)}),
    Variable("<b>&", {0: Seen("str", length=1, value="'<i>'", digest=b"1")}, {1: "<b>& is not defined"}),
]


TEXT = """\
3 variables on ranks 0-1; 1 equal; different: x; missing somewhere: <b>&
name   on the ranks      type    shape   dtype        device    size              value
x      different: 0 | 1  Tensor  (2, 3)  [0] float32  cuda:0-1  [0] 24 B          [0] [1 2 3]
                                         [1] float64            [1] 48 B          [1] [1 2 4]
model  equal             Net                          cpu       1,234 parameters
<b>&   missing on 1      str                                    1 character       '<i>'"""


def test_the_table_as_text() -> None:
    assert table_text(ROWS) == TEXT


def test_the_table_as_html_says_the_same_from_the_left() -> None:
    page = table_html(ROWS)
    cells = [html.unescape(cell) for cell in re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", page)]
    assert len(cells) == 4 * 8
    assert {"x", "<b>&", "'<i>'", "different: 0 | 1", "missing on 1", "cuda:0-1"} <= set(cells)
    assert "<b>" not in page
    assert page.count(' style="text-align: left"') == page.count(" style=") == len(cells)
    assert page.count(' scope="row">') == 3
    assert all(line in TEXT for cell in cells for line in cell.split("<br>"))


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([], "the ranks have no variables yet"),
        ([variable("a", "a")], "1 variable on ranks 0-1; all equal"),
        ([variable("a")], "1 variable on rank 0"),
        ([variable(None, None)], "x is not defined (ranks 0-1)."),
        ([variable("?", "?")], "1 variable on ranks 0-1; cannot be compared: x"),
        (
            [variable("a", "b", name=f"v{n}") for n in range(20)],
            "20 variables on ranks 0-1; different: v0, v1, v2, v3, v4, v5, v6, v7, …",
        ),
    ],
)
def test_the_sentence_above_it(rows: list[Variable], first: str) -> None:
    assert table_text(rows).splitlines()[0] == first
    assert html.escape(first) in table_html(rows)


def test_a_cell_stays_small_whatever_the_ranks_have() -> None:
    many = Variable("x", {rank: seen(f"{rank} " + "y" * 99) for rank in range(64)})
    lines = table_text([many]).splitlines()
    assert max(map(len, lines)) < 200
    assert len(lines) == 2 + 16 * 3 + 1
    assert lines[-1].strip() == "… and 48 more ranks"


@pytest.mark.parametrize("size", [4, 16])
def test_no_rank_is_left_out_where_all_fit(size: int) -> None:
    rows = [
        Variable("a", {rank: seen(str(rank)) for rank in range(size)}),
        Variable("b", {rank: seen(f"rank {rank}: " + "y" * 99) for rank in range(size)}),
    ]
    for table in (table_text(rows), table_html(rows)):
        for rank in range(size):
            assert f"[{rank}] {rank}" in table
            assert f"[{rank}] rank {rank}: yyy" in table
    lines = table_text(rows).splitlines()
    assert max(map(len, lines)) < 100
    assert [line[: len("name")] for line in lines[1:3]] == ["name", "a   "]
    assert "<br>[1] rank 1: y" in table_html(rows)


def test_a_long_text_is_wrapped_at_words() -> None:
    said = "Linear(in_features=4, out_features=4, bias=True) and more of the same"
    rows = [Variable("a", {0: seen(said), 1: seen(said)}), Variable("b", {0: seen(said), 1: seen("short")})]
    shown = table_text(rows)
    start = shown.splitlines()[1].index("value")
    assert [line[start:] for line in shown.splitlines()[2:]] == [
        "Linear(in_features=4, out_features=4,",
        "bias=True) and more of the same",
        "[0] Linear(in_features=4,",
        "    out_features=4, bias=True) and more",
        "    of the same",
        "[1] short",
    ]


def part(of: str, own: str, layout: str = "rows") -> Seen:
    return seen(own, digest=layout.encode(), part=of, own=own.encode())


@pytest.mark.parametrize(
    ("values", "verdict", "words", "others"),
    [
        ("0a 1b 2c", "sharded", "sharded", ""),
        ("0a 1b 0a 1b", "sharded", "sharded; replicas equal", ""),
        ("0a 1b 0a 1c", "different", "sharded; different: 0-2 | 3", "3:1"),
        ("0a 1b 0c 1d", "different", "sharded; different: 0-1 | 2 | 3", "2:0 3:1"),
        ("0a 0b 0b", "different", "sharded; different: 0 | 1-2", "1:0"),
        ("0a 1b 1cX", "different", "sharded; different: 0-1 | 2", "2:1"),
        ("0a 1b 2cX", "different", "sharded; different: 0-1 | 2", "2:0"),
    ],
)
def test_of_a_sharded_value_layouts_and_replicas_are_compared(
    values: str, verdict: str, words: str, others: str
) -> None:
    """Each word is a rank's: its part, what that holds, and its layout."""
    found = Variable("w", {rank: part(*one) for rank, one in enumerate(values.split())})
    assert (found.verdict, presence(found)) == (verdict, words)
    apart = [group[0] for group in found.groups[1:]]
    assert " ".join(f"{rank}:{found.counterpart(rank)}" for rank in apart) == others
    if verdict == "sharded":
        assert table_text([found]).splitlines()[0].endswith("; sharded: w")


def test_what_is_imported_is_left_out_unless_it_is_asked_for() -> None:
    numpy = Variable("np", {0: Seen("module", value="numpy", digest=b"1", imported=True)})
    mixed = Variable("f", {0: Seen("function", digest=b"2", imported=True), 1: seen()})
    shown = table_text([numpy, mixed], imports=False).splitlines()
    assert shown[0] == "1 variable on ranks 0-1; different: f; 1 import left out (--imports)"
    assert "numpy" not in "".join(shown)
    assert "numpy" not in table_html([numpy, mixed], imports=False)
    assert "numpy" in table_text([numpy, mixed])
    assert table_text([numpy], imports=False) == "the ranks have no variables yet; 1 import left out (--imports)"


def test_absence_names_the_ranks_once() -> None:
    whys = {0: "x[1] raises A", 1: "x is not defined", 2: "x[1] raises A"}
    assert absence(Variable("x[1]", {}, whys)) == "x[1] raises A (ranks 0,2); x is not defined (rank 1)."


def test_sizes() -> None:
    sizes = [0, 1023, 1024, 10**6, 1 << 20, (1 << 30) - 1, 1 << 30, 3 << 59]
    assert list(map(amount, sizes)) == ["0 B", "1023 B", "1 KiB", "976.6 KiB", "1 MiB", "1 GiB", "1 GiB", "1536 PiB"]


def test_what_hides_a_name_of_nbcomms_is_told_above_the_table() -> None:
    shown = table_text([variable("1", "2"), Variable("rank", {0: seen(hides=True), 1: seen()})])
    assert shown.splitlines()[1] == "rank hides that of nbcomm, which the next cell has again after: del rank"
    two = [Variable(name, {0: seen(hides=True)}) for name in ("rank", "send")]
    assert "rank, send hide those of nbcomm, which the next cell has again after: del rank, send" in table_text(two)
    assert "hide" not in table_text([variable("1", "2")])
