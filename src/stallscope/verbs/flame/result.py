"""The result of `ss.flame`: where in the code the workers' time goes, and what changed.

Functions of two recordings are matched by name and file, without lines: the file is often edited in
between. The interval of a change is made from those of both shares (Zou and Donner, "Construction
of confidence limits about effect measures", Statistics in Medicine 27, 2008).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import polars as pl

from stallscope.apart import computed_apart, computed_once
from stallscope.columns import CODE_FILE, NAME, Column, Schema, interval
from stallscope.model.thresholds import NOTABLE
from stallscope.result import Conditions, Result, SavedResult, named
from stallscope.run.stacks import STACKS
from stallscope.stats import wilson
from stallscope.store import stored
from stallscope.units import capital, count, share
from stallscope.verbs.flame import classify
from stallscope.verbs.flame.classify import KINDS, YOURS, kind_shares

if TYPE_CHECKING:
    from pathlib import Path


SAMPLES: Final = Schema(
    "One row per process, window and stack.",
    *STACKS.shown("worker pid"),
    Column("window", pl.Int32, "block of consecutive stacks of a process"),
    *STACKS.shown("stage stack"),
    Column("hits", pl.Int64, "stacks", is_divisor=True),
    nullable="worker stage",
)

WINDOW_S: Final = 0.5
"""Busy seconds per window, approximately. Consecutive samples are correlated (an op outlasts the
sampling period), so intervals are computed over windows."""

PY_SPY: Final = "py-spy"
IN_PROCESS: Final = "in-process sampler"


@dataclass(frozen=True)
class FlameConditions(Conditions):
    """Conditions of a recording; without workers, the main process was sampled."""

    how: str = PY_SPY
    """Sampler: `PY_SPY` from outside, or `IN_PROCESS`, a thread of the worker."""
    rate_hz: float = 50.0
    """Requested samples per second of each process."""
    seconds: float = 0.0
    """Sampled time."""
    native: bool = False
    """True if frames of compiled code are in the stacks; each sample stops the process."""
    idle: bool = False
    """True if waiting threads were sampled, too."""
    gil: bool = False
    """True if only threads that hold the GIL were sampled."""


class _Flamegraph(Result):
    """A result that can be drawn as a flamegraph."""

    _view: ClassVar[str] = "code.FLAME"

    @computed_apart
    def export(self, path: str | Path) -> Path:
        """Write the flamegraph as a self-contained file.

        Args:
            path: `.html` (zooms and searches in a browser) or, for a single recording, `.json`
                (speedscope); overwrites an older file.

        Returns:
            The path.

        Raises:
            StallscopeError: the suffix is unknown, or the file cannot be written.
        """
        written: Path = named("views", "code.export")(self, path)
        return written


@dataclass(frozen=True, eq=False)
class Flame(_Flamegraph, SavedResult):
    """Sampled stacks of all workers: the code that takes their time."""

    _noun: ClassVar[str] = "flame"

    samples: pl.DataFrame = stored(SAMPLES, "stacks")
    circumstances: FlameConditions = field(default_factory=FlameConditions)
    """Conditions of the recording."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""

    @computed_apart
    def stacks(self) -> pl.DataFrame:
        """Return a row per process, stage and stack: `worker, pid, stage, stack, hits`."""
        return (
            self.samples.group_by("worker", "pid", "stage", "stack", maintain_order=True)
            .agg(pl.col("hits").sum())
            .sort("hits", descending=True, maintain_order=True)
        )

    @computed_once
    def table(self) -> pl.DataFrame:
        """Return a row for each function of the user's own; columns of `flame.classify.TABLE`."""
        return classify.table(self.samples)

    def diff(self, before: Flame) -> FlameDifference:
        """Return the changes since another recording, `before`."""
        return FlameDifference(self, before)


CHANGES: Final = Schema(
    "One row per function of the user's own.",
    Column("function", pl.String, "name", "your function", secret=NAME),
    Column("file", pl.String, "where it is", secret=CODE_FILE),
    Column("before_share", pl.Float64, "share before, as `self_share` of a flame", "before"),
    Column("after_share", pl.Float64, "share after", "after"),
    Column("change", pl.Float64, "after minus before, in shares of 1", "change"),
    *interval("change_low", lambda value: f"{100 * value:+.1f}"),
    Column("distinguishable", pl.Boolean, "true if 0 is outside of the interval"),
)


@dataclass(frozen=True, eq=False)
class FlameDifference(_Flamegraph):
    """Changes of the functions' shares between two recordings."""

    after: Flame
    before: Flame

    def table(self) -> pl.DataFrame:
        """Return the change of each of the user's own functions; columns of `CHANGES`."""
        after, before = (
            {(row["function"], row["file"]): row for row in flame.table().iter_rows(named=True)}
            for flame in (self.after, self.before)
        )
        after_hits, before_hits = (
            int(flame.samples["hits"].sum()) for flame in (self.after, self.before)
        )
        rows = []
        for name in dict.fromkeys([*before, *after]):
            new, old = _ends(after.get(name), after_hits), _ends(before.get(name), before_hits)
            change = new[0] - old[0]
            low = change - hypot(new[0] - new[1], old[2] - old[0])
            high = change + hypot(new[2] - new[0], old[0] - old[1])
            rows.append((*name, old[0], new[0], change, low, high, not low <= 0 <= high))
        table = pl.DataFrame(rows, CHANGES, orient="row")
        return table.sort(pl.col("change").abs(), descending=True, maintain_order=True)


def _ends(row: dict[str, Any] | None, hits: int) -> tuple[float, float, float]:
    """Return a share and its interval; for a function without samples, from 0 to near 0."""
    if row is None:
        return 0.0, 0.0, float(wilson(np.zeros(1), max(hits, 1))[1][0])
    return row["self_share"], row["self_share_low"], row["self_share_high"]


def recordings_of(flame: Flame | FlameDifference) -> tuple[Flame, ...]:
    """Return the recording, or the two of a difference, the later first."""
    return (flame,) if isinstance(flame, Flame) else (flame.after, flame.before)


def sentence(flame: Flame | FlameDifference) -> str:
    """Return the answer: the user's slowest function, and the largest kind if it takes more.

    Of a difference, the largest significant change.
    """
    if not isinstance(flame, Flame):
        return _largest_change(flame)
    whose = "the workers' time" if flame.circumstances.num_workers else "the process's time"
    if flame.samples.is_empty():
        return "No stack was sampled"
    rows, kinds = flame.table(), kind_shares(flame.samples)
    largest = next((name for name in kinds if name != YOURS), YOURS)
    if rows.is_empty() or rows["self_share"][0] < NOTABLE:
        return (
            f"{capital(KINDS[largest])}: {share(kinds[largest])} of {whose}; none of your own "
            f"functions takes {share(NOTABLE)}"
        )
    top = rows.row(0, named=True)
    mine = f"`{top['function']}` (yours) takes {share(top['self_share'])} of {whose}"
    is_less = largest != YOURS and kinds[largest] > top["self_share"]
    return f"{mine}; {KINDS[largest]}: {share(kinds[largest])}" if is_less else mine


def _largest_change(difference: FlameDifference) -> str:
    significant = difference.table().filter(pl.col("distinguishable"))
    if significant.is_empty():
        return "Before and after are not distinguishable in any of your functions"
    top = significant.row(0, named=True)
    word = "shrank" if top["change"] < 0 else "grew"
    ends = f"{share(top['before_share'])} to {share(top['after_share'])}"
    return f"`{top['function']}` (yours) {word} from {ends} of the time"


def notes_of(flame: Flame | FlameDifference) -> list[str]:
    """Return the basis of the shares, with the conditions of a recording, and the caveats."""
    recordings = recordings_of(flame)
    stacks = [count(int(each.samples["hits"].sum()), "stack") for each in recordings]
    if isinstance(flame, Flame):
        conditions = flame.circumstances
        idle = "waiting included" if conditions.idle else "waiting left out"
        head = (
            f"width: share of {stacks[0]} of "
            f"{count(flame.samples['pid'].n_unique(), 'process')} in {conditions.seconds:.3g} s, "
            f"{conditions.rate_hz:.3g} per second by {conditions.how}; {idle}"
            f"{', native frames included' if conditions.native else ''}"
        )
    else:
        head = (
            f"width: mean of the shares before ({stacks[1]}) and after ({stacks[0]}); functions "
            "are matched by name and file"
        )
    return [head, *dict.fromkeys(note for each in reversed(recordings) for note in each.notes)]
