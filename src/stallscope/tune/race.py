"""Settings measured in turn with the loader as it is, until it is clear which is best.

After each two sweeps, forth and back, those leave the race that are slower for sure.
"""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.timed_loop import TimedLoop
from stallscope.loops.training_loop import ProgressBar
from stallscope.orders.benchmark import Benchmark
from stallscope.orders.result import LAPS, timings_of
from stallscope.stalls.thresholds import OTHERS
from stallscope.tune.result import AS_FAST
from stallscope.tune.settings import with_setting
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stallscope.run.result import Run
    from stallscope.targets.target import Target
    from stallscope.tune.settings import Setting
    from stallscope.tune.simulator import LoaderCosts, LoopPrediction


_LAP_S: Final = 0.8
"""The steady state of a lap, where the budget allows it."""
_LAP_SHARE: Final = 0.02
"""Of the budget."""
_TOO_MANY: Final = "This DataLoader will create"
"""What torch's warning of more workers than cores begins with."""
_SWEEPS: Final = 2
_ROUNDS_AT_MOST: Final = 6
_OFTEN: Final = 4
"""Starts of each that should fit into the time."""


@dataclass
class Trial:
    """A setting that is looked at."""

    setting: Setting
    change: str
    prediction: LoopPrediction | None = None
    failed: str = ""
    make: Callable[[Any], Any] | None = None
    """Makes the loader of the one as it is, where that is more than a setting."""


@dataclass
class RecordedLoop:
    """A target, and what was recorded of it."""

    target: Target
    run: Run
    costs: LoaderCosts


def loop_of(target: Target, loader: Any) -> TimedLoop:
    """The loop over a loader, with the threads that the user's own loop has."""
    return replace(TimedLoop.of(replace(target, loader=loader)), in_one_thread=False)


class SettingRace:
    """One measurement of some trials; what is known of it stays when it is broken off.

    Args:
        recorded: the loop as it is.
        trials: all of them, that as it is first; the reason is noted at those that fail.
        budget_s: of all that is done, seconds ...
        left_s: ... and what is left of it.

    Attributes:
        laps: columns of `orders.result.LAPS`, one row a start.
        others_share: share (0 to 1) of the cores that other processes had meanwhile.
    """

    def __init__(
        self,
        recorded: RecordedLoop,
        trials: list[Trial],
        budget_s: float,
        left_s: Callable[[], float],
    ) -> None:
        self._target, self._costs, self._run = recorded.target, recorded.costs, recorded.run
        self._trials, self._budget_s, self._left_s = trials, budget_s, left_s
        self._steady_s = min(_LAP_S, max(_LAP_SHARE * budget_s, 0.1))
        self._disturbed = 0
        self.laps = pl.DataFrame(schema=LAPS)
        self.others_share = 0.0

    def run(self, finalists: list[int]) -> None:
        """Measure these trials, those that decide most first."""
        bar = ProgressBar(desc=f"tuning {self._target.name}", total=100, leave=False, delay=0.5)
        deadline_ns = time.perf_counter_ns() + int(max(self._left_s(), 0.0) * 1e9)
        with isolated(self._target) as target, closing(bar), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TOO_MANY)  # it is we who ask for them
            lap_s = self._expected_lap_s()
            benchmark = Benchmark(
                lap_s, steady_s=self._steady_s, loop_of=lambda loader: loop_of(target, loader)
            )
            # Few that are measured often say more than many that are measured once
            often = max(int(self._left_s() / (_OFTEN * lap_s)) - 1, 1)
            loaders = self._loaders([0, *finalists[:often]], target.loader)
            try:
                for _ in range(_ROUNDS_AT_MOST):
                    before = len(benchmark.starts_s)
                    benchmark.run(loaders, deadline_ns, sweeps=_SWEEPS)
                    self._take(benchmark)
                    used = 1 - max(self._left_s(), 0.0) / self._budget_s
                    bar.update(int(100 * used) - bar.n)
                    loaders = self._still_open(loaders)
                    if len(loaders) < 2 or len(benchmark.starts_s) == before:  # noqa: PLR2004 - a pair
                        break
            finally:
                self._take(benchmark)

    def notes(self, cores: float) -> list[str]:
        """What other processes had of the cores, of which there are so many."""
        said, had = [], self._costs.others_cores
        if had > OTHERS * cores:
            said.append(
                f"other processes had {had:.1f} of {cores:g} cores while the loop was recorded: "
                "predictions leave them their share"
            )
        if self._disturbed:
            said.append(
                f"beside {count(self._disturbed, 'start')} of loaders other processes had a fifth "
                "of the cores or more: they count only where there are no others"
            )
        return said

    def _loaders(self, places: Iterable[int], loader: Any) -> dict[int, Any]:
        """The loaders of trials, each without an end."""
        found: dict[int, Any] = {}
        for place in places:
            trial = self._trials[place]
            try:
                made = with_setting(loader, trial.setting) if place else loader
                made = made if trial.make is None else trial.make(made)
            except Exception as error:  # noqa: BLE001 - only of a change of ours
                trial.failed = f"in its loader: {type(error).__name__}: {error!s:.160}"
                continue
            found[place] = going_on(made) if trial.make is None else made
        return found

    def _expected_lap_s(self) -> float:
        now, known = self._trials[0].setting, self._trials[0].prediction
        samples = float(self._costs.samples.mean())
        period_s = samples / known.samples_per_s.value if known else 0.0
        first_s = self._run.first_batch_s or 0.0
        return first_s + self._steady_s + (now.num_workers + 2) * period_s

    def _take(self, benchmark: Benchmark) -> None:
        """Take over what was measured: one row a start, its begin counted as epochs count it."""
        samples: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for trial, block, each_s, many, _ in benchmark.laps().rows():
            samples.setdefault((trial, block), []).append((each_s, many))
        rows = []
        for (trial, block), blocks in samples.items():
            setting = self._trials[trial].setting
            number = sum(many for _, many in blocks)
            each_s = sum(each_s * many for each_s, many in blocks) / number
            each_s /= max(setting.num_workers, 1)
            each_s += self._restart_s(setting, benchmark.starts_s[block - 1], each_s)
            place = "workers" if setting.num_workers else "process"
            rows.append((trial, block, each_s, number, place))
        for trial, why in benchmark.failed.items():
            self._trials[trial].failed = why
        self.laps = pl.DataFrame(rows, LAPS, orient="row")
        self.others_share, self._disturbed = benchmark.others_share(), benchmark.disturbed

    def _restart_s(self, setting: Setting, start_s: float, each_s: float) -> float:
        """What the begin of an epoch adds to each of its samples, seconds."""
        costs = self._costs
        if not costs.epoch_batches or not setting.num_workers:
            return 0.0
        samples = float(costs.samples.mean())
        if setting.persistent_workers:  # they would be there: their first batches are all there is
            start_s = min(start_s, float(costs.batch_s.mean()) + costs.send_s)
        return max(start_s - samples * each_s, 0.0) / costs.epoch_batches / samples

    def _still_open(self, loaders: dict[int, Any]) -> dict[int, Any]:
        """The loaders that may still be the answer: none that is slower for sure."""
        timings = apart(lambda: timings_of(self.laps))
        factors = {place: one for place, one in timings.items() if place}
        best = max([1.0, *(one.speedup_low or 0.0 for one in factors.values())])

        def is_open(place: int) -> bool:
            if self._trials[place].failed:
                return False
            if not place or place not in factors:
                return True
            high = factors[place].speedup_high
            if high is None:
                return True
            # Slower than the loader as it is, and no smaller: that cannot be the answer
            many, now = (self._trials[one].setting.num_workers for one in (place, 0))
            return high >= AS_FAST * best and (high >= AS_FAST or many < now)

        return {place: loader for place, loader in loaders.items() if is_open(place)}
