"""The cached ladder as a value: the same loop, each time with one more of its costs removed.

Everything before makes it, everything after reads it.

What the laps of a ladder say: how fast each rung is, and what the loader costs.

Intervals come from resampling laps, and blocks of steps inside of each: laps differ by what else
the machine did, steps by their samples. (Efron and Tibshirani, "An Introduction to the Bootstrap",
1993, chapter 8: resample in the way in which the data came about.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import ENDS
from stallscope.store import Contents, StoredTable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from polars._typing import PolarsDataType


if TYPE_CHECKING:
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
        """One row a rung, from the bottom to the top; columns of `analyze.headroom.TABLE`."""
        return self._table

    @cached_property
    def _gains(self) -> pl.DataFrame:

        return gains(self)

    def gains(self) -> pl.DataFrame:
        """One row a measured rung but the lowest: how much faster it is than the one before it.

        Returns:
            Columns of `analyze.headroom.GAINS`.
        """
        return self._gains

    @cached_property
    def _headroom(self) -> pl.DataFrame:

        return measure_rungs(self)

    def headroom(self) -> pl.DataFrame:
        """What the loader costs in all: the highest measured rung against the lowest.

        Returns:
            One row with the columns of `analyze.headroom.GAINS`; none where nothing was measured.
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

_DRAWS: Final = 2_000
_SEED: Final = 20_240_229
_MOST_BLOCKS: Final = 50
"""In a lap; more would cost time and make no interval better."""
_CLEAR: Final = 0.05
"""An interval is narrow if neither end is farther from the figure than this share of it."""


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
    rows = [_gain(*pair) for pair in pairwise(ladder.rates.values())]
    return pl.DataFrame(rows, GAINS, orient="row")


def measure_rungs(ladder: Ladder) -> pl.DataFrame:
    """The highest measured rung against the lowest: one row with the columns of `GAINS`."""
    measured = list(ladder.rates.values())
    rows = [_gain(measured[0], measured[-1])] if len(measured) > 1 else []
    return pl.DataFrame(rows, GAINS, orient="row")


def lap_rates(ladder: Ladder) -> pl.DataFrame:
    """One row a lap: `rung, lap, samples_per_s`, in the order in which they were run."""
    return ladder.laps.group_by("rung", "lap", maintain_order=True).agg(
        samples_per_s=pl.col("samples").sum() / pl.col("seconds").sum()
    )


def compare(ladder: Ladder, lower: str, upper: str) -> dict[str, Any] | None:
    """How many times as fast one rung is as another: a row as of `GAINS`; None if not measured."""
    below, above = ladder.rates.get(lower), ladder.rates.get(upper)
    if below is None or above is None:
        return None
    return pl.DataFrame([_gain(below, above)], GAINS, orient="row").row(0, named=True)


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
            found[rung.name] = Rates(rung.name, [_blocks(lap, block) for lap in laps])
    return found


class Rates:
    """Samples a second of one rung, and of resamples of its laps.

    Args:
        name: of the rung.
        blocks: of each lap, the samples and the seconds of its blocks, shape (blocks, 2).
    """

    def __init__(self, name: str, blocks: list[NDArray[np.float64]]) -> None:
        self.name = name
        whole = np.concatenate(blocks).sum(axis=0)
        self.rate = float(whole[0] / whole[1])
        self.draws = _resampled(blocks) if sum(map(len, blocks)) > 1 else np.array([])

    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the interval; None where there is one block only."""
        if not self.draws.size:
            return None, None
        low, high = np.percentile(self.draws, ENDS)
        return float(low), float(high)

    def is_narrow(self) -> bool:
        """Whether both ends are near."""
        low, high = self.interval()
        if low is None or high is None:
            return False
        return max(high - self.rate, self.rate - low) <= _CLEAR * self.rate


def _steps(ladder: Ladder, name: str) -> pl.DataFrame:
    return ladder.laps.filter(pl.col("rung") == name)


def _blocks(lap: pl.DataFrame, block: int) -> NDArray[np.float64]:
    """Samples and seconds of each whole block of a lap, shape (blocks, 2); of all if none is."""
    steps: NDArray[np.float64] = lap.select("samples", "seconds").to_numpy().astype(np.float64)
    block *= -(-len(steps) // (block * _MOST_BLOCKS))
    whole = len(steps) // block * block
    if not whole:
        whole, block = len(steps), len(steps)
    summed: NDArray[np.float64] = steps[:whole].reshape(-1, block, 2).sum(axis=1)
    return summed


def _resampled(laps: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rate in each draw: laps with replacement, and blocks inside of each."""
    rng = np.random.default_rng(_SEED)
    sums = np.zeros((_DRAWS, 2))
    chosen = rng.integers(len(laps), size=(_DRAWS, len(laps)))
    for number, lap in enumerate(laps):
        times = (chosen == number).sum(axis=1)
        for more in range(int(times.max(initial=0))):
            has = times > more
            weights = rng.multinomial(
                len(lap), np.full(len(lap), 1 / len(lap)), size=int(has.sum())
            )
            sums[has] += weights @ lap
    rates: NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return rates


def _gain(lower: Rates, upper: Rates) -> tuple[Any, ...]:
    names = [rung.name for rung in RUNGS]
    between = RUNGS[names.index(lower.name) + 1 : names.index(upper.name) + 1]
    removes = ", ".join(rung.removes for rung in between)  # rungs may not have been measured
    factor = upper.rate / lower.rate
    if not (lower.draws.size and upper.draws.size):
        return upper.name, removes, factor, None, None, False
    # Drawn independently: the laps of two rungs are not the same.
    ratios = upper.draws / np.random.default_rng(_SEED).permutation(lower.draws)
    low, high = (float(end) for end in np.percentile(ratios, ENDS))
    return upper.name, removes, factor, low, high, not low <= 1 <= high
