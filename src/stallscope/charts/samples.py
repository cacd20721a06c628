"""The slowest samples as a small gallery, each with the stage that made it slow.

This is the stage that exceeded its own median most; the longest stage may be as long in every
sample. A run may come from someone else, so images are opened with care: only regular files of
limited size, and only with decoders of plain image formats.
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
from stallscope.charts.sheet import Sheet, styled
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import NOTHING
from stallscope.units import file_name, printable, seconds, size, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.run.result import Run


LARGEST_BYTES: Final = 50_000_000
LARGEST_PIXELS: Final = 100_000_000
FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that PIL decodes itself; others start programs (EPS)."""
COLUMNS: Final = 4
MOST: Final = 8
EVEN: Final = 1.5
"""Multiple of the median from which a sample is slow."""
_PICTURE: Final = 1.25
_LINE: Final = 0.165
_TILE: Final = _PICTURE + 4 * _LINE + 0.25
_LETTERS: Final = 27
_SHARP: Final = 260
"""Pixels of a thumbnail's longer side."""
_KEY: Final = "second line: the stage that took the most beyond its own median"
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
            image.draft("RGB", (_SHARP, _SHARP))  # saves work in the JPEG decoder
            small = image.convert("RGB")
            small.thumbnail((_SHARP, _SHARP))
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
def figure(run: Run) -> Sheet:
    """Draw the gallery."""
    samples, profile = run.samples(), run.profile
    if samples.is_empty():
        none = "Samples cannot be told apart in this loader: there is no slowest one"
        return Sheet(none if profile.stages else NOTHING, nothing(run))
    top = slowest(samples, run.unit_times)
    median_s = float(samples["total_s"].median() or inf)  # type: ignore[arg-type]  # of floats
    height = -(-top.height // COLUMNS) * _TILE
    page = Sheet(title(top, median_s), [f"{_KEY} · {population(run, profile)}"], [height])
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
            ax.text(x, y + _PICTURE + 0.06 + place * _LINE, line, va="top", **look)
    return page


def title(top: pl.DataFrame, median_s: float) -> str:
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
        width = _PICTURE * 1.4
        ax.add_patch(Rectangle((x, y), width, _PICTURE, facecolor="#F2F2F2", edgecolor=sheet.RULE))
        text = "no picture" if there else "no file"
        ax.text(x + width / 2, y + _PICTURE / 2, text, ha="center", va="center", color=sheet.FAINT)
        return
    height, width = picture.shape[:2]
    inch = min(_PICTURE / height, _PICTURE * 1.6 / width)
    box = (x, x + width * inch, y + _PICTURE, y + _PICTURE - height * inch)
    ax.imshow(picture, extent=box, aspect="auto", origin="upper", interpolation="antialiased")


def _lines(row: dict[str, Any], median_s: float) -> list[str]:
    place = f"batch {row['batch']}, sample {row['sample']}"
    place = place if row["index"] is None else f"index {row['index']}"
    name = file_name(row["path"], _LETTERS) if row["path"] else place
    pixels = f"{row['width']} × {row['height']} px" if row["width"] else ""
    about = " · ".join(filter(None, (pixels, size(row["bytes"]) if row["bytes"] else "")))
    slow = f"{seconds(row['total_s'])}, {times(row['total_s'] / median_s)} the median"
    cause = f"{printable(row['cause'], 17)} +{seconds(row['excess_s'])}" if row["cause"] else ""
    return [slow, cause, name, about]
