"""Pairs of samples: what is compared, when it ends, and what its clock counts.

Costs are planted: what is made says how long it took.
"""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from stallscope.bench.comparison import known_reach
from stallscope.bench.measurement import Measurement
from stallscope.bench.samples import Contest, OwnClock, PairedSamples

UNITS = list(range(64))


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(OwnClock, "took_s", lambda _, make: make())


def costs(usual: float, noise: float = 0.02, seed: int = 0):
    """What makes samples that take so long, seconds, give or take some."""
    drawn = np.random.default_rng(seed).normal(usual, noise * usual, 10_000)
    numbers = count()
    return lambda _: float(drawn[next(numbers)])


def compared(contest: Contest, **named) -> PairedSamples:
    pairs = PairedSamples(Measurement("orders", 20))
    pairs.run({1: contest}, **named)
    pairs.close()
    return pairs


@pytest.mark.parametrize(
    ("factor", "says"), [(1.38, "faster"), (1.0, "no significant difference"), (0.8, "slower")]
)
def test_says_what_was_planted(planted, factor, says):
    """As soon as it is clear, with the truth inside of the interval."""
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
    """A sample that takes longer than there is time for is not made."""
    made = []
    slow = Contest("", made.append, made.append, UNITS, expected_s=30.0)

    assert not compared(slow).pairs
    assert not made


def test_a_variant_that_raises_has_its_reason_and_the_users_own_error_passes():
    def broken(_):
        raise KeyError("no such image")

    pairs = compared(Contest("", abs, broken, UNITS))
    assert "raises KeyError: 'no such image'" == pairs.failed[1]
    with pytest.raises(KeyError):
        compared(Contest("", broken, abs, UNITS))


def test_what_both_take_beside_it_counts(planted):
    """A factor of two on half of the work is one of 1.33."""
    gain = compared(Contest("", costs(0.01), costs(0.005), UNITS, beside_s=0.01)).factor(1)

    assert gain.factor == pytest.approx(4 / 3, rel=0.02)


def test_draws_are_the_same_for_both(planted):
    """The random numbers of a pair begin at the same place, and another pair has others."""
    drawn: list[float] = []

    def draw(_):
        drawn.append(float(np.random.rand()))
        return 0.01

    compared(Contest("", draw, draw, [0]))
    pairs = list(zip(drawn[1::2], drawn[2::2], strict=False))  # the first call is not timed

    assert all(first == second for first, second in pairs)
    assert len(set(pairs)) == len(pairs)
