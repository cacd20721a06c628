"""Which of the user's own functions the time goes into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.stacks.frames import YOURS, Frame, frames, kind, owner
from stallscope.analyze.stacks.intervals import intervals

if TYPE_CHECKING:
    from stallscope.flames import Flame, Schema

TABLE: Schema = {
    "function": pl.String,
    "file": pl.String,
    "self_share": pl.Float64,
    "self_share_low": pl.Float64,
    "self_share_high": pl.Float64,
    "total_share": pl.Float64,
    "total_share_low": pl.Float64,
    "total_share_high": pl.Float64,
    "hits": pl.Int64,
    "samples": pl.Int64,
    "interval": pl.String,
}
"""One row a function of the user's own: none of an installed package, of Python's library or of
stallscope. Shares are of all samples that were chosen. `self_share`: the sample belongs to it, with
what torch, numpy and others compute for it, but not with what is a kind of its own (decode, a
library's transform, reading, sending), see `frames.owner`; `total_share`: it was anywhere on the
stack; `hits`: samples with it on the stack, `samples`: all of them. The ends are those of 95%
intervals, `interval` says how they were made: by resampling "windows" of consecutive samples, or
"Wilson", which takes samples as independent."""

ALL: Final = "all"
"""Workers, or stages, together."""


def chosen(
    samples: pl.DataFrame, worker: int | str | None = ALL, stage: str | None = ALL
) -> pl.DataFrame:
    """The samples of one worker (None: the main process), in one stage (None: not known)."""
    if worker != ALL:
        samples = samples.filter(pl.col("worker").eq_missing(pl.lit(worker)))
    if stage != ALL:
        samples = samples.filter(pl.col("stage").eq_missing(pl.lit(stage)))
    return samples


def table(flame: Flame, worker: int | str | None = ALL, stage: str | None = ALL) -> pl.DataFrame:
    """The share of each of the user's own functions, the largest share of its own first.

    Args:
        flame: what was sampled.
        worker: a worker's number, or None for the main process.
        stage: a stage's name, or None for samples whose stage is not known.

    Returns:
        Columns of `TABLE`.
    """
    samples = chosen(flame.samples, worker, stage)
    if samples.is_empty():
        return pl.DataFrame(schema=TABLE)
    units, counts, processes = _windows(samples)
    own, anywhere = _pairs(samples["stack"].unique(maintain_order=True).to_list())
    names = list(dict.fromkeys(anywhere["frame"].to_list()))
    if not names:
        return pl.DataFrame(schema=TABLE)
    inner, outer = (_matrix(units, pairs, names, len(counts)) for pairs in (own, anywhere))
    self_low, self_high, how = intervals(inner, counts, processes)
    total_low, total_high, _ = intervals(outer, counts, processes)
    count = counts.sum()
    found = [Frame(*name.split("\0")) for name in names]
    return pl.DataFrame(
        {
            "function": [one.function for one in found],
            "file": [one.file for one in found],
            "self_share": inner.sum(axis=0) / count,
            "self_share_low": self_low,
            "self_share_high": self_high,
            "total_share": outer.sum(axis=0) / count,
            "total_share_low": total_low,
            "total_share_high": total_high,
            "hits": outer.sum(axis=0).astype(np.int64),
            "samples": int(count),
            "interval": how,
        },
        TABLE,
    ).sort(["self_share", "total_share", "function"], descending=[True, True, False])


def kind_shares(samples: pl.DataFrame) -> dict[str, float]:
    """The share of samples that belong to each kind of frame, the largest first."""
    hits: dict[str, int] = {}
    for stack, many in samples.group_by("stack").agg(pl.col("hits").sum()).iter_rows():
        name = kind(owner(stack))
        hits[name] = hits.get(name, 0) + many
    count = sum(hits.values())
    return {name: hits[name] / count for name in sorted(hits, key=lambda name: -hits[name])}


def _windows(
    samples: pl.DataFrame,
) -> tuple[pl.DataFrame, np.ndarray[tuple[int], np.dtype[np.float64]], list[int]]:
    """Hits of each window and stack, samples of each window, and its process."""
    keys = ["pid", "window"] if "window" in samples.columns else ["pid"]
    count = samples.group_by(keys, maintain_order=True).agg(samples=pl.col("hits").sum())
    numbered = count.with_row_index("unit")
    units = samples.join(numbered, on=keys).select("unit", "stack", "hits")
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = count["samples"].to_numpy().astype(float)
    return units, found, count["pid"].to_list()


def _pairs(stacks: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """For each stack its owner, if that is the user's, and all of the user's functions in it."""
    own, anywhere = [], []
    for stack in stacks:
        mine = ["\0".join(one) for one in frames(stack) if kind(one) == YOURS]
        whose = owner(stack)
        own += [(stack, "\0".join(whose))] if kind(whose) == YOURS else []
        anywhere += [(stack, one) for one in dict.fromkeys(mine)]
    schema = {"stack": pl.String, "frame": pl.String}
    return tuple(pl.DataFrame(rows, schema, orient="row") for rows in (own, anywhere))  # type: ignore[return-value]


def _matrix(
    units: pl.DataFrame, pairs: pl.DataFrame, names: list[str], windows: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Hits of each window and function, shape (windows, functions)."""
    found = np.zeros((windows, len(names)))
    hits = units.join(pairs, on="stack").group_by("unit", "frame").agg(pl.col("hits").sum())
    places = {name: number for number, name in enumerate(names)}
    columns = [places[name] for name in hits["frame"]]
    found[hits["unit"].to_numpy(), columns] = hits["hits"].to_numpy()
    return found
