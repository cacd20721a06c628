"""How the loader was set up, as far as rules ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setup:
    """How the loader was set up, as far as it can be read from it."""

    num_workers: int = 0
    """Worker processes; 0: the main process loads."""
    cores: float = 1.0
    """That its processes may use."""
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers, or where it is not known."""
    persistent: bool = False
    """Whether workers live on from epoch to epoch."""
    epoch_batches: int | None = None
    """Batches of an epoch; None where the loader has no length."""
    has_step: bool = True
    """Whether batches were used by a step."""
    simulated: bool = False
    """Whether the step was only a timer."""
    on_gpu: bool = False
    """Whether the step computes on a GPU."""
