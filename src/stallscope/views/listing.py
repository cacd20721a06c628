"""One function as the lines that are worth seeing: the hot ones, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.listings import Lines

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
