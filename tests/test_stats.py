"""The chance of an error, compared with a count of all cases."""

from itertools import combinations
from math import comb

import numpy as np

from stallscope.stats import (
    LEAST,
    hypergeometric_tail,
    log_binomial_bound,
    rank_sum_tail,
)


def binomial_tail(hits, tries, share):
    ways = range(hits, tries + 1)
    return sum(comb(tries, n) * share**n * (1 - share) ** (tries - n) for n in ways)


class TestHypergeometricTail:
    def test_counts_all_ways(self):
        """The chance is the share of all draws that have at least so many marked."""
        for both in range(5):
            ways = sum(comb(6, n) * comb(14, 5 - n) for n in range(both, 6)) / comb(20, 5)
            tail = hypergeometric_tail(total=20, marked=6, drawn=5, both=both)
            assert abs(tail - ways) < 1e-12

    def test_is_one_when_everything_is_marked(self):
        """A mark at every step explains nothing."""
        assert abs(hypergeometric_tail(total=50, marked=50, drawn=7, both=7) - 1) < 1e-9
        assert 1.0 == hypergeometric_tail(total=0, marked=0, drawn=0, both=0)

    def test_is_never_zero(self):
        """Some doubt is left, however large the numbers."""
        assert LEAST == hypergeometric_tail(total=20_000, marked=5000, drawn=5000, both=5000)


class TestLogBinomialBound:
    def test_is_exact_when_all_tries_hit(self):
        """If every try is a hit, the chance is the product of the shares."""
        bound = log_binomial_bound(np.array([4.0]), np.array([4.0]), np.array([0.25]))
        assert abs(float(bound[0]) - 4 * np.log(0.25)) < 1e-9

    def test_is_never_below_the_true_chance(self):
        for tries in (1, 5, 20, 60):
            for hits in range(tries + 1):
                for share in (0.05, 0.3, 0.7):
                    arrays = (np.array([float(value)]) for value in (hits, tries, share))
                    bound = float(np.exp(log_binomial_bound(*arrays)[0]))
                    assert bound >= binomial_tail(hits, tries, share) - 1e-12

    def test_has_no_opinion_without_tries(self):
        zeros = np.zeros(2)
        assert [0.0, 0.0] == log_binomial_bound(zeros, zeros, np.array([0.2, 0.0])).tolist()


class TestRankSumTail:
    def test_comes_close_to_counting_all_orders(self):
        """The chance is close to the share of orders that are as extreme."""
        values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
        higher, lower = values[[4, 6, 8, 9]], values[[0, 1, 2, 3, 5, 7]]
        sums = [values[list(chosen)].sum() for chosen in combinations(range(10), 4)]
        exact = np.mean([total >= higher.sum() for total in sums])

        assert abs(rank_sum_tail(higher, lower) - exact) < 0.01

    def test_is_high_when_there_is_no_difference(self):
        assert rank_sum_tail(np.ones(5), np.ones(9)) == 1.0
        assert rank_sum_tail(np.ones(5), np.array([])) == 1.0
        assert rank_sum_tail(np.array([]), np.ones(5)) == 1.0
        assert rank_sum_tail(np.arange(9.0), np.arange(9.0)) > 0.4

    def test_is_low_when_all_are_higher(self):
        """Twenty values above fifty others are no accident."""
        assert rank_sum_tail(np.arange(50.0, 70.0), np.arange(50.0)) < 1e-9
