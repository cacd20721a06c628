"""What the stall panel asks a run: one stall after the other, as a picture and as a table.

Plain functions of a run, without widgets, so that the panel is only a skin.

What the tail panel asks a run: a stage's slow end as a picture and as a table.

Plain functions of a run, without widgets, so that the panel is only a skin.

What the timeline panel asks a run: the picture of some steps, from any step on.

Plain functions of a run, without widgets, so that the panel is only a skin.
"""

from __future__ import annotations

from functools import cache, cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.charts.exposed import parts_of, picture, was_recorded
from stallscope.charts.tail import Tail
from stallscope.charts.tail import picture as tail_picture
from stallscope.charts.timeline import picture as timeline_picture
from stallscope.names import counted, file_name, printable, worker_name
from stallscope.run.stall_text import left_out, title, title_of_steps
from stallscope.run.summary import profile, unit_times
from stallscope.run.timeline import MOST_STEPS, from_step, timed_steps, timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stalls.loop_time import NO_LOOP
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


LONGEST: Final = "the longest first"
IN_TIME: Final = "as they came"
MOST_PARTS: Final = 8
NOT_RECORDED: Final = "this batch was not recorded: its making is divided as that of the others"
_HEADS: Final = ("step", "batch", "worker", "wait", "longest part")
_PART_HEADS: Final = ("part of the wait", "share", "time")
_CELL: Final = "padding:2px 10px;text-align:right;border:none"
_NAME: Final = "padding:2px 10px;text-align:left;border:none"


class Stalls:
    """The stalls of a run, in the order that is asked for.

    Attributes:
        orders: what can be asked for, each a label; the first is the usual one.
        number: how many stalls there are.
    """

    orders = (LONGEST, IN_TIME)

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows = run.stalls().sort("start_ns", "rank")
        self.number = self._rows.height

    @property
    def none(self) -> str:
        """What to say where there is no stall."""
        return title(self.run)

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """For each order, the stalls by their place in time."""
        longest = self._rows["stall_s"].arg_sort(descending=True).to_list()
        return {LONGEST: longest, IN_TIME: list(range(self.number))}

    def stall(self, order: str, number: int) -> int:
        """Which stall has this number, from 1, in this order: its place in time."""
        return self._places[order][number - 1]

    def number_of(self, order: str, stall: int) -> int:
        """The number, from 1, that a stall has in this order."""
        return self._places[order].index(stall) + 1

    def draw(self, stall: int) -> Sheet:
        """The timeline around a stall, given by its place in time."""
        return picture(self.run, self._rows.row(stall, named=True))

    def table(self, stall: int) -> str:
        """What a stall is and consists of, as HTML whose names are escaped."""
        row = self._rows.row(stall, named=True)
        parts = parts_of(self.run, row)
        hidden = parts.height - MOST_PARTS
        said = [f"and {count(hidden, 'more part')}"] if hidden > 0 else []
        said += [] if was_recorded(self.run, row) else [NOT_RECORDED]
        said += self._slowest(row)
        below = "".join(f"<p>{escape(line)}</p>" for line in said)
        return f"{_facts(row, parts)}{_parts_table(parts)}{below}"

    def _slowest(self, row: dict[str, Any]) -> list[str]:
        """The sample that took longest in the step's batch, where samples were recorded."""
        its = [pl.col(name) == row[name] for name in ("rank", "epoch", "batch")]
        samples = self.run.samples().filter(its).sort("total_s", descending=True)
        if samples.is_empty():
            return []
        first = samples.row(0, named=True)
        what = [f"{seconds(first['total_s'])}, mostly {printable(first['slowest'])}"]
        what += [file_name(first["path"])] if first["path"] else []
        what += [f"index {first['index']}"] if first["index"] is not None else []
        typical = seconds(self.run.samples()["total_s"].median())  # type: ignore[arg-type]
        return [f"slowest sample of the batch: {' · '.join(what)} (the median sample: {typical})"]


def _facts(row: dict[str, Any], parts: pl.DataFrame) -> str:
    longest = printable(parts["part"][0]) if parts.height else seconds(None)
    cells = (
        str(row["step"]),
        str(row["batch"]),
        worker_name(row["worker"]),
        seconds(row["stall_s"]),
        longest,
    )
    body = "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells)
    return _table(_HEADS, f"<tr>{body}</tr>")


def _parts_table(parts: pl.DataFrame) -> str:
    if parts.is_empty():
        return ""
    rows = parts.head(MOST_PARTS).iter_rows(named=True)
    return _table(_PART_HEADS, "".join(_part_row(row) for row in rows))


def _part_row(row: dict[str, Any]) -> str:
    """A row with a bar as long as the part's share."""
    colour = COLOURS[row["kind"]] if row["kind"] else STALL_COLOUR
    bar = (
        "<span style='display:inline-block;height:.7em;margin-right:6px;"
        f"width:{100 * row['share']:.0f}px;background:{colour}'></span>"
    )
    return (
        f"<tr><th scope='row' style='{_NAME};font-weight:normal'>"
        f"{escape(printable(row['part']))}</th>"
        f"<td style='{_CELL};white-space:nowrap'>{bar}{share(row['share'])}</td>"
        f"<td style='{_CELL}'>{seconds(row['exposed_s'])}</td></tr>"
    )


def _table(heads: tuple[str, ...], body: str) -> str:
    row = "".join(
        f"<th scope='col' style='{_NAME if head == _PART_HEADS[0] else _CELL}'>{head}</th>"
        for head in heads
    )
    look = "border-collapse:collapse;line-height:1.5;margin-bottom:.6em"
    look += ";font-variant-numeric:tabular-nums"
    return f"<table style='{look}'><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>"


ALL: Final = "all workers"
MOST_ROWS: Final = 10
_TAIL_HEADS: Final = ("time in stage", "whole sample", "file", "index", "worker", "batch")


class Tails:
    """The slow ends of a run's stages.

    Attributes:
        stages: what can be asked for, the longest stage first; each a label.
        workers: what can be asked for, each a label; the first is all of them.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._stages = {
            f"{printable(stage.stage, 40)} ({stage.kind}, per {stage.per})": stage
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
        return tail_picture(tail, left_out(self.run)) if tail else None

    def table(self, stage: str, worker: str, percentile: int) -> str:
        """The samples (or batches) beyond the percentile as HTML, the slowest first."""
        tail, times = self._ask(stage, worker, percentile)
        if tail is None:
            return "<p>This worker has no such stage.</p>"
        beyond = times.filter(pl.col("wall_s") > tail.limit_s).sort("wall_s", descending=True)
        shown_rows = self._with_samples(beyond.head(MOST_ROWS))
        body = "".join(_html_row(row) for row in shown_rows.iter_rows(named=True))
        heads = "".join(f"<th scope='col' style='{_CELL}'>{head}</th>" for head in _TAIL_HEADS)
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


LENGTHS: Final = (3, 6, 12, 24, MOST_STEPS)
"""Steps that may be shown; so few that each can be looked at, so many that a rhythm is seen."""


class Moments:
    """The steady state of a run, a few steps at a time.

    Attributes:
        ranks: what can be asked for, in order.
        lengths: how many steps can be asked for, in order.
        usual: rank, first step and number of steps of the static picture; None without a loop.
    """

    none = NO_LOOP
    """What to say where no loop was recorded."""

    def __init__(self, run: Run) -> None:
        self.run = run
        steps = run.steps().drop_nulls(["start_ns", "end_ns"])
        self.ranks: tuple[int, ...] = tuple(steps["rank"].unique().sort())
        self._steps = cache(lambda rank: timed_steps(run, rank))
        self.usual = self._usual()
        many = self.usual[2] if self.usual else 0
        longest = max((self._steps(rank).height for rank in self.ranks), default=0)
        self.lengths = tuple(sorted({many, *(n for n in LENGTHS if n < longest)}))

    def _usual(self) -> tuple[int, int, int] | None:
        found = timeline(self.run)
        if found is None:
            return None
        steps = found.window.steps
        return steps["rank"][0], steps["step"][0], steps.height

    def firsts(self, rank: int, many: int) -> tuple[int, int]:
        """The first and the last step that a picture of so many can begin with."""
        steps = self._steps(rank)["step"]
        return steps[0], steps[max(steps.len() - many, 0)]

    def draw(self, rank: int, step: int, many: int) -> Sheet:
        """The timeline from a step on."""
        found = from_step(self.run, rank, step, many)
        return timeline_picture(self.run, found, title_of_steps(self.run, rank, found.window.steps))
