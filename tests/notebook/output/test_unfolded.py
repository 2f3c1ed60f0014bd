"""What is shown of what waits to be folded."""

from __future__ import annotations

from collections.abc import Sequence

from nbcomm.notebook.display.displays import label
from nbcomm.notebook.display.items import FoldedItem, Line, Rich, View, version
from nbcomm.notebook.display.live import ScreenPicture
from nbcomm.notebook.output.execute_result import RichValue
from nbcomm.notebook.output.unfolded import waiting

VALUE = version({"text/html": "<b>x</b>", "text/plain": "<X>"}, {})


def line(text: str, *ranks: int) -> FoldedItem:
    return FoldedItem(ranks, Line("stdout", text), {})


def rich(*ranks: int, piece: Rich | None = None) -> FoldedItem:
    piece = Rich(VALUE) if piece is None else piece
    return FoldedItem(ranks, piece, dict.fromkeys(ranks, piece))


def parts(*entries: FoldedItem, hidden: int = 0, missing: Sequence[int] = ()) -> list[object]:
    """The parts; of a display its label, and the room above it."""
    shown = waiting(hidden, entries, label, missing)
    return [(part.label, part.room) if isinstance(part, ScreenPicture) else part for part in shown]


def test_lines_and_displays_keep_their_order():
    assert parts(line("a", 0), rich(0, 1), line("b\nc", 1)) == ["[0] a\n", ("[0-1]", 0), "[1] b\n    c\n"]


def test_what_may_change_on_the_screen_waits_for_its_place_and_a_value_is_seen_as_text():
    assert parts(rich(0, piece=Rich(VALUE, "an id"))) == []
    assert parts(rich(0, piece=View(VALUE, "model", "kind"))) == []
    assert parts(rich(0, piece=RichValue(VALUE))) == ["[0] <X>\n"]


def test_there_is_room_for_each_rank_that_is_missing_between_a_display_and_the_one_above():
    assert parts(rich(3), missing=[0, 1, 2]) == [("[3]", 3)]
    assert parts(rich(1), rich(3), missing=[0, 2, 4]) == [("[1]", 1), ("[3]", 1)]
    assert parts(rich(2), line("a", 3), rich(2), missing=[0]) == [("[2]", 1), "[3] a\n", ("[2]", 1)]


def test_too_much_is_cut_but_for_displays():
    long = parts(line("x" * 5000, 0))
    assert long == [f"[0] {'x' * 1000}…\n"]
    shown = parts(rich(0), *(line(str(i), 0) for i in range(500)), hidden=7)
    assert shown[:3] == ["… (about 107 more lines wait for other ranks)\n", ("[0]", 0), "[0] 100\n"]
    assert len(shown) == 402
