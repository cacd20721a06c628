"""Training loops with a planted cause, for the benchmarks of the verdict.

`plant("collate", seed=3)` gives a loader and a step that starve for one known reason, and the same
without it. It works on any number of cores.
"""

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
