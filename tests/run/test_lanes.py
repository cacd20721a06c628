"""A few seconds of every worker."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import a_run

from stallscope.run.timeline import lanes


class TestLanes:
    def test_finds_workers_busy_all_the_time(self):
        """Batches without a gap fill the window."""
        assert 1.0 == pytest.approx(lanes(a_run([{"A": 5.0}] * 80, workers=2).work).busy_share)

    def test_finds_the_rest_between_batches(self):
        """A pause as long as a batch leaves half of the time."""
        found = lanes(a_run([{"A": 5.0}] * 400, workers=1, rest_ms=20.0).work)

        assert 0.5 == pytest.approx(found.busy_share, abs=0.1)

    def test_epochs_with_workers_of_their_own_are_no_rest(self):
        """Workers that are started anew are not those of the epoch before, which rest for ever."""
        work = a_run([{"A": 5.0}] * 80, workers=2).work
        end_ns = work["end_ns"].max()
        later = work.with_columns(
            pl.col("pid") + 50, pl.col("epoch") + 1, pl.col("start_ns", "end_ns") + end_ns
        )

        assert 1.0 == pytest.approx(lanes(pl.concat([work, later])).busy_share)

    def test_adds_up_each_kind_within_a_batch(self):
        """A block holds the seconds of its samples by kind."""
        found = lanes(a_run([{"decode": 3.0, "A": 2.0}] * 8, collate_ms=1.0).work)

        block = found.blocks.row(0, named=True)
        assert [0.012, 0.008, 0.001] == pytest.approx(
            [block["decode"], block["transform"], block["collate"]]
        )

    def test_has_room_for_two_slow_batches(self):
        """A batch of ten seconds is not cut off after five."""
        found = lanes(a_run([{"A": 2500.0}] * 16, batch_size=4).work)

        assert 20.0 == pytest.approx(found.length_s)

    def test_is_empty_for_an_empty_run(self):
        """Nothing recorded, nothing shown."""
        assert lanes(a_run([]).work).blocks.is_empty()
