"""The cached ladder as a value: the same loop, each time with one more of its costs removed.

Laps are the starts of a rung that `Rates` resamples; the blocks inside of one are as many steps as
there are workers, which make batches at the same time. The sentence on top, what the loader costs
and whether that is where to look, stands over the table and the picture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.apart import computed_apart
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import Rates
from stallscope.store import Contents, StoredTable
from stallscope.units import seconds, share, times

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
    "others_share": pl.Float64,
    "why_not": pl.String,
}
"""One row a rung: what it kept in memory, how busy the device was (read from the device, null where
there is none), the share of the cores that other processes had meanwhile, and why it was not
measured, if it was not."""


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
    @computed_apart
    def rates(self) -> dict[str, Rates]:
        """For each rung that was measured, from the bottom to the top, how fast it is."""
        block = max(self.circumstances.num_workers, 1)
        laps = {rung.name: self._steps(rung) for rung in RUNGS}
        return {
            name: Rates([_blocks(lap, block) for lap in steps.partition_by("lap")])
            for name, steps in laps.items()
            if steps.height
        }

    def _steps(self, rung: Rung) -> pl.DataFrame:
        return self.laps.filter(pl.col("rung") == rung.name)

    def _others_share(self, rung: str) -> float:
        found = self.facts.filter(pl.col("rung") == rung)["others_share"]
        return min(found.item() or 0.0, _MOST_OTHERS) if found.len() else 0.0

    @computed_apart
    def table(self) -> pl.DataFrame:
        """One row a rung, from the bottom to the top; columns of `ladder.result.TABLE`."""
        return pl.DataFrame([self._row(rung) for rung in RUNGS], TABLE)

    def _row(self, rung: Rung) -> dict[str, Any]:
        steps, rates = self._steps(rung), self.rates.get(rung.name)
        low, high = rates.interval() if rates else (None, None)
        in_step, wall_s = steps["step_s"].drop_nulls(), float(steps["seconds"].sum())
        step_share = float(in_step.sum()) / wall_s if in_step.len() and wall_s else None
        row = {
            "rung": rung.name,
            "removes": rung.removes,
            "samples_per_s": rates.rate if rates else None,
            "samples_per_s_low": low,
            "samples_per_s_high": high,
            "step_share": step_share,
            "laps": steps["lap"].n_unique(),
            "steps": steps.height,
        }
        row |= next(self.facts.filter(pl.col("rung") == rung.name).iter_rows(named=True), {})
        if self.circumstances.simulated_step_s is not None and row["device_busy_share"] is None:
            row["device_busy_share"] = step_share
        return row

    @computed_apart
    def gains(self) -> pl.DataFrame:
        """One row a measured rung but the lowest: how much faster it is than the one before it.

        Returns:
            Columns of `ladder.result.GAINS`.
        """
        return pl.DataFrame([self._gain(*pair) for pair in pairwise(self.rates)], GAINS)

    @computed_apart
    def headroom(self) -> pl.DataFrame:
        """What the loader costs in all: the highest measured rung against the lowest.

        Returns:
            One row with the columns of `ladder.result.GAINS`; none where nothing was measured.
        """
        names = list(self.rates)
        return pl.DataFrame([self._gain(names[0], names[-1])] if len(names) > 1 else [], GAINS)

    def _gain(self, lower: str, upper: str) -> dict[str, Any]:
        names = [rung.name for rung in RUNGS]
        between = RUNGS[names.index(lower) + 1 : names.index(upper) + 1]
        factor, low, high = self.rates[upper].over(self.rates[lower])
        # Without the others it has up to all cores, and is up to so much faster: it may be that
        low = low and low * (1 - self._others_share(lower))
        high = high and high / (1 - self._others_share(upper))
        return {
            "rung": upper,
            "removes": ", ".join(rung.removes for rung in between),  # some may not be measured
            "factor": factor,
            "factor_low": low,
            "factor_high": high,
            "distinguishable": low is not None and high is not None and not low <= 1 <= high,
        }


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

_MOST_OTHERS: Final = 0.9
"""So much of the cores, at most, is taken for others': with none left nothing ran."""
_MOST_BLOCKS: Final = 50
"""In a lap; more would cost time and make no interval better."""


def lap_rates(ladder: Ladder) -> pl.DataFrame:
    """One row a lap: `rung, lap, samples_per_s`, in the order in which they were run."""
    return ladder.laps.group_by("rung", "lap", maintain_order=True).agg(
        samples_per_s=pl.col("samples").sum() / pl.col("seconds").sum()
    )


def compare(ladder: Ladder, lower: str, upper: str) -> dict[str, Any] | None:
    """How many times as fast one rung is as another: a row as of `GAINS`; None if not measured."""
    if lower not in ladder.rates or upper not in ladder.rates:
        return None
    return ladder._gain(lower, upper)  # noqa: SLF001 - its own module


def is_clear(ladder: Ladder) -> bool:
    """Whether more laps would hardly change an answer: every interval is a narrow one."""
    return bool(ladder.rates) and all(rates.is_narrow() for rates in ladder.rates.values())


def _blocks(lap: pl.DataFrame, block: int) -> NDArray[np.float64]:
    """Samples and seconds of each whole block of a lap, shape (blocks, 2); of all if none is."""
    steps: NDArray[np.float64] = lap.select("samples", "seconds").to_numpy().astype(float)
    block *= -(-len(steps) // (block * _MOST_BLOCKS))
    whole = len(steps) // block * block
    if not whole:
        whole, block = len(steps), len(steps)
    summed: NDArray[np.float64] = steps[:whole].reshape(-1, block, 2).sum(axis=1)
    return summed


WELL_USED: Final = 0.8
"""A device that is busy for less of the time than this, with everything cached, waits for its own
step: kernels that are too small, copies, the host."""
WHOLE: Final = {rung.name for rung in (BATCHES, PINNED, ON_DEVICE)}


def sentence(ladder: Ladder) -> str:
    """What the loader costs."""
    measured = ladder.table().filter(pl.col("samples_per_s").is_not_null())
    if measured.is_empty() or measured["rung"][0] != AS_IT_IS.name:
        why = ladder.table()["why_not"][0]
        return f"The loader as it is was not measured: {why}"
    if measured.height == 1:
        return f"Only the loader as it is was measured: {_rate(measured.row(0, named=True))}"
    bottom, top = measured.row(0, named=True), measured.row(-1, named=True)
    has_step, up_to = ladder.circumstances.has_step, f" with {top['rung']}"
    if not has_step or top["rung"] not in WHOLE:
        what = "The loop makes" if has_step else "The loader alone gives"
        return f"{what} {_rate(bottom)}, {_costs(ladder, up_to)}"
    return _of_device(ladder, bottom, top)


def _of_device(ladder: Ladder, bottom: dict[str, Any], top: dict[str, Any]) -> str:
    """The answer where whole batches were cached."""
    gain = ladder.headroom().row(0, named=True)
    costs = gain["distinguishable"] and gain["factor"] > 1
    now, cached = bottom["device_busy_share"], top["device_busy_share"]
    told = ladder.circumstances
    is_simulated = told.simulated_step_s is not None or told.device.startswith("simulated")
    device = "the simulated device" if is_simulated else "the device"
    if now is None or cached is None:  # the processor: a share of the loop is no share of a device
        if not costs:
            return f"{_no_cost(ladder)}: the step takes {share(bottom['step_share'])} of the loop"
        return f"With everything cached the loop is {_costs(ladder, '')}"
    if cached < WELL_USED:
        look = f"Even with everything cached {device} is {share(cached)} busy: look in the step"
        return f"{look}; the loader costs you {times(gain['factor'])}" if costs else look
    if not costs:
        return f"{_no_cost(ladder)}: {device} is {share(now)} busy as it is"
    return (
        f"With everything cached {device} is {share(cached)} busy, as it is {share(now)}: the "
        f"loader costs you {times(gain['factor'])}{_most(ladder)}"
    )


def _costs(ladder: Ladder, up_to: str) -> str:
    """The factor between the lowest and the highest measured rung."""
    gain = ladder.headroom().row(0, named=True)
    if not gain["distinguishable"]:
        return f"and is not measurably faster{up_to}"
    if up_to:
        return f"{times(gain['factor'])} as many{up_to}{_most(ladder)}"
    factor = times(gain["factor"])
    return f"{factor} as fast: the loader costs you {factor}{_most(ladder)}"


def _most(ladder: Ladder) -> str:
    gains = ladder.gains().filter(pl.col("factor") > 1).sort("factor", descending=True)
    if gains.is_empty() or ladder.gains().height == 1:
        return ""
    first = gains.row(0, named=True)
    if first["distinguishable"]:
        return f"; the largest part is {first['removes']} ({times(first['factor'])})"
    return "; which part costs most is not told in so few laps: allow more time (budget_s)"


def _no_cost(ladder: Ladder) -> str:
    starts = [rates.starts for rates in ladder.rates.values()]
    if starts[0] == starts[-1] == 1:
        return "Too little was measured to tell what the loader costs"
    return "The loader costs nothing measurable"


def _rate(row: dict[str, Any]) -> str:
    return f"{row['samples_per_s']:,.0f} samples/s"


def notes_of(ladder: Ladder) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = ladder.circumstances
    said = [f"computed by: {told.device}"]
    if told.simulated_step_s is not None:
        behind = told.device.startswith("simulated device")
        where = f" on a {told.device}" if behind else ", no device"
        said = [f"the step is simulated: a timer of {seconds(told.simulated_step_s)}{where}"]
    elif not told.has_step:
        said = ["no step was given: how busy a device could be is unknown"]
    missing = ladder.table().filter(pl.col("why_not").is_not_null())
    for why in missing["why_not"].unique(maintain_order=True):
        names = missing.filter(pl.col("why_not") == why)["rung"]
        said.append(f"not measured: {', '.join(names)} ({why})")
    return [*said, *ladder.notes]
