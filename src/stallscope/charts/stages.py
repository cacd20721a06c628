"""Pictures of samples: their stages and the spread of each, a stopwatch's view, the slowest ones.

The bar has each stage's mean time, in the order of the sample's stages. Below it, single samples
are dots, with marks at p50 and p95: a mean hides if a stage is always slow or sometimes very slow,
and these have different causes.

Another picture shows the same samples as a stopwatch around each transform would. The first
transform that touches the pixels decodes many images, so a stopwatch charges that transform with
the decode. A stopwatch calls all time outside of the transforms loading, which often is not the
disk. There is no second measurement: the same spans are added up the naive way.

The slowest samples are a small gallery. What made a sample slow is the stage that exceeded its own
median most; the longest stage may be as long in every sample. A run may come from someone else, so
images are opened with care: only regular files of limited size, and only with decoders of plain
image formats.
"""

from __future__ import annotations

import stat
import warnings
from collections import Counter
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.patches import Rectangle

from stallscope.charts import sheet
from stallscope.charts.bars import BAR, Strip, StripPiece
from stallscope.charts.sheet import DOTS, LINE, MOST_ROWS, PICTURE, ROW, SHARP, Sheet, styled
from stallscope.model.thresholds import NOTABLE, SMALL
from stallscope.run.stall_data import nothing, population
from stallscope.run.summary import NOTHING, UNIT_KEYS, remarks, sentence, stage_name
from stallscope.stages import COLOURS
from stallscope.units import count, file_name, printable, seconds, share, size, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.run.result import Run
    from stallscope.run.summary import Profile


_WAITING_SHOWN: Final = 0.1
"""Share of a stage from which waiting is drawn: less is within the clocks' error."""
_KEY: Final = "light and hatched: waiting, not on a CPU (disk, network, a busy machine)"
MOST_DOTS: Final = 250
_COLUMNS: Final = ("share", "p50", "p95", "waiting")


@styled
def figure(run: Run, *, has_spread: bool = True) -> Sheet:
    """Draw a sample's mean time by stage, and below it the spread of each stage."""
    profile = run.profile
    title = sentence(profile)
    if not profile.stages:
        return Sheet(title, nothing(run))
    pieces = pieces_of(profile)
    strip = Strip(pieces)
    heights = [strip.height + sheet.AXIS + 0.2]
    heights += [ROW * (len(profile.stages[:MOST_ROWS]) + 1) + sheet.AXIS + 0.2] * has_spread
    notes = [population(run, profile), *remarks(profile), *(run.notes if has_spread else ())]
    page = Sheet(title, notes, heights)
    ax = page.parts[0]
    strip.fill(ax)
    ax.set_axis_on()
    sheet.name_heights(ax, {})
    sheet.linear_time(ax, strip.total)
    unread = sum(stage.cpu_share is None for stage in profile.stages)
    parts = [f"mean time of a worker per {profile.unit}"]
    if any(stage.per != profile.unit for stage in profile.stages):
        parts[0] += ", with its part of the batch's collate"
    if any(piece.waiting for piece in pieces):
        parts.append(_KEY)
    if unread == len(profile.stages):
        parts.append("computing and waiting are not distinguished")
    elif unread:
        parts.append(f"not distinguished from waiting: {count(unread, 'stage')}")
    ax.set_xlabel("\n".join(sheet.wrapped(" · ".join(parts), 135)))
    if has_spread:
        _draw_spread(page.parts[1], profile)
    return page


def sample_figure(run: Run) -> Sheet:
    """Draw the bar alone."""
    return figure(run, has_spread=False)


def pieces_of(profile: Profile) -> list[StripPiece]:
    """Return the pieces from left to right: small stages merged, stages per batch last."""
    inside = [stage for stage in profile.stages if stage.per == profile.unit]
    small = [stage for stage in inside if stage.share < SMALL]
    small = small if len(small) > 1 else []
    # Unnamed code is all over the sample: it comes after the stages with a place in it
    drawn = [stage for stage in inside if not any(stage is small_stage for small_stage in small)]
    drawn.sort(key=lambda stage: (stage.kind == "other", stage.place))
    beside = [s for s in profile.stages if s.per != profile.unit and s.share >= SMALL]
    rows = [
        (printable(stage.stage, 24), stage.kind, stage.mean_s, stage.share, stage.waiting_share)
        for stage in (*drawn, *beside)
    ]
    if small:
        mean_s, part = (sum(getattr(s, name) for s in small) for name in ("mean_s", "share"))
        rows.insert(len(drawn), (f"{len(small)} more", "other", mean_s, part, None))
    return [
        StripPiece(
            name,
            mean_s,
            f"{share(part)} · {seconds(mean_s)}",
            COLOURS[kind],
            waiting if waiting and waiting >= _WAITING_SHOWN else 0.0,
            share(part),
        )
        for name, kind, mean_s, part, waiting in rows
    ]


def _draw_spread(ax: Axes, profile: Profile) -> None:
    drawn, hidden = profile.stages[:MOST_ROWS], profile.stages[MOST_ROWS:]
    every = np.concatenate([stage.times_s[stage.times_s > 0] for stage in drawn])
    low, high = (float(every.min()), float(every.max())) if every.size else (1e-6, 1e-3)
    sheet.time_axis(ax, low, high)
    sheet.name_rows(ax, [stage_name(stage, profile.unit) for stage in drawn])
    cells = []
    for at, stage in enumerate(drawn):
        ax.axhline(at, color=sheet.RULE, linewidth=0.6, zorder=0)
        dots = np.maximum(thinned(stage.times_s), low)
        # The golden ratio's multiples fill a row evenly, the same way each time
        heights = at + ((np.arange(dots.size) * 0.618034) % 1 - 0.5) * 0.5
        look: dict[str, Any] = {"alpha": 0.55, "linewidth": 0, "zorder": 2}
        ax.scatter(dots, heights, s=6, color=COLOURS[stage.kind], **look)
        p50, p95 = (stage.quantile_s(quantile) for quantile in (0.5, 0.95))
        for value, half, width in ((p50, 0.33, 2.2), (p95, 0.22, 1.6)):
            xs, ys = [max(value, low)] * 2, [at - half, at + half]
            ax.plot(xs, ys, color=sheet.INK, linewidth=width, zorder=3)
        cells.append((share(stage.share), seconds(p50), seconds(p95), share(stage.waiting_share)))
    sheet.write_columns(ax, _COLUMNS, cells)
    log = " (log scale)" if sheet.spans_decades(low, high) else ""
    parts = [f"time in one {profile.unit}{log}", "bars: p50 and p95"]
    if any(stage.times_s.size > MOST_DOTS for stage in profile.stages):
        parts.append(f"dots: {MOST_DOTS} of {profile.units:,}")
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        parts.append(f"not shown: {count(len(hidden), 'more stage')}, together {taken}")
    ax.set_xlabel("\n".join(sheet.wrapped(" · ".join(parts), 80)))


def thinned(times_s: np.ndarray) -> np.ndarray:
    """Return at most `MOST_DOTS` of the times, evenly over their ranks, with both extremes."""
    ordered: np.ndarray = np.sort(times_s)
    if ordered.size > MOST_DOTS:
        ordered = ordered[np.linspace(0, ordered.size - 1, MOST_DOTS).round().astype(int)]
    return ordered


# A stopwatch around each transform

LOADING: Final = "loading"
"""Everything in a sample outside of the pipeline's own transforms."""
_NAMES: Final = ("a stopwatch", "what happened")
LIBRARIES: Final = ("PIL", "torchvision", "cv2")
"""Libraries whose stages (`PIL.convert`) are calls in the dataset's own code, which a stopwatch
around the transforms does not see."""
_STOPWATCH_KEY: Final = (
    "upper bar: computed from the same recording; outside of the transforms a stopwatch sees only "
    "loading · lower bar: the same time, by what it was"
)


def naive(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the naive table and its true contents, the longest first.

    Reading and decoding that interrupt a transform are charged to that transform.

    Args:
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.

    Returns:
        `blamed, blamed_share, stage, kind, share`: a transform or `LOADING` and its share (0 to 1)
        of the samples' time, and the stages that took this time, with their shares of all time.
    """
    library = pl.col("stage").str.split(".").list.first().is_in(LIBRARIES)
    own = (pl.col("kind") == "transform") & ~library
    lazy = pl.col("kind").is_in(("fetch", "decode"))
    around = pl.when(~lazy).then(pl.when(own).then("stage").otherwise(pl.lit(LOADING)))
    before, after = (
        fill.over(UNIT_KEYS) for fill in (around.forward_fill(), around.backward_fill())
    )
    return (
        spans.filter(pl.col("sample").is_not_null())
        .with_columns(pl.col("stage", "kind").cast(pl.String))
        .with_columns(blamed=pl.when(before == after).then(before).otherwise(pl.lit(LOADING)))
        .group_by("blamed", "stage", "kind", maintain_order=True)
        .agg(share=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .with_columns(pl.col("share") / pl.col("share").sum())
        .with_columns(blamed_share=pl.col("share").sum().over("blamed"))
        .sort("blamed_share", "blamed", "share", descending=True, maintain_order=True)
        .select("blamed", "blamed_share", "stage", "kind", "share")
    )


@styled
def stopwatch_figure(run: Run) -> Sheet:
    """Draw both bars, the stopwatch's above the true stages."""
    table, profile = naive(run.work), run.profile
    if table.is_empty():
        none = "Samples cannot be distinguished in this loader: no stopwatch would see their stages"
        return Sheet(none if profile.stages else NOTHING, nothing(run))
    blames = table.select("blamed", "blamed_share").unique(maintain_order=True).rows()
    colours = {LOADING: sheet.MID}
    above = [(name, part, colours.get(name, COLOURS["transform"])) for name, part in blames]
    stages = table.select("stage", "share", "kind").iter_rows()
    below = [(name, part, COLOURS[kind]) for name, part, kind in stages]
    upper, lower = (
        Strip(
            [StripPiece(printable(n, 24), p, share(p), c, short=share(p)) for n, p, c in rows],
            sheet.beside(_NAMES),
        )
        for rows in (above, below)
    )
    base = lower.height + ROW
    notes = (f"{population(run, profile)} · without collate", _STOPWATCH_KEY)
    page = Sheet(stopwatch_title(table), notes, [base + upper.height + sheet.AXIS])
    (ax,) = page.parts
    ax.set_ylim(0, base + upper.height)
    sheet.name_heights(ax, dict(zip((base + BAR / 2, BAR / 2), _NAMES, strict=True)))
    sheet.value_axis(ax, 0.0, 1.0, share)
    ax.grid(visible=False)
    upper.draw(ax, base)
    lower.draw(ax)
    ax.set_xlabel("share of a sample's time")
    return page


def stopwatch_title(table: pl.DataFrame) -> str:
    """Return a sentence with the stopwatch's answer and the true stages."""
    hiding = table.filter(pl.col("kind") == "decode", pl.col("share") >= NOTABLE)
    about = hiding.sort("share", descending=True) if hiding.height else table
    name, whole = about.select("blamed", "blamed_share").row(0)
    inside = table.filter(pl.col("blamed") == name)
    decoding, reading = (
        float(inside.filter(pl.col("kind") == kind)["share"].sum()) for kind in ("decode", "fetch")
    )
    if name == LOADING:
        spoken = f"{share(reading)} is reading" if reading else "no reading was seen"
        decoded = f"{share(decoding)} is decode" if decoding else "no decoding was seen"
        return f"A stopwatch calls {share(whole)} of a sample's time loading; {spoken}, {decoded}"
    blame = f"A stopwatch blames {printable(name)} for {share(whole)} of a sample's time"
    if decoding < NOTABLE:
        return f"{blame}; no decoding is hidden in there"
    return f"{blame}; {share(decoding / whole)} of that is decode"


# The slowest samples, each with the stage that made it slow

LARGEST_BYTES: Final = 50_000_000
LARGEST_PIXELS: Final = 100_000_000
FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that PIL decodes itself; others start programs (EPS)."""
COLUMNS: Final = 4
MOST: Final = 8
EVEN: Final = 1.5
"""Multiple of the median from which a sample is slow."""
_TILE: Final = PICTURE + 4 * LINE + ROW
_PIXELS: Final = 2 * round(PICTURE * DOTS * SHARP)
"""Pixels of a thumbnail's longer side."""
_SLOWEST_KEY: Final = "second line: the stage that took the most beyond its own median"
_SAMPLE: Final = ["rank", "epoch", "batch", "sample"]


def thumbnail(path: str | None) -> np.ndarray | None:
    """Return a thumbnail, uint8 of shape (height, width, 3); None if the file has no image."""
    from PIL import Image

    with suppress(Exception), warnings.catch_warnings():  # a broken image is shown as a plain tile
        warnings.simplefilter("ignore")
        about = Path(path or "").stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_BYTES:
            return None
        with Image.open(str(path), formats=FORMATS) as image:
            if image.width * image.height > LARGEST_PIXELS:
                return None
            image.draft("RGB", (_PIXELS, _PIXELS))  # saves work in the JPEG decoder
            small = image.convert("RGB")
            small.thumbnail((_PIXELS, _PIXELS))
            return np.asarray(small)
    return None


def slowest(samples: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """Return the slowest rows of `Run.samples`, by their rows of `run.summary.unit_times`.

    Columns `cause` and `excess_s`: a stage, and the seconds by which it exceeded its own median.
    """
    excess = (
        times.filter(pl.col("sample").is_not_null())
        .with_columns(excess_s=pl.col("wall_s") - pl.col("wall_s").median().over("stage", "kind"))
        .sort("excess_s", descending=True, maintain_order=True)
        .unique(_SAMPLE, keep="first", maintain_order=True)
        .select(*_SAMPLE, pl.col("stage").alias("cause"), "excess_s")
    )
    top = samples.sort("total_s", descending=True, maintain_order=True).head(MOST)
    return top.join(excess, on=_SAMPLE, how="left", maintain_order="left")


@styled
def slowest_figure(run: Run) -> Sheet:
    """Draw the gallery."""
    samples, profile = run.samples(), run.profile
    if samples.is_empty():
        none = "Samples cannot be distinguished in this loader: there is no slowest one"
        return Sheet(none if profile.stages else NOTHING, nothing(run))
    top = slowest(samples, run.unit_times)
    median_s = float(samples["total_s"].median() or inf)  # type: ignore[arg-type]  # of floats
    height = -(-top.height // COLUMNS) * _TILE
    page = Sheet(
        slowest_title(top, median_s), [f"{_SLOWEST_KEY} · {population(run, profile)}"], [height]
    )
    (ax,) = page.parts
    ax.set_xlim(0, sheet.ROOM)  # inches, as upwards
    ax.set_ylim(height, 0)
    ax.set_axis_off()
    for number, row in enumerate(top.iter_rows(named=True)):
        x, y = number % COLUMNS * sheet.ROOM / COLUMNS, number // COLUMNS * _TILE
        _draw_picture(ax, row["path"], x, y, there=row["bytes"] is not None)
        faint: dict[str, Any] = {"color": sheet.FAINT}
        looks: list[dict[str, Any]] = [{"weight": "bold"}, {}, faint, faint]
        for place, (line, look) in enumerate(zip(_lines(row, median_s), looks, strict=True)):
            ax.text(x, y + PICTURE + 0.06 + place * LINE, line, va="top", **look)
    return page


def slowest_title(top: pl.DataFrame, median_s: float) -> str:
    """Return a sentence with the times of the slowest samples and the main cause."""
    slow = top["total_s"].to_list()
    if slow[0] < EVEN * median_s:
        return f"Even the slowest sample takes only {times(slow[0] / median_s)} the median"
    lead = (
        f"The {len(slow)} slowest samples take {times(slow[-1] / median_s)} to "
        f"{times(slow[0] / median_s)} the median"
    )
    causes = Counter(cause for cause in top["cause"] if cause).most_common(1)
    if not causes or 2 * causes[0][1] < len(slow):
        return f"{lead}; no single stage is behind it"
    cause, number = causes[0]
    return f"{lead}; {printable(cause)} slowed {number if number < len(slow) else 'all'} of them"


def _draw_picture(ax: Axes, path: str | None, x: float, y: float, *, there: bool) -> None:
    picture = thumbnail(path)
    if picture is None:
        width = PICTURE * 1.4
        ax.add_patch(Rectangle((x, y), width, PICTURE, facecolor="#F2F2F2", edgecolor=sheet.RULE))
        middle, text = (x + width / 2, y + PICTURE / 2), "no picture" if there else "no file"
        sheet.write_centred(ax, *middle, text, color=sheet.FAINT)
        return
    height, width = picture.shape[:2]
    inch = min(PICTURE / height, PICTURE * 1.6 / width)
    box = (x, x + width * inch, y + PICTURE, y + PICTURE - height * inch)
    ax.imshow(picture, extent=box, aspect="auto", origin="upper", interpolation="antialiased")


def _lines(row: dict[str, Any], median_s: float) -> list[str]:
    place = f"batch {row['batch']}, sample {row['sample']}"
    place = place if row["index"] is None else f"index {row['index']}"
    name = file_name(row["path"]) if row["path"] else place
    pixels = f"{row['width']} × {row['height']} px" if row["width"] else ""
    about = " · ".join(filter(None, (pixels, size(row["bytes"]) if row["bytes"] else "")))
    slow = f"{seconds(row['total_s'])}, {times(row['total_s'] / median_s)} the median"
    cause = f"{printable(row['cause'], 17)} +{seconds(row['excess_s'])}" if row["cause"] else ""
    return [slow, cause, name, about]
