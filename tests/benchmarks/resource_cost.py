"""What sampling the resources costs, as a share of one core, beside sampling them with psutil.

A process with two workers that compute, as a recording has, is sampled for a few seconds under
each of two samplers at the same rate, in random order: the one of the kit, and the one that a first
attempt would be: every 0.1 s psutil is asked for cores, memory, disks, network, /dev/shm, this
process and its children. The figure is the CPU time of the sampling thread, of the thread's own
clock, by the wall; the kit's own account of it stands beside it. Blocks are paired, and the
interval is that of the median over the blocks.

The kit slows down rather than cost more than half a per cent for long; how many samples a second
came of it is in the last column.

    python tests/benchmarks/resource_cost.py
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import centre, in_turns

from stallscope.hooks.loop_log import LogPlace
from stallscope.run.resource_sampler import EVERY_NS, Sampler
from stallscope.stages import SAMPLER

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    Figures = tuple[float, float]
    """Share of one core, samples a second."""

TARGET_SHARE = 0.01
WORKERS = 2
OURS, PEER = "stallscope", "psutil"
HEAD = ("sampler", "of one core", "95% interval", "samples a second", "")


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        blocks=Option(8, 1, "of each sampler"),
        seconds=Option(3.0, 0.4, "of a block"),
    )
    samplers = {OURS: partial(_ours, given.seconds), PEER: partial(_psutil, given.seconds)}
    with _workers():
        figures = in_turns(samplers, given.blocks)
    print(_report(figures, given))


@contextmanager
def _workers() -> Iterator[None]:
    """Processes that compute most of the time, and end with the block."""
    context = get_context("fork")
    workers = [context.Process(target=_work, daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work() -> None:
    while True:
        sum(range(100_000))
        time.sleep(0.003)


def _ours(seconds: float) -> Figures:
    """As the kit samples, with the workers known by the names of their logs."""
    with tempfile.TemporaryDirectory(prefix="benchmark-resources-") as folder:
        for number, child in enumerate(psutil.Process().children()):
            Path(folder, f"{child.pid}-{number}-1.events").touch()
        place = LogPlace(Path(folder), 0)
        with Sampler(place):
            time.sleep(seconds)
        lines = place.resources().read_text(encoding="utf-8").splitlines()
    samples = [entry for entry in map(json.loads, lines) if "read" in entry]
    # The last sample is one of the main thread's; the first one is the start's
    first, last = samples[0], samples[-1]
    length_s = (last["time_ns"] - first["time_ns"]) / 1e9
    spent_s = last["read"][SAMPLER][""] - first["read"][SAMPLER][""]
    return spent_s / length_s, (len(samples) - 1) / length_s


def _psutil(seconds: float) -> Figures:
    """What one would write first."""
    end, spent, samples = threading.Event(), [0.0], [0]
    me = psutil.Process()

    def run() -> None:
        with open(os.devnull, "w", encoding="utf-8") as file:  # noqa: PTH123 - as one would
            while not end.wait(EVERY_NS / 1e9):
                file.write(json.dumps(_asked(me)))
                samples[0] += 1
        spent[0] = time.thread_time()

    thread = threading.Thread(target=run)
    began = time.perf_counter()
    thread.start()
    time.sleep(seconds)
    end.set()
    thread.join()
    length_s = time.perf_counter() - began
    return spent[0] / length_s, samples[0] / length_s


def _asked(me: psutil.Process) -> list[object]:
    return [
        time.perf_counter_ns(),
        psutil.cpu_percent(percpu=True),
        psutil.virtual_memory(),
        psutil.disk_io_counters(perdisk=True),
        psutil.net_io_counters(pernic=True),
        psutil.disk_usage("/dev/shm"),
        [process.cpu_times() for process in (me, *me.children(recursive=True))],
    ]


def _report(figures: dict[str, list[Figures]], given: Namespace) -> str:
    rows = [_row(name, np.array(values)) for name, values in figures.items()]
    told = (
        f"{given.blocks} blocks of {given.seconds:g} s, {WORKERS} workers, "
        f"{os.cpu_count()} cores, {len(psutil.pids())} processes on the machine; target: at most "
        f"{TARGET_SHARE:.0%} of one core"
    )
    return f"{table(HEAD, rows)}\n\n{told}"


def _row(name: str, values: np.ndarray) -> tuple[str, ...]:
    found = centre(values[:, 0])
    samples = f"{np.median(values[:, 1]):.1f}"
    is_met = met(found.high <= TARGET_SHARE) if name == OURS else ""
    return name, f"{found.centre:.2%}", found.interval(".2%"), samples, is_met


if __name__ == "__main__":
    main()
