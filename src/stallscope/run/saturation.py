"""Which resource was saturated while the loop stalled; or that none was, which says as much.

Samples are put together to moments of half a second, since the kernel counts CPU time in steps of
10 ms. In a moment a resource is saturated when its use reaches a share of its limit; what has no
known limit (bytes a second of a disk, say) is never called saturated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.model.lifecycle import covered_s
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import FULL, HARDLY, OTHERS, SATURATED
from stallscope.stages import (
    CORE,
    DISK_BUSY,
    GPU,
    LOOP,
    MEMORY,
    NAMES,
    QUEUED,
    QUOTA,
    RECEIVED,
    SAMPLER,
    SENT,
    SHM,
    WORKER,
)
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.run.result import Run


MOMENT_NS: Final = 500_000_000
FEWEST: Final = 4
"""Moments; with fewer, nothing is said."""
MOSTLY: Final = 0.5
"""A resource that was saturated for this share of the time in stalls is named."""
WANTED: Final = 0.5
"""Share of its time in which a process computes, or waits for a core, from which on it needs the
cores; others may saturate them while it waits for something else."""

THRESHOLDS: Final = {
    CORE: SATURATED,
    QUOTA: SATURATED,
    MEMORY: FULL,
    SHM: FULL,
    DISK_BUSY: SATURATED,
    RECEIVED: SATURATED,
    SENT: SATURATED,
    GPU: SATURATED,
    WORKER: SATURATED,
    LOOP: SATURATED,
}
"""What can be saturated. GPU memory is not in it: torch keeps what it once had. A worker that
computes on one core all the time is saturated, too: there could be more of them."""
_FULL: Final = ("stalled_share", "full_share")
TOGETHER: Final = (CORE, WORKER)
"""Judged as one: all cores, all workers."""
OWN: Final = (WORKER, LOOP)
"""No resources of the machine; each has one core's time as its limit."""

USES: Final = {
    "resource": pl.String,
    "device": pl.String,
    "devices": pl.Int64,
    "threshold": pl.Float64,
    "limit": pl.Float64,
    "mean_share": pl.Float64,
    "full_share": pl.Float64,
    "stalled_share": pl.Float64,
    "saturated": pl.Boolean,
}
"""One row a resource with a limit: how much of it was used on average, for which share of the
time at least `threshold` of it was, and the same of the time in stalls (null without stalls).
`device` is null where all `devices` are judged as one. `saturated` says that it mattered: the
makers of the batches needed it."""

MOST_BINS: Final = 300
"""More cannot be told apart at a notebook's width."""
SHORTEST_S: Final = 0.2
"""Of a bin: below it, CPU time that is counted in steps of 10 ms is more step than time."""


class LoopStall(NamedTuple):
    """The loop that was judged."""

    rank: int
    share: float
    """Share (0 to 1) of its time in which it stalled."""


@dataclass(frozen=True)
class Saturation:
    """What was saturated while the loop stalled."""

    uses: pl.DataFrame
    """Columns of `USES`, the machine's resources first."""
    moments: int
    """Half seconds that were judged."""
    loop: LoopStall | None
    """None where no loop was recorded."""
    others_share: float | None
    """Share of the cores' time that other processes had; None where that is not known."""

    @property
    def saturated(self) -> list[dict[str, Any]]:
        """The rows of what was saturated; the machine's first."""
        return self.uses.filter("saturated").to_dicts()

    @property
    def matters(self) -> bool:
        """Whether the loop stalled long enough, and was sampled long enough, to judge by it."""
        return self.moments >= FEWEST and self.loop is not None and self.loop.share >= HARDLY


def find_saturated(run: Run) -> Saturation:
    """Return which resource was saturated in the steady state of a run."""
    workers = run.settings.num_workers
    return saturation(run.resources(), run.steps(), run.stalls(), workers=workers)


def saturation(
    resources: pl.DataFrame, steps: pl.DataFrame, stalls: pl.DataFrame, *, workers: int
) -> Saturation:
    """Return what was saturated in the steady state of the rank that stalled longest."""
    loops = [
        LoopStall(rank, time.stall_share)
        for rank in steps["rank"].unique().sort()
        if (time := loop_breakdown(steps.filter(rank=rank), stalls.filter(rank=rank)))
    ]
    loop = max(loops, key=lambda loop: loop.share, default=None)
    rank = loop.rank if loop else 0
    samples = resources.filter(rank=rank).drop_nulls("value")
    moments = _moments(samples, workers)
    uses = _judged(moments, stalls.filter(rank=rank))
    if not _cores_wanted(samples, workers):
        idle = pl.col("resource").is_in([CORE, QUOTA])
        uses = uses.with_columns(saturated=pl.col("saturated") & ~idle)
    return Saturation(uses, moments["moment"].n_unique(), loop, _others_share(samples))


def _moments(samples: pl.DataFrame, workers: int) -> pl.DataFrame:
    """Return the share of its limit that each resource had in each half second."""
    without = LOOP if workers else WORKER
    judged = samples.with_columns(pl.col("resource", "device").cast(pl.String)).filter(
        pl.col("resource").is_in(list(THRESHOLDS)), pl.col("resource") != without
    )
    one_core = pl.when(pl.col("resource").is_in(OWN)).then(1.0)
    known = judged.with_columns(limit=pl.coalesce("limit", one_core)).drop_nulls("limit")
    device = pl.when(~pl.col("resource").is_in(TOGETHER)).then(pl.col("device"))
    # A capacity of many: the mean of their shares, and their limits added up
    levels = known.group_by("resource", device, "start_ns", "end_ns", maintain_order=True).agg(
        level=(pl.col("value") / pl.col("limit")).mean(),
        limit=pl.col("limit").sum(),
        devices=pl.col("value").len(),
    )
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    middle_ns = (pl.col("end_ns") + pl.col("start_ns")) // 2
    return (
        levels.group_by("resource", "device", moment=middle_ns // MOMENT_NS)
        .agg(
            level=(pl.col("level") * length_ns).sum() / length_ns.sum(),
            limit=pl.col("limit").max(),
            devices=pl.col("devices").max(),
        )
        .sort("resource", "device", "moment", nulls_last=True)
    )


def _judged(moments: pl.DataFrame, stalls: pl.DataFrame) -> pl.DataFrame:
    """Return columns of `USES`."""
    threshold = pl.col("resource").replace_strict(THRESHOLDS, return_dtype=pl.Float64)
    full = pl.col("level") >= threshold
    begin_ns = moments["moment"].to_numpy().astype(np.float64) * MOMENT_NS
    stalled_s = covered_s(stalls, begin_ns, begin_ns + MOMENT_NS)
    of_stalls = (pl.col("stalled_s") * full).sum() / pl.col("stalled_s").sum()
    uses = (
        moments.with_columns(stalled_s=stalled_s)
        .group_by("resource", "device", maintain_order=True)
        .agg(
            devices=pl.col("devices").max().cast(pl.Int64),
            threshold=threshold.first(),
            limit=pl.col("limit").max(),
            mean_share=pl.col("level").mean(),
            full_share=full.mean(),
            stalled_share=pl.when(pl.col("stalled_s").sum() > 0).then(of_stalls),
        )
        .with_columns(saturated=pl.coalesce(*_FULL) >= MOSTLY)
    )
    place = pl.col("resource").replace_strict({n: i for i, n in enumerate(THRESHOLDS)})
    return uses.sort(place, "device").select(pl.col(n).cast(kind) for n, kind in USES.items())


def _others_share(mine: pl.DataFrame) -> float | None:
    """Return the share of the cores' time that processes outside of the recording had."""
    moment = ["start_ns", "end_ns"]
    own = mine.filter(pl.col("resource").is_in([*OWN, SAMPLER]))
    # A worker is read from its second moment on: what it did before is not what others did
    counts = own.group_by(moment).len().filter(pl.col("len") == pl.col("len").max())
    cores = mine.filter(pl.col("resource") == CORE).join(counts, on=moment, how="semi")
    own = own.join(counts, on=moment, how="semi")
    if cores.is_empty() or own.is_empty():
        return None
    cores_s, own_s = (_core_seconds(part) for part in (cores, own))
    length_s = _core_seconds(cores.with_columns(value=1.0))
    return min(max(cores_s - own_s, 0.0) / length_s, 1.0)


def _cores_wanted(mine: pl.DataFrame, workers: int) -> bool:
    """Return whether those who make batches computed or waited for a core; true if unknown."""
    maker = WORKER if workers else LOOP
    makers = mine.filter(pl.col("resource") == maker)
    if makers.is_empty():
        return True
    theirs = pl.col("device").is_in(makers["device"].unique().implode())
    queued = mine.filter(pl.col("resource") == QUEUED, theirs)
    length_s = _core_seconds(makers.with_columns(value=1.0))
    return (_core_seconds(makers) + _core_seconds(queued)) / length_s >= WANTED


def _core_seconds(samples: pl.DataFrame) -> float:
    length_s = (samples["end_ns"] - samples["start_ns"]).to_numpy() / 1e9
    return float(samples["value"].to_numpy() @ length_s)


@dataclass(frozen=True)
class Usage:
    """The resources of one rank, in bins of the same length."""

    values: pl.DataFrame
    """`resource, device, at_s, value, limit`: the mean of a bin, at its middle; seconds from the
    start of the run."""
    stalled: np.ndarray
    """Of each bin, the share (0 to 1) in which the loop stalled."""
    begin_s: float
    """Of the first bin, seconds from the start of the run."""
    bin_s: float
    """Length of a bin, seconds."""
    samples: int
    """How often it was sampled."""
    cost_share: float | None
    """What sampling took, as a share of one core."""
    missing: tuple[str, ...]
    """Resources that are not there, or were not read."""
    judged: Saturation
    """What of it was saturated."""

    @property
    def end_s(self) -> float:
        """Of the last bin, seconds from the start of the run."""
        return self.begin_s + self.bin_s * len(self.stalled)


def usage(run: Run) -> Usage | None:
    """Return what a run used in its steady state; None without samples, or without a loop."""
    stalls, found = run.stalls(), find_saturated(run)
    if found.loop is None:
        return None
    is_shown = pl.col("rank") == found.loop.rank
    names = pl.col("resource", "device").cast(pl.String)
    every = run.resources().filter(is_shown).with_columns(names)
    samples = every.drop_nulls("value")
    if samples.is_empty():
        return None
    begin_ns, end_ns = samples.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    shortest_ns = max((end_ns - begin_ns) / MOST_BINS, SHORTEST_S * 1e9)
    edges_ns = np.linspace(begin_ns, end_ns, max(int((end_ns - begin_ns) / shortest_ns), 1) + 1)
    length_ns = float(edges_ns[1] - edges_ns[0])
    stalled_s = covered_s(stalls.filter(is_shown), edges_ns[:-1], edges_ns[1:])
    place = ((pl.col("end_ns") - begin_ns) / length_ns).floor().clip(0, len(edges_ns) - 2)
    at_s = (begin_ns + (place + 0.5) * length_ns) / 1e9
    binned = samples.group_by("resource", "device", at_s=at_s).agg(
        pl.col("value").mean(), pl.col("limit").max()
    )
    cost = samples.filter(resource=SAMPLER)
    whole_s = _core_seconds(cost.with_columns(value=1.0))
    return Usage(
        values=binned.sort("resource", "device", "at_s"),
        stalled=np.clip(stalled_s * 1e9 / length_ns, 0.0, 1.0),
        begin_s=begin_ns / 1e9,
        bin_s=length_ns / 1e9,
        samples=cost.height,
        cost_share=_core_seconds(cost) / whole_s if whole_s else None,
        missing=tuple(every.filter(pl.col("value").is_null())["resource"].unique().sort()),
        judged=found,
    )


def sentence(found: Saturation) -> str:
    """Say what was saturated, or where else to look."""
    if found.loop is None:
        return "No training loop was recorded: nothing can be said of what it lacked"
    if found.moments < FEWEST:
        return "The steady state was too short to tell whether a resource was saturated"
    stalled = found.loop.share
    machine = [use for use in found.saturated if use["resource"] not in OWN]
    own = [use for use in found.saturated if use["resource"] in OWN]
    if machine:
        return _of_machine(found, machine, stalled)
    if stalled < HARDLY:
        return "No resource was saturated, and the loop hardly stalled"
    if own:
        return _of_own(found, own[0])
    shares = found.uses.filter(~pl.col("saturated")).select(pl.coalesce(*_FULL)).to_series()
    unneeded = any(part >= MOSTLY for part in shares)  # saturated all the same
    what = "Nothing that the loop needed" if unneeded else "No resource"
    return (
        f"{what} was saturated while the loop stalled ({share(stalled)} of the time): look for a "
        "lock or a software limit"
    )


def _of_machine(found: Saturation, uses: list[dict[str, Any]], stalled: float) -> str:
    use = uses[0]
    if stalled >= HARDLY:
        during = f"{share(use['stalled_share'])} of the stalls, which are {share(stalled)} of the"
        text = f"{subject(use)} saturated for {during} loop's time"
    else:
        text = f"{subject(use)} saturated for {share(use['full_share'])} of the time"
    others = found.others_share or 0.0
    if use["resource"] == CORE and others >= OTHERS:
        text += f"; other processes had {share(others)} of the cores"
    more = dict.fromkeys(NAMES[one["resource"]] for one in uses[1:])
    text += f"; so was: {', '.join(more)}" if more else ""
    return text if stalled >= HARDLY else f"{text}, though the loop hardly stalled"


def _of_own(found: Saturation, use: dict[str, Any]) -> str:
    cores = next(iter(found.uses.filter(resource=CORE)["mean_share"]), None)
    free = "" if cores is None else f", while {share(1 - cores)} of the cores' time was free"
    if use["resource"] == LOOP:
        return f"The main process, which makes the batches, computed without a pause{free}"
    many = count(use["devices"], "worker")
    return f"The {many} computed without a pause{free}: more workers may help"


def subject(use: dict[str, Any]) -> str:
    """Return what was saturated, as the begin of a sentence; from a row of `USES`."""
    device = use["device"]
    text = {
        CORE: f"The {count(use['devices'], 'core')} at hand were",
        QUOTA: f"The container's CPU quota of {use['limit']:g} cores was",
        MEMORY: f"The memory of the {device} was",
        SHM: "/dev/shm was",  # noqa: S108 - a name
        DISK_BUSY: f"The disk {device} was",
        RECEIVED: f"The network link {device} (in) was",
        SENT: f"The network link {device} (out) was",
        GPU: f"GPU {device} was",
    }
    return text.get(use["resource"], f"{NAMES.get(str(use['resource']), 'Something')} was")
