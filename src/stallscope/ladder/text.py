"""The one sentence on top of a ladder: what the loader costs, and whether that is where to look.

It stands over the table and the picture, so it is written in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.ladder.result import AS_IT_IS, BATCHES, ON_DEVICE, PINNED
from stallscope.units import seconds, share, times

if TYPE_CHECKING:
    from stallscope.ladder.result import Ladder


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
    if not ladder.circumstances.has_step:
        return f"The loader alone gives {_rate(bottom)}, {_costs(ladder, _up_to(top))}"
    if top["rung"] not in WHOLE:
        return f"The loop makes {_rate(bottom)}, {_costs(ladder, _up_to(top))}"
    return _of_device(ladder, bottom, top)


def _of_device(ladder: Ladder, bottom: dict[str, Any], top: dict[str, Any]) -> str:
    """The answer where whole batches were cached."""
    gain = ladder.headroom().row(0, named=True)
    costs = gain["distinguishable"] and gain["factor"] > 1
    now, cached = bottom["device_busy_share"], top["device_busy_share"]
    device = "the simulated device" if _is_simulated(ladder) else "the device"
    if now is None or cached is None:  # the processor: a share of the loop is no share of a device
        if not costs:
            return f"{_no_cost(ladder)}: the step takes {share(bottom['step_share'])} of the loop"
        return f"With everything cached the loop is {_costs(ladder, '')}"
    if cached < WELL_USED:
        look = f"Even with everything cached {device} is {share(cached)} busy: look in the step"
        return f"{look}; the loader costs you {times(gain['factor'])}" if costs else look
    if not costs:
        return f"{_no_cost(ladder)}: {device} is {share(now)} busy as it is"
    most = _most(ladder)
    return (
        f"With everything cached {device} is {share(cached)} busy, as it is {share(now)}: the "
        f"loader costs you {times(gain['factor'])}{most}"
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
    """Which cost is the largest, where there are several and one can be told from nothing."""
    found = ladder.gains().filter(pl.col("distinguishable") & (pl.col("factor") > 1))
    if found.is_empty() or ladder.gains().height == 1:
        return ""
    first = found.sort("factor", descending=True).row(0, named=True)
    return f"; the largest part is {first['removes']} ({times(first['factor'])})"


def _no_cost(ladder: Ladder) -> str:
    gain = ladder.headroom().row(0, named=True)
    if gain["factor_low"] is None:
        return "Too little was measured to tell what the loader costs"
    return "The loader costs nothing measurable"


def _up_to(top: dict[str, Any]) -> str:
    return f" with {top['rung']}"


def _rate(row: dict[str, Any]) -> str:
    return f"{row['samples_per_s']:,.0f} samples/s"


def _is_simulated(ladder: Ladder) -> bool:
    return ladder.circumstances.simulated_step_s is not None


def notes_of(ladder: Ladder) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = ladder.circumstances
    said = [f"computed by: {told.device}"]
    if told.simulated_step_s is not None:
        said = [f"the step is simulated: a timer of {seconds(told.simulated_step_s)}, no device"]
    elif not told.has_step:
        said = ["no step was given: how busy a device could be is unknown"]
    missing = ladder.table().filter(pl.col("why_not").is_not_null())
    for why in missing["why_not"].unique(maintain_order=True):
        names = missing.filter(pl.col("why_not") == why)["rung"]
        said.append(f"not measured: {', '.join(names)} ({why})")
    return [*said, *ladder.notes]
