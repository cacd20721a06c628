"""The panels of a run: one stage's slow end, the stalls one by one, the timeline from any step on.

What they ask a run are plain classes without widgets; each panel is a skin over one of them. That
of a run which goes on shows what another process reads of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache, cached_property
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import ipywidgets
import polars as pl

from stallscope.charts.loop import parts_of, stall_figure
from stallscope.charts.stages import Tail, tail_figure
from stallscope.charts.timeline import picture as timeline_picture
from stallscope.columns import Column
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.stall_text import left_out, title, title_of_steps
from stallscope.run.timeline import MOST_STEPS, from_step, timed_steps, timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, file_name, printable, seconds, share, worker_name
from stallscope.views.document import CellBar, RowText, Table, html, join
from stallscope.views.panels import Panel, dropdown, image, pick, saying, slider

if TYPE_CHECKING:
    from pathlib import Path

    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


NO_FOLDER: Final = "This run lies in no folder: `ss.load` gives one that can be followed"
NOW: Final = "<p>The training runs: this is what it has recorded so far.</p>"
ENDED: Final = "<p>The training has ended.</p>"
EMPTY: Final = "No batch was recorded from beginning to end: there is nothing to choose from"
LONGEST, IN_TIME = "the longest first", "as they came"
ALL: Final = "all workers"
_MOST_PARTS, _MOST_SAMPLES = 8, 10
_LENGTHS: Final = (3, 6, 12, 24, MOST_STEPS)
"""Steps that may be shown; so few that each can be looked at, so many that a rhythm is seen."""
_STALL_HEADS: Final = ("step", "batch", "worker", "wait", "longest part")
_PARTS: Final = (
    Column("part", pl.String, head="part of the wait", form=printable),
    Column("share", pl.Float64, head="share", form=share),
    Column("exposed_s", pl.Float64, head="time"),
)
_TAIL: Final = (
    Column("wall_s", pl.Float64, head="time in stage"),
    Column("total_s", pl.Float64, head="whole sample"),
    Column("path", pl.String, head="file", form=file_name),
    Column("index", pl.Int64, head="index", form=str),
    RowText("worker", lambda row: worker_name(row["worker"])),
    Column("batch", pl.Int32, head="batch", form=str),
)


def tail_panel(run: Run) -> Panel:
    """Choose a stage, a worker and a percentile; see the distribution and what lies beyond."""
    tails = Tails(run)
    if not tails.stages:
        return saying(EMPTY)
    return pick(
        lambda *choice: (tails.draw(*choice), tails.table(*choice)),
        dropdown("Stage", tails.stages),
        dropdown("Worker", tails.workers),
        slider("Percentile", 95, 50, 99),
    )


def stall_panel(run: Run) -> Panel:
    """Step through the stalls; see what happened around each, and what it consists of.

    Choosing another order keeps the stall: the longest one's neighbours are a step away.
    """
    stalls = Stalls(run)
    if not stalls.number:
        return saying(title(run))
    order, number = dropdown("Order", stalls.orders), slider("Stall", 1, 1, stalls.number)

    def reorder(change: dict[str, Any]) -> None:
        number.value = stalls.number_of(change["new"], stalls.stall(change["old"], number.value))

    order.observe(reorder, names="value")
    several = (order, number, ipywidgets.Label(f"of {stalls.number:,}"))
    return pick(
        lambda stall: (stalls.draw(stall), stalls.table(stall)),
        order,
        number,
        key=stalls.stall,
        row=several if stalls.number > 1 else (),
    )


def timeline_panel(run: Run) -> Panel:
    """Slide over the steady state; see what the workers and the loop did.

    Another length (or rank) keeps the first step, as far as there are so many after it.
    """
    moments = Moments(run)
    if moments.usual is None:
        return saying(NO_LOOP)
    first_rank, first_step, first_many = moments.usual
    rank = dropdown("Rank", moments.ranks, first_rank)
    many = dropdown("Steps", moments.lengths, first_many)
    step = slider("From step")

    def bound(first: int) -> None:
        low, high = moments.firsts(rank.value, many.value)
        with step.hold_trait_notifications():
            step.min, step.max, step.value = low, high, min(max(first, low), high)

    bound(first_step)
    for choice in (rank, many):  # before the picture is drawn from them
        choice.observe(lambda _: bound(step.value), names="value")
    row = (rank, many, step) if len(moments.ranks) > 1 else (many, step)
    return pick(lambda *choice: (moments.draw(*choice), ""), rank, step, many, row=row)


def live_panel(run: Run) -> Panel:
    """Follow a training that still runs, until it ends or the panel is closed.

    It is read by a process of its own: neither the training nor this notebook computes for it.
    """
    if run._folder is None:  # noqa: SLF001 - see `ss.load`
        return saying(NO_FOLDER)
    message, view, below = ipywidgets.HTML(NOW), ipywidgets.HTML(), ipywidgets.HTML()
    panel = Panel([message, view, below])
    panel.still = run.plot("exposed")  # type: ignore[assignment]
    view.value, below.value = json.loads(page_of(run))
    Thread(target=_refresh, args=(panel, run._folder), daemon=True).start()  # noqa: SLF001
    return panel


def page_of(run: Run) -> str:
    """Return a run as a line that `live_panel` reads."""
    picture: Any = run.plot("exposed")
    return json.dumps([image(picture), run._repr_mimebundle_()["text/html"]])


def _refresh(panel: Panel, folder: Path) -> None:
    """Show what the run has become, as long as its training goes on."""
    message, view, below = panel.children
    command = [sys.executable, "-m", "stallscope", "show", "--follow", "--pages", "--"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*command, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        start_new_session=True,  # to interrupt a cell is not to end it
    ) as reader:
        for line in reader.stdout or ():
            if panel.comm is None:  # closed
                reader.terminate()
                break
            view.value, below.value = json.loads(line)
    message.value = ENDED


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
        longest: list[int] = self._rows["stall_s"].arg_sort(descending=True).to_list()
        self._places = {LONGEST: longest, IN_TIME: list(range(self.number))}
        """For each order, the stalls by their place in time."""

    def stall(self, order: str, number: int) -> int:
        """Return which stall has this number, from 1, in this order: its place in time."""
        return self._places[order][number - 1]

    def number_of(self, order: str, stall: int) -> int:
        """Return the number, from 1, that a stall has in this order."""
        return self._places[order].index(stall) + 1

    def draw(self, stall: int) -> Sheet:
        """Draw the timeline around a stall, given by its place in time."""
        return stall_figure(self.run, self._rows.row(stall, named=True))

    def table(self, stall: int) -> Markup:
        """Return what a stall is and consists of, as HTML whose names are escaped."""
        row = self._rows.row(stall, named=True)
        parts = parts_of(self.run, row)
        hidden = parts.height - _MOST_PARTS
        below = [f"and {count(hidden, 'more part')}"] if hidden > 0 else []
        below += self._slowest(row)
        cells = (
            *(str(row["step"]), str(row["batch"]), worker_name(row["worker"])),
            *(seconds(row["stall_s"]), printable(parts["part"][0]) if parts.height else "—"),
        )
        shown = parts.head(_MOST_PARTS).to_dicts()
        bars = [CellBar(one["share"], COLOURS.get(one["kind"], STALL_COLOUR)) for one in shown]
        tables = (Table(_STALL_HEADS, [cells]), Table.of(_PARTS, shown, bars=bars))
        return join([*tables, *(html("<p>{}</p>", line) for line in below)])

    def _slowest(self, row: dict[str, Any]) -> list[str]:
        """Say which sample took longest in the step's batch, where samples were recorded."""
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
            for stage in run.profile.stages
        }
        self.stages = tuple(self._stages)
        ids = self._times["worker"].unique().sort().to_list()
        self._workers = {worker_name(worker): worker for worker in ids}
        self.workers = (ALL, *self._workers) if len(ids) > 1 else (ALL,)

    @cached_property
    def _times(self) -> pl.DataFrame:
        return self.run.unit_times

    def draw(self, stage: str, worker: str, percentile: int) -> Sheet | None:
        """Draw the distribution of a stage; None where this worker never was in it."""
        tail, _ = self._ask(stage, worker, percentile)
        return tail_figure(tail, left_out(self.run)) if tail else None

    def table(self, stage: str, worker: str, percentile: int) -> Markup:
        """Return the samples (or batches) beyond the percentile as HTML, the slowest first."""
        tail, times = self._ask(stage, worker, percentile)
        if tail is None:
            return html("<p>This worker has no such stage.</p>")
        beyond = times.filter(pl.col("wall_s") > tail.limit_s).sort("wall_s", descending=True)
        keys = ["rank", "epoch", "batch", "sample"]
        about = self.run.samples().select(*keys, "index", "path", "total_s")
        shown = beyond.head(_MOST_SAMPLES).join(about, on=keys, how="left", maintain_order="left")
        limit = f"p{tail.percentile} ({seconds(tail.limit_s)})"
        head = f"{count(beyond.height, tail.per)} beyond {limit}, the slowest first"
        hidden = beyond.height - shown.height
        more = html("<p>and {} more</p>", hidden) if hidden else ""
        return html("<p>{}</p>{}{}", head, Table.of(_TAIL, shown.to_dicts()), more)

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


class Moments:
    """The steady state of a run, a few steps at a time.

    Attributes:
        ranks: what can be asked for, in order.
        lengths: how many steps can be asked for, in order.
        usual: rank, first step and number of steps of the static picture; None without a loop.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        steps = run.steps().drop_nulls(["start_ns", "end_ns"])
        self.ranks: tuple[int, ...] = tuple(steps["rank"].unique().sort())
        self._steps = cache(lambda rank: timed_steps(run, rank))
        self.usual: tuple[int, int, int] | None = None
        if found := timeline(run):
            shown = found.window.steps
            self.usual = shown["rank"][0], shown["step"][0], shown.height
        many = self.usual[2] if self.usual else 0
        longest = max((self._steps(rank).height for rank in self.ranks), default=0)
        self.lengths = tuple(sorted({many, *(n for n in _LENGTHS if n < longest)}))

    def firsts(self, rank: int, many: int) -> tuple[int, int]:
        """Return the first and the last step that a picture of so many can begin with."""
        steps = self._steps(rank)["step"]
        return steps[0], steps[max(steps.len() - many, 0)]

    def draw(self, rank: int, step: int, many: int) -> Sheet:
        """Draw the timeline from a step on."""
        found = from_step(self.run, rank, step, many)
        return timeline_picture(self.run, found, title_of_steps(self.run, rank, found.window.steps))
