"""What a loader's storage gives, beside what the loader asks of it, as a value.

A reading is one go at one way of reading; ways are compared over several rounds of all of them, so
that a disk that is busy for a while is so for each. A reading counts as cold where the page cache
was looked into just before and held next to nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import polars as pl

from stallscope.bench.comparison import Rate, rate_of
from stallscope.columns import NAME, PATH, Column, Schema
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.storage.places import MEMORY, NETWORK
from stallscope.storage.reads import COLD, SAMPLE, SEQUENTIAL, WARM
from stallscope.store import Contents, StoredTable
from stallscope.units import count, seconds, share, size, times

if TYPE_CHECKING:
    from collections.abc import Mapping


_WAY: Final = (
    Column("access", pl.String, "`sample`, `random` or `sequential`", secret=NAME),
    Column("request_bytes", pl.Int64, "size of a request; 0: whole files, opened and closed"),
    Column("readers", pl.Int32, "requests at once", "readers"),
    Column("state", pl.String, "cold, warm, or dropped (perhaps cold)", "state", secret=NAME),
)

READINGS: Final = Schema(
    "One row a round of a way of reading.",
    *_WAY,
    Column("round", pl.Int32),
    Column("requests", pl.Int64),
    Column("bytes", pl.Int64),
    Column("took_s", pl.Float64),
    Column("latency_s", pl.Float64, "median time of a request"),
    Column("latency_p95_s", pl.Float64),
    Column("cached_share", pl.Float64, "share that lay in the page cache before; null: unknown"),
)

READS: Final = Schema(
    "One row a way of reading, over all its rounds. A request of the access `sample` is a sample.",
    *_WAY,
    Column("latency_s", pl.Float64, "median time of a request", "latency"),
    Column("latency_p95_s", pl.Float64, "95th percentile", "p95"),
    Column("bytes_per_s", pl.Float64, "throughput", "bytes/s"),
    Column("requests_per_s", pl.Float64, "requests per second", "reads/s", "{:,.0f}".format),
    Column("requests_low_per_s", pl.Float64, "its 95% CI", INTERVAL, "{:,.0f}".format),
    Column("requests_high_per_s", pl.Float64),
    Column("cached_share", pl.Float64, "share that lay in the page cache before", "in cache"),
    Column("rounds", pl.Int32),
)

PLACES: Final = Schema(
    "One row a mount.",
    Column("path", pl.String, "where it is", secret=PATH),
    Column("device", pl.String),
    Column("system", pl.String, "kind of file system", "system"),
    Column("medium", pl.String, "kind of medium", "medium"),
    Column("files", pl.Int64, "files of the data that were looked at", "files"),
    Column("bytes", pl.Int64, "their size", "bytes"),
    Column("resident_share", pl.Float64, "share in the page cache before", "in cache"),
)

UNPROVEN: Final = "dropped"
RESIDENT: Final = 0.95
"""From this share on everything lies in the page cache."""
ENOUGH: Final = 1.0
"""Storage that gives fewer samples than this times what the step asks for is the limit."""

_AMPLE: Final = 1.5
"""Storage that gives so many times as many samples as the loader makes is not what holds it."""
_AS_FAST: Final = 0.97
"""More readers that give hardly more samples than this says are not recommended."""

_FULL: Final = 0.5
"""Of the bytes a second of long readings in order: samples that get so many wait for bytes."""


@dataclass(frozen=True)
class StorageConditions(LoopConditions):
    """What was measured, and what the loader asks for."""

    files: int = 0
    """Of the data that were looked at: those that were read, and others beside them."""
    data_bytes: int = 0
    """Of these files."""
    resident_share: float | None = None
    """Share (0 to 1) of those that the recording did not read that lay in the page cache."""
    is_whole: bool = True
    """Whether a sample is a file of its own; else it is a part of a container."""
    sample_bytes: float | None = None
    """That a sample reads; None where that is not known."""
    sample_s: float | None = None
    """Median time that a sample takes in a worker, as recorded, seconds ..."""
    fetch_s: float | None = None
    """... and of it in reading; None where no reading was seen."""
    loop_per_s: float | None = None
    """Samples a second of the loop as it was recorded."""
    wanted_per_s: float | None = None
    """Samples a second that the step would use if it never waited; None without a step."""
    budget_s: float = 0.0
    """What was allowed, seconds."""
    took_s: float = 0.0
    """What was used."""


@dataclass(frozen=True, eq=False)
class Storage(SavedResult):
    """What the storage under a loader's files gives, cold and warm, and what the loader asks."""

    _view: ClassVar[str] = "results.STORAGE"
    _contents: ClassVar = Contents(
        kind="storage",
        noun="measurement of storage",
        tables=(
            StoredTable(
                "readings",
                READINGS,
                READINGS.keys() - {"cached_share"},
                positive={"requests", "took_s"},
            ),
            StoredTable("places", PLACES, PLACES.keys() - {"resident_share"}),
        ),
        values={"circumstances": StorageConditions, "notes": tuple[str, ...]},
    )

    readings: pl.DataFrame
    """Columns of `READINGS`."""
    places: pl.DataFrame
    """Columns of `PLACES`."""
    circumstances: StorageConditions = field(default_factory=StorageConditions)
    """What was measured, and what the loader asks for."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @cached_property
    def _reads(self) -> pl.DataFrame:
        ways: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.readings.to_dicts():
            key = tuple(row[name] for name in ("access", "request_bytes", "readers", "state"))
            ways.setdefault(key, []).append(row)
        rows = [(*key, *_summary(rounds)) for key, rounds in ways.items()]
        return pl.DataFrame(sorted(rows, key=_order), READS, orient="row")

    def table(self) -> pl.DataFrame:
        """One row a way of reading; columns of `READS`."""
        return self._reads

    def of(self, access: str, state: str) -> list[dict[str, Any]]:
        """The rows of an access in a state, by the number of readers; those of small requests.

        Args:
            access: `sample`, `random` or `sequential`.
            state: `cold`, `warm` or `dropped`.
        """
        rows = [row for row in self._reads.to_dicts() if row["access"] == access]
        least = min((row["request_bytes"] for row in rows), default=0)
        return [row for row in rows if row["state"] == state and row["request_bytes"] == least]

    @property
    def cold(self) -> str:
        """The state that stands for a first epoch: `dropped` where nobody can prove it cold."""
        return UNPROVEN if not self.of(SAMPLE, COLD) and self.of(SAMPLE, UNPROVEN) else COLD

    @property
    def best(self) -> dict[str, Any] | None:
        """The number of readers that gives most samples cold: a row; None: not measured.

        Of several that give about the same, the fewest.
        """
        rows = self.of(SAMPLE, self.cold)
        most = max((row["requests_per_s"] for row in rows), default=0.0)
        return next((row for row in rows if row["requests_per_s"] >= _AS_FAST * most), None)

    @property
    def cold_share(self) -> float | None:
        """Share (0 to 1) of a sample's time that reading it takes where it lies in no cache."""
        told, rows = self.circumstances, self.of(SAMPLE, self.cold)
        if not rows or told.sample_s is None:
            return None
        rest_s = max(told.sample_s - (told.fetch_s or 0.0), 0.0)
        return float(rows[0]["latency_s"] / (rows[0]["latency_s"] + rest_s))

    @property
    def spare(self) -> float | None:
        """How many times as many samples it gives cold as the step asks for; None: unknown."""
        best, wanted = self.best, self.circumstances.wanted_per_s
        return best["requests_per_s"] / wanted if best and wanted else None

    @property
    def in_flight(self) -> tuple[int, dict[str, Any] | None] | None:
        """Requests in flight that keep the step fed at least, and the row of as many, or more.

        By Little's law, from what one request takes alone; None: unknown, the second: not measured.
        """
        rows, wanted = self.of(SAMPLE, self.cold), self.circumstances.wanted_per_s
        if not rows or not wanted or rows[0]["readers"] != 1:
            return None
        needed = requests_in_flight(wanted, rows[0]["latency_s"])
        return needed, next((row for row in rows if row["readers"] >= needed), None)

    @property
    def is_full(self) -> bool | None:
        """Whether cold samples come as fast as bytes do, so that only fewer bytes would help.

        If not, it is requests that they wait for: larger ones, or more at once, would. None: not
        measured.
        """
        rows, whole = self.of(SAMPLE, self.cold), self.of(SEQUENTIAL, self.cold)
        if not rows or not whole:
            return None
        most, of_all = (max(row["bytes_per_s"] for row in each) for each in (rows, whole))
        return bool(most >= _FULL * of_all)

    @property
    def is_in_memory(self) -> bool:
        """Whether all files lie in a file system that is memory."""
        return bool(self.places.height) and set(self.places["medium"]) == {MEMORY}


def requests_in_flight(per_s: float, latency_s: float) -> int:
    """So many at once give so many a second, where one takes so long alone (Little's law)."""
    return max(math.ceil(per_s * latency_s), 1)


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    access, request_bytes, readers, state = row[:4]
    return (access != SAMPLE, access, request_bytes, state, readers)


def _summary(rounds: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What all rounds of a way of reading say together."""
    rates = rate_of([[(row["requests"], row["took_s"])] for row in rounds]) or Rate(0.0)
    much = sum(row["bytes"] for row in rounds) / sum(row["took_s"] for row in rounds)
    known = [row["cached_share"] for row in rounds if row["cached_share"] is not None]
    return (
        float(np.median([row["latency_s"] for row in rounds])),
        float(np.median([row["latency_p95_s"] for row in rounds])),
        *(much, rates.value, rates.low, rates.high),
        max(known) if len(known) == len(rounds) else None,
        len(rounds),
    )


def sentence(storage: Storage) -> str:
    """Whether storage is what a first epoch waits for, and what it could give."""
    told = storage.circumstances
    if not told.files:
        return "No file was seen being read: there is nothing here that a storage could slow down"
    if storage.is_in_memory:
        return "The files lie in memory (tmpfs): this loader waits for no storage"
    best, part = storage.best, storage.cold_share
    if best is None:
        return f"How fast a first epoch would read is not known: {_why_not(storage)}"
    said = _first_epoch(storage, best)
    part_s = storage.of(SAMPLE, storage.cold)[0]["latency_s"]
    if part is not None:
        said = f"reading cold takes {share(part)} of a sample ({seconds(part_s)}), and {said}"
    cached = told.resident_share
    if cached is not None and cached >= RESIDENT:
        lies = "everything lies" if round(cached, 2) >= 1 else f"{share(cached)} of the files lie"
        said = f"{lies} in the page cache, so what you measure is not your first epoch: {said}"
    return said[0].upper() + said[1:]


def _first_epoch(storage: Storage, best: dict[str, Any]) -> str:
    """What the storage gives at most, beside what is asked for."""
    rate, spare = best["requests_per_s"], storage.spare
    gives = f"{rate:,.0f} samples/s with {count(best['readers'], 'reader')}"
    if spare is None:
        return f"your storage gives {gives}"
    made = storage.circumstances.loop_per_s
    if spare < ENOUGH and made and rate > _AMPLE * made:
        return (
            f"your storage gives {gives}: less than the step asks for, but more than the "
            f"{made:,.0f}/s that this loader makes of them, so it is not what to mend first"
        )
    if spare < ENOUGH:
        return (
            f"your storage gives no more than {gives}, {times(spare)} what the step asks for: it "
            "is the limit of a first epoch"
        )
    return f"your storage gives {gives}, {times(spare)} what the step asks for"


def _why_not(storage: Storage) -> str:
    if storage.of(SAMPLE, WARM):
        return "nothing could be taken out of the page cache (see the notes)"
    return "nothing could be read (see the notes)"


def way_of(row: Mapping[str, Any]) -> str:
    """A way of reading in words."""
    length = row["request_bytes"]
    if row["access"] == SAMPLE:
        return f"a sample's {size(length)}, anywhere" if length else "a sample's file, whole"
    if row["access"] != SEQUENTIAL:
        return f"{size(length)}, anywhere"
    came = row["bytes_per_s"] / row["requests_per_s"]
    return f"files of {size(came)}, in order" if came < length / 2 else f"{size(length)}, in order"


def notes_of(storage: Storage) -> list[str]:
    """What a reader has to know, a sentence each."""
    told, said = storage.circumstances, []
    if told.files:
        cached = "" if told.resident_share is None else f", {share(told.resident_share)} of it"
        said.append(
            f"looked at: {count(told.files, 'file')} of the data, {size(told.data_bytes)}{cached}"
            f"{' in the page cache before' if cached else ''}"
        )
    if told.sample_bytes is not None and told.loop_per_s is not None:
        rate = told.wanted_per_s or told.loop_per_s
        pace = "step's pace" if told.wanted_per_s else "loop's pace"
        said.append(
            f"asked for at the {pace}: {rate:,.0f} samples/s of {size(told.sample_bytes)}, "
            f"{size(rate * told.sample_bytes)}/s"
        )
    if set(storage.places["medium"]) == {NETWORK} and (flight := storage.in_flight):
        needed, row = flight
        so = "not measured"
        if row is not None:
            so = f"measured with {row['readers']}: {row['requests_per_s']:,.0f}"
        said.append(
            f"predicted: at least {count(needed, 'request')} in flight for the step's "
            f"{told.wanted_per_s or 0.0:,.0f} samples/s ({so}); your loader has "
            f"{max(told.num_workers, 1)}, one for each worker"
        )
    if told.simulated_step_s is not None:
        said.append(
            f"the step is simulated: a timer of {seconds(told.simulated_step_s)}, no device"
        )
    elif not told.has_step:
        said.append("no step was given: what a training asks for is not known")
    return [*said, *storage.notes, f"{seconds(told.took_s)} of at most {seconds(told.budget_s)}"]
