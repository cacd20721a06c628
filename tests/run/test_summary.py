"""The tables of a run against the same sums taken the slow way."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stallscope.run import decode, summary


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
    table = summary.stages(spans)

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
    assert [1.0] * 5 == summary.stages(spans)["cpu_share"].to_list()


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

    table = summary.samples(spans, known)

    assert 30 == table.height
    parts = table["fetch_s"] + table["decode_s"] + table["transform_s"] + table["other_s"]
    assert np.allclose(parts, table["total_s"])
    first = spans.filter((pl.col("batch") == 0) & (pl.col("sample") == 0))
    took = first.group_by("stage").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    assert took.sort("end_ns")["stage"][-1] == table["slowest"][0]


def test_no_spans_make_empty_tables():
    """An empty run has tables with all their columns and no row."""
    empty = pl.DataFrame(schema=decode.SPANS)

    assert list(summary.STAGES) == summary.stages(empty).columns
    assert summary.samples(empty, pl.DataFrame(schema=decode.SAMPLES)).is_empty()


def test_what_the_loop_stood_still_for_is_told_once(spans):
    """A stage inside and outside of samples is two rows, and one part of the stalls."""
    parse = pl.when(pl.col("sample").is_null()).then(pl.lit("Crop")).otherwise("stage")
    twice = spans.with_columns(stage=parse, kind=pl.lit("transform").cast(spans.schema["kind"]))
    rows = [("Crop", "transform", 3.0, 1.0)]
    exposed = pl.DataFrame(rows, ["part", "kind", "exposed_s", "share"], orient="row")
    work = summary.stages(twice.with_columns(pl.col("stage").cast(spans.schema["stage"])))
    stood = exposed.with_columns(pl.col("kind").cast(work.schema["kind"]))

    table = summary.of_loop(work, work.clear(), stood).filter(pl.col("stage") == "Crop")

    assert [3.0, 0.0] == table["exposed_s"].to_list()
