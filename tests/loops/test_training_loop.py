"""When a loop over a loader stops."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import ArgumentError
from stallscope.loops.training_loop import Enough, Limits, Replay


class TestLimits:
    @pytest.mark.parametrize("batches", [0, -1, 2.0, "3", None, True, math.nan])
    def test_batches_are_a_whole_number(self, batches):
        """What is no positive whole number of batches is named."""
        with pytest.raises(ArgumentError, match=f"batches={batches!r}: give a whole number, 1"):
            Limits(batches, 1.0)

    @pytest.mark.parametrize("budget_s", [0, -1.0, math.nan, -math.inf, "60", None])
    def test_a_budget_is_above_zero(self, budget_s):
        """What is no positive number of seconds is named."""
        with pytest.raises(ArgumentError, match=f"budget_s={budget_s!r}: give a number"):
            Limits(1, budget_s)

    def test_a_budget_ends_that_long_after_the_begin(self):
        """The deadline is in nanoseconds, and no budget has none."""
        assert Limits(1, 1.5).deadline_ns(1000) == 1_500_001_000
        assert Limits(1, math.inf).deadline_ns(1000) == math.inf

    def test_any_kind_of_number_will_do(self):
        """Numbers of numpy's and fractions are numbers."""
        limits = Limits(np.int64(3), Fraction(1, 2))

        assert (limits.batches, limits.deadline_ns(0)) == (3, 5e8)

    @pytest.mark.parametrize(("warmup", "processes", "total"), [(4, 2, 14), (0, 2, 12), (0, 0, 11)])
    def test_leaves_room_for_the_beginning(self, warmup, processes, total):
        """The warm-up and the first batch of each process come before the steady state."""
        limits = Limits.of(10, warmup=warmup, processes=processes, budget_s=1.0)

        assert limits == Limits(total, 1.0)


@pytest.mark.parametrize(
    "wrong", [{"batches": 0}, {"batches": -3}, {"warmup": -1}, {"budget_s": math.nan}]
)
def test_a_recording_refuses_them_before_it_begins(wrong):
    """A number that cannot be used is one sentence that names the argument."""
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        ss.record(DataLoader(Noise(8), 4), **wrong)


def test_a_recording_may_have_no_budget():
    """An infinite budget leaves the end to the batches."""
    run = ss.record(DataLoader(Noise(64), 4), batches=4, warmup=1, budget_s=math.inf)

    assert run.all_steps.height == 5


class TestEnough:
    def test_a_steady_state_that_is_long_enough_ends_the_loop(self):
        """So many batches after the warm-up and for so long, and not one of both alone."""
        limits = Limits(1000, 60.0, Enough(after=2, batches=3, seconds=0.0))

        assert not Replay(steps=4).is_over(limits)
        assert Replay(steps=5).is_over(limits)
        assert not Replay(steps=5).is_over(replace(limits, enough=Enough(2, 3, 60.0)))

    def test_late_fewer_will_do(self):
        """A loop that is slow ends with fewer batches when much of its time is over."""
        limits = Limits(1000, 60.0, Enough(after=2, batches=30, seconds=4.0, few=3, late_s=0.0))

        assert not Replay(steps=4).is_over(limits)
        assert Replay(steps=5).is_over(limits)

    def test_it_ends_before_its_budget_by_what_is_under_way(self):
        """Only a loop that may end early leaves room for the batches that it would begin."""
        limits = Limits(1000, 60.0, Enough(after=2, batches=3, seconds=0.0))

        assert Replay(steps=5, began_ns=0).ahead_ns(limits) > 0
        assert 0 == Replay(steps=5, began_ns=0).ahead_ns(replace(limits, enough=None))

    def test_a_long_start_is_no_long_batch(self):
        """What workers import for their first sample does not end a loop for its next ones."""
        limits = Limits(1000, 60.0, Enough(after=2, batches=3, seconds=0.0))
        started, one_slow = Replay(steps=1, began_ns=0), Replay(steps=1, began_ns=0)
        started.count(1)
        started.count(8)
        one_slow.count(1)

        assert started.ahead_ns(limits) < one_slow.ahead_ns(limits) / 1000
