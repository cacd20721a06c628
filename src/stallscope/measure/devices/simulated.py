"""A device that is only a timer: busy exactly as long as its step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.measure.devices.cpu import Cpu
from stallscope.units import seconds

if TYPE_CHECKING:
    from stallscope.measure.simulated import SimulatedStep


class Simulated(Cpu):
    """The device of a simulated step.

    Args:
        step: the timer.
    """

    def __init__(self, step: SimulatedStep) -> None:
        super().__init__()
        self.name = f"simulated (a timer of {seconds(step.seconds)})"
