"""The pipeline after `ss.orders` has returned: what a panel asks, and new loaders.

Every question is answered with one torch thread, and all generators are put back afterwards.

Leaving a loader as it was, after samples were made with its own dataset and ops.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from stallscope.isolation.snapshot import as_before, one_thread
from stallscope.orders.bench import Comparison, CostPart, Measured, NoSuchOrderError, Prediction
from stallscope.orders.benchmark import Race, same_batches
from stallscope.orders.evaluator import EquivalenceJudge
from stallscope.orders.pipeline import Chain
from stallscope.orders.random_streams import named_kept, restored
from stallscope.orders.recipe import Recipe, Site, code_of, loader_by
from stallscope.orders.result import rates_of, speedup
from stallscope.targets.object_graph import LoaderCallables, bindings_kept, private_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.orders.evaluator import PipelineRunner
    from stallscope.orders.result import FixedCosts
    from stallscope.orders.search import SearchResult
    from stallscope.orders.trials import Trial


@contextmanager
def preserving_state(loader: Any) -> Iterator[None]:
    """Put back every generator and sampler, and what the dataset and its ops hold.

    Args:
        loader: torch's own.
    """
    parts = LoaderCallables(loader)
    with (
        as_before(loader),
        named_kept(parts.functions.values()),
        bindings_kept(parts.holders()),
    ):
        yield


@contextmanager
def guarded(loader: Any, bench: PipelineRunner) -> Iterator[None]:
    """The same for work on the bench, with one torch thread, as in a worker."""
    with preserving_state(loader), restored(bench.streams), one_thread():
        yield


_MEASURED_S: Final = 8.0
"""How long measuring one order against the original takes."""
_FIRST_LAP_S: Final = 20.0
"""And at most this for each of the two, where they are so slow that one lap takes longer."""


class OrderEvaluator:
    """The `benches.Bench` of a real pipeline.

    Args:
        loader: the user's.
        bench: the pipeline at work.
        found: what the search has tried; grows with what is asked.
        rest: what a sample costs outside of its ops.
        trials: in the order of their numbers.
    """

    def __init__(
        self,
        loader: Any,
        bench: PipelineRunner,
        found: SearchResult,
        rest: FixedCosts,
        trials: Sequence[Trial],
    ) -> None:
        self._loader, self._bench, self._found = loader, bench, found
        self._rest, self._trials = rest, list(trials)
        self._judge = EquivalenceJudge(bench)

    def predict(self, positions: Sequence[int]) -> Prediction:
        """See `benches.Bench`."""
        order = self._checked(positions)
        with guarded(self._loader, self._bench):
            self._bench.explored(order, self._found)
        parts = [CostPart("fetch", self._rest.fetch_s)]
        parts += [CostPart("decode", self._rest.decode_s)] if self._rest.decode_s else []
        for position, tried in self._found.after(order):
            if tried is None or tried.seconds is None:
                why = tried.why_not if tried else "not tried"
                return Prediction(None, tuple(parts), why)
            seconds = self._bench.on_all_samples(position, tried.seconds)
            parts.append(CostPart(self._bench.ops[position].name, seconds))
        parts.append(CostPart("collate and send", self._rest.batch_s))
        return Prediction(sum(part.seconds for part in parts), tuple(parts))

    def compare(self, positions: Sequence[int]) -> Comparison:
        """See `benches.Bench`."""
        recipe = Recipe(self._checked(positions))
        with guarded(self._loader, self._bench):
            return self._judge.compare(recipe, shows=True)

    def measure(
        self, positions: Sequence[int], on_progress: Callable[[float], object] | None = None
    ) -> Measured:
        """See `benches.Bench`."""
        recipe = Recipe(self._checked(positions))
        with private_copy(self._loader) as mine, preserving_state(self._loader):
            loader, _ = same_batches(mine)
            loaders = {0: loader, 1: loader_by(recipe, self._bench.site, loader)}
            race = Race()
            race.first_lap_s = _FIRST_LAP_S
            race.run(loaders, time.perf_counter_ns() + int(_MEASURED_S * 1e9), on_progress)
        if on_progress is not None:
            on_progress(1.0)
        return _measured(race, self._bench)

    def code(self, positions: Sequence[int]) -> str:
        """See `benches.Bench`."""
        return code_of(Recipe(self._checked(positions)), self._bench.site, {})

    def apply(self, loader: Any, trial: int | Sequence[int]) -> Any:
        """See `benches.Bench`."""
        return loader_by(self._recipe(trial), self._site_in(loader), loader)

    def _recipe(self, trial: int | Sequence[int]) -> Recipe:
        if not isinstance(trial, int):
            return Recipe(self._checked(trial))
        if not 0 <= trial < len(self._trials):
            raise NoSuchOrderError(
                f"there is no trial {trial}: .table() has the trials 0 to {len(self._trials) - 1}"
            )
        chosen = self._trials[trial]
        if chosen.comparison.equivalence == "fails":
            raise NoSuchOrderError(
                f"trial {trial} ({chosen.change}) cannot be applied: {chosen.comparison.why}"
            )
        return chosen.recipe

    def _checked(self, positions: Sequence[int]) -> tuple[int, ...]:
        order = tuple(positions)
        if sorted(order) != list(range(len(self._bench.ops))):
            names = ", ".join(f"{op.position} {op.name}" for op in self._bench.ops)
            raise NoSuchOrderError(
                f"{list(order)} is no order of this pipeline: give each of its ops once, by its "
                f"position ({names})"
            )
        return order

    def _site_in(self, loader: Any) -> Site:
        """Where the pipeline works in a loader: the same objects, or the same ops in a row."""
        site = self._bench.site
        value = site.place.found_in(getattr(loader, "dataset", None))
        if value is site.chain.value:
            return site
        chain = Chain(value, whole=site.chain.kind == "one op") if value is not None else None
        wanted = [op.name for op in site.chain.ops]
        if chain is None or [op.name for op in chain.ops] != wanted:
            found = ", ".join(op.name for op in chain.ops) if chain else "nothing"
            raise NoSuchOrderError(
                f"this loader's {site.place.text} is another pipeline ({found} instead of "
                f"{', '.join(wanted)}): give the loader that was measured, or call ss.orders for "
                "this one"
            )
        return Site(site.place, chain, site.where, site.reader)


def _measured(race: Race, bench: PipelineRunner) -> Measured:
    """The second loader of a race against the first."""
    laps = race.laps()
    rates = rates_of(laps)
    if 1 not in rates or 0 not in rates:
        names = ", ".join(op.name for op in bench.ops)
        why = race.failed.get(1, "too little time for a steady state")
        raise NoSuchOrderError(f"this order of {names} was not measured: {why}")
    original, other = rates[0], rates[1]
    low, high = other.interval()
    factor, factor_low, factor_high = speedup(original, other)
    return Measured(
        seconds=1 / other.rate,
        low=1 / high if high else None,
        high=1 / low if low else None,
        original_s=1 / original.rate,
        speedup=factor,
        speedup_low=factor_low,
        speedup_high=factor_high,
        place=str(laps["place"][0]),
    )
