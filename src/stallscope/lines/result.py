"""The lines of a pipeline as a value: how often each runs, how long it takes, which is the hottest.

A line's time holds everything that the line calls, so the line that calls the transforms is always
the longest. The time that is a line's own leaves out what other listed functions took that it
called; these times add up, also in a function that calls itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart
from stallscope.columns import CODE, CODE_FILE, NAME, Column, Schema
from stallscope.result import Conditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import Contents, StoredTable
from stallscope.units import count, printable, seconds, share

FUNCTIONS: Final = Schema(
    "One row a function whose lines were timed.",
    Column("function", pl.String, "its name", secret=NAME),
    Column("file", pl.String, "where it is", secret=CODE_FILE),
    Column("line", pl.Int32, "where it begins"),
    Column("stage", pl.String, "stage that it is part of; null: of none", secret=NAME),
    Column("kind", pl.String, "kind of the stage", secret=NAME),
    Column("why_not", pl.String, "why its source cannot be shown"),
)

LINES: Final = Schema(
    "One row a line that ran.",
    Column("function", pl.String, secret=NAME),
    Column("line", pl.Int32),
    Column("hits", pl.Int64, "how often it ran; null: not counted"),
    Column("share", pl.Float64, "share of the time with all that it calls"),
    Column("own_share", pl.Float64, "share without the other listed functions"),
    Column("own_low", pl.Float64, "its 95% CI"),
    Column("own_high", pl.Float64),
)

SOURCES: Final = Schema(
    "One row a line of the functions, from the first to the last.",
    Column("function", pl.String, secret=NAME),
    Column("line", pl.Int32),
    Column("source", pl.String, "without its line break", secret=CODE),
)


@dataclass(frozen=True)
class LinesConditions(Conditions):
    """What was measured, and where."""

    unit: str = "sample"
    """What was counted: "sample", or "batch" where one index stands for a whole one."""
    samples: int = 0
    """How many of them hits and times are of."""
    wall_s: float = 0.0
    """How long these take, collate included, seconds: what all shares are shares of."""
    looks: int = 0
    """How often it was looked where Python stands: what shares are counted from."""


@dataclass(frozen=True, eq=False)
class Lines(SavedResult):
    """How long each line of a dataset, its transforms and its collate function takes."""

    _view: ClassVar[str] = "lines.VIEW"
    _contents: ClassVar = Contents(
        kind="lines",
        noun="listing of lines",
        tables=(
            StoredTable("functions", FUNCTIONS, {"function", "file", "line"}),
            StoredTable(
                "lines",
                LINES,
                LINES.keys() - {"hits"},
                refers={"function": "functions.function"},
            ),
            StoredTable("sources", SOURCES, SOURCES.keys()),
        ),
        values={"circumstances": LinesConditions, "notes": tuple[str, ...]},
    )

    functions: pl.DataFrame
    """Columns of `FUNCTIONS`."""
    lines: pl.DataFrame
    """Columns of `LINES`."""
    sources: pl.DataFrame
    """Columns of `SOURCES`."""
    circumstances: LinesConditions = field(default_factory=LinesConditions)
    """What was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    @computed_apart
    def _table(self) -> pl.DataFrame:
        wall_s = self.circumstances.wall_s
        about = self.functions.select("function", "file", "stage", "kind")
        return (
            self.lines.join(about, on="function")
            .join(self.sources, on=_KEYS, how="left")
            .with_columns(time_s=pl.col("share") * wall_s, own_s=pl.col("own_share") * wall_s)
            .sort("own_share", "share", descending=True, maintain_order=True)
            .select([pl.col(name).cast(kind) for name, kind in TABLE.items()])
        )

    def table(self) -> pl.DataFrame:
        """One row a line that ran, the hottest first; columns of `lines.result.TABLE`."""
        return self._table


KEY: Final = (
    "share: of a sample's time, with all that the line calls · own: without the other functions "
    "that are listed · heat: own"
)
_TITLE: Final = 200

TABLE: Final = Schema(
    "One row a line that ran, the hottest first. Shares are of a sample's time.",
    Column("function", pl.String),
    Column("file", pl.String),
    Column("line", pl.Int32, "", "line", str),
    Column("hits", pl.Int64, "how often it ran; null: not counted", "hits"),
    Column("time_s", pl.Float64, "time with all that it calls", "time"),
    Column("share", pl.Float64, "the same as a share", "share"),
    Column("source", pl.String, "null: there is none"),
    Column("own_s", pl.Float64, "time without the other listed functions"),
    Column("own_share", pl.Float64, "the same as a share", "own"),
    Column("own_low", pl.Float64, "its 95% CI"),
    Column("own_high", pl.Float64),
    Column("stage", pl.String),
    Column("kind", pl.String),
)

STANDS_OUT: Final = 0.05
"""A line with a smaller share of a sample's time is none that anybody has to look at."""
_KEYS: Final = ("function", "line")


def in_order(lines: Lines) -> list[dict[str, Any]]:
    """The functions, rows of `FUNCTIONS` with `own_share`, the one with the hottest line first."""
    own = pl.col("own_share")
    found = lines.table().group_by("function").agg(own.sum(), hottest=own.max())
    rows = lines.functions.join(found, on="function", how="left", maintain_order="left")
    return rows.sort("hottest", descending=True, nulls_last=True, maintain_order=True).to_dicts()


def sentence(lines: Lines) -> str:
    """The answer: the hottest line."""
    rows = lines.table()
    if rows.is_empty():
        return "No line was measured"
    first = rows.row(0, named=True)
    where = f"line {first['line']} of `{first['function']}`"
    said = f": `{first['source'].strip()}`" if first["source"] else ""
    taken = f"{share(first['own_share'])} of a {lines.circumstances.unit}'s time"
    if first["own_share"] < STANDS_OUT:
        return f"No line stands out: the hottest, {where}, takes {taken}{said}"
    return f"{where[0].upper()}{where[1:]} takes {taken}{said}"


def title(lines: Lines) -> str:
    """The answer, in letters that can be shown."""
    return printable(sentence(lines), _TITLE)


def notes_of(lines: Lines) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = lines.circumstances
    made = count(told.samples, told.unit)
    population = f"{made} made in one process with one thread, {seconds(told.wall_s)} in all"
    if lines.lines.is_empty():
        return [f"{made} made in one process", *lines.notes]
    first = lines.table().row(0, named=True)
    ends = f"{share(first['own_low'])} to {share(first['own_high'])}"
    seen = f"{count(told.looks, 'look')} where Python stood: the first is {ends} ({INTERVAL})"
    return [f"{population} · {seen}", KEY, *lines.notes]
