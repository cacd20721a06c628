"""Two recordings against each other: what grew, and what shrank.

Functions are matched by name and file, without lines: between two recordings the file is often
edited. The interval of a change is made from those of both shares (Zou and Donner, "Construction of
confidence limits about effect measures", Statistics in Medicine 27, 2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from stallscope.analyze.stacks import shares
from stallscope.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from stallscope.flames import Flame, Schema

CHANGES: Schema = {
    "function": pl.String,
    "file": pl.String,
    "before_share": pl.Float64,
    "after_share": pl.Float64,
    "change": pl.Float64,
    "change_low": pl.Float64,
    "change_high": pl.Float64,
    "distinguishable": pl.Boolean,
}
"""One row a function of the user's own. Shares as `self_share` in `shares.TABLE`; `change`: after
minus before, in shares of 1, with the ends of its 95% interval; `distinguishable`: 0 lies outside
of it."""


@dataclass(frozen=True, eq=False)
class Difference(Result):
    """What grew and what shrank from one recording to another."""

    _view: ClassVar[str] = "stallscope.views.flamediff"

    after: Flame
    before: Flame

    @cached_property
    def _table(self) -> pl.DataFrame:
        return changes(self.after, self.before)

    def table(self) -> pl.DataFrame:
        """The change of each of the user's own functions, the largest first.

        Returns:
            Columns of `CHANGES`.
        """
        return self._table

    def export(self, path: str | Path) -> Path:
        """Write it as a file that needs nothing else: `.html` zooms in a browser, `.svg` does not.

        Raises:
            StallscopeError: another ending, or it cannot be written there.
        """
        written: Path = self._face().export(self, path)
        return written


def diff(after: Flame, before: Flame) -> Difference:
    """What grew and what shrank since another recording."""
    return Difference(after, before)


def changes(after: Flame, before: Flame) -> pl.DataFrame:
    """The change of each of the user's own functions, the largest first; columns of `CHANGES`."""
    now, then = (
        {(row["function"], row["file"]): row for row in shares.table(one).iter_rows(named=True)}
        for one in (after, before)
    )
    counts = [int(one.samples["hits"].sum()) for one in (after, before)]
    rows = []
    for name in dict.fromkeys([*then, *now]):
        one, other = (_ends(rows.get(name), n) for rows, n in zip((now, then), counts, strict=True))
        change = one[0] - other[0]
        low = change - hypot(one[0] - one[1], other[2] - other[0])
        high = change + hypot(one[2] - one[0], other[0] - other[1])
        rows.append((*name, other[0], one[0], change, low, high, not low <= 0 <= high))
    made = pl.DataFrame(rows, CHANGES, orient="row")
    return made.sort(pl.col("change").abs(), descending=True, maintain_order=True)


def _ends(row: dict[str, Any] | None, count: int) -> tuple[float, float, float]:
    """A share and the ends of its interval; of a function that was never seen, near 0."""
    if row is None:
        import numpy as np

        from stallscope.analyze.stacks.intervals import wilson

        return 0.0, 0.0, float(wilson(np.zeros(1), max(count, 1))[1][0])
    return row["self_share"], row["self_share_low"], row["self_share_high"]
