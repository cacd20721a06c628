"""Comparison of the work per sample: each sample by the baseline and by a variant, in this process.

Loops depend on more than the work per sample, and other processes disturb them. Here both calls
follow each other, in random order, from the same random numbers. Their own time counts: computing
and waiting for devices, without waiting for a core. A difference of 2% shows within seconds where
loops need a minute.
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
import torch

from stallscope.bench.comparison import ALIKE, FASTER, SAME, SLOWER, Factor, known_reach, of_samples
from stallscope.columns import Column, Schema
from stallscope.isolation import seed_everywhere
from stallscope.stats import SEED
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stallscope.bench.measurement import Measurement


PAIRS: Final = Schema(
    "One row per pair: the same sample or batch, from the original and from a variant.",
    Column("variant", pl.Int32),
    Column("pair", pl.Int32),
    Column("samples", pl.Int32),
    Column("as_it_is_s", pl.Float64, "time in one process", is_divisor=True),
    Column("seconds", pl.Float64, "time of the variant", is_divisor=True),
)

NARROW: Final = 0.015
"""Half-width that ends a comparison: a gain's interval without what more pairs do not change."""
_FEWEST, _FEWEST_BATCHES = 16, 6
"""Least samples and least pairs before the first test: fewer are equal by chance."""
_LOOK_AFTER: Final = 0.25
"""Further pairs until the next test, as a share: frequent tests stop at a chance result."""
_OF_SCHEDULER: Final = Path("/proc/thread-self/schedstat")


class SamplePair(NamedTuple):
    """Row of `PAIRS`."""

    variant: int
    pair: int
    samples: int
    as_it_is_s: float
    seconds: float


class Contest(NamedTuple):
    """Variant and baseline; both are called with a unit: the sample, or batch, to produce."""

    name: str
    as_it_is: Callable[[Any], object]
    variant: Callable[[Any], object]
    units: Sequence[Any]
    samples: int = 1
    beside_s: float = 0.0
    """Seconds of a unit that belong to both, outside of the calls."""
    expected_s: float = 0.0


def own_s(make: Callable[[], object]) -> float:
    """Call a function, and return its own seconds in this thread.

    Own time is computing and waiting for a disk or a network, also by threads of a library, without
    waiting for a core (schedstat in proc(5)). Without schedstat, it is wall time.
    """
    queued_ns, computed_ns = _queued_ns(), time.process_time_ns()
    began_ns = time.perf_counter_ns()
    result = make()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    took_ns = time.perf_counter_ns() - began_ns
    computed_ns = time.process_time_ns() - computed_ns
    del result
    return max(took_ns - (_queued_ns() - queued_ns), computed_ns) / 1e9


def _queued_ns() -> int:
    try:
        return int(_OF_SCHEDULER.read_text(encoding="ascii").split()[1])
    except OSError:
        return 0


class PairedSamples:
    """Comparison of variants; an interrupt leaves the pairs so far."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._order = np.random.default_rng(SEED)
        self.pairs: list[SamplePair] = []
        self.failed: dict[int, str] = {}
        """Exception of each variant that raised."""

    def run(
        self, contests: dict[int, Contest], share: float = 1.0, narrow: float = math.inf
    ) -> None:
        """Compare variants one after the other, the most decisive first, until each gain is clear.

        All take at most this share (0 to 1) of the time left. A gain is clear below the half-width
        `narrow` of its interval, without what more pairs do not change.
        """
        ends_s = self._measurement.used_s + share * max(self._measurement.left_s, 0.0)
        for place, (variant, contest) in enumerate(contests.items()):
            left_s = max(ends_s - self._measurement.used_s, 0.0)
            if variant not in self.failed:
                self._measurement.now(contest.name)
                self._compare(variant, contest, left_s / (len(contests) - place), narrow)

    def _compare(self, variant: int, contest: Contest, most_s: float, narrow: float) -> None:
        began_s = time.perf_counter()
        mine = [pair for pair in self.pairs if pair.variant == variant]
        look_at = max(_FEWEST // contest.samples, _FEWEST_BATCHES, len(mine))
        for done, pair in enumerate(count(len(mine))):
            if pair == look_at:
                look_at += max(int(_LOOK_AFTER * pair), 1)
                factor = of_samples(*times(mine, variant))
                reach = math.hypot(narrow, known_reach(factor.factor))
                if factor.says == FASTER and factor.half_width <= reach:
                    return
                if factor.says in (SAME, SLOWER) or (factor.high or 0.0) < 1 + ALIKE / 2:
                    return  # no gain, whether slower or the same
            used_s = time.perf_counter() - began_s
            if used_s + (used_s / done if done else contest.expected_s) > most_s:
                return
            unit = contest.units[pair % len(contest.units)]
            if pair < len(contest.units):
                contest.as_it_is(unit)  # the first call reads the file and maps pages
            row = self._pair(variant, pair, contest, unit)
            if isinstance(row, str):
                self.failed[variant] = row
                return
            mine.append(row)
            self.pairs.append(row)

    def _pair(self, variant: int, pair: int, contest: Contest, unit: Any) -> SamplePair | str:
        """Return the times of a pair, or why the variant has none."""
        took_s = [contest.beside_s] * 2
        # Random: in strict turns, freed memory helps every second call
        for place in self._order.permutation(2):
            seed_everywhere(pair)
            make = partial((contest.as_it_is, contest.variant)[place], unit)
            try:
                took_s[place] += own_s(make)
            except Exception as error:
                if not place:  # the user's own
                    raise
                message = f"{type(error).__name__}: {said_by(error)}"
                return f"raises {message:.160}"
        return SamplePair(variant, pair, contest.samples, *took_s)

    def factor(self, variant: int) -> Factor:
        """Compare a variant with the baseline."""
        return compared(self.pairs, variant)

    def table(self) -> pl.DataFrame:
        """Return the pairs, columns of `PAIRS`."""
        return pl.DataFrame(self.pairs, PAIRS, orient="row")


def times(pairs: Iterable[SamplePair], variant: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each pair of a variant: as it is, and by the variant."""
    mine = [pair for pair in pairs if pair.variant == variant]
    return [pair.as_it_is_s for pair in mine], [pair.seconds for pair in mine]


def compared(pairs: Iterable[SamplePair], variant: int) -> Factor:
    """Compare a variant with the baseline."""
    return of_samples(*times(pairs, variant))


def pairs_of(table: pl.DataFrame) -> list[SamplePair]:
    """Return the rows of a table with the columns of `PAIRS`."""
    return [SamplePair(*row) for row in table.rows()]
