"""The line through measured times."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.analysis.fit import fit

SIZES = [1 << power for power in range(10, 25, 2)]


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-8))
def test_times_on_a_line_have_that_line(alpha: float, beta: float) -> None:
    cost = fit([(size, alpha + beta * size) for size in SIZES])
    assert cost.alpha == pytest.approx(alpha, rel=1e-4)
    assert cost.beta == pytest.approx(beta, rel=1e-4)
    assert cost.seconds(1000) == pytest.approx(alpha + 1000 * beta, rel=1e-4)
    assert cost.knee == pytest.approx(alpha / beta, rel=1e-3)


def test_the_true_costs_lie_in_their_intervals_about_as_often_as_said() -> None:
    noise = random.Random(7)  # noqa: S311 - noise
    inside = 0
    for _ in range(200):
        cost = fit([(size, (1e-4 + 1e-9 * size) * noise.gauss(1, 0.05)) for size in SIZES])
        inside += abs(cost.alpha - 1e-4) <= cost.alpha_error
    assert 170 <= inside <= 200


@pytest.mark.parametrize(
    ("times", "alpha", "beta"),
    [
        ([(1000, 1e-4), (10**6, 1e-4), (10**7, 0.9e-4)], 1e-4, 0.0),  # the larger ones were faster
        ([(1000, 1e-6), (10**6, 1.1e-3), (10**7, 1.1e-2)], 0.0, 1.1e-9),
    ],
)
def test_neither_cost_is_less_than_nothing(times: list[tuple[int, float]], alpha: float, beta: float) -> None:
    cost = fit(times)
    assert cost.alpha == pytest.approx(alpha, rel=0.1)
    assert cost.beta == pytest.approx(beta, rel=0.1)


def test_bytes_that_cost_nothing_have_no_knee() -> None:
    assert fit([(1000, 1e-4), (10**6, 1e-4), (10**7, 0.9e-4)]).knee == math.inf


def test_two_sizes_have_a_line_but_no_interval() -> None:
    cost = fit([(0, 1.0), (10, 2.0)])
    assert (cost.alpha, round(cost.beta, 9), cost.alpha_error) == (1.0, 0.1, math.inf)


def test_one_size_has_no_line() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        fit([(10, 1.0), (10, 1.1)])
