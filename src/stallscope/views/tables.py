"""Tables for a terminal and for a notebook, and the lines above and below them.

Every cell is escaped; HTML is readable on a light and on a dark ground.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_CELL: Final = "padding:2px 10px;text-align:right;border:none"
_NAME: Final = "padding:2px 10px;text-align:left;border:none"
_SMALL: Final = "font-size:90%;opacity:.75;margin:.3em 0"
_LONGEST_PX: Final = 100


class Bar(NamedTuple):
    """Stands before the first number of a row."""

    length: float
    """In any unit; the longest of a table fills the room."""
    colour: str


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for a terminal: names at the left, numbers at the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for name, *cells in table:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    return lines


def html_title(told: str) -> str:
    """The answer, over a table."""
    return f"<p style='font-weight:bold;margin:.8em 0 .3em'>{escape(told)}</p>"


def html_note(note: str) -> str:
    """Small print, under a table."""
    return f"<p style='{_SMALL}'>{escape(note)}</p>"


def html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], bars: Sequence[Bar] = ()
) -> str:
    """A table for a notebook.

    Args:
        heads: of the columns.
        rows: names first, then numbers.
        bars: one for each row, or none at all.
    """
    longest = max((bar.length for bar in bars), default=0.0) or 1.0
    drawn = [_html_bar(bar, longest) for bar in bars] or [""] * len(rows)
    head = "".join(
        f"<th scope='col' style='{_CELL if place else _NAME}'>{escape(one)}</th>"
        for place, one in enumerate(heads)
    )
    body = "".join(_html_row(row, bar) for row, bar in zip(rows, drawn, strict=True))
    return (
        "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_row(row: Sequence[str], bar: str) -> str:
    name, first, *cells = row
    others = "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells)
    return (
        f"<tr><th scope='row' style='{_NAME};font-weight:normal'>{escape(name)}</th>"
        f"<td style='{_CELL};white-space:nowrap'>{bar}{escape(first)}</td>{others}</tr>"
    )


def _html_bar(bar: Bar, longest: float) -> str:
    return (
        "<span style='display:inline-block;height:.7em;margin-right:6px;"
        f"width:{_LONGEST_PX * bar.length / longest:.0f}px;background:{bar.colour};"
        "outline:1px solid #8888'></span>"
    )
