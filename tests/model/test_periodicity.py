"""Rhythms that are there are found, and those that are not there are not."""

from __future__ import annotations

import numpy as np
import pytest

from stallscope.model.patterns import rhythm


def every(period, size, first=1):
    """Flags at every so manyth step."""
    flags = np.zeros(size, dtype=bool)
    flags[first::period] = True
    return flags


def at(places, size):
    flags = np.zeros(size, dtype=bool)
    flags[[place for place in places if place < size]] = True
    return flags


def switching(generator, size):
    """On and off for random times: the stalls of a disk that is busy now and then."""
    lengths = generator.geometric(0.2, size) * (1 + 3 * (np.arange(size) % 2))
    return np.repeat(np.arange(size) % 2 == 0, lengths)[:size]


def crowded(generator, size):
    """Bunches of events."""
    centres = np.flatnonzero(generator.random(size) < 0.02)
    bunches = [centre + generator.integers(0, 30, generator.poisson(5)) for centre in centres]
    return at(np.concatenate([[0], *bunches]), size)


NOISE = {
    "independent": lambda generator, size: (
        generator.random(size) < generator.choice([0.02, 0.1, 0.3, 0.6])
    ),
    "switching": switching,
    "crowded": crowded,
    "heavy-tailed distances": lambda generator, size: at(
        np.cumsum(np.ceil(generator.pareto(1.2, size) + 0.01)).astype(int), size
    ),
    "waves": lambda generator, size: (
        np.convolve(generator.standard_normal(size + 19), np.ones(20), "valid") > 3
    ),
    "loose distances": lambda generator, size: at(np.cumsum(generator.integers(5, 16, size)), size),
}


def test_finds_a_period_among_other_events():
    """Some events too few and some too many do not hide it."""
    generator = np.random.default_rng(0)
    flags = every(8, 400) & (generator.random(400) < 0.8) | (generator.random(400) < 0.03)

    chance, starts = rhythm(flags, np.ones(400, dtype=bool), 8)

    assert chance < 1e-4
    assert np.flatnonzero(starts & ~every(8, 400)).size <= 2


def test_two_events_are_no_rhythm():
    """Nor are none, nor is a loop of no steps."""
    for flags in (every(10, 20), every(9, 0), np.zeros(50, dtype=bool), every(1, 90)):
        assert rhythm(flags, np.ones(flags.size, dtype=bool), 4)[0] == 1.0


@pytest.mark.parametrize("noise", NOISE)
def test_false_alarms_are_rarer_than_stated(noise):
    """What has no period is given a chance below a limit no more often than the limit says."""
    generator = np.random.default_rng(0)
    flags = (NOISE[noise](generator, size) for size in [30, 60, 300] * 200)
    chances = np.array([rhythm(each, np.ones(each.size, dtype=bool), 4)[0] for each in flags])

    for limit in (0.01, 0.05, 0.2):
        assert np.mean(chances < limit) <= limit
