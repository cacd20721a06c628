"""A pipeline whose every cost is planted: a clock that moves only when an op spends time on it.

`record` drives torch's own fetcher in this process with the real hooks and this clock, so tests
assert durations to the nanosecond.
"""

import math
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, default_collate, default_convert
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from stallscope.hooks.event_log import LogPages, ProcessLog, read_log
from stallscope.hooks.fetchers import Hooks
from stallscope.hooks.hot_path import Recorder
from stallscope.hooks.recording_folder import LogPlace
from stallscope.run.decode import Decoded, decode

START_NS = 1_000_000


class Clock:
    """Nanoseconds that pass only when somebody spends them."""

    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns

    def spend(self, ns: int) -> None:
        self.ns += ns


CLOCK = Clock()


class Op:
    """A transform that takes so long and changes nothing."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __call__(self, x: Any) -> Any:
        CLOCK.spend(self.ns)
        return x


class OtherOp(Op):
    """The same under another name, with its method inherited."""


class Numbers(Dataset):
    """`entries` numbers, each going through `transform`."""

    def __init__(self, transform: Any = None, entries: int = 8) -> None:
        self.transform = transform
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        CLOCK.spend(1)
        return self.transform(index) if self.transform else index


def record(
    dataset: Any,
    tmp_path: Path,
    *,
    batches: Any = ((0, 1), (2, 3)),
    auto: bool = True,
    collate: Any = None,
    capacity: int = 1 << 16,
    cost_share: float = math.inf,
) -> Decoded:
    """Return the records of the hooks while torch's fetcher makes these batches of a dataset."""
    CLOCK.ns = START_NS
    log = ProcessLog(LogPlace(tmp_path, capacity), 0, START_NS - 1)
    hooks = Hooks(Recorder(log, clock=CLOCK, cpu_clock=CLOCK), cost_share=cost_share)
    hooks.put_on()
    try:
        kind = _IterableDatasetFetcher if hasattr(dataset, "__iter__") else _MapDatasetFetcher
        collate = collate or (default_collate if auto else default_convert)
        fetcher = kind(dataset, auto, collate, False)
        for number, indices in enumerate(batches):
            hooks.number = number
            fetcher.fetch(indices)
    finally:
        hooks.retire()
        log.retire()
    return decode(log_in(tmp_path), origin_ns=START_NS)


def log_in(folder: Path) -> LogPages:
    """The first file of the log that was recorded in a folder."""
    return read_log(LogPlace(folder, 0).logs()[0])


def time_of(decoded: Decoded) -> dict[str, int]:
    """Nanoseconds by stage, without the stages that took none."""
    total: dict[str, int] = {}
    for stage, start, end in decoded.spans.select("stage", "start_ns", "end_ns").iter_rows():
        total[stage] = total.get(stage, 0) + end - start
    return {stage: ns for stage, ns in total.items() if ns}
