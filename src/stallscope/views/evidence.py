"""The numbers behind a finding as words: what a name ends in is its unit."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.analyze.climb import times
from stallscope.units import seconds, share, size
from stallscope.views.names import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LONGEST_NAME: Final = 120
NOT_MEASURED: Final = "not measured"
_UNITS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("_bytes_per_s", lambda value: f"{size(value)}/s"),
    ("_per_s", lambda value: f"{value:,.3g}/s"),
    ("_share", share),
    ("_bytes", size),
    ("_ns", lambda value: seconds(value / 1e9)),
    ("_s", seconds),
    ("_count", lambda value: f"{value:,.3g}"),
    ("_factor", times),
)
"""The longer ends come first."""
_ENDS: Final = ("_low", "_high")
"""Of an interval: they stand beside their number."""


class Number(NamedTuple):
    """A number behind a finding."""

    name: str
    """In words."""
    value: str
    """With its unit, and with its interval where there is one."""


def numbers_of(evidence: Mapping[str, float]) -> Iterator[Number]:
    """The numbers in their order, each with its interval.

    Args:
        evidence: of a finding; a name ends in its unit, as columns of tables do.
    """
    for name, value in evidence.items():
        if name.removesuffix(_ENDS[0]).removesuffix(_ENDS[1]) in evidence and name.endswith(_ENDS):
            continue
        end, form = _unit(name)
        told = _told(value, form) + _interval(evidence, name, form)
        yield Number(shown(name.removesuffix(end).replace("_", " "), LONGEST_NAME), told)


def _unit(name: str) -> tuple[str, Callable[[float], str]]:
    """What a name ends in, and how its number is written."""
    for end, form in _UNITS:
        if name.endswith(end) and name != end:
            return end, form
    return "", lambda value: f"{value:,.3g}"


def _told(value: float | None, form: Callable[[float], str]) -> str:
    return NOT_MEASURED if value is None or isnan(value) else form(value)


def _interval(evidence: Mapping[str, float], name: str, form: Callable[[float], str]) -> str:
    low, high = (evidence.get(f"{name}{end}") for end in _ENDS)
    return "" if low is None or high is None else f" ({form(low)} to {form(high)})"
