"""Which parts a trial's predicted time has, from the costs that were measured on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.benches import Part
from stallscope.orderings import FAILS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stallscope.orderings import Orders

FETCH: Final = "fetch"
DECODE: Final = "decode"
BATCH: Final = "collate and send"
_KINDS: Final = {FETCH: "fetch", DECODE: "decode", BATCH: "collate"}


def kind_of(part: str) -> str:
    """Which kind of stage a part is: whatever is not named here is an op."""
    return _KINDS.get(part, "transform")


def parts_of(orders: Orders, trial: dict[str, Any]) -> tuple[Part, ...]:
    """The parts of a trial's predicted time, in the order in which they happen.

    Args:
        orders: what was measured.
        trial: a row of `TRIALS`.

    Returns:
        Nothing where they are not known: the order fails, or it changes more than the order.
    """
    if trial["kind"] != "order" or trial["equivalence"] == FAILS:
        return ()
    ops = _ops(orders, trial["positions"])
    if ops is None:
        return ()
    rest = orders.rest
    before = [Part(FETCH, rest.fetch_s), Part(DECODE, rest.decode_s)]
    return tuple(part for part in (*before, *ops, Part(BATCH, rest.batch_s)) if part.seconds > 0)


def as_it_is(orders: Orders) -> tuple[Part, ...]:
    """The parts of the pipeline as it is."""
    return parts_of(orders, orders.trials.row(0, named=True)) if orders.trials.height else ()


def _ops(orders: Orders, positions: Sequence[int]) -> list[Part] | None:
    """The ops with their costs in this order; None where a cost cannot be told from the table."""
    names, found = op_names(orders), []
    way: tuple[int, ...] | None = ()
    for op in positions:
        rows = orders.costs.filter(pl.col("op") == op).iter_rows(named=True)
        costs = {tuple(row["before"]): row["seconds"] for row in rows}
        if way is None or costs.get(way) is None:
            return None
        found.append(Part(names[op], float(costs[way])))
        way = _measured_way(orders, (*way, op))
    return found


def _measured_way(orders: Orders, way: tuple[int, ...]) -> tuple[int, ...] | None:
    """The way to the same data that was gone on with; None where that cannot be told.

    Ways that led to the same data were put together and one of them was gone on with, so a way that
    the table does not have is the only other one there, if there is only one of these ops.
    """
    ways = {tuple(before): state for before, state in _ways(orders) if set(before) == set(way)}
    if way in ways or len(way) == len(op_names(orders)):
        return way
    return next(iter(ways)) if len(set(ways.values())) == 1 else None


def _ways(orders: Orders) -> Iterable[tuple[list[int], str]]:
    return orders.costs.select("before", "state").iter_rows()


def op_names(orders: Orders) -> dict[int, str]:
    """What each op is called, by its position; ops that share a name are numbered."""
    rows = [row for row in orders.ops.iter_rows(named=True) if row["position"] >= 0]
    names = [row["name"] for row in rows]
    seen: dict[str, int] = {}
    found = {}
    for row in rows:
        name = row["name"]
        seen[name] = seen.get(name, 0) + 1
        numbered = names.count(name) > 1
        found[row["position"]] = f"{name} ({seen[name]})" if numbered else name
    return found
