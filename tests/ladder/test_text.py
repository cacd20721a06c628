"""What the laps of a ladder say, from planted laps."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from support.build_ladder import a_ladder

from stallscope.ladder.result import (
    AS_IT_IS,
    BATCHES,
    FETCHED,
    PINNED,
    TRANSFORMED,
    WARM,
    compare,
    is_clear,
    lap_rates,
    sentence,
)
from stallscope.units import times

FULL = {AS_IT_IS: 0.4, WARM: 0.4, FETCHED: 0.2, TRANSFORMED: 0.15, BATCHES: 0.1}


class TestTable:
    def test_rates_are_samples_over_seconds(self):
        """Eight samples each 0.4 s."""
        table = a_ladder(FULL).table()

        assert pytest.approx([20, 20, 40, 8 / 0.15, 80]) == table["samples_per_s"][:5].to_list()
        assert table["samples_per_s"][5:].is_null().all()

    def test_the_share_of_the_step_is_of_the_wall(self):
        """A step of 0.1 s."""
        assert [0.25, 0.25, 0.5, pytest.approx(2 / 3), 1] == (
            a_ladder(FULL).table()["step_share"][:5].to_list()
        )

    def test_without_noise_an_interval_is_a_point(self):
        """Every lap says the same."""
        table = a_ladder(FULL).table()[:5]

        assert table["samples_per_s"].to_list() == pytest.approx(table["samples_per_s_low"])
        assert table["samples_per_s"].to_list() == pytest.approx(table["samples_per_s_high"])

    def test_one_block_has_no_interval(self):
        """Nothing can be said about its spread."""
        table = a_ladder({AS_IT_IS: 0.4}, laps=1, steps=1).table()

        assert table["samples_per_s_low"][0] is None

    @pytest.mark.thorough
    def test_an_interval_holds_the_truth_as_often_as_it_says(self):
        """Laps differ by 5%, steps by 30%: of 200 ladders about 95% hold it."""
        inside = 0
        for seed in range(200):
            row = a_ladder({AS_IT_IS: 0.4}, laps=6, lap_noise=0.05, noise=0.3, seed=seed).table()
            low, high = row.select("samples_per_s_low", "samples_per_s_high").row(0)
            inside += low <= 20 <= high
        assert 180 <= inside


class TestGains:
    def test_are_ratios_of_neighbours(self):
        """Twice, and 4/3 and 1.5 times as fast."""
        gains = a_ladder(FULL).gains()

        assert [1, 2, pytest.approx(4 / 3), 1.5] == gains["factor"].to_list()
        assert [False, True, True, True] == gains["distinguishable"].to_list()

    def test_skip_what_was_not_measured(self):
        """The next one is compared with the one before."""
        gains = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1}).gains()

        assert [("batches in memory", 4.0)] == gains.select("rung", "factor").rows()

    @pytest.mark.slow
    def test_of_nothing_but_noise_are_not_distinguishable(self):
        """Of 100 pairs of equal rungs, few are told apart."""
        told = 0
        for seed in range(100):
            equal = {AS_IT_IS: 0.4, WARM: 0.4}
            ladder = a_ladder(equal, laps=4, lap_noise=0.05, noise=0.2, seed=seed)
            told += ladder.gains()["distinguishable"][0]
        assert told <= 8

    def test_cores_that_others_had_may_be_all_of_a_gain(self):
        """A fifth faster beside processes that had a quarter of the cores may be nothing."""
        rungs = {AS_IT_IS: 0.12, BATCHES: 0.1}
        alone = a_ladder(rungs).headroom().row(0, named=True)
        beside = a_ladder(rungs, others={AS_IT_IS: 0.25}).headroom().row(0, named=True)

        assert alone["factor"] == beside["factor"] == pytest.approx(1.2)
        assert alone["distinguishable"]
        assert not beside["distinguishable"]

    def test_of_single_laps_are_told_where_they_are_far_apart(self):
        """Ten times as fast is no accident of the machine; a third may be one."""
        far = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.04}, laps=1, noise=0.05)
        near = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.3}, laps=1, noise=0.05)

        assert far.headroom()["distinguishable"].item()
        assert not near.headroom()["distinguishable"].item()
        assert "the loader costs you" in sentence(far)
        assert sentence(near).startswith("Too little was measured to tell")

    def test_of_any_two_rungs(self):
        """As the panel asks."""
        ladder = a_ladder(FULL)

        assert 4.0 == compare(ladder, AS_IT_IS.name, BATCHES.name)["factor"]
        assert compare(ladder, AS_IT_IS.name, "batches on the device") is None


def test_an_answer_is_clear_when_its_intervals_are_narrow():
    """Noise makes it unclear."""
    assert is_clear(a_ladder(FULL))
    assert not is_clear(a_ladder(FULL, lap_noise=0.5))


def test_each_lap_has_a_rate():
    """For the dots of the picture."""
    rates = lap_rates(a_ladder(FULL, laps=3))

    assert 15 == rates.height
    assert [20.0] * 3 == rates.filter(pl.col("rung") == AS_IT_IS.name)["samples_per_s"].to_list()


def test_a_gain_is_of_all_that_lies_between_two_rungs():
    """Rungs that could not be measured leave their costs to the next one that was."""
    whole = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1})

    assert ["cold storage, fetch and decode, transforms, collate and sending"] == (
        whole.gains()["removes"].to_list()
    )
    assert whole.gains()["removes"].to_list() == whole.headroom()["removes"].to_list()


class TestSentence:
    @pytest.mark.parametrize(
        ("told", "seconds", "circumstances"),
        [
            (
                (
                    "With everything cached the simulated device is 100% busy, as it is 25%: the "
                    "loader costs you 4.0×; the largest part is fetch and decode (2.0×)"
                ),
                FULL,
                {"simulated_step_s": 0.1},
            ),
            (
                (
                    "With everything cached the loop is 4.0× as fast: the loader costs you 4.0×; "
                    "the largest part is fetch and decode (2.0×)"
                ),
                FULL,
                {},
            ),
            (
                (
                    "Even with everything cached the simulated device is 50% busy: look in the step; "  # noqa: E501
                    "the loader costs you 2.0×"
                ),
                {AS_IT_IS: 0.4, BATCHES: 0.2},
                {"simulated_step_s": 0.1},
            ),
            (
                "Even with everything cached the simulated device is 50% busy: look in the step",
                {AS_IT_IS: 0.2, BATCHES: 0.2},
                {"simulated_step_s": 0.1},
            ),
            (
                ("The loader costs nothing measurable: the simulated device is 100% busy as it is"),
                {AS_IT_IS: 0.1, BATCHES: 0.1},
                {"simulated_step_s": 0.1},
            ),
            (
                "The loader costs nothing measurable: the step takes 100% of the loop",
                {AS_IT_IS: 0.1, BATCHES: 0.1},
                {},
            ),
            (
                "The loader alone gives 20 samples/s, 2.0× as many with fetched samples in memory",
                {AS_IT_IS: 0.4, FETCHED: 0.2},
                {"has_step": False},
            ),
            (
                "The loop makes 20 samples/s, 2.0× as many with fetched samples in memory",
                {AS_IT_IS: 0.4, FETCHED: 0.2},
                {},
            ),
            (
                "Only the loader as it is was measured: 20 samples/s",
                {AS_IT_IS: 0.4},
                {},
            ),
            ("The loader as it is was not measured: the disk is gone", {}, {}),
        ],
    )
    def test_says_what_the_loader_costs(self, told, seconds, circumstances):
        """Each kind of answer."""
        ladder = a_ladder(seconds, why_not={AS_IT_IS: "the disk is gone"}, **circumstances)

        assert told == sentence(ladder)

    def test_a_device_says_how_busy_it_was(self):
        """What was read from it, not the share of the step."""
        ladder = a_ladder(FULL, busy={AS_IT_IS: 0.11, BATCHES: 0.93})

        assert "the device is 93% busy, as it is 11%" in sentence(ladder)

    def test_names_no_part_that_is_smaller_than_one_that_may_be_noise(self):
        """A sure gain of a tenth is no answer beside one of four times that is not sure."""
        blurred = a_ladder(
            {AS_IT_IS: 0.4, BATCHES: 0.11, PINNED: 0.1},
            laps=2,
            others={AS_IT_IS: 0.9, BATCHES: 0.0, PINNED: 0.0},
        )
        known = {row["rung"]: row["distinguishable"] for row in blurred.gains().to_dicts()}

        assert {BATCHES.name: False, PINNED.name: True} == known
        assert "the largest part is" not in sentence(blurred)

    def test_says_when_too_little_was_measured(self):
        """One step each tells nothing."""
        ladder = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1}, laps=1, steps=1)

        assert sentence(ladder).startswith("Too little was measured")


@pytest.mark.parametrize(("factor", "told"), [(1.04, "1.0×"), (2.55, "2.5×"), (12.6, "13×")])
def test_a_factor_has_two_digits(factor, told):
    """As a person reads it."""
    assert told == times(factor)


def test_planted_noise_is_noise():
    """The helper plants what it says."""
    laps = a_ladder({AS_IT_IS: 0.4}, laps=50, noise=0.3).laps

    assert 0.25 <= np.std(laps["seconds"].to_numpy()) / 0.4 <= 0.35
