"""Is a rung of the ladder as fast as the spans of a recording say it should be?

For loaders whose time mostly goes into one planted cost (fetch, transform, collate, sending), the
recorded spans predict each rung with workers by plain arithmetic (`predicted_rates`), and the
ladder measures it. The prediction is right if it lies inside the rung's 95% interval or within 10%
of its rate. A rung that is significantly slower than the one below it is marked.

    python tests/benchmarks/ladder_prediction.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from benchkit.command import Option, arguments, table
from support.planted_costs import BusyCollate, BusyOp, SlowFetchDataset
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.ladder.result import AS_IT_IS, FETCHED, TRANSFORMED, WARM
from stallscope.machine import cores_available
from stallscope.stages import BATCH as BATCH_STAGE
from stallscope.stages import SEND

if TYPE_CHECKING:
    from argparse import Namespace

    from stallscope.run.result import Run

BATCH = 8
WITHIN = 0.1
STEP_S = 0.001
FETCH_S, TRANSFORM_S, COLLATE_S = 0.002, 0.002, 0.016
HEAD = ("planted", "rung", "predicted", "measured", "95% interval", "ratio", "", "below the last?")


class LargeSamples(SlowFetchDataset):
    """Samples of 2 MB, so that a batch takes longest to collate and to send."""

    def load(self, index: int) -> torch.Tensor:
        """One sample of shape (3, 400, 400)."""
        return torch.full((3, 400, 400), float(index))


def loaders() -> dict[str, DataLoader[Any]]:
    """A loader for each planted cost, which is five times what it is in the others."""
    return {
        "fetch": _loader(SlowFetchDataset(4_000, 5 * FETCH_S, BusyOp(TRANSFORM_S)), COLLATE_S),
        "transform": _loader(SlowFetchDataset(4_000, FETCH_S, BusyOp(5 * TRANSFORM_S)), COLLATE_S),
        "collate": _loader(SlowFetchDataset(4_000, FETCH_S, BusyOp(TRANSFORM_S)), 5 * COLLATE_S),
        "sending": _loader(LargeSamples(4_000, FETCH_S, BusyOp(TRANSFORM_S)), COLLATE_S),
    }


def _loader(dataset: SlowFetchDataset, collate_s: float) -> DataLoader[Any]:
    collate = BusyCollate(collate_s)
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    return DataLoader(dataset, BATCH, collate_fn=collate, **settings)


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        planted=Option(list(loaders()), ["fetch"], "costs"),
        budget=Option(60.0, 2.0, "of each ladder, seconds"),
        batches=Option(60, 5, "that are recorded"),
    )
    torch.set_num_threads(1)
    rows = [row for name in given.planted for row in _rows(name, given)]
    right = sum(row[6] == "right" for row in rows)
    slower = sum(row[7] == "YES" for row in rows)
    print(table(HEAD, rows))
    print(f"\n{right} of {len(rows)} predictions right; {slower} rungs below the one before them")


def _rows(name: str, given: Namespace) -> list[tuple[str, ...]]:
    loader, step = loaders()[name], ss.simulated_step(STEP_S)
    run = ss.record(loader, step, batches=given.batches)
    ladder = ss.ladder(loader, step, budget_s=given.budget)
    predicted = predicted_rates(run, cores_available(), BATCH)
    slower = {
        gain["rung"]
        for gain in ladder.gains().iter_rows(named=True)
        if gain["distinguishable"] and gain["factor"] < 1
    }
    return [
        (name, *_row(row, predicted[row["rung"]], is_slower=row["rung"] in slower))
        for row in ladder.table().iter_rows(named=True)
        if row["rung"] in predicted and row["samples_per_s"]
    ]


def _row(row: dict[str, Any], predicted: float, *, is_slower: bool) -> tuple[str, ...]:
    rate, low, high = (row[f"samples_per_s{end}"] for end in ("", "_low", "_high"))
    if low is None:
        return (row["rung"], f"{predicted:,.0f}", f"{rate:,.0f}", "too few laps", "", "", "")
    ratio = predicted / rate
    right = low <= predicted <= high or abs(ratio - 1) <= WITHIN
    return (
        row["rung"],
        f"{predicted:,.0f}",
        f"{rate:,.0f}",
        f"[{low:,.0f}, {high:,.0f}]",
        f"{ratio:.2f}",
        "right" if right else "WRONG",
        "YES" if is_slower else "no",
    )


# --- what the spans of a recording predict --------------------------------------------------------

_REMOVED = {
    AS_IT_IS.name: (),
    WARM.name: (),
    FETCHED.name: ("fetch", "decode", "other"),
    TRANSFORMED.name: ("fetch", "decode", "other", "transform"),
}
"""Kinds of stages that a rung with workers does without."""

_QUICK = 0.1
"""Quantile of what a thread beside the workers' own takes: most of them had to wait for a core."""


def predicted_rates(run: Run, cores: float, samples_per_batch: float) -> dict[str, float]:
    """Samples a second of each rung with workers.

    What is left of a batch's work is shared by the workers, and its part on a CPU also by the
    cores. The loop takes one batch after the other. The slowest of the three decides.

    Args:
        run: the loader as it is, recorded with the same step.
        cores: that its processes may use.
        samples_per_batch: on average.
    """
    workers = max(run.settings.num_workers, 1)
    batches = max(run.batches.filter("steady").height, 1)
    send_s, receive_s, use_s = _send_s(run), _receive_s(run), _use_s(run)
    rates = {}
    for rung, removed in _REMOVED.items():
        whole_s, cpu_s = (sum_s / batches for sum_s in _left_s(run, removed))
        slowest_s = max(
            (whole_s + send_s) / workers,  # a worker's threads share Python's lock
            (cpu_s + send_s + receive_s) / cores,
            receive_s + use_s,
        )
        rates[rung] = samples_per_batch / slowest_s
    return rates


def _left_s(run: Run, removed: tuple[str, ...]) -> tuple[float, float]:
    """What the workers do for all batches without the removed kinds, and that on a CPU."""
    works = run.stages().filter(pl.col("busy_share").is_not_null())
    is_kept = ~pl.col("kind").cast(pl.String).is_in(removed) | (pl.col("stage") == BATCH_STAGE.name)
    on_cpu = (pl.col("busy_s") * pl.col("cpu_share").fill_null(1.0)).sum()
    left = works.filter(is_kept).select(pl.col("busy_s").sum(), cpu_s=on_cpu)
    whole_s, cpu_s = left.row(0)
    return float(whole_s), float(cpu_s)


def _send_s(run: Run) -> float:
    """What pickling and writing a batch takes."""
    sending = run.side_spans.filter(pl.col("stage") == SEND.name)
    return _quick((sending["end_ns"] - sending["start_ns"]) / 1e9)


def _receive_s(run: Run) -> float:
    """What receiving a batch takes that is there: the shortest waits, or a part of the others."""
    unpickling = run.parts().filter(pl.col("part") == "unpickle")["exposed_s"]
    return min(_quick(run.steps()["wait_s"]), _quick(unpickling) or float("inf"))


def _use_s(run: Run) -> float:
    """What the loop does with a batch."""
    return _quick(run.steps().select(pl.sum_horizontal("h2d_s", "step_s", "other_s")).to_series())


def _quick(taken_s: pl.Series) -> float:
    return float(taken_s.quantile(_QUICK) or 0.0)


if __name__ == "__main__":
    main()
