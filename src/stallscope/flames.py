"""The stacks of the workers as a value: where in the code their time went.

Everything before makes it, everything after reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

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
class Circumstances:
    """What was sampled, how and where."""

    name: str = ""
    """What the user pointed at, in the user's words."""
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
    num_workers: int = 0
    """Worker processes that were sampled; 0: the main process was."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""


@dataclass(frozen=True, eq=False)
class Flame(Result):
    """Where in the code the workers' time goes: sampled stacks of all of them."""

    _view: ClassVar[str] = "stallscope.views.flame"

    samples: pl.DataFrame
    """Columns of `SAMPLES`."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    """What was sampled, how and where."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    def _stacks(self) -> pl.DataFrame:
        keys = ["worker", "pid", "stage", "stack"]
        return (
            self.samples.group_by(keys, maintain_order=True)
            .agg(pl.col("hits").sum())
            .sort("hits", descending=True, maintain_order=True)
        )

    def stacks(self) -> pl.DataFrame:
        """One row a process, stage and stack, the most frequent first.

        Returns:
            The columns `worker, pid, stage, stack, hits`, as in `SAMPLES`.
        """
        return self._stacks

    @cached_property
    def _table(self) -> pl.DataFrame:
        from stallscope.analyze.stacks import table

        return table(self)

    def table(self) -> pl.DataFrame:
        """The share of each of the user's own functions, with an interval, the largest first.

        Returns:
            Columns of `analyze.stacks.TABLE`.
        """
        return self._table

    def diff(self, before: Flame) -> Any:
        """What grew and what shrank since another recording.

        Args:
            before: the one to compare with.

        Returns:
            The difference, see `analyze.stacks.diff`; it has a `table()` and shows itself.
        """
        from stallscope.analyze.stacks import diff

        return diff(self, before)

    def export(self, path: str | Path) -> Path:
        """Write the flamegraph as a file that needs nothing else.

        Args:
            path: `.html` (zooms and searches in a browser), `.svg` (a picture) or `.json`
                (speedscope); an older file is written over.

        Returns:
            The path.

        Raises:
            StallscopeError: another ending, or it cannot be written there.
        """
        written: Path = self._face().export(self, path)
        return written

    def save(self, folder: str | Path) -> Path:
        """Write it as JSON and Parquet; `Flame.load` reads it back.

        Args:
            folder: a new or empty folder, or one with an older flame to write over.

        Returns:
            The folder.

        Raises:
            RunFormatError: the folder holds something else, or cannot be written.
        """
        from stallscope import flamefile

        return flamefile.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Flame:
        """Read what `save` wrote. Runs nothing that the folder says.

        Args:
            folder: the folder.

        Raises:
            RunFormatError: there is none, a damaged one, or one of another version.
        """
        from stallscope import flamefile

        return flamefile.read(folder)
