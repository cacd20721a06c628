"""Is a rung of the ladder as fast as the spans of a recording say it should be?

For loaders whose time mostly goes into one planted cost (fetch, transform, collate, sending), the
recorded spans predict each rung with workers by plain arithmetic (`analyze/prediction.py`), and the
ladder measures it. The prediction is right if it lies inside the rung's 95% interval or within 10%
of its rate. A rung that is significantly slower than the one below it is marked.

    python tests/benchmarks/ladder_prediction.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from pairing import table
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.analyze.prediction import predicted_rates
from stallscope.demo import BusyCollate, BusyOp, SlowFetchDataset
from stallscope.measure.cgroup import cores_available

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=60.0, help="of each ladder, seconds (60)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name, loader in loaders().items() for row in _rows(name, loader, given.budget)]
    right = sum(row[6] == "right" for row in rows)
    slower = sum(row[7] == "YES" for row in rows)
    print(table(HEAD, rows))
    print(f"\n{right} of {len(rows)} predictions right; {slower} rungs below the one before them")


def _rows(name: str, loader: DataLoader[Any], budget_s: float) -> list[tuple[str, ...]]:
    step = ss.simulated_step(STEP_S)
    run = ss.record(loader, step, batches=60)
    ladder = ss.ladder(loader, step, budget_s=budget_s)
    predicted = predicted_rates(run, cores_available(), BATCH)
    slower = {
        gain["rung"]
        for gain in ladder.gains().iter_rows(named=True)
        if gain["distinguishable"] and gain["factor"] < 1
    }
    return [
        (name, *_row(row, predicted[row["rung"]], is_slower=row["rung"] in slower))
        for row in ladder.table().iter_rows(named=True)
        if row["rung"] in predicted
    ]


def _row(row: dict[str, Any], predicted: float, *, is_slower: bool) -> tuple[str, ...]:
    rate, low, high = (row[f"samples_per_s{end}"] for end in ("", "_low", "_high"))
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


if __name__ == "__main__":
    main()
