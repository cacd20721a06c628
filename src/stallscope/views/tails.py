"""What the tail panel asks a run: a stage's slow end as a picture and as a table.

Plain functions of a run, without widgets, so that the panel is only a skin.
"""

from __future__ import annotations

from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.profile import profile, unit_times
from stallscope.units import seconds
from stallscope.views.charts.captions import left_out
from stallscope.views.charts.tail import Tail, picture
from stallscope.views.names import counted, file_name, shown, worker_name

if TYPE_CHECKING:
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

ALL: Final = "all workers"
MOST_ROWS: Final = 10
_HEADS: Final = ("time in stage", "whole sample", "file", "index", "worker", "batch")
_CELL: Final = "padding:2px 10px;text-align:right;border:none"


class Tails:
    """The slow ends of a run's stages.

    Attributes:
        stages: what can be asked for, the longest stage first; each a label.
        workers: what can be asked for, each a label; the first is all of them.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._stages = {
            f"{shown(stage.stage, 40)} ({stage.kind}, per {stage.per})": stage
            for stage in profile(run.work).stages
        }
        self.stages = tuple(self._stages)
        ids = self._times["worker"].unique().sort().to_list()
        self._workers = {worker_name(worker): worker for worker in ids}
        self.workers = (ALL, *self._workers) if len(ids) > 1 else (ALL,)

    @cached_property
    def _times(self) -> pl.DataFrame:
        return unit_times(self.run.work)

    def draw(self, stage: str, worker: str, percentile: int) -> Sheet | None:
        """The distribution of a stage; None where this worker never was in it."""
        tail, _ = self._ask(stage, worker, percentile)
        return picture(tail, left_out(self.run)) if tail else None

    def table(self, stage: str, worker: str, percentile: int) -> str:
        """The samples (or batches) beyond the percentile as HTML, the slowest first."""
        tail, times = self._ask(stage, worker, percentile)
        if tail is None:
            return "<p>This worker has no such stage.</p>"
        beyond = times.filter(pl.col("wall_s") > tail.limit_s).sort("wall_s", descending=True)
        shown_rows = self._with_samples(beyond.head(MOST_ROWS))
        body = "".join(_html_row(row) for row in shown_rows.iter_rows(named=True))
        heads = "".join(f"<th scope='col' style='{_CELL}'>{head}</th>" for head in _HEADS)
        more = beyond.height - shown_rows.height
        foot = f"<p>and {more} more</p>" if more else ""
        return (
            f"<p>{_beyond(beyond.height, tail)}</p>"
            "<table style='border-collapse:collapse;line-height:1.5'>"
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{foot}"
        )

    def _ask(self, label: str, worker: str, percentile: int) -> tuple[Tail | None, pl.DataFrame]:
        stage = self._stages[label]
        inside = pl.col("sample").is_null() == (stage.per == "batch")
        here = (pl.col("stage") == stage.stage) & (pl.col("kind") == stage.kind) & inside
        if worker != ALL:
            here &= pl.col("worker").eq_missing(pl.lit(self._workers[worker], dtype=pl.Int16))
        times = self._times.filter(here)
        if times.is_empty():
            return None, times
        where = worker if worker != ALL or len(self._workers) > 1 else next(iter(self._workers))
        values = times["wall_s"].to_numpy()
        return Tail(stage.stage, stage.kind, stage.per, values, percentile, where), times

    def _with_samples(self, times: pl.DataFrame) -> pl.DataFrame:
        keys = ["rank", "epoch", "batch", "sample"]
        about = self.run.samples().select(*keys, "index", "path", "total_s")
        return times.join(about, on=keys, how="left", maintain_order="left")


def _beyond(number: int, tail: Tail) -> str:
    these = counted(number, tail.per)
    return f"{these} beyond p{tail.percentile} ({seconds(tail.limit_s)}), the slowest first"


def _html_row(row: dict[str, object]) -> str:
    path, worker = row["path"], row["worker"]
    cells = (
        seconds(_number(row["wall_s"])),
        seconds(_number(row["total_s"])),
        file_name(str(path)) if path else seconds(None),
        seconds(None) if row["index"] is None else str(row["index"]),
        worker_name(int(str(worker))) if worker is not None else worker_name(None),
        str(row["batch"]),
    )
    return "<tr>" + "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None
