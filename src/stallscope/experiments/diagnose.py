"""`ss.diagnose`: why a training starves for data, or that it does not; one named cause.

The budget goes to what decides most. First the loop as it is, with its samples and resources; most
causes show there. Then only what is still open: one worker alone (is something shared?), stacks of
workers that wait (a lock?), a short ladder (what would be gained?), stacks (which line?). It stops
as soon as nothing is open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.verdict.questions import LOOP
from stallscope.diagnoses import INCONCLUSIVE, SPENT, Circumstances, Diagnosis
from stallscope.experiments.examination import Examination
from stallscope.measure import target as targets
from stallscope.measure.devices import device_of
from stallscope.measure.distributed import alone
from stallscope.measure.machine import machine
from stallscope.measure.replay import check_budget
from stallscope.measure.simulated import SimulatedStep
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.analyze.verdict.questions import Question

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
    alone()
    aim = targets.target(target, step=step, device=device)
    case = _Case(aim, began_s, allowed_s)
    case.note("target", time.perf_counter() - began_s, "the loader, and what it imports")
    case.run()
    return case.result()


class _Case:
    """One diagnosis.

    Args:
        aim: what the user points at.
        began_s: when the budget began (`perf_counter`).
        budget_s: seconds.
    """

    def __init__(self, aim: targets.Target, began_s: float, budget_s: float) -> None:
        self._aim = aim
        self._began_s = began_s
        self._budget_s = budget_s
        self._spent: list[tuple[str, float, str]] = []
        self._notes: list[str] = []
        self._left_out: dict[str, list[str]] = {}
        self._examination = Examination(aim)

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
        return isinstance(self._aim.loader, Iterator)

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
        aim, step, known = self._aim, self._aim.step, self._examination
        return Diagnosis(
            findings=known.findings,
            run=known.run,
            ladder=known.ladder,
            flame=known.flame,
            spent=pl.DataFrame(self._spent, SPENT, orient="row"),
            circumstances=Circumstances(
                name=aim.name,
                device=device_of(step, aim.device).name,
                simulated_step_s=step.seconds if isinstance(step, SimulatedStep) else None,
                has_step=step is not None,
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
        if self._aim.step is None:
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
