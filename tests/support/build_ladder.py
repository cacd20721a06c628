"""Ladders with planted laps."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from stallscope.ladder.result import FACTS, LAPS, RUNGS, Ladder, Rung
from stallscope.result import LoopConditions

STEP_S = 0.1
SAMPLES = 8


def a_ladder(  # noqa: PLR0917
    seconds: dict[Rung, float],
    laps: int = 4,
    steps: int = 20,
    noise: float = 0.0,
    lap_noise: float = 0.0,
    seed: int = 0,
    busy: dict[Rung, float] | None = None,
    others: dict[Rung, float] | None = None,
    why_not: dict[Rung, str] | None = None,
    notes: tuple[str, ...] = (),
    **circumstances: Any,
) -> Ladder:
    """A ladder.

    Args:
        seconds: what a step of each rung takes.
        laps: of each rung.
        steps: of each lap.
        noise: of a step, as a share of it (standard deviation).
        lap_noise: of a lap, in the same way.
        seed: of both.
        busy: what the device said.
        others: share of the cores that other processes had.
        why_not: why a rung was not measured.
        notes: of the ladder.
        circumstances: fields of `Circumstances`.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for rung, whole in seconds.items():
        for lap in range(laps):
            of_lap = whole * (1 + lap_noise * rng.standard_normal())
            each = of_lap * (1 + noise * rng.standard_normal(steps))
            rows += [(rung.name, lap, float(one), STEP_S, SAMPLES) for one in np.maximum(each, 0)]
    known = LoopConditions(name="planted", **circumstances)
    facts = [
        (
            rung.name,
            1000 if rung in seconds else None,
            (busy or {}).get(rung),
            None,
            (others or {}).get(rung),
            None if rung in seconds else (why_not or {}).get(rung, "not reached"),
        )
        for rung in RUNGS
    ]
    return Ladder(
        pl.DataFrame(rows, LAPS, orient="row"),
        pl.DataFrame(facts, FACTS, orient="row"),
        known,
        notes,
    )
