"""The same samples in other layouts, as a value: what each gives, and which one to use, if any.

A sample takes what reading it takes in a layout, and what the dataset then makes of it. A gain is
that over the files as they are, of the same samples, in the same order and state. What the loop
gets of it is bounded by its step: a loader that keeps up is not improved by a faster one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Final

import polars as pl

from stallscope.bench.comparison import (
    FASTER,
    OPEN,
    Factor,
    Rate,
    budget_for,
    mean_of,
    of_samples,
)
from stallscope.columns import NAME, Column, Schema
from stallscope.errors import ArgumentError
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.storage.reads import COLD, WARM
from stallscope.storage.recipes import RECIPES, SMALLER
from stallscope.store import Contents, StoredTable
from stallscope.units import count, duration, seconds, size, times

_WHOLE: Final = "{:,.0f}".format

READS: Final = Schema(
    "One row a sample and layout.",
    Column("order", pl.String, "`in order` or `shuffled`", secret=NAME),
    Column("state", pl.String, "`cold` or `warm`", secret=NAME),
    Column("layout", pl.Int32),
    Column("sample", pl.Int32),
    Column("read_s", pl.Float64, "time to read it"),
)

MAKES: Final = Schema(
    "One row a sample, of its own files and of smaller images.",
    Column("resized", pl.Boolean),
    Column("sample", pl.Int32),
    Column("make_s", pl.Float64, "time of the dataset, from bytes in memory to the sample"),
)

WRITTEN: Final = Schema(
    "One row a layout; 0 is the files as they are.",
    Column("layout", pl.Int32),
    Column("kind", pl.String, secret=NAME),
    Column("resized", pl.Boolean),
    Column("bytes", pl.Int64, "of the samples that were written"),
    Column("convert_s", pl.Float64, "for the whole dataset, extrapolated, by one process"),
    Column("random_access", pl.Boolean, "whether any sample can be asked for"),
    Column("shuffle_share", pl.Float64, "1: a shuffle of the whole dataset is uniform"),
    Column("why_not", pl.String, "why it was not measured"),
)

LAYOUTS: Final = Schema(
    "One row a layout, order and state.",
    Column("kind", pl.String, secret=NAME),
    Column("resized", pl.Boolean),
    Column("order", pl.String, "`in order` or `shuffled`", "read"),
    Column("state", pl.String, "`cold` or `warm`", "state"),
    Column("samples_per_s", pl.Float64, "of all workers, a core each", "samples/s", _WHOLE),
    Column("samples_low_per_s", pl.Float64, "its 95% CI", INTERVAL, _WHOLE),
    Column("samples_high_per_s", pl.Float64),
    Column("gain", pl.Float64, "speedup over the files as they are", "vs. files", "{:.2f}×".format),
    Column("gain_low", pl.Float64, "its 95% CI", INTERVAL, "{:.2f}".format),
    Column("gain_high", pl.Float64),
    Column("says", pl.String, "word of `bench.comparison`"),
    Column("loop_gain", pl.Float64, "the same of the loop", "loop speedup", "{:.2f}×".format),
    Column("bytes", pl.Int64, "of the samples that were written", "bytes"),
    Column("convert_s", pl.Float64, "for the whole dataset, extrapolated", "to convert", duration),
    Column("random_access", pl.Boolean, "whether any sample can be asked for", "random access"),
    Column("shuffle_share", pl.Float64, "1: as uniform as with files", "shuffle"),
    Column("rounds", pl.Int32, "samples of which reading and making are known"),
    Column("why_not", pl.String, "why it was not measured"),
    Column("layout", pl.Int32),
)

_PIXELS: Final = 256
"""Short side of smaller images where no transform says which size is used."""
IN_ORDER, SHUFFLED = "in order", "shuffled"
WORTH: Final = 1.05
"""A layout that gives the loop less is not recommended."""


@dataclass(frozen=True)
class LayoutConditions(LoopConditions):
    """What was measured, and on what."""

    samples: int = 0
    """Of the dataset that were written."""
    dataset_samples: int = 0
    """That the dataset has."""
    sample_bytes: float | None = None
    """Of a sample's files."""
    makers: int = 1
    """Processes that make samples at a time: the loader's workers, as far as there are cores."""
    wanted_per_s: float | None = None
    """Samples a second that the step would use if it never waited; None without a step."""
    image_pixels: int | None = None
    """Short side of images that were stored smaller; None: there are none."""
    image_quality: int = 0
    """Of their JPEG."""
    pixel_difference: float | None = None
    """What that costs beside images that were made as small and not compressed again: mean
    difference of pixels, as a share (0 to 1) of white."""
    budget_s: float = 0.0
    """What was allowed, seconds."""
    took_s: float = 0.0
    """What was used."""


@dataclass(frozen=True, eq=False)
class Layouts(SavedResult):
    """The same data as files, in containers and at the size that is used, read in turn."""

    _view: ClassVar[str] = "results.LAYOUTS"
    _contents: ClassVar = Contents(
        kind="layouts",
        noun="comparison of layouts",
        tables=(
            StoredTable("reads", READS, READS.keys(), refers={"layout": "written.layout"}),
            StoredTable("makes", MAKES, MAKES.keys()),
            StoredTable("written", WRITTEN, {"layout", "kind", "resized", "why_not"}),
        ),
        values={"circumstances": LayoutConditions, "notes": tuple[str, ...]},
        positive={"makers"},
    )

    reads: pl.DataFrame
    """Columns of `READS`."""
    makes: pl.DataFrame
    """Columns of `MAKES`."""
    written: pl.DataFrame
    """Columns of `WRITTEN`."""
    circumstances: LayoutConditions = field(default_factory=LayoutConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    def recipe(self, kind: str | None = None) -> str:
        """Return Python source that converts a whole folder of images to a layout.

        Args:
            kind: one of `storage.recipes.RECIPES`; by default what the recommended layout needs,
                or the nearest to it: smaller images, a container, or one after the other.

        Raises:
            ArgumentError: there is no such recipe, or nothing was compared and no kind is given.
        """
        kinds = [kind or ""]
        if kind is None and (row := self.best or self.nearest):
            kinds = [SMALLER] * row["resized"] + [row["kind"]] * (row["kind"] in RECIPES)
        if not all(kind in RECIPES for kind in kinds):
            known = ", ".join(map(repr, RECIPES))
            raise ArgumentError(f"kind={kind!r}: there are recipes for {known}")
        pixels = str(self.circumstances.image_pixels or _PIXELS)
        return "\n".join(RECIPES[kind].replace("PIXELS", pixels) for kind in kinds)

    @property
    def nearest(self) -> dict[str, Any] | None:
        """The layout other than the files with the largest gain; None: none was measured."""
        others = [row for row in self._of() if row["layout"] and row.get("gain")]
        return max(others, key=lambda row: row["gain"], default=None)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        written = {row["layout"]: row for row in self.written.to_dicts()}
        rows, known = [], set()
        for (order, state), reads in self._totals.items():
            for layout, own_s in reads.items():
                known.add(layout)
                row = {**written[layout], "order": order, "state": state, "rounds": len(own_s)}
                rows.append(row | self._rates(reads.get(0, {}), own_s, is_files=not layout))
        nothing = {"order": None, "state": None, "rounds": 0}
        return rows + [row | nothing for layout, row in written.items() if layout not in known]

    @cached_property
    def _totals(self) -> dict[tuple[str, str], dict[int, dict[int, float]]]:
        """By order and state, then by layout and sample: seconds to read and make it."""
        resized = dict(self.written.select("layout", "resized").iter_rows())
        make_s = {(small, sample): took_s for small, sample, took_s in self.makes.iter_rows()}
        found: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
        for order, state, layout, sample, read_s in self.reads.iter_rows():
            if (resized[layout], sample) in make_s:
                whole_s = read_s + make_s[resized[layout], sample]
                found.setdefault((order, state), {}).setdefault(layout, {})[sample] = whole_s
        return found

    def _rates(
        self, files_s: dict[int, float], own_s: dict[int, float], *, is_files: bool
    ) -> dict[str, Any]:
        """Samples a second, and how many times as many as from the files; nothing of these."""
        told = self.circumstances
        mine = mean_of([*own_s.values()])
        rate = Rate(told.makers / mine.value)
        if mine.low and mine.high:
            rate = Rate(rate.value, told.makers / mine.high, told.makers / mine.low)
        pairs = [(files_s[sample], took_s) for sample, took_s in own_s.items() if sample in files_s]
        gain: dict[str, Any] = {}
        if pairs and not is_files:
            found = of_samples(*zip(*pairs, strict=True))
            now = told.makers / mean_of([*files_s.values()]).value
            rate = rate.moved_to(found.factor * now)  # a factor is the ratio of the rates shown
            wanted = told.wanted_per_s or inf
            gain = dict(zip(("gain", "gain_low", "gain_high", "says"), found, strict=True))
            gain["loop_gain"] = min(rate.value, wanted) / min(now, wanted)
        names = ("samples_per_s", "samples_low_per_s", "samples_high_per_s")
        return {**dict(zip(names, (rate.value, rate.low, rate.high), strict=True)), **gain}

    @cached_property
    def _table(self) -> pl.DataFrame:
        rows = sorted(self._rows, key=_order)
        return pl.DataFrame(
            [[row.get(name) for name in LAYOUTS] for row in rows], LAYOUTS, orient="row"
        )

    def table(self) -> pl.DataFrame:
        """One row a layout, order and state; columns of `LAYOUTS`."""
        return self._table

    @property
    def state(self) -> str:
        """What a first epoch meets: cold, or warm where nothing could be read cold."""
        return COLD if COLD in set(self.reads["state"]) else WARM

    @property
    def files(self) -> dict[str, Any] | None:
        """The files as they are, shuffled: a row; None: not measured."""
        return next(iter(self._of(0)), None)

    @property
    def best(self) -> dict[str, Any] | None:
        """The layout that gives the loop most for sure, a row of the table; None: none does."""
        rows = [row for row in self._of() if row["layout"] and row.get("says") == FASTER]
        sure = [row for row in rows if row["loop_gain"] >= WORTH]
        same = [row for row in sure if not row["resized"]]
        most, of_same = (
            max(those, key=lambda row: row["loop_gain"], default=None) for those in (sure, same)
        )
        # Other data is worth it only where the same data is clearly not as good
        is_near = of_same and most and of_same["loop_gain"] * WORTH >= most["loop_gain"]
        return of_same if is_near else most

    def _of(self, layout: int | None = None) -> list[dict[str, Any]]:
        """The rows that a training would meet: shuffled, in the state of a first epoch."""
        return [
            row
            for row in self._rows
            if row["order"] == SHUFFLED
            and row["state"] == self.state
            and layout in (None, row["layout"])
        ]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["state"] != COLD, row["order"] != SHUFFLED, -(row.get("samples_per_s") or 0.0)


def name_of(row: dict[str, Any], pixels: int | None = None) -> str:
    """A layout in words."""
    smaller = f" at {pixels} pixels" if pixels else ", smaller"
    return f"{row['kind']}{smaller if row['resized'] else ''}"


def sentence(layouts: Layouts) -> str:
    """Which layout to use, and what the loop would get; or to leave it."""
    files, best, told = layouts.files, layouts.best, layouts.circumstances
    if files is None:
        return "No layout was compared: the time was over: allow more of it (budget_s)"
    rate, wanted = files["samples_per_s"], told.wanted_per_s
    if wanted and rate >= wanted:
        return (
            f"Leave the files as they are: {layouts.state} and shuffled they give {rate:,.0f} "
            f"samples/s, {times(rate / wanted)} what the step asks for"
        )
    if best is None:
        near = layouts.nearest
        if near is None:
            return "Only the files as they are were measured: allow more time (budget_s)"
        said = f"{name_of(near, told.image_pixels)}, {near['gain']:.2f}×{_ends(near)}"
        if near["says"] == OPEN:
            found = Factor(near["gain"], near["gain_low"], near["gain_high"], OPEN)
            more = duration(budget_for(found, told.took_s))
            return f"Not settled whether another layout gives more: allow {more}; nearest: {said}"
        return f"Leave the files as they are: no layout gives the loop more; nearest: {said}"
    what = name_of(best, told.image_pixels)
    loop = "the loop" if wanted else "the loader"
    return (
        f"As {what}, {loop} gets {best['loop_gain']:.2f}× as many samples {layouts.state} and "
        f"shuffled (the reading with its transforms: {best['gain']:.2f}×{_ends(best)}); converting "
        f"takes about {duration(best['convert_s'])}"
    )


def _ends(row: dict[str, Any]) -> str:
    if row["gain_low"] is None:
        return ", from a single sample"
    return f", {INTERVAL} {row['gain_low']:.2f} to {row['gain_high']:.2f}"


def notes_of(layouts: Layouts) -> list[str]:
    """What a reader has to know, a sentence each."""
    told, said = layouts.circumstances, []
    if told.samples:
        each = size(told.sample_bytes)
        said.append(
            f"{count(told.samples, 'sample')} of {told.dataset_samples:,}, {each} each, read by "
            "their own library in a worker, with the time of the dataset's decode and transforms; "
            f"samples/s are those of {count(told.makers, 'worker')} with a core each"
        )
    if told.image_pixels:
        much = "" if told.pixel_difference is None else f" by {told.pixel_difference:.1%}"
        said.append(
            f"smaller images: short side {told.image_pixels} pixels, JPEG of quality "
            f"{told.image_quality}; not the same data: random crops fall elsewhere, and pixels "
            f"differ{much} of white (mean) beside images made as small without loss"
        )
    said.append("times to convert are extrapolated from the sample; gains of the loop predicted")
    if told.simulated_step_s is not None:
        said.append(
            f"the step is simulated: a timer of {seconds(told.simulated_step_s)}, no device"
        )
    elif not told.has_step:
        said.append("no step was given: this is the loader alone, a training may not need more")
    return [*said, *layouts.notes, f"{seconds(told.took_s)} of at most {seconds(told.budget_s)}"]
