"""One pipeline that was looked at, and several changes joined in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallscope.orderings import FAILS, IDENTICAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.benches import Comparison
    from stallscope.experiments.ordering.judge import Judge
    from stallscope.experiments.ordering.recipe import Recipe


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


def joined(saved_s: Mapping[Trial, float], base_s: float, judge: Judge) -> Trial | None:
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
