"""Compare the predictions of `ss.tune` with measurements, and check its choices.

Each loader is recorded as it is, without workers, and with eight; from each of the recordings every
setting is predicted. Then all settings are measured by a plain loop of this file, which knows
nothing of the kit: in every block each setting once, in a new random order. Beside it stands what a
user does by hand: 0, 1, 2, 4 and 8 workers for 100 batches each, and the fastest is taken.

What was recorded and measured is kept in a folder, so the tables can be printed again with another
simulator; started again, the benchmark goes on where it was.

    python tests/benchmarks/prediction.py --folder prediction --until 480
    python tests/benchmarks/prediction.py --folder prediction --report
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ |= {"SLOW_OP_S": "0.002", "LONGER": "40"}  # of the support table's loaders, as imported

import numpy as np
from benchkit.command import Option, arguments, met, table
from planted import HEALTHY_CODE, PLANTED, plant
from tqdm import tqdm

import stallscope as ss
from stallscope.demo import case_b_loader
from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.loops.training_loop import Handover
from stallscope.machine import CpuUse
from stallscope.model.costs import costs_of
from stallscope.model.settings import Setting, grid, setting_of, with_setting
from stallscope.model.simulator import ERRORS, MOST_ERROR, error_kind, predict
from stallscope.model.thresholds import OTHERS
from stallscope.verbs.tune.result import smallest

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from stallscope.model.batch_times import LoaderCosts
    from stallscope.stats import Estimate

    Make = Callable[[], tuple[Any, Callable[[Any], object]]]

BY_HAND = (0, 1, 2, 4, 8)
"""Workers that a user tries."""
CROWDED = 8
STEP_S = 0.005
"""Step seconds of the loaders without a step of their own."""
SHORT = 60
"""Batches of an epoch below which whole epochs are timed, with the starts of their workers."""
MOST_WARMUP_S = 1.5
GOOD = 0.95
"""Share of the best measured rate from which on a choice is good."""
COVERED = 0.93
"""Share of the measurements that the intervals must cover."""
_HALVINGS = 7
MEDIAN, NINETIETH = 0.04, 0.12
"""Errors to stay below."""
SLOW_START = ("spawn", "forkserver")
"""Eight workers that import torch anew take longer to start than all the rest."""


def main() -> None:
    """Measure what the folder does not have yet, and print the tables."""
    options = arguments(
        __doc__,
        folder=Option("prediction", "", "for what is recorded and measured"),
        only=Option("", "healthy 4", "loaders with this in their name"),
        until=Option(1e9, 1e9, "no loader is begun after so many seconds"),
        budget=Option(15.0, 1.5, "of ss.tune, seconds"),
        workers=Option([*BY_HAND, 3], [0, 2], "numbers that are measured beside what is chosen"),
        recorded=Option([0, CROWDED], [0], "and those with which it is recorded beside its own"),
        blocks=Option(3, 1, "each with every setting once"),
        lap=Option(0.8, 0.02, "the steady state of a lap, seconds"),
        hand=Option(100, 2, "batches for each setting that is tried by hand"),
        seed=Option(1, 1, "of the planted loops"),
        report=Option(False, False, "measure nothing"),
    )
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory(prefix="benchmark-prediction-") as temporary:
        folder = Path(options.folder or temporary)
        if not options.report:
            _measure_all(folder, options)
        measured = [
            loader
            for loader in map(Measured, sorted(folder.glob("*/")))
            if options.only in loader.name
        ]
        print(_report([loader for loader in measured if loader.is_whole]))


# --- loaders --------------------------------------------------------------------------------------


def loaders(seed: int) -> dict[str, Make]:
    """Each loader's name, and what makes it and its step; any beginning of them is fair."""
    from support_table import LOADERS

    planted = [(code, seed) for code in PLANTED] + [(HEALTHY_CODE, kind) for kind in range(8)]
    drawn: list[tuple[str, Make]] = [
        (f"{code} {seed}", partial(_planted, code, seed)) for code, seed in planted
    ]
    for name, make in LOADERS.items():
        plain = name.replace("`", "").replace("/", " ")
        drawn.append((f"table {plain}", partial(_with_a_step, make)))
    random.Random(seed).shuffle(drawn)
    return {**dict(drawn), "sample data": _sample, "case B": _case_b}  # those two take minutes


def _planted(code: str, seed: int) -> tuple[Any, Any]:
    planted = plant(code, seed)
    return planted.loader, planted.step


def _with_a_step(make: Callable[[], Any]) -> tuple[Any, Any]:
    return make(), ss.simulated_step(STEP_S)


def _sample() -> tuple[Any, Any]:
    target = ss.target("sample")
    return target.loader, target.step or ss.simulated_step(STEP_S)


def _case_b() -> tuple[Any, Any]:
    return case_b_loader(num_workers=2, batch_size=2), ss.simulated_step(STEP_S)


# --- measuring ------------------------------------------------------------------------------------


def _measure_all(folder: Path, options: Namespace) -> None:
    began, kinds = time.monotonic(), loaders(options.seed)
    wanted = [name for name in kinds if options.only in name and not (folder / name).exists()]
    for name in tqdm(wanted, disable=False, unit="loader"):
        if time.monotonic() - began > options.until:
            break
        part = folder / f".{name}"  # its name is whole when it is
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            about = _measure(*kinds[name](), part, options)
        except Exception as error:  # noqa: BLE001 - some cannot be started with other workers
            about = {"left_out": f"{type(error).__name__}: {error}"[:160]}
        (part / "measured.json").write_text(json.dumps(about))
        part.rename(folder / name)


def _measure(loader: Any, step: Any, folder: Path, options: Namespace) -> dict[str, Any]:
    """Tune, record, try by hand and measure one loader."""
    context = setting_of(loader).multiprocessing_context
    if context in SLOW_START:
        raise UnsupportedError(f"its workers are started by {context}")
    load = os.getloadavg()[0]
    began = time.perf_counter()
    tuning = ss.tune(loader, step, budget_s=options.budget)
    tune_s = time.perf_counter() - began
    tuning.save(folder / "as it is")
    now = tuning.setting(0)
    for workers in {*options.recorded} - {now.num_workers}:
        as_if = with_setting(loader, replace(now, num_workers=workers).normal())
        other_tuning = ss.tune(as_if, step, budget_s=options.budget, settings=[])
        other_tuning.save(folder / f"{workers} workers")
    able = {tuning.setting(trial).num_workers for trial in tuning.trials["trial"]}
    counts = [workers for workers in options.workers if workers in able]
    others = {workers: replace(now, num_workers=workers).normal() for workers in counts}
    began = time.perf_counter()
    tried = [others[workers] for workers in BY_HAND if workers in others]
    hand = {
        setting: _by_hand(with_setting(loader, setting), step, options.hand) for setting in tried
    }
    hand_s = time.perf_counter() - began
    measured = Measured(folder)
    chosen = _as_forked(tuning.setting(tuning.best["trial"]))
    by_count = [*map(_as_forked, [now, *others.values()]), chosen]
    wanted = list(dict.fromkeys([*by_count, *measured.choices().values()]))
    laps: list[list[tuple[float, float]]] = [[] for _ in wanted]
    for _ in range(options.blocks):
        for place in random.sample(range(len(wanted)), len(wanted)):
            before = CpuUse.now()
            took_s = _lap_s(with_setting(loader, wanted[place]), step, options.lap)
            laps[place].append((took_s, CpuUse.now().others_share(before)))
    return {
        "settings": [asdict(setting) for setting in wanted],
        "laps": laps,
        "tuned": wanted.index(chosen),
        "by_hand": wanted.index(_as_forked(min(hand, key=lambda setting: hand[setting]))),
        "tune_s": tune_s,
        "hand_s": hand_s,
        "load": load,
    }


def _as_forked(setting: Setting) -> Setting:
    """Return the setting with the default start method; without workers, there is none."""
    return replace(setting, multiprocessing_context=None)


def _by_hand(loader: Any, step: Any, batches: int) -> float:
    """Seconds for so many batches, the start of the workers among them."""
    began = time.perf_counter()
    for _, batch in zip(range(batches), _endless(loader), strict=False):
        step(batch)
    return time.perf_counter() - began


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


# --- what was predicted ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A setting that was predicted from a recording, and measured."""

    loader: str
    recorded: Setting
    setting: Setting
    predicted: Estimate
    """Batches a second."""
    measured: float
    """Measured batches a second."""
    predicted_gain: Estimate
    measured_gain: float
    costs: LoaderCosts
    """Costs of the recorded loader."""
    calm: bool
    """True: it was recorded and measured without others on the cores."""

    @property
    def error(self) -> float:
        """Relative error of the rate."""
        return abs(self.predicted.value / self.measured - 1)

    @property
    def gain_error(self) -> float:
        """Relative error of the gain over the recorded setting."""
        return abs(self.predicted_gain.value / self.measured_gain - 1)

    @property
    def is_covered(self) -> bool:
        """True: the measured gain lies in the predicted interval."""
        return self.predicted_gain.low <= self.measured_gain <= self.predicted_gain.high

    @cached_property
    def kind(self) -> str:
        """Kind of the simulator's error that applies."""
        return error_kind(self.costs, self.setting)

    @cached_property
    def needs(self) -> float:
        """Return the least error whose interval covers the measurement; of itself, the rate."""
        low, high = 0.0, MOST_ERROR
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_inside(middle) else (middle, high)
        return high

    def _is_inside(self, error: float) -> bool:
        predicted = predict(self.costs, self.setting, error).samples_per_s
        if self.setting == self.recorded:
            wanted = self.measured * float(self.costs.samples.mean())
        else:
            predicted = predicted.over(predict(self.costs, self.recorded).samples_per_s)
            wanted = self.measured_gain
        return predicted.low <= wanted <= predicted.high


class Measured:
    """Measurements of one loader in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name

    @cached_property
    def about(self) -> dict[str, Any]:
        """Facts of the measurement."""
        file = self.folder / "measured.json"
        return dict(json.loads(file.read_text())) if file.exists() else {"left_out": "unfinished"}

    @property
    def is_whole(self) -> bool:
        """True: the measurement is complete."""
        return "laps" in self.about

    @cached_property
    def costs(self) -> dict[Setting, LoaderCosts]:
        """Costs of its batches, by the setting of each recording; that of `as it is` first."""
        by_setting = {}
        for saved in sorted(self.folder.glob("*/"), key=lambda part: part.name != "as it is"):
            tuning = ss.load(saved)
            conditions, now = tuning.circumstances, tuning.setting(0)
            epoch = conditions.epoch_batches
            handover = (conditions.worker_start_s, conditions.send_s, conditions.receive_s)
            by_setting[_as_forked(now)] = costs_of(
                tuning.run,
                now,
                epoch_batches=epoch if epoch and epoch <= SHORT else None,
                batch_bytes=conditions.batch_bytes,
                cores=conditions.cores,
                handover=None if None in handover else Handover(*handover),
            )
        return by_setting

    def choices(self) -> dict[Setting, Setting]:
        """Return the choices of the prediction alone, by the setting of each recording."""
        chosen = {}
        for now, costs in self.costs.items():
            whole = grid(now, costs.cores, pins=False, is_stream=False)
            same = [setting for setting in whole if setting.in_order == now.in_order]
            rated = [(predict(costs, setting).samples_per_s.value, setting) for setting in same]
            chosen[now] = smallest(rated)
        return chosen

    @cached_property
    def rates(self) -> dict[Setting, float]:
        """Measured batches a second."""
        settings = [Setting(**fields) for fields in self.about["settings"]]
        rates = []
        for laps in self.about["laps"]:
            calm = [took_s for took_s, others in laps if others < OTHERS]
            rates.append(1 / statistics.median(calm or [took_s for took_s, _ in laps]))
        return dict(zip(settings, rates, strict=True))

    @cached_property
    def disturbed(self) -> set[Setting]:
        """Settings beside whose laps, or beside whose recording, others always had the cores."""
        settings = [Setting(**fields) for fields in self.about["settings"]]
        unsteady = {
            setting
            for setting, laps in zip(settings, self.about["laps"], strict=True)
            if min(others for _, others in laps) >= OTHERS
        }
        return unsteady | {
            now for now, costs in self.costs.items() if costs.others_cores >= OTHERS * costs.cores
        }

    def pairs(self) -> Iterator[Pair]:
        """All that was predicted and measured."""
        for now, costs in self.costs.items():
            if now not in self.rates:
                continue
            samples = float(costs.samples.mean())
            own = predict(costs, now)
            for setting, rate in self.rates.items():
                prediction = predict(costs, setting)
                per_s = type(prediction.samples_per_s)(
                    *(end / samples for end in prediction.samples_per_s)
                )
                gain = prediction.samples_per_s.over(own.samples_per_s)
                measured = rate / self.rates[now]
                calm = not self.disturbed & {now, setting}
                yield Pair(self.name, now, setting, per_s, rate, gain, measured, costs, calm)

    def kept(self, setting: Setting) -> float | None:
        """Share of the best measured rate that a setting gives; None: it was not measured."""
        rate = self.rates.get(setting)
        return rate and rate / max(self.rates.values())


# --- tables ---------------------------------------------------------------------------------------


def _report(measured: list[Measured]) -> str:
    if not measured:
        return "nothing is measured yet"
    pairs = [pair for loader in measured for pair in loader.pairs()]
    others = [pair for pair in pairs if pair.setting != pair.recorded]
    return "\n\n".join(
        [
            _errors(pairs, others),
            _intervals(pairs),
            _choices(measured),
        ]
    )


def _errors(pairs: list[Pair], others: list[Pair]) -> str:
    """Return the table of the prediction errors."""
    head = (
        *("recorded with", "loaders", "pairs", "rate off: median", "90%"),
        *("gain off: median", "90%", "gain in its interval"),
    )
    groups = {
        "no workers": [pair for pair in others if not pair.recorded.num_workers],
        "1 to 7 workers": [pair for pair in others if 0 < pair.recorded.num_workers < CROWDED],
        "8 workers and more": [pair for pair in others if pair.recorded.num_workers >= CROWDED],
        "all": others,
        "without others on the cores": [pair for pair in others if pair.calm],
        "within what was recorded": [pair for pair in others if pair.kind in ("same", "inside")],
        "(the recorded setting itself)": [pair for pair in pairs if pair not in others],
    }
    rows = [(name, *_error_row(group)) for name, group in groups.items() if group]
    rate = [pair.error for pair in others]
    is_met = statistics.median(rate) <= MEDIAN and np.quantile(rate, 0.9) <= NINETIETH
    return (
        f"{table(head, rows)}\ntarget: rates {MEDIAN:.0%} off in the median, {NINETIETH:.0%} at "
        f"the 90th percentile: {met(is_met)}"
    )


def _error_row(group: list[Pair]) -> tuple[str, ...]:
    rate, gain = ([getattr(pair, name) for pair in group] for name in ("error", "gain_error"))
    return (
        str(len({pair.loader for pair in group})),
        str(len(group)),
        *(f"{value:.1%}" for value in (statistics.median(rate), np.quantile(rate, 0.9))),
        *(f"{value:.1%}" for value in (statistics.median(gain), np.quantile(gain, 0.9))),
        f"{np.mean([pair.is_covered for pair in group]):.0%}",
    )


def _intervals(pairs: list[Pair]) -> str:
    """Return the necessary widths of intervals, and their coverage for loaders left out.

    Of each kind of prediction: the error with which so many of the pairs that nobody disturbed are
    in their interval. Of each loader, it is taken from all the others, and its own pairs counted.
    """
    head = ("predicted", "loaders", "pairs", "error: now", "needed", "held out: in their interval")
    rows = []
    for kind, now in ERRORS.items():
        needs: dict[str, list[float]] = {}
        for pair in pairs:
            itself = pair.setting == pair.recorded
            if pair.calm and pair.kind == kind and itself == (kind == "same"):
                needs.setdefault(pair.loader, []).append(pair.needs)
        if len(needs) < 2:
            continue
        held = [
            need <= _enough([each for loader in needs if loader != name for each in needs[loader]])
            for name, own in needs.items()
            for need in own
        ]
        every = [need for own in needs.values() for need in own]
        counts = str(len(needs)), str(len(every))
        figures = f"{now:.2f}", f"{_enough(every):.2f}", f"{statistics.fmean(held):.0%}"
        rows.append((kind, *counts, *figures))
    return table(head, rows) if rows else "too few loaders to leave one out"


def _enough(needs: list[float]) -> float:
    return float(np.quantile(needs, COVERED, method="higher"))


def _choices(measured: list[Measured]) -> str:
    """Return the quality and the time of each choice."""
    tuned, hand, alone, stay = [], [], [], []
    for loader in measured:
        settings, about = list(loader.rates), loader.about
        best, by_hand = settings[about["tuned"]], settings[about["by_hand"]]
        tuned.append((loader.kept(best), about["tune_s"], best))
        hand.append((loader.kept(by_hand), about["hand_s"], by_hand))
        stay.append((loader.kept(settings[0]), 0.0, settings[0]))
        alone += [(loader.kept(chosen), None, chosen) for chosen in loader.choices().values()]
    head = (
        *("choice", "of", f"within {1 - GOOD:.0%} of the best", "gives of the best: median"),
        *("least", "workers: mean", "took: median"),
    )
    kinds = {
        "ss.tune": tuned,
        "predicted, not measured": alone,
        "by hand, the fastest": hand,
        "as it is": stay,
    }
    return table(head, [(name, *_choice_row(rows)) for name, rows in kinds.items()])


def _choice_row(rows: list[tuple[float | None, float | None, Setting]]) -> tuple[str, ...]:
    rated = [(share, took_s, chosen) for share, took_s, chosen in rows if share is not None]
    shares = [share for share, *_ in rated]
    took = [took_s for _, took_s, _ in rated if took_s is not None]
    good = sum(share >= GOOD for share in shares)
    return (
        f"{len(rated)}" + (f" (of {len(rows)})" if len(rated) < len(rows) else ""),
        f"{good / len(shares):.0%}",
        f"{statistics.median(shares):.0%}",
        f"{min(shares):.0%}",
        f"{statistics.fmean(chosen.num_workers for *_, chosen in rated):.1f}",
        f"{statistics.median(took):.0f} s" if took else "-",
    )


if __name__ == "__main__":
    try:
        main()
    except StallscopeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
