"""The sentences about a pipeline's orders: what is faster and gives the same data, if anything is.

They stand over the table, the pictures and the panel, so they are written in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench import samples
from stallscope.bench.comparison import FASTER, OPEN, SAME, budget_for
from stallscope.orders.result import (
    CACHE,
    DIFFERENT,
    EQUIVALENCES,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
    near_enough,
    op_names,
    parts_of,
    speed_of,
)
from stallscope.stats import INTERVAL
from stallscope.units import count, duration, printable, seconds, share, times

if TYPE_CHECKING:
    from stallscope.orders.result import Orders


TITLE: Final = 200
PIPELINE: Final = 80

_BYTE: Final = 255
_SHADE: Final = 0.01
"""Of 255: what differs by less is told as a share of the range."""
_FINE: Final = 1.1
"""Below this, a factor with one decimal would say too little."""


def factor_text(factor: float) -> str:
    """How many times as fast: '1.8×', '1.04×'."""
    return times(factor) if factor >= _FINE else f"{factor:.2f}×"


def sentence(orders: Orders) -> str:
    """What is faster and gives the same data, or nearly so, measured where it was measured."""
    best, near = orders.best(), beyond(orders)
    if best is None and near:
        return f"{near}; with the same data nothing is faster"
    if best is None:
        return _nothing(orders)
    data = _DATA[best["equivalence"]]
    if best["speedup"] is None:
        should = f"should be made {factor_text(best['predicted_speedup'] or 1.0)} as fast"
        return f"With {best['change']}, {data} {should}: predicted, not measured"
    ends = _ends(best["speedup_low"], best["speedup_high"])
    made = f"{best['speedup']:.2f}× as fast{ends}"
    return f"With {best['change']}, {data} are made {made}{_in_loader(best)}"


_DATA: Final = {
    IDENTICAL: "the same samples",
    ROUNDING: "the same samples up to rounding",
    NEAR: "nearly the same samples",
}
_MUCH_FASTER: Final = 1.05
"""What differs by rounding to 8 bits is named where it is so many times as fast as the best."""


def beyond(orders: Orders) -> str:
    """What else there is where data may differ by rounding to 8 bits; "" where it is no faster."""
    best, near = orders.best(), orders.best(NEAR)
    if near is None or near["equivalence"] != NEAR or near["speedup"] is None:
        return ""
    if best is not None and speed_of(near) < _MUCH_FASTER * speed_of(best):
        return ""
    ends = _ends(near["speedup_low"], near["speedup_high"])
    fast = f"{near['speedup']:.2f}× as fast{ends}"
    return f"{near['change']}: {fast}, near-identical: it {difference(near)}"


def _in_loader(best: dict[str, Any]) -> str:
    """What the best one gives in the loader's workers, where that was measured and is clear."""
    if best["loader_says"] == SAME:
        return "; the loader gives no more, as something else limits it"
    if best["loader_says"] != FASTER:
        return ""
    ends = f"{best['loader_gain_low']:.2f} to {best['loader_gain_high']:.2f}"
    return f"; the loader gives {best['loader_gain']:.2f}× as many ({ends})"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({INTERVAL} {low:.2f} to {high:.2f})"


def _nothing(orders: Orders) -> str:
    names = list(op_names(orders).values())
    others = orders.trials.height - 1
    if len(names) == 1 and others <= 0:
        return f"The pipeline has one op, {names[0]}: there is nothing to put into another order"
    if others <= 0 and orders.counts.unexplored:
        return "The time was over before another pipeline was tried: allow more of it (budget_s)"
    if others <= 0:
        return "No other pipeline was tried: keep the one as it is"
    unsure = _unsure(orders)
    if unsure:
        return unsure
    what = "the other that was tried is not" if others == 1 else f"none of {others:,} others is"
    return (
        f"Keep the pipeline as it is: {what} known to give the same data in less time"
        f"{_nearest(orders)}{_for_memory(orders)}"
    )


def _unsure(orders: Orders) -> str:
    """What should be faster, where the budget was over before that was settled."""
    same = _safe(orders) & (pl.col("trial") > 0) & (pl.col("kind") != CACHE)
    rows = orders.table().filter(same, pl.col("says") == OPEN).sort("speedup")
    if rows.is_empty() or rows["speedup"][-1] <= 1:
        return ""
    last = rows.row(-1, named=True)
    found = samples.compared(samples.pairs_of(orders.pairs), last["trial"])
    more = duration(budget_for(found, orders.circumstances.took_s))
    return (
        f"Not settled whether {last['change']} is faster: {last['speedup']:.2f}×"
        f"{_ends(last['speedup_low'], last['speedup_high'])}; allow {more} (budget_s)"
    )


def _nearest(orders: Orders) -> str:
    """Which other one comes nearest to a gain."""
    same = _safe(orders) & (pl.col("trial") > 0) & (pl.col("speedup") > 1)
    rows = orders.table().filter(same, pl.col("kind") != CACHE)  # what room is spent on
    rows = rows.sort("speedup", descending=True)
    if rows.is_empty():
        return ""
    first = rows.row(0, named=True)
    return (
        f"; nearest: {first['change']}, {first['speedup']:.2f}×"
        f"{_ends(first['speedup_low'], first['speedup_high'])}"
    )


def _safe(orders: Orders) -> pl.Expr:
    """Whether a trial's data is within the tolerance."""
    return pl.col("equivalence").is_in(near_enough(orders.circumstances.tolerance))


def _for_memory(orders: Orders) -> str:
    """What gives the same data faster and is no recommendation, as it takes memory."""
    same = (pl.col("equivalence") == IDENTICAL) & (pl.col("kind") == CACHE)
    rows = orders.table().filter(same, pl.col("speedup_low") > _FINE).sort("speedup")
    if rows.is_empty():
        return ""
    last = rows.row(-1, named=True)
    return f"; {last['change']} gives it {factor_text(last['speedup'])} as fast"


def costliest(orders: Orders) -> str:
    """The op that takes most of a sample's time; "" where no op was timed."""
    parts = parts_of(orders, 0)
    ops = [part for part in parts if part.kind == "transform"]
    whole = sum(part.seconds for part in parts)
    if not ops or not whole:
        return ""
    first = max(ops, key=lambda part: part.seconds)
    told = f"{first.name} is the costliest op: {share(first.seconds / whole)} of a sample's time"
    decode = sum(part.seconds for part in parts if part.kind == "decode")
    return told + (f"; decoding the image takes {share(decode / whole)}" if decode else "")


def floor(orders: Orders) -> str:
    """What of the best pipeline no order takes away; "" where that is not known."""
    best = orders.best()
    if best is None:
        return ""
    parts = parts_of(orders, best["trial"])
    decode = sum(part.seconds for part in parts if part.kind == "decode")
    if not decode:
        return ""
    took = share(decode / sum(part.seconds for part in parts))
    return f"decoding the image takes {took} of the best pipeline; no order removes that"


def summary(orders: Orders) -> str:
    """How many pipelines were tried, and how their data compares with the original's."""
    others = orders.trials.filter(pl.col("trial") > 0)
    if others.is_empty():
        return ""
    found = [(others.filter(pl.col("equivalence") == one).height, one) for one in EQUIVALENCES]
    said = ", ".join(f"{number:,} {one.replace('-', ' ')}" for number, one in found if number)
    return f"{count(others.height, 'other pipeline')} tried: {said}"


def search(orders: Orders) -> str:
    """How much of all orders was looked at."""
    told = orders.counts
    if not told.measurements:
        return ""
    said = f"{count(told.measurements, 'op')} timed in {count(told.states, 'state')}"
    if told.exhaustive > told.measurements:
        said += f"; timing every order by itself would take {told.exhaustive:,}"
    return said


def difference(row: dict[str, Any]) -> str:
    """How far the data lies from the original's, in words; a row with the columns of `TRIALS`."""
    most = row["max_difference"]
    if most is None:
        return "differs"
    shades = _BYTE * most
    said = f"{shades:.2f}/255" if shades >= _SHADE else f"{most:.1g} of the values' range"
    psnr = "" if row["psnr_db"] is None else f" (PSNR {row['psnr_db']:.0f} dB)"
    return f"differs by at most {said}{psnr}"


def verdict(row: dict[str, Any]) -> str:
    """Whether the data is the original's, in words; a row with the columns of `TRIALS`."""
    on = f"on {count(row['compared'], 'sample')}" if row["compared"] else ""
    said = {
        IDENTICAL: "identical: the same bits",
        ROUNDING: f"rounding: {difference(row)}",
        NEAR: f"8-bit rounding: {difference(row)}",
        DIFFERENT: "different data",
        FAILS: "fails",
    }[row["equivalence"]]
    told = said if row["equivalence"] == FAILS else f"{said} {on}".rstrip()
    return f"{told} ({row['why']})" if row["why"] else told


def whole(orders: Orders) -> str:
    """What a sample costs as it is; "" where that is not known."""
    took = orders.trials["predicted_s"][0] if orders.trials.height else None
    return "" if took is None else f"{seconds(took)} per sample as it is"


def notes_of(orders: Orders) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = orders.circumstances
    where = f" of {printable(told.pipeline, PIPELINE)}" if told.pipeline else ""
    of = f"compared on {count(told.samples, 'sample')}{where}"
    if orders.pairs.height:
        of += f" · timed on {count(orders.pairs.height, 'pair')} of samples, in one process"
    changes = [
        f"{row['change']}: {row['changes']}"
        for row in orders.table().to_dicts()
        if row["changes"] and (row["recommended"] or row["kind"] == CACHE)
    ]
    top = " · ".join(part for part in (costliest(orders), whole(orders)) if part)
    tried = " · ".join(part for part in (summary(orders), search(orders)) if part)
    said = [top, floor(orders), of, tried, *changes, *orders.notes]
    return [printable(note, 600) for note in said if note]
