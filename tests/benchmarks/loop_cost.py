"""What watching the training loop adds to each of its steps, in µs, beside torch.profiler.

A loop over a DataLoader whose samples cost nothing: with two workers, where every batch is there
before it is asked for (the step sleeps a little), and with none. Its step does nothing else, or
trains a tiny model, so that backward pass and optimizer are marked, too. The loop runs bare, bare
again (the control), inside of `ss.instrumented`, and inside of `torch.profiler` with a
`record_function` around the step.

One block is the same number of steps under each condition, in random order, without the start of
the workers. The clocks are the CPU time of the thread of the loop, and the wall; of each, a block
gives the median step, which what else the machine does leaves alone, and of the CPU time also the
mean. What a condition adds is its figure minus that of the bare loop of the same block.

With `num_workers=0` the samples are made in this process, and what it costs to record them is part
of the figure: of so cheap ones only a few batches are, so it shows in the mean.

    python tests/benchmarks/loop_cost.py
"""

from __future__ import annotations

import gc
import itertools
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from benchkit import peers
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import Estimate, centre, in_turns
from torch.utils.data import DataLoader

import stallscope as ss

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[Any], None]
    Times = dict[str, list[tuple[float, ...]]]

TARGET_US = 50
BARE, CONTROL, OURS, PEER = "bare", "bare, again", "ss.instrumented", "torch.profiler"
UNTIMED = 30
"""Steps before the clock runs: the first batches of a process are always recorded."""
NAP_S = 0.001
"""In this time two workers make more than one batch."""
FIGURES = ("CPU", "CPU, mean", "wall")
HEAD = ("loop", "under", *(cell for figure in FIGURES for cell in (figure, "95% interval")), "")


@dataclass(frozen=True)
class Case:
    """A loop."""

    name: str
    workers: int
    step: Step
    """Uses a batch."""


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        blocks=Option(40, 1, "of each loop"),
        steps=Option(200, 20, "in a block"),
    )
    torch.set_num_threads(1)
    cases = _cases()
    gc.collect()
    gc.freeze()
    conditions = (BARE, CONTROL, OURS, PEER)
    times = {
        case.name: in_turns(
            {name: partial(_figures, case, name, given.steps) for name in conditions},
            given.blocks,
            named=case.name,
        )
        for case in cases
    }
    print(_report(times, given))


def _cases() -> list[Case]:
    train = _training()

    def nap_and_train(batch: Any) -> None:
        _nap(batch)
        train(batch)

    return [
        Case("2 workers", 2, _nap),
        Case("2 workers, trains", 2, nap_and_train),
        Case("no workers", 0, _nothing),
        Case("no workers, trains", 0, train),
    ]


def _nothing(_: Any) -> None:
    """The step of a loop that only takes batches."""


def _nap(_: Any) -> None:
    time.sleep(NAP_S)


def _training() -> Step:
    """A step of a model that is as small as can be."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(2, 4)

    def step(_: Any) -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


def _figures(case: Case, name: str, steps: int) -> tuple[float, ...]:
    """The steps of a loop under a condition: its `FIGURES`."""
    loader = DataLoader(
        range(2 * (UNTIMED + steps + 1)), 2, False, num_workers=case.workers, collate_fn=list
    )
    watching = {OURS: ss.instrumented, PEER: lambda _: peers.torch_profiler()}
    step = peers.labelled("step", case.step) if name == PEER else case.step
    with watching.get(name, nullcontext)(loader):
        figures = _loop_us(loader, step, steps)
    del loader
    gc.collect()
    return figures


def _loop_us(loader: DataLoader, step: Step, steps: int) -> tuple[float, ...]:
    """A step in microseconds: its `FIGURES`."""
    cpu, wall, batches = time.thread_time_ns, time.perf_counter_ns, iter(loader)
    for batch in itertools.islice(batches, UNTIMED):
        step(batch)
    moments = [(cpu(), wall())]
    for batch in itertools.islice(batches, steps):
        step(batch)
        moments.append((cpu(), wall()))
    cpu_us, wall_us = np.diff(np.array(moments), axis=0).T / 1e3
    return float(np.median(cpu_us)), float(np.mean(cpu_us)), float(np.median(wall_us))


def _report(times: dict[str, Times], given: Any) -> str:
    rows = [row for name, by_condition in times.items() for row in _rows(name, by_condition)]
    told = (
        f"µs a step, {given.blocks} blocks of {given.steps} steps; {BARE}: what it takes; others: "
        f"what they add to it; target: at most {TARGET_US} µs of CPU time"
    )
    return f"{table(HEAD, rows)}\n\n{told}"


def _rows(loop: str, times: Times) -> list[tuple[str, ...]]:
    arrays = {name: np.array(values) for name, values in times.items()}
    rows = []
    for name, values in arrays.items():
        taken = values if name == BARE else values - arrays[BARE]
        figures = [centre(column) for column in taken.T]
        sign = "" if name == BARE else "+"
        cells = [cell for figure in figures for cell in _numbers(figure, sign)]
        rows.append((loop, name, *cells, _target(figures[0]) if name == OURS else ""))
    return rows


def _numbers(figure: Estimate, sign: str) -> tuple[str, str]:
    return f"{figure.centre:{sign},.1f}", figure.interval(f"{sign},.1f")


def _target(added: Estimate) -> str:
    return met(added.high <= TARGET_US)


if __name__ == "__main__":
    main()
