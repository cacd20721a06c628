"""A pipeline at hand: what any order or change of it costs and gives, and loaders that have it.

Everything is done in this process, on the captured samples, with one torch thread, and each op on
its own stream of random numbers. The search and the variants work inside of one `guarded` block;
what a panel asks later guards itself. Nothing here changes an object of the user's.
"""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from functools import cached_property
from itertools import cycle, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.bench.measurement import Measurement
from stallscope.bench.samples import Contest, PairedSamples
from stallscope.isolation import as_before, one_thread
from stallscope.loops.cached_values import fresh
from stallscope.orders.capture import first_indices
from stallscope.orders.equivalence import (
    CONVERSION,
    GEOMETRY,
    POINTWISE,
    compare_outputs,
    described,
    pictures,
    work_of,
)
from stallscope.orders.loader_parts import BatchOps
from stallscope.orders.pipeline import Chain
from stallscope.orders.recipe import Recipe, code_of, loader_by
from stallscope.orders.result import (
    BATCH,
    DECODE,
    DIFFERENT,
    FAILS,
    FETCH,
    IDENTICAL,
    ROUNDING,
    CostPart,
    Equivalence,
    FixedCosts,
    NoSuchOrderError,
    OrderTiming,
    Prediction,
    near_enough,
    timings_of,
)
from stallscope.orders.run_ops import (
    OpInput,
    Outcome,
    Stream,
    digest_of,
    find_telling_draws,
    measure_op,
    named_kept,
    restored,
    run_op,
    state_of,
)
from stallscope.orders.search import SearchNode, SearchResult, State, TriedOp, search
from stallscope.targets.loaders import private_copy
from stallscope.targets.object_graph import LoaderCallables, bindings_kept
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.orders.recipe import Site, Variant
    from stallscope.orders.watch import CapturedSample

_LONGEST: Final = 160
"""Characters of an error's text."""
_PICTURES: Final = 4
_MEASURED_S: Final = 8.0
"""How long measuring one order beside the original takes at most; one pair always is."""


class NotComparableError(Exception):
    """An op that keeps a state gets something else than in the pipeline as it is."""


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


class OrderEvaluator:
    """The ops of one pipeline, on the samples that were captured.

    Args:
        loader: the user's.
        site: where the pipeline works.
        samples: those that were captured.
        tolerance: how far data of what is recommended may be from the original's.

    Attributes:
        searched: on how many samples orders are searched; what is found is compared on all.
        outcomes: of each op in the pipeline as it is.
        original: what the pipeline gives as it is.
        digest: of that.
        found: what was tried; grows with what is asked.
        grades: how the data of each digest that came out compares, on the samples searched.
        fixed: what a sample costs outside of its ops.
        variants: every pipeline that was looked at; the first is as it is.
    """

    def __init__(
        self,
        loader: Any,
        site: Site,
        samples: Sequence[CapturedSample],
        tolerance: str = ROUNDING,
    ) -> None:
        self.loader, self.site, self.samples = loader, site, samples
        self.tolerance = tolerance
        self.ops = site.chain.ops
        self.as_it_is = tuple(range(len(self.ops)))
        self.inputs = [sample.given for sample in samples]
        self.searched = len(self.inputs)
        self.outcomes: dict[int, Outcome] = {}
        self.original: list[OpInput] = []
        self.digest = ""
        self.found = SearchResult(len(self.ops), SearchNode(frozenset(), State("")))
        self.grades: dict[str, str] = {}
        self.fixed = FixedCosts()
        self.variants: list[Variant] = []
        self._idle: list[str] = []
        self._streams: dict[tuple[int, int], Stream] = {}
        self._replaced: list[Any] = []  # an id is only good while its object lives
        for position in self.as_it_is:
            self.stream(position)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Use one torch thread, as in a worker, and put back what running ops moves."""
        with preserving_state(self.loader), restored(self._streams.values), one_thread():
            yield

    def run_original(self, is_over: Callable[[], bool]) -> None:
        """Run the ops of the pipeline as it is; has to come first.

        Args:
            is_over: whether there is no time for more.
        """
        inputs: Sequence[OpInput] = self.inputs
        for op in self.ops:
            stream = self.stream(op.position)
            outcome = measure_op(op, stream, inputs)
            if outcome.is_random and not outcome.unsteady:
                acting = find_telling_draws(op, stream, inputs, outcome.results, is_over)
                if stream.telling:
                    outcome = measure_op(op, stream, inputs)
                if not acting:
                    self._idle.append(op.name)
            self.outcomes[op.position] = outcome
            inputs = outcome.results
        self.original, self.digest = list(inputs), digest_of(inputs)

    def stream(self, position: int, op: Any = None) -> Stream:
        """The stream of an op, or of another object in its place: the same draws."""
        key = (position, id(op))
        if key not in self._streams:
            self._replaced.append(op)
            stream = Stream(self.ops[position].call if op is None else op, position)
            if op is not None:
                stream.telling = self.stream(position).telling
            self._streams[key] = stream
        return self._streams[key]

    def tolerates(self, variant: Variant) -> bool:
        """Whether a variant's data is near enough to the original's."""
        return variant.comparison.equivalence in near_enough(self.tolerance)

    def inputs_of(self, position: int) -> Sequence[OpInput]:
        """What an op gets in the pipeline as it is."""
        return self.outcomes[position - 1].results if position else self.inputs

    @property
    def idle_text(self) -> str:
        """The random ops that did nothing in any draw, in words; "" where there is none."""
        names = ", ".join(self._idle)
        return f"{names} changed no sample in any draw that was looked at" if names else ""

    def seconds_of(self, positions: Sequence[int]) -> float:
        """What ops cost in the pipeline as it is, per sample."""
        return sum(self.outcomes[position].seconds for position in positions)

    @property
    def base_s(self) -> float:
        """What all ops cost in the pipeline as it is, per sample."""
        return self.seconds_of(self.as_it_is)

    # ---- orders, op by op -------------------------------------------------------------------

    def search(self, is_over: Callable[[], bool]) -> None:
        """Try the ops in all orders that differ, until the time is over."""
        inputs = self.inputs[: self.searched]
        start = state_of(inputs), inputs
        self.found = search(self.usual_orders(), start, self._attempt, is_over)

    def usual_orders(self) -> list[tuple[int, ...]]:
        """The order as it is; then what people write: geometry, conversions, all else.

        What an op is follows from what it does to its first samples.
        """
        kinds = {op.position: self._kind_of(op.position) for op in self.ops}
        usual = (GEOMETRY, CONVERSION, POINTWISE), (GEOMETRY, POINTWISE, CONVERSION)
        orders = [
            tuple(op for kind in ranking for op in self.as_it_is if kinds[op] == kind)
            for ranking in usual
        ]
        return list(dict.fromkeys([self.as_it_is, *orders]))

    def _kind_of(self, position: int) -> str:
        pairs = zip(self.inputs_of(position), self.outcomes[position].results, strict=True)
        found = [work_of(given.value, result.value) for given, result in pairs]
        return GEOMETRY if GEOMETRY in found else found[0]

    def _attempt(
        self, position: int, applied: Sequence[int], value: list[OpInput], state: State
    ) -> TriedOp:
        """Run an op on what others have made of the samples; see `search.Attempt`."""
        op, outcome = self.ops[position], self.outcomes[position]
        if tuple(applied) == self.as_it_is[:position]:
            return _tried(outcome.first(self.searched))
        before = self.inputs_of(position)[: self.searched]
        if outcome.unsteady and state.digest != digest_of(before):
            return TriedOp(None, None, why_not=f"not comparable: {outcome.unsteady}")
        try:
            tried = _tried(measure_op(op, self.stream(position), value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            text = said_by(error) or "no text"
            got = described(value[0].value) if value else "nothing"
            why = f"{op.name} raises {type(error).__name__} on {got}: {text[:_LONGEST]}"
            return TriedOp(None, None, why_not=why)
        if len(applied) == len(self.ops) - 1:
            self._grade(tried)
        return tried

    def _grade(self, tried: TriedOp) -> None:
        """Compare what comes out of an order with what comes out as it is."""
        if tried.state is not None and tried.state.digest not in self.grades:
            pairs = (self.original[: self.searched], tried.value)
            with suppress(Exception):  # values of the user's own kind; they count as different
                found = compare_outputs(*([one.value for one in row] for row in pairs))
                self.grades[tried.state.digest] = found.equivalence

    def op_seconds(self, positions: Sequence[int]) -> Iterator[tuple[int, TriedOp | None, float]]:
        """Follow an order: each op, what it did, and what it costs on all samples.

        Samples beyond those of the search may be larger: an op's time is scaled by the ratio of
        both in the pipeline as it is.
        """
        for position, tried in self.found.after(positions):
            times_s = self.outcomes[position].times_s
            searched_s = fmean(times_s[: self.searched])
            seconds = (tried and tried.seconds) or 0.0
            yield position, tried, seconds * fmean(times_s) / searched_s if searched_s else seconds

    def predict(self, positions: Sequence[int]) -> Prediction:
        """Predict what an order costs; times the ops in states that are new.

        Raises:
            NoSuchOrderError: these are not the positions of all ops.
        """
        order = self._checked(positions)
        if any(tried is None for _, tried in self.found.after(order)):
            with self.guarded():
                self._explore(order)
        parts = [CostPart(FETCH, self.fixed.fetch_s, "fetch")]
        if self.fixed.decode_s:
            parts.append(CostPart(DECODE, self.fixed.decode_s, "decode"))
        for position, tried, seconds in self.op_seconds(order):
            if tried is None or tried.seconds is None:
                return Prediction(None, tuple(parts), tried.why_not if tried else "not tried")
            parts.append(CostPart(self.ops[position].name, seconds, "transform"))
        parts.append(CostPart(BATCH, self.fixed.batch_s, "collate"))
        return Prediction(sum(part.seconds for part in parts), tuple(parts))

    def _explore(self, order: Sequence[int]) -> None:
        """Run the ops of an order in the states in which the search has not run them."""
        node, values = self.found.start, self.inputs[: self.searched]
        for place, position in enumerate(order):
            tried = self.found.edges.get(node, {}).get(position)
            if tried is None:
                tried = self._attempt(position, order[:place], values, node.state)
                self.found.keep(node, position, tried)
                values = tried.value
            elif tried.state is not None:
                values = run_op(self.ops[position], self.stream(position), values)
            if tried.state is None:
                return
            node = node.after(position, tried.state)
            self.found.reached_by.setdefault(node, tuple(order[: place + 1]))

    # ---- whole pipelines: their data ----------------------------------------------------------

    def outputs(self, recipe: Recipe, turn: int = 0) -> list[OpInput]:
        """What a pipeline gives for the samples.

        Args:
            recipe: the pipeline.
            turn: 0 for the draws on which pipelines are compared.

        Raises:
            NotComparableError: an op with a state of its own gets something else than as it is.
            Exception: whatever an op raises.
        """
        values = self.inputs
        if recipe.opener is not None:
            images = [recipe.opener(one.lazy.open()) for one in self.samples if one.lazy]
            values = [OpInput((image,), {}) for image in images]
        elif recipe.reader is not None:
            values = [OpInput((recipe.reader(one.path),), {}) for one in self.samples]
        for position in recipe.per_sample:
            unsteady = self.outcomes[position].unsteady
            if unsteady and not turn and digest_of(values) != digest_of(self.inputs_of(position)):
                raise NotComparableError(f"not comparable: {unsteady}")
            stream = self.stream(position, recipe.replaced.get(position))
            values = run_op(self.ops[position], stream, values, turn)
        return self._on_batch(recipe, values) if recipe.on_batch else list(values)

    def _on_batch(self, recipe: Recipe, inputs: Sequence[OpInput]) -> list[OpInput]:
        """What ops make of a batch, in the size in which the loader makes them.

        A product of matrices may round other than in another size. An epoch may end with a smaller
        batch, so the first sample is taken from a batch of its own.
        """
        values = [given.value for given in inputs]
        size = max(self.loader.batch_size or 1, len(values))
        column = torch.stack(list(islice(cycle(values), size)))
        work = BatchOps(None, recipe.works(self.site.chain), ()).work
        results = [work(fresh(column[:1]))[0], *work(column)[1 : len(values)]]
        return [OpInput((result,), {}) for result in results]

    def judge(self, recipe: Recipe, *, shows: bool = False) -> Equivalence:
        """Tell whether a pipeline gives the original's data.

        Args:
            recipe: the pipeline.
            shows: whether to make pictures.
        """
        n = len(self.inputs)
        shown: tuple[Any, ...] = ()
        try:
            outputs = self.outputs(recipe)
            if shows:
                shown = _pictures(self.original, outputs)
            unsteady = "; ".join(one.unsteady for one in self.outcomes.values() if one.unsteady)
            is_random = any(outcome.is_random for outcome in self.outcomes.values())
            original = self.original
            if digest_of(outputs) == self.digest:
                if unsteady or not is_random:
                    return Equivalence(IDENTICAL, compared=n, pictures=shown)
                original, outputs = self._original_again, self.outputs(recipe, 1)
                if digest_of(original) == digest_of(outputs):
                    why = self.idle_text
                    return Equivalence(IDENTICAL, compared=2 * n, why=why, pictures=shown)
            elif unsteady:
                why = f"not comparable: {unsteady}"
                return Equivalence(DIFFERENT, compared=n, why=why, pictures=shown)
            found = compare_outputs(*([one.value for one in row] for row in (original, outputs)))
            return found._replace(compared=n, pictures=shown)
        except NotComparableError as error:
            return Equivalence(DIFFERENT, compared=n, why=str(error))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            text = said_by(error)[:_LONGEST]
            return Equivalence(FAILS, why=f"raises {type(error).__name__}: {text}")

    @cached_property
    def _original_again(self) -> list[OpInput]:
        """What the pipeline gives as it is, on other draws."""
        return self.outputs(self._as_it_is, 1)

    @property
    def _as_it_is(self) -> Recipe:
        return Recipe(self.as_it_is)

    # ---- whole pipelines: what a panel asks -------------------------------------------------

    def compare(self, positions: Sequence[int]) -> Equivalence:
        """Tell whether an order gives the original's data, with pictures.

        Raises:
            NoSuchOrderError: these are not the positions of all ops.
        """
        recipe = Recipe(self._checked(positions))
        with self.guarded():
            return self.judge(recipe, shows=True)

    def measure(
        self, positions: Sequence[int], on_progress: Callable[[float], object] = lambda _: None
    ) -> OrderTiming:
        """Make samples by an order and as it is, one after the other.

        Args:
            positions: the order.
            on_progress: is told the share that is done, 0 to 1.

        Raises:
            NoSuchOrderError: these are not the positions of all ops, or the order raises.
        """
        recipe = Recipe(self._checked(positions))
        pairs = PairedSamples(Measurement("orders", _MEASURED_S))
        on_progress(0.0)
        with private_copy(self.loader) as mine, self.guarded(), closing(pairs):
            dataset = loader_by(recipe, self.site, mine).dataset
            indices = first_indices(mine, len(self.samples))
            own, other = mine.dataset.__getitem__, dataset.__getitem__
            pairs.run({1: Contest("", own, other, indices, beside_s=self.fixed.batch_s)})
        on_progress(1.0)
        timing = timings_of(pairs.table()).get(1)
        if timing is None:
            names = ", ".join(op.name for op in self.ops)
            raise NoSuchOrderError(f"this order of {names} was not measured: {pairs.failed.get(1)}")
        return timing

    def code(self, positions: Sequence[int]) -> str:
        """Python source that makes the order's pipeline from a `loader`."""
        return code_of(Recipe(self._checked(positions)), self.site, {})

    def apply(self, loader: Any, trial: int | Sequence[int]) -> Any:
        """Make a new loader with the pipeline of a trial, or with an order.

        Args:
            loader: one with the same pipeline at the same place; stays as it is.
            trial: the number of a trial, or the positions of an order.

        Raises:
            NoSuchOrderError: there is no such trial or order, or another pipeline in the loader.
        """
        return loader_by(self._recipe(trial), self._site_in(loader), loader)

    def _recipe(self, trial: int | Sequence[int]) -> Recipe:
        if not isinstance(trial, int):
            return Recipe(self._checked(trial))
        if not 0 <= trial < len(self.variants):
            last = len(self.variants) - 1
            raise NoSuchOrderError(
                f"there is no trial {trial}: .table() has the trials 0 to {last}"
            )
        chosen = self.variants[trial]
        if chosen.comparison.equivalence == FAILS:
            raise NoSuchOrderError(
                f"trial {trial} ({chosen.change}) cannot be applied: {chosen.comparison.why}"
            )
        return chosen.recipe

    def _checked(self, positions: Sequence[int]) -> tuple[int, ...]:
        order = tuple(positions)
        if sorted(order) != list(self.as_it_is):
            names = ", ".join(f"{op.position} {op.name}" for op in self.ops)
            raise NoSuchOrderError(
                f"{list(order)} is no order of this pipeline: give each of its ops once, by its "
                f"position ({names})"
            )
        return order

    def _site_in(self, loader: Any) -> Site:
        """Where the pipeline works in a loader: the same objects, or the same ops in a row."""
        site = self.site
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
        return site._replace(chain=chain)


def _tried(outcome: Outcome) -> TriedOp:
    return TriedOp(outcome.seconds, outcome.state, list(outcome.results))


def _pictures(original: list[OpInput], outputs: list[OpInput]) -> tuple[Any, ...]:
    pairs = zip(original[:_PICTURES], outputs[:_PICTURES], strict=True)
    shown = [pictures(one.value, other.value) for one, other in pairs]
    return tuple(pair for pair in shown if pair is not None)
