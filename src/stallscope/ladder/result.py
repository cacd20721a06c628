"""The cached ladder as a value: the same loop, each time with one more of its costs removed.

Laps are the starts of a rung that `Rates` resamples; the blocks inside of one are as many steps as
there are workers, which make batches at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import Rates
from stallscope.store import Contents, StoredTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stallscope.store import Schema


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


@dataclass(frozen=True, eq=False)
class Ladder(SavedResult):
    """How fast the loop is, and would be without each of the loader's costs."""

    _view: ClassVar[str] = "stallscope.views.ladder"
    _contents: ClassVar = Contents(
        kind="ladder",
        noun="ladder",
        tables=(
            StoredTable("laps", LAPS, LAPS.keys() - {"step_s"}),
            StoredTable("facts", FACTS, {"rung"}),
        ),
        values={"circumstances": LoopConditions, "notes": tuple[str, ...]},
    )

    laps: pl.DataFrame
    """Columns of `LAPS`."""
    facts: pl.DataFrame
    """Columns of `FACTS`."""
    circumstances: LoopConditions = field(default_factory=LoopConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    def rates(self) -> dict[str, Rates]:
        """For each rung that was measured, from the bottom to the top, how fast it is."""
        return rates_of(self)

    @cached_property
    def _table(self) -> pl.DataFrame:

        return table(self)

    def table(self) -> pl.DataFrame:
        """One row a rung, from the bottom to the top; columns of `ladder.result.TABLE`."""
        return self._table

    @cached_property
    def _gains(self) -> pl.DataFrame:

        return gains(self)

    def gains(self) -> pl.DataFrame:
        """One row a measured rung but the lowest: how much faster it is than the one before it.

        Returns:
            Columns of `ladder.result.GAINS`.
        """
        return self._gains

    @cached_property
    def _headroom(self) -> pl.DataFrame:

        return measure_rungs(self)

    def headroom(self) -> pl.DataFrame:
        """What the loader costs in all: the highest measured rung against the lowest.

        Returns:
            One row with the columns of `ladder.result.GAINS`; none where nothing was measured.
        """
        return self._headroom


TABLE: Schema = {
    "rung": pl.String,
    "removes": pl.String,
    "samples_per_s": pl.Float64,
    "samples_per_s_low": pl.Float64,
    "samples_per_s_high": pl.Float64,
    "step_share": pl.Float64,
    "device_busy_share": pl.Float64,
    "cached_bytes": pl.Int64,
    "nvml_busy_share": pl.Float64,
    "laps": pl.Int32,
    "steps": pl.Int32,
    "why_not": pl.String,
}
"""One row a rung. `step_share` is the share of the loop's wall that lies in the step, null without
one; `device_busy_share` is null without a GPU or a simulated device; `why_not` says why a rung was
not measured."""

GAINS: Schema = {
    "rung": pl.String,
    "removes": pl.String,
    "factor": pl.Float64,
    "factor_low": pl.Float64,
    "factor_high": pl.Float64,
    "distinguishable": pl.Boolean,
}
"""How many times as fast a rung is as the one below it that was measured, with its interval;
`removes` are all the costs between the two."""

_MOST_BLOCKS: Final = 50
"""In a lap; more would cost time and make no interval better."""


def table(ladder: Ladder) -> pl.DataFrame:
    """One row a rung, columns of `TABLE`."""
    facts = {row["rung"]: row for row in ladder.facts.iter_rows(named=True)}
    rows = []
    for rung in RUNGS:
        fact = facts.get(rung.name, {})
        steps = _steps(ladder, rung.name)
        rates = ladder.rates.get(rung.name)
        low, high = rates.interval() if rates else (None, None)
        wall_s = float(steps["seconds"].sum())
        in_step = steps["step_s"].drop_nulls()
        step_share = float(in_step.sum()) / wall_s if in_step.len() and wall_s else None
        simulated = ladder.circumstances.simulated_step_s is not None
        busy = step_share if simulated else fact.get("device_busy_share")
        rows.append(
            (
                rung.name,
                rung.removes,
                rates.rate if rates else None,
                low,
                high,
                step_share,
                busy,
                fact.get("cached_bytes"),
                fact.get("nvml_busy_share"),
                steps["lap"].n_unique(),
                steps.height,
                fact.get("why_not"),
            )
        )
    return pl.DataFrame(rows, TABLE, orient="row")


def gains(ladder: Ladder) -> pl.DataFrame:
    """One row a measured rung above the lowest, columns of `GAINS`."""
    return pl.DataFrame([_gain(ladder, *pair) for pair in pairwise(ladder.rates)], GAINS)


def measure_rungs(ladder: Ladder) -> pl.DataFrame:
    """The highest measured rung against the lowest: one row with the columns of `GAINS`."""
    names = list(ladder.rates)
    return pl.DataFrame([_gain(ladder, names[0], names[-1])] if len(names) > 1 else [], GAINS)


def lap_rates(ladder: Ladder) -> pl.DataFrame:
    """One row a lap: `rung, lap, samples_per_s`, in the order in which they were run."""
    return ladder.laps.group_by("rung", "lap", maintain_order=True).agg(
        samples_per_s=pl.col("samples").sum() / pl.col("seconds").sum()
    )


def compare(ladder: Ladder, lower: str, upper: str) -> dict[str, Any] | None:
    """How many times as fast one rung is as another: a row as of `GAINS`; None if not measured."""
    if lower not in ladder.rates or upper not in ladder.rates:
        return None
    return _gain(ladder, lower, upper)


def is_clear(ladder: Ladder) -> bool:
    """Whether more laps would hardly change an answer: every interval is a narrow one."""
    return bool(ladder.rates) and all(rates.is_narrow() for rates in ladder.rates.values())


def rates_of(ladder: Ladder) -> dict[str, Rates]:
    """For each rung that was measured, from the bottom to the top, how fast it is."""
    block = max(ladder.circumstances.num_workers, 1)
    found = {}
    for rung in RUNGS:
        laps = _steps(ladder, rung.name).partition_by("lap", maintain_order=True)
        if laps:
            found[rung.name] = Rates([_blocks(lap, block) for lap in laps])
    return found


def _steps(ladder: Ladder, name: str) -> pl.DataFrame:
    return ladder.laps.filter(pl.col("rung") == name)


def _blocks(lap: pl.DataFrame, block: int) -> NDArray[np.float64]:
    """Samples and seconds of each whole block of a lap, shape (blocks, 2); of all if none is."""
    steps: NDArray[np.float64] = lap.select("samples", "seconds").to_numpy().astype(float)
    block *= -(-len(steps) // (block * _MOST_BLOCKS))
    whole = len(steps) // block * block
    if not whole:
        whole, block = len(steps), len(steps)
    summed: NDArray[np.float64] = steps[:whole].reshape(-1, block, 2).sum(axis=1)
    return summed


def _gain(ladder: Ladder, lower: str, upper: str) -> dict[str, Any]:
    names = [rung.name for rung in RUNGS]
    between = RUNGS[names.index(lower) + 1 : names.index(upper) + 1]
    factor, low, high = ladder.rates[upper].over(ladder.rates[lower])
    return {
        "rung": upper,
        "removes": ", ".join(rung.removes for rung in between),  # some may not be measured
        "factor": factor,
        "factor_low": low,
        "factor_high": high,
        "distinguishable": low is not None and high is not None and not low <= 1 <= high,
    }
