"""Training loops with a planted cause: the tests of the verdict.

`plant("collate", seed=3)` gives a loader and a step that starve for one known reason, and the same
without it. Each is also a target by its name, where this folder's parent is on Python's path:
`PYTHONPATH=tests stallscope diagnose planted:slow_worker`. It works on any number of cores.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from planted.planting import (
    ASKED,
    HEALTHY_CODE,
    NOT_PLANTED,
    PAIRS,
    PLANTED,
    Planted,
    plant,
    plant_pair,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ASKED",
    "HEALTHY_CODE",
    "NOT_PLANTED",
    "PAIRS",
    "PLANTED",
    "Planted",
    "plant",
    "plant_pair",
]


def _loop(code: str) -> tuple[Any, Callable[[Any], object]]:
    """Loader and step, as a target's factory gives them."""
    planted = plant(code)
    return planted.loader, planted.step


def __getattr__(name: str) -> Any:
    code = name.replace("_", "-")
    if code not in PLANTED and code != HEALTHY_CODE:
        raise AttributeError(f"module 'planted' has no attribute {name!r}")
    return partial(_loop, code)
