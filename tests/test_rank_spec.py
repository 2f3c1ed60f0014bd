from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.errors import SpecError
from nbcomm.rank_spec import fold, parse

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


def test_a_world_of_one_is_told_in_the_singular() -> None:
    with pytest.raises(SpecError, match=r"the only valid rank is 0\.$"):
        parse("1", 1)


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
