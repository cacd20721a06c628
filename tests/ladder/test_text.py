"""Texts of a ladder, from planted block times."""

import re

import pytest
from support.build_ladder import a_ladder

from stallscope.bench.comparison import FASTER, SAME, SLOWER
from stallscope.verbs.ladder.result import AS_IT_IS, BATCHES, FETCHED, TRANSFORMED, WARM, sentence

FULL = {AS_IT_IS: 0.4, WARM: 0.4, FETCHED: 0.2, TRANSFORMED: 0.15, BATCHES: 0.1}
TIMER = {"simulated_step_s": 0.1}
IN_MEMORY = "with fetched samples in memory:"
CACHED_READS = f"{IN_MEMORY} cold storage, fetch and decode"
IN_THE_STEP = "look in the step for the rest"
CACHED = "with everything cached: the loader costs"
MOSTLY_FETCH = f"{CACHED} up to 4.00× (CI), mostly fetch and decode (2.0×)"


class TestTable:
    def test_rates_are_samples_over_seconds(self):
        """A batch of eight takes 0.4 s with a step of 0.1 s; starts differ without noise."""
        table = a_ladder(FULL).table()

        assert pytest.approx([20, 20, 40, 8 / 0.15, 80]) == table["samples_per_s"][:5].to_list()
        assert table["samples_per_s"][5:].is_null().all()
        assert [0.25, 0.25, 0.5, pytest.approx(2 / 3), 1] == table["step_share"][:5].to_list()
        for rate, low in table[:5].select("samples_per_s", "samples_per_s_low").iter_rows():
            assert 0.02 < 1 - low / rate < 0.05


class TestGains:
    def test_are_ratios_of_neighbours(self):
        gains = a_ladder(FULL).gains()

        assert [1, 2, 4 / 3, 1.5] == pytest.approx(gains["factor"].to_list())
        assert [SAME, FASTER, FASTER, FASTER] == gains["says"].to_list()

    def test_leave_the_costs_of_a_missing_rung_to_the_next(self):
        ladder = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1})

        assert ["batches in memory"] == ladder.gains()["rung"].to_list()
        assert [4.0] == pytest.approx(ladder.gains()["factor"].to_list())
        assert ["cold storage, fetch and decode, transforms, collate and sending"] == (
            ladder.headroom()["removes"].to_list()
        )

    @pytest.mark.slow
    def test_of_pure_noise_are_not_claimed(self):
        """About 1 of 100 pairs of equal rungs counts as different, as the level allows."""
        equal = {AS_IT_IS: 0.4, WARM: 0.4}
        words = [
            a_ladder(equal, start_noise=0.02, noise=0.2, seed=seed).gains()["says"][0]
            for seed in range(100)
        ]
        assert words.count(FASTER) + words.count(SLOWER) <= 3

    def test_are_the_ratios_of_the_rates(self):
        ladder = a_ladder(FULL, noise=0.2, start_noise=0.05)
        table, head = ladder.table(), ladder.headroom()["factor"].item()

        assert head == pytest.approx(table["samples_per_s"][4] / table["samples_per_s"][0])


class TestSentence:
    @pytest.mark.parametrize(
        ("words", "seconds", "about"),
        [
            (f"Simulated device busy 25% now, 100% {MOSTLY_FETCH}", FULL, TIMER),
            (f"The loop makes 20 samples/s, 80 {MOSTLY_FETCH}", FULL, {}),
            (
                f"Simulated device busy 25% now, 50% {CACHED} up to 2.00× (CI); {IN_THE_STEP}",
                {AS_IT_IS: 0.4, BATCHES: 0.2},
                TIMER,
            ),
            (
                f"Simulated device busy 100% now, 100% {CACHED} nothing significant",
                {AS_IT_IS: 0.1, BATCHES: 0.1},
                TIMER,
            ),
            (
                f"The loader alone gives 20 samples/s, 40 {CACHED_READS} costs up to 2.00× (CI)",
                {AS_IT_IS: 0.4, FETCHED: 0.2},
                {"has_step": False},
            ),
            (
                f"The loop makes 20 samples/s, 10 {IN_MEMORY} caching is no faster (0.50× (CI))",
                {AS_IT_IS: 0.4, FETCHED: 0.8},
                {},
            ),
            ("Only the current loader was measured: 20 samples/s", {AS_IT_IS: 0.4}, {}),
            ("The current loader was not measured: the disk is gone", {}, {}),
        ],
    )
    def test_says_what_the_loader_costs(self, words, seconds, about):
        ladder = a_ladder(seconds, why_not={AS_IT_IS: "the disk is gone"}, **about)

        assert words == re.sub(r"95% CI [\d.]+-[\d.]+", "CI", sentence(ladder))

    def test_a_device_says_how_busy_it_was(self):
        ladder = a_ladder(FULL, busy={AS_IT_IS: 0.11, BATCHES: 0.93})

        assert "Device busy 11% now, 93% with everything cached" in sentence(ladder)

    def test_says_which_budget_would_settle_it(self):
        ladder = a_ladder({AS_IT_IS: 0.4, BATCHES: 0.1}, starts=1, blocks=1)

        assert sentence(ladder).endswith("up to 4.0×, not settled; set budget_s to 30 s")
