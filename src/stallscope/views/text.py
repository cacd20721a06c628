"""A run as a table: for a terminal, and the same as HTML for a notebook.

Names come from other people's code: in a terminal they are printable, in HTML they are escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from stallscope.analyze.headline import headline, remarks
from stallscope.analyze.profile import profile
from stallscope.stages import COLOURS
from stallscope.units import seconds, share
from stallscope.views.charts.captions import nothing, population
from stallscope.views.names import shown, stage_name

if TYPE_CHECKING:
    from stallscope.analyze.profile import Profile, StageTimes
    from stallscope.run import Run

MOST_ROWS: Final = 20
HEADS: Final = ("stage", "share", "mean", "p50", "p95", "waiting")
_CELL: Final = "padding:2px 10px;text-align:right;border:none"
_NAME: Final = "padding:2px 10px;text-align:left;border:none"
_SMALL: Final = "font-size:90%;opacity:.75;margin:.3em 0"


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
    lines = [population(run, found), key, *remarks(found), *run.notes]
    hidden = found.stages[MOST_ROWS:]
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        lines.insert(1, f"not shown: {len(hidden)} more stages, together {taken}")
    return lines


def text(run: Run) -> str:
    """The table for a terminal: the answer, the stages, what to know about them."""
    found = profile(run.spans())
    rows = rows_of(found)
    lines = [headline(found, shown), ""]
    if rows:
        table = [HEADS, *((row.name, *row.cells) for row in rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADS))]
        lines += [_aligned(line, widths) for line in table] + [""]
    return "\n".join([*lines, *(shown(note, 1000) for note in _notes(run, found))])


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
    return "  ".join([line[0].ljust(widths[0]), *cells]).rstrip()


def html(run: Run) -> str:
    """The table for a notebook; readable on a light and on a dark ground."""
    found = profile(run.spans())
    rows = rows_of(found)
    parts = [f"<p style='font-weight:bold;margin:.3em 0'>{escape(headline(found, shown))}</p>"]
    if rows:
        heads = "".join(
            f"<th scope='col' style='{_CELL if number else _NAME}'>{head}</th>"
            for number, head in enumerate(HEADS)
        )
        body = "".join(_html_row(row, rows[0].share) for row in rows)
        parts.append(
            "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums'>"
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        )
    parts += [f"<p style='{_SMALL}'>{escape(note)}</p>" for note in _notes(run, found)]
    return f"<div class='stallscope-run'>{''.join(parts)}</div>"


def _html_row(row: Row, longest: float) -> str:
    """A row, with a bar in the cell of its share."""
    length = f"{100 * row.share / longest if longest else 0:.0f}px"
    bar = (
        f"<span style='display:inline-block;height:.7em;width:{length};margin-right:6px;"
        f"background:{COLOURS[row.kind]}'></span>"
    )
    first, *others = row.cells
    cells = "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in others)
    return (
        f"<tr><th scope='row' style='{_NAME};font-weight:normal'>{escape(row.name)}</th>"
        f"<td style='{_CELL};white-space:nowrap'>{bar}{escape(first)}</td>{cells}</tr>"
    )
