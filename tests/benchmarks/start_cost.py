"""What recording adds to the start of workers, in ms an epoch, beside the bare loader.

A loader over samples that cost nothing, whose two workers are started anew for each epoch of four
batches, in a process that has imported torchvision. One block is some epochs under each condition,
in random order: bare, bare again (the control), and inside of `ss.instrumented`; its figure is the
median epoch after the first one.

    python tests/benchmarks/start_cost.py
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
import torchvision.transforms.v2
from benchkit.command import Option, arguments, table
from benchkit.pairing import centre, in_turns, ratio
from torch.utils.data import DataLoader

import stallscope as ss

WORKERS, BATCHES = 2, 4
CONDITIONS = {"bare": nullcontext, "bare, again": nullcontext, "ss.instrumented": ss.instrumented}
HEAD = ("under", "ms an epoch", "95% interval", "added, ms a worker", "95% interval", "times")


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__, blocks=Option(30, 1, "of each condition"), epochs=Option(6, 2, "in a block")
    )
    torch.set_num_threads(1)
    measures = {
        name: partial(_epoch_s, around, given.epochs) for name, around in CONDITIONS.items()
    }
    taken = {name: np.array(one) for name, one in in_turns(measures, given.blocks).items()}
    print(table(HEAD, [_row(name, epochs_s, taken["bare"]) for name, epochs_s in taken.items()]))
    print(
        f"{WORKERS} workers for {BATCHES} batches, torchvision {torchvision.__version__} imported"
    )


def _epoch_s(around, epochs):
    """The median epoch of some under a condition."""
    loader = DataLoader(range(8 * BATCHES), 8, num_workers=WORKERS)
    took_s = []
    with around():
        for _ in range(epochs):
            begin = time.perf_counter()
            for _ in loader:
                pass
            took_s.append(time.perf_counter() - begin)
    return float(np.median(took_s[1:]))


def _row(name, epochs_s, bare_s):
    whole, added = centre(1e3 * epochs_s), centre(1e3 * (epochs_s - bare_s) / WORKERS)
    times = ratio(epochs_s, bare_s)
    cells = (f"{whole.centre:.0f}", whole.interval(".0f"))
    if name == "bare":
        return name, *cells, "", "", ""
    added_ms = f"{added.centre:+.1f}", added.interval("+.1f")
    return name, *cells, *added_ms, f"{times.centre:.2f} {times.interval('.2f')}"


if __name__ == "__main__":
    main()
