"""Does a pipeline give the original's data? On the same samples and draws, then on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.analyze.orders import twosample
from stallscope.analyze.orders.equivalence import Leaf, compared
from stallscope.benches import Comparison
from stallscope.experiments.ordering.recipe import Recipe
from stallscope.experiments.ordering.workbench import NotComparableError
from stallscope.measure.pipelines import trying
from stallscope.measure.pipelines.digests import digest
from stallscope.measure.pipelines.shown import largest_array, pictures, pieces
from stallscope.orderings import DIFFERENT, FAILS, IDENTICAL, NOT_DISTINGUISHED
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.analyze.orders.equivalence import Difference
    from stallscope.experiments.ordering.workbench import Workbench
    from stallscope.measure.pipelines.calls import Given

_DRAWS: Final = 4
"""Of each sample, for statistics."""
_PICTURES: Final = 4
_LONGEST: Final = 160
"""Characters of an error's text."""


class Judge:
    """Compares pipelines with the one as it is.

    Args:
        bench: that one, at work.
    """

    def __init__(self, bench: Workbench) -> None:
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
            if trying.digest_of(made) == self._bench.digest:
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
        if trying.digest_of(original) == trying.digest_of(other):
            return Comparison(IDENTICAL, compared=2 * n, why=self._bench.idle_told, pictures=shown)
        difference = self._between(original, other)
        return self._far(recipe, difference, shown)

    def _far(self, recipe: Recipe, difference: Difference, shown: Any) -> Comparison:
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
        if len(self._bench.givens) < twosample.FEWEST_PAIRS:
            return None
        turns = range(1, 1 + _DRAWS)
        if not self._spread:
            self._spread = {turn: self._statistics(self._plain(), turn) for turn in turns}
        other = [self._statistics(recipe, _DRAWS + turn) for turn in turns]
        original = list(self._spread.values())
        return twosample.compare(np.stack(original, axis=1), np.stack(other, axis=1))

    def _statistics(self, recipe: Recipe, turn: int) -> np.ndarray[Any, Any]:
        found = []
        for given in self._bench.outputs(recipe, turn):
            array = largest_array(given.value)
            found.append(twosample.statistics(np.zeros((1, 1)) if array is None else array))
        return np.stack(found)

    def _plain(self) -> Recipe:
        return Recipe(tuple(range(len(self._bench.ops))))

    def _pictures(self, made: list[Given]) -> tuple[Any, ...]:
        pairs = zip(self._bench.original[:_PICTURES], made[:_PICTURES], strict=True)
        found = [pictures(one.value, other.value) for one, other in pairs]
        return tuple(pair for pair in found if pair is not None)
