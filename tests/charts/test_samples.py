"""The slowest samples and what made them slow."""

from __future__ import annotations

import polars as pl
from support.build_run import a_run

from stallscope.charts.samples import slowest


class TestSlowest:
    def test_blames_the_stage_that_took_more_than_usual(self):
        """Not the longest stage is the cause, but the one with the largest excess."""
        usual = {"decode": 10.0, "fetch": 1.0}
        run = a_run([usual, usual, usual, {"decode": 10.5, "fetch": 8.0}])

        (row,) = slowest(run.samples(), run.unit_times).head(1).iter_rows(named=True)

        assert (3, "fetch") == (row["index"], row["cause"])
        assert abs(row["excess_s"] - 0.007) < 1e-9

    def test_ranks_have_samples_of_their_own(self):
        """The same place in the same batch of another rank is another sample."""
        slow = a_run([{"decode": 10.0, "fetch": 1.0}] * 7 + [{"decode": 10.0, "fetch": 8.0}])
        other = a_run([{"decode": 10.0, "fetch": 1.0}] * 7 + [{"decode": 50.0, "fetch": 1.0}])
        rank = pl.lit(1, pl.Int16).alias("rank")
        samples = pl.concat([slow.samples(), other.samples().with_columns(rank)])
        times = pl.concat([slow.unit_times, other.unit_times.with_columns(rank)])

        found = slowest(samples, times).head(2)

        assert [(1, "decode"), (0, "fetch")] == found.select("rank", "cause").rows()

    def test_gives_the_slowest_first(self):
        """The order is by total time."""
        run = a_run([{"A": float(ms)} for ms in (2, 9, 4, 7)])

        assert [1, 3, 2] == slowest(run.samples(), run.unit_times).head(3)["index"].to_list()
