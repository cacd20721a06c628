"""Which parts a sample's predicted time has: fetching, decoding, each op, collating.

From what was measured on the way: the parts of a variant add up to its prediction, and what a
change does is the difference that it makes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.orders.result import FAILS, CostPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.orders.result import Orders

FETCH: Final = "fetch"
DECODE: Final = "decode"
BATCH: Final = "collate and send"
ON_BATCH: Final = " (on the batch)"
"""Ends the name of an op that works on whole batches, in the order of a trial."""
BETWEEN: Final = " → "
"""Stands between the names of an order."""
_ROUNDING: Final = 1e-9
"""Seconds."""
_NEAR: Final = 1e-3


def op_names(orders: Orders) -> dict[int, str]:
    """Name each op, by its position, in the order of the pipeline as it is."""
    rows = orders.ops.filter(pl.col("position") >= 0).sort("position")
    return dict(rows.select("position", "name").iter_rows())


def as_it_is(orders: Orders) -> tuple[CostPart, ...]:
    """Take the pipeline as it is apart."""
    return parts_of(orders, orders.trials.row(0, named=True)) if orders.trials.height else ()


def parts_of(orders: Orders, trial: dict[str, Any]) -> tuple[CostPart, ...]:
    """Take a variant's predicted time apart, in the order in which it passes.

    Args:
        orders: what was measured.
        trial: a row of `TRIALS`.

    Returns:
        Nothing where they are not known: it fails, or what it changes cannot be told apart.
    """
    if trial["equivalence"] == FAILS or trial["predicted_s"] is None or trial["kind"] == "cache":
        return ()
    ops = _known_ops(orders, trial)
    if ops is None:
        return ()
    rest = orders.rest
    left_s = trial["predicted_s"] - rest.fetch_s - rest.batch_s - sum(op.seconds for op in ops)
    moved = [name for name in str(trial["order"]).split(BETWEEN) if name.endswith(ON_BATCH)]
    # beside the ops either decoding is another one, or ops are somewhere else
    decode_s, batch_s = (rest.decode_s, left_s - rest.decode_s) if moved else (left_s, 0.0)
    if min(decode_s, batch_s) < -_ROUNDING or (
        trial["kind"] == "order"
        and not math.isclose(decode_s, rest.decode_s, rel_tol=_NEAR, abs_tol=_ROUNDING)
    ):
        return ()
    together = f"{', '.join(name.removesuffix(ON_BATCH) for name in moved)} on the batch"
    found = [
        CostPart(FETCH, rest.fetch_s, "fetch"),
        CostPart(DECODE, decode_s, "decode"),
        *ops,
        CostPart(together, batch_s, "collate"),
        CostPart(BATCH, rest.batch_s, "collate"),
    ]
    return tuple(piece for piece in found if piece.seconds > _ROUNDING)


def _known_ops(orders: Orders, trial: dict[str, Any]) -> list[CostPart] | None:
    """The ops that work on samples, with their costs; None where one cannot be told."""
    positions, shown = trial["positions"], str(trial["order"]).split(BETWEEN)
    costs = _costs_in(orders, tuple(positions))
    if costs is None or len(shown) != len(positions):
        return None
    names = op_names(orders)
    found = []
    for op, name in zip(positions, shown, strict=True):
        if name == names[op]:
            found.append(CostPart(name, costs[op], "transform"))
        elif not name.endswith(ON_BATCH):
            seconds = _cost_of_rewrite(orders, op, name)
            if seconds is None:
                return None
            found.append(CostPart(name, seconds, "transform"))
    return found


def _cost_of_rewrite(orders: Orders, op: int, name: str) -> float | None:
    """What a rewrite takes: the op's own time, less what the rewrite alone saves."""
    alone = [name if one == op else plain for one, plain in op_names(orders).items()]
    rows = orders.trials.filter(
        (pl.col("kind") == "alternative") & (pl.col("order") == BETWEEN.join(alone))
    )
    original, old = orders.trials["predicted_s"][0], _own_costs(orders).get(op)
    seconds = rows["predicted_s"][0] if rows.height else None
    if seconds is None or original is None or old is None:
        return None
    return max(float(old - original + seconds), 0.0)


def _costs_in(orders: Orders, positions: tuple[int, ...]) -> dict[int, float] | None:
    """What each op costs in an order; None where a cost cannot be told from the table.

    The search may have used fewer samples than the pipeline as it is was timed on. Then it is the
    ratio of both orders that counts, as it is in a trial's prediction their difference.
    """
    own = _own_costs(orders)
    first = tuple(own)
    if positions == first:
        return own
    there = _searched(orders, positions) or _asked(orders, positions)
    before = _searched(orders, first)
    if there is None or before is None:
        return None
    shift = sum(own.values()) - sum(before.values())
    total = sum(there.values())
    scale = (total + shift) / total if total else 1.0
    return {op: seconds * scale for op, seconds in there.items()} if scale > 0 else None


def _own_costs(orders: Orders) -> dict[int, float]:
    """What each op costs in the pipeline as it is, in its order."""
    rows = orders.ops.filter(pl.col("position") >= 0).sort("position")
    return {row["position"]: row["cost_s"] or 0.0 for row in rows.iter_rows(named=True)}


def _searched(orders: Orders, positions: Sequence[int]) -> dict[int, float] | None:
    """What each op cost in an order while it was searched."""
    found: dict[int, float] = {}
    way: tuple[int, ...] | None = ()
    for op in positions:
        rows = orders.costs.filter(pl.col("op") == op).iter_rows(named=True)
        costs = {tuple(row["before"]): row["seconds"] for row in rows}
        if way is None or costs.get(way) is None:
            return None
        found[op] = float(costs[way])
        way = _measured_way(orders, (*way, op))
    return found


def _asked(orders: Orders, positions: Sequence[int]) -> dict[int, float] | None:
    """The same from the bench, which knows which ways led to the same data; it times nothing."""
    if orders.bench is None:
        return None
    prediction = orders.bench.predict(positions)
    if prediction.seconds is None:
        return None
    ops = prediction.parts[-len(positions) - 1 : -1]  # before them the rest, behind them the batch
    return {op: part.seconds for op, part in zip(positions, ops, strict=True)}


def _measured_way(orders: Orders, way: tuple[int, ...]) -> tuple[int, ...] | None:
    """The way to the same data that was gone on with; None where that cannot be told.

    Ways that led to the same data were put together and one of them was gone on with, so a way that
    the table does not have is the only other one there, if there is only one of these ops.
    """
    rows = orders.costs.select("before", "state").iter_rows()
    ways = {tuple(before): state for before, state in rows if set(before) == set(way)}
    if way in ways or len(way) == len(op_names(orders)):
        return way
    return next(iter(ways)) if len(set(ways.values())) == 1 else None
