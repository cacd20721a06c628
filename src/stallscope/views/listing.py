"""One function as the lines that are worth seeing: the hot ones, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.names import file_name, printable
from stallscope.stages import COLOURS
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from stallscope.lines.result import Lines


HEADS: Final = ("line", "hits", "time", "share", "own", "source")
_LONGEST: Final = 100
_TABLE: Final = (
    "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0;"
    "color:inherit;font-size:inherit"  # which a page without a doctype does not do by itself
)
_CELL: Final = "padding:0 8px;text-align:right;border:none;white-space:nowrap"
_SOURCE: Final = "padding:0 8px;text-align:left;border:none;white-space:pre;font-family:monospace"
_HEAT: Final = "80"
"""Half transparent, so that a light and a dark ground both leave the text readable."""

LONG: Final = 30
"""Lines; a function that has no more is shown as it is."""
_AROUND: Final = 2
_HOT: Final = 0.01
"""Of a sample's time: what takes less may be left out of a long listing."""
_SHORTEST_GAP: Final = 3
_TAB: Final = 4


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
        function: a row of `analyze.hotlines.in_order`.
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
    texts = {line: text.expandtabs(_TAB) for _, line, text in sources.iter_rows()}
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
    hot = [place for place, one in enumerate(found) if one.own_share >= _HOT]
    if not hot:
        hot = [max(range(len(found)), key=lambda place: found[place].own_share)]
    return {near for place in [0, *hot] for near in range(place - _AROUND, place + _AROUND + 1)}


def _gap(gap: list[Shown]) -> list[Shown | str]:
    """What stands for lines that are left out; so few that it saves nothing are shown."""
    if len(gap) < _SHORTEST_GAP:
        return list(gap)
    return [f"… {count(len(gap), 'line')} not shown"]


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
        f"<summary>{escape(printable(head(function, lines), 300))}</summary>"
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
        + f"<td style='{_SOURCE};{heat}{weight}'>{escape(printable(source, 200))}</td></tr>"
    )
