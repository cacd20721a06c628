"""A pipeline at work in this process: its ops tried in any state, its data compared.

Everything here is done on the samples that were drawn once, with one torch thread, and each op on
its own stream of random numbers. The caller puts the global generators back.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from stallscope.analyze.orders import twosample
from stallscope.analyze.orders.equivalence import Leaf, compared
from stallscope.analyze.orders.search import Node, State, Tried
from stallscope.benches import Comparison
from stallscope.experiments.ordering.recipe import BatchOps, Recipe
from stallscope.measure.pipelines import trying
from stallscope.measure.pipelines.calls import Given
from stallscope.measure.pipelines.digests import described, digest
from stallscope.measure.pipelines.draws import Stream
from stallscope.measure.pipelines.inputs import opened
from stallscope.measure.pipelines.shown import largest_array, pictures, pieces
from stallscope.orderings import DIFFERENT, FAILS, IDENTICAL, NOT_DISTINGUISHED
from stallscope.units import count, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.analyze.orders.equivalence import Difference
    from stallscope.analyze.orders.search import Found
    from stallscope.experiments.ordering.survey import Survey
    from stallscope.measure.pipelines.trying import Outcome

_DRAWS: Final = 4
"""Of each sample, for statistics."""
_PICTURES: Final = 4
_LONGEST: Final = 160
"""Characters of an error's text."""


class NotComparableError(Exception):
    """An op that keeps a state gets something else than in the pipeline as it is."""


class Workbench:
    """The ops of one pipeline, on the samples that were drawn.

    Args:
        survey: the pipeline and the samples.
        batch_size: the loader's.
        is_over: whether there is no time for more.
    """

    def __init__(self, survey: Survey, batch_size: int, is_over: Callable[[], bool]) -> None:
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
        self._spread: dict[int, np.ndarray[Any, Any]] = {}
        self.original = self._as_it_is(is_over)
        self.digest = trying.digest_of(self.original)
        self.searched = len(self.givens)
        """On how many samples orders are searched; what is found is compared on all."""

    def start(self) -> tuple[State, list[Given]]:
        """The samples on which orders are searched, before any op."""
        givens = self.givens[: self.searched]
        return State(trying.digest_of(givens), trying.layout_of(givens)), givens

    def _as_it_is(self, is_over: Callable[[], bool]) -> list[Given]:
        """What the pipeline gives as it is; ops are tried on the way."""
        givens = list(self.givens)
        for op in self.ops:
            stream = self.stream(op.position)
            outcome = trying.attempt(op, stream, givens)
            if outcome.is_random and not outcome.unsteady:
                acting = trying.tell(op, stream, givens, is_over)
                if stream.telling:
                    outcome = trying.attempt(op, stream, givens)
                if not acting:
                    self.idle.append(op.name)
            self.outcomes[op.position] = outcome
            givens = list(outcome.givens)
        return givens

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

    @property
    def streams(self) -> list[Stream]:
        """All of them."""
        return list(self._streams.values())

    @property
    def is_random(self) -> bool:
        """Whether any op draws random numbers."""
        return any(outcome.is_random for outcome in self.outcomes.values())

    def attempt(self, position: int, applied: Sequence[int], value: Any, state: State) -> Tried:
        """Try an op; see `analyze.orders.search.Bench`."""
        op = self.ops[position]
        outcome = self.outcomes[position]
        if tuple(applied) == tuple(range(position)):
            return self._tried(trying.beginning(outcome, self.searched))
        unsteady = outcome.unsteady
        if unsteady and state.digest != self._before(position):
            return Tried(None, None, why_not=f"not comparable: {unsteady}")
        try:
            return self._tried(trying.attempt(op, self.stream(position), value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            return Tried(None, None, why_not=self._why(op.name, error, value))

    def _before(self, position: int) -> str:
        """The digest of what an op gets in the pipeline as it is."""
        givens = self.outcomes[position - 1].givens if position else self.givens
        return trying.digest_of(givens[: self.searched])

    @staticmethod
    def _tried(outcome: Outcome) -> Tried:
        state = State(outcome.digest, outcome.layout)
        return Tried(outcome.seconds, state, list(outcome.givens))

    @staticmethod
    def _why(name: str, error: Exception, value: Sequence[Given]) -> str:
        text = " ".join(str(error).split()) or "no text"
        got = described(value[0].value) if value else "nothing"
        return f"{name} raises {type(error).__name__} on {got}: {text[:_LONGEST]}"

    # ---- whole pipelines --------------------------------------------------------------------

    def explored(self, positions: Sequence[int], found: Found) -> None:
        """Try the ops of an order in the states that nobody has tried them in."""
        if all(tried is not None for _, tried in found.after(positions)):
            return
        node: Node = found.start
        values = self.givens[: self.searched]
        applied: tuple[int, ...] = ()
        for position in positions:
            tried = found.edges.get(node, {}).get(position)
            if tried is None:
                fresh = self.attempt(position, applied, values, node.state)
                tried = fresh._replace(value=None)
                found.edges.setdefault(node, {})[position] = tried
                values = fresh.value
            elif tried.state is not None:
                values = trying.run(self.ops[position], self.stream(position), values)
            if tried.state is None:
                return
            applied = (*applied, position)
            node = Node(node.applied | {position}, tried.state)
            found.reached_by.setdefault(node, applied)

    def outputs(self, recipe: Recipe, turn: int = 0) -> list[Given]:
        """What a pipeline gives for the samples.

        Args:
            recipe: the pipeline.
            turn: 0 for the draws on which pipelines are compared.

        Raises:
            Exception: whatever an op raises.
        """
        givens = self._opened(recipe.opener) if recipe.opener is not None else self.givens
        for position in recipe.per_sample:
            self._check_steady(position, givens, turn)
            stream = self.stream(position, recipe.replaced.get(position))
            givens = trying.run(self.ops[position], stream, givens, turn)
        return self._on_batch(recipe, givens) if recipe.on_batch else list(givens)

    def _check_steady(self, position: int, givens: Sequence[Given], turn: int) -> None:
        """Make sure that an op with a state of its own gets what it gets as it is.

        Raises:
            NotComparableError: it gets something else.
        """
        unsteady = self.outcomes[position].unsteady if self.outcomes else ""
        if not unsteady or turn:
            return
        as_it_is = self.outcomes[position - 1].givens if position else self.givens
        if trying.digest_of(givens) != trying.digest_of(as_it_is):
            raise NotComparableError(f"not comparable: {unsteady}")

    def _on_batch(self, recipe: Recipe, givens: Sequence[Given]) -> list[Given]:
        """What ops make of a batch, in the size in which the loader makes them.

        A product of matrices may round other than in another size.
        """
        values = [given.value for given in givens]
        column = torch.stack(list(islice(cycle(values), max(self.batch_size, len(values)))))
        work = BatchOps(None, recipe.works(self.site.chain), ()).work
        made = work(column)
        return [Given((one,), {}) for one in made[: len(values)]]

    def _opened(self, opener: Any) -> list[Given]:
        return [Given((opener(opened(one.lazy)),), {}) for one in self.drawn if one.lazy]

    def compare(self, recipe: Recipe, *, shows: bool = False) -> Comparison:
        """Whether a pipeline gives the original's data.

        Args:
            recipe: the pipeline.
            shows: whether to make pictures.
        """
        try:
            made = self.outputs(recipe)
            shown = self._pictures(made) if shows else ()
            n = len(made)
            if trying.digest_of(made) == self.digest:
                return self._again(recipe, n, shown)
            if self._unsteady:
                why = f"not comparable: {'; '.join(self._unsteady)}"
                return Comparison(DIFFERENT, compared=n, why=why, pictures=shown)
            return self._far(recipe, self._between(self.original, made), shown)
        except NotComparableError as error:
            return Comparison(DIFFERENT, compared=len(self.givens), why=str(error))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            text = " ".join(str(error).split())[:_LONGEST]
            return Comparison(FAILS, why=f"raises {type(error).__name__}: {text}")

    def _again(self, recipe: Recipe, n: int, shown: Any) -> Comparison:
        """Identical on the first draws: on others, too?"""
        if not self.is_random or self._unsteady:
            return Comparison(IDENTICAL, compared=n, pictures=shown)
        original, other = (self.outputs(one, 1) for one in (self._plain(), recipe))
        if trying.digest_of(original) == trying.digest_of(other):
            idle = f"{', '.join(self.idle)} changed no sample in any draw" if self.idle else ""
            return Comparison(IDENTICAL, compared=2 * n, why=idle, pictures=shown)
        difference = self._between(original, other)
        return self._far(recipe, difference, shown)

    def _far(self, recipe: Recipe, difference: Difference, shown: Any) -> Comparison:
        """Not identical: maybe close, maybe not to be told apart, else different."""
        n = len(self.givens)
        said = {"largest_difference": difference.largest, "psnr_db": difference.psnr_db}
        found = Comparison(
            difference.equivalence, compared=n, why=difference.why, pictures=shown, **said
        )
        if difference.equivalence != DIFFERENT or difference.why or not self.is_random:
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
            f"other draws, but no statistic tells them apart over {draws}; a shift of the mean by "
            f"{share(verdict.smallest_share)} of the spread would probably have been seen"
        )
        return Comparison(NOT_DISTINGUISHED, compared=n, why=why, pictures=shown, **said)

    @property
    def _unsteady(self) -> list[str]:
        """Why ops cannot be compared on other inputs."""
        return [one.unsteady for one in self.outcomes.values() if one.unsteady]

    @staticmethod
    def _between(original: list[Given], made: list[Given]) -> Difference:
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

    def _tested(self, recipe: Recipe) -> twosample.Verdict | None:
        """A test over samples that are drawn anew; None where there are too few."""
        if len(self.givens) < twosample.FEWEST_PAIRS:
            return None
        turns = range(1, 1 + _DRAWS)
        if not self._spread:
            self._spread = {turn: self._statistics(self._plain(), turn) for turn in turns}
        other = [self._statistics(recipe, _DRAWS + turn) for turn in turns]
        original = list(self._spread.values())
        return twosample.compare(np.stack(original, axis=1), np.stack(other, axis=1))

    def _statistics(self, recipe: Recipe, turn: int) -> np.ndarray[Any, Any]:
        found = []
        for given in self.outputs(recipe, turn):
            array = largest_array(given.value)
            found.append(twosample.statistics(np.zeros((1, 1)) if array is None else array))
        return np.stack(found)

    def _plain(self) -> Recipe:
        return Recipe(tuple(range(len(self.ops))))

    def _pictures(self, made: list[Given]) -> tuple[Any, ...]:
        pairs = zip(self.original[:_PICTURES], made[:_PICTURES], strict=True)
        found = [pictures(one.value, other.value) for one, other in pairs]
        return tuple(pair for pair in found if pair is not None)
