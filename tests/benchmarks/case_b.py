"""Case B as it was published: what would make it faster, predicted and measured in the workers.

The five transforms over one JPEG, in the loader's own workers, each change started in turn with the
pipeline as it is. Named are the costliest op; the boolean dilation as a rewrite; the crop first;
colour and scale on the batch; another decoder; and all that gives the same data together. What is
left then is mostly decoding: its share is printed. Then 200 samples of the whole are compared, bit
for bit, with those of the loader as it is.

On a machine that others use, the wall clock of workers says little. So the last table compares the
CPU time of the same batches, made in this process in turn by each pipeline, in random order: the
ratio to the pipeline as it is, with its 95% interval.

    python tests/benchmarks/case_b.py --budget 180
"""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from benchkit.command import Option, arguments, ms, table
from benchkit.pairing import in_turns, ratio

import stallscope as ss
from stallscope.demo import FasterRandomMask, case_b_loader
from stallscope.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU_BATCH = 8
CPU_HEAD = ("change, same data", "CPU time of the original over its own", "95% interval")
HEAD = ("change", "data", "predicted", "measured", "95% interval", "speedup", "95% interval")


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        budget=Option(180.0, 2.5, "seconds"),
        workers=Option(min(4, usable_cores()), 1, "of the loader"),
        blocks=Option(40, 1, "paired batches"),
        samples=Option(200, 4, "that are compared bit for bit"),
    )
    loader = case_b_loader(num_workers=given.workers)
    orders = ss.orders(
        loader, alternatives={"RandomMask": FasterRandomMask()}, budget_s=given.budget
    )
    _print_ops(orders)
    print("\n" + table(HEAD, [_row(row) for row in orders.table().iter_rows(named=True)]))
    _print_floor(orders)
    for note in orders.notes:
        print(f"- {note}")
    same = orders.table().filter(pl.col("equivalence") == "identical", pl.col("kind") != "cache")
    whole = same.filter(pl.col("kind") == "together")["trial"].to_list() or [0]
    print(f"\nwith all changes together {_same(orders, whole[0], given.samples)}")
    print("\n" + table(CPU_HEAD, _cpu_rows(orders, same, given.blocks)))


def _print_ops(orders: Any) -> None:
    costs = orders.ops.filter(pl.col("position") >= 0).sort("cost_s", descending=True)
    whole = orders.rest.total_s + costs["cost_s"].sum()
    print(f"the costliest op: {costs['name'][0]}, {costs['cost_s'][0] / whole:.0%} of a sample")
    for name, cost in orders.ops.select("name", "cost_s").iter_rows():
        print(f"  {name:<14}{cost * 1e3:8.2f} ms  {cost / whole:4.0%}")
    print(f"  {'fetch':<14}{orders.rest.fetch_s * 1e3:8.2f} ms")
    print(f"  {'collate, send':<14}{orders.rest.batch_s * 1e3:8.2f} ms")


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["change"][:70],
        row["equivalence"],
        ms(row["predicted_s"]),
        ms(row["measured_s"]),
        f"{ms(row['measured_low_s'])} to {ms(row['measured_high_s'])}",
        _times(row["speedup"]),
        f"{_times(row['speedup_low'])} to {_times(row['speedup_high'])}",
    )


def _print_floor(orders: Any) -> None:
    """How much of what is left is plain decoding, as the pipeline opens images."""
    joined = orders.table().filter(
        (pl.col("kind") == "together") & (pl.col("equivalence") == "identical")
    )
    if not joined.height:
        print("\nno two changes that give the same data gain anything together")
        return
    best = joined.row(0, named=True)
    share = orders.rest.decode_s / best["predicted_s"]
    print(
        f"\nall that gives the same data together: {_times(best['speedup'])} measured, "
        f"{_times(best['predicted_speedup'])} predicted; PIL's decoding alone is "
        f"{share:.0%} of what it should then take"
    )
    near = orders.table().filter(
        (pl.col("kind") == "together") & (pl.col("equivalence") == "close")
    )
    more = f"{_times(near['predicted_speedup'][0])} predicted" if near.height else "nothing"
    print(f"with what is only close on top: {more}")


def _cpu_rows(orders: Any, same: pl.DataFrame, blocks: int) -> list[tuple[str, ...]]:
    """The CPU time of each pipeline that gives the same data, paired with that of the original."""
    plain = case_b_loader(num_workers=0, batch_size=CPU_BATCH)
    names = dict(same.select("trial", "change").iter_rows())
    loaders = {trial: orders.apply(plain, trial) if trial else plain for trial in names}
    torch.set_num_threads(1)
    for loader in loaders.values():  # which pays for what is done for the first time
        _cpu_s(loader, count())
    seeds = {trial: count(1) for trial in names}
    timed = {trial: partial(_cpu_s, loaders[trial], seeds[trial]) for trial in names}
    times = in_turns(timed, blocks)
    found = {trial: ratio(np.array(times[0]), np.array(times[trial])) for trial in names if trial}
    found = dict(sorted(found.items(), key=lambda one: -one[1].centre))
    return [
        (names[trial], f"{one.centre:.2f}×", one.interval(".2f")) for trial, one in found.items()
    ]


def _cpu_s(loader: Any, seeds: Iterator[int]) -> float:
    """CPU time of one batch; each block has a seed of its own, the same for all loaders."""
    torch.manual_seed(next(seeds))
    began = time.process_time()
    loader.collate_fn([loader.dataset[index] for index in range(CPU_BATCH)])
    return time.process_time() - began


def _same(orders: Any, trial: int, samples: int) -> str:
    """Whether a loader gives the same bits, over so many samples of a seed."""
    loader = case_b_loader(num_workers=0, batch_size=32, entries=samples)
    other = orders.apply(loader, trial)
    epochs = []
    for one in (loader, other):
        torch.manual_seed(0)
        epochs.append([image for images, _ in one for image in images])
    equal = sum(map(torch.equal, *epochs))
    return f"{equal} of {samples} samples are the same bits as those of the loader as it is"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}×"


if __name__ == "__main__":
    main()
