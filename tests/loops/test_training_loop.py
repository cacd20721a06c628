"""Limits that stop a loop over a loader."""

import math
from dataclasses import replace
from time import perf_counter_ns

import pytest
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import ArgumentError
from stallscope.loops.training_loop import Enough, Limits, Replay


class TestLimits:
    @pytest.mark.parametrize("batches", [0, -1, 2.0, "3", None, True, math.nan])
    def test_batches_are_a_whole_number(self, batches):
        with pytest.raises(ArgumentError, match=f"batches={batches!r}: give a whole number, 1"):
            Limits(batches, 1.0)

    @pytest.mark.parametrize("budget_s", [0, -1.0, math.nan, -math.inf, "60", None])
    def test_a_budget_is_above_zero(self, budget_s):
        with pytest.raises(ArgumentError, match=f"budget_s={budget_s!r}: give a number"):
            Limits(1, budget_s)


@pytest.mark.parametrize(
    "wrong", [{"batches": 0}, {"batches": -3}, {"warmup": -1}, {"budget_s": math.nan}]
)
def test_a_recording_refuses_wrong_limits_before_it_begins(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        ss.record(DataLoader(Noise(8), 4), **wrong)


class TestEnough:
    def test_a_steady_state_that_is_long_enough_ends_the_loop(self):
        limits = Limits(1000, 60.0, Enough(after=2, batches=3, seconds=0.0))

        assert not Replay(steps=4).is_over(limits)
        assert Replay(steps=5).is_over(limits)
        assert not Replay(steps=5).is_over(replace(limits, enough=Enough(2, 3, 60.0)))

    def test_late_fewer_batches_are_enough(self):
        limits = Limits(1000, 60.0, Enough(after=2, batches=30, seconds=4.0, few=3, late_s=0.0))

        assert not Replay(steps=4).is_over(limits)
        assert Replay(steps=5).is_over(limits)

    def test_a_slow_start_needs_a_second_epoch(self):
        limits = Limits(1000, 60.0, Enough(after=2, batches=3, seconds=0.0, begin_share=0.1))
        now_ns = perf_counter_ns()
        loop = Replay(9, 1, began_ns=now_ns - 10_000_000_000, first_ns=now_ns - 8_000_000_000)

        assert not loop.is_over(limits)
        assert replace(loop, first_ns=loop.began_ns + 1_000_000).is_over(limits)
        assert not replace(loop, epochs=2, steps_before=8).is_over(limits)
        assert replace(loop, epochs=2, steps_before=7).is_over(limits)
