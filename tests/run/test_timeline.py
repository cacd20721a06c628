"""A typical piece of a run, and what happened in it."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import a_run, steps_of
from support.virtual_loop import a_loop, together

from stallscope.model.attribution import find_stalls
from stallscope.run.timeline import MOST_STEPS, steps_from, steps_in, timeline, window

MAKING = {"fetch": 5.0, "decode": 40.0, "Mask": 70.0, "collate": 5.0}
QUICK = {"forward": 5.0, "logging": 1.0}


def shown(steps, many=10, **more):
    """Numbers of the steps in the window."""
    return window(steps, find_stalls(steps), step_count=many, **more).steps["step"].to_list()


class TestWindow:
    def test_holds_a_typical_stall_and_not_the_worst(self):
        """Of stalls of 0.3 s, one of them is in the middle; the one of 5 s is not shown."""
        waits = [0.3 if step % 10 == 5 else 0.0 for step in range(100)]
        waits[15] = 5.0

        found = shown(steps_of(waits))

        assert 15 not in found
        assert 5 in {step % 10 for step in found[3:8]}

    def test_does_not_look_for_the_smallest_stalls(self):
        """Most stalls take 2 ms; a window around one that is seen is chosen."""
        waits = [0.5 if step in (20, 60) else 0.002 for step in range(100)]

        assert {20, 60} & set(shown(steps_of(waits)))

    def test_holds_a_step_of_the_pattern_that_is_asked_for(self):
        """Among many stalls, those that are explained are looked at."""
        waits = [0.1] * 100

        assert 77 in shown(steps_of(waits), favoured=[77])

    def test_looks_at_long_steps_too(self):
        """A checkpoint is no stall, and is still found."""
        steps = steps_of([0.0] * 60, other_s=[1.0 if step == 31 else 0.0 for step in range(60)])

        assert 31 in shown(steps, favoured=[31])

    def test_does_not_reach_over_steps_that_were_left_out(self):
        """Between two of its steps, no step is missing."""
        waits = [0.1 if step in (20, 50) else 0.0 for step in range(60)]
        steps = steps_of(waits).filter(~pl.col("step").is_between(12, 18))

        assert 50 in shown(steps)

    def test_is_all_there_is_of_a_short_run(self):
        """Three steps are a window, too."""
        assert [0, 1, 2] == shown(steps_of([0.0, 0.2, 0.0]))

    def test_begins_with_making_the_iterator(self):
        """The time of `iter(loader)` before an epoch's first step is in the window."""
        found = window(steps_of([0.1], restart_s=[0.5]), find_stalls(steps_of([0.1])), step_count=1)

        assert (0, 700_000_000) == (found.begin_ns, found.end_ns)

    def test_begins_with_the_step_that_was_chosen(self):
        """Or with the next one there is; near the end, the last ones are shown."""
        steps = steps_of([0.1] * 20).filter(~pl.col("step").is_in([5, 6]))

        begun = [steps_from(steps, step, 4).steps["step"].to_list() for step in (3, 6, 18, 99)]
        assert [[3, 4, 7, 8], [7, 8, 9, 10], [16, 17, 18, 19], [16, 17, 18, 19]] == begun

    def test_has_room_for_two_periods_where_they_fit(self):
        """So a rhythm is seen; a longer one than fits does not make the window longer."""
        assert (16, 22, 16) == (steps_in(4, None), steps_in(4, 10), steps_in(4, 50))
        assert MOST_STEPS == steps_in(64, 64)


class TestTimeline:
    def test_holds_the_batches_that_were_being_made(self):
        """Each with its worker, its times and the seconds of each kind."""
        found = timeline(a_loop(MAKING, using=QUICK))

        block = found.blocks.filter(pl.col("start_s") >= 0).row(0, named=True)
        assert (0, 1, 2, 3) == found.workers
        assert block["recorded"]
        assert [0.005, 0.04, 0.07, 0.005, 0.12] == pytest.approx(
            [
                *(block[kind] for kind in ("fetch", "decode", "transform", "collate")),
                block["end_s"] - block["start_s"],
            ]
        )

    def test_shows_batches_that_were_not_recorded(self):
        """Their times are known, their stages are not."""
        found = timeline(a_loop(MAKING, using=QUICK, recorded=2))

        assert {True, False} == set(found.blocks["recorded"])
        unknown = found.blocks.filter(~pl.col("recorded"))
        assert 0.0 == unknown["decode"].sum()
        assert 0.12 == pytest.approx((unknown["end_s"] - unknown["start_s"]).max())

    def test_knows_when_the_awaited_batch_left_its_worker(self):
        """It had been sent, half a millisecond before it was unpickled."""
        found = timeline(a_loop(MAKING, using=QUICK))

        stall = found.stalls.row(-1, named=True)
        assert 0.0005 == pytest.approx(stall["end_s"] - stall["left_s"])
        assert stall["worker"] == stall["batch"] % 4

    def test_follows_a_loop_that_iterates_something_around_the_loader(self):
        """The batch that the stall waited for is the loader's own."""
        run = a_loop(MAKING, using=QUICK)
        shifted = run.all_steps.with_columns(batch=pl.col("batch") + 100)
        around = a_run(
            [], steps=shifted, waits=run.waits, deliveries=run.deliveries, side_spans=run.side_spans
        )

        assert set(timeline(around).stalls["batch"]) <= set(range(48))

    def test_shows_what_the_loop_does_by_name(self):
        """The parts of a step, and the user's own."""
        using = {"forward": 5.0, "backward": 6.0, "logging": 1.0}
        found = timeline(a_loop(MAKING, using=using, h2d=1.0))

        uses = found.uses.head(4)
        assert ["h2d", "forward", "backward", "logging"] == uses["stage"].to_list()
        took_s = (uses["end_s"] - uses["start_s"]).to_list()
        assert [0.001, 0.005, 0.006, 0.001] == pytest.approx(took_s)

    def test_shows_one_rank(self):
        """Two ranks' workers have the same numbers; they are not put into one lane."""
        runs = [a_loop(MAKING, using=QUICK, rank=rank) for rank in (0, 1)]

        found = timeline(together(*runs))

        assert timeline(runs[0]).blocks.height == found.blocks.height
        assert 1 == found.window.steps["rank"].n_unique()

    def test_is_nothing_without_a_loop(self):
        """A run whose waits were not recorded has no timeline."""
        assert timeline(a_run([{"A": 1.0}] * 8)) is None
