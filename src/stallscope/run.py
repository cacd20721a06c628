"""The one saved value in the middle: what was measured.

Everything before makes it, everything after reads it.

On disk a run is a folder of JSON and Parquet with a schema version, never pickle, so opening
somebody else's run is safe.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.errors import RunFormatError
from stallscope.result import Result

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

SCHEMA_VERSION: Final = 1

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
    start_method: str = "fork"
    """How the workers are started."""


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
    elapsed_s: float = 0.0
    """Length of the recording."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or could not be seen, in sentences."""

    @cached_property
    def _steady(self) -> pl.DataFrame:
        keys = ["rank", "pid", "epoch", "batch"]
        steady = self.batches.filter("steady").select(keys)
        return self.all_spans.join(steady, on=keys, how="semi", maintain_order="left")

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
            RunFormatError: the folder holds something else.
        """
        return save(self, Path(folder))


_TABLES: Final = {
    "spans": "all_spans",
    "samples": "all_samples",
    "batches": "batches",
    "steps": "all_steps",
    "startup": "startup",
}
_PLAIN: Final = ("first_batch_s", "elapsed_s", "machine", "notes")


def save(run: Run, folder: Path) -> Path:
    """Write a run, see `Run.save`."""
    known = {"run.json", *(f"{name}.parquet" for name in _TABLES)}
    if folder.exists() and not {path.name for path in folder.iterdir()} <= known:
        raise RunFormatError(f"{folder} holds other files; give a new folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    for name, attribute in _TABLES.items():
        getattr(run, attribute).write_parquet(folder / f"{name}.parquet")
    plain = {name: getattr(run, name) for name in _PLAIN}
    head = {"schema_version": SCHEMA_VERSION, "settings": vars(run.settings), **plain}
    # Last, so that a folder with a run.json is a whole run.
    (folder / "run.json").write_text(json.dumps(head, indent=2), encoding="utf-8")
    return folder


def load(path: str | Path) -> Run:
    """Read a run that `Run.save` wrote. Runs nothing that the folder says.

    Args:
        path: the run's folder.

    Raises:
        RunFormatError: no run there, or one of another schema version.
    """
    folder = Path(path)
    head = _head(folder)
    if head.get("schema_version") != SCHEMA_VERSION:
        raise RunFormatError(
            f"{folder} has schema version {head.get('schema_version')!r}; this stallscope reads "
            f"version {SCHEMA_VERSION}. Open it with the stallscope that wrote it"
        )
    try:
        tables: dict[str, Any] = {
            a: pl.read_parquet(folder / f"{n}.parquet") for n, a in _TABLES.items()
        }
        plain = {name: head[name] for name in _PLAIN}
        plain["notes"] = tuple(plain["notes"])
        return Run(**tables, settings=Settings(**head["settings"]), **plain)
    except (OSError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise RunFormatError(f"{folder} is not a whole run: {error}") from error


def _head(folder: Path) -> dict[str, Any]:
    try:
        head = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFormatError(
            f"{folder} is not a run: it has no run.json. Give a folder that `Run.save` or "
            "`stallscope record --out` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise RunFormatError(f"{folder}/run.json cannot be read: {error}") from error
    if not isinstance(head, dict):
        raise RunFormatError(f"{folder}/run.json is not a run's: it holds no object")
    return head
