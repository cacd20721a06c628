"""Check that planted shares of a sample's time are found: as stages, as functions and as lines.

A sample spends 60% of its time in one transform and 25% in another. `ss.record`, `ss.flame` (by
py-spy and by the in-process sampler) and `ss.lines` are asked for both, with forked and with
spawned workers; `ss.lines` runs in this process.

    python tests/benchmarks/planted_shares.py
"""

import math
from typing import Any, NamedTuple

import polars as pl
from benchkit.command import Option, arguments, table
from support.busy_loaders import Planted
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import pyspy_calls
from stallscope.machine import usable_cores

PLANTED = {"Sixty": ("sixty", 0.60), "TwentyFive": ("twenty_five", 0.25)}
"""Method and share of each transform."""
WITHIN = 0.05
HEAD = ("planted in", "by", "workers", "planted", "found", "95% interval", "within ±5 points")


class Found(NamedTuple):
    """Share (0 to 1) of a transform, with the ends of its interval where the result has one."""

    share: float
    low: float = math.nan
    high: float = math.nan


def main() -> None:
    options = arguments(
        __doc__,
        seconds=Option(20.0, 0.4, "of each flame"),
        rate=Option(50.0, 50.0, "samples a second of a flame"),
        starts=Option(["fork", "spawn"], ["fork"], "of the workers"),
        sample_s=Option(0.02, 0.02, "of a sample, seconds"),
        batches=Option(50, 4, "of a recording"),
    )
    data = Planted(1_000_000, sample_s=options.sample_s)
    answers: list[tuple[str, str, dict[str, Found]]] = []
    for start in options.starts:
        loader = DataLoader(data, 4, num_workers=2, multiprocessing_context=start)
        answers.append(("ss.record", start, _stages(loader, options.batches)))
        answers += [
            (f"ss.flame, {by}", start, _functions(loader, by, options))
            for by in ("py-spy", "in-process sampler")
        ]
    answers.append(("ss.lines", "none", _lines(DataLoader(data, 4), 4 * options.batches)))
    rows = [
        (
            *(transform, by, start, f"{planted:.0%}", f"{answer.share:.1%}"),
            "-" if math.isnan(answer.low) else f"[{answer.low:.1%}, {answer.high:.1%}]",
            "yes" if abs(answer.share - planted) <= WITHIN else "NO",
        )
        for by, start, shares in answers
        for transform, (_, planted) in PLANTED.items()
        for answer in [shares[transform]]
    ]
    print(table(HEAD, rows))
    print(f"{usable_cores()} cores")


def _stages(loader: Any, batches: int) -> dict[str, Found]:
    stages = ss.record(loader, batches=batches, warmup=2).stages()
    return {name: Found(float(stages.filter(stage=name)["busy_share"].sum())) for name in PLANTED}


def _functions(loader: Any, by: str, options: Any) -> dict[str, Found]:
    executable = pyspy_calls.executable
    if by != "py-spy":
        pyspy_calls.executable = lambda: None
    try:
        flame = ss.flame(loader, seconds=options.seconds, rate_hz=options.rate)
    finally:
        pyspy_calls.executable = executable
    assert flame.circumstances.how == by, flame.notes
    return {
        # Without the class, which Python names from 3.11 on
        name: _found(flame.table().filter(pl.col("function").str.ends_with(method)), "total_share")
        for name, (method, _) in PLANTED.items()
    }


def _lines(loader: Any, samples: int) -> dict[str, Found]:
    lines = ss.lines(loader, samples=samples).table()
    hottest = lines.sort("share", descending=True)
    return {
        name: Found(
            next(iter(hottest.filter(pl.col("function").str.ends_with(method))["share"]), 0.0)
        )
        for name, (method, _) in PLANTED.items()
    }


def _found(rows: pl.DataFrame, name: str) -> Found:
    """Return the share in the first row; a short smoke run may have none."""
    first = next(rows.iter_rows(named=True), None)
    return Found(*(first[f"{name}{end}"] for end in ("", "_low", "_high"))) if first else Found(0)


if __name__ == "__main__":
    main()
