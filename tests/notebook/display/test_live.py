"""Frames that are filled while ranks still show things. The clock is a fake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.notebook.display.items import version
from nbcomm.notebook.display.live import BYTES_PER_SECOND, Live, ScreenPicture

from ..recording_area import RecordingArea


class Column:
    """A live part, and what it shows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.area = RecordingArea()
        self.live = Live(self.area, lambda: self.now)

    def show(self, *tail: str | ScreenPicture) -> list[str]:
        self.live.tail = tail
        self.live.refresh()
        return self.area.shown

    @property
    def shown(self) -> list[str]:
        """All but what is blank."""
        return [text for text in self.area.shown if text]

    @property
    def drawn(self) -> int:
        """How often a display was sent."""
        return sum(call[0] in {"display", "update"} and "text/html" in call[1] for call in self.area.calls)


def picture(text: str, label: str = "[0]", room: int = 0) -> ScreenPicture:
    data: dict[str, Any] = {"text/html": text}
    return ScreenPicture(label, version(data, {}), room)


def html(text: str) -> str:
    return f"<text/html={text}>"


def test_a_display_stands_below_its_label_and_the_text_above_is_in_the_labels_output():
    column = Column()
    assert column.show("[0] a\n", "[0] b\n", picture("x"), "[0] c\n") == ["[0] a\n[0] b\n[0]", html("x"), "[0] c"]


def test_what_comes_late_fills_a_frame_that_was_left_blank_for_it():
    column = Column()
    assert column.show(picture("d", "[3]", room=3)) == [*[""] * 6, "[3]", html("d")]
    column.show(picture("b", "[1]", room=1), picture("d", "[3]", room=1))
    assert column.area.shown == ["", "", "[1]", html("b"), "", "", "[3]", html("d")], "room for rank 0 is left"
    column.show(*(picture(text, f"[{rank}]") for rank, text in enumerate("abcd")))
    assert column.shown == ["[0]", html("a"), "[1]", html("b"), "[2]", html("c"), "[3]", html("d")]
    assert column.drawn == 4, "none has moved"


def test_without_room_what_is_below_moves():
    column = Column()
    column.show(picture("b", "[1]"))
    assert column.show(picture("a"), picture("b", "[1]")) == ["[0]", html("a"), "[1]", html("b")]


def test_what_ranks_agree_on_goes_to_the_place_of_the_lowest_and_no_more_is_moved_than_must_be():
    column = Column()
    column.show(picture("b", "[0]"), picture("a", "[1]"), picture("c", "[2]"))
    column.show(picture("a", "[0-1]"), picture("b", "[2]"), picture("c", "[2]"))
    assert column.shown == ["[0-1]", html("a"), "[2]", html("b"), "[2]", html("c")]
    assert column.drawn == 5, "the lowest display stays"
    column.now = 1e9
    before = column.drawn
    column.show(picture("b"), picture("c"))
    assert column.shown == ["[0]", html("b"), "[0]", html("c")]
    assert column.drawn == before, "what goes leaves its frame blank"


def test_large_displays_move_seldom_and_what_is_new_is_seen_meanwhile():
    column = Column()
    large = "x" * BYTES_PER_SECOND
    column.show(picture(large, "[2]"))
    column.show(picture("b", "[1]"), picture(large, "[2]"))
    assert column.shown[0] == "[1]"
    column.now += 0.5
    column.show(picture("a", "[0]"), picture("b", "[1]"), picture(large, "[2]"), "[0] end\n")
    assert column.shown == ["[1]", html("b"), "[2]", html(large), "[0]", html("a"), "[0] end"]
    column.now += 0.6
    column.show(picture("a", "[0]"), picture("b", "[1]"), picture(large, "[2]"), "[0] end\n")
    assert column.shown == ["[0]", html("a"), "[1]", html("b"), "[2]", html(large), "[0] end"]


def test_in_the_end_everything_is_in_its_place_however_large():
    column = Column()
    large = "x" * BYTES_PER_SECOND
    for texts in ("c", "bc", "abc"):
        column.show(*(picture(text + large) for text in texts))
    for text in "abc":
        column.live.settle(picture(text + large))
    assert column.live.end() == []
    assert column.shown == [part for text in "abc" for part in ("[0]", html(text + large))]


def test_what_is_settled_stays_and_the_rest_vanishes():
    column = Column()
    column.show("[0] a\n", picture("x"), "[1] b\n", picture("y", "[1]"))
    column.live.write("stdout", "[0] a\n")
    column.live.settle(picture("x"))
    column.live.write("stdout", "[0] more\n")
    column.live.write("stderr", "[0] error\n")
    column.live.write("stdout", "[0] after\n")
    assert column.live.end() == [("stderr", "[0] error\n"), ("stdout", "[0] after\n")], "stderr looks like stderr"
    assert column.area.shown == ["[0] a\n[0]", html("x"), "[0] more", ""]


def test_a_label_changes_before_and_after_its_display_has_settled():
    column = Column()
    shown = picture("x")
    column.show("[0] a\n", picture("x"))
    column.live.write("stdout", "[0] a\n")
    column.live.settle(shown)
    shown.relabel(column.area, "[0-1]")
    assert column.show() == ["[0] a\n[0-1]", html("x")]
    assert column.live.empty
    shown.relabel(column.area, "[0-2]")
    assert column.area.shown == ["[0] a\n[0-2]", html("x")]


def test_displays_are_held_as_long_as_they_are_not_settled():
    column = Column()
    column.show("text\n")
    assert not column.live.holds
    column.show(picture("x"), picture("x"))
    column.live.settle(picture("x"))
    assert column.live.holds
    column.live.settle(picture("x"))
    assert not column.live.holds


ROWS = st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=6), max_size=8)


@given(ROWS, st.sampled_from([0.0, 100.0]))
def test_whatever_was_shown_before_what_is_wanted_is_shown_in_order(rows, pause):
    column = Column()
    for row in rows:
        column.now += pause
        column.show(*(picture(text, room=room) for text, room in row))
        assert sorted(column.shown) == sorted(part for text, _ in row for part in ("[0]", html(text)))
    for text, _ in rows[-1] if rows else []:
        column.live.settle(picture(text))
    column.live.end()
    assert column.shown == [part for text, _ in (rows[-1] if rows else []) for part in ("[0]", html(text))]


@pytest.mark.parametrize("tail", ["[0] a\n", picture("a")])
def test_an_output_that_could_not_be_displayed_is_displayed_the_next_time(tail: str | ScreenPicture) -> None:
    column, failed = Column(), []
    plain = column.area.display

    def fails(*args: Any) -> None:
        failed.append(args)
        raise OSError("no front end")

    column.area.display = fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no front end"):
        column.show(tail)
    column.area.display = plain  # type: ignore[method-assign]
    assert failed
    shown = column.show(tail, "[0] b\n")
    assert ("[0] a\n[0] b" in shown) or (html("a") in shown)
