"""Check the shares of a flame against planted ones.

A sample spends 60% in one named function and 25% in another. Both are looked for merged
and in each worker, with forked and with spawned workers, by py-spy and by the in-process sampler.
"Found" is the share of the samples that have the function on their stack, of all that were taken:
what torch does itself for each of them is in the whole, and takes under 1% of it.

    python tests/benchmarks/flame_truth.py --seconds 20
"""

from __future__ import annotations

import polars as pl
from benchkit.command import Option, arguments, table
from support.busy_loaders import Planted
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import pyspy_calls
from stallscope.machine import usable_cores
from stallscope.verbs.flame.classify import table as shares

PLANTED = {"Sixty.sixty": 0.60, "TwentyFive.twenty_five": 0.25}
WIDEST = 0.05
WORKERS = 2
ALL = "all"
UNSEEN = {"total_share": 0.0, "total_share_low": 0.0, "total_share_high": 0.0, "samples": 0}
"""Row of a function without samples, as in a short smoke run beside other work."""
HEAD = (
    *("function", "start", "by", "worker", "planted", "found", "95% interval"),
    *("n", "windows", "holds it", "under ±5"),
)


def main() -> None:
    """Measure, and print the tables."""
    options = arguments(
        __doc__,
        seconds=Option(20.0, 0.4, "of each flame"),
        rate=Option(50.0, 50.0, "samples a second"),
        starts=Option(["fork", "spawn"], ["fork"], "of the workers"),
        sample_s=Option(0.2, 0.02, "of a sample, seconds"),
    )
    rows: list[tuple[str, ...]] = []
    found_py_spy = pyspy_calls.executable
    for start in options.starts:
        loader = DataLoader(
            Planted(1_000_000, sample_s=options.sample_s),
            4,
            num_workers=WORKERS,
            multiprocessing_context=start,
            prefetch_factor=2,
        )
        for by in ("py-spy", "in-process sampler"):
            pyspy_calls.executable = found_py_spy if by == "py-spy" else lambda: None
            flame = ss.flame(loader, seconds=options.seconds, rate_hz=options.rate)
            assert flame.circumstances.how == by, flame.notes
            for worker in (ALL, *range(WORKERS)):
                rows += _rows(flame, start, by, worker)
    print(table(HEAD, rows))
    print(
        f"\n{options.seconds:g} s at {options.rate:g} Hz, {WORKERS} workers, {usable_cores()} cores"
    )


def _rows(flame: ss.Flame, start: str, by: str, worker: int | str) -> list[tuple[str, ...]]:
    of_worker = pl.lit(value=True) if worker == ALL else pl.col("worker") == worker
    samples = flame.samples.filter(of_worker)
    measured, windows = shares(samples), samples.select("pid", "window").n_unique()
    rows = []
    for function, planted in PLANTED.items():
        row = next(measured.filter(_is(function)).iter_rows(named=True), UNSEEN)
        low, high = row["total_share_low"], row["total_share_high"]
        rows.append(
            (
                *(function.rpartition(".")[2], start, by, str(worker), f"{planted:.0%}"),
                *(f"{row['total_share']:.1%}", f"[{low:.1%}, {high:.1%}]", str(row["samples"])),
                str(windows),
                "yes" if low <= planted <= high else "NO",
                "yes" if (high - low) / 2 < WIDEST else "NO",
            )
        )
    return rows


def _is(function: str) -> pl.Expr:
    """Return the filter of a function, without the class that Python 3.11 tells."""
    return pl.col("function").str.ends_with(function.rpartition(".")[2])


if __name__ == "__main__":
    main()
