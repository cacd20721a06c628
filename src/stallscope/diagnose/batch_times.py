"""How long workers take for a batch, and how that compares with what the loop needs.

What it costs to start workers, and how often that happens: once, or at every epoch.

What single samples say: which take far longer than the others, and whether size decides.

How the loader was set up, as far as rules ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.stages import END_OF_EPOCH
from stallscope.stalls.causes import OUTLIER, USUAL

if TYPE_CHECKING:
    from stallscope.run.result import Run


_FEWEST: Final = 4
"""Batches of a worker below which nothing is said about it."""


@dataclass(frozen=True)
class BatchTimes:
    """Batches of the steady state, from where a worker takes them up to where they are made."""

    batch_s: float
    """Mean time that a worker takes to make a batch, seconds."""
    usual_s: float
    """Median of the same."""
    use_s: float
    """Mean time in which the loop uses a batch, seconds, without any wait."""
    period_s: float
    """Mean time from one step to the next, seconds."""
    workers: int
    """That make batches; at least 1."""
    by_worker_s: dict[int, float] = field(default_factory=dict)
    """Median time for a batch of each worker that made enough of them."""

    @property
    def load(self) -> float:
        """What the workers need over what the step leaves them; above 1 they cannot keep up."""
        return self.batch_s / (self.workers * self.use_s) if self.use_s else float("inf")

    @property
    def busy_share(self) -> float:
        """Share (0 to 1) of their time in which workers make batches."""
        return min(self.batch_s / (self.workers * self.period_s), 1.0) if self.period_s else 0.0


def making(run: Run, workers: int) -> BatchTimes | None:
    """How long batches take to make; None where none was seen on its way.

    Args:
        run: the loop.
        workers: worker processes; 0: the main process makes the batches.
    """
    batch, made_s = ["rank", "epoch", "batch"], (pl.col("made_ns") - pl.col("taken_ns")) / 1e9
    steps = run.steps().drop_nulls("wait_s")
    known = run.deliveries.join(steps.select(batch).unique(), on=batch, how="semi")
    made = known.with_columns(made_s=made_s).drop_nulls("made_s")
    if made.is_empty() or steps.is_empty():
        return None
    used_s = steps.select(pl.sum_horizontal("h2d_s", "step_s", "other_s").mean()).item()
    waited_s = steps.select(pl.sum_horizontal("wait_s", "restart_s").mean()).item()
    each = made.group_by("worker").agg(pl.col("made_s").median(), many=pl.len()).drop_nulls()
    enough = each.filter(pl.col("many") >= _FEWEST).select("worker", "made_s")
    return BatchTimes(
        batch_s=float(made["made_s"].to_numpy().mean()),
        usual_s=float(np.median(made["made_s"].to_numpy())),
        use_s=float(used_s),
        period_s=float(used_s + waited_s),
        workers=max(workers, 1),
        by_worker_s=dict(enough.iter_rows()),
    )


@dataclass(frozen=True)
class Starts:
    """The begin of epochs, beside the time that their batches take anyhow."""

    extra_s: float = 0.0
    """What an epoch's begin takes longer than its other steps (`iter(loader)` and the first batch
    of each worker), and its end, where workers end; medians over `epochs`, seconds."""
    epoch_s: float | None = None
    """What a whole epoch takes otherwise, seconds; None where its length is not known."""
    epochs: int = 0
    """Begins that were seen; the first one of all counts only where there is no other."""
    again: bool = False
    """Whether it happens at every epoch: workers that do not live on."""

    @property
    def share(self) -> float:
        """Share (0 to 1) of an epoch; 0 where it happens once, or nothing is known of it."""
        if not self.again or self.epoch_s is None or self.extra_s <= 0:
            return 0.0
        return self.extra_s / (self.extra_s + self.epoch_s)


def starts(run: Run, setup: Setup) -> Starts:
    """What starting workers costs.

    Args:
        run: the loop as it is.
        setup: what is known of the loader.
    """
    waited_s = pl.sum_horizontal("wait_s", "restart_s")
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    steps = (
        run.all_steps.drop_nulls("wait_s")
        .with_columns(waited_s=waited_s, period_s=period_s)
        .with_columns(place=pl.int_range(pl.len()).over("rank", "epoch"))
    )
    if steps.is_empty():
        return Starts()
    begin = pl.col("place") < max(setup.num_workers, 1)
    later = steps.filter(~begin)
    usual_s, mean_s = (
        (later if later.height else steps)
        .select(pl.col("waited_s").mean(), pl.col("period_s").mean())
        .row(0)
    )
    # A round of the workers at once: that they all finish together is no extra cost
    each = (
        steps.filter(begin)
        .group_by("epoch", maintain_order=True)
        .agg(extra_s=(pl.col("waited_s").sum() - usual_s * pl.len()).clip(0))
    )
    ends = run.side_spans.filter(pl.col("stage").cast(pl.String) == END_OF_EPOCH.name)
    end_s = ends.select(((pl.col("end_ns") - pl.col("start_ns")) / 1e9).median()).item() or 0.0
    seen = each.filter(pl.col("epoch") > pl.col("epoch").min()) if each.height > 1 else each
    length = setup.epoch_batches
    return Starts(
        extra_s=float(seen["extra_s"].median() or 0.0) + float(end_s),  # type: ignore[arg-type]  # a float column
        epoch_s=None if length is None else length * mean_s,
        epochs=seen.height,
        again=bool(setup.num_workers) and not setup.persistent and not _goes_on(steps, length),
    )


def _goes_on(steps: pl.DataFrame, length: int | None) -> bool:
    """Whether one iteration is longer than an epoch: a loader that never ends its workers."""
    return length is not None and bool((steps["place"] >= length).any())


_FEWEST_SAMPLES: Final = 10
"""Samples below which no share of the differences is told."""
_SEVERAL: Final = 3
"""Samples of a batch of which one can stand out."""


@dataclass(frozen=True)
class Spikes:
    """Samples that take far longer than the usual one (the limit is that of the patterns)."""

    count: int = 0
    """How many."""
    one_in: float = float("inf")
    """Of so many samples, one is."""
    share: float = 0.0
    """Share (0 to 1) of all samples' time that they take beyond the usual one."""
    typical_s: float = 0.0
    """Median of them, seconds."""
    usual_s: float = 0.0
    """Median of all samples, seconds."""


@dataclass(frozen=True)
class FetchSpeed:
    """The samples' fetch."""

    sample_s: float | None = None
    """Median, seconds a sample."""
    bytes_per_s: float | None = None
    """Bytes of the files that were read over the time of the loop; None where sizes are unknown."""
    by_size: float | None = None
    """Share (0 to 1) of the differences between samples that goes with their size."""


def spikes(run: Run) -> Spikes:
    """The samples of the steady state that stand out, of all and of their own batch.

    Where all samples of a batch are slow together, it is the batch that is.
    """
    samples = run.samples().drop_nulls("total_s")
    took_s = samples["total_s"].to_numpy()
    if took_s.size < _FEWEST_SAMPLES:
        return Spikes()
    median_s, usual_s = (float(np.quantile(took_s, share)) for share in (0.5, USUAL))
    limit_s = max(OUTLIER * median_s, median_s + OUTLIER * (usual_s - median_s))
    together = pl.col("total_s").median().over("rank", "epoch", "batch")
    alone = pl.len().over("rank", "epoch", "batch") < _SEVERAL
    outside = alone | (pl.col("total_s") > OUTLIER * together)
    slow = samples.filter((pl.col("total_s") > limit_s) & outside)["total_s"].to_numpy()
    if not slow.size:
        return Spikes(usual_s=median_s)
    return Spikes(
        count=int(slow.size),
        one_in=took_s.size / slow.size,
        share=float((slow - median_s).sum() / took_s.sum()),
        typical_s=float(np.median(slow)),
        usual_s=median_s,
    )


def reading(run: Run) -> FetchSpeed:
    """What fetching the samples of the steady state took."""
    samples = run.samples()
    fetched = samples.filter(pl.col("fetch_s") > 0)
    if fetched.is_empty():
        return FetchSpeed()
    known = fetched.drop_nulls("bytes")
    steps, recorded = run.steps(), samples.select("rank", "epoch", "batch").n_unique()
    length_s = steps.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item()
    rate = by_size = None
    if known.height >= _FEWEST_SAMPLES and length_s:
        of_each = max(steps.height / max(recorded, 1), 1.0)  # not every batch is recorded
        rate = float(known["bytes"].sum()) * of_each / length_s
        sizes, took_s = known["bytes"].to_numpy().astype(float), known["fetch_s"].to_numpy()
        if sizes.std() and took_s.std():
            by_size = float(np.corrcoef(sizes, took_s)[0, 1] ** 2)
    return FetchSpeed(float(np.median(fetched["fetch_s"].to_numpy())), rate, by_size)


@dataclass(frozen=True)
class Setup:
    """How the loader was set up, as far as it can be read from it."""

    num_workers: int = 0
    """Worker processes; 0: the main process loads."""
    cores: float = 1.0
    """That its processes may use."""
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers, or where it is not known."""
    persistent: bool = False
    """Whether workers live on from epoch to epoch."""
    epoch_batches: int | None = None
    """Batches of an epoch; None where the loader has no length."""
    has_step: bool = True
    """Whether batches were used by a step."""
    simulated: bool = False
    """Whether the step was only a timer."""
    on_gpu: bool = False
    """Whether the step computes on a GPU."""
