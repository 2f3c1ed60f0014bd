"""Exactly once: each rule of a stream by itself, and all of them on a way between a notebook and ranks that breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.protocol.codec import encode
from nbcomm.protocol.streams import Frames, Header, Incoming, NotebookStream, Outgoing, RankStream, Sent

from ..laws import examples
from .ways import Process, Ways, nothing_is_left

SESSION, LATER, INCARNATION, ANOTHER = 1000, 2000, 77, 88


def gap(run: int) -> Frames:
    return [b"gap %d" % run]


def bounded(most: int = 10) -> Outgoing:
    return Outgoing(most, gap)


def words(taken: list[Sent]) -> list[bytes]:
    return [sent.frames[0] for sent in taken]


def kept(out: Outgoing) -> list[bytes]:
    """What would be passed on if nothing had been heard."""
    before = out.last
    out.rewind(0)
    again = words(out.take())
    out.rewind(before)
    return again


def say(out: Outgoing, *texts: str, run: int = 0, output: bool = False) -> None:
    for text in texts:
        out.add([text.encode()], run, output=output)


# ── what is heard ───────────────────────────────────────────────────────────────────────────────────


def header(number: int = 0, after: int | None = None, **rest: int) -> Header:
    before = (number - 1 if number else 0) if after is None else after
    return Header(
        **{"session_id": SESSION, "incarnation": INCARNATION, "number": number, "after": before, "heard": 0, **rest}
    )


def test_messages_are_heard_in_order_and_once() -> None:
    into = Incoming()
    assert (into.heard, into.lacking) == (0, False)
    assert [into.accepts(header(number)) for number in (1, 2, 2, 1, 3)] == [True, True, False, False, True]
    assert (into.heard, into.lacking) == (3, False)


def test_a_message_behind_a_gap_is_refused_until_the_gap_is_filled() -> None:
    into = Incoming()
    assert into.accepts(header(1))
    assert not into.accepts(header(3))
    assert (into.heard, into.lacking) == (1, True)
    assert not into.accepts(header(1))
    assert into.lacking  # what came before shows nothing
    assert into.accepts(header(2))
    assert (into.heard, into.lacking) == (2, False)
    assert into.accepts(header(3))


def test_numbers_may_be_left_out_by_the_sender() -> None:
    into = Incoming()
    assert into.accepts(header(4, after=0))
    assert into.accepts(header(9, after=4))
    assert into.heard == 9


def test_a_message_without_a_number_counts_for_nothing_but_shows_what_is_missing() -> None:
    into = Incoming()
    assert into.accepts(header(after=0))
    assert into.accepts(header(after=0))
    assert not into.accepts(header(after=1))
    assert (into.heard, into.lacking) == (0, True)
    assert into.accepts(header(1))
    assert into.accepts(header(after=1))
    assert (into.heard, into.lacking) == (1, False)


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_numbered_and_passed_on_once() -> None:
    out = Outgoing()
    assert out.take() == []
    out.add([b"a"])
    out.add([b"b", b"raw"], asks=True)
    assert out.take() == [Sent(1, 0, [b"a"], asks=False), Sent(2, 1, [b"b", b"raw"], asks=True)]
    assert (out.take(), out.last) == ([], 2)
    out.add([b"c"], run=5)
    assert out.take() == [Sent(3, 2, [b"c"], asks=False)]


def test_what_was_added_last_can_be_taken_back_unless_it_was_passed_on() -> None:
    out = Outgoing()
    say(out, "a")
    out.take()
    out.take_back()
    say(out, "b")
    out.take_back()
    say(out, "c")
    assert out.take() == [Sent(2, 1, [b"c"], asks=False)]


def test_what_was_not_heard_is_passed_on_again_with_its_numbers() -> None:
    out = Outgoing()
    say(out, "a", "b", "c")
    first = out.take()
    out.hear(1)
    out.rewind(1)
    assert out.take() == first[1:]
    out.rewind(2)
    say(out, "d")
    assert [(sent.number, sent.after) for sent in out.take()] == [(3, 2), (4, 3)]


def test_a_word_from_long_ago_repeats_more_and_breaks_nothing() -> None:
    out = Outgoing()
    say(out, "a", "b", "c")
    out.take()
    out.hear(2)
    out.rewind(0)  # it was said when nothing was heard
    into = Incoming()
    into.heard = 2
    (again,) = out.take()
    assert (again.number, again.after) == (3, 0)
    assert into.accepts(header(again.number, after=again.after))


def test_what_is_heard_is_forgotten_unless_it_is_about_a_cell() -> None:
    out = Outgoing()
    say(out, "a")
    say(out, "b", run=5)
    say(out, "c")
    out.take()
    out.hear(2)
    assert kept(out) == [b"b", b"c"]
    out.hear(3, acknowledged=4)
    assert kept(out) == [b"b"]
    out.hear(3, acknowledged=5)
    assert nothing_is_left(out)


def test_without_a_word_about_it_no_cell_is_acknowledged() -> None:
    out = Outgoing()
    say(out, "a", run=1)
    out.take()
    out.hear(1)
    assert kept(out) == [b"a"]


def test_what_is_acknowledged_is_kept_until_it_is_heard() -> None:
    out = Outgoing()
    say(out, "a", "b", run=5)
    out.take()
    out.hear(1, acknowledged=5)
    assert kept(out) == [b"b"]
    out.hear(2, acknowledged=5)
    assert nothing_is_left(out)


def test_what_comes_behind_a_cell_that_is_not_acknowledged_is_freed_with_it() -> None:
    out = Outgoing()
    say(out, "a", run=6)
    say(out, "late", run=5)
    out.take()
    out.hear(2, acknowledged=5)
    assert kept(out) == [b"a", b"late"]
    out.hear(2, acknowledged=6)
    assert nothing_is_left(out)


def test_another_notebook_is_told_of_cells_and_of_nothing_else() -> None:
    out = Outgoing()
    say(out, "answer")
    say(out, "a", run=5)
    say(out, "b", run=6)
    say(out, "a question")
    say(out, "c", run=6)
    out.take()
    out.hear(1)
    out.begin_again()
    assert out.last == 0
    assert [(sent.number, sent.after) for sent in out.take()] == [(2, 0), (3, 2), (5, 3)]
    out.hear(5, acknowledged=6)
    assert nothing_is_left(out)


def test_another_notebook_is_not_told_what_was_acknowledged_and_heard() -> None:
    out = Outgoing()
    say(out, "a", run=6)
    say(out, "late", "later", run=5)
    out.take()
    out.hear(2, acknowledged=5)
    out.hear(1, acknowledged=3)  # an older word takes nothing back
    out.begin_again()
    assert words(out.take()) == [b"a", b"later"]  # nobody has heard the last


def test_the_newest_is_the_last_that_is_kept_passed_on_or_not() -> None:
    out = Outgoing()
    assert out.newest == 0
    say(out, "a", "b")
    assert (out.last, out.newest) == (0, 2)
    out.take()
    assert (out.last, out.newest) == (2, 2)
    out.begin_again()
    assert out.newest == 0  # another notebook lacks nothing
    say(out, "c", run=5)
    say(out, "d")
    out.begin_again()
    assert out.newest == 3


# ── what is dropped for lack of room ────────────────────────────────────────────────────────────────


def test_the_oldest_output_makes_room_and_a_gap_stands_in_its_place() -> None:
    out = bounded()
    say(out, "1111", "2222", run=5, output=True)
    say(out, "done", run=5)
    out.take()
    out.hear(3)
    assert kept(out) == [b"1111", b"2222", b"done"]
    say(out, "3333", run=6, output=True)
    assert kept(out) == [b"gap 5", b"2222", b"done", b"3333"]
    say(out, "44444", run=6, output=True)
    out.take()
    assert kept(out) == [b"gap 5", b"done", b"3333", b"44444"]  # one gap for each cell, where the last was dropped
    out.hear(5, acknowledged=5)
    say(out, "5", run=6, output=True)
    assert kept(out) == [b"3333", b"44444", b"5"]


def test_exactly_as_much_as_there_is_room_for_is_kept() -> None:
    out = bounded()
    say(out, "11111", "22222", run=5, output=True)
    out.live = False
    assert kept(out) == [b"11111", b"22222"]
    say(out, "3", run=5, output=True)
    assert kept(out) == [b"gap 5", b"22222", b"3"]
    say(out, "4444", run=5, output=True)
    assert kept(out) == [b"gap 5", b"22222", b"3", b"4444"]


def test_only_output_is_counted_and_dropped() -> None:
    out = bounded()
    out.live = False
    say(out, "an answer that is long", run=5)
    out.add([b"111", memoryview(b"222")], 5, output=True)
    out.add([b"4444"], 5, output=True)
    assert kept(out) == [b"an answer that is long", b"111", b"4444"]
    out.add([b"5"], 5, output=True)
    assert kept(out) == [b"an answer that is long", b"gap 5", b"4444", b"5"]


def test_the_newest_output_is_kept_however_large_it_is() -> None:
    out = bounded()
    out.live = False
    say(out, "1", "2" * 50, run=5, output=True)
    assert kept(out) == [b"gap 5", b"2" * 50]
    say(out, "3", run=5, output=True)
    assert kept(out) == [b"gap 5", b"3"]


@pytest.mark.parametrize("filler", [gap, None])
def test_as_much_is_dropped_as_there_must_be_room(filler: Callable[[int], Frames] | None) -> None:
    out = Outgoing(10, filler)
    out.live = False
    say(out, "11", "22", "33", "44", "55", "666666", run=5, output=True)
    stands = [b"gap 5"] if filler else []
    assert kept(out) == [*stands, b"44", b"55", b"666666"]
    say(out, "7" * 11, run=5, output=True)
    assert kept(out) == [*stands, b"7" * 11]


def test_what_a_notebook_waits_for_is_not_dropped() -> None:
    out = bounded()
    say(out, "1111", "2222", "3333", "4444", "5555", run=5, output=True)
    assert len(out.take()) == 5
    out.rewind(0)  # the way has broken, and nothing was heard
    assert words(out.take()) == [b"1111", b"2222", b"3333", b"4444", b"5555"]
    out.hear(2)
    assert kept(out) == [b"gap 5", b"3333", b"4444", b"5555"]  # for a later notebook
    out.rewind(2)
    say(out, "6666", run=5, output=True)
    assert words(out.take()) == [b"3333", b"4444", b"5555", b"6666"]


def test_what_an_earlier_notebook_has_heard_a_new_one_waits_for() -> None:
    out = bounded()
    say(out, "1111", "2222", run=5, output=True)
    out.take()
    out.hear(2)
    out.begin_again()
    say(out, "3333", "4444", run=5, output=True)
    assert words(out.take()) == [b"1111", b"2222", b"3333", b"4444"]
    out.hear(1)
    assert kept(out) == [b"gap 5", b"2222", b"3333", b"4444"]


def test_for_a_notebook_that_hears_nothing_not_all_is_kept() -> None:
    """It is stopped, or too slow: what it was told, it is told only once."""
    out = Outgoing(10, gap, most_unheard=20)
    say(out, "1111", "2222", "3333", "4444", "5555", run=5, output=True)
    assert len(out.take()) == 5
    assert kept(out) == [b"1111", b"2222", b"3333", b"4444", b"5555"]
    say(out, "6", run=5, output=True)
    assert kept(out) == [b"gap 5", b"2222", b"3333", b"4444", b"5555", b"6"]
    say(out, "7" * 20, run=5, output=True)
    assert kept(out) == [b"gap 5", b"6", b"7" * 20]
    say(out, "8" * 20, run=5, output=True)  # what was not passed on is kept in any case
    assert words(out.take()) == [b"6", b"7" * 20, b"8" * 20]


def test_without_a_notebook_what_was_never_passed_on_is_dropped_too() -> None:
    out = bounded()
    out.live = False
    say(out, "1111", "2222", "3333", "4444", run=5, output=True)
    assert [(sent.number, sent.after, sent.frames) for sent in out.take()] == [
        (2, 0, [b"gap 5"]),
        (3, 2, [b"3333"]),
        (4, 3, [b"4444"]),
    ]


def test_a_gap_that_was_heard_gives_way_to_a_later_one() -> None:
    out = bounded()
    out.live = False
    say(out, "1111", "2222", "3333", run=5, output=True)
    assert words(out.take()) == [b"gap 5", b"2222", b"3333"]
    out.hear(1)
    say(out, "4444", run=5, output=True)
    out.rewind(1)
    assert [(sent.number, sent.after) for sent in out.take()] == [(2, 1), (3, 2), (4, 3)]
    out.hear(4, acknowledged=5)
    assert nothing_is_left(out)


def test_output_of_no_cell_makes_room_and_is_forgotten_like_any_other() -> None:
    out = bounded()
    out.live = False
    for number in range(100):
        say(out, f"{number:04}", output=True)
    assert kept(out) == [b"gap 0", b"0098", b"0099"]
    assert len(out._passing) == 3  # nothing is kept of the rest
    out.take()
    out.hear(100)
    assert nothing_is_left(out)


def test_room_is_freed_by_what_is_forgotten() -> None:
    out = bounded()
    say(out, "11111", output=True)
    say(out, "22222", run=5, output=True)
    out.take()
    out.hear(2)
    say(out, "33333", run=5, output=True)
    assert kept(out) == [b"22222", b"33333"]
    out.begin_again()
    out.take()
    out.hear(3, acknowledged=5)
    say(out, "4444444444", run=6, output=True)
    assert kept(out) == [b"4444444444"]


def test_without_a_word_for_gaps_there_are_none() -> None:
    out = Outgoing(10)
    out.live = False
    say(out, "1111", "2222", "3333", run=5, output=True)
    assert kept(out) == [b"2222", b"3333"]
    out.hear(3, acknowledged=5)
    assert nothing_is_left(out)


_TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.just("answer"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("pass on"), st.just(0), st.just(0)),
        st.tuples(st.just("hear"), st.integers(0, 40), st.integers(0, 3)),
        st.tuples(st.just("rewind"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("begin again"), st.just(0), st.just(0)),
        st.tuples(st.just("live"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


@examples(200)
@given(_TURNS)
def test_whatever_is_dropped_the_order_holds_and_there_is_room(turns: list[tuple[str, int, int]]) -> None:
    out, said, passed, heard = Outgoing(20, gap), 0, 0, 0
    for what, one, other in turns:
        if what in {"say", "answer"}:
            said += 1
            out.add([b"x" * other], one, output=what == "say")
        elif what == "pass on":
            for sent in out.take():
                assert passed == sent.after < sent.number <= said
                passed = sent.number
        elif what == "hear":
            heard = max(heard, min(one, out.last))
            out.hear(min(one, out.last), other)
        elif what == "rewind":
            passed = min(one, out.last)
            out.rewind(passed)
        elif what == "begin again":
            out.begin_again()
            passed = heard = 0
        else:
            out.live = bool(one)
        droppable = {number: each.size for number, each in out._kept.items() if each.droppable}
        assert out._output == sum(droppable.values())
        assert set(out._passing) == {number for number, each in out._kept.items() if not each.run}
        assert {out._kept[number].frames[0] for number in out._gaps.values()} == {gap(run)[0] for run in out._gaps}
        if what == "say" and out._output > 20:
            assert all(number == said or (out.live and number > heard) for number in droppable)


def test_several_threads_may_send() -> None:
    out = Outgoing()
    threads = [threading.Thread(target=say, args=(out, *"abcdefgh" * 100)) for _ in range(4)]
    for thread in threads:
        thread.start()
    heard: list[int] = []
    while any(thread.is_alive() for thread in threads):
        heard += [sent.number for sent in out.take()]
    heard += [sent.number for sent in out.take()]
    assert heard == list(range(1, 3201))


# ── the ends ────────────────────────────────────────────────────────────────────────────────────────


def met(session_id: int = SESSION) -> tuple[NotebookStream, RankStream]:
    """Both ends, which know each other."""
    notebook, rank = NotebookStream(session_id), RankStream(INCARNATION, Outgoing())
    assert notebook.meet(rank.header())
    assert rank.is_new(notebook.header())
    assert rank.greet(notebook.header())
    return notebook, rank


def pass_on(notebook: NotebookStream, rank: RankStream) -> list[bytes]:
    """Pass all on that the notebook has to say; return what the rank accepts."""
    return [sent.frames[0] for sent in notebook.out.take() if rank.accepts(notebook.header(sent))]


def report(rank: RankStream, notebook: NotebookStream) -> list[bytes]:
    """Pass all on that the rank has to say; return what the notebook accepts."""
    return [sent.frames[0] for sent in rank.out.take() if notebook.accepts(rank.header(sent))]


def test_both_ends_number_what_they_say_and_tell_what_they_have_heard() -> None:
    notebook, rank = met()
    say(notebook.out, "do")
    assert pass_on(notebook, rank) == [b"do"]
    say(rank.out, "done", "and more", run=5)
    (first, second) = rank.out.take()
    assert rank.header(first) == Header(SESSION, INCARNATION, 1, 0, heard=1)
    assert rank.header(second) == Header(SESSION, INCARNATION, 2, 1, heard=1)
    assert rank.header() == Header(SESSION, INCARNATION, 0, 2, heard=1)
    assert notebook.accepts(rank.header(first))
    assert notebook.header(acknowledged=4) == Header(
        SESSION, INCARNATION, 0, 0, heard=1, acknowledged=4
    )  # all of its own is heard
    say(notebook.out, "next")
    (sent,) = notebook.out.take()
    assert notebook.header(sent, 5) == Header(SESSION, INCARNATION, 2, 1, heard=1, acknowledged=5)
    assert notebook.header() == Header(SESSION, INCARNATION, 0, 2, heard=1, acknowledged=0)


def test_a_header_travels_in_few_bytes() -> None:
    told = Header(SESSION, INCARNATION, 3, 2, 1, 4)
    assert msgspec.msgpack.decode(encode(told), type=Header) == told
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([SESSION, INCARNATION, 0, 2, 1]), type=Header) == Header(
        SESSION, INCARNATION, 0, 2, 1, 0
    )
    assert len(encode(told)) < 20


def test_what_is_heard_frees_memory_on_both_sides() -> None:
    notebook, rank = met()
    say(notebook.out, "do")
    pass_on(notebook, rank)
    say(rank.out, "answer")
    say(rank.out, "done", run=5)
    assert report(rank, notebook) == [b"answer", b"done"]
    assert nothing_is_left(notebook.out)
    assert kept(rank.out) == [b"answer", b"done"]
    assert rank.accepts(notebook.header(acknowledged=4))
    assert kept(rank.out) == [b"done"]
    assert rank.accepts(notebook.header(acknowledged=5))
    assert nothing_is_left(rank.out)


def test_a_refused_message_tells_what_was_heard_all_the_same() -> None:
    notebook, rank = met()
    say(rank.out, "answer")
    report(rank, notebook)
    say(notebook.out, "lost")
    notebook.out.take()
    assert not rank.accepts(notebook.header(acknowledged=7))
    assert nothing_is_left(rank.out)
    assert rank.acknowledged == 7
    say(rank.out, "lost")
    rank.out.take()
    assert rank.greet(notebook.header())
    assert notebook.meet(rank.header())
    pass_on(notebook, rank)
    assert not notebook.accepts(rank.header())
    assert nothing_is_left(notebook.out)


def test_what_is_acknowledged_stays_so() -> None:
    notebook, rank = met()
    rank.accepts(notebook.header(acknowledged=7))
    rank.accepts(notebook.header(acknowledged=5))
    assert rank.acknowledged == 7


def test_a_greeting_frees_and_repeats() -> None:
    notebook, rank = met()
    say(rank.out, "a", "b")
    first, _ = rank.out.take()
    assert notebook.accepts(rank.header(first))
    assert rank.greet(notebook.header(acknowledged=3))
    assert kept(rank.out) == [b"b"]
    assert rank.acknowledged == 3
    assert report(rank, notebook) == [b"b"]


def test_a_loss_is_repaired_by_a_question_and_its_answer() -> None:
    notebook, rank = met()
    say(notebook.out, "do", "and this")
    notebook.out.take()
    assert not rank.lacking
    assert not rank.accepts(notebook.header())
    assert rank.lacking
    assert notebook.meet(rank.header())
    assert pass_on(notebook, rank) == [b"do", b"and this"]
    assert not rank.lacking
    say(rank.out, "done")
    rank.out.take()
    assert not notebook.lacking
    assert not notebook.accepts(rank.header())
    assert notebook.lacking
    assert rank.greet(notebook.header())
    assert report(rank, notebook) == [b"done"]
    assert not notebook.lacking


def test_an_answer_shows_what_waits_for_a_greeting_that_was_lost() -> None:
    notebook, rank = met()
    say(rank.out, "done")  # the rank believes that nobody listens, and passes nothing on
    assert not notebook.accepts(rank.header())
    assert notebook.lacking


def test_a_question_of_one_that_does_not_know_this_process_shows_that() -> None:
    notebook, rank = NotebookStream(SESSION), RankStream(INCARNATION, Outgoing())
    assert rank.is_new(notebook.header())
    assert rank.accepts(notebook.header())
    assert rank.lacking
    assert not rank.greet(notebook.header())  # before Hello, no greeting counts
    assert not notebook.accepts(rank.header())
    assert not notebook.known
    assert notebook.meet(rank.header())
    assert notebook.known
    assert rank.accepts(notebook.header())
    assert not rank.lacking
    assert not rank.accepts(Header(SESSION, ANOTHER, 0, 0, 0))  # it takes this for an earlier process
    assert rank.lacking
    rank.accepts(Header(SESSION - 1, ANOTHER, 0, 0, 0))
    assert rank.accepts(notebook.header())
    assert not rank.accepts(Header(LATER, ANOTHER, 0, 0, 0))
    assert rank.lacking


def test_what_is_said_to_an_earlier_process_was_not_heard_of_this_one() -> None:
    _, rank = met()
    say(rank.out, "a", run=5)
    rank.out.take()
    assert not rank.accepts(Header(SESSION, ANOTHER, 0, 0, heard=1, acknowledged=5))
    assert not rank.greet(Header(SESSION, ANOTHER, 0, 0, heard=1, acknowledged=5))
    assert rank.acknowledged == 0
    assert kept(rank.out) == [b"a"]


# ── those who are replaced ──────────────────────────────────────────────────────────────────────────


def test_a_new_notebook_hears_what_is_not_acknowledged_from_its_beginning() -> None:
    notebook, rank = met()
    say(rank.out, "acknowledged", run=4)
    say(rank.out, "a", "b", run=5)
    say(rank.out, "an answer")
    assert report(rank, notebook) == [b"acknowledged", b"a", b"b", b"an answer"]
    rank.accepts(notebook.header(acknowledged=4))
    later = NotebookStream(LATER)
    assert rank.is_new(later.header())
    assert not rank.is_new(later.header())
    assert rank.session_id == LATER
    assert later.meet(rank.header())
    assert rank.greet(later.header())
    assert report(rank, later) == [b"a", b"b"]


def test_numbers_from_before_mean_nothing_to_a_new_notebook() -> None:
    notebook, rank = met()
    say(notebook.out, "one", "two")
    pass_on(notebook, rank)
    later = NotebookStream(LATER)
    say(later.out, "three")
    assert later.meet(rank.header())  # the rank has not heard it, and speaks of the one before
    (sent,) = later.out.take()
    assert later.header(sent) == Header(LATER, INCARNATION, 1, 0, heard=0)
    assert rank.is_new(later.header(sent))
    assert rank.accepts(later.header(sent))
    assert rank.header() == Header(LATER, INCARNATION, 0, 0, heard=1)


def test_an_earlier_notebook_is_heard_no_more() -> None:
    notebook, rank = met()
    say(notebook.out, "do")
    (sent,) = notebook.out.take()
    later = NotebookStream(LATER)
    assert rank.is_new(later.header())
    assert not rank.is_new(notebook.header(sent))
    assert not rank.accepts(notebook.header(sent))
    assert not rank.greet(notebook.header())
    assert (rank.session_id, rank.lacking) == (LATER, False)


def test_a_notebook_hears_nothing_that_was_said_to_an_earlier_one() -> None:
    _, rank = met()
    say(rank.out, "a", run=5)
    (sent,) = rank.out.take()
    old = rank.header(sent)
    later = NotebookStream(LATER)
    assert later.meet(rank.header())
    assert not later.accepts(old)
    assert not later.lacking


def test_a_process_hears_nothing_that_was_said_to_an_earlier_one() -> None:
    notebook, _ = met()
    say(notebook.out, "do")
    (sent,) = notebook.out.take()
    for session_id in (SESSION, 0):
        successor = RankStream(ANOTHER, Outgoing())
        successor.session_id = session_id
        assert not successor.is_new(notebook.header(sent))
        assert not successor.accepts(notebook.header(sent))
        assert not successor.greet(notebook.header())
        assert successor.session_id == session_id


def test_a_process_that_was_replaced_never_comes_back() -> None:
    notebook, rank = met()
    say(rank.out, "last words")
    (sent,) = rank.out.take()
    assert notebook.meet(Header(0, ANOTHER, 0, 0, 0))
    assert not notebook.meet(rank.header())
    assert not notebook.accepts(rank.header(sent))
    assert notebook.header().incarnation == ANOTHER
    assert notebook.meet(Header(0, ANOTHER, 0, 0, 0))  # as often as it likes


def test_with_a_process_goes_what_was_sent_to_it() -> None:
    notebook, rank = met()
    say(notebook.out, "do")
    pass_on(notebook, rank)
    say(rank.out, "a")
    report(rank, notebook)
    assert notebook.meet(Header(0, ANOTHER, 0, 0, 0))
    say(notebook.out, "this")
    (sent,) = notebook.out.take()
    assert notebook.header(sent) == Header(SESSION, ANOTHER, 1, 0, heard=0)


@pytest.mark.parametrize("known", [True, False])
def test_what_was_sent_to_a_process_that_has_ended_is_forgotten(*, known: bool) -> None:
    notebook = NotebookStream(SESSION)
    if known:
        assert notebook.meet(Header(0, INCARNATION, 0, 0, 0))
    say(notebook.out, "stop")
    notebook.end()
    assert not notebook.known
    say(notebook.out, "do")
    assert notebook.meet(Header(0, ANOTHER, 0, 0, 0))
    assert words(notebook.out.take()) == [b"do"]


@pytest.mark.parametrize("known", [True, False])
def test_only_a_process_that_was_known_is_known_to_have_ended(*, known: bool) -> None:
    notebook = NotebookStream(SESSION)
    if known:
        assert notebook.meet(Header(0, INCARNATION, 0, 0, 0))
    notebook.end()
    assert notebook.meet(Header(0, INCARNATION, 0, 0, 0)) is not known
    assert notebook.known is not known


def test_what_is_said_before_a_process_introduces_itself_waits_for_it() -> None:
    notebook, rank = NotebookStream(SESSION), RankStream(INCARNATION, Outgoing())
    say(notebook.out, "do", "that")
    assert notebook.header() == Header(SESSION, 0, 0, 2, 0)
    assert notebook.meet(rank.header())
    rank.is_new(notebook.header())
    assert pass_on(notebook, rank) == [b"do", b"that"]


def test_hello_says_again_only_what_was_not_heard() -> None:
    notebook, rank = met()
    say(notebook.out, "do", "that", "and this")
    first, *_ = notebook.out.take()
    assert rank.accepts(notebook.header(first))
    assert notebook.meet(rank.header())
    assert [(sent.number, sent.after) for sent in notebook.out.take()] == [(2, 1), (3, 2)]
    assert notebook.meet(Header(SESSION - 1, INCARNATION, 0, 0, heard=2))  # it is older than this notebook
    assert [sent.number for sent in notebook.out.take()] == [1, 2, 3]


# ── all of it, on a way that breaks ─────────────────────────────────────────────────────────────────

TestWays = Ways.TestCase
TestWays.settings = examples(400, stateful_step_count=50)


class BoundedProcess(Process):
    """It keeps two messages of output, or ten for a notebook that is there."""

    most, most_unheard = 8, 40


class NarrowWays(Ways):
    """The same, with ranks that drop output for lack of room."""

    process_type = BoundedProcess


TestNarrowWays = NarrowWays.TestCase
TestNarrowWays.settings = examples(400, stateful_step_count=50)
