"""Where the names of narrow things go: over them, in as few rows as it takes, never overlapping.

Pure arithmetic in one dimension; the picture draws what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


ATTEMPTS: Final = 6


@dataclass(frozen=True)
class Placed:
    """A label that found a place."""

    at: float
    """What it names, on the axis."""
    left: float
    """Where its text begins."""
    right: float
    """Where its text ends."""
    row: int
    """0 is next to the thing."""


def place(
    wanted: Sequence[tuple[float, float]], room: tuple[float, float], *, rows: int, gap: float
) -> list[Placed | None]:
    """Find places for labels, each connected with its thing by a vertical line.

    No label lies on another one or on another one's line.

    Args:
        wanted: for each label the position of its thing and the width of its text; the most
            important one first.
        room: the ends of the axis.
        rows: how many rows there are.
        gap: free space between neighbours.

    Returns:
        For each label its place, or None where there is none.
    """
    order = list(range(len(wanted)))
    best: dict[int, Placed] = {}
    for _ in range(ATTEMPTS):
        found = _greedy([wanted[number] for number in order], room, rows=rows, gap=gap)
        placed = {number: one for number, one in zip(order, found, strict=True) if one}
        best = max(best, placed, key=len)
        order.sort(key=lambda number: number in placed)  # next time, those without a place first
        if len(best) == len(wanted):
            break
    return [best.get(number) for number in range(len(wanted))]


def _greedy(
    wanted: Sequence[tuple[float, float]], room: tuple[float, float], *, rows: int, gap: float
) -> list[Placed | None]:
    placed: list[Placed | None] = []
    for at, width in wanted:
        others = [label for label in placed if label]
        tries = _tries(at, width, rows=rows, gap=gap)
        tries.sort(key=lambda one: sum(one.left < other < one.right for other, _ in wanted))
        inside = (one for one in tries if room[0] <= one.left and one.right <= room[1])
        placed.append(next((one for one in inside if _fits(one, others, gap)), None))
    return placed


def _tries(at: float, width: float, *, rows: int, gap: float) -> list[Placed]:
    """Everywhere the label could be, from the lowest row; first to the right of its line."""
    lefts = (at - gap / 4, at + gap / 4 - width, at - width / 2)
    return [Placed(at, left, left + width, row) for row in range(rows) for left in lefts]


def _fits(one: Placed, others: list[Placed], gap: float) -> bool:
    return not any(_collide(one, other, gap) for other in others)


def _collide(one: Placed, other: Placed, gap: float) -> bool:
    if one.row == other.row:
        return one.left < other.right + gap and other.left < one.right + gap
    lower, upper = (one, other) if one.row < other.row else (other, one)
    return lower.left - gap / 2 < upper.at < lower.right + gap / 2
