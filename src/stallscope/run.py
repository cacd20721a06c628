"""The one saved value in the middle: what was measured.

Everything before makes it, everything after reads it.

On disk a run is a folder of JSON and Parquet with a schema version, never pickle, so opening
somebody else's run is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from stallscope.result import Result

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

STEPS: Schema = {
    "step": pl.Int32,
    "epoch": pl.Int32,
    "batch": pl.Int32,
    "worker": pl.Int16,
    "wait_s": pl.Float64,
    "pin_s": pl.Float64,
    "h2d_s": pl.Float64,
    "step_s": pl.Float64,
    "other_s": pl.Float64,
}
"""One row a step of the training loop; null is what was not measured."""

STARTUP: Schema = {
    "worker": pl.Int16,
    "pid": pl.Int32,
    "epoch": pl.Int32,
    "ready_s": pl.Float64,
    "first_sample_s": pl.Float64,
    "typical_sample_s": pl.Float64,
}
"""One row a process: when it was ready for its first batch (from the start of its epoch), what
its first sample cost, and what one of its samples costs later (median)."""


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


@dataclass(frozen=True, eq=False)
class Run(Result):
    """One measurement of a loader: spans inside the workers, samples, steps, start-up.

    Tables show the steady state; start-up and warm-up are kept apart. `steady=False` gives all.
    """

    _view: ClassVar[str] = "stallscope.views.run"

    all_spans: pl.DataFrame
    """Every span, columns of `analyze.spans.SPANS`, in the order in which each process wrote
    them."""
    all_samples: pl.DataFrame
    """What each sample was, columns of `analyze.spans.SAMPLES`."""
    batches: pl.DataFrame
    """Columns of `analyze.spans.BATCHES` and `steady`."""
    all_steps: pl.DataFrame
    """Columns of `STEPS`."""
    startup: pl.DataFrame
    """Columns of `STARTUP`."""
    settings: Settings = field(default_factory=Settings)
    """What was asked for."""
    first_batch_s: float | None = None
    """From starting the loader to its first batch; None when none came."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or could not be seen, in sentences."""

    @cached_property
    def _steady(self) -> pl.DataFrame:
        keys = ["rank", "pid", "epoch", "batch"]
        steady = self.batches.filter("steady").select(keys)
        from stallscope.analyze import summary

        return summary.of_batches(self.all_spans, steady)

    def spans(self, *, steady: bool = True) -> pl.DataFrame:
        """One row a span: `rank, pid, worker, epoch, batch, sample, stage, kind, start_ns, end_ns`.

        Spans of one process never overlap. `worker` is null in the main process, `sample` (place
        in the batch) is null for what belongs to the batch. Then `cpu_ns`, null where not read.

        Args:
            steady: only the steady state.
        """
        return self._steady if steady else self.all_spans

    @cached_property
    def _stages(self) -> pl.DataFrame:
        from stallscope.analyze import summary

        return summary.stages(self._steady)

    def stages(self) -> pl.DataFrame:
        """Where the time goes, the longest stage first; columns of `analyze.summary.STAGES`."""
        return self._stages

    def table(self) -> pl.DataFrame:
        """The same as `stages`."""
        return self._stages

    @cached_property
    def _samples(self) -> pl.DataFrame:
        from stallscope.analyze import summary

        return summary.samples(self._steady, self.all_samples)

    def samples(self, *, steady: bool = True) -> pl.DataFrame:
        """One row a sample: where it came from and what it cost, see `analyze.summary.samples`.

        Args:
            steady: only the steady state.
        """
        from stallscope.analyze import summary

        return self._samples if steady else summary.samples(self.all_spans, self.all_samples)

    def steps(self, *, steady: bool = True) -> pl.DataFrame:
        """One row a step of the loop, columns of `STEPS`.

        Args:
            steady: only the steps whose batch is part of the steady state.
        """
        if not steady:
            return self.all_steps
        keys = ["epoch", "batch"]
        steady_batches = self.batches.filter("steady").select(keys)
        return self.all_steps.join(steady_batches, on=keys, how="semi", maintain_order="left")

    def save(self, folder: str | Path) -> Path:
        """Write the run as JSON and Parquet; `load` reads it back.

        Args:
            folder: a new or empty folder, or one with an older run to write over.

        Returns:
            The folder.

        Raises:
            RunFormatError: the folder holds something else, or cannot be written.
        """
        from stallscope import runfile

        return runfile.save(self, Path(folder))
