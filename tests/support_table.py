"""Supported, degraded and refused loaders: the table in docs/loaders.md, by trying.

    python tests/support_table.py           # print it
    python tests/support_table.py --write   # put it into the page

Each loader's row is one recording: "full" when every sample that the loop used was seen with the op
that all of them go through, "in part" when only batches were seen, else the refusal.
"""

import argparse
import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable

import torch
from support import third_party_loaders
from support.loaders import LONGER, Backwards, BulkNoise, Jitter, Noise, NoiseStream
from support.odd_loaders import Grouped, Infinite, PatchQueue
from support.other_stacks import OTHER_STACKS
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    random_split,
)

import stallscope as ss
from stallscope.errors import UnsupportedError

ENTRIES = 96 * LONGER
SIZE = 4
"""Samples in each batch of the loaders below."""
_ONE = re.compile("batch_size=None")

PAGE = Path(__file__).parents[1] / "docs" / "loaders.md"
BEGIN, END = "<!-- support: python tests/support_table.py --write -->", "<!-- /support -->"
UNTRIED = (
    (
        "what MONAI's ThreadDataLoader does, under `ss.instrumented`",
        "not seen: its batches come from a thread of its own, whose waits are taken for the loop's",
    ),
    ("Linux, x86-64", "tested"),
    ("Python 3.14, macOS, Windows", "not tested; workers are not forked there"),
    ("JupyterLab 4", "tested in Chromium"),
    ("VS Code, Colab", "not tested; every widget has a static picture beside it"),
)


class Stream(NoiseStream):
    """A stream that keeps its op where it can be found."""

    def __init__(self) -> None:
        super().__init__(ENTRIES)
        self.transform = Jitter()

    def __iter__(self) -> Any:
        for sample in super().__iter__():
            yield self.transform(sample)


class WholeBatches(Dataset):
    """A dataset that is asked for whole batches."""

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


class Custom(DataLoader):
    """A loader class of the user's."""


def _data() -> Noise:
    return Noise(ENTRIES, Jitter())


LOADERS: dict[str, Callable[[], Any]] = {
    "map-style, forked workers": lambda: DataLoader(_data(), 4, num_workers=2),
    "map-style, `num_workers=0`": lambda: DataLoader(_data(), 4),
    "map-style, spawned workers": lambda: DataLoader(
        _data(), 4, num_workers=1, multiprocessing_context="spawn"
    ),
    "map-style, forkserver": lambda: DataLoader(
        _data(), 4, num_workers=1, multiprocessing_context="forkserver"
    ),
    "`__getitems__`": lambda: DataLoader(BulkNoise(ENTRIES, Jitter()), 4, num_workers=2),
    "iterable-style": lambda: DataLoader(Stream(), 4, num_workers=2),
    "`batch_size=None`, one index a sample": lambda: DataLoader(
        _data(), batch_size=None, num_workers=2
    ),
    "`batch_size=None`, the dataset makes batches": lambda: DataLoader(
        WholeBatches(),
        batch_size=None,
        sampler=BatchSampler(range(ENTRIES), 4, drop_last=False),
        num_workers=2,
    ),
    "`persistent_workers`, several epochs": lambda: DataLoader(
        Noise(16, Jitter()), 4, num_workers=2, persistent_workers=True
    ),
    "a sampler of your own": lambda: DataLoader(
        _data(), 4, sampler=Backwards(_data()), num_workers=2
    ),
    "a batch sampler of your own": lambda: DataLoader(
        _data(),
        batch_sampler=BatchSampler(RandomSampler(_data()), 4, drop_last=False),
        num_workers=2,
    ),
    "`Subset`": lambda: DataLoader(Subset(_data(), range(ENTRIES // 2)), 4, num_workers=2),
    "`ConcatDataset`": lambda: DataLoader(ConcatDataset([_data(), _data()]), 4, num_workers=2),
    "`random_split`": lambda: DataLoader(random_split(_data(), [0.5, 0.5])[0], 4, num_workers=2),
    "a subclass of `DataLoader`": lambda: Custom(_data(), 4, num_workers=2),
    "a loader that keeps its iterator, as Ultralytics' does": lambda: Infinite(
        _data(), 4, num_workers=2
    ),
    "a queue that owns a loader, as torchio's does": lambda: DataLoader(
        PatchQueue(_data(), patches=1, num_workers=2, late=True), 4
    ),
    "a loader's samples in groups, as detectron2's": lambda: Grouped(
        DataLoader(_data(), None, num_workers=2), 4
    ),
    "any other iterable of batches": lambda: [torch.rand(4)] * 9,
}
REFUSED = "refused, with a sentence on what to give instead"
WAITS = "in part: the loop's waits"
OWN_THREAD = "MONAI's ThreadDataLoader"
BY_CHANCE = "in part: the loop's waits, and its thread's work where the thread is not ahead of them"
"""Both were seen in six tries of one loader."""
BATCHES = "in part: batches and their stages, no single samples"


def seen(make: Callable[[], Any]) -> str:
    try:
        run = ss.record(make(), batches=6, warmup=0)
    except UnsupportedError:
        return REFUSED
    if run.work.is_empty():
        return WAITS
    used = run.all_steps.select("epoch", "batch")
    samples = run.samples(steady=False).join(used, on=["epoch", "batch"], how="semi")
    if samples.is_empty() and not run.stages().is_empty():
        return BATCHES
    expected = used.height * (1 if any(map(_ONE.match, run.notes)) else SIZE)
    stages = run.stages()
    jitter = stages.filter(stages["stage"].str.starts_with("Jitter"))["count"].sum()
    everything = samples.height == expected and jitter >= run.samples().height > 0
    return "full" if everything else f"only {samples.height} of {expected} samples"


def seen_of(library: str) -> str:
    level = _seen_of(library)
    return BY_CHANCE if library == OWN_THREAD and level in (WAITS, "full") else level


def _seen_of(library: str) -> str:
    return _seen(third_party_loaders.LIBRARIES[library], third_party_loaders.OPS[library])


def seen_of_stack(name: str) -> str:
    """Return the result for a loader; without its library, the page's."""
    try:
        return _seen(OTHER_STACKS[name], "")
    except ModuleNotFoundError:
        row = re.search(rf"\| {re.escape(name)} \| (.*) \|", on_page())
        return row[1] if row else "untried"


def _seen(make: Callable[[], Any], op: str) -> str:
    try:
        run = ss.record(make(), batches=6, warmup=0)
    except UnsupportedError:
        return REFUSED
    if run.work.is_empty():
        return WAITS
    whole = any(map(_ONE.match, run.notes))
    if op and not any(name.startswith(op) for name in run.work["stage"]):
        return "in part: samples, without the names of their ops"
    if any("in other threads" in note for note in run.notes):
        return "in part: not what other threads of the workers do"
    return BATCHES if whole or run.samples(steady=False).is_empty() else "full"


def seen_in(training: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()), ss.instrumented(warmup=0) as watch:
        third_party_loaders.TRAININGS[training]()
    steps = watch.run.all_steps
    trained = set(watch.run.side_spans["stage"]) >= {"backward", "optimizer"}
    return "full" if trained and steps["worker"].null_count() < steps.height else WAITS


def table() -> str:
    rows = [(name, seen(make)) for name, make in LOADERS.items()]
    rows += [(name, seen_of(name)) for name in third_party_loaders.LIBRARIES]
    rows += [(name, seen_of_stack(name)) for name in OTHER_STACKS]
    rows += [(name, seen_in(name)) for name in third_party_loaders.TRAININGS]
    rows += UNTRIED
    return "\n".join(["| what | seen |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])


def on_page() -> str:
    """The table that the page shows now."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into the page")
    text = table()
    if parser.parse_args().write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
