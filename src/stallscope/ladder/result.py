"""The cached ladder as a value: the same loop, each time with one more of its costs removed.

The sentence on top, what the loader costs and whether that is where to look, stands over the table
and the picture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench.comparison import FASTER, OPEN, SAME, Rate, budget_for
from stallscope.bench.loops import STORED_BLOCKS, blocks_of, rates
from stallscope.bench.loops import compared as compared_blocks
from stallscope.columns import NAME, Column, Schema
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import Contents, StoredTable
from stallscope.units import duration, seconds, share, times

if TYPE_CHECKING:
    from stallscope.bench.comparison import Factor
    from stallscope.bench.loops import LoopBlock


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

FACTS: Final = Schema(
    "One row a rung.",
    Column("rung", pl.String, secret=NAME),
    Column("cached_bytes", pl.Int64, "memory that it kept", "in memory"),
    Column("device_busy_share", pl.Float64, "read from the device; null: there is none", "busy"),
    Column("nvml_busy_share", pl.Float64, "the same by NVML"),
    Column("why_not", pl.String, "why it was not measured"),
)


@dataclass(frozen=True, eq=False)
class Ladder(SavedResult):
    """How fast the loop is, and would be without each of the loader's costs."""

    _view: ClassVar[str] = "results.LADDER"
    _contents: ClassVar = Contents(
        kind="ladder",
        noun="ladder",
        tables=(
            STORED_BLOCKS._replace(words={"variant": [str(n) for n in range(len(RUNGS))]}),
            StoredTable("facts", FACTS, {"rung"}, words={"rung": [rung.name for rung in RUNGS]}),
        ),
        values={"circumstances": LoopConditions, "notes": tuple[str, ...], "took_s": float},
    )

    blocks: pl.DataFrame
    """Columns of `bench.loops.BLOCKS`; a variant is the number of a rung in `RUNGS`."""
    facts: pl.DataFrame
    """Columns of `FACTS`."""
    circumstances: LoopConditions = field(default_factory=LoopConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""
    took_s: float = 0.0
    """How long it was measured, seconds."""

    @cached_property
    def _rows_of_blocks(self) -> list[LoopBlock]:
        return blocks_of(self.blocks)

    @cached_property
    def rates(self) -> dict[str, Rate]:
        """For each rung that was measured, from the bottom to the top, its samples a second."""
        return {RUNGS[number].name: one for number, one in rates(self._rows_of_blocks).items()}

    def compared(self, upper: str, lower: str) -> Factor:
        """How many times as fast one rung is as another, by their names."""
        names = [rung.name for rung in RUNGS]
        return compared_blocks(self._rows_of_blocks, names.index(upper), names.index(lower))

    @computed_apart
    def table(self) -> pl.DataFrame:
        """One row a rung, from the bottom to the top; columns of `ladder.result.TABLE`."""
        return pl.DataFrame([self._row(rung) for rung in RUNGS], TABLE)

    def _row(self, rung: Rung) -> dict[str, Any]:
        blocks = [one for one in self._rows_of_blocks if one.variant == RUNGS.index(rung)]
        known = self.rates.get(rung.name)
        wall_s = sum(one.seconds for one in blocks)
        in_step = [one.step_s for one in blocks if one.step_s is not None]
        step_share = sum(in_step) / wall_s if in_step and wall_s else None
        row = {
            "rung": rung.name,
            "removes": rung.removes,
            "samples_per_s": known and known.value,
            "samples_per_s_low": known and known.low,
            "samples_per_s_high": known and known.high,
            "step_share": step_share,
            "starts": len({one.start for one in blocks}),
            "blocks": len(blocks),
        }
        unknown = dict.fromkeys(FACTS) | {"rung": rung.name, "why_not": ""}
        row |= next(self.facts.filter(rung=rung.name).iter_rows(named=True), unknown)
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
        found = self.compared(upper, lower)
        return {
            "rung": upper,
            "removes": ", ".join(rung.removes for rung in between),  # some may not be measured
            "factor": found.factor,
            "factor_low": found.low,
            "factor_high": found.high,
            "says": found.says,
        }


TABLE: Final = Schema(
    "One row a rung, from the bottom to the top.",
    Column("rung", pl.String, "name of the loop", "rung"),
    Column("removes", pl.String, "cost that the rung before still had"),
    Column("samples_per_s", pl.Float64, "throughput of the loop", "samples/s", "{:,.0f}".format),
    Column("samples_per_s_low", pl.Float64, "its 95% CI", INTERVAL, "{:,.0f}".format),
    Column("samples_per_s_high", pl.Float64),
    Column("step_share", pl.Float64, "share of the loop's wall time in the step", "in the step"),
    Column("device_busy_share", pl.Float64, "null without a GPU or a simulated device", "busy"),
    Column("cached_bytes", pl.Int64, "memory that it kept", "in memory"),
    Column("nvml_busy_share", pl.Float64, "the same as `device_busy_share`, by NVML"),
    Column("starts", pl.Int32, "starts of the workers"),
    Column("blocks", pl.Int32, "blocks of steps that were timed"),
    Column("why_not", pl.String, "why it was not measured"),
)

GAINS: Final = Schema(
    "One row a measured rung but the lowest: its speedup over the measured one below.",
    Column("rung", pl.String),
    Column("removes", pl.String, "all costs between the two"),
    Column("factor", pl.Float64, "speedup"),
    Column("factor_low", pl.Float64, "its 95% CI"),
    Column("factor_high", pl.Float64),
    Column("says", pl.String, "word of `bench.comparison`"),
)

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
    gain = ladder.compared(top["rung"], bottom["rung"])
    costs = gain.says == FASTER
    now, cached = bottom["device_busy_share"], top["device_busy_share"]
    told = ladder.circumstances
    is_simulated = told.simulated_step_s is not None or told.device.startswith("simulated")
    device = "the simulated device" if is_simulated else "the device"
    if gain.says == OPEN:
        return f"With everything cached the loop is {_costs(ladder, '')}"
    if now is None or cached is None:  # the processor: a share of the loop is no share of a device
        if not costs:
            return f"{_NO_COST}: the step takes {share(bottom['step_share'])} of the loop"
        return f"With everything cached the loop is {_costs(ladder, '')}"
    if cached < WELL_USED:
        look = f"Even with everything cached {device} is {share(cached)} busy: look in the step"
        return f"{look}; the loader costs you {times(gain.factor)}" if costs else look
    if not costs:
        return f"{_NO_COST}: {device} is {share(now)} busy as it is"
    return (
        f"With everything cached {device} is {share(cached)} busy, as it is {share(now)}: the "
        f"loader costs you {times(gain.factor)}{_most(ladder)}"
    )


_NO_COST: Final = "The loader costs nothing that matters"


def _costs(ladder: Ladder, up_to: str) -> str:
    """The factor between the lowest and the highest measured rung."""
    names = list(ladder.rates)
    gain = ladder.compared(names[-1], names[0])
    if gain.says == SAME:
        return f"and is no faster{up_to}" if up_to else "no faster: the loader costs nothing"
    factor = times(gain.factor)
    if gain.says == OPEN:
        ends = "" if gain.low is None else f" ({gain.low:.2f} to {gain.high:.2f})"
        more = duration(budget_for(gain, ladder.took_s))
        return f"{factor} as fast{up_to}{ends}, not settled: allow {more} (budget_s)"
    if gain.says != FASTER:
        return f"and is slower{up_to} ({factor})" if up_to else f"slower ({factor})"
    if up_to:
        return f"{factor} as many{up_to}{_most(ladder)}"
    return f"{factor} as fast: the loader costs you {factor}{_most(ladder)}"


def _most(ladder: Ladder) -> str:
    """The largest part of what the loader costs."""
    gains = ladder.gains().filter(pl.col("says") == FASTER).sort("factor", descending=True)
    if gains.is_empty() or ladder.gains().height == 1:
        return ""
    first = gains.row(0, named=True)
    return f"; the largest part is {first['removes']} ({times(first['factor'])})"


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
