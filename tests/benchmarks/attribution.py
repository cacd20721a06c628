"""Check that a planted cost is found in the right stage, with real workers and its own clock.

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

import polars as pl
from benchkit.command import Option, arguments, table
from support.planted_costs import busy
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2
from tqdm import tqdm

import stallscope as ss

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


def burn(x: Any) -> Any:
    """A plain function in a pipeline."""
    busy(PLANTED_S)
    return x


def rest() -> Rest:
    """Return the op with the rest of each sample's cost."""
    return Rest(REST_S)


TWICE = Burn(PLANTED_S / 2)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "fetch: a method that loads": (lambda: Reads(rest()), "fetch"),
    "getitem: inline code": (lambda: Inline(rest()), "getitem"),
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
    "Subset": (lambda: Subset(Plain(v1.Compose([rest(), Burn()])), range(9_000)), "Burn"),
    "ConcatDataset": (lambda: ConcatDataset([Plain(v1.Compose([rest(), Burn()]))]), "Burn"),
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


def measure(dataset: Any, stage: str, batches: int) -> tuple[float, float]:
    """Share of the planted stage in the samples' time, and what no stage explains of it."""
    outer: list[float] = []
    loader = DataLoader(OuterClock(dataset), 8, num_workers=2)
    run = ss.record(loader, lambda b: outer.extend(b[0].tolist()), batches=batches, warmup=0)
    spans = run.spans(steady=False).filter(pl.col("sample").is_not_null())
    taken = spans.join(run.all_steps, on=["epoch", "batch"], how="semi").with_columns(
        s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9
    )
    named = taken.filter(pl.col("stage") == stage)["s"].sum()
    return named / sum(outer), 1 - taken["s"].sum() / sum(outer)


def main() -> None:
    """Print the table."""
    options = arguments(
        __doc__,
        cases=Option(list(CASES), ["a function"], "these"),
        batches=Option(12, 2, "batches a case"),
    )
    planned = PLANTED_S / (PLANTED_S + REST_S)
    rows = []
    for name in tqdm(options.cases, desc="cases", leave=False):
        make, stage = CASES[name]
        measured, remainder = measure(make(), stage, options.batches)
        rows.append((name, stage, f"{planned:.1%}", f"{measured:.1%}", f"{remainder:+.2%}"))
    print(table(("planted in", "stage", "share planned", "share found", "unexplained"), rows))


if __name__ == "__main__":
    main()
