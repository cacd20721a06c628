"""The tables of a run, from its spans: by stage, by sample, and what start-up cost.

Everything is linear in the number of spans: they come in the order in which each process wrote
them, so a sample's spans stand together and sums are taken by position, without a hash table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stallscope.stages import KINDS, SAMPLE_KINDS

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

STAGES: Schema = {
    "stage": pl.String,
    "kind": pl.Enum(KINDS),
    "count": pl.Int64,
    "busy_s": pl.Float64,
    "busy_share": pl.Float64,
    "exposed_s": pl.Float64,
    "p50_s": pl.Float64,
    "p95_s": pl.Float64,
    "p99_s": pl.Float64,
    "cpu_share": pl.Float64,
}
"""One row a stage, the longest first. Counts and percentiles are per sample for the stages of a
sample, per batch for the others; `cpu_share` is null where CPU time was not read."""

_ONE_BATCH = ("rank", "pid", "epoch", "batch")
_ONE_SAMPLE = (*_ONE_BATCH, "sample")


def stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Where the workers' time goes, by stage.

    Args:
        spans: columns of `analyze.spans.SPANS`, in the order in which they were recorded.

    Returns:
        Columns of `STAGES`. `exposed_s` is null until waits are recorded.
    """
    if spans.is_empty():
        return pl.DataFrame(schema=STAGES)
    codes, names = _codes(spans)
    wall_ns = (spans["end_ns"] - spans["start_ns"]).to_numpy()
    in_sample = spans["sample"].is_not_null().to_numpy()
    units = {True: _units(spans, _ONE_SAMPLE), False: _units(spans, _ONE_BATCH)}
    read = spans["cpu_ns"].is_not_null().to_numpy()
    cpu_ns = spans["cpu_ns"].fill_null(0).to_numpy()
    rows = []
    for code, (name, kind) in enumerate(names):
        for sampled in (True, False):
            here = np.flatnonzero((codes == code) & (in_sample == sampled))
            if here.size:
                per_unit_s = _sum_by_unit(units[sampled][here], wall_ns[here]) / 1e9
                cpu = _ratio(cpu_ns[here].sum(), wall_ns[here][read[here]].sum())
                rows.append((name, kind, per_unit_s, cpu))
    return _stage_table(rows)


def _stage_table(rows: list[tuple[str, str, np.ndarray, float | None]]) -> pl.DataFrame:
    total = sum(float(per_unit_s.sum()) for _, _, per_unit_s, _ in rows)
    table = [
        (
            name,
            kind,
            per_unit_s.size,
            float(per_unit_s.sum()),
            _ratio(per_unit_s.sum(), total),
            None,
            *np.percentile(per_unit_s, (50, 95, 99)).tolist(),
            cpu,
        )
        for name, kind, per_unit_s, cpu in rows
    ]
    return pl.DataFrame(table, schema=STAGES, orient="row").sort("busy_s", descending=True)


def samples(spans: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """What each sample cost, and in which part.

    Args:
        spans: columns of `analyze.spans.SPANS`, in the order in which they were recorded.
        known: columns of `analyze.spans.SAMPLES`.

    Returns:
        One row a sample: `epoch, batch, worker, index, start_ns, fetch_s, decode_s, transform_s,
        other_s, total_s`, then `sample` (its place in the batch), `slowest` (its longest stage),
        `path`, `width` and `height`. The four parts add up to `total_s`.
    """
    inside = spans.filter(pl.col("sample").is_not_null())
    units = _units(inside, _ONE_SAMPLE)
    first = np.flatnonzero(np.diff(units, prepend=-1))
    wall_ns = (inside["end_ns"] - inside["start_ns"]).to_numpy()
    kind = inside["kind"].to_physical().to_numpy()
    parts = {
        f"{name}_s": np.bincount(units, np.where(kind == KINDS.index(name), wall_ns, 0), first.size)
        / 1e9
        for name in SAMPLE_KINDS
    }
    frame = inside.select("epoch", "batch", "sample", "start_ns")[first].with_columns(
        *(pl.Series(name, values) for name, values in parts.items()),
        pl.Series("total_s", sum(parts.values(), np.zeros(first.size))),
        pl.Series("slowest", _slowest(inside, units, wall_ns), dtype=pl.String),
    )
    # `known` has one row for each sample, so this neither adds nor loses any
    joined = frame.join(known, on=["epoch", "batch", "sample"], how="left", maintain_order="left")
    order = ["epoch", "batch", "worker", "index", "start_ns", *parts, "total_s"]
    return joined.select(*order, "sample", "slowest", "path", "width", "height")


def _slowest(inside: pl.DataFrame, units: np.ndarray, wall_ns: np.ndarray) -> list[str]:
    """Name of the stage that took longest in each sample."""
    codes, names = _codes(inside)
    if not units.size:
        return []
    cells = np.bincount(units * len(names) + codes, wall_ns, (units[-1] + 1) * len(names))
    best = cells.reshape(-1, len(names)).argmax(axis=1)
    return [names[code][0] for code in best]


def _codes(spans: pl.DataFrame) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """A small number for each (stage, kind), and what it stands for."""
    physical = spans["stage"].to_physical().to_numpy().astype(np.int64)
    both = physical * len(KINDS) + spans["kind"].to_physical().to_numpy()
    present, codes = _unique_small(both)
    text = dict(zip(spans["stage"].unique().to_physical(), spans["stage"].unique(), strict=True))
    return codes, [(str(text[code // len(KINDS)]), KINDS[code % len(KINDS)]) for code in present]


def _unique_small(values: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Like `np.unique` with its inverse, for small numbers: linear, without sorting."""
    present = np.flatnonzero(np.bincount(values))
    places = np.zeros(int(present[-1]) + 1 if present.size else 1, dtype=np.int64)
    places[present] = np.arange(present.size)
    return present.tolist(), places[values]


def _units(spans: pl.DataFrame, same: tuple[str, ...]) -> np.ndarray:
    """The sample (or the batch) of each span, as a running number."""
    changed = np.zeros(spans.height, dtype=bool)
    for name in same:
        values = spans[name].fill_null(-1).to_numpy()
        changed[1:] |= values[1:] != values[:-1]
    return np.cumsum(changed)


def _sum_by_unit(units: np.ndarray, wall_ns: np.ndarray) -> np.ndarray:
    """Total per unit, for the units that occur; `units` never decreases."""
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    return np.add.reduceat(wall_ns, starts).astype(np.float64)


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None
