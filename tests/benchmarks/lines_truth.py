"""Compare the share of a planted line with the recorder's share of its stage.

Each loader has one stage that costs most, and in it one line. `ss.lines` times the line in this
process, `ss.record` times the stage, in this process as well, so that both divide by the same. The
line is right if it is the hottest of all and its share within 10 points of the stage's.

    python tests/benchmarks/lines_truth.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchkit.command import Option, arguments, table
from support.planted_costs import SlowFetchDataset, busy, waiting
from torch.utils.data import DataLoader, default_collate

import stallscope as ss
from stallscope.demo import case_b_loader
from stallscope.machine import cores_available

if TYPE_CHECKING:
    import torch

BATCH = 8
WITHIN = 0.1
FETCH_S, SLOW_S, QUICK_S, COLLATE_S = 0.002, 0.006, 0.001, 0.008
HEAD = ("planted", "hottest line", "line", "with calls", "recorder", "difference", "")


class SlowLine:
    """A transform with one slow line."""

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """The value, a bit larger."""
        larger = value + 1
        busy(SLOW_S)
        return larger / 2


class SlowMethod(SlowLine):
    """The slow line is in a method that the transform calls, between quick ones."""

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """The value, a bit larger."""
        busy(QUICK_S / 4)
        return self.work(value)

    def work(self, value: torch.Tensor) -> torch.Tensor:
        """The slow one."""
        waiting(SLOW_S)
        return value + 1


def slow_collate(samples: list[Any]) -> Any:
    """The default, after one slow line."""
    busy(COLLATE_S * 8)
    return default_collate(samples)


PLANTED = {"SlowLine": SlowLine, "SlowMethod": SlowMethod.work, "collate": slow_collate}
"""For each stage the function that has the slow line."""


def loaders() -> dict[str, tuple[DataLoader[Any], str]]:
    """For each planted line its loader, and the stage that it is part of."""
    return {
        "in __call__, busy": (_loader(SlowLine()), "SlowLine"),
        "in a method, asleep": (_loader(SlowMethod()), "SlowMethod"),
        "in collate": (_loader(None, slow_collate), "collate"),
        "all of case B's RandomMask": (case_b_loader(num_workers=0), "RandomMask"),
    }


def _loader(transform: Any, collate: Any = None) -> DataLoader[Any]:
    dataset = SlowFetchDataset(4_000, FETCH_S, transform)
    return DataLoader(dataset, BATCH, collate_fn=collate)


def main() -> None:
    """Measure, and print the table."""
    options = arguments(
        __doc__,
        planted=Option(list(loaders()), ["in __call__, busy"], "these"),
        samples=Option(160, 16, "of each"),
    )
    samples = options.samples
    rows = [_row(name, *loaders()[name], samples) for name in options.planted]
    print(f"{samples} samples each, {cores_available():g} cores; within {WITHIN * 100:.0f} points?")
    print(table(HEAD, rows))


def _row(name: str, loader: DataLoader[Any], stage: str, samples: int) -> tuple[str, ...]:
    # By name, so that the line which calls `busy` is the last one, and not a line inside of it.
    functions = None if stage == "RandomMask" else PLANTED[stage]
    lines = ss.lines(loader, functions=functions, samples=samples)
    run = ss.record(loader, batches=max(samples // (loader.batch_size or 1), 4))
    mine = lines.table().filter(stage=stage)
    first = mine.row(0, named=True)
    truth = float(run.stages().filter(stage=stage)["busy_share"].sum())
    # A stage of several lines, as case B's, is the sum of what is their own.
    share = float(mine["own_share"].sum()) if stage == "RandomMask" else first["own_share"]
    off = share - truth
    return (
        name,
        f"{first['function']}:{first['line']}",
        f"{share:.1%}",
        f"{first['share']:.1%}",
        f"{truth:.1%}",
        f"{100 * off:+.1f}",
        "yes" if abs(off) <= WITHIN else "NO",
    )


if __name__ == "__main__":
    main()
