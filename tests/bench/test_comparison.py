"""Comparisons of planted pairs: factor, interval and verdict."""

import math

import numpy as np
import pytest

from stallscope.bench import comparison
from stallscope.bench.comparison import (
    FASTER,
    OPEN,
    SAME,
    SLOWER,
    Factor,
    budget_for,
    of_samples,
    of_starts,
    open_title,
    rate_of,
)


def starts(factor, *, count=3, noise=0.05, start_noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [
        math.log(factor) + start_noise * rng.standard_normal() + noise * rng.standard_normal(6)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("factor", "noise", "says"),
    [(1.4, 0.05, FASTER), (0.7, 0.05, SLOWER), (1.0, 0.01, SAME), (1.2, 0.6, OPEN)],
)
def test_each_verdict_is_reached(factor, noise, says):
    gain = of_starts(starts(factor, noise=noise))

    assert says == gain.says
    assert gain.low <= factor <= gain.high


def test_one_start_claims_no_small_gain():
    """Two starts of the same loader may differ by as much."""
    assert OPEN == of_starts(starts(1.05, count=1, noise=0.001)).says
    assert FASTER == of_starts(starts(1.2, count=1, noise=0.001)).says


def test_no_pair_and_a_single_pair_claim_nothing():
    assert (1.0, None, None, OPEN) == of_starts([])
    assert (None, None, OPEN) == of_starts([[math.log(2)]])[1:]
    assert OPEN == of_samples([], []).says
    assert (2.0, None, None, OPEN) == pytest.approx(of_samples([2.0], [1.0]))


@pytest.mark.parametrize("start_noise", [0.0, comparison.START_SPREAD, 0.06])
@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_intervals_hold_the_true_factor(start_noise, noise):
    """Intervals also hold if starts vary more than assumed, and few claims are wrong."""
    gain = [
        of_starts(starts(1.0, noise=noise, start_noise=start_noise, seed=seed))
        for seed in range(300)
    ]
    inside = sum(each.low <= 1 <= each.high for each in gain)
    wrong = sum(each.says in (FASTER, SLOWER) for each in gain)

    assert inside >= (0.93 if start_noise <= comparison.START_SPREAD else 0.8) * 300
    assert wrong <= (0.02 if start_noise <= comparison.START_SPREAD else 0.1) * 300


def test_samples_are_compared_in_pairs():
    """An expensive sample is expensive in both variants, so it moves no factor."""
    rng = np.random.default_rng(3)
    costs = rng.lognormal(0, 1, 60)
    gain = of_samples(1.3 * costs, costs * rng.normal(1, 0.02, 60))

    assert FASTER == gain.says
    assert 1.25 < gain.low < 1.3 < gain.high < 1.36
    assert SAME == of_samples(costs, costs * rng.normal(1, 0.02, 60)).says


def test_the_suggested_budget_is_longer_and_grows_with_noise():
    near, far = (of_starts(starts(1.1, noise=noise)) for noise in (0.2, 0.6))

    assert 10 < budget_for(near, 10) <= budget_for(far, 10) <= 200


def test_a_rate_is_total_samples_over_total_seconds():
    gain = rate_of([[(10, 1.0), (10, 3.0)], [(10, 1.0)]])

    assert 6.0 == gain.value
    assert gain.low < 6 < gain.high
    assert rate_of([]) is None


def test_the_title_of_an_open_comparison_states_the_possible_gain():
    """An interval that ends near 1 is an answer; a wide one asks for time."""
    little = Factor(1.01, 0.95, 1.07, OPEN)
    wide = Factor(1.3, 0.8, 2.1, OPEN)

    assert "No order gains more than 1.07× (best: b, 1.0" in open_title(
        "order", "b", little, [1.02, 1.07], 9
    )
    slower = open_title("order", "b", Factor(0.94, None, None, OPEN), [None], 9)
    assert slower.startswith("No order was faster (best: b, 0.9")
    assert "Not settled: b gives 1.30× (95% CI" in open_title("order", "b", wide, [1.07, None], 9)
