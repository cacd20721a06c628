"""The measurements that a diagnosis can make, and what is known after each of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.analyze.verdict import questions
from stallscope.analyze.verdict.exposure import waiting_s
from stallscope.analyze.verdict.facts import Facts, facts, gain_of, with_stacks
from stallscope.analyze.verdict.judge import fewest_steps, judge
from stallscope.analyze.verdict.making import making
from stallscope.analyze.verdict.setup import Setup
from stallscope.analyze.verdict.use import use
from stallscope.errors import StallscopeError
from stallscope.experiments.flame import flame as sample_stacks
from stallscope.experiments.ladder import ladder as climb
from stallscope.experiments.record import recorded
from stallscope.measure.cgroup import cores_available
from stallscope.measure.devices import device_of
from stallscope.measure.inner import loaders_of
from stallscope.measure.replay import Enough, Limits
from stallscope.measure.simulated import SimulatedStep

if TYPE_CHECKING:
    from collections.abc import Collection

    from stallscope.diagnoses import Finding
    from stallscope.flames import Flame
    from stallscope.ladders import Ladder
    from stallscope.measure.target import Target
    from stallscope.run import Run

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
        aim: what the user points at.
    """

    def __init__(self, aim: Target) -> None:
        self._aim = aim
        self._facts: Facts | None = None
        self.setup = setup_of(aim)
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
        self.run = recorded(self._aim, limits, _WARMUP)
        self._know(facts(self.run, self.setup))

    def _know(self, known: Facts) -> None:
        self._facts = known
        self.findings = judge(known)

    def next_question(self, asked: Collection[str]) -> questions.Question | None:
        """The measurement that decides most; None where nothing is open."""
        if self._facts is None:
            return None
        found = questions.next_question(self._facts, self.findings, asked)
        if found and found.phase == questions.ONE_WORKER and not self._is_plain:
            return questions.next_question(
                self._facts, self.findings, {*asked, questions.ONE_WORKER}
            )
        return found

    @property
    def _is_plain(self) -> bool:
        return isinstance(self._aim.loader, DataLoader)

    def wanted_s(self, phase: str) -> float:
        """About how long a measurement takes, at least."""
        start_s, batch_s, period_s = self._pace()
        workers = max(self.setup.num_workers, 1)
        warm_s = start_s + (workers + 1) * period_s
        return {
            questions.ONE_WORKER: start_s + (_ALONE_BATCHES + 2) * batch_s,
            questions.LADDER: 2 + _STARTS * warm_s,
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
            questions.ONE_WORKER: self._one_worker,
            questions.LADDER: self._ladder,
            questions.WAITING_STACKS: self._waiting_stacks,
            questions.STACKS: self._stacks,
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
        aim = replace(self._aim, loader=_with_one_worker(self._aim.loader))
        try:
            run = recorded(aim, limits, 2)
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
        aim, enough_s = self._aim, max(_LADDER_S, self.wanted_s(questions.LADDER))
        self.ladder = climb(aim, aim.step, device=aim.device, budget_s=min(left_s, enough_s))
        if self._facts is not None:
            self._know(replace(self._facts, gain=gain_of(self.ladder)))

    def _waiting_stacks(self, _left_s: float) -> None:
        self._waiting = sample_stacks(self._aim, seconds=_STACKS_S, idle=True)
        if self._facts is not None:
            self._know(with_stacks(self._facts, self._waiting))

    def _stacks(self, _left_s: float) -> None:
        self.flame = sample_stacks(self._aim, seconds=_STACKS_S)
        if self._facts is not None:
            self._know(with_stacks(self._facts, self.flame))


def setup_of(aim: Target) -> Setup:
    """How the loader is set up, as far as rules ask for it."""
    inner = loaders_of(aim.loader)
    first = inner[0] if inner else None
    workers = sum(loader.num_workers for loader in inner)
    return Setup(
        num_workers=workers,
        cores=float(cores_available()),
        prefetch_factor=first.prefetch_factor if first is not None and workers else None,
        persistent=any(loader.persistent_workers for loader in inner),
        epoch_batches=_length(aim.loader),
        has_step=aim.step is not None,
        simulated=isinstance(aim.step, SimulatedStep),
        on_gpu=device_of(aim.step, aim.device).counts_kernels,
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
