"""Time of the training loop: its stalls and their causes, in numbers and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope import stages
from stallscope.model import lifecycle
from stallscope.model.attribution import hidden_known
from stallscope.model.thresholds import HARDLY, LEADING_SHARE
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from collections.abc import Callable


NO_LOOP: Final = "No training loop was recorded, so its waits are unknown"
UNKNOWN: Final = "it is unknown whether the device was idle"
ALIKE: Final = 0.85
"""Least ratio to the longest part for a second part in the sentence."""
REST: Final = "rest of the step"
"""Name of the rest of a step beside its known parts."""
NOTHING: Final = 0.01
"""Least share of the loop's time for a division of its stalls."""
MODEL: Final = tuple(
    stage.name
    for stage in (stages.UNTIL_BACKWARD, stages.FORWARD, stages.BACKWARD, stages.OPTIMIZER)
)
"""Parts of a step in which the model computes, in order."""
_ROUNDING: Final = 1e-9
"""Share of the time within the errors of sums."""
OWN_WORDS: Final = {
    lifecycle.EARLIER: "a worker still on an earlier batch",
    lifecycle.START: "the start of the workers",
    lifecycle.QUEUED: "batches that lie in a queue",
    lifecycle.SEND: "sending batches from the workers",
    lifecycle.UNPICKLE: "receiving batches",
    lifecycle.PIN: "pinning batches",
    lifecycle.MAIN: "the loader's own work in the main process",
    lifecycle.MAIN_GARBAGE: "garbage collection in the main process",
    lifecycle.NOT_RECORDED: "the making of batches that were not recorded",
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
    first, *others = exposed.head(2).iter_rows(named=True)
    named = [first, *(part for part in others if part["share"] >= ALIKE * first["share"])]
    words = [f"{share(part['share'])} {_word(part, name)}" for part in named]
    words[0] = words[0].replace(" ", " of that is ", 1)
    where = ", in the workers" if workers else ", in the main process"
    end = "" if any(is_own(part["part"], part["kind"]) for part in named) else where
    return f"{stalls}; {' and '.join(words)}{end}"


def leading(patterns: pl.DataFrame) -> dict[str, Any] | None:
    """Return the claimed pattern with the largest share, if the share is large enough."""
    claimed = patterns.filter(pl.col("chance").is_not_null(), pl.col("share") >= LEADING_SHARE)
    return next(claimed.head(1).iter_rows(named=True), None)


def is_own(part: str, kind: str | None) -> bool:
    """Return whether a part of a stall lies outside of the user's pipeline."""
    return lifecycle.KIND_OF.get(part, "") == kind


def _word(part: dict[str, Any], name: Callable[[str], str]) -> str:
    stage: str = part["part"]
    if is_own(stage, part["kind"]):
        return OWN_WORDS.get(stage, stage)
    return stages.READING_WORDS.get(stage) or name(stage)
