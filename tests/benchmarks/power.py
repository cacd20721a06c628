"""Measure how long an answer takes to settle, how narrow it is, and whether it is true.

Each question is asked again and again, on the machine as it is and beside a neighbour that burns a
core in bursts of 0.2 to 3 s. The truth is the mean of all quiet answers: an interval is right where
it holds that. And the very same loader, and the very same work on samples, are compared with
themselves: nothing may be claimed of these. Their spread is what `bench.comparison` takes as known
(`START_SPREAD`, `SAMPLES_SPREAD`). Run it on a machine that does nothing else.

    python tests/benchmarks/power.py
    python tests/benchmarks/power.py --only tune-one ladder --tries 3 --neighbour 0
"""

import math
import os
import statistics
import time
import warnings
from contextlib import nullcontext
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable

import torch
from benchkit.command import Option, arguments, table
from benchkit.neighbour import neighbour
from support.planted_costs import SlowFetchDataset
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import stallscope as ss
from stallscope.bench.comparison import (
    AS_IT_IS,
    FASTER,
    LITTLE,
    OPEN,
    SAME,
    SLOWER,
    UNKNOWN,
    Factor,
    blocks_of,
    compared,
)
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement
from stallscope.bench.samples import Contest, PairedSamples
from stallscope.demo import FasterRandomMask, RandomMask, case_b_loader
from stallscope.loops.training_loop import TimedLoop
from stallscope.machine import usable_cores
from stallscope.verbs.ladder.result import RUNGS, WARM
from stallscope.verbs.orders.orders import OrderSearch

STEP_S = 0.02
SLOW_STEP_S = 0.2
SLOW_SAMPLE_S = 0.1
SAME_S = 6.0
"""For a loader that is compared with itself."""
HEAD = ("question", "tries", "settled", "seconds", "longest", "gain", "half width", "truth inside")
SAME_HEAD = ("compared with itself", "tries", "claimed", "spread of one")


class Answer(NamedTuple):
    """Estimate of a try, and its seconds."""

    estimate: Factor
    took_s: float


Part = tuple[Factor, "float | None"]
"""Estimate, and the seconds until it settled; None: at the end of the call."""


def main() -> None:
    """Ask all questions, quietly and beside a neighbour, and print the tables."""
    options = arguments(
        __doc__,
        tries=Option(10, 1, "of each question on the quiet machine"),
        neighbour=Option(5, 0, "of each beside the neighbour"),
        same=Option(12, 1, "of each that is compared with itself"),
        budget=Option(60.0, 2.0, "of each, seconds"),
        only=Option([*QUESTIONS], ["orders"], "these"),
    )
    warnings.filterwarnings("ignore")
    rows = []
    for name in tqdm(options.only if options.tries else [], disable=False):
        ask = partial(QUESTIONS[name], options.budget)
        quiet, busy = _asked(ask, options.tries), _asked(ask, options.neighbour, busy=True)
        for part, answers in quiet.items():
            truth = math.exp(
                statistics.fmean(math.log(answer.estimate.factor) for answer in answers)
            )
            beside = busy.get(part, [])
            for what, group in ((part, answers), (f"{part}, beside", beside)):
                if group:
                    rows.append(_row(f"{name}{what}", group, truth))
                    print("  ".join(rows[-1]), flush=True)
    print(table(HEAD, rows))
    same = {
        "a loader": _loader_itself,
        "work on samples": _samples_themselves,
        "ladder, data in memory": _data_in_memory,
        "orders, the same op": _op_itself,
        "tune, the same setting": _setting_itself,
    }
    print(table(SAME_HEAD, [_same_row(name, ask, options.same) for name, ask in same.items()]))


def _asked(
    ask: Callable[[], Factor | dict[str, Part]], tries: int, *, busy: bool = False
) -> dict[str, list[Answer]]:
    """Ask a question again and again; returns the answers by part of the question."""
    answers: dict[str, list[Answer]] = {}
    for _ in range(tries):
        with neighbour() if busy else nullcontext():
            began_s = time.perf_counter()
            outcome = ask()
            took_s = time.perf_counter() - began_s
        parts = outcome if isinstance(outcome, dict) else {"": (outcome, None)}
        for part, (factor, settled_s) in parts.items():
            answers.setdefault(part, []).append(Answer(factor, settled_s or took_s))
    return answers


def _row(name: str, answers: list[Answer], truth: float) -> tuple[str, ...]:
    factors, times = [answer.estimate for answer in answers], [answer.took_s for answer in answers]
    inside = [(factor.low or 0.0) <= truth <= (factor.high or math.inf) for factor in factors]
    return (
        name,
        str(len(factors)),
        str(sum(factor.is_settled for factor in factors)),
        f"{statistics.median(times):.1f}",
        f"{max(times):.1f}",
        f"{statistics.median(factor.factor for factor in factors):.2f}",
        f"{statistics.median(factor.half_width for factor in factors):.1%}",
        str(sum(inside)),
    )


def _same_row(name: str, ask: Callable[[], Factor], tries: int) -> tuple[str, ...]:
    factors = [ask() for _ in tqdm(range(tries), disable=False)]
    logs = [math.log(factor.factor) for factor in factors]
    spread = f"{statistics.stdev(logs):.3f}" if len(logs) > 1 else "-"
    return name, str(tries), str(sum(factor.says in (FASTER, SLOWER) for factor in factors)), spread


# ---- the questions --------------------------------------------------------------------------


def _factor(row: dict[str, Any] | None, name: str, says: str = "says") -> Factor:
    """Return the factor in a row of a result; an undecided one where the row is missing."""
    if row is None or row[name] is None:
        return UNKNOWN
    return Factor(row[name], row[f"{name}_low"], row[f"{name}_high"], row[says] or OPEN)


def _orders(budget_s: float) -> dict[str, Part]:
    loader = case_b_loader(num_workers=usable_cores())
    faster = {"RandomMask": FasterRandomMask()}
    began_s, confirms_s = time.perf_counter(), 0.0
    confirm = OrderSearch._confirm

    def timed(*args: Any) -> None:
        nonlocal confirms_s
        confirms_s = time.perf_counter() - began_s
        confirm(*args)

    OrderSearch._confirm = timed
    try:
        best = ss.orders(loader, alternatives=faster, budget_s=budget_s).best()
    finally:
        OrderSearch._confirm = confirm
    in_workers = _factor(best, "loader_gain", "loader_says")
    return {
        "": (_factor(best, "speedup"), confirms_s),
        ", confirmed in the workers": (in_workers, None),
    }


def _ladder(budget_s: float) -> dict[str, Part]:
    target = ss.target("sample", step=ss.simulated_step(STEP_S))
    ladder = ss.ladder(target, budget_s=budget_s)
    parts = {"": (_factor(ladder.headroom().row(0, named=True), "factor"), None)}
    for row in ladder.table().drop_nulls("samples_per_s").iter_rows(named=True):
        rate = (row[f"samples_per_s{end}"] for end in ("", "_low", "_high"))
        parts[f", samples/s {row['rung']}"] = (Factor(*rate, SAME), None)
    return parts


def _slow_ladder(budget_s: float) -> Factor:
    loader = DataLoader(SlowFetchDataset(4_000, SLOW_SAMPLE_S, None), 8, num_workers=2)
    result = ss.ladder(loader, ss.simulated_step(SLOW_STEP_S), budget_s=budget_s)
    return _factor(result.headroom().row(0, named=True), "factor")


def _tune(workers: int, budget_s: float) -> Factor:
    loader = case_b_loader(num_workers=workers)
    tuning = ss.tune(loader, ss.simulated_step(STEP_S), budget_s=budget_s)
    best, rows = tuning.best, tuning.settings().drop_nulls("gain_low").to_dicts()
    if best["trial"]:  # a recommendation is an answer: faster, or smaller and as fast
        gain = _factor(best, "gain")
        return gain if gain.is_settled else gain._replace(says=SAME)
    # To keep the loader is an answer if nothing gains much, or the cores are full anyway
    highs = [row["gain_high"] for row in rows]
    is_answer = max(highs, default=1.0) < LITTLE or tuning.circumstances.full_cores
    low, high = min([1.0, *(row["gain_low"] for row in rows)]), max([1.0, *highs])
    return Factor(1.0, low, high, SAME if is_answer else OPEN)


def _layouts(budget_s: float) -> Factor:
    return _factor(ss.layouts("sample", budget_s=budget_s).best, "gain")


QUESTIONS: dict[str, Callable[[float], Factor | dict[str, Part]]] = {
    "orders": _orders,
    "ladder": _ladder,
    "ladder-slow": _slow_ladder,
    "tune-one": partial(_tune, 1),
    "tune-eight": partial(_tune, 8),
    "layouts": _layouts,
}


# ---- the same beside itself -------------------------------------------------------------------


def _loader_itself() -> Factor:
    target = ss.target("sample")
    with Measurement("power", SAME_S) as measurement:
        turns = InTurns(measurement)
        for variant in (AS_IT_IS, 1):
            turns.add(variant, TimedLoop.of(target))
        turns.run(lambda: [1])
    return compared(turns.blocks, 1)


def _samples_themselves() -> Factor:
    dataset = ss.target("sample").loader.dataset
    read = dataset.__getitem__
    with Measurement("power", SAME_S) as measurement:
        pairs = PairedSamples(measurement)
        pairs.run({1: Contest("itself", read, read, list(islice(range(len(dataset)), 64)))})
    return pairs.factor(1)


def _data_in_memory() -> Factor:
    """Compare repeated samples with new ones, where all of them are in memory anyway."""
    data = TensorDataset(torch.zeros(4_096, 3, 64, 64))
    result = ss.ladder(DataLoader(data, 32, num_workers=2), budget_s=SAME_S)
    return compared(blocks_of(result.blocks), RUNGS.index(WARM))


def _op_itself() -> Factor:
    loader = case_b_loader(num_workers=2)
    result = ss.orders(loader, alternatives={"RandomMask": RandomMask()}, budget_s=2 * SAME_S)
    rows = result.table().filter(kind="alternative").to_dicts()
    return _factor(rows[0] if rows else None, "speedup")


def _setting_itself() -> Factor:
    again = _tuned().bench
    now = again.trial({"num_workers": 2})
    result = again.measure(now, 2 * SAME_S)
    return compared(blocks_of(result.blocks), len(result.trials) - 1)


@cache
def _tuned() -> Any:
    return ss.tune(case_b_loader(num_workers=2), settings=[], budget_s=SAME_S)


if __name__ == "__main__":
    main()
