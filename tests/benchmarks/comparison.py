"""Pairs of recorded runs: is a change found where one was planted, and none where none was?

Each pair is two real recordings of a loader with planted costs, one after the other, as somebody
would make them who compares Monday's training with Friday's. In half of the pairs the second run
has a cost of 1.5 times as long, or one worker less: then the measure that was changed must be
distinguishable and of the right sign. In the others nothing was changed, and nothing may be
distinguishable. What else runs on the machine is printed with each line.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchkit.command import Option, arguments, met, table
from support.planted_costs import BusyCollate, BusyOp, busy, waiting
from torch.utils.data import DataLoader, Dataset

import stallscope as ss


@dataclass(frozen=True)
class Costs:
    """Of a loop, seconds."""

    read_s: float
    work_s: float
    collate_s: float
    step_s: float
    workers: int = 2


class Planted(Dataset[Any]):
    """Waits as for a disk, then computes, once a sample."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.transform = BusyOp(costs.work_s)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        with ss.stage("reading"):
            waiting(self.costs.read_s)
        with ss.stage("working"):
            self.transform(index)
        return torch.full((3, 32, 32), float(index))


CHANGES = {
    "reading": "workers/reading_s",
    "working": "workers/working_s",
    "collate": "workers/collate_s",
    "step": "step_s",
    "workers": "samples_per_s",
}
"""What is changed, and the measure that must show it."""


def main() -> None:
    """Record the pairs, and print how many were told right."""
    given = arguments(
        __doc__,
        pairs=Option(20, 1, "with a change, and as many without"),
        batches=Option(60, 6, "of each run"),
        budget=Option(12.0, 1.0, "of each run, seconds"),
        seed=Option(20_262, 0, "of the costs"),
    )
    warnings.filterwarnings("ignore")
    rng, rows = random.Random(given.seed), []
    right = {True: 0, False: 0}
    for number in range(2 * given.pairs):
        changed = not number % 2
        before = Costs(
            read_s=rng.uniform(0.002, 0.006),
            work_s=rng.uniform(0.001, 0.003),
            collate_s=rng.uniform(0.002, 0.008),
            step_s=rng.uniform(0.01, 0.04),
        )
        what = rng.choice(list(CHANGES)) if changed else "nothing"
        found = ss.compare(_run(before, given), _run(_after(before, what), given))
        told = found.table().filter("distinguishable")["measure"].to_list()
        if changed:
            good = CHANGES[what] in told
            row = found.of(CHANGES[what])
            good = good and (row["change"] < 0) == (what == "workers")
            shown = f"{row['before']:.3g} to {row['after']:.3g}"
        else:
            good, shown = not told, ", ".join(told)
        right[changed] += good
        noise = next((note for note in found.notes if note.startswith("other processes")), "quiet")
        rows.append((what, shown, "right" if good else "WRONG", noise[:60]))
        print(*rows[-1], sep="  ", flush=True)
    print(table(("changed", "seen", "told", "machine"), rows))
    for changed, name in ((True, "changes found"), (False, "of none, none claimed")):
        target = 19 / 20 * given.pairs
        print(f"{name}: {right[changed]} of {given.pairs} ({met(right[changed] >= target)})")


def _after(costs: Costs, what: str) -> Costs:
    longer = {"reading": "read_s", "working": "work_s", "collate": "collate_s", "step": "step_s"}
    if what in longer:
        return replace(costs, **{longer[what]: 1.5 * getattr(costs, longer[what])})
    return replace(costs, workers=1) if what == "workers" else costs


def _run(costs: Costs, given: Any) -> Path:
    """Record one, and keep it as a user would: in a folder."""
    loader = DataLoader(
        Planted(costs), 8, num_workers=costs.workers, collate_fn=BusyCollate(costs.collate_s)
    )
    run = ss.record(
        loader, lambda _: busy(costs.step_s), batches=given.batches, budget_s=given.budget
    )
    return run.save(Path(tempfile.mkdtemp(dir=FOLDER)) / "run")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="benchmark-comparison-") as name:
        FOLDER = Path(name)
        main()
