"""Cost of the begin of an epoch: starting workers, drawing indices, first samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.model import thresholds
from stallscope.model.batch_times import WAITED_S
from stallscope.stages import END_OF_EPOCH

if TYPE_CHECKING:
    from stallscope.run.result import Run


@dataclass(frozen=True)
class Starts:
    """Cost of the begin of epochs, beyond the usual time of their batches."""

    extra_s: float = 0.0
    """Extra time of an epoch's begin (`iter(loader)` and the first batch of each worker, beyond the
    time to make them), and of its end, where workers end; medians over `epochs`, seconds."""
    epoch_s: float | None = None
    """Length of an epoch without that, seconds; None where unknown."""
    epochs: int = 0
    """Observed starts; the very first counts only if it is the only one."""
    batches: int | None = None
    ended: bool = False
    """True: epochs ran until the loader had no more batches."""
    again: bool = False
    """True: the cost recurs at every epoch; False for an endless iteration."""
    first_s: float = 0.0
    """Length of a worker's first sample, seconds; median of the epochs."""
    filled_s: float = 0.0
    """Part of it beyond a usual sample."""
    ready_s: float = 0.0
    """Time from a worker's start to its first sample, seconds; median of the epochs."""
    drawn_s: float = 0.0
    """Part of `extra_s` in `iter(loader)` while all workers are idle: indices are drawn for them,
    or the sampler gets ready; median of the epochs, seconds."""
    before: int = 0
    """Batches taken from the loader before the very first step gets one."""
    before_s: float = 0.0
    """Wait of the loop for that first step's batch, seconds."""

    @property
    def share(self) -> float:
        """Share (0 to 1) of an epoch; 0 for a single start, or an unknown length."""
        if not self.again or self.epoch_s is None or self.extra_s <= 0:
            return 0.0
        return self.extra_s / (self.extra_s + self.epoch_s)

    @property
    def is_drawing(self) -> bool:
        """True: most of the cost is drawing indices (in a stream: making iterators)."""
        return self.drawn_s > 0 and self.drawn_s >= thresholds.DOMINATES * self.extra_s

    @property
    def is_filling(self) -> bool:
        """True: the workers' first samples cost more than any other part."""
        return self.filled_s > max(self.ready_s, thresholds.LEADS * self.extra_s)

    @property
    def slow_share(self) -> float:
        """`share` where it is large enough for a finding, else 0."""
        return self.share if self.share >= thresholds.STARTS else 0.0


def starts(run: Run, workers: int, *, persistent: bool, epoch_batches: int | None) -> Starts:
    """Measure the cost of starting workers, which may persist from epoch to epoch."""
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    steps = (
        run.steps(steady=False)
        .drop_nulls("wait_s")
        .with_columns(waited_s=WAITED_S, period_s=period_s)
        .with_columns(place=pl.int_range(pl.len()).over("rank", "epoch"))
    )
    if steps.is_empty():
        return Starts()
    begin = pl.col("place") < max(workers, 1)
    later = steps.filter(~begin)
    made_s = float((run.deliveries["made_ns"] - run.deliveries["taken_ns"]).median() or 0.0) / 1e9  # type: ignore[arg-type]  # a float
    usual_s, mean_s = later.select(pl.col("waited_s").mean(), pl.col("period_s").mean()).row(0)
    if later.is_empty():  # with starts alone, the time for a batch is the usual wait
        usual_s = made_s
        mean_s = usual_s + steps.select((pl.col("period_s") - pl.col("waited_s")).mean()).item()
    first = run.startup.group_by("epoch").agg(
        first_s=pl.col("first_sample_s").max(),
        filled_s=(pl.col("first_sample_s") - pl.col("typical_sample_s")).max(),
        ready_s=pl.col("ready_s").max(),
    )
    first_s, filled_s, ready_s = (
        float(first[name].median() or 0.0)  # type: ignore[arg-type]  # a float column
        for name in ("first_s", "filled_s", "ready_s")
    )
    until_ready_s = pl.col("ready_s").fill_null(0.0) if persistent else pl.col("ready_s")
    # Per round of the workers, as finishing together is no extra cost. Nor is the time for the
    # first batches, which workers that live on make, too: a step may take several of them
    awaited = run.waits.group_by("rank", "step").agg(batches=pl.len())
    rounds = (pl.col("batches").fill_null(0).sum() / max(workers, 1)).ceil()
    least_s = pl.max_horizontal(usual_s * pl.len(), made_s * rounds)
    each = (
        steps.filter(begin)
        .join(awaited, on=["rank", "step"], how="left", maintain_order="left")
        .group_by("epoch", maintain_order=True)
        .agg(
            extra_s=(pl.col("waited_s").sum() - least_s).clip(0),
            first_batches_s=least_s - usual_s * pl.len(),
            iter_s=pl.col("restart_s").first(),
        )
        .join(first, "epoch", how="left", maintain_order="left")
        .with_columns(drawn_s=(pl.col("iter_s") - until_ready_s).clip(0))
    )
    ends = run.side_spans.filter(pl.col("stage").cast(pl.String) == END_OF_EPOCH.name)
    end_s = ends.select(((pl.col("end_ns") - pl.col("start_ns")) / 1e9).median()).item() or 0.0
    seen = each.filter(pl.col("epoch") > pl.col("epoch").min()) if each.height > 1 else each
    medians = seen.select(pl.col("extra_s", "drawn_s", "first_batches_s").median()).row(0)
    extra_s, drawn_s, first_batches_s = (float(median or 0.0) for median in medians)
    # An iterator around a loader may be longer than the loader's epoch
    whole = steps.group_by("epoch", maintain_order=True).len()[:-1]
    length: Any = whole["len"].max() or epoch_batches
    # Longer than an epoch: such a loader never ends its workers
    goes_on = length is not None and bool((steps["place"] >= length).any())
    # Batches that arrived before that of the first step, for no step
    of_first = steps.filter(pl.col("epoch") == steps["epoch"][0])
    arrived = run.deliveries.filter(pl.col("epoch") == steps["epoch"][0])
    earlier = arrived.filter(pl.col("batch") < steps["batch"][0])
    step: Any = of_first["batch"].diff().median() or 1.0  # an iterator may merge batches for a step
    return Starts(
        # Persistent workers need no start: the loop waits only while indices are drawn
        extra_s=drawn_s if persistent else extra_s + float(end_s),
        first_s=first_s,
        filled_s=filled_s,
        ready_s=ready_s,
        epoch_s=None if length is None else length * mean_s + first_batches_s,
        epochs=seen.height,
        batches=length,
        ended=not ends.is_empty(),
        again=bool(workers) and not goes_on,
        drawn_s=drawn_s,
        before=max(int(earlier.height - step + 1), 0),
        before_s=steps["waited_s"][0],
    )
