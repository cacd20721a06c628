"""The part of a pipeline that is the same every time, done once and kept in memory.

The cut lies before the first op that draws random numbers: behind it, keeping results would freeze
what is meant to change.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from stallscope.experiments.candidates.protocol import Proposal
from stallscope.experiments.ordering.recipe import Recipe
from stallscope.measure.cache.values import bytes_of
from stallscope.measure.pipelines.chain import Chained
from stallscope.measure.pipelines.heads import CachedHead
from stallscope.units import count, seconds, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stallscope.experiments.candidates.protocol import Situation
    from stallscope.experiments.ordering.recipe import Site
    from stallscope.experiments.ordering.workbench import Workbench


def proposals(situation: Situation) -> Iterator[Proposal]:
    """One cut, as late as it can lie."""
    bench = situation.bench
    if bench.site.where is None or any(len(given.args) != 1 for given in bench.givens):
        situation.notes.append(
            "keeping finished parts in memory was not tried: the dataset does more with what comes "
            "out of its pipeline, or calls it with more than one value"
        )
        return
    cut = _cut(bench)
    made = [one.value for one in (bench.outcomes[cut - 1].givens if cut else bench.givens)]
    each = bytes_of(made) / len(made)
    entries = len(situation.loader.dataset)
    fetch_s = statistics.median(one.fetch_s for one in bench.drawn)
    fetch_s += statistics.median(one.decode_s for one in bench.drawn)
    saved_s = fetch_s + sum(bench.outcomes[position].seconds for position in range(cut))
    last = bench.ops[cut - 1].name if cut else "decoding"
    yield Proposal(
        "cache",
        Recipe(tuple(range(len(bench.ops))), cached=max(cut, 0) + 1),
        f"everything up to {last} kept in memory",
        f"{size(each * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are kept, and is lost with workers that end",
        saved_s,
    )


def _cut(bench: Workbench) -> int:
    """How many ops lie before the first that is not the same every time."""
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        if outcome.is_random or outcome.unsteady:
            return op.position
    return len(bench.ops)


def with_cached_head(site: Site, dataset: Any, ops: Sequence[Any], cached: int) -> CachedHead:
    """A dataset that keeps what the first ops give.

    Args:
        site: where the pipeline works.
        dataset: the user's; it stays as it is.
        ops: of the pipeline.
        cached: one more than how many of them are done once.
    """
    first, rest = list(ops[: cached - 1]), list(ops[cached - 1 :])
    inner = site.place.filled(dataset, Chained(first) if first else _same)
    return CachedHead(inner, Chained(rest) if rest else None, site.where or ())


def _same(value: Any) -> Any:
    """An image that is kept is kept decoded."""
    load = getattr(value, "load", None)
    if callable(load):
        load()
    return value
