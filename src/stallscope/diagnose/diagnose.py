"""`ss.diagnose`: why a training starves for data, or that it does not; one named cause.

The budget goes to what decides most. First the loop as it is, with its samples and resources; most
causes show there. Then only what is still open: one worker alone (is something shared?), stacks of
workers that wait (a lock?), a short ladder (what would be gained?), stacks (which line?). It stops
as soon as nothing is open.

The measurements that a diagnosis can make, and what is known after each of them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from torch.utils.data import DataLoader

from stallscope.diagnose import next_measurement
from stallscope.diagnose.batch_times import Setup, making
from stallscope.diagnose.exposure import use, waiting_s
from stallscope.diagnose.facts import Facts, facts, gain_of, with_stacks
from stallscope.diagnose.next_measurement import LOOP
from stallscope.diagnose.ranking import fewest_steps, judge
from stallscope.diagnose.result import INCONCLUSIVE, SPENT, Diagnosis, DiagnosisConditions
from stallscope.errors import StallscopeError
from stallscope.flame.flame import flame
from stallscope.ladder.ladder import ladder
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import Enough, Limits, check_budget
from stallscope.machine import cores_available, machine, require_single_rank
from stallscope.run.record import record_target
from stallscope.targets import target as targets
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stallscope.diagnose.next_measurement import Question
    from stallscope.diagnose.result import Finding
    from stallscope.flame.result import Flame
    from stallscope.ladder.result import Ladder
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_WARMUP: Final = 4
_STEADY_S: Final = 4.0
"""Of the loop: eight of the half seconds in which resources are judged."""
_BATCHES: Final = 30
"""Of the loop, at least; and so many rounds of the workers:"""
_ROUNDS: Final = 4
_LOOP_SHARE: Final = 0.6
"""Of the time that is left: a loop that is slow takes so long to have more than the fewest ..."""
_MOST_SHARE: Final = 0.9
"""... and so long to have those."""
_MOST_BATCHES: Final = 1_000_000
_ALONE_S: Final = 1.0
_ALONE_BATCHES: Final = 6
_LADDER_S: Final = 14.0
_STACKS_S: Final = 2.0
_STARTS: Final = 8
"""A short ladder starts its loops about so many times."""
_ATTACHING_S: Final = 1.5
"""What it takes to attach to the workers and to read what was seen."""


class Examination:
    """What is known about one target, measurement by measurement.

    Args:
        target: what the user points at.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._facts: Facts | None = None
        self.setup = setup_of(target)
        self.findings: tuple[Finding, ...] = ()
        """The verdict first; empty before the loop was measured."""
        self.run: Run | None = None
        self.ladder: Ladder | None = None
        self.flame: Flame | None = None
        self._waiting: Flame | None = None

    @property
    def notes(self) -> list[str]:
        """What the measurements had to say."""
        parts = (self.run, self.ladder, self.flame, self._waiting)
        return [note for part in parts if part is not None for note in part.notes]

    def loop(self, left_s: float) -> None:
        """The loop as it is, for so long that it can be judged."""
        workers = max(self.setup.num_workers, 1)
        after = max(_WARMUP, workers)
        batches = max(_BATCHES, _ROUNDS * workers)
        enough = Enough(
            after,
            batches,
            min(_STEADY_S, left_s / 8),
            few=fewest_steps(self.setup) + 1,  # one may lack its record
            late_s=left_s * _LOOP_SHARE,
        )
        limits = Limits(_MOST_BATCHES, max(left_s * _MOST_SHARE, 0.1), enough)
        self.run = record_target(self._target, limits, _WARMUP)
        self._know(facts(self.run, self.setup))

    def _know(self, known: Facts) -> None:
        self._facts = known
        self.findings = judge(known)

    def next_question(self, asked: Collection[str]) -> next_measurement.Question | None:
        """The measurement that decides most; None where nothing is open."""
        if self._facts is None:
            return None
        found = next_measurement.next_question(self._facts, self.findings, asked)
        if found and found.phase == next_measurement.ONE_WORKER and not self._is_plain:
            return next_measurement.next_question(
                self._facts, self.findings, {*asked, next_measurement.ONE_WORKER}
            )
        return found

    @property
    def _is_plain(self) -> bool:
        return isinstance(self._target.loader, DataLoader)

    def wanted_s(self, phase: str) -> float:
        """About how long a measurement takes, at least."""
        start_s, batch_s, period_s = self._pace()
        workers = max(self.setup.num_workers, 1)
        warm_s = start_s + (workers + 1) * period_s
        return {
            next_measurement.ONE_WORKER: start_s + (_ALONE_BATCHES + 2) * batch_s,
            next_measurement.LADDER: 2 + _STARTS * warm_s,
        }.get(phase, warm_s + _STACKS_S + _ATTACHING_S + 2 * batch_s)

    def _pace(self) -> tuple[float, float, float]:
        """Seconds until the first batch, for a batch of a worker, and from step to step."""
        made = self._facts.making if self._facts else None
        start_s = (self.run.first_batch_s if self.run else None) or 0.0
        return (start_s, made.batch_s, made.period_s) if made else (start_s, 0.0, 0.0)

    def ask(self, phase: str, left_s: float) -> list[str]:
        """Make a measurement; sentences on what could not be done.

        Args:
            phase: which one, one of `analyze.verdict.questions`.
            left_s: of the budget.
        """
        how = {
            next_measurement.ONE_WORKER: self._one_worker,
            next_measurement.LADDER: self._ladder,
            next_measurement.WAITING_STACKS: self._waiting_stacks,
            next_measurement.STACKS: self._stacks,
        }[phase]
        try:
            how(left_s)
        except StallscopeError as error:  # the verdict stands without it
            return [f"no {phase}: {error}"]
        return []

    def _one_worker(self, left_s: float) -> None:
        known = self._facts
        if known is None:
            return
        limits = Limits(
            _MOST_BATCHES, left_s, Enough(after=2, batches=_ALONE_BATCHES, seconds=_ALONE_S)
        )
        target = replace(self._target, loader=_with_one_worker(self._target.loader))
        try:
            run = record_target(target, limits, 2)
        except Exception as error:
            if isinstance(error, StallscopeError):
                raise
            # Such a loader is ours, not the user's, whose own one has just worked
            told = str(error).partition("\n")[0]
            raised = f"with one worker the loader raises {type(error).__name__}: {told}"
            raise StallscopeError(raised) from error
        made, used = making(run, 1), use(run, 1)
        if made is not None:
            alone = {"alone_s": made.usual_s, "alone_waiting_s": waiting_s(run, used)}
            self._know(replace(known, **alone))  # type: ignore[arg-type]  # both are numbers

    def _ladder(self, left_s: float) -> None:
        enough_s = max(_LADDER_S, self.wanted_s(next_measurement.LADDER))
        self.ladder = ladder(self._target, budget_s=min(left_s, enough_s))
        if self._facts is not None:
            self._know(replace(self._facts, gain=gain_of(self.ladder)))

    def _waiting_stacks(self, _left_s: float) -> None:
        self._waiting = flame(self._target, seconds=_STACKS_S, idle=True)
        if self._facts is not None:
            self._know(with_stacks(self._facts, self._waiting))

    def _stacks(self, _left_s: float) -> None:
        self.flame = flame(self._target, seconds=_STACKS_S)
        if self._facts is not None:
            self._know(with_stacks(self._facts, self.flame))


def setup_of(target: Target) -> Setup:
    """How the loader is set up, as far as rules ask for it."""
    return Setup(
        num_workers=target.num_workers,
        cores=float(cores_available()),
        prefetch_factor=target.loaders[0].prefetch_factor if target.num_workers else None,
        persistent=any(loader.persistent_workers for loader in target.loaders),
        epoch_batches=_length(target.loader),
        has_step=target.step is not None,
        simulated=target.simulated_step_s is not None,
        on_gpu=device_of(target).counts_kernels,
    )


def _length(loader: Any) -> int | None:
    # A torch loader over a stream remembers that it was asked, and warns later: ask a copy
    asked = copy.copy(loader) if isinstance(loader, DataLoader) else loader
    try:
        return len(asked)
    except Exception:  # noqa: BLE001 - a stream has none, and says so in many ways
        return None


def _with_one_worker(loader: Any) -> Any:
    """A shallow copy of the loader that starts one worker."""
    clone = copy.copy(loader)
    vars(clone).update(num_workers=1, _iterator=None)
    return clone


_RESERVE: Final = 0.05
"""Share of the budget that is kept for putting things back and for judging."""


def diagnose(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = 60.0,
) -> Diagnosis:
    """Say why a training loop waits for data, or that it does not, with the numbers behind it.

    Iterates shallow copies of the loader. Afterwards all random generators, the samplers and what
    `step` trains are as they were, and the workers are gone. An exception of the dataset's or of
    the step's passes unchanged, as from `ss.record`. Where the data does not carry a judgement, the
    verdict is `inconclusive` and says what is missing.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one it can only be said what bounds
            the loader's own throughput, not whether a training would wait for it.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the batch that is under way then. It
            stops earlier where the answer is clear.

    Raises:
        ArgumentError: `budget_s` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: a loader that keeps an iterator of its own, or more than one rank.
        WorkspaceError: no room for the logs.
    """
    began_s = time.perf_counter()
    allowed_s = check_budget(budget_s)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    case = _Case(target, began_s, allowed_s)
    case.note("target", time.perf_counter() - began_s, "the loader, and what it imports")
    case.run()
    return case.result()


class _Case:
    """One diagnosis.

    Args:
        target: what the user points at.
        began_s: when the budget began (`perf_counter`).
        budget_s: seconds.
    """

    def __init__(self, target: targets.Target, began_s: float, budget_s: float) -> None:
        self._target = target
        self._began_s = began_s
        self._budget_s = budget_s
        self._spent: list[tuple[str, float, str]] = []
        self._notes: list[str] = []
        self._left_out: dict[str, list[str]] = {}
        self._examination = Examination(target)

    def note(self, phase: str, took_s: float, why: str) -> None:
        """What a part of the budget went to."""
        self._spent.append((phase, took_s, why))

    @property
    def _left_s(self) -> float:
        whole_s = self._budget_s * (1 - _RESERVE)
        return whole_s - (time.perf_counter() - self._began_s)

    def run(self) -> None:
        """Measure until nothing is open, or the budget is over."""
        examination = self._examination
        self._timed(LOOP, "the loop as it is: its waits, samples and resources", self._loop)
        asked: set[str] = set()
        while (question := examination.next_question(asked)) is not None:
            asked.add(question.phase)
            if self._once:
                self._leave_out(question, "the batches can be measured only once")
            elif (wanted_s := examination.wanted_s(question.phase)) > self._left_s:
                self._notes.append(_no_time(question, wanted_s, self._left_s))
                self._leave_out(question, "too little of the budget was left")
            else:
                self._timed(question.phase, question.why, lambda: self._ask(question))
        self.note("stop", 0.0, self._why_stop())

    def _leave_out(self, question: Question, why: str) -> None:
        self._left_out.setdefault(why, []).append(question.phase)

    def _loop(self) -> None:
        self._examination.loop(self._left_s)

    def _ask(self, question: Question) -> None:
        self._notes += self._examination.ask(question.phase, self._left_s)

    def _timed(self, phase: str, why: str, measure: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        try:
            measure()
        finally:
            self.note(phase, time.perf_counter() - began_s, why)

    @property
    def _once(self) -> bool:
        return isinstance(self._target.loader, Iterator)

    def _why_stop(self) -> str:
        if self._left_out:
            told = (f"{why}: no {', no '.join(phases)}" for why, phases in self._left_out.items())
            return "; ".join(told)
        verdict = self._examination.findings[0]
        if verdict.code == INCONCLUSIVE.code:
            return "there was nothing left to measure that could tell more"
        return f"nothing was open any more (confidence {verdict.confidence:.2f})"

    def result(self) -> Diagnosis:
        """The verdict, and what it is made of."""
        target, known = self._target, self._examination
        return Diagnosis(
            findings=known.findings,
            run=known.run,
            ladder=known.ladder,
            flame=known.flame,
            spent=pl.DataFrame(self._spent, SPENT, orient="row"),
            circumstances=DiagnosisConditions(
                name=target.name,
                device=device_of(target).name,
                simulated_step_s=target.simulated_step_s,
                has_step=target.step is not None,
                num_workers=known.setup.num_workers,
                machine=machine(),
                budget_s=self._budget_s,
                wall_s=time.perf_counter() - self._began_s,
            ),
            notes=tuple(dict.fromkeys([*self._said(), *known.notes, *self._notes])),
        )

    def _said(self) -> list[str]:
        """What a reader of the verdict has to know."""
        said = []
        if self._target.step is None:
            said.append(
                "no step was given: it can be said what bounds the loader, and not whether a "
                "training would wait for it, nor how much it would gain"
            )
        if not all(one.tested for one in self._examination.findings):
            said.append("a finding marked 'not tested' was never tried against a planted cause")
        return said


def _no_time(question: Question, wanted_s: float, left_s: float) -> str:
    left = f"{seconds(max(left_s, 0.0))} were left of the budget"
    return f"no {question.phase}: it takes about {seconds(wanted_s)}, and {left}"
