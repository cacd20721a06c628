"""The tables of a run against the same sums taken the slow way; a sample's time; the sentence."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from support.build_run import a_run

from stallscope.run import decode, summary
from stallscope.run.summary import NOTHING, headline


@pytest.fixture
def spans() -> pl.DataFrame:
    """Two workers, some batches, stages in pieces, a few CPU times."""
    draw = np.random.default_rng(0)
    rows = []
    for worker in (0, 1):
        now = 0
        for batch in range(worker, 10, 2):
            for sample in [0, 1, 2, None]:
                names = [("collate", "collate")] if sample is None else [
                    ("getitem", "other"), ("fetch", "fetch"), ("Crop", "transform"),
                    ("decode", "decode"), ("Crop", "transform"), ("getitem", "other"),
                ]  # fmt: skip
                for name, kind in names:
                    end = now + int(draw.integers(1, 1000))
                    cpu = end - now if draw.random() < 0.5 else None
                    rows.append(
                        (0, 10 + worker, worker, 0, batch, sample, name, kind, now, end, cpu)
                    )
                    now = end
    return pl.DataFrame(rows, schema=decode.SPANS, orient="row")


def test_stages_are_the_sums_of_their_spans(spans):
    """Busy time, counts and percentiles agree with a plain group-by."""
    table = summary.stages(summary.unit_times(spans))

    seconds = spans.with_columns(s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
    unit = ["pid", "batch", "sample", "stage"]
    per_unit = seconds.group_by(unit).agg(pl.col("s").sum())
    for row in table.iter_rows(named=True):
        values = per_unit.filter(pl.col("stage") == row["stage"])["s"].to_numpy()
        assert values.size == row["count"]
        assert np.isclose(values.sum(), row["busy_s"])
        assert np.isclose(np.percentile(values, 95), row["p95_s"])
    assert np.isclose(1, table["busy_share"].sum())
    assert table["busy_s"].is_sorted(descending=True)
    assert list(summary.STAGES) == table.columns


def test_cpu_share_is_taken_where_it_was_read(spans):
    """All CPU times here equal the wall time, so every share is 1 and none is diluted."""
    assert [1.0] * 5 == summary.stages(summary.unit_times(spans))["cpu_share"].to_list()


def test_samples_add_up(spans):
    """The four parts of a sample are its total, and its longest stage is named."""
    known = (
        spans.filter(pl.col("sample").is_not_null())
        .select("epoch", "batch", "sample", "worker").unique()
        .with_columns(
            pl.lit(None, dtype=kind).alias(name)
            for name, kind in decode.SAMPLES.items()
            if name not in ("epoch", "batch", "sample", "worker")
        ).select(*decode.SAMPLES)
    )  # fmt: skip

    table = summary.samples(summary.unit_times(spans), known)

    assert 30 == table.height
    parts = table["fetch_s"] + table["decode_s"] + table["transform_s"] + table["other_s"]
    assert np.allclose(parts, table["total_s"])
    first = spans.filter((pl.col("batch") == 0) & (pl.col("sample") == 0))
    took = first.group_by("stage").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    assert took.sort("end_ns")["stage"][-1] == table["slowest"][0]


def test_no_spans_make_empty_tables():
    """An empty run has tables with all their columns and no row."""
    empty = pl.DataFrame(schema=decode.SPANS)

    assert list(summary.STAGES) == summary.stages(summary.unit_times(empty)).columns
    assert summary.samples(
        summary.unit_times(empty), pl.DataFrame(schema=decode.SAMPLES)
    ).is_empty()


def profile_of(samples, **made):
    return a_run(samples, **made).profile


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

        shares = {stage.stage: stage.share for stage in run.profile.stages}

        assert dict(run.stages().select("stage", "busy_share").iter_rows()) == pytest.approx(shares)

    def test_means_over_all_samples_where_a_stage_is_rare(self):
        """A stage that one sample in four has weighs a quarter; its own times stay as they are."""
        found = profile_of([{"A": 1.0, "B": 4.0}, {"A": 1.0}, {"A": 1.0}, {"A": 1.0}])

        rare = next(stage for stage in found.stages if stage.stage == "B")
        assert (0.001, [0.004]) == (rare.mean_s, rare.times_s.tolist())

    def test_counts_batches_where_samples_cannot_be_told_apart(self):
        """Without a sample in any span, everything is per batch."""
        found = profile_of([{"fetch": 2.0}] * 8, batch_size=4, per_batch=True)

        assert ("batch", 2, 0.008) == (found.unit, found.units, found.mean_s)

    def test_is_empty_for_an_empty_run(self):
        """A run without a batch has no stages."""
        assert () == profile_of([]).stages


def said(sample, **made):
    return headline(a_run([sample] * 8, **made).profile)


class TestHeadline:
    def test_names_the_longest_stage_and_reading(self):
        """The longest stage leads; reading is always told."""
        assert "decode takes 60% of a sample's time; reading takes 10%" == said(
            {"fetch": 1.0, "decode": 6.0, "Crop": 3.0}
        )

    def test_says_that_reading_waits(self):
        """Reading that leads is told with its nature, and what comes after it."""
        assert "Reading takes 80% of a sample's time, mostly waiting; decode takes 20%" == said(
            {"fetch": 8.0, "decode": 2.0}, cpu_share={"fetch": 0.1}
        )

    def test_explains_a_getitem_that_waits(self):
        """Unnamed waiting is probably reading; that reading takes little is then not claimed."""
        sentence = said({"fetch": 0.1, "getitem": 8.0}, cpu_share={"getitem": 0.1})

        assert sentence.endswith("mostly waiting: probably reading through an open file object")

    def test_explains_a_getitem_that_computes(self):
        """Unnamed computing is the dataset's own code."""
        sentence = said({"getitem": 8.0, "A": 1.0}, cpu_share={"getitem": 0.9})

        assert "mostly computing: code of the dataset's own that no hook can name" in sentence

    def test_says_when_no_reading_was_seen(self):
        """Missing is not zero."""
        assert said({"A": 1.0}).endswith("; no reading was seen")

    def test_says_that_there_is_nothing(self):
        """An empty run has a sentence, too."""
        assert NOTHING == headline(a_run([]).profile)
