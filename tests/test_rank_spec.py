from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.errors import SpecError
from nbcomm.rank_spec import by_rank, capital, checked, fold, named, parse, together

WORLD = 64


@pytest.mark.parametrize(
    ("spec", "ranks"),
    [
        ("0", [0]),
        ("0,2", [0, 2]),
        ("0-3", [0, 1, 2, 3]),
        ("0:8:2", [0, 2, 4, 6]),
        (":", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("6:", [6, 7]),
        (":2", [0, 1]),
        ("::4", [0, 4]),
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("!1", [0, 2, 3, 4, 5, 6, 7]),
        ("!0-5,!7", [6]),
        ("!2,0-3", [0, 1, 3]),
        (" 3 , 1 ", [1, 3]),
        ("! 0-6", [7]),
        ("5,5,4-6", [4, 5, 6]),
        ("3-3", [3]),
    ],
)
def test_what_people_write(spec: str, ranks: list[int]) -> None:
    assert parse(spec, 8) == ranks


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "The ranks '' contain an empty part; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("0,,1", "The ranks '0,,1' contain an empty part; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("x", "The ranks 'x' are invalid at 'x'; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("0-", "The ranks '0-' are invalid at '0-'; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("!", "The ranks '!' are invalid at ''; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("!!1", "The ranks '!!1' are invalid at '!1'; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("-1", "The ranks '-1' are invalid at '-1'; write 0, 0,2, 0-3, 0:8:2, !1 or all."),
        ("3-1", "The ranks '3-1' count down from 3 to 1; write 1-3."),
        ("0:4:0", "The ranks '0:4:0' have a step of 0; a step is at least 1."),
        ("4", "Rank 4 (in '4') does not exist; valid ranks are 0-3."),
        ("0:9", "Rank 8 (in '0:9') does not exist; valid ranks are 0-3."),
        ("!9", "Rank 9 (in '!9') does not exist; valid ranks are 0-3."),
        ("2-7", "Rank 7 (in '2-7') does not exist; valid ranks are 0-3."),
        ("!all", "The ranks '!all' select no rank; valid ranks are 0-3."),
        ("2:2", "The ranks '2:2' select no rank; valid ranks are 0-3."),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(spec, 4)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(("size", "valid"), [(1, "the only valid rank is 0."), (2, "valid ranks are 0-1.")])
def test_a_world_of_one_is_told_in_the_singular(size: int, valid: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse("7", size)
    assert str(refused.value) == f"Rank 7 (in '7') does not exist; {valid}"


@pytest.mark.parametrize("spec", ["world_size", "0 or 1", "[0]", "len('ab')", "__import__('os')", "0x1", "1_0", "1e0"])
def test_a_spec_is_never_evaluated_as_python(spec: str) -> None:
    with pytest.raises(SpecError, match="are invalid at"):
        parse(spec, 16)


def test_a_huge_range_is_refused_without_being_counted_out() -> None:
    with pytest.raises(SpecError, match=r"Rank 99999999999999999[0-9]* \(in"):
        parse("0-99999999999999999", 4)


def test_a_number_of_absurd_length_is_refused_as_any_other_nonsense() -> None:
    with pytest.raises(SpecError, match="are invalid at"):
        parse("1" * 5000, 4)


ranks = st.integers(0, WORLD - 1)


@given(st.sets(ranks, min_size=1))
def test_what_fold_writes_parse_reads_back(chosen: set[int]) -> None:
    assert parse(fold(chosen), WORLD) == sorted(chosen)


@given(st.sets(ranks, max_size=WORLD - 1))
def test_ranks_taken_away_leave_the_rest(removed: set[int]) -> None:
    spec = ",".join(f"!{rank}" for rank in removed) or "all"
    assert parse(spec, WORLD) == sorted(set(range(WORLD)) - removed)


@given(ranks, ranks, st.integers(1, 9))
def test_slices_mean_what_python_means_by_them(start: int, stop: int, step: int) -> None:
    wanted = list(range(WORLD))[start:stop:step]
    spec = f"{start}:{stop}:{step}"
    if wanted:
        assert parse(spec, WORLD) == wanted
    else:
        with pytest.raises(SpecError, match="select no rank"):
            parse(spec, WORLD)


@given(st.text(alphabet="0123456789-:,! al", max_size=12), st.integers(1, WORLD))
def test_any_text_gives_ranks_of_the_world_or_a_spec_error(spec: str, world_size: int) -> None:
    try:
        chosen = parse(spec, world_size)
    except SpecError:
        return
    assert chosen == sorted(set(chosen) & set(range(world_size)))
    assert chosen


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([5], "5"), ([0, 1], "0-1"), ([3, 1, 2, 1], "1-3"), ([0, 2, 4], "0,2,4"), ([7, 0, 1, 5, 6], "0-1,5-7")],
)
def test_fold_writes_shortly(ranks: list[int], text: str) -> None:
    assert fold(ranks) == text


def test_ranks_with_one_text_are_told_together() -> None:
    assert together([4, 2, 0], ["a dict", "an int", "a dict"]) == {"a dict": [4, 0], "an int": [2]}
    assert by_rank([0, 1, 2], ["a dict", "an int", "a dict"]) == "ranks 0,2 a dict; rank 1 an int"
    with pytest.raises(ValueError, match="shorter"):
        together([0, 1], ["a dict"])


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([3, 3], "rank 3"), ([0, 1], "ranks 0-1"), ([0, 1, 2, 5], "ranks 0-2,5")]
)
def test_ranks_are_named_in_a_sentence(ranks: list[int], text: str) -> None:
    assert named(ranks) == text
    assert capital(named(ranks)) == f"R{text[1:]}"


def test_a_list_of_ranks_is_sorted_and_each_is_there_once() -> None:
    assert checked([3, 0, 3], 4) == [0, 3]
    assert checked([0], 1) == [0]


@pytest.mark.parametrize(
    ("ranks", "size", "sentence"),
    [
        ([], 4, "The list of ranks is empty; valid ranks are 0-3."),
        ([4], 4, "Rank 4 does not exist; valid ranks are 0-3."),
        ([0, -1], 4, "Rank -1 does not exist; valid ranks are 0-3."),
        ([7, 2, 4, 5], 4, "Ranks 4-5,7 do not exist; valid ranks are 0-3."),
        ([1], 1, "Rank 1 does not exist; the only valid rank is 0."),
    ],
)
def test_a_list_with_other_ranks_is_refused_in_a_sentence(ranks: list[int], size: int, sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        checked(ranks, size)
    assert str(refused.value) == sentence
