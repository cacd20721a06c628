"""What a flame costs the loop that it looks into: throughput with it over throughput without.

A loop over a loader of workers that compute goes on without a pause. In every block it is timed
once as it is and once while py-spy samples all of its workers at the default rate, in random order;
before each, so many batches are used that whatever was prefetched meanwhile is gone. The loop is
the bottleneck's: its step takes nothing, so that what py-spy costs the workers cannot hide.

    python tests/benchmarks/flame_cost.py --blocks 12
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import in_turns, ratio
from support.busy_loaders import Planted
from torch.utils.data import DataLoader

from stallscope.flame.pyspy import How, Spy
from stallscope.machine import usable_cores

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

LEAST = 0.98
BATCH = 4
HEAD = ("workers", "with / without", "95% interval", "without, samples/s", "blocks", "")


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        blocks=Option(12, 1, "pairs"),
        seconds=Option(3.0, 0.2, "of each side"),
        workers=Option([1, 2], [1], "of each row"),
    )
    rows = [_row(workers, given) for workers in given.workers]
    print(table(HEAD, rows))
    how = How()
    print(
        f"\n{given.seconds:g} s a side, {how.rate_hz:g} Hz, {usable_cores()} cores; target: at "
        f"least {LEAST} of the throughput without"
    )


def _row(workers: int, given: Namespace) -> tuple[str, ...]:
    loader = DataLoader(Planted(10_000_000), BATCH, num_workers=workers)
    batches = iter(loader)
    pids = [(number, process.pid) for number, process in enumerate(batches._workers)]
    _drain(batches, 4 * workers)
    try:
        sides = {"without": _plain, "attached": _attached}
        rates = in_turns(
            {name: partial(side, batches, pids, given.seconds) for name, side in sides.items()},
            given.blocks,
            named=f"{workers} workers",
        )
    finally:
        batches._shutdown_workers()
    found = ratio(np.array(rates["attached"]), np.array(rates["without"]))
    return (
        str(workers),
        f"{found.centre:.3f}",
        found.interval(),
        f"{np.median(rates['without']):.1f}",
        str(given.blocks),
        met(found.centre >= LEAST),
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
