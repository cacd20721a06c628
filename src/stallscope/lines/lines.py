"""`ss.lines`: how long each line of the dataset, its transforms and its collate function takes.

Some samples are made in this process by torch's own fetcher, three times: once to see which
functions take the time, and then in turn with their lines timed and without, which tells what the
timing costs.
"""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from tqdm.auto import tqdm

from stallscope.errors import NoBatchError, StallscopeError
from stallscope.isolation import snapshot
from stallscope.isolation.snapshot import isolated, one_thread
from stallscope.lines.profiler import CallTree, LineTimer, Pieces, source_of
from stallscope.lines.result import CALLS, FUNCTIONS, PAIRS, SOURCES, TIMES, Lines, LinesConditions
from stallscope.lines.select import Choice, as_list, select_functions
from stallscope.loops.cached_loaders import check_plain
from stallscope.loops.training_loop import check_whole
from stallscope.loops.watchdog import went_on, within, working
from stallscope.machine import machine, require_single_rank
from stallscope.run.read_logs import note
from stallscope.targets import target as targets
from stallscope.targets.object_graph import LoaderCallables, bindings_kept
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from stallscope.targets.target import Target


_LOOKED_AT: Final = 2
"""Pieces that are made to see which functions take the time; before them one to warm up."""
_USUAL_S: Final = 60.0
"""The usual budget of other verbs: a sample that takes longer stands still."""
_WORTH_SAYING: Final = 0.1
"""Of all decoding, for a line to be called the place of it."""


class LineMeasurement:
    """Which samples are made, when their lines are timed, what came of it."""

    def __init__(self, target: Target, parts: LoaderCallables, samples: int) -> None:
        self._target = target
        self._loader = target.loaders[0]
        self._parts = parts
        self._pieces = Pieces(self._loader, samples)
        self._tree = CallTree()
        self._choice = Choice()
        self._timer = LineTimer([])
        self._pairs: list[tuple[float, float]] = []
        self._samples = 0
        self._wall_s = 0.0
        self._ended = False
        self._doing = "making the first samples"
        title = f"lines of {target.name}"
        steps = 1 + _LOOKED_AT + 2 * len(self._pieces.all)
        self._bar = tqdm(desc=title, total=steps, unit="piece", leave=False, delay=0.5)

    def run(self, wanted: list[Any] | None) -> None:
        """Choose functions, and time their lines."""
        with closing(self._bar), working():
            self._look(wanted)
            self._doing = "timing lines"
            with self._timer.attached():
                self._measure()

    def _look(self, wanted: list[Any] | None) -> None:
        """See which functions take the time, and choose."""
        pieces = self._pieces.all
        self._make(pieces[0])
        self._doing = "looking for the functions that take the time"
        for piece in pieces[:_LOOKED_AT]:
            self._make(piece, self._tree.watching)
        self._choice = select_functions(self._parts, self._tree, wanted)
        self._timer = LineTimer(self._choice.functions)

    def _measure(self) -> None:
        """Make each piece with its lines timed and without, in turn."""
        self._pieces.restart()
        for number, piece in enumerate(self._pieces.all):
            again = [*snapshot.restore_generators(self._loader)]  # the same draws the second time
            took: dict[bool, float] = {}
            for timed in (True, False) if number % 2 else (False, True):
                seconds = self._make(piece, self._timer.on if timed else nullcontext)
                if seconds is None:
                    return
                took[timed] = seconds
                if timed:
                    self._samples += self._pieces.count(piece)
                    self._wall_s += seconds
                if not self._pieces.stream and len(took) == 1:
                    for restore in again:
                        restore()
            self._pairs.append((took[True], took[False]))

    def _make(
        self, piece: Any, watching: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> float | None:
        """Make a piece; returns its seconds, None where a stream has no more."""
        for _ in range(2):
            went_on()
            batches = self._pieces.prepare(piece)
            try:
                with watching():
                    began_ns = time.perf_counter_ns()
                    next(batches)
                    took_ns = time.perf_counter_ns() - began_ns
            except StopIteration:
                self._pieces.restart()
                continue
            self._bar.update()
            return took_ns / 1e9
        self._ended = True
        return None

    def leave_with(self, error: BaseException) -> None:
        """Tell an exception of the user's where it came from, and what was measured before it."""
        vars(error)["lines"] = self.result()  # past any __setattr__ of a frozen exception
        said = [f"stallscope: raised while {self._doing}"]
        if self._loader.num_workers:
            said.append(
                "stallscope: the samples were made in this process, where get_worker_info() is "
                "None and worker_init_fn is not called"
            )
        said.append("stallscope: what was measured before is this exception's attribute `lines`")
        note(error, said)

    def result(self) -> Lines:
        """What is known by now."""
        names = self._choice.names
        sources = {code: source_of(code) for code in names}
        stages = {**self._parts.stages, **self._choice.stages}
        functions = [
            (
                *(names[code], code.co_filename, code.co_firstlineno),
                *stages.get(code, (None, None))[:2],
                why_not or None,
            )
            for code, (_, why_not) in sources.items()
        ]
        texts = [
            (names[code], number, text)
            for code, (found, _) in sources.items()
            for number, text in found.items()
        ]
        times = [
            (names[one.code], one.line, one.hits, one.time_s)
            for one in self._timer.times()
            if one.code in names
        ]
        calls = [
            (names[one.caller], one.line, names[one.code], one.share)
            for one in self._tree.calls(set(names))
        ]
        return Lines(
            functions=pl.DataFrame(functions, FUNCTIONS, orient="row"),
            times=pl.DataFrame(times, TIMES, orient="row"),
            calls=pl.DataFrame(calls, CALLS, orient="row"),
            sources=pl.DataFrame(texts, SOURCES, orient="row"),
            pairs=pl.DataFrame(self._pairs, PAIRS, orient="row"),
            circumstances=LinesConditions(
                name=self._target.name,
                unit=self._pieces.unit,
                samples=self._samples,
                wall_s=self._wall_s,
                machine=machine(),
            ),
            notes=(*self._target.told(), *self._notes(), *self._choice.notes),
        )

    def _notes(self) -> Iterator[str]:
        names = self._choice.names
        ran = {one.code for one in self._timer.times()}
        silent = [f"`{name}`" for code, name in names.items() if code not in ran]
        if silent and self._samples:
            yield f"never called for these samples: {', '.join(silent)}"
        for one in self._tree.calls(set(names)):
            if one.caller is one.code:
                yield (
                    f"`{names[one.code]}` calls itself: the time of its lines counts every level, "
                    "their own time does not"
                )
        decoders = {
            code
            for code, module in self._tree.modules().items()
            if (module, code.co_name) == ("PIL.ImageFile", "load") and code not in names
        }
        for one in self._tree.calls({*names, *decoders}):
            if one.code in decoders and one.share > _WORTH_SAYING:
                yield (
                    f"line {one.line} of `{names[one.caller]}` decodes the image: PIL reads pixels "
                    "when they are first needed, so whatever stood there would take that time"
                )
        if self._pieces.stream:
            yield "a stream: no sample can be made twice, so those with and without differ"
        if self._ended:
            yield f"the loader gave no more than {count(self._samples, 'sample')}"
        if self._loader.num_workers and self._loader.worker_init_fn is not None:
            yield "made in this process: worker_init_fn was not called"


def lines(target: Any, *, functions: Any = None, samples: int = 32) -> Lines:
    """Time the lines of the code that makes a loader's samples, with line_profiler.

    Makes the samples in this process with one torch thread, in smaller batches than the loader's.
    Afterwards all random generators and the samplers are as they were, the attributes of the
    dataset and its transforms hold what they held, and nothing of line_profiler is left on any
    function; a debugger or another profiler that was on is on again. An exception of the dataset's
    passes unchanged; its attribute `lines` holds what was measured before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        functions: names ("RandomMask", "RandomMask.dilate", "collate") or functions, one or
            several; by default the user's own that cost most: `__getitem__` (or `__iter__`), the
            transforms, what these call, and the collate function.
        samples: how many to make with their lines timed. As many are made without, and some more
            before.

    Raises:
        ArgumentError: `samples` is no number that can be used, or `functions` names nothing.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, or this
            process is one of several ranks.
        NoBatchError: a sample was not made within a minute and a grace; its attribute `lines` holds
            what was measured before.
    """
    check_whole("samples", samples, 1)
    wanted = as_list(functions)
    require_single_rank()
    target = replace(targets.target(target), step=None)
    check_plain(target, "its samples cannot be made one by one in this process")
    slow = "ask for fewer samples"
    with within(_USUAL_S, remedy=slow), isolated(target) as target, one_thread():
        parts = LoaderCallables(target.loaders[0])
        with bindings_kept(parts.holders()):
            with working():
                measurement = LineMeasurement(target, parts, int(samples))
            try:
                measurement.run(wanted)
            except BaseException as error:
                if isinstance(error, StallscopeError) and not isinstance(error, NoBatchError):
                    raise
                measurement.leave_with(error)
                raise
            return measurement.result()
