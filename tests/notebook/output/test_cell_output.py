"""A cell's output as a person sees it: live, folded, complete. The clock is a fake; nothing sleeps."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbcomm.notebook.output.cell_output as outputs
from nbcomm.notebook.display.items import VIEW, Line, Rich
from nbcomm.notebook.display.terminal_lines import Reader
from nbcomm.notebook.output.cell_output import CellOutput
from nbcomm.notebook.output.lanes import RankLane
from nbcomm.notebook.output.windows import Windows
from nbcomm.protocol import LIVE, Clear, Display, Result, Text

from ..cells import Cell, defolded, png, shown_png
from ..recording_area import RecordingArea

# ── folding ─────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_folded_over_the_ranks_that_agree():
    cell = Cell()
    for rank in range(4):
        cell.write(rank, f"same\n{'odd' if rank % 2 else f'own {rank}'}\n\n")
    assert cell.close() == ["[0-3] same\n[0] own 0\n[1,3] odd\n[2] own 2\n[0-3]\n"]


def test_a_result_of_several_lines_lines_up_behind_its_prefix():
    cell = Cell()
    for rank in range(4):
        cell.feed(rank, Result({"text/plain": "tensor([[1., 2.],\n        [3., 4.]])"}))
    assert cell.close() == ["[0-3] tensor([[1., 2.],\n              [3., 4.]])\n"]


def test_stdout_and_stderr_stay_apart_and_in_order():
    cell = Cell([0])
    for stream, text in [("stdout", "a\n"), ("stderr", "b\nc\n"), ("stdout", "d\n")]:
        cell.write(0, text, stream)
    assert cell.close() == ["[0] a\n", "[0] b\n[0] c\n", "[0] d\n"]
    assert cell.kinds == ["stdout", "stderr", "stdout"]


def test_equal_displays_are_shown_once_under_their_label():
    cell = Cell(range(3))
    for rank in range(3):
        cell.feed(rank, png("same" if rank else "own"))
    assert cell.close() == ["[0]\n", shown_png("own"), "[1-2]\n", shown_png("same")]


def test_a_display_that_is_no_widget_and_one_that_cannot_be_read_cost_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoiled(piece: Any, _: Any, _plain: Any = outputs.as_view) -> Any:
        if isinstance(piece, Rich) and "spoiled" in str(piece.first.data):
            raise TypeError("on purpose")
        return _plain(piece, None)

    monkeypatch.setattr(outputs, "as_view", spoiled)
    cell = Cell([0])
    cell.feed(0, Display({VIEW: "no widget", "text/html": "<b>"}))
    cell.write(0, "before\n")
    cell.feed(0, Display({"text/html": "spoiled"}))
    cell.write(0, "behind\n")
    assert "".join(cell.close()).endswith("[0] before\n[0] behind\n")
    assert "on purpose" in capsys.readouterr().err
    assert cell.output.lost == {"a piece of output could not be read: TypeError: on purpose."}, "it is said"


def test_what_fails_for_one_rank_is_said_and_takes_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Windows.add

    def spoiled(self: Windows, lane: RankLane) -> None:
        if lane.rank == 1:
            raise TypeError("for one rank")
        plain(self, lane)

    monkeypatch.setattr(Windows, "add", spoiled)
    cell = Cell(range(3))
    for rank in range(3):
        cell.feed(rank, Text("stdout", f"of {rank}\n"))
    shown = "".join(cell.close())
    assert "[0] of 0\n" in shown
    assert "[2] of 2\n" in shown
    assert cell.output.lost == {"a piece of output could not be read: TypeError: for one rank."}


def test_that_a_line_is_unfinished_may_fail_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(_: Reader) -> list[Line]:
        monkeypatch.undo()
        raise TypeError("once")

    monkeypatch.setattr(Reader, "unfinished", property(spoiled))
    cell = Cell(range(3))
    for rank in range(3):
        cell.feed(rank, Text("stdout", f"of {rank}\n"))
    assert "".join(cell.close()) == "[0] of 0\n[1] of 1\n[2] of 2\n"
    assert cell.output.lost == {"a piece of output could not be read: TypeError: once."}


def test_no_folding():
    cell = Cell(range(2), fold=False)
    for rank in range(2):
        cell.write(rank, "a\nb\n")
    assert cell.close() == ["[0] a\n[1] a\n[0] b\n[1] b\n"]


def test_by_rank():
    cell = Cell(range(2), by_rank=True)
    cell.write(1, "a\nb\n")
    cell.write(0, "a\nb\n")
    cell.tick(1)
    assert cell.area.shown == ["[0] a\n[0] b\n", "[1] a\n[1] b"]
    cell.write(0, "c\n")
    cell.close()
    assert cell.area.text == "[0] a\n[0] b\n[0] c\n[1] a\n[1] b\n"


@pytest.mark.parametrize("early", ["", "early\n"])
def test_late_output_is_shown_also_behind_a_cell_that_has_shown_nothing(early: str) -> None:
    cell = Cell(range(2))
    if early:
        cell.write(0, early)
    for rank in range(2):
        cell.output.ended(rank)
    cell.close()
    cell.feed(0, Text("stdout", "late\n", late=True))
    assert cell.area.text == f"{'[0] early' if early else ''}\n[0] (late) late\n".lstrip("\n")


def test_what_a_notice_has_said_is_settled_where_nothing_else_is_shown() -> None:
    cell = Cell(range(2))
    cell.output.notice("waiting")
    cell.tick(1)
    cell.output.notice("")
    assert "".join(cell.close()).strip() == ""


def test_quiet_shows_nothing():
    cell = Cell(range(2), quiet=True)
    cell.write(0, "a\n")
    cell.output.notice("waiting")
    cell.tick(1)
    cell.close()
    cell.write(0, "late\n")
    assert cell.area.calls == []


# ── live ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_quick_cell_leaves_plain_outputs():
    cell = Cell()
    for rank in range(3):
        cell.write(rank, f"rank {rank}\nand more")
        cell.tick(0.07)
    cell.close()
    assert cell.kinds == ["stdout"]
    assert not any(call[0] == "update" for call in cell.area.calls)


def test_what_all_ranks_said_is_out_at_the_next_render():
    cell = Cell(range(2))
    for rank in range(2):
        cell.write(rank, "a\n")
    cell.tick(0.1)
    assert cell.area.shown == ["[0-1] a\n"]


def test_one_rank_is_shown_live_while_the_others_are_silent_and_folded_later():
    cell = Cell(range(2))
    cell.tick(1)
    cell.write(1, "a\nb\n")
    cell.tick(0.2)
    assert cell.area.shown == ["[1] a\n[1] b"], "live within 0.25 s"
    cell.write(0, "a\n")
    cell.tick(0.1)
    assert cell.area.shown == ["[0-1] a\n[1] b"]
    cell.write(0, "b\n")
    assert cell.close() == ["[0-1] a\n[0-1] b"]
    assert cell.kinds == ["display"]


def test_an_unfinished_line_is_shown_live():
    cell = Cell([0])
    cell.tick(1)
    cell.write(0, "working ...")
    cell.tick(0.2)
    assert cell.area.shown == ["[0] working ..."]
    cell.write(0, " done\n")
    assert cell.close() == ["[0] working ... done"]


def test_bars_are_one_line_per_rank_and_stderr_again_at_the_end():
    cell = Cell(range(2))
    for percent in range(0, 101, 10):
        for rank in range(2):
            cell.write(rank, f"\r{max(0, percent - 10 * rank):3}%|██", "stderr")
        cell.tick(0.1)
    cell.tick(0.2)
    assert cell.area.shown == ["[0] 100%|██\n[1]  90%|██"]
    cell.write(1, "\r100%|██", "stderr")
    assert cell.close() == ["", "[0-1] 100%|██\n"]
    assert cell.kinds == ["display", "stderr"]
    assert cell.area.outputs[0]["data"] == {}, "an empty bundle: a notebook draws nothing for it"


def test_lines_printed_beside_a_bar_stand_above_it():
    cell = Cell([0])
    for step in range(5):
        cell.write(0, f"\rstep {step}", "stderr")
        cell.write(0, f"loss {step}\n")
        cell.tick(0.1)
    cell.tick(0.1)
    assert cell.area.shown[-1].endswith("[0] loss 4\n[0] step 4")
    assert cell.close()[-1] == "[0] step 4\n"
    assert cell.area.text.splitlines() == [*(f"[0] loss {i}" for i in range(5)), "[0] step 4"]


def test_a_display_comes_after_what_was_live_before_it():
    cell = Cell(range(2))
    cell.tick(1)
    cell.write(1, "before\n")
    cell.tick(0.3)
    cell.feed(1, png("plot"))
    cell.write(1, "after\n")
    cell.tick(0.3)
    assert cell.area.shown == ["", "", "[1] before\n[1]", shown_png("plot"), "[1] after"], "rank 0 may show one above"
    for rank in [0]:
        cell.feed(rank, png("plot"))
        cell.write(rank, "after\n")
    assert cell.close() == ["", "", "[1] before\n[0-1]", shown_png("plot"), "[0-1] after"]


def test_updates_are_few_and_small_however_much_is_shown():
    cell = Cell(range(8))
    cell.tick(1)
    for i in range(100):
        for rank in range(8):
            cell.write(rank, "".join(f"rank {rank} line {i} {j} {'x' * 60}\n" for j in range(20)))
        cell.tick(0.1)
    live = [call for call in cell.area.calls if call[0] in {"update", "display"}]
    sent = sum(len(call[1].get("text/plain", "")) for call in live)
    assert len(cell.area.outputs) < 30
    assert len(live) < 120
    assert sent < 10 * 300_000, "bytes of live text in ten seconds"
    cell.close()
    assert defolded(cell.area.text, 7) == [f"rank 7 line {i} {j} {'x' * 60}" for i in range(100) for j in range(20)]


def test_a_silent_rank_does_not_hold_back_thousands_of_lines():
    cell = Cell(range(2))
    cell.tick(1)
    cell.write(1, "".join(f"{i}\n" for i in range(5_000)))
    cell.tick(0.5)
    assert "[1] 4000\n" in cell.area.text
    cell.close()
    assert defolded(cell.area.text, 1) == [str(i) for i in range(5_000)]


def test_a_terminal_gets_settled_lines_only():
    cell = Cell(range(2), updates=False)
    cell.tick(1)
    cell.write(0, "a\n\r50%")
    cell.tick(0.3)
    assert cell.area.shown == ["[0] a\n"]
    cell.output.notice("waiting for rank 1")
    cell.tick(0.1)
    cell.output.notice("waiting for rank 1 still")
    cell.tick(0.1)
    cell.write(1, "a\n")
    cell.close()
    assert cell.area.text == "[0] a\nwaiting for rank 1\n[1] a\n[0] 50%\n"


# ── displays of ranks that come late ────────────────────────────────────────────────────────────────


def html(text: str, **options: Any) -> Display:
    return Display({"text/html": text}, **options)


def shown_html(text: str) -> str:
    return f"<text/html={text}>"


def under_labels(*texts: str) -> list[str]:
    return [part for rank, text in enumerate(texts) for part in (f"[{rank}]", shown_html(text))]


def visible(cell: Cell) -> list[str]:
    """What is not blank; a label with the text above it, line by line."""
    return [line for text in cell.area.shown for line in text.splitlines() if line]


@pytest.mark.parametrize("options", [{}, {"fold": False}, {"by_rank": True}])
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 3, 0, 2)])
def test_displays_are_in_rank_order_whichever_comes_first_and_none_is_sent_twice(options, order):
    cell = Cell(range(4), **options)
    cell.tick(1)
    for i, rank in enumerate(order):
        cell.feed(rank, html(str(rank)))
        cell.output.ended(rank)
        cell.tick(0.2)
        there = sorted(order[: i + 1])
        expected = [part for rank in there for part in (f"[{rank}]", shown_html(str(rank)))]
        assert visible(cell) == expected, "live within 0.25 s"
    cell.close()
    assert visible(cell) == under_labels("0", "1", "2", "3")
    assert sum("text/html" in call[1] for call in cell.area.calls if call[0] in {"display", "update"}) == 4


def test_equal_displays_fold_at_the_place_of_the_lowest_rank_that_shows_them():
    cell = Cell(range(4))
    cell.tick(1)
    for rank in (3, 2, 1, 0):
        cell.feed(rank, html("ab"[rank % 2]))
        cell.tick(0.4)
    cell.close()
    assert visible(cell) == ["[0,2]", shown_html("a"), "[1,3]", shown_html("b")]


def test_lines_of_a_rank_stay_above_its_display_and_come_into_their_place():
    cell = Cell(range(2))
    cell.tick(1)
    for rank in (1, 0):
        cell.write(rank, f"loss {rank}\nsame\n")
        cell.feed(rank, html(str(rank)))
        cell.write(rank, "end\n")
        cell.tick(0.4)
    cell.close()
    expected = ["[0] loss 0", "[1] loss 1", "[0-1] same", "[0]", shown_html("0"), "[1]", shown_html("1"), "[0-1] end"]
    assert visible(cell) == expected


def test_a_display_that_may_change_does_not_wait_and_what_is_above_it_stays():
    cell = Cell(range(2))
    cell.tick(1)
    cell.feed(1, html("1"))
    cell.tick(0.4)
    cell.feed(1, html("bar", display_id="h"))
    cell.tick(0.4)
    assert visible(cell) == ["[1]", shown_html("1"), "[1]", shown_html("bar")]
    cell.feed(0, html("1"), html("0"))
    cell.feed(1, html("bar 2", display_id="h", update=True))
    cell.close()
    assert visible(cell) == ["[0-1]", shown_html("1"), "[1]", shown_html("bar 2"), "[0]", shown_html("0")]


def test_a_rank_that_clears_takes_its_display_away_and_leaves_the_others():
    cell = Cell(range(3))
    cell.tick(1)
    for rank in (2, 1):
        cell.feed(rank, html(str(rank)))
        cell.tick(0.4)
    cell.feed(1, Clear(wait=True), html("new"))
    cell.tick(0.4)
    assert visible(cell) == ["[1]", shown_html("new"), "[2]", shown_html("2")]
    cell.feed(0, html("0"))
    cell.close()
    assert visible(cell) == under_labels("0", "new", "2")


def test_a_rank_that_shows_much_while_the_others_are_silent_is_shown_once():
    cell = Cell(range(4))
    cell.tick(1)
    for i in range(150):
        cell.feed(0, html(str(i)))
        cell.write(0, "".join(f"line {i} {j}\n" for j in range(10)))
        cell.tick(0.1)
    cell.close()
    expected = [["[0]", shown_html(str(i)), *(f"[0] line {i} {j}" for j in range(10))] for i in range(150)]
    assert visible(cell) == [line for step in expected for line in step]
    assert sum("text/html" in call[1] for call in cell.area.calls if call[0] in {"display", "update"}) == 150


def test_few_outputs_stay_blank_where_ranks_agree_again_and_again():
    cell = Cell(range(4))
    cell.tick(1)
    for step in range(30):
        for rank in (3, 2, 1, 0):
            cell.feed(rank, html(str(step)))
            cell.tick(0.3)
    cell.close()
    assert visible(cell) == [part for step in range(30) for part in ("[0-3]", shown_html(str(step)))]
    assert len(cell.area.outputs) <= 60 + 16


def test_a_terminal_gets_displays_as_they_come():
    cell = Cell(range(2), updates=False)
    cell.tick(1)
    cell.feed(1, html("1"))
    cell.tick(0.3)
    cell.feed(0, html("0"))
    cell.close()
    assert cell.area.shown == ["[1]\n", shown_html("1"), "[0]\n", shown_html("0")]


# ── notices ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_notice_is_below_the_output_and_goes_again():
    cell = Cell(range(2))
    cell.write(0, "a\n")
    cell.tick(0.1)
    cell.output.notice("waiting for rank 1")
    cell.tick(0.1)
    assert cell.area.shown == ["[0] a\nwaiting for rank 1"]
    cell.output.notice("waiting for rank 1, at line 3")
    cell.tick(0.1)
    assert cell.area.shown == ["[0] a\nwaiting for rank 1, at line 3"]
    cell.output.notice("")
    cell.tick(0.1)
    assert cell.area.shown == ["[0] a"]
    assert cell.close() == ["[0] a"]


def test_a_notice_is_shown_by_who_renders():
    cell = Cell(range(2), updates=False)
    with cell.output._lock:  # the main thread is at it
        notice = threading.Thread(target=cell.output.notice, args=("waiting for rank 1",))
        notice.start()
        notice.join(10)
        assert not notice.is_alive()
    assert cell.area.shown == []
    cell.tick(0.1)
    assert cell.area.shown == ["waiting for rank 1\n"]


def test_a_notice_does_not_outlive_its_cell():
    cell = Cell([0])
    cell.output.notice("waiting")
    cell.tick(0.1)
    assert cell.close() == [""]


# ── completeness ────────────────────────────────────────────────────────────────────────────────────

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.sampled_from(["a", "b", "\n", "\n", "some text\n", "loss\n"]), max_size=6),
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]),
    ),
    max_size=30,
)


@given(EVENTS, st.sampled_from([{}, {"fold": False}, {"by_rank": True}]), st.booleans())
def test_nothing_is_lost(events, options, updates):
    cell = Cell(range(4), updates=updates, **options)
    written = ["", "", "", ""]
    for rank, words, pause in events:
        cell.write(rank, "".join(words))
        written[rank] += "".join(words)
        cell.tick(pause)
    cell.close()
    for rank in range(4):
        assert defolded(cell.area.text, rank) == written[rank].splitlines()


@given(EVENTS, st.sampled_from([{}, {"fold": False}, {"by_rank": True}]))
def test_the_final_output_does_not_depend_on_timing(events, options):
    def final(times: int) -> list[str]:
        cell = Cell(range(4), **options)
        for rank, words, pause in events:
            cell.write(rank, "".join(words))
            if "loss\n" in words:
                cell.feed(rank, html(str(len(words))))
            cell.tick(pause * times)
        cell.close()
        return visible(cell)

    assert final(0) == final(1) == final(5)


def test_both_streams_come_back_complete_from_a_long_cell():
    cell = Cell(range(2))
    expected: dict[int, list[str]] = {0: [], 1: []}
    for i in range(400):
        for rank in range(2):
            stream = "stderr" if (i + rank) % 3 == 0 else "stdout"
            cell.write(rank, f"{stream} {i}\n", stream)
            expected[rank].append(f"{stream} {i}")
        cell.tick(0.1)
    cell.close()
    for rank in range(2):
        assert defolded(cell.area.text, rank) == expected[rank]
    for output, text in zip(cell.area.outputs, cell.area.shown, strict=True):
        assert ("stderr" in text) == (output.get("name") == "stderr"), "stderr looks like stderr"


@pytest.mark.parametrize("kind", ["equal", "different", "mixed"])
def test_twenty_thousand_lines_on_each_of_eight_ranks(kind):
    own = {"equal": lambda rank, i: "", "different": lambda rank, i: rank, "mixed": lambda rank, i: rank * (i % 3 == 0)}
    start = time.process_time()
    cell = Cell(range(8))
    for first in range(0, 20_000, 500):
        for rank in range(8):
            cell.write(rank, "".join(f"line {i} {own[kind](rank, i)}\n" for i in range(first, first + 500)))
        cell.tick(0.1)
    cell.close()
    assert time.process_time() - start < 15, "about 1.5 s on a quiet machine; a square law takes minutes"
    for rank in (0, 7):
        assert defolded(cell.area.text, rank) == [f"line {i} {own[kind](rank, i)}" for i in range(20_000)]


def test_interrupting_while_it_is_shown_loses_nothing():
    class Interrupted(RecordingArea):
        def stream(self, name: str, text: str) -> None:
            signal.raise_signal(signal.SIGINT)
            super().stream(name, text)

    area = Interrupted()
    output = CellOutput([0], area=area)
    output.feed(0, [Text("stdout", "a\n"), Text("stderr", "b\n")])
    with pytest.raises(KeyboardInterrupt):
        output.render()
    assert area.shown == ["[0] a\n", "[0] b\n"]


# ── a person is asked ───────────────────────────────────────────────────────────────────────────────


def test_what_a_rank_has_shown_is_above_its_box_and_what_follows_below():
    cell = Cell(range(3))
    cell.write(0, "first\n")
    cell.write(1, "first\nYour name:")
    cell.output.expose(1)
    assert cell.area.shown == ["[0-1] first\n[1] Your name:\n"], "whoever types an answer ends the line"
    cell.write(1, "Hello\n")
    cell.tick(1)
    assert cell.area.shown[1:] == ["[1] Hello"], "live, in an output of its own"
    cell.output.cut()
    cell.tick(0.2)
    assert cell.area.shown[1:] == ["", "[1] Hello"], "and below what was typed, when it was"
    assert cell.close() == ["[0-1] first\n[1] Your name:\n", "", "[1] Hello"]


def test_what_was_live_stays_above_the_box():
    cell = Cell(range(2))
    cell.write(1, "a\n")
    cell.tick(1)
    assert cell.area.shown == ["[1] a"]
    cell.output.expose(1)
    cell.write(1, "b\n")
    cell.tick(1)
    assert cell.area.shown == ["[1] a", "[1] b"]


def test_rank_by_rank_it_is_shown_live_only():
    cell = Cell(range(2), by_rank=True)
    cell.write(1, "one\n")
    cell.output.expose(1)
    assert cell.area.shown == ["[1] one"]
    cell.write(0, "zero\n")
    assert "".join(cell.close()) == "[0] zero\n[1] one"


def test_a_quiet_cell_shows_nothing_for_a_box():
    cell = Cell(range(2), quiet=True)
    cell.write(1, "one\n")
    cell.output.expose(1)
    assert cell.close() == []


def test_where_nothing_is_updated_all_is_written_before_the_box():
    cell = Cell(range(2), updates=False)
    cell.write(1, "one\nYour name: ")
    cell.output.expose(1)
    assert cell.area.text == "[1] one\n[1] Your name: \n"


def live(rank: int, text: str, *, first: bool = False) -> Display:
    return Display({"text/plain": text}, display_id=f"{LIVE}{rank}", update=not first)


@pytest.mark.parametrize("updates", [True, False])
def test_texts_that_are_live_are_one_block_and_in_a_terminal_their_last_values(updates: bool) -> None:
    cell = Cell(range(2), updates=updates)
    for rank in range(2):
        cell.feed(rank, live(rank, "", first=True))
    for step in range(5):
        for rank in range(2):
            cell.feed(rank, live(rank, f"{step} of {rank}"))
        cell.tick(0.5)
    cell.output.close()
    assert cell.area.text == "[0] 4 of 0\n[1] 4 of 1\n"
    changes = [call for call in cell.area.calls if call[0] in {"display", "update"}]
    assert (len(changes) <= 2) or updates


def test_a_live_text_that_vanishes_leaves_nothing() -> None:
    cell = Cell(range(2))
    for rank in range(2):
        cell.feed(rank, live(rank, "", first=True), live(rank, "soon gone"))
    cell.tick(1)
    for rank in range(2):
        cell.feed(rank, live(rank, ""))
    cell.output.close()
    assert cell.area.text == ""
