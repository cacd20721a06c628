"""Timed lines in a notebook and a terminal: listings with heat, their picture, a panel.

A long function is shown as the lines that are worth seeing: the hot ones, and what stands around
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.lines.result import in_order, notes_of, title
from stallscope.stages import COLOURS
from stallscope.units import count, file_name, printable, seconds, share
from stallscope.views.document import Block, Document, Heading, Notes, html, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet
    from stallscope.lines.result import Lines


WHOSE: Final = "lines"
KINDS: Final = {"lines": "the lines that take most time of their own (the default)"}
PANELS: Final = {"listing": "one function with the heat of its lines (the default)"}
HEADS: Final = ("line", "hits", "time", "share", "own", "source")
MOST_FUNCTIONS: Final = 6
"""Listings in a terminal; a notebook has all, and opens the first."""

LONG: Final = 30
"""Lines; a function that has no more is shown as it is."""
AROUND: Final = 2
HOT: Final = 0.01
"""Of a sample's time: what takes less may be left out of a long listing."""
SHORTEST_GAP: Final = 3
TAB: Final = 4

_TABLE: Final = (
    "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0;"
    "color:inherit;font-size:inherit"  # which a page without a doctype does not do by itself
)
_CELL: Final = "padding:0 8px;text-align:right;border:none;white-space:nowrap"
_SOURCE: Final = "padding:0 8px;text-align:left;border:none;white-space:pre;font-family:monospace"
_HEAT: Final = "80"
"""Half transparent, so that a light and a dark ground both leave the text readable."""


def plot(lines: Lines, _kind: str = "lines") -> Sheet:
    """Draw the picture."""
    from stallscope.charts import lines as hotlines

    return hotlines.figure(lines)


def document(lines: Lines) -> Document:
    """The listings, the one with the hottest lines first."""
    functions = in_order(lines)
    listings: list[Block] = [
        Listing(lines, function, place) for place, function in enumerate(functions)
    ]
    return Document(
        "lines",
        [Heading(title(lines)), *listings, Hidden(functions), Notes(notes_of(lines))],
    )


def panel(lines: Lines, _kind: str) -> Any:
    """Give widgets to choose a function; the one with the hottest lines is the first."""
    from stallscope.views.panels import dropdown, pick, saying

    functions = in_order(lines)
    if not functions:
        return saying(title(lines))
    options = [
        (f"{printable(row['function'], 60)} ({share(row['own_share'] or 0.0)})", place)
        for place, row in enumerate(functions)
    ]
    return pick(
        lambda place: (None, join([Listing(lines, functions[place])])),
        dropdown("Function", options, 0),
        still=plot(lines),
    )


@dataclass(frozen=True)
class Shown:
    """A line of a listing."""

    line: int
    source: str
    """Without the indentation that all lines share; empty where there is no source."""
    hits: int | None = None
    """None for a line that never ran (a comment, another branch)."""
    time_s: float = 0.0
    share: float = 0.0
    own_share: float = 0.0


def listing(lines: Lines, function: dict[str, Any]) -> list[Shown | str]:
    """The lines of a function in their order; a sentence where some are left out.

    Args:
        lines: what was measured.
        function: a row of `lines.result.in_order`.
    """
    found = _all(lines, function["function"])
    if len(found) <= LONG:
        return list(found)
    wanted = _wanted(found)
    shortened: list[Shown | str] = []
    gap: list[Shown] = []
    for place, one in enumerate(found):
        if place in wanted:
            shortened += [*_gap(gap), one]
            gap = []
        else:
            gap.append(one)
    return [*shortened, *_gap(gap)]


def _all(lines: Lines, name: str) -> list[Shown]:
    table = lines.table().filter(pl.col("function") == name)
    ran = {row["line"]: row for row in table.iter_rows(named=True)}
    sources = lines.sources.filter(pl.col("function") == name)
    texts = {line: text.expandtabs(TAB) for _, line, text in sources.iter_rows()}
    indent = min((len(one) - len(one.lstrip()) for one in texts.values() if one.strip()), default=0)
    return [
        _shown(line, texts.get(line, "")[indent:], ran.get(line)) for line in sorted({*texts, *ran})
    ]


def _shown(line: int, source: str, row: dict[str, Any] | None) -> Shown:
    if row is None:
        return Shown(line, source)
    shares = (row["share"] or 0.0, row["own_share"] or 0.0)
    return Shown(line, source, row["hits"], row["time_s"], *shares)


def _wanted(found: list[Shown]) -> set[int]:
    """Places of the first lines, of the hot ones, and of those around."""
    hot = [place for place, one in enumerate(found) if one.own_share >= HOT]
    if not hot:
        hot = [max(range(len(found)), key=lambda place: found[place].own_share)]
    return {near for place in [0, *hot] for near in range(place - AROUND, place + AROUND + 1)}


def _gap(gap: list[Shown]) -> list[Shown | str]:
    """What stands for lines that are left out; so few that it saves nothing are shown."""
    if len(gap) < SHORTEST_GAP:
        return list(gap)
    return [f"… {count(len(gap), 'line')} not shown"]


@dataclass(frozen=True)
class Listing(Block):
    """One function, which opens and closes in a notebook."""

    all_lines: Lines
    function: dict[str, Any]
    """A row of `lines.result.in_order`."""
    place: int = 0
    """Among the functions: the first is open, and a terminal shows only so many."""

    def __str__(self) -> str:
        if self.place >= MOST_FUNCTIONS:
            return ""
        return "\n".join([self._head(), *self._listed()])

    def _head(self) -> str:
        return printable(head(self.function, self.all_lines), 300)

    def _listed(self) -> Iterator[str]:
        yield "{:>6} {:>9} {:>9} {:>6} {:>6}   {}".format(*HEADS)
        for line in listing(self.all_lines, self.function):
            if isinstance(line, str):
                yield f"{'':>40}   {line}"
            else:
                *cells, source = _cells(line)
                numbers = "{:>6} {:>9} {:>9} {:>6} {:>6}".format(*cells)
                yield f"{numbers}   {printable(source, 100)}".rstrip()

    def __html__(self) -> Markup:
        found = listing(self.all_lines, self.function)
        hottest = max((line.own_share for line in found if isinstance(line, Shown)), default=0.0)
        colour = COLOURS.get(self.function["kind"] or "other", COLOURS["other"]) + _HEAT
        return html(
            "<details{} style='margin:.5em 0'><summary>{}</summary>"
            "<div style='overflow-x:auto'><table style='{}'>"
            "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div></details>",
            html("" if self.place else " open"),
            self._head(),
            _TABLE,
            join(
                html("<th scope='col' style='{}'>{}</th>", style, name)
                for name, style in zip(HEADS, (*[_CELL] * 5, _SOURCE), strict=True)
            ),
            join(_row(line, hottest, colour) for line in found),
        )


def _row(line: Shown | str, hottest: float, colour: str) -> Markup:
    if isinstance(line, str):
        return html(
            "<tr style='background:none'><td colspan='{}' style='{}'></td>"
            "<td style='{};opacity:.7'>{}</td></tr>",
            len(HEADS) - 1,
            _CELL,
            _SOURCE,
            line,
        )
    *cells, source = _cells(line)
    wide = 100 * line.own_share / hottest if hottest else 0.0
    heat = f"background:linear-gradient(to right,{colour} {wide:.1f}%,transparent {wide:.1f}%)"
    weight = ";font-weight:bold" if hottest and line.own_share == hottest else ""
    return html(
        "<tr style='background:none'>{}<td style='{}'>{}</td></tr>",
        join(html("<td style='{}'>{}</td>", _CELL, cell) for cell in cells),
        f"{_SOURCE};{heat}{weight}",
        printable(source, 200),
    )


@dataclass(frozen=True)
class Hidden(Block):
    """The functions that a terminal does not list."""

    functions: Sequence[dict[str, Any]]

    def __str__(self) -> str:
        hidden = self.functions[MOST_FUNCTIONS:]
        if not hidden:
            return ""
        names = ", ".join(printable(row["function"], 60) for row in hidden)
        return f"not shown: {count(len(hidden), 'more function')} ({names})"

    def __html__(self) -> Markup:
        return html("")


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
