"""Is a planted cost found in the right stage, by real workers and against an independent clock?

Each case plants busy loops, measured by CPU time, in one kind of place. An outer clock around
`dataset[i]`, in the worker and not ours, tells how long each sample took. Printed for each case:
the share of the planted stage by the plan and by the recording, and the remainder: how much of
the outer clock's time no stage explains.

    python tests/benchmarks/attribution.py
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benchkit.command import Option, arguments, table
from benchkit.pairing import Estimate, in_turns, ratio
from support.planted_costs import busy
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2
from tqdm import tqdm

import stallscope as ss
from stallscope.demo import FasterRandomMask, OneImageManyTimes, case_b_pipeline
from stallscope.targets.sample import sample_folder

if TYPE_CHECKING:
    from collections.abc import Callable

PLANTED_S = 0.003
REST_S = 0.001


class Burn:
    """An op that takes so much CPU time and changes nothing."""

    def __init__(self, seconds: float = PLANTED_S) -> None:
        self.seconds = seconds

    def __call__(self, *x: Any) -> Any:
        busy(self.seconds)
        return x[0] if len(x) == 1 else x


class Rest(Burn):
    """The part that is not planted."""


class BurnModule(nn.Module):
    """An op that is a module."""

    def forward(self, x: Any) -> Any:
        busy(PLANTED_S)
        return x


class Outer:
    """An op that calls another one."""

    def __init__(self) -> None:
        self.inner = Burn()

    def __call__(self, x: Any) -> Any:
        busy(REST_S)
        return self.inner(x)


class Flaky(Burn):
    """An op that takes its time and then raises."""

    def __call__(self, *x: Any) -> Any:
        super().__call__(*x)
        raise ValueError("planted")


class Plain(Dataset):
    """Some numbers, each going through a transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


class Inline(Plain):
    """The planted cost stands in `__getitem__` itself."""

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + PLANTED_S
        while time.thread_time() < end:
            pass
        return self.transform(index)


class Reads(Plain):
    """The planted cost stands in a method that loads."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index))

    def load(self, index: int) -> int:
        """Take the planted time."""
        busy(PLANTED_S)
        return index


class Joint(Plain):
    """Image and target go through one transform, the target through another."""

    def __init__(self) -> None:
        self.transforms = Burn()
        self.target_transform = Rest(REST_S)

    def __getitem__(self, index: int) -> Any:
        image, target = self.transforms(index, index)
        return image + self.target_transform(target)


class Catches(Plain):
    """A dataset that survives a failing op."""

    def __init__(self) -> None:
        self.transform = Flaky()
        self.rest = Rest(REST_S)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.transform(index)
        except ValueError:
            return self.rest(index)


class Bulk(Plain):
    """Makes its samples through `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """A stream of samples."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __iter__(self) -> Any:
        for index in range(10_000):
            yield self.transform(index)


def burn(x: Any) -> Any:
    """A plain function in a pipeline."""
    busy(PLANTED_S)
    return x


def rest() -> Rest:
    """What each sample costs beside the planted part."""
    return Rest(REST_S)


TWICE = Burn(PLANTED_S / 2)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "fetch: a method that loads": (lambda: Reads(rest()), "fetch"),
    "getitem: inline code": (lambda: Inline(rest()), "getitem"),
    "an op in a slot": (Joint, "Burn"),
    "nested v1 Compose": (
        lambda: Plain(v1.Compose([rest(), v1.Compose([Burn()])])), "Burn",
    ),
    "nested v2 Compose": (
        lambda: Plain(v2.Compose([rest(), v2.Compose([BurnModule()])])), "BurnModule",
    ),
    "nn.Sequential": (
        lambda: Plain(v1.Compose([rest(), nn.Sequential(BurnModule())])), "BurnModule",
    ),
    "RandomApply": (
        lambda: Plain(v1.Compose([rest(), v1.RandomApply([Burn()], p=1)])), "Burn",
    ),
    "RandomChoice": (
        lambda: Plain(v1.Compose([rest(), v1.RandomChoice([Burn(), rest()], p=[1, 0])])), "Burn",
    ),
    "a function": (lambda: Plain(v1.Compose([rest(), burn])), "burn"),
    "a partial": (lambda: Plain(v1.Compose([rest(), partial(burn)])), "burn"),
    "the same object twice": (lambda: Plain(v1.Compose([TWICE, rest(), TWICE])), "Burn"),
    "one op calling another": (lambda: Plain(Outer()), "Burn"),
    "an op that raises": (Catches, "Flaky"),
    "Subset": (lambda: Subset(Plain(v1.Compose([rest(), Burn()])), range(9_000)), "Burn"),
    "ConcatDataset": (lambda: ConcatDataset([Plain(v1.Compose([rest(), Burn()]))]), "Burn"),
    "__getitems__": (lambda: Bulk(v1.Compose([rest(), Burn()])), "Burn"),
    "an iterable dataset": (lambda: Stream(v1.Compose([rest(), Burn()])), "Burn"),
}  # fmt: skip


class OuterClock(Dataset):
    """An independent clock around `dataset[i]`: CPU and wall time go out with the sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[float, float]:
        began, cpu = time.perf_counter(), time.thread_time()
        self.dataset[index]
        return time.perf_counter() - began, time.thread_time() - cpu


class OuterClockStream(IterableDataset):
    """The same around `next`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        samples = iter(self.dataset)
        while True:
            began, cpu = time.perf_counter(), time.thread_time()
            next(samples)
            yield time.perf_counter() - began, time.thread_time() - cpu


def measure(dataset: Any, stage: str, batches: int) -> tuple[float, float]:
    """Share of the planted stage in the samples' time, and what no stage explains of it."""
    clock = OuterClockStream if isinstance(dataset, IterableDataset) else OuterClock
    outer: list[float] = []
    loader = DataLoader(clock(dataset), 8, num_workers=2)
    run = ss.record(loader, lambda b: outer.extend(b[0].tolist()), batches=batches, warmup=0)
    spans = run.spans(steady=False).filter(pl.col("sample").is_not_null())
    taken = spans.join(run.all_steps, on=["epoch", "batch"], how="semi").with_columns(
        s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9
    )
    named = taken.filter(pl.col("stage") == stage)["s"].sum()
    return named / sum(outer), 1 - taken["s"].sum() / sum(outer)


def decode_time(order: str, batches: int) -> float:
    """Median decode time of a lazily opened JPEG in case B's pipeline, seconds."""
    data = OneImageManyTimes(
        min(sample_folder().rglob("*.jpg")), 10_000, case_b_pipeline(order, FasterRandomMask)
    )
    table = ss.record(DataLoader(data, 16, num_workers=2), batches=batches).stages()
    return float(table.filter(pl.col("stage") == "decode")["p50_s"].item())


def decode_ratio(pairs: int, batches: int) -> Estimate:
    """Decode time by what comes first in the pipeline, in turn: crop / conversion to a tensor."""
    orders = ("crop_first", "published")
    times = in_turns({order: partial(decode_time, order, batches) for order in orders}, pairs)
    return ratio(*(np.array(times[order]) for order in orders))


def main() -> None:
    """Print the table."""
    given = arguments(
        __doc__,
        cases=Option(list(CASES), ["an op in a slot"], "these"),
        batches=Option(12, 2, "batches a case"),
        pairs=Option(8, 1, "recordings of each order of case B"),
    )
    planned = PLANTED_S / (PLANTED_S + REST_S)
    rows = []
    for name in tqdm(given.cases, desc="cases", leave=False):
        make, stage = CASES[name]
        found, remainder = measure(make(), stage, given.batches)
        rows.append((name, stage, f"{planned:.1%}", f"{found:.1%}", f"{remainder:+.2%}"))
    print(table(("planted in", "stage", "share planned", "share found", "unexplained"), rows))
    lazy = decode_ratio(given.pairs, given.batches)
    print(
        "\nlazy decode, time with RandomCrop first / with PILToTensor first: "
        f"{lazy.centre:.3f} {lazy.interval()}"
    )


if __name__ == "__main__":
    main()
