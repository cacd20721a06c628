"""The timed lines of a pipeline: hits, time and own time of each line, and the hottest line.

A line's time includes everything that the line calls, so the line that calls the transforms always
takes longest. A line's own time excludes the other listed functions that it calls; own times add
up, also in a recursive function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_once
from stallscope.columns import CODE, CODE_FILE, NAME, Column, Schema, interval
from stallscope.model.thresholds import NOTABLE
from stallscope.result import Conditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import stored
from stallscope.units import capital, count, seconds, share

FUNCTIONS: Final = Schema(
    "One row per function whose lines were timed.",
    Column("function", pl.String, "its name", secret=NAME),
    Column("file", pl.String, "where it is", secret=CODE_FILE),
    Column("line", pl.Int32, "where it begins"),
    Column("stage", pl.String, "stage that it is part of; null: of none", secret=NAME),
    Column("kind", pl.String, "kind of the stage", secret=NAME),
    Column("why_not", pl.String, "why its source cannot be shown"),
    nullable="stage kind why_not",
)

LINES: Final = Schema(
    "One row per line that ran.",
    Column("function", pl.String, secret=NAME),
    Column("line", pl.Int32),
    Column("hits", pl.Int64, "number of runs; null: not counted"),
    Column("share", pl.Float64, "share of the time, including callees"),
    Column("own_share", pl.Float64, "share, excluding the other listed functions", "own"),
    *interval("own_low"),
    nullable="hits",
)

SOURCES: Final = Schema(
    "One row per line of the functions, from the first to the last.",
    Column("function", pl.String, secret=NAME),
    Column("line", pl.Int32),
    Column("source", pl.String, "text without its line break", secret=CODE),
)


@dataclass(frozen=True)
class LinesConditions(Conditions):
    """Conditions of the measurement."""

    unit: str = "sample"
    """Counted unit: "sample", or "batch" if an index stands for a whole batch."""
    samples: int = 0
    """Number of units that hits and times refer to."""
    wall_s: float = 0.0
    """Seconds that these units take, including collate: 100% of all shares."""
    looks: int = 0
    """Number of looks at the running line: the sample size of all shares."""


@dataclass(frozen=True, eq=False)
class Lines(SavedResult):
    """Time of each line of a dataset, its transforms and its collate function."""

    _view: ClassVar[str] = "code.LINES"
    _noun: ClassVar[str] = "listing of lines"

    functions: pl.DataFrame = stored(FUNCTIONS)
    lines: pl.DataFrame = stored(LINES)
    sources: pl.DataFrame = stored(SOURCES)
    circumstances: LinesConditions = field(default_factory=LinesConditions)
    """Conditions of the measurement."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""

    @computed_once
    def table(self) -> pl.DataFrame:
        """Return one row per line that ran, the hottest first; columns of `lines.result.TABLE`."""
        wall_s = self.circumstances.wall_s
        about = self.functions.select("function", "file", "stage", "kind")
        return (
            self.lines.join(about, on="function")
            .join(self.sources, on=_KEYS, how="left")
            .with_columns(time_s=pl.col("share") * wall_s, own_s=pl.col("own_share") * wall_s)
            .sort("own_share", "share", descending=True, maintain_order=True)
            .select([pl.col(name).cast(kind) for name, kind in TABLE.items()])
        )


KEY: Final = (
    "share: of a sample's time, including everything the line calls · own: excluding the other "
    "listed functions · heat: own"
)

TABLE: Final = Schema(
    "One row per line that ran, the hottest first. Shares are of a sample's time.",
    Column("function", pl.String),
    Column("file", pl.String),
    Column("line", pl.Int32, "", "line", str),
    Column("hits", pl.Int64, "number of runs; null: not counted", "hits"),
    Column("time_s", pl.Float64, "time, including callees", "time"),
    Column("share", pl.Float64, "the same as a share", "share"),
    Column("source", pl.String, "null: there is none"),
    Column("own_s", pl.Float64, "time, excluding the other listed functions"),
    *LINES.shown("own_share own_low own_high"),
    *FUNCTIONS.shown("stage kind"),
)

_KEYS: Final = ("function", "line")


def in_order(lines: Lines) -> list[dict[str, Any]]:
    """Return rows of `FUNCTIONS` with `own_share`, the function with the hottest line first."""
    own = pl.col("own_share")
    shares = lines.table().group_by("function").agg(own.sum(), hottest=own.max())
    rows = lines.functions.join(shares, on="function", how="left", maintain_order="left")
    return rows.sort("hottest", descending=True, nulls_last=True, maintain_order=True).to_dicts()


def sentence(lines: Lines) -> str:
    """Return the answer: the hottest line."""
    rows = lines.table()
    if rows.is_empty():
        return "No line was measured"
    first = rows.row(0, named=True)
    where = f"line {first['line']} of `{first['function']}`"
    source = f": `{first['source'].strip()}`" if first["source"] else ""
    taken = f"{share(first['own_share'])} of a {lines.circumstances.unit}'s time"
    if first["own_share"] < NOTABLE:
        return f"No line stands out: the hottest, {where}, takes {taken}{source}"
    return f"{capital(where)} takes {taken}{source}"


def notes_of(lines: Lines) -> list[str]:
    """Return the caveats, in sentences."""
    conditions = lines.circumstances
    samples = count(conditions.samples, conditions.unit)
    population = (
        f"{samples} made in one process with one thread, {seconds(conditions.wall_s)} in all"
    )
    if lines.lines.is_empty():
        return [f"{samples} made in one process", *lines.notes]
    first = lines.table().row(0, named=True)
    ends = f"{share(first['own_low'])} to {share(first['own_high'])}"
    looks = f"{count(conditions.looks, 'look')} at the running line"
    head = f"{population} · {looks}: the hottest takes {ends} ({INTERVAL})"
    return [head, KEY, *lines.notes]
