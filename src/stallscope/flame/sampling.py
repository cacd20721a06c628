"""Sampling the stacks of a loader's workers in its steady state, while it goes on.

A loader that ends before the time asked for is over begins again. A forked worker's stack begins
with everything that its parent was inside of: what remains begins at torch's worker loop, at a
thread's function, or in the main process at the user's own program.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import TargetError
from stallscope.flame.classify import StackFrame, short
from stallscope.flame.pyspy import InProcess, Process, Spy
from stallscope.flame.result import IN_PROCESS, PY_SPY, SAMPLES, WINDOW_S, Flame, FlameConditions
from stallscope.hooks.patches import under
from stallscope.loops.timed_loop import started
from stallscope.loops.training_loop import ProgressBar
from stallscope.machine import machine
from stallscope.stages import COLLATE, DECODE, GETITEM, PIN, SEND, STEP, of_frame
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stallscope.flame.pyspy import How, Seen
    from stallscope.hooks.probe import Probe
    from stallscope.loops.timed_loop import TimedLoop


WORKER_LOOP: Final = "torch/utils/data/_utils/worker.py"
"""The file of torch's worker loop, as `short` has it."""

_OURS: Final = (
    *("stallscope/hooks/", "stallscope/targets/", "stallscope/isolation.py", "stallscope/loops/"),
    *("stallscope/run/", "stallscope/ladder/", "stallscope/flame/", "stallscope/orders/"),
    *("stallscope/lines/", "stallscope/diagnose/"),
)
_PIPELINES: Final = (
    "stallscope/targets/images.py",
    "stallscope/targets/sample.py",
    "stallscope/targets/target.py",
)
"""Datasets and steps of ours stand for the user's."""
_WATCHING: Final = tuple(
    f"stallscope/{file}"
    for file in (
        *("hooks/self_sampler.py", "flame/pyspy.py", "pyspy_calls.py"),
        "run/resource_",
    )
)
"""Whoever is inside of these is no part of what is measured."""
_STARTS_THREADS: Final = "threading.py"
_SHELL: Final = "IPython/core/interactiveshell.py"
"""Runs a notebook's cells, below twenty frames of the kernel's."""
_KNOWN: Final = {
    "torch/utils/data/_utils/collate.py": COLLATE,
    "torch/utils/data/_utils/pin_memory.py": PIN,
    "PIL/ImageFile.py": DECODE,
    "torchvision/io/image.py": DECODE,
    "multiprocessing/resource_sharer.py": SEND,  # hands the batch's memory over
}
"""Stages that are told by whose code it is, where no frame of the recorder's says better."""
_FEEDER: Final = ("multiprocessing/queues.py", "_feed")


def collapsed(
    stack: Sequence[StackFrame], own: tuple[str, ...] = (), *, of_loop: bool = False
) -> tuple[str | None, str] | None:
    """The stage and the readable frames of a stack, joined by `;`; None if none is of interest.

    Args:
        stack: the outermost frame first.
        own: folders of the user's own code, as of `classify.own_folders`.
        of_loop: whether it begins within the innermost frame of ours: the loop's.
    """
    files = [short(frame.file) for frame in stack]
    loops = (n for n, file in enumerate(files) if file == WORKER_LOOP)
    begin = max(
        (n for n in loops if stack[n].name == "_worker_loop"), default=_below_what_began_it(files)
    )
    if any(file.startswith(_WATCHING) for file in files[begin:]):  # before it is who forked
        return None
    if of_loop:
        begin = max((n + 1 for n, file in enumerate(files) if _is_ours(file)), default=len(files))
    kept = [
        frame
        for frame, file in zip(stack[begin:], files[begin:], strict=True)
        if not _is_ours(file)
    ]
    stage = _stage(stack) or _known_stage(kept)
    if not kept or (stage is None and _is_ours(files[-1])):  # our own loop, at work
        return None
    return stage, ";".join(frame.text(own) for frame in kept)


def _below_what_began_it(files: list[str]) -> int:
    """Where a thread's own function begins; in a notebook's main thread the cell, else 0."""
    begin = max((n + 1 for n, file in enumerate(files[:-1]) if file == _SHELL), default=0)
    while begin < len(files) - 1 and files[begin] == _STARTS_THREADS:
        begin += 1
    return begin


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not file.startswith(_PIPELINES)


def _stage(stack: Iterable[StackFrame]) -> str | None:
    """The innermost stage, as the recorder sees it."""
    stages = [of_frame(frame.name) for frame in stack if "stallscope" in frame.file]
    name, in_transform, in_sample = None, False, False
    for stage in filter(None, stages):
        is_sample = stage.name == GETITEM.name
        if (stage.gives_way and in_transform) or (in_sample and is_sample):
            continue
        in_sample |= is_sample
        name, in_transform = stage.name, stage.kind == "transform"
    return name


def _known_stage(stack: Sequence[StackFrame]) -> str | None:
    """What is told by well-known code alone; None where nothing is."""
    for frame in reversed(stack):
        file = short(frame.file)
        if file in _KNOWN:
            return _KNOWN[file].name
        if file == _FEEDER[0] and frame.name.endswith(_FEEDER[1]):
            return SEND.name
    return None


class StackCounts:
    """How often each stack was seen, in which process and which window."""

    def __init__(self, rate_hz: float, own: tuple[str, ...] = (), *, of_loop: bool = False) -> None:
        self.of_loop = of_loop
        """Whether it is the loop's process that is sampled, and not the workers."""
        self._readable = partial(collapsed, own=own, of_loop=of_loop)
        self._in_window = max(round(rate_hz * WINDOW_S), 1)
        self._count: Counter[tuple[Any, ...]] = Counter()
        self._windows: dict[int, int] = {}
        self.processes: set[int] = set()
        """Of which something was read, be it that they did nothing."""

    def add(self, by: Spy | InProcess) -> list[str]:
        """Count what was seen.

        Returns:
            Sentences on processes of which there is nothing.
        """
        if by.refused:
            return []
        said = list(by.notes)
        for seen in by.read():
            if seen.why_not:
                who = "the process" if seen.worker is None else f"worker {seen.worker}"
                said.append(f"{who} (pid {seen.pid}) was not sampled: {seen.why_not}")
            else:
                self.processes.add(seen.pid)
                self._add(seen)
        return said

    def _add(self, seen: Seen) -> None:
        readable = cache(self._readable)
        first = last = self._windows.get(seen.pid, 0)
        for thread in seen.threads:
            stacks = (readable(tuple(stack)) for stack in thread)
            for place, stack in enumerate(filter(None, stacks)):
                window = first + place // self._in_window
                self._count[(seen.worker, seen.pid, window, *stack)] += 1
                last = max(last, window + 1)
        self._windows[seen.pid] = last

    def flame(self, circumstances: FlameConditions, notes: Sequence[str]) -> Flame:
        """What is known by now."""
        rows = [(*key, hits) for key, hits in self._count.items()]
        samples = pl.DataFrame(rows, SAMPLES, orient="row")
        said = list(notes)
        if not rows:
            said.append(
                "no stack was seen: the workers waited all the time (idle=True shows where), or "
                "had no time to be seen"
            )
        return Flame(samples, circumstances, tuple(dict.fromkeys(said)))


def circumstances_of(name: str, how: How, processes: Sequence[Process]) -> FlameConditions:
    """What a flame says of itself; without processes, before anything was sampled."""
    return FlameConditions(
        name=name,
        how=PY_SPY,
        num_workers=sum(number is not None for number, _ in processes),
        machine=machine(),
        **vars(how if processes else replace(how, seconds=0.0)),
    )


class _Passing(ProgressBar):
    """A bar over the seconds."""

    def move(self) -> None:
        """Show how many have passed."""
        passed = min(int(self.format_dict["elapsed"]), int(self.total))
        if passed > self.n:
            self.update(passed - self.n)


def passing(name: str, seconds: float) -> _Passing:
    """A bar over so many seconds."""
    title = f"flame of {name}"
    return _Passing(total=math.ceil(seconds), desc=title, unit="s", leave=False, delay=0.5)


_ENOUGH: Final = 0.98
"""Of the time asked for."""
_PATIENCE_S: Final = 10.0
"""So much longer than asked for a loader that ends again and again may take."""


class SamplingLoop:
    """One recording of a loader, over as many starts of it as that takes."""

    def __init__(
        self, loop: TimedLoop, name: str, how: How, notes: list[str], stacks: StackCounts
    ) -> None:
        def use(batch: Any) -> None:  # its frame says that this is the step
            loop.use(batch)

        self._loop = loop
        self._how = how
        self._notes = notes
        self._hits = stacks
        self._circumstances = circumstances_of(name, how, [])
        self._use = under(STEP, use)
        self._sampled_s = 0.0
        self._refused = False
        self._used = 0

    def run(self, probe: Probe, folder: Path) -> None:
        """Sample until the time asked for is full; a loader that ends before begins again."""
        began, starts, warmup = time.monotonic(), 0, self._loop.warmup
        with closing(passing(self._circumstances.name, self._how.seconds)) as bar:
            while self._left_s > self._how.seconds * (1 - _ENOUGH):
                starts += 1
                before = self._used
                with started(self._loop) as batches:
                    if self._warm_up(batches, warmup):
                        self._sample(batches, probe, folder, bar)
                    elif warmup:
                        warmup = 0
                        self._notes.append(
                            "the loader is too short for a steady state: its start is in it"
                        )
                if self._used == before:
                    break
                if time.monotonic() > began + 2 * self._how.seconds + _PATIENCE_S:
                    break
        self._say_how_it_went(starts)

    @property
    def _left_s(self) -> float:
        return self._how.seconds - self._sampled_s

    def _warm_up(self, batches: Iterator[Any], steps: int) -> bool:
        """Use the first batches, for no longer than is sampled; false where there are too few."""
        until_s = math.inf
        for _ in range(steps):
            if not self._step(batches):
                return False
            until_s = min(until_s, time.monotonic() + self._how.seconds)
            if time.monotonic() >= until_s:
                break
        return True

    def _step(self, batches: Iterator[Any]) -> bool:
        """One step; false where there is no batch any more."""
        for batch in batches:
            self._use(batch)
            self._used += 1
            return True
        return False

    def _sample(self, batches: Iterator[Any], probe: Probe, folder: Path, bar: Any) -> None:
        """Sample for the time that is left, or until the batches end."""
        workers: list[Process] = [] if self._hits.of_loop else [*probe.workers()]
        processes = workers or [(None, os.getpid())]
        how = replace(self._how, seconds=self._left_s)
        if not self._refused:
            spy = Spy(processes, how, folder)
            self._watch(spy, batches, bar)
            if not spy.refused:
                return
            self._fall_back(spy)
        self._watch(InProcess(processes, how, folder), batches, bar)

    def _watch(self, by: Spy | InProcess, batches: Iterator[Any], bar: Any) -> None:
        with ExitStack() as stack:
            stack.enter_context(by)
            stack.callback(self._keep, by)
            stack.callback(by.stop)  # also after an error: what was seen is not lost
            while not by.is_over and self._step(batches):
                bar.move()

    def _keep(self, by: Spy | InProcess) -> None:
        self._notes += self._hits.add(by)
        self._sampled_s += by.seconds
        self._circumstances = replace(
            self._circumstances,
            how=by.name,
            seconds=self._sampled_s,
            num_workers=sum(seen.worker is not None for seen in by.seen),
        )

    def _fall_back(self, spy: Spy) -> None:
        self._refused = True
        self._notes.append(
            f"sampled by the {IN_PROCESS}, not by {PY_SPY} ({spy.refused}): {spy.remedy}"
        )
        self._notes.append(
            f"the {IN_PROCESS} sees a thread where it lets go of Python's lock: compiled code that "
            "keeps the lock shows at the line after it"
        )
        left_out = [name for name in ("native", "gil") if getattr(self._how, name)]
        if left_out:
            self._notes.append(f"the {IN_PROCESS} has no {' and no '.join(left_out)}")
        self._how = replace(self._how, native=False, gil=False)
        self._circumstances = replace(self._circumstances, native=False, gil=False)

    def _say_how_it_went(self, starts: int) -> None:
        if not self._used:
            raise TargetError(
                f"{self._circumstances.name} gave no batch: there is nothing to sample"
            )
        if self._sampled_s < self._how.seconds * _ENOUGH:
            self._notes.append(
                f"{seconds(self._sampled_s)} were sampled, not {seconds(self._how.seconds)}: "
                f"the loader gave {count(self._used, 'batch')}"
            )
        if starts > 1:
            self._notes.append(f"the loader is short: it was started {starts} times")

    def result(self, told: Iterable[str] = ()) -> Flame:
        """What is known by now; `told` are further notes."""
        notes = [*self._notes, *told]
        is_without = not self._hits.of_loop and not self._circumstances.num_workers
        if self._hits.processes and is_without:
            notes.append("num_workers=0: the main process was sampled, the step is in it")
        return self._hits.flame(self._circumstances, notes)
