"""The lines of a pipeline as a value: how often each ran, how long it took, what it says.

Everything before makes it, everything after reads it. (Not `lines.py`: `ss.lines` is the verb.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from stallscope.result import Result

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    from stallscope.analyze.hotlines import Cost

    Schema = dict[str, PolarsDataType]

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

CALLS: Schema = {
    "caller": pl.String,
    "line": pl.Int32,
    "function": pl.String,
    "share": pl.Float64,
}
"""One row for each line that calls a function of `FUNCTIONS`, itself or through others that are not
among them: the share (0 to 1) of that function's time that is spent in calls from this line."""

SOURCES: Schema = {"function": pl.String, "line": pl.Int32, "source": pl.String}
"""Every line of the functions, from the first to the last, without its line break."""

PAIRS: Schema = {"with_s": pl.Float64, "without_s": pl.Float64}
"""One row for each piece of samples that was made twice: with the lines timed, and without."""


@dataclass(frozen=True)
class Circumstances:
    """What was measured, and where."""

    name: str = ""
    """What the user pointed at, in the user's words."""
    unit: str = "sample"
    """What was counted: "sample", or "batch" where one index stands for a whole one."""
    samples: int = 0
    """How many of them were made while their lines were timed."""
    wall_s: float = 0.0
    """How long these took, collate included, seconds: what all shares are shares of."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""


@dataclass(frozen=True, eq=False)
class Lines(Result):
    """How long each line of a dataset, its transforms and its collate function takes."""

    _view: ClassVar[str] = "stallscope.views.lines"

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
    circumstances: Circumstances = field(default_factory=Circumstances)
    """What was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    def _table(self) -> pl.DataFrame:
        from stallscope.analyze import hotlines

        return hotlines.table(self)

    def table(self) -> pl.DataFrame:
        """One row a line that ran, the hottest first; columns of `analyze.hotlines.TABLE`."""
        return self._table

    def cost(self) -> Cost | None:
        """How many times as long the same samples take while their lines are timed."""
        from stallscope.analyze import hotlines

        return hotlines.cost(self.pairs)
