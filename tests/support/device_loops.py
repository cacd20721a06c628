"""Loops on a simulated device that works behind the host, with its true idle time."""

import time
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.utils.data import Dataset

from stallscope.hooks.device_time import SimulatedDevice
from stallscope.loops.devices import covered
from stallscope.model.loop_time import loop_breakdown
from stallscope.run.result import Run
from stallscope.targets.target import SimulatedStep


@dataclass(frozen=True)
class WatchedStep(SimulatedStep):
    """Simulated step that records its calls."""

    begins_ns: list[int] = field(default_factory=list)
    """`perf_counter_ns()` of each call."""

    def __call__(self, batch: Any) -> None:
        self.begins_ns.append(perf_counter_ns())
        super().__call__(batch)


class Naps(Dataset):
    """Samples that take this long, without using a core."""

    def __init__(self, sample_s: float, entries: int = 4000, values: int = 4) -> None:
        self.sample_s, self.entries, self.values = sample_s, entries, values

    def __len__(self):
        return self.entries

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.full((self.values,), float(index))


@dataclass(frozen=True)
class Idleness:
    """Idle time of a device while its loop waited for batches; steady state, seconds."""

    truth_s: float
    """Idle seconds of the device itself."""
    found_s: float
    """Idle seconds in the run."""
    waited_s: float
    """Seconds that the loop waited."""
    loop_s: float
    """Seconds of the loop."""

    @property
    def error(self) -> float:
        """Error of the found idle time, relative to the truth; if hardly idle, to the loop."""
        whole_s = self.truth_s if self.truth_s > 0.01 * self.loop_s else self.loop_s
        return abs(self.found_s - self.truth_s) / whole_s


def idleness(run: Run, step: WatchedStep) -> Idleness:
    """Return a run's idle time, with the truth of its device.

    The recording's clock is tied to the host's by when the steps were called, not by the device.
    """
    steps = run.steps().sort("step")
    spans = run.side_spans.filter(pl.col("stage").cast(pl.String) == "step")
    begun = steps.join(spans.select("epoch", "batch", begun_ns="start_ns"), on=["epoch", "batch"])
    called = np.array(step.begins_ns)[begun["step"].to_numpy()]
    origin_ns = int(np.median(called - begun["begun_ns"].to_numpy()))
    work = _work(step.device, origin_ns)
    restart_ns = (pl.col("restart_s").fill_null(0.0) * 1e9).cast(pl.Int64)
    waits = steps.select(pl.col("start_ns") - restart_ns, "end_ns").rows()
    busy_ns = sum(
        covered(
            (max(start, begin), min(end, until)) for start, end in work if start < until > begin
        )
        for begin, until in waits
    )
    waited_s = sum(end - begin for begin, end in waits) / 1e9
    return Idleness(
        truth_s=waited_s - busy_ns / 1e9,
        found_s=waited_s - float(steps["hidden_s"].sum()),
        waited_s=waited_s,
        loop_s=loop_breakdown(run.steps(), run.stalls()).total_s,
    )


def _work(device: SimulatedDevice, origin_ns: int) -> list[tuple[int, int]]:
    return [(work.start_ns - origin_ns, work.end_ns - origin_ns) for work in device.work]
