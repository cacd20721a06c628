"""What can be asked of a pipeline that is still at hand: any order's cost, its data, its code.

The values that pass between a view, which asks, and what can run the pipeline. The result names it
by these questions alone, so that reading figures needs none of what made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]


class CostPart(NamedTuple):
    """One part of what a sample costs."""

    name: str
    """An op's name, or what it is else."""
    seconds: float
    """Per sample."""
    kind: str
    """Whose colour it has: one of `stages.KINDS`."""


@dataclass(frozen=True)
class Prediction:
    """What a pipeline should cost, from the costs of its ops in the states they would meet."""

    seconds: float | None
    """Per sample; None where the order raises."""
    parts: tuple[CostPart, ...] = ()
    """In the order in which they happen; up to the op that raises."""
    why: str = ""
    """Why there is no prediction."""


@dataclass(frozen=True)
class Comparison:
    """A pipeline's data against the original's, on the same samples and draws."""

    equivalence: str
    """One of `result.EQUIVALENCES`."""
    largest_difference: float | None = None
    """Of two values at the same place, in their own unit; None: identical, or not comparable."""
    psnr_db: float | None = None
    """Of the sample that differs most, dB; None: identical, or not comparable."""
    compared: int = 0
    """Samples."""
    why: str = ""
    """The reason in words, where there is one."""
    pictures: tuple[tuple[Picture, Picture], ...] = ()
    """A few samples, original and new, uint8 of shape (height, width, 3); none where samples are
    no images."""


@dataclass(frozen=True)
class Measured:
    """A pipeline against the original, for real, started in turn."""

    seconds: float
    """Of one worker per sample."""
    low: float | None
    """End of its interval; None where too little was measured."""
    high: float | None
    """The other end."""
    original_s: float
    """The original, measured in between."""
    speedup: float
    """The original's seconds over the new one's."""
    speedup_low: float | None
    """End of its interval; None where too little was measured."""
    speedup_high: float | None
    """The other end."""
    place: str
    """"workers" or "process"."""


class OrderBench(Protocol):
    """The pipeline, still at hand.

    Nothing here moves a generator or changes an object of the user's. What is no order of all ops
    raises `NoSuchOrderError`.
    """

    def predict(self, positions: Sequence[int]) -> Prediction:
        """What an order should cost; times the ops in states that are new."""

    def compare(self, positions: Sequence[int]) -> Comparison:
        """Whether an order gives the original's data."""

    def measure(
        self, positions: Sequence[int], on_progress: Callable[[float], object] | None = None
    ) -> Measured:
        """Run an order and the original in turn, in workers where the loader has some.

        Args:
            positions: the order.
            on_progress: is told the share that is done, 0 to 1.
        """

    def code(self, positions: Sequence[int]) -> str:
        """Python source that makes the order's pipeline from a `loader`."""

    def apply(self, loader: Any, trial: int | Sequence[int]) -> Any:
        """A new loader with the pipeline of a trial, or with an order; the given one is as before.

        Args:
            loader: one with the same pipeline at the same place.
            trial: the number of a trial, or the positions of an order.
        """


class NoSuchOrderError(StallscopeError, ValueError):
    """There is no such trial, or these are not the positions of all ops."""
