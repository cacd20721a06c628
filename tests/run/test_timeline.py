"""A typical piece of a run, and what happened in it."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import a_run, steps_of
from support.virtual_loop import a_loop, together

from stallscope.model.attribution import find_stalls
from stallscope.run.timeline import steps_from, timeline, window

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

    def test_holds_a_step_of_the_pattern_that_is_asked_for(self):
        """Among many stalls, those that are explained are looked at."""
        waits = [0.1] * 100

        assert 77 in shown(steps_of(waits), favoured=[77])

    def test_begins_with_the_step_that_was_chosen(self):
        """Or with the next one there is; near the end, the last ones are shown."""
        steps = steps_of([0.1] * 20).filter(~pl.col("step").is_in([5, 6]))

        begun = [steps_from(steps, step, 4).steps["step"].to_list() for step in (3, 6, 18, 99)]
        assert [[3, 4, 7, 8], [7, 8, 9, 10], [16, 17, 18, 19], [16, 17, 18, 19]] == begun


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

    def test_knows_when_the_awaited_batch_left_its_worker(self):
        """It had been sent, half a millisecond before it was unpickled."""
        found = timeline(a_loop(MAKING, using=QUICK))

        stall = found.stalls.row(-1, named=True)
        assert 0.0005 == pytest.approx(stall["end_s"] - stall["left_s"])
        assert stall["worker"] == stall["batch"] % 4

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
