"""Does a gain that is claimed hold, on a machine that somebody else uses now and then?

On the machine as it is, and for long, then again and again beside a neighbour that burns a core in
bursts of 0.2 to 3 s. Claimed is what `ss.orders` recommends for case B with an interval, the
headroom of `ss.ladder` where it is distinguishable, and a cause that `ss.diagnose` names. A claim
is false where the value of the quiet machine lies outside of its interval, or where no quiet
diagnosis of the same budget says that cause (`inconclusive` claims nothing). Run it on a machine
that does nothing else.

    python tests/benchmarks/noise.py
    python tests/benchmarks/noise.py --only ladder diagnose --trials 50 --budget 12
"""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")

import polars as pl
from benchkit.command import Option, arguments, table
from benchkit.neighbour import neighbour
from tqdm import tqdm

import stallscope as ss
from stallscope.demo import FasterRandomMask, case_b_loader
from stallscope.machine import usable_cores

STEP_S = 0.02
HEAD = ("what", "trials", "claims", "of them false", "claims nothing")


def main() -> None:
    """Measure the quiet values, then the claims beside a neighbour."""
    given = arguments(
        __doc__,
        trials=Option(20, 1, "of each beside the neighbour"),
        quiet=Option(90.0, 0.3, "of each on the quiet machine, seconds"),
        budget=Option(30.0, 0.3, "of each beside the neighbour, seconds"),
        only=Option([*MEASURES], ["ladder"], "these"),
    )
    warnings.filterwarnings("ignore")
    target = ss.target("sample", step=ss.simulated_step(STEP_S))
    measures = {name: MEASURES[name] for name in given.only}
    true = {
        name: quietly(target, given.quiet, given.budget) for name, (quietly, _) in measures.items()
    }
    claims: dict[str, list[Claim]] = {name: [] for name in measures}
    with neighbour():
        for _ in tqdm(range(given.trials), disable=False):
            for name, (_, claimed) in measures.items():
                claims[name] += claimed(target, given.budget, true[name])
    print(table(HEAD, [_row(name, given.trials, each) for name, each in claims.items()]))
    for name, value in true.items():
        print(f"{name}, quiet: {value}")
        for claim in claims[name]:
            if claim.holds is False:
                print(f"    false: {claim.said}")


class Claim(NamedTuple):
    """What was said in a trial, and whether it holds; None: nothing was claimed."""

    holds: bool | None
    said: str = ""


def _row(name: str, trials: int, claims: list[Claim]) -> tuple[str, ...]:
    """A line of the table."""
    held = [claim.holds for claim in claims]
    numbers = trials, len(held) - held.count(None), held.count(False), held.count(None)
    return name, *map(str, numbers)


def _orders(budget_s: float) -> pl.DataFrame:
    """Of a published pipeline that has something to gain."""
    loader = case_b_loader(num_workers=usable_cores())
    faster = {"RandomMask": FasterRandomMask()}
    return ss.orders(loader, alternatives=faster, budget_s=budget_s).table()


def _gains(_target: ss.Target, quiet_s: float, _budget_s: float) -> dict[str, float]:
    """How many times as fast each order is."""
    found = _orders(quiet_s).drop_nulls("speedup")
    return dict(found.select("order", "speedup").iter_rows())


def _recommended(_target: ss.Target, budget_s: float, true: dict[str, float]) -> list[Claim]:
    rows = _orders(budget_s).filter("recommended").drop_nulls("speedup_low").to_dicts()
    claims = [
        _within(row["speedup_low"], true[row["order"]], row["speedup_high"])
        for row in rows
        if row["order"] in true
    ]
    return claims or [Claim(None)]


def _within(low: float, true: float, high: float) -> Claim:
    return Claim(low <= true <= high, f"{low:.2f} to {high:.2f}")


def _headroom(target: ss.Target, quiet_s: float, _budget_s: float) -> float:
    """How many times as fast the loop is with everything cached."""
    factors = ss.ladder(target, budget_s=quiet_s).headroom()["factor"].to_list()
    return float(factors[0]) if factors else float("nan")


def _claimed(target: ss.Target, budget_s: float, true: float) -> list[Claim]:
    gain = ss.ladder(target, budget_s=budget_s).headroom()
    gain = gain.filter(pl.col("says").is_in(["faster", "slower"]))
    claims = [_within(row["factor_low"], true, row["factor_high"]) for row in gain.to_dicts()]
    return claims or [Claim(None)]


def _causes(target: ss.Target, quiet_s: float, budget_s: float) -> list[str]:
    """What is said in as many diagnoses as the time has room for, each once."""
    rounds = range(max(round(quiet_s / budget_s), 1))
    return sorted({ss.diagnose(target, budget_s=budget_s).verdict.code for _ in rounds})


def _named(target: ss.Target, budget_s: float, true: list[str]) -> list[Claim]:
    found = ss.diagnose(target, budget_s=budget_s).verdict
    said = f"{found.code}: {found.title}"
    return [Claim(None if found.code == "inconclusive" else found.code in true, said)]


MEASURES = {
    "orders": (_gains, _recommended),
    "ladder": (_headroom, _claimed),
    "diagnose": (_causes, _named),
}
"""What is measured once on the quiet machine, and what is claimed beside the neighbour."""


if __name__ == "__main__":
    main()
