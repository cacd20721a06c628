"""A step for machines without the device: a timer that does nothing else.

It leaves the CPU to the workers, as a GPU would. Whatever was measured with it says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from numbers import Real
from typing import Any

from stallscope.errors import ArgumentError


@dataclass(frozen=True)
class SimulatedStep:
    """Waits so long for each batch."""

    seconds: float
    """How long it takes to use one batch."""

    def __call__(self, batch: Any) -> None:  # noqa: ARG002 - what every step takes
        """Use a batch: wait."""
        time.sleep(self.seconds)


def simulated_step(seconds: float) -> SimulatedStep:
    """A step that is only a timer; every output of what was measured with it says so.

    Args:
        seconds: how long it takes to use one batch.

    Raises:
        ArgumentError: that is no time.
    """
    if not (isinstance(seconds, Real) and 0 <= seconds < float("inf")):  # false for nan, too
        raise ArgumentError(f"simulated_step({seconds!r}): give a number of seconds, 0 or more")
    return SimulatedStep(float(seconds))
