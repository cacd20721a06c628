"""The memory of the workers over time: what each of them has in each epoch, and what it grows by.

A forked worker shares the pages of the process that trains until one of both writes to them, and
reading a Python object writes its reference count. Its own memory grows then, while what it maps in
all stays as it is; that looks like a leak, and ends when all is copied (pytorch #13246). What is
kept with every sample is mapped anew and ends nowhere.

File pages are no part of either number: what is read from mapped files comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.stages import (
    MEMORY,
    WORKER_MAPPED,
    WORKER_MEMORY,
    WORKER_PRIVATE,
    WORKER_PROPORTIONAL,
    WORKER_RESIDENT,
)
from stallscope.units import count, duration, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.result import Run


WORKER_MEMORIES: Final = {
    "rank": pl.Int16,
    "epoch": pl.Int32,
    "worker": pl.Int16,
    "pid": pl.Int32,
    "resident_bytes": pl.Float64,
    "proportional_bytes": pl.Float64,
    "private_bytes": pl.Float64,
}
"""One row an epoch and worker: its resident set (RSS), its proportional set (PSS: what it shares
counts by the number of processes that do) and what is private to it (USS), at the last look in that
epoch; null where it was not looked at."""
_COLUMN_OF: Final = {
    WORKER_RESIDENT: "resident_bytes",
    WORKER_PROPORTIONAL: "proportional_bytes",
    WORKER_PRIVATE: "private_bytes",
}

GROWN_BYTES: Final = 50e6
"""Growth of all workers in a recording below which nothing is said: heaps that settle. Of copies,
growth of each worker: every forked one copies some of what the imports have made."""
GROWS: Final = 0.2
"""And so much of all that they map, a minute: they would then double in five. Or memory is full
within ..."""
SOON_S: Final = 86400.0
"""... this time."""
SETTLES_S: Final = 30.0
"""A heap that settles stops growing within this time (`images-in-memory` of the real questions
takes longer than a recording for it). What grows after a shorter look may settle still ..."""
_ROOM_S: Final = 4 * SETTLES_S
"""... unless the memory would be full by then, or nearly."""
_FEWEST: Final = 3
"""Looks at a worker that tell whether it goes on growing; two tell of copies. They span ..."""
_LOOKED_S: Final = 1.0
"""... so long, at least."""
_PARTS: Final = 5
"""That the looks are put together to, at most: each is above the one before, or nothing grows."""
_STILL: Final = 0.25
"""The latest growth is so much of the mean, at least: that of a cache that fills is not. Copies
always become fewer, as the pages do that are still shared."""
_MOST_LOOKS: Final = 200
"""Of a worker, evenly drawn: a slope takes the square of it."""
_NEARLY_ALL: Final = 0.75
"""Share of the workers that grow, and share of the growth that is of one kind."""


@dataclass(frozen=True)
class MemoryGrowth:
    """What the workers' memory grows by in the steady state, all of them together."""

    workers: int
    """How many of them there are at a time."""
    grown_bytes: float
    """From the first look at them to the last one."""
    bytes_per_s: float
    """Median of the slopes between any two looks (Sen 1968, doi.org/10.2307/2285891)."""
    share_per_min: float
    """The same a minute, as a share of the workers' memory with all that they share."""
    copied_share: float
    """Share (0 to 1) of it that is copies of pages that were shared with the main process."""
    sample_bytes: float | None
    """What it grows by with each sample; None where samples were not counted."""
    end_bytes: float | None
    """What the workers have when all is copied that they share, which they may never do; None where
    that is no end of it."""
    left_s: float | None
    """Until the memory is full at that pace, seconds; None where it ends before, or is unknown."""
    limit: str = "machine"
    """Whose memory that is: `machine` or `container`."""
    renewed: bool = False
    """Whether the workers were seen to end with their epoch long before the memory is full."""

    @property
    def looked_s(self) -> float:
        """From the first look to the last one, seconds."""
        return self.grown_bytes / self.bytes_per_s

    @property
    def may_settle(self) -> bool:
        """Whether it was looked at too short, and would not be full by looking on."""
        if self.copied or self.looked_s >= SETTLES_S:
            return False
        return self.left_s is None or self.left_s > _ROOM_S

    @property
    def copied(self) -> bool:
        """Whether it is copies, nearly all of it."""
        return self.copied_share >= _NEARLY_ALL

    @property
    def matters(self) -> bool:
        """Whether it is worth a word: more than a heap that settles, and soon enough to be felt."""
        soon = self.share_per_min >= GROWS or (self.left_s or np.inf) <= SOON_S
        return self.grown_bytes >= self.least_bytes and soon

    @property
    def least_bytes(self) -> float:
        """What it has to grow by to be worth a word."""
        return GROWN_BYTES * (self.workers if self.copied else 1)

    def rate(self) -> str:
        """Say how fast it grows, and until when."""
        text = f"{size(60 * self.bytes_per_s)} a minute in {count(self.workers, 'worker')}"
        if self.sample_bytes is not None:
            text += f", {size(1000 * self.sample_bytes)} per 1,000 samples"
        if not self.copied and self.copied_share > 1 - _NEARLY_ALL:
            text += f", {share(self.copied_share)} of it copies of what the main process holds"
        if self.end_bytes is not None:
            text += f", ends at {size(self.end_bytes)} at most"
        if self.left_s is not None:
            looked = f"; if it goes on as in the {seconds(self.looked_s)} that were looked at, "
            text += looked if self.may_settle else ", "
            text += f"the memory of the {self.limit} is full in {duration(self.left_s)}"
        return text

    def sentence(self) -> str:
        """Say what grows, and how fast."""
        if self.copied:
            return f"The workers copy what they share with the main process: {self.rate()}"
        end = "without an end in sight"
        if self.renewed:
            end = "until they end with the epoch"
        elif self.may_settle:
            end = "so far"
        return f"The workers' memory grows {end}: {self.rate()}"


def worker_memory(run: Run) -> pl.DataFrame:
    """Return each worker's memory in each epoch; columns of `WORKER_MEMORIES`."""
    at_ns = pl.coalesce("made_ns", "taken_ns", "arrived_ns")
    keys = ["rank", "epoch", "worker", "pid"]
    epochs = (
        run.deliveries.drop_nulls(["pid", "worker"])
        .group_by(keys)
        .agg(start_ns=at_ns.min())
        .drop_nulls("start_ns")
        .sort("start_ns")
    )
    names = pl.col("resource", "device").cast(pl.String)
    samples = run.resources(steady=False).drop_nulls("value").with_columns(names)
    looks = (
        samples.filter(pl.col("resource").is_in(list(_COLUMN_OF)))
        .with_columns(pid=pl.col("device").cast(pl.Int32, strict=False))
        .sort("end_ns")
        .join_asof(
            epochs,
            left_on="end_ns",
            right_on="start_ns",
            by=["rank", "pid"],
            check_sortedness=False,
        )
    )
    value = pl.col("value")
    last = looks.group_by(keys).agg(
        value.filter(resource=resource).last().alias(column)
        for resource, column in _COLUMN_OF.items()
    )
    each = epochs.join(last, on=keys, how="left").sort(keys)
    return each.select(pl.col(name).cast(kind) for name, kind in WORKER_MEMORIES.items())


class _Slopes(NamedTuple):
    """What one worker's memory grows by; bytes, seconds."""

    own: float
    mapped: float
    length_s: float
    last_own: float
    last_mapped: float
    grows: bool
    goes_on: bool


def memory_growth(run: Run, workers: int | None = None) -> MemoryGrowth | None:
    """Return how the workers' memory grows; None where it does not, or too few looks tell.

    Args:
        run: the loop as it is.
        workers: worker processes of the loader; what the run says by default.
    """
    workers = run.settings.num_workers if workers is None else workers
    each = list(_of_workers(run))
    if not each or np.mean([one.grows for one in each]) < _NEARLY_ALL:
        return None
    own, mapped, length_s, last_own, last_mapped, *_ = np.median(np.array(each, float), axis=0)
    if own <= 0:
        return None
    new = float(np.clip(mapped, 0.0, own))
    # a page that all share, and the main process, was in part a worker's own before it was copied
    copies = (float(own) - new) * (workers + 1) / max(workers, 1)
    copied_share = copies / (new + copies)
    pace = workers * (new + copies)
    copied = copied_share >= _NEARLY_ALL
    if not copied and np.mean([one.goes_on for one in each]) < _NEARLY_ALL:
        return None
    room, limit = _room(run)
    fills = not copied or (room is not None and workers * (last_mapped - last_own) > room)
    left_s = room / pace if fills and room is not None else None
    renewed = left_s is not None and left_s > _life_s(run)
    rate = _samples_per_s(run)
    return MemoryGrowth(
        workers=workers,
        grown_bytes=pace * float(length_s),
        bytes_per_s=pace,
        share_per_min=60 * pace / (workers * float(last_mapped)),
        copied_share=copied_share,
        sample_bytes=pace / rate if rate else None,
        end_bytes=workers * float(last_mapped) if copied and not fills else None,
        left_s=None if renewed else left_s,
        limit=limit,
        renewed=renewed,
    )


def named_growth(run: Run) -> str:
    """Say what the workers' memory grows by; nothing where it does not, or that does not matter."""
    growth = memory_growth(run)
    return growth.sentence() if growth and growth.matters else ""


def _of_workers(run: Run) -> Iterator[_Slopes]:
    """Yield each worker that was looked at for long enough, its start left out."""
    names = pl.col("resource", "device").cast(pl.String)
    known = run.resources().drop_nulls("value").with_columns(names)
    looks = known.filter(pl.col("resource").is_in([WORKER_MEMORY, WORKER_MAPPED]))
    table = looks.pivot("resource", index=["rank", "device", "end_ns"], values="value")
    if table.is_empty() or not {WORKER_MEMORY, WORKER_MAPPED} <= set(table.columns):
        return
    begins = _begins(run)
    for (rank, pid), rows in table.drop_nulls().sort("end_ns").group_by("rank", "device"):
        steady = rows.filter(pl.col("end_ns") >= begins.get((rank, int(str(pid))), 0))
        picked: Any = np.linspace(0, steady.height - 1, min(steady.height, _MOST_LOOKS)).astype(int)
        if steady.is_empty():
            continue
        at_s, own, mapped = (
            steady[name].to_numpy().astype(float)[picked] * scale
            for name, scale in (("end_ns", 1e-9), (WORKER_MEMORY, 1.0), (WORKER_MAPPED, 1.0))
        )
        if at_s[-1] - at_s[0] >= _LOOKED_S:
            slopes = _slope(at_s, own), _slope(at_s, mapped)
            yield _Slopes(*slopes, at_s[-1] - at_s[0], own[-1], mapped[-1], *_grows(own))


def _begins(run: Run) -> dict[Any, int]:
    """Return when each process made its second batch: imports and first caches are its start."""
    made = run.deliveries.drop_nulls(["pid", "made_ns"]).sort("made_ns")
    second = pl.col("made_ns").slice(1, 1).first()
    rows = made.group_by("rank", "pid").agg(second).drop_nulls()
    return {(rank, pid): at_ns for rank, pid, at_ns in rows.iter_rows()}


def _life_s(run: Run) -> float:
    """Return how long a worker lives, seconds; infinite where no new ones were started."""
    made = run.deliveries.drop_nulls(["pid", "worker", "made_ns"])
    length_s = (pl.col("made_ns").max() - pl.col("made_ns").min()) / 1e9
    each = made.group_by("rank", "worker", "pid").agg(length_s=length_s)
    renewed = each.height > each.select("rank", "worker").n_unique()
    return float(each["length_s"].to_numpy().max()) if renewed else float("inf")


def _slope(at_s: np.ndarray, values: np.ndarray) -> float:
    first, second = np.triu_indices(len(at_s), 1)
    return float(np.median((values[second] - values[first]) / (at_s[second] - at_s[first])))


def _grows(values: np.ndarray) -> tuple[bool, bool]:
    """Return whether it grows from the first look to the last, and in the last part, too."""
    parts = [np.median(part) for part in np.array_split(values, min(len(values), _PARTS))]
    steps = np.diff(parts)
    goes_on = len(values) >= _FEWEST and steps[-1] > _STILL * steps.mean()
    return bool((steps > 0).all()), bool(goes_on)


def _room(run: Run) -> tuple[float | None, str]:
    """Return the free bytes under the nearest limit at the end, and whose limit that is."""
    names = pl.col("resource", "device").cast(pl.String)
    memory = run.resources().with_columns(names).filter(resource=MEMORY)
    last = memory.drop_nulls(["value", "limit"]).sort("end_ns").group_by("device").last()
    rows = last.select(pl.col("limit") - pl.col("value"), "device").sort("limit").rows()
    return rows[0] if rows else (None, "machine")


def _samples_per_s(run: Run) -> float | None:
    """Return the samples that a rank uses a second; None where a batch's size is unknown."""
    recorded = run.samples().group_by("rank", "epoch", "batch").len()["len"]
    of_batch = run.settings.batch_size or (recorded.to_numpy().mean() if recorded.len() else 0)
    start_ns = pl.col("start_ns").drop_nulls()
    begun = (
        run.steps()
        .group_by("rank")
        .agg(steps=start_ns.len() - 1, length_s=(start_ns.max() - start_ns.min()) / 1e9)
    )
    steps, length_s = float(begun["steps"].sum()), float(begun["length_s"].sum())
    return float(of_batch) * steps / length_s if of_batch and length_s else None
