"""What a candidate gets, and what it proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallscope.experiments.ordering.judge import Judge
    from stallscope.experiments.ordering.recipe import Recipe
    from stallscope.experiments.ordering.workbench import Workbench


@dataclass(frozen=True)
class Situation:
    """What a candidate may look at."""

    bench: Workbench
    """The pipeline at work, with the samples that were drawn."""
    judge: Judge
    """Compares recipes with the pipeline as it is."""
    loader: Any
    """The user's, or a shallow copy."""
    notes: list[str]
    """Where a candidate says why it proposes nothing."""


@dataclass(frozen=True)
class Proposal:
    """A change to a pipeline that may make it faster."""

    kind: str
    """One of `orderings.KINDS`."""
    recipe: Recipe
    """The new pipeline."""
    change: str
    """What is changed, in words."""
    changes: str = ""
    """What that means for the model or the machine; "" for nothing."""
    saved_s: float | None = None
    """What it should save, seconds per sample; None: not known before it is measured."""


Candidate = Callable[[Situation], Iterator[Proposal]]
