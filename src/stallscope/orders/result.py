"""The orders of a pipeline as a value: do they give the same data, and how long do they take.

Everything before makes it, everything after reads it. What can still run the pipeline is an
`evaluator.OrderEvaluator`, which may be missing. The table puts predicted beside measured times,
and says what may be used. A pipeline was measured on samples that were also made as it is, one
after the other; the best one in the loader's workers, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench import loops, samples
from stallscope.bench.comparison import FASTER, SLOWER, mean_of
from stallscope.bench.loops import BLOCKS, STORED_BLOCKS
from stallscope.bench.samples import PAIRS
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.result import Conditions, SavedResult
from stallscope.store import Contents, StoredTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from stallscope.store import Schema

    Picture = NDArray[np.uint8]

IDENTICAL: Final = "identical"
ROUNDING: Final = "rounding"
NEAR: Final = "8-bit rounding"
DIFFERENT: Final = "different"
FAILS: Final = "fails"
EQUIVALENCES: Final = (IDENTICAL, ROUNDING, NEAR, DIFFERENT, FAILS)
"""How a pipeline's data compares with the original's on the same draws, the best first: the same
bits; values that floating-point rounding moves; values that rounding to 8 bits in another place
moves; other values; no values, because it raises."""
ROUNDING_SHARE: Final = 1e-5
"""Of the values' range that rounding moves a value by at most, ..."""
NEAR_SHARE: Final = 1.5 / 255
"""... and rounding to 8 bits; see `orders.equivalence`."""
TOLERANCES: Final = (IDENTICAL, ROUNDING, NEAR)
"""How far the data of what is recommended may be from the original's."""

FETCH: Final = "fetch"
DECODE: Final = "decode"
BATCH: Final = "collate and send"
"""What the parts of a sample's time are called that are no ops."""

KINDS: Final = ("order", "alternative", "batch", "decode", "cache", "together")
"""What a pipeline changes: the order; an op for the user's rewrite; where an op works; how an image
is decoded; what is kept in memory; several of these."""
CACHE: Final = "cache"
"""The kind that is the user's decision: it costs memory that others may need."""

OPS: Schema = {
    "position": pl.Int32,
    "name": pl.String,
    "random": pl.Boolean,
    "settings": pl.String,
    "takes": pl.String,
    "gives": pl.String,
    "cost_s": pl.Float64,
    "cost_low_s": pl.Float64,
    "cost_high_s": pl.Float64,
    "file": pl.String,
    "line": pl.Int32,
}
"""One row an op of the pipeline as it is, in its order, and before them a row "decode" (position
-1) where a lazy image is decoded by the first op that touches it: that time is no op's. `random`:
it drew random numbers (null for decoding); `takes`, `gives`: type, dtype and shape in words; the
cost for its own input, seconds per sample, with the 2.5% and 97.5% points of the mean over
resampled samples (null where there was one); where its code is (null: not written in Python)."""

TRIALS: Schema = {
    "trial": pl.Int32,
    "kind": pl.String,
    "positions": pl.List(pl.Int32),
    "order": pl.String,
    "change": pl.String,
    "changes": pl.String,
    "predicted_s": pl.Float64,
    "equivalence": pl.String,
    "max_difference": pl.Float64,
    "psnr_db": pl.Float64,
    "compared": pl.Int32,
    "why": pl.String,
    "gains": pl.Boolean,
    "code": pl.String,
}
"""One row a pipeline that was looked at; trial 0 is the pipeline as it is. `positions`: the ops in
its order, by their position as it is; `change`: what it changes, in words; `changes`: what that
means for the model, "" for nothing; `predicted_s`: per sample, null where it fails;
`max_difference`: the largest of a value as a share (0 to 1) of the values' range, and the lowest
PSNR of a sample (null: identical, or not comparable); `compared`: how many samples; `why`: the
reason, where there is one; `gains`: it should be faster and costs no memory; `code`: Python source
that makes the new pipeline from a `loader`, "" where there is none."""

COSTS: Schema = {
    "op": pl.Int32,
    "before": pl.List(pl.Int32),
    "state": pl.String,
    "seconds": pl.Float64,
    "why_not": pl.String,
}
"""One row for each op in a state in which it was tried: its position, the positions applied before
it, the digest of its inputs, seconds per sample, and the error, if it raised one (seconds null)."""

PARTS: Schema = {
    "trial": pl.Int32,
    "name": pl.String,
    "seconds": pl.Float64,
    "kind": pl.Enum(["fetch", "decode", "transform", "collate"]),
}
"""One row for each part of a trial's predicted time, in the order in which they happen: an op's
name or what it is else, seconds per sample, and the kind of stage. None of a trial whose parts
cannot be told apart."""

_NEVER_NULL: Final = {
    *("trial", "kind", "positions", "order", "change", "changes"),
    *("equivalence", "compared", "gains", "code"),
}
"""Of the columns of `TRIALS`."""


class NoSuchOrderError(StallscopeError, ValueError):
    """There is no such trial, or these are not the positions of all ops."""


class CostPart(NamedTuple):
    """One part of what a sample costs."""

    name: str
    """An op's name, or what it is else."""
    seconds: float
    """Per sample."""
    kind: str
    """One of those in `PARTS`."""


class Prediction(NamedTuple):
    """What a pipeline should cost, from the costs of its ops in the states they would meet."""

    seconds: float | None
    """Per sample; None where the order raises."""
    parts: tuple[CostPart, ...] = ()
    """In the order in which they happen; up to the op that raises."""
    why: str = ""
    """Why there is no prediction."""


class Equivalence(NamedTuple):
    """A pipeline's data against the original's, on the same samples and draws.

    All but the pictures are columns of `TRIALS`.
    """

    equivalence: str
    max_difference: float | None = None
    psnr_db: float | None = None
    compared: int = 0
    why: str = ""
    pictures: tuple[tuple[Picture, Picture], ...] = ()
    """A few samples, original and new, uint8 of shape (height, width, 3); none where samples are
    no images."""


class OrderTiming(NamedTuple):
    """A pipeline beside the original, on the same samples; columns of `TABLE`."""

    measured_s: float
    measured_low_s: float | None
    measured_high_s: float | None
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    says: str | None


@dataclass(frozen=True)
class FixedCosts:
    """What a sample costs outside of its ops, seconds per sample, in one process."""

    fetch_s: float = 0.0
    """The dataset's own code: reading, and whatever else it does around the pipeline."""
    decode_s: float = 0.0
    """Decoding a lazy image, which happens in the first op that touches its pixels; 0: none was
    lazy."""
    batch_s: float = 0.0
    """Its share of collating the batch and copying it to shared memory."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.fetch_s + self.decode_s + self.batch_s


@dataclass(frozen=True)
class Counts:
    """How much of all orders was looked at."""

    measurements: int = 0
    """Ops that were timed in a state."""
    states: int = 0
    """Different (set of ops applied, data) that were reached."""
    exhaustive: int = 0
    """Ops that timing every order by itself would have needed: n times n!."""
    unexplored: int = 0
    """Ops in a state that the budget left untried; more may lie behind each."""


@dataclass(frozen=True)
class OrdersConditions(Conditions):
    """What was measured, and on what."""

    pipeline: str = ""
    """Where the pipeline was found ("dataset.transform, a torchvision Compose")."""
    samples: int = 0
    """Samples on which orders were compared and ops timed."""
    batch_size: int | None = None
    """The loader's own; None where it has none."""
    tolerance: str = ROUNDING
    """One of `TOLERANCES`: how far the data of what is recommended may be from the original's."""
    budget_s: float = 0.0
    """What was allowed, seconds."""
    took_s: float = 0.0
    """What was used."""


@dataclass(frozen=True, eq=False)
class Orders(SavedResult):
    """The orders of a pipeline, and other changes to it: the same data or not, and how fast."""

    _view: ClassVar[str] = "orders.VIEW"
    _contents: ClassVar = Contents(
        kind="orders",
        noun="set of orders",
        tables=(
            StoredTable("ops", OPS, {"position", "name", "settings", "takes", "gives"}),
            StoredTable(
                "trials",
                TRIALS,
                _NEVER_NULL,
                unbounded={"max_difference", "psnr_db"},
                words={"equivalence": EQUIVALENCES, "kind": KINDS},
            ),
            StoredTable("pairs", PAIRS, PAIRS.keys(), positive={"as_it_is_s", "seconds"}),
            STORED_BLOCKS,
            StoredTable("costs", COSTS, {"op", "before", "state"}),
            StoredTable("parts", PARTS, PARTS.keys()),
        ),
        values={
            "rest": FixedCosts,
            "counts": Counts,
            "circumstances": OrdersConditions,
            "notes": tuple[str, ...],
        },
        words={"tolerance": TOLERANCES},
    )

    ops: pl.DataFrame
    """Columns of `OPS`."""
    trials: pl.DataFrame
    """Columns of `TRIALS`."""
    pairs: pl.DataFrame
    """Columns of `bench.samples.PAIRS`; a variant is a trial."""
    costs: pl.DataFrame
    """Columns of `COSTS`."""
    blocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BLOCKS))
    """Columns of `bench.loops.BLOCKS`: the best trial in the loader's workers, beside the one as it
    is."""
    parts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PARTS))
    """Columns of `PARTS`."""
    rest: FixedCosts = field(default_factory=FixedCosts)
    """What a sample costs outside of its ops."""
    counts: Counts = field(default_factory=Counts)
    """How much of all orders was looked at."""
    circumstances: OrdersConditions = field(default_factory=OrdersConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""
    bench: Any = field(default=None, repr=False)
    """The pipeline, still at hand (`evaluator.OrderEvaluator`); None: there is only this data."""

    @cached_property
    @computed_apart
    def _table(self) -> pl.DataFrame:
        return orders_table(self)

    def table(self) -> pl.DataFrame:
        """One row a trial: the recommended ones first, the fastest first, the original always.

        Returns:
            Columns of `TABLE`; times are seconds of one worker per sample.
        """
        return self._table

    @computed_apart
    def best(self, tolerance: str | None = None) -> dict[str, Any] | None:
        """The fastest trial that can be recommended, a row of `table`; None: there is none.

        Args:
            tolerance: one of `TOLERANCES`; that of the measurement by default.

        Raises:
            ArgumentError: it is none of them.
        """
        asked = check_tolerance(tolerance or self.circumstances.tolerance)
        rows = [row for row in self.table().to_dicts() if is_recommended(row, asked)]
        rows = [row for row in rows if row["says"] is not None] or rows
        most = max(map(speed_of, rows), default=0.0)
        fast = [row for row in rows if speed_of(row) >= _AS_FAST * most]
        return min(fast, key=lambda row: EQUIVALENCES.index(row["equivalence"]), default=None)

    def apply(
        self, loader: Any, trial: int | Sequence[int] | None = None, tolerance: str | None = None
    ) -> Any:
        """A new loader with a chosen pipeline; the given one stays as it is.

        Args:
            loader: the one that was measured, or one with the same pipeline at the same place.
            trial: the number of a trial, or the positions of an order; the best by default.
            tolerance: of the best one, as for `best`.

        Raises:
            ArgumentError: there is no such tolerance.
            NoSuchOrderError: there is no such trial, nothing to recommend, or no pipeline at hand.
        """
        if self.bench is None:
            raise NoSuchOrderError(
                "only the figures of these orders are here, not the pipeline: call ss.orders in "
                "this process, and apply what it returns"
            )
        if trial is None:
            best = self.best(tolerance)
            if best is None:
                raise NoSuchOrderError(
                    "no other pipeline was found that gives the same data faster: keep the loader "
                    "as it is, or name a trial of .table()"
                )
            trial = int(best["trial"])
        return self.bench.apply(loader, trial)


def check_tolerance(tolerance: object) -> str:
    """The tolerance, where it is one.

    Raises:
        ArgumentError: it is none.
    """
    if tolerance not in TOLERANCES:
        known = ", ".join(map(repr, TOLERANCES))
        raise ArgumentError(f"tolerance={tolerance!r}: give one of {known}")
    return str(tolerance)


def near_enough(tolerance: str) -> tuple[str, ...]:
    """Those of `EQUIVALENCES` that a tolerance allows."""
    return TOLERANCES[: TOLERANCES.index(tolerance) + 1]


def op_names(orders: Orders) -> dict[int, str]:
    """Name each op, by its position, in the order of the pipeline as it is."""
    rows = orders.ops.filter(pl.col("position") >= 0).sort("position")
    return dict(rows.select("position", "name").iter_rows())


def parts_of(orders: Orders, trial: int) -> tuple[CostPart, ...]:
    """Take a trial's predicted time apart; gives nothing where that cannot be told."""
    rows = orders.parts.filter(pl.col("trial") == trial).drop("trial")
    return tuple(map(CostPart._make, rows.iter_rows()))


TABLE: Schema = {
    "order": pl.String,
    "change": pl.String,
    "predicted_s": pl.Float64,
    "measured_s": pl.Float64,
    "measured_low_s": pl.Float64,
    "measured_high_s": pl.Float64,
    "speedup": pl.Float64,
    "equivalence": pl.String,
    "max_difference": pl.Float64,
    "speedup_low": pl.Float64,
    "speedup_high": pl.Float64,
    "predicted_speedup": pl.Float64,
    "trial": pl.Int32,
    "kind": pl.String,
    "changes": pl.String,
    "recommended": pl.Boolean,
    "says": pl.String,
    "loader_gain": pl.Float64,
    "loader_gain_low": pl.Float64,
    "loader_gain_high": pl.Float64,
    "loader_says": pl.String,
    "gains": pl.Boolean,
    "psnr_db": pl.Float64,
    "compared": pl.Int32,
    "why": pl.String,
}
"""One row a trial; times in seconds of one worker per sample. `speedup`: the original's measured
time over the trial's, with its interval, and in `says` one of the four words of `bench.comparison`;
null where the trial was not measured, and then `predicted_speedup` is all there is. `loader_gain`:
how many times as many samples the loader gives with it, nobody using them; null where that was not
measured."""

_AS_FAST: Final = 0.97
"""What is nearer to the original's data is preferred, if it is so many times as fast."""
PROMISING: Final = 1.05
"""What is only predicted to be faster by less than this is not recommended."""


def orders_table(orders: Orders) -> pl.DataFrame:
    """One row a trial, columns of `TABLE`: recommended first, then the original, then the rest."""
    timings = timings_of(orders.pairs)
    blocks = loops.blocks_of(orders.blocks)
    whole_s = orders.trials["predicted_s"][0] if orders.trials.height else None
    rows = []
    for trial in orders.trials.iter_rows(named=True):
        timing = timings.get(trial["trial"])
        measured = timing._asdict() if timing else dict.fromkeys(OrderTiming._fields)
        promised = whole_s / trial["predicted_s"] if whole_s and trial["predicted_s"] else None
        gain: tuple[Any, ...] = (None,) * 4
        if trial["trial"] and loops.rate(blocks, trial["trial"]):
            gain = loops.compared(blocks, trial["trial"])
        in_loader = dict(zip(_IN_LOADER, gain, strict=True))
        row = {**trial, **measured, **in_loader, "predicted_speedup": promised}
        tolerance = orders.circumstances.tolerance
        rows.append(row | {"recommended": is_recommended(row, tolerance)})
    rows.sort(key=_rank)
    return pl.DataFrame([[row[name] for name in TABLE] for row in rows], TABLE, orient="row")


_IN_LOADER: Final = ("loader_gain", "loader_gain_low", "loader_gain_high", "loader_says")


def is_recommended(row: dict[str, Any], tolerance: str) -> bool:
    """Whether a trial's data is as near as that, and it is faster; a row of `TABLE`.

    Where it was not measured, the prediction has to promise more than its own noise.
    """
    near = row["equivalence"] in near_enough(tolerance)
    if not near or not row["gains"] or row["loader_says"] == SLOWER:
        return False
    if row["says"] is not None:
        return bool(row["says"] == FASTER)
    return row["predicted_speedup"] is not None and row["predicted_speedup"] > PROMISING


def timings_of(table: pl.DataFrame) -> dict[int, OrderTiming]:
    """How long each trial takes, and how many times as fast as the original it is.

    Its time follows from the original's and its factor, so that a page never shows a factor that is
    not the ratio of its times.

    Args:
        table: columns of `bench.samples.PAIRS`.

    Returns:
        By the trial's number; nothing where no pair was measured.
    """
    pairs = samples.pairs_of(table)
    if not pairs:
        return {}
    own = mean_of([one.as_it_is_s / max(one.samples, 1) for one in pairs])
    found = {0: OrderTiming(own.value, own.low, own.high, 1.0, None, None, None)}
    for trial in sorted({one.variant for one in pairs}):
        gain = samples.compared(pairs, trial)
        took = own.moved_to(own.value / gain.factor)
        found[trial] = OrderTiming(took.value, took.low, took.high, *gain)
    return found


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    """Recommended first (measured before predicted), the original next; fast before slow."""
    group = 0 if row["recommended"] else 1 if row["trial"] == 0 else 2
    is_measured = row["says"] is not None
    return (
        group,
        EQUIVALENCES.index(row["equivalence"]) if group == 2 else not is_measured,  # noqa: PLR2004
        -speed_of(row),
        row["trial"],
    )


def speed_of(row: dict[str, Any]) -> float:
    """How many times as fast a trial is, measured or else predicted; 0 where nothing is known."""
    return float(row["speedup"] or row["predicted_speedup"] or 0.0)
