"""The merge: a pure function of what each rank showed, and the same function while that still comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.notebook.display.items import Folded, FoldedItem, Line, Piece, Rich, version
from nbcomm.notebook.output import history
from nbcomm.notebook.output.folding import Merger, Order, merge

from ...growth import lines_run

SEQUENCES = st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=4)


def lines(text: str) -> list[Piece]:
    return [Line("stdout", word) for word in text.split()]


def merged(*texts: str, order: Order = "fold", window: int = 400) -> str:
    """The merge of one text per rank, written as ``01:a 1:b``."""
    return written(merge({rank: lines(text) for rank, text in enumerate(texts)}, order=order, window=window))


def written(entries: Sequence[tuple[tuple[int, ...], Piece]]) -> str:
    return " ".join(f"{''.join(map(str, ranks))}:{piece.text}" for ranks, piece in entries if isinstance(piece, Line))


def pairs(entries: Sequence[Folded]) -> list[tuple[tuple[int, ...], Piece]]:
    return [(entry.ranks, entry.piece) for many in entries for entry in many.entries()]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a b", "a b", "a b"), "012:a 012:b"),
        (("a1 b1", "a2 b2"), "0:a1 1:a2 0:b1 1:b2"),
        (("x a", "a"), "0:x 01:a"),
        (("a", "x a"), "1:x 01:a"),
        (("a b", "b a"), "0:a 01:b 1:a"),
        (("a", "", "a"), "02:a"),
        (("", ""), ""),
        (("s u0 s v0", "s u1 s v1"), "01:s 0:u0 1:u1 01:s 0:v0 1:v1"),
        (("x a", "a", "c"), "0:x 2:c 01:a"),
        (("w a", "a", "a", "x a"), "0:w 3:x 0123:a"),
        (("a x a z", "a x w v"), "01:a 01:x 0:a 1:w 0:z 1:v"),
        (("a c", "b", "c", "d"), "0:a 1:b 3:d 02:c"),
    ],
)
def test_ranks_that_agree_are_folded_and_the_others_follow_in_order(texts, expected):
    assert merged(*texts) == expected


def test_streams_are_told_apart():
    merged = merge({0: [Line("stdout", "a")], 1: [Line("stderr", "a")]})
    assert merged == [((0,), Line("stdout", "a")), ((1,), Line("stderr", "a"))]


OBJECTS = [f"[<__main__.A object at 0x7f1{end}>, <function f at 0x55{end}>]" for end in "aab"]


def test_an_address_of_an_object_is_no_difference():
    found = merge({rank: [Line("stdout", text), Line("stdout", "end")] for rank, text in enumerate(OBJECTS)})
    shared = "[<__main__.A object at 0x…>, <function f at 0x…>]"
    assert found == [((0, 1, 2), Line("stdout", shared)), ((0, 1, 2), Line("stdout", "end"))]


def test_an_address_on_which_ranks_agree_is_shown():
    found = merge({rank: [Line("stdout", text)] for rank, text in enumerate(OBJECTS[:2])})
    assert found == [((0, 1), Line("stdout", OBJECTS[0]))]


def test_another_number_in_hexadecimal_is_a_difference():
    found = merge({rank: [Line("stdout", f"a buffer at 0x7f{rank}, <at 0x{rank}")] for rank in range(2)})
    assert [ranks for ranks, _ in found] == [(0,), (1,)]


@pytest.mark.parametrize("order", ["each", "by_rank"])
def test_what_is_not_folded_has_each_ranks_own_addresses(order):
    found = merge({rank: [Line("stdout", text)] for rank, text in enumerate(OBJECTS)}, order=order)
    assert [piece.text for _, piece in found if isinstance(piece, Line)] == OBJECTS


def test_each_line_alone_in_rounds():
    assert merged("a b", "a b", order="each") == "0:a 1:a 0:b 1:b"


def test_one_rank_after_the_other():
    assert merged("a b", "a b", order="by_rank") == "0:a 0:b 1:a 1:b"


def test_the_window_bounds_how_far_a_line_is_looked_for():
    own = " ".join(f"x{i}" for i in range(5))
    assert merged(f"{own} a", "a", window=6).endswith("01:a")
    assert merged(f"{own} a", "a", window=5) == "0:x0 0:x1 0:x2 0:x3 0:x4 01:a", "it came into the window in time"
    assert merged(f"{own} a", "a b", window=2).startswith("0:x0 1:a")


def defolded(entries: Sequence[tuple[tuple[int, ...], Piece]], rank: int) -> list[Piece]:
    return [piece for ranks, piece in entries if rank in ranks]


@given(SEQUENCES, st.sampled_from(["fold", "each", "by_rank"]), st.integers(1, 8))
def test_every_rank_gets_back_exactly_its_own_sequence(texts, order, window):
    sequences = {rank: [Line("stdout", word) for word in words] for rank, words in enumerate(texts)}
    entries = merge(sequences, order=order, window=window)
    assert {rank: defolded(entries, rank) for rank in sequences} == sequences


@given(SEQUENCES, st.sampled_from(["fold", "each", "by_rank"]), st.integers(2, 8), st.data())
def test_what_comes_out_early_is_what_comes_out_at_the_end(texts, order, window, data):
    sequences = {rank: [Line("stdout", word) for word in words] for rank, words in enumerate(texts)}
    expected = merge(sequences, order=order, window=window)
    merger = Merger(sequences, order=order, window=window)
    left = {rank: list(pieces) for rank, pieces in sequences.items()}
    entries: list[FoldedItem] = []
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        count = data.draw(st.integers(1, 5))
        merger.push(rank, left[rank][:count])
        del left[rank][:count]
        if not left[rank]:
            merger.end(rank)
            del left[rank]
        entries += merger.settle()
    assert pairs(entries) == expected


@given(SEQUENCES, st.data())
def test_nothing_is_lost_or_out_of_order_when_it_is_forced(texts, data):
    sequences = {rank: [Line("stdout", word) for word in words] for rank, words in enumerate(texts)}
    merger = Merger(sequences, window=4)
    entries: list[FoldedItem] = []
    for rank, pieces in sequences.items():
        merger.push(rank, pieces)
        most = data.draw(st.integers(0, 6))
        entries += merger.settle()
        entries += merger.force(lambda lane, most=most: len(lane) > most)
    for rank in sequences:
        merger.end(rank)
    entries += merger.settle()
    assert {rank: defolded(pairs(entries), rank) for rank in sequences} == sequences


def test_what_all_ranks_agree_on_does_not_wait():
    merger = Merger(range(3))
    for rank in range(2):
        merger.push(rank, lines("a"))
    assert merger.settle() == []
    merger.push(2, lines("a"))
    assert pairs(merger.settle()) == [((0, 1, 2), Line("stdout", "a"))]


def test_what_all_ranks_have_shown_makes_none_of_them_sure_of_the_next():
    merger = Merger(range(3), window=1)
    for rank in range(3):
        merger.push(rank, lines("a"))
    assert written(pairs(merger.settle())) == "012:a"
    merger.push(0, lines("b"))
    merger.push(2, lines("c"))
    assert merger.settle() == []
    merger.push(1, lines("b"))
    assert written(pairs(merger.settle())) == "01:b", "another rank may show a c, too"


def test_a_preview_shows_the_rest_and_takes_nothing():
    merger = Merger(range(2))
    merger.push(0, lines("a b c"))
    bar = [Line("stderr", "bar")]
    hidden, entries = merger.preview({0: bar, 1: bar}, limit=2)
    assert (hidden, written(pairs(entries))) == (1, "0:b 0:c 01:bar")
    assert len(merger.lanes[0]) == 3


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, (5, "")), (2, (3, "0:d 0:e")), (4, (1, "0:b 0:c 0:d 0:e")), (9, (0, "0:a 0:b 0:c 0:d 0:e"))],
)
def test_a_preview_has_the_last_lines_wherever_they_wait(limit, expected):
    merger = Merger(range(2), window=2)
    merger.push(0, lines("a b c d e"))
    hidden, entries = merger.preview({}, limit=limit)
    assert (hidden, written(pairs(entries))) == expected


def test_a_lane_tells_since_when_its_oldest_piece_waits():
    merger = Merger(range(2), window=2)
    lane, other = merger.lanes
    merger.push(0, lines("a b"), 100.0)
    merger.push(0, lines("c"), 200.0)
    merger.push(0, [], 300.0)
    assert (lane.since, other.since) == (100.0, None)
    for word, since in [("a", 100.0), ("b", 200.0), ("c", None)]:
        merger.push(1, lines(word), 400.0)
        assert written(pairs(merger.settle())) == f"01:{word}"
        assert lane.since == since
    merger.push(0, lines("d"), 5.0)
    assert lane.since == 5.0


def everything(merger: Merger) -> str:
    """What comes out if the ranks end now."""
    for lane in merger.lanes:
        merger.end(lane.rank)
    return written(pairs(merger.settle()))


@pytest.mark.parametrize(
    ("order", "window", "expected"),
    [("fold", 9, "0:x 2:c 12:b 1:d"), ("fold", 1, "0:x 1:b 2:c 1:d 2:b"), ("by_rank", 9, "0:x 1:b 1:d 2:c 2:b")],
)
def test_what_a_rank_clears_is_taken_back_and_the_rest_is_merged_anew(order, window, expected):
    merger = Merger(range(3), order=order, window=window)
    for rank, text in enumerate(["a b", "b d", "c b"]):
        merger.push(rank, lines(text), 1.0)
    merger.force(lambda lane: lane.rank == 0)
    merger.push(0, lines("waits"), 2.0)
    again = merger.cleared({0}, 3.0)
    assert again is not None
    assert [(len(lane), lane.since) for lane in again.lanes] == [(0, None), (2, 3.0), (2, 3.0)]
    again.push(0, lines("x"), 4.0)
    assert everything(again) == expected


def test_who_had_ended_has_ended_after_it_too():
    merger = Merger(range(2))
    merger.push(1, lines("a"))
    merger.end(1)
    again = merger.cleared({0}, 1.0)
    again.push(0, lines("b"))
    again.end(0)
    assert written(pairs(again.settle())) == "0:b 1:a"


def test_a_display_that_is_merged_again_has_no_place_yet():
    merger = Merger(range(2))
    shown = rich("plot")
    merger.push(1, [shown])
    merger.force(lambda lane: True)
    shown.place = object()
    merger.cleared({0}, 1.0)
    assert shown.place is None


@pytest.mark.parametrize(
    ("limit", "later"),
    [("_REMEMBERED", ["ff", "gg"]), ("_REMEMBERED_LETTERS", ["f", "", "", ""])],
    ids=["lines", "letters"],
)
def test_where_too_much_is_out_the_others_keep_it_until_they_clear(monkeypatch, limit, later):
    monkeypatch.setattr(history, limit, 4)
    merger = Merger(range(2), window=2)
    merger.push(0, lines("a b"))
    merger.push(1, lines("c d e"))
    assert len(merger.force(lambda lane: True)) == 5
    merger.push(0, lines("u v w"))
    assert merger.cleared({0}, 1.0) is None, "of rank 1 one line too much is out"
    assert len(merger.lanes[0]) == 0, "but what rank 0 had waiting is gone"
    shown = [Line("stdout", text) for text in later]
    merger.push(0, shown)
    merger.force(lambda lane: True)
    again = merger.cleared({1}, 2.0)
    assert again is not None, "all of rank 0 is remembered: what it had cleared counts no more"
    for rank in range(2):
        again.end(rank)
    assert pairs(again.settle()) == [((0,), line) for line in shown]


def rich(text: str) -> Rich:
    return Rich(version({"text/html": text}, {}))


def test_a_lane_tells_how_far_back_a_display_waits_and_since_when_one_that_may_change():
    merger = Merger(range(2))
    (lane, _) = merger.lanes
    assert (lane.reach, lane.fixed_since) == (0, None)
    merger.push(0, [*lines("a"), rich("plot"), *lines("b")], 7.0)
    merger.push(0, [Rich(version({"text/html": "bar"}, {}), "its id"), *lines("c")], 9.0)
    assert (lane.reach, lane.fixed_since) == (4, 9.0)
    merger.end(1)
    merger.settle()
    assert (lane.reach, lane.fixed_since) == (0, None)


def test_an_equal_display_joins_one_that_is_out_already():
    merger = Merger(range(3))
    merger.push(1, [rich("plot")])
    (entry,) = merger.force(lambda lane: bool(lane.rich))
    merger.push(0, [rich("plot"), *lines("a")])
    merger.push(2, [*lines("a"), rich("plot")])
    assert merger.joined == [entry]
    assert (entry.ranks, entry.forced) == ((0, 1), True)
    for rank in range(3):
        merger.end(rank)
    merger.joined.clear()
    assert written(pairs(merger.settle())) == "02:a", "rank 2 shows it after a line that is not out"
    assert merger.joined == []


def test_several_displays_are_joined_in_their_order_each_by_the_ranks_own():
    merger = Merger(range(2))
    merger.push(1, [rich("one"), rich("two"), rich("three")])
    one, two, three = merger.force(lambda lane: bool(lane.rich))
    own = [rich("one"), rich("three"), rich("two")]
    merger.push(0, own)
    assert merger.joined == [one, three]
    assert (one.parts[0], three.parts[0]) == (own[0], own[1])
    assert one.parts[0] is own[0]
    assert two.ranks == (1,)
    assert len(merger.lanes[0]) == 1, "its third is older than its second there, so it comes by itself"


def test_a_display_is_not_joined_out_of_order():
    merger = Merger(range(2))
    merger.push(1, [rich("plot")])
    merger.force(lambda lane: bool(lane.rich))
    merger.push(0, [rich("other"), rich("plot")])
    merger.end(0)
    merger.end(1)
    assert [entry.ranks for entry in merger.settle()] == [(0,), (0,)], "its own order: other, then plot"


@pytest.mark.parametrize("kind", ["equal", "different", "mixed", "repeated"])
def test_the_work_grows_as_the_output_does(kind):
    def work(count: int) -> int:
        texts = {
            "equal": lambda rank, i: f"line {i}",
            "different": lambda rank, i: f"line {i} {rank}",
            "mixed": lambda rank, i: f"line {i} {rank if i % 3 else ''}",
            "repeated": lambda rank, i: "ab"[(i * (rank + 2) // 3) % 2],
        }[kind]
        sequences = {rank: [Line("stdout", texts(rank, i)) for i in range(count)] for rank in range(8)}
        return lines_run(lambda: merge(sequences))

    assert work(4_000) < 6 * work(1_000), "4 times the output; a square law would be 16"
