"""Time of the training loop: its stalls, the begin of its epochs; in numbers and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope import stages
from stallscope.model import attribution
from stallscope.model.attribution import hidden_known
from stallscope.model.batch_times import WAITED_S
from stallscope.model.thresholds import HARDLY, LEADS, MOSTLY, ONE_OF_MANY, OWN_PART
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.model.batch_times import RunTables


NO_LOOP: Final = "No training loop was recorded, so its waits are unknown"
UNKNOWN: Final = "it is unknown whether the device was idle"
ALIKE: Final = 0.85
"""Least ratio to the longest part for a second part in the sentence."""
REST: Final = "rest of the step"
"""Name of the rest of a step beside its known parts."""
MODEL: Final = tuple(
    stage.name
    for stage in (stages.UNTIL_BACKWARD, stages.FORWARD, stages.BACKWARD, stages.OPTIMIZER)
)
"""Parts of a step in which the model computes, in order."""
_ROUNDING: Final = 1e-9
"""Share of the time within the errors of sums."""
OWN_WORDS: Final = {
    attribution.EARLIER: "a worker still busy with an earlier batch",
    attribution.START: "the start of the workers",
    attribution.QUEUED: "batches waiting in a queue",
    attribution.SEND: "sending batches from the workers",
    attribution.UNPICKLE: "receiving batches",
    attribution.PIN: "pinning batches",
    attribution.MAIN: "the loader's own work in the main process",
    attribution.MAIN_GARBAGE: "garbage collection in the main process",
    attribution.NOT_RECORDED: "making batches that were not recorded",
}
"""Words for parts outside of the user's pipeline."""


@dataclass(frozen=True)
class LoopBreakdown:
    """Division of the time of a training loop; seconds, all steps together."""

    steps: int
    ranks: int
    stalls: int
    stall_s: float
    wait_s: float
    """Seconds of waits that are too short to matter."""
    h2d_s: float
    step_s: float
    """Use of batches: forward, backward, optimizer."""
    other_s: float
    longest_wait_s: float
    hidden_s: float = 0.0
    """Waits while a device that works behind the host still had work."""
    unknown_s: float = 0.0
    """Waits in which the device may have been idle or not."""
    parts: tuple[tuple[str, str, float], ...] = ()
    """Name, kind and seconds of the parts of `step_s` and `other_s` that have a name."""

    @property
    def total_s(self) -> float:
        """Seconds of the whole loop."""
        waits_s = self.stall_s + self.hidden_s + self.unknown_s + self.wait_s
        return waits_s + self.h2d_s + self.step_s + self.other_s

    @property
    def stall_share(self) -> float:
        """Share (0 to 1) of the loop's time in stalls."""
        return self.share(self.stall_s)

    @property
    def hardly_waits(self) -> bool:
        """True where a faster loader would gain next to nothing."""
        return self.stall_share < HARDLY and self.is_known

    @property
    def is_known(self) -> bool:
        """True where the cost of waits is known; waits while the device works cost nothing."""
        return self.share(self.unknown_s) < HARDLY

    def share(self, part_s: float) -> float:
        """Return a part as a share (0 to 1) of the loop's time."""
        return part_s / self.total_s if self.total_s else 0.0

    def pieces(self, smallest: float = 0.0) -> list[tuple[str, str, float]]:
        """Return name, kind and seconds of all parts above 0, in the order of a step.

        The kind is "stall", "wait" or one of `stallscope.stages.KINDS`. Parts of a smaller share
        than `smallest` belong to the rest.
        """
        parts = [part for part in self.parts if self.share(part[2]) >= smallest]
        of_step = [part for part in parts if part[1] == stages.STEP.kind]
        beside = [part for part in parts if part[1] != stages.STEP.kind]
        step_s = self.step_s - sum(part_s for *_, part_s in of_step)
        other_s = self.other_s - sum(part_s for *_, part_s in beside)
        every = [
            ("stall", "stall", self.stall_s),
            ("waits while the device works", "wait", self.hidden_s),
            ("waits with the device unknown", "wait", self.unknown_s),
            ("short waits", "wait", self.wait_s),
            ("copies", "h2d", self.h2d_s),
            *of_step,
            (REST if of_step else stages.STEP.name, stages.STEP.kind, step_s),
            *beside,
            (stages.OTHER.name, stages.OTHER.kind, other_s),
        ]
        least_s = _ROUNDING * self.total_s  # rounding errors of differences
        return [piece for piece in every if piece[2] > least_s]


def loop_breakdown(
    steps: pl.DataFrame, stalls: pl.DataFrame, side_spans: pl.DataFrame | None = None
) -> LoopBreakdown | None:
    """Divide the time of these steps, with these stalls; None: no wait was recorded.

    The step is divided by the spans of the run; None: it stays whole.
    """
    timed = hidden_known(steps).drop_nulls(["wait_s", "start_ns", "end_ns"])
    if timed.is_empty():
        return None
    stall_s = float(stalls["stall_s"].sum())
    waits_s = timed.select(pl.sum_horizontal("wait_s", "restart_s").alias("wait_s"))["wait_s"]
    hidden_s = float(timed["hidden_s"].sum())
    unknown_s = float(waits_s.filter(timed["hidden_s"].is_null()).sum())
    return LoopBreakdown(
        steps=timed.height,
        ranks=timed["rank"].n_unique(),
        stalls=stalls.height,
        stall_s=stall_s,
        wait_s=max(float(waits_s.sum()) - stall_s - hidden_s - unknown_s, 0.0),
        h2d_s=float(timed["h2d_s"].sum()),
        step_s=float(timed["step_s"].sum()),
        other_s=float(timed["other_s"].sum()),
        longest_wait_s=float(waits_s.max()),  # type: ignore[arg-type]  # a float column
        hidden_s=hidden_s,
        unknown_s=unknown_s,
        parts=() if side_spans is None else _parts(timed, side_spans),
    )


def _parts(steps: pl.DataFrame, side_spans: pl.DataFrame) -> tuple[tuple[str, str, float], ...]:
    """Return the loop's named parts: the model's in their order, then the longest first."""
    batch = ["rank", "epoch", "batch"]
    mine = side_spans.filter(
        pl.col("worker").is_null(),
        pl.col("kind").cast(pl.String).is_in([stages.STEP.kind, stages.OTHER.kind]),
    ).join(steps.select(batch).unique(), on=batch, how="semi")
    took_s = ((pl.col("end_ns") - pl.col("start_ns")) / 1e9).sum()
    sums = (
        mine.group_by(pl.col("stage", "kind").cast(pl.String))
        .agg(took_s=took_s)
        .filter(~pl.col("stage").is_in([stages.STEP.name, stages.OTHER.name]))
    )
    rows = sums.select("stage", "kind", "took_s").rows()
    order = {stage: place for place, stage in enumerate(MODEL)}
    return tuple(sorted(rows, key=lambda row: (order.get(row[0], len(order)), -row[2], row[0])))


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
        return self.drawn_s > 0 and self.drawn_s >= MOSTLY * self.extra_s

    @property
    def is_filling(self) -> bool:
        """True: the workers' first samples cost more than any other part."""
        return self.filled_s > max(self.ready_s, LEADS * self.extra_s)

    @property
    def slow_share(self) -> float:
        """`share` where it is large enough for a finding, else 0."""
        return self.share if self.share >= HARDLY else 0.0


def starts(run: RunTables, workers: int, *, persistent: bool, epoch_batches: int | None) -> Starts:
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
    ends = run.side_spans.filter(pl.col("stage").cast(pl.String) == stages.END_OF_EPOCH.name)
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


def sentence(
    time: LoopBreakdown | None,
    exposed: pl.DataFrame,
    workers: int,
    name: Callable[[str], str] = str,
) -> str:
    """Return the stalled share of the loop's time in words, with the longest part.

    Without `workers` (0) the main process loads; `name` formats the name of a stage.
    """
    if time is None:
        return NO_LOOP
    if not time.is_known:
        return f"The training loop waits {share(time.share(time.unknown_s))} of the time; {UNKNOWN}"
    hidden = f"it waits {share(time.share(time.hidden_s))} of the time while its device works"
    if not time.stalls:
        longest = f"the longest of {count(time.steps, 'wait')} takes {seconds(time.longest_wait_s)}"
        return f"The training loop never stalls: {hidden if time.hidden_s else longest}"
    if time.hardly_waits:
        return f"The training loop hardly waits: it stalls {share(time.stall_share)} of the time"
    stalls = f"The training loop stalls {share(time.stall_share)} of the time"
    if time.hidden_s:
        stalls = f"The device is idle {share(time.stall_share)} of the time, waiting for data"
    elif not time.step_s:
        stalls = "The training loop has no step, so it only waits for batches"
    if exposed.is_empty():
        return stalls
    where = ", in the workers" if workers else ", in the main process"
    return f"{stalls}; {_largest(exposed, where, name)}"


def _largest(exposed: pl.DataFrame, where: str, name: Callable[[str], str]) -> str:
    """Return the largest part of the stalls; as in the verdict, transforms may be one part."""
    first, *others = exposed.head(2).iter_rows(named=True)
    transforms = exposed.filter(kind="transform")["share"].to_list()
    together = sum(transforms)
    if together > first["share"] and max(transforms) < ONE_OF_MANY * together:
        return f"{share(together)} of that is transforms{where}"
    named = [first, *(part for part in others if part["share"] >= ALIKE * first["share"])]
    words = [f"{share(part['share'])} {_word(part, name)}" for part in named]
    words[0] = words[0].replace(" ", " of that is ", 1)
    end = "" if any(is_own(part["part"], part["kind"]) for part in named) else where
    return f"{' and '.join(words)}{end}"


def leading(patterns: pl.DataFrame) -> dict[str, Any] | None:
    """Return the claimed pattern with the largest share, if the share is large enough."""
    claimed = patterns.filter(pl.col("chance").is_not_null(), pl.col("share") >= OWN_PART)
    return next(claimed.head(1).iter_rows(named=True), None)


def is_own(part: str, kind: str | None) -> bool:
    """Return whether a part of a stall lies outside of the user's pipeline."""
    return attribution.KIND_OF.get(part, "") == kind


def _word(part: dict[str, Any], name: Callable[[str], str]) -> str:
    stage: str = part["part"]
    if is_own(stage, part["kind"]):
        return OWN_WORDS.get(stage, stage)
    return stages.READING_WORDS.get(stage) or name(stage)
