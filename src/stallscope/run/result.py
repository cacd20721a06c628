"""The run: the measurement of a recording, and the tables that follow from it.

Recording creates a run; models, charts and verdicts read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import apart, computed_apart, computed_once
from stallscope.columns import Column, Schema
from stallscope.model import attribution
from stallscope.model.attribution import StallBreakdown, break_down_stalls
from stallscope.model.exposure import exposed, exposure_of
from stallscope.model.patterns import patterns as find_patterns
from stallscope.model.reasons import Evidence
from stallscope.result import SavedResult
from stallscope.run import summary
from stallscope.run.decode import BATCHES, OF_BATCH, RESOURCES, SAMPLES, SPANS
from stallscope.run.stacks import STACKS
from stallscope.stages import KINDS
from stallscope.store import stored

if TYPE_CHECKING:
    from stallscope.model.exposure import Exposure

STEPS: Final = Schema(
    "One row per step of the training loop; null means not measured.",
    Column("step", pl.Int32),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("worker", pl.Int16, "worker of its batch; null: the main process"),
    Column("wait_s", pl.Float64, "time inside `next(loader)`"),
    Column("pin_s", pl.Float64),
    Column("h2d_s", pl.Float64, "with `step_s` and `other_s` the time until the next wait"),
    Column("step_s", pl.Float64, "with a copy's wait for earlier work of the device"),
    Column("other_s", pl.Float64),
    Column("rank", pl.Int16),
    Column("start_ns", pl.Int64, "start of the wait, from the start of the run"),
    Column("end_ns", pl.Int64, "end of the wait"),
    Column("restart_s", pl.Float64, "time in `iter(loader)` before the first step of an epoch"),
    Column("steady", pl.Boolean),
    nullable="worker wait_s pin_s h2d_s step_s other_s restart_s",
)

DELIVERIES: Final = Schema(
    "One row per batch, also without recorded samples; null means not recorded.",
    *OF_BATCH,
    Column("asked_ns", pl.Int64, "the loop asked for it"),
    Column("taken_ns", pl.Int64, "its worker took the task up"),
    Column("made_ns", pl.Int64, "its worker had made it"),
    Column("pickle_ns", pl.Int64, "the worker's feeder thread began to pickle it"),
    Column("sent_ns", pl.Int64, "the thread had sent it"),
    Column("arrived_ns", pl.Int64, "the loop had received and unpickled it"),
    # A worker that was not hooked has no known process
    nullable="pid worker asked_ns taken_ns made_ns pickle_ns sent_ns arrived_ns",
)

WAITS: Final = Schema(
    "One row per `next` of the DataLoader inside of a step's wait.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("start_ns", pl.Int64),
    Column("end_ns", pl.Int64),
)
"""A single row fills the wait, unless the loop iterates a wrapper around the DataLoader: a batch of
the wrapper may take several of the DataLoader's, or none."""

STARTUP: Final = Schema(
    "One row per process.",
    Column("worker", pl.Int16),
    Column("pid", pl.Int32),
    Column("epoch", pl.Int32),
    Column("ready_s", pl.Float64, "time from the start of its epoch until it was ready"),
    Column("first_sample_s", pl.Float64, "time of its first sample"),
    Column("typical_sample_s", pl.Float64, "median of its later samples"),
    nullable="worker ready_s first_sample_s typical_sample_s",
)

DEVICE: Final = Schema(
    "One row per interval in which a device that runs asynchronously had work.",
    Column("rank", pl.Int16),
    Column("device", pl.String),
    Column("kind", pl.Enum(KINDS), "a copy (h2d) or a step; null: unknown"),
    Column("start_ns", pl.Int64, "the event before it"),
    Column("end_ns", pl.Int64, "the event after it"),
    nullable="device kind",
)
"""Gaps between rows: the device was idle. A rank without any row computes on the host."""

_BATCHES: Final = Schema(
    BATCHES.about, *BATCHES.columns, Column("steady", pl.Boolean), nullable="worker"
)
LOGS: Final = "logs"
"""Folder inside of a run's folder for the logs of a running recording."""

_BATCH: Final = ["rank", "epoch", "batch"]


@dataclass(frozen=True)
class Settings:
    """Settings of the recording."""

    name: str = ""
    """Target in the user's words."""
    num_workers: int = 0
    """Worker processes of the loader; 0: the main process loads."""
    batch_size: int | None = None
    """Samples per batch; None where the dataset or a sampler decides."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    simulated_step_s: float | None = None
    """Seconds of the simulated step; None without a simulation."""
    has_step: bool = True
    """True if the loop used the batches, False if it only took them."""
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers, or if unknown."""
    persistent_workers: bool = False
    """True if workers live on from epoch to epoch."""
    streams: bool = False
    """True if the workers read an iterable dataset, each its part of the stream."""
    began_unix_ns: int | None = None
    """Origin of all times, in ns since 1970."""


@dataclass(frozen=True, eq=False)
class Run(SavedResult):
    """One measurement of a loader: spans inside the workers, samples, steps, start-up.

    Tables show the steady state, without start-up and warm-up. `steady=False` gives all.
    """

    _folder: ClassVar[Path | None] = None
    """Folder that `ss.load` has read; an attribute of that run alone."""
    _view: ClassVar[str] = "run.VIEW"
    _noun: ClassVar[str] = "run"
    _left_alone: ClassVar[tuple[str, ...]] = (LOGS,)

    all_spans: pl.DataFrame = stored(SPANS, "spans")
    """All spans, in the order of writing per process."""
    all_samples: pl.DataFrame = stored(SAMPLES, "samples")
    batches: pl.DataFrame = stored(_BATCHES)
    all_steps: pl.DataFrame = stored(STEPS, "steps")
    waits: pl.DataFrame = stored(WAITS)
    deliveries: pl.DataFrame = stored(DELIVERIES)
    side_spans: pl.DataFrame = stored(SPANS)
    """Spans of the tracks beside the workers' own: sending (the feeder thread of each worker),
    pinning, and the training loop: copies to the device, `forward`, `backward`, `optimizer`, the
    user's own parts, garbage collection, loops over other loaders."""
    startup: pl.DataFrame = stored(STARTUP)
    settings: Settings = field(default_factory=Settings)
    """Settings of the recording."""
    all_resources: pl.DataFrame = stored(RESOURCES, "resources")
    """Resources of all processes of the recording; empty without samples."""
    device_work: pl.DataFrame = stored(DEVICE, "device")
    """Empty where the host is the device."""
    all_stacks: pl.DataFrame = stored(STACKS, "stacks", is_newer=True)
    """Samples of a training that was watched; empty otherwise."""
    first_batch_s: float | None = None
    """Seconds from the loader's start to its first batch; None without a batch."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Facts about the machine."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out or could not be measured."""
    others: tuple[Run, ...] = ()
    """Other loaders of the process (validation, say), the longest first."""

    @computed_apart
    def spans(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row per span: `rank, pid, worker, epoch, batch, sample, stage, kind`, times.

        First the spans of the workers' own work, which never overlap in a worker; then those beside
        it (see `side_spans`). `worker` is null in the main process, `sample` (place in the batch)
        is null for work on the whole batch, `cpu_ns` is null where it was not read.

        Args:
            steady: only the steady state.
        """
        if not steady:
            return pl.concat([self.all_spans, self.side_spans])
        return pl.concat([self.work, self._beside])

    @cached_property
    @computed_apart
    def work(self) -> pl.DataFrame:
        """The spans of the workers' own work in the steady state, columns as of `spans`."""
        batch = ["rank", "pid", "epoch", "batch"]
        steady = self.batches.filter("steady").select(batch)
        return self.all_spans.join(steady, on=batch, how="semi", maintain_order="left")

    @cached_property
    @computed_apart
    def _beside(self) -> pl.DataFrame:
        steady = self.steps().select(_BATCH).unique()
        return self.side_spans.join(steady, on=_BATCH, how="semi", maintain_order="left")

    @cached_property
    @computed_apart
    def unit_times(self) -> pl.DataFrame:
        """Time of each stage in each sample of the steady state, see `run.summary.unit_times`."""
        return summary.unit_times(self.work)

    @cached_property
    def profile(self) -> summary.Profile:
        """Breakdown of a sample's time by stage."""
        times = self.unit_times  # read here: a cache that a child fills is lost with it
        return apart(lambda: summary.profile(times))

    @cached_property
    def work_stages(self) -> pl.DataFrame:
        """Breakdown of the workers' time, columns of `run.summary.STAGES`."""
        times = self.unit_times
        return apart(lambda: summary.stages(times))

    @computed_once
    def stages(self) -> pl.DataFrame:
        """Return the time by stage, the longest first; columns of `run.summary.STAGES`."""
        stalled = self.exposed() if self.all_steps.height else None
        beside = summary.stages(summary.unit_times(self._beside))
        return summary.of_loop(self.work_stages, beside, stalled)

    def table(self) -> pl.DataFrame:
        """Return the same as `stages`."""
        return self.stages()

    @cached_property
    @computed_apart
    def _samples(self) -> pl.DataFrame:
        return summary.samples(self.unit_times, self.all_samples)

    def samples(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row per sample: its origin and its cost, see `run.summary.samples`.

        Args:
            steady: only the steady state.
        """
        if steady:
            return self._samples
        spans, described = self.all_spans, self.all_samples
        return apart(lambda: summary.samples(summary.unit_times(spans), described))

    def steps(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row per step of the loop, columns of `STEPS` and `hidden_s`.

        `hidden_s` is the part of the wait, with `iter(loader)`, in which the device still had work:
        null if unknown, 0 where the host is the device.

        Args:
            steady: only the steps whose batch is part of the steady state.
        """
        steps = self._steps
        return apart(lambda: steps.filter("steady")) if steady else steps

    @cached_property
    @computed_apart
    def _steps(self) -> pl.DataFrame:
        return attribution.with_hidden(self.all_steps, self.device_work)

    @property
    def device(self) -> str | None:
        """Name of the asynchronous device; None where the host is the device."""
        return next(iter(self.device_work["device"]), None)

    @cached_property
    @computed_apart
    def _stalls(self) -> StallBreakdown:
        return self._break_down(self.steps())

    def _break_down(self, steps: pl.DataFrame) -> StallBreakdown:
        tables = self.waits, self.deliveries, self.all_spans, self.side_spans
        return break_down_stalls(steps, *tables)

    def resources(self, *, steady: bool = True) -> pl.DataFrame:
        """Return the use of each resource, sample by sample; columns of `RESOURCES`.

        Args:
            steady: only from the begin of the first steady step to the end of the last one.
        """
        return self._resources if steady else self.all_resources

    @cached_property
    @computed_apart
    def _resources(self) -> pl.DataFrame:
        """Samples that end in the steady state of their rank; none without a recorded loop."""
        unread = pl.col("value").is_null()
        return self._in_steady_state(self.all_resources, "end_ns", or_else=unread)

    @computed_apart
    def stacks(self) -> pl.DataFrame:
        """Return the stacks of windows in the steady state; columns of `STACKS`."""
        return self._in_steady_state(self.all_stacks, "window_ns", or_else=pl.lit(value=False))

    def _in_steady_state(self, table: pl.DataFrame, time: str, *, or_else: pl.Expr) -> pl.DataFrame:
        first_ns, last_ns = pl.col("start_ns").min(), summary.used_until_ns().max()
        ends = self.steps().group_by("rank").agg(first_ns=first_ns, last_ns=last_ns)
        inside = pl.col(time).is_between("first_ns", "last_ns") | or_else
        rows = table.join(ends, on="rank", maintain_order="left").filter(inside)
        return rows.drop("first_ns", "last_ns")

    def stalls(self) -> pl.DataFrame:
        """Return one row per stall: a wait that matters by the limits in `model.thresholds`.

        Returns:
            Columns of `model.attribution.STALLS`, of the steady state.
        """
        return self._stalls.stalls

    def parts(self) -> pl.DataFrame:
        """Return the parts of each stall, columns of `model.attribution.PARTS`."""
        return self._stalls.parts

    @cached_property
    @computed_apart
    def exposure(self) -> Exposure:
        """Accounting of the stalls for the verdict."""
        return exposure_of(self)

    @computed_once
    def exposed(self) -> pl.DataFrame:
        """Return the causes of the stalls, the longest part first.

        Each stage gets its part of the stalls, as if workers never waited for a core.

        Returns:
            Columns of `model.attribution.EXPOSED`; the parts add up to all stalls.
        """
        return exposed(self.exposure, self.parts())

    @computed_once
    def patterns(self) -> pl.DataFrame:
        """Return when and why the training loop stalls, each pattern with its p-value.

        Returns:
            Columns of `model.patterns.PATTERNS`, over all steps after the warm-up; the pattern that
            explains most comes first.
        """
        steps = self._steps.filter(pl.col("step") >= self.settings.warmup)
        evidence = Evidence(
            steps=steps,
            parts=self._break_down(steps).parts,
            samples=self.samples(steady=False),
            deliveries=self.deliveries,
            side_spans=self.side_spans,
            num_workers=self.settings.num_workers,
        )
        return find_patterns(evidence)

    def trace(self, path: str | Path) -> Path:
        """Write everything as one timeline, for https://ui.perfetto.dev or chrome://tracing.

        The timeline holds the steps of the loop with their waits and parts, the batches, samples
        and stages of each worker, sending and pinning, and an arrow from each batch to its step. It
        begins at the start of the run; `args.steady` marks the steady state.

        Args:
            path: of the file, `.json` or (smaller) `.json.gz`; folders are created. An older file
                is overwritten.

        Returns:
            The path.

        Raises:
            TraceFileError: the path has another ending or cannot be written.
        """
        trace = import_module("stallscope.views.trace")
        written: Path = apart(lambda: trace.write(self, Path(path)))
        return written
