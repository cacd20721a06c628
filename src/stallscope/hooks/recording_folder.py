"""Folder of a recording: its limits, and what its processes write beside the words of their logs.

The recording is divided into stretches of time. Every log begins a new file with each stretch.
Above the limit, whole stretches of all processes are deleted. The remaining stretches cover the
recording from its beginning to its end, and in each of them steps, batches and samples belong
together.

Whatever of ours runs in the training's processes fails open: the user's call goes on as if nothing
of ours were there, and the run says what is missing. A process appends its failures to one file of
the recording, whether it has a log, has none yet or none any more. The failures of this process
are kept in memory, too: the disk may be full, or the folder gone.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import open_to_append, read_file
from stallscope.machine import machine as machine_here
from stallscope.machine import rank as rank_here
from stallscope.stages import Stage
from stallscope.units import LONGEST_TITLE, json_without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


OUTER: Final = 0
"""Number of the recorded loader, if it is not a torch DataLoader."""
AROUND: Final = -1
"""Number of other libraries' loader wrappers; each of their iterations is an epoch."""
EPOCHS: Final = 1 << 20
"""Upper bound of a loader's epochs."""
COST_SHARE_DRIVEN: Final = 0.02
"""Share of the batches' time that recording may cost in a loop that stallscope runs itself ..."""
COST_SHARE_WATCHED: Final = 0.01
"""... and in a training of the user's, which must not become slower."""
_STRETCH_NS: Final = 1 << 33
"""Nine seconds: hundreds of steps of a training, and files of a few MB."""
_MOST_BYTES: Final = 256 << 20
"""Limit for all logs of a recording; their tables take several times as much memory."""
_LATEST: Final = 2
"""Stretches at the end that are never deleted: processes are still writing them."""
_LEAST_BYTES: Final = 1 << 16
"""Smallest size that a file counts for: thousands of small files take long to list."""
_GOLDEN: Final = 0x9E3779B1
"""2**32 over the golden ratio, Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4."""
_FILE: Final = "failures.lines"
_MOST_KEPT: Final = 100
"""Ways to fail that a process keeps apart for a recording; each may name a sample."""


def epoch_key(loader: int, epoch: int) -> int:
    """Return one number for an epoch of a loader."""
    return loader * EPOCHS + epoch


def loader_and_epoch(key: int) -> tuple[int, int]:
    """Return the numbers of a loader and its epoch."""
    return divmod(key, EPOCHS)


def is_chosen(number: int, every: int) -> bool:
    """Return True for about one number in `every`: for batches to record, and samples to weigh.

    The choice is not periodic: it would always or never meet slow samples with a period of their
    own. Number 0 is always chosen.
    """
    return (number * _GOLDEN & 0xFFFFFFFF) * every >> 32 == 0


@dataclass(frozen=True)
class LogPlace:
    """Folder and limits of one recording, shared by its processes.

    Processes need no communication about stretches: the clock gives a stretch's number.
    """

    folder: Path
    capacity: int
    """Words of each file of a log."""
    most_bytes: int = _MOST_BYTES
    """Limit for all logs, above which stretches are deleted."""
    stretch_ns: int = _STRETCH_NS
    origin_ns: int = field(default_factory=perf_counter_ns)
    stands_by: bool = False
    """True if each worker can sample its own stacks on request, see `hooks.self_sampler`."""
    samples_stacks: bool = False
    """True if each process samples its own stacks in short windows."""
    cost_share: float = COST_SHARE_WATCHED
    """Limit of the overhead as a share of the batches' time; above, batches are skipped."""

    def logs(self) -> list[Path]:
        """Return all current files of logs."""
        return sorted(self.folder.glob("*.events"))

    @property
    def failures(self) -> Failures:
        """Internal errors of the recording."""
        return Failures(self.folder)

    def resources(self) -> Path:
        """Return the file of resource samples, see `stallscope.stages`."""
        return self.folder / "samples.resources"

    def stretch(self) -> int:
        """Return the number of the current stretch."""
        return (perf_counter_ns() - self.origin_ns) // self.stretch_ns

    def stretch_ends_ns(self) -> int:
        """Return the begin of the next stretch."""
        return self.origin_ns + (self.stretch() + 1) * self.stretch_ns

    def thin(self) -> None:
        """Delete stretches until half of the space is free, if the logs exceed their limit.

        Every second, fourth, ... stretch stays, and the latest, which processes still write.
        """
        files: dict[int, list[Path]] = defaultdict(list)
        used: dict[int, int] = defaultdict(int)
        for path in [*self.folder.glob("*.events"), *self.folder.glob("*.paths")]:
            with suppress(OSError, ValueError):  # a file that was just deleted, or not a log
                number = int(path.stem.rpartition("-")[2])
                used[number] += max(path.stat().st_size, _LEAST_BYTES)
                files[number].append(path)
        if sum(used.values()) <= self.most_bytes:
            return
        latest = set(sorted(used)[-_LATEST:])
        most = self.most_bytes - sum(used[number] for number in latest)
        most = max(most, self.most_bytes // 2) // 2
        every, chosen = 1, used.keys() - latest
        while sum(used[number] for number in chosen) > most and every <= max(used):
            every *= 2
            chosen = {number for number in chosen if number % every == 0}
        for number in used.keys() - chosen - latest:
            for path in files[number]:
                with suppress(OSError):  # Windows keeps files that are being written
                    path.unlink()


@dataclass(frozen=True)
class RecordingInfo:
    """Description of a run, saved with it."""

    name: str = ""
    warmup: int = 0
    """Batches at the start, before the steady state."""
    simulated_step_s: float | None = None
    """Seconds of the simulated step; None: no simulation."""
    has_step: bool = True
    notes: tuple[str, ...] = ()
    rank: int = field(default_factory=rank_here)
    machine: dict[str, Any] = field(default_factory=machine_here)
    unix_offset_ns: int | None = field(default_factory=lambda: time_ns() - perf_counter_ns())


# ---- lines of JSON, names ------------------------------------------------------------------------


class JsonLines:
    """Append-only file with one JSON value per line.

    It is closed when nobody holds this object: a thread that still writes holds it, so it never
    writes into another file that got the number of a closed one.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self._descriptor = open_to_append(path)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def say(self, **line: Any) -> None:
        """Append one line, which survives the end of the process."""
        self.write(json.dumps(line) + "\n")

    def write(self, lines: str) -> None:
        """Append lines of ASCII in one write.

        Never raises: a full disk costs a name, but not the user's run.
        """
        with suppress(OSError):
            os.write(self._descriptor, lines.encode("ascii"))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete JSON objects of a file, if there is one; a `ValueError` for no log."""
    for entry in json_lines(path):
        if isinstance(entry, dict):
            yield entry


def json_lines(path: Path) -> Iterator[Any]:
    """Yield the value of each line of a file; None for half a line, as a killed process leaves."""
    if not path.exists():
        return
    for line in read_file(path).decode("utf-8", "replace").splitlines():
        entry = None
        with suppress(ValueError, RecursionError):
            entry = json_without_controls(json.loads(line))
        yield entry


@dataclass(frozen=True)
class ProcessNames:
    """Names and notes that a process wrote beside its logs."""

    stages: dict[int, Stage] = field(default_factory=dict)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """Fields of `RecordingInfo`."""
    notes: list[str] = field(default_factory=list)
    """Sentences on gaps in the recording."""
    devices: list[str | None] = field(default_factory=list)
    """Names of asynchronous devices; a None at the end: there were more, unwatched devices."""
    errors: dict[int, str] = field(default_factory=dict)
    """Type of the first exception that left each stage, by the stage's code."""
    every: list[int] = field(default_factory=list)
    """One batch in this many was recorded."""


def read_names(path: Path) -> ProcessNames:
    """Read the names and notes of a process from its file."""
    names = ProcessNames()
    for entry in read_lines(path):
        match entry:
            case {"code": code, "stage": stage}:
                with suppress(TypeError):
                    names.stages[code] = Stage(*stage)
            case {"raised": str(kind), "code": int(code)}:
                names.errors[code] = kind
            case {"loader": int(number)}:
                names.loaders[number] = entry
            case {"about": dict(about)}:
                names.about.update(about)
            case {"note": str(note)}:
                names.notes.append(note)
            case {"device": str() | None as device}:
                names.devices.append(device)
            case {"every": int(every)}:
                names.every.append(every)
    return names


# ---- failures ------------------------------------------------------------------------------------


@dataclass
class _Failure:
    """One way to fail in one process."""

    missing: str
    """Part of the run that is missing or incomplete."""
    error: str
    """The error's text, and where it was raised."""
    pid: int = field(default_factory=os.getpid)
    times: int = 0


_met: defaultdict[tuple[Path, int], dict[tuple[str, str], _Failure]] = defaultdict(dict)
"""Failures of this process and of the one that it was forked from, by recording and process."""


@dataclass(frozen=True)
class Failures:
    """The failures of one recording, in its folder."""

    folder: Path

    def note(self, missing: str, error: BaseException) -> None:
        """Note that something of ours has failed; never fails itself.

        What the run is `missing`, or has not all of, is the beginning of a sentence.
        """
        with suppress(Exception):
            mine = _met[self.folder, os.getpid()]
            text = _text_of(error) if len(mine) < _MOST_KEPT else "and other errors"
            failure = mine.setdefault((missing, text), _Failure(missing, text))
            failure.times += 1
            if failure.times & (failure.times - 1) == 0:  # 1, 2, 4, 8: a hot loop may fail for ever
                descriptor = open_to_append(self.folder / _FILE)  # which may be somebody else's
                try:
                    os.write(descriptor, (json.dumps(vars(failure)) + "\n").encode("ascii"))
                finally:
                    os.close(descriptor)

    @contextmanager
    def within(self, missing: str) -> Iterator[None]:
        """Note an exception that leaves the block, and go on after the block."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self.note(missing, error)

    def passing(self, missing: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that returns what this one does, or notes what it raises: then None."""

        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                self.note(missing, error)
                return None

        return call

    def insist(self, missing: str, function: Callable[[], object]) -> None:
        """Call what takes something off, and once more if it raises: little may be left behind."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self.note(missing, error)
            with self.within(missing):
                function()

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each way to fail, over all processes of the recording."""
        times: dict[tuple[str, str], dict[int, int]] = {}
        for failure in self._all():
            by_pid = times.setdefault((failure.missing, failure.error), {})
            by_pid[failure.pid] = max(by_pid.get(failure.pid, 0), failure.times)
        for (missing, error), by_pid in times.items():
            total = sum(by_pid.values())
            often = "once" if total == 1 else f"{total:,} times or more"
            why = f"because stallscope failed there {often} ({error})"
            yield f"{missing}: missing in part or not done, {why}"

    def _all(self) -> Iterator[_Failure]:
        lines: list[dict[str, Any]] = []
        with self.within("the failures of other processes"):
            lines += read_lines(self.folder / _FILE)
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # a file may be anybody's
                texts = str(line["missing"]), str(line["error"])
                yield _Failure(*texts, int(line["pid"]), int(line["times"]))
        yield from list(_met[self.folder, os.getpid()].values())


def _text_of(error: BaseException) -> str:
    """Describe an error, where it was raised, and the one that was being handled then."""
    text, trace = type(error).__name__, error.__traceback__
    with suppress(Exception):  # it may hold an object of the user's
        text = repr(error)[:LONGEST_TITLE]  # what a user's object says of itself may be long
        if error.__context__ is not None:
            text = f"{text} after {error.__context__!r}"[: 2 * LONGEST_TITLE]
    for frame, line in deque(walk_tb(trace), 1):
        file = os.path.basename(frame.f_code.co_filename.partition(" (")[0])  # noqa: PTH119
        return f"{text} in {file}, line {line}"
    return text
