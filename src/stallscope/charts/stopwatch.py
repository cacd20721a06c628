"""The same samples twice: as a stopwatch around each transform sees them, and as they are.

Many images are opened lazily: they are decoded by whichever transform first touches the pixels,
and a stopwatch charges that transform with the decoding. What lies outside of the transforms, the
stopwatch can only call loading, and often that is not the disk. No second measurement: the same
spans, added up the naive way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.charts.sheet import INK, TEXT_SIZE, SheetPart, sheet, styled, value_axis
from stallscope.charts.strip import BAR, Strip, StripPiece
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import NOTHING, UNIT_KEYS, profile
from stallscope.stages import COLOURS
from stallscope.units import printable, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


LOADING: Final = "loading"
"""Everything in a sample outside of the pipeline's own transforms."""

NOTICED: Final = 0.05
"""Share of a sample's time from which on hidden decoding is what the title speaks of."""
_LEFT: Final = 1.25
_RIGHT: Final = 0.4
NAMED: Final = 0.01
"""A piece with a smaller share has no name."""
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


def figure(run: Run) -> Sheet:
    """Both bars as a picture."""
    table, found = naive(run.work), profile(run.work)
    if table.is_empty():
        told = "Samples cannot be told apart in this loader: no stopwatch would see their stages"
        return sheet(told if found.stages else NOTHING, nothing(run), [])[0]
    key = (
        "upper bar: computed from the same recording; outside of the transforms a stopwatch sees "
        "only loading · lower bar: the same time, by what it was"
    )
    notes = (f"{population(run, found)} · without collate", key)
    width = SheetPart(0.0, left=_LEFT, right=_RIGHT).width
    upper, lower = (Strip(pieces, width, _RIGHT) for pieces in (_blamed(table), _true(table)))
    height = lower.height + _GAP + upper.height
    body = SheetPart(height, axis="share of a sample's time", left=_LEFT, right=_RIGHT)
    made, (ax,) = sheet(title(table), notes, [body])
    with styled():
        _draw(ax, upper, lower)
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


def _blamed(table: pl.DataFrame) -> list[StripPiece]:
    rows = table.select("blamed", "blamed_share").unique(maintain_order=True).iter_rows()
    return [
        _piece(name, part, _LOADING_COLOUR if name == LOADING else COLOURS["transform"])
        for name, part in rows
    ]


def _true(table: pl.DataFrame) -> list[StripPiece]:
    rows = table.select("stage", "kind", "share").iter_rows()
    return [_piece(name, part, COLOURS[kind], dark=kind == "fetch") for name, kind, part in rows]


def _piece(name: str, part: float, colour: str, *, dark: bool = False) -> StripPiece:
    name, numbers = printable(name, 24), share(part)
    outside = f"{name} {numbers}" if part >= NAMED else ""
    return StripPiece(name, part, numbers, colour, dark=dark, outside=outside)


def _draw(ax: Axes, upper: Strip, lower: Strip) -> None:
    """Draw the naive bar over the true one."""
    base = lower.height + _GAP
    ax.set_ylim(0, base + upper.height)
    middles = [base + BAR / 2, BAR / 2]
    ax.set_yticks(middles, ["a stopwatch", "what happened"], size=TEXT_SIZE, color=INK)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    value_axis(ax, 0.0, 1.0, share)
    ax.grid(visible=False)
    upper.draw(ax, base)
    lower.draw(ax)
