"""Result of `ss.ladder`: one loop, measured with one more of its costs removed each time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench.comparison import (
    BLOCKS,
    FASTER,
    OPEN,
    SAME,
    SLOWER,
    Rate,
    blocks_of,
    budget_for,
    gain_text,
    rates,
)
from stallscope.bench.comparison import compared as compared_blocks
from stallscope.columns import NAME, Column, Schema, interval
from stallscope.model.thresholds import WELL_USED
from stallscope.result import LoopConditions, SavedResult
from stallscope.store import stored
from stallscope.units import duration, rate, share, times

if TYPE_CHECKING:
    from stallscope.bench.comparison import Factor, LoopBlock


class Rung(NamedTuple):
    """Loop of a ladder."""

    name: str
    removes: str
    """Cost that the rung below has."""
    kind: str = ""
    """Kind of stage that gives this cost its colour."""


AS_IT_IS: Final = Rung("as it is", "")
WARM: Final = Rung("storage warm", "cold storage", "fetch")
FETCHED: Final = Rung("fetched samples in memory", "fetch and decode", "decode")
TRANSFORMED: Final = Rung("transformed samples in memory", "transforms", "transform")
BATCHES: Final = Rung("batches in memory", "collate and sending", "collate")
PINNED: Final = Rung("batches in pinned memory", "pageable memory", "pin")
ON_DEVICE: Final = Rung("batches on the device", "copy to the device", "h2d")

RUNGS: Final = (AS_IT_IS, WARM, FETCHED, TRANSFORMED, BATCHES, PINNED, ON_DEVICE)
"""Rungs from the bottom to the top."""
_NAMES: Final = [rung.name for rung in RUNGS]

_BLOCKS: Final = Schema(
    f"{BLOCKS.about} A variant is the number of a rung.",
    replace(BLOCKS.columns[0], words=range(len(RUNGS))),
    *BLOCKS.columns[1:],
    nullable="step_s",
)
FACTS: Final = Schema(
    "One row per rung.",
    Column("rung", pl.String, secret=NAME, words=_NAMES),
    Column("cached_bytes", pl.Int64, "memory of its cached data", "in memory"),
    Column("device_busy_share", pl.Float64, "read from the device; null: no device", "busy"),
    Column("nvml_busy_share", pl.Float64, "the same by NVML"),
    Column("why_not", pl.String, "why it was not measured"),
    nullable="cached_bytes device_busy_share nvml_busy_share why_not",
)


@dataclass(frozen=True, eq=False)
class Ladder(SavedResult):
    """Throughput of a loop as it is, and without each of the loader's costs."""

    _view: ClassVar[str] = "results.LADDER"
    _noun: ClassVar[str] = "ladder"

    blocks: pl.DataFrame = stored(_BLOCKS)
    facts: pl.DataFrame = stored(FACTS)
    circumstances: LoopConditions = field(default_factory=LoopConditions)
    """Target, step and machine of the measurement."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""
    took_s: float = 0.0
    """Seconds that the measurement took."""

    @cached_property
    def _rows_of_blocks(self) -> list[LoopBlock]:
        return blocks_of(self.blocks)

    @cached_property
    def rates(self) -> dict[str, Rate]:
        """Samples per second of each measured rung, from the bottom to the top."""
        return {_NAMES[number]: each for number, each in rates(self._rows_of_blocks).items()}

    def compared(self, upper: str, lower: str) -> Factor:
        """Compare two rungs, by their names."""
        return compared_blocks(self._rows_of_blocks, _NAMES.index(upper), _NAMES.index(lower))

    @computed_apart
    def table(self) -> pl.DataFrame:
        """Return a row for each rung, the lowest first; columns of `ladder.result.TABLE`."""
        return pl.DataFrame([self._row(rung) for rung in RUNGS], TABLE)

    def _row(self, rung: Rung) -> dict[str, Any]:
        blocks = [block for block in self._rows_of_blocks if block.variant == RUNGS.index(rung)]
        throughput = self.rates.get(rung.name)
        wall_s = sum(block.seconds for block in blocks)
        in_step = [block.step_s for block in blocks if block.step_s is not None]
        step_share = sum(in_step) / wall_s if in_step and wall_s else None
        row = {
            "rung": rung.name,
            "removes": rung.removes,
            "samples_per_s": throughput and throughput.value,
            "samples_per_s_low": throughput and throughput.low,
            "samples_per_s_high": throughput and throughput.high,
            "step_share": step_share,
            "starts": len({block.start for block in blocks}),
            "blocks": len(blocks),
        }
        unknown = dict.fromkeys(FACTS) | {"rung": rung.name, "why_not": ""}
        row |= next(self.facts.filter(rung=rung.name).iter_rows(named=True), unknown)
        if self.circumstances.simulated_step_s is not None and row["device_busy_share"] is None:
            row["device_busy_share"] = step_share
        return row

    @computed_apart
    def gains(self) -> pl.DataFrame:
        """Compare each measured rung with the one below; columns of `ladder.result.GAINS`."""
        return pl.DataFrame([self._gain(*pair) for pair in pairwise(self.rates)], GAINS)

    @computed_apart
    def headroom(self) -> pl.DataFrame:
        """Compare the highest measured rung with the lowest: a row of `ladder.result.GAINS`."""
        names = list(self.rates)
        return pl.DataFrame([self._gain(names[0], names[-1])] if len(names) > 1 else [], GAINS)

    def _gain(self, lower: str, upper: str) -> dict[str, Any]:
        between = RUNGS[_NAMES.index(lower) + 1 : _NAMES.index(upper) + 1]
        removes = ", ".join(rung.removes for rung in between)  # incl. rungs without a measurement
        return dict(zip(GAINS, (upper, removes, *self.compared(upper, lower)), strict=True))


TABLE: Final = Schema(
    "One row per rung, lowest first.",
    Column("rung", pl.String, "name of the loop", "rung"),
    Column("removes", pl.String, "cost of the previous rung that this rung removes"),
    Column("samples_per_s", pl.Float64, "throughput of the loop", "samples/s", "{:,.0f}".format),
    *interval("samples_per_s_low", "{:,.0f}".format),
    Column("step_share", pl.Float64, "share of the loop's wall time in the step", "in the step"),
    *FACTS.shown("device_busy_share cached_bytes nvml_busy_share"),
    Column("starts", pl.Int32, "starts of the workers"),
    Column("blocks", pl.Int32, "blocks of steps that were timed"),
    Column("why_not", pl.String, "why it was not measured"),
)

GAINS: Final = Schema(
    "One row per measured rung above the lowest: its speedup over the measured rung below.",
    Column("rung", pl.String),
    Column("removes", pl.String, "all costs between the two rungs"),
    Column("factor", pl.Float64, "speedup"),
    *interval("factor_low"),
    Column("says", pl.String, "word of `bench.comparison`"),
)

WHOLE: Final = {rung.name for rung in (BATCHES, PINNED, ON_DEVICE)}


def sentence(ladder: Ladder) -> str:
    """Return the title: the cost of the loader."""
    measured = ladder.table().filter(pl.col("samples_per_s").is_not_null()).to_dicts()
    if not measured or measured[0]["rung"] != AS_IT_IS.name:
        return f"The current loader was not measured: {ladder.table()['why_not'][0]}"
    bottom, top = measured[0], measured[-1]
    if len(measured) == 1:
        return f"Only the current loader was measured: {rate(bottom['samples_per_s'])} samples/s"
    has_step, is_whole = ladder.circumstances.has_step, top["rung"] in WHOLE
    cache = "everything cached" if is_whole else top["rung"]
    slow, fast = (rate(row["samples_per_s"]) for row in (bottom, top))
    now, cached = bottom["device_busy_share"], top["device_busy_share"]
    costs = _costs(ladder, "the loader" if is_whole else ladder.headroom()["removes"].item())
    if not has_step or not is_whole or now is None or cached is None:
        what = "The loop makes" if has_step else "The loader alone gives"
        return f"{what} {slow} samples/s, {fast} with {cache}: {costs}"
    about = ladder.circumstances
    is_simulated = about.simulated_step_s is not None or about.device.startswith("simulated")
    device = "Simulated device" if is_simulated else "Device"
    advice = "" if cached >= WELL_USED else "; look in the step for the rest"
    return f"{device} busy {share(now)} now, {share(cached)} with {cache}: {costs}{advice}"


def _costs(ladder: Ladder, what: str) -> str:
    """Return the speedup of the highest measured rung over the lowest, in words."""
    gain, gains = ladder.headroom().row(0, named=True), ladder.gains()
    factor = gain_text(gain["factor"], gain["factor_low"], gain["factor_high"])
    if gain["says"] == SAME:
        return f"{what} costs nothing significant"
    if gain["says"] == SLOWER:
        return f"caching is no faster ({factor})"
    if gain["says"] == OPEN:
        names = list(ladder.rates)
        budget = duration(budget_for(ladder.compared(names[-1], names[0]), ladder.took_s))
        costs = (
            f"costs up to {factor}"
            if gain["factor"] > 1
            else f"is not seen to cost time ({factor})"
        )
        return f"{what} {costs}, not settled; set budget_s to {budget}"
    first = gains.filter(says=FASTER).sort("factor", descending=True).head(1).to_dicts()
    if not first or gains.height == 1:
        return f"{what} costs up to {factor}"
    return (
        f"{what} costs up to {factor}, mostly {first[0]['removes']} ({times(first[0]['factor'])})"
    )


def notes_of(ladder: Ladder) -> list[str]:
    """Return the notes below the picture, a sentence each."""
    about = ladder.circumstances
    notes = about.step_notes("how busy a device could be is unknown")
    notes = notes or [f"computed by: {about.device}"]
    missing = ladder.table().filter(pl.col("why_not").is_not_null())
    for why in missing["why_not"].unique(maintain_order=True):
        names = missing.filter(pl.col("why_not") == why)["rung"]
        notes.append(f"not measured: {', '.join(names)} ({why})")
    return [*notes, *ladder.notes]
