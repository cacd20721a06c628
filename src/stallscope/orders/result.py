"""The orders of a pipeline as a value: their table, which one is the best, and the sentences.

Everything before makes it, everything after reads it. What can still run the pipeline is an
`evaluator.OrderEvaluator`, which may be missing. A pipeline was measured on samples that were also
made as it is, one after the other; the best one in the loader's workers, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench import loops, samples
from stallscope.bench.comparison import FASTER, SLOWER, mean_of
from stallscope.bench.loops import BLOCKS, STORED_BLOCKS
from stallscope.bench.samples import PAIRS
from stallscope.columns import CODE_FILE, NAME, Column, Schema
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.orders.variant import (
    EQUIVALENCES,
    KINDS,
    ROUNDING,
    TOLERANCES,
    CostPart,
    Grade,
    Variant,
)
from stallscope.result import Conditions, SavedResult
from stallscope.store import Contents, StoredTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stallscope.bench.samples import SamplePair

OPS: Final = Schema(
    'One row an op of the pipeline as it is, in its order; "decode" (-1) decodes a lazy image.',
    Column("position", pl.Int32),
    Column("name", pl.String, secret=NAME),
    Column("random", pl.Boolean, "whether it drew random numbers; null for decoding"),
    Column("settings", pl.String),
    Column("takes", pl.String, "type, dtype and shape in words"),
    Column("gives", pl.String, "the same"),
    Column("cost_s", pl.Float64, "time for its own input, per sample"),
    Column("cost_low_s", pl.Float64, "2.5% point over resampled samples; null: there was one"),
    Column("cost_high_s", pl.Float64, "97.5% point"),
    Column("file", pl.String, "where its code is; null: not written in Python", secret=CODE_FILE),
    Column("line", pl.Int32),
)

TRIALS: Final = Schema(
    "One row a pipeline, with the fields of `variant.Variant` and of its grade; 0 is as it is.",
    Column("trial", pl.Int32),
    Column("kind", pl.String),
    Column("positions", pl.List(pl.Int32)),
    Column("order", pl.String),
    Column("change", pl.String),
    Column("changes", pl.String),
    Column("predicted_s", pl.Float64),
    Column("equivalence", pl.String),
    Column("max_difference", pl.Float64),
    Column("psnr_db", pl.Float64),
    Column("compared", pl.Int32),
    Column("why", pl.String),
    Column("gains", pl.Boolean),
    Column("code", pl.String),
)

PARTS: Final = Schema(
    "One row a part of a trial's predicted time, in order: fields of `variant.CostPart`.",
    Column("trial", pl.Int32),
    Column("name", pl.String, secret=NAME),
    Column("seconds", pl.Float64),
    Column("kind", pl.Enum(["fetch", "decode", "transform", "collate"])),
)

TABLE: Final = Schema(
    "One row a trial; times in seconds of one worker per sample.",
    Column("order", pl.String, "its ops in their order"),
    Column("change", pl.String, "what it changes"),
    Column("predicted_s", pl.Float64),
    Column("measured_s", pl.Float64, "null: not measured"),
    Column("measured_low_s", pl.Float64, "its 95% CI"),
    Column("measured_high_s", pl.Float64),
    Column("speedup", pl.Float64, "measured time of the original over its own"),
    Column("equivalence", pl.String, "grade of its data"),
    Column("max_difference", pl.Float64, "largest of a value, share of the values' range"),
    Column("speedup_low", pl.Float64, "95% CI of the speedup"),
    Column("speedup_high", pl.Float64),
    Column("predicted_speedup", pl.Float64),
    Column("trial", pl.Int32, "0: the pipeline as it is"),
    Column("kind", pl.String),
    Column("changes", pl.String, "what that means for the model"),
    Column("recommended", pl.Boolean),
    Column("says", pl.String, "word of `bench.comparison` of the speedup"),
    Column("loader_gain", pl.Float64, "speedup of the loader alone; null: not measured"),
    Column("loader_gain_low", pl.Float64, "its 95% CI"),
    Column("loader_gain_high", pl.Float64),
    Column("loader_says", pl.String, "word of `bench.comparison` of that"),
    Column("gains", pl.Boolean, "whether it should be faster and costs no memory"),
    Column("psnr_db", pl.Float64, "lowest of a sample; null: identical, or not comparable"),
    Column("compared", pl.Int32, "samples that were compared"),
    Column("why", pl.String, "reason of the grade"),
)

_AS_FAST: Final = 0.97
"""What is nearer to the original's data is preferred, if it is so many times as fast."""
_PROMISING: Final = 1.05
"""What is only predicted to be faster by less than this is not recommended."""


class NoSuchOrderError(StallscopeError, ValueError):
    """There is no such trial, or these are not the positions of all ops."""


@dataclass(frozen=True)
class FixedCosts:
    """Time of a sample outside of its ops, seconds per sample, in one process."""

    fetch_s: float = 0.0
    """The dataset's own code: reading, and whatever else it does around the pipeline."""
    decode_s: float = 0.0
    """Decoding a lazy image, which happens in the first op that touches its pixels; 0: none was
    lazy."""
    batch_s: float = 0.0
    """Its share of collating the batch and copying it to shared memory."""

    @property
    def total_s(self) -> float:
        """Sum of all of them."""
        return self.fetch_s + self.decode_s + self.batch_s


@dataclass(frozen=True)
class Counts:
    """Extent of the search."""

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
    """Seconds that were allowed."""
    took_s: float = 0.0
    """Seconds that were used."""


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
                TRIALS.keys() - {"predicted_s", "max_difference", "psnr_db", "why"},
                unbounded={"max_difference", "psnr_db"},
                words={"equivalence": EQUIVALENCES, "kind": KINDS},
            ),
            StoredTable("pairs", PAIRS, PAIRS.keys(), positive={"as_it_is_s", "seconds"}),
            STORED_BLOCKS,
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
    blocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BLOCKS))
    """Columns of `bench.loops.BLOCKS`: the best trial in the loader's workers, beside the one as it
    is."""
    parts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PARTS))
    """Columns of `PARTS`."""
    rest: FixedCosts = field(default_factory=FixedCosts)
    """Time of a sample outside of its ops."""
    counts: Counts = field(default_factory=Counts)
    """Extent of the search."""
    circumstances: OrdersConditions = field(default_factory=OrdersConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out or has to be known."""
    bench: Any = field(default=None, repr=False)
    """The pipeline, still at hand (`evaluator.OrderEvaluator`); None: there is only this data."""

    @cached_property
    @computed_apart
    def _ranked(self) -> tuple[Variant, ...]:
        """Recommended ones first (measured before predicted), the original next; fast first."""
        return tuple(sorted(_variants_of(self), key=self._rank))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every pipeline that was looked at, in the order of the table."""
        return self._ranked

    def _rank(self, variant: Variant) -> tuple[Any, ...]:
        group, nearness = 2, EQUIVALENCES.index(variant.grade.equivalence)
        if self.recommends(variant):
            group, nearness = 0, int(variant.says is None)
        elif variant.trial == 0:
            group = 1
        return group, nearness, -variant.fast, variant.trial

    def recommends(self, variant: Variant, tolerance: str = "") -> bool:
        """Return whether a pipeline's data is near enough, and it is faster.

        Where it was not measured, the prediction has to promise more than its own noise.
        """
        if not variant.gains or not variant.grade.within(tolerance or self.circumstances.tolerance):
            return False
        if variant.loader_gain is not None and variant.loader_gain.says == SLOWER:
            return False
        if variant.says is not None:
            return variant.says == FASTER
        return (variant.predicted_speedup or 0.0) > _PROMISING

    @cached_property
    @computed_apart
    def _table(self) -> pl.DataFrame:
        rows = [list(self._row(variant).values()) for variant in self.variants]
        return pl.DataFrame(rows, TABLE, orient="row")

    def table(self) -> pl.DataFrame:
        """One row a trial: the recommended ones first, the fastest first, the original always.

        Returns:
            Columns of `TABLE`; times are seconds of one worker per sample.
        """
        return self._table

    def _row(self, variant: Variant) -> dict[str, Any]:
        took, speedup, gain = variant.measured, variant.speedup, variant.loader_gain
        known = {
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
        return {name: known[name] for name in TABLE}

    def best_variant(self, tolerance: str = "") -> Variant | None:
        """Return the fastest pipeline that can be recommended; None: there is none."""
        good = [one for one in self.variants if self.recommends(one, tolerance)]
        good = [one for one in good if one.says is not None] or good
        most = max((one.fast for one in good), default=0.0)
        fast = [one for one in good if one.fast >= _AS_FAST * most]
        return min(fast, key=lambda one: EQUIVALENCES.index(one.grade.equivalence), default=None)

    @computed_apart
    def best(self, tolerance: str | None = None) -> dict[str, Any] | None:
        """The fastest trial that can be recommended, a row of `table`; None: there is none.

        Args:
            tolerance: one of `TOLERANCES`; that of the measurement by default.

        Raises:
            ArgumentError: it is none of them.
        """
        found = self.best_variant(check_tolerance(tolerance or self.circumstances.tolerance))
        return None if found is None else self._row(found)

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
        chosen = self._chosen(tolerance) if trial is None else trial
        return self.bench.apply(loader, chosen)

    def code(self, tolerance: str | None = None) -> str:
        """Source of the best pipeline: it sets it in a `loader`, or shows the lines to move.

        Args:
            tolerance: of the best one, as for `best`.

        Returns:
            A comment that names `apply` where the change is more than another row of ops.

        Raises:
            ArgumentError: there is no such tolerance.
            NoSuchOrderError: there is nothing to recommend.
        """
        trial = self._chosen(tolerance)
        chosen = next(one for one in self.variants if one.trial == trial)
        return chosen.code or f"# {chosen.change}: loader = orders.apply(loader)"

    def _chosen(self, tolerance: str | None) -> int:
        best = self.best(tolerance)
        if best is None:
            raise NoSuchOrderError(
                "no other pipeline was found that gives the same data faster: keep the loader "
                "as it is, or name a trial of .table()"
            )
        return int(best["trial"])


def check_tolerance(tolerance: object) -> str:
    """Return the tolerance.

    Raises:
        ArgumentError: it is none.
    """
    if tolerance not in TOLERANCES:
        known = ", ".join(map(repr, TOLERANCES))
        raise ArgumentError(f"tolerance={tolerance!r}: give one of {known}")
    return str(tolerance)


def op_names(orders: Orders) -> dict[int, str]:
    """Name each op, by its position, in the order of the pipeline as it is."""
    rows = orders.ops.filter(pl.col("position") >= 0).sort("position")
    return dict(rows.select("position", "name").iter_rows())


def trials_table(variants: Iterable[Variant]) -> pl.DataFrame:
    """Write variants as a table with the columns of `TRIALS`."""
    rows = [{**vars(one), **one.grade._asdict()} for one in variants]
    return pl.DataFrame([[row[name] for name in TRIALS] for row in rows], TRIALS, orient="row")


def parts_table(variants: Iterable[Variant]) -> pl.DataFrame:
    """Write the parts of variants as a table with the columns of `PARTS`."""
    rows = [(one.trial, *part) for one in variants for part in one.parts]
    return pl.DataFrame(rows, PARTS, orient="row")


def _variants_of(orders: Orders) -> list[Variant]:
    """Read the variants, with what was measured of them, from the tables of a result."""
    pairs, blocks = samples.pairs_of(orders.pairs), loops.blocks_of(orders.blocks)
    parts: dict[int, list[CostPart]] = {}
    for trial, *part in orders.parts.iter_rows():
        parts.setdefault(trial, []).append(CostPart(*part))
    whole_s = orders.trials["predicted_s"][0] if orders.trials.height else None
    measured = {pair.variant for pair in pairs}
    found = []
    for row in orders.trials.iter_rows(named=True):
        trial, predicted_s = row["trial"], row["predicted_s"]
        grade = Grade(*(row.pop(name) for name in Grade._fields))
        row["positions"] = tuple(row["positions"])
        variant = Variant(
            **row,
            grade=grade,
            parts=tuple(parts.get(trial, ())),
            predicted_speedup=whole_s / predicted_s if whole_s and predicted_s else None,
        )
        if pairs and (trial in measured or trial == 0):
            variant = timed(variant, pairs, trial)
        if trial and loops.rate(blocks, trial):
            variant = replace(variant, loader_gain=loops.compared(blocks, trial))
        found.append(variant)
    return found


def timed(variant: Variant, pairs: Sequence[SamplePair], number: int) -> Variant:
    """Return a variant with its measured time and speedup.

    Its time follows from the original's and its factor, so that a page never shows a factor that is
    not the ratio of its times.

    Args:
        variant: the pipeline.
        pairs: all that were measured, so that all variants have one original.
        number: of the variant in them; 0: the original itself.
    """
    own = mean_of([one.as_it_is_s / max(one.samples, 1) for one in pairs])
    if not number:
        return replace(variant, measured=own)
    gain = samples.compared(pairs, number)
    return replace(variant, measured=own.moved_to(own.value / gain.factor), speedup=gain)
