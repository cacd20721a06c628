"""Pairs of samples: comparison, stopping rule and clock.

Costs are planted: each sample is its own duration in seconds.
"""

import math
from itertools import count

import numpy as np
import pytest

from stallscope.bench import samples
from stallscope.bench.comparison import known_reach
from stallscope.bench.measurement import Measurement
from stallscope.bench.samples import Contest, PairedSamples

UNITS = list(range(64))


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(samples, "own_s", lambda make: make())


def costs(usual: float, noise: float = 0.02, seed: int = 0):
    """Return a maker of samples that take about `usual` seconds."""
    drawn = np.random.default_rng(seed).normal(usual, noise * usual, 10_000)
    numbers = count()
    return lambda _: float(drawn[next(numbers)])


def compared(contest: Contest, **named) -> PairedSamples:
    pairs = PairedSamples(Measurement("orders", 20))
    pairs.run({1: contest}, **named)
    return pairs


@pytest.mark.parametrize(
    ("factor", "says"), [(1.38, "faster"), (1.0, "no significant difference"), (0.8, "slower")]
)
def test_the_planted_factor_is_found(planted, factor, says):
    """The comparison ends as soon as it is clear; its interval holds the true factor."""
    pairs = compared(Contest("", costs(0.01), costs(0.01 / factor, seed=1), UNITS))
    gain = pairs.factor(1)

    assert says == gain.says
    assert gain.low < factor < gain.high
    assert len(pairs.pairs) < 50


def test_goes_on_until_a_gain_is_narrow(planted):
    contest = Contest("", costs(0.01, 0.3), costs(0.005, 0.3, 1), UNITS)
    first = compared(contest)
    second = compared(contest, narrow=0.03)

    assert "faster" == first.factor(1).says
    gain = second.factor(1)
    assert gain.half_width <= math.hypot(0.03, known_reach(gain.factor)) < 0.07
    assert len(second.pairs) > 2 * len(first.pairs)


def test_no_pair_begins_that_would_end_too_late(planted):
    """A sample that takes longer than the time left is not made."""
    calls = []
    slow = Contest("", calls.append, calls.append, UNITS, expected_s=30.0)

    assert not compared(slow).pairs
    assert not calls


def test_a_variant_that_raises_has_its_reason_and_the_users_own_error_passes():
    def broken(_):
        raise KeyError("no such image")

    pairs = compared(Contest("", abs, broken, UNITS))
    assert "raises KeyError: 'no such image'" == pairs.failed[1]
    with pytest.raises(KeyError):
        compared(Contest("", broken, abs, UNITS))


def test_time_beside_the_compared_part_counts(planted):
    """Half of the work at twice the speed is a factor of 1.33."""
    gain = compared(Contest("", costs(0.01), costs(0.005), UNITS, beside_s=0.01)).factor(1)

    assert gain.factor == pytest.approx(4 / 3, rel=0.02)


def test_draws_are_the_same_for_both(planted):
    """Both samples of a pair draw the same random numbers; other pairs draw others."""
    drawn: list[float] = []

    def draw(_):
        drawn.append(float(np.random.rand()))
        return 0.01

    compared(Contest("", draw, draw, [0]))
    pairs = list(zip(drawn[1::2], drawn[2::2], strict=False))  # the first call is not timed

    assert all(first == second for first, second in pairs)
    assert len(set(pairs)) == len(pairs)
