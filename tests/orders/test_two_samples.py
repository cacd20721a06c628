"""The test that tells two random pipelines apart by simple statistics."""

from __future__ import annotations

import numpy as np
import pytest

from stallscope.orders import equivalence


def drawn(shift: float = 0.0, seed: int = 0, samples: int = 16, draws: int = 4) -> np.ndarray:
    """Statistics of noise images, whose mean is shifted."""
    rng = np.random.default_rng(seed)
    values = rng.normal(shift, 1, (samples, draws, 1, 12, 12))
    return np.stack([[equivalence.statistics(one) for one in sample] for sample in values])


@pytest.mark.slow
def test_equal_distributions_are_rarely_told_apart():
    """Over 60 pairs of samples from one distribution, no more than two are told apart."""
    pairs = [(drawn(seed=2 * n), drawn(seed=2 * n + 1)) for n in range(60)]

    assert sum(equivalence.compare_draws(*pair).distinguished for pair in pairs) <= 2


def test_a_shift_is_seen():
    """A shift that is four times the smallest one is seen, and by its mean."""
    verdict = equivalence.compare_draws(drawn(), drawn(shift=0.4, seed=1))

    assert verdict.distinguished
    assert "mean" == verdict.statistic


def test_says_how_small_a_shift_it_would_have_seen():
    """With a standard error of 1/24 in each mean of 4 draws, it is a few tenths of the spread."""
    verdict = equivalence.compare_draws(drawn(), drawn(seed=1))

    assert 0.05 < verdict.smallest_share < 0.5
    assert 16 == verdict.pairs


def test_the_smallest_shift_is_mostly_seen():
    """A shift of the size that is said to be seen four times of five is seen in most of 20."""
    smallest = equivalence.compare_draws(drawn(), drawn(seed=1)).smallest_share
    seen = [
        equivalence.compare_draws(drawn(seed=2 * n), drawn(smallest, 2 * n + 1)).distinguished
        for n in range(20)
    ]

    assert sum(seen) >= 10


def test_sharpness_is_seen():
    """Smoothing leaves the mean and is told by the differences between neighbours."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (16, 4, 1, 12, 12))
    smooth = (noise + np.roll(noise, 1, axis=-1)) / np.sqrt(2)
    original, other = (
        np.stack([[equivalence.statistics(one) for one in sample] for sample in values])
        for values in (rng.permuted(noise, axis=0), smooth)
    )

    assert equivalence.compare_draws(original, other).distinguished


@pytest.mark.parametrize("shape", [(3, 8, 9), (8, 9, 3), (8, 9), (7,), (2, 3, 4, 5), (1, 1)])
def test_any_array_has_statistics(shape):
    """Images with channels first or last, planes, and anything else."""
    found = equivalence.statistics(np.ones(shape))

    assert len(equivalence.STATISTICS) == found.size
    assert np.isfinite(found).all()


def test_no_difference_at_all():
    """Pipelines that give the same statistics are not distinguished."""
    assert not equivalence.compare_draws(drawn(), drawn()).distinguished
