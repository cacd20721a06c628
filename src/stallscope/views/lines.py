"""Timed lines in a notebook and a terminal: listings with heat, their picture, a panel.

A long function is shown as its hot lines and the lines around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.stages import COLOURS
from stallscope.units import count, file_name, printable, share
from stallscope.verbs.lines.result import TABLE, in_order, notes_of, title
from stallscope.views.document import Document, Heading, Notes, View, fill, html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from stallscope.verbs.lines.result import Lines


_COLUMNS: Final = TABLE.shown("hits time_s share own_share")
HEADS: Final = ("line", *(column.head for column in _COLUMNS), "source")
MOST_FUNCTIONS: Final = 6
"""Listings in a terminal; a notebook has all, and opens the first."""

LONG: Final = 30
"""Lines up to which a function is shown in full."""
AROUND: Final = 2
HOT: Final = 0.01
"""Share of a sample's time below which a long listing may leave out a line."""
SHORTEST_GAP: Final = 3
TAB: Final = 4

_HEAT: Final = "80"
"""Half transparent, so that a light and a dark ground both leave the text readable."""


def document(lines: Lines) -> Document:
    """Return the listings, the one with the hottest lines first."""
    blocks = [Heading(title(lines)), Listings(lines, in_order(lines)), Notes(notes_of(lines))]
    return Document("lines", blocks)


def panel(lines: Lines) -> Any:
    """Return widgets to choose a function; the one with the hottest lines is the first."""
    from stallscope.charts.results import lines_figure
    from stallscope.views.panels import dropdown, pick, saying

    functions = in_order(lines)
    if not functions:
        return saying(title(lines))
    options = [
        (f"{printable(row['function'], 60)} ({share(row['own_share'] or 0.0)})", place)
        for place, row in enumerate(functions)
    ]
    return pick(
        lambda place: (None, html("{}", Listings(lines, [functions[place]]))),
        dropdown("Function", options, 0),
        still=lines_figure(lines),
    )


class Shown(NamedTuple):
    """A line of a listing."""

    line: int
    source: str
    """Without the indentation that all lines share; empty where there is no source."""
    own_share: float = 0.0
    cells: tuple[str, ...] = ("",) * 4
    """Hits, time, share and own share; empty for a line that never ran (a comment, another
    branch)."""


def listing(lines: Lines, function: dict[str, Any]) -> list[Shown | str]:
    """Return the lines of a function (a row of `in_order`); a sentence where some are left out."""
    all_lines = _all(lines, function["function"])
    wanted = set(range(len(all_lines)))
    if len(all_lines) > LONG:  # the first lines, the hot ones, and those around
        hottest = max(range(len(all_lines)), key=lambda place: all_lines[place].own_share)
        hot = [place for place, line in enumerate(all_lines) if line.own_share >= HOT] or [hottest]
        wanted = {near for at in [0, *hot] for near in range(at - AROUND, at + AROUND + 1)}
    shown: list[Shown | str] = []
    for is_shown, places in groupby(range(len(all_lines)), wanted.__contains__):
        part = [all_lines[place] for place in places]
        few = len(part) < SHORTEST_GAP  # leaving them out would save nothing
        shown += part if is_shown or few else [f"… {count(len(part), 'line')} not shown"]
    return shown


def _all(lines: Lines, name: str) -> list[Shown]:
    ran = {
        row["line"]: (row["own_share"] or 0.0, tuple(column.cell(row) for column in _COLUMNS))
        for row in lines.table().filter(pl.col("function") == name).iter_rows(named=True)
    }
    sources = lines.sources.filter(pl.col("function") == name)
    texts = {line: text.expandtabs(TAB) for _, line, text in sources.iter_rows()}
    texts = dict(zip(texts, dedent("\n".join(texts.values())).split("\n"), strict=False))
    return [Shown(at, texts.get(at, ""), *ran.get(at, ())) for at in sorted({*texts, *ran})]


@dataclass(frozen=True)
class Listings:
    """Functions, each of which opens and closes in a notebook; the first is open."""

    lines: Lines
    functions: Sequence[dict[str, Any]]
    """Rows of `lines.result.in_order`."""

    def __str__(self) -> str:
        form = "{:>6} {:>9} {:>9} {:>6} {:>6}   {}"
        blocks = []
        for function in self.functions[:MOST_FUNCTIONS]:
            rows = [self._head(function), form.format(*HEADS)]
            for line in listing(self.lines, function):
                if isinstance(line, str):
                    rows.append(f"{'':>40}   {line}")
                else:
                    cells = (line.line, *line.cells, printable(line.source, 100))
                    rows.append(form.format(*cells).rstrip())
            blocks.append("\n".join(rows))
        if hidden := self.functions[MOST_FUNCTIONS:]:
            names = ", ".join(printable(row["function"], 60) for row in hidden)
            blocks.append(f"not shown: {count(len(hidden), 'more function')} ({names})")
        return "\n\n".join(blocks)

    def __html__(self) -> Markup:
        listings = []
        for function in self.functions:
            rows = [
                line if isinstance(line, str) else line._replace(source=printable(line.source, 200))
                for line in listing(self.lines, function)
            ]
            hottest = max((row.own_share for row in rows if isinstance(row, Shown)), default=0.0)
            colour = COLOURS.get(function["kind"] or "other", COLOURS["other"]) + _HEAT
            listings.append((self._head(function), colour, hottest, rows))
        return fill("lines.html", heads=HEADS, listings=listings)

    def _head(self, function: dict[str, Any]) -> str:
        """Return the heading of a listing: the function, its share, its stage, its place."""
        unit = self.lines.circumstances.unit
        own = f"{share(function['own_share'] or 0.0)} of a {unit}'s time is its own"
        parts = [f"{function['function']}: {own}"]
        if function["stage"] and function["stage"] != function["function"]:
            parts.append(f"stage {function['stage']}")
        parts.append(f"{file_name(function['file'], 60)}:{function['line']}")
        if function["why_not"]:
            parts.append(f"its source is not shown: {function['why_not']}")
        return printable(" · ".join(parts), 300)


VIEW: Final = View(
    "lines",
    document,
    {"lines": ("the lines with most time of their own", "results.lines_figure")},
    {"listing": ("one function with the heat of its lines", "lines.panel")},
    lambda lines: {
        "answer": title(lines),
        "functions": in_order(lines),
        "lines": lines.table().to_dicts(),
    },
)
