"""`ss.flame`: where in the code the workers' time goes, from stacks of all of them at once.

Of a loader, in its steady state and while a private copy of it goes on; or of a training that runs
already and is left alone.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import ArgumentError, UnsupportedError
from stallscope.flame import sampling
from stallscope.flame.pyspy import How, Spy
from stallscope.flame.sampling import SamplingLoop, StackCounts, circumstances_of, passing
from stallscope.hooks.loop_log import LogPlace
from stallscope.hooks.probe import Probe
from stallscope.isolation.snapshot import isolated
from stallscope.isolation.workspace import log_capacity, workspace
from stallscope.loops import cached_loaders
from stallscope.loops.timed_loop import TimedLoop
from stallscope.machine import require_single_rank
from stallscope.run.read_logs import note
from stallscope.targets import target as targets
from stallscope.targets.object_graph import find_loaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.flame.result import Flame


_LONGEST_S: Final = 3600.0
_FASTEST_HZ: Final = 1000
_NATIVE_HZ: Final = 29
"""With native frames a process is stopped for each sample; a rate that others have lived with."""


def flame(  # noqa: PLR0913 - the public signature
    target: Any = None,
    step: Callable[[Any], object] | None = None,
    *,
    pid: int | None = None,
    seconds: float = 5.0,
    rate_hz: float = 50,
    native: bool = False,
    idle: bool = False,
    gil: bool = False,
) -> Flame:
    """Sample the stacks of all DataLoader workers at once, by py-spy, while the loop goes on.

    With a target, a shallow copy of the loader is iterated; only its steady state is sampled.
    Afterwards all random generators, the samplers and what `step` trains are as they were, and the
    workers are gone. Where py-spy may not attach, the workers sample themselves, and the result
    says so, and which setting would allow py-spy. An exception of the dataset's or of the step's
    passes unchanged; its attribute `flame` holds what was seen before. With `pid`, a training that
    runs already is only read, and goes on.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`. With `num_workers=0` the
            main process is sampled.
        step: uses one batch; the target's by default.
        pid: instead of a target, the process id of a training that runs; the workers below it are
            sampled, or the process itself where it has none.
        seconds: how long to sample.
        rate_hz: samples a second of each process, 1 to 1000.
        native: frames of compiled code, too. Each sample then stops its process for a moment, so at
            most 29 a second are taken.
        idle: threads that wait, too.
        gil: only threads that hold Python's lock.

    Raises:
        ArgumentError: `seconds`, `rate_hz` or `pid` cannot be used, or it is not clear what to
            sample.
        TargetError: the target is nothing that can be iterated, or gave no batch.
        UnsupportedError: `pid` is gone, not Python, or may not be looked into; a loader that keeps
            an iterator of its own, or more than one rank.
        WorkspaceError: no room for the logs.
    """
    how = _how(seconds, rate_hz)
    how = replace(how, native=bool(native), idle=bool(idle), gil=bool(gil))
    said = []
    if native:
        how = replace(how, rate_hz=min(how.rate_hz, _NATIVE_HZ))
        said.append(
            f"native frames: each process was stopped for each sample ({how.rate_hz:g} a second), "
            "which slows it down"
        )
    if pid is not None:
        if target is not None or step is not None:
            raise ArgumentError("pid= is a training that runs by itself: give it alone")
        return _of_process(_whole(pid), how, said)
    if target is None:
        raise ArgumentError("what to sample? Give a loader, or pid= of a training that runs")
    require_single_rank()
    return _of_target(targets.target(target, step=step), how, said)


def _how(seconds: object, rate_hz: object) -> How:
    if not _is_number(seconds) or not 0 < seconds <= _LONGEST_S:  # type: ignore[operator]
        raise ArgumentError(f"seconds={seconds!r}: give a number above 0, at most {_LONGEST_S:g}")
    if not _is_number(rate_hz) or not 1 <= rate_hz <= _FASTEST_HZ:  # type: ignore[operator]
        raise ArgumentError(f"rate_hz={rate_hz!r}: give a number from 1 to {_FASTEST_HZ}")
    return How(float(rate_hz), float(seconds))  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(pid: object) -> int:
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        raise ArgumentError(f"pid={pid!r}: give the number of a process")
    return pid


def _of_process(pid: int, how: How, said: list[str]) -> Flame:
    with workspace() as folder:
        processes, found = sampling.below(pid, folder)
        hits, notes = StackCounts(how.rate_hz), [*said, *found]
        circumstances = circumstances_of(f"pid {pid}", how, processes)
        with Spy(processes, how, folder) as spy, closing(passing(f"pid {pid}", how.seconds)) as bar:
            try:
                while not spy.is_over:
                    time.sleep(0.02)
                    bar.move()
            except BaseException as error:
                spy.stop()
                notes += hits.add(spy)
                _leave_with(error, hits.flame(circumstances, notes))
                raise
            spy.stop()
        notes += hits.add(spy)
    if spy.refused:
        raise UnsupportedError(f"pid {pid} cannot be sampled: {spy.refused}; {spy.remedy}")
    if not hits.processes:
        raise UnsupportedError(
            f"nothing of pid {pid} could be sampled, its workers ended meanwhile "
            f"({spy.seen[0].why_not}): call again while an epoch is running"
        )
    return hits.flame(circumstances, notes)


def _of_target(target: targets.Target, how: How, said: list[str]) -> Flame:
    with isolated(target) as target, workspace() as folder:  # noqa: PLR1704 - its private form
        loader = cached_loaders.going_on(target.loader)
        place = LogPlace(folder, log_capacity(folder, max(target.num_workers, 1)), stands_by=True)
        probe = Probe(place, find_loaders(loader), scoped=True)
        loop = replace(TimedLoop.of(target), batches=_Hooked(probe, loader))
        session = SamplingLoop(loop, target.name, how, [*said, *target.notes])
        try:
            with probe:
                session.run(probe, folder)
        except BaseException as error:
            probe.__exit__()
            if not probe.forked:
                _leave_with(error, session.result())
            raise
        return session.result()


class _Hooked:
    """A loader whose iterators are begun by the probe, so that it sees what is inside of them."""

    def __init__(self, probe: Probe, loader: Any) -> None:
        self.loader = loader
        self._probe = probe

    def __iter__(self) -> Iterator[Any]:
        return self._probe.begin(self.loader)


def _leave_with(error: BaseException, seen: Flame) -> None:
    vars(error)["flame"] = seen  # past any __setattr__ of a frozen exception
    note(error, ["stallscope: what was sampled before is this exception's attribute `flame`"])
