"""Why PyTorch training starves for data, measured inside the DataLoader's workers.

The public names, nothing else. They are imported on first use, because every spawned worker
imports this module again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

_HOMES = {
    "Diagnosis": "stallscope.diagnoses",
    "Flame": "stallscope.flames",
    "Ladder": "stallscope.ladders",
    "Lines": "stallscope.listings",
    "Orders": "stallscope.orderings",
    "Run": "stallscope.run",
    "StallscopeError": "stallscope.errors",
    "Target": "stallscope.measure.target",
    "diagnose": "stallscope.experiments.diagnose",
    "flame": "stallscope.experiments.flame",
    "instrumented": "stallscope.experiments.instrumented",
    "ladder": "stallscope.experiments.ladder",
    "lines": "stallscope.experiments.lines",
    "load": "stallscope.experiments.load",
    "orders": "stallscope.experiments.orders",
    "record": "stallscope.experiments.record",
    "simulated_step": "stallscope.measure.simulated",
    "stage": "stallscope.probe.named",
    "target": "stallscope.measure.target",
}

__all__ = [
    "Diagnosis",
    "Flame",
    "Ladder",
    "Lines",
    "Orders",
    "Run",
    "StallscopeError",
    "Target",
    "diagnose",
    "flame",
    "instrumented",
    "ladder",
    "lines",
    "load",
    "orders",
    "record",
    "simulated_step",
    "stage",
    "target",
]

if TYPE_CHECKING:
    from stallscope.diagnoses import Diagnosis
    from stallscope.errors import StallscopeError
    from stallscope.experiments.diagnose import diagnose
    from stallscope.experiments.flame import flame
    from stallscope.experiments.instrumented import instrumented
    from stallscope.experiments.ladder import ladder
    from stallscope.experiments.lines import lines
    from stallscope.experiments.load import load
    from stallscope.experiments.orders import orders
    from stallscope.experiments.record import record
    from stallscope.flames import Flame
    from stallscope.ladders import Ladder
    from stallscope.listings import Lines
    from stallscope.measure.simulated import simulated_step
    from stallscope.measure.target import Target, target
    from stallscope.orderings import Orders
    from stallscope.probe.named import stage
    from stallscope.run import Run


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stallscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
