"""Tables for a terminal and for a notebook, and the lines above and below them.

Every cell is escaped; HTML is readable on a light and on a dark ground.

Writing a result as a file that others can open: a whole file or none, and errors in words.
"""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


_CELL: Final = "padding:2px 10px;text-align:right;border:none"
_NAME: Final = "padding:2px 10px;text-align:left;border:none"
_SMALL: Final = "font-size:90%;opacity:.75;margin:.3em 0"
_LONGEST_PX: Final = 100


class CellBar(NamedTuple):
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
    heads: Sequence[str], rows: Sequence[Sequence[str]], bars: Sequence[CellBar] = ()
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


def _html_bar(bar: CellBar, longest: float) -> str:
    return (
        "<span style='display:inline-block;height:.7em;margin-right:6px;"
        f"width:{_LONGEST_PX * bar.length / longest:.0f}px;background:{bar.colour};"
        "outline:1px solid #8888'></span>"
    )


class ExportError(StallscopeError, ValueError):
    """A result cannot be written there: another ending, a folder, no right."""


def write(path: Path, makers: Mapping[str, Callable[[], str]]) -> Path:
    """Write a file; an older one is written over.

    Args:
        path: of the file; its folder is made.
        makers: for each ending (`.html`) what gives the text.

    Returns:
        The path.

    Raises:
        ExportError: another ending, or it cannot be written there.
    """
    make = makers.get(path.suffix.lower())
    if make is None:
        raise ExportError(
            f"{path.name!r} ends in none of {', '.join(makers)}: give a name that does, such as "
            f"{path.with_suffix(next(iter(makers))).name!r}"
        )
    made = make()
    meanwhile = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            meanwhile.write_text(made, encoding="utf-8", errors="replace", newline="\n")
            meanwhile.replace(path)
        finally:
            meanwhile.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({error.strerror or error}): give another place"
        ) from error
    return path
