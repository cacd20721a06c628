"""The result of `ss.storage`: how fast storage delivers, and how fast the loop needs it.

A reading is one round in one access pattern. Patterns are compared over several rounds of all of
them, so that a busy period of the disk slows each. A reading is cold if hardly any of its bytes
were in the page cache just before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import polars as pl

from stallscope.bench.comparison import AS_FAST, Rate, rate_of
from stallscope.columns import NAME, PATH, Column, Schema, interval
from stallscope.result import LoopConditions, SavedResult
from stallscope.store import stored
from stallscope.units import count, seconds, share, size, times, used_of
from stallscope.verbs.storage.reads import COLD, MEMORY, SAMPLE, SEQUENTIAL, WARM

if TYPE_CHECKING:
    from collections.abc import Mapping


_PATTERN: Final = (
    Column("access", pl.String, "`sample`, `random` or `sequential`", secret=NAME),
    Column("request_bytes", pl.Int64, "size of a request; 0: whole files, opened and closed"),
    Column("readers", pl.Int32, "requests at once", "readers"),
    Column("state", pl.String, "cold, warm, or dropped (perhaps cold)", "state", secret=NAME),
)

READINGS: Final = Schema(
    "One row per round of an access pattern.",
    *_PATTERN,
    Column("round", pl.Int32),
    Column("requests", pl.Int64, is_divisor=True),
    Column("bytes", pl.Int64),
    Column("took_s", pl.Float64, is_divisor=True),
    Column("latency_s", pl.Float64, "median time of a request"),
    Column("latency_p95_s", pl.Float64),
    Column("cached_share", pl.Float64, "share in the page cache before; null: unknown"),
    nullable="cached_share",
)

READS: Final = Schema(
    "One row per access pattern, over all rounds. A request of the access `sample` is a sample.",
    *_PATTERN,
    Column("latency_s", pl.Float64, "median time of a request", "latency"),
    Column("latency_p95_s", pl.Float64, "95th percentile", "p95"),
    Column("bytes_per_s", pl.Float64, "throughput", "bytes/s"),
    Column("requests_per_s", pl.Float64, "requests per second", "reads/s", "{:,.0f}".format),
    *interval("requests_low_per_s", "{:,.0f}".format),
    Column("cached_share", pl.Float64, "share in the page cache before", "in cache"),
    Column("rounds", pl.Int32),
)

PLACES: Final = Schema(
    "One row per mount.",
    Column("path", pl.String, "folder", secret=PATH),
    Column("device", pl.String),
    Column("system", pl.String, "kind of file system", "system"),
    Column("medium", pl.String, "kind of medium", "medium"),
    Column("files", pl.Int64, "data files that were checked", "files"),
    Column("bytes", pl.Int64, "their size", "bytes"),
    Column("resident_share", pl.Float64, "share in the page cache before", "in cache"),
    nullable="resident_share",
)

_KEYS: Final = [column.name for column in _PATTERN]
UNPROVEN: Final = "dropped"
RESIDENT: Final = 0.95
"""Share in the page cache from which a loop is no measurement of a first epoch."""
_AMPLE: Final = 1.5
"""Storage this many times as fast as the loader is not the loader's bottleneck."""


@dataclass(frozen=True)
class LoopDemand(LoopConditions):
    """The loop that was measured, and the samples that its step needs."""

    wanted_per_s: float | None = None
    """Samples a second that the step would use if it never waited; None without a step."""
    budget_s: float = 0.0
    """Time limit, seconds."""
    took_s: float = 0.0
    """Time used, seconds."""

    def budget_note(self) -> str:
        """Return the time that was used, and the limit."""
        return f"took {used_of(self.took_s, self.budget_s)}"


@dataclass(frozen=True)
class StorageConditions(LoopDemand):
    """The loop that was measured, and its files."""

    files: int = 0
    """Number of data files that were checked: those that were read, and others beside them."""
    data_bytes: int = 0
    """Bytes of these files."""
    resident_share: float | None = None
    """Share (0 to 1) in the page cache of the files that the recording did not read."""
    is_whole: bool = True
    """True if a sample is a file of its own, False if it is a part of a container."""
    sample_bytes: float | None = None
    """Bytes that a sample reads; None: unknown."""
    sample_s: float | None = None
    """Median time of a sample in a worker, as recorded, seconds."""
    fetch_s: float | None = None
    """Part of `sample_s` spent reading; None: no read was recorded."""
    loop_per_s: float | None = None
    """Samples a second of the loop, as recorded."""


@dataclass(frozen=True, eq=False)
class Storage(SavedResult):
    """Throughput of a loader's storage, cold and warm, and the demand of the loop."""

    _view: ClassVar[str] = "results.STORAGE"
    _noun: ClassVar[str] = "measurement of storage"

    readings: pl.DataFrame = stored(READINGS)
    places: pl.DataFrame = stored(PLACES)
    circumstances: StorageConditions = field(default_factory=StorageConditions)
    """The loop that was measured, and its files."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""

    @cached_property
    def _reads(self) -> pl.DataFrame:
        patterns: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.readings.to_dicts():
            patterns.setdefault(tuple(row[key] for key in _KEYS), []).append(row)
        rows = [(*key, *_summary(rounds)) for key, rounds in patterns.items()]
        rows.sort(key=lambda row: (row[0] != SAMPLE, row[0], row[1], row[3], row[2]))
        return pl.DataFrame(rows, READS, orient="row")

    def table(self) -> pl.DataFrame:
        """Return one row per access pattern; columns of `READS`."""
        return self._reads

    def of(self, access: str, state: str) -> list[dict[str, Any]]:
        """Return the rows of an access in a state with its smallest requests, by readers."""
        rows = [row for row in self._reads.to_dicts() if row["access"] == access]
        least = min((row["request_bytes"] for row in rows), default=0)
        return [row for row in rows if row["state"] == state and row["request_bytes"] == least]

    @property
    def cold(self) -> str:
        """State that stands for a first epoch: `dropped` where cold cannot be proven."""
        return UNPROVEN if not self.of(SAMPLE, COLD) and self.of(SAMPLE, UNPROVEN) else COLD

    @property
    def best(self) -> dict[str, Any] | None:
        """Row with the fewest readers that reach about the highest cold rate; None: unknown."""
        rows = self.of(SAMPLE, self.cold)
        most = max((row["requests_per_s"] for row in rows), default=0.0)
        return next((row for row in rows if row["requests_per_s"] >= AS_FAST * most), None)

    @property
    def cold_share(self) -> float | None:
        """Share (0 to 1) of a sample's time that a cold read takes; None: unknown."""
        conditions, rows = self.circumstances, self.of(SAMPLE, self.cold)
        if not rows or conditions.sample_s is None:
            return None
        rest_s = max(conditions.sample_s - (conditions.fetch_s or 0.0), 0.0)
        return float(rows[0]["latency_s"] / (rows[0]["latency_s"] + rest_s))

    @property
    def spare(self) -> float | None:
        """Cold rate as a multiple of the step's demand; None: unknown."""
        best, wanted = self.best, self.circumstances.wanted_per_s
        return best["requests_per_s"] / wanted if best and wanted else None

    @property
    def is_in_memory(self) -> bool:
        """True if all files are in a file system that is memory."""
        return bool(self.places.height) and set(self.places["medium"]) == {MEMORY}


def _summary(rounds: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Combine the rounds of an access pattern; the columns of `READS` after its keys."""
    rate = rate_of([[(row["requests"], row["took_s"])] for row in rounds]) or Rate(0.0)
    latencies = [
        float(np.median([row[name] for row in rounds])) for name in ("latency_s", "latency_p95_s")
    ]
    bytes_per_s = sum(row["bytes"] for row in rounds) / sum(row["took_s"] for row in rounds)
    cached = [row["cached_share"] for row in rounds]
    highest = None if None in cached else max(cached)
    return (*latencies, bytes_per_s, rate.value, rate.low, rate.high, highest, len(rounds))


def sentence(storage: Storage) -> str:
    """Return the answer: is storage the bottleneck of a first epoch, and how fast is it?"""
    conditions = storage.circumstances
    if not conditions.files:
        return "The loader opens no data file on this machine, so no disk slows it down"
    if storage.is_in_memory:
        return "The files are in memory (tmpfs), so storage cannot slow the loader down"
    best, part = storage.best, storage.cold_share
    if best is None:
        why = "the files stayed in the page cache" if storage.of(SAMPLE, WARM) else "no read worked"
        return f"The speed of a first epoch is unknown: {why} (see the notes)"
    sentences = [_rate_sentence(storage, best)]
    if part is not None:
        latency = seconds(storage.of(SAMPLE, storage.cold)[0]["latency_s"])
        sentences.append(f"A cold read takes {share(part)} of a sample's time ({latency})")
    cached = conditions.resident_share
    if cached is not None and cached >= RESIDENT:
        files = "All files are" if round(cached, 2) >= 1 else f"{share(cached)} of the files are"
        sentences.append(f"{files} in the page cache now, so your loop is faster than that")
    return ". ".join(sentences)


def _rate_sentence(storage: Storage, best: dict[str, Any]) -> str:
    rate, spare, loader = best["requests_per_s"], storage.spare, storage.circumstances.loop_per_s
    delivers = f"{rate:,.0f} samples/s with {count(best['readers'], 'reader')}"
    if spare is None:
        return f"Your storage delivers {delivers} in a first epoch"
    if spare >= 1:
        return f"Your storage delivers {delivers}, {times(spare)} what the step needs"
    if loader and rate > _AMPLE * loader:
        return (
            f"Your storage delivers {delivers}: less than the step needs, but more than this "
            f"loader's {loader:,.0f}/s. Speed up the loader first"
        )
    return (
        f"Storage is the bottleneck of a first epoch: it delivers {delivers}, {times(spare)} what "
        "the step needs"
    )


def describe(row: Mapping[str, Any]) -> str:
    """Return an access pattern in words; `row` is one of `READS`."""
    length = row["request_bytes"]
    if row["access"] == SAMPLE:
        return f"{size(length)} of a sample" if length else "a sample's file"
    if row["access"] != SEQUENTIAL:
        return f"{size(length)}, random"
    received = row["bytes_per_s"] / row["requests_per_s"]
    is_short = received < length / 2  # files are smaller than a request
    return f"files of {size(received)}, in order" if is_short else f"{size(length)}, in order"


def notes_of(storage: Storage) -> list[str]:
    """Return the caveats, a sentence each."""
    conditions = storage.circumstances
    wanted, cached, notes = conditions.wanted_per_s, conditions.resident_share, []
    if conditions.files:
        checked = f"{count(conditions.files, 'data file')}, {size(conditions.data_bytes)}"
        part = "" if cached is None else f", {share(cached)} of it in the page cache before"
        notes.append(f"checked: {checked}{part}")
    rate = wanted or conditions.loop_per_s
    if conditions.sample_bytes is not None and conditions.loop_per_s is not None and rate:
        notes.append(
            f"needed at the {'step' if wanted else 'loop'}'s pace: {rate:,.0f} samples/s of "
            f"{size(conditions.sample_bytes)}, {size(rate * conditions.sample_bytes)}/s"
        )
    unknown = "how many samples/s a training needs is unknown"
    return [*chain(notes, conditions.step_notes(unknown), storage.notes), conditions.budget_note()]
