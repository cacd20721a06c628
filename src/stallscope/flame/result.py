"""The stacks of the workers as a value: where in the code their time went, and what changed.

Functions of two recordings are matched by name and file, without lines: in between the file is
often edited. The interval of a change is made from those of both shares (Zou and Donner,
"Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import polars as pl

from stallscope.apart import computed_apart
from stallscope.flame import classify
from stallscope.flame.classify import KINDS, YOURS, kind_shares
from stallscope.result import Conditions, Result, SavedResult
from stallscope.stats import wilson
from stallscope.store import Contents, StoredTable
from stallscope.units import share

if TYPE_CHECKING:
    from pathlib import Path

    from stallscope.store import Schema


SAMPLES: Schema = {
    "worker": pl.Int16,
    "pid": pl.Int32,
    "window": pl.Int32,
    "stage": pl.String,
    "stack": pl.String,
    "hits": pl.Int64,
}
"""One row a process, window and stack. `worker` is null in the main process. `stack`: the frames,
root first, `;` between them, each `function (file:line)` as py-spy's raw format writes it; frames
of stallscope's own are left out. `stage`: the stage of the sample or batch in which it was taken,
null where that is not known. `hits`: how often it was seen.

Neighbouring samples look alike (an op takes longer than from one sample to the next), so they are
no independent draws. `window` counts blocks of consecutive samples of a process, of about
`WINDOW_S` each: intervals are made over blocks."""

WINDOW_S: Final = 0.5
"""Busy time that one window covers, about, seconds."""

PY_SPY: Final = "py-spy"
IN_PROCESS: Final = "in-process sampler"


@dataclass(frozen=True)
class FlameConditions(Conditions):
    """What was sampled, how and where; without workers the main process was."""

    how: str = PY_SPY
    """Who took the samples: `PY_SPY` from outside, or `IN_PROCESS`, a thread of the worker."""
    rate_hz: float = 50.0
    """Samples a second that were asked for, of each process."""
    seconds: float = 0.0
    """How long was sampled, seconds."""
    native: bool = False
    """Whether frames of compiled code are in the stacks."""
    idle: bool = False
    """Whether samples of waiting threads are in it."""
    gil: bool = False
    """Whether only threads that hold Python's lock were sampled."""


class _Flamegraph(Result):
    """What can be drawn as a flamegraph."""

    _view: ClassVar[str] = "flame.VIEW"

    @computed_apart
    def export(self, path: str | Path) -> Path:
        """Write the flamegraph as a file that needs nothing else.

        Args:
            path: `.html` (zooms and searches in a browser), `.svg` (a picture) or, of one recording
                alone, `.json` (speedscope); an older file is written over.

        Returns:
            The path.

        Raises:
            StallscopeError: another ending, or it cannot be written there.
        """
        export = import_module("stallscope.views.flame").export
        written: Path = export(self, path)
        return written


@dataclass(frozen=True, eq=False)
class Flame(_Flamegraph, SavedResult):
    """Where in the code the workers' time goes: sampled stacks of all of them."""

    _contents: ClassVar = Contents(
        kind="flame",
        noun="flame",
        tables=(
            StoredTable(
                "samples",
                SAMPLES,
                {"pid", "window", "stack", "hits"},
                file="stacks",
                positive={"hits"},
            ),
        ),
        values={"circumstances": FlameConditions, "notes": tuple[str, ...]},
    )

    samples: pl.DataFrame
    """Columns of `SAMPLES`."""
    circumstances: FlameConditions = field(default_factory=FlameConditions)
    """What was sampled, how and where."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @computed_apart
    def stacks(self) -> pl.DataFrame:
        """One row a process, stage and stack, the most frequent first.

        Returns:
            The columns `worker, pid, stage, stack, hits`, as in `SAMPLES`.
        """
        return (
            self.samples.group_by("worker", "pid", "stage", "stack", maintain_order=True)
            .agg(pl.col("hits").sum())
            .sort("hits", descending=True, maintain_order=True)
        )

    @cached_property
    @computed_apart
    def _table(self) -> pl.DataFrame:
        return classify.table(self.samples)

    def table(self) -> pl.DataFrame:
        """The share of each of the user's own functions, with an interval, the largest first.

        Returns:
            Columns of `flame.classify.TABLE`.
        """
        return self._table

    def diff(self, before: Flame) -> Any:
        """What grew and what shrank since another recording: a `FlameDifference`.

        Args:
            before: the one to compare with.
        """
        return FlameDifference(self, before)


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
minus before, in shares of 1, with the ends of its interval; `distinguishable`: 0 lies outside
of it."""


@dataclass(frozen=True, eq=False)
class FlameDifference(_Flamegraph):
    """What grew and what shrank from one recording to another."""

    after: Flame
    before: Flame

    def table(self) -> pl.DataFrame:
        """The change of each of the user's own functions, the largest first.

        Returns:
            Columns of `CHANGES`.
        """
        now, then = (
            {(row["function"], row["file"]): row for row in flame.table().iter_rows(named=True)}
            for flame in (self.after, self.before)
        )
        counts = [int(flame.samples["hits"].sum()) for flame in (self.after, self.before)]
        rows = []
        for name in dict.fromkeys([*then, *now]):
            new, old = (
                _ends(rows.get(name), n) for rows, n in zip((now, then), counts, strict=True)
            )
            change = new[0] - old[0]
            low = change - hypot(new[0] - new[1], old[2] - old[0])
            high = change + hypot(new[2] - new[0], old[0] - old[1])
            rows.append((*name, old[0], new[0], change, low, high, not low <= 0 <= high))
        table = pl.DataFrame(rows, CHANGES, orient="row")
        return table.sort(pl.col("change").abs(), descending=True, maintain_order=True)


def _ends(row: dict[str, Any] | None, count: int) -> tuple[float, float, float]:
    """A share and the ends of its interval; of a function that was never seen, near 0."""
    if row is None:
        return 0.0, 0.0, float(wilson(np.zeros(1), max(count, 1))[1][0])
    return row["self_share"], row["self_share_low"], row["self_share_high"]


_LITTLE: Final = 0.05
"""A share below which no function of the user's is worth the title."""


def sentence(flame: Flame) -> str:
    """The user's function that takes most, and what takes even more that is not the user's."""
    whose = "the workers' time" if flame.circumstances.num_workers else "the process's time"
    if flame.samples.is_empty():
        return "No sample was taken: there is nothing to see"
    rows, kinds = flame.table(), kind_shares(flame.samples)
    first = next((name for name in kinds if name != YOURS), YOURS)
    what = KINDS[first][0].upper() + KINDS[first][1:]
    if rows.is_empty() or rows["self_share"][0] < _LITTLE:
        takes = f"{what}: {share(kinds[first])} of {whose}"
        return f"{takes}; none of your own functions takes {share(_LITTLE)}"
    top = rows.row(0, named=True)
    told = f"`{top['function']}` (yours) takes {share(top['self_share'])} of {whose}"
    more = kinds[first] > top["self_share"] and first != YOURS
    return f"{told}; {KINDS[first]}: {share(kinds[first])}" if more else told


def difference_sentence(found: FlameDifference) -> str:
    """The change that is largest among those that can be told from chance."""
    clear = found.table().filter(pl.col("distinguishable"))
    if clear.is_empty():
        return "Before and after are not distinguishable in any of your functions"
    top = clear.row(0, named=True)
    word = "shrank" if top["change"] < 0 else "grew"
    ends = f"{share(top['before_share'])} to {share(top['after_share'])}"
    return f"`{top['function']}` (yours) {word} from {ends} of the time"
