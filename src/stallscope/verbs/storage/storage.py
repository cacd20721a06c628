"""`ss.storage`: how fast the storage under a loader's files delivers, cold and warm.

The loop is recorded briefly: which files it reads, how long a sample takes, how many samples the
step needs. Then some of these files are read in several access patterns, in rounds, until the time
is over. Files are only read; the kernel is asked to drop the bytes that are read next.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.apart import apart
from stallscope.bench.measurement import Measurement
from stallscope.isolation import isolated
from stallscope.loops.cached_values import samples_in
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import Enough, Limits, TimedLoop, started
from stallscope.machine import require_single_rank
from stallscope.model.costs import recorded_per_s
from stallscope.run.record import record_target
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, WARMUP, count, share
from stallscope.verbs.storage import reads
from stallscope.verbs.storage.reads import COLD, RANDOM, REALLY_COLD, SAMPLE, SEQUENTIAL, WARM
from stallscope.verbs.storage.result import PLACES, READINGS, UNPROVEN, Storage, StorageConditions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.run.result import Run
    from stallscope.targets.target import Target
    from stallscope.verbs.storage.reads import DataFile, Mount


_BATCHES: Final = 16
_STEADY_S: Final = 2.0
"""Seconds of steady state that are recorded, where the budget allows it."""
_RECORD_SHARE: Final = 0.3
_LOOK_SHARE: Final = 0.1
_READ_SHARE: Final = 0.9
"""Shares of the budget after which recording, looking at open files, and new readings end."""
_ROUNDS: Final = 6
_READING_S, _SHORTEST_S = 0.4, 0.05
"""Seconds of one reading, at most and at least."""
_MOST_READERS, _MOST_WORKERS = 8, 64
"""Most readers at once, and where the loader has more workers."""
_RESIDENCY_FILES, _FEWEST_UNREAD = 512, 8
"""Files whose page cache state is looked up, and how many it takes to stand for the rest."""
_USUAL_BYTES: Final = 64 << 10
"""Bytes of a container's sample, where unknown; files that are larger by less are no containers."""


def storage(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
) -> Storage:
    """Measure how fast the storage under a loader's files delivers, and how fast the loop needs it.

    Iterates shallow copies of the loader briefly, as `ss.record` does, and then reads some of its
    files: whole samples, small pieces at random, and from begin to end, with one reader and
    several, warm and cold. For cold readings the kernel is asked to drop the bytes that are read
    next (`posix_fadvise`), so other processes read those from the disk, too.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one, the demand is unknown.
        device: where batches are moved before `step`; the target's by default.
        budget_s: time limit, seconds; the batch that is under way then is finished.

    Raises:
        ArgumentError: `budget_s` is not a usable number.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target keeps a generator in the middle of an epoch, or this process is
            one of several ranks.
        WorkspaceError: there is no room for the logs.
        NoBatchError: a batch did not come in time.
    """
    measurement = Measurement("storage", budget_s)
    require_single_rank()
    resolved = targets.target(target, step=step, device=device)
    probe = StorageProbe(resolved, measurement)
    with measurement.of(resolved.name):
        measurement.result = lambda: probe.result() if probe.readings else None
        probe.run()
        return probe.result()


class AccessPattern(NamedTuple):
    """Kind of access, size of a request, number of readers, and page cache state."""

    access: str
    request_bytes: int
    """Size of a request; 0: whole files."""
    readers: int
    state: str


def record_briefly(target: Target, left_s: float) -> Run:
    """Record a loop just long enough to know its pace; `left_s` is the rest of the budget."""
    workers = max(target.num_workers, 1)
    enough = Enough(
        max(WARMUP, workers),
        max(_BATCHES, 2 * workers),
        min(_STEADY_S, left_s / 10),
        few=workers,
        late_s=left_s * _RECORD_SHARE / 2,
    )
    limits = Limits(1_000_000, max(left_s * _RECORD_SHARE, 0.1), enough)
    return record_target(target, limits)


def demand_of(run: Run) -> dict[str, float | None]:
    """Return what the loop needs of its storage; fields of `StorageConditions`."""
    samples = run.samples(steady=run.samples().height > 0)
    steps = run.steps().drop_nulls("wait_s")
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
    # While a device that works behind the host has work, the loop's wait is the batch's use
    use_s, period_s = steps.select(
        use=(used_s + pl.col("hidden_s").fill_null(0.0)).mean(),
        period=(used_s + pl.col("wait_s")).mean(),
    ).row(0)
    rate, wanted = recorded_per_s(run), None
    if rate and use_s and run.settings.has_step:
        wanted = rate * period_s / use_s
    medians = samples.select(
        pl.col("bytes").mean(),
        pl.col("total_s").median(),
        pl.col("fetch_s").filter(pl.col("fetch_s") > 0).median(),
    ).row(0)
    names = ("sample_bytes", "sample_s", "fetch_s")
    return {**dict(zip(names, medians, strict=True)), "loop_per_s": rate, "wanted_per_s": wanted}


class StorageProbe:
    """One measurement of the storage under a loader."""

    def __init__(self, target: Target, measurement: Measurement) -> None:
        self._target, self._measurement = target, measurement
        self._demand: dict[str, Any] = {}
        self._files: list[DataFile] = []
        self._mounts: dict[str, Mount] = {}
        """Mount of each file, by its path."""
        self._resident: dict[str, float] = {}
        """Share in the page cache of files that the recording did not read."""
        self._is_whole = True
        self.readings: list[dict[str, Any]] = []
        """Rows of `READINGS`."""
        self._stayed = 0.0
        self._failed = 0

    @property
    def _left_s(self) -> float:
        return _READ_SHARE * self._measurement.budget_s - self._measurement.used_s

    def run(self) -> None:
        """Record the loop, find its files, read them."""
        run = record_briefly(self._target, self._left_s)
        self._demand = apart(lambda: demand_of(run))
        paths = apart(lambda: run.all_samples["path"].drop_nulls().cast(pl.String).to_list())
        self._find_files(paths)
        if self._files:
            self._read()

    def result(self) -> Storage:
        """Return what has been measured so far."""
        return Storage(
            pl.DataFrame(self.readings, READINGS),
            pl.DataFrame(self._places(), PLACES, orient="row"),
            StorageConditions.of(
                self._target,
                device=device_of(self._target).name,
                budget_s=self._measurement.budget_s,
                took_s=self._measurement.used_s,
                files=len(self._files),
                data_bytes=sum(file.size for file in self._files),
                resident_share=_mean([*self._resident.values()]),
                is_whole=self._is_whole,
                **self._demand,
            ),
            (*self._target.notes, *self._measurement.notes, *self._notes()),
        )

    def _places(self) -> list[tuple[Any, ...]]:
        """Return the rows of `PLACES`, the mount with the most files first."""
        by_mount: dict[Mount, list[DataFile]] = {}
        for file in self._files:
            by_mount.setdefault(self._mounts[file.path], []).append(file)
        rows: list[tuple[Any, ...]] = []
        for mount, files in by_mount.items():
            shares = [self._resident[file.path] for file in files if file.path in self._resident]
            rows.append((*mount, len(files), sum(file.size for file in files), _mean(shares)))
        return sorted(rows, key=lambda row: -row[4])

    # ---- the files --------------------------------------------------------------------------

    def _find_files(self, paths: Sequence[str]) -> None:
        files = reads.data_files(paths)
        containers, sample_bytes = self._look()
        read = [file for file in files if file.was_read]
        of_shards = reads.tar_sample_bytes([*read, *containers])
        sample_bytes = of_shards or sample_bytes
        mean_bytes = _mean([file.size for file in read])
        # A sample that reads less than its file is one of many in it
        self._is_whole = (
            of_shards is None
            and mean_bytes is not None
            and (sample_bytes is None or mean_bytes <= 2 * sample_bytes + _USUAL_BYTES)
        )
        if not self._is_whole:
            self._demand["sample_bytes"] = sample_bytes
            files = sorted({*containers, *read})
            if files:
                self._measurement.note(
                    "samples are parts of larger files: stallscope reads pieces of the files that "
                    "the loader's processes open or map"
                )
        self._files, self._mounts = files, reads.mounts_of(files)
        self._resident = self._residency(files)

    def _look(self) -> tuple[list[DataFile], float | None]:
        """Return the containers that the loader holds open, and the bytes that a sample reads."""
        workers = max(self._target.num_workers, 1)
        until_s = time.perf_counter() + _LOOK_SHARE * self._measurement.budget_s
        with (
            isolated(replace(self._target, step=None)) as target,
            started(TimedLoop.of(target)) as batches,
        ):
            samples, before = 0, reads.bytes_read()
            for number, batch in enumerate(islice(batches, 4 * workers), 1):
                if number == workers:  # each worker has opened its files
                    before = reads.bytes_read()
                elif number > workers:
                    samples += samples_in(batch, target.batch_size)
                if time.perf_counter() > until_s:
                    break
            after = reads.bytes_read()
            containers = reads.open_containers()
        if not samples or before is None or after is None:
            return containers, None
        return containers, (after - before) / samples

    def _residency(self, files: list[DataFile]) -> dict[str, float]:
        """Look up the page cache for files that the recording did not read."""
        unread = [file for file in files if not file.was_read]
        if len(unread) < _FEWEST_UNREAD:
            if files:
                self._measurement.note(
                    "the recording read all files, so it is unknown how much of them was in the "
                    "page cache before"
                )
            return {}
        resident = {}
        for file in unread[:: max(len(unread) // _RESIDENCY_FILES, 1)]:
            with suppress(OSError):
                resident[file.path] = reads.resident_share(file.path)
        return {path: part for path, part in resident.items() if part is not None}

    # ---- reading ----------------------------------------------------------------------------

    def _patterns(self) -> Iterator[AccessPattern]:
        """Yield the access patterns, the most telling first."""
        length = 0
        if not self._is_whole:
            usual = self._demand["sample_bytes"] or _USUAL_BYTES
            length = int(min(max(usual, reads.SMALL_BYTES), reads.LARGE_BYTES))
        readers = {1, 2, 4, _MOST_READERS, min(max(self._target.num_workers, 1), _MOST_WORKERS)}
        yield from (AccessPattern(SAMPLE, length, number, COLD) for number in sorted(readers))
        yield AccessPattern(SAMPLE, length, 1, WARM)
        # Warm readers would wait for Python's lock and not for a device, so there is one
        for number, state in ((1, COLD), (_MOST_READERS, COLD), (1, WARM)):
            yield AccessPattern(RANDOM, reads.SMALL_BYTES, number, state)
            yield AccessPattern(SEQUENTIAL, reads.LARGE_BYTES, number, state)

    def _read(self) -> None:
        """Read in every access pattern, round by round, forward and backward in turn.

        The first round is read whatever the recording took: a slow loader gets an answer, too.
        """
        patterns = list(self._patterns())
        if self._media == {reads.MEMORY}:
            patterns = [pattern for pattern in patterns if pattern.state == WARM]
        reading_s = max(min(_READING_S, self._left_s / (3 * len(patterns))), _SHORTEST_S)
        for number in range(_ROUNDS):
            for pattern in patterns[:: -1 if number % 2 else 1]:
                left_s = self._left_s
                if number and left_s <= 0:
                    return
                self._measurement.now(pattern.access)
                self._read_once(pattern, number, max(min(reading_s, left_s), _SHORTEST_S))

    @property
    def _media(self) -> set[str]:
        return {mount.medium for mount in self._mounts.values()}

    def _read_once(self, pattern: AccessPattern, number: int, seconds: float) -> None:
        state = pattern.state
        wanted = reads.requests(self._files, pattern.access, pattern.request_bytes, number)
        if not wanted:
            return
        if state == COLD:
            reads.make_cold(wanted)
            cached = reads.cached_share(wanted)
            if cached is None:
                state = UNPROVEN
            elif cached > REALLY_COLD:
                self._stayed = max(self._stayed, cached)
                return
        else:
            warming = reads.timed(wanted, pattern.readers, seconds)
            wanted = wanted[: max(warming.requests, 1)]
        readahead = pattern.request_bytes != reads.SMALL_BYTES
        reading = reads.timed(wanted, pattern.readers, seconds, readahead=readahead)
        self._failed += reading.failed
        if reading.took_s > 0:
            about = pattern._replace(state=state)._asdict()
            self.readings.append(about | {"round": number} | reading._asdict())

    def _notes(self) -> list[str]:
        media, is_unproven = self._media, any(row["state"] == UNPROVEN for row in self.readings)
        notes = {
            "files on tmpfs are in memory, so cold reads cannot be measured": reads.MEMORY in media,
            f"up to {share(self._stayed)} of the bytes stayed in the page cache (in use, or not "
            "written to the disk yet): such reads are left out": self._stayed,
            "the files are not yours, so the kernel does not report their page cache: 'dropped' "
            "was requested, not verified": is_unproven,
            "a virtual disk: the cache of its host cannot be seen": reads.VIRTUAL in media,
            "a network: the cache of its server cannot be seen": reads.NETWORK in media,
            f"{count(self._failed, 'request')} were left out: the file was gone, shorter or "
            "unreadable": self._failed,
        }
        return [note for note, is_so in notes.items() if is_so]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
