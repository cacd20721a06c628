"""The face of a run: its pictures by name, its table, its panel.

`stallscope.run.Run` finds this module by its name when it is looked at.

A run as tables: for a terminal, and the same as HTML for a notebook.

Names come from other people's code: in a terminal they are printable, in HTML they are escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.names import printable
from stallscope.run.saturation import find_saturated, sentence
from stallscope.run.stall_text import (
    explained,
    nothing,
    pattern_title,
    population,
    small_print,
    split,
    title,
)
from stallscope.run.stall_text import rows_of as part_rows
from stallscope.run.summary import headline, profile, remarks, stage_name
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stalls.loop_time import loop_breakdown
from stallscope.units import count, seconds, share
from stallscope.views.document import CellBar, aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile, StageTimes


KINDS: Final = {
    "stages": "where a sample's time goes, and how it is spread (the default)",
    "sample": "one sample as a bar of stages",
    "spread": "single samples as dots, stage by stage",
    "naive": "what a stopwatch around each transform would have said",
    "exposed": "what the loop stood still for",
    "timeline": "workers and loop over a few seconds: who was waited for",
    "resources": "what was used up while the loop stood still: cores, memory, disk, network",
    "waits": "every step's wait, and the patterns in them",
    "lanes": "what each worker did over a few seconds",
    "slowest": "the slowest samples, and what made them slow",
    "size": "time against file size and pixels",
    "startup": "what the start of the workers cost",
    "tail": "the longest stage's slow end",
}
"""Every picture of a run; each is a module in `charts`, or a function of one."""
CHARTS: Final = {
    "sample": ("stages", "sample_figure"),
    "spread": ("stages", "spread_figure"),
    "naive": ("stopwatch", "figure"),
    "slowest": ("samples", "figure"),
}
"""Module and function, where they are not called after the picture."""


def plot(run: Run, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        run: what was measured.
        kind: one of `KINDS`; None draws "stages".

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    name = result.resolve_kind(kind, KINDS, "a run")
    module, function = CHARTS.get(name, (name, "figure"))
    chart: Any = import_module(f"stallscope.charts.{module}")
    figure: Sheet = getattr(chart, function)(run)
    return figure


def panel(run: Run, kind: str | None = None) -> Any:
    """Widgets: the slow ends of the stages, the stalls, the timeline; see `views.panels`."""
    from stallscope.views import panels

    return panels.panel(run, kind)


MOST_ROWS: Final = 20
MOST_PARTS: Final = 6
MOST_PATTERNS: Final = 3
PART_HEADS: Final = ("stalled by", "share", "a step", "busy")
PART_KEY: Final = (
    "share: of all time in stalls · busy: the stage's share of the time in which batches are made"
)
HEADS: Final = ("stage", "share", "mean", "p50", "p95", "waiting")


@dataclass(frozen=True)
class StageRow:
    """A row of the table, as text."""

    name: str
    kind: str
    share: float
    cells: tuple[str, ...]
    """What stands under `HEADS`, from "share" on."""


def rows_of(found: Profile) -> list[StageRow]:
    """The stages, the longest first."""
    return [_row(stage, found.unit) for stage in found.stages[:MOST_ROWS]]


def _row(stage: StageTimes, unit: str) -> StageRow:
    cells = (
        share(stage.share),
        seconds(stage.mean_s),
        seconds(stage.quantile_s(0.5)),
        seconds(stage.quantile_s(0.95)),
        share(stage.waiting_share),
    )
    return StageRow(stage_name(stage, unit, 40), stage.kind, stage.share, cells)


def _notes(run: Run, found: Profile) -> list[str]:
    if not found.stages:
        return list(nothing(run))
    key = (
        f"share and mean: per {found.unit} over all of them, collate's part included · p50 and "
        "p95: where the stage occurred · waiting: not on a CPU"
    )
    lines = [population(run, found), key, *remarks(found), *_of_loop(run)]
    hidden = found.stages[MOST_ROWS:]
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        lines.insert(1, f"not shown: {len(hidden)} more stages, together {taken}")
    return lines


def _of_loop(run: Run) -> list[str]:
    """The run's notes, and the small print of the loop's times where the notes do not have it."""
    return [*run.notes, *(told for told in small_print(run) if told not in run.notes)]


def text(run: Run) -> str:
    """The tables for a terminal: the answer, the stages, the loop's waits, what to know."""
    found = profile(run.work)
    rows = rows_of(found)
    lines = [headline(found, printable), ""]
    if rows:
        lines += [*aligned([HEADS, *((row.name, *row.cells) for row in rows)]), ""]
    notes = [printable(note, 1000) for note in _notes(run, found)]
    return "\n".join([*_first(run, _loop(run), lines), *notes])


def _first(run: Run, loop: list[str], work: list[str]) -> list[str]:
    """What the loop waits for, then what the workers do; without a step the other way round."""
    return [*loop, *work] if run.steps()["step_s"].sum() else [*work, *loop]


def _loop(run: Run) -> list[str]:
    """What the loop stood still for; nothing where no waits were recorded."""
    time = loop_breakdown(run.steps(), run.stalls())
    if time is None:
        return []
    parts = part_rows(run, time, MOST_PARTS)
    lines = [title(run), split(time), *_used_up(run), ""]
    if parts:
        lines += aligned([PART_HEADS, *((part.name, *part.cells) for part in parts)])
        lines += [PART_KEY, ""]
    patterns = [f"- {told}" for told in _patterns(run)]
    return [*lines, *patterns, *([""] if patterns else [])]


def _used_up(run: Run) -> list[str]:
    """The resource that was used up, where one was while the loop stood still."""
    found = find_saturated(run)
    said = found.known and found.stalls and found.used_up
    return [printable(sentence(found), 1000)] if said else []


def _patterns(run: Run) -> list[str]:
    """The patterns that explain most, as sentences."""
    found = run.patterns()
    told = [
        f"{pattern_title(one)} ({explained(one)})"
        for one in found.head(MOST_PATTERNS).iter_rows(named=True)
    ]
    hidden = found.height - len(told)
    return [*told, f"and {count(hidden, 'more pattern')}"] if hidden > 0 else told


def html(run: Run) -> str:
    """The tables for a notebook; readable on a light and on a dark ground."""
    found = profile(run.work)
    rows = rows_of(found)
    work = [html_title(headline(found, printable))]
    if rows:
        work.append(_html_table(HEADS, rows))
    parts = _first(run, _html_loop(run), work)
    parts += [html_note(note) for note in _notes(run, found)]
    return f"<div class='stallscope-run'>{''.join(parts)}</div>"


def _html_loop(run: Run) -> list[str]:
    time = loop_breakdown(run.steps(), run.stalls())
    if time is None:
        return []
    rows = [
        StageRow(part.name, part.kind or "", part.share, part.cells)
        for part in part_rows(run, time, MOST_PARTS)
    ]
    told = [f"<li>{escape(one)}</li>" for one in _patterns(run)]
    return [
        html_title(title(run)),
        *(f"<p style='margin:.3em 0'>{escape(told)}</p>" for told in (split(time), *_used_up(run))),
        *([_html_table(PART_HEADS, rows), html_note(PART_KEY)] if rows else []),
        *([f"<ul style='margin:.3em 0'>{''.join(told)}</ul>"] if told else []),
    ]


def _html_table(heads: tuple[str, ...], rows: list[StageRow]) -> str:
    """A table with a bar for each share."""
    bars = [CellBar(row.share, COLOURS.get(row.kind, STALL_COLOUR)) for row in rows]
    return html_table(heads, [(row.name, *row.cells) for row in rows], bars)
