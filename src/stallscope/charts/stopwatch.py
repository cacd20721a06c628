"""The same samples twice: as a stopwatch around each transform sees them, and as they are.

Many images are opened lazily: they are decoded by whichever transform first touches the pixels,
and a stopwatch charges that transform with the decoding. What lies outside of the transforms, the
stopwatch can only call loading, and often that is not the disk. No second measurement: the same
spans, added up the naive way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    INK,
    MARGIN,
    PAPER,
    RULE,
    SMALL_SIZE,
    WIDTH,
    SheetPart,
    name_rows,
    sheet,
    styled,
    text_width,
)
from stallscope.names import printable
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import NOTHING, UNIT_KEYS, profile
from stallscope.stages import COLOURS
from stallscope.units import share

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
_HALF: Final = 0.36
_LOADING_COLOUR: Final = "#8C8C8C"
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


@dataclass(frozen=True)
class StopwatchPiece:
    """A piece of one of the two bars."""

    name: str
    share: float
    colour: str
    light_text: bool = False


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
    body = SheetPart(1.5, axis="share of a sample's time", left=_LEFT, right=_RIGHT)
    made, (ax,) = sheet(title(table), notes, [body])
    with styled():
        draw(ax, table)
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


def draw(ax: Axes, table: pl.DataFrame) -> Axes:
    """Draw the naive bar over the true one."""
    name_rows(ax, ["a stopwatch", "what happened"])
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    for row, pieces in enumerate((_naive_pieces(table), _true_pieces(table))):
        start = 0.0
        for piece in pieces:
            _draw_piece(ax, piece, start, row)
            start += piece.share
            if row == 0:
                ax.axvline(start, color=RULE, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    return ax


def _naive_pieces(table: pl.DataFrame) -> list[StopwatchPiece]:
    rows = table.select("blamed", "blamed_share").unique(maintain_order=True).iter_rows()
    return [
        StopwatchPiece(
            printable(name), part, _LOADING_COLOUR if name == LOADING else COLOURS["transform"]
        )
        for name, part in rows
    ]


def _true_pieces(table: pl.DataFrame) -> list[StopwatchPiece]:
    return [
        StopwatchPiece(printable(stage), part, COLOURS[kind], light_text=kind == "fetch")
        for stage, kind, part in table.select("stage", "kind", "share").iter_rows()
    ]


def _draw_piece(ax: Axes, piece: StopwatchPiece, start: float, row: int) -> None:
    box = Rectangle(
        (start, row - _HALF), piece.share, 2 * _HALF, facecolor=piece.colour, edgecolor=PAPER, lw=1
    )
    ax.add_patch(box)
    room = piece.share * (WIDTH - _LEFT - _RIGHT - 2 * MARGIN)
    texts = (f"{piece.name}\n{share(piece.share)}", share(piece.share))
    for text in texts:
        if max(text_width(line, SMALL_SIZE) for line in text.split("\n")) + 0.08 <= room:
            colour = PAPER if piece.light_text else INK
            middle = start + piece.share / 2
            ax.text(middle, row, text, ha="center", va="center", size=SMALL_SIZE, color=colour)
            return
