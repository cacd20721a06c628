"""Whether size explains time."""

from __future__ import annotations

import numpy as np
import pytest

from stallscope.charts.size import explain, spearman


class TestSpearman:
    def test_is_one_for_any_rising_curve(self):
        """Only the order counts."""
        x = np.arange(1.0, 9.0)

        assert 1.0 == pytest.approx(spearman(x, np.exp(x)))

    def test_shares_ranks_among_ties(self):
        """A worked example: ranks (1.5, 1.5, 3) against (1, 2, 3)."""
        assert 0.75**0.5 == pytest.approx(spearman(np.array([1, 1, 2]), np.array([1, 2, 3])))

    def test_says_nothing_for_a_constant(self):
        """Without differences there is no correlation."""
        assert spearman(np.ones(5), np.arange(5)) is None


class TestExplain:
    @pytest.mark.parametrize(
        ("times", "words"),
        [
            (np.arange(100.0), "the file size explains much of the time"),
            (-np.arange(100.0), "samples with a larger file size take less time"),
            (np.tile([1.0, 2.0], 50), "the time is not explained by the file size"),
        ],
    )
    def test_says_what_the_correlation_allows(self, times, words):
        """Strong, wrong way round, or nothing; always with the number of samples."""
        said = explain(np.arange(100.0), times, "file size")

        assert said.sentence.startswith(words)
        assert said.sentence.endswith("n = 100)")

    def test_does_not_judge_few_samples(self):
        """Ten points allow no sentence."""
        assert explain(np.arange(10.0), np.arange(10.0), "file size").rho is None

    def test_does_not_judge_few_sizes(self):
        """Two different sizes allow none either."""
        assert explain(np.tile([1.0, 2.0], 50), np.arange(100.0), "file size").rho is None

    def test_says_that_all_are_of_one_size(self):
        """One size explains no difference."""
        assert "same file size" in explain(np.ones(50), np.arange(50.0), "file size").sentence
