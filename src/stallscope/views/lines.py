"""The face of timed lines: listings with heat, their picture, their panel.

`stallscope.listings.Lines` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.lines.result import in_order, notes_of, title
from stallscope.names import printable
from stallscope.units import count
from stallscope.views.document import html_note, html_title
from stallscope.views.listing import (
    _LONGEST,
    HEADS,
    Shown,
    _cells,
    head,
    html_listing,
    listing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.charts.sheet import Sheet
    from stallscope.lines.result import Lines


KINDS: Final = {"lines": "the lines that take most time of their own (the default)"}
"""Every picture of lines."""
MOST_FUNCTIONS: Final = 6


def plot(lines: Lines, kind: str | None = None) -> Sheet:
    """Draw the picture.

    Args:
        lines: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    result.resolve_kind(kind, KINDS, "lines")
    from stallscope.charts import lines as hotlines

    return hotlines.figure(lines)


def panel(lines: Lines, kind: str | None = None) -> Any:
    """Widgets: choose a function, see its listing; see `stallscope.views.linespanel`."""
    from stallscope.views import result_panels

    return result_panels.lines_panel(lines, kind)


def text(lines: Lines) -> str:
    """The listings for a terminal, the one with the hottest lines first."""
    parts = [title(lines), *(printable(note, 1000) for note in notes_of(lines)), ""]
    functions = in_order(lines)
    for row in functions[:MOST_FUNCTIONS]:
        parts += [printable(head(row, lines), 300), *_listed(listing(lines, row)), ""]
    return "\n".join([*parts, *_rest(functions)]).rstrip()


def html(lines: Lines) -> str:
    """The listings for a notebook; readable on a light and on a dark ground."""
    functions = in_order(lines)
    folds = "".join(
        html_listing(lines, row, is_open=not place) for place, row in enumerate(functions)
    )
    notes = "".join(html_note(note) for note in notes_of(lines))
    return f"<div class='stallscope-lines'>{html_title(title(lines))}{folds}{notes}</div>"


def _rest(functions: list[dict[str, Any]]) -> Iterable[str]:
    hidden = functions[MOST_FUNCTIONS:]
    if hidden:
        names = ", ".join(printable(row["function"], 60) for row in hidden)
        yield f"not shown: {count(len(hidden), 'more function')} ({names})"


def _listed(found: list[Shown | str]) -> Iterable[str]:
    yield "{:>6} {:>9} {:>9} {:>6} {:>6}   {}".format(*HEADS)
    for one in found:
        if isinstance(one, str):
            yield f"{'':>40}   {one}"
        else:
            *cells, source = _cells(one)
            line = "{:>6} {:>9} {:>9} {:>6} {:>6}".format(*cells)
            yield f"{line}   {printable(source, _LONGEST)}".rstrip()
