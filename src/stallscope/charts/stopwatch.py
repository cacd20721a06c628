"""The same samples twice: as a stopwatch around each transform sees them, and as they are.

Many images are opened lazily: they are decoded by whichever transform first touches the pixels,
and a stopwatch charges that transform with the decoding. What lies outside of the transforms, the
stopwatch can only call loading, and often that is not the disk. No second measurement: the same
spans, added up the naive way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.charts.bars import BAR, Strip, StripPiece
from stallscope.charts.sheet import AXIS, ROOM, Sheet, styled, value_axis
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import NOTHING, UNIT_KEYS, profile
from stallscope.stages import COLOURS
from stallscope.units import printable, share

if TYPE_CHECKING:
    from stallscope.run.result import Run


LOADING: Final = "loading"
"""Everything in a sample outside of the pipeline's own transforms."""

NOTICED: Final = 0.05
"""Share of a sample's time from which on hidden decoding is what the title speaks of."""
_NAMES: Final = 1.3
"""Width of the bars' names, inches."""
_GAP: Final = 0.15
_LOADING_COLOUR: Final = "#8C8C8C"
LIBRARIES: Final = ("PIL", "torchvision", "cv2")
"""A stage called `PIL.convert` is a library's call in the dataset's own code, which no stopwatch
around the transforms sees."""


def blamed(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans of samples with one more column: `blamed`, the name that a stopwatch would give.

    Reading and decoding that interrupt a transform are charged to that transform.

    Args:
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.
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
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.

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


@styled
def figure(run: Run) -> Sheet:
    """Both bars as a picture, the stopwatch's over the true one."""
    table, found = naive(run.work), profile(run.work)
    if table.is_empty():
        told = "Samples cannot be told apart in this loader: no stopwatch would see their stages"
        return Sheet(told if found.stages else NOTHING, nothing(run))
    key = (
        "upper bar: computed from the same recording; outside of the transforms a stopwatch sees "
        "only loading · lower bar: the same time, by what it was"
    )
    notes = (f"{population(run, found)} · without collate", key)
    blames = table.select("blamed", "blamed_share").unique(maintain_order=True).iter_rows()
    upper = Strip(
        [
            _piece(name, part, _LOADING_COLOUR if name == LOADING else COLOURS["transform"])
            for name, part in blames
        ],
        ROOM - _NAMES,
    )
    stages = table.select("stage", "share", "kind").iter_rows()
    lower = Strip([_piece(name, part, COLOURS[kind]) for name, part, kind in stages], ROOM - _NAMES)
    base = lower.height + _GAP
    made = Sheet(title(table), notes, [base + upper.height + AXIS])
    (ax,) = made.parts
    ax.set_ylim(0, base + upper.height)
    ax.set_yticks([base + BAR / 2, BAR / 2], ["a stopwatch", "what happened"])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    value_axis(ax, 0.0, 1.0, share)
    ax.grid(visible=False)
    upper.draw(ax, base)
    lower.draw(ax)
    ax.set_xlabel("share of a sample's time")
    return made


def title(table: pl.DataFrame) -> str:
    """Whom the stopwatch blames, and what that is in truth."""
    hiding = table.filter(pl.col("kind") == "decode", pl.col("share") >= NOTICED)
    about = hiding.sort("share", descending=True) if hiding.height else table
    name, whole = about.select("blamed", "blamed_share").row(0)
    inside = table.filter(pl.col("blamed") == name)
    decoding, reading = (_share_of(inside, kind) for kind in ("decode", "fetch"))
    if name == LOADING:
        spoken = f"{share(reading)} is reading" if reading else "no reading was seen"
        decoded = f"{share(decoding)} is decode" if decoding else "no decoding was seen"
        return f"A stopwatch calls {share(whole)} of a sample's time loading; {spoken}, {decoded}"
    sentence = f"A stopwatch blames {printable(name)} for {share(whole)} of a sample's time"
    if decoding < NOTICED:
        return f"{sentence}; no decoding is hidden in there"
    return f"{sentence}; {share(decoding / whole)} of that is decode"


def _share_of(table: pl.DataFrame, kind: str) -> float:
    return float(table.filter(pl.col("kind") == kind)["share"].sum())


def _piece(name: str, part: float, colour: str) -> StripPiece:
    name, numbers = printable(name, 24), share(part)
    return StripPiece(name, part, numbers, colour, f"{name} {numbers}")
