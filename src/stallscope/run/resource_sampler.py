"""Samples of the use of resources during a recording, ten times a second, by a process of its own.

That process takes no lock of the training's interpreter, adds no thread before a fork, and no hook
sees the files of psutil. It ends when its standard input or the training process ends. It slows
down to limit its overhead, and reports that overhead. It imports this module, so torch and numpy,
which take seconds, must not be imported at the top.

The sources are psutil, NVML, and parts of /proc that psutil lacks. GPUs are read through NVML if
its optional Python package (nvidia-ml-py) is installed. Functions and fields:
docs.nvidia.com/deploy/nvml-api. "Busy" is NVML's `utilization.gpu`: the share of a period (1/6 s to
1 s) in which a kernel of any process ran.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.spawn import get_executable
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from stallscope import stages
from stallscope.hooks.patches import in_this_process
from stallscope.hooks.recording_folder import JsonLines
from stallscope.interrupts import held_back
from stallscope.machine import SHARED_MEMORY, busy_core_s, cpu_groups, memory_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from stallscope.hooks.recording_folder import LogPlace


_COMMAND: Final = """
import sys
sys.path[:] = sys.argv[4:]
from stallscope.run.resource_sampler import main
main(*sys.argv[1:4])
"""
"""Command with the import path of this process, so that the current folder adds no modules."""
_PATIENCE_S: Final = 5.0
"""Seconds for the last sample; a process that has just started on busy cores must import first."""
_RESOURCES: Final = "the resources"
EVERY_NS: Final = 100_000_000
SELDOM: Final = 5
"""Slowly changing sources are read, and new workers are looked for, with every fifth sample."""
MOST_SHARE: Final = 0.008
"""Share of one core that sampling may cost; a more expensive sample makes the next pause longer.
Below the promised 1%, because waking up costs, too."""
THINNED_AFTER: Final = 6000
"""Samples (ten minutes) after which the pause doubles each time: a day takes 20 MB at most."""
_NICE: Final = 10
"""Added niceness: with two programs on each core, samples are 0.2 s apart at most."""
PROC: Final = Path("/proc/stat")
"""File that macOS and Windows lack; without it, only GPUs are sampled."""
_LOCKS_WAIT: Final = ("locks_lock_inode_wait", "flock_lock", "posix_lock", "fcntl_setlk")
"""Functions of Linux (fs/locks.c) in which a process sleeps until a file's lock is free."""
_LOG_OF_WORKER: Final = re.compile(r"(\d+)-\d+-\d+-\d+\.events").fullmatch
_MOST_WORKERS: Final = 4
"""Workers whose memory is read."""
_LOOK_NS: Final = 1_200_000_000
"""Shortest pause between two reads of that memory. A read takes 30 ms per GB of a worker."""
_MEMORY_SHARES: Final = ((5, 1.0), (20, 0.03), (math.inf, 0.005))
"""Up to so many reads they may cost this share of a core: a few are made at any cost, and growth is
judged by those of half a minute."""
_OF_PROCESSES: Final = (
    *(stages.LOOP, stages.WORKER, stages.HELPER, stages.QUEUED),
    *(stages.THREADS, stages.FILE_LOCK, stages.WORKER_CORES),
)
Readings = dict[str, dict[str, float]]
"""Counter or value by resource (see `stallscope.stages`) and device."""


# ---- in the training process ---------------------------------------------------------------------


class Sampler:
    """Samples resources during a `with` block; an error becomes a note of the run."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self.failures = place.failures
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            with held_back(), self.failures.within(_RESOURCES):
                in_this_process.add(self)
                self._start()
        except BaseException:  # an interrupt that was held back
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            if self in in_this_process:  # not in a forked child that leaves the block, too
                self.retire()

    def retire(self, *, close: bool = True) -> None:
        """End the process after a last sample; a forked child (not `close`) only drops its pipe."""
        in_this_process.discard(self)
        process, self._process = self._process, None
        if process is not None and close:
            self.failures.insist(_RESOURCES, lambda: self._stop(process))
        elif process is not None:
            process.returncode = 0  # no child of this process: nothing to wait for
            process.__exit__(None, None, None)

    def _start(self) -> None:
        import torch  # not at the top: see above

        ours = Path(__file__).parents[2]  # an editable installation may use an import hook
        paths = [os.path.abspath(path) for path in (*sys.path, str(ours))]  # noqa: PTH100 - "" too
        has_gpu = str(int(torch.cuda.is_available()))
        arguments: list[Any] = [self._place.resources().absolute(), os.getpid(), has_gpu, *paths]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                [get_executable(), "-S", "-c", _COMMAND, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # carries only its end
                stderr=subprocess.DEVNULL,
                cwd=os.sep,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for the training
            )
        except OSError as error:
            self._note(f"the resources were not sampled: no process could be started ({error})")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the process by a byte: a forked child may hold its pipe open."""
        with process, suppress(subprocess.TimeoutExpired):
            try:
                process.communicate(b".", _PATIENCE_S)
            finally:
                process.kill()
        if process.returncode:
            code = process.returncode
            self._note(f"the resources were sampled only in part: the process ended with {code}")

    def _note(self, sentence: str) -> None:
        with suppress(OSError):  # no room for a few kB: notes in the logs say so
            JsonLines(self._place.resources()).say(note=sentence)


# ---- in the sampling process ---------------------------------------------------------------------


def main(file: str, pid: str, has_gpu: str) -> None:
    """Sample into a file until the recording ends; `pid` is the training process, the parent."""
    until_end = threading.Thread(target=os.read, args=(0, 1), daemon=True)
    until_end.start()
    recorded = Recorded(int(pid), Path(file).parent, has_gpu == "1")
    samples = Samples(Path(file), recorded, SOURCES)
    if hasattr(os, "nice"):
        os.nice(_NICE)  # not earlier: busy cores would delay the first sample
    while until_end.is_alive() and os.getppid() == recorded.main:
        samples.take()
        until_end.join(samples.pause_s())
    samples.take_last()
    os._exit(0)  # at once: the training process waits


class Recorded(NamedTuple):
    """Processes of a recording."""

    main: int
    """Process id of the training process."""
    folder: Path
    """Folder of the recording, with a log of each worker."""
    has_gpu: bool = False

    def workers(self) -> set[int]:
        """Return the process ids of the workers that already have a log."""
        logs = (_LOG_OF_WORKER(path.name) for path in self.folder.iterdir())
        return {int(log[1]) for log in logs if log}


class Source(NamedTuple):
    """Source of samples."""

    resources: tuple[str, ...]
    read: Callable[[Recorded], Iterator[Readings]]
    """Yields the known limits of the resources, and from then on their current usage.

    A LookupError says that the machine has no such resource (GPU, quota); any other exception ends
    the use of this source with a note."""
    seldom: bool = False
    """True to read with every fifth sample only: slow to change, or expensive."""
    paced: bool = False
    """True if the source limits its own overhead."""


class Samples:
    """Samples of some sources, each a line of a file."""

    def __init__(self, path: Path, recorded: Recorded, sources: Iterable[Source]) -> None:
        self._lines = JsonLines(path)
        self._reads: dict[Source, Iterator[Readings]] = {}
        self._taken = 0
        self._latest_ns = self._due_ns = 0
        self._counted_ns = process_time_ns()
        has_proc = PROC.exists()
        if not has_proc:
            note = "the machine's resources were not sampled: this system has no /proc"
            self._lines.say(note=note)
        for source in sources:
            if not has_proc and source.read is not _gpus:
                self._lines.say(missing=source.resources)
            else:
                self._begin(source, recorded)

    def _begin(self, source: Source, recorded: Recorded) -> None:
        reads = source.read(recorded)
        try:
            self._lines.say(limits=next(reads))
            self._reads[source] = reads
        except Exception as error:  # noqa: BLE001 - the other sources go on
            self._lines.say(missing=source.resources)
            if not isinstance(error, LookupError):
                self._lines.say(note=f"not sampled: {words(source.resources)} ({error})")

    def pause_s(self) -> float:
        """Return the seconds until the next sample is due."""
        return max(self._due_ns - perf_counter_ns(), 0) / 1e9

    def take(self) -> None:
        """Write a sample; a source that fails is left out from then on."""
        self._latest_ns, read = perf_counter_ns(), {stages.SAMPLER: {"": process_time_ns() / 1e9}}
        with_seldom = self._taken % SELDOM == 0
        for source in [*self._reads]:  # `_read` removes a source that fails
            read |= self._read(source) if with_seldom or not source.seldom else {}
        self._taken += 1
        self._lines.say(time_ns=self._latest_ns, read=read)
        pause_ns = EVERY_NS << self._taken // THINNED_AFTER
        costs_ns = process_time_ns() - self._counted_ns
        self._counted_ns += costs_ns
        self._due_ns = self._latest_ns + max(pause_ns, int(costs_ns / MOST_SHARE))

    def take_last(self) -> None:
        """Write a last sample, unless the latest is recent; a rate needs two samples."""
        if perf_counter_ns() - self._latest_ns > EVERY_NS // 2 or self._taken == 1:
            self.take()

    def _read(self, source: Source) -> Readings:
        before_ns = process_time_ns()
        try:
            return next(self._reads[source])
        except Exception as error:  # noqa: BLE001 - the other sources go on
            del self._reads[source]
            self._lines.say(
                note=f"could not be sampled any more: {words(source.resources)} ({error!r})"
            )
            return {}
        finally:
            if source.paced:
                self._counted_ns += process_time_ns() - before_ns


def words(resources: tuple[str, ...]) -> str:
    """Return words for some resources."""
    return ", ".join(stages.NAMES[resource] for resource in resources)


# ---- sources: the limits first, then the usage ---------------------------------------------------


def _cores(_: Recorded) -> Iterator[Readings]:
    """Read the busy seconds of each core that the recorded processes may use."""
    yield {stages.CORE: dict.fromkeys(busy_core_s(), 1.0)}
    while True:
        yield {stages.CORE: busy_core_s()}


def _quota(_: Recorded) -> Iterator[Readings]:
    """Read the CPU seconds of the container; LookupError without a quota."""
    group = cpu_groups()[0]
    yield {stages.QUOTA: {"container": group.quota_cores}}
    while True:
        used_s = group.used_s()
        yield {} if used_s is None else {stages.QUOTA: {"container": used_s}}


def _memory(_: Recorded) -> Iterator[Readings]:
    """Read the memory in use of the machine and the container, without droppable caches."""
    group = next(iter(memory_groups()), None)
    limits = {"machine": psutil.virtual_memory().total}
    yield {stages.MEMORY: limits | ({"container": group.limit_bytes} if group else {})}
    while True:
        memory = psutil.virtual_memory()
        used = {"machine": memory.total - memory.available}
        if group and (bytes_ := group.used_bytes()) is not None:
            used["container"] = bytes_
        yield {stages.MEMORY: used}


def _shared_memory(_: Recorded) -> Iterator[Readings]:
    yield {stages.SHM: {SHARED_MEMORY: psutil.disk_usage(SHARED_MEMORY).total}}
    while True:
        yield {stages.SHM: {SHARED_MEMORY: psutil.disk_usage(SHARED_MEMORY).used}}


def _disks(_: Recorded) -> Iterator[Readings]:
    """Read the machine's disks, without partitions and logical volumes."""
    block = Path("/sys/block")
    names = {disk.name for disk in block.glob("*") if (disk / "device").exists()}
    yield {stages.DISK_BUSY: dict.fromkeys(names, 1.0)}
    while True:
        every = psutil.disk_io_counters(perdisk=True, nowrap=False)
        used = {name: disk for name, disk in every.items() if name in names}
        yield {
            stages.DISK_BUSY: {name: disk.busy_time / 1e3 for name, disk in used.items()},
            stages.DISK_READ: {name: disk.read_bytes for name, disk in used.items()},
            stages.DISK_WRITE: {name: disk.write_bytes for name, disk in used.items()},
            stages.DISK_OPERATIONS: {n: d.read_count + d.write_count for n, d in used.items()},
        }


def _network(_: Recorded) -> Iterator[Readings]:
    """Read the network interfaces with traffic since boot, without the loopback."""
    links = psutil.net_io_counters(pernic=True, nowrap=False)
    names = {name for name, link in links.items() if link.bytes_recv or link.bytes_sent} - {"lo"}
    megabits = {name: link.speed for name, link in psutil.net_if_stats().items()}
    # Bytes per second; the speed is 0 where a link is virtual, or down
    limits = {name: megabits[name] * 1e6 / 8 for name in names if megabits.get(name)}
    yield {stages.RECEIVED: limits, stages.SENT: limits}
    while True:
        every = psutil.net_io_counters(pernic=True, nowrap=False)
        used = {name: link for name, link in every.items() if name in names}
        yield {
            stages.RECEIVED: {name: link.bytes_recv for name, link in used.items()},
            stages.SENT: {name: link.bytes_sent for name, link in used.items()},
        }


def _processes(recorded: Recorded) -> Iterator[Readings]:
    """Read the training process, with all its threads, the workers that have a log, and others.

    Others are processes that those started, as a pool of the dataset's: they do the loader's work.
    """
    loop = psutil.Process(recorded.main)
    others: dict[int, psutil.Process] = {}
    workers: set[int] = set()
    yield {}
    for number in itertools.count():
        if number % SELDOM == 0:
            for pid in recorded.workers() - workers:
                workers.add(pid)
                with suppress(psutil.Error):
                    others[pid] = psutil.Process(pid)
            started = {child.pid: child for child in loop.children(recursive=True)}
            for pid in started.keys() - workers - {os.getpid()}:
                others.setdefault(pid, started[pid])
        readings: Readings = {name: {} for name in _OF_PROCESSES}
        _count(loop, stages.LOOP, readings)
        for pid, process in list(others.items()):
            try:
                _count(process, stages.WORKER if pid in workers else stages.HELPER, readings)
            except (OSError, psutil.Error):  # noqa: PERF203 - it has ended
                del others[pid]
        yield readings


def _count(process: psutil.Process, resource: str, readings: Readings) -> None:
    """Add the usage of one process.

    psutil lacks two facts: the time that the main thread was queued (docs.kernel.org/scheduler/
    sched-stats.html), and the kernel function in which it sleeps. A kernel may have neither.
    """
    pid = str(process.pid)
    times = process.cpu_times()
    readings[resource][pid] = times.user + times.system
    if resource == stages.WORKER:
        readings[stages.THREADS][pid] = process.num_threads()
        readings[stages.WORKER_CORES][pid] = len(process.cpu_affinity())
        with suppress(OSError):
            sleeps_in = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
            readings[stages.FILE_LOCK][pid] = float(sleeps_in.startswith(_LOCKS_WAIT))
    with suppress(OSError):
        schedule = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
        readings[stages.QUEUED][pid] = int(schedule.split()[1]) / 1e9


def _worker_memory(recorded: Recorded) -> Iterator[Readings]:
    """Read the memory of the latest workers, rarely: the kernel adds it up page by page."""
    Path("/proc/self/smaps_rollup").read_bytes()  # OSError where the kernel has none
    yield {}
    due_ns = looks = 0
    while True:
        now_ns, before_ns = perf_counter_ns(), process_time_ns()
        readings: Readings = {}
        for pid in sorted(recorded.workers())[-_MOST_WORKERS:] if now_ns >= due_ns else ():
            for resource, bytes_ in _memory_of(pid).items():
                readings.setdefault(resource, {})[str(pid)] = bytes_
        if readings:  # without workers, the next sample tries again
            looks += 1
            most = next(part for number, part in _MEMORY_SHARES if looks < number)
            due_ns = now_ns + int(max((process_time_ns() - before_ns) / most, _LOOK_NS))
        yield readings


def _memory_of(pid: int) -> dict[str, float]:
    """Return the memory of a worker in bytes; nothing once it ends.

    psutil lacks the anonymous part, which separates copies from new pages.
    """
    with suppress(OSError, KeyError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        fields = re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)
        sizes = {name: float(kib) * 1024 for name, kib in fields}
        own = sizes.get("Pss_Anon") or sizes["Private_Dirty"]
        return {stages.WORKER_MEMORY: own, stages.WORKER_MAPPED: sizes["Anonymous"]}
    return {}


def _gpus(recorded: Recorded) -> Iterator[Readings]:
    """Read busy share and memory of each GPU in CUDA_VISIBLE_DEVICES, by its number or id."""
    if not recorded.has_gpu:
        raise LookupError
    try:
        import pynvml as nvml
    except ImportError:
        raise OSError("there is no NVML: pip install nvidia-ml-py") from None
    nvml.nvmlInit()
    gpus = {str(n): nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())}
    if (wanted := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = tuple(filter(None, map(str.strip, wanted.split(","))))
        ids = {number: nvml.nvmlDeviceGetUUID(gpu) for number, gpu in gpus.items()}
        gpus = {n: gpu for n, gpu in gpus.items() if n in names or ids[n].startswith(names)}
    total = {name: nvml.nvmlDeviceGetMemoryInfo(gpu).total for name, gpu in gpus.items()}
    yield {stages.GPU: dict.fromkeys(gpus, 1.0), stages.GPU_MEMORY: total}
    while True:
        busy = {n: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100 for n, gpu in gpus.items()}
        used = {name: nvml.nvmlDeviceGetMemoryInfo(gpu).used for name, gpu in gpus.items()}
        yield {stages.GPU: busy, stages.GPU_MEMORY: used}


SOURCES: Final = (
    Source((stages.CORE,), _cores),
    Source((stages.QUOTA,), _quota),
    Source((stages.LOOP, stages.WORKER, stages.QUEUED), _processes),
    Source((stages.MEMORY,), _memory, seldom=True),
    Source((stages.WORKER_MEMORY, stages.WORKER_MAPPED), _worker_memory, paced=True),
    Source((stages.SHM,), _shared_memory, seldom=True),
    Source((stages.DISK_BUSY, stages.DISK_READ, stages.DISK_WRITE, stages.DISK_OPERATIONS), _disks),
    Source((stages.RECEIVED, stages.SENT), _network),
    Source((stages.GPU, stages.GPU_MEMORY), _gpus, seldom=True),
)
