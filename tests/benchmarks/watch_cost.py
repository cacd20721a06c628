"""What watching costs a training that computes: its wall and CPU time, beside those of a bare one.

The step multiplies matrices for some milliseconds, the loader has a worker that keeps up. The loop
runs bare, bare again (the control), inside of `ss.instrumented` (everything on), and inside of a
`callbacks.Watcher` that records 50 steps of every 1,000, and has what it saw read by a process of
its own. One block is the same number of steps under each condition, in random order; figures are
ratios to the bare loop of the same block, from before the watching begins to the last step. What
the end of it takes (reading the logs) stands by itself, once a training, and so does the CPU time
of all children: the worker, and whoever reads what a window saw.

    python tests/benchmarks/watch_cost.py
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import in_turns, ratio
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.callbacks import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

BARE, CONTROL, ALL, WINDOWS = "bare", "bare, again", "everything on", "50 of 1,000 steps"
LIMITS = {ALL: 0.01, WINDOWS: 0.002}
"""Of the bare loop's time, at most."""
HEAD = ("watched", "wall", "95% interval", "", "CPU", "95% interval", "", "end", "children's CPU")


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        blocks=Option(12, 1, "of the loop"),
        steps=Option(1000, 30, "in a block"),
        step_ms=Option(6.0, 1.0, "that a step computes, about"),
    )
    torch.set_num_threads(1)
    step = _step(given.step_ms / 1e3)
    gc.collect()
    gc.freeze()
    whole = {
        BARE: nullcontext,
        CONTROL: nullcontext,
        ALL: ss.instrumented,
        WINDOWS: partial(Watcher, steps=50 if given.steps > 50 else 10, every=given.steps),
    }
    taken = in_turns(
        {name: partial(_figures, watch, step, given.steps) for name, watch in whole.items()},
        given.blocks,
    )
    arrays = {name: np.array(values) for name, values in taken.items()}
    rows = [_row(name, values, arrays[BARE]) for name, values in arrays.items()]
    per_step = 1e3 * np.median(arrays[BARE][:, 0]) / given.steps
    print(table(HEAD, rows))
    print(f"\n{given.blocks} blocks of {given.steps} steps of {per_step:.1f} ms; added to bare")


def _step(seconds: float) -> Callable[[Any], None]:
    """A step of a model that trains for about so long."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train(rows: int) -> None:
        optimizer.zero_grad()
        model(torch.ones(rows, 256)).sum().backward()
        optimizer.step()

    rows, took_s = 8, 0.0
    while took_s < seconds:
        rows *= 2
        tried = []
        for _ in range(5):
            began = time.perf_counter()
            train(rows)
            tried.append(time.perf_counter() - began)
        took_s = float(np.median(tried))
    return lambda _: train(rows)


def _figures(watch: Any, step: Callable[[Any], None], steps: int) -> tuple[float, ...]:
    """Wall and CPU seconds of the loop, seconds of its end, and CPU seconds of all children."""
    loader = DataLoader(range(4 * steps), 4, num_workers=1)
    children_s = _children_s()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with watch() as watcher:
        for batch in loader:
            step(batch)
            if isinstance(watcher, Watcher):
                watcher.step()
        cpu_s = time.process_time() - cpu_s
        ended_s = time.perf_counter()
    end_s = time.perf_counter() - ended_s
    del loader
    gc.collect()
    return ended_s - wall_s, cpu_s, end_s, _children_s() - children_s


def _children_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def _row(name: str, values: np.ndarray, bare: np.ndarray) -> tuple[str, ...]:
    cells: list[str] = []
    for column in (0, 1):
        if name == BARE:
            cells += [f"{np.median(values[:, column]):.2f} s", "", ""]
            continue
        found = ratio(values[:, column], bare[:, column])
        limit = 1 + LIMITS.get(name, np.inf)
        target = met(found.high <= limit) if name in LIMITS else ""
        if found.low <= limit < found.high:
            target = "not resolved"
        interval = f"[{found.low - 1:+.2%}, {found.high - 1:+.2%}]"
        cells += [f"{found.centre - 1:+.2%}", interval, target]
    return name, *cells, *(f"{np.median(values[:, column]):.2f} s" for column in (2, 3))


if __name__ == "__main__":
    main()
