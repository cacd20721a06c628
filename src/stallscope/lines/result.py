"""The lines of a pipeline as a value: how often each ran, how long it took, which is the hottest.

A line's time holds everything that the line calls, so the line that calls the transforms is always
the longest. The time that is a line's own leaves out what other listed functions took that it
called; these times add up, also in a function that calls itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.apart import computed_apart
from stallscope.result import Conditions, SavedResult
from stallscope.stats import INTERVAL, t_quantile
from stallscope.store import Contents, StoredTable
from stallscope.units import count, printable, seconds, share

if TYPE_CHECKING:
    from stallscope.store import Schema


FUNCTIONS: Schema = {
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
    "stage": pl.String,
    "kind": pl.String,
    "why_not": pl.String,
}
"""One row a function whose lines were timed: its name, where it begins, the stage that it is part
of and the stage's kind (null: of none), and why its source cannot be shown, if it cannot."""

TIMES: Schema = {"function": pl.String, "line": pl.Int32, "hits": pl.Int64, "time_s": pl.Float64}
"""One row a line that ran: how often, and how long in all, with everything that it called."""

CALLS: Schema = {"caller": pl.String, "line": pl.Int32, "function": pl.String, "share": pl.Float64}
"""One row for each line that calls a function of `FUNCTIONS`, itself or through others that are not
among them: the share (0 to 1) of that function's time that is spent in calls from this line."""

SOURCES: Schema = {"function": pl.String, "line": pl.Int32, "source": pl.String}
"""Every line of the functions, from the first to the last, without its line break."""

PAIRS: Schema = {"with_s": pl.Float64, "without_s": pl.Float64}
"""One row for each piece of samples that was made twice: with the lines timed, and without."""


@dataclass(frozen=True)
class LinesConditions(Conditions):
    """What was measured, and where."""

    unit: str = "sample"
    """What was counted: "sample", or "batch" where one index stands for a whole one."""
    samples: int = 0
    """How many of them were made while their lines were timed."""
    wall_s: float = 0.0
    """How long these took, collate included, seconds: what all shares are shares of."""


@dataclass(frozen=True, eq=False)
class Lines(SavedResult):
    """How long each line of a dataset, its transforms and its collate function takes."""

    _view: ClassVar[str] = "stallscope.views.lines"
    _contents: ClassVar = Contents(
        kind="lines",
        noun="listing of lines",
        tables=(
            StoredTable("functions", FUNCTIONS, {"function", "file", "line"}),
            StoredTable("times", TIMES, TIMES.keys()),
            StoredTable("calls", CALLS, CALLS.keys()),
            StoredTable("sources", SOURCES, SOURCES.keys()),
            StoredTable("pairs", PAIRS, PAIRS.keys()),
        ),
        values={"circumstances": LinesConditions, "notes": tuple[str, ...]},
    )

    functions: pl.DataFrame
    """Columns of `FUNCTIONS`."""
    times: pl.DataFrame
    """Columns of `TIMES`."""
    calls: pl.DataFrame
    """Columns of `CALLS`."""
    sources: pl.DataFrame
    """Columns of `SOURCES`."""
    pairs: pl.DataFrame
    """Columns of `PAIRS`."""
    circumstances: LinesConditions = field(default_factory=LinesConditions)
    """What was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    @computed_apart
    def _table(self) -> pl.DataFrame:
        wall_s = self.circumstances.wall_s or None
        whole = self.times.group_by("function").agg(whole_s=pl.col("time_s").sum())
        called = (
            self.calls.join(whole, on="function")
            .group_by(function="caller", line="line")
            .agg(called_s=(pl.col("share") * pl.col("whole_s")).sum())
        )
        about = self.functions.select("function", "file", "stage", "kind")
        own_s = (pl.col("time_s") - pl.col("called_s").fill_null(0.0)).clip(lower_bound=0.0)
        return (
            self.times.join(about, on="function")
            .join(self.sources, on=_KEYS, how="left")
            .join(called, on=_KEYS, how="left")
            .with_columns(own_s=own_s)
            .with_columns(share=pl.col("time_s") / wall_s, own_share=pl.col("own_s") / wall_s)
            .sort("own_s", "time_s", descending=True, maintain_order=True)
            .select([pl.col(name).cast(kind) for name, kind in TABLE.items()])
        )

    def table(self) -> pl.DataFrame:
        """One row a line that ran, the hottest first; columns of `lines.result.TABLE`."""
        return self._table

    @computed_apart
    def cost(self) -> Cost | None:
        """How many times as long the same samples take while their lines are timed.

        A Student's t interval of the logarithms of the pairs' ratios, which are few.
        """
        pairs = self.pairs.iter_rows()
        ratios = [log(timed / plain) for timed, plain in pairs if timed > 0 and plain > 0]
        if not ratios:
            return None
        mean = fmean(ratios)
        if len(ratios) == 1:
            return Cost(exp(mean), None, None)
        half = t_quantile(len(ratios) - 1) * stdev(ratios) / sqrt(len(ratios))
        return Cost(exp(mean), exp(mean - half), exp(mean + half))


KEY: Final = (
    "share: of a sample's time, with all that the line calls · own: without the other functions "
    "that are listed · heat: own"
)
_TITLE: Final = 200

TABLE: Schema = {
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
    "hits": pl.Int64,
    "time_s": pl.Float64,
    "share": pl.Float64,
    "source": pl.String,
    "own_s": pl.Float64,
    "own_share": pl.Float64,
    "stage": pl.String,
    "kind": pl.String,
}
"""One row a line that ran, the one with most time of its own first. `time_s` and `share` hold what
the line calls, `own_s` and `own_share` leave out the functions that have a listing of their own;
shares are of the time in which the samples were made; `source` is null where there is none."""

STANDS_OUT: Final = 0.05
"""A line with a smaller share of a sample's time is none that anybody has to look at."""
_KEYS: Final = ("function", "line")


class Cost(NamedTuple):
    """How many times as long samples take while their lines are timed, an interval."""

    factor: float
    """The geometric mean over the pairs."""
    low: float | None
    """None where there is one pair only."""
    high: float | None


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


def cost_sentence(found: Cost | None) -> str:
    """What timing lines costs, said beside every figure."""
    if found is None:
        return "what timing lines costs was not measured"
    if found.low is None or found.high is None:
        return (
            f"timed line by line, samples take {found.factor:.2f}× as long (one pair: no interval)"
        )
    ends = f"{INTERVAL} {found.low:.2f} to {found.high:.2f}, with and without in turn"
    if found.low <= 1 <= found.high:
        return f"what line_profiler costs is not distinguishable from nothing ({ends})"
    return f"line_profiler makes the same samples take {found.factor:.2f}× as long ({ends})"


def title(lines: Lines) -> str:
    """The answer, in letters that can be shown."""
    return printable(sentence(lines), _TITLE)


def notes_of(lines: Lines) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = lines.circumstances
    made = count(told.samples, told.unit)
    population = f"{made} made in one process with one thread, {seconds(told.wall_s)} in all"
    if lines.times.is_empty():
        return [f"{made} made while lines were timed", *lines.notes]
    return [f"{population} · {cost_sentence(lines.cost())}", KEY, *lines.notes]
