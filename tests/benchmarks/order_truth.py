"""Is the equivalence of two orders right, on every pipeline of which it is known?

The pipelines stand in tests/pipelines.py: commuting and not, random, with other dtypes, in place,
with generators of their own, failing, and so on. Each is tried on other data and with other draws
each time. An order that is called identical and is not would be the worst mistake; such are counted
apart.

    python tests/benchmarks/order_truth.py --seeds 20
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from pairing import table
from pipelines import KNOWN, compared

from stallscope.orderings import IDENTICAL


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="of data and draws, for each (20)")
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    rows, right, wrongly_same = [], 0, 0
    for known in KNOWN:
        began = time.perf_counter()
        found = [compared(known, seed).equivalence for seed in seeds]
        right += found.count(known.truth)
        wrongly_same += found.count(IDENTICAL) if known.truth != IDENTICAL else 0
        wrong = ", ".join(sorted({one for one in found if one != known.truth})) or "-"
        each = f"{(time.perf_counter() - began) / len(seeds):.2f} s"
        rows.append((known.name, known.truth, f"{found.count(known.truth)}", wrong, each))
    print(table(("pipeline", "truth", f"right of {len(seeds)}", "wrong", "each"), rows))
    print(f"\n{right} of {len(KNOWN) * len(seeds)} right; wrongly called identical: {wrongly_same}")


if __name__ == "__main__":
    main()
