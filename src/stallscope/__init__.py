"""Why PyTorch training starves for data, measured inside the DataLoader's workers.

The public names, nothing else. They are imported on first use, because every spawned worker
imports this module again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

_HOMES = {
    "Run": "stallscope.run",
    "StallscopeError": "stallscope.errors",
    "Target": "stallscope.measure.target",
    "instrumented": "stallscope.experiments.instrumented",
    "load": "stallscope.runfile",
    "record": "stallscope.experiments.record",
    "target": "stallscope.measure.target",
}

__all__ = [
    "Run",
    "StallscopeError",
    "Target",
    "instrumented",
    "load",
    "record",
    "target",
]

if TYPE_CHECKING:
    from stallscope.errors import StallscopeError
    from stallscope.experiments.instrumented import instrumented
    from stallscope.experiments.record import record
    from stallscope.measure.target import Target, target
    from stallscope.run import Run
    from stallscope.runfile import load


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stallscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
