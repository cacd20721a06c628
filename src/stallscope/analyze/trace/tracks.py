"""The processes and threads of a trace: numbers that are unique over all ranks, and names.

Processes are numbered in the order in which they are shown: rank by rank, the loop before its
workers. A thread is numbered when something is first drawn in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from stallscope.analyze.trace.phases import Track, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stallscope.analyze.trace.phases import Event
    from stallscope.run import Run

MAIN: Final = "main"
SENDING: Final = "sending"
PINNING: Final = "pinning"
_WHO: Final = ("rank", "worker", "pid")


class Process(NamedTuple):
    """A process of the run; the one that trains has no `worker`."""

    rank: int
    worker: int | None
    pid: int | None


class Tracks:
    """Numbers the processes of a run and of its other loaders, and their threads.

    Args:
        runs: the run, then its other loaders.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._labels = _labels(runs)
        self._pids = {process: number for number, process in enumerate(self._labels, 1)}
        self._rows: dict[tuple[int, str], _Rows] = {}
        self._threads: dict[tuple[int, str], Track] = {}

    def pid(self, rank: int, worker: int | None, pid: int | None) -> int:
        """Number of a process; everything without a worker is in the loop's."""
        return self._pids[Process(rank, worker, None if worker is None else pid)]

    def place(self, pid: int, thread: str, start_ns: int, end_ns: int) -> Track:
        """Where to draw something, so that it lies inside of what is there, or beside it.

        Calls for a thread come in the order of their starts, the longer of two first. What overlaps
        something without lying inside of it goes to a track of its own.
        """
        row = self._rows.setdefault((pid, thread), _Rows()).place(start_ns, end_ns)
        key = (pid, f"{thread} {row + 1}" if row else thread)
        return self._threads.setdefault(key, Track(pid, len(self._threads) + 1))

    def names(self) -> Iterator[Event]:
        """The metadata of all processes and of the threads that were drawn in."""
        for process, number in self._pids.items():
            track = Track(number, 0)
            yield named("process_name", track, self._labels[process])
            yield named("process_sort_index", track, number)
        for (_, name), track in self._threads.items():
            yield named("thread_name", track, name)
            yield named("thread_sort_index", track, _place_of(name))


class _Rows:
    """The rows of a thread, each with the ends of the slices that are open in it."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        for row, ends in enumerate(self._open):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return row
        self._open.append([end_ns])
        return len(self._open) - 1


def _place_of(thread: str) -> int:
    """Below each other: what the process does itself, then what runs beside it."""
    beside = (PINNING, SENDING)
    return 1 + next((i for i, name in enumerate(beside, 1) if thread.startswith(name)), 0)


def _labels(runs: Sequence[Run]) -> dict[Process, str]:
    """Every process by its name, in the order in which they are shown."""
    several = pl.concat([run.all_steps["rank"] for run in runs]).n_unique() > 1
    found: dict[Process, tuple[str, int]] = {}
    for loader, run in enumerate(runs):
        of = f" of {run.settings.name or 'another loader'}" if loader else ""
        for rank, worker, pid in _who(run):
            name = "training loop" if worker is None else f"worker {worker}{of}"
            label = (f"rank {rank}: " if several else "") + name
            label += "" if pid is None else f" (pid {pid})"
            process = Process(rank, worker, None if worker is None else pid)
            found.setdefault(process, (label, loader))
    shown = sorted(found, key=lambda one: (one.rank, one.worker is not None, found[one][1]))
    return {process: found[process][0] for process in shown}


def _who(run: Run) -> list[tuple[int, int | None, int | None]]:
    """Rank, worker and pid of every process that a table names; of each loop's with its pid."""
    tables = (run.side_spans, run.all_spans, run.batches, run.deliveries.drop_nulls("pid"))
    nobody = [
        pl.lit(None, kind).alias(name) for name, kind in (("worker", pl.Int16), ("pid", pl.Int32))
    ]
    frames = [table.select(_WHO).unique() for table in tables]
    # A loop that never came to a step was watched all the same
    loops = [table.select("rank", *nobody).unique() for table in (run.all_steps, run.all_resources)]
    return pl.concat([*frames, *loops]).unique().sort(_WHO, nulls_last=True).rows()
