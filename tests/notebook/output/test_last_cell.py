"""What a cell has shown can be shown again."""

from __future__ import annotations

from collections import deque

import pytest

from nbcomm.errors import CellError, StateError
from nbcomm.notebook.output import last_cell
from nbcomm.notebook.output.last_cell import CellRun, KeptArea, remember

from ..recording_area import RecordingArea


def again(kept: KeptArea) -> RecordingArea:
    area = RecordingArea()
    kept.show_again(area)
    return area


def test_it_is_shown_as_it_comes_and_as_it_is_at_the_end() -> None:
    first = RecordingArea()
    kept = KeptArea(first)
    kept.stream("stdout", "a\n")
    kept.stream("stdout", "b\n")
    kept.display({"text/plain": "50 %"}, {}, "bar")
    kept.display({"text/html": "<b>x</b>"}, {"a": 1})
    kept.stream("stderr", "c\n")
    kept.update({"text/plain": "100 %"}, {}, "bar")
    kept.comm("open", {"comm_id": "1"}, {}, [])
    assert first.shown == again(kept).shown == ["a\nb\n", "100 %", "<text/html=<b>x</b>>", "c\n"]
    assert not [call for call in again(kept).calls if call[0] == "comm"]
    assert [output["id"] for output in again(kept).outputs if "id" in output] == ["", ""], "they change no more"


def test_a_page_gets_it_as_a_file_has_it_with_the_error_that_ended_it() -> None:
    kept = KeptArea(RecordingArea())
    run = CellRun(4, [0, 1], kept)
    assert (run.view().number, run.view().ended) == (4, None)
    kept.stream("stdout", "a\n")
    kept.display({"text/plain": "50 %"}, {}, "bar")
    kept.update({"text/plain": "100 %"}, {}, "bar")
    with pytest.raises(ValueError, match="no"), run.ending():
        raise ValueError("no")
    assert run.outputs() == [
        {"output_type": "stream", "name": "stdout", "text": "a\n"},
        {"output_type": "display_data", "data": {"text/plain": "100 %"}, "metadata": {}},
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]},
    ]
    view = run.view()
    assert view.ended is not None
    assert view.began <= view.ended


def test_what_is_too_much_for_one_message_is_not_sent_to_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_cell, "_SENT", 10)
    kept = KeptArea(RecordingArea())
    kept.stream("stdout", "x" * 11)
    with pytest.raises(StateError, match="type %distributed last in a cell to show it"):
        CellRun(4, [0], kept).outputs()


def test_a_live_display_that_has_become_blank_is_not_shown_again() -> None:
    kept = KeptArea(RecordingArea())
    kept.display({"text/plain": "so far"}, {}, "live")
    kept.update({}, {}, "live")
    kept.stream("stdout", "all\n")
    assert again(kept).shown == ["all\n"]


def test_what_was_cleared_is_not_shown_again() -> None:
    for wait in (True, False):
        kept = KeptArea(RecordingArea())
        kept.stream("stdout", "before\n")
        kept.clear(wait=wait)
        assert bool(again(kept).shown) == wait, "with wait it stands until the next comes"
        kept.stream("stdout", "after\n")
        assert again(kept).shown == ["after\n"]


def test_an_area_with_results_keeps_them_and_one_without_has_none() -> None:
    class Results(RecordingArea):
        def result(self, data: dict[str, object], metadata: dict[str, object]) -> None:
            self.display(data, metadata)

    assert not hasattr(KeptArea(RecordingArea()), "result")
    kept = KeptArea(Results())
    kept.result({"text/plain": "42"}, {})
    assert again(kept).shown == ["42"]


def test_no_more_is_kept_than_so_much() -> None:
    kept = KeptArea(RecordingArea(), letters=100)
    for i in range(1000):
        kept.stream("stdout", f"{i}\n")
    text = again(kept).text
    assert text.startswith("(The beginning is missing: only the last 100 characters are kept.)\n")
    assert text.endswith("998\n999\n")
    assert 50 <= len(text.partition("\n")[2]) <= 100
    kept.display({"text/html": "x" * 90}, {}, "big")
    assert "999" not in again(kept).text
    kept.stream("stderr", "y" * 90)
    assert again(kept).shown[1:] == ["y" * 90]
    kept.update({"text/html": "z" * 1000}, {}, "big")  # it is kept no more
    assert again(kept).shown[1:] == ["y" * 90]
    kept.stream("stderr", "e")
    assert again(kept).shown[1:] == ["y" * 90 + "e"]


def test_a_fault_in_keeping_does_not_harm_what_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("spoiled")

    monkeypatch.setattr(KeptArea, "_grow", fail)
    first = RecordingArea()
    kept = KeptArea(first)
    kept.stream("stdout", "a\n")
    kept.display({"text/plain": "b"}, {})
    assert first.shown == ["a\n", "b"]
    assert "spoiled" in capsys.readouterr().err


def test_how_a_cell_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(last_cell.time, "monotonic", lambda: now)
    area, kept = RecordingArea(), KeptArea(RecordingArea())
    run = CellRun(7, [0, 1, 3], kept)
    kept.stream("stdout", "x\n")
    now = 12.0
    run.show_again(area)
    assert area.text == "In [7] on ranks 0-1,3 has been running for 2.0 s. Its output:\nx\n"
    with pytest.raises(CellError), run.ending():
        raise CellError("1 of 4 ranks failed: [3] ValueError: no", {3: "..."}, "[3] ValueError: no")
    now = 99.0
    area = RecordingArea()
    run.show_again(area)
    assert area.shown == [
        "In [7] on ranks 0-1,3 ended after 2.0 s. Its output:\nx\n",
        "[3] ValueError: no\nCellError: 1 of 4 ranks failed: [3] ValueError: no\n",
    ]
    area, run = RecordingArea(), CellRun(0, [0], KeptArea(RecordingArea()))
    with run.ending():
        pass
    run.show_again(area)
    assert area.text == "The cell on rank 0 ended after 0.0 s. Its output:\n(nothing)\n"


def test_old_cells_are_forgotten_if_they_are_many_or_hold_much() -> None:
    ran: deque[CellRun] = deque()

    def run(letters: int) -> CellRun:
        one = CellRun(1, [0], KeptArea(RecordingArea()))
        remember(ran, one)
        with one.ending():
            one._area.stream("stdout", "x" * letters)
        return one

    runs = [run(10) for _ in range(9)]
    assert [*ran] == runs[1:]
    large = run(3 << 20), run(3 << 20)
    assert [*ran] == [*runs[3:], *large]
    last = run(1)
    assert [*ran] == [large[1], last], "what the others held is free when the next one begins"
