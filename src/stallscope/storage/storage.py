"""`ss.storage`: what the storage under a loader's files gives, cold and warm.

The loop is recorded for a moment: which files it reads, how long a sample takes, what the step asks
for. Then a sample of these files is read in a few ways, each in turn, until the rounds agree or the
time is over. Files are only read; what is asked of the kernel is to let the pieces go that are read
next.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.apart import apart
from stallscope.bench.measurement import Measurement
from stallscope.isolation import isolated
from stallscope.loops.cached_values import samples_in
from stallscope.loops.devices import device_of
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.loops.training_loop import Enough, Limits
from stallscope.machine import machine, require_single_rank
from stallscope.model.costs import recorded_per_s
from stallscope.run.record import record_target
from stallscope.storage.page_cache import REALLY_COLD, resident_share
from stallscope.storage.places import (
    MEMORY,
    NETWORK,
    VIRTUAL,
    DataFile,
    Mount,
    bytes_read,
    data_files,
    held_open,
    mount_of,
    mounts,
)
from stallscope.storage.reads import (
    COLD,
    LARGE_BYTES,
    RANDOM,
    SAMPLE,
    SEQUENTIAL,
    SMALL_BYTES,
    WARM,
    Medium,
    Reading,
    cached_share,
    make_cold,
    quantiles,
    requests,
    timed,
)
from stallscope.storage.result import (
    PLACES,
    READINGS,
    UNPROVEN,
    Storage,
    StorageConditions,
    requests_in_flight,
)
from stallscope.targets import target as targets
from stallscope.targets.remote import RemoteImages, read_remote
from stallscope.units import BUDGET_S, count, printable, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_WARMUP: Final = 4
_BATCHES: Final = 16
_STEADY_S: Final = 2.0
"""Of the recording, where the budget allows it."""
_RECORD_SHARE: Final = 0.3
"""Of the budget, at most ..."""
_LOOK_SHARE: Final = 0.1
"""... and for a look at what its processes hold open."""
_UNTIL: Final = 0.9
"""Share of the budget after which no round begins."""
_GO_S: Final = 0.4
"""How long one go at a way of reading takes, at most."""
_ROUNDS: Final = 6
_MOST_READERS: Final = 8
_IN_FLIGHT: Final = 64
"""Requests that are made of a server at once, at most."""
_MOST_REMOTE: Final = 4_000
"""Objects of a server that stand for the data."""
_REMOTE_GO_S: Final = 2.0
"""As `_GO_S`, of a server: each request takes long, and the first ones connect."""
_REMOTE_GRACE_S: Final = 10.0
"""So long a server's last answers may take."""
_MORE: Final = 1.15
"""Twice as many requests in flight that give less than so many times as many samples: no more."""
_SAMPLE_FILES: Final = 512
"""That are looked at for what lies in the page cache."""
_FEWEST_UNREAD: Final = 8
"""Files that stand for the rest."""
_LARGE_PIECES: Final = 8
"""Of the data, from which on large pieces are read anywhere."""
_SLACK: Final = 64 << 10
"""Bytes; smaller files are not told from their parts."""
_USUAL_BYTES: Final = 128 << 10
"""Of a container's sample, where nobody knows."""


def storage(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
) -> Storage:
    """Measure what the storage under a loader's files gives, beside what the loader asks for.

    Iterates shallow copies of the loader for a moment, as `ss.record` does, and then reads a sample
    of its files by itself: whole samples, small pieces anywhere, and from begin to end, with one
    reader and several, warm and cold. For cold readings the kernel is asked to let the pieces go
    that are read next (`posix_fadvise`); other processes then read those from the disk, too.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one, nobody knows what is needed.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the batch that is under way then.

    Raises:
        ArgumentError: `budget_s` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it keeps a generator in the middle of an epoch; more than one rank.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come within the budget and a grace.
    """
    measurement = Measurement("storage", budget_s)
    require_single_rank()
    found = targets.target(target, step=step, device=device)
    probe = StorageProbe(found, measurement)
    with measurement.of(found.name):
        measurement.result = probe.known
        probe.run()
        return probe.result()


@dataclass(frozen=True)
class Way:
    """A way of reading."""

    access: str
    length: int | None
    """Bytes of a request; None: whole files."""
    readers: int
    state: str


def record_briefly(target: Target, left_s: float) -> Run:
    """Record a loop, no longer than it takes to know its pace.

    Args:
        target: what to run.
        left_s: of the budget, seconds.
    """
    many = max(target.num_workers, 1)
    enough = Enough(
        max(_WARMUP, many),
        max(_BATCHES, 2 * many),
        min(_STEADY_S, left_s / 10),
        few=many,
        late_s=left_s * _RECORD_SHARE / 2,
    )
    limits = Limits(1_000_000, max(left_s * _RECORD_SHARE, 0.1), enough)
    return record_target(target, limits, _WARMUP)


class StorageProbe:
    """One measurement of the storage under a loader.

    Args:
        target: what the user points at.
        measurement: whose budget it is.
        medium: reads; that of the system by default.
    """

    def __init__(
        self, target: Target, measurement: Measurement, medium: Medium | None = None
    ) -> None:
        self._target, self._measurement = target, measurement
        self._medium = medium or Medium()
        self._readings: list[tuple[Any, ...]] = []
        self._notes: list[str] = []
        self._stayed = 0.0
        self._gone = 0
        self._why = ""
        self._is_remote = False
        self._about: dict[str, float | None] = {}
        self._files: list[DataFile] = []
        self._lies: dict[str, Mount] = {}
        self._resident: dict[str, float] = {}
        self._is_whole = True

    @property
    def _left_s(self) -> float:
        return _UNTIL * self._measurement.budget_s - self._measurement.used_s

    def run(self) -> None:
        """Record, look where the files are, read."""
        run = record_briefly(self._target, self._left_s)
        self._about = about = apart(lambda: asked(run))
        dataset = getattr(self._target.loader, "dataset", None)
        if isinstance(dataset, RemoteImages):
            self._read_remote(dataset)
            return
        paths = apart(lambda: run.all_samples["path"].drop_nulls().cast(pl.String).to_list())
        files = data_files(paths)
        held, each = self._look()
        sizes = [file.size for file in files if file.was_read]
        # A sample that reads less than its file is one of many in it
        self._is_whole = bool(sizes) and (
            each is None or sum(sizes) / len(sizes) <= 2 * each + _SLACK
        )
        if not self._is_whole:
            about["sample_bytes"] = each
            files = sorted({*held, *(file for file in files if file.was_read)})
            if files:
                self._notes.append(
                    "a sample is no file of its own: pieces are read of the files that the "
                    "loader's processes open, hold open or have mapped"
                )
        known = mounts()
        self._files = files
        self._lies = {file.path: mount_of(file.path, known) for file in files}
        self._resident = self._residency(files)
        if files:
            self._read(about["sample_bytes"])

    def known(self) -> Storage | None:
        """What is known when it ends before its time; None: nothing was read."""
        return self.result() if self._readings else None

    def result(self) -> Storage:
        """What is known by now."""
        files, resident = self._files, self._resident
        self._tell(set(self._lies.values()))
        unread = [resident[file.path] for file in files if file.path in resident]
        return Storage(
            pl.DataFrame(self._readings, READINGS, orient="row"),
            pl.DataFrame(_places(files, self._lies, resident), PLACES, orient="row"),
            StorageConditions(
                name=self._target.name,
                num_workers=self._target.num_workers,
                machine=machine(),
                device=device_of(self._target).name,
                simulated_step_s=self._target.simulated_step_s,
                has_step=self._target.step is not None,
                files=len(files),
                data_bytes=sum(file.size for file in files),
                resident_share=_mean(unread),
                is_whole=self._is_whole,
                **self._about,
                budget_s=self._measurement.budget_s,
                took_s=self._measurement.used_s,
            ),
            (*self._target.told(), *self._measurement.notes, *self._notes),
        )

    def _read_remote(self, dataset: RemoteImages) -> None:
        """Read what lies behind an address, as many at once as the step may need."""
        self._is_remote = True
        self._medium = Medium(
            partial(read_remote, dataset.address),
            lambda *_: True,
            lambda *_: 0,
            nullcontext,
            _REMOTE_GRACE_S,
            connects=True,
        )
        known = [
            (file, size) for file, size in zip(dataset.files, dataset.sizes, strict=True) if size
        ]
        step = max(-(-len(known) // _MOST_REMOTE), 1)
        self._files = [DataFile(file.path, size) for file, size in known[::step]]
        kind, _, rest = dataset.address.partition("://")
        server = Mount(dataset.address, rest.partition("/")[0], kind, NETWORK)
        self._lies = dict.fromkeys((file.path for file in self._files), server)
        each = _mean([file.size for file in self._files])
        self._about["sample_bytes"] = each
        if self._files:
            self._read(each)

    def _look(self) -> tuple[list[DataFile], float | None]:
        """What the loader's processes hold open, and the bytes that a sample asks for."""
        many = max(self._target.num_workers, 1)
        until_s = time.perf_counter() + _LOOK_SHARE * self._measurement.budget_s
        with (
            isolated(replace(self._target, step=None)) as target,
            started(TimedLoop.of(target)) as batches,
        ):
            samples, before = 0, bytes_read()
            for number, batch in enumerate(islice(batches, 4 * many), 1):
                if number == many:
                    before = bytes_read()
                elif number > many:
                    samples += samples_in(batch, target.batch_size)
                if time.perf_counter() > until_s:
                    break
            after = bytes_read()
            held = held_open()
        if not samples or before is None or after is None:
            return held, None
        return held, (after - before) / samples

    def _residency(self, files: list[DataFile]) -> dict[str, float]:
        """What lies in the page cache of files that the recording has not read, where known."""
        unread = [file for file in files if not file.was_read]
        if len(unread) < _FEWEST_UNREAD:
            if files:
                self._notes.append(
                    "the recording read all files that there are: what of them lay in the page "
                    "cache before is not known"
                )
            return {}
        step = max(len(unread) // _SAMPLE_FILES, 1)
        found = {}
        for file in unread[::step]:
            try:
                known = resident_share(file.path)
            except OSError:
                continue
            if known is not None:
                found[file.path] = known
        return found

    def _ways(self, sample_bytes: float | None) -> Iterator[Way]:
        """The ways of reading, those first that say most."""
        length = None
        if not self._is_whole:
            length = int(min(max(sample_bytes or _USUAL_BYTES, SMALL_BYTES), LARGE_BYTES))
        counts = {1, 2, 4, _MOST_READERS, min(max(self._target.num_workers, 1), _IN_FLIGHT)}
        counts |= {16, 32, _IN_FLIGHT} if self._is_remote else set()
        yield from (Way(SAMPLE, length, readers, COLD) for readers in sorted(counts))
        if self._is_remote:
            yield Way(RANDOM, SMALL_BYTES, 1, COLD)
            yield from (Way(SEQUENTIAL, LARGE_BYTES, many, COLD) for many in (1, _MOST_READERS))
            return
        yield Way(SAMPLE, length, 1, WARM)
        # Warm, threads would wait for Python's lock and not for a device
        for readers, state in ((1, COLD), (_MOST_READERS, COLD), (1, WARM)):
            yield Way(RANDOM, SMALL_BYTES, readers, state)
            yield Way(SEQUENTIAL, LARGE_BYTES, readers, state)
            if sum(file.size // LARGE_BYTES for file in self._files) >= _LARGE_PIECES:
                yield Way(RANDOM, LARGE_BYTES, readers, state)

    def _read(self, sample_bytes: float | None) -> None:
        """Read in every way, round by round, forth and back."""
        ways = list(self._ways(sample_bytes))
        if all(mount.medium == MEMORY for mount in self._lies.values()):
            ways = [way for way in ways if way.state == WARM]
        most = 2 * _IN_FLIGHT
        longest_s, fewest = (_REMOTE_GO_S, 1.5) if self._is_remote else (_GO_S, 3)
        go_s = max(min(longest_s, self._left_s / (fewest * len(ways))), 0.01)
        for number in range(_ROUNDS):
            if number and self._is_remote:
                ways = [way for way in ways if way.readers <= most]
                ways += self._predicted(ways)
                most = max(way.readers for way in ways)
            for way in ways[:: -1 if number % 2 else 1]:
                if way.access == SAMPLE and way.readers > most:
                    continue
                left_s = self._left_s
                self._measurement.now(way.access)
                if left_s <= 0 or not self._go(way, number, min(go_s, left_s)):
                    return
                if self._is_remote and not number and self._is_saturated():
                    most = min(most, way.readers)

    def _is_saturated(self) -> bool:
        """Whether the last doubling of the requests in flight gave hardly more samples."""
        rates = [row[5] / row[7] for row in self._readings[-2:] if row[0] == SAMPLE]
        return len(rates) > 1 and rates[1] < _MORE * rates[0]

    def _predicted(self, ways: list[Way]) -> list[Way]:
        """The way that should keep the step fed, so that this is measured, too."""
        alone = [row[8] for row in self._readings if row[0] == SAMPLE and row[2] == 1]
        wanted = self._about["wanted_per_s"]
        if not alone or not wanted:
            return []
        way = Way(SAMPLE, None, requests_in_flight(wanted, float(np.median(alone))), COLD)
        tried = max(one.readers for one in ways)
        return [way] if way not in ways and way.readers <= min(2 * tried, _IN_FLIGHT) else []

    def _go(self, way: Way, number: int, seconds: float) -> bool:
        """One go at a way of reading; False: a read did not come back."""
        wanted = requests(self._files, way.access, way.length, number)
        if not wanted:
            return True
        ahead = way.length != SMALL_BYTES
        state = way.state
        if state == COLD:
            make_cold(wanted, self._medium)
            inside = cached_share(wanted, self._medium)
            if inside is None:
                state = UNPROVEN
            elif inside > REALLY_COLD:
                self._stayed = max(self._stayed, inside)
                return True
        else:
            before = timed(wanted, way.readers, seconds, self._medium)
            wanted = wanted[: max(len(before.each_s), 1)]
            if before.hangs:
                return self._hangs()
        reading = timed(wanted, way.readers, seconds, self._medium, ahead=ahead)
        if reading.hangs:
            return self._hangs()
        self._gone += reading.gone
        self._why = reading.why or self._why
        if reading.each_s and reading.seconds > 0:
            self._readings.append(_row(way, state, number, reading))
        return True

    def _hangs(self) -> bool:
        self._notes.append("a read did not come back: the storage hangs, and was left alone")
        return False

    def _tell(self, where: set[Mount]) -> None:
        """What has to be known of these figures."""
        kinds = {mount.medium for mount in where}
        if MEMORY in kinds:
            self._notes.append("files on tmpfs lie in memory: there is no cold reading of them")
        if self._stayed:
            self._notes.append(
                f"up to {share(self._stayed)} of what was to be read cold stayed in the page cache "
                "(in use elsewhere, or not written to the disk yet): such readings are left out"
            )
        if any(row[3] == UNPROVEN for row in self._readings):
            self._notes.append(
                "the files are not yours, so the kernel does not say what of them lies in the page "
                "cache: 'dropped' is what it was asked to let go"
            )
        if VIRTUAL in kinds:
            self._notes.append("a virtual disk: what its host keeps in memory cannot be seen here")
        if self._is_remote:
            self._notes.append(
                "requests are those of one process, whose own work is in these figures; a loader "
                "has one request in flight for each worker"
            )
        if NETWORK in kinds:
            self._notes.append("a network: what its server keeps in memory cannot be seen here")
        if self._gone:
            self._notes.append(
                f"{count(self._gone, 'request')} found a file gone, shorter, or not readable: they "
                f"are left out{f' ({printable(self._why, 200)})' if self._is_remote else ''}"
            )


def _row(way: Way, state: str, number: int, reading: Reading) -> tuple[Any, ...]:
    """A row of `READINGS`."""
    return (
        *(way.access, way.length or 0, way.readers, state, number),
        *(len(reading.each_s), reading.bytes, reading.seconds, *quantiles(reading.each_s)),
        reading.cached_share,
    )


def asked(run: Run) -> dict[str, float | None]:
    """What the loop asks of the storage; fields of `StorageConditions`."""
    samples = run.samples(steady=run.samples().height > 0)
    read = samples.drop_nulls("bytes")
    steps = run.steps().drop_nulls("wait_s")
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
    # While a device that works behind the host has work, the loop's wait is the batch's use
    hidden_s = pl.col("hidden_s").fill_null(0.0)
    use_s, period_s = steps.select(
        use=(used_s + hidden_s).mean(), period=(used_s + pl.col("wait_s")).mean()
    ).row(0)
    rate, wanted = recorded_per_s(run), None
    if rate and use_s and run.settings.has_step:
        wanted = rate * period_s / use_s
    return {
        "sample_bytes": _median_of(read, "bytes", mean=True),
        "sample_s": _median_of(samples, "total_s"),
        "fetch_s": _median_of(samples.filter(pl.col("fetch_s") > 0), "fetch_s"),
        "loop_per_s": rate,
        "wanted_per_s": wanted,
    }


def _median_of(frame: pl.DataFrame, name: str, *, mean: bool = False) -> float | None:
    values = frame[name].drop_nulls().to_numpy()
    found = float(np.mean(values) if mean else np.median(values)) if values.size else math.nan
    return None if math.isnan(found) else found


def _places(
    files: list[DataFile], lies: dict[str, Mount], resident: dict[str, float]
) -> list[tuple[Any, ...]]:
    """Rows of `PLACES`, that with the most files first."""
    by_mount: dict[Mount, list[DataFile]] = {}
    for file in files:
        by_mount.setdefault(lies[file.path], []).append(file)
    rows = [
        (
            *(mount.path, mount.device, mount.system, mount.medium),
            *(len(those), sum(file.size for file in those)),
            _mean([resident[file.path] for file in those if file.path in resident]),
        )
        for mount, those in by_mount.items()
    ]
    return sorted(rows, key=lambda row: -row[4])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
