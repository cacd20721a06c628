"""The result of `ss.orders`: the variants of a pipeline, their table, and the best one.

A variant is timed in turn with the original, on the same samples; the best one also in the loader's
workers. An `evaluator.OrderEvaluator`, if present, can still run the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench import samples
from stallscope.bench.comparison import (
    AS_FAST,
    BLOCKS,
    FASTER,
    SLOWER,
    blocks_of,
    compared,
    mean_of,
    rate,
)
from stallscope.bench.samples import PAIRS
from stallscope.columns import CODE_FILE, NAME, Column, Schema, interval
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.result import Conditions, SavedResult
from stallscope.store import stored
from stallscope.units import printable
from stallscope.verbs.orders.variant import (
    EQUIVALENCES,
    KINDS,
    ROUNDING,
    TOLERANCES,
    CostPart,
    FixedCosts,
    Grade,
    Variant,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stallscope.bench.samples import SamplePair

OPS: Final = Schema(
    'One row per op of the original pipeline, in order; "decode" (-1) decodes a lazy image.',
    Column("position", pl.Int32),
    Column("name", pl.String, secret=NAME),
    Column("random", pl.Boolean, "true if it drew random numbers; null for decoding"),
    Column("settings", pl.String),
    Column("takes", pl.String, "type, dtype and shape in words"),
    Column("gives", pl.String, "type, dtype and shape in words"),
    Column("cost_s", pl.Float64, "time for its own input, per sample"),
    *interval("cost_low_s", doc="its 95% CI over the samples; null: a single sample"),
    Column("file", pl.String, "file of its code; null: not written in Python", secret=CODE_FILE),
    Column("line", pl.Int32),
    nullable="random cost_s cost_low_s cost_high_s file line",
)

TRIALS: Final = Schema(
    "One row per variant, with the fields of `Variant` and of its grade; 0 is the original.",
    Column("trial", pl.Int32),
    Column("kind", pl.String, words=KINDS),
    Column("positions", pl.List(pl.Int32)),
    Column("order", pl.String),
    Column("change", pl.String),
    Column("changes", pl.String),
    Column("predicted_s", pl.Float64),
    Column("equivalence", pl.String, words=EQUIVALENCES),
    Column("max_difference", pl.Float64, any_number=True),
    Column("psnr_db", pl.Float64, any_number=True),
    Column("compared", pl.Int32),
    Column("why", pl.String),
    Column("gains", pl.Boolean),
    Column("code", pl.String),
    nullable="predicted_s max_difference psnr_db why",
)

PARTS: Final = Schema(
    "One row per part of a trial's predicted time, in order: fields of `variant.CostPart`.",
    Column("trial", pl.Int32),
    Column("name", pl.String, secret=NAME),
    Column("seconds", pl.Float64),
    Column("kind", pl.Enum(["fetch", "decode", "transform", "collate"])),
)

TABLE: Final = Schema(
    "One row per trial; times in seconds of one worker per sample.",
    Column("order", pl.String, "its ops in their order"),
    Column("change", pl.String, "its change in words"),
    Column("predicted_s", pl.Float64),
    Column("measured_s", pl.Float64, "null: not measured"),
    *interval("measured_low_s"),
    Column("speedup", pl.Float64, "measured time of the original over its own"),
    Column("equivalence", pl.String, "grade of its data"),
    Column("max_difference", pl.Float64, "largest difference, share of the values' range"),
    *interval("speedup_low", doc="95% CI of the speedup"),
    Column("predicted_speedup", pl.Float64),
    Column("trial", pl.Int32, "0: the original"),
    Column("kind", pl.String),
    Column("changes", pl.String, "consequence for the model"),
    Column("recommended", pl.Boolean),
    Column("says", pl.String, "word of `bench.comparison` of the speedup"),
    Column("loader_gain", pl.Float64, "speedup of the loader alone; null: not measured"),
    *interval("loader_gain_low"),
    Column("loader_says", pl.String, "word of `bench.comparison` of the loader's speedup"),
    Column("gains", pl.Boolean, "true if it is predicted to be faster and costs no memory"),
    Column("psnr_db", pl.Float64, "lowest of a sample; null: identical, or not comparable"),
    Column("compared", pl.Int32, "samples that were compared"),
    Column("why", pl.String, "reason of the grade"),
)

PROMISING: Final = 1.05
"""Smallest speedup that is worth a word: predicted, of other data, or for memory."""


class NoSuchOrderError(StallscopeError, ValueError):
    """No such trial, or not the positions of all ops."""


@dataclass(frozen=True)
class Counts:
    """Extent of the search."""

    measurements: int = 0
    """Ops that were timed in a state."""
    states: int = 0
    """Distinct pairs of applied ops and data that were reached."""
    exhaustive: int = 0
    """Ops that timing every order alone would need: n times n!."""
    unexplored: int = 0
    """Ops in a state that the budget left untried; more may lie behind each."""


@dataclass(frozen=True)
class OrdersConditions(Conditions):
    """Pipeline that was measured, and the settings."""

    pipeline: str = ""
    """Place and kind of the pipeline ("dataset.transform, a torchvision Compose")."""
    samples: int = 0
    """Samples on which orders were compared and ops timed."""
    batch_size: int | None = None
    """Batch size of the loader; None: it makes no batches."""
    tolerance: str = ROUNDING
    """One of `TOLERANCES`: largest difference of recommended data from the original's."""
    budget_s: float = 0.0
    """Time limit, seconds."""
    took_s: float = 0.0
    """Time used, seconds."""

    def __post_init__(self) -> None:
        if self.tolerance not in TOLERANCES:
            raise ValueError(f"the tolerance is an unknown word ({printable(self.tolerance)})")


@dataclass(frozen=True, eq=False)
class Orders(SavedResult):
    """Orders of a pipeline and other changes to it, with their data's grade and speed."""

    _view: ClassVar[str] = "results.ORDERS"
    _noun: ClassVar[str] = "set of orders"

    ops: pl.DataFrame = stored(OPS)
    trials: pl.DataFrame = stored(TRIALS)
    pairs: pl.DataFrame = stored(PAIRS)
    """Pairs of the original and a variant, which is a trial."""
    blocks: pl.DataFrame = stored(BLOCKS)
    """Blocks of the best trial and the original in the loader's workers."""
    parts: pl.DataFrame = stored(PARTS)
    rest: FixedCosts = field(default_factory=FixedCosts)
    """Time of a sample outside of its ops."""
    counts: Counts = field(default_factory=Counts)
    """Extent of the search."""
    circumstances: OrdersConditions = field(default_factory=OrdersConditions)
    """Pipeline that was measured, and the settings."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""
    bench: Any = field(default=None, repr=False)
    """Evaluator of the pipeline (`evaluator.OrderEvaluator`); None: only data, as in a file."""

    @cached_property
    @computed_apart
    def variants(self) -> tuple[Variant, ...]:
        """All variants: recommended ones first (measured before predicted), then the original."""
        return tuple(sorted(_variants_of(self), key=self._rank))

    def _rank(self, variant: Variant) -> tuple[Any, ...]:
        group, nearness = 2, EQUIVALENCES.index(variant.grade.equivalence)
        if self.recommends(variant):
            group, nearness = 0, int(variant.says is None)
        elif variant.trial == 0:
            group = 1
        return group, nearness, -variant.fast, variant.trial

    def recommends(self, variant: Variant, tolerance: str = "") -> bool:
        """Return true if a variant is faster, and its data is within the tolerance.

        If it was not measured, the predicted speedup has to exceed the noise of predictions.
        """
        if not variant.gains or not variant.grade.within(tolerance or self.circumstances.tolerance):
            return False
        if variant.loader_gain is not None and variant.loader_gain.says == SLOWER:
            return False
        if variant.says is not None:
            return variant.says == FASTER
        return (variant.predicted_speedup or 0.0) > PROMISING

    @computed_apart
    def table(self) -> pl.DataFrame:
        """Return one row per trial, recommended ones first, then the original.

        Returns:
            Columns of `TABLE`; times are seconds of one worker per sample.
        """
        rows = [list(self._row(variant).values()) for variant in self.variants]
        return pl.DataFrame(rows, TABLE, orient="row")

    def _row(self, variant: Variant) -> dict[str, Any]:
        took, speedup, gain = variant.measured, variant.speedup, variant.loader_gain
        fields = {
            **vars(variant),
            **variant.grade._asdict(),
            "measured_s": took and took.value,
            "measured_low_s": took and took.low,
            "measured_high_s": took and took.high,
            "speedup": speedup.factor if speedup else 1.0 if took else None,
            "speedup_low": speedup and speedup.low,
            "speedup_high": speedup and speedup.high,
            "says": variant.says,
            "loader_gain": gain and gain.factor,
            "loader_gain_low": gain and gain.low,
            "loader_gain_high": gain and gain.high,
            "loader_says": gain and gain.says,
            "recommended": self.recommends(variant),
        }
        return {name: fields[name] for name in TABLE}

    def best_variant(self, tolerance: str = "") -> Variant | None:
        """Return the fastest recommended variant; None: there is none.

        Raises:
            ArgumentError: there is no such tolerance.
        """
        allowed = check_tolerance(tolerance or self.circumstances.tolerance)
        good = [variant for variant in self.variants if self.recommends(variant, allowed)]
        good = [variant for variant in good if variant.says is not None] or good
        most = max((variant.fast for variant in good), default=0.0)
        fast = [variant for variant in good if variant.fast >= AS_FAST * most]
        return min(
            fast, key=lambda variant: EQUIVALENCES.index(variant.grade.equivalence), default=None
        )

    def best(self, tolerance: str | None = None) -> dict[str, Any] | None:
        """Return the fastest recommended trial, a row of `table`; None: there is none.

        Args:
            tolerance: one of `TOLERANCES`; that of the measurement by default.

        Raises:
            ArgumentError: there is no such tolerance.
        """
        variant = self.best_variant(tolerance or "")
        return None if variant is None else self._row(variant)

    def apply(
        self, loader: Any, trial: int | Sequence[int] | None = None, tolerance: str | None = None
    ) -> Any:
        """Return a new loader with a chosen pipeline; the old loader stays unchanged.

        Args:
            loader: the measured loader, or another with the same pipeline at the same place.
            trial: the number of a trial, or the positions of an order; the best by default.
            tolerance: of the best one, as for `best`.

        Raises:
            ArgumentError: there is no such tolerance.
            NoSuchOrderError: there is no such trial, nothing to recommend, or no pipeline at hand.
        """
        if self.bench is None:
            raise NoSuchOrderError(
                "this result holds data only, not the pipeline: call ss.orders in this process, "
                "and apply its result"
            )
        return self.bench.apply(loader, self._chosen(tolerance).trial if trial is None else trial)

    def code(self, tolerance: str | None = None) -> str:
        """Return source that sets the best pipeline in a `loader`, or shows the lines to move.

        Args:
            tolerance: of the best one, as for `best`.

        Returns:
            Source; a comment that names `apply` if the change is more than another row of ops.

        Raises:
            ArgumentError: there is no such tolerance.
            NoSuchOrderError: there is nothing to recommend.
        """
        chosen = self._chosen(tolerance)
        return chosen.code or f"# {chosen.change}: loader = orders.apply(loader)"

    def _chosen(self, tolerance: str | None) -> Variant:
        best = self.best_variant(tolerance or "")
        if best is None:
            raise NoSuchOrderError(
                "no other pipeline gives the same data faster: keep the current loader, or name a "
                "trial of .table()"
            )
        return best


def check_tolerance(tolerance: object) -> str:
    """Return the tolerance.

    Raises:
        ArgumentError: it is not one of `TOLERANCES`.
    """
    if tolerance not in TOLERANCES:
        listed = ", ".join(map(repr, TOLERANCES))
        raise ArgumentError(f"tolerance={tolerance!r}: give one of {listed}")
    return str(tolerance)


def op_names(orders: Orders) -> dict[int, str]:
    """Return the name of each op, by its position, in the original order."""
    rows = orders.ops.filter(pl.col("position") >= 0).sort("position")
    return dict(rows.select("position", "name").iter_rows())


def trials_table(variants: Iterable[Variant]) -> pl.DataFrame:
    """Return a table of variants, with the columns of `TRIALS`."""
    rows = [{**vars(variant), **variant.grade._asdict()} for variant in variants]
    return pl.DataFrame([[row[name] for name in TRIALS] for row in rows], TRIALS, orient="row")


def parts_table(variants: Iterable[Variant]) -> pl.DataFrame:
    """Return a table of the parts of the variants that work, with the columns of `PARTS`."""
    working = [variant for variant in variants if variant.grade.works]
    rows = [(variant.trial, *part) for variant in working for part in variant.parts]
    return pl.DataFrame(rows, PARTS, orient="row")


def _variants_of(orders: Orders) -> Iterator[Variant]:
    """Yield the variants with their measurements, from the tables of a result."""
    pairs, blocks = samples.pairs_of(orders.pairs), blocks_of(orders.blocks)
    measured = {0, *(pair.variant for pair in pairs)} if pairs else set()
    whole_s = 0.0
    for row in orders.trials.iter_rows(named=True):
        row["grade"] = Grade(*(row.pop(name) for name in Grade._fields))
        row["positions"] = tuple(row["positions"])
        parts = orders.parts.filter(trial=row["trial"]).drop("trial")
        variant = Variant(**row, parts=tuple(map(CostPart._make, parts.iter_rows())))
        whole_s = whole_s or variant.predicted_s or 0.0
        if whole_s and variant.predicted_s:
            variant = replace(variant, predicted_speedup=whole_s / variant.predicted_s)
        if variant.trial in measured:
            variant = timed(variant, pairs, variant.trial)
        if variant.trial and rate(blocks, variant.trial):
            variant = replace(variant, loader_gain=compared(blocks, variant.trial))
        yield variant


def timed(variant: Variant, pairs: Sequence[SamplePair], number: int) -> Variant:
    """Return a variant with its measured time and speedup.

    The time follows from the original's time and the speedup, so that on a page a speedup is always
    the ratio of two times. The pairs are those of all variants, so that all have the same original
    time; `number` is the variant's in the pairs (0: the original).
    """
    own = mean_of([pair.as_it_is_s / max(pair.samples, 1) for pair in pairs])
    if not number:
        return replace(variant, measured=own)
    gain = samples.compared(pairs, number)
    return replace(variant, measured=own.moved_to(own.value / gain.factor), speedup=gain)
