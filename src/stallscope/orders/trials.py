"""The pipelines that are looked at: orders, rewrites, changes beyond the order, all together.

Each is a recipe with what is known of it: what it should cost, and whether it gives the same data.
Nothing is recommended whose data was not compared with the original's and found to be the same.

One pipeline that was looked at, and several changes joined in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stallscope.orders import run_ops
from stallscope.orders.bench import Comparison
from stallscope.orders.candidates import CANDIDATES
from stallscope.orders.evaluator import EquivalenceJudge
from stallscope.orders.recipe import Recipe, change_of, code_of, random_order_changed, rewrites
from stallscope.orders.result import CLOSE, FAILS, IDENTICAL
from stallscope.orders.search import cheapest, failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stallscope.orders.candidates import Proposal, Situation
    from stallscope.orders.evaluator import PipelineRunner
    from stallscope.orders.result import FixedCosts
    from stallscope.orders.search import SearchResult


@dataclass(frozen=True, eq=False)
class Trial:
    """One pipeline that was looked at."""

    kind: str
    """One of `orderings.KINDS`."""
    recipe: Recipe
    """How it is made."""
    change: str
    """What it changes, in words."""
    changes: str
    """What that means for the model; "" for nothing."""
    ops_s: float | None
    """What its ops should cost, per sample, less what it saves elsewhere; None where it fails."""
    comparison: Comparison
    """Its data against the original's."""
    names: Mapping[int, str] | None = None
    """For ops that are replaced, an expression for what replaces them."""

    @property
    def is_same(self) -> bool:
        """Whether it gives the original's data."""
        return self.comparison.equivalence == IDENTICAL


def joined(saved_s: Mapping[Trial, float], base_s: float, judge: EquivalenceJudge) -> Trial | None:
    """The best of each kind in one pipeline; None where there are not two.

    Args:
        saved_s: changes that gain, and by how much, seconds per sample.
        base_s: what the ops cost as they are, per sample.
        judge: compares the whole.
    """
    picked: list[Trial] = []
    for kind in ("order", "alternative", "decode", "batch"):
        gaining = [trial for trial in saved_s if trial.kind == kind]
        for trial in sorted(gaining, key=lambda one: -saved_s[one]):
            if _fits(trial, picked):
                picked.append(trial)
    if len(picked) < 2:  # noqa: PLR2004 - one alone is a trial already
        return None
    recipe = picked[0].recipe
    for trial in picked[1:]:
        recipe = recipe.joined(trial.recipe)
    predicted_s = base_s - sum(base_s - (trial.ops_s or base_s) for trial in picked)
    comparison = judge.compare(recipe)
    return Trial(
        "together",
        recipe,
        "; ".join(trial.change for trial in picked),
        "; ".join(dict.fromkeys(trial.changes for trial in picked if trial.changes)),
        None if comparison.equivalence == FAILS else predicted_s,
        comparison,
        {p: n for trial in picked for p, n in (trial.names or {}).items()},
    )


def _fits(trial: Trial, picked: list[Trial]) -> bool:
    """Whether a change can be made beside those that are picked."""
    if trial.kind == "alternative":
        places = {p for other in picked for p in other.recipe.replaced}
        return not places & set(trial.recipe.replaced)
    if any(other.kind == trial.kind for other in picked):
        return False
    if trial.kind == "batch":
        last = picked[0].recipe.positions if picked else trial.recipe.positions
        moved = trial.recipe.on_batch
        replaced = {p for other in picked for p in other.recipe.replaced}
        return last[-len(moved) :] == moved and not replaced & set(moved)
    return True


_MOST_SAME: Final = 5
"""Orders that give the original's data."""
_MOST_OTHERS: Final = 6
"""Of other data, and of those that raise."""
_ALWAYS: Final = 50
"""Orders of one digest that are looked at until enough are found to be the same."""
_WORTH: Final = 0.01
"""Of a sample's time: changes that should save less are left out where all come together."""
_REDRAWN: Final = (
    "random numbers are drawn in another order, so that a seed gives other samples than before"
)


class Trials:
    """Everything that is looked at, one kind after the other.

    Args:
        bench: the pipeline at work.
        found: what the search has tried.
        rest: what a sample costs outside of its ops.
    """

    def __init__(self, bench: PipelineRunner, found: SearchResult, rest: FixedCosts) -> None:
        self._bench, self._found, self.rest = bench, found, rest
        self.judge = EquivalenceJudge(bench)
        self._as_it_is = tuple(range(len(bench.ops)))
        self.base_s = sum(bench.outcomes[p].seconds for p in self._as_it_is)
        same = Comparison(IDENTICAL, compared=len(bench.givens))
        self.all = [Trial("order", Recipe(self._as_it_is), "as it is", "", self.base_s, same)]

    # ---- orders -----------------------------------------------------------------------------

    def add_orders(self, is_over: Callable[[], bool]) -> None:
        """The cheapest orders of the original's data, of each other data, and some that raise."""
        classes = cheapest(self._found, _ALWAYS)
        original = list(self._found.after(self._as_it_is))
        last = original[-1][1]
        digest = last.state.digest if last and last.state else ""
        same = 0
        for order in classes.pop(digest, []):
            if same >= _MOST_SAME or is_over():
                break
            if order.positions != self._as_it_is:
                trial = self._ordered(order.positions)
                same += trial.is_same
                self.all.append(trial)
        others = sorted((orders[0].seconds, orders[0]) for orders in classes.values())
        for _, order in others[:_MOST_OTHERS]:
            if not is_over():
                self.all.append(self._ordered(order.positions))
        for beginning, why in failures(self._found)[:_MOST_OTHERS]:
            rest = tuple(p for p in self._as_it_is if p not in beginning)
            self.all.append(self._failing((*beginning, *rest), why))

    def _ordered(self, positions: tuple[int, ...]) -> Trial:
        recipe = Recipe(positions)
        change = change_of(positions, self._bench.ops)
        comparison = self.judge.compare(recipe)
        drawing = {p: outcome.is_random for p, outcome in self._bench.outcomes.items()}
        redrawn = _REDRAWN if random_order_changed(positions, drawing) else ""
        ops_s = sum(
            self._bench.on_all_samples(position, tried.seconds)
            for position, tried in self._found.after(positions)
            if tried and tried.seconds is not None
        )
        return Trial("order", recipe, change, redrawn, ops_s, comparison)

    def _failing(self, positions: tuple[int, ...], why: str) -> Trial:
        change = change_of(positions, self._bench.ops)
        comparison = Comparison(FAILS, why=why)
        return Trial("order", Recipe(positions), change, "", None, comparison)

    # ---- rewrites of the user's --------------------------------------------------------------

    def add_alternatives(self, alternatives: Mapping[Any, Any] | None) -> None:
        """Rewrites of ops, each by itself.

        Raises:
            ArgumentError: there is no such op, or the rewrite cannot be called.
        """
        for position, op, name in rewrites(self._bench.ops, alternatives):
            old = self._bench.ops[position].name
            new = getattr(op, "__name__", type(op).__name__)
            recipe = Recipe(self._as_it_is, replaced={position: op})
            comparison = self.judge.compare(recipe)
            self.all.append(
                Trial(
                    "alternative",
                    recipe,
                    f"{new} instead of {old}",
                    "",
                    self._with_other(position, op) if comparison.equivalence != FAILS else None,
                    comparison,
                    {position: name},
                )
            )

    def _with_other(self, position: int, op: Any) -> float | None:
        """What all ops cost with another object in the place of one of them."""
        bench = self._bench
        givens = bench.outcomes[position - 1].givens if position else bench.givens
        outcome = run_ops.measure_op(bench.ops[position], bench.stream(position, op), givens)
        return self.base_s - bench.outcomes[position].seconds + outcome.seconds

    # ---- beyond the order ---------------------------------------------------------------------

    def add_candidates(self, situation: Situation, is_over: Callable[[], bool]) -> None:
        """What each candidate proposes; one that fails itself is noted, and the others go on."""
        for candidate in CANDIDATES:
            if is_over():
                return
            try:
                self._add_proposals(candidate(situation), is_over)
            except Exception as error:  # noqa: BLE001 - the user's ops and files, in an odd place
                situation.notes.append(f"a change could not be tried: {error!r:.160}")

    def _add_proposals(self, proposals: Iterator[Proposal], is_over: Callable[[], bool]) -> None:
        for proposal in proposals:
            comparison = self.judge.compare(proposal.recipe)
            works = comparison.equivalence != FAILS and proposal.saved_s is not None
            self.all.append(
                Trial(
                    proposal.kind,
                    proposal.recipe,
                    proposal.change,
                    proposal.changes,
                    self.base_s - (proposal.saved_s or 0.0) if works else None,
                    comparison,
                )
            )
            if is_over():
                return

    def add_together(self, measured: Mapping[int, float]) -> list[int]:
        """All changes that give the same data and gain; and with the close ones on top.

        Args:
            measured: how many times as fast trials were, by their number; a change has to gain
                here, too, and not only as predicted.

        Returns:
            The numbers of the new trials.
        """
        before = len(self.all)
        gaining = {trial: s for trial, s in self._saved_s(measured) if trial.is_same}
        same = joined(gaining, self.base_s, self.judge)
        self.all += [same] if same is not None else []
        gaining = dict(self._saved_s(measured))
        more = joined(gaining, self.base_s, self.judge)
        if more is not None and (same is None or more.change != same.change):
            self.all.append(more)
        return list(range(before, len(self.all)))

    def _saved_s(self, measured: Mapping[int, float]) -> Iterator[tuple[Trial, float]]:
        """Changes that are worth it, and what each saves at least: as predicted, and measured."""
        whole_s = self.base_s + self.rest.total_s
        for number, trial in enumerate(self.all):
            if trial.ops_s is None or trial.comparison.equivalence not in (IDENTICAL, CLOSE):
                continue
            saved_s = self.base_s - trial.ops_s
            if number in measured:
                saved_s = min(saved_s, whole_s * (1 - 1 / measured[number]))
            if saved_s > _WORTH * whole_s:
                yield trial, saved_s

    # ---- as rows ---------------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """One a trial, columns of `orderings.TRIALS`."""
        names = {op.position: op.name for op in self._bench.ops}
        for number, trial in enumerate(self.all):
            said = trial.comparison
            predicted = None if trial.ops_s is None else self.rest.total_s + trial.ops_s
            shown = [self._shown(trial, names[p], p) for p in trial.recipe.positions]
            yield (
                number,
                trial.kind,
                list(trial.recipe.positions),
                " → ".join(shown),
                trial.change,
                trial.changes,
                predicted,
                said.equivalence,
                said.largest_difference,
                said.psnr_db,
                said.compared,
                said.why,
                self.is_gain(trial),
                code_of(trial.recipe, self._bench.site, dict(trial.names or {})),
            )

    @staticmethod
    def _shown(trial: Trial, name: str, position: int) -> str:
        if position in trial.recipe.replaced:
            op = trial.recipe.replaced[position]
            return str(getattr(op, "__name__", type(op).__name__))
        return f"{name} (on the batch)" if position in trial.recipe.on_batch else name

    def is_gain(self, trial: Trial) -> bool:
        """Whether a trial gives the same data and should be faster."""
        faster = trial.ops_s is not None and trial.ops_s < self.base_s
        # a cache is the user's decision: it costs memory that others may need
        return faster and trial.is_same and not trial.comparison.why and trial.kind != "cache"
