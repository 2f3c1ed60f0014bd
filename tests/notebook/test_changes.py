"""Output that changes after it was shown: displays with an id, clearing, late output. The clock is a fake."""

from __future__ import annotations

import re
import threading

from nbcomm.protocol import Clear, Display, Text

from .cells import Cell, png, shown_png

# ── displays that change ────────────────────────────────────────────────────────────────────────────


def handle(value: str, rank: int, *, update: bool = False) -> Display:
    return Display({"text/plain": value}, display_id=f"id-of-{rank}", update=update)


def test_a_text_display_is_updated_in_place_for_all_ranks():
    cell = Cell(range(3))
    for rank in range(3):
        cell.feed(rank, handle("0", rank))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-2] 0"]
    for rank in range(3):
        cell.feed(rank, handle("1", rank, update=True))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-2] 1"]
    assert cell.close() == ["[0-2] 1"]


def test_ranks_that_pass_the_same_values_at_their_own_pace_stay_folded():
    cell = Cell(range(2))
    for rank in range(2):
        cell.feed(rank, handle("0", rank))
    cell.tick(0.1)
    for step in range(1, 20):
        cell.feed(0, handle(str(step), 0, update=True))
        if step >= 3:
            cell.feed(1, handle(str(step - 2), 1, update=True))
        cell.tick(0.1)
        assert re.fullmatch(r"\[0-1\] \d+", cell.area.text.strip()), "the newest value that both have passed"
    assert cell.area.shown == ["[0-1] 17"]
    assert cell.close() == ["[0] 19\n[1] 17"]


def test_ranks_that_stay_apart_are_shown_apart():
    cell = Cell(range(3))
    for rank in range(3):
        cell.feed(rank, handle("start", rank))
    cell.tick(0.1)
    cell.feed(1, handle("own", 1, update=True))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-2] start"]
    cell.tick(0.3)
    assert cell.area.shown == ["[0,2] start\n[1] own"]
    for rank in (0, 2):
        cell.feed(rank, handle("own", rank, update=True))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-2] own"]


def test_images_that_differ_get_outputs_of_their_own():
    cell = Cell(range(2))
    for rank in range(2):
        cell.feed(rank, png("0", display_id=f"plot-{rank}"))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-1]", shown_png("0")]
    cell.feed(1, png("1", display_id="plot-1", update=True))
    cell.tick(0.5)
    assert cell.area.shown == ["[0]", shown_png("0"), "[1]", shown_png("1")]
    cell.feed(0, png("1", display_id="plot-0", update=True))
    assert cell.close() == ["[0-1]", shown_png("1"), "", ""]


def test_an_empty_handle_keeps_its_place():
    cell = Cell([0])
    cell.feed(0, Display({}, display_id="later"))
    cell.write(0, "below\n")
    cell.tick(0.1)
    assert cell.area.shown == ["", "", "[0] below\n"]
    cell.feed(0, png("plot", display_id="later", update=True))
    assert cell.close() == ["[0]", shown_png("plot"), "[0] below\n"]


def test_a_display_of_an_earlier_cell_is_updated_there():
    first, second = Cell([0]), Cell([0])
    first.feed(0, png("0", display_id="earlier"))
    first.close()
    second.feed(0, png("1", display_id="earlier", update=True))
    assert second.close() == []
    assert first.area.shown == ["[0]", shown_png("1")]


def test_a_display_of_a_running_cell_is_updated_by_an_earlier_cells_thread():
    first, second = Cell([0]), Cell([0])
    first.close()
    second.feed(0, png("0", display_id="of the second"))
    second.tick(0.1)
    first.feed(0, png("1", display_id="of the second", update=True))
    assert second.area.shown == ["[0]", shown_png("0")], "its own thread shows it"
    second.tick(0.1)
    assert second.area.shown == ["[0]", shown_png("1")]


def test_an_update_that_overtakes_its_display_is_not_lost():
    cell = Cell(range(2))
    cell.feed(0, handle("0", 0), handle("1", 0, update=True))
    cell.feed(1, handle("0", 1), handle("1", 1, update=True))
    assert cell.close() == ["[0-1] 1"]


def test_an_update_of_an_unknown_display_is_shown_as_new():
    cell = Cell([0])
    cell.feed(0, Display({"text/plain": "x"}, display_id="of a lost notebook", update=True))
    assert cell.close() == ["[0] x"]


def test_a_rank_that_shows_a_display_late_joins_it_with_its_handle():
    cell = Cell(range(2))
    cell.tick(1)
    cell.feed(1, png("0", display_id="h1"))
    cell.tick(0.3)
    assert cell.area.shown == ["[1]", shown_png("0")]
    cell.feed(0, png("0", display_id="h0"))
    cell.tick(0.1)
    assert cell.area.shown == ["[0-1]", shown_png("0")]
    for rank in range(2):
        cell.feed(rank, png("1", display_id=f"h{rank}", update=True))
    assert cell.close() == ["[0-1]", shown_png("1")]


# ── clearing ────────────────────────────────────────────────────────────────────────────────────────


def test_all_ranks_clear():
    cell = Cell(range(2))
    for step in range(3):
        for rank in range(2):
            cell.feed(rank, Clear(wait=True), Text("stdout", f"step {step}\n"))
        cell.tick(0.1)
        assert cell.area.shown == [f"[0-1] step {step}\n"]
    assert cell.close() == ["[0-1] step 2\n"]


def test_clearing_without_waiting_leaves_an_empty_cell():
    cell = Cell([0])
    cell.write(0, "a\n")
    cell.tick(0.1)
    cell.feed(0, Clear())
    cell.tick(0.1)
    assert cell.close() == []


def test_clearing_with_waiting_keeps_the_output_until_there_is_more():
    cell = Cell([0])
    cell.write(0, "a\n")
    cell.tick(0.1)
    cell.feed(0, Clear(wait=True))
    assert cell.close() == ["[0] a\n"]


def test_a_rank_that_clears_takes_only_its_own_away():
    cell = Cell(range(3))
    for rank in range(3):
        cell.write(rank, f"same\nown {rank}\n")
    cell.tick(1)
    cell.feed(1, Clear(), Text("stdout", "new\n"))
    cell.close()
    assert cell.area.text == "[0,2] same\n[1] new\n[0] own 0\n[2] own 2\n"


def test_what_is_left_after_clearing_does_not_depend_on_when_it_was_cleared():
    def shown(pause: float) -> str:
        cell = Cell(range(2))
        cell.write(0, "a\nb\n")
        cell.write(1, "a\nx\n")
        cell.tick(pause)
        cell.feed(1, Clear(), Text("stdout", "b\n"))
        cell.tick(pause)
        cell.close()
        return cell.area.text

    assert shown(0.1) == shown(2) == "[0] a\n[0-1] b\n"


def test_ranks_that_showed_too_much_to_take_back_are_cleared_together():
    cell = Cell(range(2))
    for rank in range(2):
        cell.write(rank, "".join(f"{i}\n" for i in range(3000)))
    cell.tick(0.1)
    cell.feed(0, Clear(), Text("stdout", "new\n"))
    cell.tick(0.1)
    assert "[0-1] 2999\n" in cell.area.text, "rank 1 still shows it"
    cell.feed(1, Clear(), Text("stdout", "new\n"))
    cell.tick(0.1)
    assert cell.close() == ["[0-1] new\n"]


# ── late output ─────────────────────────────────────────────────────────────────────────────────────


def test_late_output_is_shown_at_once_and_marked():
    cell = Cell(range(2))
    cell.write(0, "a\n")
    cell.close()
    cell.feed(1, Text("stdout", "from a thread\nand more"), Text("stdout", "\n"), png("plot"))
    assert cell.area.text == (
        f"[0] a\n[1] (late) from a thread\n[1] (late) and more\n[1] (late)\n{shown_png('plot')}\n"
    )


def test_output_of_a_rank_that_has_ended_is_late_while_others_run():
    cell = Cell(range(2))
    cell.write(0, "no end")
    cell.output.ended(0)
    cell.write(0, "thread\n")
    cell.feed(1, Text("stderr", "mine\n", late=True))
    cell.tick(0.1)
    assert cell.area.shown == ["[0] (late) thread\n", "[1] (late) mine\n"]
    cell.close()
    assert cell.area.text.endswith("[0] no end\n")


def test_late_output_comes_from_any_thread():
    cell = Cell([0])
    cell.close()
    thread = threading.Thread(target=cell.write, args=(0, "x\n"))
    thread.start()
    thread.join(10)
    assert cell.area.shown == ["[0] (late) x\n"]
