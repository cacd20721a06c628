"""Resources while the loop stalled: what was saturated, and how the workers' memory grew.

Samples are grouped into moments of half a second, since the kernel counts CPU time in steps of 10
ms. In a moment a resource is saturated when its use reaches a share of its limit; a resource
without a known limit (bytes per second of a disk, say) is never called saturated.

A forked worker shares the pages of the training process until either of them writes to a page, and
reading a Python object writes its reference count. Then the worker's own memory grows, while its
mapped memory stays constant; that looks like a leak, and ends when all pages are copied (pytorch
#13246). A true leak maps new pages with every sample and never ends. Both numbers exclude file
pages, which come and go with mapped files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope import stages
from stallscope.model.attribution import covered_s
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import FULL, HARDLY, MOSTLY, OTHERS, SATURATED
from stallscope.units import count, duration, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.result import Run


MOMENT_NS: Final = 500_000_000
FEWEST: Final = 4
"""Moments that a judgement needs."""

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


class Saturation(NamedTuple):
    """Saturated resources while the loop stalled."""

    uses: pl.DataFrame
    """Columns of `USES`, the machine's resources first."""
    moments: int
    """Number of judged half seconds."""
    rank: int | None
    """Judged rank; None without a recorded loop."""
    stall_share: float
    """Share (0 to 1) of its loop's time in which it stalled."""
    others_share: float | None
    """Share of the cores' time that other processes used; None if unknown."""

    @property
    def saturated(self) -> list[dict[str, Any]]:
        """Rows of the saturated resources; those of the machine first."""
        return self.uses.filter("saturated").to_dicts()

    @property
    def matters(self) -> bool:
        """True if the loop stalled long enough, and was sampled long enough, for a judgement."""
        return self.moments >= FEWEST and self.rank is not None and self.stall_share >= HARDLY


def find_saturated(run: Run) -> Saturation:
    """Return the saturated resources in the steady state of a run."""
    workers = run.settings.num_workers
    return saturation(run.resources(), run.steps(), run.stalls(), workers=workers)


def saturation(
    resources: pl.DataFrame, steps: pl.DataFrame, stalls: pl.DataFrame, *, workers: int
) -> Saturation:
    """Return the saturated resources in the steady state of the rank that stalled longest."""
    stall_shares = {
        rank: time.stall_share
        for rank in steps["rank"].unique().sort()
        if (time := loop_breakdown(steps.filter(rank=rank), stalls.filter(rank=rank)))
    }
    rank = max(stall_shares, key=stall_shares.__getitem__, default=None)
    samples = resources.filter(rank=rank or 0).drop_nulls("value")
    moments = _moments(samples, workers)
    uses = _judged(moments, stalls.filter(rank=rank or 0))
    if not _cores_wanted(samples, workers):
        idle = pl.col("resource").is_in([stages.CORE, stages.QUOTA])
        uses = uses.with_columns(saturated=pl.col("saturated") & ~idle)
    stall_share = stall_shares.get(rank, 0.0)
    return Saturation(uses, moments["moment"].n_unique(), rank, stall_share, _others_share(samples))


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
    cores_s, own_s = (core_seconds(part) for part in (cores, own))
    length_s = core_seconds(cores.with_columns(value=1.0))
    return min(max(cores_s - own_s, 0.0) / length_s, 1.0)


def _cores_wanted(mine: pl.DataFrame, workers: int) -> bool:
    """Return whether the makers of batches computed or waited for a core; True if unknown.

    Else other processes may saturate the cores while these wait for something else.
    """
    maker = stages.WORKER if workers else stages.LOOP
    makers = mine.filter(pl.col("resource") == maker)
    if makers.is_empty():
        return True
    theirs = pl.col("device").is_in(makers["device"].unique().implode())
    queued = mine.filter(pl.col("resource") == stages.QUEUED, theirs)
    length_s = core_seconds(makers.with_columns(value=1.0))
    return (core_seconds(makers) + core_seconds(queued)) / length_s >= MOSTLY


def core_seconds(samples: pl.DataFrame) -> float:
    """Return the sum of the values, each times its length in seconds."""
    length_s = (samples["end_ns"] - samples["start_ns"]).to_numpy() / 1e9
    return float(samples["value"].to_numpy() @ length_s)


def sentence(judged: Saturation) -> str:
    """Name the saturated resource, or where else to look."""
    if judged.rank is None:
        return "No training loop was recorded, so its bottleneck is unknown"
    if judged.moments < FEWEST:
        return "The steady state was too short to tell whether a resource was saturated"
    stalled, use = judged.stall_share, next(iter(judged.saturated), None)
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


# ---- memory of the workers -----------------------------------------------------------------------

GROWN_BYTES: Final = 50e6
"""Growth of all workers in a recording from which on it is reported; less is a heap that settles.
For copies, growth of each worker: every forked worker copies some objects of the imports."""
GROWS: Final = 0.2
"""Share of the mapped memory per minute from which on growth is reported (it doubles in five
minutes), unless memory is full within ..."""
SOON_S: Final = 86400.0
"""... this time."""
SETTLES_S: Final = 30.0
"""Time within which a heap settles (`images-in-memory` of the real questions takes longer than a
recording). Growth in a shorter recording may still settle ..."""
_ROOM_S: Final = 4 * SETTLES_S
"""... unless the memory would be full within this time."""
LONG_LOOK_S: Final = 20.0
"""Growth that goes on for this long is no buffer that fills, and no heap that settles: those of the
real questions took ten seconds."""
_FEWEST: Final = 3
"""Samples of a worker that show continuing growth; two show copies."""
_PARTS: Final = 5
"""Groups of samples, at most; memory grows if each group is above the previous one."""
_STILL: Final = 0.25
"""Latest growth as a share of the mean growth, at least: a cache that fills slows down more. Copies
always slow down, as fewer pages are still shared."""
_MOST_LOOKS: Final = 200
"""Samples of a worker, evenly drawn: a slope takes quadratic time."""
_NEARLY_ALL: Final = 0.75
"""Share of the workers that grow, and share of the growth that is of one kind."""


@dataclass(frozen=True)
class MemoryGrowth:
    """Growth of the workers' memory in the steady state, all workers together."""

    workers: int
    """Number of workers at a time."""
    grown_bytes: float
    """Growth from the first sample to the last."""
    bytes_per_s: float
    """Median of the slopes between any two samples (Sen 1968, doi.org/10.2307/2285891)."""
    share_per_min: float
    """Growth per minute as a share of the workers' memory with shared pages."""
    copied_share: float
    """Share (0 to 1) of the growth from copies of pages of the main process."""
    end_bytes: float | None
    """Memory of the workers after copying all shared pages; None for growth without end."""
    left_s: float | None
    """Seconds until the memory is full; None if the growth ends before, or if unknown."""
    limit: str = "machine"
    """Owner of that memory limit: `machine` or `container`."""
    goes_on: bool = True
    """False: it slows down at the end."""

    @property
    def looked_s(self) -> float:
        """Seconds from the first sample to the last."""
        return self.grown_bytes / self.bytes_per_s

    @property
    def may_settle(self) -> bool:
        """True if the recording is too short, and a longer one would not fill the memory."""
        if self.copied or self.looked_s >= SETTLES_S:
            return False
        return self.left_s is None or self.left_s > _ROOM_S

    @property
    def copied(self) -> bool:
        """True if nearly all of the growth is copies."""
        return self.copied_share >= _NEARLY_ALL

    @property
    def matters(self) -> bool:
        """True if the growth is worth reporting: more than a settling heap, and soon a problem."""
        soon = self.share_per_min >= GROWS or (self.left_s or np.inf) <= SOON_S
        return self.grown_bytes >= self.least_bytes and soon and self.goes_on

    @property
    def may_matter(self) -> bool:
        """True if a longer look may find what matters."""
        grown = LONG_LOOK_S * self.bytes_per_s
        return grown >= self.least_bytes and self.share_per_min >= GROWS and self.may_settle

    @property
    def least_bytes(self) -> float:
        """Smallest growth worth reporting."""
        return GROWN_BYTES * (self.workers if self.copied else 1)

    def rate(self) -> str:
        """Return the rate of the growth and its end, in words."""
        text = f"{size(60 * self.bytes_per_s)} a minute in {count(self.workers, 'worker')}"
        if not self.copied and self.copied_share > 1 - _NEARLY_ALL:
            text += f", {share(self.copied_share)} of that are copies of the main process's objects"
        if self.end_bytes is not None:
            text += f", ends at {size(self.end_bytes)} at most"
        if self.left_s is not None:
            looked = f"; if it goes on as in the {seconds(self.looked_s)} of the recording, "
            text += looked if self.may_settle else ", "
            text += f"the memory of the {self.limit} is full in {duration(self.left_s)}"
        return text

    def sentence(self) -> str:
        """Return a sentence on the growth and its rate."""
        if self.copied:
            return f"The workers copy what they share with the main process: {self.rate()}"
        end = "so far" if self.may_settle else "without a limit"
        return f"The workers' memory grows {end}: {self.rate()}"


def memory_growth(run: Run, workers: int | None = None) -> MemoryGrowth | None:
    """Return the growth of the workers' memory; None without growth, or with too few samples.

    `workers` is the number of the loader's worker processes, by default that of the run.
    """
    workers = run.settings.num_workers if workers is None else workers
    each = np.array(list(_of_workers(run)), float)
    if not each.size or each[:, -2].mean() < _NEARLY_ALL:
        return None
    own, mapped, length_s, last_own, last_mapped, *_ = np.median(each, axis=0)
    if own <= 0:
        return None
    new = float(np.clip(mapped, 0.0, own))
    # Before its copy, a page shared with the main process counted in part as each worker's own
    copies = (float(own) - new) * (workers + 1) / max(workers, 1)
    copied_share = copies / (new + copies)
    pace = workers * (new + copies)
    copied = copied_share >= _NEARLY_ALL
    room, limit = _room(run)
    fills = not copied or (room is not None and workers * (last_mapped - last_own) > room)
    left_s = room / pace if fills and room is not None else None
    deliveries = run.deliveries.drop_nulls(["pid", "worker", "made_ns"])
    life_s = (pl.col("made_ns").max() - pl.col("made_ns").min()) / 1e9
    lives = deliveries.group_by("rank", "worker", "pid").agg(length_s=life_s)
    renewed = lives.height > lives.select("rank", "worker").n_unique()
    if left_s is not None and renewed and left_s > lives["length_s"].to_numpy().max():
        return None  # the workers end before, with their epoch
    return MemoryGrowth(
        workers=workers,
        grown_bytes=pace * float(length_s),
        bytes_per_s=pace,
        share_per_min=60 * pace / (workers * float(last_mapped)),
        copied_share=copied_share,
        end_bytes=workers * float(last_mapped) if copied and not fills else None,
        left_s=left_s,
        limit=limit,
        goes_on=copied or bool(each[:, -1].mean() >= _NEARLY_ALL),
    )


def named_growth(run: Run) -> str:
    """Return the sentence on the growth of the workers' memory; empty unless it matters."""
    growth = memory_growth(run)
    return growth.sentence() if growth and growth.matters else ""


def _of_workers(run: Run) -> Iterator[tuple[Any, ...]]:
    """Yield the growth of each worker with enough samples, its start left out.

    That is the slopes of its own and its mapped memory, the time, the last values of both, and
    whether its own memory grows throughout, and still at the end.
    """
    names = pl.col("resource", "device").cast(pl.String)
    measured = run.resources().drop_nulls("value").with_columns(names)
    looks = measured.filter(pl.col("resource").is_in([stages.WORKER_MEMORY, stages.WORKER_MAPPED]))
    table = looks.pivot("resource", index=["rank", "device", "end_ns"], values="value")
    if table.is_empty() or not {stages.WORKER_MEMORY, stages.WORKER_MAPPED} <= set(table.columns):
        return
    # Until the second batch of a process come imports and first caches
    deliveries = run.deliveries.drop_nulls(["pid", "made_ns"]).sort("made_ns")
    second = deliveries.group_by("rank", device=pl.col("pid").cast(pl.String)).agg(
        begin_ns=pl.col("made_ns").get(1, null_on_oob=True)
    )
    begun = table.join(second, on=["rank", "device"], how="left")
    steady = begun.filter(pl.col("end_ns") >= pl.col("begin_ns").fill_null(0)).drop("begin_ns")
    for rows in steady.drop_nulls().sort("end_ns").partition_by("rank", "device"):
        picked: Any = np.linspace(0, rows.height - 1, min(rows.height, _MOST_LOOKS)).astype(int)
        columns = rows[picked].select(
            pl.col("end_ns") / 1e9, stages.WORKER_MEMORY, stages.WORKER_MAPPED
        )
        at_s, own, mapped = columns.to_numpy().T
        if len(at_s) > 1:
            slopes = _slope(at_s, own), _slope(at_s, mapped)
            yield *slopes, at_s[-1] - at_s[0], own[-1], mapped[-1], *_grows(own)


def _slope(at_s: np.ndarray, values: np.ndarray) -> float:
    first, second = np.triu_indices(len(at_s), 1)
    return float(np.median((values[second] - values[first]) / (at_s[second] - at_s[first])))


def _grows(values: np.ndarray) -> tuple[bool, bool]:
    """Return whether the values grow throughout, and still in the last part."""
    parts = [np.median(part) for part in np.array_split(values, min(len(values), _PARTS))]
    steps = np.diff(parts)
    goes_on = len(values) >= _FEWEST and steps[-1] > _STILL * steps.mean()
    return bool((steps > 0).all()), bool(goes_on)


def _room(run: Run) -> tuple[float | None, str]:
    """Return the free bytes under the nearest limit at the end, and the owner of that limit."""
    names = pl.col("resource", "device").cast(pl.String)
    memory = run.resources().with_columns(names).filter(resource=stages.MEMORY)
    last = memory.drop_nulls(["value", "limit"]).sort("end_ns").group_by("device").last()
    rows = last.select(pl.col("limit") - pl.col("value"), "device").sort("limit").rows()
    return rows[0] if rows else (None, "machine")
