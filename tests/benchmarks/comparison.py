"""Pairs of recorded runs: is a change found where one was planted, and none where none was?

Each pair is two real recordings of a loader with planted costs, one after the other, as somebody
would make them who compares Monday's training with Friday's. In half of the pairs the second run
has a cost of 1.5 times as long, or one worker less: then the measure that was changed must be
distinguishable and of the right sign. In the others nothing was changed, and nothing may be
distinguishable. What else runs on the machine is printed with each line.

It takes minutes; in pieces, each added to one file, of which all that there is by now is told:

    python tests/benchmarks/comparison.py --pairs 5 --first 6 --results comparison.jsonl
"""

from __future__ import annotations

import json
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
    "working": "workers/BusyOp_s",  # an op inside of it is a stage by itself
    "collate": "workers/collate_s",
    "step": "step_s",
    "workers": "samples_per_s",
}
"""What is changed, and the measure that must show it."""
UNCHANGED = "nothing"


def main() -> None:
    """Record the pairs, and print how many were told right."""
    given = arguments(
        __doc__,
        pairs=Option(20, 1, "with a change, and as many without"),
        first=Option(1, 1, "number of the first pair; each has costs of its own"),
        batches=Option(60, 6, "of each run"),
        budget=Option(12.0, 1.0, "of each run, seconds"),
        seed=Option(20_262, 0, "of the costs"),
        results=Option("", "", "file to add the results to; those in it are told, too"),
    )
    warnings.filterwarnings("ignore")
    rows = []
    for number in range(given.first, given.first + given.pairs):
        for changed in (True, False):
            rows.append(_pair(random.Random(f"{given.seed} {number} {changed}"), changed, given))
            print(*rows[-1], sep="  ", flush=True)
            if given.results:
                with Path(given.results).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if given.results:
        lines = Path(given.results).read_text(encoding="utf-8").splitlines()
        rows = [tuple(json.loads(line)) for line in lines]
    print(table(("changed", "seen", "told", "machine"), rows))
    for name, mine in (
        ("changes found", [told for what, _, told, _ in rows if what != UNCHANGED]),
        ("of none, none claimed", [told for what, _, told, _ in rows if what == UNCHANGED]),
    ):
        right = mine.count("right")
        print(f"{name}: {right} of {len(mine)} ({met(right >= 19 / 20 * len(mine))})")


def _pair(rng: random.Random, changed: bool, given: Any) -> tuple[str, str, str, str]:
    """Record two runs and compare them: what was changed, what was seen, whether that is right."""
    before = Costs(
        read_s=rng.uniform(0.002, 0.006),
        work_s=rng.uniform(0.001, 0.003),
        collate_s=rng.uniform(0.002, 0.008),
        step_s=rng.uniform(0.01, 0.04),
    )
    what = rng.choice(list(CHANGES)) if changed else UNCHANGED
    found = ss.compare(_run(before, given), _run(_after(before, what), given))
    told = found.table().filter("distinguishable")["measure"].to_list()
    if changed:
        row = found.of(CHANGES[what])
        good = CHANGES[what] in told and (row["change"] < 0) == (what == "workers")
        shown = f"{row['before']:.3g} to {row['after']:.3g}"
    else:
        good, shown = not told, ", ".join(told)
    noise = next((note for note in found.notes if note.startswith("other processes")), "quiet")
    return what, shown, "right" if good else "WRONG", noise[:60]


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
