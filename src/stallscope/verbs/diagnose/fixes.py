"""Changes that would help: predicted from the run for each finding, and measurable.

A change is a setting, or a part of the work that is done faster or not at all. What it would gain
is replayed from the recorded batches, by the simulator that `ss.tune` predicts with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.apart import apart
from stallscope.bench.measurement import memory_limit
from stallscope.errors import StallscopeError
from stallscope.loops.cached_loaders import is_plain, is_stream
from stallscope.model.costs import costs_of
from stallscope.model.settings import HAS_IN_ORDER, Setting, grid, setting_of
from stallscope.model.simulator import predict
from stallscope.model.thresholds import WORTH_A_LINE
from stallscope.stages import SAMPLE_KINDS
from stallscope.verbs.diagnose import causes
from stallscope.verbs.diagnose.result import FIXES, IN_MEMORY, STORE
from stallscope.verbs.ladder.ladder import Rungs
from stallscope.verbs.ladder.result import TRANSFORMED
from stallscope.verbs.tune.result import Trial, smallest
from stallscope.verbs.tune.tune import TuneBench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.model.batch_times import LoaderCosts
    from stallscope.run.result import Run
    from stallscope.targets.target import Target
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.result import Finding
    from stallscope.verbs.tune.result import Tuning


_CAPTURE_SHARE: Final = 0.3
"""Share of a measurement's budget for caching samples."""
_FASTER: Final = 2.0
"""Assumed speedup of better code: the real one is unknown before the code is written."""
_NOT_TRIED: Final = (None, None, None, None)


class Fix(NamedTuple):
    """A change that would help."""

    name: str
    """In words, as `try_fix` takes it."""
    code: str
    """Code of the finding; empty: for no single finding."""
    costs: LoaderCosts
    setting: Setting
    measurable: bool = True
    """True: `try_fix` can make or imitate the change."""


@dataclass
class FixBench(TuneBench):
    """Loader and predictions that a measurement of fixes needs."""

    fixes: dict[str, Fix] = field(default_factory=dict)
    tried: dict[str, Tuning] = field(default_factory=dict)

    def try_fix(self, change: Any, budget_s: float) -> Tuning:
        """Measure a change beside the loader as it is.

        Args:
            change: the name of a fix, the code of a finding, or a dictionary of settings.
            budget_s: seconds.

        Raises:
            ArgumentError: that is no time.
            StallscopeError: there is no such fix, or only the user can make it.
        """
        room = memory_limit()
        trial = self._trial(change, lambda loader: self._in_memory(loader, room, budget_s))
        tuning = self.measure(trial, budget_s)
        if trial.change == IN_MEMORY:
            tuning = replace(tuning, notes=(STORE, *tuning.notes))
        self.tried[trial.change] = tuning
        return tuning

    def _trial(self, change: Any, keep: Callable[[Any], Any]) -> Trial:
        if not isinstance(change, str):
            return self.trial(change)
        named = [fix for fix in self.fixes.values() if change in (fix.name, fix.code)]
        able = [fix for fix in named if fix.measurable]
        if not able:
            measurable = ", ".join(repr(fix.name) for fix in self.fixes.values() if fix.measurable)
            why = "only you can make this change" if named else "there is no such fix"
            raise StallscopeError(
                f"{change!r}: {why}. What can be measured: {measurable or 'nothing'}"
            )
        fix = able[0]
        make = keep if fix.name == IN_MEMORY else None
        return Trial(fix.setting, fix.name, predict(fix.costs, fix.setting), make=make)

    def _in_memory(self, loader: Any, room: int, budget_s: float) -> Any:
        """Return the loader with finished samples in memory, which it collates and sends."""
        rungs = Rungs(replace(self.target, loader=loader), room)
        rungs.capture(time.perf_counter_ns() + int(budget_s * _CAPTURE_SHARE * 1e9))
        if TRANSFORMED not in rungs.cached:
            raise StallscopeError(rungs.why_not.get(TRANSFORMED, "its samples cannot be kept"))
        return rungs.loops[TRANSFORMED].batches


def what_helps(
    target: Target, facts: Facts, run: Run, findings: tuple[Finding, ...]
) -> tuple[pl.DataFrame, FixBench] | None:
    """Predict changes: columns of `result.FIXES`, and a bench for them; None: unpredictable."""
    loader = target.loader
    if not is_plain(loader):
        return None
    now, stream = setting_of(loader), is_stream(loader)

    def predictions() -> tuple[LoaderCosts, list[Fix], list[tuple[Any, ...]]]:
        costs = costs_of(
            run,
            now,
            epoch_batches=facts.setup.epoch_batches,
            batch_bytes=facts.batch.all if facts.batch else None,
            cores=facts.setup.cores,
        )
        fixes = list(_fixes(costs, now, facts, findings, stream=stream))
        return costs, *_rows(costs, now, fixes)

    try:
        costs, fixes, rows = apart(predictions)
    except StallscopeError:
        return None
    bench = FixBench(target, run, costs, {fix.name: fix for fix in fixes})
    return pl.DataFrame(rows, FIXES, orient="row"), bench


def _rows(
    costs: LoaderCosts, now: Setting, fixes: Iterable[Fix]
) -> tuple[list[Fix], list[tuple[Any, ...]]]:
    """Return fixes worth a line, the best first, and their rows."""
    own, rows = predict(costs, now).samples_per_s, []
    for fix in {fix.name: fix for fix in reversed(list(fixes))}.values():
        prediction = predict(fix.costs, fix.setting)
        gain = prediction.samples_per_s.over(own)
        if fix.code or gain.value >= WORTH_A_LINE:
            rows.append(
                (fix, (fix.name, fix.code, *gain, fix.measurable, prediction.outside, *_NOT_TRIED))
            )
    # Uncertain gains come after certain ones
    rows.sort(key=lambda pair: (pair[1][3] <= 1, -pair[1][2]))
    return [fix for fix, _ in rows], [row for _, row in rows]


def _fixes(
    costs: LoaderCosts,
    now: Setting,
    facts: Facts,
    findings: tuple[Finding, ...],
    *,
    stream: bool,
) -> Iterator[Fix]:
    """Yield every candidate; those that findings advise first."""
    for finding in findings:
        yield from _advised(costs, now, facts, finding.code)
    if any(finding.code == causes.HEALTHY.code for finding in findings):
        return
    settings = [
        setting
        for setting in grid(now, costs.cores, pins=False, is_stream=stream)
        if setting.in_order == now.in_order
    ]
    best = smallest([(predict(costs, each).samples_per_s.value, each) for each in settings])
    if best != now:
        yield Fix(now.text(best), "", costs, best)
    if not stream:
        yield Fix(IN_MEMORY, "", costs.faster(inf, SAMPLE_KINDS), now)


def _advised(costs: LoaderCosts, now: Setting, facts: Facts, code: str) -> Iterator[Fix]:
    """Yield what a finding advises: its work sped up, which only the user can do, and settings."""
    kind, times, sped = causes.CAUSES[code].kind, f"{_FASTER:g}× as fast", costs
    name = f"{kind} {times}"
    if kind == "fetch":
        name, sped = "reading from memory", costs.faster(inf, [kind])
    elif code in (causes.DECODE.code, causes.TRANSFORMS.code, causes.COLLATE.code):
        sped = costs.faster(_FASTER, [kind])
    elif code == causes.SENDING.code:
        name, parts = f"sending {times}", (costs.send_s / _FASTER, costs.receive_s / _FASTER)
        sped = replace(costs, send_s=parts[0], receive_s=parts[1])
    elif code == causes.ONE_TRANSFORM.code and any(kind in _OWN for _, kind in costs.stages):
        took_s = (costs.computing_s + costs.waiting_s).sum(axis=0)
        own = [place for place, (_, kind) in enumerate(costs.stages) if kind in _OWN]
        stage, _ = costs.stages[max(own, key=lambda place: took_s[place])]
        name, sped = f"{stage} {times}", costs.faster(_FASTER, stage=stage)
    if sped is not costs:
        yield Fix(name, code, sped, now, measurable=False)
    for changed in _settings(now, facts).get(code, ()):
        setting = replace(now, **changed).normal()
        if setting != now:
            yield Fix(now.text(setting), code, costs, setting)


_OWN: Final = ("transform", "other")
"""Kinds of stages with code of the user's, or of a library that they chose."""


def _settings(now: Setting, facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """Return the settings to change for each cause; some may be as they are."""
    deeper = {"prefetch_factor": 2 * (now.prefetch_factor or 0)}
    enough, most = facts.enough_workers, max(int(facts.setup.cores) - 1, 1)
    return {
        causes.TOO_FEW_WORKERS.code: [{"num_workers": enough}] if enough else [],
        causes.MAIN_PROCESS.code: [] if now.num_workers else [{"num_workers": most}],
        causes.SENDING.code: [{"num_workers": 0}],
        causes.TOO_LITTLE_PREFETCH.code: [deeper],
        causes.SLOW_SAMPLES.code: [deeper, *([{"in_order": False}] if HAS_IN_ORDER else [])],
        causes.START_UP.code: [] if facts.starts.is_drawing else [{"persistent_workers": True}],
        causes.OVERSUBSCRIPTION.code: [{"threads": 1}],
    }
