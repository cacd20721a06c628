"""A run as tables: for a terminal, and the same as HTML for a notebook.

Names come from other people's code: in a terminal they are printable, in HTML they are escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from stallscope.analyze.headline import headline, remarks
from stallscope.analyze.looptime import loop_time
from stallscope.analyze.profile import profile
from stallscope.analyze.usage import judged
from stallscope.analyze.usedup import sentence
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, seconds, share
from stallscope.views.charts.captions import nothing, population
from stallscope.views.loop import explained, pattern_title, small_print, split, title
from stallscope.views.loop import rows_of as part_rows
from stallscope.views.names import shown, stage_name
from stallscope.views.tables import Bar, aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from stallscope.analyze.profile import Profile, StageTimes
    from stallscope.run import Run

MOST_ROWS: Final = 20
MOST_PARTS: Final = 6
MOST_PATTERNS: Final = 3
PART_HEADS: Final = ("stalled by", "share", "a step", "busy")
PART_KEY: Final = (
    "share: of all time in stalls · busy: the stage's share of the time in which batches are made"
)
HEADS: Final = ("stage", "share", "mean", "p50", "p95", "waiting")


@dataclass(frozen=True)
class Row:
    """A row of the table, as text."""

    name: str
    kind: str
    share: float
    cells: tuple[str, ...]
    """What stands under `HEADS`, from "share" on."""


def rows_of(found: Profile) -> list[Row]:
    """The stages, the longest first."""
    return [_row(stage, found.unit) for stage in found.stages[:MOST_ROWS]]


def _row(stage: StageTimes, unit: str) -> Row:
    cells = (
        share(stage.share),
        seconds(stage.mean_s),
        seconds(stage.quantile_s(0.5)),
        seconds(stage.quantile_s(0.95)),
        share(stage.waiting_share),
    )
    return Row(stage_name(stage, unit, 40), stage.kind, stage.share, cells)


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
    lines = [headline(found, shown), ""]
    if rows:
        lines += [*aligned([HEADS, *((row.name, *row.cells) for row in rows)]), ""]
    notes = [shown(note, 1000) for note in _notes(run, found)]
    return "\n".join([*_first(run, _loop(run), lines), *notes])


def _first(run: Run, loop: list[str], work: list[str]) -> list[str]:
    """What the loop waits for, then what the workers do; without a step the other way round."""
    return [*loop, *work] if run.steps()["step_s"].sum() else [*work, *loop]


def _loop(run: Run) -> list[str]:
    """What the loop stood still for; nothing where no waits were recorded."""
    time = loop_time(run.steps(), run.stalls())
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
    found = judged(run)
    said = found.known and found.stalls and found.used_up
    return [shown(sentence(found), 1000)] if said else []


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
    work = [html_title(headline(found, shown))]
    if rows:
        work.append(_html_table(HEADS, rows))
    parts = _first(run, _html_loop(run), work)
    parts += [html_note(note) for note in _notes(run, found)]
    return f"<div class='stallscope-run'>{''.join(parts)}</div>"


def _html_loop(run: Run) -> list[str]:
    time = loop_time(run.steps(), run.stalls())
    if time is None:
        return []
    rows = [
        Row(part.name, part.kind or "", part.share, part.cells)
        for part in part_rows(run, time, MOST_PARTS)
    ]
    told = [f"<li>{escape(one)}</li>" for one in _patterns(run)]
    return [
        html_title(title(run)),
        *(f"<p style='margin:.3em 0'>{escape(told)}</p>" for told in (split(time), *_used_up(run))),
        *([_html_table(PART_HEADS, rows), html_note(PART_KEY)] if rows else []),
        *([f"<ul style='margin:.3em 0'>{''.join(told)}</ul>"] if told else []),
    ]


def _html_table(heads: tuple[str, ...], rows: list[Row]) -> str:
    """A table with a bar for each share."""
    bars = [Bar(row.share, COLOURS.get(row.kind, STALL_COLOUR)) for row in rows]
    return html_table(heads, [(row.name, *row.cells) for row in rows], bars)
