"""What a search for orders has found, as tables and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.measure.pipelines.digests import described
from stallscope.orderings import COSTS, OPS
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.analyze.orders.search import Found
    from stallscope.experiments.ordering.race import Race
    from stallscope.experiments.ordering.workbench import Workbench
    from stallscope.orderings import Rest

_DRAWS: Final = 1_000
_SEED: Final = 20_240_229


def ops_frame(bench: Workbench, rest: Rest) -> pl.DataFrame:
    """Columns of `orderings.OPS`."""
    return pl.DataFrame([*_decode_row(bench, rest), *_op_rows(bench)], OPS, orient="row")


def _decode_row(bench: Workbench, rest: Rest) -> Iterator[tuple[Any, ...]]:
    lazy = [one for one in bench.drawn if one.lazy is not None]
    if not lazy or lazy[0].lazy is None:
        return
    width, height = lazy[0].lazy.size
    takes = f"{lazy[0].lazy.format} {width}×{height}"
    gives = described(bench.givens[0].value)
    low, high = _interval([one.decode_s for one in lazy], np.median)
    yield -1, "decode", None, "", takes, gives, rest.decode_s, low, high, None, None


def _op_rows(bench: Workbench) -> Iterator[tuple[Any, ...]]:
    before = list(bench.givens)
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        low, high = _interval(list(outcome.times_s))
        yield (
            op.position,
            op.name,
            outcome.is_random,
            op.settings,
            _described([given.value for given in before]),
            _described([given.value for given in outcome.givens]),
            outcome.seconds,
            low,
            high,
            *op.source,
        )
        before = list(outcome.givens)


def costs_frame(found: Found) -> pl.DataFrame:
    """Columns of `orderings.COSTS`."""
    rows = [
        (
            position,
            list(found.reached_by.get(node, ())),
            node.state.digest,
            tried.seconds,
            tried.why_not or None,
        )
        for node, edges in found.edges.items()
        for position, tried in edges.items()
    ]
    return pl.DataFrame(rows, COSTS, orient="row")


def ops_said(bench: Workbench) -> Iterator[str]:
    """What has to be known of the ops."""
    if len(bench.ops) == 1:
        yield f"{bench.ops[0].name} is the only op: there is no other order"
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        if outcome.unsteady:
            yield f"{outcome.unsteady}: it is only compared on what it gets as it is"
        if outcome.changes_input:
            yield f"{op.name} changes its input in place: it always got a copy here"
        if not bench.stream(op.position).copied:
            yield f"{op.name} cannot be copied: it was used itself, and its attributes put back"
    if bench.idle:
        yield f"{bench.idle_told}: nothing is known of it"
    if bench.searched < len(bench.givens):
        yield (
            f"orders were searched on {count(bench.searched, 'sample')}, and those that were found "
            f"compared on {len(bench.givens)}"
        )


def times_said(budget_s: float, found: Found, race: Race | None) -> Iterator[str]:
    """What the budget did not suffice for."""
    if found.unexplored:
        yield (
            f"{seconds(budget_s)} were not enough for all orders: {count(found.unexplored, 'op')} "
            "in a state that was reached were not tried, nor what may lie behind"
        )
    if race is None or race.is_thin():
        yield "the budget was over before everything had been measured a second time"


def _described(values: list[Any]) -> str:
    """What samples are, in words; of several kinds the first, and how many others there are."""
    kinds = list(dict.fromkeys(map(described, values)))
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]} and {count(len(kinds) - 1, 'other kind')}"


def _interval(
    times_s: list[float], centre: Callable[..., Any] = np.mean
) -> tuple[float | None, float | None]:
    """The ends of a 95% interval of the centre, from resampled samples; None for a single one."""
    if len(times_s) < 2:  # noqa: PLR2004 - one has no spread
        return None, None
    rng = np.random.default_rng(_SEED)
    drawn = centre(rng.choice(times_s, size=(_DRAWS, len(times_s))), axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)
