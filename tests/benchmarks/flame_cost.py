"""What a flame costs the loop that it looks into: throughput with it over throughput without.

A loop over a loader of workers that compute goes on without a pause. In every block it is timed
once as it is and once while py-spy samples all of its workers at the default rate, in random order;
before each, so many batches are used that whatever was prefetched meanwhile is gone. The loop is
the bottleneck's: its step takes nothing, so that what py-spy costs the workers cannot hide.

    python tests/benchmarks/flame_cost.py --blocks 12
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from flaming import Planted
from pairing import ratio, table
from torch.utils.data import DataLoader
from tqdm import tqdm

from stallscope.measure.machine import usable_cores
from stallscope.measure.pyspy import How, Spy

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST = 0.98
BATCH = 4
HEAD = ("workers", "with / without", "95% interval", "without, samples/s", "blocks", "")


def main() -> None:
    """Measure, and print the table."""
    given = _arguments()
    rows = [_row(workers, given) for workers in given.workers]
    print(table(HEAD, rows))
    how = How()
    print(
        f"\n{given.seconds:g} s a side, {how.rate_hz:g} Hz, {usable_cores()} cores; target: at "
        f"least {LEAST} of the throughput without"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=12, help="pairs (12)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each side (3)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of each row")
    return parser.parse_args()


def _row(workers: int, given: argparse.Namespace) -> tuple[str, ...]:
    loader = DataLoader(Planted(10_000_000), BATCH, num_workers=workers)
    batches = iter(loader)
    pids = [(number, process.pid) for number, process in enumerate(batches._workers)]
    without, attached = [], []
    _drain(batches, 4 * workers)
    try:
        for _ in tqdm(range(given.blocks), desc=f"{workers} workers", unit="block"):
            for side in random.sample([without, attached], 2):
                measure = _attached if side is attached else _plain
                side.append(measure(batches, pids, given.seconds))
    finally:
        batches._shutdown_workers()
    found = ratio(np.array(attached), np.array(without))
    return (
        str(workers),
        f"{found.centre:.3f}",
        f"[{found.low:.3f}, {found.high:.3f}]",
        f"{np.median(without):.1f}",
        str(given.blocks),
        "met" if found.centre >= LEAST else "MISSED",
    )


def _drain(batches: Iterator[Any], number: int) -> None:
    """Use up what was made while nobody took batches, and reach the steady state."""
    for _ in range(number):
        next(batches)


def _plain(batches: Iterator[Any], pids: list[tuple[int, int]], seconds: float) -> float:
    _drain(batches, 4 * len(pids))
    return _rate(batches, seconds, len(pids))


def _attached(batches: Iterator[Any], pids: list[tuple[int, int]], seconds: float) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-flame-") as folder,
        Spy(pids, How(seconds=3600), Path(folder)) as spy,
    ):
        while spy._began is None:  # until the dumps have worked and the recording has begun
            next(batches)
            assert not spy.is_over, spy.refused
        ready = time.perf_counter() + 0.3  # py-spy reads the symbols of the process first
        while time.perf_counter() < ready:
            next(batches)
        _drain(batches, 4 * len(pids))
        rate = _rate(batches, seconds, len(pids))
        spy.stop()
        assert all(seen.threads for seen in spy.read())
    return rate


def _rate(batches: Iterator[Any], seconds: float, block: int) -> float:
    """Samples a second, over whole blocks of a batch from each worker."""
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or number % block:
        next(batches)
        number += 1
    return number * BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
