"""What a timeline adds up to, and its bars with fewer stretches."""

from __future__ import annotations

import pytest

from nbcomm.analysis.story import Span, Timeline, abridged

A = ("all_reduce #1", "line 1: all_reduce(x)", 8)
B = ("barrier #2", "line 2: barrier()", 0)


def bar(*stretches: tuple[object, ...], start: float = 0.0) -> list[Span]:
    """Stretches one after the other, each by its kind, its length, and its call where it has one."""
    made = []
    for kind, length, *call in stretches:
        made.append(Span(kind, start, start + length, *call))
        start += length
    return made


def test_the_waiting_is_a_part_of_all_ranks_time() -> None:
    spans = {
        0: tuple(bar(("compute", 1.0), ("waiting", 2.0, *A), ("transfer", 1.0, *A))),
        1: tuple(bar(("compute", 3.0), ("transfer", 0.5, *A), ("something else", 0.5))),
    }
    made = Timeline(1, 4.0, False, spans)
    assert made.totals == {0: [1.0, 2.0, 1.0], 1: [3.5, 0.0, 0.5]}
    assert made.waiting == 0.25


def test_so_it_is_of_a_short_cell() -> None:
    assert Timeline(1, 0.5, False, {0: tuple(bar(("waiting", 0.125, *A), ("compute", 0.375)))}).waiting == 0.25


@pytest.mark.parametrize("spans", [{}, {0: ()}, {0: (Span("waiting", 1.0, 1.0),)}])
def test_where_no_time_went_none_was_waiting(spans: dict[int, tuple[Span, ...]]) -> None:
    assert Timeline(1, 0.0, False, spans).waiting == 0.0


def test_a_bar_of_few_stretches_stays() -> None:
    spans = bar(("compute", 1.0), ("waiting", 1.0, *A))
    assert abridged(spans, 2) is spans
    assert abridged(spans, 3) is spans


@pytest.mark.parametrize(
    ("spans", "most", "expected"),
    [
        (
            bar(
                ("compute", 1.5),
                ("waiting", 2.0, *A),
                ("transfer", 0.5, *A),
                ("compute", 1.5),
                ("waiting", 2.5, *B),
                start=10.0,
            ),
            4,
            bar(("compute", 2.0), ("waiting", 2.0, *A), ("compute", 2.0), ("waiting", 2.0, *B), start=10.0),
        ),
        (
            bar(("compute", 1.0), ("transfer", 1.25, *A), ("compute", 0.25), ("waiting", 1.5, *B)),
            2,
            bar(("compute", 2.0), ("waiting", 2.0, *B)),
        ),
        (bar(("waiting", 4.0, *A), ("compute", 0.25), ("transfer", 0.25, *B)), 2, bar(("waiting", 4.5, *A))),
        (bar(("waiting", 2.5, *A), ("compute", 0.25), ("waiting", 2.25, *B)), 2, bar(("waiting", 5.0))),
        (bar(("waiting", 1.0, *A), ("compute", 0.25), ("waiting", 1.0, *B)), 1, bar(("waiting", 2.25))),
        (
            bar(("waiting", 2.5, *A), ("compute", 1.25), ("transfer", 0.25, *B)),
            2,
            bar(("waiting", 2.0, *A), ("compute", 2.0)),
        ),
        (bar(("waiting", 0.5, *A), ("compute", 0.75), ("waiting", 0.5, *A)), 1, bar(("waiting", 1.75, *A))),
        (bar(("something else", 1.0), ("waiting", 0.5, *A)), 1, bar(("compute", 1.5))),
        (bar(("transfer", 3.0, *A), ("compute", 1.0), ("waiting", 2.0, *B)), 1, bar(("transfer", 6.0, *A))),
    ],
    ids=[
        "each its own",
        "most of a step",
        "one call",
        "two calls",
        "two calls in a step",
        "a rest",
        "two parts",
        "unknown",
        "one step",
    ],
)
def test_each_step_of_a_long_bar_is_what_it_was_mostly_filled_with(
    spans: list[Span], most: int, expected: list[Span]
) -> None:
    assert abridged(spans, most) == expected


def test_a_bar_without_length_is_one_stretch() -> None:
    assert [span.kind for span in abridged(bar(("compute", 0.0), ("waiting", 0.0, *A)), 1)] == ["compute"]
