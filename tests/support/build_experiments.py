"""Experiments with planted laps, waits and copies."""

from typing import Any

import polars as pl

from stallscope.verbs.experiments.changes import CHANGES
from stallscope.verbs.experiments.result import (
    AS_IT_IS,
    COPY_TIMES,
    PAIRS,
    TRIALS,
    WAITS,
    Experiments,
    ExperimentsConditions,
)

NEEDS_CUDA = "it needs CUDA"
GAINS = {
    "bfloat16 autocast": (1.6, 0.004),
    "channels_last": (1.01, 2e-6),
    "fused optimizer": (0.9, 0.0),
}
"""Speedup, and the difference of the losses."""
BATCH_BYTES = 38_000_000
COPIES = {
    "from pageable memory": (BATCH_BYTES, 0.0064, 0.0064),
    "from pinned memory": (BATCH_BYTES, 0.0016, 0.0016),
    "pinned, non_blocking=True": (BATCH_BYTES, 0.0016, 0.00002),
}


def some_experiments(
    gains: dict[str, tuple[float, float]] | None = None,
    *,
    step_s: float | None = 0.05,
    on_device: bool = True,
    pairs: int = 8,
    notes: tuple[str, ...] = (),
    **circumstances: Any,
) -> Experiments:
    """Make experiments on a step; a gain is its speedup and the loss's difference."""
    gains = GAINS if gains is None else gains
    trials = [(AS_IT_IS, "", 0.0, None)]
    laps = []
    for change in CHANGES:
        factor, difference = gains.get(change.name, (None, None))
        trials.append((change.name, change.code, difference, None if factor else NEEDS_CUDA))
        for number in range(pairs if factor else 0):
            before_s = step_s * (1 + 0.02 * (number % 3 - 1))
            laps.append((change.name, before_s, before_s / factor * (1 + 0.01 * (number % 5 - 2))))
    waits = [
        (".item()", "train_step", "/home/me/train.py", 41, "total += loss.item()", 1.0, 0.031),
        ("a boolean mask", "Net.forward", "/home/me/net.py", 12, "x = x[mask]", 2.0, 0.004),
    ]
    copies = [
        (kind, size, copy_s * (1 + 0.01 * (number % 3)), host_s)
        for number in range(8)
        for kind, (size, copy_s, host_s) in COPIES.items()
    ]
    about = {"step_s": step_s, "loss": 2.31, "loss_steps": 20, "name": "DataLoader over Photos"}
    if on_device:
        about |= {"kernels_per_step": 180.0, "kernel_s": 2e-5, "gap_s": 1e-5}
        about |= {"device": "NVIDIA H200", "device_busy_share": 0.37}
    return Experiments(
        pl.DataFrame(trials, TRIALS, orient="row"),
        pl.DataFrame(laps, PAIRS, orient="row"),
        pl.DataFrame(waits if step_s else [], WAITS, orient="row"),
        pl.DataFrame(copies if on_device else [], COPY_TIMES, orient="row"),
        ExperimentsConditions(**about | circumstances),
        notes,
    )
