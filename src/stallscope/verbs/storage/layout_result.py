"""The result of `ss.layouts`: how fast each layout of the same samples is, and which one to use.

A sample takes the time to read it in a layout, plus the time that the dataset takes to make it. A
speedup is over the files as they are, for the same samples in the same state. The loop
gets at most what its step can use: a loader that keeps up is not improved by a faster one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any, ClassVar, Final

import polars as pl

from stallscope.bench.comparison import FASTER, OPEN, Factor, of_samples, open_title, rate_of
from stallscope.columns import NAME, Column, Schema, interval
from stallscope.errors import ArgumentError
from stallscope.result import SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import stored
from stallscope.units import capital, count, duration, size, times
from stallscope.verbs.storage.reads import COLD, WARM
from stallscope.verbs.storage.result import LoopDemand

_WHOLE: Final = "{:,.0f}".format

READS: Final = Schema(
    "One row per sample and layout.",
    Column("state", pl.String, "`cold` or `warm`", secret=NAME),
    Column("layout", pl.Int32),
    Column("sample", pl.Int32),
    Column("read_s", pl.Float64, "time to read it"),
)

MAKES: Final = Schema(
    "One row per sample, of its own files and of smaller images, in turns of worker processes.",
    Column("resized", pl.Boolean),
    Column("sample", pl.Int32),
    Column("make_s", pl.Float64, "time of the dataset, from bytes in memory to the sample"),
    Column("start", pl.Int32, "number of the worker process that made it"),
)

WRITTEN: Final = Schema(
    "One row per layout; 0 is the current files.",
    Column("layout", pl.Int32),
    Column("kind", pl.String, secret=NAME),
    Column("resized", pl.Boolean),
    Column("bytes", pl.Int64, "of the samples that were written", "bytes"),
    Column("convert_s", pl.Float64, "for the whole dataset, extrapolated", "to convert", duration),
    Column("random_access", pl.Boolean, "whether any sample can be read alone", "random access"),
    Column("shuffle_share", pl.Float64, "1: as uniform as with files", "shuffle"),
    Column("why_not", pl.String, "why it was not measured"),
    nullable="bytes convert_s random_access shuffle_share",
)

LAYOUTS: Final = Schema(
    "One row per layout; samples are read in a shuffled order.",
    *WRITTEN.shown("kind resized"),
    Column("state", pl.String, "`cold` or `warm`", "state"),
    Column("samples_per_s", pl.Float64, "of all workers, a core each", "samples/s", _WHOLE),
    *interval("samples_low_per_s", _WHOLE),
    Column("gain", pl.Float64, "speedup over the current files", "vs. files", "{:.2f}×".format),
    *interval("gain_low", "{:.2f}".format),
    Column("says", pl.String, "word of `bench.comparison`"),
    Column("loop_gain", pl.Float64, "the same of the loop", "loop speedup", "{:.2f}×".format),
    *WRITTEN.shown("bytes convert_s random_access shuffle_share"),
    Column("rounds", pl.Int32, "samples of which reading and making are known"),
    *WRITTEN.shown("why_not layout"),
)

_PIXELS: Final = 256
"""Short side of smaller images in a recipe, where no transform tells the size that is used."""
WORTH: Final = 1.05
"""Smallest speedup of the loop for which a layout is recommended."""


# Recipes have ten lines at most, and a test runs them. DATA and OUT are the reader's to replace

QUALITY: Final = 90
"""JPEG quality of images that are stored smaller."""
SMALLER: Final = "smaller images"
SHARDS: Final = "tar shards"

RECIPES: Final = {
    SMALLER: """\
from PIL import Image
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
for path in data.rglob("*.jpg"):
    with Image.open(path) as image:
        scale = min(PIXELS / min(image.size), 1)
        shape = [round(side * scale) for side in image.size]
        small = image.resize(shape, Image.Resampling.LANCZOS)
    (out / path.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
    small.save(out / path.relative_to(data), quality=90, exif=image.getexif())
""",
    SHARDS: """\
import random, webdataset
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
random.Random(0).shuffle(files)  # shards are read in order: mix the classes now
out.mkdir(parents=True, exist_ok=True)
with webdataset.ShardWriter(f"{out}/%06d.tar", maxcount=1000) as shards:
    for number, path in enumerate(files):
        name = str(path.relative_to(data))
        shards.write({"__key__": f"{number:08}", "jpg": path.read_bytes(), "name.txt": name})
""",
    "LMDB": """\
import lmdb
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
room = 2 * sum(path.stat().st_size for path in files) + (1 << 30)  # an upper limit, not used up
with lmdb.open(str(out), map_size=room) as tree, tree.begin(write=True) as change:
    for path in files:
        change.put(str(path.relative_to(data)).encode(), path.read_bytes())
""",
    "HDF5": """\
import h5py, numpy
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
with h5py.File(out.with_suffix(".h5"), "w") as file:
    images = file.create_dataset("jpg", len(files), h5py.vlen_dtype(numpy.uint8))
    file["name"] = [str(path.relative_to(data)) for path in files]
    for number, path in enumerate(files):
        images[number] = numpy.frombuffer(path.read_bytes(), numpy.uint8)
""",
}
"""Source by kind of layout; PIXELS is the short side of smaller images."""


@dataclass(frozen=True)
class LayoutConditions(LoopDemand):
    """The loop that was measured, and its samples."""

    samples: int = 0
    """Number of samples that were written."""
    dataset_samples: int = 0
    """Number of samples in the dataset."""
    sample_bytes: float | None = None
    """Mean bytes of a sample's files."""
    makers: int = 1
    """Processes that make samples at a time: the loader's workers, as far as there are cores."""
    image_pixels: int | None = None
    """Short side of the images that were stored smaller; None: there are none."""

    def __post_init__(self) -> None:
        if self.makers < 1:
            raise ValueError(f"{self.makers} processes make the samples")


@dataclass(frozen=True, eq=False)
class Layouts(SavedResult):
    """The same samples as files, in containers, and with smaller images."""

    _view: ClassVar[str] = "results.LAYOUTS"
    _noun: ClassVar[str] = "comparison of layouts"

    reads: pl.DataFrame = stored(READS)
    makes: pl.DataFrame = stored(MAKES)
    written: pl.DataFrame = stored(WRITTEN)
    circumstances: LayoutConditions = field(default_factory=LayoutConditions)
    """The loop that was measured, and its samples."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""

    def recipe(self, kind: str | None = None) -> str:
        """Return Python source that converts a whole folder of images to a layout.

        Args:
            kind: one of `RECIPES`; by default what the best layout needs: smaller images, a
                container, or one after the other; tar shards where none was measured.

        Raises:
            ArgumentError: there is no such recipe.
        """
        kinds = [kind or SHARDS]
        if kind is None and (row := self.best or self.nearest):
            kinds = [SMALLER] * row["resized"] + [row["kind"]] * (row["kind"] in RECIPES)
        if not all(kind in RECIPES for kind in kinds):
            raise ArgumentError(
                f"kind={kind!r}: there are recipes for {', '.join(map(repr, RECIPES))}"
            )
        pixels = str(self.circumstances.image_pixels or _PIXELS)
        return "\n".join(RECIPES[kind].replace("PIXELS", pixels) for kind in kinds)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """Rows of the table, sorted; a layout that was not measured has no rates."""
        seconds_by: dict[tuple[bool, int], list[tuple[float, int]]] = {}
        for small, sample, took_s, start in self.makes.iter_rows():
            seconds_by.setdefault((small, sample), []).append((took_s, start))
        read_s: dict[int, dict[int, float]] = {}
        for _, layout, sample, took_s in self.reads.iter_rows():
            read_s.setdefault(layout, {})[sample] = took_s
        rows: list[dict[str, Any]] = []
        files_s: dict[tuple[int, int], float] = {}
        for written in self.written.to_dicts():  # 0, the files as they are, comes first
            layout, small = written["layout"], written["resized"]
            own_s = {
                (start, sample): took_s + make_s
                for sample, took_s in read_s.get(layout, {}).items()
                for make_s, start in seconds_by.get((small, sample), ())
            }
            files_s = files_s if layout else own_s
            row = {"rounds": len({sample for _, sample in own_s})}
            if own_s:
                row |= self._rates(files_s, own_s, is_files=not layout) | {"state": self.state}
            rows.append(dict.fromkeys(LAYOUTS) | written | row)
        return sorted(rows, key=lambda row: -(row["samples_per_s"] or 0.0))

    def _rates(
        self,
        files_s: dict[tuple[int, int], float],
        own_s: dict[tuple[int, int], float],
        *,
        is_files: bool,
    ) -> dict[str, Any]:
        """Return the rates of a layout, from seconds by start and sample."""
        makers = self.circumstances.makers
        blocks: dict[int, list[float]] = {}
        for (start, _), took_s in own_s.items():
            blocks.setdefault(start, []).append(took_s)
        rate = rate_of([(makers * len(took_s), sum(took_s))] for took_s in blocks.values())
        if rate is None:
            return {}
        pairs = [(files_s[at], took_s, at[0]) for at, took_s in own_s.items() if at in files_s]
        gain: dict[str, Any] = {}
        if pairs and not is_files:
            factor = of_samples(*zip(*pairs, strict=True))
            files_per_s = makers * len(files_s) / sum(files_s.values())
            rate = rate.moved_to(factor.factor * files_per_s)  # a factor is the ratio of the rates
            wanted = self.circumstances.wanted_per_s or inf
            gain = dict(zip(("gain", "gain_low", "gain_high", "says"), factor, strict=True))
            gain["loop_gain"] = min(rate.value, wanted) / min(files_per_s, wanted)
        rates = {"samples_per_s": rate.value, "samples_low_per_s": rate.low}
        return {**rates, "samples_high_per_s": rate.high, **gain}

    def table(self) -> pl.DataFrame:
        """Return one row per layout; columns of `LAYOUTS`."""
        return pl.DataFrame(self._rows, LAYOUTS)

    @property
    def state(self) -> str:
        """State in which all were read: cold, or warm where nothing could be read cold."""
        return COLD if COLD in set(self.reads["state"]) else WARM

    @property
    def files(self) -> dict[str, Any] | None:
        """Row of the files as they are; None: not measured."""
        return next((row for row in self._rows if not row["layout"] and row["rounds"]), None)

    @property
    def nearest(self) -> dict[str, Any] | None:
        """Row with the largest speedup, significant or not; None: no other layout was measured."""
        others = [row for row in self._rows if row["layout"] and row["gain"]]
        return max(others, key=lambda row: row["gain"], default=None)

    @property
    def best(self) -> dict[str, Any] | None:
        """Row of the layout with the largest significant speedup of the loop; None: none."""
        rows = [row for row in self._rows if row["says"] == FASTER and row["loop_gain"] >= WORTH]
        rows.sort(key=lambda row: -row["loop_gain"])
        same = next((row for row in rows if not row["resized"]), None)
        # Other data is worth it only where the same data is clearly not as good
        is_near = same and same["loop_gain"] * WORTH >= rows[0]["loop_gain"]
        return same if is_near else next(iter(rows), None)


def name_of(row: dict[str, Any], pixels: int | None = None) -> str:
    """Return a layout in words."""
    smaller = f" at {pixels} pixels" if pixels else ", smaller"
    return f"{row['kind']}{smaller if row['resized'] else ''}"


def sentence(layouts: Layouts) -> str:
    """Return the answer: which layout to use and its speedup, or to keep the files."""
    files, best, conditions = layouts.files, layouts.best, layouts.circumstances
    if files is None:
        return "No layout was compared before the budget ran out: raise budget_s"
    rate, wanted = files["samples_per_s"], conditions.wanted_per_s
    if wanted and rate >= wanted:
        return (
            f"Keep the files: {layouts.state} and shuffled they give {rate:,.0f} samples/s, "
            f"{times(rate / wanted)} what the step needs"
        )
    row = best or layouts.nearest
    if row is None:
        return "Only the current files were measured: raise budget_s"
    name, interval = name_of(row, conditions.image_pixels), "measured once"
    if row["gain_low"] is not None:
        interval = f"{INTERVAL} {row['gain_low']:.2f} to {row['gain_high']:.2f}"
    if best is not None:
        return (
            f"{capital(name)} would speed up {'the loop' if wanted else 'the loader'} "
            f"by {best['loop_gain']:.2f}×, {layouts.state} and shuffled (reading and transforms "
            f"alone {best['gain']:.2f}×, {interval}); converting takes about "
            f"{duration(best['convert_s'])}"
        )
    tried = f"{name}, {row['gain']:.2f}× ({interval})"
    if row["says"] == OPEN:
        factor = Factor(row["gain"], row["gain_low"], row["gain_high"], OPEN)
        others = layouts.table().filter(pl.col("layout") > 0, pl.col("gain").is_not_null())
        highs = others["gain_high"]
        return open_title("layout", name, factor, highs, conditions.took_s)
    return f"Keep the files: no layout speeds up the loop. Best: {tried}"


def notes_of(layouts: Layouts) -> list[str]:
    """Return the caveats, a sentence each."""
    conditions, notes = layouts.circumstances, []
    if conditions.samples:
        notes.append(
            f"{count(conditions.samples, 'sample')} of {conditions.dataset_samples:,}, "
            f"{size(conditions.sample_bytes)} each; each layout's own library reads them in a "
            "worker; the dataset then decodes and transforms them. Rates are those of "
            f"{count(conditions.makers, 'worker')} with a core each"
        )
    if conditions.image_pixels:
        notes.append(
            f"smaller images have a short side of {conditions.image_pixels} pixels, as JPEG of "
            f"quality {QUALITY}. They are other data: random crops fall elsewhere"
        )
    notes.append("conversion times are extrapolated; speedups of the loop are predicted")
    without_step = "these are rates of the loader, more than a training may need"
    notes = [*chain(notes, conditions.step_notes(without_step), layouts.notes)]
    return [*notes, conditions.budget_note()]
