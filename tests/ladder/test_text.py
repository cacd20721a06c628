"""What the blocks of a ladder say, from planted ones."""

from __future__ import annotations

import pytest
from support.build_ladder import a_ladder

from stallscope.bench.comparison import FASTER, OPEN, SAME, SLOWER, Rate, of_rates
from stallscope.ladder.result import (
    AS_IT_IS,
    BATCHES,
    FETCHED,
    TRANSFORMED,
    WARM,
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

    def test_without_noise_an_interval_is_what_starts_differ_by(self):
        """Every block says the same; another start would not."""
        table = a_ladder(FULL).table()[:5]

        for rate, low in table.select("samples_per_s", "samples_per_s_low").iter_rows():
            assert 0.02 < 1 - low / rate < 0.05

    def test_one_block_has_no_interval(self):
        """Nothing can be said about its spread."""
        table = a_ladder({AS_IT_IS: 0.4}, starts=1, blocks=1).table()

        assert table["samples_per_s_low"][0] is None

    @pytest.mark.thorough
    def test_an_interval_holds_the_truth_as_often_as_it_says(self):
        """Starts differ by 3%, blocks by 20%: of 200 ladders about 95% hold it."""
        inside = 0
        for seed in range(200):
            row = a_ladder(
                {AS_IT_IS: 0.4}, starts=3, start_noise=0.03, noise=0.2, seed=seed
            ).table()
            low, high = row.select("samples_per_s_low", "samples_per_s_high").row(0)
            inside += low <= 20 <= high
        assert 180 <= inside


class TestGains:
    def test_are_ratios_of_neighbours(self):
        """Twice, and 4/3 and 1.5 times as fast."""
        gains = a_ladder(FULL).gains()

        assert [1, 2, 4 / 3, 1.5] == pytest.approx(gains["factor"].to_list())
        assert [SAME, FASTER, FASTER, FASTER] == gains["says"].to_list()

    def test_skip_what_was_not_measured(self):
        """The next one is compared with the one before."""
        gains = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1}).gains()

        assert ["batches in memory"] == gains["rung"].to_list()
        assert [4.0] == pytest.approx(gains["factor"].to_list())

    @pytest.mark.slow
    def test_of_nothing_but_noise_are_not_claimed(self):
        """Of 100 pairs of equal rungs about one is told apart, which is what the level says."""
        equal = {AS_IT_IS: 0.4, WARM: 0.4}
        told = [
            a_ladder(equal, start_noise=0.02, noise=0.2, seed=seed).gains()["says"][0]
            for seed in range(100)
        ]
        assert told.count(FASTER) + told.count(SLOWER) <= 3

    def test_of_single_starts_are_told_where_they_are_far_apart(self):
        """Ten times as fast is no accident of the machine; a twentieth may be one."""
        far = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.04}, starts=1, noise=0.05)
        near = a_ladder({AS_IT_IS: 0.42, BATCHES: 0.4}, starts=1, noise=0.05)

        assert FASTER == far.headroom()["says"].item()
        assert OPEN == near.headroom()["says"].item()
        assert "the loader costs you" in sentence(far)
        assert "not settled: allow" in sentence(near)

    def test_are_the_ratios_of_the_rates(self):
        """A page shows one factor."""
        ladder = a_ladder(FULL, noise=0.2, start_noise=0.05)
        table, head = ladder.table(), ladder.headroom()["factor"].item()

        assert head == pytest.approx(table["samples_per_s"][4] / table["samples_per_s"][0])

    def test_rates_whose_intervals_do_not_meet_are_told_apart(self):
        """Whatever their pairs say."""
        faster, slower = Rate(303, 295, 310), Rate(102, 71, 134)

        assert FASTER == of_rates(faster, slower).says
        assert SLOWER == of_rates(slower, faster).says
        assert of_rates(slower, Rate(120, 100, 140)) is None


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
                (
                    "The loader costs nothing that matters: the simulated device is 100% "
                    "busy as it is"
                ),
                {AS_IT_IS: 0.1, BATCHES: 0.1},
                {"simulated_step_s": 0.1},
            ),
            (
                "The loader costs nothing that matters: the step takes 100% of the loop",
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

    def test_says_when_too_little_was_measured(self):
        """One block each tells nothing, and more time would."""
        ladder = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1}, starts=1, blocks=1)

        assert sentence(ladder).endswith("4.0× as fast, not settled: allow 30 s (budget_s)")


@pytest.mark.parametrize(("factor", "told"), [(1.04, "1.0×"), (2.55, "2.5×"), (12.6, "13×")])
def test_a_factor_has_two_digits(factor, told):
    """As a person reads it."""
    assert told == times(factor)
