"""From the samples of a recording to the table of its resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.resources import GAUGES, SHARES
from stallscope.run import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORTEST_NS: Final = 20_000_000
"""A rate over less time is noise: the kernel counts CPU time in steps of 10 ms."""

_Row = tuple[Any, ...]


def table(entries: Iterable[dict[str, Any]], *, origin_ns: int, rank: int) -> pl.DataFrame:
    """What was used, columns of `run.RESOURCES`.

    Args:
        entries: what a sampler wrote, line by line.
        origin_ns: the start of the run, from which times count.
        rank: of the process that sampled.
    """
    known = list(entries)
    limits: dict[str, dict[str, float]] = {}
    for entry in known:
        limits |= entry.get("limits", {})
    rows = [*_missing(known), *_rates(known, origin_ns)]
    full = [
        (rank, start_ns, end_ns, resource, device, value, limits.get(resource, {}).get(device))
        for start_ns, end_ns, resource, device, value in rows
    ]
    return pl.DataFrame(full, RESOURCES, orient="row", strict=False)


def notes(entries: Iterable[dict[str, Any]]) -> list[str]:
    """What the sampler had to say, in sentences."""
    return [str(entry["note"]) for entry in entries if "note" in entry]


def _missing(entries: list[dict[str, Any]]) -> Iterator[_Row]:
    for entry in entries:
        for resource in entry.get("missing", ()):
            yield 0, 0, resource, None, None


def _rates(entries: list[dict[str, Any]], origin_ns: int) -> Iterator[_Row]:
    """Each reading with the one before it: counters become rates, others stay as they are."""
    before: dict[tuple[str, str], tuple[int, float]] = {}
    for entry in entries:
        now_ns = entry.get("time_ns", 0) - origin_ns
        for resource, devices in entry.get("read", {}).items():
            for device, value in devices.items():
                then_ns, counted = before.get((resource, device), (None, 0.0))
                if then_ns is not None and now_ns - then_ns < SHORTEST_NS:
                    continue
                before[resource, device] = now_ns, value
                if then_ns is not None:
                    used = _used(resource, value, counted, (now_ns - then_ns) / 1e9)
                    yield then_ns, now_ns, resource, device, used


def _used(resource: str, value: float, before: float, seconds: float) -> float:
    if resource in GAUGES:
        return value
    rate = max(value - before, 0.0) / seconds  # a counter that wrapped says nothing
    return min(rate, 1.0) if resource in SHARES else rate
