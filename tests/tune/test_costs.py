"""What batches cost, out of a run: waiting for a core is no cost of theirs."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from support.build_run import resources_of
from support.virtual_loop import a_loop

from stallscope.stages import LOOP, QUEUED, WORKER
from stallscope.tune.costs import costs_of
from stallscope.tune.settings import Setting
from stallscope.tune.simulator import predict

EIGHT = Setting(8, 2)


def crowded(queued: float):
    """Batches that compute 20 of their 80 ms in each of eight workers, on two cores.

    Args:
        queued: share of its time in which a worker has no core; beside what makes batches, another
            thread of it computes.
    """
    run = a_loop({"Blur": 80.0}, workers=8, batches=160, using={"forward": 1.0})
    computed_ns = (pl.col("end_ns") - pl.col("start_ns")) // 4
    use = {(LOOP, "1"): 0.02}
    use |= {(WORKER, f"{100 + one}"): 0.3 for one in range(8)}
    use |= {(QUEUED, f"{100 + one}"): queued for one in range(8)}
    spans = run.all_spans.with_columns(cpu_ns=computed_ns)
    return replace(run, all_spans=spans, all_resources=resources_of(use, 2))


def costs(run):
    return costs_of(run, EIGHT, epoch_batches=None, batch_bytes=None, cores=2.0)


class TestCrowded:
    """Eight workers on two cores."""

    def test_waiting_for_a_core_is_no_waiting(self):
        """Fewer workers are as fast then: on two cores, two."""
        found = costs(crowded(0.74))
        two, eight = (predict(found, one).samples_per_s.value for one in (Setting(2, 2), EIGHT))

        assert found.wait_s < 0.02 * found.compute_s
        assert two == pytest.approx(eight, rel=0.03)

    def test_a_stage_whose_cpu_time_was_not_read_computes_no_more_than_the_others(self):
        """Of a short recording, most stages are never read."""
        run = crowded(0.74)
        second = run.all_spans.with_columns(stage=pl.lit("Warp"), cpu_ns=None)
        spans = run.all_spans.with_columns(pl.col("stage").cast(pl.String))
        both = pl.concat([spans, second], how="vertical_relaxed").cast(run.all_spans.schema)

        found = costs(replace(run, all_spans=both))

        blur, warp = found.computing_s.mean(axis=0)
        assert warp == pytest.approx(blur)

    def test_waiting_for_something_else_is(self):
        """Workers that sleep for most of their time are needed, all eight."""
        found = costs(crowded(0.1))
        two, eight = (predict(found, one).samples_per_s.value for one in (Setting(2, 2), EIGHT))

        assert found.wait_s > 2 * found.compute_s
        assert eight > 2.5 * two
