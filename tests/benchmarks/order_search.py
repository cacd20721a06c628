"""How many measurements the search for orders needs, and whether it finds what trying all finds.

For pipelines of n ops that all commute, and of n ops of which half do not: what the search tries,
and how long it takes, beside the n times n! of trying every order by itself. Up to n = 6 that is
done, in the same run and on the same samples: the same winner, or one that cannot be told from it
when both are timed again in turn (the ratio of their times and its 95% interval stand there).

The second table is about prediction: every order that gives the original's data is predicted from
the costs of its ops and then timed as a whole, in this process. Beside the errors stand those of
timing the same order twice.

    python tests/benchmarks/order_search.py --most 8
"""

from __future__ import annotations

import time
from itertools import permutations
from typing import Any

import numpy as np
import torch
from benchkit.command import Option, arguments, ms, table
from benchkit.pairing import ratio
from support.pipelines import Tensors, evaluator_of
from torchvision.transforms import v2

from stallscope.orders import run_ops
from stallscope.orders.search import SearchResult, cheapest

SAMPLES = 4
EXHAUSTED = 6
SIDE = 256
_AGAIN = 15
"""Times that two orders are timed in turn, where the search and trying all differ."""
_WITHIN = 1.02
"""A winner that takes less than this times the best is as good."""
HEAD = ("pipeline", "n", "tried", "of", "s", "exhaustive s", "same winner", "its cost", "the best")


class Larger(Tensors):
    """Images of 256 by 256 pixels."""

    def image(self, index: int) -> Any:
        """One image, float32 of shape (3, 256, 256)."""
        rng = np.random.default_rng((self.seed, index))
        return torch.from_numpy(rng.uniform(0, 255, (3, SIDE, SIDE)).astype(np.float32))


class Shifted:
    """Adds a number, in so many passes over the pixels; such ops commute up to no bit at all.

    Args:
        passes: how often.
    """

    def __init__(self, passes: int) -> None:
        self.passes = passes

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """The image and as many halves."""
        for _ in range(self.passes):
            image = (image.round() + 1).clamp(max=1e6)
        return image


def commuting(n: int) -> list[Any]:
    """Ops whose order does not matter for the data, but for the cost: one of them crops."""
    return [*(Shifted(1 + place % 3) for place in range(n - 1)), v2.CenterCrop(128)]


def mixed(n: int) -> list[Any]:
    """Half of the ops commute with nothing but the crop."""
    ops: list[Any] = [torch.square, torch.sqrt, torch.neg, torch.abs][: n // 2]
    named = [v2.Lambda(op) for op in ops]
    return [*named, *(Shifted(1) for _ in range(n - 1 - len(named))), v2.CenterCrop(128)]


def main() -> None:
    """Search, and print the tables."""
    given = arguments(
        __doc__,
        most=Option(8, 3, "ops of the longest pipeline"),
        budget=Option(60.0, 1.0, "of each search, seconds"),
    )
    torch.set_num_threads(1)
    rows, errors, noise = [], [], []
    for n in range(3, given.most + 1):
        for name, make in (("commuting", commuting), ("half commuting", mixed)):
            rows.append(_row(name, make(n), given.budget, errors, noise))
            print(table(HEAD, [rows[-1]]), flush=True)
    print("\n" + table(HEAD, rows))
    print(f"\n{_spread('predicted against timed as a whole', errors)}")
    print(_spread("the same order timed twice", noise))


def _row(name: str, ops: list[Any], budget_s: float, errors: list, noise: list) -> tuple[str, ...]:
    bench = evaluator_of(Larger(v2.Compose(ops)), SAMPLES)
    deadline = time.perf_counter() + budget_s
    began = time.perf_counter()
    bench.search(lambda: time.perf_counter() > deadline)
    found = bench.found
    took_s = time.perf_counter() - began
    last = list(found.after(range(len(ops))))[-1][1]
    same = cheapest(found, 200)[last.state.digest]
    tried = f"{found.measurements:,}" + (f" (+{found.unexplored} left)" if found.unexplored else "")
    row = (name, str(len(ops)), tried, f"{found.exhaustive:,}", f"{took_s:.1f}")
    if len(ops) > EXHAUSTED:
        return (*row, "-", "-", ms(same[0][0]), "-")
    began = time.perf_counter()
    whole = _exhaustive(bench, found, last.state.digest, {positions for _, positions in same})
    exhaustive_s = time.perf_counter() - began
    predicted = {positions: seconds for seconds, positions in same}
    for positions, (first, second) in whole.items():
        noise.append(abs(first - second) / min(first, second))
        if positions in predicted:
            errors.append(abs(predicted[positions] - min(first, second)) / min(first, second))
    return (*row, f"{exhaustive_s:.1f}", *_winner(bench, same[0][1], whole))


def _exhaustive(
    bench: Any, found: SearchResult, digest: str, searched: set[tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every order that gives the original's data, timed twice as a whole, seconds per sample.

    Args:
        bench: the pipeline at work.
        found: by the search; only tells how many ops there are.
        digest: of the original's data.
        searched: the orders that the search says give it, which it must not be the only one to say.
    """
    times = {}
    for positions in permutations(range(found.n)):
        try:
            made = bench.inputs[: bench.searched]
            for position in positions:
                made = run_ops.run_op(bench.ops[position], bench.stream(position), made)
        except (RuntimeError, TypeError):  # an order that raises is no winner
            made = []
        if run_ops.digest_of(made) == digest:
            times[positions] = (_timed(bench, positions), _timed(bench, positions))
        elif positions in searched:
            print(f"WRONG: {positions} was said to give the original's data")
    return times


def _timed(bench: Any, positions: tuple[int, ...]) -> float:
    """The shortest of three runs of an order over all samples, seconds per sample."""
    best = float("inf")
    ops = [bench.stream(position).op for position in positions]
    for _ in range(3):
        began = time.perf_counter()
        for given in bench.inputs[: bench.searched]:
            value = given.args[0]
            for op in ops:
                value = op(value)
        best = min(best, (time.perf_counter() - began) / bench.searched)
    return best


def _winner(
    bench: Any, found: tuple[int, ...], whole: dict[tuple[int, ...], tuple[float, float]]
) -> tuple[str, str, str]:
    """Whether the search's winner is the exhaustive one's; else both are timed again in turn."""
    best = min(whole, key=lambda one: min(whole[one]))
    mine, theirs = min(whole[found]), min(whole[best])
    if found == best:
        return "yes", ms(mine), ms(theirs)
    pairs = [(_timed(bench, found), _timed(bench, best)) for _ in range(_AGAIN)]
    more = ratio(*np.transpose(pairs))
    same = more.low <= 1 <= more.high or more.centre < _WITHIN
    said = "within noise" if same else "NO"
    return f"{said} {more.centre:.2f} {more.interval('.2f')}", ms(mine), ms(theirs)


def _spread(what: str, errors: list[float]) -> str:
    median, high = np.percentile(errors, (50, 90))
    return f"{what}: median {median:.1%}, 90th percentile {high:.1%}, over {len(errors)} orders"


if __name__ == "__main__":
    main()
