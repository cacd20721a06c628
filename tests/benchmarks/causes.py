"""Is a planted cause truly the cause? Each loop with it and without it, measured.

In every block both loops run once, in a new random order. "expected" is the slow-down that was
planted, by plain arithmetic ("-" where only measuring tells it); "found" is the time of a step
with its wait in the loop with the cause, over that in the loop without it, with its 95% interval.
"of its step" says how healthy the loop without the cause is: the time of a step with its wait, over
that of the step alone.

    python tests/benchmarks/causes.py
    python tests/benchmarks/causes.py --causes collate lock --blocks 12
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from benchkit.command import Option, arguments, table
from benchkit.pairing import in_turns, ratio
from planted import PLANTED, Planted, plant
from planted.recipe import slowdown
from tqdm import tqdm

from stallscope.errors import UnsupportedError
from stallscope.loops.devices import Cpu
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.machine import usable_cores
from stallscope.targets.loaders import private_copy

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

HEAD = ("cause", "expected", "found", "95% interval", "of its step", "taken away")
MEASURED = ("sending", "oversubscription")
"""Nothing but measuring tells what these take."""
HEALTHY = 1.25
"""A loop that takes less than so many times its step is called healthy again."""


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        causes=Option(list(PLANTED), ["collate"], "these"),
        blocks=Option(7, 1, "pairs of each cause"),
        steps=Option(60, 4, "in the steady state"),
        seed=Option(0, 0, "of the planted numbers"),
        strength=Option(2.0, 2.0, "planted slow-down"),
    )
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    rows = []
    bar = tqdm(given.causes, unit="cause", leave=False)
    for code in bar:
        bar.set_description(code)
        try:
            rows.append(_row(code, given))
        except UnsupportedError as error:
            rows.append((code, "not planted here", str(error), "", "", ""))
        bar.write("  ".join(rows[-1]))  # so that an interrupt loses nothing
    print(table(HEAD, rows))
    print(
        f"\n{given.blocks} blocks of {given.steps} steps each, seed {given.seed}, strength "
        f"{given.strength:g}, {usable_cores()} cores"
    )


def _row(code: str, given: Namespace) -> tuple[str, ...]:
    planted = plant(code, given.seed, given.strength)
    loops = {"without": planted.taken_away, "with": planted}
    took = in_turns(
        {name: partial(step_s, loop, given.steps) for name, loop in loops.items()}, given.blocks
    )
    without_s, with_s = np.array(took["without"]), np.array(took["with"])
    found = ratio(with_s, without_s)
    expected = slowdown(planted.recipe, usable_cores())
    healthy = float(np.median(without_s)) / planted.recipe.step_s
    interval = found.interval(".2f")
    heals = "heals" if found.low > 1 and healthy < HEALTHY else "DOES NOT HEAL"
    return (
        code,
        "-" if code in MEASURED else f"{expected:.2f}",
        f"{found.centre:.2f}",
        interval,
        f"{healthy:.2f}",
        heals if interval.startswith("[") else "",
    )


def step_s(planted: Planted, steps: int) -> float:
    """How long a step with its wait takes in the steady state.

    Where epochs are short, whole epochs are timed, with their start, after a first one.
    """
    recipe = planted.recipe
    is_short = recipe.epoch <= steps
    warmup = recipe.epoch if is_short else 2 * recipe.workers * recipe.prefetch
    with private_copy(planted.loader) as loader, started(TimedLoop(loader, Cpu())) as batches:
        _use(planted, islice(batches, warmup))
        began, used = time.perf_counter(), 0
        while used < steps:
            source = iter(loader) if is_short else islice(batches, steps)
            used += _use(planted, source)
        return (time.perf_counter() - began) / used


def _use(planted: Planted, batches: Iterable[Any]) -> int:
    used = 0
    for batch in batches:
        planted.step(batch)
        used += 1
    return used


if __name__ == "__main__":
    main()
