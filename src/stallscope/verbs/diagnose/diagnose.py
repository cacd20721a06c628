"""`ss.diagnose`: the named cause of a training that waits for data, or that it does not wait.

The budget goes to what decides most. First the loop as it is, with its samples and resources; most
causes show there. Then only what is still open: one worker alone (is something shared?), stacks of
workers that wait (a lock?), a short ladder (what would be gained?), stacks (which line?). It stops
as soon as nothing is open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from torch.utils.data import DataLoader

from stallscope.apart import apart
from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError, NoBatchError, StallscopeError
from stallscope.isolation import isolated
from stallscope.loops.cached_values import batch_bytes
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import (
    Enough,
    Limits,
    Replay,
    TimedLoop,
    check_step_s,
    started,
)
from stallscope.machine import require_single_rank
from stallscope.model.batch_times import making, use
from stallscope.model.exposure import work_of_batch
from stallscope.model.thresholds import HARDLY, MANY_STEPS
from stallscope.run.record import record_target
from stallscope.run.resources import LONG_LOOK_S, memory_growth
from stallscope.targets import target as targets
from stallscope.targets.loaders import copied
from stallscope.units import BUDGET_S, WARMUP, said_by, seconds
from stallscope.verbs.diagnose import verdict
from stallscope.verbs.diagnose.causes import HEALTHY, INCONCLUSIVE
from stallscope.verbs.diagnose.facts import facts, gain_of, with_stacks
from stallscope.verbs.diagnose.fixes import what_helps
from stallscope.verbs.diagnose.own_code import loop_code
from stallscope.verbs.diagnose.recorded import diagnose_run, recorded_run
from stallscope.verbs.diagnose.result import (
    SPENT,
    Diagnosis,
    DiagnosisConditions,
    first_to_try,
    with_tried,
)
from stallscope.verbs.diagnose.setup import setup_of
from stallscope.verbs.diagnose.verdict import fewest_steps, judge, side_notes
from stallscope.verbs.flame.flame import flame, loop_flame
from stallscope.verbs.ladder.ladder import ladder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stallscope.run.result import Run
    from stallscope.targets.target import Target
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.fixes import FixBench
    from stallscope.verbs.diagnose.result import Finding
    from stallscope.verbs.diagnose.verdict import Question
    from stallscope.verbs.flame.result import Flame
    from stallscope.verbs.ladder.result import Ladder


_STEADY_S: Final = 4.0
"""Seconds of the loop: eight of the half-second windows in which resources are judged."""
_ROUNDS: Final = 4
"""Fewest rounds of the workers."""
_LOOP_SHARE: Final = 0.5
"""Share of the time left that a slow loop may take for more than the fewest batches ..."""
_MOST_SHARE: Final = 0.9
"""... and for the fewest batches."""
_MOST_BATCHES: Final = 1_000_000
PROOF: Final = "proof"
_PROOF_S: Final = 20.0
"""Longest measurement of the best change, seconds; it ends where the gain is settled."""
_PROOF_LEAST_S: Final = 4.0
"""Nothing is settled in less."""
_ALONE_S: Final = 1.0
_ALONE_BATCHES: Final = 6
_LADDER_S: Final = 14.0
_STACKS_S: Final = 2.0
_FEWEST_STACKS: Final = 40
"""Samples of all workers; two give 100 a second on a quiet machine. If fewer, sample again, ..."""
_LONGER: Final = 3
"""... this many times longer."""
_MEMORY_S: Final = 1.2 * LONG_LOOK_S
"""Seconds to watch memory grow: samples of memory become rarer with time."""
_STARTS: Final = 8
"""A short ladder starts its loops about so many times."""
_ATTACHING_S: Final = 1.5
"""Seconds to attach to the workers and to read the samples."""
_RESERVE: Final = 0.05
"""Share of the budget for restoring state and for judging."""


def diagnose(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
    prove: bool = True,
) -> Diagnosis:
    """Find out why a training loop waits for data, with the numbers behind the verdict.

    Iterates shallow copies of the loader. Afterwards all random generators, the samplers and what
    `step` trains are as they were, and the workers are gone. An exception of the dataset's or of
    the step's passes unchanged, as from `ss.record`. Where the data does not carry a judgement, the
    verdict is `inconclusive` and says what is missing.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`. Or a `Run`, or the folder
            of one: then the loop that was recorded is judged, and nothing is measured.
        step: uses one batch; the target's by default. Without one it can only be said what bounds
            the loader's own throughput, not whether a training would wait for it.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the batch that is under way then. It
            stops earlier where the answer is clear.
        prove: whether to measure the best change beside the loop as it is, where that needs no
            code of yours, with what is left of the budget.

    Raises:
        ArgumentError: `budget_s` is no number that can be used, a simulated step is longer than it,
            or a step is given with a run.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it keeps a generator in the middle of an epoch; more than one rank.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come within the budget and a grace. Its attribute `diagnosis`,
            as that of an interrupt and any other exception, is what can be said by then.
    """
    measurement = Measurement("diagnose", budget_s, "diagnosis")
    if (run := recorded_run(target)) is not None:
        if step is not None or device is not None:
            raise ArgumentError("a recorded run has its own step and device: leave them out")
        return diagnose_run(run)
    require_single_rank()
    resolved = targets.target(target, step=step, device=device)
    check_step_s(resolved.simulated_step_s, measurement.budget_s)
    examination = Examination(resolved, measurement, proves=prove)
    with measurement:
        measurement.result = examination.known
        examination.run()
    return examination.result()


class Examination:
    """Diagnosis of a target, measurement by measurement."""

    def __init__(self, target: Target, measurement: Measurement, *, proves: bool) -> None:
        self._target, self._proves = target, proves
        self._measurement = measurement
        self._setup = setup_of(target)
        self._facts: Facts | None = None
        self._findings: tuple[Finding, ...] = ()  # the verdict first
        self._run: Run | None = None
        self._ladder: Ladder | None = None
        self._flame: Flame | None = None
        self._waiting: Flame | None = None
        self._notes: list[str] = []
        self._hung = False
        self._helps: tuple[pl.DataFrame, FixBench] | None = None
        self._left_out: dict[str, list[str]] = {}
        self._spent: list[tuple[str, float, str]] = [
            ("target", measurement.used_s, "the loader, and what it imports")
        ]

    @property
    def _left_s(self) -> float:
        return self._measurement.left_s - self._measurement.budget_s * _RESERVE

    def run(self) -> None:
        """Measure until nothing is open, or the budget is over."""
        why = "the loop as it is: its waits, samples and resources"
        self._timed(verdict.LOOP, why, self._measure_loop)
        asked: set[str] = set()
        while (question := self.next_question(asked)) is not None:
            asked.add(question.phase)
            if isinstance(self._target.loader, Iterator):
                why = "the batches can be measured only once"
            elif (wanted_s := self.wanted_s(question.phase)) > self._left_s:
                left = f"{seconds(max(self._left_s, 0.0))} were left of the budget"
                no_time = f"no {question.phase}: it takes about {seconds(wanted_s)}, and {left}"
                self._notes.append(no_time)
                why = "too little of the budget was left"
            else:
                self._timed(question.phase, question.why, lambda: self._answer(question.phase))
                continue
            self._left_out.setdefault(why, []).append(question.phase)
        self._spent.append(("stop", 0.0, self._why_stop()))
        self._helps = self._what_helps()
        if self._proves:
            self._prove()

    def _prove(self) -> None:
        """Measure the change that promises most, where the kit can make it, beside the loop."""
        code = self._findings[0].code
        if self._helps is None or code in (HEALTHY.code, INCONCLUSIVE.code):
            return
        fixes, bench = self._helps
        name, left_s = first_to_try(fixes), self._measurement.left_s
        if name is None or left_s < _PROOF_LEAST_S:
            return

        def measure() -> None:
            try:
                bench.try_fix(name, min(left_s, _PROOF_S))
            except StallscopeError as error:
                self._notes.append(f"'{name}' was not tried: {error}")

        self._timed(PROOF, f"does '{name}' deliver the predicted speedup?", measure)
        self._helps = with_tried(fixes, bench.tried), bench

    def next_question(self, asked: Collection[str]) -> Question | None:
        """Choose the measurement that decides most; None where nothing is open."""
        if self._facts is None:
            return None
        loader = self._target.loader
        can_have_one = isinstance(loader, DataLoader) and loader.num_workers
        impossible = set() if can_have_one else {verdict.ONE_WORKER}
        return verdict.next_question(self._facts, self._findings, {*asked, *impossible})

    def wanted_s(self, phase: str) -> float:
        """Estimate how long a measurement takes, at least."""
        batches = self._facts.making if self._facts else None
        start_s = (self._run.first_batch_s if self._run else None) or 0.0
        batch_s, period_s = (batches.batch_s, batches.period_s) if batches else (0.0, 0.0)
        warm_s = start_s + (max(self._setup.num_workers, 1) + 1) * period_s
        return {
            verdict.ONE_WORKER: start_s + (_ALONE_BATCHES + 2) * batch_s,
            verdict.LADDER: 2 + _STARTS * warm_s,
            verdict.BATCH: warm_s,
            verdict.MEMORY: start_s + warm_s + _MEMORY_S,
        }.get(phase, start_s + min(warm_s, _STACKS_S) + period_s + _STACKS_S + _ATTACHING_S)

    def _timed(self, phase: str, why: str, measure: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        self._measurement.now(phase)
        try:
            measure()
        finally:
            self._spent.append((phase, time.perf_counter() - began_s, why))

    def _know(self, facts: Facts) -> None:
        self._facts, self._findings = facts, apart(lambda: judge(facts))

    def _measure_loop(self) -> None:
        """Run the loop as it is, for so long that it can be judged."""
        left_s, workers = self._left_s, max(self._setup.num_workers, 1)
        enough = Enough(
            max(WARMUP, workers),
            max(MANY_STEPS, _ROUNDS * workers),
            min(_STEADY_S, left_s / 8),
            few=fewest_steps(self._setup) + 1,  # one may lack its record
            late_s=left_s * _LOOP_SHARE,
            begin_share=HARDLY if self._setup.epoch_batches is None else math.inf,
        )
        limits = Limits(_MOST_BATCHES, max(left_s * _MOST_SHARE, 0.1), enough)
        seen = Replay()
        try:
            run = self._run = record_target(self._target, limits, seen=seen)
        except BaseException as error:
            with suppress(Exception):  # of ours; the user's own one is on its way
                self._take_over(vars(error).get("run"), error)
            raise
        if not self._setup.num_workers:  # a dataset may start a loader when it is asked
            self._setup = replace(self._setup, num_workers=run.settings.num_workers)
        keeps = seen.keeps_batches
        self._know(apart(lambda: replace(facts(run, self._setup), keeps_batches=keeps)))

    def _answer(self, phase: str) -> None:
        """Make a measurement; the verdict stands without one that fails."""
        assert self._facts is not None  # noqa: S101 - a question comes from facts
        try:
            self._know(self._measured(phase, self._facts))
        except StallscopeError as error:
            self._notes.append(f"no {phase}: {error}")

    def _measured(self, phase: str, facts: Facts) -> Facts:
        target, left_s = self._target, self._left_s
        if phase == verdict.ONE_WORKER:
            return self._with_one_worker(facts)
        if phase == verdict.LADDER:
            enough_s = max(_LADDER_S, self.wanted_s(phase))
            measured = self._ladder = ladder(target, budget_s=min(left_s, enough_s))
            return replace(facts, gain=apart(lambda: gain_of(measured)))
        if phase == verdict.BATCH:
            plain = replace(target, step=None)
            with isolated(plain) as ours, started(TimedLoop.of(ours)) as batches:
                sizes = [batch_bytes(batch) for batch in islice(batches, 1)]
            return replace(facts, batch=sizes[0] if sizes else None)
        if phase == verdict.MEMORY:
            enough = Enough(WARMUP, MANY_STEPS, _MEMORY_S)
            run = record_target(target, Limits(_MOST_BATCHES, left_s, enough))
            growth = apart(lambda: memory_growth(run, self._setup.num_workers))
            return replace(facts, memory_growth=growth)
        if phase == verdict.LOOP_STACKS:
            seen = loop_flame(target, _STACKS_S)
            return replace(facts, loop_code=apart(lambda: loop_code(seen.samples)))
        waiting = phase == verdict.WAITING_STACKS
        stacks = flame(target, seconds=_STACKS_S, idle=waiting)
        # On a busy machine, py-spy may see next to nothing
        few = int(stacks.samples["hits"].sum()) < _FEWEST_STACKS
        if few and self._left_s > self.wanted_s(verdict.STACKS) + _LONGER * _STACKS_S:
            stacks = flame(target, seconds=_LONGER * _STACKS_S, idle=waiting)
        if waiting:
            self._waiting = stacks
        else:
            self._flame = stacks
        return apart(lambda: with_stacks(facts, stacks))

    def _with_one_worker(self, facts: Facts) -> Facts:
        warmup = 2  # the only worker's first batch, and one more
        enough = Enough(warmup, batches=_ALONE_BATCHES, seconds=_ALONE_S)
        plain: Any = self._target.loader
        target = replace(self._target, loader=copied(plain, num_workers=1))
        try:
            run = record_target(target, Limits(_MOST_BATCHES, self._left_s, enough), warmup)
        except Exception as error:
            if isinstance(error, StallscopeError):
                raise
            # Such a loader is ours, not the user's, whose own one has just worked
            raised = f"with one worker the loader raises {type(error).__name__}: {said_by(error)}"
            raise StallscopeError(raised) from error
        batches, (computes_s, waits_s) = apart(
            lambda: (making(run, 1), work_of_batch(run, use(run, 1)))
        )
        if batches is None:
            return facts
        return replace(
            facts, alone_s=batches.usual_s, alone_waiting_s=waits_s, alone_computed_s=computes_s
        )

    def _why_stop(self) -> str:
        if self._left_out:
            left_out = self._left_out.items()
            return "; ".join(f"{why}: no {', no '.join(phases)}" for why, phases in left_out)
        if self._findings[0].code == INCONCLUSIVE.code:
            return "no further measurement would decide more"
        return f"no question was left open (confidence {self._findings[0].confidence:.2f})"

    def _take_over(self, run: Run | None, error: BaseException) -> None:
        """Judge what was recorded before the loop ended, if anything was."""
        if run is None or not run.all_steps.height:
            return
        self._run = run
        self._know(apart(lambda: facts(run, self._setup)))
        self._hung = isinstance(error, NoBatchError)
        if isinstance(error, NoBatchError):
            self._findings = (verdict.no_batch(self._facts, error),)  # type: ignore[arg-type]  # just set

    def known(self) -> Diagnosis | None:
        """Return the diagnosis so far, for an early end; None: nothing to say yet."""
        return None if self._facts is None else self.result()

    def result(self) -> Diagnosis:
        """Return the verdict and its measurements."""
        target = self._target
        helps = self._helps or self._what_helps()
        measured = (self._run, self._ladder, self._flame, self._waiting)
        notes = [note for part in measured if part is not None for note in part.notes]
        diagnosis = Diagnosis(
            findings=self._findings,
            run=self._run,
            ladder=self._ladder,
            flame=self._flame,
            spent=pl.DataFrame(self._spent, SPENT, orient="row"),
            circumstances=DiagnosisConditions.of(
                target,
                device=device_of(target).name,
                num_workers=self._setup.num_workers,
                budget_s=self._measurement.budget_s,
                wall_s=self._measurement.used_s,
                epoch_s=self._facts.epoch_s if self._facts else None,
            ),
            notes=tuple(
                dict.fromkeys([*self._measurement.notes, *self._caveats(), *notes, *self._notes])
            ),
        )
        return diagnosis if helps is None else replace(diagnosis, fixes=helps[0], bench=helps[1])

    def _what_helps(self) -> tuple[pl.DataFrame, FixBench] | None:
        if self._facts is None or self._run is None or isinstance(self._target.loader, Iterator):
            return None
        if self._hung:  # whatever is faster would hang, too
            return None
        helps = what_helps(self._target, self._facts, self._run, self._findings)
        if helps and verdict.too_short(self._facts):  # what may be measured, but not foretold
            return helps[0].clear(), helps[1]
        return helps

    def _caveats(self) -> list[str]:
        caveats = []
        if self._target.step is None:
            caveats.append(
                "no step was given: the verdict is about the loader alone, not about a training "
                "that waits for it"
            )
        caveats += side_notes(self._facts, self._findings) if self._facts else []
        if not all(finding.tested for finding in self._findings):
            caveats.append(
                "the rule of a finding marked 'not tested' was never tried on such a loader"
            )
        return caveats
