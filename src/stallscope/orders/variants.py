"""The table of variants: orders, rewrites, changes beyond the order, and all that gain together.

Each is a recipe with what is known of it: what it should cost, and whether it gives the same data.
Nothing is recommended whose data was not compared with the original's and found to be the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import ArgumentError
from stallscope.orders.bench import Comparison
from stallscope.orders.candidates import CANDIDATES, Candidate, Situation
from stallscope.orders.equivalence import EquivalenceJudge
from stallscope.orders.recipe import Recipe, Variant, change_of, code_of, random_order_changed
from stallscope.orders.result import CLOSE, FAILS, IDENTICAL
from stallscope.orders.run_ops import measure_op
from stallscope.orders.sample_costs import BETWEEN, ON_BATCH
from stallscope.orders.search import cheapest, failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stallscope.orders.pipeline import Op
    from stallscope.orders.pipeline_runner import PipelineRunner
    from stallscope.orders.result import FixedCosts
    from stallscope.orders.search import SearchResult

_MOST_SAME: Final = 5
"""Orders that give the original's data."""
_MOST_OTHERS: Final = 6
"""Of other data, and of those that raise."""
_MOST_COMPARED: Final = 50
"""Orders of one digest that are looked at until enough are found to be the same."""
_WORTH: Final = 0.01
"""Of a sample's time: changes that should save less are left out where all come together."""
_REDRAWN: Final = (
    "random numbers are drawn in another order, so that a seed gives other samples than before"
)


class Variants:
    """Every pipeline that is looked at, one kind after the other; the first is as it is.

    Args:
        runner: the pipeline.
        found: what the search has tried.
        fixed: what a sample costs outside of its ops.
    """

    def __init__(self, runner: PipelineRunner, found: SearchResult, fixed: FixedCosts) -> None:
        self._runner, self._found, self.fixed = runner, found, fixed
        self._judge = EquivalenceJudge(runner)
        self.base_s = runner.base_s
        same = Comparison(IDENTICAL, compared=len(runner.inputs))
        original = Recipe(runner.as_it_is)
        self.all = [Variant("order", original, "as it is", ops_s=self.base_s, comparison=same)]

    def add_alternatives(self, alternatives: Mapping[Any, Any] | None) -> None:
        """Add the user's rewrites of ops, each by itself.

        Raises:
            ArgumentError: there is no such op, or the rewrite cannot be called.
        """
        runner = self._runner
        for position, op, name in _rewrites(runner.ops, alternatives):
            old = runner.ops[position]
            recipe = Recipe(runner.as_it_is, replaced={position: op})
            comparison = self._judge.compare(recipe)
            ops_s = None
            if comparison.equivalence != FAILS:
                stream, inputs = runner.stream(position, op), runner.inputs_of(position)
                rewritten_s = measure_op(old, stream, inputs).seconds
                ops_s = self.base_s - runner.outcomes[position].seconds + rewritten_s
            change = f"{_name_of(op)} instead of {old.name}"
            self.all.append(
                Variant("alternative", recipe, change, "", ops_s, comparison, {position: name})
            )

    def add_orders(self, is_over: Callable[[], bool]) -> None:
        """Add the cheapest orders of the original's data, of other data, and some that raise."""
        classes = cheapest(self._found, _MOST_COMPARED)
        last = list(self._found.after(self._runner.as_it_is))[-1][1]
        same = 0
        for order in classes.pop(last.state.digest if last and last.state else "", []):
            if same >= _MOST_SAME or is_over():
                break
            if order.positions != self._runner.as_it_is:
                self._add_order(order.positions)
                same += self.all[-1].is_same
        others = sorted((orders[0].seconds, orders[0]) for orders in classes.values())
        for _, order in others[:_MOST_OTHERS]:
            if not is_over():
                self._add_order(order.positions)
        for beginning, why in failures(self._found)[:_MOST_OTHERS]:
            rest = (p for p in self._runner.as_it_is if p not in beginning)
            positions = (*beginning, *rest)
            change = change_of(positions, self._runner.ops)
            fails = Comparison(FAILS, why=why)
            self.all.append(Variant("order", Recipe(positions), change, comparison=fails))

    def _add_order(self, positions: tuple[int, ...]) -> None:
        drawing = {p: outcome.is_random for p, outcome in self._runner.outcomes.items()}
        self.all.append(
            Variant(
                "order",
                Recipe(positions),
                change_of(positions, self._runner.ops),
                _REDRAWN if random_order_changed(positions, drawing) else "",
                sum(
                    self._runner.scaled_s(position, tried.seconds)
                    for position, tried in self._found.after(positions)
                    if tried and tried.seconds is not None
                ),
                self._judge.compare(Recipe(positions)),
            )
        )

    def add_candidates(self, loader: Any, notes: list[str], is_over: Callable[[], bool]) -> None:
        """Add what each candidate proposes; of one that fails itself that is noted.

        Args:
            loader: the user's, or a shallow copy.
            notes: get a sentence for what was not tried.
            is_over: whether there is no time for more.
        """
        situation = Situation(self._runner, self._judge, loader, notes)
        for candidate in CANDIDATES:
            if is_over():
                return
            try:
                self._add_candidate(candidate, situation, is_over)
            except Exception as error:  # noqa: BLE001 - the user's ops and files, in an odd place
                notes.append(f"a change could not be tried: {error!r:.160}")

    def _add_candidate(
        self, candidate: Candidate, situation: Situation, is_over: Callable[[], bool]
    ) -> None:
        for variant in candidate(situation):
            comparison = self._judge.compare(variant.recipe)
            ops_s = None if comparison.equivalence == FAILS else variant.ops_s
            self.all.append(replace(variant, ops_s=ops_s, comparison=comparison))
            if is_over():
                return

    def add_together(self, measured: Mapping[int, float]) -> list[int]:
        """Add all changes that give the same data and gain; and with the close ones on top.

        Args:
            measured: how many times as fast variants were, by their number; a change has to gain
                here, too, and not only as predicted.

        Returns:
            The numbers of the new variants.
        """
        before = len(self.all)
        saved_s = dict(self._saved_s(measured))
        same = self._together({one: s for one, s in saved_s.items() if one.is_same})
        more = self._together(saved_s)
        if same is not None:
            self.all.append(same)
        if more is not None and (same is None or more.change != same.change):
            self.all.append(more)
        return list(range(before, len(self.all)))

    def _saved_s(self, measured: Mapping[int, float]) -> Iterator[tuple[Variant, float]]:
        """Changes that are worth it, and what each saves at least: as predicted, and measured."""
        whole_s = self.base_s + self.fixed.total_s
        for number, variant in enumerate(self.all):
            if variant.ops_s is None or variant.comparison.equivalence not in (IDENTICAL, CLOSE):
                continue
            saved_s = self.base_s - variant.ops_s
            if number in measured:
                saved_s = min(saved_s, whole_s * (1 - 1 / measured[number]))
            if saved_s > _WORTH * whole_s:
                yield variant, saved_s

    def _together(self, saved_s: Mapping[Variant, float]) -> Variant | None:
        """The best of each kind in one pipeline; None where there are not two.

        Args:
            saved_s: changes that gain, and by how much, seconds per sample.
        """
        picked: list[Variant] = []
        for kind in ("order", "alternative", "decode", "batch"):
            gaining = [one for one in saved_s if one.kind == kind]
            for variant in sorted(gaining, key=lambda one: -saved_s[one]):
                if _fits(variant, picked):
                    picked.append(variant)
        if len(picked) < 2:  # noqa: PLR2004 - one alone is a variant already
            return None
        recipe = picked[0].recipe
        for variant in picked[1:]:
            recipe = recipe.joined(variant.recipe)
        ops_s = self.base_s - sum(self.base_s - (one.ops_s or self.base_s) for one in picked)
        comparison = self._judge.compare(recipe)
        return Variant(
            "together",
            recipe,
            "; ".join(one.change for one in picked),
            "; ".join(dict.fromkeys(one.changes for one in picked if one.changes)),
            None if comparison.equivalence == FAILS else ops_s,
            comparison,
            {position: name for one in picked for position, name in one.names.items()},
        )

    def is_gain(self, variant: Variant) -> bool:
        """Whether a variant gives the same data and should be faster."""
        faster = variant.ops_s is not None and variant.ops_s < self.base_s
        # a cache is the user's decision: it costs memory that others may need
        is_sure = variant.is_same and not variant.comparison.why
        return faster and is_sure and variant.kind != "cache"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """One per variant, columns of `result.TRIALS`."""
        for number, variant in enumerate(self.all):
            recipe, comparison = variant.recipe, variant.comparison
            yield (
                number,
                variant.kind,
                list(recipe.positions),
                BETWEEN.join(self._shown(recipe, position) for position in recipe.positions),
                variant.change,
                variant.changes,
                None if variant.ops_s is None else self.fixed.total_s + variant.ops_s,
                comparison.equivalence,
                comparison.largest_difference,
                comparison.psnr_db,
                comparison.compared,
                comparison.why,
                self.is_gain(variant),
                code_of(recipe, self._runner.site, variant.names),
            )

    def _shown(self, recipe: Recipe, position: int) -> str:
        if position in recipe.replaced:
            return _name_of(recipe.replaced[position])
        name = self._runner.ops[position].name
        return name + ON_BATCH if position in recipe.on_batch else name


def _rewrites(
    ops: tuple[Op, ...], alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Position, object and expression of each rewrite.

    Args:
        ops: of the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite cannot be called.
    """
    known = {op.name: op.position for op in ops}
    for key, value in (alternatives or {}).items():
        position = known.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in range(len(ops)):
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in known)}"
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        for number, op in enumerate(several):
            if not callable(op) or isinstance(op, type):
                raise ArgumentError(
                    f"alternatives[{key!r}] is {op!r:.80}: give an op that can be called with a "
                    "sample, an object and not its class"
                )
            place = f"[{number}]" if len(several) > 1 else ""
            yield position, op, f"alternatives[{key!r}]{place}"


def _name_of(op: Any) -> str:
    return str(getattr(op, "__name__", type(op).__name__))


def _fits(variant: Variant, picked: list[Variant]) -> bool:
    """Whether a change can be made beside those that are picked."""
    replaced = {p for other in picked for p in other.recipe.replaced}
    if variant.kind == "alternative":
        return not replaced & set(variant.recipe.replaced)
    if any(other.kind == variant.kind for other in picked):
        return False
    if variant.kind == "batch":
        moved = variant.recipe.on_batch
        positions = (picked[0] if picked else variant).recipe.positions
        return positions[-len(moved) :] == moved and not replaced & set(moved)
    return True
