"""A pipeline at work in this process: its ops tried in any state, and what it gives.

Everything here is done on the samples that were drawn once, with one torch thread, and each op on
its own stream of random numbers. The caller puts the global generators back.

Does a pipeline give the original's data? On the same samples and draws, then on others.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from stallscope.loops.cached_values import fresh
from stallscope.orders import equivalence, run_ops
from stallscope.orders.bench import Comparison
from stallscope.orders.captured import OpInput, opened
from stallscope.orders.digests import described, digest, largest_array, pictures, pieces
from stallscope.orders.equivalence import Leaf, compared
from stallscope.orders.random_streams import Stream
from stallscope.orders.recipe import BatchOps, Recipe
from stallscope.orders.result import DIFFERENT, FAILS, IDENTICAL, NOT_DISTINGUISHED
from stallscope.orders.search import SearchNode, State, TriedOp
from stallscope.units import count, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.orders.equivalence import SampleDifference
    from stallscope.orders.run_ops import Outcome
    from stallscope.orders.search import SearchResult
    from stallscope.orders.survey import Survey


_LONGEST: Final = 160
"""Characters of an error's text."""


class NotComparableError(Exception):
    """An op that keeps a state gets something else than in the pipeline as it is."""


class PipelineRunner:
    """The ops of one pipeline, on the samples that were drawn.

    Args:
        survey: the pipeline and the samples.
        batch_size: the loader's.
    """

    def __init__(self, survey: Survey, batch_size: int) -> None:
        self.batch_size = batch_size
        self.site = survey.site
        self.ops = survey.site.chain.ops
        self.drawn = survey.drawn
        self.givens = [one.given for one in survey.drawn]
        self.idle: list[str] = []
        """Random ops that did nothing in any draw that was looked at."""
        self.outcomes: dict[int, Outcome] = {}
        """Of each op in the pipeline as it is."""
        self._streams: dict[tuple[int, int], Stream] = {}
        self._replaced: list[Any] = []  # an id is only good while its object lives
        for op in self.ops:
            self.stream(op.position)
        self.original: list[OpInput] = []
        """What the pipeline gives as it is, and its digest."""
        self.digest = ""
        self.searched = len(self.givens)
        """On how many samples orders are searched; what is found is compared on all."""

    def start(self) -> tuple[State, list[OpInput]]:
        """The samples on which orders are searched, before any op."""
        givens = self.givens[: self.searched]
        return State(run_ops.digest_of(givens), run_ops.layout_of(givens)), givens

    def begin(self, is_over: Callable[[], bool]) -> None:
        """Try the ops of the pipeline as it is; has to come first.

        Args:
            is_over: whether there is no time for more.
        """
        givens = list(self.givens)
        for op in self.ops:
            stream = self.stream(op.position)
            outcome = run_ops.measure_op(op, stream, givens)
            if outcome.is_random and not outcome.unsteady:
                acting = run_ops.tell(op, stream, givens, outcome.givens, is_over)
                if stream.telling:
                    outcome = run_ops.measure_op(op, stream, givens)
                if not acting:
                    self.idle.append(op.name)
            self.outcomes[op.position] = outcome
            givens = list(outcome.givens)
        self.original, self.digest = givens, run_ops.digest_of(givens)

    def stream(self, position: int, op: Any = None) -> Stream:
        """The stream of an op, or of another object in its place: the same draws."""
        key = (position, id(op))
        if key not in self._streams:
            self._replaced.append(op)
            called = self.ops[position].call if op is None else op
            stream = Stream(called, position)
            if op is not None:
                stream.telling = self.stream(position).telling
            self._streams[key] = stream
        return self._streams[key]

    def streams(self) -> list[Stream]:
        """All of them."""
        return list(self._streams.values())

    @property
    def idle_told(self) -> str:
        """What is idle, in words; '' where nothing is."""
        names = ", ".join(self.idle)
        return f"{names} changed no sample in any draw that was looked at" if names else ""

    @property
    def is_random(self) -> bool:
        """Whether any op draws random numbers."""
        return any(outcome.is_random for outcome in self.outcomes.values())

    def attempt(self, position: int, applied: Sequence[int], value: Any, state: State) -> TriedOp:
        """Try an op; see `analyze.orders.search.Bench`."""
        op = self.ops[position]
        outcome = self.outcomes[position]
        if tuple(applied) == tuple(range(position)):
            return self._tried(run_ops.beginning(outcome, self.searched))
        unsteady = outcome.unsteady
        if unsteady and state.digest != self._before(position):
            return TriedOp(None, None, why_not=f"not comparable: {unsteady}")
        try:
            return self._tried(run_ops.measure_op(op, self.stream(position), value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            return TriedOp(None, None, why_not=self._why(op.name, error, value))

    def _before(self, position: int) -> str:
        """The digest of what an op gets in the pipeline as it is."""
        givens = self.outcomes[position - 1].givens if position else self.givens
        return run_ops.digest_of(givens[: self.searched])

    @staticmethod
    def _tried(outcome: Outcome) -> TriedOp:
        state = State(outcome.digest, outcome.layout)
        return TriedOp(outcome.seconds, state, list(outcome.givens))

    @staticmethod
    def _why(name: str, error: Exception, value: Sequence[OpInput]) -> str:
        text = " ".join(str(error).split()) or "no text"
        got = described(value[0].value) if value else "nothing"
        return f"{name} raises {type(error).__name__} on {got}: {text[:_LONGEST]}"

    # ---- whole pipelines --------------------------------------------------------------------

    def on_all_samples(self, position: int, seconds: float) -> float:
        """What an op costs, where its time was taken on the samples of the search alone.

        Other samples may be larger: the ratio is that of the op in the pipeline as it is.
        """
        outcome = self.outcomes[position]
        searched_s = run_ops.beginning(outcome, self.searched).seconds
        return seconds * outcome.seconds / searched_s if searched_s else seconds

    def explored(self, positions: Sequence[int], found: SearchResult) -> None:
        """Try the ops of an order in the states that nobody has tried them in."""
        if all(tried is not None for _, tried in found.after(positions)):
            return
        node: SearchNode = found.start
        values = self.givens[: self.searched]
        applied: tuple[int, ...] = ()
        for position in positions:
            tried = found.edges.get(node, {}).get(position)
            if tried is None:
                new = self.attempt(position, applied, values, node.state)
                tried = new._replace(value=None)
                found.edges.setdefault(node, {})[position] = tried
                values = new.value
            elif tried.state is not None:
                values = run_ops.run(self.ops[position], self.stream(position), values)
            if tried.state is None:
                return
            applied = (*applied, position)
            node = SearchNode(node.applied | {position}, tried.state)
            found.reached_by.setdefault(node, applied)

    def outputs(self, recipe: Recipe, turn: int = 0) -> list[OpInput]:
        """What a pipeline gives for the samples.

        Args:
            recipe: the pipeline.
            turn: 0 for the draws on which pipelines are compared.

        Raises:
            Exception: whatever an op raises.
        """
        givens = self._beginning(recipe)
        for position in recipe.per_sample:
            self._check_steady(position, givens, turn)
            stream = self.stream(position, recipe.replaced.get(position))
            givens = run_ops.run(self.ops[position], stream, givens, turn)
        return self._on_batch(recipe, givens) if recipe.on_batch else list(givens)

    def _check_steady(self, position: int, givens: Sequence[OpInput], turn: int) -> None:
        """Make sure that an op with a state of its own gets what it gets as it is.

        Raises:
            NotComparableError: it gets something else.
        """
        unsteady = self.outcomes[position].unsteady if self.outcomes else ""
        if not unsteady or turn:
            return
        as_it_is = self.outcomes[position - 1].givens if position else self.givens
        if run_ops.digest_of(givens) != run_ops.digest_of(as_it_is):
            raise NotComparableError(f"not comparable: {unsteady}")

    def _on_batch(self, recipe: Recipe, givens: Sequence[OpInput]) -> list[OpInput]:
        """What ops make of a batch, in the size in which the loader makes them.

        A product of matrices may round other than in another size. An epoch may end with a smaller
        batch, so the first sample is taken from a batch of its own.
        """
        values = [given.value for given in givens]
        column = torch.stack(list(islice(cycle(values), max(self.batch_size, len(values)))))
        work = BatchOps(None, recipe.works(self.site.chain), ()).work
        alone = work(fresh(column[:1]))
        made = [alone[0], *work(column)[1 : len(values)]]
        return [OpInput((one,), {}) for one in made]

    def _beginning(self, recipe: Recipe) -> list[OpInput]:
        """What the first op is called with."""
        if recipe.opener is not None:
            made = [recipe.opener(opened(one.lazy)) for one in self.drawn if one.lazy]
        elif recipe.reader is not None:
            made = [recipe.reader(one.path) for one in self.drawn]
        else:
            return self.givens
        return [OpInput((one,), {}) for one in made]

    @property
    def unsteady(self) -> list[str]:
        """Why ops cannot be compared on other inputs."""
        return [one.unsteady for one in self.outcomes.values() if one.unsteady]


_DRAWS: Final = 4
"""Of each sample, for statistics."""
_PICTURES: Final = 4


class EquivalenceJudge:
    """Compares pipelines with the one as it is.

    Args:
        bench: that one, at work.
    """

    def __init__(self, bench: PipelineRunner) -> None:
        self._bench = bench
        self._spread: dict[int, np.ndarray[Any, Any]] = {}

    def compare(self, recipe: Recipe, *, shows: bool = False) -> Comparison:
        """Whether a pipeline gives the original's data.

        Args:
            recipe: the pipeline.
            shows: whether to make pictures.
        """
        try:
            made = self._bench.outputs(recipe)
            shown = self._pictures(made) if shows else ()
            n = len(made)
            if run_ops.digest_of(made) == self._bench.digest:
                return self._again(recipe, n, shown)
            if self._bench.unsteady:
                why = f"not comparable: {'; '.join(self._bench.unsteady)}"
                return Comparison(DIFFERENT, compared=n, why=why, pictures=shown)
            return self._far(recipe, self._between(self._bench.original, made), shown)
        except NotComparableError as error:
            return Comparison(DIFFERENT, compared=len(self._bench.givens), why=str(error))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            text = " ".join(str(error).split())[:_LONGEST]
            return Comparison(FAILS, why=f"raises {type(error).__name__}: {text}")

    def _again(self, recipe: Recipe, n: int, shown: Any) -> Comparison:
        """Identical on the first draws: on others, too?"""
        if not self._bench.is_random or self._bench.unsteady:
            return Comparison(IDENTICAL, compared=n, pictures=shown)
        original, other = (self._bench.outputs(one, 1) for one in (self._plain(), recipe))
        if run_ops.digest_of(original) == run_ops.digest_of(other):
            return Comparison(IDENTICAL, compared=2 * n, why=self._bench.idle_told, pictures=shown)
        difference = self._between(original, other)
        return self._far(recipe, difference, shown)

    def _far(self, recipe: Recipe, difference: SampleDifference, shown: Any) -> Comparison:
        """Not identical: maybe close, maybe not to be told apart, else different."""
        n = len(self._bench.givens)
        said = {"largest_difference": difference.largest, "psnr_db": difference.psnr_db}
        found = Comparison(
            difference.equivalence, compared=n, why=difference.why, pictures=shown, **said
        )
        if difference.equivalence != DIFFERENT or difference.why or not self._bench.is_random:
            return found
        verdict = self._tested(recipe)
        if verdict is None:
            why = f"{count(n, 'sample')} are too few to test whether both draw alike"
            return Comparison(DIFFERENT, compared=n, why=why, pictures=shown, **said)
        draws = f"{verdict.pairs} samples with {_DRAWS} draws each"
        if verdict.distinguished:
            why = f"{verdict.statistic} differs over {draws}"
            return Comparison(DIFFERENT, compared=n, why=why, pictures=shown, **said)
        why = (
            f"other values, but no statistic tells them apart over {draws}; a shift of the mean by "
            f"{share(verdict.smallest_share)} of the spread would probably have been seen"
        )
        return Comparison(NOT_DISTINGUISHED, compared=n, why=why, pictures=shown, **said)

    @staticmethod
    def _between(original: list[OpInput], made: list[OpInput]) -> SampleDifference:
        one, other = (
            [[Leaf(*piece) for piece in pieces(given.value)] for given in givens]
            for givens in (original, made)
        )
        if digest([g.value for g in original]) != digest([g.value for g in made]):
            found = compared(one, other)
            if found.equivalence == IDENTICAL:
                return found._replace(equivalence=DIFFERENT, why="another type or structure")
            return found
        return compared(one, other)

    def _tested(self, recipe: Recipe) -> equivalence.Verdict | None:
        """A test over samples that are drawn anew; None where there are too few."""
        if len(self._bench.givens) < equivalence.FEWEST_PAIRS:
            return None
        turns = range(1, 1 + _DRAWS)
        if not self._spread:
            self._spread = {turn: self._statistics(self._plain(), turn) for turn in turns}
        other = [self._statistics(recipe, _DRAWS + turn) for turn in turns]
        original = list(self._spread.values())
        return equivalence.compare(np.stack(original, axis=1), np.stack(other, axis=1))

    def _statistics(self, recipe: Recipe, turn: int) -> np.ndarray[Any, Any]:
        found = []
        for given in self._bench.outputs(recipe, turn):
            array = largest_array(given.value)
            found.append(equivalence.statistics(np.zeros((1, 1)) if array is None else array))
        return np.stack(found)

    def _plain(self) -> Recipe:
        return Recipe(tuple(range(len(self._bench.ops))))

    def _pictures(self, made: list[OpInput]) -> tuple[Any, ...]:
        pairs = zip(self._bench.original[:_PICTURES], made[:_PICTURES], strict=True)
        found = [pictures(one.value, other.value) for one, other in pairs]
        return tuple(pair for pair in found if pair is not None)
