"""Does a gain that is claimed hold, on a machine that somebody else uses now and then?

Once on the machine as it is, and for long, then again and again beside a neighbour that burns a
core in bursts of 0.2 to 3 s. Claimed is what `ss.orders` recommends with an interval, the headroom
of `ss.ladder` where it is distinguishable, and a cause that `ss.diagnose` names. A claim is false
where the value of the quiet machine lies outside of its interval, or the quiet verdict is another
one (`inconclusive` claims nothing). Run it on a machine that does nothing else.

    python tests/benchmarks/noise.py
"""

from __future__ import annotations

import os
import random
import time
import warnings
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments, table
from tqdm import tqdm

import stallscope as ss

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_S = 0.02
HEAD = ("what", "trials", "claims", "of them false", "claims nothing")


def main() -> None:
    """Measure the quiet values, then the claims beside a neighbour."""
    given = arguments(
        __doc__,
        trials=Option(20, 1, "of each beside the neighbour"),
        quiet=Option(90.0, 0.3, "of each on the quiet machine, seconds"),
        budget=Option(30.0, 0.3, "of each beside the neighbour, seconds"),
    )
    warnings.filterwarnings("ignore")
    target = ss.target("sample", step=ss.simulated_step(STEP_S))
    true = {name: measure(target, given.quiet) for name, measure in MEASURES.items()}
    claims: dict[str, list[bool | None]] = {name: [] for name in MEASURES}
    with _neighbour():
        for _ in tqdm(range(given.trials), disable=False):
            for name, measure in MEASURES.items():
                claims[name] += _holds(true[name], measure(target, given.budget))
    rows = []
    for name, held in claims.items():
        claimed = [one for one in held if one is not None]
        false = claimed.count(False)
        rows.append(
            (name, *map(str, (given.trials, len(claimed), false, len(held) - len(claimed))))
        )
    print(table(HEAD, rows))
    for name, values in true.items():
        print(f"{name}, quiet: {', '.join(f'{what} {value[0]}' for what, value in values.items())}")


Claims = dict[str, tuple[object, object, object]]
"""What is claimed, its value and the ends of its interval; a value without one is a name."""


def _orders(target: ss.Target, budget_s: float) -> Claims:
    rows = ss.orders(target, budget_s=budget_s).table().drop_nulls("speedup_low").to_dicts()
    return {
        row["order"]: (row["speedup"], row["speedup_low"], row["speedup_high"])
        if row["recommended"]
        else (row["speedup"], None, None)
        for row in rows
    }


def _ladder(target: ss.Target, budget_s: float) -> Claims:
    gain = ss.ladder(target, budget_s=budget_s).headroom().drop_nulls("factor_low")
    if gain.is_empty():
        return {}
    row = gain.row(0, named=True)
    ends = (row["factor_low"], row["factor_high"]) if row["distinguishable"] else (None, None)
    return {"headroom": (row["factor"], *ends)}


def _diagnose(target: ss.Target, budget_s: float) -> Claims:
    code = ss.diagnose(target, budget_s=budget_s).verdict.code
    return {"verdict": (code, *((None, None) if code == "inconclusive" else (code, code)))}


MEASURES = {"orders": _orders, "ladder": _ladder, "diagnose": _diagnose}


def _holds(true: Claims, claimed: Claims) -> list[bool | None]:
    """Whether each claim holds; None where nothing is claimed, or the truth was not measured."""
    return [
        None if low is None or what not in true else low <= true[what][0] <= high
        for what, (_, low, high) in claimed.items()
    ]


@contextmanager
def _neighbour() -> Iterator[None]:
    """Burn a core in bursts meanwhile."""
    process = get_context("spawn").Process(target=_bursts, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _bursts() -> None:
    draw = random.Random(os.getpid())
    while True:
        end_s = time.monotonic() + draw.uniform(0.2, 3.0)
        while time.monotonic() < end_s:
            sum(range(1000))
        time.sleep(draw.uniform(0.2, 3.0))


if __name__ == "__main__":
    main()
