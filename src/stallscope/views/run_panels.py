"""The panels of a run: one stage's slow end, the stalls one by one, the timeline from any step on.

Plain classes without widgets read the run; each panel is a skin over a class. The live panel shows
what another process reads of a running training.
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
"""Numbers of steps to choose from: a few to look at each, or enough to see a rhythm."""
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
    """Return controls for stage, worker and percentile over the distribution and its slow end."""
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
    """Return controls to step through the stalls, each with its timeline and its parts.

    Choosing another order keeps the stall, so that its neighbours in time are a step away.
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
    """Return sliders over the steady state, with the timeline of workers and loop.

    Another length (or rank) keeps the first step if enough steps follow.
    """
    moments = Moments(run)
    if moments.usual is None:
        return saying(NO_LOOP)
    first_rank, first_step, first_length = moments.usual
    rank = dropdown("Rank", moments.ranks, first_rank)
    length = dropdown("Steps", moments.lengths, first_length)
    step = slider("From step")

    def bound(first: int) -> None:
        low, high = moments.firsts(rank.value, length.value)
        with step.hold_trait_notifications():
            step.min, step.max, step.value = low, high, min(max(first, low), high)

    bound(first_step)
    for choice in (rank, length):  # before the picture is drawn from them
        choice.observe(lambda _: bound(step.value), names="value")
    row = (rank, length, step) if len(moments.ranks) > 1 else (length, step)
    return pick(lambda *choice: (moments.draw(*choice), ""), rank, step, length, row=row)


def live_panel(run: Run) -> Panel:
    """Follow a running training until it ends or the panel is closed.

    A separate process reads the run: neither the training nor this notebook computes for it.
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
    """Refresh the panel while the training runs."""
    message, view, below = panel.children
    command = [sys.executable, "-m", "stallscope", "show", "--follow", "--pages", "--"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*command, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        start_new_session=True,  # interrupting a cell does not end it
    ) as reader:
        for line in reader.stdout or ():
            if panel.comm is None:  # closed
                reader.terminate()
                break
            view.value, below.value = json.loads(line)
    message.value = ENDED


class Stalls:
    """The stalls of a run, in a chosen order.

    Attributes:
        orders: labels of the orders, the default first.
        number: number of stalls.
    """

    orders = (LONGEST, IN_TIME)

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows = run.stalls().sort("start_ns", "rank")
        self.number = self._rows.height
        longest: list[int] = self._rows["stall_s"].arg_sort(descending=True).to_list()
        self._places = {LONGEST: longest, IN_TIME: list(range(self.number))}
        """Stalls of each order, by their place in time."""

    def stall(self, order: str, number: int) -> int:
        """Return the place in time of the stall with this number, from 1, in this order."""
        return self._places[order][number - 1]

    def number_of(self, order: str, stall: int) -> int:
        """Return the number, from 1, that a stall has in this order."""
        return self._places[order].index(stall) + 1

    def draw(self, stall: int) -> Sheet:
        """Draw the timeline around a stall, given by its place in time."""
        return stall_figure(self.run, self._rows.row(stall, named=True))

    def table(self, stall: int) -> Markup:
        """Return a stall and its parts as HTML with escaped names."""
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
        bars = [CellBar(part["share"], COLOURS.get(part["kind"], STALL_COLOUR)) for part in shown]
        tables = (Table(_STALL_HEADS, [cells]), Table.of(_PARTS, shown, bars=bars))
        return join([*tables, *(html("<p>{}</p>", line) for line in below)])

    def _slowest(self, row: dict[str, Any]) -> list[str]:
        """Return a sentence on the slowest sample of the step's batch, if recorded."""
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
        stages: labels of the stages, the longest first.
        workers: labels of the workers; the first is all of them.
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
        """Draw the distribution of a stage; None if this worker never ran the stage."""
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
        hidden_text = html("<p>and {} more</p>", hidden) if hidden else ""
        return html("<p>{}</p>{}{}", head, Table.of(_TAIL, shown.to_dicts()), hidden_text)

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
        ranks: ranks to choose from, in order.
        lengths: numbers of steps to choose from, in order.
        usual: rank, first step and number of steps of the static picture; None without a loop.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        steps = run.steps().drop_nulls(["start_ns", "end_ns"])
        self.ranks: tuple[int, ...] = tuple(steps["rank"].unique().sort())
        self._steps = cache(lambda rank: timed_steps(run, rank))
        self.usual: tuple[int, int, int] | None = None
        if excerpt := timeline(run):
            shown = excerpt.window.steps
            self.usual = shown["rank"][0], shown["step"][0], shown.height
        usual_length = self.usual[2] if self.usual else 0
        longest = max((self._steps(rank).height for rank in self.ranks), default=0)
        self.lengths = tuple(sorted({usual_length, *(n for n in _LENGTHS if n < longest)}))

    def firsts(self, rank: int, length: int) -> tuple[int, int]:
        """Return the first and the last step at which a picture of `length` steps can begin."""
        steps = self._steps(rank)["step"]
        return steps[0], steps[max(steps.len() - length, 0)]

    def draw(self, rank: int, step: int, length: int) -> Sheet:
        """Draw the timeline from a step on."""
        excerpt = from_step(self.run, rank, step, length)
        return timeline_picture(
            self.run, excerpt, title_of_steps(self.run, rank, excerpt.window.steps)
        )
