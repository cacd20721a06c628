"""Find the resource that was saturated while the loop stalled, or report that none was.

Samples are grouped into moments of half a second, since the kernel counts CPU time in steps of 10
ms. In a moment a resource is saturated when its use reaches a share of its limit; a resource
without a known limit (bytes per second of a disk, say) is never called saturated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope import stages
from stallscope.model.lifecycle import covered_s
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import FULL, HARDLY, OTHERS, SATURATED
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.run.result import Run


MOMENT_NS: Final = 500_000_000
FEWEST: Final = 4
"""Moments that a judgement needs."""
MOSTLY: Final = 0.5
"""Share of the stall time from which on a saturated resource is named."""
WANTED: Final = 0.5
"""Share of its time that a process computes or waits for a core, from which on it needs the cores.
Below, other processes may saturate them while it waits for something else."""

THRESHOLDS: Final = {
    stages.CORE: SATURATED,
    stages.QUOTA: SATURATED,
    stages.MEMORY: FULL,
    stages.SHM: FULL,
    stages.DISK_BUSY: SATURATED,
    stages.RECEIVED: SATURATED,
    stages.SENT: SATURATED,
    stages.GPU: SATURATED,
    stages.WORKER: SATURATED,
    stages.LOOP: SATURATED,
}
"""Resources that can be saturated, with the share of their limit. Without GPU memory, which torch
never gives back. A worker that always computes is saturated, too: more workers could help."""
TOGETHER: Final = (stages.CORE, stages.WORKER)
"""Resources that are judged as one: all cores, all workers."""
OWN: Final = (stages.WORKER, stages.LOOP)
"""Processes of the recording, each with one core's time as its limit."""

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
"""One row per resource with a limit. `mean_share` is its average use; `full_share` the share of the
time with a use of at least `threshold`; `stalled_share` the same for the time in stalls (null
without stalls). `device` is null where all `devices` are judged as one. `saturated` also requires
that the makers of the batches needed the resource."""

MOST_BINS: Final = 300
"""Bins that a notebook's width can show."""
SHORTEST_S: Final = 0.2
"""Shortest bin: below, CPU time that is counted in steps of 10 ms is mostly rounding."""


class LoopStall(NamedTuple):
    """Judged loop."""

    rank: int
    share: float
    """Share (0 to 1) of its time in which it stalled."""


class Saturation(NamedTuple):
    """Saturated resources while the loop stalled."""

    uses: pl.DataFrame
    """Columns of `USES`, the machine's resources first."""
    moments: int
    """Number of judged half seconds."""
    loop: LoopStall | None
    """None without a recorded loop."""
    others_share: float | None
    """Share of the cores' time that other processes used; None if unknown."""

    @property
    def saturated(self) -> list[dict[str, Any]]:
        """Rows of the saturated resources; those of the machine first."""
        return self.uses.filter("saturated").to_dicts()

    @property
    def matters(self) -> bool:
        """True if the loop stalled long enough, and was sampled long enough, for a judgement."""
        return self.moments >= FEWEST and self.loop is not None and self.loop.share >= HARDLY


def find_saturated(run: Run) -> Saturation:
    """Return the saturated resources in the steady state of a run."""
    workers = run.settings.num_workers
    return saturation(run.resources(), run.steps(), run.stalls(), workers=workers)


def saturation(
    resources: pl.DataFrame, steps: pl.DataFrame, stalls: pl.DataFrame, *, workers: int
) -> Saturation:
    """Return the saturated resources in the steady state of the rank that stalled longest."""
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
        idle = pl.col("resource").is_in([stages.CORE, stages.QUOTA])
        uses = uses.with_columns(saturated=pl.col("saturated") & ~idle)
    return Saturation(uses, moments["moment"].n_unique(), loop, _others_share(samples))


def _moments(samples: pl.DataFrame, workers: int) -> pl.DataFrame:
    """Return the use of each resource in each half second, as a share of its limit."""
    without = stages.LOOP if workers else stages.WORKER
    judged = samples.with_columns(pl.col("resource", "device").cast(pl.String)).filter(
        pl.col("resource").is_in(list(THRESHOLDS)), pl.col("resource") != without
    )
    one_core = pl.when(pl.col("resource").is_in(OWN)).then(1.0)
    limited = judged.with_columns(limit=pl.coalesce("limit", one_core)).drop_nulls("limit")
    device = pl.when(~pl.col("resource").is_in(TOGETHER)).then(pl.col("device"))
    # Several devices judged as one: the mean of their shares, the sum of their limits
    levels = limited.group_by("resource", device, "start_ns", "end_ns", maintain_order=True).agg(
        level=(pl.col("value") / pl.col("limit")).mean(),
        limit=pl.col("limit").sum(),
        devices=pl.col("value").len(),
    )
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    middle_ns = (pl.col("end_ns") + pl.col("start_ns")) // 2
    level = (pl.col("level") * length_ns).sum() / length_ns.sum()
    moments = levels.group_by("resource", "device", moment=middle_ns // MOMENT_NS)
    rows = moments.agg(level, pl.col("limit", "devices").max())
    return rows.sort("resource", "device", "moment", nulls_last=True)


def _judged(moments: pl.DataFrame, stalls: pl.DataFrame) -> pl.DataFrame:
    threshold = pl.col("resource").replace_strict(THRESHOLDS, return_dtype=pl.Float64)
    full = pl.col("level") >= threshold
    begin_ns = moments["moment"].to_numpy().astype(np.float64) * MOMENT_NS
    stalled_s = covered_s(stalls, begin_ns, begin_ns + MOMENT_NS)
    of_stalls = (pl.col("stalled_s") * full).sum() / pl.col("stalled_s").sum()
    each = moments.with_columns(stalled_s=stalled_s).group_by("resource", "device")
    uses = each.agg(
        pl.col("limit", "devices").max(),
        threshold=threshold.first(),
        mean_share=pl.col("level").mean(),
        full_share=full.mean(),
        stalled_share=pl.when(pl.col("stalled_s").sum() > 0).then(of_stalls),
    ).with_columns(saturated=pl.coalesce("stalled_share", "full_share") >= MOSTLY)
    place = pl.col("resource").replace_strict({n: i for i, n in enumerate(THRESHOLDS)})
    return uses.sort(place, "device").select(pl.col(n).cast(kind) for n, kind in USES.items())


def _others_share(mine: pl.DataFrame) -> float | None:
    """Return the share of the cores' time that processes outside of the recording used."""
    moment = ["start_ns", "end_ns"]
    own = mine.filter(pl.col("resource").is_in([*OWN, stages.SAMPLER]))
    # The first moment of a worker has no rate yet, and must not count as use by others
    counts = own.group_by(moment).len().filter(pl.col("len") == pl.col("len").max())
    cores = mine.filter(pl.col("resource") == stages.CORE).join(counts, on=moment, how="semi")
    helped = mine.filter(pl.col("resource") == stages.HELPER)
    own = pl.concat([own, helped]).join(counts, on=moment, how="semi")
    if cores.is_empty() or own.is_empty():
        return None
    cores_s, own_s = (_core_seconds(part) for part in (cores, own))
    length_s = _core_seconds(cores.with_columns(value=1.0))
    return min(max(cores_s - own_s, 0.0) / length_s, 1.0)


def _cores_wanted(mine: pl.DataFrame, workers: int) -> bool:
    """Return whether the makers of batches computed or waited for a core; True if unknown."""
    maker = stages.WORKER if workers else stages.LOOP
    makers = mine.filter(pl.col("resource") == maker)
    if makers.is_empty():
        return True
    theirs = pl.col("device").is_in(makers["device"].unique().implode())
    queued = mine.filter(pl.col("resource") == stages.QUEUED, theirs)
    length_s = _core_seconds(makers.with_columns(value=1.0))
    return (_core_seconds(makers) + _core_seconds(queued)) / length_s >= WANTED


def _core_seconds(samples: pl.DataFrame) -> float:
    length_s = (samples["end_ns"] - samples["start_ns"]).to_numpy() / 1e9
    return float(samples["value"].to_numpy() @ length_s)


class Usage(NamedTuple):
    """Resources of one rank, in bins of equal length."""

    values: pl.DataFrame
    """`resource, device, at_s, value, limit`: the mean of a bin, and its middle in seconds from
    the start of the run."""
    stalled: np.ndarray
    """Share (0 to 1) of each bin in which the loop stalled."""
    begin_s: float
    """Begin of the first bin, seconds from the start of the run."""
    bin_s: float
    """Length of a bin, seconds."""
    samples: int
    """Number of samples."""
    cost_share: float | None
    """Overhead of sampling, as a share of one core."""
    missing: tuple[str, ...]
    """Resources that do not exist, or were not read."""
    judged: Saturation
    """Saturated resources."""

    @property
    def end_s(self) -> float:
        """End of the last bin, seconds from the start of the run."""
        return self.begin_s + self.bin_s * len(self.stalled)


def usage(run: Run) -> Usage | None:
    """Return the usage in the steady state of a run; None without samples or without a loop."""
    stalls, judged = run.stalls(), find_saturated(run)
    if judged.loop is None:
        return None
    is_shown = pl.col("rank") == judged.loop.rank
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
    cost = samples.filter(resource=stages.SAMPLER)
    whole_s = _core_seconds(cost.with_columns(value=1.0))
    return Usage(
        values=binned.sort("resource", "device", "at_s"),
        stalled=np.clip(stalled_s * 1e9 / length_ns, 0.0, 1.0),
        begin_s=begin_ns / 1e9,
        bin_s=length_ns / 1e9,
        samples=cost.height,
        cost_share=_core_seconds(cost) / whole_s if whole_s else None,
        missing=tuple(every.filter(pl.col("value").is_null())["resource"].unique().sort()),
        judged=judged,
    )


def sentence(judged: Saturation) -> str:
    """Name the saturated resource, or where else to look."""
    if judged.loop is None:
        return "No training loop was recorded, so its bottleneck is unknown"
    if judged.moments < FEWEST:
        return "The steady state was too short to tell whether a resource was saturated"
    stalled, use = judged.loop.share, next(iter(judged.saturated), None)
    of_machine = use is not None and use["resource"] not in OWN  # those come first
    if stalled < HARDLY and not of_machine:
        return "No resource was saturated, and the loop hardly stalled"
    if use is None or not of_machine:
        return _of_own(judged, use, stalled)
    if stalled < HARDLY:
        part = share(use["full_share"])
        return f"{subject(use)} saturated for {part} of the time, though the loop hardly stalled"
    during = f"saturated for {share(use['stalled_share'])} of the stall time"
    text = f"{subject(use)} {during}; the loop stalls {share(stalled)} of the time"
    others = judged.others_share or 0.0
    is_shared = use["resource"] == stages.CORE and others >= OTHERS
    return text + f"; other processes used {share(others)} of the cores" * is_shared


def _of_own(judged: Saturation, use: dict[str, Any] | None, stalled: float) -> str:
    if use is None:
        return (
            f"No resource that the loop needed was saturated while it stalled ({share(stalled)} of "
            "the time): look for a lock or a software limit"
        )
    cores = next(iter(judged.uses.filter(resource=stages.CORE)["mean_share"]), None)
    free = "" if cores is None else f", while the cores were {share(1 - cores)} idle"
    if use["resource"] == stages.LOOP:
        return f"The main process, which loads the data, computed all the time{free}"
    workers = count(use["devices"], "worker")
    return f"The {workers} computed all the time{free}: more workers may help"


def subject(use: dict[str, Any]) -> str:
    """Return a resource as the begin of a sentence; from a row of `USES`."""
    device = use["device"]
    text = {
        stages.CORE: f"The {count(use['devices'], 'usable core')} were",
        stages.QUOTA: f"The container's CPU quota of {use['limit']:g} cores was",
        stages.MEMORY: f"The memory of the {device} was",
        stages.SHM: "/dev/shm was",  # noqa: S108 - a name
        stages.DISK_BUSY: f"The disk {device} was",
        stages.RECEIVED: f"The network link {device} (in) was",
        stages.SENT: f"The network link {device} (out) was",
        stages.GPU: f"GPU {device} was",
    }
    return text.get(use["resource"], f"{stages.NAMES.get(str(use['resource']), 'Something')} was")
