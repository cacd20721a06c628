"""The one saved value in the middle: what was measured, and the tables that follow from it.

Everything before makes it, everything after reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import apart, computed_apart
from stallscope.columns import Column, Schema
from stallscope.model import attribution
from stallscope.model.attribution import StallBreakdown, break_down_stalls
from stallscope.model.exposure import exposed, exposure_of
from stallscope.model.patterns import patterns as find_patterns
from stallscope.model.step_series import Evidence
from stallscope.result import SavedResult
from stallscope.run import summary
from stallscope.run.decode import BATCHES, RESOURCES, SAMPLES, SPANS
from stallscope.stages import KINDS, NAMES
from stallscope.store import Contents, StoredTable

if TYPE_CHECKING:
    from stallscope.model.exposure import Exposure

STEPS: Final = Schema(
    "One row a step of the training loop; null is what was not measured.",
    Column("step", pl.Int32),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("worker", pl.Int16, "worker that made its batch; null: the main process"),
    Column("wait_s", pl.Float64, "time inside `next(loader)`"),
    Column("pin_s", pl.Float64),
    Column("h2d_s", pl.Float64, "with `step_s` and `other_s` the time until the next wait"),
    Column("step_s", pl.Float64, "with what a copy waits for earlier work of the device"),
    Column("other_s", pl.Float64),
    Column("rank", pl.Int16),
    Column("start_ns", pl.Int64, "begin of the wait, from the start of the run"),
    Column("end_ns", pl.Int64, "end of the wait"),
    Column("restart_s", pl.Float64, "time in `iter(loader)` before the first step of an epoch"),
    Column("steady", pl.Boolean),
)

DELIVERIES: Final = Schema(
    "One row a batch, whether its samples were recorded or not; null is what was not seen.",
    Column("rank", pl.Int16),
    Column("pid", pl.Int32),
    Column("worker", pl.Int16),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("asked_ns", pl.Int64, "the loop asked for it"),
    Column("taken_ns", pl.Int64, "its worker took the task up"),
    Column("made_ns", pl.Int64, "its worker had made it"),
    Column("pickle_ns", pl.Int64, "the worker's feeder thread began to pickle it"),
    Column("sent_ns", pl.Int64, "the thread had sent it"),
    Column("arrived_ns", pl.Int64, "the loop had received and unpickled it"),
)

WAITS: Final = Schema(
    "One row a `next` of the DataLoader inside of a step's wait.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("start_ns", pl.Int64),
    Column("end_ns", pl.Int64),
)
"""There is one, which fills the wait, unless the loop iterates something around the DataLoader,
which may take several batches or none for one of its own."""

STARTUP: Final = Schema(
    "One row a process.",
    Column("worker", pl.Int16),
    Column("pid", pl.Int32),
    Column("epoch", pl.Int32),
    Column("ready_s", pl.Float64, "from the start of its epoch until it was ready"),
    Column("first_sample_s", pl.Float64, "time of its first sample"),
    Column("typical_sample_s", pl.Float64, "median of its later samples"),
)

DEVICE: Final = Schema(
    "One row a piece of time in which a device that works behind the host had work.",
    Column("rank", pl.Int16),
    Column("device", pl.String),
    Column("kind", pl.Enum(KINDS), "a copy (h2d) or a step; null: nobody saw what it did"),
    Column("start_ns", pl.Int64, "the event before it"),
    Column("end_ns", pl.Int64, "the event after it"),
)
"""No row: the device had nothing to do. A rank without any row computes on the host."""

_NEVER_NULL: Final = {
    *("rank", "pid", "epoch", "batch", "step", "stage", "kind"),
    *("start_ns", "end_ns", "complete", "steady", "resource"),
}
"""Columns without empty places, in all tables of a run."""
LOGS: Final = "logs"
"""Where in a run's folder a process that records into it writes its logs meanwhile."""

_BATCH: Final = ["rank", "epoch", "batch"]


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    name: str = ""
    """What the user pointed at, in the user's words."""
    num_workers: int = 0
    """Worker processes of the loader; 0: the main process loads."""
    batch_size: int | None = None
    """Samples a batch; None where the dataset makes the batches or a sampler decides."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take, seconds; None where nothing was simulated."""
    has_step: bool = True
    """Whether batches were used, and not only taken."""
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers, or where it is not known."""
    persistent_workers: bool = False
    """Whether workers live on from epoch to epoch."""
    streams: bool = False
    """Whether workers take their samples out of a stream, each its part of it."""
    began_unix_ns: int | None = None
    """When its times begin, in ns since 1970."""


@dataclass(frozen=True, eq=False)
class Run(SavedResult):
    """One measurement of a loader: spans inside the workers, samples, steps, start-up.

    Tables show the steady state; start-up and warm-up are kept apart. `steady=False` gives all.
    """

    _folder: ClassVar[Path | None] = None
    """Where `ss.load` has read it from; an attribute of that run alone."""
    _view: ClassVar[str] = "run.VIEW"
    _contents: ClassVar = Contents(
        kind="run",
        noun="run",
        tables=(
            StoredTable("all_spans", SPANS, _NEVER_NULL, file="spans"),
            StoredTable("all_samples", SAMPLES, _NEVER_NULL, file="samples"),
            StoredTable("batches", {**BATCHES, "steady": pl.Boolean}, _NEVER_NULL),
            StoredTable("all_steps", STEPS, _NEVER_NULL, file="steps"),
            StoredTable("waits", WAITS, _NEVER_NULL),
            # A worker that was not hooked has no known process
            StoredTable("deliveries", DELIVERIES, _NEVER_NULL - {"pid"}),
            StoredTable("side_spans", SPANS, _NEVER_NULL),
            StoredTable("startup", STARTUP, _NEVER_NULL),
            StoredTable(
                "all_resources",
                RESOURCES,
                _NEVER_NULL,
                file="resources",
                words={"resource": NAMES},
            ),
            StoredTable("device_work", DEVICE, _NEVER_NULL - {"kind"}, file="device"),
        ),
        values={
            "settings": Settings,
            "first_batch_s": float | None,
            "machine": dict[str, Any],
            "notes": tuple[str, ...],
        },
        parts={"others": "run"},
        beside=(LOGS,),
    )

    all_spans: pl.DataFrame
    """Every span, columns of `run.decode.SPANS`, in the order in which each process wrote
    them."""
    all_samples: pl.DataFrame
    """What each sample was, columns of `run.decode.SAMPLES`."""
    batches: pl.DataFrame
    """Columns of `run.decode.BATCHES` and `steady`."""
    all_steps: pl.DataFrame
    """Columns of `STEPS`."""
    waits: pl.DataFrame
    """Columns of `WAITS`."""
    deliveries: pl.DataFrame
    """Columns of `DELIVERIES`."""
    side_spans: pl.DataFrame
    """Spans of the tracks beside the workers' own, columns of `run.decode.SPANS`: sending (the
    feeder thread of each worker), pinning, and the training loop: copies to the device, `forward`,
    `backward`, `optimizer`, the user's own parts, garbage collection, loops over other loaders."""
    startup: pl.DataFrame
    """Columns of `STARTUP`."""
    settings: Settings = field(default_factory=Settings)
    """What was asked for."""
    all_resources: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RESOURCES))
    """Columns of `RESOURCES`, of all processes of the recording; empty where nothing was
    sampled."""
    device_work: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=DEVICE))
    """Columns of `DEVICE`; empty where the host is the device."""
    first_batch_s: float | None = None
    """From starting the loader to its first batch; None when none came."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or could not be seen, in sentences."""
    others: tuple[Run, ...] = ()
    """The other loaders of the process (validation, say), those that took longest first."""

    @computed_apart
    def spans(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row a span: `rank, pid, worker, epoch, batch, sample, stage, kind` and times.

        First those of the workers' own work, which never overlap in a worker; then those beside it
        (see `side_spans`). `worker` is null in the main process, `sample` (place in the batch) is
        null for what belongs to the batch. Then `cpu_ns`, null where not read.

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
        steady = self.batches.filter("steady").select("rank", "pid", "epoch", "batch")
        return summary.of_batches(self.all_spans, steady)

    @cached_property
    @computed_apart
    def _beside(self) -> pl.DataFrame:
        """The spans beside the workers' work that belong to a steady step."""
        steady = self.steps().select(_BATCH).unique()
        return self.side_spans.join(steady, on=_BATCH, how="semi", maintain_order="left")

    @cached_property
    @computed_apart
    def unit_times(self) -> pl.DataFrame:
        """Time of each stage in each sample of the steady state, see `run.summary.unit_times`."""
        return summary.unit_times(self.work)

    @cached_property
    def profile(self) -> summary.Profile:
        """Where a sample's time goes."""
        times = self.unit_times  # asked for here: what a child computes on its way is lost with it
        return apart(lambda: summary.profile(times))

    @cached_property
    def work_stages(self) -> pl.DataFrame:
        """Where the workers' time goes, columns of `run.summary.STAGES`."""
        times = self.unit_times
        return apart(lambda: summary.stages(times))

    @cached_property
    @computed_apart
    def _stages(self) -> pl.DataFrame:
        stood = self.exposed() if self.all_steps.height else None
        beside = summary.stages(summary.unit_times(self._beside))
        return summary.of_loop(self.work_stages, beside, stood)

    def stages(self) -> pl.DataFrame:
        """Return where the time goes, the longest stage first; columns of `run.summary.STAGES`."""
        return self._stages

    def table(self) -> pl.DataFrame:
        """Return the same as `stages`."""
        return self._stages

    @cached_property
    @computed_apart
    def _samples(self) -> pl.DataFrame:
        return summary.samples(self.unit_times, self.all_samples)

    def samples(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row a sample: its origin and its cost, see `run.summary.samples`.

        Args:
            steady: only the steady state.
        """
        if steady:
            return self._samples
        spans, known = self.all_spans, self.all_samples
        return apart(lambda: summary.samples(summary.unit_times(spans), known))

    def steps(self, *, steady: bool = True) -> pl.DataFrame:
        """Return one row a step of the loop, columns of `STEPS` and `hidden_s`.

        `hidden_s` is how long of the wait, with `iter(loader)`, the device still had work: null
        where that is not known, 0 where the host is the device.

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
        """What works behind the host, in words; None where the host is the device."""
        return next(iter(self.device_work["device"]), None)

    @cached_property
    @computed_apart
    def _stalls(self) -> StallBreakdown:
        return self._break_down(self.steps())

    def _break_down(self, steps: pl.DataFrame) -> StallBreakdown:
        return break_down_stalls(
            steps, self.waits, self.deliveries, self.all_spans, self.side_spans
        )

    def resources(self, *, steady: bool = True) -> pl.DataFrame:
        """Return the use of each resource, sample by sample; columns of `RESOURCES`.

        Args:
            steady: only from the begin of the first steady step to the end of the last one.
        """
        return self._resources if steady else self.all_resources

    @cached_property
    @computed_apart
    def _resources(self) -> pl.DataFrame:
        """The samples that end in the steady state of their rank; none where no loop was seen."""
        used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
        ends = (
            self.steps()
            .group_by("rank")
            .agg(
                first_ns=pl.col("start_ns").min(),
                last_ns=(pl.col("end_ns") + (used_s * 1e9).cast(pl.Int64)).max(),
            )
        )
        inside = pl.col("end_ns").is_between("first_ns", "last_ns") | pl.col("value").is_null()
        within = self.all_resources.join(ends, on="rank", maintain_order="left").filter(inside)
        return within.drop("first_ns", "last_ns")

    @computed_apart
    def memory(self) -> pl.DataFrame:
        """Return each worker's memory in each epoch: resident, proportional and private bytes.

        Returns:
            Columns of `run.worker_memory.WORKER_MEMORIES`, of the whole recording.
        """
        found: pl.DataFrame = import_module("stallscope.run.worker_memory").worker_memory(self)
        return found

    def stalls(self) -> pl.DataFrame:
        """Return one row a stall: a wait that matters, as `model.thresholds` has it.

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
        """The accounting of the stalls, as the verdict reads it."""
        return exposure_of(self)

    @cached_property
    @computed_apart
    def _exposed(self) -> pl.DataFrame:
        return exposed(self.exposure, self._stalls.parts)

    def exposed(self) -> pl.DataFrame:
        """Return what stalls the training loop, the longest part first.

        The accounting: what stages hold of the stalls, as if workers never waited for a core.

        Returns:
            Columns of `model.attribution.EXPOSED`; the parts add up to all stalls.
        """
        return self._exposed

    @cached_property
    @computed_apart
    def _patterns(self) -> pl.DataFrame:
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

    def patterns(self) -> pl.DataFrame:
        """Return when and why the training loop stalls, each pattern with its p-value.

        Returns:
            Columns of `model.patterns.PATTERNS`, over all steps after the warm-up; what explains
            most comes first.
        """
        return self._patterns

    def trace(self, path: str | Path, *, profile: Any = None) -> Path:
        """Write everything as one timeline, for https://ui.perfetto.dev or chrome://tracing.

        It holds the steps of the loop with their waits and parts, each worker's batches, samples
        and stages, sending and pinning, an arrow from each batch to the step that used it, and all
        of it from the start on, also what is no part of the steady state. `args.steady` tells.

        Args:
            path: of the file, `.json` or (smaller) `.json.gz`; folders are made. An older trace is
                written over.
            profile: a `torch.profiler.profile` that ran meanwhile, or the file that it exported:
                its operators, kernels, copies and waits for the device get processes of their own,
                on the same time axis.

        Returns:
            The path.

        Raises:
            TraceFileError: it ends otherwise, is there and is no trace of ours, or cannot be
                written; `profile` is no profile, or of another time.
        """
        trace = import_module("stallscope.views.trace")
        profiled = [] if profile is None else trace.profiled(profile, self.settings.began_unix_ns)
        written: Path = apart(lambda: trace.write(self, Path(path), profiled))
        return written
