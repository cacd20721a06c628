"""The face of timed lines: listings with heat, their picture, their panel.

`stallscope.listings.Lines` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from stallscope.analyze.hotlines import cost_sentence, in_order, sentence
from stallscope.stages import COLOURS
from stallscope.units import count, seconds, share
from stallscope.views import kinds
from stallscope.views.listing import Shown, listing
from stallscope.views.names import file_name, shown
from stallscope.views.tables import html_note, html_title

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.listings import Lines
    from stallscope.views.charts.style import Sheet

KINDS: Final = {"lines": "the lines that take most time of their own (the default)"}
"""Every picture of lines."""
HEADS: Final = ("line", "hits", "time", "share", "own", "source")
KEY: Final = (
    "share: of a sample's time, with all that the line calls · own: without the other functions "
    "that are listed · heat: own"
)
MOST_FUNCTIONS: Final = 6
_LONGEST: Final = 100
_TITLE: Final = 200
_TABLE: Final = (
    "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0;"
    "color:inherit;font-size:inherit"  # which a page without a doctype does not do by itself
)
_CELL: Final = "padding:0 8px;text-align:right;border:none;white-space:nowrap"
_SOURCE: Final = "padding:0 8px;text-align:left;border:none;white-space:pre;font-family:monospace"
_HEAT: Final = "80"
"""Half transparent, so that a light and a dark ground both leave the text readable."""


def plot(lines: Lines, kind: str | None = None) -> Sheet:
    """Draw the picture.

    Args:
        lines: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    kinds.picture(kind, KINDS, "lines")
    from stallscope.views.charts import hotlines

    return hotlines.figure(lines)


def panel(lines: Lines, kind: str | None = None) -> Any:
    """Widgets: choose a function, see its listing; see `stallscope.views.linespanel`."""
    from stallscope.views import linespanel

    return linespanel.panel(lines, kind)


def title(lines: Lines) -> str:
    """The answer, in letters that can be shown."""
    return shown(sentence(lines), _TITLE)


def text(lines: Lines) -> str:
    """The listings for a terminal, the one with the hottest lines first."""
    parts = [title(lines), *(shown(note, 1000) for note in notes_of(lines)), ""]
    functions = in_order(lines)
    for row in functions[:MOST_FUNCTIONS]:
        parts += [shown(head(row, lines), 300), *_listed(listing(lines, row)), ""]
    return "\n".join([*parts, *_rest(functions)]).rstrip()


def html(lines: Lines) -> str:
    """The listings for a notebook; readable on a light and on a dark ground."""
    functions = in_order(lines)
    folds = "".join(
        html_listing(lines, row, is_open=not place) for place, row in enumerate(functions)
    )
    notes = "".join(html_note(note) for note in notes_of(lines))
    return f"<div class='stallscope-lines'>{html_title(title(lines))}{folds}{notes}</div>"


def html_listing(lines: Lines, function: dict[str, Any], *, is_open: bool = True) -> str:
    """One function, which opens and closes.

    Args:
        lines: what was measured.
        function: a row of `analyze.hotlines.in_order`.
        is_open: whether its listing is to be seen at once.
    """
    heads = "".join(
        f"<th scope='col' style='{_SOURCE if name == 'source' else _CELL}'>{name}</th>"
        for name in HEADS
    )
    found = listing(lines, function)
    hottest = max((one.own_share for one in found if isinstance(one, Shown)), default=0.0)
    colour = COLOURS.get(function["kind"] or "other", COLOURS["other"]) + _HEAT
    body = "".join(_html_row(one, hottest, colour) for one in found)
    return (
        f"<details{' open' if is_open else ''} style='margin:.5em 0'>"
        f"<summary>{escape(shown(head(function, lines), 300))}</summary>"
        "<div style='overflow-x:auto'>"
        f"<table style='{_TABLE}'>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def head(function: dict[str, Any], lines: Lines) -> str:
    """What stands over a listing: the function, its share, its stage, its place."""
    own = f"{share(function['own_share'] or 0.0)} of a {lines.circumstances.unit}'s time is its own"
    part = [f"{function['function']}: {own}"]
    if function["stage"] and function["stage"] != function["function"]:
        part.append(f"stage {function['stage']}")
    part.append(f"{file_name(function['file'], 60)}:{function['line']}")
    if function["why_not"]:
        part.append(f"its source is not shown: {function['why_not']}")
    return " · ".join(part)


def notes_of(lines: Lines) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = lines.circumstances
    made = count(told.samples, told.unit, "es" if told.unit == "batch" else "s")
    population = f"{made} made in one process with one thread, {seconds(told.wall_s)} in all"
    if lines.times.is_empty():
        return [f"{made} made while lines were timed", *lines.notes]
    return [f"{population} · {cost_sentence(lines.cost())}", KEY, *lines.notes]


def _rest(functions: list[dict[str, Any]]) -> Iterable[str]:
    hidden = functions[MOST_FUNCTIONS:]
    if hidden:
        names = ", ".join(shown(row["function"], 60) for row in hidden)
        yield f"not shown: {count(len(hidden), 'more function')} ({names})"


def _listed(found: list[Shown | str]) -> Iterable[str]:
    yield "{:>6} {:>9} {:>9} {:>6} {:>6}   {}".format(*HEADS)
    for one in found:
        if isinstance(one, str):
            yield f"{'':>40}   {one}"
        else:
            *cells, source = _cells(one)
            line = "{:>6} {:>9} {:>9} {:>6} {:>6}".format(*cells)
            yield f"{line}   {shown(source, _LONGEST)}".rstrip()


def _cells(one: Shown) -> tuple[str, ...]:
    if one.hits is None:
        return (str(one.line), "", "", "", "", one.source)
    return (
        str(one.line),
        f"{one.hits:,}",
        seconds(one.time_s),
        share(one.share),
        share(one.own_share),
        one.source,
    )


def _html_row(one: Shown | str, hottest: float, colour: str) -> str:
    if isinstance(one, str):
        return (
            f"<tr style='background:none'><td colspan='{len(HEADS) - 1}' style='{_CELL}'></td>"
            f"<td style='{_SOURCE};opacity:.7'>{escape(one)}</td></tr>"
        )
    *cells, source = _cells(one)
    wide = 100 * one.own_share / hottest if hottest else 0.0
    heat = f"background:linear-gradient(to right,{colour} {wide:.1f}%,transparent {wide:.1f}%)"
    weight = ";font-weight:bold" if hottest and one.own_share == hottest else ""
    return (
        "<tr style='background:none'>"
        + "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells)
        + f"<td style='{_SOURCE};{heat}{weight}'>{escape(shown(source, 200))}</td></tr>"
    )
