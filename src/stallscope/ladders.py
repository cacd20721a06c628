"""The cached ladder as a value: the same loop, each time with one more of its costs removed.

Everything before makes it, everything after reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.result import Result

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    from stallscope.analyze.headroom import Rates

    Schema = dict[str, PolarsDataType]


class Rung(NamedTuple):
    """One of the measured loops."""

    name: str
    removes: str
    """The cost that the rung before still had."""


AS_IT_IS: Final = Rung("as it is", "")
WARM: Final = Rung("storage warm", "cold storage")
FETCHED: Final = Rung("fetched samples in memory", "fetch and decode")
TRANSFORMED: Final = Rung("transformed samples in memory", "transforms")
BATCHES: Final = Rung("batches in memory", "collate and sending")
PINNED: Final = Rung("batches in pinned memory", "pageable memory")
ON_DEVICE: Final = Rung("batches on the device", "copy to the device")

RUNGS: Final = (AS_IT_IS, WARM, FETCHED, TRANSFORMED, BATCHES, PINNED, ON_DEVICE)
"""From the bottom to the top."""

LAPS: Schema = {
    "rung": pl.String,
    "lap": pl.Int32,
    "seconds": pl.Float64,
    "step_s": pl.Float64,
    "samples": pl.Int32,
}
"""One row a step of the steady state, in order: from the end of the step before to the end of this
one, and the part of it in the step itself (null without a step). A lap is one start of a rung."""

FACTS: Schema = {
    "rung": pl.String,
    "cached_bytes": pl.Int64,
    "device_busy_share": pl.Float64,
    "nvml_busy_share": pl.Float64,
    "why_not": pl.String,
}
"""One row a rung: what it kept in memory, how busy the device was (read from the device, null where
there is none), and why it was not measured, if it was not."""


@dataclass(frozen=True)
class Circumstances:
    """What was measured, and on what."""

    name: str = ""
    """What the user pointed at, in the user's words."""
    device: str = "CPU"
    """What computes the steps, in words."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take, seconds; None where nothing was simulated."""
    has_step: bool = True
    """Whether there was a step at all."""
    num_workers: int = 0
    """Worker processes of the loader; 0: the main process loads."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""


@dataclass(frozen=True, eq=False)
class Ladder(Result):
    """How fast the loop is, and would be without each of the loader's costs."""

    _view: ClassVar[str] = "stallscope.views.ladder"

    laps: pl.DataFrame
    """Columns of `LAPS`."""
    facts: pl.DataFrame
    """Columns of `FACTS`."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    def rates(self) -> dict[str, Rates]:
        """For each rung that was measured, from the bottom to the top, how fast it is."""
        from stallscope.analyze import headroom

        return headroom.rates_of(self)

    @cached_property
    def _table(self) -> pl.DataFrame:
        from stallscope.analyze import headroom

        return headroom.table(self)

    def table(self) -> pl.DataFrame:
        """One row a rung, from the bottom to the top; columns of `analyze.headroom.TABLE`."""
        return self._table

    @cached_property
    def _gains(self) -> pl.DataFrame:
        from stallscope.analyze import headroom

        return headroom.gains(self)

    def gains(self) -> pl.DataFrame:
        """One row a measured rung but the lowest: how much faster it is than the one before it.

        Returns:
            Columns of `analyze.headroom.GAINS`.
        """
        return self._gains

    @cached_property
    def _headroom(self) -> pl.DataFrame:
        from stallscope.analyze import headroom

        return headroom.headroom(self)

    def headroom(self) -> pl.DataFrame:
        """What the loader costs in all: the highest measured rung against the lowest.

        Returns:
            One row with the columns of `analyze.headroom.GAINS`; none where nothing was measured.
        """
        return self._headroom
