"""Training loops that stand still for a planted reason, run for real: what is found is known.

What is planted waits (as for a disk) instead of computing, where it can, so that few cores and a
machine with other things to do change little. What is not planted costs next to nothing: batches
are lists of numbers, which are sent and received at once. Samples take some milliseconds each, for
of quicker ones the recorder leaves batches out.

    pytest -m thorough tests/model/test_real_loops.py
"""

from __future__ import annotations

import gc
import inspect
import random
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)

import stallscope as ss
from stallscope.model.loop_time import loop_breakdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.run.result import Run

HARDLY = 0.1
"""A loop that is not planted to stand still does so for less than this share of its time."""
UNATTRIBUTED = 0.05
"""What nothing explains is less than this share of the stalls."""
DIFFERENCE_S = 1e-6
"""The parts of a stall add up to it."""
MINOR = 0.1
"""What is claimed beside the pattern that was planted explains less than this share."""
HAPPENS = ("irregular", "slow_samples")
"""On a machine that others use too, a sample may be slow that was not planted so."""


# --- what is found --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plant:
    """A loop, and what must be found in it."""

    name: str
    run: Callable[[], Run]
    longest: tuple[str, ...] = ()
    """The longest part of the stalls, one of these; empty: the loop hardly stands still."""
    use: tuple[str, ...] = ()
    """The longest part of what a loop that hardly stands still does, one of these."""
    pattern: tuple[str, ...] = ()
    """The pattern that explains most, one of these; empty: there is none."""
    period: int | None = None
    """Its period; None: nothing is said about it."""
    says: str = ""
    """What its sentence says, as a regular expression."""
    may: tuple[str, ...] = ()
    """Patterns that may be found beside it; `HAPPENS` always may."""
    starts: bool = False
    """It stands still where workers start, which is not part of the steady state."""


@dataclass(frozen=True)
class Found:
    """What was found in a loop."""

    stalled_share: float
    """Share of its time in which it stalls."""
    parts: pl.DataFrame
    """Columns of `model.attribution.EXPOSED`."""
    difference_s: float
    """By how much the parts of a stall miss it, at most."""
    use: str
    """The longest part of what it does with its batches."""
    patterns: pl.DataFrame
    """Columns of `model.patterns.PATTERNS`."""

    @property
    def stands(self) -> bool:
        """Whether it stalls for more than a little of its time."""
        return self.stalled_share >= HARDLY

    @property
    def unattributed_share(self) -> float:
        """Share of the stalls that nothing explains."""
        return float(self.parts.filter(pl.col("kind").is_null())["share"].sum())


def find(plant: Plant) -> Found:
    """Run a loop and look at it as a user does."""
    run = plant.run()
    if plant.starts:
        after = pl.col("step") >= run.settings.warmup
        run = replace(run, all_steps=run.all_steps.with_columns(steady=after))
    stalls, step = run.stalls(), ["rank", "step"]
    sums = run.parts().group_by(step).agg(pl.col("exposed_s").sum())
    differences_s = stalls.join(sums, on=step, how="left").select(
        (pl.col("stall_s") - pl.col("exposed_s").fill_null(0.0)).abs()
    )
    return Found(
        stalled_share=loop_breakdown(run.steps(), stalls).stall_share,
        parts=run.exposed(),
        difference_s=differences_s.to_series().max() or 0.0,
        use=_use(run),
        patterns=run.patterns(),
    )


def _use(run: Run) -> str:
    took = run.side_spans.filter(pl.col("worker").is_null()).group_by("stage")
    took = took.agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    return took.sort("end_ns")["stage"].cast(pl.String)[-1]


def wrong(plant: Plant, found: Found) -> list[str]:
    """What was found that is not so, in words."""
    return [*wrong_parts(plant, found), *_wrong_patterns(plant, found.patterns)]


def wrong_parts(plant: Plant, found: Found) -> Iterator[str]:
    """What is not so of the parts of the stalls; when they come is not asked."""
    if found.difference_s > DIFFERENCE_S:
        yield f"the parts miss a stall by {found.difference_s} s"
    if not plant.longest:
        if found.stands:
            yield f"stands still {found.stalled_share:.0%} of the time"
        if found.use not in plant.use:
            yield f"is busy with {found.use}"
        return
    if not found.stands:
        yield f"stands still only {found.stalled_share:.0%} of the time"
    longest = found.parts["part"][0] if found.parts.height else None
    if longest not in plant.longest:
        yield f"the longest part is {longest}"
    if found.unattributed_share >= UNATTRIBUTED:
        yield f"{found.unattributed_share:.1%} is unattributed"


def _wrong_patterns(plant: Plant, patterns: pl.DataFrame) -> Iterator[str]:
    expected = patterns.filter(pl.col("pattern").is_in(plant.pattern))
    most = patterns["pattern"].to_list()[:1]
    if plant.pattern and not {*most} & {*plant.pattern}:
        yield f"what explains most is {', '.join(most) or 'nothing'}"
    for row in expected.head(1).iter_rows(named=True):
        if plant.period not in (None, row["period"]):
            yield f"the period is {row['period']}"
        if not re.search(plant.says, row["title"]):
            yield f"it says: {row['title']}"
    much = patterns.filter(pl.col("share") >= (MINOR if plant.pattern else 0.0))
    for code in {*much["pattern"]} - {*plant.pattern, *plant.may, *HAPPENS}:
        yield f"{code} is claimed, too"


# --- what loops are made of -----------------------------------------------------------------------


class Cost:
    """What something costs, always the same."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def of(self, index: int) -> float:
        """Of this sample."""
        return self.seconds


class SomeSlow(Cost):
    """Some samples cost far more than the others."""

    def __init__(self, seconds: float, slow_s: float, slow: tuple[int, ...]) -> None:
        super().__init__(seconds)
        self.slow_s = slow_s
        self.slow = slow

    def of(self, index: int) -> float:
        return self.slow_s if index in self.slow else self.seconds


class SlowWorker(Cost):
    """One worker takes far longer than the others, for whatever it makes."""

    def of(self, index: int) -> float:
        return self.seconds * (6 if get_worker_info().id == 1 else 1)


class HeavyTail(Cost):
    """Most samples take a little, some far more: a lognormal distribution."""

    def of(self, index: int) -> float:
        return min(self.seconds * random.Random(index).lognormvariate(0, 1.2), 0.15)


class Numbers(Dataset):
    """The numbers from 0 on, each of which is read and transformed."""

    def __init__(self, entries: int, cost: Cost, transform: Any = None) -> None:
        self.entries = entries
        self.cost = cost
        self.transform = transform

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> int:
        number = self.load(index)
        return self.transform(number) if self.transform else number

    def load(self, index: int) -> int:
        """The number, after what it costs."""
        time.sleep(self.cost.of(index))
        return index


class Files(Numbers):
    """The same, each from a file of its own."""

    def __init__(self, folder: str, entries: int, cost: Cost) -> None:
        super().__init__(entries, cost)
        self.files = [Path(folder, f"{index:03}.txt") for index in range(entries)]
        for file in self.files:
            file.write_text(file.stem)

    def load(self, index: int) -> int:
        super().load(index)
        return int(self.files[index].read_text())


class Shards(IterableDataset):
    """Numbers out of files with many of them; it takes long to open one."""

    def __init__(self, folder: str, shards: int, entries: int) -> None:
        self.paths = [str(Path(folder, f"shard-{number:02}.npz")) for number in range(shards)]
        for path in self.paths:
            np.savez(path, numbers=np.arange(entries))

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        for path in self.paths[worker.id :: worker.num_workers]:
            for number in self.opened(path):
                time.sleep(0.004)
                yield number

    def opened(self, path: str) -> list[int]:
        """What is in a shard."""
        time.sleep(0.15)
        with np.load(path) as shard:
            return shard["numbers"].tolist()


class LargeTensors(Dataset):
    """Tensors that are there at once (nothing is written into them) and take long to send."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.empty(6 << 20)  # 24 MiB


class Augment:
    """A transform that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, number: int) -> int:
        time.sleep(self.seconds)
        return number


class Collects:
    """A transform that keeps many objects, and has Python look through them now and then."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.objects: list[Any] = []

    def __call__(self, number: int) -> int:
        if not self.objects:
            self.objects = many_objects()
        if number % self.every == self.every - 1:
            gc.collect()
        return number


def many_objects() -> list[Any]:
    """So many that it takes long to look through them for garbage."""
    return [[] for _ in range(600_000)]


class SlowCollate:
    """A collate function that takes its time."""

    def __call__(self, numbers: list[int]) -> list[int]:
        time.sleep(0.025)
        return numbers


class SlowSampler(SequentialSampler):
    """A sampler that takes its time for every fourth sample, so once a batch."""

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            if index % 4 == 0:
                time.sleep(0.01)
            yield index


def loader(data: Any, workers: int = 2, batch: int = 4, **named: Any) -> DataLoader:
    """A loader whose batches are lists."""
    return DataLoader(data, batch, num_workers=workers, **{"collate_fn": list, **named})


@dataclass(frozen=True)
class Use:
    """What a loop does with a batch."""

    seconds: float
    """What every step takes."""
    every: int = 0
    """Every so manyth step it does something else, too; 0: never."""
    also: Callable[[], None] = gc.collect
    """That."""

    def __call__(self, number: int) -> None:
        """Use the batch of this step."""
        time.sleep(self.seconds)
        if self.every and number % self.every == self.every // 2:
            self.also()


def recorded(measured: DataLoader, seconds: float, batches: int) -> Run:
    """What `ss.record` gives."""
    return ss.record(measured, lambda _: time.sleep(seconds), batches=batches)


def watched(measured: DataLoader, use: Use, epochs: int = 1, until: int | None = None) -> Run:
    """What `ss.instrumented` gives for a loop as people write it.

    Args:
        measured: the loader.
        use: what is done with each batch.
        epochs: how many there are.
        until: break each of them off after so many batches.
    """
    number = 0
    with ss.instrumented(measured) as watch:
        for _ in range(epochs):
            for place, _batch in enumerate(measured):
                use(number)
                number += 1
                if place + 1 == until:
                    break
    return watch.run


# --- the loops ------------------------------------------------------------------------------------

SLOW = (137, 301, 444, 680)
"""Samples that take far longer than the others; one in 200, in no rhythm."""


def logging() -> None:
    """Something that a loop does besides, under its name."""
    with ss.stage("logging"):
        time.sleep(0.012)


def checkpoint() -> None:
    """The same, now and then."""
    with ss.stage("checkpoint"):
        time.sleep(0.1)


def nameless() -> None:
    """The same without a name."""
    time.sleep(0.1)


def slow_fetch() -> Run:
    return recorded(loader(Numbers(4000, Cost(0.006))), 0.004, batches=60)


def slow_transform() -> Run:
    data = Numbers(400, Cost(0.001), Augment(0.008))
    return watched(loader(data, workers=3), Use(0.003))


def slow_collate() -> Run:
    return recorded(loader(Numbers(4000, Cost(0.001)), collate_fn=SlowCollate()), 0.004, batches=60)


def slow_sending() -> Run:
    # One batch in advance: a worker that sends one has no hand free for who fetches the one before
    return watched(loader(LargeTensors(), batch=1, prefetch_factor=1), Use(0.002))


def busy_main_process() -> Run:
    return watched(loader(Numbers(400, Cost(0.0005))), Use(0.006, every=1, also=logging))


def slow_step() -> Run:
    return watched(loader(Numbers(320, Cost(0.0005))), Use(0.02))


def slow_samples(**named: Any) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        data = Files(folder, 800, SomeSlow(0.004, 0.25, SLOW))
        return watched(loader(data, workers=3, **named), Use(0.009))


def slow_samples_in_any_order() -> Run:
    return slow_samples(in_order=False)


def slow_worker() -> Run:
    return watched(loader(Numbers(210, SlowWorker(0.005)), workers=3, batch=2), Use(0.006))


def named_checkpoint() -> Run:
    return watched(loader(Numbers(640, Cost(0.0005))), Use(0.007, every=20, also=checkpoint))


def nameless_checkpoint() -> Run:
    return watched(loader(Numbers(640, Cost(0.0005))), Use(0.007, every=20, also=nameless))


def garbage_in_the_loop() -> Run:
    objects = many_objects()
    run = watched(loader(Numbers(1000, Cost(0.0005))), Use(0.006, every=50))
    objects.clear()
    return run


def garbage_in_a_worker() -> Run:
    return watched(loader(Numbers(1000, Cost(0.004), Collects(every=200))), Use(0.01))


def earlier_batch() -> Run:
    data = Numbers(400, Cost(0.02))
    measured = loader(data, batch=2, prefetch_factor=4, persistent_workers=True)
    return watched(measured, Use(0.01), epochs=8, until=3)


def workers_together() -> Run:
    return watched(loader(Numbers(240, Cost(0.03)), workers=4, batch=2), Use(0.003))


def epochs() -> Run:
    return watched(loader(Numbers(48, Cost(0.003))), Use(0.012), epochs=7)


def epochs_of_persistent_workers() -> Run:
    measured = loader(Numbers(48, Cost(0.01)), workers=4, persistent_workers=True)
    return watched(measured, Use(0.014), epochs=7)


def shards() -> Run:
    with tempfile.TemporaryDirectory() as folder:
        return watched(loader(Shards(folder, 12, 60)), Use(0.01))


def heavy_tails() -> Run:
    return watched(loader(Numbers(800, HeavyTail(0.0025)), workers=3), Use(0.007))


def slow_sampler() -> Run:
    data = Numbers(400, Cost(0.001))
    return watched(loader(data, sampler=SlowSampler(data)), Use(0.006))


def no_workers() -> Run:
    return recorded(
        loader(Numbers(1000, Cost(0.001), Augment(0.003)), workers=0), 0.004, batches=60
    )


_SLOW_THROUGHOUT = ("workers_together", "constant")

PLANTS = (
    Plant("fetch slow", slow_fetch, ("fetch",), pattern=_SLOW_THROUGHOUT),
    Plant("transform slow", slow_transform, ("Augment",), pattern=_SLOW_THROUGHOUT),
    Plant("collate slow", slow_collate, ("collate",), pattern=_SLOW_THROUGHOUT),
    Plant("large tensors to send", slow_sending, ("send",), may=_SLOW_THROUGHOUT),
    Plant("main process busy (logging)", busy_main_process, use=("logging",)),
    Plant("step slow", slow_step, use=("step",)),
    Plant(
        "one slow sample in 200", slow_samples, ("fetch",), pattern=("slow_samples",),
        says=r": index (137|301|444|680) \(\1\.txt\)",
    ),
    Plant(
        "the same with in_order=False", slow_samples_in_any_order, use=("step",),
    ),
    Plant(
        "one slow worker", slow_worker, ("fetch",), pattern=("slow_worker",), period=3,
        says="Worker 1 is slow",
    ),
    Plant(
        "checkpoint every 20 steps", named_checkpoint, use=("step",), pattern=("named_part",),
        period=20, says="checkpoint takes",
    ),
    Plant(
        "the same without a name", nameless_checkpoint, use=("step",), pattern=("periodic_step",),
        period=20,
    ),
    Plant(
        "garbage collection every 50 steps", garbage_in_the_loop,
        use=("step", "garbage collection"), pattern=("garbage_collection",), period=50,
    ),
    Plant(
        "the same in a worker", garbage_in_a_worker, ("garbage collection",),
        pattern=("garbage_collection",), period=50,
    ),
    Plant(
        "worker on an earlier batch", earlier_batch, ("earlier batch",),
        pattern=("epoch_boundary",), may=_SLOW_THROUGHOUT,
    ),
    Plant(
        "all workers finish together", workers_together, ("fetch",),
        pattern=("workers_together",), period=4,
    ),
    Plant(
        "epochs, workers start anew", epochs, ("start workers",), pattern=("epoch_boundary",),
        may=("named_part",), starts=True,
    ),
    Plant(
        "epochs, persistent workers", epochs_of_persistent_workers, ("fetch",),
        pattern=("epoch_boundary",),
    ),
    Plant("shard boundary", shards, ("fetch",), pattern=("shard_boundary",)),
    Plant("random heavy tails", heavy_tails, ("fetch",)),
    Plant("sampler slow", slow_sampler, ("main process",), pattern=("constant",)),
    Plant("no workers, transform slow", no_workers, ("Augment",), pattern=("constant",)),
)  # fmt: skip
"""All of them."""

if "in_order" not in inspect.signature(DataLoader).parameters:  # torch 2.6 made that a choice
    PLANTS = tuple(plant for plant in PLANTS if plant.run is not slow_samples_in_any_order)
