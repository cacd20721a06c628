"""The growth of the workers' memory over time.

A forked worker shares the pages of the training process until either of them writes to a page, and
reading a Python object writes its reference count. Then the worker's own memory grows, while its
mapped memory stays constant; that looks like a leak, and ends when all pages are copied (pytorch
#13246). A true leak maps new pages with every sample and never ends.

Both numbers exclude file pages, which come and go with mapped files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.stages import MEMORY, WORKER_MAPPED, WORKER_MEMORY
from stallscope.units import count, duration, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.result import Run


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
"""Samples of a worker that show continuing growth; two show copies. They span ..."""
_LOOKED_S: Final = 1.0
"""... at least this time."""
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
            text += f", {share(self.copied_share)} of it copies of the main process's objects"
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
        end = "so far" if self.may_settle else "without an end in sight"
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
    looks = measured.filter(pl.col("resource").is_in([WORKER_MEMORY, WORKER_MAPPED]))
    table = looks.pivot("resource", index=["rank", "device", "end_ns"], values="value")
    if table.is_empty() or not {WORKER_MEMORY, WORKER_MAPPED} <= set(table.columns):
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
        columns = rows[picked].select(pl.col("end_ns") / 1e9, WORKER_MEMORY, WORKER_MAPPED)
        at_s, own, mapped = columns.to_numpy().T
        if at_s[-1] - at_s[0] >= _LOOKED_S:
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
    memory = run.resources().with_columns(names).filter(resource=MEMORY)
    last = memory.drop_nulls(["value", "limit"]).sort("end_ns").group_by("device").last()
    rows = last.select(pl.col("limit") - pl.col("value"), "device").sort("limit").rows()
    return rows[0] if rows else (None, "machine")
