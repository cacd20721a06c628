"""The pipeline after `ss.orders` has returned: what a panel asks of any order, and new loaders.

Every question is answered with one torch thread, and all generators are put back afterwards.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from stallscope.isolation.snapshot import as_before, one_thread
from stallscope.orders.bench import Comparison, CostPart, Measured, NoSuchOrderError, Prediction
from stallscope.orders.benchmark import Benchmark, same_batches
from stallscope.orders.equivalence import EquivalenceJudge
from stallscope.orders.pipeline import Chain
from stallscope.orders.random_streams import named_kept, restored
from stallscope.orders.recipe import Recipe, Site, code_of, loader_by
from stallscope.orders.result import FAILS, rates_of
from stallscope.orders.sample_costs import BATCH, DECODE, FETCH
from stallscope.targets.object_graph import LoaderCallables, bindings_kept, private_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.orders.pipeline_runner import PipelineRunner
    from stallscope.orders.search import SearchResult
    from stallscope.orders.variants import Variants

_MEASURED_S: Final = 8.0
"""How long measuring one order against the original takes."""
_FIRST_LAP_S: Final = 20.0
"""And at most this for each of the two, where they are so slow that one lap takes longer."""


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
def guarded(loader: Any, runner: PipelineRunner) -> Iterator[None]:
    """Put back the same after the runner's work, which has one torch thread, as in a worker."""
    with preserving_state(loader), restored(runner.streams), one_thread():
        yield


class OrderEvaluator:
    """The `bench.OrderBench` of a real pipeline.

    Args:
        loader: the user's.
        runner: the pipeline.
        found: what the search has tried; grows with what is asked.
        variants: what was looked at.
    """

    def __init__(
        self, loader: Any, runner: PipelineRunner, found: SearchResult, variants: Variants
    ) -> None:
        self._loader, self._runner, self._found = loader, runner, found
        self._fixed, self._variants = variants.fixed, tuple(variants.all)
        self._judge = EquivalenceJudge(runner)

    def predict(self, positions: Sequence[int]) -> Prediction:
        """See `bench.OrderBench`."""
        order = self._checked(positions)
        with guarded(self._loader, self._runner):
            self._runner.explore(order, self._found)
        parts = [CostPart(FETCH, self._fixed.fetch_s, "fetch")]
        if self._fixed.decode_s:
            parts.append(CostPart(DECODE, self._fixed.decode_s, "decode"))
        for position, tried in self._found.after(order):
            if tried is None or tried.seconds is None:
                why = tried.why_not if tried else "not tried"
                return Prediction(None, tuple(parts), why)
            seconds = self._runner.scaled_s(position, tried.seconds)
            parts.append(CostPart(self._runner.ops[position].name, seconds, "transform"))
        parts.append(CostPart(BATCH, self._fixed.batch_s, "collate"))
        return Prediction(sum(part.seconds for part in parts), tuple(parts))

    def compare(self, positions: Sequence[int]) -> Comparison:
        """See `bench.OrderBench`."""
        recipe = Recipe(self._checked(positions))
        with guarded(self._loader, self._runner):
            return self._judge.compare(recipe, shows=True)

    def measure(
        self, positions: Sequence[int], on_progress: Callable[[float], object] | None = None
    ) -> Measured:
        """See `bench.OrderBench`."""
        recipe = Recipe(self._checked(positions))
        benchmark = Benchmark(first_lap_s=_FIRST_LAP_S)
        with private_copy(self._loader) as mine, preserving_state(self._loader):
            loader, _ = same_batches(mine)
            loaders = {0: loader, 1: loader_by(recipe, self._runner.site, loader)}
            deadline_ns = time.perf_counter_ns() + int(_MEASURED_S * 1e9)
            benchmark.run(loaders, deadline_ns, on_progress)
        if on_progress is not None:
            on_progress(1.0)
        laps = benchmark.laps()
        rates = rates_of(laps)
        if 1 not in rates or 0 not in rates:
            names = ", ".join(op.name for op in self._runner.ops)
            why = benchmark.failed.get(1, "too little time for a steady state")
            raise NoSuchOrderError(f"this order of {names} was not measured: {why}")
        original, other = rates[0], rates[1]
        low, high = other.interval()
        factor, factor_low, factor_high = other.over(original)
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

    def code(self, positions: Sequence[int]) -> str:
        """See `bench.OrderBench`."""
        return code_of(Recipe(self._checked(positions)), self._runner.site, {})

    def apply(self, loader: Any, trial: int | Sequence[int]) -> Any:
        """See `bench.OrderBench`."""
        return loader_by(self._recipe(trial), self._site_in(loader), loader)

    def _recipe(self, trial: int | Sequence[int]) -> Recipe:
        if not isinstance(trial, int):
            return Recipe(self._checked(trial))
        if not 0 <= trial < len(self._variants):
            last = len(self._variants) - 1
            raise NoSuchOrderError(
                f"there is no trial {trial}: .table() has the trials 0 to {last}"
            )
        chosen = self._variants[trial]
        if chosen.comparison.equivalence == FAILS:
            raise NoSuchOrderError(
                f"trial {trial} ({chosen.change}) cannot be applied: {chosen.comparison.why}"
            )
        return chosen.recipe

    def _checked(self, positions: Sequence[int]) -> tuple[int, ...]:
        order = tuple(positions)
        if sorted(order) != list(self._runner.as_it_is):
            names = ", ".join(f"{op.position} {op.name}" for op in self._runner.ops)
            raise NoSuchOrderError(
                f"{list(order)} is no order of this pipeline: give each of its ops once, by its "
                f"position ({names})"
            )
        return order

    def _site_in(self, loader: Any) -> Site:
        """Where the pipeline works in a loader: the same objects, or the same ops in a row."""
        site = self._runner.site
        value = site.place.found_in(getattr(loader, "dataset", None))
        if value is site.chain.value:
            return site
        chain = Chain(value, whole=site.chain.kind == "one op") if value is not None else None
        wanted = [op.name for op in site.chain.ops]
        if chain is None or [op.name for op in chain.ops] != wanted:
            names = ", ".join(op.name for op in chain.ops) if chain else "nothing"
            raise NoSuchOrderError(
                f"this loader's {site.place.text} is another pipeline ({names} instead of "
                f"{', '.join(wanted)}): give the loader that was measured, or call ss.orders for "
                "this one"
            )
        return Site(site.place, chain, site.where, site.reader)
