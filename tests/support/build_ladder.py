"""Ladders with planted blocks."""

from typing import Any

import numpy as np
import polars as pl

from stallscope.bench.comparison import BLOCKS
from stallscope.result import LoopConditions
from stallscope.verbs.ladder.result import FACTS, RUNGS, Ladder, Rung

STEP_S = 0.1
SAMPLES = 8


def a_ladder(  # noqa: PLR0917
    seconds: dict[Rung, float],
    starts: int = 3,
    blocks: int = 5,
    noise: float = 0.0,
    start_noise: float = 0.0,
    seed: int = 0,
    busy: dict[Rung, float] | None = None,
    why_not: dict[Rung, str] | None = None,
    notes: tuple[str, ...] = (),
    **circumstances: Any,
) -> Ladder:
    """Make a ladder of each rung's seconds a step; noise is a share of it (standard deviation)."""
    rng = np.random.default_rng(seed)
    rows = []
    for rung, whole in seconds.items():
        for start in range(starts):
            usual = whole * (1 + start_noise * rng.standard_normal())
            each = usual * (1 + noise * rng.standard_normal(blocks))
            rows += [
                (RUNGS.index(rung), start, sweep, float(cost), STEP_S, SAMPLES, float(cost), 0.0)
                for sweep, cost in enumerate(np.maximum(each, usual / 100))
            ]
    conditions = LoopConditions(name="planted", **circumstances)
    facts = [
        (
            rung.name,
            1000 if rung in seconds else None,
            (busy or {}).get(rung),
            None,
            None if rung in seconds else (why_not or {}).get(rung, "not reached"),
        )
        for rung in RUNGS
    ]
    return Ladder(
        pl.DataFrame(rows, BLOCKS, orient="row"),
        pl.DataFrame(facts, FACTS, orient="row"),
        conditions,
        notes,
        took_s=10.0,
    )
