"""A sample's time, divided among its stages."""

from __future__ import annotations

import pytest
from support.build_run import a_run

from stallscope.run.summary import profile


def profile_of(samples, **made):
    return profile(a_run(samples, **made).work)


class TestProfile:
    def test_divides_the_batch_work_among_the_samples(self):
        """Collate counts once for a batch and is divided by all samples."""
        found = profile_of([{"decode": 3.0}] * 8, batch_size=4, collate_ms=8.0)

        assert [("decode", 0.003), ("collate", 0.002)] == [
            (s.stage, s.mean_s) for s in found.stages
        ]
        assert [0.6, 0.4] == pytest.approx([stage.share for stage in found.stages])

    def test_agrees_with_the_table_of_stages(self):
        """The shares are the ones of `Run.stages`."""
        run = a_run([{"fetch": 1.0, "decode": 3.0, "Crop": 2.0}] * 8, collate_ms=1.0, workers=2)

        shares = {stage.stage: stage.share for stage in profile(run.work).stages}

        assert dict(run.stages().select("stage", "busy_share").iter_rows()) == pytest.approx(shares)

    def test_means_over_all_samples_where_a_stage_is_rare(self):
        """A stage that one sample in four has weighs a quarter; its own times stay as they are."""
        found = profile_of([{"A": 1.0, "B": 4.0}, {"A": 1.0}, {"A": 1.0}, {"A": 1.0}])

        rare = next(stage for stage in found.stages if stage.stage == "B")
        assert (0.001, [0.004]) == (rare.mean_s, rare.times_s.tolist())

    def test_adds_up_a_stage_that_was_interrupted(self):
        """Two spans of a stage in one sample are one time."""
        found = profile_of([[("Crop", 1.0), ("decode", 5.0), ("Crop", 2.0)]])

        assert {"decode": [0.005], "Crop": [0.003]} == {
            stage.stage: stage.times_s.tolist() for stage in found.stages
        }

    def test_counts_batches_where_samples_cannot_be_told_apart(self):
        """Without a sample in any span, everything is per batch."""
        found = profile_of([{"fetch": 2.0}] * 8, batch_size=4, per_batch=True)

        assert ("batch", 2, 0.008) == (found.unit, found.units, found.mean_s)

    def test_leaves_unread_cpu_time_unknown(self):
        """Waiting is None where CPU time was not read, and never below 0."""
        found = profile_of([{"A": 2.0, "B": 1.0}] * 4, cpu_share={"B": 1.1})

        assert [None, 0.0] == [stage.waiting_share for stage in found.stages]

    def test_is_empty_for_an_empty_run(self):
        """A run without a batch has no stages."""
        assert () == profile_of([]).stages
