"""Is the equivalence of two orders right, on every pipeline of which it is known?

The pipelines stand in tests/support/pipelines.py: commuting and not, random, with other dtypes, in
place, with generators of their own, failing, and so on. Each is tried on other data and with other
draws each time. An order that is called identical and is not would be the worst mistake; such
are counted apart.

    python tests/benchmarks/order_truth.py --seeds 20
"""

from __future__ import annotations

import time

import torch
from benchkit.command import Option, arguments, table
from support.pipelines import KNOWN, compared

from stallscope.orders.result import IDENTICAL


def main() -> None:
    """Compare, and print the table."""
    given = arguments(
        __doc__,
        seeds=Option(20, 1, "of data and draws, for each"),
        pipelines=Option(len(KNOWN), 2, "of those that are known, from the first one on"),
    )
    seeds, pipelines = range(given.seeds), KNOWN[: given.pipelines]
    torch.set_num_threads(1)
    rows, right, wrongly_same = [], 0, 0
    for known in pipelines:
        began = time.perf_counter()
        found = [compared(known, seed).equivalence for seed in seeds]
        right += found.count(known.truth)
        wrongly_same += found.count(IDENTICAL) if known.truth != IDENTICAL else 0
        wrong = ", ".join(sorted({one for one in found if one != known.truth})) or "-"
        each = f"{(time.perf_counter() - began) / len(seeds):.2f} s"
        rows.append((known.name, known.truth, f"{found.count(known.truth)}", wrong, each))
    print(table(("pipeline", "truth", f"right of {len(seeds)}", "wrong", "each"), rows))
    number = len(pipelines) * len(seeds)
    print(f"\n{right} of {number} right; wrongly called identical: {wrongly_same}")


if __name__ == "__main__":
    main()
