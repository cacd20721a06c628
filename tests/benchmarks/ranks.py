"""A training of many ranks: how long its folders take to read and to judge, and how much memory.

A loop is made up in virtual time (`support/virtual_loop.py`), saved once for a usual rank and once
for one whose loader is slow, and written into as many folders as there are ranks, each with its own
number. One rank is the slow one. Each size is read in a fresh process, whose peak memory
(`resource.getrusage`) is its own; the verdict must name the slow rank. The last line says how time
grows from the smallest to the largest size: up to their ratio it is linear.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import polars as pl
from benchkit.command import Option, arguments, met, table
from support.virtual_loop import a_loop
from tqdm import tqdm

TARGET_GB = 1.0
WAITING = {"fetch": 2.0, "RandomMask": 500.0, "collate": 1.0}
USUAL = {"fetch": 2.0, "RandomMask": 20.0, "collate": 1.0}


def main() -> None:
    """Write folders, read them size by size, and print the table; or read one."""
    given = arguments(
        __doc__,
        ranks=Option([64, 256, 1024], [4, 8], "ranks; several sizes"),
        steps=Option(1000, 40, "of each rank"),
        folder=Option("", "", "for the fresh processes: of the runs; none"),
    )
    if given.folder:
        print(json.dumps(_read(given.folder)))
        return
    figures = []
    with tempfile.TemporaryDirectory(prefix="benchmark-ranks-") as place:
        for many in tqdm(given.ranks, unit="size", leave=False):
            folder = Path(place, str(many))
            _write(folder, many, given.steps)
            command = [sys.executable, __file__, "--folder", str(folder)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures.append(json.loads(done.stdout))
    rows = [
        (
            f"{many:,}",
            f"{one['load_s']:.2f} s",
            f"{one['diagnose_s']:.2f} s",
            f"{one['gb']:.2f} GB",
            one["title"][:40],
        )
        for many, one in zip(given.ranks, figures, strict=True)
    ]
    print(table(("ranks", "load", "diagnose", "peak", "verdict"), rows))
    wholes = [one["load_s"] + one["diagnose_s"] for one in figures]
    times, size = wholes[-1] / wholes[0], given.ranks[-1] / given.ranks[0]
    is_named = all(one["title"].startswith("rank 3, which") for one in figures)
    print(f"\nthe slow rank is named: {met(is_named)}")
    print(f"peak below {TARGET_GB} GB: {met(figures[-1]['gb'] < TARGET_GB)}")
    print(f"{size:.0f} times the ranks take {times:.1f} times as long: {met(times <= size)}")


def _write(folder: Path, ranks: int, steps: int) -> None:
    """A folder a rank, the third of them slow."""
    whole = {"batches": steps, "workers": 2}
    slow = a_loop(WAITING, using={"forward": 10.0, "backward": 5.0}, **whole)
    usual = a_loop(USUAL, using={"forward": 10.0, "backward": 245.0}, **whole)
    kept = {True: slow.save(folder / "slow"), False: usual.save(folder / "usual")}
    for rank in range(ranks):
        mine = folder / f"rank{rank}"
        mine.mkdir()
        for file in kept[rank == 3].iterdir():
            if file.suffix == ".arrow" and "rank" in (frame := pl.read_ipc(file)).columns:
                number = pl.lit(rank, frame.schema["rank"]).alias("rank")
                frame.with_columns(number).write_ipc(mine / file.name)
            else:
                (mine / file.name).write_bytes(file.read_bytes())


def _read(folder: str) -> dict[str, float | str]:
    """What it takes to read the runs, and then to judge them."""
    import stallscope as ss

    began = perf_counter()
    run = ss.load(folder)
    loaded = perf_counter()
    title = ss.diagnose(run).verdict.title
    return {
        "load_s": loaded - began,
        "diagnose_s": perf_counter() - loaded,
        "gb": getrusage(RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "title": title,
    }


if __name__ == "__main__":
    main()
