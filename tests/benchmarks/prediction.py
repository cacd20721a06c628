"""Compare the predictions of `ss.tune` with measurements, and check its choices.

Each loader is recorded as it is, without workers, and with eight; from each of the recordings every
setting is predicted. Then all settings are measured by a plain loop of this file, which knows
nothing of the kit: in every block each setting once, in a new random order. Run it on a machine
that does nothing else.

    python tests/benchmarks/prediction.py
    python tests/benchmarks/prediction.py --only "slow-worker" "sample data"
"""

import os
import random
import statistics
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ |= {"SLOW_OP_S": "0.002", "LONGER": "40"}  # of the support table's loaders, as imported

from argparse import Namespace
from collections.abc import Callable, Iterator

import numpy as np
from benchkit.command import Option, arguments, met, table
from planted import HEALTHY_CODE, PLANTED, plant
from tqdm import tqdm

import stallscope as ss
from stallscope.demo import case_b_loader
from stallscope.errors import UnsupportedError
from stallscope.model.batch_times import LoaderCosts
from stallscope.model.settings import Setting, grid, setting_of, with_setting
from stallscope.model.simulator import ERRORS, MOST_ERROR, error_kind, predict
from stallscope.stats import Estimate
from stallscope.verbs.tune.result import smallest

Make = Callable[[], tuple[Any, Callable[[Any], object]]]

STEP_S = 0.005
"""Step seconds of the loaders without a step of their own."""
SHORT = 60
"""Batches of an epoch below which whole epochs are timed, with the starts of their workers."""
MOST_WARMUP_S = 1.5
GOOD = 0.95
"""Share of the best measured rate from which on a choice is good."""
COVERED = 0.93
"""Share of the measurements that the intervals must cover."""
MEDIAN, NINETIETH = 0.04, 0.12
"""Errors to stay below."""
SLOW_START = ("spawn", "forkserver")
"""Eight workers that import torch anew take longer to start than all the rest."""


class Pair(NamedTuple):
    """A setting that was predicted from a recording, and measured."""

    loader: str
    costs: LoaderCosts
    """Costs of the recorded loader."""
    recorded: Setting
    setting: Setting
    rate: float
    """Measured batches a second."""
    gain: float
    """Measured rate over that of the recorded setting."""

    def predicted(self, error: float | None = None) -> Estimate:
        """Return the predicted rate of the recorded setting itself, of another one the gain."""
        predicted = predict(self.costs, self.setting, error).samples_per_s
        if self.setting != self.recorded:
            return predicted.over(predict(self.costs, self.recorded).samples_per_s)
        samples = float(self.costs.samples.mean())
        return type(predicted)(*(end / samples for end in predicted))

    def is_covered(self, error: float | None = None) -> bool:
        low, high = self.predicted(error)[1:]
        return low <= (self.rate if self.setting == self.recorded else self.gain) <= high

    def rate_error(self) -> float:
        predicted = predict(self.costs, self.setting).samples_per_s.value
        return abs(predicted / float(self.costs.samples.mean()) / self.rate - 1)

    def needed_error(self) -> float:
        """Return the least error of the simulator whose interval covers the measurement."""
        steps = np.arange(0.01, MOST_ERROR, 0.01)
        return next((float(error) for error in steps if self.is_covered(error)), MOST_ERROR)


class Choice(NamedTuple):
    """A setting that was chosen."""

    by: str
    rate_share: float
    """Its measured rate, of the best measured."""
    workers: int


def main() -> None:
    """Measure all loaders, and print the tables."""
    options = arguments(
        __doc__,
        only=Option([""], ["healthy 4"], "loaders with one of these in their name"),
        every=Option(1, 1, "measure every k-th loader"),
        budget=Option(15.0, 1.5, "of ss.tune, seconds"),
        workers=Option([0, 1, 2, 3, 4, 8], [0, 2], "numbers measured beside what is chosen"),
        recorded=Option([0, 8], [0], "and those with which it is recorded beside its own"),
        blocks=Option(3, 1, "each with every setting once"),
        lap=Option(0.8, 0.02, "the steady state of a lap, seconds"),
        seed=Option(1, 1, "of the planted loops"),
    )
    warnings.filterwarnings("ignore")
    pairs: list[Pair] = []
    choices: list[Choice] = []
    wanted = {
        name: make
        for name, make in loaders(options.seed).items()
        if any(part in name for part in options.only)
    }
    for name, make in tqdm([*wanted.items()][:: options.every], disable=False, unit="loader"):
        more_pairs, more_choices = _measured(name, make, options)
        pairs += more_pairs
        choices += more_choices
    print("\n\n".join([_errors(pairs), _intervals(pairs), _choices(choices)]))


def loaders(seed: int) -> dict[str, Make]:
    """Return each loader's name, and what makes it and its step."""
    from support_table import LOADERS

    planted = [(code, seed) for code in PLANTED] + [(HEALTHY_CODE, kind) for kind in range(8)]
    table_rows = {f"table {name}": partial(_with_a_step, make) for name, make in LOADERS.items()}
    return {
        **{f"{code} {number}": partial(_planted, code, number) for code, number in planted},
        **table_rows,
        "sample data": lambda: _with_a_step(lambda: ss.target("sample").loader),
        "case B": lambda: _with_a_step(lambda: case_b_loader(num_workers=2, batch_size=2)),
    }


def _planted(code: str, seed: int) -> tuple[Any, Any]:
    planted = plant(code, seed)
    return planted.loader, planted.step


def _with_a_step(make: Callable[[], Any]) -> tuple[Any, Any]:
    return make(), ss.simulated_step(STEP_S)


# --- measuring ------------------------------------------------------------------------------------


def _measured(name: str, make: Make, options: Namespace) -> tuple[list[Pair], list[Choice]]:
    """Return the pairs and choices of a loader; none where it cannot be measured."""
    try:
        return _measure(name, *make(), options)
    except Exception as error:  # noqa: BLE001 - some cannot be started with other workers
        print(f"{name} is left out: {type(error).__name__}: {error}"[:160])
        return [], []


def _measure(
    name: str, loader: Any, step: Any, options: Namespace
) -> tuple[list[Pair], list[Choice]]:
    """Tune, record and measure one loader."""
    if (context := setting_of(loader).multiprocessing_context) in SLOW_START:
        raise UnsupportedError(f"its workers are started by {context}")
    tuning = ss.tune(loader, step, budget_s=options.budget)
    now, chosen = (_as_forked(tuning.setting(trial)) for trial in (0, tuning.best["trial"]))
    able = {tuning.setting(trial).num_workers for trial in tuning.trials["trial"]}
    others = {
        workers: replace(now, num_workers=workers).normal()
        for workers in {*options.workers, *options.recorded} & able
    }
    costs = {now: _steady(tuning.bench.costs, loader)}
    for workers in {*options.recorded} & able - {now.num_workers}:
        as_if = with_setting(loader, others[workers])
        recorded = ss.tune(as_if, step, budget_s=options.budget, settings=[])
        costs[others[workers]] = _steady(recorded.bench.costs, loader)
    predicted = [_predicted_best(*recording) for recording in costs.items()]
    wanted = list(dict.fromkeys([now, *others.values(), chosen, *predicted]))
    laps: dict[Setting, list[float]] = {setting: [] for setting in wanted}
    for _ in range(options.blocks):
        for setting in random.sample(wanted, len(wanted)):
            laps[setting].append(_lap_s(with_setting(loader, setting), step, options.lap))
    rates = {setting: 1 / statistics.median(took_s) for setting, took_s in laps.items()}
    best = max(rates.values())
    named = [("ss.tune", chosen), ("as it is", now)]
    named += [("predicted, not measured", setting) for setting in predicted]
    choices = [Choice(by, rates[setting] / best, setting.num_workers) for by, setting in named]
    pairs = [
        Pair(name, recording, base, setting, rate, rate / rates[base])
        for base, recording in costs.items()
        for setting, rate in rates.items()
    ]
    return pairs, choices


def _as_forked(setting: Setting) -> Setting:
    """Return the setting with the default start method; without workers, there is none."""
    return replace(setting, multiprocessing_context=None)


def _steady(costs: LoaderCosts, loader: Any) -> LoaderCosts:
    """Leave out the starts of epochs that a lap does not see."""
    return costs if _length(loader) <= SHORT else replace(costs, epoch_batches=None)


def _predicted_best(now: Setting, costs: LoaderCosts) -> Setting:
    """Return the choice of the prediction alone."""
    whole = grid(now, costs.cores, pins=False, is_stream=False)
    same = [setting for setting in whole if setting.in_order == now.in_order]
    return smallest((predict(costs, setting).samples_per_s.value, setting) for setting in same)


def _lap_s(loader: Any, step: Any, lap_s: float) -> float:
    """Seconds of a batch in the steady state; with short epochs, over whole ones."""
    setting, epoch = setting_of(loader), _length(loader)
    group = epoch if epoch <= SHORT else max(setting.num_workers, 1)
    warmup = epoch if epoch <= SHORT else group * (1 + (setting.prefetch_factor or 0))
    batches, ends = _endless(loader), []
    until = time.perf_counter() + MOST_WARMUP_S
    for number, batch in enumerate(batches):
        step(batch)
        now = time.perf_counter()
        is_warm = number + 1 >= warmup or (number + 1 >= group and now > until)
        if (ends or is_warm) and (number + 1) % group == 0:
            ends.append(now)
            if len(ends) > 1 and now - ends[0] >= lap_s:
                break
    batches.close()
    return (ends[-1] - ends[0]) / group / (len(ends) - 1)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


# --- tables ---------------------------------------------------------------------------------------


def _errors(pairs: list[Pair]) -> str:
    """Return the table of the errors, by the kind of prediction."""
    others = [pair for pair in pairs if pair.setting != pair.recorded]
    groups = {
        kind: [pair for pair in others if error_kind(pair.costs, pair.setting) == kind]
        for kind in ERRORS
    }
    groups |= {"all": others, "(the recorded setting)": [p for p in pairs if p not in others]}
    rows = []
    for name, group in groups.items():
        if group:
            rates = [pair.rate_error() for pair in group]
            covered = f"{np.mean([pair.is_covered() for pair in group]):.0%}"
            off = f"{statistics.median(rates):.1%}", f"{np.quantile(rates, 0.9):.1%}"
            rows.append((name, str(len(group)), *off, covered))
    rates = [pair.rate_error() for pair in others] or [float("nan")]
    is_met = statistics.median(rates) <= MEDIAN and np.quantile(rates, 0.9) <= NINETIETH
    head = ("predicted", "pairs", "rate off: median", "90%", "in its interval")
    return (
        f"{table(head, rows)}\ntarget: rates {MEDIAN:.0%} off in the median, {NINETIETH:.0%} at "
        f"the 90th percentile: {met(is_met)}"
    )


def _intervals(pairs: list[Pair]) -> str:
    """Return the errors that the simulator would need, and their coverage for loaders left out.

    Of each kind of prediction: the error with which so many of the pairs are in their interval. Of
    each loader, it is taken from all the others, and its own pairs counted.
    """
    rows = []
    for kind, now in ERRORS.items():
        needs: dict[str, list[float]] = {}
        for pair in pairs:
            is_same = pair.setting == pair.recorded
            if error_kind(pair.costs, pair.setting) == kind and is_same == (kind == "same"):
                needs.setdefault(pair.loader, []).append(pair.needed_error())
        if len(needs) > 1:
            every = [need for own in needs.values() for need in own]
            held = [
                need
                <= _enough([each for loader in needs if loader != name for each in needs[loader]])
                for name, own in needs.items()
                for need in own
            ]
            figures = f"{now:.2f}", f"{_enough(every):.2f}", f"{statistics.fmean(held):.0%}"
            rows.append((kind, str(len(needs)), str(len(every)), *figures))
    head = ("predicted", "loaders", "pairs", "error: now", "needed", "held out: in their interval")
    return table(head, rows) if rows else "too few loaders to leave one out"


def _enough(needs: list[float]) -> float:
    return float(np.quantile(needs, COVERED, method="higher"))


def _choices(choices: list[Choice]) -> str:
    rows = []
    for by in dict.fromkeys(choice.by for choice in choices):
        shares = [choice.rate_share for choice in choices if choice.by == by]
        workers = [choice.workers for choice in choices if choice.by == by]
        good = sum(share >= GOOD for share in shares) / len(shares)
        figures = f"{good:.0%}", f"{statistics.median(shares):.0%}", f"{min(shares):.0%}"
        rows.append((by, str(len(shares)), *figures, f"{statistics.fmean(workers):.1f}"))
    head = ("choice", "of", f"within {1 - GOOD:.0%} of the best", "median", "least", "workers")
    return table(head, rows)


if __name__ == "__main__":
    main()
