"""What a stopwatch around each transform would have said, computed from our own spans.

Many images are opened lazily: they are decoded by whichever transform first touches the pixels,
and a stopwatch charges that transform with the decoding. What lies outside of the transforms, the
stopwatch can only call loading. No second measurement: the same spans, added up the naive way.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from stallscope.analyze.profile import UNIT_KEYS

LOADING: Final = "loading"
"""Everything in a sample outside of the pipeline's own transforms."""

LIBRARIES: Final = ("PIL", "torchvision", "cv2")
"""A stage called `PIL.convert` is a library's call in the dataset's own code, which no stopwatch
around the transforms sees."""


def blamed(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans of samples with one more column: `blamed`, the name that a stopwatch would give.

    Reading and decoding that interrupt a transform are charged to that transform.

    Args:
        spans: columns of `analyze.spans.SPANS`, in the order in which they were recorded.
    """
    library = pl.col("stage").str.split(".").list.first().is_in(LIBRARIES)
    own = (pl.col("kind") == "transform") & ~library
    lazy = pl.col("kind").is_in(("fetch", "decode"))
    around = pl.when(~lazy).then(pl.when(own).then("stage").otherwise(pl.lit(LOADING)))
    return (
        spans.filter(pl.col("sample").is_not_null())
        .with_columns(pl.col("stage", "kind").cast(pl.String))
        .with_columns(
            before=around.forward_fill().over(UNIT_KEYS),
            after=around.backward_fill().over(UNIT_KEYS),
        )
        .with_columns(
            blamed=pl.when(pl.col("before") == pl.col("after"))
            .then("before")
            .otherwise(pl.lit(LOADING))
        )
        .drop("before", "after")
    )


def naive(spans: pl.DataFrame) -> pl.DataFrame:
    """The naive table and what is in it, both the longest first.

    Args:
        spans: columns of `analyze.spans.SPANS`, in the order in which they were recorded.

    Returns:
        `blamed, blamed_share, stage, kind, share`: a transform or `LOADING` and its share (0 to 1)
        of the samples' time, and the stages that this was in truth, with their shares of it all.
    """
    wall_ns = pl.col("end_ns") - pl.col("start_ns")
    return (
        blamed(spans)
        .group_by("blamed", "stage", "kind", maintain_order=True)
        .agg(share=wall_ns.sum())
        .with_columns(pl.col("share") / pl.col("share").sum())
        .with_columns(blamed_share=pl.col("share").sum().over("blamed"))
        .sort("blamed_share", "blamed", "share", descending=True, maintain_order=True)
        .select("blamed", "blamed_share", "stage", "kind", "share")
    )
